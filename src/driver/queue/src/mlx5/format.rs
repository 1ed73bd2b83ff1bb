//! The formats of the device's rings: elements of send and receive queues, completions, doorbells.
//!
//! All numbers are big-endian. Field names are those of the kernel's `include/linux/mlx5/qp.h` and
//! `device.h`.

use zerocopy::{BigEndian, FromBytes, Immutable, IntoBytes, KnownLayout, U16, U32, U64};

/// A big-endian number of 16 bits.
pub type Be16 = U16<BigEndian>;
/// A big-endian number of 32 bits.
pub type Be32 = U32<BigEndian>;
/// A big-endian number of 64 bits.
pub type Be64 = U64<BigEndian>;

/// Two numbers of 32 bits, one after the other, that are stored at once.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(transparent)]
pub struct Pair(Be64);

impl Pair {
    /// Both numbers in the host's order.
    #[inline(always)]
    pub fn new(first: u32, second: u32) -> Self {
        Self(Be64::new(u64::from(first) << 32 | u64::from(second)))
    }
}

/// Bytes of a basic block, in which send queues are counted.
pub const BLOCK: usize = 64;
/// Bytes of the unit of a request's size.
pub const UNIT: usize = 16;
/// Units of the longest request: the device reads 6 bits of their number (`MLX5_WQE_CTRL_DS_MASK`).
pub const MOST_UNITS: usize = 0x3f;

/// Operations of a send queue (`enum` of `MLX5_OPCODE_*`).
pub mod opcode {
    /// Does nothing.
    pub const NOP: u8 = 0x00;
    /// SEND that invalidates a key of the peer's.
    pub const SEND_INVAL: u8 = 0x01;
    /// WRITE.
    pub const RDMA_WRITE: u8 = 0x08;
    /// WRITE with immediate data.
    pub const RDMA_WRITE_IMM: u8 = 0x09;
    /// SEND.
    pub const SEND: u8 = 0x0a;
    /// SEND with immediate data.
    pub const SEND_IMM: u8 = 0x0b;
    /// READ.
    pub const RDMA_READ: u8 = 0x10;
    /// Compare and swap.
    pub const ATOMIC_CS: u8 = 0x11;
    /// Fetch and add.
    pub const ATOMIC_FA: u8 = 0x12;
    /// Changes a memory key.
    pub const UMR: u8 = 0x25;
}

/// Flags in the low byte of the first number of [`Control::fm_ce_se_imm`].
pub mod control {
    /// The peer gets an event.
    pub const SOLICITED: u8 = 0x02;
    /// A completion is written.
    pub const CQ_UPDATE: u8 = 0x08;
    /// Starts after earlier changes of local keys.
    pub const SMALL_FENCE: u8 = 0x20;
    /// Starts after earlier reads and atomics.
    pub const FENCE: u8 = 0x80;
    /// The number of bits by which the stream of a DC initiator is shifted.
    pub const STREAM: u32 = 8;
}

/// The start of a send request (`struct mlx5_wqe_ctrl_seg`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Control {
    /// Variant (8 bits), index in basic blocks (16), operation (8).
    pub opmod_idx_opcode: Be32,
    /// Queue pair (24 bits), units (8).
    pub qpn_ds: Be32,
    /// Signature (8 bits), 0 (16), flags of [`control`] (8); then immediate data, or a key.
    pub fm_ce_se_imm: Pair,
}

impl Control {
    /// The start of a request: its index in basic blocks, the operation, the queue pair's number in the upper
    /// 24 bits and the units in the others, flags of [`control`], and immediate data or a key.
    #[inline(always)]
    pub fn new(index: u16, opcode: u8, qpn_ds: u32, flags: u32, imm: u32) -> Self {
        Self {
            opmod_idx_opcode: Be32::new(u32::from(index) << 8 | u32::from(opcode)),
            qpn_ds: Be32::new(qpn_ds),
            fm_ce_se_imm: Pair::new(flags, imm),
        }
    }
}

