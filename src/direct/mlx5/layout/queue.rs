//! Completion queues, and rings of receives (RMP).

use super::structure;

structure! {
    /// Creates a completion queue. The kernel makes it use the UMEM that is named.
    CreateCqIn = "create_cq_in", 272 {
        OPCODE: 0x0, 16;
        UID: 0x10, 16;
        OP_MOD: 0x30, 16;
        /// Where the ring begins in the UMEM, in bytes.
        CQ_UMEM_OFFSET: 0x280, 64;
        CQ_UMEM_ID: 0x2c0, 32;
        CQ_UMEM_VALID: 0x2e0, 1;
        [CQ_CONTEXT: Cqc = 0x80];
    }
    command 0x400 => CreateCqOut
}

structure! {
    /// The number of a new completion queue.
    CreateCqOut = "create_cq_out", 16 {
        STATUS: 0x0, 8;
        SYNDROME: 0x20, 32;
        CQN: 0x48, 24;
    }
}

structure! {
    /// Queries the context of a completion queue.
    QueryCqIn = "query_cq_in", 16 {
        OPCODE: 0x0, 16;
        OP_MOD: 0x30, 16;
        CQN: 0x48, 24;
    }
    command 0x402 => QueryCqOut
}

structure! {
    /// The context of a completion queue.
    QueryCqOut = "query_cq_out", 272 {
        STATUS: 0x0, 8;
        SYNDROME: 0x20, 32;
        [CQ_CONTEXT: Cqc = 0x80];
    }
}

structure! {
    /// The context of a completion queue.
    Cqc = "cqc", 64 {
        STATUS: 0x0, 4;
        DBR_UMEM_VALID: 0x6, 1;
        /// 0 for entries of 64 bytes, 1 for 128.
        CQE_SZ: 0x8, 3;
        /// Every entry is written to the first place.
        CC: 0xb, 1;
        /// Entries that were not taken are overwritten.
        OI: 0xe, 1;
        CQE_COMP_EN: 0x11, 1;
        ST: 0x14, 4;
        /// The UMEM of the doorbell record.
        DBR_UMEM_ID: 0x20, 32;
        PAGE_OFFSET: 0x54, 6;
        LOG_CQ_SIZE: 0x63, 5;
        UAR_PAGE: 0x68, 24;
        CQ_PERIOD: 0x84, 12;
        CQ_MAX_COUNT: 0x90, 16;
        /// The event queue: [`Direct::eqn`](crate::direct::mlx5::Direct::eqn).
        C_EQN_OR_APU_ELEMENT: 0xa0, 32;
        LOG_PAGE_SIZE: 0xc3, 5;
        LAST_NOTIFIED_INDEX: 0x108, 24;
        LAST_SOLICIT_INDEX: 0x128, 24;
        CONSUMER_COUNTER: 0x148, 24;
        PRODUCER_COUNTER: 0x168, 24;
        /// Where the doorbell record lies in its UMEM, in bytes.
        DBR_ADDR: 0x1c0, 64;
    }
}

structure! {
    /// Creates a ring of receives. The kernel makes it use the UMEM that is named.
    CreateRmpIn = "create_rmp_in", 272 {
        OPCODE: 0x0, 16;
        UID: 0x10, 16;
        OP_MOD: 0x30, 16;
        [CTX: Rmpc = 0x100];
    }
    command 0x90c => CreateRmpOut
}

structure! {
    /// The number of a new ring of receives.
    CreateRmpOut = "create_rmp_out", 16 {
        STATUS: 0x0, 8;
        SYNDROME: 0x20, 32;
        RMPN: 0x48, 24;
    }
}

structure! {
    /// The context of a ring of receives.
    Rmpc = "rmpc", 240 {
        STATE: 0x8, 4;
        BASIC_CYCLIC_RCV_WQE: 0x20, 1;
        [WQ: Wq = 0x180];
    }
}

structure! {
    /// A ring.
    Wq = "wq", 192 {
        /// 0 for a linked list, 1 for a cyclic ring.
        WQ_TYPE: 0x0, 4;
        WQ_SIGNATURE: 0x4, 1;
        END_PADDING_MODE: 0x5, 2;
        PAGE_OFFSET: 0x2b, 5;
        LWM: 0x30, 16;
        PD: 0x48, 24;
        UAR_PAGE: 0x68, 24;
        DBR_ADDR: 0x80, 64;
        HW_COUNTER: 0xc0, 32;
        SW_COUNTER: 0xe0, 32;
        LOG_WQ_STRIDE: 0x10c, 4;
        LOG_WQ_PG_SZ: 0x113, 5;
        LOG_WQ_SZ: 0x11b, 5;
        DBR_UMEM_VALID: 0x120, 1;
        WQ_UMEM_VALID: 0x121, 1;
        DBR_UMEM_ID: 0x140, 32;
        WQ_UMEM_ID: 0x160, 32;
        WQ_UMEM_OFFSET: 0x180, 64;
    }
}
