//! A dma-buf that this process does not map.

use std::fmt;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use super::Dmabuf;
use crate::alloc::free_list::FreeList;
use crate::alloc::{AllocError, Allocation, Allocator, BufferRequest};

/// Sets each byte of a range of the dma-buf.
type Fill = dyn Fn(Range<u64>, u8) -> io::Result<()> + Send + Sync;

/// An allocator whose buffers lie in a dma-buf that is not mapped in this process, such as memory of a GPU.
///
/// Queues for an agent may have their rings there ([`Qp::into_device`](crate::Qp::into_device)). Nothing in
/// this process reads or writes them, so a function of the caller sets their bytes before the device sees
/// them. All other buffers it leaves to the driver ([`Allocation::Default`]).
///
/// ```no_run
/// use uverbs::{Caps, Context, Pd, Qp, Rc, alloc::{Dmabuf, UnmappedDmabuf}};
///
/// fn on_a_gpu(
///     context: &Context,
///     pd: &Pd,
///     dmabuf: Dmabuf,
///     set: impl Fn(std::ops::Range<u64>, u8) -> std::io::Result<()> + Send + Sync + 'static,
/// ) -> uverbs::Result<(uverbs::Cq, Qp<Rc>)> {
///     // SAFETY: the memory was allocated for these rings, and `set` sets it.
///     let memory = unsafe { UnmappedDmabuf::new(dmabuf, set) };
///     let domain = pd.parent_domain().allocator(memory).create()?;
///     let cq = context.cq(256).domain(&domain).for_agent().create()?;
///     let qp = domain.qp(&cq).caps(Caps::default()).for_agent().create()?;
///     Ok((cq, qp))
/// }
/// ```
pub struct UnmappedDmabuf {
    dmabuf: Dmabuf,
    free: Mutex<FreeList>,
    fill: Box<Fill>,
}

impl UnmappedDmabuf {
    /// Allocates from a dma-buf. `fill` sets each byte of a range of it, given in bytes from its start. When
    /// it returns, the bytes are set.
    ///
    /// # Safety
    ///
    /// Nothing else uses the memory as long as the allocator lives, except agents of queues that lie there.
    /// `fill` sets the bytes as described, so that the device sees them.
    pub unsafe fn new(
        dmabuf: Dmabuf,
        fill: impl Fn(Range<u64>, u8) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let length = usize::try_from(dmabuf.length()).unwrap_or(usize::MAX);
        Self {
            free: Mutex::new(FreeList::new(0, length)),
            fill: Box::new(fill),
            dmabuf,
        }
    }

    /// The dma-buf.
    pub fn dmabuf(&self) -> &Dmabuf {
        &self.dmabuf
    }

    fn give_back(&self, start: usize, size: usize) {
        // The list is whole after every statement, so a panic elsewhere has not spoilt it.
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.give_back(start, start + size);
    }
}

// SAFETY: the free list gives each byte to one buffer at a time, and `fill` sets the bytes before. The rest
// is the contract of `UnmappedDmabuf::new`.
unsafe impl Allocator for UnmappedDmabuf {
    fn allocate(&self, request: &BufferRequest) -> Result<Allocation, AllocError> {
        let Some(byte) = request.unmapped else {
            return Ok(Allocation::Default);
        };
        let (size, alignment) = request.span();
        let taken = {
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            free.take(size, alignment)
        };
        let Some(start) = taken else {
            return Err(AllocError::new(format!(
                "the dma-buf of {} bytes has no {size} left in one piece",
                self.dmabuf.length()
            )));
        };
        let offset = start as u64;
        if let Err(error) = (self.fill)(offset..offset + size as u64, byte) {
            self.give_back(start, size);
            return Err(AllocError::new(format!(
                "{size} bytes of the dma-buf could not be set: {error}"
            )));
        }
        Ok(Allocation::Unmapped {
            dmabuf: self.dmabuf.clone(),
            offset,
        })
    }

    unsafe fn free(&self, _: NonNull<[u8]>, _: &BufferRequest) {
        // It never gives out memory of this process.
    }

    unsafe fn free_unmapped(&self, _: &Dmabuf, offset: u64, request: &BufferRequest) {
        self.give_back(offset as usize, request.span().0);
    }
}

impl fmt::Debug for UnmappedDmabuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnmappedDmabuf")
            .field("dmabuf", &self.dmabuf)
            .finish_non_exhaustive()
    }
}
