//! Work requests in the one form that all drivers take.
//!
//! The typed interface of a QP builds these values and passes them down inlined, so that a driver's match on
//! the operation is decided at compile time. They borrow and are small: converting a foreign caller's struct
//! into one allocates nothing.

use std::ptr::{NonNull, with_exposed_provenance};

use uverbs_uapi::enums::FlushLevel;
use uverbs_uapi::flags::{Access, FlushPlacement, SendFlags};
use uverbs_uapi::types::Sge;

use super::{LONGEST, LocalKey, LocalSlice, PdTag, PostError, RemoteKey};

/// A send work request. `A` is the driver's address handle.
#[derive(Debug)]
pub(crate) struct WorkRequest<'a, A> {
    /// The id that its completion has.
    pub(crate) wr_id: u64,
    /// FENCE, SIGNALED and SOLICITED.
    pub(crate) flags: SendFlags,
    pub(crate) operation: Operation,
    /// The destination; `None` if the queue pair's connection determines it.
    pub(crate) to: Option<Destination<'a, A>>,
    pub(crate) payload: Payload<'a>,
}

/// What a send work request does.
///
/// `repr(u8)` gives its tag a byte of its own: calls of C programs keep a request in memory, and read the tag
/// there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Operation {
    Send,
    SendImm {
        imm: u32,
    },
    SendInv {
        rkey: RemoteKey,
    },
    Write {
        remote: Remote,
    },
    WriteImm {
        remote: Remote,
        imm: u32,
    },
    Read {
        remote: Remote,
    },
    CompareSwap {
        remote: Remote,
        compare: u64,
        swap: u64,
    },
    FetchAdd {
        remote: Remote,
        add: u64,
    },
    /// The payload is the word to write.
    AtomicWrite {
        remote: Remote,
    },
    /// It has no payload.
    Flush {
        remote: Remote,
        length: u32,
        placement: FlushPlacement,
        level: FlushLevel,
    },
    /// It has no payload.
    LocalInv {
        rkey: RemoteKey,
    },
    /// It has no payload.
    BindMw(Bind),
}

/// The binding of a memory window: the memory, and the window's keys before and after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bind {
    /// The window's key now.
    pub(crate) mw_rkey: RemoteKey,
    /// The window's key after the bind.
    pub(crate) rkey: RemoteKey,
    /// The region that the window lies on.
    pub(crate) mr_lkey: LocalKey,
    pub(crate) address: u64,
    /// 0 removes the binding.
    pub(crate) length: u64,
    pub(crate) access: Access,
    /// The window is of type 2: it belongs to the queue pair.
    pub(crate) of_queue_pair: bool,
}

/// The start of a piece of a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remote {
    pub(crate) address: u64,
    pub(crate) rkey: RemoteKey,
}

/// How far a flush takes what was written before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// Everyone on the peer's side sees it.
    Global,
    /// It survives a loss of power.
    Persistent,
    /// Everyone on the peer's side sees it, and it survives a loss of power.
    GlobalAndPersistent,
}

impl Placement {
    /// The placement as the packet encodes it.
    #[inline(always)]
    pub(crate) const fn bits(self) -> FlushPlacement {
        match self {
            Self::Global => FlushPlacement::GLOBAL,
            Self::Persistent => FlushPlacement::PERSISTENT,
            Self::GlobalAndPersistent => FlushPlacement::GLOBAL.union(FlushPlacement::PERSISTENT),
        }
    }
}

/// The bytes that a request sends, or the memory that it writes.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    not(feature = "c-abi"),
    allow(dead_code, reason = "some are for foreign callers only")
)]
pub(crate) enum Payload<'a> {
    /// Registered memory, read or written by the device after posting.
    Gather(&'a [LocalSlice<'a>]),
    /// Bytes that are copied into the work request.
    Inline(&'a [u8]),
    /// Like `Gather`, in the form of foreign callers.
    Sges(&'a [Sge]),
    /// Like `Inline`, from several places.
    InlineSges(Pieces<'a>),
}

impl Payload<'_> {
    /// The number of its bytes.
    #[inline(always)]
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Gather(slices) => slices.iter().map(|slice| u64::from(slice.length)).sum(),
            Self::Inline(bytes) => bytes.len() as u64,
            Self::Sges(sges) => sges.iter().map(|sge| u64::from(sge.length)).sum(),
            Self::InlineSges(pieces) => pieces.len() as u64,
        }
    }
}

/// The bounds that a payload must lie within.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Bytes that the other side has room for, as far as this side knows.
    pub(crate) room: u64,
    /// The protection domain of its slices.
    pub(crate) pd: PdTag,
    /// The request writes to its slices.
    pub(crate) writes: bool,
}

impl Bounds {
    /// Refuses a payload that is longer than a message or than the room; or whose slices belong to another
    /// protection domain, or are read-only although the request writes them.
    #[inline(always)]
    pub(crate) fn check(self, payload: Payload<'_>) -> Result<(), PostError> {
        let local = payload.len();
        let most = match payload {
            Payload::Gather(slices) if slices.len() > 1 => self.room.min(LONGEST.into()),
            // One slice is never longer than a message.
            _ => self.room,
        };
        if local > most {
            return Err(self.too_long(local));
        }
        match payload {
            Payload::Gather(slices) => self.pd.check(slices, self.writes),
            _ => Ok(()),
        }
    }

