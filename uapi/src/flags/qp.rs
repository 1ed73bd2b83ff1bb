//! Flags of queue pairs.

use bitflags::bitflags;

bitflags! {
    /// How to make a QP (`enum ib_uverbs_qp_create_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct QpCreateFlags: u32 {
        /// The QP does not receive its own multicast.
        const BLOCK_MULTICAST_LOOPBACK = 1 << 1;
        /// Frame checksums are scattered too.
        const SCATTER_FCS = 1 << 8;
        /// VLAN tags are stripped.
        const CVLAN_STRIPPING = 1 << 9;
        /// The request names the QP number to send as; write interface only.
        const SOURCE_QPN = 1 << 10;
        /// Writes are padded to cache lines.
        const PCI_WRITE_END_PADDING = 1 << 11;
        /// Every send request raises a completion; ioctl interface only.
        const SQ_SIG_ALL = 1 << 12;
    }
}

bitflags! {
    /// Optional fields of the extended `CREATE_QP` (`enum ib_uverbs_create_qp_mask`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct CreateQpMask: u32 {
        /// Indirection table.
        const IND_TABLE = 1 << 0;
    }
}

bitflags! {
    /// The valid attributes of a QP.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct QpAttrMask: u32 {
        /// The new state.
        const STATE = 1 << 0;
        /// The present state.
        const CUR_STATE = 1 << 1;
        /// Event when the send queue has drained.
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// Rights of incoming operations.
        const ACCESS_FLAGS = 1 << 3;
        /// Partition key.
        const PKEY_INDEX = 1 << 4;
        /// Port.
        const PORT = 1 << 5;
        /// Q_Key.
        const QKEY = 1 << 6;
        /// Primary path.
        const AV = 1 << 7;
        /// MTU of the path.
        const PATH_MTU = 1 << 8;
        /// Time to wait for acknowledgements.
        const TIMEOUT = 1 << 9;
        /// Retries.
        const RETRY_CNT = 1 << 10;
        /// Retries after "receiver not ready".
        const RNR_RETRY = 1 << 11;
        /// First packet sequence number to receive.
        const RQ_PSN = 1 << 12;
        /// Reads and atomics in flight as the initiator.
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// Alternate path.
        const ALT_PATH = 1 << 14;
        /// Delay for senders if no receive is posted.
        const MIN_RNR_TIMER = 1 << 15;
        /// First packet sequence number to send.
        const SQ_PSN = 1 << 16;
        /// Reads and atomics served as the target.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// State of path migration.
        const PATH_MIG_STATE = 1 << 18;
        /// Capacities.
        const CAP = 1 << 19;
        /// Number of the peer's QP.
        const DEST_QPN = 1 << 20;
        /// Pacing; extended command only.
        const RATE_LIMIT = 1 << 25;
    }
}
