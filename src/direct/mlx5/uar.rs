//! Pages of the device's registers (UAR), for doorbells of queues that commands create.

use std::fmt;
use std::ptr::NonNull;

use rustix::mm::ProtFlags;
use uverbs_uapi::mlx5::UarAllocType;

use super::Direct;
use crate::driver::mlx5::Map;
use crate::driver::mlx5::command::{AllocUar, NewUar, UarHandle};
use crate::error::{Error, Result, Subject, Verb};
use crate::owned::Owned;

/// Where the register lies in a UAR that arms completion queues, in bytes.
const ARM: usize = 0x20;
/// Where the first register lies that announces requests.
const SEND: usize = 0x800;
/// Bytes of the registers.
const UAR: usize = 4096;

/// How the processor stores to a page of registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UarKind {
    /// One by one.
    Uncached,
    /// The processor may combine them until they are flushed, so that requests can be copied (BlueFlame).
    Combining,
}

impl Direct {
    /// Allocates and maps a page of registers.
    ///
    /// # Errors
    ///
    /// [`Cause::Unsupported`](crate::Cause::Unsupported) if a combining page is asked for and the kernel has
    /// found that the processor does not combine stores. Or the device has no page left. Manual page:
    /// `mlx5dv_devx_alloc_uar(3)`.
    #[doc(alias = "mlx5dv_devx_alloc_uar")]
    pub fn alloc_uar(&self, kind: UarKind) -> Result<Uar> {
        let kind = match kind {
            UarKind::Uncached => UarAllocType::NC,
            UarKind::Combining => UarAllocType::BF,
        };
        let fd = self.context().fd();
        let NewUar {
            handle,
            offset,
            length,
            page_id,
        } = fd.execute(&AllocUar(kind))?;
        // From here on it is freed if something fails.
        let object = Owned::new(self.context(), handle);
        let length = length as usize;
        if length < UAR {
            let what = format!("a UAR of {length} bytes");
            return Err(Error::malformed(Verb::AllocUar, Subject::the("UAR"), what));
        }
        let map = Map::new(fd, "UAR", offset, length, ProtFlags::WRITE)?;
        Ok(Uar {
            map,
            object,
            offset,
            page_id,
        })
    }
}

/// A mapped page of registers. Dropping it unmaps and frees it.
pub struct Uar {
    // Unmapped before the page is freed.
    map: Map,
    object: Owned<UarHandle>,
    offset: u64,
    page_id: u32,
}

impl Uar {
    /// The number by which commands name it.
    pub fn page_id(&self) -> u32 {
        self.page_id
    }

    /// The kernel's handle.
    pub fn handle(&self) -> u32 {
        self.object.handle().0
    }

    /// Where it begins in the command file, in bytes, for mmap(2).
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Where the page is mapped.
    #[cfg(feature = "c-abi")]
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.map.base()
    }

    /// The first register that announces requests: a program stores the first 8 bytes of its last request
    /// there. It is valid as long as this value lives. Only writes are possible.
    pub fn send_register(&self) -> NonNull<u8> {
        // SAFETY: it lies in the page.
        unsafe { self.map.base().add(SEND) }
    }

    /// The register that arms completion queues: a program stores the second word of the record and the
    /// queue's number there, as 8 bytes. It is valid as long as this value lives. Only writes are possible.
    pub fn arm_register(&self) -> NonNull<u8> {
        // SAFETY: it lies in the page.
        unsafe { self.map.base().add(ARM) }
    }
}

impl fmt::Debug for Uar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Uar")
            .field("page_id", &self.page_id)
            .finish()
    }
}
