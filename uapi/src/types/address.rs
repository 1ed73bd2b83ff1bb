//! Paths and addresses.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The fields of a global route header.
///
/// Kernel: `struct ib_uverbs_global_route`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct GlobalRoute {
    /// GID of the destination.
    pub dgid: [u8; 16],
    /// Flow label (20 bits).
    pub flow_label: u32,
    /// Index of the source GID in the port's table.
    pub sgid_index: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Must be 0.
    pub reserved: u8,
}

/// The destination of an address handle.
///
/// Kernel: `struct ib_uverbs_ah_attr`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct AhAttr {
    /// Global route, valid if `is_global` is not 0.
    pub grh: GlobalRoute,
    /// LID of the destination, InfiniBand only.
    pub dlid: u16,
    /// Service level.
    pub sl: u8,
    /// Which of the port's LIDs to send from.
    pub src_path_bits: u8,
    /// [`crate::enums::Rate`] not to exceed.
    pub static_rate: u8,
    /// Not 0: `grh` is used. Always so on Ethernet.
    pub is_global: u8,
    /// Local port, counted from 1.
    pub port_num: u8,
    /// Must be 0.
    pub reserved: u8,
}

/// A path of a connected QP, in the order of `MODIFY_QP` and `QUERY_QP`.
///
/// Kernel: `struct ib_uverbs_qp_dest`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct QpDest {
    /// GID of the destination.
    pub dgid: [u8; 16],
    /// Flow label (20 bits).
    pub flow_label: u32,
    /// LID of the destination, InfiniBand only.
    pub dlid: u16,
    /// Must be 0.
    pub reserved: u16,
    /// Index of the source GID in the port's table.
    pub sgid_index: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Service level.
    pub sl: u8,
    /// Which of the port's LIDs to send from.
    pub src_path_bits: u8,
    /// [`crate::enums::Rate`] not to exceed.
    pub static_rate: u8,
    /// Not 0: the global route is used. Always so on Ethernet.
    pub is_global: u8,
    /// Local port, counted from 1.
    pub port_num: u8,
}
