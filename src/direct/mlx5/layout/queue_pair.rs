//! Queue pairs, and the changes of their states.

use super::structure;

structure! {
    /// Creates a queue pair. The kernel makes it use the UMEM that is named.
    CreateQpIn = "create_qp_in", 272 {
        OPCODE: 0x0, 16;
        UID: 0x10, 16;
        OP_MOD: 0x30, 16;
        QPC_EXT: 0x40, 1;
        INPUT_QPN: 0x48, 24;
        OPT_PARAM_MASK: 0x80, 32;
        ECE: 0xa0, 32;
        /// Where the rings begin in the UMEM, in bytes: receives, then requests.
        WQ_UMEM_OFFSET: 0x800, 64;
        WQ_UMEM_ID: 0x840, 32;
        WQ_UMEM_VALID: 0x860, 1;
        [QPC: Qpc = 0xc0];
    }
    command 0x500 => CreateQpOut
}

structure! {
    /// The number of a new queue pair.
    CreateQpOut = "create_qp_out", 16 {
        STATUS: 0x0, 8;
        SYNDROME: 0x20, 32;
        QPN: 0x48, 24;
        ECE: 0x60, 32;
    }
}

structure! {
    /// Takes a queue pair from RESET to INIT.
    Rst2initQpIn = "rst2init_qp_in", 272 {
        OPCODE: 0x0, 16;
        UID: 0x10, 16;
        OP_MOD: 0x30, 16;
        QPN: 0x48, 24;
        OPT_PARAM_MASK: 0x80, 32;
        ECE: 0xa0, 32;
        [QPC: Qpc = 0xc0];
    }
    command 0x502 => QpModifyOut
}

structure! {
    /// Takes a queue pair from INIT to RTR.
    Init2rtrQpIn = "init2rtr_qp_in", 272 {
        OPCODE: 0x0, 16;
        UID: 0x10, 16;
        OP_MOD: 0x30, 16;
        QPN: 0x48, 24;
        OPT_PARAM_MASK: 0x80, 32;
        ECE: 0xa0, 32;
        [QPC: Qpc = 0xc0];
    }
    command 0x503 => QpModifyOut
}

structure! {
    /// Takes a queue pair from RTR to RTS.
    Rtr2rtsQpIn = "rtr2rts_qp_in", 272 {
        OPCODE: 0x0, 16;
        UID: 0x10, 16;
        OP_MOD: 0x30, 16;
        QPN: 0x48, 24;
        OPT_PARAM_MASK: 0x80, 32;
        ECE: 0xa0, 32;
        [QPC: Qpc = 0xc0];
    }
    command 0x504 => QpModifyOut
}

structure! {
    /// Changes a queue pair within RTS.
    Rts2rtsQpIn = "rts2rts_qp_in", 272 {
        OPCODE: 0x0, 16;
        UID: 0x10, 16;
        OP_MOD: 0x30, 16;
        QPN: 0x48, 24;
        OPT_PARAM_MASK: 0x80, 32;
        ECE: 0xa0, 32;
        [QPC: Qpc = 0xc0];
    }
    command 0x505 => QpModifyOut
}

structure! {
    /// Takes a queue pair to the error state.
    Qp2errIn = "qp_2err_in", 16 {
        OPCODE: 0x0, 16;
        UID: 0x10, 16;
        OP_MOD: 0x30, 16;
        QPN: 0x48, 24;
    }
    command 0x507 => QpModifyOut
}

structure! {
    /// Takes a queue pair to RESET.
    Qp2rstIn = "qp_2rst_in", 16 {
        OPCODE: 0x0, 16;
        UID: 0x10, 16;
        OP_MOD: 0x30, 16;
        QPN: 0x48, 24;
    }
    command 0x50a => QpModifyOut
}

structure! {
    /// The answer to a change of a queue pair.
    QpModifyOut = "init2rtr_qp_out", 16 {
        STATUS: 0x0, 8;
        SYNDROME: 0x20, 32;
        ECE: 0x60, 32;
    }
}

structure! {
    /// Queries the context of a queue pair.
    QueryQpIn = "query_qp_in", 16 {
        OPCODE: 0x0, 16;
        OP_MOD: 0x30, 16;
        QPC_EXT: 0x40, 1;
        QPN: 0x48, 24;
    }
    command 0x50b => QueryQpOut
}