/// The peer's memory (`struct mlx5_wqe_raddr_seg`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct RemoteAddress {
    /// The first byte's address, as the key defines addresses.
    pub raddr: Be64,
    /// The key, then 0.
    pub rkey_reserved: Pair,
}

impl RemoteAddress {
    /// The memory at an address, by its key.
    #[inline(always)]
    pub fn new(address: u64, rkey: u32) -> Self {
        Self {
            raddr: Be64::new(address),
            rkey_reserved: Pair::new(rkey, 0),
        }
    }
}

/// The peer's shared receive queue (`struct mlx5_wqe_xrc_seg`).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct XrcQueue {
    /// The number of the queue.
    pub srqn: Be32,
    /// Not used.
    pub reserved: [u8; 12],
}

/// The operands of an atomic operation (`struct mlx5_wqe_atomic_seg`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct AtomicOperands {
    /// What the memory becomes, or what is added to it.
    pub swap_add: Be64,
    /// What the memory is compared with.
    pub compare: Be64,
}

/// A slice of memory (`struct mlx5_wqe_data_seg`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Data {
    /// Bytes; 0 stands for [`LONGEST_SLICE`].
    pub byte_count: Be32,
    /// The region's key.
    pub lkey: Be32,
    /// The first byte's address, as the key defines addresses.
    pub addr: Be64,
}

impl Data {
    /// A slice of 1 to [`LONGEST_SLICE`] bytes. A length of 0 would mean the longest slice.
    #[inline(always)]
    pub fn new(length: u32, lkey: u32, address: u64) -> Self {
        // The longest slice is written as 0: bit 31 would mark inline data.
        Self {
            byte_count: Be32::new(length & (LONGEST_SLICE - 1)),
            lkey: Be32::new(lkey),
            addr: Be64::new(address),
        }
    }
}

/// The slice after the last one of a receive request (`MLX5_INVALID_LKEY`).
pub const TERMINATOR: Data = Data {
    byte_count: Be32::ZERO,
    lkey: Be32::from_bytes(0x100_u32.to_be_bytes()),
    addr: Be64::ZERO,
};

/// Marks a length as that of inline data, which follows it (`MLX5_INLINE_SEG`).
pub const INLINE: u32 = 1 << 31;
/// Bytes of the length before inline data.
pub const INLINE_HEAD: usize = 4;

/// The longest slice; its length is written as 0.
pub const LONGEST_SLICE: u32 = 1 << 31;

/// The destination of a datagram, or of a request of a DC initiator (`struct mlx5_av`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Datagram {
    /// The Q_Key.
    pub qkey: Be32,
    /// Not used.
    pub reserved: Be32,
    /// The queue pair, or the DC target, with [`EXTENDED`].
    pub dqp_dct: Be32,
    /// Rate (4 bits), service level (4).
    pub stat_rate_sl: u8,
    /// Bits of the path in the sender's LID (7 bits); whether the LID is that of a group.
    pub fl_mlid: u8,
    /// The LID, or the UDP source port.
    pub rlid: Be16,
    /// Not used.
    pub reserved0: [u8; 4],
    /// The MAC address.
    pub rmac: [u8; 6],
    /// The traffic class.
    pub tclass: u8,
    /// The hop limit.
    pub hop_limit: u8,
    /// Whether there is a header (1 bit, on InfiniBand), index of the sender's GID (8), flow label (20).
    pub grh_gid_fl: Be32,
    /// The GID.
    pub rgid: [u8; 16],
}

impl Datagram {
    /// Sets the access key of a DC target, which takes the place of a datagram's key and of the reserved
    /// field after it.
    #[inline(always)]
    pub fn set_access_key(&mut self, key: u64) {
        self.qkey = Be32::new((key >> 32) as u32);
        self.reserved = Be32::new(key as u32);
    }
}

/// The vector has all 48 bytes (`MLX5_EXTENDED_UD_AV`).
pub const EXTENDED: u32 = 1 << 31;

