//! DMA handles, and memory regions that the device reaches with their hints.

use uverbs_uapi::handle::{DmahHandle, MrHandle};
use uverbs_uapi::{attr, method, object};

use super::mr::{RegMr, RegMrReply};
use super::{Command, Decode, Request, Undo, undo};
use crate::error::{Subject, Verb};

/// Allocates a DMA handle; the device chooses what is left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AllocDmah {
    /// The CPU whose cache should get the data.
    pub(crate) cpu: Option<u32>,
    /// The kind of memory: 0 volatile, 1 persistent.
    pub(crate) memory: Option<u8>,
    /// The processing hint, 2 bits.
    pub(crate) hint: Option<u8>,
}

impl Command for AllocDmah {
    type Reply = DmahHandle;
    const VERB: Verb = Verb::AllocDmah;
    const UNDO: Option<Undo> = Some(undo::<DmahHandle>);

    fn subject(&self) -> Subject {
        Subject::the("DMA handle")
    }

    #[inline]
    fn native(&self, request: &mut Request) -> Option<Decode<Self>> {
        use attr::alloc_dmah as id;
        request
            .method(object::DMAH, method::dmah::ALLOC)
            .new_object(id::HANDLE);
        if let Some(cpu) = self.cpu {
            request.u32(id::CPU_ID, cpu);
        }
        if let Some(memory) = self.memory {
            request.choice(id::TPH_MEM_TYPE, memory);
        }
        if let Some(hint) = self.hint {
            request.input(id::PH, &hint);
        }
        Some(|_, answer| answer.new_handle(attr::alloc_dmah::HANDLE).map(DmahHandle))
    }
}

/// Registers memory that the device reaches with the hints of a DMA handle. Unlike [`RegMr`] alone it uses
/// the method `REG_MR`: the write command cannot name a DMA handle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RegMrDmah {
    pub(crate) region: RegMr,
    pub(crate) dmah: DmahHandle,
}

impl Command for RegMrDmah {
    type Reply = RegMrReply;
    const VERB: Verb = Verb::RegMr;
    const UNDO: Option<Undo> = Some(undo::<MrHandle>);

    fn subject(&self) -> Subject {
        self.region.subject()
    }

    #[inline]
    fn native(&self, request: &mut Request) -> Option<Decode<Self>> {
        use attr::reg_mr as id;
        let RegMr {
            pd,
            address,
            length,
            iova,
            access,
            ..
        } = self.region;
        request
            .method(object::MR, method::mr::REG)
            .new_object(id::HANDLE)
            .handle(id::PD_HANDLE, pd.0)
            .handle(id::DMA_HANDLE, self.dmah.0)
            .u64(id::IOVA, iova)
            .u64(id::ADDR, address)
            .u64(id::LENGTH, length)
            .u32(id::ACCESS_FLAGS, access)
            .output(id::RESP_LKEY, size_of::<u32>())
            .output(id::RESP_RKEY, size_of::<u32>());
        Some(|_, answer| RegMrReply::by_method(answer, [id::HANDLE, id::RESP_LKEY, id::RESP_RKEY]))
    }
}
