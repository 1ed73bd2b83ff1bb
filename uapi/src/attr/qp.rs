//! Attributes of the methods of queue pairs.

/// Attributes of [`crate::method::qp::CREATE`].
pub mod create_qp {
    ids! { u16, "UVERBS_ATTR_CREATE_QP_";
        /// Answer: handle of the new QP.
        HANDLE = 0;
        /// Handle of the XRC domain, XRC receive type only.
        XRCD_HANDLE = 1;
        /// Handle of the PD.
        PD_HANDLE = 2;
        /// Handle of the SRQ; may be left out.
        SRQ_HANDLE = 3;
        /// Handle of the CQ for send completions.
        SEND_CQ_HANDLE = 4;
        /// Handle of the CQ for receive completions.
        RECV_CQ_HANDLE = 5;
        /// Handle of the indirection table, RSS QPs only.
        IND_TABLE_HANDLE = 6;
        /// Opaque value, returned by events (`u64`).
        USER_HANDLE = 7;
        /// Requested [`crate::types::QpCap`].
        CAP = 8;
        /// [`crate::enums::QpType`] (constant).
        TYPE = 9;
        /// [`crate::flags::QpCreateFlags`]; may be left out.
        FLAGS = 10;
        /// QP number to send as (`u32`).
        SOURCE_QPN = 11;
        /// File descriptor of the asynchronous event file.
        EVENT_FD = 12;
        /// Answer: actual [`crate::types::QpCap`].
        RESP_CAP = 13;
        /// Answer: number of the QP (`u32`).
        RESP_QP_NUM = 14;
        /// [`crate::types::BufferDesc`] of both rings. Since Linux 7.2.
        BUF_UMEM = 15;
        /// [`crate::types::BufferDesc`] of the receive ring. Since Linux 7.2.
        RQ_BUF_UMEM = 16;
        /// [`crate::types::BufferDesc`] of the send ring. Since Linux 7.2.
        SQ_BUF_UMEM = 17;
    }
}

/// Attributes of [`crate::method::qp::DESTROY`].
pub mod destroy_qp {
    ids! { u16, "UVERBS_ATTR_DESTROY_QP_";
        /// Handle of the QP.
        HANDLE = 0;
        /// Answer: [`crate::write::DestroyQpResp`].
        RESP = 1;
    }
}

/// Attributes of [`crate::method::qp::ATTACH_COMP_CNTR`]. Since Linux 7.3.
pub mod qp_attach_comp_cntr {
    ids! { u16, "UVERBS_ATTR_QP_ATTACH_COMP_CNTR_";
        /// Handle of the QP.
        HANDLE = 0;
        /// Handle of the completion counter.
        CNTR_HANDLE = 1;
        /// [`crate::flags::QpAttachCompCntrOps`] to count.
        OP_MASK = 2;
    }
}
