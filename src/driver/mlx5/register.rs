//! Doorbell registers.
//!
//! Any page (UAR) has registers that take a store of 8 bytes. A *BlueFlame register* is better: a place in a
//! write-combining page into which a whole small request is copied, so that the device need not fetch it. It
//! has two halves that are used in turn, since the device may still read one while the next request is
//! written. [`super::uar`] decides which queue pair uses which register.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use uverbs_queue::handover::{File, Kind, Piece};

use super::barrier;
use super::copy::copy_blocks;
use super::format::{BLOCK, SEND_DOORBELL};
use super::page::{UAR, UarPage};
#[cfg(all(feature = "c-abi", feature = "mlx5-direct"))]
use super::place::RegisterPlace;
use super::turn::{Mine, Turn};

/// A send doorbell register.
#[derive(Debug)]
pub(super) struct Register {
    /// Where the next half begins. Relaxed throughout: it belongs to the thread that has the register
    /// exclusively, always or by taking its turn.
    next: AtomicPtr<u8>,
    /// Bytes of a half: a power of two, the bit in which the addresses of the two halves differ. 0 if the
    /// register takes no copies.
    half: usize,
    /// Blocks of a half.
    most_blocks: u32,
    /// The CPU can store a block at once.
    at_once: bool,
    page: Arc<UarPage>,
    page_id: u32,
    /// The lock for queue pairs that share it, if the CPU may combine their stores.
    turn: Turn,
}

impl Register {
    /// The register with index `index` in the UAR with index `uar` of the page.
    ///
    /// # Panics
    ///
    /// If it does not lie in the page.
    pub(super) fn new(
        page: &Arc<UarPage>,
        (uar, index): (usize, usize),
        size: usize,
        at_once: bool,
    ) -> Self {
        let offset = uar * UAR + SEND_DOORBELL + index * size;
        assert!(offset + size.max(size_of::<u64>()) <= page.length);
        // SAFETY: the register lies in the page, as was just asserted.
        let at = unsafe { page.map.base().add(offset) };
        Self {
            next: AtomicPtr::new(at.as_ptr()),
            half: size / 2,
            most_blocks: (size / 2 / BLOCK) as u32,
            at_once,
            page: Arc::clone(page),
            page_id: page.page_id + uar as u32,
            turn: Turn::new(),
        }
    }

    /// The page that it lies in.
    pub(super) fn page(&self) -> &Arc<UarPage> {
        &self.page
    }

    /// The UAR that it lies in.
    pub(super) fn page_id(&self) -> u32 {
        self.page_id
    }

    /// The register as a piece of the command file, and where it is mapped here. It must have no halves.
    pub(super) fn piece(&self) -> (Piece, NonNull<u8>) {
        debug_assert!(self.half == 0);
        let base = self.page.map.base();
        let next = self.next.load(Ordering::Relaxed);
        let start = next.addr() - base.addr().get();
        let piece = Piece {
            offset: self.page.offset + start as u64,
            length: size_of::<u64>() as u64,
            file: File::COMMAND,
            kind: match self.page.combines {
                true => Kind::COMBINING,
                false => Kind::UNCACHED,
            },
        };
        // SAFETY: the register lies in the page.
        (piece, unsafe { base.add(start) })
    }

    /// Where it lies, for a program that rings by itself.
    #[cfg(all(feature = "c-abi", feature = "mlx5-direct"))]
    pub(super) fn place(&self) -> RegisterPlace {
        let base = self.page.map.base();
        let next = self.next.load(Ordering::Relaxed);
        let start = (next.addr() & !self.half) - base.addr().get();
        RegisterPlace {
            // SAFETY: the register lies in the page, and its first half has the bit not set.
            first: unsafe { base.add(start) },
            half: self.half as u32,
            page_offset: self.page.offset,
        }
    }

    /// Where the next half begins. The record is written before what is stored there.
    #[inline(always)]
    fn next(&self) -> NonNull<u8> {
        let next = self.next.load(Ordering::Relaxed);
        barrier::record_before_register();
        // SAFETY: neither half lies at address 0.
        unsafe { NonNull::new_unchecked(next) }
    }

    /// Flushes what was stored there, and moves on to the other half.
    #[inline(always)]
    fn flush(&self, half: NonNull<u8>) {
        let other = half.as_ptr().map_addr(|half| half ^ self.half);
        self.next.store(other, Ordering::Relaxed);
        barrier::flush_write_combining();
    }

    /// Rings with the first 8 bytes of the last request.
    ///
    /// # Safety
    ///
    /// No other thread uses the register meanwhile, or it is uncached: that takes single stores, in any
    /// order.
    #[inline(always)]
    pub(super) unsafe fn ring(&self, first: u64) {
        let next = self.next();
        // SAFETY: a half begins there, so the 8 bytes lie in the register; a single store to it is whole.
        unsafe { next.cast::<u64>().write_volatile(first) };
        self.flush(next);
    }

    /// The most blocks of a copy; 0 if the register takes no copies.
    #[inline(always)]
    pub(super) fn most_blocks(&self) -> u32 {
        self.most_blocks
    }

    /// Rings by copying a whole request.
    ///
    /// A request that is only a control segment, as a send of nothing is, is copied too. For it libmlx5 rings
    /// with the first 8 bytes. UCX copies its NOPs, which are no longer (`uct_ib_mlx5_post_send`), so
    /// adapters accept it.
    ///
    /// # Safety
    /// No other thread uses the register meanwhile, or it is uncached. At `request` there are `blocks`
    /// blocks, at least one and at most [`most_blocks`](Self::most_blocks), all readable and aligned to a
    /// block.
    #[inline(always)]
    pub(super) unsafe fn copy(&self, request: NonNull<u8>, blocks: u32) {
        let half = self.next();
        // SAFETY: by this function's contract; a half begins there, and it has room for the blocks.
        unsafe { copy_blocks(request, half, blocks as usize, self.at_once) };
        self.flush(half);
    }

    /// Takes the turn at a register that queue pairs share; `None` if it needs none.
    pub(super) fn turn(&self) -> Option<Mine<'_>> {
        self.page.combines.then(|| self.turn.take())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;
    use std::time::Duration;

    use super::super::uar::Lease;
    use super::*;

    impl Register {
        /// Where it begins, if nobody has used it.
        pub(in super::super) fn begins_at(&self) -> usize {
            self.next.load(Ordering::Relaxed).addr()
        }
    }

    /// Would catch a thread that stores to a shared register while another is copying there.
    #[test]
    fn a_shared_register_is_rung_by_turns() {
        let page = Arc::new(UarPage::of_memory());
        let shared = Lease::alone(&page, 512, false);
        let done = AtomicBool::new(false);
        let turn = shared.register().turn.take();
        thread::scope(|scope| {
            scope.spawn(|| {
                let register = shared.register();
                let _turn = register.turn();
                // SAFETY: it is our turn.
                unsafe { register.ring(u64::MAX) };
                done.store(true, Ordering::Release);
            });
            thread::sleep(Duration::from_millis(50));
            assert!(!done.load(Ordering::Acquire));
            assert_eq!(page.stored::<8>(SEND_DOORBELL), [0; 8]);
            drop(turn);
        });
        assert_eq!(page.stored::<8>(SEND_DOORBELL), [0xff; 8]);
        // Where nothing is combined nobody waits.
        let mut uncached = UarPage::of_memory();
        uncached.combines = false;
        let common = Lease::common(&Arc::new(uncached));
        let _turn = common.register().turn.take();
        assert!(common.register().turn().is_none());
    }
}
