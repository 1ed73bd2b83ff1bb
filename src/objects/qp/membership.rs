//! Whether a queue pair belongs to a thread domain, as types.

use std::fmt::Debug;

mod sealed {
    pub trait Sealed {}
}

/// Whether a queue pair belongs to a thread domain: [`NoDomain`] or [`InDomain`].
pub trait Membership: sealed::Sealed + Debug + Send + Sync + 'static {}

/// The queue pair belongs to no thread domain: its owner posts.
#[derive(Debug)]
pub enum NoDomain {}

/// The queue pair belongs to a thread domain: its poster also has exclusive access to the domain.
#[derive(Debug)]
pub enum InDomain {}

impl sealed::Sealed for NoDomain {}
impl sealed::Sealed for InDomain {}
impl Membership for NoDomain {}
impl Membership for InDomain {}
