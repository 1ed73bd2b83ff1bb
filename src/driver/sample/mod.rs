//! A driver to copy, built for the unit tests alone. Its [`device`] is small and in memory. It has no shared
//! receive queues, takes a destination with each request, and completes all requests, in any order.
//!
//! What a driver leaves out is refused by name. [`queues`] has its side of the queues. `objects/first_day.rs`
//! posts to them through the library's interface, and `c/first_day.rs` as C programs do.

mod device;
mod queues;
mod tests;

use std::ops::RangeInclusive;
use std::sync::Arc;

use uverbs_uapi::enums::QpType;
use uverbs_uapi::handle::{AhHandle, CqHandle, MrHandle};

pub(crate) use self::device::Device;
use self::queues::{Cq, CqBacking, QpBacking, RecvQueue, SendQueue};
use super::absent::NoRecvQueue;
use super::contract::{
    self, ContextOptions, CqParts, NewQp, NoDeviceMemory, Nothing, QpParts, ResetQp,
};
use super::kit::ledger::NumberedLedger;
use crate::command::{
    CommandFd, CreateAh, CreateCq, DriverReply, GetContext, GetContextReply, QpSpec, RegMr,
    RegMrReply,
};
use crate::device::{DriverClue, DriverId};
use crate::error::{Errno, Error, Result, Verb};
use crate::work::Operations;

/// A context's part of the device. No kernel creates objects: their handles are the device's numbers.
#[derive(Debug, Default)]
pub(crate) struct Sample(Device);

impl Sample {
    pub(crate) fn of(device: Device) -> Self {
        Self(device)
    }
}

/// Parts for tests of the objects: a completion queue, and a queue pair with room for 7 requests in each
/// queue.
pub(super) fn samples() -> (CqBacking, NewQp<SendQueue, RecvQueue, QpBacking>) {
    let device = Device::default();
    let cq = contract::Cq::backing(&Cq::new(&device, 7));
    let qp = queues::create_qp(&device, [&cq; 2], [7; 2]);
    (cq, qp)
}

impl contract::Driver for Sample {
    const ID: DriverId = DriverId(0x5a);
    const ABI_VERSIONS: RangeInclusive<u32> = 3..=4;

    type Cq = Cq;
    type SendQueue = SendQueue;
    type RecvQueue = RecvQueue;
    type SharedRecvQueue = NoRecvQueue;
    type Ah = ();
    type DeviceMemory = NoDeviceMemory;
    type QpBacking = QpBacking;
    type SrqBacking = Nothing;
    type DcTargetBacking = Nothing;
    type ThreadDomain = Nothing;

    fn has_type(transport: QpType) -> bool {
        matches!(transport, QpType::DRIVER)
    }

    fn sample_send_queue() -> Option<SendQueue> {
        Some(samples().1.send)
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

    fn get_context(fd: &CommandFd, _: ContextOptions) -> Result<(Self, GetContextReply)> {
        Ok((Self::default(), fd.execute(&GetContext::default())?))
    }

    fn reg_mr(&self, _: &CommandFd, command: RegMr) -> Result<RegMrReply> {
        let key = self.0.register(command.address, command.length);
        Ok(RegMrReply {
            handle: MrHandle(key),
            lkey: key,
            rkey: key,
            driver: DriverReply::default(),
        })
    }

    fn create_ah(&self, _: &CommandFd, _: CreateAh) -> Result<(Option<AhHandle>, ())> {
        Ok((None, ()))
    }

    fn create_cq(
        &self,
        _: &Arc<CommandFd>,
        command: CreateCq,
        _: &CqParts<'_>,
    ) -> Result<(CqHandle, Cq)> {
        let cq = Cq::new(&self.0, command.cqe);
        Ok((CqHandle(contract::Cq::backing(&cq).number), cq))
    }

    fn create_qp(
        &self,
        _: &Arc<CommandFd>,
        spec: &QpSpec,
        parts: &QpParts<'_, CqBacking, Nothing, Nothing>,
    ) -> Result<NewQp<SendQueue, RecvQueue, QpBacking>> {
        let rooms = [spec.cap.max_send_wr, spec.cap.max_recv_wr];
        if rooms.iter().any(|room| *room > NumberedLedger::MOST) {
            return Err(Error::os(Verb::CreateQp, spec.subject(), Errno::INVAL));
        }
        Ok(queues::create_qp(
            &self.0,
            [parts.send_cq, parts.recv_cq],
            rooms,
        ))
    }

    fn reset_qp(
        &self,
        fd: &Arc<CommandFd>,
        reset: ResetQp<'_, SendQueue, RecvQueue, QpBacking>,
    ) -> Result<()> {
        fd.execute(reset.command)?;
        reset.backing.reset(reset.send, reset.recv);
        Ok(())
    }
}
