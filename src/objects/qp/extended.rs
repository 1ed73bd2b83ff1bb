//! The send requests beyond the classic ones: those that revoke keys, bind memory windows, flush, and write a
//! word atomically. Not every driver and device has them all. A queue pair refuses those that it lacks: on
//! the device they would put it into the error state.

use uverbs_uapi::enums::{FlushLevel, MwType};
use uverbs_uapi::flags::Access;

use super::request::{ANY, ATOMIC, Request};
use super::transport::{AtomicWrite, BindWindow, RdmaFlush, Transport};
use super::transport::{Reaches, sealed::Names};
use crate::mw::{Mw, MwKind, Type1, Type2, Window};
use crate::work::{
    Bind, LocalKey, Operation, Operations, Payload, Placement, PostError, Remote, RemoteKey,
    RemoteSlice,
};

/// An empty payload.
const NOTHING: Payload<'static> = Payload::Gather(&[]);

// These change a key of this side, and name no destination. Bounds are on the methods, as in `request`.
impl<'q, T: Transport> Request<'_, 'q, T> {
    /// The bind of a memory window of type 1. The window then has its next key, and peers with the previous
    /// one lose their access.
    ///
    /// If the bind fails, or the batch is dropped, [`Mw::set_tag`] corrects the window's key. Manual page:
    /// `ibv_bind_mw(3)`.
    ///
    /// # Errors
    ///
    /// [`PostError::Window`] for a bind that would break the queue pair: the region lacks
    /// [`MW_BIND`](Access::MW_BIND), or the access is more than it can grant. Otherwise see
    /// [`PostError`].
    #[doc(alias = "ibv_bind_mw")]
    pub fn bind_mw(self, mw: &mut Mw<Type1>, window: Window<'q>) -> Result<(), PostError>
    where
        T: BindWindow,
    {
        let next = mw.rkey().next();
        self.bind(mw, next, window)
    }

    /// The bind of a memory window of type 2, whose key has the low byte `tag` from then on. The window
    /// must not be bound: invalidate it first.
    ///
    /// # Errors
    ///
    /// As for [`bind_mw`](Self::bind_mw).
    pub fn bind_mw_as(
        self,
        mw: &mut Mw<Type2>,
        tag: u8,
        window: Window<'q>,
    ) -> Result<(), PostError>
    where
        T: BindWindow,
    {
        let next = mw.rkey().with_tag(tag);
        self.bind(mw, next, window)
    }

    /// Unbinds a memory window of type 1.
    ///
    /// # Errors
    ///
    /// See [`PostError`].
    pub fn unbind_mw(self, mw: &mut Mw<Type1>) -> Result<(), PostError>
    where
        T: BindWindow,
    {
        let next = mw.rkey().next();
        let nothing = Bind {
            mw_rkey: mw.rkey(),
            rkey: next,
            mr_lkey: LocalKey(0),
            address: 0,
            length: 0,
            access: Access::empty(),
            of_queue_pair: false,
        };
        self.put_bind(mw, nothing)
    }

    /// Invalidates a key of this side: the key of a memory window of type 2.
    ///
    /// # Errors
    ///
    /// [`PostError::NotInTransport`] if the device does not have it for this transport: soft-RoCE has it for
    /// RC only. Otherwise see [`PostError`].
    #[inline(always)]
    pub fn local_inv(self, rkey: RemoteKey) -> Result<(), PostError>
    where
        T: BindWindow,
    {
        self.put(Operation::LocalInv { rkey }, NOTHING, ANY)
    }

    fn bind<K: MwKind>(
        self,
        mw: &mut Mw<K>,
        rkey: RemoteKey,
        window: Window<'q>,
    ) -> Result<(), PostError> {
        if window.pd != self.fixed().pd {
            return Err(PostError::ForeignPd);
        }
        let zero_based = self
            .fixed()
            .operations
            .contains(Operations::BIND_ZERO_BASED);
        let bind = window.bind(mw.rkey(), rkey, zero_based)?;
        self.put_bind(mw, bind)
    }

    fn put_bind<K: MwKind>(self, mw: &mut Mw<K>, bind: Bind) -> Result<(), PostError> {
        if mw.tag() != self.fixed().pd {
            return Err(PostError::ForeignPd);
        }
        let of_queue_pair = K::KIND == MwType::TYPE_2;
        let bind = Bind {
            of_queue_pair,
            ..bind
        };
        self.put(Operation::BindMw(bind), NOTHING, ANY)?;
        mw.set_tag(bind.rkey.tag());
        Ok(())
    }
}

impl<T: Transport, D: Names> Request<'_, '_, T, D> {
    /// A FLUSH of a piece of the peer's memory: when it completes, everything that earlier requests of this
    /// queue pair wrote there has reached the placement.
    ///
    /// The peer's queue pair and region need [`FLUSH_GLOBAL`](Access::FLUSH_GLOBAL) or
    /// [`FLUSH_PERSISTENT`](Access::FLUSH_PERSISTENT).
    ///
    /// # Errors
    ///
    /// [`PostError::MissingCapability`] if the device does not have it. [`PostError::MessageTooLong`] for 4
    /// GiB and more. Otherwise see [`PostError`].
    pub fn flush(self, at: RemoteSlice, placement: Placement) -> Result<(), PostError>
    where
        T: RdmaFlush + Reaches<D>,
    {
        self.put_flush(at, placement, FlushLevel::RANGE)
    }

    /// A FLUSH as [`flush`](Self::flush), of the peer's whole region with this key.
    ///
    /// # Errors
    ///
    /// As for [`flush`](Self::flush).
    pub fn flush_region(self, rkey: RemoteKey, placement: Placement) -> Result<(), PostError>
    where
        T: RdmaFlush + Reaches<D>,
    {
        let whole = RemoteSlice {
            address: 0,
            length: 0,
            rkey,
        };
        self.put_flush(whole, placement, FlushLevel::MR)
    }

    fn put_flush(
        self,
        at: RemoteSlice,
        placement: Placement,
        level: FlushLevel,
    ) -> Result<(), PostError> {
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
        self.put(operation, NOTHING, ANY)
    }

    /// An atomic write of 8 bytes to the peer's memory. The bytes are copied into the request, so the
    /// queue must be created with as many inline bytes. The peer needs
    /// [`REMOTE_WRITE`](Access::REMOTE_WRITE) only.
    ///
    /// # Errors
    ///
    /// [`PostError::MissingCapability`] if the device does not have it. [`PostError::NotAtomic`] if the
    /// address is no multiple of 8. Otherwise see [`PostError`].
    pub fn atomic_write(self, word: [u8; ATOMIC as usize], at: RemoteSlice) -> Result<(), PostError>
    where
        T: AtomicWrite + Reaches<D>,
    {
        if !at.address.is_multiple_of(ATOMIC) {
            return Err(PostError::NotAtomic {
                address: at.address,
                length: ATOMIC,
            });
        }
        self.put_remote(
            |remote| Operation::AtomicWrite { remote },
            at,
            Payload::Inline(&word),
        )
    }
}
