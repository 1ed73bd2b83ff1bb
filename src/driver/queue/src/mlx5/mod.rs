//! The queues of NVIDIA's ConnectX.

pub mod agent;
pub mod format;
