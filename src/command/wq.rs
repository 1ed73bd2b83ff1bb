//! Receive work queues, and the tables that spread packets over them.

use std::os::fd::RawFd;

use smallvec::SmallVec;
use uverbs_uapi::enums::WqType;
use uverbs_uapi::flags::WqFlags;
use uverbs_uapi::handle::{CqHandle, PdHandle, RwqIndTblHandle, WqHandle};
use uverbs_uapi::{attr, cmd, method, object, write as abi};
use zerocopy::IntoBytes;

use super::request::DriverReply;
use super::{Command, DriverData, Malformed, Request, Spelling};
use crate::error::{Subject, Verb};

/// Creates a work queue of the receive kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CreateWq {
    pub(crate) pd: PdHandle,
    pub(crate) cq: CqHandle,
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) flags: WqFlags,
    /// What asynchronous events carry.
    pub(crate) user_handle: u64,
    /// Where asynchronous events go, if not to the context's first such file.
    pub(crate) event_fd: Option<RawFd>,
    pub(crate) driver: DriverData,
}

/// A new work queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CreateWqReply {
    pub(crate) handle: WqHandle,
    pub(crate) wqn: u32,
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) driver: DriverReply,
}

impl CreateWq {
    fn native(&self, request: &mut Request) {
        use attr::create_wq as id;
        request
            .method(object::WQ, method::wq::CREATE)
            .new_object(id::HANDLE)
            .handle(id::PD_HANDLE, self.pd.0)
            .handle(id::CQ_HANDLE, self.cq.0)
            .u64(id::USER_HANDLE, self.user_handle)
            .constant(id::TYPE, WqType::RQ.0.into())
            .u32(id::MAX_WR, self.max_wr)
            .u32(id::MAX_SGE, self.max_sge)
            .u32(id::FLAGS, self.flags.bits())
            .output(id::RESP_MAX_WR, size_of::<u32>())
            .output(id::RESP_MAX_SGE, size_of::<u32>())
            .output(id::RESP_WQ_NUM, size_of::<u32>());
        if let Some(fd) = self.event_fd {
            request.fd(id::EVENT_FD, fd);
        }
    }

    fn extended(&self, request: &mut Request) {
        let core = abi::ExCreateWq {
            wq_type: WqType::RQ.0,
            user_handle: self.user_handle,
            pd_handle: self.pd.0,
            cq_handle: self.cq.0,
            max_wr: self.max_wr,
            max_sge: self.max_sge,
            create_flags: self.flags.bits(),
            ..Default::default()
        };
        request.write_command::<_, abi::ExCreateWqResp>(cmd::EX_CREATE_WQ, &core);
    }
}

impl Command for CreateWq {
    type Reply = CreateWqReply;
    const NATIVE: bool = true;
    const VERB: Verb = Verb::CreateWq;

    fn subject(&self) -> Subject {
        Subject::named(
            "WQ",
            format_args!("of {} requests in PD {}", self.max_wr, self.pd.0),
        )
    }

    #[inline]
    fn encode(&self, spelling: Spelling, request: &mut Request) {
        match spelling {
            Spelling::Native => self.native(request),
            Spelling::Write => self.extended(request),
        }
        request.driver(&self.driver);
    }

    #[inline]
    fn decode(&self, spelling: Spelling, answer: &Request) -> Result<Self::Reply, Malformed> {
        use attr::create_wq as id;
        let (handle, wqn, max_wr, max_sge) = match spelling {
            Spelling::Native => (
                answer.new_handle(id::HANDLE)?,
                answer.answer(id::RESP_WQ_NUM)?,
                answer.answer(id::RESP_MAX_WR)?,
                answer.answer(id::RESP_MAX_SGE)?,
            ),
            Spelling::Write => {
                let abi::ExCreateWqResp {
                    wq_handle,
                    wqn,
                    max_wr,
                    max_sge,
                    ..
                } = answer.response()?;
                (wq_handle, wqn, max_wr, max_sge)
            }
        };
        Ok(CreateWqReply {
            handle: WqHandle(handle),
            wqn,
            max_wr,
            max_sge,
            driver: answer.driver_reply(&self.driver),
        })
    }
}

/// Changes a work queue. The command is its own ABI struct: `attr_mask` says which fields count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModifyWq {
    pub(crate) core: abi::ExModifyWq,
    pub(crate) driver: DriverData,
}

impl Command for ModifyWq {
    type Reply = ();
    const NATIVE: bool = false;
    const VERB: Verb = Verb::ModifyWq;

    fn subject(&self) -> Subject {
        Subject::numbered("WQ", self.core.wq_handle.into())
    }