/// The start of a shared receive request (`struct mlx5_wqe_srq_next_seg`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct SrqNext {
    /// Not used.
    pub reserved0: [u8; 2],
    /// The next request.
    pub next_wqe_index: Be16,
    /// Not used.
    pub signature: u8,
    /// Not used.
    pub reserved1: [u8; 11],
}

impl SrqNext {
    /// Where the index lies. Posters write only the index: everything else in the ring's memory is 0 from the
    /// start.
    pub const INDEX: usize = 2;

    /// A link to this element.
    #[inline(always)]
    pub fn to(index: u32) -> Self {
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
pub struct UmrControl {
    /// What is checked, and whether data follow.
    pub flags: u8,
    /// Not used.
    pub reserved0: [u8; 3],
    /// Units of the translation that follows the context.
    pub klm_octowords: Be16,
    /// Where the translation begins.
    pub translation_offset: Be16,
    /// Which fields of the context are changed.
    pub mkey_mask: Be64,
    /// Not used.
    pub reserved1: [u8; 32],
}

/// A memory key's new context (`struct mlx5_wqe_mkey_context_seg`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct MkeyContext {
    /// Bit 6: stands for nothing.
    pub free: u8,
    /// Not used.
    pub reserved1: u8,
    /// What the key allows.
    pub access_flags: u8,
    /// Not used.
    pub sf: u8,
    /// Queue pair (24 bits) and the key's low byte.
    pub qpn_mkey: Be32,
    /// Not used.
    pub reserved2: Be32,
    /// Flags, and the protection domain (24 bits).
    pub flags_pd: Be32,
    /// The first byte's address.
    pub start_addr: Be64,
    /// Bytes.
    pub len: Be64,
    /// Units of a signature's description.
    pub bsf_octword_size: Be32,
    /// Not used.
    pub reserved3: [u8; 16],
    /// Units of the translation.
    pub translations_octword_size: Be32,
    /// Not used.
    pub reserved4: [u8; 3],
    /// The base-2 logarithm of a page's bytes.
    pub log_page_size: u8,
    /// Not used.
    pub reserved5: Be32,
}

/// A completion (`struct mlx5_cqe64`, `struct mlx5_err_cqe`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Cqe {
    /// Not used.
    pub reserved0: [u8; 17],
    /// Bits of the path in this side's LID (7 bits).
    pub ml_path: u8,
    /// Not used.
    pub reserved1: [u8; 4],
    /// The sender's LID.
    pub slid: Be16,
    /// Source queue pair (24 bits), service level (4), header (2).
    pub flags_rqpn: Be32,
    /// Not used.
    pub reserved2: [u8; 4],
    /// The number that this side gave the queue (24 bits).
    pub srqn_uidx: Be32,
    /// Immediate data, an invalidated key, or in its low half the index of the partition key.
    pub imm_inval_pkey: [u8; 4],
    /// Not used.
    pub reserved3: [u8; 4],
    /// Bytes that were received or read.
    pub byte_cnt: Be32,
    /// The device's clock: the first 6 of 8 bytes.
    pub timestamp: [u8; 6],
    /// The device's own code for an error: the last two bytes of the timestamp's place.
    pub vendor_err_synd: u8,
    /// Why the request failed: a number of [`syndrome`].
    pub syndrome: u8,
    /// Operation of a send request (8 bits), queue pair (24).
    pub sop_drop_qpn: Be32,
    /// The request: its index in basic blocks, or of a receive its element.
    pub wqe_counter: Be16,
    /// Not used.
    pub signature: u8,
    /// What the entry reports (4 bits), format (2), solicited (1), owner (1).
    pub op_own: u8,
}

/// Where [`Cqe::op_own`] lies.
pub const OP_OWN: usize = 63;

/// The owner bit that the device gives to the entry at `index`: it changes with each lap round a ring of
/// `count` entries, a power of two.
#[inline(always)]
pub fn lap(index: u32, count: u32) -> u8 {
    u8::from(index & count != 0)
}

