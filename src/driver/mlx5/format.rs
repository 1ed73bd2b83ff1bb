//! The formats of the device's rings: elements of send and receive queues, completions, doorbells.
//!
//! All numbers are big-endian. Field names are those of the kernel's `include/linux/mlx5/qp.h` and
//! `device.h`.

use zerocopy::{BigEndian, FromBytes, Immutable, IntoBytes, KnownLayout, U16, U32, U64};

pub(super) type Be16 = U16<BigEndian>;
pub(super) type Be32 = U32<BigEndian>;
pub(super) type Be64 = U64<BigEndian>;

/// Two numbers of 32 bits, one behind the other, that are stored at once.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(transparent)]
pub(super) struct Pair(Be64);

impl Pair {
    #[inline(always)]
    pub(super) fn new(first: u32, second: u32) -> Self {
        Self(Be64::new(u64::from(first) << 32 | u64::from(second)))
    }
}

/// Bytes of a basic block, in which send queues are counted.
pub(super) const BLOCK: usize = 64;
/// Bytes of the unit of a request's size.
pub(super) const UNIT: usize = 16;
/// Units of the longest request: the device reads 6 bits of their number (`MLX5_WQE_CTRL_DS_MASK`).
pub(super) const MOST_UNITS: usize = 0x3f;

/// Operations of a send queue (`enum` of `MLX5_OPCODE_*`).
pub(super) mod opcode {
    pub(in super::super) const NOP: u8 = 0x00;
    pub(in super::super) const SEND_INVAL: u8 = 0x01;
    pub(in super::super) const RDMA_WRITE: u8 = 0x08;
    pub(in super::super) const RDMA_WRITE_IMM: u8 = 0x09;
    pub(in super::super) const SEND: u8 = 0x0a;
    pub(in super::super) const SEND_IMM: u8 = 0x0b;
    pub(in super::super) const RDMA_READ: u8 = 0x10;
    pub(in super::super) const ATOMIC_CS: u8 = 0x11;
    pub(in super::super) const ATOMIC_FA: u8 = 0x12;
    pub(in super::super) const UMR: u8 = 0x25;
}

/// Flags in the low byte of the first number of [`Control::fm_ce_se_imm`].
pub(super) mod control {
    /// The peer is told by an event.
    pub(in super::super) const SOLICITED: u8 = 0x02;
    /// A completion is written.
    pub(in super::super) const CQ_UPDATE: u8 = 0x08;
    /// Starts after earlier changes of local keys.
    pub(in super::super) const SMALL_FENCE: u8 = 0x20;
    /// Starts after earlier reads and atomics.
    pub(in super::super) const FENCE: u8 = 0x80;
}

/// The start of a send request (`struct mlx5_wqe_ctrl_seg`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct Control {
    /// Variant (8 bits), index in basic blocks (16), operation (8).
    pub(super) opmod_idx_opcode: Be32,
    /// Queue pair (24 bits), units (8).
    pub(super) qpn_ds: Be32,
    /// Signature (8 bits), 0 (16), flags of [`control`] (8); then immediate data, or a key.
    pub(super) fm_ce_se_imm: Pair,
}

/// The peer's memory (`struct mlx5_wqe_raddr_seg`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct RemoteAddress {
    pub(super) raddr: Be64,
    /// The key, then 0.
    pub(super) rkey_reserved: Pair,
}

/// The peer's shared receive queue (`struct mlx5_wqe_xrc_seg`).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct XrcQueue {
    pub(super) srqn: Be32,
    pub(super) reserved: [u8; 12],
}

/// The operands of an atomic operation (`struct mlx5_wqe_atomic_seg`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct AtomicOperands {
    pub(super) swap_add: Be64,
    pub(super) compare: Be64,
}

/// A slice of memory (`struct mlx5_wqe_data_seg`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct Data {
    pub(super) byte_count: Be32,
    pub(super) lkey: Be32,
    pub(super) addr: Be64,
}

/// The slice behind the last one of a receive request (`MLX5_INVALID_LKEY`).
pub(super) const TERMINATOR: Data = Data {
    byte_count: Be32::ZERO,
    lkey: Be32::from_bytes(0x100_u32.to_be_bytes()),
    addr: Be64::ZERO,
};

/// Marks a length as that of inline data, which follows it (`MLX5_INLINE_SEG`).
pub(super) const INLINE: u32 = 1 << 31;
/// Bytes of the length before inline data.
pub(super) const INLINE_HEAD: usize = 4;

/// The longest slice; its length is written as 0.
pub(super) const LONGEST_SLICE: u32 = 1 << 31;

