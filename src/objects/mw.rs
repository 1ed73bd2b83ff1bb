//! Memory windows: keys to a part of a memory region that can be given to peers and revoked quickly, by a
//! work request instead of a system call.
//!
//! A window is allocated here and bound by [`Request::bind_mw`](crate::Request::bind_mw) or
//! [`Request::bind_mw_as`](crate::Request::bind_mw_as). There are two types. Windows of [`Type1`] belong to
//! their protection domain, get their next key from the library, and are revoked by binding them again or to
//! nothing. Windows of [`Type2`] belong to the queue pair that they were bound on, get their key from the
//! user, and are revoked by invalidating the key, locally or by the peer.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

use uverbs_uapi::flags::Access;
use uverbs_uapi::handle::MwHandle;

pub use uverbs_uapi::enums::MwType;

use crate::command::AllocMw;
use crate::error::{DestroyError, Result};
use crate::owned::Owned;
use crate::pd::{Pd, PdUse, User};
use crate::work::{Bind, LocalKey, OutOfBounds, PdTag, PostError, RemoteKey, RemoteSlice};

mod sealed {
    pub trait Sealed {}
}

/// A type of memory window: [`Type1`] or [`Type2`].
pub trait MwKind: sealed::Sealed + fmt::Debug + Send + Sync + 'static {
    /// The kernel's number of the type.
    const KIND: MwType;
}

/// Windows that belong to a protection domain: a peer with the key can use it on any queue pair of the
/// domain.
#[derive(Clone, Copy, Debug)]
pub enum Type1 {}

/// Windows that belong to the queue pair that they were bound on.
///
/// Invalidate or [free](Mw::dealloc) them before destroying or dropping that queue pair; see [`Mw`].
#[derive(Clone, Copy, Debug)]
pub enum Type2 {}

impl sealed::Sealed for Type1 {}
impl sealed::Sealed for Type2 {}

impl MwKind for Type1 {
    const KIND: MwType = MwType::TYPE_1;
}
impl MwKind for Type2 {
    const KIND: MwType = MwType::TYPE_2;
}

impl Pd {
    /// Allocates a memory window. It grants no access until it is bound.
    ///
    /// # Errors
    ///
    /// The device does not have windows of this type, or its limit is reached (`max_mw`). Manual page:
    /// `ibv_alloc_mw(3)`.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn alloc_mw<K: MwKind>(&self) -> Result<Mw<K>> {
        let command = AllocMw {
            pd: self.handle(),
            kind: K::KIND,
        };
        let (handle, rkey) = self.context().fd().execute(&command)?;
        Ok(Mw {
            object: Owned::new(self.context(), handle),
            rkey: RemoteKey(rkey),
            pd: self.user(User::Mw),
            kind: PhantomData,
        })
    }
}

/// A memory window.
///
/// Dropping it frees it and revokes the peers' access through it.
///
/// Free or invalidate a bound window of [`Type2`] before destroying the queue pair that it was bound on. On
/// soft-RoCE a window keeps a reference to its queue pair, and destroying or dropping the queue pair waits
/// for it, for nearly a minute (seen on Linux 7.2; `rxe_do_bind_mw` in `rxe_mw.c`, `__rxe_cleanup` in
/// `rxe_pool.c`). In a struct that has both, put the window's field before the queue pair's. The library
/// cannot check the order: a bind may have failed, and a window may have been invalidated by the peer
/// ([`Request::send_inv`](crate::Request::send_inv)) or by its key alone
/// ([`Request::local_inv`](crate::Request::local_inv)); then the queue pair may be destroyed first. On
/// soft-RoCE a reset of the queue pair closes the window ([`Qp::reset`](crate::Qp::reset)).
///
/// ```no_run
/// use uverbs::{Access, Rc, mr::RemoteKey, mw::Type1};
/// # fn lend(pd: &uverbs::Pd, qp: &mut uverbs::Qp<Rc>) -> Result<(), Box<dyn std::error::Error>> {
/// let mr = pd.register(vec![0u8; 4096], Access::LOCAL_WRITE | Access::MW_BIND)?;
/// let mut mw = pd.alloc_mw::<Type1>()?;
/// let window = mr.window(1024..2048, Access::REMOTE_WRITE)?;
/// qp.post(|batch| {
///     batch.signaled(1).bind_mw(&mut mw, window)?;
///     Ok(())
/// })?;
/// println!("{}", window.remote(mw.rkey()));       // for the peer, who may write there from now on
///
/// qp.post(|batch| {
///     batch.signaled(2).unbind_mw(&mut mw)?;      // and from then on may not
///     Ok(())
/// })?;
/// # Ok(()) }
/// ```
pub struct Mw<K: MwKind> {
    object: Owned<MwHandle>,
    rkey: RemoteKey,
    pd: PdUse,
    kind: PhantomData<fn() -> K>,
}

