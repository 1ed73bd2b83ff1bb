//! Memory of a dma-heap.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::OFlags;
use rustix::ioctl::{self, Updater};

use super::udmabuf::open;
use super::{Dmabuf, DmabufMemory};
use crate::alloc::{AllocError, Allocation, Allocator, BufferRequest};

/// An allocator whose buffers lie in memory of one of the kernel's dma-heaps (`/dev/dma_heap`).
///
/// The heap `system` has ordinary pages, and `system_cc_shared` pages that a confidential guest shares with
/// its devices. As with [`Udmabuf`](crate::alloc::Udmabuf) nothing counts against `RLIMIT_MEMLOCK`, and not
/// every driver takes such buffers.
///
/// ```no_run
/// use uverbs::{ParentDomain, Pd, alloc::DmaHeap};
///
/// fn in_shared_pages(pd: &Pd) -> Result<ParentDomain, Box<dyn std::error::Error>> {
///     // SAFETY: a guest's processors and devices see the same bytes.
///     let heap = unsafe { DmaHeap::new("system_cc_shared", 1 << 20)? };
///     Ok(pd.parent_domain().allocator(heap).create()?)
/// }
/// ```
#[derive(Debug)]
pub struct DmaHeap {
    memory: DmabufMemory,
}

impl DmaHeap {
    /// Allocates `bytes`, rounded up to whole pages, of the heap with this name in `/dev/dma_heap`.
    ///
    /// # Errors
    ///
    /// `Unsupported` if the kernel has no such heap, `PermissionDenied` if this user may not open it,
    /// `OutOfMemory` if it has no memory left.
    ///
    /// # Safety
    ///
    /// Loads of this process see what the device writes to memory of the heap without further calls, and the
    /// device sees what this process writes. This holds for every heap on machines whose devices are coherent
    /// with their caches: x86-64, and arm64 servers.
    pub unsafe fn new(heap: &str, bytes: usize) -> io::Result<Self> {
        let device = open(&format!("/dev/dma_heap/{heap}"), "such dma-heap")?;
        let mut request = Allocate {
            length: super::whole_pages(bytes)? as u64,
            fd: 0,
            fd_flags: (OFlags::RDWR | OFlags::CLOEXEC).bits(),
            heap_flags: 0,
        };
        // SAFETY: the opcode belongs to the struct, which the kernel reads and writes.
        unsafe { ioctl::ioctl(&device, Updater::<ALLOC, _>::new(&mut request))? };
        // SAFETY: the kernel has just made this descriptor for us.
        let dmabuf = Dmabuf::new(unsafe { OwnedFd::from_raw_fd(request.fd as i32) })?;
        // SAFETY: the memory has just been allocated, and nothing else has it. That it is coherent is this
        // function's contract.
        let memory = unsafe { DmabufMemory::new(dmabuf)? };
        Ok(Self { memory })
    }

    /// The dma-buf.
    pub fn dmabuf(&self) -> &Dmabuf {
        self.memory.dmabuf()
    }

    /// Its memory, for an allocator of another kind over it
    /// ([`Arena::in_dmabuf`](crate::alloc::Arena::in_dmabuf)).
    pub fn into_memory(self) -> DmabufMemory {
        self.memory
    }

    /// Bytes in all, used or not.
    pub fn capacity(&self) -> usize {
        self.memory.capacity()
    }
}

// SAFETY: memory comes from the allocator in it and goes back there.
unsafe impl Allocator for DmaHeap {
    fn allocate(&self, request: &BufferRequest) -> Result<Allocation, AllocError> {
        self.memory.allocate(request)
    }

    unsafe fn free(&self, memory: NonNull<[u8]>, request: &BufferRequest) {
        // SAFETY: by this function's contract.
        unsafe { self.memory.free(memory, request) };
    }
}

/// `struct dma_heap_allocation_data` of `linux/dma-heap.h`.
#[repr(C)]
struct Allocate {
    length: u64,
    fd: u32,
    fd_flags: u32,
    heap_flags: u64,
}

/// `DMA_HEAP_IOCTL_ALLOC`.
const ALLOC: ioctl::Opcode = ioctl::opcode::read_write::<Allocate>(b'H', 0);
