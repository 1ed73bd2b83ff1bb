//! A wrapper that counts and logs an allocator's requests and answers.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{AllocError, Allocation, Allocator, BufferRequest, Dmabuf, ResourceType};

/// The requests and answers of an allocator for one type of resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BufferCounts {
    /// Requests, whatever the answer.
    pub asked: u64,
    /// Requests answered with memory, at an address or in a dma-buf.
    pub granted: u64,
    /// Requests answered with [`Allocation::Default`].
    pub defaulted: u64,
    /// Requests answered with an error.
    pub refused: u64,
    /// Buffers that were returned.
    pub freed: u64,
    /// Requested bytes of buffers that are in use.
    pub live_bytes: u64,
}

impl BufferCounts {
    /// Buffers that have not been returned.
    pub fn live(&self) -> u64 {
        self.granted - self.freed
    }
}

/// An allocator around another one. It counts by type of resource, and logs every call with `tracing` at the
/// level `DEBUG`, target `uverbs`.
///
/// ```
/// use std::sync::Arc;
/// use uverbs::{alloc::{Counting, GuardPages}, Pd};
///
/// let counting = Arc::new(Counting::new(GuardPages::new()));
///
/// fn rings_of(pd: &Pd, counting: &Arc<Counting<GuardPages>>) -> uverbs::Result<()> {
///     let domain = pd.parent_domain().allocator(Arc::clone(counting)).create()?;
///     let cq = domain.context().cq(64).domain(&domain).create()?;
///     for (resource, counts) in counting.counts() {
///         println!("{resource:?}: {} bytes", counts.live_bytes);
///     }
///     # drop(cq);
///     Ok(())
/// }
///
/// assert!(counting.counts().is_empty());
/// assert_eq!(counting.inner().live(), 0);
/// ```
#[derive(Debug)]
pub struct Counting<A> {
    inner: A,
    counts: Mutex<BTreeMap<ResourceType, BufferCounts>>,
}

impl<A: Allocator> Counting<A> {
    /// Counts the calls of `inner`.
    pub fn new(inner: A) -> Self {
        Self {
            inner,
            counts: Mutex::default(),
        }
    }

    /// The allocator that is counted.
    pub fn inner(&self) -> &A {
        &self.inner
    }

    /// The present counts of each type of resource that was requested.
    pub fn counts(&self) -> BTreeMap<ResourceType, BufferCounts> {
        self.by_resource().clone()
    }

    fn by_resource(&self) -> MutexGuard<'_, BTreeMap<ResourceType, BufferCounts>> {
        // The numbers are right after every statement, so a panic elsewhere did no harm.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count_freed(&self, request: &BufferRequest) {
        if let Some(counts) = self.by_resource().get_mut(&request.resource) {
            counts.freed += 1;
            counts.live_bytes -= request.size as u64;
        }
    }
}

// SAFETY: memory comes from the inner allocator and goes back to it.
unsafe impl<A: Allocator> Allocator for Counting<A> {
    fn allocate(&self, request: &BufferRequest) -> Result<Allocation, AllocError> {
        let answer = self.inner.allocate(request);
        tracing::debug!(target: "uverbs", ?request, ?answer, "an allocator was asked");
        let mut counts = self.by_resource();
        let counts = counts.entry(request.resource).or_default();
        counts.asked += 1;
        match &answer {
            Ok(Allocation::Memory(_) | Allocation::Dmabuf { .. } | Allocation::Unmapped { .. }) => {
                counts.granted += 1;
                counts.live_bytes += request.size as u64;
            }
            Ok(Allocation::Default) => counts.defaulted += 1,
            Err(_) => counts.refused += 1,
        }
        answer
    }

    unsafe fn free(&self, memory: NonNull<[u8]>, request: &BufferRequest) {
        tracing::debug!(target: "uverbs", ?request, ?memory, "an allocator got a buffer back");
        self.count_freed(request);
        // SAFETY: by this function's contract; the memory came from the inner allocator.
        unsafe { self.inner.free(memory, request) };
    }

    unsafe fn free_unmapped(&self, dmabuf: &Dmabuf, offset: u64, request: &BufferRequest) {
        tracing::debug!(target: "uverbs", ?request, ?dmabuf, offset, "an allocator got a buffer back");
        self.count_freed(request);
        // SAFETY: as above.
        unsafe { self.inner.free_unmapped(dmabuf, offset, request) };
    }
}

#[cfg(test)]
mod tests {
    use rustix::param::page_size;

    use super::*;
    use crate::alloc::SharedMemfd;
    use crate::alloc::testing::{give_back, granted, memory};

    #[test]
    fn every_answer_is_counted_by_its_kind() {
        let counting = Counting::new(SharedMemfd::new(page_size()).unwrap());
        let request = memory(1024, 8);
        let buffer = granted(&counting, &request);
        granted(&counting, &request);
        assert!(counting.allocate(&memory(page_size(), 8)).is_err());
        give_back(&counting, buffer, &request);
        let expected = BufferCounts {
            asked: 3,
            granted: 2,
            defaulted: 0,
            refused: 1,
            freed: 1,
            live_bytes: 1024,
        };
        assert_eq!(
            counting.counts(),
            BTreeMap::from([(request.resource, expected)])
        );
        assert_eq!(expected.live(), 1);
    }
}
