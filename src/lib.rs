//! The RDMA verbs stack for Linux in pure Rust.

mod command;
mod device;
mod error;
mod gid;
mod guid;

pub use command::Route;
pub use device::{
    Device, Discovery, DriverId, GidTableEntry, Netdev, NodeType, PhysicalState, Port, PortState,
    devices, find,
};
pub use error::{Cause, DestroyError, Errno, Error, Result, Subject, Verb};
pub use gid::{Gid, GidType};
pub use guid::{Guid, ParseGuidError};
