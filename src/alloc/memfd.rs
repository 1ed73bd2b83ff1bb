//! Buffers in a file of memory that other processes can map as well.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::param::page_size;

use super::free_list::FreeList;
use super::mapping::Mapping;
use super::{AllocError, Allocation, Allocator, BufferRequest, Purpose};

/// An allocator whose buffers lie in a memfd of fixed size.
///
/// Whoever gets the descriptor ([`AsFd`]) and maps the file sees what the device and this process see, as far as the
/// buffers are [`Purpose::Memory`]. Over a [`Purpose::Place`] the driver maps pages of its own, which are not in the
/// file; when the ring goes, the file's pages are mapped there again, as they were.
///
/// ```
/// use std::sync::Arc;
/// use uverbs::{ParentDomain, Pd, SharedMemfd};
///
/// let shared = Arc::new(SharedMemfd::new(1 << 20)?);
/// assert_eq!(shared.capacity(), 1 << 20);
///
/// fn rings_in(shared: &Arc<SharedMemfd>, pd: &Pd) -> uverbs::Result<ParentDomain> {
///     pd.parent_domain().allocator(Arc::clone(shared)).build()
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct SharedMemfd {
    free: Mutex<FreeList>,
    mapping: Mapping,
    file: OwnedFd,
}

const PROTECTION: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

impl SharedMemfd {
    /// Makes a file of `bytes`, rounded up to whole pages, and maps it.
    ///
    /// # Errors
    ///
    /// `bytes` is 0 or more than can be mapped, or there are no file descriptors left.
    pub fn new(bytes: usize) -> io::Result<Self> {
        let length = bytes.checked_next_multiple_of(page_size());
        let length = length.ok_or(io::ErrorKind::OutOfMemory)?;
        let file = memfd_create("uverbs buffers", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, length as u64)?;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let base = unsafe {
            mmap(
                ptr::null_mut(),
                length,
                PROTECTION,
                MapFlags::SHARED,
                &file,
                0,
            )?
        };
        // SAFETY: it was just mapped, with this length.
        let mapping = unsafe { Mapping::own(base.cast(), length)? };
        let free = Mutex::new(FreeList::new(mapping.start(), mapping.end()));
        Ok(Self {
            free,
            mapping,
            file,
        })
    }

    /// Bytes that there are, used or not.
    pub fn capacity(&self) -> usize {
        self.mapping.length()
    }

    /// Where a buffer lies in the file, in bytes from its start; `None` if it is not of this file.
    pub fn offset(&self, memory: NonNull<[u8]>) -> Option<u64> {
        let offset = memory
            .cast::<u8>()
            .addr()
            .get()
            .checked_sub(self.mapping.start())?;
        (offset < self.mapping.length()).then_some(offset as u64)
    }

    fn free_list(&self) -> MutexGuard<'_, FreeList> {
        // The list is whole after every statement, so a panic elsewhere has not spoilt it.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Maps the file's pages where they were.
    fn map_again(&self, memory: NonNull<[u8]>) -> io::Result<()> {
        let offset = self.offset(memory).ok_or(io::ErrorKind::InvalidInput)?;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        let address = memory.cast::<u8>().as_ptr().cast();
        // SAFETY: the pages are a part of this mapping that nobody uses: the buffer has just come back.
        unsafe { mmap(address, memory.len(), PROTECTION, flags, &self.file, offset)? };
        Ok(())
    }
}

/// The file.
impl AsFd for SharedMemfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

// SAFETY: the free list gives each byte to one buffer at a time, and the mapping lives as long as the allocator. It is
// shared, so a fork copies nothing, and it is zeroed when handed out.
unsafe impl Allocator for SharedMemfd {
    fn allocate(&self, request: &BufferRequest) -> Result<Allocation, AllocError> {
        let (size, alignment) = request.span();
        let Some(at) = self.free_list().take(size, alignment) else {
            return Err(AllocError::new(format!(
                "the shared file of {} bytes has no {size} left in one piece",
                self.capacity()
            )));
        };
        let first = self.mapping.at(at);
        if request.purpose == Purpose::Memory {
            // SAFETY: these bytes are the mapping's, and were taken for this buffer.
            unsafe { first.write_bytes(0, size) };
        }
        Ok(Allocation::Memory(NonNull::slice_from_raw_parts(
            first, size,
        )))
    }

    fn free(&self, memory: NonNull<[u8]>, request: &BufferRequest) {
        if request.purpose == Purpose::Place
            && let Err(error) = self.map_again(memory)
        {
            // Other processes would not see what is written there: the pages are not used again.
            tracing::warn!(target: "uverbs", %error, "pages of a shared file could not be mapped again");
            return;
        }
        let start = memory.cast::<u8>().addr().get();
        self.free_list().give_back(start, start + memory.len());
    }
}

#[cfg(test)]
mod tests {
    use memmap2::MmapMut;

    use super::*;
    use crate::alloc::testing::{self, bytes, cover, granted, memory, place};

    #[test]
    fn buffers_are_as_the_contract_says() {
        testing::keeps_the_contract(&SharedMemfd::new(64 * page_size()).unwrap());
    }

    #[test]
    fn another_mapping_of_the_file_sees_the_same_bytes() {
        let shared = SharedMemfd::new(4 * page_size()).unwrap();
        // SAFETY: nobody but this test maps the file.
        let other = unsafe { MmapMut::map_mut(&shared.as_fd()).unwrap() };
        let buffer = granted(&shared, &memory(64, 64));
        let at = shared.offset(buffer).unwrap() as usize;
        bytes(buffer).fill(0x5a);
        assert_eq!(other[at..at + 64], [0x5a; 64]);
    }

    /// What the driver leaves is private; a file that others look into must be there again afterwards.
    #[test]
    fn a_place_is_the_file_again_when_the_ring_has_gone() {
        let shared = SharedMemfd::new(page_size()).unwrap();
        // SAFETY: nobody but this test maps the file.
        let other = unsafe { MmapMut::map_mut(&shared.as_fd()).unwrap() };
        let ring = place(page_size());
        let buffer = granted(&shared, &ring);
        cover(buffer);
        bytes(buffer).fill(0xee);
        assert_eq!(other[0], 0);
        shared.free(buffer, &ring);

        let request = memory(page_size(), 8);
        let buffer = granted(&shared, &request);
        bytes(buffer).fill(0x11);
        assert_eq!(other[0], 0x11);
    }

    #[test]
    fn it_ends_with_the_file_and_is_used_again() {
        let shared = SharedMemfd::new(2 * page_size()).unwrap();
        let request = place(2 * page_size());
        let buffer = granted(&shared, &request);
        assert!(shared.allocate(&memory(1, 1)).is_err());
        shared.free(buffer, &request);
        assert_eq!(granted(&shared, &request), buffer);
        assert!(SharedMemfd::new(0).is_err());
        assert!(SharedMemfd::new(usize::MAX).is_err());
    }
}