    #[inline]
    fn encode(&self, spelling: Spelling, request: &mut Request) {
        match spelling {
            Spelling::Native => {}
            Spelling::Write => {
                request
                    .write_command::<_, ()>(cmd::EX_MODIFY_WQ, &self.core)
                    .driver(&self.driver);
            }
        }
    }

    #[inline]
    fn decode(&self, _: Spelling, _: &Request) -> Result<(), Malformed> {
        Ok(())
    }
}

/// Destroys a work queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DestroyWq(pub(crate) WqHandle);

impl Command for DestroyWq {
    /// How many asynchronous events of the WQ were read.
    type Reply = u32;
    const NATIVE: bool = true;
    const VERB: Verb = Verb::DestroyWq;

    fn subject(&self) -> Subject {
        Subject::numbered("WQ", self.0.0.into())
    }

    #[inline]
    fn encode(&self, spelling: Spelling, request: &mut Request) {
        use attr::destroy_wq as id;
        match spelling {
            Spelling::Native => request
                .method(object::WQ, method::wq::DESTROY)
                .handle(id::HANDLE, self.0.0)
                .output(id::RESP, size_of::<u32>()),
            Spelling::Write => request.write_command::<_, abi::ExDestroyWqResp>(
                cmd::EX_DESTROY_WQ,
                &abi::ExDestroyWq {
                    comp_mask: 0,
                    wq_handle: self.0.0,
                },
            ),
        };
    }

    #[inline]
    fn decode(&self, spelling: Spelling, answer: &Request) -> Result<u32, Malformed> {
        match spelling {
            Spelling::Native => answer.answer(attr::destroy_wq::RESP),
            Spelling::Write => {
                let response: abi::ExDestroyWqResp = answer.response()?;
                Ok(response.events_reported)
            }
        }
    }
}

/// Creates a table that spreads packets over work queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CreateRwqIndTable {
    /// 2 to the power of this many entries.
    pub(crate) log_size: u32,
    /// The work queue of each entry.
    pub(crate) wqs: Vec<WqHandle>,
}

impl Command for CreateRwqIndTable {
    /// The table, and its number.
    type Reply = (RwqIndTblHandle, u32);
    const NATIVE: bool = false;
    const VERB: Verb = Verb::CreateRwqIndTable;

    fn subject(&self) -> Subject {
        Subject::named(
            "indirection table",
            format_args!("of {} WQs", self.wqs.len()),
        )
    }

    #[inline]
    fn encode(&self, spelling: Spelling, request: &mut Request) {
        let core = abi::ExCreateRwqIndTable {
            comp_mask: 0,
            log_ind_tbl_size: self.log_size,
        };
        match spelling {
            Spelling::Native => {}
            Spelling::Write => {
                let mut bytes: SmallVec<[u8; 128]> = SmallVec::from_slice(core.as_bytes());
                bytes.extend_from_slice(self.wqs.as_bytes());
                // An extended command is counted in units of 8 bytes.
                bytes.resize(bytes.len().next_multiple_of(8), 0);
                request.write_command::<[u8], abi::ExCreateRwqIndTableResp>(
                    cmd::EX_CREATE_RWQ_IND_TBL,
                    &bytes,
                );
            }
        }
    }

    #[inline]
    fn decode(&self, _: Spelling, answer: &Request) -> Result<Self::Reply, Malformed> {
        let response: abi::ExCreateRwqIndTableResp = answer.response()?;
        Ok((
            RwqIndTblHandle(response.ind_tbl_handle),
            response.ind_tbl_num,
        ))
    }
}

/// Destroys an indirection table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DestroyRwqIndTable(pub(crate) RwqIndTblHandle);

impl Command for DestroyRwqIndTable {
    type Reply = ();
    const NATIVE: bool = true;
    const VERB: Verb = Verb::DestroyRwqIndTable;

    fn subject(&self) -> Subject {
        Subject::numbered("indirection table", self.0.0.into())
    }

    #[inline]
    fn encode(&self, spelling: Spelling, request: &mut Request) {
        match spelling {
            Spelling::Native => request
                .method(object::RWQ_IND_TBL, method::rwq_ind_tbl::DESTROY)
                .handle(attr::destroy_rwq_ind_tbl::HANDLE, self.0.0),
            Spelling::Write => request.write_command::<_, ()>(
                cmd::EX_DESTROY_RWQ_IND_TBL,
                &abi::ExDestroyRwqIndTable {
                    comp_mask: 0,
                    ind_tbl_handle: self.0.0,
                },
            ),
        };
    }

    #[inline]
    fn decode(&self, _: Spelling, _: &Request) -> Result<(), Malformed> {
        Ok(())
    }
}
