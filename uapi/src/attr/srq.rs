//! Attributes of the methods of shared receive queues.

/// Attributes of [`crate::method::srq::CREATE`].
pub mod create_srq {
    ids! { u16, "UVERBS_ATTR_CREATE_SRQ_";
        /// Answer: handle of the new SRQ.
        HANDLE = 0;
        /// Handle of the PD.
        PD_HANDLE = 1;
        /// Handle of the XRC domain, XRC type only.
        XRCD_HANDLE = 2;
        /// Handle of the CQ, types XRC and tag matching only.
        CQ_HANDLE = 3;
        /// Opaque value, returned by events (`u64`).
        USER_HANDLE = 4;
        /// Requested number of receive requests (`u32`).
        MAX_WR = 5;
        /// Elements a request may have (`u32`).
        MAX_SGE = 6;
        /// Fill level below which the limit event is raised (`u32`).
        LIMIT = 7;
        /// Tags to match at once (`u32`), tag-matching type only.
        MAX_NUM_TAGS = 8;
        /// [`crate::enums::SrqType`] (constant).
        TYPE = 9;
        /// File descriptor of the asynchronous event file.
        EVENT_FD = 10;
        /// Answer: actual number of receive requests (`u32`).
        RESP_MAX_WR = 11;
        /// Answer: elements a request may have (`u32`).
        RESP_MAX_SGE = 12;
        /// Answer: number of the SRQ (`u32`), XRC type only.
        RESP_SRQ_NUM = 13;
        /// [`crate::types::BufferDesc`] of the ring. Since Linux 7.3.
        BUF_UMEM = 14;
    }
}

/// Attributes of [`crate::method::srq::DESTROY`].
pub mod destroy_srq {
    ids! { u16, "UVERBS_ATTR_DESTROY_SRQ_";
        /// Handle of the SRQ.
        HANDLE = 0;
        /// Answer: [`crate::write::DestroySrqResp`].
        RESP = 1;
    }
}
