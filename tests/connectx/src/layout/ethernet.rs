//! Ethernet: capabilities (`per_protocol_networking_offload_caps`, `roce_cap`, `flow_table_prop_layout`), the
//! virtual port's context (`nic_vport_context`), RoCE addresses (`roce_addr_layout`), send queues (`sqc` with
//! its `wq`) and receive queues (`rqc`).

/// Fields of `per_protocol_networking_offload_caps`.
pub(crate) mod offload {
    use super::super::Field;

    pub(crate) const CSUM_CAP: Field = Field::new(0x0, 1);
    pub(crate) const VLAN_CAP: Field = Field::new(0x1, 1);
    pub(crate) const SELF_LB_EN_MODIFIABLE: Field = Field::new(0x8, 1);
    pub(crate) const MAX_LSO_CAP: Field = Field::new(0xb, 5);
    pub(crate) const WQE_INLINE_MODE: Field = Field::new(0x12, 2);
    pub(crate) const RSS_IND_TBL_CAP: Field = Field::new(0x14, 4);
}

/// Fields of `roce_cap`.
pub(crate) mod roce {
    use super::super::Field;

    pub(crate) const L3_TYPE: Field = Field::new(0x8c, 4);
    pub(crate) const ROCE_VERSION: Field = Field::new(0x98, 8);
    pub(crate) const R_ROCE_DEST_UDP_PORT: Field = Field::new(0xb0, 16);
    pub(crate) const R_ROCE_MAX_SRC_UDP_PORT: Field = Field::new(0xc0, 16);
    pub(crate) const R_ROCE_MIN_SRC_UDP_PORT: Field = Field::new(0xd0, 16);
    pub(crate) const ROCE_ADDRESS_TABLE_SIZE: Field = Field::new(0xf0, 16);
}

/// Fields of `flow_table_prop_layout` for received frames, within `flow_table_nic_cap`.
pub(crate) mod flow_table {
    use super::super::Field;

    /// First byte of the properties for received frames.
    const RECEIVE: usize = 0x40;

    pub(crate) const FT_SUPPORT: Field = Field::new(0x0, 1).within(RECEIVE);
    pub(crate) const FLOW_MODIFY_EN: Field = Field::new(0x3, 1).within(RECEIVE);
    pub(crate) const MODIFY_ROOT: Field = Field::new(0x4, 1).within(RECEIVE);
    pub(crate) const IDENTIFIED_MISS_TABLE_MODE: Field = Field::new(0x5, 1).within(RECEIVE);
    pub(crate) const FLOW_TABLE_MODIFY: Field = Field::new(0x6, 1).within(RECEIVE);
    pub(crate) const LOG_MAX_FT_SIZE: Field = Field::new(0x22, 6).within(RECEIVE);
    pub(crate) const MAX_FT_LEVEL: Field = Field::new(0x38, 8).within(RECEIVE);
    pub(crate) const LOG_MAX_FT_NUM: Field = Field::new(0x78, 8).within(RECEIVE);
    pub(crate) const LOG_MAX_DESTINATION: Field = Field::new(0x98, 8).within(RECEIVE);
    pub(crate) const LOG_MAX_FLOW: Field = Field::new(0xb8, 8).within(RECEIVE);
}

/// Fields of `nic_vport_context`.
pub(crate) mod vport {
    use super::super::Field;

    pub(crate) const MTU: Field = Field::new(0x130, 16);
    pub(crate) const SYSTEM_IMAGE_GUID: Field = Field::new(0x140, 64);
    pub(crate) const PORT_GUID: Field = Field::new(0x180, 64);
    pub(crate) const NODE_GUID: Field = Field::new(0x1c0, 64);
    pub(crate) const PERMANENT_ADDRESS: Field = Field::new(0x7a0, 64);
}

/// Fields of `set_roce_address_in`.
pub(crate) mod address {
    use super::super::Field;

    pub(crate) const ROCE_ADDRESS_INDEX: Field = Field::new(0x40, 16);
    pub(crate) const ROCE_VERSION: Field = Field::new(0x158, 8);
    /// First byte of the address itself.
    pub(crate) const SOURCE_L3_ADDRESS: usize = 0x10;
    /// Bytes of an entry.
    pub(crate) const SIZE: usize = 0x20;
}

/// Fields of `sqc`, those of its work queue counted from the start of the context.
pub(crate) mod sqc {
    use super::super::Field;

    /// First byte of the work queue within the context.
    const WQ: usize = 0x30;
    /// First byte of the addresses of pages within the context.
    pub(crate) const PAS: usize = 0xf0;

    pub(crate) const STATE: Field = Field::new(0x8, 4);
    pub(crate) const CQN: Field = Field::new(0x48, 24);
    pub(crate) const PAGE_OFFSET: Field = Field::new(0x2b, 5).within(WQ);
    pub(crate) const PD: Field = Field::new(0x48, 24).within(WQ);
    pub(crate) const UAR_PAGE: Field = Field::new(0x68, 24).within(WQ);
    pub(crate) const DBR_ADDR: Field = Field::new(0x80, 64).within(WQ);
    pub(crate) const LOG_WQ_PG_SZ: Field = Field::new(0x113, 5).within(WQ);
    pub(crate) const LOG_WQ_SZ: Field = Field::new(0x11b, 5).within(WQ);
}

/// Fields of `rqc`, those of its work queue counted from the start of the context.
pub(crate) mod rqc {
    use super::super::Field;

    /// First byte of the work queue within the context.
    const WQ: usize = 0x30;
    /// First byte of the addresses of pages within the context.
    pub(crate) const PAS: usize = 0xf0;

    pub(crate) const STATE: Field = Field::new(0x8, 4);
    pub(crate) const CQN: Field = Field::new(0x48, 24);
    pub(crate) const WQ_TYPE: Field = Field::new(0x0, 4).within(WQ);
    pub(crate) const PAGE_OFFSET: Field = Field::new(0x2b, 5).within(WQ);
    pub(crate) const PD: Field = Field::new(0x48, 24).within(WQ);
    pub(crate) const DBR_ADDR: Field = Field::new(0x80, 64).within(WQ);
    pub(crate) const LOG_WQ_STRIDE: Field = Field::new(0x10c, 4).within(WQ);
    pub(crate) const LOG_WQ_PG_SZ: Field = Field::new(0x113, 5).within(WQ);
    pub(crate) const LOG_WQ_SZ: Field = Field::new(0x11b, 5).within(WQ);
}
