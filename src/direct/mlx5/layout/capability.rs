//! What the device reports of itself.

use super::structure;

structure! {
    /// Queries capabilities: bit 0 of `op_mod` for the current ones, their kind above it.
    QueryHcaCapIn = "query_hca_cap_in", 16 {
        OPCODE: 0x0, 16;
        OP_MOD: 0x30, 16;
    }
    command 0x100 => QueryHcaCapOut
}

structure! {
    /// Capabilities.
    QueryHcaCapOut = "query_hca_cap_out", 4112 {
        STATUS: 0x0, 8;
        SYNDROME: 0x20, 32;
        [GENERAL: CmdHcaCap = 0x80];
        [GENERAL_2: CmdHcaCap2 = 0x80];
        [ROCE: RoceCap = 0x80];
    }
}

structure! {
    /// The general capabilities.
    CmdHcaCap = "cmd_hca_cap", 256 {
        HCA_CAP_2: 0x20, 1;
        LOG_MAX_SRQ_SZ: 0x80, 8;
        LOG_MAX_QP_SZ: 0x88, 8;
        EVENT_CAP: 0x90, 1;
        LOG_MAX_QP: 0x9b, 5;
        ECE_SUPPORT: 0xa3, 1;
        LOG_MAX_SRQ: 0xab, 5;
        LOG_MAX_CQ_SZ: 0xc8, 8;
        LOG_MAX_CQ: 0xdb, 5;
        LOG_MAX_EQ_SZ: 0xe0, 8;
        LOG_MAX_MKEY: 0xea, 6;
        LOG_MAX_EQ: 0xfc, 4;
        MAX_INDIRECTION: 0x100, 8;
        /// Keys over parts of other keys that have one size.
        FIXED_BUFFER_SIZE: 0x108, 1;
        LOG_MAX_KLM_LIST_SIZE: 0x11a, 6;
        LOG_MAX_RA_REQ_DC: 0x12a, 6;
        LOG_MAX_RA_RES_DC: 0x13a, 6;
        LOG_MAX_RA_REQ_QP: 0x14a, 6;
        LOG_MAX_RA_RES_QP: 0x15a, 6;
        GID_TABLE_SIZE: 0x170, 16;
        PORT_TYPE: 0x1b6, 2;
        NUM_PORTS: 0x1b8, 8;
        LOG_MAX_MSG: 0x1c3, 5;
        CQE_VERSION: 0x1fc, 4;
        COMPACT_ADDRESS_VECTOR: 0x200, 1;
        DCT: 0x21a, 1;
        RC: 0x23f, 1;
        BF: 0x260, 1;
        LOG_BF_REG_SIZE: 0x26b, 5;
        LAG_DCT: 0x276, 2;
        MAX_WQE_SZ_SQ: 0x290, 16;
        MAX_WQE_SZ_RQ: 0x2b0, 16;
        MAX_WQE_SZ_SQ_DC: 0x2d0, 16;
        LOG_MAX_PD: 0x32b, 5;
        LOG_MAX_RMP: 0x383, 5;
        GENERAL_OBJ_TYPES: 0x400, 64;
        LOG_MAX_UCTX: 0x463, 5;
        LOG_MAX_UMEM: 0x46b, 5;
        LOG_MAX_DCI_STREAM_CHANNELS: 0x58b, 5;
        LOG_MAX_DCI_ERRORED_STREAMS: 0x593, 5;
        UCTX_CAP: 0x6a0, 32;
    }
}

structure! {
    /// The second set of general capabilities, if a device has it ([`CmdHcaCap::HCA_CAP_2`]).
    CmdHcaCap2 = "cmd_hca_cap_2", 256 {
        LOG_RESERVED_QPN_GRANULARITY: 0x93, 5;
    }
}

structure! {
    /// The capabilities of RoCE ports.
    RoceCap = "roce_cap", 256 {
        L3_TYPE: 0x8c, 4;
        ROCE_VERSION: 0x98, 8;
        R_ROCE_DEST_UDP_PORT: 0xb0, 16;
        R_ROCE_MAX_SRC_UDP_PORT: 0xc0, 16;
        R_ROCE_MIN_SRC_UDP_PORT: 0xd0, 16;
        ROCE_ADDRESS_TABLE_SIZE: 0xf0, 16;
    }
}

structure! {
    /// Queries an entry of a RoCE port's GID table.
    QueryRoceAddressIn = "query_roce_address_in", 16 {
        OPCODE: 0x0, 16;
        OP_MOD: 0x30, 16;
        ROCE_ADDRESS_INDEX: 0x40, 16;
        VHCA_PORT_NUM: 0x5c, 4;
    }
    command 0x760 => QueryRoceAddressOut
}

structure! {
    /// An entry of a RoCE port's GID table.
    QueryRoceAddressOut = "query_roce_address_out", 48 {
        STATUS: 0x0, 8;
        SYNDROME: 0x20, 32;
        [ROCE_ADDRESS: RoceAddrLayout = 0x80];
    }
}

structure! {
    /// A GID of a RoCE port with the fields of packets from it. A `roce_version` of 0 is version 1, and 2 is
    /// version 2.
    RoceAddrLayout = "roce_addr_layout", 32 {
        SOURCE_L3_ADDRESS: 0x0, 128;
        VLAN_VALID: 0x83, 1;
        VLAN_ID: 0x84, 12;
        SOURCE_MAC_47_32: 0x90, 16;
        SOURCE_MAC_31_0: 0xa0, 32;
        ROCE_L3_TYPE: 0xd4, 4;
        ROCE_VERSION: 0xd8, 8;
    }
}
