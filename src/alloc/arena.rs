//! An arena: buffers one after the other in the caller's memory.

use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::mm::{Advice, madvise};
use rustix::param::page_size;

use super::{AllocError, Allocation, Allocator, BufferRequest, Dmabuf, DmabufMemory, Purpose};
use crate::memory::{Resting, WritableMemory};

/// An allocator that cuts buffers from the caller's memory, from its beginning to its end.
///
/// Freed buffers are not reused before [`Arena::reset`], which requires all of them to be free. Only whole
/// pages of the memory are used. A forked child does not get them (`MADV_DONTFORK`), so the device and the
/// parent keep the same pages.
///
/// Buffers for [`Purpose::Place`] are returned as private zeroed pages, so a file is no longer mapped there.
/// For memory that must stay shared, use [`SharedMemfd`](crate::alloc::SharedMemfd).
///
/// ```
/// use std::sync::Arc;
/// use uverbs::{alloc::Arena, ParentDomain, Pd};
///
/// let arena = Arc::new(Arena::new(vec![0u8; 1 << 20])?);
/// assert!(arena.capacity() >= (1 << 20) - 2 * 4096);
///
/// fn rings_in(arena: &Arc<Arena<Vec<u8>>>, pd: &Pd) -> uverbs::Result<ParentDomain> {
///     pd.parent_domain().allocator(Arc::clone(arena)).create()
/// }
///
/// // When the domain's objects are gone:
/// assert_eq!(arena.live(), 0);
/// arena.reset()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Arena<M: WritableMemory> {
    state: Mutex<State>,
    // Before the memory, since its drop undoes the advice for it.
    pages: Pages,
    /// The dma-buf whose bytes the pages are, from its first byte on, if the device addresses buffers by it.
    dmabuf: Option<Dmabuf>,
    memory: Resting<M>,
}

/// Why memory did not become an [`Arena`].
pub struct ArenaError<M> {
    /// The memory, as it was.
    pub memory: M,
    /// Why it cannot be one.
    pub error: io::Error,
}

impl<M> fmt::Debug for ArenaError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.error, f)
    }
}

impl<M> fmt::Display for ArenaError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl<M> std::error::Error for ArenaError<M> {}

impl<M> From<ArenaError<M>> for io::Error {
    /// Keeps the error and drops the memory.
    fn from(failed: ArenaError<M>) -> Self {
        failed.error
    }
}

#[derive(Debug, Default)]
struct State {
    /// The bytes from the beginning on that are in buffers.
    used: usize,
    /// Buffers that have not been returned.
    live: usize,
}

// SAFETY: `memory` is only kept, and moved out or dropped by the owner of the arena.
unsafe impl<M: WritableMemory> Sync for Arena<M> {}

impl<M: WritableMemory> Arena<M> {
    /// An arena over the whole pages of `memory`.
    ///
    /// # Errors
    ///
    /// The memory has no whole page, or the kernel does not accept `MADV_DONTFORK` for it. The error returns
    /// the memory.
    pub fn new(memory: M) -> Result<Self, ArenaError<M>> {
        // Moving a box or a slice would invalidate a pointer that was made before.
        let (memory, (address, length)) = Resting::new(memory);
        match Pages::of(address, length) {
            Ok(pages) => Ok(Self {
                state: Mutex::default(),
                pages,
                dmabuf: None,
                memory,
            }),
            Err(error) => Err(ArenaError {
                memory: memory.into_inner(),
                error,
            }),
        }
    }

    /// The start of the pages as the device addresses them. What is aligned is the sum of this and an offset.
    fn origin(&self) -> usize {
        match &self.dmabuf {
            Some(_) => 0,
            None => self.pages.base.addr().get(),
        }
    }

    /// Bytes in all, used or not.
    pub fn capacity(&self) -> usize {
        self.pages.length
    }

    /// Bytes in buffers since the last reset, including those for alignment.
    pub fn used(&self) -> usize {
        self.state().used
    }

    /// Buffers that have not been returned.
    pub fn live(&self) -> usize {
        self.state().live
    }

