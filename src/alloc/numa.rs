//! Buffers in the memory of one NUMA node, such as the one that the device is attached to.

use std::io;
use std::ptr::NonNull;

use rustix::mm::MapFlags;
use rustix::param::page_size;

use super::mapping::Mapping;
use super::pool::Pool;
use super::{AllocError, Allocation, Allocator, BufferRequest};

/// An allocator whose buffers lie in the memory of one NUMA node and nowhere else (mbind(2) with
/// `MPOL_BIND`).
///
/// For a [`Purpose::Place`](super::Purpose::Place) it answers [`Allocation::Default`]: the kernel provides
/// those pages and chooses their node. So on rxe it has no effect.
///
/// ```
/// use uverbs::{alloc::NumaMemory, ParentDomain, Pd};
///
/// fn on_node(pd: &Pd, node: u32) -> Result<ParentDomain, Box<dyn std::error::Error>> {
///     Ok(pd.parent_domain().allocator(NumaMemory::new(node)?).create()?)
/// }
///
/// assert!(NumaMemory::new(9999).is_err());
/// ```
#[derive(Debug)]
pub struct NumaMemory {
    node: u32,
    pool: Pool,
}

/// Bytes that are mapped at a time.
const CHUNK: usize = 256 << 10;

/// Nodes in a mask: more than any kernel is built for (`CONFIG_NODES_SHIFT` is 10 at most).
const MAX_NODES: usize = 1024;

impl NumaMemory {
    /// An allocator of the memory of a node, by its number in `/sys/devices/system/node`.
    ///
    /// # Errors
    ///
    /// There is no such node or it has no memory (`InvalidInput`), or the kernel has no NUMA (`Unsupported`).
    pub fn new(node: u32) -> io::Result<Self> {
        let this = Self {
            node,
            pool: Pool::default(),
        };
        // Binds a page now, so that an error is reported here and not when an object is created.
        this.map(1)?;
        Ok(this)
    }

    /// The node.
    pub fn node(&self) -> u32 {
        self.node
    }

    fn map(&self, needed: usize) -> io::Result<Mapping> {
        let bytes = needed.checked_next_multiple_of(CHUNK);
        let mapping = Mapping::shared(bytes.ok_or(io::ErrorKind::OutOfMemory)?, MapFlags::empty())?;
        bind(&mapping, self.node).map_err(|error| {
            let why = format!("binding memory to NUMA node {}: {error}", self.node);
            io::Error::new(error.kind(), why)
        })?;
        Ok(mapping)
    }
}

/// Makes all pages of a mapping come from a node.
///
/// With `libc`: rustix has no mbind(2).
fn bind(mapping: &Mapping, node: u32) -> io::Result<()> {
    const BITS: usize = libc::c_ulong::BITS as usize;
    let mut mask = [0 as libc::c_ulong; MAX_NODES / BITS];
    let word = mask
        .get_mut(node as usize / BITS)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "there are no such nodes"))?;
    *word = 1 << (node as usize % BITS);
    // SAFETY: the range is a mapping of this process that has no pages yet, the mask has the length that is
    // passed (the kernel counts one bit less), and both are only read.
    let status = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            mapping.base().as_ptr(),
            mapping.length(),
            libc::MPOL_BIND,
            mask.as_ptr(),
            MAX_NODES + 1,
            0 as libc::c_uint,
        )
    };
    if status == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

// SAFETY: the pool gives each byte to one buffer at a time, zeroed, from mappings that are shared at a fork
// and live as long as the allocator.
unsafe impl Allocator for NumaMemory {
    fn allocate(&self, request: &BufferRequest) -> Result<Allocation, AllocError> {
        self.pool
            .allocate(request, page_size(), |needed| self.map(needed))
    }

    unsafe fn free(&self, memory: NonNull<[u8]>, _: &BufferRequest) {
        // SAFETY: by this function's contract; all memory is the pool's.
        unsafe { self.pool.free(memory) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alloc::testing::{self, bytes, granted, memory, place};

    /// Node 0; `None` if the kernel has no NUMA, in which case a test can check nothing else.
    fn node_0() -> Option<NumaMemory> {
        match NumaMemory::new(0) {
            Ok(node) => Some(node),
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{error}");
                None
            }
        }
    }

    #[test]
    fn buffers_are_as_the_contract_says() {
        if let Some(node) = node_0() {
            testing::keeps_the_contract(&node);
        }
    }

    /// The kernel's own report on the buffer's page: `bind:0` in /proc/self/numa_maps.
    #[test]
    fn the_kernel_has_bound_the_pages() {
        let Some(node) = node_0() else { return };
        let buffer = granted(&node, &memory(4096, 4096));
        bytes(buffer).fill(1);
        let chunk = format!("{:x} bind:0 ", buffer.cast::<u8>().addr().get());
        let maps = std::fs::read_to_string("/proc/self/numa_maps").unwrap();
        assert!(
            maps.lines().any(|line| line.starts_with(&chunk)),
            "{chunk} in {maps}"
        );
    }

    #[test]
    fn places_are_not_its_business_and_strange_nodes_are_refused() {
        if let Some(node) = node_0() {
            assert_eq!(node.allocate(&place(4096)), Ok(Allocation::Default));
            assert_eq!(
                NumaMemory::new(900).unwrap_err().kind(),
                io::ErrorKind::InvalidInput
            );
        }
        assert!(NumaMemory::new(u32::MAX).is_err());
    }
}
