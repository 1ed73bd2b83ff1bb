//! Flags of completion queues.

use bitflags::bitflags;

bitflags! {
    /// How to make a CQ (`enum ib_uverbs_ex_create_cq_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct CqCreateFlags: u32 {
        /// Completions carry a timestamp.
        const TIMESTAMP_COMPLETION = 1 << 0;
        /// Overflow is not checked.
        const IGNORE_OVERRUN = 1 << 1;
    }
}

bitflags! {
    /// The attributes that `MODIFY_CQ` changes.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct CqAttrMask: u32 {
        /// Moderation.
        const MODERATE = 1 << 0;
    }
}

bitflags! {
    /// The operations of a QP that a completion counter counts (`enum ib_uverbs_qp_attach_comp_cntr_op`).
    /// Since Linux 7.3.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct QpAttachCompCntrOps: u32 {
        /// Sends.
        const SEND = 1 << 0;
        /// Receives.
        const RECV = 1 << 1;
        /// Reads.
        const RDMA_READ = 1 << 2;
        /// Reads by the peer.
        const REMOTE_RDMA_READ = 1 << 3;
        /// Writes.
        const RDMA_WRITE = 1 << 4;
        /// Writes by the peer.
        const REMOTE_RDMA_WRITE = 1 << 5;
    }
}
