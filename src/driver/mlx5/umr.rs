//! Requests that change a memory key ("UMR"): binding a memory window, and invalidating a key.

use std::ptr::NonNull;

use uverbs_uapi::flags::Access;
#[cfg(feature = "mlx5-direct")]
use zerocopy::IntoBytes as _;

use super::format::{BLOCK, Be16, Be32, Be64, Data, LONGEST_SLICE, MkeyContext, UNIT, UmrControl};
use super::send::put;
use crate::work::{Bind, PostError, RemoteKey};

/// Bits of [`UmrControl::flags`] (`MLX5_WQE_UMR_CTRL_FLAG_*`).
mod flag {
    /// The key must be this queue pair's.
    pub(super) const CHECK_QPN: u8 = 1 << 3;
    /// The request has a part of the translation.
    pub(super) const TRANSLATION_OFFSET: u8 = 1 << 4;
    /// The key must be free.
    pub(super) const CHECK_FREE: u8 = 1 << 5;
    /// The translation follows in the request.
    pub(super) const INLINE: u8 = 1 << 7;
}

/// Which fields of the key's context are changed (`MLX5_WQE_UMR_CTRL_MKEY_MASK_*`).
mod mask {
    pub(super) const LENGTH: u64 = 1 << 0;
    pub(super) const START: u64 = 1 << 6;
    pub(super) const KEY: u64 = 1 << 13;
    pub(super) const QPN: u64 = 1 << 14;
    pub(super) const LOCAL_WRITE: u64 = 1 << 18;
    pub(super) const REMOTE_READ: u64 = 1 << 19;
    pub(super) const REMOTE_WRITE: u64 = 1 << 20;
    pub(super) const ATOMIC: u64 = 1 << 21;
    pub(super) const FREE: u64 = 1 << 29;
}

/// Bits of [`MkeyContext::access_flags`].
const RIGHTS: [(Access, u8); 4] = [
    (Access::LOCAL_WRITE, 1 << 3),
    (Access::REMOTE_READ, 1 << 4),
    (Access::REMOTE_WRITE, 1 << 5),
    (Access::REMOTE_ATOMIC, 1 << 6),
];

/// [`MkeyContext::free`]: the key stands for nothing.
const FREE: u8 = 1 << 6;
/// Instead of the queue pair in [`MkeyContext::qpn_mkey`]: any.
const ANY_QP: u32 = 0xff_ffff << 8;

/// Units of a translation of one entry: the device takes whole blocks of them (`MLX5_IB_UMR_XLT_ALIGNMENT`).
const TRANSLATION_UNITS: u16 = (BLOCK / UNIT) as u16;

/// The bytes of the largest such request, without its control segment.
pub(super) const MOST_BYTES: usize = size_of::<UmrControl>() + size_of::<MkeyContext>() + BLOCK;

/// Writes the invalidation of a key.
///
/// # Safety
///
/// There is room for [`MOST_BYTES`].
pub(super) unsafe fn put_invalidate(at: NonNull<u8>, rkey: RemoteKey) -> NonNull<u8> {
    let control = UmrControl {
        flags: flag::TRANSLATION_OFFSET | flag::INLINE | flag::CHECK_QPN,
        mkey_mask: Be64::new(mask::FREE | mask::KEY | mask::QPN),
        ..EMPTY_CONTROL
    };
    let context = MkeyContext {
        free: FREE,
        qpn_mkey: Be32::new(ANY_QP | u32::from(rkey.tag())),
        ..EMPTY_CONTEXT
    };
    // SAFETY: by this function's contract.
    unsafe { put(put(at, control), context) }
}

/// A part of a region that a key gets: its address, bytes, and the region's key.
#[cfg(feature = "mlx5-direct")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) address: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

/// What a key covers after the change. Its addresses count from 0.
#[cfg(feature = "mlx5-direct")]
#[derive(Clone, Debug)]
pub(crate) enum Layout {
    /// Parts, one after the other.
    List(Vec<Part>),
    /// So many rows, one after the other. Each row has a piece of each part. The number beside a part says
    /// how many bytes further on its piece lies than in the row before.
    Rows(u32, Vec<(Part, u16)>),
}

#[cfg(feature = "mlx5-direct")]
impl Layout {
    /// Units of the translation.
    pub(crate) fn units(&self) -> usize {
        match self {
            Self::List(parts) => parts.len(),
            Self::Rows(_, parts) => parts.len() + 1,
        }
    }

    /// Bytes that the key covers.
    pub(crate) fn length(&self) -> u64 {
        let bytes = |part: &Part| u64::from(part.length);
        match self {
            Self::List(parts) => parts.iter().map(bytes).sum(),
            Self::Rows(count, parts) => {
                u64::from(*count) * parts.iter().map(|(part, _)| bytes(part)).sum::<u64>()
            }
        }
    }

    /// The translation, in whole blocks.
    fn translation(&self) -> Vec<u8> {
        /// The mark at the start of a list of rows, where a part has its key.
        const ROWS: u32 = 0x400;
        let data = |byte_count, lkey, addr| Data {
            byte_count: Be32::new(byte_count),
            lkey: Be32::new(lkey),
            addr: Be64::new(addr),
        };
        let units: Vec<Data> = match self {
            Self::List(parts) => parts
                .iter()
                .map(|part| data(part.length, part.lkey, part.address))
                .collect(),
            Self::Rows(count, parts) => {
                let row = parts.iter().map(|(part, _)| part.length).sum();
                let head = data(row, ROWS, u64::from(*count) << 32 | parts.len() as u64);
                let parts = parts.iter().map(|(part, stride)| {
                    let count = u32::from(*stride) << 16 | part.length & 0xffff;
                    data(count, part.lkey, part.address)
                });
                std::iter::once(head).chain(parts).collect()
            }
        };
        let mut bytes = units.as_slice().as_bytes().to_vec();
        bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
        bytes
    }
}

