//! rxe's additions to the answers of create commands, and the descriptor of a ring to map.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A ring that can be mapped from the device file, once.
///
/// Kernel: `struct mminfo`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct Mminfo {
    /// File offset for `mmap()`.
    pub offset: u64,
    /// Length in bytes.
    pub size: u32,
    /// Padding.
    pub pad: u32,
}

/// Driver's answer to AH creation.
///
/// Kernel: `struct rxe_create_ah_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct CreateAhResp {
    /// Number for [`super::WrUd::ah_num`]; 0 from kernels before 5.15, which require the whole [`super::Av`].
    pub ah_num: u32,
    /// Reserved.
    pub reserved: u32,
}

/// Driver's answer to CQ creation.
///
/// Kernel: `struct rxe_create_cq_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct CreateCqResp {
    /// The completion ring.
    pub mi: Mminfo,
}

/// Driver's answer to CQ resizing.
///
/// Kernel: `struct rxe_resize_cq_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct ResizeCqResp {
    /// The new completion ring.
    pub mi: Mminfo,
}

/// Driver's answer to QP creation.
///
/// Kernel: `struct rxe_create_qp_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct CreateQpResp {
    /// The receive ring; all 0 if the QP has an SRQ.
    pub rq_mi: Mminfo,
    /// The send ring.
    pub sq_mi: Mminfo,
}

/// Driver's answer to SRQ creation.
///
/// Kernel: `struct rxe_create_srq_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct CreateSrqResp {
    /// The receive ring.
    pub mi: Mminfo,
    /// Number of the SRQ.
    pub srq_num: u32,
    /// Reserved.
    pub reserved: u32,
}

/// Driver's request with SRQ modification.
///
/// Kernel: `struct rxe_modify_srq_cmd`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct ModifySrqCmd {
    /// Address to which the kernel writes the new [`Mminfo`].
    pub mmap_info_addr: u64,
}
