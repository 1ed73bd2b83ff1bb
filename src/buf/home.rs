//! A handle on a block of a pool: the block goes back with the last one.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::chunk::Chunk;
use super::pool::Inner;
use crate::work::{LocalKey, PdTag, RemoteSlice};

/// The most handles on a block: half of what can be counted, so that the count does not wrap however many
/// threads clone at once. So many exist only if handles are forgotten ([`std::mem::forget`]).
const MOST_HANDLES: u32 = i32::MAX as u32;

/// A handle on a block.
#[derive(Debug)]
pub(super) struct Home {
    pool: Arc<Inner>,
    class: u32,
    block: u32,
    /// The key of its chunk on the pool's first protection domain.
    lkey: LocalKey,
    /// The bytes are [`Frozen`](super::Frozen).
    frozen: bool,
}

impl Home {
    /// The first handle on a block that has just been taken from the free ones, with its first byte and its
    /// length.
    #[inline]
    pub(super) fn new(
        pool: &Arc<Inner>,
        class: u32,
        block: u32,
    ) -> Option<(Self, NonNull<u8>, u32)> {
        let of = pool.class(class)?;
        let (chunk, index) = of.chunk(block)?;
        // Relaxed: there is no other handle, and the previous holder has given the number back.
        chunk.handles[index as usize].store(1, Ordering::Relaxed);
        let home = Self {
            pool: Arc::clone(pool),
            class,
            block,
            lkey: chunk.first_lkey(),
            frozen: false,
        };
        let size = of.size();
        // Pools have no blocks larger than a request takes.
        Some((home, chunk.block(index, size), size as u32))
    }

    #[inline]
    fn chunk(&self) -> Option<(&Chunk, u32)> {
        self.pool.class(self.class)?.chunk(self.block)
    }

    #[inline]
    fn handles(&self) -> Option<&AtomicU32> {
        let (chunk, index) = self.chunk()?;
        chunk.handles.get(index as usize)
    }

    /// Another handle on the same block.
    ///
    /// # Panics
    ///
    /// If there are [`MOST_HANDLES`].
    pub(super) fn share(&self) -> Self {
        if let Some(handles) = self.handles() {
            // Relaxed: this handle keeps the block, as with `Arc`.
            if handles.fetch_add(1, Ordering::Relaxed) >= MOST_HANDLES {
                handles.fetch_sub(1, Ordering::Relaxed);
                panic!("a buffer has more than {MOST_HANDLES} clones and parts");
            }
        }
        Self {
            pool: Arc::clone(&self.pool),
            ..*self
        }
    }

    /// Whether this is the only handle.
    #[inline]
    pub(super) fn is_alone(&self) -> bool {
        // Acquire: pairs with the release of other handles that were dropped, so that their accesses to the
        // block are complete.
        self.handles()
            .is_some_and(|handles| handles.load(Ordering::Acquire) == 1)
    }

    /// The key by which work requests on a protection domain name the block.
    #[inline]
    pub(super) fn lkey(&self, pd: PdTag) -> Option<LocalKey> {
        match self.pool.first_pd() == pd {
            true => Some(self.lkey),
            false => self.other_lkey(pd),
        }
    }

    /// Its key on a protection domain that is not the pool's first.
    #[cold]
    fn other_lkey(&self, pd: PdTag) -> Option<LocalKey> {
        self.chunk()?.0.lkey(pd)
    }

    /// Whether its bytes are immutable.
    pub(super) fn is_frozen(&self) -> bool {
        self.frozen
    }

    pub(super) fn set_frozen(&mut self, frozen: bool) {
        self.frozen = frozen;
    }

    /// A part of the block as peers address it, if they may reach it.
    pub(super) fn remote(
        &self,
        pd: PdTag,
        start: NonNull<u8>,
        length: usize,
    ) -> Option<RemoteSlice> {
        match self.pool.is_remote() {
            true => self.chunk()?.0.remote(pd, start, length),
            false => None,
        }
    }
}

impl Drop for Home {
    #[inline]
    fn drop(&mut self) {
        // Release: pairs with the acquire in `is_alone`, also in the thread that drops the last handle.
        let last = self.is_alone()
            || self
                .handles()
                .is_some_and(|handles| handles.fetch_sub(1, Ordering::AcqRel) == 1);
        if last {
            self.pool.give(self.class, self.block);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::buf::Pool;

    /// Would catch a count that wraps because clones are forgotten: one holder could then write to bytes that
    /// others still read, and the block could be given out again.
    #[test]
    fn handles_do_not_count_round() {
        let pool = Pool::of_memory(64, 1);
        let mut buf = pool.try_get(1).unwrap();
        let handles = || {
            let (chunk, index) = pool.first_class().chunk(0).unwrap();
            &chunk.handles[index as usize]
        };
        // As if all but one of the clones had been forgotten.
        handles().store(MOST_HANDLES - 1, Ordering::Relaxed);
        let frozen = buf.split_off(32).freeze();
        for _ in 0..3 {
            let cloned = catch_unwind(AssertUnwindSafe(|| frozen.clone()));
            assert!(cloned.is_err());
            assert!(catch_unwind(AssertUnwindSafe(|| buf.split_off(1))).is_err());
        }
        assert_eq!(handles().load(Ordering::Relaxed), MOST_HANDLES);
        assert_eq!(buf.capacity(), 32, "it has not been parted");
        drop(frozen);
        let frozen = buf.freeze();
        let frozen = frozen.try_into_buf().unwrap_err();
        drop(frozen.clone());
    }
}
