//! Sets of flags. `from_bits_retain` keeps bits that are not known here.

mod cq;
mod device;
mod flow;
mod mr;
mod port;
mod qp;
mod srq;
mod work;

pub use cq::*;
pub use device::*;
pub use flow::*;
pub use mr::*;
pub use port::*;
pub use qp::*;
pub use srq::*;
pub use work::*;
