//! The RDMA verbs stack for Linux in pure Rust.

mod error;
mod gid;
mod guid;

pub use error::{Cause, DestroyError, Errno, Error, Result, Subject, Verb};
pub use gid::Gid;
pub use guid::{Guid, ParseGuidError};
