//! The least of a driver: it opens devices and has protection domains. Built for the unit tests alone, and to
//! be copied.
//!
//! What a driver leaves out is refused by name. What comes next, in the order in which programs need it:
//! completion queues (`create_cq`, with a type of its own that implements [`contract::Cq`]), then queue
//! pairs.

#[cfg(test)]
mod tests;

use std::ops::RangeInclusive;

use uverbs_uapi::enums::QpType;

use super::absent::{NoCq, NoRecvQueue, NoSendQueue};
use super::contract::{self, ContextOptions, NoDeviceMemory, Nothing};
use crate::command::{CommandFd, GetContext, GetContextReply};
use crate::device::{DriverClue, DriverId};
use crate::error::Result;

/// What a context has of its device.
#[derive(Debug)]
pub(crate) struct Sample;

impl contract::Driver for Sample {
    const ID: DriverId = DriverId(0x5a);
    const ABI_VERSIONS: RangeInclusive<u32> = 3..=4;

    const QP_TYPES: &'static [QpType] = &[QpType::DRIVER];

    type Cq = NoCq;
    type SendQueue = NoSendQueue;
    type RecvQueue = NoRecvQueue;
    type SharedRecvQueue = NoRecvQueue;
    type Ah = ();
    type DeviceMemory = NoDeviceMemory;
    type QpBacking = Nothing;
    type SrqBacking = Nothing;
    type ThreadDomain = Nothing;

    fn is_behind(clue: &DriverClue) -> bool {
        matches!(clue, DriverClue::Bus(name) if name == "sample_core")
    }

    fn get_context(fd: &CommandFd, _: ContextOptions) -> Result<(Self, GetContextReply)> {
        Ok((Self, fd.execute(&GetContext::default())?))
    }
}
