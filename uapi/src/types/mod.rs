//! Structs that several commands share (`ib_user_verbs.h`, `ib_user_ioctl_verbs.h`).

mod address;
mod buffer;
mod device;
mod flow_action;
mod port;
mod qp;
mod work;

pub use address::*;
pub use buffer::*;
pub use device::*;
pub use flow_action::*;
pub use port::*;
pub use qp::*;
pub use work::*;
