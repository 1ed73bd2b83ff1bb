//! Buffers in dma-bufs: memory of a GPU, of a heap, or of a file in memory, which the kernel knows by a file
//! descriptor and an offset and not by an address.

mod heap;
mod udmabuf;
mod unmapped;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{SeekFrom, fstat, fstatfs, seek};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::param::page_size;

use super::free_list::FreeList;
use super::mapping::Mapping;
use super::{AllocError, Allocation, Allocator, BufferRequest};
use crate::memory::{Memory, WritableMemory};

pub use heap::DmaHeap;
pub use udmabuf::Udmabuf;
pub use unmapped::UnmappedDmabuf;

/// A dma-buf that buffers lie in. Clones are the same dma-buf. Its descriptor is closed when the last clone
/// is dropped.
///
/// Safe code does not get its descriptor: with the descriptor a process can map the rings or register them,
/// and a writer to a ring controls the device.
#[derive(Clone)]
pub struct Dmabuf(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    file: OwnedFd,
    length: u64,
    id: FileId,
}

/// The identity of a file, which is the same for all its descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FileId {
    device: u64,
    inode: u64,
}

#[cfg(test)]
impl FileId {
    pub(crate) fn of(inode: u64) -> Self {
        Self { device: 1, inode }
    }
}

/// `DMA_BUF_MAGIC` of `linux/magic.h`: the file system of dma-bufs.
const DMA_BUF_MAGIC: u64 = 0x444d_4142;

impl Dmabuf {
    /// Takes the descriptor of a dma-buf.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if it is the descriptor of something else.
    pub fn new(file: OwnedFd) -> io::Result<Self> {
        if fstatfs(&file)?.f_type as u64 != DMA_BUF_MAGIC {
            let why = "the file descriptor is not that of a dma-buf";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let status = fstat(&file)?;
        // Dma-bufs report their length so; they allow no other position than the two ends.
        let length = seek(&file, SeekFrom::End(0))?;
        Ok(Self(Arc::new(Inner {
            length,
            id: FileId {
                device: status.st_dev,
                inode: status.st_ino,
            },
            file,
        })))
    }

    /// A stand-in of `length` bytes, which the kernel would not accept as a dma-buf.
    #[cfg(test)]
    pub(crate) fn of_length(length: u64) -> Self {
        let file = std::fs::File::open("/dev/null").unwrap();
        let id = FileId::of(length);
        Self(Arc::new(Inner {
            file: file.into(),
            length,
            id,
        }))
    }

    /// Bytes.
    pub fn length(&self) -> u64 {
        self.0.length
    }

    /// The descriptor, for another process or another device that will use the rings.
    ///
    /// # Safety
    ///
    /// Nothing writes through it to a buffer of an object that this process uses.
    pub unsafe fn file(&self) -> BorrowedFd<'_> {
        self.0.file.as_fd()
    }

    /// The descriptor, only to pass it to the kernel.
    pub(crate) fn for_kernel(&self) -> BorrowedFd<'_> {
        self.0.file.as_fd()
    }

    pub(crate) fn id(&self) -> FileId {
        self.0.id
    }
}

/// Two are equal if they are the same dma-buf, whatever their descriptors.
impl PartialEq for Dmabuf {
    fn eq(&self, other: &Self) -> bool {
        self.id() == other.id()
    }
}

impl Eq for Dmabuf {}

impl fmt::Debug for Dmabuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dmabuf")
            .field("inode", &self.id().inode)
            .field("length", &self.length())
            .finish()
    }
}

/// An allocator whose buffers lie in one dma-buf of any exporter, all of which is mapped in this process.
///
/// [`Udmabuf`] and [`DmaHeap`] make the dma-buf themselves. `docs/domains.md` says which drivers, objects and
/// kernels accept such buffers, and who pins what. Where they are not accepted the verb fails with
/// [`Cause::Unsupported`](crate::Cause::Unsupported) and says what is missing.
///
/// ```no_run
/// use uverbs::{ParentDomain, Pd, alloc::{Dmabuf, DmabufMemory}};
///
/// fn rings_in(dmabuf: std::os::fd::OwnedFd, pd: &Pd) -> Result<ParentDomain, Box<dyn std::error::Error>> {
///     // SAFETY: the exporter has made it for these rings, and nobody else uses it.
///     let memory = unsafe { DmabufMemory::new(Dmabuf::new(dmabuf)?)? };
///     Ok(pd.parent_domain().allocator(memory).create()?)
/// }
/// ```
#[derive(Debug)]
pub struct DmabufMemory {
    dmabuf: Dmabuf,
    mapping: Mapping,
    free: Mutex<FreeList>,
}

