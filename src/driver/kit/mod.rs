//! Parts that drivers of hardware share. No part knows a device.
//!
//! - [`memory`]: rings and doorbell records of this side's.
//! - [`map`]: rings and registers that the kernel gives out.
//! - [`barrier`]: memory order towards a device, of the package that agents use as well.
//! - [`ledger`]: ids of posted requests, which posters and pollers share without a lock, where a ring's
//!   places name them: in order, out of order, of shared queues; or where numbers do, in any order.
//! - [`directory`]: which queue a completion belongs to, where it names it by a number.
//! - [`copy`]: copies into write-combining memory.
//! - [`turn`]: the lock of a register that several queues share.
//! - [`gate`]: for what a poller rarely does in the poster's place.
//! - [`sync`]: atomics and locks, which are loom's in the models.

pub(crate) mod copy;
pub(crate) mod directory;
pub(crate) mod gate;
pub(crate) mod ledger;
pub(crate) mod map;
pub(crate) mod memory;
pub(crate) mod sync;
pub(crate) mod turn;

#[allow(
    unused_imports,
    reason = "not every driver's device reads memory of this side's"
)]
pub(crate) use uverbs_queue::barrier;