/// The segments of a change of a key, after the control segment: the key gets this access and covers this
/// layout from then on, where they are given.
#[cfg(feature = "mlx5-direct")]
pub(super) fn gathering(key: u32, access: Option<Access>, layout: Option<&Layout>) -> Vec<u8> {
    let mut fields = mask::FREE | mask::KEY;
    let mut context = MkeyContext {
        qpn_mkey: Be32::new(ANY_QP | key & 0xff),
        ..EMPTY_CONTEXT
    };
    if let Some(access) = access {
        fields |= mask::LOCAL_WRITE | mask::REMOTE_READ | mask::REMOTE_WRITE | mask::ATOMIC;
        context.access_flags = rights(access);
    }
    let translation = layout.map(Layout::translation).unwrap_or_default();
    if let Some(layout) = layout {
        fields |= mask::LENGTH;
        context.len = Be64::new(layout.length());
    }
    let control = UmrControl {
        flags: flag::INLINE,
        klm_octowords: Be16::new((translation.len() / UNIT) as u16),
        mkey_mask: Be64::new(fields),
        ..EMPTY_CONTROL
    };
    [control.as_bytes(), context.as_bytes(), &translation].concat()
}

/// The access in the format of [`MkeyContext::access_flags`].
fn rights(access: Access) -> u8 {
    RIGHTS
        .iter()
        .filter(|(right, _)| access.contains(*right))
        .fold(0, |bits, (_, bit)| bits | bit)
}

/// Refuses a bind that is larger than a window can be.
pub(super) fn check_bind(bind: Bind) -> Result<(), PostError> {
    if bind.length > u64::from(LONGEST_SLICE) {
        return Err(PostError::Window(
            "a window has at most 2 GiB on this device",
        ));
    }
    Ok(())
}

/// Writes the bind of a window to a part of a region, or to nothing. [`check_bind`] has accepted it.
/// `qpn` is the number of the queue pair as in [`MkeyContext::qpn_mkey`].
///
/// # Safety
///
/// There is room for [`MOST_BYTES`].
pub(super) unsafe fn put_bind(at: NonNull<u8>, qpn: u32, bind: Bind) -> NonNull<u8> {
    let own = bind.of_queue_pair;
    let (mut flags, mut fields) = (
        flag::TRANSLATION_OFFSET | flag::INLINE,
        mask::FREE | mask::KEY,
    );
    if own {
        fields |= mask::QPN;
    }
    let tag = u32::from(bind.rkey.tag());
    if bind.length == 0 {
        if own {
            flags |= flag::CHECK_QPN;
        }
        let control = UmrControl {
            flags,
            mkey_mask: Be64::new(fields),
            ..EMPTY_CONTROL
        };
        let context = MkeyContext {
            free: FREE,
            qpn_mkey: Be32::new(ANY_QP | tag),
            ..EMPTY_CONTEXT
        };
        // SAFETY: by this function's contract.
        return unsafe { put(put(at, control), context) };
    }
    if own {
        flags |= flag::CHECK_FREE;
    }
    fields |= mask::LENGTH
        | mask::START
        | mask::LOCAL_WRITE
        | mask::REMOTE_READ
        | mask::REMOTE_WRITE
        | mask::ATOMIC;
    let control = UmrControl {
        flags,
        klm_octowords: Be16::new(TRANSLATION_UNITS),
        mkey_mask: Be64::new(fields),
        ..EMPTY_CONTROL
    };
    let zero_based = bind.access.contains(Access::ZERO_BASED);
    let context = MkeyContext {
        access_flags: rights(bind.access),
        qpn_mkey: Be32::new(if own { qpn } else { ANY_QP } | tag),
        start_addr: Be64::new(if zero_based { 0 } else { bind.address }),
        len: Be64::new(bind.length),
        ..EMPTY_CONTEXT
    };
    let entry = Data {
        byte_count: Be32::new(bind.length as u32),
        lkey: Be32::new(bind.mr_lkey.0),
        addr: Be64::new(bind.address),
    };
    // SAFETY: by this function's contract.
    unsafe {
        let at = put(put(put(at, control), context), entry);
        // The translation takes a whole block.
        put(at, [0_u8; BLOCK - size_of::<Data>()])
    }
}

const EMPTY_CONTROL: UmrControl = UmrControl {
    flags: 0,
    reserved0: [0; 3],
    klm_octowords: Be16::ZERO,
    translation_offset: Be16::ZERO,
    mkey_mask: Be64::ZERO,
    reserved1: [0; 32],
};

const EMPTY_CONTEXT: MkeyContext = MkeyContext {
    free: 0,
    reserved1: 0,
    access_flags: 0,
    sf: 0,
    qpn_mkey: Be32::ZERO,
    reserved2: Be32::ZERO,
    flags_pd: Be32::ZERO,
    start_addr: Be64::ZERO,
    len: Be64::ZERO,
    bsf_octword_size: Be32::ZERO,
    reserved3: [0; 16],
    translations_octword_size: Be32::ZERO,
    reserved4: [0; 3],
    log_page_size: 0,
    reserved5: Be32::ZERO,
};
