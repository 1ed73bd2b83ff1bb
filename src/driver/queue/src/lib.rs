//! The contents of the rings of a device's queues, and the order in which they are written and read. Used by
//! a driver in a process, and by an *agent* that has a queue's memory and register and nothing else, such as
//! another process or a GPU.
//!
//! The package does no I/O and has no memory of its own: it turns requests into bytes, and bytes into
//! completions.
//!
//! * [`barrier`]: order between a CPU's accesses to memory and to registers, and a device's.
//! * [`handover`]: the description of a queue for an agent.
//! * [`mlx5`]: NVIDIA's ConnectX: the formats of its rings, and posting and polling for an agent.

#![no_std]

#[cfg(test)]
extern crate std;

pub mod barrier;
pub mod handover;
pub mod mlx5;