/// What a completion is (`enum` of `MLX5_CQE_*`), from its [`Cqe::op_own`].
pub mod cqe {
    /// A send request was done.
    pub const REQ: u8 = 0x0;
    /// A WRITE with immediate data came.
    pub const RESP_WR_IMM: u8 = 0x1;
    /// A message came.
    pub const RESP_SEND: u8 = 0x2;
    /// A message came with immediate data.
    pub const RESP_SEND_IMM: u8 = 0x3;
    /// A message came and has invalidated a key.
    pub const RESP_SEND_INV: u8 = 0x4;
    /// The ring ends here, and continues in another one.
    pub const RESIZE: u8 = 0x5;
    /// A send request failed.
    pub const REQ_ERR: u8 = 0xd;
    /// A receive failed.
    pub const RESP_ERR: u8 = 0xe;
    /// Never written by the device.
    pub const INVALID: u8 = 0xf;
    /// Bits of the format in `op_own`: the data lie in the completion.
    pub const SCATTERED: u8 = 0x0c;
    /// The format for up to 32 bytes, at the start of the half with the fields (`MLX5_INLINE_SCATTER_32`).
    pub const SCATTERED_32: u8 = 0x04;
    /// The format for up to 64 bytes, in the other half (`MLX5_INLINE_SCATTER_64`).
    pub const SCATTERED_64: u8 = 0x08;
    /// The bit of `op_own` that is set in the kinds that are failures.
    pub const FAILED: u8 = 0x80;

    /// Whether the entry reports a receive, with this `op_own`.
    #[inline(always)]
    pub fn is_receive(op_own: u8) -> bool {
        matches!(op_own >> 4, RESP_WR_IMM..=RESP_SEND_INV | RESP_ERR)
    }
}

/// How a request failed (`enum` of `MLX5_CQE_SYNDROME_*`).
pub mod syndrome {
    /// A message does not fit.
    pub const LOCAL_LENGTH: u8 = 0x01;
    /// The queue pair cannot do it.
    pub const LOCAL_QP_OP: u8 = 0x02;
    /// A local key does not allow it.
    pub const LOCAL_PROT: u8 = 0x04;
    /// The queue pair was in the error state.
    pub const WR_FLUSH: u8 = 0x05;
    /// A window could not be bound.
    pub const MW_BIND: u8 = 0x06;
    /// The peer's answer made no sense.
    pub const BAD_RESP: u8 = 0x10;
    /// A key does not allow what the peer did.
    pub const LOCAL_ACCESS: u8 = 0x11;
    /// The peer finds the request invalid.
    pub const REMOTE_INVAL_REQ: u8 = 0x12;
    /// The peer's key does not allow it.
    pub const REMOTE_ACCESS: u8 = 0x13;
    /// The peer could not do it.
    pub const REMOTE_OP: u8 = 0x14;
    /// The peer did not answer.
    pub const TRANSPORT_RETRY: u8 = 0x15;
    /// The peer had no receive.
    pub const RNR_RETRY: u8 = 0x16;
    /// The peer has given up.
    pub const REMOTE_ABORTED: u8 = 0x22;
}

/// Words of a queue pair's doorbell record.
pub const RECORD_RECEIVE: usize = 0;
/// Blocks of the send ring that were written (16 bits).
pub const RECORD_SEND: usize = 1;
/// Words of a completion queue's doorbell record.
pub const RECORD_CONSUMER: usize = 0;
/// Which event is asked for, and after which entry.
pub const RECORD_ARM: usize = 1;

/// Where the doorbell that arms a completion queue lies in a UAR (`MLX5_CQ_DOORBELL`).
pub const ARM_DOORBELL: usize = 0x20;
/// Where the first send doorbell register lies in a UAR (`MLX5_BF_OFFSET`).
pub const SEND_DOORBELL: usize = 0x800;
/// Asks for an event for solicited completions only (`MLX5_CQ_DB_REQ_NOT_SOL`).
pub const ARM_SOLICITED: u32 = 1 << 24;
/// Bits of the numbers of queues and queue pairs.
pub const NUMBER: u32 = 0xff_ffff;
/// The bits of a completion index that the device has.
pub const INDEX_MASK: u32 = 0xff_ffff;

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
