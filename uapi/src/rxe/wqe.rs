//! Elements of the send and receive rings.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// One piece of memory.
///
/// Kernel: `struct rxe_sge`.
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

/// Global route of an [`Av`].
///
/// Kernel: `struct rxe_global_route`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct GlobalRoute {
    /// GID of the destination.
    pub dgid: [u8; 16],
    /// Flow label (20 bits).
    pub flow_label: u32,
    /// Index of the source GID.
    pub sgid_index: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Padding, implicit in the kernel's struct.
    pub _pad0: u8,
}

/// Address vector; all 0 if the request names the AH by number.
///
/// Kernel: `struct rxe_av`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct Av {
    /// Local port, counted from 1.
    pub port_num: u8,
    /// [`super::NETWORK_TYPE_IPV4`] or [`super::NETWORK_TYPE_IPV6`].
    pub network_type: u8,
    /// Ethernet address of the next hop.
    pub dmac: [u8; 6],
    /// Global route.
    pub grh: GlobalRoute,
    /// Source address, a `sockaddr_in` or `sockaddr_in6`.
    pub sgid_addr: [u8; 28],
    /// Destination address, a `sockaddr_in` or `sockaddr_in6`.
    pub dgid_addr: [u8; 28],
}

/// The request part of a send element.
///
/// Kernel: `struct rxe_send_wr`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct SendWr {
    /// Id returned by the completion.
    pub wr_id: u64,
    /// Must be 0.
    pub reserved: u32,
    /// [`crate::enums::WrOpcode`].
    pub opcode: u32,
    /// [`crate::flags::SendFlags`].
    pub send_flags: u32,
    /// Immediate data in network byte order, or the rkey to invalidate in host order.
    pub ex: u32,
    /// A union: [`WrRdma`], [`WrAtomic`], [`WrUd`], [`WrMw`] or [`WrFlush`], depending on the opcode and the
    /// QP's type.
    pub wr: [u64; 15],
}

/// [`SendWr::wr`] of RDMA WRITE, READ and ATOMIC_WRITE.
///
/// Kernel: member `wr.rdma` of `struct rxe_send_wr`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct WrRdma {
    /// Address at the peer.
    pub remote_addr: u64,
    /// Key of the peer's memory.
    pub rkey: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// [`SendWr::wr`] of COMPARE_SWAP and FETCH_ADD.
///
/// Kernel: member `wr.atomic` of `struct rxe_send_wr`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct WrAtomic {
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

/// [`SendWr::wr`] of datagrams; the largest form.
///
/// Kernel: member `wr.ud` of `struct rxe_send_wr`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct WrUd {
    /// Number of the peer's QP.
    pub remote_qpn: u32,
    /// Q_Key to send with.
    pub remote_qkey: u32,
    /// Index of the partition key, GSI QPs only.
    pub pkey_index: u16,
    /// Must be 0.
    pub reserved: u16,
    /// Number of the AH from [`super::CreateAhResp`], or 0 to use `av`.
    pub ah_num: u32,
    /// Padding.
    pub pad: [u32; 4],
    /// Address, only if `ah_num` is 0.
    pub av: Av,
}

/// [`SendWr::wr`] of a memory window bind.
///
/// Kernel: member `wr.mw` of `struct rxe_send_wr`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct WrMw {
    /// First byte of the window.
    pub addr: u64,
    /// Length in bytes; 0 unbinds.
    pub length: u64,
    /// Local key of the memory region that the window lies on.
    pub mr_lkey: u32,
    /// Key of the window now.
    pub mw_rkey: u32,
    /// Key of the window after the bind; it differs in its low 8 bits.
    pub rkey: u32,
    /// [`crate::flags::Access`] of the window.
    pub access: u32,
}

/// [`SendWr::wr`] of FLUSH. Since Linux 6.2.
///
/// Kernel: member `wr.flush` of `struct rxe_send_wr`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct WrFlush {
    /// Address at the peer.
    pub remote_addr: u64,
    /// Bytes to flush.
    pub length: u32,
    /// Key of the peer's memory.
    pub rkey: u32,
    /// [`crate::flags::FlushPlacement`].
    pub type_: u8,
    /// [`crate::enums::FlushLevel`].
    pub level: u8,
    /// Padding, implicit in the kernel's struct.
    pub _pad0: [u8; 6],
}

/// Progress in the payload; the [`Sge`]s or the inline bytes follow directly.
///
/// Kernel: `struct rxe_dma_info`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct DmaInfo {
    /// Bytes in all.
    pub length: u32,
    /// Bytes left, `length` when posted.
    pub resid: u32,
    /// Present element, 0 when posted; kept by the kernel.
    pub cur_sge: u32,
    /// Elements that follow; 0 for inline data.
    pub num_sge: u32,
    /// Bytes of this element that are done, 0 when posted; kept by the kernel.
    pub sge_offset: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// Element of a send ring; its payload follows [`SendWqe::dma`]. The kernel keeps its state in it until the
/// element is consumed.
///
/// Kernel: `struct rxe_send_wqe`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct SendWqe {
    /// The request.
    pub wr: SendWr,
    /// Kept by the kernel.
    pub status: u32,
    /// Kept by the kernel; 0 (posted) when posted.
    pub state: u32,
    /// Remote address again, for RDMA and atomics.
    pub iova: u64,
    /// Kept by the kernel.
    pub mask: u32,
    /// Kept by the kernel.
    pub first_psn: u32,
    /// Kept by the kernel.
    pub last_psn: u32,
    /// Kept by the kernel.
    pub ack_length: u32,
    /// Send sequence number; counts requests from 1.
    pub ssn: u32,
    /// Kept by the kernel.
    pub has_rd_atomic: u32,
    /// The payload.
    pub dma: DmaInfo,
}

/// Element of a receive ring; its [`Sge`]s follow [`RecvWqe::dma`].
///
/// Kernel: `struct rxe_recv_wqe`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct RecvWqe {
    /// Id returned by the completion.
    pub wr_id: u64,
    /// Must be 0.
    pub reserved: u32,
    /// Padding.
    pub padding: u32,
    /// The buffer.
    pub dma: DmaInfo,
}
