//! Work requests and completions, in the kernel's layout.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// One piece of memory in a work request.
///
/// Kernel: `struct ib_uverbs_sge`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct Sge {
    /// Address of the first byte.
    pub addr: u64,
    /// Length in bytes.
    pub length: u32,
    /// Local key of the memory region.
    pub lkey: u32,
}

/// One completion; also the element of rxe's completion rings.
///
/// Kernel: `struct ib_uverbs_wc`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct Wc {
    /// Id with which the work request was posted.
    pub wr_id: u64,
    /// [`crate::enums::WcStatus`]; if it is not success, only `wr_id`, `vendor_err` and `qp_num` are valid.
    pub status: u32,
    /// [`crate::enums::WcOpcode`].
    pub opcode: u32,
    /// The cause of an error, in the driver's own numbers.
    pub vendor_err: u32,
    /// Bytes received or read.
    pub byte_len: u32,
    /// Immediate data in network byte order, or the invalidated rkey, depending on `wc_flags`; see
    /// [`Wc::imm_data`].
    pub ex: u32,
    /// Number of the local QP.
    pub qp_num: u32,
    /// Number of the sending QP, datagrams only.
    pub src_qp: u32,
    /// [`crate::flags::WcFlags`].
    pub wc_flags: u32,
    /// Index of the partition key, GSI QPs only.
    pub pkey_index: u16,
    /// LID of the sender, InfiniBand datagrams only.
    pub slid: u16,
    /// Service level, datagrams only.
    pub sl: u8,
    /// Which of the port's LIDs was addressed, datagrams only.
    pub dlid_path_bits: u8,
    /// Port on which it arrived; few drivers fill it in.
    pub port_num: u8,
    /// Reserved.
    pub reserved: u8,
}

impl Wc {
    /// The immediate data in host order; valid with [`crate::flags::WcFlags::WITH_IMM`].
    #[must_use]
    pub const fn imm_data(&self) -> u32 {
        u32::from_be(self.ex)
    }

    /// The local key that the peer invalidated; valid with [`crate::flags::WcFlags::WITH_INV`].
    #[must_use]
    pub const fn invalidate_rkey(&self) -> u32 {
        self.ex
    }
}

/// A send work request of `POST_SEND`.
///
/// Kernel: `struct ib_uverbs_send_wr`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct SendWr {
    /// Id returned by the completion.
    pub wr_id: u64,
    /// Number of its elements.
    pub num_sge: u32,
    /// [`crate::enums::WrOpcode`].
    pub opcode: u32,
    /// [`crate::flags::SendFlags`].
    pub send_flags: u32,
    /// Immediate data in network byte order, or the rkey to invalidate.
    pub ex: u32,
    /// [`SendWrRdma`], [`SendWrAtomic`] or [`SendWrUd`], depending on the opcode and the QP's type.
    pub wr: [u64; 4],
}

/// [`SendWr::wr`] of RDMA WRITE and READ.
///
/// Kernel: member `wr.rdma` of `struct ib_uverbs_send_wr`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct SendWrRdma {
    /// Address at the peer.
    pub remote_addr: u64,
    /// Key of the peer's memory.
    pub rkey: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// [`SendWr::wr`] of atomic operations.
///
/// Kernel: member `wr.atomic` of `struct ib_uverbs_send_wr`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct SendWrAtomic {
    /// Address at the peer, a multiple of 8.
    pub remote_addr: u64,
    /// Operand of FETCH_ADD, or the value to compare with.
    pub compare_add: u64,
    /// Value to store if the comparison succeeds.
    pub swap: u64,
    /// Key of the peer's memory.
    pub rkey: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// [`SendWr::wr`] of datagrams.
///
/// Kernel: member `wr.ud` of `struct ib_uverbs_send_wr`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct SendWrUd {
    /// Handle of the AH.
    pub ah: u32,
    /// Number of the peer's QP.
    pub remote_qpn: u32,
    /// Q_Key to send with.
    pub remote_qkey: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// A receive work request of `POST_RECV` and `POST_SRQ_RECV`.
///
/// Kernel: `struct ib_uverbs_recv_wr`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct RecvWr {
    /// Id returned by the completion.
    pub wr_id: u64,
    /// Number of its elements.
    pub num_sge: u32,
    /// Must be 0.
    pub reserved: u32,
}
