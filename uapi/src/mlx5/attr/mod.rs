//! Attributes of mlx5's methods, and attributes that it adds to core methods, one module for each method.

mod devx;
mod flow;
mod object;
mod resource;

pub use devx::*;
pub use flow::*;
pub use object::*;
pub use resource::*;
