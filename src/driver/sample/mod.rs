//! The least of a driver: it opens devices and has protection domains. Built for the unit tests alone, and to
//! be copied.
//!
//! What a driver leaves out is refused by name. What comes next, in the order in which programs need it:
//! completion queues (`create_cq`, with a type of its own that implements [`contract::Cq`]), then queue
//! pairs.

mod queue;
#[cfg(test)]
mod tests;

use std::ops::RangeInclusive;

pub(crate) use self::queue::{Receives, Sends};
use super::absent::{NoCq, NoRecvQueue};
use super::contract::{self, NoDeviceMemory, Nothing};
use crate::command::{CommandFd, GetContext, GetContextReply};
use crate::device::{DriverClue, DriverId};
use crate::error::Result;

/// What a context has of its device.
#[derive(Debug)]
pub(crate) struct Sample;

impl contract::Driver for Sample {
    const ID: DriverId = DriverId(0x5a);
    const ABI_VERSIONS: RangeInclusive<u32> = 3..=4;
    #[cfg(feature = "c-abi")]
    const REFUSALS: contract::Refusals = contract::Refusals {
        long_request: crate::error::Errno::INVAL,
        by_functions: crate::error::Errno::NOMEM,
        unknown: crate::error::Errno::INVAL,
        bad_atomics: false,
        negative_counts: false,
        early_sends: false,
        advice: false,
        poll_attributes: false,
    };

    type Cq = NoCq;
    type SendQueue = Sends;
    type RecvQueue = Receives;
    type SharedRecvQueue = NoRecvQueue;
    type Ah = ();
    type DeviceMemory = NoDeviceMemory;
    type QpBacking = Nothing;
    type SrqBacking = Nothing;
    type ThreadDomain = Nothing;

    fn sample_send_queue() -> Option<Sends> {
        Some(Sends::default())
    }

    fn is_behind(clue: &DriverClue) -> bool {
        matches!(clue, DriverClue::Bus(name) if name == "sample_core")
    }

    fn get_context(fd: &CommandFd, _: bool) -> Result<(Self, GetContextReply)> {
        Ok((Self, fd.execute(&GetContext::default())?))
    }
}
