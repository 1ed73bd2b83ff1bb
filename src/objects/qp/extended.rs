//! The send requests beyond the classic ones: those that revoke keys, bind memory windows, flush, and write a
//! word atomically. Not every driver and device has them all, and a queue pair refuses those that it lacks:
//! on the device they would put it into the error state.

use uverbs_uapi::enums::{FlushLevel, MwType};
use uverbs_uapi::flags::AccessFlags;

use super::send::{ANY, ATOMIC, Batch, Posted};
use super::transport::{AtomicWrite, BindWindow, RdmaFlush, RemoteInvalidate};
use crate::mw::{Mw, MwKind, Type1, Type2, Window};
use crate::work::{
    Bind, LocalKey, LocalSlice, Operation, Operations, Payload, Placement, PostError, Remote,
    RemoteKey, RemoteSlice,
};

impl<'q, T: RemoteInvalidate> Batch<'q, T> {
    /// Adds a SEND that, when it is received, invalidates a key of the peer: of a memory window of type 2.
    /// The peer finds the key in its completion
    /// ([`Completion::invalidated_rkey`](crate::Completion::invalidated_rkey)).
    ///
    /// # Errors
    ///
    /// See [`PostError`].
    #[inline(always)]
    pub fn send_inv(
        &mut self,
        from: impl AsRef<[LocalSlice<'q>]>,
        rkey: RemoteKey,
    ) -> Result<Posted<'_>, PostError> {
        self.push_to_peer(
            Operation::SendInv { rkey },
            Payload::Gather(from.as_ref()),
            ANY,
        )
    }

    /// Adds a SEND as [`Batch::send_inv`], of bytes that are copied into the request.
    ///
    /// # Errors
    ///
    /// See [`PostError`].
    #[inline(always)]
    pub fn send_inv_inline(
        &mut self,
        bytes: &[u8],
        rkey: RemoteKey,
    ) -> Result<Posted<'_>, PostError> {
        self.push_to_peer(Operation::SendInv { rkey }, Payload::Inline(bytes), ANY)
    }
}

impl<'q, T: BindWindow> Batch<'q, T> {
    /// Adds the bind of a memory window of type 1. The window then has the next key, and peers with the
    /// previous one lose their access.
    ///
    /// If the bind fails, or the batch is dropped, [`Mw::set_tag`] corrects the window's key. Manual page:
    /// `ibv_bind_mw(3)`.
    ///
    /// # Errors
    ///
    /// [`PostError::Window`] for a bind that would break the queue pair: the region lacks
    /// [`MW_BIND`](AccessFlags::MW_BIND), or the access is more than it can grant. Otherwise see
    /// [`PostError`].
    #[doc(alias = "ibv_bind_mw")]
    pub fn bind_mw(
        &mut self,
        mw: &mut Mw<Type1>,
        window: Window<'q>,
    ) -> Result<Posted<'_>, PostError> {
        let next = mw.rkey().next();
        self.bind(mw, next, window)
    }

    /// Adds the bind of a memory window of type 2, whose key has the low byte `tag` from then on. The window
    /// must not be bound: invalidate it first.
    ///
    /// # Errors
    ///
    /// As for [`Batch::bind_mw`].
    pub fn bind_mw_as(
        &mut self,
        mw: &mut Mw<Type2>,
        tag: u8,
        window: Window<'q>,
    ) -> Result<Posted<'_>, PostError> {
        let next = mw.rkey().with_tag(tag);
        self.bind(mw, next, window)
    }

    /// Adds a request that unbinds a memory window of type 1.
    ///
    /// # Errors
    ///
    /// See [`PostError`].
    pub fn unbind_mw(&mut self, mw: &mut Mw<Type1>) -> Result<Posted<'_>, PostError> {
        let next = mw.rkey().next();
        let nothing = Bind {
            mw_rkey: mw.rkey(),
            rkey: next,
            mr_lkey: LocalKey(0),
            address: 0,
            length: 0,
            access: AccessFlags::empty(),
            of_queue_pair: false,
        };
        self.push_bind(mw, nothing)
    }

    /// Adds a request that invalidates a key of this side: of a memory window of type 2.
    ///
    /// # Errors
    ///
    /// [`PostError::NotInTransport`] if the device does not have it for this transport: soft-RoCE has it for
    /// RC only. Otherwise see [`PostError`].
    #[inline(always)]
    pub fn local_inv(&mut self, rkey: RemoteKey) -> Result<Posted<'_>, PostError> {
        self.push(
            Operation::LocalInv { rkey },
            None,
            Payload::Gather(&[]),
            ANY,
        )
    }

    fn bind<K: MwKind>(
        &mut self,
        mw: &mut Mw<K>,
        rkey: RemoteKey,
        window: Window<'q>,
    ) -> Result<Posted<'_>, PostError> {
        if window.pd != self.fixed().pd {
            return Err(PostError::ForeignPd);
        }
        let zero_based = self
            .fixed()
            .operations
            .contains(Operations::BIND_ZERO_BASED);
        let bind = window.bind(mw.rkey(), rkey, zero_based)?;
        self.push_bind(mw, bind)
    }

    fn push_bind<K: MwKind>(
        &mut self,
        mw: &mut Mw<K>,
        bind: Bind,
    ) -> Result<Posted<'_>, PostError> {
        if mw.tag() != self.fixed().pd {
            return Err(PostError::ForeignPd);
        }
        let of_queue_pair = K::KIND == MwType::TYPE_2;
        let bind = Bind {
            of_queue_pair,
            ..bind
        };
        let posted = self.push(Operation::BindMw(bind), None, Payload::Gather(&[]), ANY)?;
        mw.set_tag(bind.rkey.tag());
        Ok(posted)
    }
}