impl DmabufMemory {
    /// Maps a dma-buf.
    ///
    /// # Errors
    ///
    /// The exporter does not let processes map it for reading and writing, or it is longer than what can be
    /// mapped.
    ///
    /// # Safety
    ///
    /// Nothing else uses the memory as long as the allocator lives. The exporter's memory is coherent: loads
    /// of this process see what the device writes to it without further calls, and the device sees what this
    /// process writes.
    pub unsafe fn new(dmabuf: Dmabuf) -> io::Result<Self> {
        let mapping = map(dmabuf.for_kernel(), dmabuf.length())?;
        Ok(Self::over(dmabuf, mapping))
    }

    /// An allocator over a mapping of all of the dma-buf's memory, in its order.
    fn over(dmabuf: Dmabuf, mapping: Mapping) -> Self {
        // A list of offsets, not of addresses: they are what must be aligned.
        let free = Mutex::new(FreeList::new(0, mapping.length()));
        Self {
            dmabuf,
            mapping,
            free,
        }
    }

    /// The dma-buf.
    pub fn dmabuf(&self) -> &Dmabuf {
        &self.dmabuf
    }

    /// Bytes in all, used or not.
    pub fn capacity(&self) -> usize {
        self.mapping.length()
    }

    fn free_list(&self) -> MutexGuard<'_, FreeList> {
        // The list is whole after every statement, so a panic elsewhere has not spoilt it.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// SAFETY: the mapping stays where it is until the value is dropped, and any bytes may lie there. Nothing else
// uses it.
unsafe impl Memory for DmabufMemory {
    fn address(&mut self) -> *mut u8 {
        self.mapping.base().as_ptr()
    }

    fn length(&self) -> usize {
        self.mapping.length()
    }
}

// SAFETY: it is mapped for writing.
unsafe impl WritableMemory for DmabufMemory {}

/// Maps a file from its start, shared.
fn map(file: BorrowedFd<'_>, length: u64) -> io::Result<Mapping> {
    let length = usize::try_from(length).map_err(|_| io::ErrorKind::OutOfMemory)?;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses touches no existing memory.
    let base = unsafe { mmap(ptr::null_mut(), length, access, MapFlags::SHARED, file, 0)? };
    // SAFETY: it was just mapped, with this length.
    unsafe { Mapping::own(base.cast(), length) }
}

/// Rounds bytes up to whole pages.
fn whole_pages(bytes: usize) -> io::Result<usize> {
    let length = bytes.max(1).checked_next_multiple_of(page_size());
    length.ok_or(io::ErrorKind::OutOfMemory.into())
}

// SAFETY: the free list gives each byte to one buffer at a time, and dma-buf and mapping live as long as the
// allocator. The mapping is shared, so a fork copies nothing, and a buffer is zeroed when it is handed out.
// That nothing else uses the memory is the contract of `DmabufMemory::new`; other callers of `over` ensure
// it.
unsafe impl Allocator for DmabufMemory {
    fn allocate(&self, request: &BufferRequest) -> Result<Allocation, AllocError> {
        let (size, alignment) = request.span();
        let Some(offset) = self.free_list().take(size, alignment) else {
            return Err(AllocError::new(format!(
                "the dma-buf of {} bytes has no {size} left in one piece",
                self.capacity()
            )));
        };
        let first = self.mapping.at(self.mapping.start() + offset);
        // SAFETY: these bytes are the mapping's, and were taken for this buffer.
        unsafe { first.write_bytes(0, size) };
        Ok(Allocation::Dmabuf {
            dmabuf: self.dmabuf.clone(),
            offset: offset as u64,
            memory: NonNull::slice_from_raw_parts(first, size),
        })
    }

    unsafe fn free(&self, memory: NonNull<[u8]>, _: &BufferRequest) {
        let start = memory.cast::<u8>().addr().get() - self.mapping.start();
        self.free_list().give_back(start, start + memory.len());
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn another_file_is_no_dmabuf() {
        let refused = Dmabuf::new(File::open("/proc/self/exe").unwrap().into()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        assert!(refused.to_string().contains("not that of a dma-buf"));
    }
}