/// The destination of a datagram, or of a request of a DC initiator (`struct mlx5_av`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct Datagram {
    pub(super) qkey: Be32,
    pub(super) reserved: Be32,
    /// The queue pair, or the DC target, with [`EXTENDED`].
    pub(super) dqp_dct: Be32,
    pub(super) stat_rate_sl: u8,
    pub(super) fl_mlid: u8,
    pub(super) rlid: Be16,
    pub(super) reserved0: [u8; 4],
    pub(super) rmac: [u8; 6],
    pub(super) tclass: u8,
    pub(super) hop_limit: u8,
    pub(super) grh_gid_fl: Be32,
    pub(super) rgid: [u8; 16],
}

impl Datagram {
    /// Names the access key of a DC target, which has the place of a datagram's key and of what is reserved
    /// behind that.
    #[inline(always)]
    pub(super) fn set_access_key(&mut self, key: u64) {
        self.qkey = Be32::new((key >> 32) as u32);
        self.reserved = Be32::new(key as u32);
    }
}

/// The vector has all 48 bytes (`MLX5_EXTENDED_UD_AV`).
pub(super) const EXTENDED: u32 = 1 << 31;

/// The start of a shared receive request (`struct mlx5_wqe_srq_next_seg`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct SrqNext {
    pub(super) reserved0: [u8; 2],
    /// The next request.
    pub(super) next_wqe_index: Be16,
    pub(super) signature: u8,
    pub(super) reserved1: [u8; 11],
}

impl SrqNext {
    /// Where the index lies. Whoever posts writes it alone: all else is 0 in the ring's memory from the
    /// start.
    pub(super) const INDEX: usize = 2;

    /// A link to this element.
    #[inline(always)]
    pub(super) fn to(index: u32) -> Self {
        Self {
            reserved0: [0; 2],
            next_wqe_index: Be16::new(index as u16),
            signature: 0,
            reserved1: [0; 11],
        }
    }
}

/// The changes to a memory key (`struct mlx5_wqe_umr_ctrl_seg`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct UmrControl {
    pub(super) flags: u8,
    pub(super) reserved0: [u8; 3],
    /// Units of the translation that follows the context.
    pub(super) klm_octowords: Be16,
    pub(super) translation_offset: Be16,
    pub(super) mkey_mask: Be64,
    pub(super) reserved1: [u8; 32],
}

/// A memory key's new context (`struct mlx5_wqe_mkey_context_seg`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct MkeyContext {
    /// Bit 6: stands for nothing.
    pub(super) free: u8,
    pub(super) reserved1: u8,
    pub(super) access_flags: u8,
    pub(super) sf: u8,
    /// Queue pair (24 bits) and the key's low byte.
    pub(super) qpn_mkey: Be32,
    pub(super) reserved2: Be32,
    pub(super) flags_pd: Be32,
    pub(super) start_addr: Be64,
    pub(super) len: Be64,
    pub(super) bsf_octword_size: Be32,
    pub(super) reserved3: [u8; 16],
    pub(super) translations_octword_size: Be32,
    pub(super) reserved4: [u8; 3],
    pub(super) log_page_size: u8,
    pub(super) reserved5: Be32,
}

/// A completion (`struct mlx5_cqe64`, `struct mlx5_err_cqe`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct Cqe {
    pub(super) reserved0: [u8; 17],
    pub(super) ml_path: u8,
    pub(super) reserved1: [u8; 4],
    pub(super) slid: Be16,
    /// Source queue pair (24 bits), service level (4), header (2).
    pub(super) flags_rqpn: Be32,
    pub(super) reserved2: [u8; 4],
    /// The number that this side gave the queue (24 bits).
    pub(super) srqn_uidx: Be32,
    /// Immediate data, an invalidated key, or in its low half the index of the partition key.
    pub(super) imm_inval_pkey: [u8; 4],
    pub(super) reserved3: [u8; 4],
    pub(super) byte_cnt: Be32,
    pub(super) timestamp: [u8; 6],
    /// The device's own code for an error: the last two bytes of the timestamp's place.
    pub(super) vendor_err_synd: u8,
    pub(super) syndrome: u8,
    /// Operation of a send request (8 bits), queue pair (24).
    pub(super) sop_drop_qpn: Be32,
    pub(super) wqe_counter: Be16,
    pub(super) signature: u8,
    /// What it is (4 bits), format (2), solicited (1), owner (1).
    pub(super) op_own: u8,
}

/// Where [`Cqe::op_own`] lies.
pub(super) const OP_OWN: usize = 63;

