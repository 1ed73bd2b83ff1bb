//! Attributes of the methods of receive work queues and their indirection tables.

/// Attributes of [`crate::method::wq::CREATE`].
pub mod create_wq {
    ids! { u16, "UVERBS_ATTR_CREATE_WQ_";
        /// Answer: handle of the new WQ.
        HANDLE = 0;
        /// Handle of the PD.
        PD_HANDLE = 1;
        /// Handle of the CQ.
        CQ_HANDLE = 2;
        /// Opaque value, returned by events (`u64`).
        USER_HANDLE = 3;
        /// [`crate::enums::WqType`] (constant).
        TYPE = 4;
        /// File descriptor of the asynchronous event file.
        EVENT_FD = 5;
        /// Requested number of receive requests (`u32`).
        MAX_WR = 6;
        /// Elements a request may have (`u32`).
        MAX_SGE = 7;
        /// [`crate::flags::WqFlags`]; may be left out.
        FLAGS = 8;
        /// Answer: actual number of receive requests (`u32`).
        RESP_MAX_WR = 9;
        /// Answer: elements a request may have (`u32`).
        RESP_MAX_SGE = 10;
        /// Answer: number of the WQ (`u32`).
        RESP_WQ_NUM = 11;
    }
}

/// Attributes of [`crate::method::wq::DESTROY`].
pub mod destroy_wq {
    ids! { u16, "UVERBS_ATTR_DESTROY_WQ_";
        /// Handle of the WQ.
        HANDLE = 0;
        /// Answer: number of events delivered (`u32`).
        RESP = 1;
    }
}

/// Attributes of [`crate::method::rwq_ind_tbl::DESTROY`].
pub mod destroy_rwq_ind_tbl {
    ids! { u16, "UVERBS_ATTR_DESTROY_RWQ_IND_TBL_";
        /// Handle of the table.
        HANDLE = 0;
    }
}
