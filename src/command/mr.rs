//! Memory regions.

use std::os::fd::RawFd;

use uverbs_uapi::enums::AdviseMrAdvice;
use uverbs_uapi::flags::AdviseMrFlags;
use uverbs_uapi::handle::{MrHandle, PdHandle};
use uverbs_uapi::types::Sge;
use uverbs_uapi::{attr, cmd, method, object, write as abi};

use super::{
    Command, Decode, DriverData, DriverReply, Malformed, Request, Undo, nothing, response, undo,
};
use crate::error::{Subject, Verb};

/// Registers a range of the process's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RegMr {
    pub(crate) pd: PdHandle,
    /// The first byte, in this process.
    pub(crate) address: u64,
    /// Bytes.
    pub(crate) length: u64,
    /// The address of the first byte for work requests and peers.
    pub(crate) iova: u64,
    /// Bits of `Access`.
    pub(crate) access: u32,
    pub(crate) driver: DriverData,
}

/// A new memory region and its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RegMrReply {
    pub(crate) handle: MrHandle,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
    pub(crate) driver: DriverReply,
}

impl RegMrReply {
    /// As a method returns it, in the attributes for handle, lkey and rkey.
    pub(super) fn by_method(
        answer: &Request,
        [handle, lkey, rkey]: [u16; 3],
    ) -> Result<Self, Malformed> {
        Ok(Self {
            handle: MrHandle(answer.new_handle(handle)?),
            lkey: answer.answer(lkey)?,
            rkey: answer.answer(rkey)?,
            driver: DriverReply::new(),
        })
    }
}

impl Command for RegMr {
    type Reply = RegMrReply;
    const VERB: Verb = Verb::RegMr;
    const UNDO: Option<Undo> = Some(undo::<MrHandle>);

    fn subject(&self) -> Subject {
        Subject::named(
            "MR",
            format_args!(
                "of {} bytes at {:#x} in PD {}",
                self.length, self.address, self.pd.0
            ),
        )
    }

    // Linux 7.2 has a method for it, MR.REG. But it leaves the I/O virtual address and the length of the
    // kernel's own region unset, which rxe checks accesses against: such a region can be made but not used
    // (tests/verbs/native_mr.rs would notice a change). The write command sets them, and every kernel has it.
    #[inline]
    fn write(&self, request: &mut Request) -> Option<Decode<Self>> {
        let core = abi::RegMr {
            start: self.address,
            length: self.length,
            hca_va: self.iova,
            pd_handle: self.pd.0,
            access_flags: self.access,
            ..Default::default()
        };
        request
            .write_command::<_, abi::RegMrResp>(cmd::REG_MR, &core)
            .driver(&self.driver);
        Some(|command, answer| {
            let abi::RegMrResp {
                mr_handle,
                lkey,
                rkey,
                ..
            } = answer.response()?;
            Ok(RegMrReply {
                handle: MrHandle(mr_handle),
                lkey,
                rkey,
                driver: answer.driver_reply(&command.driver),
            })
        })
    }
}

/// Registers a part of a dma-buf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RegDmabufMr {
    pub(crate) pd: PdHandle,
    pub(crate) fd: RawFd,
    /// Where the part starts in the dma-buf, in bytes.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) length: u64,
    /// The address of the first byte for work requests and peers.
    pub(crate) iova: u64,
    /// Bits of `Access`.
    pub(crate) access: u32,
    pub(crate) driver: DriverData,
}

impl Command for RegDmabufMr {
    type Reply = RegMrReply;
    const VERB: Verb = Verb::RegDmabufMr;
    const UNDO: Option<Undo> = Some(undo::<MrHandle>);

    fn subject(&self) -> Subject {
        Subject::named(
            "MR",
            format_args!(
                "of {} bytes of dma-buf {} in PD {}",
                self.length, self.fd, self.pd.0
            ),
        )
    }

