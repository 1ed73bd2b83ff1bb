//! Buffers between pages that fault, to find the code that writes beyond a ring.

use std::collections::BTreeMap;
use std::io;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::param::page_size;

use super::mapping::Mapping;
use super::{AllocError, Allocation, Allocator, BufferRequest};

/// An allocator that gives each buffer its own pages, between inaccessible ones.
///
/// A buffer ends at the start of the page after it, or as close to it as its alignment allows. So the first
/// byte of an overrun raises `SIGSEGV` in the instruction that caused it. Each buffer costs at least three
/// pages of addresses and one of memory.
///
/// ```
/// use uverbs::{alloc::GuardPages, ParentDomain, Pd};
///
/// fn guarded(pd: &Pd) -> uverbs::Result<ParentDomain> {
///     pd.parent_domain().allocator(GuardPages::new()).create()
/// }
///
/// assert_eq!(GuardPages::new().live(), 0);
/// ```
#[derive(Debug, Default)]
pub struct GuardPages {
    /// The mappings, by the address of the buffer.
    live: Mutex<BTreeMap<usize, Mapping>>,
}

impl GuardPages {
    /// The allocator.
    pub fn new() -> Self {
        Self::default()
    }

    /// Buffers that have not been returned.
    pub fn live(&self) -> usize {
        self.mappings().len()
    }

    fn mappings(&self) -> MutexGuard<'_, BTreeMap<usize, Mapping>> {
        // The map is consistent after every statement, so a panic elsewhere did no harm.
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Maps a buffer with its guards, and returns its start.
fn map(size: usize, alignment: usize) -> io::Result<(Mapping, usize)> {
    let page = page_size();
    let too_large = || io::Error::from(io::ErrorKind::OutOfMemory);
    let pages = size.checked_next_multiple_of(page).ok_or_else(too_large)?;
    // An alignment larger than a page costs addresses before the buffer.
    let slack = if alignment > page { alignment } else { 0 };
    let total = pages
        .checked_add(slack)
        .and_then(|sum| sum.checked_add(2 * page));
    let mapping = Mapping::reserved(total.ok_or_else(too_large)?)?;
    let first = (mapping.start() + page).next_multiple_of(alignment.max(page));
    mapping.open(first, pages)?;
    let at = match alignment > page {
        true => first,
        false => first + pages - size.next_multiple_of(alignment),
    };
    Ok((mapping, at))
}

// SAFETY: each buffer has a mapping of its own, which is new and so zeroed, is shared at a fork, and lives
// until the buffer is freed.
unsafe impl Allocator for GuardPages {
    fn allocate(&self, request: &BufferRequest) -> Result<Allocation, AllocError> {
        let (size, alignment) = request.span();
        let (mapping, at) = map(size, alignment).map_err(AllocError::new)?;
        let memory = NonNull::slice_from_raw_parts(mapping.at(at), size);
        self.mappings().insert(at, mapping);
        Ok(Allocation::Memory(memory))
    }

    unsafe fn free(&self, memory: NonNull<[u8]>, _: &BufferRequest) {
        let mapping = self.mappings().remove(&memory.cast::<u8>().addr().get());
        drop(mapping);
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::Signal;

    use super::*;
    use crate::alloc::testing::{self, give_back, granted, killed_by, memory, place};

    #[test]
    fn buffers_are_as_the_contract_says() {
        testing::keeps_the_contract(&GuardPages::new());
    }

    #[test]
    fn an_overrun_faults_and_the_buffer_itself_does_not() {
        let guard = GuardPages::new();
        for request in [
            memory(8, 8),
            memory(100, 4),
            memory(5000, 64),
            place(page_size()),
        ] {
            let buffer = granted(&guard, &request);
            let first = buffer.cast::<u8>().as_ptr();
            let touch = |offset: isize| {
                // SAFETY: it runs in a child of its own, which the test expects to die of a fault.
                move || unsafe { first.offset(offset).write_volatile(1) }
            };
            let size = request.size.next_multiple_of(request.alignment) as isize;
            assert_eq!(killed_by(touch(size - 1)), None);
            assert_eq!(killed_by(touch(size)), Some(Signal::SEGV), "{request:?}");
            assert_eq!(
                killed_by(touch(-(page_size() as isize))),
                Some(Signal::SEGV),
                "{request:?}"
            );
            give_back(&guard, buffer, &request);
        }
        assert_eq!(guard.live(), 0);
    }

    #[test]
    fn a_large_alignment_is_kept_and_guarded() {
        let guard = GuardPages::new();
        let request = memory(3 * page_size(), 1 << 21);
        let buffer = granted(&guard, &request).cast::<u8>().as_ptr();
        assert_eq!(buffer.addr() % (1 << 21), 0);
        // SAFETY: it runs in a child of its own, which the test expects to die of a fault.
        let beyond = || unsafe { buffer.add(request.size).write_volatile(1) };
        assert_eq!(killed_by(beyond), Some(Signal::SEGV));
    }

    #[test]
    fn what_cannot_be_mapped_is_an_error() {
        assert!(GuardPages::new().allocate(&memory(usize::MAX, 8)).is_err());
        assert!(
            GuardPages::new()
                .allocate(&memory(isize::MAX as usize, 8))
                .is_err()
        );
    }

    /// Would catch an alignment that is divided by.
    #[test]
    fn no_alignment_is_one_of_a_byte() {
        let guard = GuardPages::new();
        let request = memory(100, 0);
        let buffer = granted(&guard, &request);
        give_back(&guard, buffer, &request);
    }
}
