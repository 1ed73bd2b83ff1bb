//! Parts that drivers of hardware share. No part knows a device.
//!
//! - [`memory`]: rings and doorbell records in this side's memory.
//! - [`map`]: rings and registers that the kernel allocates.
//! - [`barrier`]: memory order towards a device, from the package that agents use too.
//! - [`ledger`]: ids of posted requests, which posters and pollers share without a lock. A request is named
//!   by its place in a ring: in order, out of order, or of a shared queue; or by a number, in any order.
//! - [`directory`]: which queue a completion belongs to, if the completion names it by a number.
//! - [`copy`]: copies into write-combining memory.
//! - [`turn`]: the lock of a register that several queues share.
//! - [`gate`]: for what a poller rarely does in the poster's stead.
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
