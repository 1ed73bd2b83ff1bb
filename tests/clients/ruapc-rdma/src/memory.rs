//! Protection domains and regions.

use std::ffi::c_void;
use std::sync::Arc;

use ruapc_bufpool::{AlignedMemory, MemoryKey, Registration};
use uverbs::mr::Memory;
use uverbs::{Access, Mr, Pd};

use crate::device::Context;
use crate::header::ibv_access_flags;
use crate::{ErrorKind, Result};

/// A protection domain.
#[derive(Debug)]
pub struct ProtectionDomain {
    pub(crate) inner: Pd,
    pub(crate) context: Arc<Context>,
}

impl ProtectionDomain {
    /// Allocates one.
    pub fn alloc(context: &Arc<Context>) -> Result<Arc<Self>> {
        let inner = context.inner.alloc_pd();
        Ok(Arc::new(Self {
            inner: inner.map_err(ErrorKind::IBAllocPDFail.because())?,
            context: Arc::clone(context),
        }))
    }
}

/// Memory of which others have shares.
#[derive(Debug)]
struct Shared(Arc<AlignedMemory>);

// SAFETY: the memory is a mapping of its own, which stays where it is until its last owner goes, and was
// zeroed when it was made. What is written goes through raw pointers: references to it are those of buffers,
// whose owners have them only while no request names the bytes. The region is asked for no bytes.
unsafe impl Memory for Shared {
    fn address(&mut self) -> *mut u8 {
        self.0.as_mut_ptr()
    }

    fn length(&self) -> usize {
        self.0.size()
    }
}

/// Registered memory. If the kernel refuses to deregister it, the memory stays for good.
#[derive(Debug)]
pub struct MemoryRegion {
    region: Mr<Shared>,
}

impl MemoryRegion {
    /// Registers memory; requests name it by its address.
    pub fn register(
        pd: &Arc<ProtectionDomain>,
        memory: &Arc<AlignedMemory>,
        access: i32,
    ) -> Result<Self> {
        let failed = ErrorKind::IBRegMemoryRegionFail;
        let access = Access::from_bits_retain(access as u32);
        if access.bits() & ibv_access_flags::IBV_ACCESS_ZERO_BASED.0 != 0 {
            return Err(failed.because()("buffers are named by their addresses"));
        }
        let region = pd.inner.register(Shared(Arc::clone(memory)), access);
        region
            .map(|region| Self { region })
            .map_err(|refused| failed.because()(uverbs::Error::from(refused)))
    }

    /// The key for requests of this side.
    pub fn lkey(&self) -> u32 {
        self.region.lkey().0
    }

    /// The key for peers.
    pub fn rkey(&self) -> u32 {
        self.region.rkey().0
    }

    /// The first byte.
    pub fn addr(&self) -> *mut c_void {
        self.region.as_ptr().cast()
    }

    /// Bytes.
    pub fn length(&self) -> usize {
        self.region.len()
    }
}

impl Registration for MemoryRegion {
    fn memory_key(&self) -> MemoryKey {
        MemoryKey {
            lkey: self.lkey(),
            rkey: self.rkey(),
        }
    }
}