    /// Starts again at the beginning.
    ///
    /// # Errors
    ///
    /// `ResourceBusy` while buffers are in use.
    pub fn reset(&self) -> io::Result<()> {
        let mut state = self.state();
        if state.live > 0 {
            let why = format!("{} buffers of the arena are in use", state.live);
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, why));
        }
        state.used = 0;
        Ok(())
    }

    /// Returns the memory.
    pub fn into_inner(self) -> M {
        let Self { memory, pages, .. } = self;
        drop(pages);
        memory.into_inner()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Two numbers that are right after every statement: a panic elsewhere did no harm.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Arena<DmabufMemory> {
    /// An arena over a dma-buf, all of which is mapped: the device addresses its buffers by dma-buf and
    /// offset.
    ///
    /// ```no_run
    /// use uverbs::alloc::{Arena, DmabufMemory, Udmabuf};
    ///
    /// fn arena() -> std::io::Result<Arena<DmabufMemory>> {
    ///     Ok(Arena::in_dmabuf(Udmabuf::new(1 << 20)?.into_memory())?)
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Arena::new`].
    pub fn in_dmabuf(memory: DmabufMemory) -> Result<Self, ArenaError<DmabufMemory>> {
        let dmabuf = memory.dmabuf().clone();
        let arena = Self::new(memory)?;
        Ok(Self {
            dmabuf: Some(dmabuf),
            ..arena
        })
    }
}

// SAFETY: each byte is handed out once between resets, a reset needs all buffers to be back, and the memory
// lives as long as the arena. It is zeroed when handed out, and children of a fork do not have it.
unsafe impl<M: WritableMemory> Allocator for Arena<M> {
    fn allocate(&self, request: &BufferRequest) -> Result<Allocation, AllocError> {
        let (size, alignment) = request.span();
        let Pages { base, length } = self.pages;
        let start = self.origin();
        let mut state = self.state();
        let at = (start + state.used).checked_next_multiple_of(alignment);
        let end = at.and_then(|at| at.checked_add(size));
        let (Some(at), Some(end)) = (at, end.filter(|&end| end <= start + length)) else {
            return Err(AllocError::new(format!(
                "the arena of {length} bytes has {} left",
                length - state.used
            )));
        };
        state.used = end - start;
        state.live += 1;
        // SAFETY: the offset is within the pages, as was just checked.
        let first = unsafe { base.add(at - start) };
        if request.purpose == Purpose::Memory {
            // SAFETY: these bytes are the arena's, and only this call hands them out.
            unsafe { first.write_bytes(0, size) };
        }
        let memory = NonNull::slice_from_raw_parts(first, size);
        Ok(match &self.dmabuf {
            None => Allocation::Memory(memory),
            Some(dmabuf) => Allocation::Dmabuf {
                dmabuf: dmabuf.clone(),
                offset: (at - start) as u64,
                memory,
            },
        })
    }

    unsafe fn free(&self, memory: NonNull<[u8]>, request: &BufferRequest) {
        if request.purpose == Purpose::Place {
            // The pages are new ones: the advice was for the old ones.
            let told = Pages::keep_from_children(memory.cast(), memory.len());
            if let Err(error) = told {
                tracing::warn!(target: "uverbs", %error, "pages of an arena will be copied at a fork");
            }
        }
        self.state().live -= 1;
    }
}

impl<M: WritableMemory> fmt::Debug for Arena<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena")
            .field("pages", &self.pages)
            .field("state", &*self.state())
            .finish()
    }
}

/// Whole pages that children of a fork do not have, until it is dropped.
#[derive(Debug)]
struct Pages {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: the pages belong to the arena's memory, which is `Send`.
unsafe impl Send for Pages {}
// SAFETY: shared references only give the address and the length.
unsafe impl Sync for Pages {}

impl Pages {
    /// The whole pages of a range.
    fn of(address: *mut u8, length: usize) -> io::Result<Self> {
        let skip = address.addr().wrapping_neg() % page_size();
        let whole = length.saturating_sub(skip) / page_size() * page_size();
        // SAFETY: if there is a whole page, `skip` bytes come before it in the range.
        let base = (whole > 0).then(|| unsafe { address.add(skip) });
        let Some(base) = base.and_then(NonNull::new) else {
            let why = "the memory of an arena must have a whole page";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        };
        Self::keep_from_children(base, whole)?;
        Ok(Self {
            base,
            length: whole,
        })
    }

    fn keep_from_children(base: NonNull<u8>, length: usize) -> io::Result<()> {
        // SAFETY: the advice changes nothing in this process.
        let told = unsafe { madvise(base.as_ptr().cast(), length, Advice::LinuxDontFork) };
        told.map_err(io::Error::from)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let address = self.base.as_ptr().cast();
        // SAFETY: the advice changes nothing in this process. It fails only for memory of a device, which
        // children did not have before either.
        let _ = unsafe { madvise(address, self.length, Advice::LinuxDoFork) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alloc::testing::{self, bytes, give_back, granted, memory, place};

    fn arena(pages: usize) -> Arena<memmap2::MmapMut> {
        Arena::new(memmap2::MmapMut::map_anon(pages * page_size()).unwrap()).unwrap()
    }

    #[test]
    fn buffers_are_as_the_contract_says() {
        testing::keeps_the_contract(&arena(64));
    }

    #[test]
    fn it_ends_where_the_memory_ends() {
        let page = page_size();
        let arena = arena(3);
        let first = granted(&arena, &place(2 * page));
        assert!(arena.allocate(&place(2 * page)).is_err());
        let second = granted(&arena, &place(page));
        assert_eq!(
            second.cast::<u8>().addr().get(),
            first.cast::<u8>().addr().get() + 2 * page
        );
        assert!(
            arena
                .allocate(&memory(1, 1))
                .unwrap_err()
                .to_string()
                .contains("0 left")
        );
        assert!(arena.allocate(&memory(usize::MAX, 1)).is_err());
    }

    #[test]
    fn a_reset_needs_all_buffers_back_and_zeroes_them() {
        let arena = arena(1);
        let request = memory(64, 64);
        let buffer = granted(&arena, &request);
        bytes(buffer).fill(0xff);
        assert_eq!(
            arena.reset().unwrap_err().kind(),
            io::ErrorKind::ResourceBusy
        );
        give_back(&arena, buffer, &request);
        let other = granted(&arena, &request);
        assert_ne!(other, buffer);
        give_back(&arena, other, &request);
        arena.reset().unwrap();
        assert_eq!((arena.used(), arena.live()), (0, 0));
        let again = granted(&arena, &request);
        assert_eq!(again, buffer);
        assert!(bytes(again).iter().all(|&byte| byte == 0));
    }

    #[test]
    fn memory_without_a_whole_page_is_refused() {
        let ArenaError { memory, error } = Arena::new(vec![7u8; page_size() - 1]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert_eq!(memory, vec![7; page_size() - 1]);
        assert!(Arena::new(Vec::<u8>::new()).is_err());
    }

    /// Moves the arena, over memory whose owners assert, when moved, that there is no other pointer to it:
    /// under Miri this would catch such a pointer.
    #[test]
    fn memory_stays_where_it_is_while_the_arena_moves() {
        let boxed = vec![0u8; 2 * page_size()].into_boxed_slice();
        let leaked: &'static mut [u8] = vec![0u8; 2 * page_size()].leak();
        let (first, second) = (Arena::new(boxed).unwrap(), Arena::new(leaked).unwrap());
        let request = memory(64, 64);
        let mut moved = vec![(Some(first), second)];
        moved.reserve(100);
        let (first, second) = moved.remove(0);
        let first = first.unwrap();
        let (one, two) = (granted(&first, &request), granted(&second, &request));
        bytes(one).fill(1);
        bytes(two).fill(2);
        assert_eq!(
            first.into_inner().iter().filter(|&&byte| byte == 1).count(),
            64
        );
        assert_eq!(
            second
                .into_inner()
                .iter()
                .filter(|&&byte| byte == 2)
                .count(),
            64
        );
    }

    /// Once the arena is gone, a forked child has the heap pages around it again.
    #[test]
    fn the_memory_comes_back_with_its_bytes() {
        let arena = Arena::new(vec![7u8; 3 * page_size()]).unwrap();
        let vec = arena.into_inner();
        assert!(vec.iter().all(|&byte| byte == 7));
        testing::in_child(|| assert_eq!(vec[2 * page_size()], 7));
    }
}
