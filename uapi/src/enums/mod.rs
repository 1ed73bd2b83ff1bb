//! Numbers of the ABI, as types with names.
//!
//! None is a Rust `enum`, because a kernel or a device may answer with any number. All have 32 bits here,
//! even if a struct has fewer bits for them.

mod device;
mod event;
mod object;
mod port;
mod qp;
mod work;

pub use device::*;
pub use event::*;
pub use object::*;
pub use port::*;
pub use qp::*;
pub use work::*;
