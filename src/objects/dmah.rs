//! DMA handles: hints that an adapter sends with its memory accesses, so that data go to the cache of the
//! processor that uses them (PCI Express TPH). [`Pd::register_dmah`](crate::Pd::register_dmah) registers
//! memory with them.
//!
//! The kernel has had them since Linux 6.17, for adapters and platforms with TPH. soft-RoCE has no bus to
//! send hints on.

use std::fmt;

use uverbs_uapi::handle::DmahHandle;

use crate::command::AllocDmah;
use crate::context::Context;
use crate::error::{DestroyError, Error, Result, Subject, Verb};
use crate::owned::Owned;

/// The kind of memory that data go to, as the bus reports it to the platform.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum HintedMemory {
    /// Volatile memory.
    Volatile = 0,
    /// Persistent memory.
    Persistent = 1,
}

/// The hints for an adapter's accesses; `None` leaves a hint to the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DmaHints {
    /// The processor whose cache should get the data, by the system's number; the process must be allowed to
    /// run on it.
    pub cpu: Option<u32>,
    /// The kind of memory.
    pub memory: Option<HintedMemory>,
    /// How the data are used, the PH field of PCI Express: 0 read and written by both sides, 1 by the device
    /// mostly, 2 by the processor mostly, 3 by the processor soon.
    pub processing: Option<u8>,
}

impl Context {
    /// Allocates a DMA handle.
    ///
    /// # Errors
    ///
    /// [`Cause::Unsupported`](crate::Cause::Unsupported) if the kernel (before Linux 6.17) or the device has
    /// none, like rxe; the process may not run on the processor (`EPERM`); there is no such processor or
    /// processing hint. Manual page: `ibv_alloc_dmah(3)`.
    #[doc(alias = "ibv_alloc_dmah")]
    pub fn alloc_dmah(&self, hints: DmaHints) -> Result<Dmah> {
        let DmaHints {
            cpu,
            memory,
            processing,
        } = hints;
        if let Some(hint @ 4..) = processing {
            return Err(Error::invalid(
                Verb::AllocDmah,
                Subject::the("DMA handle"),
                format!("the processing hint {hint}; there are 0 to 3"),
            ));
        }
        let handle = self.fd().execute(&AllocDmah {
            cpu,
            memory: memory.map(|memory| memory as u8),
            hint: processing,
        })?;
        Ok(Dmah(Owned::new(self, handle)))
    }
}

/// A DMA handle. Regions that were registered with it keep it busy in the kernel. If it is dropped before
/// them, it lives until the context is closed.
pub struct Dmah(Owned<DmahHandle>);

impl Dmah {
    /// The context that it was allocated in.
    pub fn context(&self) -> &Context {
        self.0.context()
    }

    /// The kernel's handle.
    pub fn handle(&self) -> DmahHandle {
        self.0.handle()
    }

    /// Frees it.
    ///
    /// # Errors
    ///
    /// `EBUSY` while regions are registered with it; the error returns it. Manual page:
    /// `ibv_dealloc_dmah(3)`.
    #[doc(alias = "ibv_dealloc_dmah")]
    pub fn free(mut self) -> Result<(), DestroyError<Self>> {
        let result = self.0.destroy();
        DestroyError::of(self, result)
    }
}

impl fmt::Debug for Dmah {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dmah")
            .field("handle", &self.handle().0)
            .finish()
    }
}
