//! Dynamic connections (DC): initiators are queue pairs without receives ([`super::qp`]), and targets are
//! created here.
//!
//! A target has no rings. The kernel stores its attributes and asks the device for it at the last change of
//! the state, whose answer has the number (`mlx5_ib_modify_dct` in `drivers/infiniband/hw/mlx5/qp.c`).

use std::sync::Arc;

use uverbs_uapi::enums::QpType;
use uverbs_uapi::handle::QpHandle;
use uverbs_uapi::mlx5::{self as abi, QpFlags};
use uverbs_uapi::write::ModifyQp as Change;

use super::cq::CqCore;
use super::directory::Registration;
use super::format::NUMBER;
use super::recv::Drawn;
use super::reporter::{Receiver, Reporter};
use super::srq::SrqCore;
use crate::command::{
    CommandFd, CreateQp, DriverData, DriverReply, ModifyQp, QpSpec, driver_reply,
};
use crate::driver::contract::{DcTargetBacking, DcTargetParts};
use crate::error::{Error, Result, Verb};

/// What must stay until the kernel has released a target.
#[derive(Debug)]
pub(crate) struct TargetCore {
    registration: Registration,
}

impl TargetCore {
    /// One whose messages are reported to this completion queue, and take receives from that shared queue;
    /// `None` if it has no number left.
    pub(super) fn new(cq: &CqCore, srq: Drawn) -> Option<Self> {
        let reporter = Reporter {
            recv: Receiver::Shared(srq.ledger),
            shared_ring: srq.ring,
            ..Reporter::default()
        };
        let registration = Registration::new(&cq.directory, &cq.directory, reporter)?;
        Some(Self { registration })
    }

    /// Has completions that nobody has taken go with it, as libmlx5 has it: a C program that finds one of a
    /// target that it has destroyed looks for what it has freed.
    #[cfg(feature = "c-abi")]
    pub(super) fn forget_unread(&self) {
        self.registration.forget();
    }
}

impl DcTargetBacking for TargetCore {
    #[cfg(feature = "c-abi")]
    fn modify_data(&self) -> DriverData {
        with_number()
    }

    #[cfg(feature = "c-abi")]
    fn told_number(&self, reply: &DriverReply) -> Option<u32> {
        number(reply)
    }
}

/// The number in the answer to a change. Until the last change the answer has 0, which no target's number is.
fn number(reply: &DriverReply) -> Option<u32> {
    let abi::ModifyQpResp { dctn, .. } = driver_reply(reply).ok()?;
    (1..=NUMBER).contains(&dctn).then_some(dctn)
}

/// The data of a change whose answer may have the number.
fn with_number() -> DriverData {
    DriverData::exchange::<_, abi::ModifyQpResp>(&abi::ModifyQp::default())
}

/// Creates a target that receives.
pub(super) fn create_target(
    fd: &CommandFd,
    spec: &QpSpec,
    parts: &DcTargetParts<'_, Arc<CqCore>, SrqCore>,
) -> Result<(QpHandle, u32, TargetCore)> {
    let (handle, core) = new_target(fd, spec, (parts.cq, parts.srq), parts.access_key)?;
    let number = activate(fd, spec, handle, parts.changes);
    match number {
        Ok(number) => Ok((handle, number, core)),
        Err(error) => {
            fd.abandon_with(handle, core);
            Err(error)
        }
    }
}

/// Creates a target, whose state has yet to be changed.
pub(super) fn new_target(
    fd: &CommandFd,
    spec: &QpSpec,
    (cq, srq): (&Arc<CqCore>, &SrqCore),
    access_key: u64,
) -> Result<(QpHandle, TargetCore)> {
    let core = TargetCore::new(cq, srq.drawn()).ok_or_else(|| {
        let missing = "another of the 16,777,216 numbers that a CQ has for its queue pairs";
        Error::unsupported(Verb::CreateQp, spec.subject(), missing)
    })?;
    let driver = abi::CreateQp {
        flags: QpFlags::TYPE_DCT.bits(),
        uidx: core.registration.number(),
        sq_buf_addr: access_key,
        ..Default::default()
    };
    let command = CreateQp {
        spec: QpSpec {
            qp_type: QpType::DRIVER,
            ..*spec
        },
        driver: DriverData::exchange::<_, abi::CreateQpResp>(&driver),
    };
    let (reply, core) = fd.execute_with(&command, core)?;
    Ok((reply.handle, core))
}

/// Makes the changes, and returns the number in the answer to the last one.
fn activate(fd: &CommandFd, spec: &QpSpec, handle: QpHandle, changes: [Change; 2]) -> Result<u32> {
    let change = |change: Change| {
        let command = ModifyQp {
            base: Change {
                qp_handle: handle.0,
                ..change
            },
            driver: with_number(),
        };
        fd.execute(&command)
    };
    let [first, last] = changes;
    change(first)?;
    let reply = change(last)?;
    number(&reply).ok_or_else(|| {
        let what = format!("no target's number in {:x?}", reply.as_slice());
        Error::malformed(Verb::ModifyQp, spec.subject(), what)
    })
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    /// Would catch a target whose number no peer can name.
    #[test]
    fn a_targets_number_has_24_bits_and_is_not_0() {
        let number = |dctn| {
            let reply = abi::ModifyQpResp {
                dctn,
                ..Default::default()
            };
            number(&reply.as_bytes().into())
        };
        assert_eq!([0, 0x100_0000].map(number), [None; 2]);
        assert_eq!([1, 0xff_ffff].map(number), [Some(1), Some(0xff_ffff)]);
        assert_eq!(super::number(&DriverReply::new()), None);
    }
}
