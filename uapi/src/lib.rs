//! The Linux kernel's uverbs userspace ABI as data: what a process and `/dev/infiniband/uverbsN` exchange, in
//! the kernel's layout.
//!
//! There is no I/O and no policy here. The crate `uverbs` decides which command to send, how to fall back on
//! an older kernel, and what an answer means. The data is that of Linux 7.3; comments say what older kernels
//! lack.
//!
//! # Where things are
//!
//! * [`ioctl`]: the frame of an ioctl; [`object`], [`method`] and [`attr`]: the ids in it.
//! * [`cmd`] and [`mod@write`]: the older command interface, whose structs the ioctl `INVOKE_WRITE` still
//!   carries.
//! * [`types`] and [`event`]: structs shared by several commands, records read from event files.
//! * [`enums`], [`flags`], [`handle`]: numbers with a type. The kernel may answer with a number
//!   that this crate has never seen, so none of them is a Rust `enum`.
//! * [`names`]: from numbers back to names, for traces.
//! * [`rxe`], [`mlx5`], [`efa`]: the additions of these drivers.
//! * [`nldev`]: the numbers of RDMA netlink with which devices are found.
//! * `rdma_cm`: the connection manager's device file, another ABI (feature `rdma-cm`, on by default).
//!
//! # Conventions
//!
//! Structs are named as in the kernel without `ib_uverbs_` or `rdma_ucm_`, fields exactly as in the kernel,
//! and every struct derives zerocopy's traits, so that a buffer is a struct and a struct is a buffer without
//! `unsafe`. Arrays of unknown length at the end of a kernel struct are left out: the caller appends the
//! elements. A union is its raw bytes, with methods to view them.
//!
//! A test compares the size of every struct, the offset and size of every field and the value of every number
//! with the C headers of the system.
//!
//! ```
//! use uverbs_uapi::write::AllocPd;
//! use zerocopy::IntoBytes;
//!
//! assert_eq!(AllocPd::default().as_bytes(), [0; 8]);
//! ```

#![forbid(unsafe_code)]
#![no_std]

// The kernel's `__aligned_u64` is a plain `u64` here, and addresses are cast to it. On some 32-bit hosts
// `u64` is aligned to 4, so the layouts would be wrong.
#[cfg(not(target_pointer_width = "64"))]
compile_error!("uverbs-uapi describes the ABI of 64-bit hosts only");

#[macro_use]
mod macros;

pub mod attr;
pub mod cmd;
pub mod efa;
pub mod enums;
pub mod event;
pub mod flags;
pub mod handle;
pub mod ioctl;
pub mod method;
pub mod mlx5;
pub mod names;
pub mod nldev;
pub mod object;
#[cfg(feature = "rdma-cm")]
pub mod rdma_cm;
pub mod rxe;
pub mod types;
pub mod write;
