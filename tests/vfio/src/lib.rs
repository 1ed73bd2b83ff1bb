//! The half of a PCI function made of software that is the same for every device.
//!
//! QEMU's device `vfio-user-pci` connects to a socket of [`server`]. From there the function has its accesses
//! ([`server::Backend`]), the guest's memory ([`memory`]) and interrupts ([`interrupt`]). What it is, the
//! configuration space says ([`pci`]). The other half of the crate is for tests: rules that were broken
//! ([`report`]), what the device fetches ([`tap`]), a channel for requests that no driver could make
//! ([`control`]), and faults by name ([`fault`]).
//!
//! `tests/connectx` and `tests/efa` are made with it.

pub mod clock;
pub mod control;
pub mod fault;
pub mod interrupt;
pub mod memory;
pub mod pci;
pub mod report;
pub mod server;
pub mod sockets;
pub mod table;
pub mod tap;
