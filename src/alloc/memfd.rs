//! Buffers in a file of memory that other processes can map too.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap, mremap_fixed};
use rustix::param::page_size;

use super::free_list::FreeList;
use super::mapping::Mapping;
use super::{AllocError, Allocation, Allocator, BufferRequest, Purpose};

/// An allocator whose buffers lie in a memfd of fixed size.
///
/// A process that gets the descriptor ([`AsFd`]) and maps the file sees the same bytes as the device and this
/// process, in buffers for [`Purpose::Memory`]. Over a [`Purpose::Place`] the driver maps its own pages,
/// which are not in the file; when the ring is gone, the file's pages are mapped there again, unchanged.
///
/// Only this process writes: the file is sealed (`F_SEAL_FUTURE_WRITE`, `F_SEAL_SHRINK` and `F_SEAL_GROW` of
/// fcntl(2)), so no descriptor of it can write to the file, map it for writing or change its size. A process
/// that could write to a ring would control the device.
///
/// ```
/// use std::sync::Arc;
/// use uverbs::{alloc::SharedMemfd, ParentDomain, Pd};
///
/// let shared = Arc::new(SharedMemfd::new(1 << 20)?);
/// assert_eq!(shared.capacity(), 1 << 20);
///
/// fn rings_in(shared: &Arc<SharedMemfd>, pd: &Pd) -> uverbs::Result<ParentDomain> {
///     pd.parent_domain().allocator(Arc::clone(shared)).create()
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct SharedMemfd {
    free: Mutex<FreeList>,
    mapping: ManuallyDrop<Mapping>,
    /// A second mapping of the file, in which no page is ever replaced. Pages are mapped again from here,
    /// since a sealed file cannot be mapped for writing.
    origin: Mapping,
    /// There may be a hole in the mapping, where other code may have mapped something.
    torn: AtomicBool,
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
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("uverbs buffers", flags)?;
        ftruncate(&file, length as u64)?;
        let (mapping, origin) = (map(&file, length)?, map(&file, length)?);
        let size = SealFlags::SHRINK | SealFlags::GROW;
        fcntl_add_seals(&file, SealFlags::FUTURE_WRITE | size | SealFlags::SEAL)?;
        let free = Mutex::new(FreeList::new(mapping.start(), mapping.end()));
        Ok(Self {
            free,
            mapping: ManuallyDrop::new(mapping),
            origin,
            torn: AtomicBool::new(false),
            file,
        })
    }

    /// Bytes in all, used or not.
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

    /// Maps the file's pages where they were. With a size of 0, mremap(2) maps the same pages a second time.
    ///
    /// # Safety
    ///
    /// `memory` is whole pages of this mapping that nothing uses.
    unsafe fn map_again(&self, memory: NonNull<[u8]>) -> io::Result<()> {
        let from = memory.cast::<u8>().addr().get() - self.mapping.start() + self.origin.start();
        let (from, to) = (self.origin.at(from), memory.cast::<u8>());
        let flags = MremapFlags::MAYMOVE;
        // SAFETY: by this function's contract; the pages of `origin` stay mapped there.
        unsafe {
            mremap_fixed(
                from.as_ptr().cast(),
                0,
                memory.len(),
                flags,
                to.as_ptr().cast(),
            )?;
        }
        Ok(())
    }
}

fn map(file: &OwnedFd, length: usize) -> io::Result<Mapping> {
    let flags = MapFlags::SHARED;
    // SAFETY: a new mapping at an address that the kernel chooses touches no existing memory.
    let base = unsafe { mmap(ptr::null_mut(), length, PROTECTION, flags, file, 0)? };
    // SAFETY: it was just mapped, with this length.
    unsafe { Mapping::own(base.cast(), length) }
}

impl Drop for SharedMemfd {
    fn drop(&mut self) {
        if !*self.torn.get_mut() {
            // SAFETY: it is dropped once, here, and all of its range is still this mapping.
            unsafe { ManuallyDrop::drop(&mut self.mapping) };
        }
    }
}

/// The file, sealed.
impl AsFd for SharedMemfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

