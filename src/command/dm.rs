//! Device memory, and memory regions in it.

use std::os::fd::OwnedFd;

use uverbs_uapi::handle::{DmHandle, MrHandle, PdHandle};
use uverbs_uapi::{attr, method, object};

use super::device::owned;
use super::mr::RegMrReply;
use super::{Command, Decode, Request, Undo, undo};
use crate::error::{Subject, Verb};

/// Allocates device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AllocDm {
    /// Bytes.
    pub(crate) length: u64,
    /// The alignment in bytes is 2 to this power.
    pub(crate) log_align: u32,
}

impl Command for AllocDm {
    type Reply = DmHandle;
    const VERB: Verb = Verb::AllocDm;
    const UNDO: Option<Undo> = Some(undo::<DmHandle>);

    fn subject(&self) -> Subject {
        Subject::named("DM", format_args!("of {} bytes", self.length))
    }

    #[inline]
    fn native(&self, request: &mut Request) -> Option<Decode<Self>> {
        request
            .method(object::DM, method::dm::ALLOC)
            .new_object(attr::alloc_dm::HANDLE)
            .u64(attr::alloc_dm::LENGTH, self.length)
            .u32(attr::alloc_dm::ALIGNMENT, self.log_align);
        Some(|_, answer| answer.new_handle(attr::alloc_dm::HANDLE).map(DmHandle))
    }
}

/// Exports the pages of device memory as a dma-buf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExportDmabuf {
    pub(crate) dm: DmHandle,
    /// The offset of the pages for mmap(2) of the command file, in bytes.
    pub(crate) offset: u64,
}

impl Command for ExportDmabuf {
    type Reply = OwnedFd;
    const VERB: Verb = Verb::ExportDmabuf;

    fn subject(&self) -> Subject {
        Subject::numbered("DM", self.dm.0.into())
    }

    #[inline]
    fn native(&self, request: &mut Request) -> Option<Decode<Self>> {
        use attr::alloc_dmabuf as id;
        request
            .method(object::DMABUF, method::dmabuf::ALLOC)
            .new_object(id::HANDLE)
            .u64(id::PGOFF, self.offset);
        Some(|_, answer| owned(answer.new_fd(id::HANDLE)?.into(), id::HANDLE))
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
    /// Bits of `Access`; the kernel requires `ZERO_BASED`.
    pub(crate) access: u32,
}

impl Command for RegDmMr {
    type Reply = RegMrReply;
    const VERB: Verb = Verb::RegDmMr;
    const UNDO: Option<Undo> = Some(undo::<MrHandle>);

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
    fn native(&self, request: &mut Request) -> Option<Decode<Self>> {
        use attr::reg_dm_mr as id;
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
        Some(|_, answer| RegMrReply::by_method(answer, [id::HANDLE, id::RESP_LKEY, id::RESP_RKEY]))
    }
}
