//! Memory that several regions have at a time.

use std::fmt;
use std::sync::Arc;

use super::{Memory, Resting};

/// Memory to be registered several times: on each adapter of a host, so that all of them reach the same
/// bytes.
///
/// Every clone is the same memory, and each region takes one. The memory is freed with the last of them, so
/// it stays as long as any device may reach it.
///
/// Regions of it are read by copies, like all others. Nothing here writes to it: regions exclude each other's
/// writers by an exclusive borrow, and here there are several. What this side has to fill it fills before it
/// shares the memory; afterwards devices and peers write, as far as each region lets them.
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

// SAFETY: the pointer is to the memory beside it, which may change threads. Nobody uses it here.
unsafe impl<M: Memory> Send for Inner<M> {}
// SAFETY: shared references give the numbers only. The memory is looked at by who has the last clone of it.
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

    /// Gives the memory back.
    ///
    /// # Errors
    ///
    /// There are other clones, regions among them: this one is given back.
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

// SAFETY: the memory is at rest until the last clone is gone, so the pointer stays as good as it was. No
// clone gives a reference to it, so nobody's aliasing rules are broken. Who has several regions of it reads
// by copies and, as it is not `WritableMemory`, writes nothing by them.
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
        // Miri and the address sanitizer would tell of a leak or of a second free.
        let one = SharedMemory::new(vec![1u64, 2]);
        let other = one.clone();
        drop(one);
        std::thread::spawn(move || drop(other)).join().unwrap();
    }
}
