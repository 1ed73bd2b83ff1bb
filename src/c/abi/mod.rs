//! The structs of `<infiniband/verbs.h>`, with the header's names.
//!
//! Sizes and offsets are those of x86-64 and arm64; assertions next to each struct check them. A struct has
//! the length of the newest header; a program that was compiled with an older one says how much of it it
//! knows. Enumerations are plain integers: a program may pass any number.

#![allow(non_camel_case_types, reason = "the names are those of the header")]
#![allow(missing_docs, reason = "the manual pages describe the fields")]

pub mod attr;
pub mod buf;
pub mod context;
pub mod device;
pub mod dm;
pub mod domain;
pub mod port;
pub mod queue;
pub mod sa;
pub mod work;

/// `pthread_mutex_t` and `pthread_cond_t`, which only a library uses. This one does not.
pub type pthread_mutex_t = [u64; 5];
/// See [`pthread_mutex_t`].
pub type pthread_cond_t = [u64; 6];

#[repr(C)]
pub struct ibv_pd {
    pub context: *mut context::ibv_context,
    pub handle: u32,
}

const _: () = assert!(size_of::<ibv_pd>() == 16);

#[cfg(test)]
mod tests;
