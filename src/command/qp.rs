//! Queue pairs, and the doorbell of drivers whose doorbell is a system call.

use std::os::fd::RawFd;

use uverbs_uapi::enums::QpType;
use uverbs_uapi::flags::{CreateQpMask, QpCreateFlags};
use uverbs_uapi::handle::{CqHandle, PdHandle, QpHandle, RwqIndTblHandle, SrqHandle};
use uverbs_uapi::types::QpCap;
use uverbs_uapi::{attr, cmd, method, object, write as abi};

use super::request::DriverReply;
use super::{Command, DriverData, Malformed, Request, Spelling};
use crate::error::{Subject, Verb};

/// Creates a queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CreateQp {
    pub(crate) pd: PdHandle,
    pub(crate) send_cq: CqHandle,
    pub(crate) recv_cq: CqHandle,
    pub(crate) srq: Option<SrqHandle>,
    pub(crate) qp_type: QpType,
    pub(crate) cap: QpCap,
    pub(crate) sq_sig_all: bool,
    /// Others than `SQ_SIG_ALL`.
    pub(crate) flags: QpCreateFlags,
    /// What asynchronous events carry.
    pub(crate) user_handle: u64,
    /// Where asynchronous events go, if not to the context's first such file.
    pub(crate) event_fd: Option<RawFd>,
    pub(crate) driver: DriverData,
}

/// A new queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CreateQpReply {
    pub(crate) handle: QpHandle,
    pub(crate) qpn: u32,
    pub(crate) cap: QpCap,
    pub(crate) driver: DriverReply,
}

impl CreateQp {
    #[inline]
    fn native(&self, request: &mut Request) {
        request
            .method(object::QP, method::qp::CREATE)
            .new_object(attr::create_qp::HANDLE)
            .handle(attr::create_qp::PD_HANDLE, self.pd.0)
            .handle(attr::create_qp::SEND_CQ_HANDLE, self.send_cq.0)
            .handle(attr::create_qp::RECV_CQ_HANDLE, self.recv_cq.0)
            .u64(attr::create_qp::USER_HANDLE, self.user_handle)
            .input(attr::create_qp::CAP, &self.cap)
            .constant(attr::create_qp::TYPE, self.qp_type.0.into())
            .output(attr::create_qp::RESP_CAP, size_of::<QpCap>())
            .output(attr::create_qp::RESP_QP_NUM, size_of::<u32>());
        if let Some(srq) = self.srq {
            request.handle(attr::create_qp::SRQ_HANDLE, srq.0);
        }
        let mut flags = self.flags;
        flags.set(QpCreateFlags::SQ_SIG_ALL, self.sq_sig_all);
        if !flags.is_empty() {
            request.u32(attr::create_qp::FLAGS, flags.bits());
        }
        if let Some(fd) = self.event_fd {
            request.fd(attr::create_qp::EVENT_FD, fd);
        }
    }

    #[inline]
    fn legacy(&self, request: &mut Request) {
        if !self.flags.is_empty() {
            return self.extended(request);
        }
        let core = abi::CreateQp {
            user_handle: self.user_handle,
            pd_handle: self.pd.0,
            send_cq_handle: self.send_cq.0,
            recv_cq_handle: self.recv_cq.0,
            srq_handle: self.srq.map_or(0, |srq| srq.0),
            max_send_wr: self.cap.max_send_wr,
            max_recv_wr: self.cap.max_recv_wr,
            max_send_sge: self.cap.max_send_sge,
            max_recv_sge: self.cap.max_recv_sge,
            max_inline_data: self.cap.max_inline_data,
            sq_sig_all: self.sq_sig_all.into(),
            qp_type: self.qp_type.0 as u8,
            is_srq: self.srq.is_some().into(),
            ..Default::default()
        };
        request.write_command::<_, abi::CreateQpResp>(cmd::CREATE_QP, &core);
    }