    /// Why a payload of `local` bytes is too long.
    #[cold]
    fn too_long(self, local: u64) -> PostError {
        let max = LONGEST.into();
        match local > max {
            true => PostError::MessageTooLong { given: local, max },
            false => PostError::BeyondRemote {
                local,
                remote: self.room,
            },
        }
    }
}

/// An element of a gather or scatter list.
pub(crate) trait Element {
    /// Whether the list is a C program's, to which the rules of libibverbs apply.
    #[allow(dead_code, reason = "not every driver asks")]
    const FOREIGN: bool;

    fn address(&self) -> u64;
    fn length(&self) -> u32;
    fn lkey(&self) -> u32;
}

impl Element for LocalSlice<'_> {
    const FOREIGN: bool = false;

    #[inline(always)]
    fn address(&self) -> u64 {
        self.address
    }

    #[inline(always)]
    fn length(&self) -> u32 {
        self.length
    }

    #[inline(always)]
    fn lkey(&self) -> u32 {
        self.lkey.0
    }
}

impl Element for Sge {
    const FOREIGN: bool = true;

    #[inline(always)]
    fn address(&self) -> u64 {
        self.addr
    }

    #[inline(always)]
    fn length(&self) -> u32 {
        self.length
    }

    #[inline(always)]
    fn lkey(&self) -> u32 {
        self.lkey
    }
}

/// Bytes of this process at several addresses; the keys are not used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pieces<'a> {
    list: &'a [Sge],
    length: usize,
}

impl<'a> Pieces<'a> {
    /// The bytes at these addresses.
    ///
    /// # Safety
    ///
    /// All of them are readable as long as this value and its copies are used.
    #[cfg(feature = "c-abi")]
    #[inline(always)]
    pub(crate) unsafe fn new(list: &'a [Sge]) -> Self {
        let lengths = list.iter().map(|piece| piece.length as usize);
        let length = lengths.fold(0, usize::saturating_add);
        Self { list, length }
    }

    /// How many bytes there are; the largest number if the sum overflows.
    #[inline(always)]
    pub(crate) fn len(self) -> usize {
        self.length
    }

    /// Copies them, one piece after the other.
    ///
    /// # Safety
    ///
    /// There is room for [`Self::len`] bytes.
    #[inline(always)]
    pub(crate) unsafe fn copy_to(self, mut to: NonNull<u8>) {
        for piece in self.list {
            let from = with_exposed_provenance::<u8>(piece.addr as usize);
            let length = piece.length as usize;
            // An address of no bytes may be null.
            if length > 0 {
                // SAFETY: by the contracts of `new` and of this function.
                unsafe {
                    to.as_ptr().copy_from_nonoverlapping(from, length);
                    to = to.add(length);
                }
            }
        }
    }
}

/// The part of a request's destination that its queue pair's connection does not determine. `A` is the
/// driver's address handle.
#[derive(Debug)]
pub(crate) enum Destination<'a, A> {
    /// The destination of a datagram.
    Datagram(DatagramTo<'a, A>),
    /// The peer's shared receive queue with this number: with XRC each request names one.
    Srq(u32),
    /// A target of dynamic connections.
    Target(TargetAt<'a, A>),
}

/// The destination of a datagram.
#[derive(Debug)]
pub(crate) struct DatagramTo<'a, A> {
    pub(crate) ah: &'a A,
    pub(crate) qpn: u32,
    pub(crate) qkey: u32,
    pub(crate) pd: PdTag,
}

/// The address of a target of dynamic connections.
#[derive(Debug)]
pub(crate) struct TargetAt<'a, A> {
    pub(crate) ah: &'a A,
    /// The target's number.
    pub(crate) number: u32,
    /// The access key that the target has.
    pub(crate) key: u64,
    /// The initiator's stream.
    pub(crate) stream: u16,
    pub(crate) pd: PdTag,
}

// By hand: the handle itself need not be `Copy`.
impl<A> Copy for WorkRequest<'_, A> {}

impl<A> Clone for WorkRequest<'_, A> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<A> Copy for Destination<'_, A> {}

impl<A> Clone for Destination<'_, A> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<A> Copy for DatagramTo<'_, A> {}

impl<A> Clone for DatagramTo<'_, A> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<A> Copy for TargetAt<'_, A> {}

impl<A> Clone for TargetAt<'_, A> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<'a, A> TargetAt<'a, A> {
    /// The same target, with the driver's part of its address handle.
    #[inline(always)]
    pub(crate) fn with<B>(self, ah: &'a B) -> Destination<'a, B> {
        let Self {
            number,
            key,
            stream,
            pd,
            ..
        } = self;
        Destination::Target(TargetAt {
            ah,
            number,
            key,
            stream,
            pd,
        })
    }
}

impl<'a, A> DatagramTo<'a, A> {
    /// The same destination, with the driver's part of its address handle.
    #[inline(always)]
    pub(crate) fn with<B>(self, ah: &'a B) -> Destination<'a, B> {
        let Self { qpn, qkey, pd, .. } = self;
        Destination::Datagram(DatagramTo { ah, qpn, qkey, pd })
    }
}