// SAFETY: the free list gives each byte to one buffer at a time, and the mapping lives as long as the
// allocator. It is shared, so a fork copies nothing, and a buffer is zeroed when it is handed out.
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

    unsafe fn free(&self, memory: NonNull<[u8]>, request: &BufferRequest) {
        if request.purpose == Purpose::Place
            // SAFETY: by this function's contract; a place is whole pages.
            && let Err(error) = unsafe { self.map_again(memory) }
        {
            // The pages are not used again: other processes would not see what is written there, and the
            // kernel may have unmapped the old pages before it failed. Relaxed: the drop that reads it has
            // the allocator exclusively.
            self.torn.store(true, Ordering::Relaxed);
            tracing::warn!(target: "uverbs", %error, "pages of a shared file could not be mapped again");
            return;
        }
        let start = memory.cast::<u8>().addr().get();
        self.free_list().give_back(start, start + memory.len());
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use memmap2::{Mmap, MmapMut, MmapOptions};

    use super::*;
    use crate::alloc::testing::{self, bytes, cover, give_back, granted, memory, place};

    #[test]
    fn buffers_are_as_the_contract_says() {
        testing::keeps_the_contract(&SharedMemfd::new(64 * page_size()).unwrap());
    }

    #[test]
    fn another_mapping_of_the_file_sees_the_same_bytes() {
        let shared = SharedMemfd::new(4 * page_size()).unwrap();
        // SAFETY: the bytes are compared while nothing writes them.
        let other = unsafe { Mmap::map(&shared.as_fd()).unwrap() };
        let buffer = granted(&shared, &memory(64, 64));
        let at = shared.offset(buffer).unwrap() as usize;
        bytes(buffer).fill(0x5a);
        assert_eq!(other[at..at + 64], [0x5a; 64]);
    }

    /// The driver leaves private pages; a file that others map must be mapped there again afterwards.
    #[test]
    fn a_place_is_the_file_again_when_the_ring_has_gone() {
        let shared = SharedMemfd::new(page_size()).unwrap();
        // SAFETY: as above.
        let other = unsafe { Mmap::map(&shared.as_fd()).unwrap() };
        let ring = place(page_size());
        let buffer = granted(&shared, &ring);
        cover(buffer);
        bytes(buffer).fill(0xee);
        assert_eq!(other[0], 0);
        give_back(&shared, buffer, &ring);

        let request = memory(page_size(), 8);
        let buffer = granted(&shared, &request);
        bytes(buffer).fill(0x11);
        assert_eq!(other[0], 0x11);
    }

    /// Would catch a descriptor by which safe code rewrites live rings or truncates the file.
    #[test]
    fn the_descriptor_changes_nothing() {
        let shared = SharedMemfd::new(2 * page_size()).unwrap();
        let buffer = granted(&shared, &memory(64, 64));
        bytes(buffer).fill(0x5a);
        let file = File::from(shared.as_fd().try_clone_to_owned().unwrap());
        assert!(file.write_all_at(&[0xee; 64], 0).is_err());
        for length in [0, 1, 1 << 20] {
            assert!(file.set_len(length).is_err(), "{length} bytes");
        }
        // The same file, opened by name as another process might.
        let name = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        let again = File::options().read(true).write(true).open(name).unwrap();
        assert!(again.write_all_at(&[0xee; 64], 0).is_err());
        assert!(MmapOptions::new().map_raw(&again).is_err());
        // SAFETY: the call must fail, and nothing would use the mapping.
        assert!(unsafe { MmapMut::map_mut(&again) }.is_err());
        assert!(bytes(buffer).iter().all(|&byte| byte == 0x5a));
        assert_eq!(file.metadata().unwrap().len(), 2 * page_size() as u64);
    }

    #[test]
    fn it_ends_with_the_file_and_is_used_again() {
        let shared = SharedMemfd::new(2 * page_size()).unwrap();
        let request = place(2 * page_size());
        let buffer = granted(&shared, &request);
        assert!(shared.allocate(&memory(1, 1)).is_err());
        give_back(&shared, buffer, &request);
        assert_eq!(granted(&shared, &request), buffer);
        assert!(SharedMemfd::new(0).is_err());
        assert!(SharedMemfd::new(usize::MAX).is_err());
    }
}
