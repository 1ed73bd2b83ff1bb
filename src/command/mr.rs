//! Memory regions.

use uverbs_uapi::handle::{MrHandle, PdHandle};
use uverbs_uapi::{attr, cmd, method, object, write as abi};

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

/// Asks for the keys and the range of a region that may have been registered by others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueryMr(pub(crate) MrHandle);

/// What the kernel knows of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueryMrReply {
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
    /// Bytes.
    pub(crate) length: u64,
    /// The address by which work requests and peers name the first byte; Linux before 5.13 does not tell.
    pub(crate) iova: Option<u64>,
}

impl Command for QueryMr {
    type Reply = QueryMrReply;
    const VERB: Verb = Verb::QueryMr;

    fn subject(&self) -> Subject {
        Subject::numbered("MR", self.0.0.into())
    }

    fn encode(&self, spelling: Spelling) -> Option<Request> {
        match spelling {
            Spelling::Native => Some(
                Request::method(object::MR, method::mr::QUERY)
                    .handle(attr::query_mr::HANDLE, self.0.0)
                    .output(attr::query_mr::RESP_LKEY, size_of::<u32>())
                    .output(attr::query_mr::RESP_RKEY, size_of::<u32>())
                    .output(attr::query_mr::RESP_LENGTH, size_of::<u64>())
                    .output(attr::query_mr::RESP_IOVA, size_of::<u64>()),
            ),
            // The number of the write command exists, and no kernel ever had the command.
            Spelling::Write => None,
        }
    }

    fn decode(&self, _: Spelling, answer: &Request) -> Result<Self::Reply, Malformed> {
        Ok(QueryMrReply {
            lkey: answer.answer(attr::query_mr::RESP_LKEY)?,
            rkey: answer.answer(attr::query_mr::RESP_RKEY)?,
            length: answer.answer(attr::query_mr::RESP_LENGTH)?,
            iova: answer.answer(attr::query_mr::RESP_IOVA).ok(),
        })
    }
}