/// What a completion is (`enum` of `MLX5_CQE_*`), from its [`Cqe::op_own`].
pub(super) mod cqe {
    pub(in super::super) const REQ: u8 = 0x0;
    pub(in super::super) const RESP_WR_IMM: u8 = 0x1;
    pub(in super::super) const RESP_SEND: u8 = 0x2;
    pub(in super::super) const RESP_SEND_IMM: u8 = 0x3;
    pub(in super::super) const RESP_SEND_INV: u8 = 0x4;
    pub(in super::super) const RESIZE: u8 = 0x5;
    pub(in super::super) const REQ_ERR: u8 = 0xd;
    pub(in super::super) const RESP_ERR: u8 = 0xe;
    /// Never written by the device.
    pub(in super::super) const INVALID: u8 = 0xf;
    /// Bits of the format in `op_own`: the data lies in the completion.
    pub(in super::super) const SCATTERED: u8 = 0x0c;
    /// Of these the one for up to 32 bytes, at the start of the half with the fields
    /// (`MLX5_INLINE_SCATTER_32`).
    pub(in super::super) const SCATTERED_32: u8 = 0x04;
    /// The one for up to 64 bytes, in the other half (`MLX5_INLINE_SCATTER_64`).
    pub(in super::super) const SCATTERED_64: u8 = 0x08;
    /// The bit of `op_own` that marks the kinds that are failures.
    pub(in super::super) const FAILED: u8 = 0x80;

    /// Whether the entry reports a receive, with this `op_own`.
    pub(in super::super) fn is_receive(op_own: u8) -> bool {
        matches!(op_own >> 4, RESP_WR_IMM..=RESP_SEND_INV | RESP_ERR)
    }
}

/// How a request failed (`enum` of `MLX5_CQE_SYNDROME_*`).
pub(super) mod syndrome {
    pub(in super::super) const LOCAL_LENGTH: u8 = 0x01;
    pub(in super::super) const LOCAL_QP_OP: u8 = 0x02;
    pub(in super::super) const LOCAL_PROT: u8 = 0x04;
    pub(in super::super) const WR_FLUSH: u8 = 0x05;
    pub(in super::super) const MW_BIND: u8 = 0x06;
    pub(in super::super) const BAD_RESP: u8 = 0x10;
    pub(in super::super) const LOCAL_ACCESS: u8 = 0x11;
    pub(in super::super) const REMOTE_INVAL_REQ: u8 = 0x12;
    pub(in super::super) const REMOTE_ACCESS: u8 = 0x13;
    pub(in super::super) const REMOTE_OP: u8 = 0x14;
    pub(in super::super) const TRANSPORT_RETRY: u8 = 0x15;
    pub(in super::super) const RNR_RETRY: u8 = 0x16;
    pub(in super::super) const REMOTE_ABORTED: u8 = 0x22;
}

/// Words of a queue pair's doorbell record.
pub(super) const RECORD_RECEIVE: usize = 0;
pub(super) const RECORD_SEND: usize = 1;
/// Words of a completion queue's doorbell record.
pub(super) const RECORD_CONSUMER: usize = 0;
pub(super) const RECORD_ARM: usize = 1;

/// Where the doorbell that arms a completion queue lies in a UAR (`MLX5_CQ_DOORBELL`).
pub(super) const ARM_DOORBELL: usize = 0x20;
/// Where the first send doorbell register lies in a UAR (`MLX5_BF_OFFSET`).
pub(super) const SEND_DOORBELL: usize = 0x800;
/// Asks for an event for solicited completions only (`MLX5_CQ_DB_REQ_NOT_SOL`).
pub(super) const ARM_SOLICITED: u32 = 1 << 24;
/// Bits of the numbers of queues and queue pairs.
pub(super) const NUMBER: u32 = 0xff_ffff;
/// Bits of a completion index that the device knows.
pub(super) const INDEX_MASK: u32 = 0xff_ffff;

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn segments_have_the_sizes_and_places_that_the_device_expects() {
        assert_eq!(size_of::<Control>(), UNIT);
        assert_eq!(offset_of!(Control, fm_ce_se_imm), 8);
        assert_eq!(size_of::<RemoteAddress>(), UNIT);
        assert_eq!(size_of::<XrcQueue>(), UNIT);
        assert_eq!(size_of::<AtomicOperands>(), UNIT);
        assert_eq!(size_of::<Data>(), UNIT);
        assert_eq!(size_of::<Datagram>(), 48);
        assert_eq!(offset_of!(Datagram, rmac), 20);
        assert_eq!(offset_of!(Datagram, rgid), 32);
        assert_eq!(size_of::<SrqNext>(), UNIT);
        assert_eq!(offset_of!(SrqNext, next_wqe_index), SrqNext::INDEX);
        assert_eq!(size_of::<UmrControl>(), 48);
        assert_eq!(size_of::<MkeyContext>(), 64);
        assert_eq!(offset_of!(MkeyContext, len), 24);
        assert_eq!(size_of::<Cqe>(), BLOCK);
        assert_eq!(offset_of!(Cqe, slid), 22);
        assert_eq!(offset_of!(Cqe, srqn_uidx), 32);
        assert_eq!(offset_of!(Cqe, byte_cnt), 44);
        assert_eq!(offset_of!(Cqe, syndrome), 55);
        assert_eq!(offset_of!(Cqe, wqe_counter), 60);
        assert_eq!(offset_of!(Cqe, op_own), OP_OWN);
        assert_eq!(align_of::<Cqe>(), 1);
    }
}
