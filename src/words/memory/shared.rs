//! Memory that several regions share.

use std::fmt;
use std::sync::Arc;

use super::{Memory, Resting};

/// Memory to register several times, for example once on each adapter of a host, so that all of them reach
/// the same bytes.
///
/// Clones share the memory, and each region takes a clone. The memory is freed with the last one, so it stays
/// as long as any device may reach it.
///
/// This process reads its regions by copies, like all others, but cannot write them: writing borrows a region
/// exclusively, which would not exclude the other regions. Fill the memory before sharing it; afterwards
/// devices and peers write to it, as far as the access of each region allows.
///
/// ```no_run
/// use uverbs::{Access, mr::SharedMemory};
/// # fn register(adapters: &[uverbs::Pd]) -> uverbs::Result<()> {
/// let pages = SharedMemory::new(vec![0u8; 1 << 20]);
/// let mut regions = Vec::new();
/// for pd in adapters {
///     regions.push(pd.register(pages.clone(), Access::LOCAL_WRITE | Access::REMOTE_WRITE)?);
/// }
/// # Ok(()) }
/// ```
pub struct SharedMemory<M: Memory>(Arc<Inner<M>>);

struct Inner<M: Memory> {
    /// The first byte of `memory`.
    address: *mut u8,
    length: usize,
    memory: Resting<M>,
}

// SAFETY: the pointer is to `memory`, which may move to another thread. It is not dereferenced here.
unsafe impl<M: Memory> Send for Inner<M> {}
// SAFETY: shared references only give the numbers. Only the owner of the last clone accesses the memory.
unsafe impl<M: Memory> Sync for Inner<M> {}

impl<M: Memory> SharedMemory<M> {
    /// Takes memory to share.
    pub fn new(memory: M) -> Self {
        let (memory, (address, length)) = Resting::new(memory);
        Self(Arc::new(Inner {
            address,
            length,
            memory,
        }))
    }

    /// Returns the memory.
    ///
    /// # Errors
    ///
    /// Other clones exist, regions included; this one is returned.
    pub fn into_inner(self) -> Result<M, Self> {
        Arc::try_unwrap(self.0)
            .map(|inner| inner.memory.into_inner())
            .map_err(Self)
    }
}

impl<M: Memory> Clone for SharedMemory<M> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<M: Memory> fmt::Debug for SharedMemory<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedMemory")
            .field("address", &self.0.address)
            .field("length", &self.0.length)
            .finish()
    }
}

// SAFETY: the memory is at rest until the last clone is gone, so the pointer stays valid. No clone gives a
// reference to the memory, so no aliasing rule is broken. Its regions are read by copies, and, as it is not
// `WritableMemory`, nothing is written through them.
unsafe impl<M: Memory> Memory for SharedMemory<M> {
    const WRITABLE: bool = M::WRITABLE;

    fn address(&mut self) -> *mut u8 {
        self.0.address
    }

    fn length(&self) -> usize {
        self.0.length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_are_the_same_memory() {
        let mut one = SharedMemory::new(vec![7u8; 300]);
        let mut two = one.clone();
        assert_eq!((one.address(), one.length()), (two.address(), 300));
        let one = one.into_inner().unwrap_err();
        drop(two);
        assert_eq!(one.into_inner().unwrap(), [7; 300]);
    }

    #[test]
    fn the_last_clone_frees_it() {
        // Miri and the address sanitizer would report a leak or a double free.
        let one = SharedMemory::new(vec![1u64, 2]);
        let other = one.clone();
        drop(one);
        std::thread::spawn(move || drop(other)).join().unwrap();
    }
}
