//! Receive work queues, and the tables that spread packets over them.

use std::os::fd::RawFd;

use smallvec::SmallVec;
use uverbs_uapi::enums::WqType;
use uverbs_uapi::flags::WqFlags;
use uverbs_uapi::handle::{CqHandle, PdHandle, RwqIndTblHandle, WqHandle};
use uverbs_uapi::{attr, cmd, method, object, write as abi};
use zerocopy::IntoBytes;

use super::request::DriverReply;
use super::{Command, Decode, DriverData, Request, Undo, nothing, undo};
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

impl Command for CreateWq {
    type Reply = CreateWqReply;
    const VERB: Verb = Verb::CreateWq;
    const UNDO: Option<Undo> = Some(undo::<WqHandle>);

    fn subject(&self) -> Subject {
        Subject::named(
            "WQ",
            format_args!("of {} requests in PD {}", self.max_wr, self.pd.0),
        )
    }

    #[inline]
    fn native(&self, request: &mut Request) -> Option<Decode<Self>> {
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
            .output(id::RESP_WQ_NUM, size_of::<u32>())
            .fd_if_any(id::EVENT_FD, self.event_fd)
            .driver(&self.driver);
        Some(|command, answer| {
            Ok(CreateWqReply {
                handle: WqHandle(answer.new_handle(id::HANDLE)?),
                wqn: answer.answer(id::RESP_WQ_NUM)?,
                max_wr: answer.answer(id::RESP_MAX_WR)?,
                max_sge: answer.answer(id::RESP_MAX_SGE)?,
                driver: answer.driver_reply(&command.driver),
            })
        })
    }

    #[inline]
    fn write(&self, request: &mut Request) -> Option<Decode<Self>> {
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
        request
            .write_command::<_, abi::ExCreateWqResp>(cmd::EX_CREATE_WQ, &core)
            .driver(&self.driver);
        Some(|command, answer| {
            let abi::ExCreateWqResp {
                wq_handle,
                wqn,
                max_wr,
                max_sge,
                ..
            } = answer.response()?;
            Ok(CreateWqReply {
                handle: WqHandle(wq_handle),
                wqn,
                max_wr,
                max_sge,
                driver: answer.driver_reply(&command.driver),
            })
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
    const VERB: Verb = Verb::ModifyWq;

    fn subject(&self) -> Subject {
        Subject::numbered("WQ", self.core.wq_handle.into())
    }

    #[inline]
    fn write(&self, request: &mut Request) -> Option<Decode<Self>> {
        request
            .write_command::<_, ()>(cmd::EX_MODIFY_WQ, &self.core)
            .driver(&self.driver);
        Some(nothing)
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
    const VERB: Verb = Verb::CreateRwqIndTable;
    const UNDO: Option<Undo> = Some(undo::<RwqIndTblHandle>);

    fn subject(&self) -> Subject {
        Subject::named(
            "indirection table",
            format_args!("of {} WQs", self.wqs.len()),
        )
    }

    #[inline]
    fn write(&self, request: &mut Request) -> Option<Decode<Self>> {
        let core = abi::ExCreateRwqIndTable {
            comp_mask: 0,
            log_ind_tbl_size: self.log_size,
        };
        let mut bytes: SmallVec<[u8; 128]> = SmallVec::from_slice(core.as_bytes());
        bytes.extend_from_slice(self.wqs.as_bytes());
        // An extended command is counted in units of 8 bytes.
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        request.write_command::<[u8], abi::ExCreateRwqIndTableResp>(
            cmd::EX_CREATE_RWQ_IND_TBL,
            &bytes,
        );
        Some(|_, answer| {
            let response: abi::ExCreateRwqIndTableResp = answer.response()?;
            Ok((
                RwqIndTblHandle(response.ind_tbl_handle),
                response.ind_tbl_num,
            ))
        })
    }
}
