//! A region that covers the whole address space of the process (implicit on-demand paging).

use std::fmt;
use std::ops::RangeBounds;
use std::ptr;
use std::sync::atomic::AtomicBool;

use uverbs_uapi::flags::{Access, OdpGeneralCapBits};

use super::region::{Held, Region};
use super::{check_access, with_access, without_unknown_options};
use crate::command::{DriverData, RegMr};
use crate::error::{DestroyError, Errno, Error, Result, Subject, Verb};
use crate::memory::Still;
use crate::pd::Pd;
use crate::work::{LocalKey, LocalSlice, OutOfBounds, RemoteKey};

impl Pd {
    /// Registers the whole address space of the process for on-demand paging: work requests can address all
    /// memory that is mapped at the time, by one key and its addresses.
    ///
    /// # Errors
    ///
    /// [`Cause::Unsupported`](crate::Cause::Unsupported) if the device has no implicit paging on demand, like
    /// rxe. Manual page: `ibv_reg_mr(3)`, `IBV_ACCESS_ON_DEMAND`.
    ///
    /// # Safety
    ///
    /// A peer that has the remote key may do to any memory of this process what `access` allows, at any time.
    /// Without remote access flags the call itself is safe, since taking a slice has a contract of its own.
    #[doc(alias = "ibv_reg_mr")]
    pub unsafe fn register_everything(&self, access: Access) -> Result<ImplicitMr> {
        self.reclaim();
        let access = access | Access::ON_DEMAND;
        let access = without_unknown_options(access, self.context());
        check_access(access, true, usize::MAX)
            .map_err(|why| Error::invalid(Verb::RegMr, Subject::the("MR"), why))?;
        let command = RegMr {
            pd: self.handle(),
            address: 0,
            length: u64::MAX,
            iova: 0,
            access: access.bits(),
            driver: DriverData::default(),
        };
        let reply = self
            .context()
            .driver()
            .reg_mr(self.context().fd(), command)
            .map_err(|error| self.without_implicit(with_access(error, access, self.context())))?;
        let region = Region {
            handle: reply.handle,
            lkey: LocalKey(reply.lkey),
            rkey: RemoteKey(reply.rkey),
            address: ptr::null_mut(),
            length: usize::MAX,
            iova: 0,
            access,
            pinned_for_writing: false,
            sliced: AtomicBool::new(false),
            windowed: AtomicBool::new(false),
            on_demand: true,
            pd: self.region_use(),
        };
        Ok(ImplicitMr {
            held: Held::new(Still::new(()), region),
        })
    }

    /// Says that the device lacks implicit paging where the kernel only reports an invalid argument.
    fn without_implicit(&self, error: Error) -> Error {
        if error.errno() != Some(Errno::INVAL) || error.is_unsupported() {
            return error;
        }
        match self.context().query_device() {
            Ok(device)
                if device.odp.general_caps & OdpGeneralCapBits::SUPPORT_IMPLICIT.bits() == 0 =>
            {
                Error::unsupported_by_kernel(
                    error.verb(),
                    error.subject().clone(),
                    Errno::INVAL,
                    "the device has no implicit paging on demand",
                )
            }
            _ => error,
        }
    }
}

/// The memory region of the whole address space. Dropping it deregisters it.
pub struct ImplicitMr {
    held: Held<()>,
}

impl ImplicitMr {
    /// The key for local work requests.
    pub fn lkey(&self) -> LocalKey {
        self.held.region.lkey
    }

    /// The key for a peer.
    pub fn rkey(&self) -> RemoteKey {
        self.held.region.rkey
    }

    /// Memory for a work request, by its address in this process.
    ///
    /// # Errors
    ///
    /// The range has more than 2 GiB.
    ///
    /// # Safety
    ///
    /// Until the request has completed, or the queue pair has been reset or destroyed: the memory stays
    /// mapped; if the request reads it, nobody writes to it through a reference; if the request writes to it,
    /// nobody has a reference to it.
    pub unsafe fn slice(
        &self,
        addresses: impl RangeBounds<usize>,
    ) -> Result<LocalSlice<'_>, OutOfBounds> {
        self.held.region.slice(addresses)
    }

    /// Deregisters the region.
    ///
    /// # Errors
    ///
    /// [`Cause::Busy`](crate::Cause::Busy) if requests that may name the region have not completed yet, as
    /// for [`Mr::deregister`](crate::Mr::deregister). Or the kernel refuses. The error returns the region.
    /// Manual page: `ibv_dereg_mr(3)`.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn deregister(self) -> Result<(), DestroyError<Self>> {
        self.held.release().map_err(|(held, error)| DestroyError {
            object: Self { held },
            error,
        })
    }
}

impl fmt::Debug for ImplicitMr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.held.region.debug(&mut f.debug_struct("ImplicitMr"))
    }
}
