//! The formats of the device: requests, receive descriptors, completions. All numbers are little-endian.
//!
//! Source: `efa_io_defs.h` of rdma-core 58 and of Linux 7.3.

use std::ops::Deref;

use uverbs_uapi::enums::WcStatus;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, transmute_ref};

/// Bytes of the smaller requests, and the unit of the limits on the send ring.
pub(super) const BLOCK: usize = 64;
/// Blocks of the larger requests.
pub(super) const WIDE: u32 = 2;

/// The header of every request.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct Head {
    /// Comes back in the completion.
    pub(super) number: U16,
    /// [`request`].
    pub(super) operation: u8,
    /// [`request`].
    pub(super) control: u8,
    pub(super) dest_qpn: U16,
    /// Slices, or inline bytes.
    pub(super) length: U16,
    pub(super) imm: U32,
    pub(super) ah: U16,
    /// How the device processes messages; and a reserved byte.
    pub(super) hints: [u8; 2],
    pub(super) qkey: U32,
    pub(super) reserved: [u8; 6],
    /// The rest of a number of 64 bits.
    pub(super) number_high: [U16; 3],
}

/// Bits of [`Head::operation`] and [`Head::control`].
pub(super) mod request {
    pub(in super::super) const SEND: u8 = 0;
    pub(in super::super) const READ: u8 = 1;
    pub(in super::super) const WRITE: u8 = 2;
    pub(in super::super) const IMMEDIATE: u8 = 1 << 4;
    pub(in super::super) const INLINE: u8 = 1 << 5;
    /// Set in everything that begins with a [`super::Head`].
    pub(in super::super) const META: u8 = 1 << 7;

    /// Flips with each lap of the ring; 0 in the first.
    pub(in super::super) const PHASE: u8 = 1 << 0;
    /// It is the first part of a request, and the last, and reports when it is done.
    pub(in super::super) const WHOLE: u8 = 1 << 2 | 1 << 3 | 1 << 4;
}

/// A request, of which the device gets one block or two.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C, align(64))]
pub(super) struct Wqe {
    pub(super) head: Head,
    /// In a message: its slices or inline bytes. Otherwise a [`RemoteAddress`], then one slice or inline
    /// bytes.
    pub(super) body: [u8; 2 * BLOCK - size_of::<Head>()],
}

/// Registered memory of this side.
#[derive(Clone, Copy, Debug, Default, PartialEq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct Slice {
    pub(super) length: U32,
    /// 24 bits.
    pub(super) lkey: U32,
    pub(super) address: U64,
}

/// Registered memory of the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct RemoteAddress {
    pub(super) length: U32,
    pub(super) rkey: U32,
    pub(super) address: U64,
}

/// A slice of a receive, in the receive ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct Descriptor {
    pub(super) address: U64,
    /// Only used in the first slice of a receive.
    pub(super) number: U16,
    pub(super) length: U16,
    /// The key, and the bits below.
    pub(super) lkey_control: U32,
}

impl Descriptor {
    pub(super) const LKEY: u32 = (1 << 24) - 1;
    pub(super) const FIRST: u32 = 1 << 30;
    pub(super) const LAST: u32 = 1 << 31;
}

/// A completion, in the longer form, which has the sender's GID and the whole length of a WRITE. The kernel's
/// driver has had both since Linux 6.1.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C, align(8))]
pub(super) struct Entry {
    pub(super) number: U16,
    pub(super) status: u8,
    /// [`entry`].
    pub(super) flags: u8,
    pub(super) qpn: U16,
    /// The low half of the bytes that were received.
    pub(super) length: U16,
    /// This side's AH for the sender, if it has one.
    pub(super) ah: U16,
    pub(super) src_qpn: U16,
    pub(super) imm: U32,
    /// Of a WRITE the high half of its bytes, in the first 16 bits; or the sender's GID.
    pub(super) rest: [u8; 16],
}

/// An entry as it is read: in words, so that a copy takes few instructions.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C, align(8))]
pub(super) struct Words(pub(super) [u64; Entry::BYTES / size_of::<u64>()]);

impl Deref for Words {
    type Target = Entry;

    #[inline(always)]
    fn deref(&self) -> &Entry {
        transmute_ref!(self)
    }
}

impl Entry {
    /// Where the flags are, whose phase is written last.
    pub(super) const FLAGS: usize = std::mem::offset_of!(Entry, flags);
    /// Bytes of an entry.
    pub(super) const BYTES: usize = size_of::<Self>();

    #[inline(always)]
    pub(super) fn is_receive(&self) -> bool {
        self.flags & entry::QUEUE == entry::RECEIVES
    }

