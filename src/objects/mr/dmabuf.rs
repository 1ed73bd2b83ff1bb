//! Regions in dma-bufs: memory of another device, or of a heap, that a file descriptor stands for.

use std::fmt;
use std::ops::{Range, RangeBounds};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::AtomicBool;

use uverbs_uapi::flags::Access;
use uverbs_uapi::handle::MrHandle;

use super::region::{Held, Region};
use super::{RegisterError, check_access, without_unknown_options};
use crate::command::{DriverData, RegDmabufMr};
use crate::error::{DestroyError, Error, Result, Subject, Verb};
use crate::memory::Still;
use crate::pd::Pd;
use crate::work::{LocalKey, LocalSlice, OutOfBounds, RemoteKey, RemoteSlice};

impl Pd {
    /// Registers the bytes `range` of a dma-buf. Work requests and peers address the first byte by `iova`,
    /// which must have the same offset in its page as the range.
    ///
    /// The memory belongs to the exporter. If it moves its pages, the kernel's driver unmaps them from the
    /// device, and maps the new ones when the device asks for them. If the exporter revokes its memory for
    /// good, requests fail with [`LOC_PROT_ERR`](crate::WcStatus::LOC_PROT_ERR) or
    /// [`REM_ACCESS_ERR`](crate::WcStatus::REM_ACCESS_ERR), those in flight too, and the region can only be
    /// deregistered. [`Dm::export_dmabuf`](crate::dm::Dm::export_dmabuf) makes a dma-buf that is revoked when
    /// its memory is freed.
    ///
    /// # Errors
    ///
    /// The driver has no such regions: soft-RoCE has none, nor has mlx5 on newer kernels (seen with Linux
    /// 7.3) if the firmware has no on-demand paging. The range is empty or not within the dma-buf; `iova` has
    /// another offset in its page; the access flags contradict each other; the device cannot reach the
    /// exporter's memory over the bus. `ENODEV` if the exporter has revoked it. The error returns the
    /// dma-buf. Manual page: `ibv_reg_dmabuf_mr(3)`.
    #[doc(alias = "ibv_reg_dmabuf_mr")]
    pub fn register_dmabuf(
        &self,
        dmabuf: OwnedFd,
        range: Range<u64>,
        iova: u64,
        access: Access,
    ) -> Result<DmabufMr, RegisterError<OwnedFd>> {
        self.register_dmabuf_by(dmabuf, range, iova, access, DriverData::default())
    }

    /// As [`Pd::register_dmabuf`], with what the driver adds to the command.
    pub(crate) fn register_dmabuf_by(
        &self,
        dmabuf: OwnedFd,
        range: Range<u64>,
        iova: u64,
        access: Access,
        driver: DriverData,
    ) -> Result<DmabufMr, RegisterError<OwnedFd>> {
        match self.register_dmabuf_range(&dmabuf, range, iova, access, driver) {
            Ok(region) => Ok(DmabufMr {
                held: Held::new(Still::new(dmabuf), region),
            }),
            Err(error) => Err(RegisterError {
                memory: dmabuf,
                error,
            }),
        }
    }

    fn register_dmabuf_range(
        &self,
        dmabuf: &OwnedFd,
        range: Range<u64>,
        iova: u64,
        access: Access,
        driver: DriverData,
    ) -> Result<Region> {
        self.reclaim();
        let refuse = |why| Error::invalid(Verb::RegDmabufMr, Subject::the("MR"), why);
        let length = usize::try_from(range.end.saturating_sub(range.start))
            .map_err(|_| refuse("the range is larger than an address space"))?;
        check_access(access, true, length).map_err(refuse)?;
        let access = without_unknown_options(access, self.context());
        let command = RegDmabufMr {
            pd: self.handle(),
            fd: dmabuf.as_raw_fd(),
            offset: range.start,
            length: length as u64,
            iova,
            access: access.bits(),
            driver,
        };
        let reply = self
            .context()
            .driver()
            .reg_dmabuf_mr(self.context().fd(), &command)?;
        Ok(Region {
            handle: reply.handle,
            lkey: LocalKey(reply.lkey),
            rkey: RemoteKey(reply.rkey),
            address: ptr::null_mut(),
            length,
            iova,
            access,
            pinned_for_writing: true,
            sliced: AtomicBool::new(false),
            windowed: AtomicBool::new(false),
            on_demand: false,
            pd: self.region_use(),
        })
    }
}

/// A memory region in a dma-buf. Dropping it deregisters it.
pub struct DmabufMr {
    pub(super) held: Held<OwnedFd>,
}

impl DmabufMr {
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

    /// Deregisters the region and gives the dma-buf back.
    ///
    /// # Errors
    ///
    /// [`Cause::Busy`](crate::Cause::Busy) if requests that may name the region have not completed yet, as
    /// for [`Mr::deregister`](crate::Mr::deregister). Or the kernel refuses, for example while memory windows
    /// are bound to it. The error returns the region. Manual page: `ibv_dereg_mr(3)`.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn deregister(self) -> Result<OwnedFd, DestroyError<Self>> {
        self.held.release().map_err(|(held, error)| DestroyError {
            object: Self { held },
            error,
        })
    }
}

impl fmt::Debug for DmabufMr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.held.region.debug(&mut f.debug_struct("DmabufMr"))
    }
}