    fn extended(&self, request: &mut Request) {
        let core = abi::ExCreateQp {
            user_handle: self.user_handle,
            pd_handle: self.pd.0,
            send_cq_handle: self.send_cq.0,
            recv_cq_handle: self.recv_cq.0,
            srq_handle: self.srq.map_or(0, |srq| srq.0),
            max_send_wr: self.cap.max_send_wr,
            max_recv_wr: self.cap.max_recv_wr,
            max_send_sge: self.cap.max_send_sge,
            max_recv_sge: self.cap.max_recv_sge,
            max_inline_data: self.cap.max_inline_data,
            sq_sig_all: self.sq_sig_all.into(),
            qp_type: self.qp_type.0 as u8,
            is_srq: self.srq.is_some().into(),
            create_flags: self.flags.bits(),
            ..Default::default()
        };
        request.write_command::<_, abi::ExCreateQpResp>(cmd::EX_CREATE_QP, &core);
    }
}

impl Command for CreateQp {
    type Reply = CreateQpReply;
    const NATIVE: bool = true;
    const VERB: Verb = Verb::CreateQp;

    fn subject(&self) -> Subject {
        Subject::named("QP", format_args!("in PD {}", self.pd.0))
    }

    #[inline]
    fn encode(&self, spelling: Spelling, request: &mut Request) {
        match spelling {
            Spelling::Native => self.native(request),
            Spelling::Write => self.legacy(request),
        }
        request.driver(&self.driver);
    }

    #[inline]
    fn decode(&self, spelling: Spelling, answer: &Request) -> Result<Self::Reply, Malformed> {
        let (handle, qpn, cap) = match spelling {
            Spelling::Native => (
                answer.new_handle(attr::create_qp::HANDLE)?,
                answer.answer(attr::create_qp::RESP_QP_NUM)?,
                answer.answer(attr::create_qp::RESP_CAP)?,
            ),
            Spelling::Write => {
                // The extended response starts with the plain one.
                let response: abi::CreateQpResp = answer.response()?;
                let cap = QpCap {
                    max_send_wr: response.max_send_wr,
                    max_recv_wr: response.max_recv_wr,
                    max_send_sge: response.max_send_sge,
                    max_recv_sge: response.max_recv_sge,
                    max_inline_data: response.max_inline_data,
                };
                (response.qp_handle, response.qpn, cap)
            }
        };
        Ok(CreateQpReply {
            handle: QpHandle(handle),
            qpn,
            cap,
            driver: answer.driver_reply(&self.driver),
        })
    }
}

/// Creates a queue pair that receives raw packets into the work queues of an indirection table. How packets are spread is
/// the driver's part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CreateRssQp {
    pub(crate) pd: PdHandle,
    pub(crate) table: RwqIndTblHandle,
    /// What asynchronous events carry.
    pub(crate) user_handle: u64,
    /// Where asynchronous events go, if not to the context's first such file.
    pub(crate) event_fd: Option<RawFd>,
    pub(crate) driver: DriverData,
}

impl Command for CreateRssQp {
    /// The queue pair, and its number.
    type Reply = (QpHandle, u32);
    const NATIVE: bool = true;
    const VERB: Verb = Verb::CreateQp;

    fn subject(&self) -> Subject {
        Subject::named(
            "QP",
            format_args!(
                "over indirection table {} in PD {}",
                self.table.0, self.pd.0
            ),
        )
    }

