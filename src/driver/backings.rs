//! What objects ask of their driver's part once they are created.
//!
//! Each function selects the driver and calls its function, as those of the data path do ([`super::data`]).

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use uverbs_uapi::handle::CqHandle;

#[cfg(feature = "c-abi")]
use super::DcTargetBacking;
#[cfg(feature = "c-abi")]
use super::contract::DcTargetBacking as _;
use super::contract::{self, Cq as _, methods::*};
use super::{CqBacking, Listed, QpBacking, SrqBacking};
use crate::command::{CommandFd, DriverData, DriverReply};
use crate::error::Result;
use crate::work::{Ece, LocalKey, Progress};

impl CqBacking {
    pub(crate) fn events(&self) -> Option<&Arc<AtomicU32>> {
        dispatch!(self, D(backing) => <D as contract::Driver>::Cq::events(backing))
    }

    /// Makes the next poll report that the queue had no room for a completion.
    pub(crate) fn overran(&self) {
        dispatch!(self, D(backing) => <D as contract::Driver>::Cq::overran(backing));
    }

    /// Asks for an event when the next completion arrives.
    pub(crate) fn arm(&self, fd: &CommandFd, cq: CqHandle, solicited_only: bool) -> Result<()> {
        dispatch!(self, D(backing) => {
            <D as contract::Driver>::Cq::arm(backing, fd, cq, solicited_only)
        })
    }
}

impl QpBacking {
    forward! {
        kernel_knows_caps() -> bool;
        query_ece() -> Option<Ece>;
        set_ece(options: u32) -> ();
        needs_replacement() -> bool;
        modify_data() -> DriverData;
        modified(reply: &DriverReply) -> ();
        begins() -> ();
        has_begun() -> ();
        close() -> ();
        sends() -> Progress;
        receives() -> Option<Progress>;
        sends_name(in_flight: Progress, key: LocalKey) -> bool;
        receives_name(in_flight: Progress, key: LocalKey) -> bool;
    }

    #[cfg(feature = "c-abi")]
    forward! {
        forget_unread() -> ();
    }
}

#[cfg(feature = "c-abi")]
impl DcTargetBacking {
    forward! {
        modify_data() -> DriverData;
        told_number(reply: &DriverReply) -> Option<u32>;
    }
}

impl SrqBacking {
    forward! {
        progress() -> Progress;
        names(in_flight: Progress, key: LocalKey) -> bool;
        is_lost() -> bool;
    }

    #[cfg(feature = "c-abi")]
    forward! {
        forget_received() -> ();
        number() -> Option<u32>;
    }
}

// A clone that is forgotten keeps what the kernel has not released, until the process ends.

impl Clone for CqBacking {
    fn clone(&self) -> Self {
        dispatch!(self, D(backing) => D::wrap(backing.clone()))
    }
}

impl Clone for QpBacking {
    fn clone(&self) -> Self {
        dispatch!(self, D(backing) => D::wrap(backing.clone()))
    }
}

impl Clone for SrqBacking {
    fn clone(&self) -> Self {
        dispatch!(self, D(backing) => D::wrap(backing.clone()))
    }
}
