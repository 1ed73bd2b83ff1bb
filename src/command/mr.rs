//! Memory regions.

use uverbs_uapi::handle::{MrHandle, PdHandle};
use uverbs_uapi::{cmd, write as abi};

use super::{Command, Malformed, Request, Spelling};
use crate::error::{Subject, Verb};

/// Registers a range of the process's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegMr {
    pub(crate) pd: PdHandle,
    /// The first byte, in this process.
    pub(crate) address: u64,
    /// Bytes.
    pub(crate) length: u64,
    /// The address by which work requests and peers name the first byte.
    pub(crate) iova: u64,
    /// Bits of `AccessFlags`.
    pub(crate) access: u32,
}

/// A new memory region and its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegMrReply {
    pub(crate) handle: MrHandle,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

impl Command for RegMr {
    type Reply = RegMrReply;
    const VERB: Verb = Verb::RegMr;

    fn subject(&self) -> Subject {
        Subject::named(
            "MR",
            format_args!(
                "of {} bytes at {:#x} in PD {}",
                self.length, self.address, self.pd.0
            ),
        )
    }

    fn encode(&self, spelling: Spelling) -> Option<Request> {
        match spelling {
            // Linux 7.2 has a method for it, MR.REG. But it leaves the I/O virtual address and the length of
            // the kernel's own region unset, which rxe checks accesses against: such a region can be made
            // and not be used. The write command sets them, and every kernel has it.
            Spelling::Native => None,
            Spelling::Write => {
                let core = abi::RegMr {
                    start: self.address,
                    length: self.length,
                    hca_va: self.iova,
                    pd_handle: self.pd.0,
                    access_flags: self.access,
                    ..Default::default()
                };
                Some(Request::write_command::<_, abi::RegMrResp>(
                    cmd::REG_MR,
                    &core,
                ))
            }
        }
    }

    fn decode(&self, _: Spelling, answer: &Request) -> Result<Self::Reply, Malformed> {
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
        })
    }
}
