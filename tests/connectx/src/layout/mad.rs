//! Packets to and from the subnet's administrator (volume 1 of the InfiniBand specification, chapters 13 and
//! 15), with the names of the kernel's `ib_mad.h` and `ib_sa.h`.

use super::Field;

/// Bytes of every packet.
pub(crate) const LENGTH: usize = 256;
/// Where the attribute begins.
pub(crate) const DATA: usize = 56;
/// Where the administrator's own header begins; with it, RMPP counts what a packet carries.
pub(crate) const SA_HEADER: usize = 36;

pub(crate) const BASE_VERSION: Field = Field::new(0x0, 8);
pub(crate) const MGMT_CLASS: Field = Field::new(0x8, 8);
pub(crate) const CLASS_VERSION: Field = Field::new(0x10, 8);
pub(crate) const METHOD: Field = Field::new(0x18, 8);
pub(crate) const STATUS: Field = Field::new(0x20, 16);
#[cfg(test)]
pub(crate) const TID: Field = Field::new(0x40, 64);
pub(crate) const ATTR_ID: Field = Field::new(0x80, 16);
pub(crate) const ATTR_MOD: Field = Field::new(0xa0, 32);

pub(crate) const RMPP_VERSION: Field = Field::new(0xc0, 8);
pub(crate) const RMPP_TYPE: Field = Field::new(0xc8, 8);
pub(crate) const RMPP_RTIME: Field = Field::new(0xd0, 5);
pub(crate) const RMPP_FLAGS: Field = Field::new(0xd5, 3);
pub(crate) const RMPP_STATUS: Field = Field::new(0xd8, 8);
pub(crate) const SEG_NUM: Field = Field::new(0xe0, 32);
pub(crate) const PAYLEN_NEWWIN: Field = Field::new(0x100, 32);

pub(crate) const SM_KEY: Field = Field::new(0x120, 64);
pub(crate) const ATTR_OFFSET: Field = Field::new(0x160, 16);
pub(crate) const COMP_MASK: Field = Field::new(0x180, 64);

/// A component of an attribute: its field, and its bit in the mask of those that a request gives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Component {
    pub(crate) field: Field,
    pub(crate) bit: u32,
}

const fn component(bit: u32, at: usize, width: usize) -> Component {
    Component {
        field: Field::new(at, width),
        bit,
    }
}

/// Fields of `ClassPortInfo`.
pub(crate) mod class_port_info {
    use super::Field;

    pub(crate) const BASE_VERSION: Field = Field::new(0x0, 8);
    pub(crate) const CLASS_VERSION: Field = Field::new(0x8, 8);
    pub(crate) const CAPABILITY_MASK2: Field = Field::new(0x20, 27);
    pub(crate) const RESP_TIME_VALUE: Field = Field::new(0x3b, 5);
    /// Bytes of the structure.
    pub(crate) const SIZE: usize = 72;
}

/// Components of `PathRecord`.
pub(crate) mod path_record {
    use super::{Component, Field, component};

    /// Its component has two bits, of which the first stands for both.
    pub(crate) const SERVICE_ID: Component = component(0, 0x0, 64);
    /// Where the GIDs begin, which are too wide for a field, and their bits.
    pub(crate) const DGID: (usize, u32) = (8, 2);
    pub(crate) const SGID: (usize, u32) = (24, 3);
    pub(crate) const DLID: Component = component(4, 0x140, 16);
    pub(crate) const SLID: Component = component(5, 0x150, 16);
    pub(crate) const RAW_TRAFFIC: Component = component(6, 0x160, 1);
    pub(crate) const FLOW_LABEL: Component = component(8, 0x164, 20);
    pub(crate) const HOP_LIMIT: Component = component(9, 0x178, 8);
    pub(crate) const TRAFFIC_CLASS: Component = component(10, 0x180, 8);
    pub(crate) const REVERSIBLE: Field = Field::new(0x188, 1);
    pub(crate) const NUMB_PATH: Component = component(12, 0x189, 7);
    pub(crate) const PKEY: Component = component(13, 0x190, 16);
    pub(crate) const SL: Component = component(15, 0x1ac, 4);
    pub(crate) const MTU_SELECTOR: Component = component(16, 0x1b0, 2);
    pub(crate) const MTU: Component = component(17, 0x1b2, 6);
    pub(crate) const RATE_SELECTOR: Component = component(18, 0x1b8, 2);
    pub(crate) const RATE: Component = component(19, 0x1ba, 6);
    pub(crate) const PACKET_LIFE_TIME_SELECTOR: Component = component(20, 0x1c0, 2);
    pub(crate) const PACKET_LIFE_TIME: Component = component(21, 0x1c2, 6);
    /// Bytes of the structure.
    pub(crate) const SIZE: usize = 64;
}

/// Components of `MCMemberRecord`.
pub(crate) mod mcmember_record {
    use super::{Component, component};

    /// Where the GIDs begin, which are too wide for a field, and their bits.
    pub(crate) const MGID: (usize, u32) = (0, 0);
    pub(crate) const PORT_GID: (usize, u32) = (16, 1);
    pub(crate) const QKEY: Component = component(2, 0x100, 32);
    pub(crate) const MLID: Component = component(3, 0x120, 16);
    pub(crate) const MTU_SELECTOR: Component = component(4, 0x130, 2);
    pub(crate) const MTU: Component = component(5, 0x132, 6);
    pub(crate) const TRAFFIC_CLASS: Component = component(6, 0x138, 8);
    pub(crate) const PKEY: Component = component(7, 0x140, 16);
    pub(crate) const RATE_SELECTOR: Component = component(8, 0x150, 2);
    pub(crate) const RATE: Component = component(9, 0x152, 6);
    pub(crate) const PACKET_LIFE_TIME_SELECTOR: Component = component(10, 0x158, 2);
    pub(crate) const PACKET_LIFE_TIME: Component = component(11, 0x15a, 6);
    pub(crate) const SL: Component = component(12, 0x160, 4);
    pub(crate) const FLOW_LABEL: Component = component(13, 0x164, 20);
    pub(crate) const HOP_LIMIT: Component = component(14, 0x178, 8);
    pub(crate) const SCOPE: Component = component(15, 0x180, 4);
    pub(crate) const JOIN_STATE: Component = component(16, 0x184, 4);
    pub(crate) const PROXY_JOIN: Component = component(17, 0x188, 1);
    /// Bytes of the structure, up to a multiple of eight.
    pub(crate) const SIZE: usize = 56;
}
