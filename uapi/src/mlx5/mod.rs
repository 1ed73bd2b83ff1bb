//! The additions of mlx5 (ConnectX) to the ABI: driver data of the core commands (`mlx5-abi.h`), and objects,
//! methods and attributes of its own (`mlx5_user_ioctl_cmds.h`, `mlx5_user_ioctl_verbs.h`).
//!
//! The formats of the rings belong to the hardware and are not here.

pub mod attr;
mod context;
mod cq;
mod device;
mod devx;
mod enums;
mod flags;
mod flow;
pub mod method;
pub mod object;
mod pd;
mod qp;
mod srq;
mod wq;

pub use context::*;
pub use cq::*;
pub use device::*;
pub use devx::*;
pub use enums::*;
pub use flags::*;
pub use flow::*;
pub use pd::*;
pub use qp::*;
pub use srq::*;
pub use wq::*;

/// ABI version of the driver; the device's sysfs file `abi_version` has the kernel's.
pub const ABI_VERSION: u32 = 1;
