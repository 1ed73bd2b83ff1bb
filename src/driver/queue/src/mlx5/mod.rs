//! The queues of NVIDIA's ConnectX.

pub mod agent;
pub mod format;

/// The kernel's number of the driver (`RDMA_DRIVER_MLX5`).
pub const DRIVER: u32 = 1;