    fn encode(&self, spelling: Spelling, request: &mut Request) {
        use attr::create_qp as id;
        let qp_type = QpType::RAW_PACKET.0;
        match spelling {
            Spelling::Native => {
                request
                    .method(object::QP, method::qp::CREATE)
                    .new_object(id::HANDLE)
                    .handle(id::PD_HANDLE, self.pd.0)
                    .handle(id::IND_TABLE_HANDLE, self.table.0)
                    .u64(id::USER_HANDLE, self.user_handle)
                    .input(id::CAP, &QpCap::default())
                    .constant(id::TYPE, qp_type.into())
                    .output(id::RESP_CAP, size_of::<QpCap>())
                    .output(id::RESP_QP_NUM, size_of::<u32>());
                if let Some(fd) = self.event_fd {
                    request.fd(id::EVENT_FD, fd);
                }
            }
            Spelling::Write => {
                let core = abi::ExCreateQp {
                    user_handle: self.user_handle,
                    pd_handle: self.pd.0,
                    qp_type: qp_type as u8,
                    comp_mask: CreateQpMask::IND_TABLE.bits(),
                    rwq_ind_tbl_handle: self.table.0,
                    ..Default::default()
                };
                request.write_command::<_, abi::ExCreateQpResp>(cmd::EX_CREATE_QP, &core);
            }
        }
        request.driver(&self.driver);
    }

    fn decode(&self, spelling: Spelling, answer: &Request) -> Result<Self::Reply, Malformed> {
        let (handle, qpn) = match spelling {
            Spelling::Native => (
                answer.new_handle(attr::create_qp::HANDLE)?,
                answer.answer(attr::create_qp::RESP_QP_NUM)?,
            ),
            Spelling::Write => {
                let response: abi::ExCreateQpResp = answer.response()?;
                (response.base.qp_handle, response.base.qpn)
            }
        };
        Ok((QpHandle(handle), qpn))
    }
}

/// Changes a queue pair. The command is its own ABI struct: `attr_mask` says which fields count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModifyQp {
    pub(crate) base: abi::ModifyQp,
    /// Kilobits per second, if the pace of a raw packet QP is to change; sent by the extended command, as a driver's data are.
    pub(crate) rate_limit: Option<u32>,
    pub(crate) driver: DriverData,
}

impl Command for ModifyQp {
    type Reply = DriverReply;
    const NATIVE: bool = false;
    const VERB: Verb = Verb::ModifyQp;

    fn subject(&self) -> Subject {
        Subject::numbered("QP", self.base.qp_handle.into())
    }

    #[inline]
    fn encode(&self, spelling: Spelling, request: &mut Request) {
        if spelling == Spelling::Native {
            return;
        }
        // Only the extended command has a place for what a driver answers.
        if self.rate_limit.is_none() && self.driver == DriverData::default() {
            request.write_command::<_, ()>(cmd::MODIFY_QP, &self.base);
        } else {
            let core = abi::ExModifyQp {
                base: self.base,
                rate_limit: self.rate_limit.unwrap_or(0),
                reserved: 0,
            };
            request.write_command::<_, abi::ExModifyQpResp>(cmd::EX_MODIFY_QP, &core);
        }
        request.driver(&self.driver);
    }

    #[inline]
    fn decode(&self, _: Spelling, answer: &Request) -> Result<DriverReply, Malformed> {
        Ok(answer.driver_reply(&self.driver))
    }
}

/// Queries a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueryQp {
    pub(crate) qp: QpHandle,
    /// Bits of `QpAttrMask`: what is of interest. Drivers may answer more.
    pub(crate) attr_mask: u32,
}

impl Command for QueryQp {
    type Reply = abi::QueryQpResp;
    const NATIVE: bool = false;
    const VERB: Verb = Verb::QueryQp;

    fn subject(&self) -> Subject {
        Subject::numbered("QP", self.qp.0.into())
    }

    #[inline]
    fn encode(&self, spelling: Spelling, request: &mut Request) {
        let core = abi::QueryQp {
            qp_handle: self.qp.0,
            attr_mask: self.attr_mask,
            ..Default::default()
        };
        match spelling {
            Spelling::Native => {}
            Spelling::Write => {
                request.write_command::<_, abi::QueryQpResp>(cmd::QUERY_QP, &core);
            }
        }
    }

    #[inline]
    fn decode(&self, _: Spelling, answer: &Request) -> Result<Self::Reply, Malformed> {
        answer.response()
    }
}