    /// [`request::SEND`], [`request::READ`] or [`request::WRITE`].
    #[inline(always)]
    pub(super) fn operation(&self) -> u8 {
        self.flags >> 4 & 7
    }

    /// Bytes that were received.
    pub(super) fn bytes(&self) -> u32 {
        let low = self.length.get().into();
        match self.operation() {
            request::WRITE => {
                let [a, b, ..] = self.rest;
                low | u32::from(u16::from_le_bytes([a, b])) << 16
            }
            _ => low,
        }
    }
}

/// Bits of [`Entry::flags`].
pub(super) mod entry {
    /// Flips with each lap of the ring; 1 in the first.
    pub(in super::super) const PHASE: u8 = 1 << 0;
    pub(in super::super) const QUEUE: u8 = 3 << 1;
    #[cfg(test)]
    pub(in super::super) const SENDS: u8 = 1 << 1;
    pub(in super::super) const RECEIVES: u8 = 2 << 1;
    pub(in super::super) const IMMEDIATE: u8 = 1 << 3;
    /// It consumed no receive.
    pub(in super::super) const UNSOLICITED: u8 = 1 << 7;

    /// In [`super::Entry::ah`]: this side has none for the sender.
    pub(in super::super) const NO_AH: u16 = u16::MAX;
}

/// The register of a completion queue: the low half of the count of entries that were taken, and these.
pub(super) mod doorbell {
    /// The count of events that were read, modulo 4.
    pub(in super::super) const SEQUENCE: u32 = 29;
    pub(in super::super) const ARM: u32 = 1 << 31;
}

/// The meaning of a status of the device other than 0.
#[cold]
#[inline(never)]
pub(super) fn failure(code: u8) -> WcStatus {
    match code {
        1 => WcStatus::WR_FLUSH_ERR,
        // An error within the queue pair, an unknown operation, no such AH.
        2..=4 => WcStatus::LOC_QP_OP_ERR,
        5 => WcStatus::LOC_PROT_ERR,
        6 => WcStatus::LOC_LEN_ERR,
        7 => WcStatus::REM_ACCESS_ERR,
        8 => WcStatus::REM_ABORT_ERR,
        // No such queue pair.
        9 => WcStatus::REM_INV_RD_REQ_ERR,
        10 => WcStatus::RNR_RETRY_EXC_ERR,
        // A receive that is too short; an operation that the peer does not have.
        11 | 18 => WcStatus::REM_INV_REQ_ERR,
        12 => WcStatus::BAD_RESP_ERR,
        // The peer is not reachable, or does not answer.
        13 | 15 => WcStatus::RESP_TIMEOUT_ERR,
        // The peer has no AH for this side.
        14 => WcStatus::REM_OP_ERR,
        _ => WcStatus::GENERAL_ERR,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    /// The numbers are those of the device's documentation.
    #[test]
    fn fields_lie_where_the_device_looks() {
        assert_eq!((size_of::<Head>(), size_of::<Wqe>()), (32, 128));
        let head = [
            offset_of!(Head, number),
            offset_of!(Head, operation),
            offset_of!(Head, control),
            offset_of!(Head, dest_qpn),
            offset_of!(Head, length),
            offset_of!(Head, imm),
            offset_of!(Head, ah),
            offset_of!(Head, hints),
            offset_of!(Head, qkey),
            offset_of!(Head, number_high),
        ];
        assert_eq!(head, [0, 2, 3, 4, 6, 8, 12, 14, 16, 26]);
        assert_eq!(offset_of!(Wqe, body), 32);
        assert_eq!(size_of::<Descriptor>(), 16);
        let descriptor = [
            offset_of!(Descriptor, address),
            offset_of!(Descriptor, number),
            offset_of!(Descriptor, length),
            offset_of!(Descriptor, lkey_control),
        ];
        assert_eq!(descriptor, [0, 8, 10, 12]);
        assert_eq!((Entry::BYTES, Entry::FLAGS), (32, 3));
        let entry = [
            offset_of!(Entry, status),
            offset_of!(Entry, qpn),
            offset_of!(Entry, length),
            offset_of!(Entry, ah),
            offset_of!(Entry, src_qpn),
            offset_of!(Entry, imm),
            offset_of!(Entry, rest),
        ];
        assert_eq!(entry, [2, 4, 6, 8, 10, 12, 16]);
    }

    #[test]
    fn codes_that_nobody_knows_are_errors() {
        for code in 1..=u8::MAX {
            assert_ne!(failure(code), WcStatus::SUCCESS);
        }
        assert_eq!(failure(7), WcStatus::REM_ACCESS_ERR);
        assert_eq!(failure(200), WcStatus::GENERAL_ERR);
    }
}