impl<K: MwKind> Mw<K> {
    /// The key that the last bind gives it, for the peer. It grants no access until the bind has completed. A
    /// message on the same queue pair may carry it right after the bind.
    pub fn rkey(&self) -> RemoteKey {
        self.rkey
    }

    /// The kernel's handle.
    pub fn handle(&self) -> MwHandle {
        self.object.handle()
    }

    /// Sets the low byte of the window's key: restores the previous one after a bind that failed or whose
    /// batch was dropped.
    pub fn set_tag(&mut self, tag: u8) {
        self.rkey = self.rkey.with_tag(tag);
    }

    pub(crate) fn tag(&self) -> PdTag {
        self.pd.tag()
    }

    /// Frees the window, bound or not.
    ///
    /// # Errors
    ///
    /// The kernel refuses; the error returns the window. Manual page: `ibv_dealloc_mw(3)`.
    #[doc(alias = "ibv_dealloc_mw")]
    pub fn dealloc(mut self) -> Result<(), DestroyError<Self>> {
        let result = self.object.destroy();
        DestroyError::of(self, result)
    }
}

impl<K: MwKind> Drop for Mw<K> {
    fn drop(&mut self) {
        self.object.end(|_| ());
        // Its region may have been dropped before, and wait for it.
        self.pd.reap();
    }
}

impl<K: MwKind> fmt::Debug for Mw<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mw")
            .field("kind", &K::KIND)
            .field("handle", &self.handle().0)
            .field("rkey", &self.rkey)
            .finish()
    }
}

/// What a memory window is bound to: a part of a memory region, and the access that peers get.
///
/// soft-RoCE checks a peer's access against the region under a window, not against the window itself
/// (`check_rkey` in `drivers/infiniband/sw/rxe/rxe_resp.c`, Linux 6.1 to 7.2). So there a window grants its
/// access to the whole region.
///
/// It borrows its region, as a [`LocalSlice`](crate::LocalSlice) does. While a window is bound to a region,
/// the kernel refuses to deregister the region: [`Mr::deregister`](crate::Mr::deregister) fails and returns
/// it, and a region that is dropped stays registered until the window is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window<'r> {
    pub(crate) address: u64,
    pub(crate) length: u64,
    pub(crate) lkey: LocalKey,
    pub(crate) pd: PdTag,
    pub(crate) access: Access,
    /// The access of the region.
    pub(crate) region: Access,
    of: PhantomData<&'r ()>,
}

