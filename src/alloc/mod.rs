//! User-provided memory for rings: the requests to a parent domain's allocator, and its answers.
//!
//! For each ring or doorbell record in a domain, the driver requests a buffer from the domain's
//! [`Allocator`], with size, alignment and [`ResourceType`]. The answer is memory, "use the default", or an
//! error, which the caller of the verb gets unchanged. The allocator gets each of its buffers back exactly
//! once, after the kernel has released it, and never gets any other buffer. Manual page:
//! `ibv_alloc_parent_domain(3)`.
//!
//! rxe's rings are the kernel's own pages. There the allocator supplies the *place*: addresses over which the
//! driver maps the ring, and which it returns as fresh zeroed private pages ([`Purpose::Place`]).
//!
//! mlx5's rings, and the completion rings of an EFA, may also lie in a *dma-buf*: memory that the kernel
//! knows by a file descriptor and an offset, such as a GPU's ([`Allocation::Dmabuf`]). The rings of a queue
//! for an agent need not be mapped in this process ([`Allocation::Unmapped`]).
//!
//! Allocators that come with the crate: [`Arena`], [`GuardPages`], [`SharedMemfd`], [`HugePages`],
//! [`NumaMemory`], in dma-bufs [`Udmabuf`], [`DmaHeap`], [`DmabufMemory`] and [`UnmappedDmabuf`], and
//! [`Counting`] around any.

mod arena;
mod counting;
mod dmabuf;
mod free_list;
mod grant;
mod guard;
mod huge_pages;
mod mapping;
mod memfd;
mod numa;
mod pool;
#[cfg(test)]
mod testing;

use std::ptr::NonNull;
use std::sync::Arc;

use rustix::param::page_size;
use uverbs_uapi::handle::PdHandle;

pub use crate::error::AllocError;
pub use arena::{Arena, ArenaError};
pub use counting::{BufferCounts, Counting};
pub use dmabuf::{DmaHeap, Dmabuf, DmabufMemory, Udmabuf, UnmappedDmabuf};
pub(crate) use grant::{Buffers, Dmabufs, Grant, Live};
pub use guard::GuardPages;
pub use huge_pages::{HugePageSize, HugePages};
pub(crate) use mapping::Mapping;
pub use memfd::SharedMemfd;
pub use numa::NumaMemory;

use crate::device::DriverId;

/// What a buffer is for: the driver's number in the upper half, the driver's own code in the lower.
///
/// It converts to and from the `resource_type` of `ibv_alloc_parent_domain(3)`:
///
/// ```
/// use uverbs::{alloc::ResourceType, device::DriverId};
///
/// assert_eq!(u64::from(ResourceType::MLX5_DBR), 1 << 32 | 3);
/// assert_eq!(ResourceType::from(14 << 32 | 5), ResourceType::RXE_CQ);
/// assert_eq!(ResourceType::RXE_CQ.driver(), DriverId::RXE);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct ResourceType(u64);

impl ResourceType {
    /// Memory of a buffer pool (`buf::Pool`); it belongs to no driver.
    pub const POOL: Self = Self::new(DriverId(0), 1);

    /// The type with this code of a driver.
    pub const fn new(driver: DriverId, code: u32) -> Self {
        Self((driver.0 as u64) << 32 | code as u64)
    }

    /// The driver that defines the code.
    pub const fn driver(self) -> DriverId {
        DriverId((self.0 >> 32) as u32)
    }

    /// The driver's own code.
    pub const fn code(self) -> u32 {
        self.0 as u32
    }
}

impl From<u64> for ResourceType {
    fn from(raw: u64) -> Self {
        Self(raw)
    }
}

impl From<ResourceType> for u64 {
    fn from(resource: ResourceType) -> Self {
        resource.0
    }
}

/// How a buffer is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// The device itself reads and writes the memory. It must be zeroed, writable, and not copied on write
    /// after a fork (a shared mapping, or `MADV_DONTFORK`).
    Memory,
    /// The kernel's pages are mapped over the addresses, which are later returned as fresh private zeroed
    /// pages. The previous contents are lost. The addresses must be whole pages that mremap(2) with
    /// `MREMAP_FIXED` may replace, so not parts of huge pages.
    Place,
}

/// A buffer that a driver needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufferRequest {
    /// Bytes.
    pub size: usize,
    /// What the address must be a multiple of; a power of two.
    pub alignment: usize,
    /// What it is for.
    pub resource: ResourceType,
    /// How it is used.
    pub purpose: Purpose,
    /// The kernel's handle of the protection domain under the domain that requests it.
    pub pd: PdHandle,
    /// The domain that requests it, by its [`ParentDomain::id`](crate::ParentDomain::id).
    pub domain: u64,
    /// The driver accepts a dma-buf as the answer ([`Allocation::Dmabuf`]). Whether the kernel does shows
    /// only when the object is created. If this is false, such an answer is refused.
    pub dmabuf: bool,
    /// It is for a queue for an agent, and may lie in a dma-buf that is not mapped in this process
    /// ([`Allocation::Unmapped`]). Each byte of the buffer must then have this value, since nothing in this
    /// process can write it.
    pub unmapped: Option<u8>,
}

impl BufferRequest {
    /// The size and alignment to reserve, at least 1: a place takes whole pages.
    pub(crate) fn span(&self) -> (usize, usize) {
        match self.purpose {
            Purpose::Memory => (self.size.max(1), self.alignment.max(1)),
            Purpose::Place => {
                let page = page_size();
                let size = self.size.max(1).checked_next_multiple_of(page);
                (size.unwrap_or(usize::MAX), self.alignment.max(page))
            }
        }
    }
}

