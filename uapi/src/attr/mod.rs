//! Attributes of each method of the ioctl interface (`include/uapi/rdma/ib_user_ioctl_cmds.h`),
//! one module for each method, named as in the kernel: `UVERBS_ATTR_CREATE_CQ_HANDLE` is
//! [`create_cq::HANDLE`].
//!
//! "Answer" marks values that the kernel fills in; an integer type is the size of the value. A "constant" is
//! always 8 bytes in [`crate::ioctl::IoctlAttr::data`], whatever its meaning; an "enumeration" has its choice
//! in the low byte of [`crate::ioctl::IoctlAttr::attr_data`] and a value that belongs to the choice. A "plain
//! file descriptor" (since Linux 6.17) may be any file, the others are uverbs objects. Flags are `u32`, or
//! `u64`, and 0 if they are left out.
//!
//! Methods with driver data also take [`crate::ioctl::UHW_IN`] and [`crate::ioctl::UHW_OUT`]; for other
//! attributes of mlx5 see [`crate::mlx5::attr`].

mod comp_cntr;
mod cq;
mod device;
mod dm;
mod flow;
mod handle;
mod mr;
mod qp;
mod srq;
mod wq;

pub use comp_cntr::*;
pub use cq::*;
pub use device::*;
pub use dm::*;
pub use flow::*;
pub use handle::*;
pub use mr::*;
pub use qp::*;
pub use srq::*;
pub use wq::*;
