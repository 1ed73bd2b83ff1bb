//! Device memory: memory inside the device, for data that peers read and write often.
//!
//! [`Pd::register_dm`](crate::Pd::register_dm) registers parts of a piece, and the CPU can copy to and from
//! it. The memory is on the device's side of the bus: peers reach it faster than host memory, the CPU slower.
//!
//! ```no_run
//! use uverbs::Access;
//! # fn counter(context: &uverbs::Context, pd: &uverbs::Pd) -> Result<(), Box<dyn std::error::Error>> {
//! let dm = context.alloc_dm(64, 6)?;
//! dm.write_at(0, &[0; 64])?;
//! let mr = pd.register_dm(&dm, 0..8, Access::LOCAL_WRITE | Access::REMOTE_ATOMIC)?;
//! println!("{}", mr.remote());            // a counter for peers, in the device
//! let mut count = [0; 8];
//! dm.read_at(0, &mut count)?;
//! # Ok(()) }
//! ```

use std::fmt;
use std::ops::{Deref, Range};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use uverbs_uapi::handle::DmHandle;
use uverbs_uapi::object;

use crate::command::{AllocDm, Destroy, ExportDmabuf};
use crate::context::Context;
use crate::driver::DeviceMemory;
use crate::error::{DestroyError, Result, Verb};
use crate::import;
use crate::owned::Owned;
pub use crate::work::CopyError;

impl Context {
    /// Allocates `length` bytes of the device's own memory, aligned to 2 to the power `log_align` bytes, and
    /// maps them. Their initial contents are unspecified.
    ///
    /// # Errors
    ///
    /// [`Cause::Unsupported`](crate::Cause::Unsupported) if the device has none, like rxe; `ENOMEM` if not
    /// enough is left; `EINVAL` if the length is 0 or exceeds
    /// [`DeviceAttr::max_dm_size`](crate::query::DeviceAttr::max_dm_size), or the device lacks the alignment.
    /// Manual page: `ibv_alloc_dm(3)`.
    #[doc(alias = "ibv_alloc_dm")]
    pub fn alloc_dm(&self, length: u64, log_align: u32) -> Result<Dm> {
        let command = AllocDm { length, log_align };
        let (handle, memory) = self.driver().alloc_dm(self.fd(), &command)?;
        Ok(Dm(Arc::new(DmShared {
            object: Owned::new(self, handle),
            memory,
        })))
    }

    /// Imports a piece of device memory of this context by its handle, and maps it.
    ///
    /// # Errors
    ///
    /// [`Cause::Unsupported`](crate::Cause::Unsupported) if the device has no such memory, like rxe;
    /// [`Cause::NotFound`](crate::Cause::NotFound) if the handle names none, and the text says what it names.
    /// See [`Context::import_pd`] on stale handles. Manual page: `ibv_import_dm(3)`.
    #[doc(alias = "ibv_import_dm")]
    pub fn import_dm(&self, handle: DmHandle) -> Result<ImportedDm> {
        import::check(self, object::DM, handle.0, Verb::ImportDm)?;
        let memory = self.driver().import_dm(self.fd(), handle)?;
        let mut object = Owned::new(self, handle);
        object.leave();
        Ok(ImportedDm(Dm(Arc::new(DmShared { object, memory }))))
    }

    /// The handles of all device memory of the context, no matter which process allocated it.
    ///
    /// # Errors
    ///
    /// As for [`Context::pd_handles`], and [`Cause::Unsupported`](crate::Cause::Unsupported) if the device
    /// has none.
    pub fn dm_handles(&self) -> Result<Vec<DmHandle>> {
        let handles = import::handles(self, object::DM, Verb::InfoHandles)?;
        Ok(handles.into_iter().map(DmHandle).collect())
    }
}

/// What device memory shares with the regions in it.
pub(crate) struct DmShared {
    object: Owned<DmHandle>,
    /// The mapping. Either may be dropped before the other: the kernel frees the memory when both are gone.
    memory: DeviceMemory,
}

/// A piece of device memory. Regions in it keep it allocated.
pub struct Dm(Arc<DmShared>);

impl Dm {
    /// The context that it was allocated in.
    pub fn context(&self) -> &Context {
        self.0.object.context()
    }

    /// The kernel's handle.
    pub fn handle(&self) -> DmHandle {
        self.0.object.handle()
    }

    /// Bytes.
    pub fn length(&self) -> u64 {
        self.0.memory.length()
    }

