//! A dma-buf that this process does not map.

use std::fmt;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

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

    /// Takes a range out of the list of free ones.
    fn take(&self, size: usize, alignment: usize) -> Option<Taken<'_>> {
        let start = self.free().take(size, alignment)?;
        let range = start..start + size;
        Some(Taken { of: self, range })
    }

    fn free(&self) -> MutexGuard<'_, FreeList> {
        // The list is whole after every statement, so a panic elsewhere has not spoilt it.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A range that goes back to the list of free ones unless a buffer has it.
struct Taken<'a> {
    of: &'a UnmappedDmabuf,
    range: Range<usize>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.of.free().give_back(self.range.start, self.range.end);
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
        let Some(taken) = self.take(size, alignment) else {
            return Err(AllocError::new(format!(
                "the dma-buf of {} bytes has no {size} left in one piece",
                self.dmabuf.length()
            )));
        };
        let offset = taken.range.start as u64;
        // If it panics, the range goes back.
        if let Err(error) = (self.fill)(offset..offset + size as u64, byte) {
            return Err(AllocError::new(format!(
                "{size} bytes of the dma-buf could not be set: {error}"
            )));
        }
        std::mem::forget(taken);
        Ok(Allocation::Unmapped {
            dmabuf: self.dmabuf.clone(),
            offset,
        })
    }

    unsafe fn free(&self, _: NonNull<[u8]>, _: &BufferRequest) {
        // It never gives out memory of this process.
    }

    unsafe fn free_unmapped(&self, _: &Dmabuf, offset: u64, request: &BufferRequest) {
        let start = offset as usize;
        self.free().give_back(start, start + request.span().0);
    }
}

impl fmt::Debug for UnmappedDmabuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnmappedDmabuf")
            .field("dmabuf", &self.dmabuf)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::alloc::testing::memory;

    /// Would catch a range that is lost if the caller's function panics or fails.
    #[test]
    fn a_range_that_cannot_be_set_is_free_again() {
        let fill = |range: Range<u64>, byte: u8| match byte {
            0 => panic!("{range:?} is out of luck"),
            1 => Err(io::ErrorKind::Other.into()),
            _ => Ok(()),
        };
        // SAFETY: there is no memory.
        let allocator = unsafe { UnmappedDmabuf::new(Dmabuf::of_length(0x1000), fill) };
        let ask = |byte| {
            let request = BufferRequest {
                unmapped: Some(byte),
                ..memory(0x1000, 0x1000)
            };
            catch_unwind(AssertUnwindSafe(|| allocator.allocate(&request)))
        };
        assert!(ask(0).is_err(), "it has not panicked");
        assert!(ask(1).unwrap().is_err());
        assert!(ask(2).unwrap().is_ok());
        assert!(ask(2).unwrap().is_err(), "it is taken");
    }
}
