//! The RDMA verbs stack for Linux in pure Rust.

mod error;

pub use error::{Cause, DestroyError, Errno, Error, Result, Subject, Verb};
