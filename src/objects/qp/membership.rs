//! Whether a queue pair belongs to a thread domain, as types.

use std::fmt::Debug;

mod sealed {
    pub trait Sealed {}
}

/// Whether a queue pair belongs to a thread domain: [`NoDomain`] or [`InDomain`].
pub trait Membership: sealed::Sealed + Debug + Send + Sync + 'static {}

/// Of a queue pair that belongs to no thread domain: whoever has it posts.
#[derive(Debug)]
pub enum NoDomain {}

/// Of a queue pair that belongs to a thread domain: whoever posts has the domain to themselves as well.
#[derive(Debug)]
pub enum InDomain {}

impl sealed::Sealed for NoDomain {}
impl sealed::Sealed for InDomain {}
impl Membership for NoDomain {}
impl Membership for InDomain {}
