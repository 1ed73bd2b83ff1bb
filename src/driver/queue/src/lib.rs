//! What stands in the rings of a device's queues, and in which order it is written and read: for a driver in
//! a process, and for an *agent* that has a queue's memory and register and nothing else, such as another
//! process or a GPU.
//!
//! There is no I/O here and no memory of its own: requests become bytes, and bytes completions.
//!
//! * [`barrier`]: order between a CPU's accesses to memory and to registers, and a device's.
//! * [`handover`]: what an agent is told of a queue.
//! * [`mlx5`]: NVIDIA's ConnectX: the formats of its rings, and posting and polling for an agent.

#![no_std]

#[cfg(test)]
extern crate std;

pub mod barrier;
pub mod handover;
pub mod mlx5;