impl<'q, T: RdmaFlush> Batch<'q, T> {
    /// Adds a FLUSH of a piece of the peer's memory: what was written to it by earlier requests of this queue
    /// pair has reached the placement when the FLUSH completes.
    ///
    /// The peer's queue pair and region need [`FLUSH_GLOBAL`](AccessFlags::FLUSH_GLOBAL) or
    /// [`FLUSH_PERSISTENT`](AccessFlags::FLUSH_PERSISTENT).
    ///
    /// # Errors
    ///
    /// [`PostError::MissingCapability`] if the device does not have it. [`PostError::MessageTooLong`] for 4
    /// GiB and more. Otherwise see [`PostError`].
    pub fn flush(
        &mut self,
        at: RemoteSlice,
        placement: Placement,
    ) -> Result<Posted<'_>, PostError> {
        self.push_flush(at, placement, FlushLevel::RANGE)
    }

    /// Adds a FLUSH as [`Batch::flush`], of the peer's whole region with this key.
    ///
    /// # Errors
    ///
    /// As for [`Batch::flush`].
    pub fn flush_region(
        &mut self,
        rkey: RemoteKey,
        placement: Placement,
    ) -> Result<Posted<'_>, PostError> {
        let whole = RemoteSlice {
            address: 0,
            length: 0,
            rkey,
        };
        self.push_flush(whole, placement, FlushLevel::MR)
    }

    fn push_flush(
        &mut self,
        at: RemoteSlice,
        placement: Placement,
        level: FlushLevel,
    ) -> Result<Posted<'_>, PostError> {
        let RemoteSlice {
            address,
            length,
            rkey,
        } = at;
        let length = u32::try_from(length).map_err(|_| PostError::MessageTooLong {
            given: length,
            max: u32::MAX.into(),
        })?;
        let operation = Operation::Flush {
            remote: Remote { address, rkey },
            length,
            placement: placement.bits(),
            level,
        };
        self.push_to_peer(operation, Payload::Gather(&[]), ANY)
    }
}

impl<'q, T: AtomicWrite> Batch<'q, T> {
    /// Adds an atomic write of 8 bytes to the peer's memory. The bytes are copied into the request, so the
    /// queue must be created with as many inline bytes. The peer needs
    /// [`REMOTE_WRITE`](AccessFlags::REMOTE_WRITE) only.
    ///
    /// # Errors
    ///
    /// [`PostError::MissingCapability`] if the device does not have it. [`PostError::NotAtomic`] if the
    /// address is no multiple of 8. Otherwise see [`PostError`].
    pub fn atomic_write(
        &mut self,
        word: [u8; ATOMIC as usize],
        at: RemoteSlice,
    ) -> Result<Posted<'_>, PostError> {
        if !at.address.is_multiple_of(ATOMIC) {
            return Err(PostError::NotAtomic {
                address: at.address,
                length: ATOMIC,
            });
        }
        self.push_remote(
            |remote| Operation::AtomicWrite { remote },
            at,
            Payload::Inline(&word),
        )
    }
}
