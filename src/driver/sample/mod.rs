//! A driver to copy, built for the unit tests alone: of a small [`device`] in memory that has no shared
//! receive queues, takes a destination with each request, and completes requests in any order, all of them.
//!
//! What a driver leaves out is refused by name. Here these are still `create_cq` and `create_qp`: [`queues`]
//! has what they are to give out, and [`traffic`] tests it. [`queue`] has careless queues for tests of the
//! objects.

mod device;
mod queue;
mod queues;
mod tests;
mod traffic;

use std::ops::RangeInclusive;

use uverbs_uapi::enums::QpType;
use uverbs_uapi::handle::MrHandle;

pub(crate) use self::queue::{Receives, Sends};
use super::absent::{NoCq, NoRecvQueue};
use super::contract::{self, ContextOptions, NoDeviceMemory, Nothing};
use crate::command::{CommandFd, DriverReply, GetContext, GetContextReply, RegMr, RegMrReply};
use crate::device::{DriverClue, DriverId};
use crate::error::Result;
use crate::work::Operations;

/// What a context has of its device.
#[derive(Debug, Default)]
pub(crate) struct Sample(device::Device);

impl contract::Driver for Sample {
    const ID: DriverId = DriverId(0x5a);
    const ABI_VERSIONS: RangeInclusive<u32> = 3..=4;

    const QP_TYPES: &'static [QpType] = &[QpType::DRIVER];

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

    fn operations(&self, transport: QpType) -> Operations {
        match transport {
            QpType::DRIVER => {
                Operations::SEND | Operations::SEND_IMM | Operations::WRITE | Operations::READ
            }
            _ => Operations::empty(),
        }
    }

    /// The device is told of the memory; there is no kernel that would.
    fn reg_mr(&self, _: &CommandFd, command: RegMr) -> Result<RegMrReply> {
        let key = self.0.register(command.address, command.length);
        Ok(RegMrReply {
            handle: MrHandle(key),
            lkey: key,
            rkey: key,
            driver: DriverReply::default(),
        })
    }

    fn get_context(fd: &CommandFd, _: ContextOptions) -> Result<(Self, GetContextReply)> {
        Ok((Self::default(), fd.execute(&GetContext::default())?))
    }
}