impl Window<'_> {
    /// A part of a region that starts at `iova` and has `length` bytes.
    pub(crate) fn within(
        range: impl RangeBounds<usize>,
        (iova, length): (u64, u64),
        (lkey, pd): (LocalKey, PdTag),
        (access, region): (Access, Access),
    ) -> Result<Self, OutOfBounds> {
        // The same arithmetic as for a peer's slice, which has a length of 64 bits too.
        let whole = RemoteSlice {
            address: iova,
            length,
            rkey: RemoteKey(0),
        };
        let range: (Bound<usize>, Bound<usize>) =
            (range.start_bound().cloned(), range.end_bound().cloned());
        let part = whole.slice(range)?;
        Ok(Self {
            address: part.address,
            length: part.length,
            lkey,
            pd,
            access,
            region,
            of: PhantomData,
        })
    }

    /// How a peer addresses it through a window with this key.
    pub fn remote(&self, rkey: RemoteKey) -> RemoteSlice {
        RemoteSlice {
            address: self.address,
            length: self.length,
            rkey,
        }
    }

    /// The request that binds it. Refuses what would break the queue pair.
    pub(crate) fn bind(
        &self,
        mw_rkey: RemoteKey,
        rkey: RemoteKey,
        zero_based: bool,
    ) -> Result<Bind, PostError> {
        let Self {
            address,
            length,
            lkey,
            access,
            region,
            ..
        } = *self;
        let refuse = |why| Err(PostError::Window(why));
        if length == 0 {
            return refuse("its length is 0");
        }
        if access.contains(Access::ZERO_BASED) && !zero_based {
            return refuse("the device has no windows whose addresses count from 0");
        }
        if !(WINDOW_ACCESS.contains(access)) {
            return refuse(
                "a window gives peers the rights to read, to write and to do atomics, no others",
            );
        }
        if !region.contains(Access::MW_BIND) {
            return refuse("the region was not registered with MW_BIND");
        }
        if region.contains(Access::ZERO_BASED) {
            return refuse("the addresses of the region count from 0");
        }
        let writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        if access.intersects(writes) && !region.contains(Access::LOCAL_WRITE) {
            return refuse(
                "peers may write through it, but the region was registered without LOCAL_WRITE",
            );
        }
        Ok(Bind {
            mw_rkey,
            rkey,
            mr_lkey: lkey,
            address,
            length,
            access,
            // Set by the request, which knows the window.
            of_queue_pair: false,
        })
    }
}

/// The access that a window can grant. Manual page: `ibv_bind_mw(3)`.
const WINDOW_ACCESS: Access = Access::REMOTE_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::ZERO_BASED);

#[cfg(test)]
mod tests {
    use super::*;

    const REGION: Access = Access::LOCAL_WRITE.union(Access::MW_BIND);

    fn window(access: Access, region: Access) -> Window<'static> {
        let names = (LocalKey(0x500), PdTag::new(3, 1));
        Window::within(16..48, (0x1000, 64), names, (access, region)).unwrap()
    }

    fn bind(access: Access, region: Access) -> Result<Bind, PostError> {
        window(access, region).bind(RemoteKey(0x701), RemoteKey(0x702), false)
    }

    #[test]
    fn a_bind_names_range_keys_and_access() {
        let expected = Bind {
            mw_rkey: RemoteKey(0x701),
            rkey: RemoteKey(0x702),
            mr_lkey: LocalKey(0x500),
            address: 0x1010,
            length: 32,
            access: Access::REMOTE_WRITE,
            of_queue_pair: false,
        };
        assert_eq!(bind(Access::REMOTE_WRITE, REGION), Ok(expected));
    }

    #[test]
    fn what_would_break_the_queue_pair_is_refused() {
        let (read, write) = (Access::REMOTE_READ, Access::REMOTE_WRITE);
        for (access, region) in [
            (read | Access::ZERO_BASED, REGION),
            (read | Access::LOCAL_WRITE, REGION),
            (read, Access::LOCAL_WRITE),
            (read, REGION | Access::ZERO_BASED),
            (write, Access::MW_BIND),
            (Access::REMOTE_ATOMIC, Access::MW_BIND),
        ] {
            let refused = bind(access, region);
            assert!(
                matches!(refused, Err(PostError::Window(_))),
                "{access:?} over {region:?}: {refused:?}"
            );
        }
        assert!(bind(read, Access::MW_BIND).is_ok());
    }

    #[test]
    fn a_window_lies_within_its_region_and_has_bytes() {
        let names = (LocalKey(0x500), PdTag::new(3, 1));
        let access = (Access::REMOTE_READ, REGION);
        assert!(Window::within(16..65, (0x1000, 64), names, access).is_err());
        let empty = Window::within(64.., (0x1000, 64), names, access).unwrap();
        let refused = empty.bind(RemoteKey(1), RemoteKey(2), true);
        assert!(matches!(refused, Err(PostError::Window(_))));
    }
}
