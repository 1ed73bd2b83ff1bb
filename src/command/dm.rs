//! Device memory, and memory regions in it.

use uverbs_uapi::handle::{DmHandle, MrHandle, PdHandle};
use uverbs_uapi::{attr, method, object};

use super::mr::RegMrReply;
use super::{Command, Malformed, Request, Spelling};
use crate::error::{Subject, Verb};

/// Allocates memory of the device's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AllocDm {
    /// Bytes.
    pub(crate) length: u64,
    /// The alignment in bytes is 2 to this power.
    pub(crate) log_align: u32,
}

impl Command for AllocDm {
    type Reply = DmHandle;
    const NATIVE: bool = true;
    const VERB: Verb = Verb::AllocDm;

    fn subject(&self) -> Subject {
        Subject::named("DM", format_args!("of {} bytes", self.length))
    }

    #[inline]
    fn encode(&self, spelling: Spelling, request: &mut Request) {
        match spelling {
            Spelling::Native => {
                request
                    .method(object::DM, method::dm::ALLOC)
                    .new_object(attr::alloc_dm::HANDLE)
                    .u64(attr::alloc_dm::LENGTH, self.length)
                    .u32(attr::alloc_dm::ALIGNMENT, self.log_align);
            }
            Spelling::Write => {}
        }
    }

    #[inline]
    fn decode(&self, _: Spelling, answer: &Request) -> Result<DmHandle, Malformed> {
        answer.new_handle(attr::alloc_dm::HANDLE).map(DmHandle)
    }
}

/// Frees device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FreeDm(pub(crate) DmHandle);

impl Command for FreeDm {
    type Reply = ();
    const NATIVE: bool = true;
    const VERB: Verb = Verb::FreeDm;

    fn subject(&self) -> Subject {
        Subject::numbered("DM", self.0.0.into())
    }

    #[inline]
    fn encode(&self, spelling: Spelling, request: &mut Request) {
        match spelling {
            Spelling::Native => {
                request
                    .method(object::DM, method::dm::FREE)
                    .handle(attr::free_dm::HANDLE, self.0.0);
            }
            Spelling::Write => {}
        }
    }

    #[inline]
    fn decode(&self, _: Spelling, _: &Request) -> Result<(), Malformed> {
        Ok(())
    }
}

/// Registers a part of device memory. Addresses in the region count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegDmMr {
    pub(crate) pd: PdHandle,
    pub(crate) dm: DmHandle,
    /// Where the part starts, in bytes.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) length: u64,
    /// Bits of `AccessFlags`; the kernel insists on `ZERO_BASED`.
    pub(crate) access: u32,
}

impl Command for RegDmMr {
    type Reply = RegMrReply;
    const NATIVE: bool = true;
    const VERB: Verb = Verb::RegDmMr;

    fn subject(&self) -> Subject {
        Subject::named(
            "MR",
            format_args!(
                "of {} bytes of DM {} in PD {}",
                self.length, self.dm.0, self.pd.0
            ),
        )
    }

    #[inline]
    fn encode(&self, spelling: Spelling, request: &mut Request) {
        use attr::reg_dm_mr as id;
        match spelling {
            Spelling::Native => {
                request
                    .method(object::MR, method::mr::DM_REG)
                    .new_object(id::HANDLE)
                    .u64(id::OFFSET, self.offset)
                    .u64(id::LENGTH, self.length)
                    .handle(id::PD_HANDLE, self.pd.0)
                    .u32(id::ACCESS_FLAGS, self.access)
                    .handle(id::DM_HANDLE, self.dm.0)
                    .output(id::RESP_LKEY, size_of::<u32>())
                    .output(id::RESP_RKEY, size_of::<u32>());
            }
            Spelling::Write => {}
        }
    }

    #[inline]
    fn decode(&self, _: Spelling, answer: &Request) -> Result<Self::Reply, Malformed> {
        use attr::reg_dm_mr as id;
        Ok(RegMrReply {
            handle: MrHandle(answer.new_handle(id::HANDLE)?),
            lkey: answer.answer(id::RESP_LKEY)?,
            rkey: answer.answer(id::RESP_RKEY)?,
        })
    }
}
