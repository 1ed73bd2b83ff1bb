//! DMA handles, and memory regions that the device reaches with their hints.

use uverbs_uapi::handle::{DmahHandle, MrHandle};
use uverbs_uapi::{attr, method, object};

use super::mr::{RegMr, RegMrReply};
use super::{Command, Malformed, Request, Spelling};
use crate::error::{Subject, Verb};

/// Allocates a DMA handle; what is left out is the device's choice.
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
    const NATIVE: bool = true;
    const VERB: Verb = Verb::AllocDmah;

    fn subject(&self) -> Subject {
        Subject::the("DMA handle")
    }

    fn encode(&self, spelling: Spelling, request: &mut Request) {
        use attr::alloc_dmah as id;
        match spelling {
            Spelling::Native => {
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
            }
            Spelling::Write => {}
        }
    }

    fn decode(&self, _: Spelling, answer: &Request) -> Result<DmahHandle, Malformed> {
        answer.new_handle(attr::alloc_dmah::HANDLE).map(DmahHandle)
    }
}

/// Frees a DMA handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FreeDmah(pub(crate) DmahHandle);

impl Command for FreeDmah {
    type Reply = ();
    const NATIVE: bool = true;
    const VERB: Verb = Verb::FreeDmah;

    fn subject(&self) -> Subject {
        Subject::numbered("DMA handle", self.0.0.into())
    }

    fn encode(&self, spelling: Spelling, request: &mut Request) {
        match spelling {
            Spelling::Native => {
                request
                    .method(object::DMAH, method::dmah::FREE)
                    .handle(attr::free_dmah::HANDLE, self.0.0);
            }
            Spelling::Write => {}
        }
    }

    fn decode(&self, _: Spelling, _: &Request) -> Result<(), Malformed> {
        Ok(())
    }
}

/// Registers memory that the device reaches with the hints of a DMA handle. Unlike [`RegMr`] by itself it goes by the method
/// `REG_MR`: the write command cannot name a DMA handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegMrDmah {
    pub(crate) region: RegMr,
    pub(crate) dmah: DmahHandle,
}

impl Command for RegMrDmah {
    type Reply = RegMrReply;
    const NATIVE: bool = true;
    const VERB: Verb = Verb::RegMr;

    fn subject(&self) -> Subject {
        self.region.subject()
    }

    fn encode(&self, spelling: Spelling, request: &mut Request) {
        use attr::reg_mr as id;
        let RegMr {
            pd,
            address,
            length,
            iova,
            access,
        } = self.region;
        match spelling {
            Spelling::Native => {
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
            }
            Spelling::Write => {}
        }
    }

    fn decode(&self, _: Spelling, answer: &Request) -> Result<RegMrReply, Malformed> {
        use attr::reg_mr as id;
        Ok(RegMrReply {
            handle: MrHandle(answer.new_handle(id::HANDLE)?),
            lkey: answer.answer(id::RESP_LKEY)?,
            rkey: answer.answer(id::RESP_RKEY)?,
        })
    }
}