    /// Copies bytes out of it, from `offset` on. It sees everything that completed before. Words that a peer
    /// or another thread writes meanwhile come out old or new.
    ///
    /// # Errors
    ///
    /// The bytes do not lie within the memory, or are not whole words if the device requires these (mlx5: 4
    /// bytes). Manual page: `ibv_memcpy_from_dm(3)`.
    #[doc(alias = "ibv_memcpy_from_dm")]
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), CopyError> {
        self.0.memory.read(offset, into)
    }

    /// Copies bytes into it, from `offset` on. Requests that are posted afterwards see them.
    ///
    /// # Errors
    ///
    /// As for [`Dm::read_at`]. Manual page: `ibv_memcpy_to_dm(3)`.
    #[doc(alias = "ibv_memcpy_to_dm")]
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), CopyError> {
        self.0.memory.write(offset, bytes)
    }

    /// Exports it as a dma-buf. Any process that has the file can register regions of this device in it by
    /// [`Pd::register_dmabuf`](crate::Pd::register_dmabuf). Another device can use it if the bus lets that
    /// device reach this one. Closing the file leaves regions as they are.
    ///
    /// When the memory is freed, or the context that it was allocated in ends, the kernel revokes the
    /// dma-buf. From then on requests that name regions in it fail, and no region is registered in it.
    ///
    /// # Errors
    ///
    /// [`Cause::Unsupported`](crate::Cause::Unsupported) if the kernel or its driver does not export device
    /// memory: Linux does since 7.0, with `CONFIG_PCI_P2PDMA`. Manual page: `ibv_dm_export_dmabuf_fd(3)`.
    #[doc(alias = "ibv_dm_export_dmabuf_fd")]
    pub fn export_dmabuf(&self) -> Result<ExportedDm> {
        let memory = &self.0.memory;
        let dmabuf = self.context().fd().execute(&ExportDmabuf {
            dm: self.handle(),
            offset: memory.file_offset(),
        })?;
        let start = memory.start();
        Ok(ExportedDm {
            dmabuf,
            range: start..start + memory.length(),
        })
    }

    pub(crate) fn shared(&self) -> &Arc<DmShared> {
        &self.0
    }

    /// Frees the memory.
    ///
    /// # Errors
    ///
    /// [`Cause::Busy`](crate::Cause::Busy) while regions are registered in it; a region that was dropped
    /// counts as long as requests in flight may name it. The error returns it. Manual page: `ibv_free_dm(3)`.
    #[doc(alias = "ibv_free_dm")]
    pub fn free(self) -> Result<(), DestroyError<Self>> {
        self.end(Owned::destroy).map(drop)
    }

    /// Gives up ownership: from now on this process is one user among others, and dropping frees nothing.
    ///
    /// # Errors
    ///
    /// As for [`Dm::free`].
    pub fn disown(self) -> Result<ImportedDm, DestroyError<Self>> {
        let leave = |object: &mut Owned<DmHandle>| {
            object.leave();
            Ok(())
        };
        self.end(leave).map(ImportedDm)
    }

    /// Ends ownership by `how`, if no region of this process is in it.
    fn end(
        mut self,
        how: impl FnOnce(&mut Owned<DmHandle>) -> Result<()>,
    ) -> Result<Self, DestroyError<Self>> {
        // Regions that were dropped may have nothing left to wait for.
        self.context().reap();
        let result = match Arc::get_mut(&mut self.0) {
            Some(shared) => how(&mut shared.object),
            None => {
                let regions = Arc::strong_count(&self.0) - 1;
                let by = match regions {
                    1 => "1 MR is in it".into(),
                    _ => format!("{regions} MRs are in it"),
                };
                Err(self.0.object.busy(by))
            }
        };
        match result {
            Ok(()) => Ok(self),
            Err(error) => Err(DestroyError {
                object: self,
                error,
            }),
        }
    }
}

impl fmt::Debug for Dm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dm")
            .field("handle", &self.handle().0)
            .field("length", &self.length())
            .finish()
    }
}

/// Device memory as a dma-buf.
#[derive(Debug)]
#[non_exhaustive]
pub struct ExportedDm {
    /// The dma-buf: the whole pages in which the memory lies, and which hold no other memory.
    pub dmabuf: OwnedFd,
    /// The bytes of it that are the memory.
    pub range: Range<u64>,
}

/// Device memory that other processes use as well. It derefs to a [`Dm`] for every verb that takes one.
///
/// Dropping it never touches the kernel's object, and [`Dm::free`] cannot be called on it.
pub struct ImportedDm(Dm);

impl ImportedDm {
    /// Releases the memory, as drop does. The kernel is not called; regions that this process has in it live
    /// on. Manual page: `ibv_unimport_dm(3)`.
    #[doc(alias = "ibv_unimport_dm")]
    pub fn unimport(self) {}

    /// Frees the kernel's object for all its users. An owner must [`disown`](Dm::disown) its [`Dm`] first.
    ///
    /// # Errors
    ///
    /// As for [`Dm::free`]; `EBUSY` while other processes have regions in it, `ENOENT` if another process has
    /// freed it.
    pub fn free_for_everyone(self) -> Result<(), DestroyError<Self>> {
        let free =
            |object: &mut Owned<DmHandle>| object.context().fd().execute(&Destroy(object.handle()));
        match self.0.end(free) {
            Ok(_) => Ok(()),
            Err(DestroyError { object, error }) => Err(DestroyError {
                object: Self(object),
                error,
            }),
        }
    }
}

impl Deref for ImportedDm {
    type Target = Dm;

    fn deref(&self) -> &Dm {
        &self.0
    }
}

impl fmt::Debug for ImportedDm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}