    #[inline]
    fn native(&self, request: &mut Request) -> Option<Decode<Self>> {
        use attr::reg_dmabuf_mr as id;
        request
            .method(object::MR, method::mr::REG_DMABUF)
            .new_object(id::HANDLE)
            .handle(id::PD_HANDLE, self.pd.0)
            .u64(id::OFFSET, self.offset)
            .u64(id::LENGTH, self.length)
            .u64(id::IOVA, self.iova)
            // The kernel reads this attribute as a number and not as a file descriptor.
            .u32(id::FD, self.fd as u32)
            .u32(id::ACCESS_FLAGS, self.access)
            .output(id::RESP_LKEY, size_of::<u32>())
            .output(id::RESP_RKEY, size_of::<u32>())
            .driver(&self.driver);
        Some(|_, answer| RegMrReply::by_method(answer, [id::HANDLE, id::RESP_LKEY, id::RESP_RKEY]))
    }
}

/// Changes a memory region. The command is its own ABI struct: `flags` says which fields are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReregMr(pub(crate) abi::ReregMr);

impl Command for ReregMr {
    /// The region's keys after the change.
    type Reply = abi::ReregMrResp;
    const VERB: Verb = Verb::ReregMr;

    fn subject(&self) -> Subject {
        Subject::numbered("MR", self.0.mr_handle.into())
    }

    #[inline]
    fn write(&self, request: &mut Request) -> Option<Decode<Self>> {
        request.write_command::<_, abi::ReregMrResp>(cmd::REREG_MR, &self.0);
        Some(response)
    }
}

/// Queries a memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueryMr(pub(crate) MrHandle);

/// The data about a memory region that the kernel's core has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueryMrReply {
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
    /// Bytes.
    pub(crate) length: u64,
    /// The address of the first byte for work requests and peers.
    pub(crate) iova: u64,
}

impl Command for QueryMr {
    type Reply = QueryMrReply;
    const VERB: Verb = Verb::QueryMr;

    fn subject(&self) -> Subject {
        Subject::numbered("MR", self.0.0.into())
    }

    #[inline]
    fn native(&self, request: &mut Request) -> Option<Decode<Self>> {
        use attr::query_mr as id;
        request
            .method(object::MR, method::mr::QUERY)
            .handle(id::HANDLE, self.0.0)
            .output(id::RESP_LKEY, size_of::<u32>())
            .output(id::RESP_RKEY, size_of::<u32>())
            .output(id::RESP_LENGTH, size_of::<u64>())
            .output(id::RESP_IOVA, size_of::<u64>());
        Some(|_, answer| {
            Ok(QueryMrReply {
                lkey: answer.answer(id::RESP_LKEY)?,
                rkey: answer.answer(id::RESP_RKEY)?,
                length: answer.answer(id::RESP_LENGTH)?,
                iova: answer.answer(id::RESP_IOVA)?,
            })
        })
    }
}

/// Gives advice about parts of memory regions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AdviseMr {
    pub(crate) pd: PdHandle,
    pub(crate) advice: AdviseMrAdvice,
    pub(crate) flags: AdviseMrFlags,
    pub(crate) parts: Vec<Sge>,
}

impl AdviseMr {
    /// The most parts that one attribute can hold.
    pub(crate) const MAX: usize = u16::MAX as usize / size_of::<Sge>();
}

impl Command for AdviseMr {
    type Reply = ();
    const VERB: Verb = Verb::AdviseMr;

    fn subject(&self) -> Subject {
        Subject::named("MRs", format_args!("in PD {}", self.pd.0))
    }

    #[inline]
    fn native(&self, request: &mut Request) -> Option<Decode<Self>> {
        use attr::advise_mr as id;
        request
            .method(object::MR, method::mr::ADVISE)
            .handle(id::PD_HANDLE, self.pd.0)
            .constant(id::ADVICE, self.advice.0.into())
            .u32(id::FLAGS, self.flags.bits())
            .array(id::SGE_LIST, &self.parts);
        Some(nothing)
    }
}
