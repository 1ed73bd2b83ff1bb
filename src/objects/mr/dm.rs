//! Regions in device memory.

use std::fmt;
use std::ops::{Range, RangeBounds};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use uverbs_uapi::flags::Access;
use uverbs_uapi::handle::MrHandle;

use super::check_access;
use super::region::{Held, Region};
use crate::command::RegDmMr;
use crate::dm::{Dm, DmShared};
use crate::error::{DestroyError, Error, Result, Subject, Verb};
use crate::memory::Still;
use crate::pd::Pd;
use crate::work::{LocalKey, LocalSlice, OutOfBounds, RemoteKey, RemoteSlice};

impl Pd {
    /// Registers the bytes `range` of device memory. Work requests and peers address the first byte by 0; the
    /// kernel offers no other address.
    ///
    /// # Errors
    ///
    /// The range is empty or not within the memory; the access flags contradict each other; the memory
    /// belongs to another context. Manual page: `ibv_reg_dm_mr(3)`.
    #[doc(alias = "ibv_reg_dm_mr")]
    pub fn register_dm(&self, dm: &Dm, range: Range<u64>, access: Access) -> Result<DmMr> {
        self.reclaim();
        let refuse = |why| Error::invalid(Verb::RegDmMr, Subject::the("MR"), why);
        let parts = [("the DM", Some(dm.context()))];
        self.context()
            .check_parts(Verb::RegDmMr, || Subject::the("MR"), parts)?;
        if range.end > dm.length() {
            return Err(refuse("the range does not lie within the DM"));
        }
        let length = usize::try_from(range.end.saturating_sub(range.start))
            .map_err(|_| refuse("the range is larger than an address space"))?;
        check_access(access, true, length).map_err(refuse)?;
        let access = access | Access::ZERO_BASED;
        let command = RegDmMr {
            pd: self.handle(),
            dm: dm.handle(),
            offset: range.start,
            length: length as u64,
            access: access.bits(),
        };
        let reply = self.context().fd().execute(&command)?;
        let region = Region {
            handle: reply.handle,
            lkey: LocalKey(reply.lkey),
            rkey: RemoteKey(reply.rkey),
            address: ptr::null_mut(),
            length,
            iova: 0,
            access,
            pinned_for_writing: false,
            sliced: AtomicBool::new(false),
            windowed: AtomicBool::new(false),
            on_demand: false,
            pd: self.region_use(),
        };
        Ok(DmMr {
            held: Held::new(Still::new(Arc::clone(dm.shared())), region),
        })
    }
}

/// A memory region in device memory. Dropping it deregisters it.
pub struct DmMr {
    pub(super) held: Held<Arc<DmShared>>,
}

impl DmMr {
    /// The key for local work requests.
    pub fn lkey(&self) -> LocalKey {
        self.held.region.lkey
    }

    /// The key for a peer.
    pub fn rkey(&self) -> RemoteKey {
        self.held.region.rkey
    }

    /// The kernel's handle.
    pub fn handle(&self) -> MrHandle {
        self.held.region.handle
    }

    /// A part of the region for a work request, in bytes from its start.
    ///
    /// # Errors
    ///
    /// The range does not lie within the region, or has more than 2 GiB.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<LocalSlice<'_>, OutOfBounds> {
        self.held.region.slice(range)
    }

    /// The whole region as a peer addresses it.
    pub fn remote(&self) -> RemoteSlice {
        self.held.region.remote()
    }

    /// Deregisters the region.
    ///
    /// # Errors
    ///
    /// [`Cause::Busy`](crate::Cause::Busy) if requests that may name the region have not completed yet, as
    /// for [`Mr::deregister`](crate::Mr::deregister). Or the kernel refuses, for example while memory windows
    /// are bound to it. The error returns the region. Manual page: `ibv_dereg_mr(3)`.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn deregister(self) -> Result<(), DestroyError<Self>> {
        match self.held.release() {
            Ok(_) => Ok(()),
            Err((held, error)) => Err(DestroyError {
                object: Self { held },
                error,
            }),
        }
    }
}

impl fmt::Debug for DmMr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.held.region.debug(&mut f.debug_struct("DmMr"))
    }
}
