//! Shared receive queues: receive memory pools (`rmpc` with its `wq`) and XRC's (`xrc_srqc`).

/// Fields of `rmpc`, those of its work queue counted from the start of the context.
pub(crate) mod rmp {
    use super::super::Field;

    /// First byte of the work queue within the context.
    const WQ: usize = 0x30;
    /// First byte of the addresses of pages within the context.
    pub(crate) const PAS: usize = 0xf0;

    pub(crate) const STATE: Field = Field::new(0x8, 4);
    /// Set if the entries of a cyclic pool have no part in front of their data segments.
    pub(crate) const BASIC_CYCLIC: Field = Field::new(0x20, 1);
    pub(crate) const WQ_TYPE: Field = Field::new(0x0, 4).within(WQ);
    pub(crate) const PAGE_OFFSET: Field = Field::new(0x2b, 5).within(WQ);
    pub(crate) const LWM: Field = Field::new(0x30, 16).within(WQ);
    pub(crate) const PD: Field = Field::new(0x48, 24).within(WQ);
    pub(crate) const DBR_ADDR: Field = Field::new(0x80, 64).within(WQ);
    pub(crate) const LOG_WQ_STRIDE: Field = Field::new(0x10c, 4).within(WQ);
    pub(crate) const LOG_WQ_PG_SZ: Field = Field::new(0x113, 5).within(WQ);
    pub(crate) const LOG_WQ_SZ: Field = Field::new(0x11b, 5).within(WQ);
    pub(crate) const DBR_UMEM_VALID: Field = Field::new(0x120, 1).within(WQ);
    pub(crate) const WQ_UMEM_VALID: Field = Field::new(0x121, 1).within(WQ);
    pub(crate) const DBR_UMEM_ID: Field = Field::new(0x140, 32).within(WQ);
    pub(crate) const WQ_UMEM_ID: Field = Field::new(0x160, 32).within(WQ);
    pub(crate) const WQ_UMEM_OFFSET: Field = Field::new(0x180, 64).within(WQ);
}

/// Fields of `xrc_srqc`.
pub(crate) mod xrc {
    use super::super::Field;

    pub(crate) const LOG_XRC_SRQ_SIZE: Field = Field::new(0x4, 4);
    pub(crate) const LOG_RQ_STRIDE: Field = Field::new(0x25, 3);
    pub(crate) const XRCD: Field = Field::new(0x28, 24);
    pub(crate) const PAGE_OFFSET: Field = Field::new(0x40, 6);
    pub(crate) const CQN: Field = Field::new(0x48, 24);
    pub(crate) const LOG_PAGE_SIZE: Field = Field::new(0x82, 6);
    pub(crate) const USER_INDEX: Field = Field::new(0x88, 24);
    pub(crate) const PD: Field = Field::new(0xc8, 24);
    pub(crate) const LWM: Field = Field::new(0xe0, 16);
    pub(crate) const DB_RECORD_ADDR_H: Field = Field::new(0x140, 32);
    pub(crate) const DB_RECORD_ADDR_L: Field = Field::new(0x160, 30);
}
