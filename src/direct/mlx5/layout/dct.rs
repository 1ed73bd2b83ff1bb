//! Targets of dynamic connections.

use super::structure;

structure! {
    /// Creates a target.
    CreateDctIn = "create_dct_in", 128 {
        OPCODE: 0x0, 16;
        UID: 0x10, 16;
        OP_MOD: 0x30, 16;
        [DCT_CONTEXT_ENTRY: Dctc = 0x80];
    }
    command 0x710 => CreateDctOut
}

structure! {
    /// The number of a new target.
    CreateDctOut = "create_dct_out", 16 {
        STATUS: 0x0, 8;
        SYNDROME: 0x20, 32;
        DCTN: 0x48, 24;
        ECE: 0x60, 32;
    }
}

structure! {
    /// The context of a target.
    Dctc = "dctc", 64 {
        STATE: 0x4, 4;
        USER_INDEX: 0x28, 24;
        CQN: 0x48, 24;
        COUNTER_SET_ID: 0x60, 8;
        ATOMIC_MODE: 0x68, 4;
        RRE: 0x6c, 1;
        RWE: 0x6d, 1;
        RAE: 0x6e, 1;
        CS_RES: 0x88, 8;
        MIN_RNR_NAK: 0x93, 5;
        SRQN_XRQN: 0xa8, 24;
        PD: 0xc8, 24;
        TCLASS: 0xe0, 8;
        FLOW_LABEL: 0xec, 20;
        DC_ACCESS_KEY: 0x100, 64;
        MTU: 0x145, 3;
        PORT: 0x148, 8;
        PKEY_INDEX: 0x150, 16;
        MY_ADDR_INDEX: 0x168, 8;
        HOP_LIMIT: 0x178, 8;
        ETH_PRIO: 0x1b5, 3;
        ECN: 0x1b8, 2;
        DSCP: 0x1ba, 6;
        ECE: 0x1e0, 32;
    }
}
