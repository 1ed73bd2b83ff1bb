//! Flags of EFA.

use bitflags::bitflags;

bitflags! {
    /// Limits of the device that user space respects.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct UcontextCaps: u32 {
        /// [`AllocUcontextResp::max_tx_batch`](super::AllocUcontextResp::max_tx_batch).
        const TX_BATCH = 1 << 0;
        /// [`AllocUcontextResp::min_sq_wr`](super::AllocUcontextResp::min_sq_wr).
        const MIN_SQ_WR = 1 << 1;
    }
}

bitflags! {
    /// Commands that take driver data (`enum efa_ibv_user_cmds_supp_udata`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct UdataCmds: u32 {
        /// `QUERY_DEVICE`.
        const QUERY_DEVICE = 1 << 0;
        /// `CREATE_AH`.
        const CREATE_AH = 1 << 1;
    }
}

bitflags! {
    /// Capabilities of a device.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct DeviceCaps: u32 {
        /// RDMA READ.
        const RDMA_READ = 1 << 0;
        /// The number of retries for a receiver that is not ready can be set.
        const RNR_RETRY = 1 << 1;
        /// Completion events.
        const CQ_NOTIFICATIONS = 1 << 2;
        /// Completions have the GID of a sender without an AH.
        const CQ_WITH_SGID = 1 << 3;
        /// 128 bytes are written at once, so that data can be polled. Linux 6.12 has it, 6.1 does not.
        const DATA_POLLING_128 = 1 << 4;
        /// RDMA WRITE. Linux 6.12 has it, 6.1 does not.
        const RDMA_WRITE = 1 << 5;
        /// WRITEs with immediate data that consume no receive. Linux 6.12 has it, 6.1 does not.
        const UNSOLICITED_WRITE_RECV = 1 << 6;
        /// Completion queues in memory that user space provides. Linux 7.3 has it, 6.12 does not.
        const CQ_WITH_EXT_MEM = 1 << 7;
        /// Completion counters. Since Linux 7.3.
        const COMP_CNTR = 1 << 8;
        /// Ids of requests of 64 bits. Since Linux 7.3.
        const SQ_64_BIT_REQ_ID = 1 << 9;
    }
}

bitflags! {
    /// How to create a CQ.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct CreateCqFlags: u8 {
        /// With completion events.
        const COMPLETION_CHANNEL = 1 << 0;
        /// With the GID of a sender without an AH, in entries of 32 bytes.
        const SGID = 1 << 1;
        /// For QPs with ids of 64 bits. Since Linux 7.3.
        const SQ_COMP_64_BIT_REQ_ID = 1 << 2;
    }
}

bitflags! {
    /// The valid fields of the answer to CQ creation.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct CreateCqRespMask: u32 {
        /// The doorbell.
        const DB_OFF = 1 << 0;
    }
}

bitflags! {
    /// How to create a QP.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct CreateQpFlags: u16 {
        /// WRITEs with immediate data consume no receive. Linux 6.12 has it, 6.1 does not.
        const UNSOLICITED_WRITE_RECV = 1 << 0;
        /// Ids of requests of 64 bits. Since Linux 7.3.
        const SQ_64_BIT_REQ_ID = 1 << 1;
    }
}

bitflags! {
    /// The valid interconnect ids of a region.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct QueryMrValidity: u16 {
        /// The interconnect for receives.
        const RECV_IC_ID = 1 << 0;
        /// The interconnect for RDMA READs.
        const RDMA_READ_IC_ID = 1 << 1;
        /// The interconnect for WRITEs of peers.
        const RDMA_RECV_IC_ID = 1 << 2;
    }
}
