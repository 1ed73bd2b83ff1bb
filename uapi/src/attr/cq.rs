//! Attributes of the methods of completion queues.

/// Attributes of [`crate::method::cq::CREATE`].
pub mod create_cq {
    ids! { u16, "UVERBS_ATTR_CREATE_CQ_";
        /// Answer: handle of the new CQ.
        HANDLE = 0;
        /// Requested number of entries (`u32`).
        CQE = 1;
        /// Opaque value, returned by events (`u64`).
        USER_HANDLE = 2;
        /// File descriptor of the completion channel; may be left out.
        COMP_CHANNEL = 3;
        /// Completion vector (`u32`).
        COMP_VECTOR = 4;
        /// [`crate::flags::CqCreateFlags`]; may be left out.
        FLAGS = 5;
        /// Answer: actual number of entries (`u32`).
        RESP_CQE = 6;
        /// File descriptor of the asynchronous event file.
        EVENT_FD = 7;
        /// Address of a buffer for the ring (`u64`). Since Linux 6.17.
        BUFFER_VA = 8;
        /// Length of the buffer in bytes (`u64`). Since Linux 6.17.
        BUFFER_LENGTH = 9;
        /// dma-buf instead of an address (plain file descriptor). Since Linux 6.17.
        BUFFER_FD = 10;
        /// Offset within the dma-buf (`u64`). Since Linux 6.17.
        BUFFER_OFFSET = 11;
        /// [`crate::types::BufferDesc`] of the ring. Since Linux 7.2.
        BUF_UMEM = 12;
    }
}

/// Attributes of [`crate::method::cq::DESTROY`].
pub mod destroy_cq {
    ids! { u16, "UVERBS_ATTR_DESTROY_CQ_";
        /// Handle of the CQ.
        HANDLE = 0;
        /// Answer: [`crate::write::DestroyCqResp`].
        RESP = 1;
    }
}
