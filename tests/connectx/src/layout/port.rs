//! The port: the context of an InfiniBand virtual port (`hca_vport_context`) and the registers that describe
//! the link.

/// Fields of `hca_vport_context`.
pub(crate) mod vport {
    use super::super::Field;

    pub(crate) const FIELD_SELECT: Field = Field::new(0x0, 32);
    pub(crate) const HAS_SMI: Field = Field::new(0x101, 1);
    pub(crate) const PORT_PHYSICAL_STATE: Field = Field::new(0x110, 4);
    pub(crate) const VPORT_STATE_POLICY: Field = Field::new(0x114, 4);
    pub(crate) const PORT_STATE: Field = Field::new(0x118, 4);
    pub(crate) const VPORT_STATE: Field = Field::new(0x11c, 4);
    pub(crate) const SYSTEM_IMAGE_GUID: Field = Field::new(0x140, 64);
    pub(crate) const PORT_GUID: Field = Field::new(0x180, 64);
    pub(crate) const NODE_GUID: Field = Field::new(0x1c0, 64);
    pub(crate) const CAP_MASK1: Field = Field::new(0x200, 32);
    pub(crate) const CAP_MASK1_FIELD_SELECT: Field = Field::new(0x220, 32);
    pub(crate) const LID: Field = Field::new(0x300, 16);
    pub(crate) const SUBNET_TIMEOUT: Field = Field::new(0x31b, 5);
    pub(crate) const SM_LID: Field = Field::new(0x320, 16);
}

/// Fields of `ptys_reg`, the link's type and speed.
pub(crate) mod ptys {
    use super::super::Field;

    pub(crate) const PROTO_MASK: Field = Field::new(0x1d, 3);
    pub(crate) const IB_LINK_WIDTH_CAPABILITY: Field = Field::new(0x80, 16);
    pub(crate) const IB_PROTO_CAPABILITY: Field = Field::new(0x90, 16);
    pub(crate) const ETH_PROTO_CAPABILITY: Field = Field::new(0x60, 32);
    pub(crate) const ETH_PROTO_ADMIN: Field = Field::new(0xc0, 32);
    pub(crate) const ETH_PROTO_OPER: Field = Field::new(0x120, 32);
    pub(crate) const IB_LINK_WIDTH_OPER: Field = Field::new(0x140, 16);
    pub(crate) const IB_PROTO_OPER: Field = Field::new(0x150, 16);
}

/// Fields of `pmtu_reg`, the link's largest packets.
pub(crate) mod pmtu {
    use super::super::Field;

    pub(crate) const MAX_MTU: Field = Field::new(0x20, 16);
    pub(crate) const ADMIN_MTU: Field = Field::new(0x40, 16);
    pub(crate) const OPER_MTU: Field = Field::new(0x60, 16);
}

/// Fields of `pvlc_reg`, the link's virtual lanes.
pub(crate) mod pvlc {
    use super::super::Field;

    pub(crate) const VL_HW_CAP: Field = Field::new(0x3c, 4);
    pub(crate) const VL_OPERATIONAL: Field = Field::new(0x7c, 4);
}
