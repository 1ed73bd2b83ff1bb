//! EFA's (Amazon's Elastic Fabric Adapter) additions to the ABI: driver data of the core commands and a
//! method of its own (`efa-abi.h`).
//!
//! Keys named `mmap_key` are offsets for `mmap()` of the device file. The formats of the rings belong to the
//! hardware and are not here.

pub mod attr;
mod context;
mod cq;
mod flags;
pub mod method;
mod qp;

pub use context::*;
pub use cq::*;
pub use flags::*;
pub use qp::*;

/// ABI version of the driver; the device's sysfs file `abi_version` has the kernel's.
pub const ABI_VERSION: u32 = 1;

/// [`CreateQp::driver_qp_type`] of scalable reliable datagrams.
pub const QP_DRIVER_TYPE_SRD: u32 = 0;
