//! The RDMA verbs stack for Linux in pure Rust.
