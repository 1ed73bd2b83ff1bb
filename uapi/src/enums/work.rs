//! Numbers in work requests and completions.

wire_enum! {
    /// The operation of a work request (`enum ib_uverbs_wr_opcode`).
    WrOpcode, "IBV_WR_";
    /// Write to the peer's memory.
    RDMA_WRITE = 0;
    /// Write, and consume a receive, which reports the immediate data.
    RDMA_WRITE_WITH_IMM = 1;
    /// Send a message.
    SEND = 2;
    /// Send a message with immediate data.
    SEND_WITH_IMM = 3;
    /// Read the peer's memory.
    RDMA_READ = 4;
    /// Compare and swap 8 bytes of the peer's memory.
    ATOMIC_CMP_AND_SWP = 5;
    /// Add to 8 bytes of the peer's memory.
    ATOMIC_FETCH_AND_ADD = 6;
    /// Invalidate a local key.
    LOCAL_INV = 7;
    /// Bind a memory window.
    BIND_MW = 8;
    /// Send a message, and invalidate a key of the peer.
    SEND_WITH_INV = 9;
    /// Send a large segment, which the device divides.
    TSO = 10;
    /// Read, and invalidate a local key.
    RDMA_READ_WITH_INV = 11;
    /// Compare and swap under a mask.
    MASKED_ATOMIC_CMP_AND_SWP = 12;
    /// Add under a mask.
    MASKED_ATOMIC_FETCH_AND_ADD = 13;
    /// Flush the peer's memory to a placement. Since Linux 6.2.
    FLUSH = 14;
    /// Write 8 bytes atomically. Since Linux 6.2.
    ATOMIC_WRITE = 15;
}

wire_enum! {
    /// The completed operation (`enum ib_uverbs_wc_opcode`). Bit 7 marks a receive.
    WcOpcode, "IBV_WC_";
    /// A send of any kind.
    SEND = 0;
    /// A write.
    RDMA_WRITE = 1;
    /// A read.
    RDMA_READ = 2;
    /// A compare and swap.
    COMP_SWAP = 3;
    /// A fetch and add.
    FETCH_ADD = 4;
    /// A window bind.
    BIND_MW = 5;
    /// An invalidation.
    LOCAL_INV = 6;
    /// A large segment.
    TSO = 7;
    /// A flush. Since Linux 6.2.
    FLUSH = 8;
    /// An atomic write. Since Linux 6.2.
    ATOMIC_WRITE = 9;
    /// A receive that took a message.
    RECV = 128;
    /// A receive that reported the immediate data of a write.
    RECV_RDMA_WITH_IMM = 129;
    /// A tag was added.
    TM_ADD = 130;
    /// A tag was removed.
    TM_DEL = 131;
    /// The tag list was synchronised.
    TM_SYNC = 132;
    /// A receive that matched a tag.
    TM_RECV = 133;
    /// A receive that matched no tag.
    TM_NO_TAG = 134;
    /// For the driver.
    DRIVER1 = 135;
    /// For the driver.
    DRIVER2 = 136;
    /// For the driver.
    DRIVER3 = 137;
}

wire_enum! {
    /// The result of a work request.
    WcStatus, "IBV_WC_";
    /// Success.
    SUCCESS = 0;
    /// The local buffers do not fit the message.
    LOC_LEN_ERR = 1;
    /// The QP cannot do this, or its state is inconsistent.
    LOC_QP_OP_ERR = 2;
    /// The same for an EE context (reliable datagram, unused).
    LOC_EEC_OP_ERR = 3;
    /// A local key does not allow the access.
    LOC_PROT_ERR = 4;
    /// Flushed: the QP went into error before it was done.
    WR_FLUSH_ERR = 5;
    /// A window could not be bound.
    MW_BIND_ERR = 6;
    /// The peer's answer was malformed.
    BAD_RESP_ERR = 7;
    /// An incoming write with immediate data was not allowed here.
    LOC_ACCESS_ERR = 8;
    /// The peer refused the request as invalid.
    REM_INV_REQ_ERR = 9;
    /// The peer's key does not allow the access.
    REM_ACCESS_ERR = 10;
    /// The peer could not carry the request out.
    REM_OP_ERR = 11;
    /// No acknowledgement, in spite of all retries.
    RETRY_EXC_ERR = 12;
    /// The peer had no receive posted, in spite of all retries.
    RNR_RETRY_EXC_ERR = 13;
    /// Reliable datagram domains differ (unused).
    LOC_RDD_VIOL_ERR = 14;
    /// The peer refused a reliable datagram (unused).
    REM_INV_RD_REQ_ERR = 15;
    /// The peer gave up.
    REM_ABORT_ERR = 16;
    /// No such EE context (unused).
    INV_EECN_ERR = 17;
    /// The EE context is in the wrong state (unused).
    INV_EEC_STATE_ERR = 18;
    /// The device failed.
    FATAL_ERR = 19;
    /// The answer did not come in time.
    RESP_TIMEOUT_ERR = 20;
    /// Anything else.
    GENERAL_ERR = 21;
    /// Tag matching failed.
    TM_ERR = 22;
    /// A rendezvous was matched, its data are still to be fetched.
    TM_RNDV_INCOMPLETE = 23;
}

impl WcStatus {
    /// A short description for people, if the value is known here.
    #[must_use]
    pub const fn text(self) -> Option<&'static str> {
        Some(match self {
            Self::SUCCESS => "success",
            Self::LOC_LEN_ERR => "local length error",
            Self::LOC_QP_OP_ERR => "local QP operation error",
            Self::LOC_EEC_OP_ERR => "local EE context operation error",
            Self::LOC_PROT_ERR => "local protection error",
            Self::WR_FLUSH_ERR => "work request flushed",
            Self::MW_BIND_ERR => "memory window bind error",
            Self::BAD_RESP_ERR => "bad response",
            Self::LOC_ACCESS_ERR => "local access error",
            Self::REM_INV_REQ_ERR => "remote invalid request",
            Self::REM_ACCESS_ERR => "remote access error",
            Self::REM_OP_ERR => "remote operation error",
            Self::RETRY_EXC_ERR => "transport retry counter exceeded",
            Self::RNR_RETRY_EXC_ERR => "RNR retry counter exceeded",
            Self::LOC_RDD_VIOL_ERR => "local RDD violation",
            Self::REM_INV_RD_REQ_ERR => "remote invalid RD request",
            Self::REM_ABORT_ERR => "remote aborted",
            Self::INV_EECN_ERR => "invalid EE context number",
            Self::INV_EEC_STATE_ERR => "invalid EE context state",
            Self::FATAL_ERR => "fatal error",
            Self::RESP_TIMEOUT_ERR => "response timeout",
            Self::GENERAL_ERR => "general error",
            Self::TM_ERR => "tag matching error",
            Self::TM_RNDV_INCOMPLETE => "tag matching rendezvous incomplete",
            _ => return None,
        })
    }
}

wire_enum! {
    /// How much a flush covers (`enum ib_selectivity_level`). Since Linux 6.2.
    FlushLevel, "IB_FLUSH_";
    /// The bytes it names.
    RANGE = 0;
    /// The whole memory region.
    MR = 1;
}
