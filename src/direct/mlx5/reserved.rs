//! Numbers that no queue pair has.

use std::fmt;
use std::ops::Range;

use zerocopy::{FromZeros, IntoBytes};

use super::layout::{
    CmdHcaCap, CmdHcaCap2, GeneralObjInCmdHdr, GeneralObjOutCmdHdr, Input, QueryHcaCapOut,
    Structure,
};
use super::refusal::CommandError;
use super::{DevxObject, Direct};
use crate::error::{Error, Result, Subject, Verb};

/// The kind of these objects, and its bit among the kinds that a device has.
const RESERVED_QPN: u64 = 0x2c;

/// Numbers that the device gives to no queue pair, until this is dropped.
///
/// Two sides that connect by the connection manager send each other the number of a queue pair, and the
/// kernel takes a number that it has recently seen from the same host for the number of an old connection. A
/// target of dynamic connections has one number for all, so each connection needs another number to send.
pub struct ReservedQpns {
    object: DevxObject,
    numbers: Range<u32>,
}

impl Direct {
    /// Reserves numbers: the smallest set that the device can reserve.
    ///
    /// # Errors
    ///
    /// [`Cause::Unsupported`](crate::Cause::Unsupported) if the device reserves none. `EREMOTEIO` if it
    /// refuses: with [`Status::NO_RES_ERR`](super::Status::NO_RES_ERR) it has none left. Manual page:
    /// `mlx5dv_reserved_qpn_alloc(3)`.
    #[doc(alias = "mlx5dv_reserved_qpn_alloc")]
    pub fn reserve_qpns(&self) -> Result<ReservedQpns> {
        Ok(self.reserve()?)
    }

    /// As [`reserve_qpns`](Self::reserve_qpns), with the device's refusal.
    pub(crate) fn reserve(&self) -> Result<ReservedQpns, CommandError> {
        /// The second set of general capabilities.
        const SECOND: u64 = 0x20;
        let subject = || Subject::the("reserved numbers");
        let general = self.capabilities()?;
        let kinds = general.get(CmdHcaCap::GENERAL_OBJ_TYPES);
        if kinds >> RESERVED_QPN & 1 == 0 {
            let what = "numbers that no queue pair has (RESERVED_QPN)";
            return Err(Error::unsupported(Verb::DevxObjCreate, subject(), what).into());
        }
        let log = granularity(&general, || self.capability(SECOND))?;
        let mut command = GeneralObjInCmdHdr::new();
        command
            .set(GeneralObjInCmdHdr::OBJ_TYPE, RESERVED_QPN)
            .set(GeneralObjInCmdHdr::LOG_OBJ_RANGE, log);
        // After the command's header, the object itself has only reserved bytes.
        let mut input = [0; 2 * size_of::<GeneralObjInCmdHdr>()];
        input[..size_of::<GeneralObjInCmdHdr>()].copy_from_slice(command.as_bytes());
        let mut answer = GeneralObjOutCmdHdr::new_zeroed();
        let object = self
            .create_object(&input, answer.as_mut_bytes())
            .map_err(|error| error.about(subject()))?;
        let first = answer.get(GeneralObjOutCmdHdr::OBJ_ID) as u32;
        let end = first.checked_add(1 << log).filter(|end| *end <= 1 << 24);
        let end = end.ok_or_else(|| {
            let what = format!("{} numbers from {first:#x} on", 1_u64 << log);
            Error::malformed(Verb::DevxObjCreate, subject(), what)
        })?;
        Ok(ReservedQpns {
            object,
            numbers: first..end,
        })
    }
}

/// How many numbers are reserved at a time, as a binary logarithm: one, of a device that has no second set of
/// capabilities to say so.
fn granularity(
    general: &CmdHcaCap,
    second: impl FnOnce() -> Result<QueryHcaCapOut>,
) -> Result<u64> {
    if general.get(CmdHcaCap::HCA_CAP_2) == 0 {
        return Ok(0);
    }
    let second = second()?;
    let second = second.inner(QueryHcaCapOut::GENERAL_2);
    Ok(second.get(CmdHcaCap2::LOG_RESERVED_QPN_GRANULARITY))
}

impl ReservedQpns {
    /// The numbers.
    pub fn numbers(&self) -> Range<u32> {
        self.numbers.clone()
    }

    /// The object of the device.
    pub fn object(&self) -> &DevxObject {
        &self.object
    }
}

impl fmt::Debug for ReservedQpns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReservedQpns").field(&self.numbers).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch a device without a second set of capabilities that is asked for it, and refuses.
    #[test]
    fn a_device_that_does_not_say_reserves_one_at_a_time() {
        let mut general = CmdHcaCap::new_zeroed();
        let refused = || {
            let subject = Subject::the("device");
            Err(Error::unsupported(Verb::DevxGeneralCmd, subject, "it"))
        };
        assert_eq!(granularity(&general, refused), Ok(0));
        general.set(CmdHcaCap::HCA_CAP_2, 1);
        assert!(granularity(&general, refused).is_err());
        let told = || {
            let mut answer = QueryHcaCapOut::new_zeroed();
            let second = answer.inner_mut(QueryHcaCapOut::GENERAL_2);
            second.set(CmdHcaCap2::LOG_RESERVED_QPN_GRANULARITY, 3);
            Ok(answer)
        };
        assert_eq!(granularity(&general, told), Ok(3));
    }
}