structure! {
    /// The context of a queue pair.
    QueryQpOut = "query_qp_out", 464 {
        STATUS: 0x0, 8;
        SYNDROME: 0x20, 32;
        OPT_PARAM_MASK: 0x80, 32;
        ECE: 0xa0, 32;
        [QPC: Qpc = 0xc0];
    }
}

structure! {
    /// The context of a queue pair.
    Qpc = "qpc", 232 {
        STATE: 0x0, 4;
        LAG_TX_PORT_AFFINITY: 0x4, 4;
        /// The kind of service: 0 for RC, 1 for UC, 2 for UD, 3 for XRC, 5 for initiators of DC.
        ST: 0x8, 8;
        PM_STATE: 0x13, 2;
        END_PADDING_MODE: 0x1c, 2;
        WQ_SIGNATURE: 0x20, 1;
        PD: 0x28, 24;
        MTU: 0x40, 3;
        LOG_MSG_MAX: 0x43, 5;
        LOG_RQ_SIZE: 0x49, 4;
        /// The logarithm of a receive's bytes, less 4.
        LOG_RQ_STRIDE: 0x4d, 3;
        NO_SQ: 0x50, 1;
        /// The logarithm of the number of blocks of 64 bytes.
        LOG_SQ_SIZE: 0x51, 4;
        TS_FORMAT: 0x58, 2;
        RLKY: 0x5b, 1;
        COUNTER_SET_ID: 0x60, 8;
        UAR_PAGE: 0x68, 24;
        USER_INDEX: 0x88, 24;
        LOG_PAGE_SIZE: 0xa3, 5;
        REMOTE_QPN: 0xa8, 24;
        LOG_ACK_REQ_FREQ: 0x380, 4;
        LOG_SRA_MAX: 0x388, 3;
        RETRY_COUNT: 0x38d, 3;
        RNR_RETRY: 0x390, 3;
        NEXT_SEND_PSN: 0x3c8, 24;
        LOG_NUM_DCI_STREAM_CHANNELS: 0x3e3, 5;
        CQN_SND: 0x3e8, 24;
        LOG_NUM_DCI_ERRORED_STREAMS: 0x403, 5;
        LOG_RRA_MAX: 0x488, 3;
        ATOMIC_MODE: 0x48c, 4;
        RRE: 0x490, 1;
        RWE: 0x491, 1;
        RAE: 0x492, 1;
        PAGE_OFFSET: 0x494, 6;
        CD_MASTER: 0x49f, 1;
        MIN_RNR_NAK: 0x4a3, 5;
        NEXT_RCV_PSN: 0x4a8, 24;
        XRCD: 0x4c8, 24;
        CQN_RCV: 0x4e8, 24;
        /// Where the doorbell record lies in its UMEM, in bytes.
        DBR_ADDR: 0x500, 64;
        Q_KEY: 0x540, 32;
        /// 0 for a ring of its own, 1 for a shared one, 3 for none.
        RQ_TYPE: 0x565, 3;
        SRQN_RMPN_XRQN: 0x568, 24;
        HW_SQ_WQEBB_COUNTER: 0x5a0, 16;
        SW_SQ_WQEBB_COUNTER: 0x5b0, 16;
        CS_REQ: 0x630, 8;
        CS_RES: 0x638, 8;
        DC_ACCESS_KEY: 0x640, 64;
        DBR_UMEM_VALID: 0x683, 1;
        /// The UMEM of the doorbell record.
        DBR_UMEM_ID: 0x720, 32;
        [PRIMARY_ADDRESS_PATH: Ads = 0xc0];
        [SECONDARY_ADDRESS_PATH: Ads = 0x220];
    }
}

structure! {
    /// A path to a peer.
    Ads = "ads", 44 {
        PKEY_INDEX: 0x10, 16;
        GRH: 0x28, 1;
        MLID: 0x29, 7;
        RLID: 0x30, 16;
        ACK_TIMEOUT: 0x40, 5;
        SRC_ADDR_INDEX: 0x48, 8;
        STAT_RATE: 0x54, 4;
        HOP_LIMIT: 0x58, 8;
        TCLASS: 0x64, 8;
        FLOW_LABEL: 0x6c, 20;
        RGID_RIP: 0x80, 128;
        F_DSCP: 0x104, 1;
        DSCP: 0x10a, 6;
        UDP_SPORT: 0x110, 16;
        ETH_PRIO: 0x121, 3;
        SL: 0x124, 4;
        VHCA_PORT_NUM: 0x128, 8;
        RMAC_47_32: 0x130, 16;
        RMAC_31_0: 0x140, 32;
    }
}