/// An allocator's answer: where the buffer lies.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Allocation {
    /// At this address: memory of this process, at least as long and as aligned as requested.
    Memory(NonNull<[u8]>),
    /// In a dma-buf from an offset on, a multiple of the requested alignment, by which the device addresses
    /// it. This process uses `memory`, a mapping of the same bytes, at least as long as requested, whose
    /// address has the same offset in its page.
    Dmabuf {
        /// The dma-buf.
        dmabuf: Dmabuf,
        /// Where the buffer begins in it, in bytes.
        offset: u64,
        /// Where this process has it mapped. [`Allocator::free`] gets it.
        memory: NonNull<[u8]>,
    },
    /// In a dma-buf from an offset on, a multiple of the requested alignment, which this process does not
    /// reach: memory of a GPU, for example. Only queues for an agent accept it, and
    /// [`BufferRequest::unmapped`] says what its bytes must be. [`Allocator::free_unmapped`] gets it back.
    Unmapped {
        /// The dma-buf.
        dmabuf: Dmabuf,
        /// Where the buffer begins in it, in bytes.
        offset: u64,
    },
    /// The driver's own memory (`IBV_ALLOCATOR_USE_DEFAULT`).
    Default,
}

/// Where the rings and doorbell records of a domain's objects lie.
///
/// The allocator's own state takes the place of the context pointer in the manual page. Several threads may
/// use a domain, so calls may be concurrent.
///
/// A panic in any of its functions is caught: in `allocate` it becomes an error, elsewhere a log entry.
/// Memory that is misaligned, too small, or overlaps a live buffer of the same context is refused, and so is
/// a dma-buf where none is accepted.
///
/// ```
/// use std::ptr::NonNull;
/// use uverbs::{alloc::{AllocError, Allocation, Allocator, BufferRequest, Purpose, SharedMemfd}};
///
/// /// Puts completion queues into a file of their own, and leaves everything else to the driver.
/// struct Watched(SharedMemfd);
///
/// // SAFETY: memory comes from the allocator in it and goes back there.
/// unsafe impl Allocator for Watched {
///     fn allocate(&self, request: &BufferRequest) -> Result<Allocation, AllocError> {
///         match request.purpose {
///             Purpose::Memory if request.resource.code() == 5 => self.0.allocate(request),
///             _ => Ok(Allocation::Default),
///         }
///     }
///
///     unsafe fn free(&self, memory: NonNull<[u8]>, request: &BufferRequest) {
///         // SAFETY: by this function's contract; nothing but that allocator's memory was given out.
///         unsafe { self.0.free(memory, request) }
///     }
/// }
/// ```
///
/// # Safety
///
/// Memory that `allocate` returns must be mapped, readable and writable, zeroed, used by nothing else, and
/// not copied on write after a fork. It must stay so until `free` is called for it or the allocator is
/// dropped, whichever comes first. For [`Purpose::Place`] it is enough that whole pages are mapped and that
/// nothing relies on their contents. Memory of an [`Allocation::Dmabuf`] is a mapping of the dma-buf's bytes
/// from the offset on, through which this process and the device see what the other writes without further
/// calls. Bytes of an [`Allocation::Unmapped`] are as [`BufferRequest::unmapped`] says, and are used by
/// nothing else until `free_unmapped`.
pub unsafe trait Allocator: Send + Sync + 'static {
    /// Provides a buffer.
    ///
    /// # Errors
    ///
    /// The implementor's choice; the verb that needs the buffer fails with it.
    fn allocate(&self, request: &BufferRequest) -> Result<Allocation, AllocError>;

    /// Takes memory back.
    ///
    /// # Safety
    ///
    /// `allocate` of this same allocator has returned `memory`, with this address and length, for an equal
    /// `request`, and it has not been freed since. Device, kernel and this process no longer use it. A
    /// [`Purpose::Place`] is mapped, either as the allocator returned it or with zeroed private pages.
    unsafe fn free(&self, memory: NonNull<[u8]>, request: &BufferRequest);

    /// Takes back a buffer that is not mapped here. An allocator that never answers with one need not
    /// implement it.
    ///
    /// # Safety
    ///
    /// `allocate` of this same allocator has answered an equal `request` with this place
    /// ([`Allocation::Unmapped`]), and it has not been freed since. Device and kernel no longer use it.
    unsafe fn free_unmapped(&self, dmabuf: &Dmabuf, offset: u64, request: &BufferRequest) {
        let _ = (dmabuf, offset, request);
    }
}

// SAFETY: the inner allocator keeps the contract.
unsafe impl<A: Allocator + ?Sized> Allocator for Arc<A> {
    fn allocate(&self, request: &BufferRequest) -> Result<Allocation, AllocError> {
        (**self).allocate(request)
    }

    unsafe fn free(&self, memory: NonNull<[u8]>, request: &BufferRequest) {
        // SAFETY: by this function's contract.
        unsafe { (**self).free(memory, request) };
    }

    unsafe fn free_unmapped(&self, dmabuf: &Dmabuf, offset: u64, request: &BufferRequest) {
        // SAFETY: by this function's contract.
        unsafe { (**self).free_unmapped(dmabuf, offset, request) };
    }
}
