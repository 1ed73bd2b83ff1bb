//! UARs: pages of the device's registers, for doorbells.
//!
//! A context has one uncached UAR, for arming completion queues and for the doorbells of queue pairs without
//! a better register. A *BlueFlame register* is better: a place in a write-combining UAR into which a whole
//! small request is copied, so that the device need not fetch it. It has two halves that are used in turn,
//! since the device may still read one while the next request is written.
//!
//! The first queue pairs of a context get registers of their own, the others share some, each the one with
//! the fewest users. Only a queue pair's send half rings the queue pair's own register, so there is no lock.
//! The queue pairs of a thread domain share its register, and the posting thread has the domain to itself: no
//! lock either. A register that queue pairs share otherwise has a lock ([`Turn`]) for all stores to it: the
//! CPU may merge 8 bytes of one request with the copy of another, and the device would execute the result.
//! Registers in the uncached UAR need none: single stores are atomic.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::mm::ProtFlags;
use uverbs_queue::handover::{File, Kind, Piece};
use uverbs_uapi::mlx5::UarAllocType;

use super::barrier;
use super::command::AllocUar;
use super::copy::{copy_blocks, stores_at_once};
use super::format::{ARM_DOORBELL, BLOCK, SEND_DOORBELL};
use super::map::Map;
#[cfg(all(feature = "c-abi", feature = "mlx5-direct"))]
use super::place::RegisterPlace;
use super::turn::{Mine, Turn};
use crate::command::CommandFd;
use crate::error::{Error, Result, Subject, Verb};

/// BlueFlame registers in a UAR of 4 KiB.
const PER_UAR: usize = 2;
/// Bytes of a UAR.
const UAR: usize = 4096;
/// The number of registers that new UARs are allocated for so that a queue pair without a thread domain has
/// one of its own.
const DEDICATED: usize = 16;
/// The number of registers that further queue pairs share. libmlx5 has as many by default.
const SHARED: usize = 12;

/// A mapped UAR page. The kernel frees the UAR with the context.
#[derive(Debug)]
pub(super) struct UarPage {
    map: Map,
    length: usize,
    /// Where it begins in the command file, in bytes.
    offset: u64,
    page_id: u32,
    /// The CPU may combine stores to it, so that one of another thread that has run on the CPU would take the
    /// place of one that is not flushed yet.
    combines: bool,
    /// Whose turn it is to arm a queue, if it combines.
    turn: Turn,
}

impl UarPage {
    /// Allocates and maps a UAR page.
    pub(super) fn new(fd: &CommandFd, kind: UarAllocType) -> Result<Self> {
        let uar = fd.execute(&AllocUar { kind })?;
        let length = uar.length as usize;
        if length < UAR {
            let what = format!("a UAR of {length} bytes");
            return Err(Error::malformed(Verb::AllocUar, Subject::the("UAR"), what));
        }
        Ok(Self {
            map: Map::new(fd, "UAR", uar.offset, length, ProtFlags::WRITE)?,
            length,
            offset: uar.offset,
            page_id: uar.page_id,
            combines: kind != UarAllocType::NC,
            turn: Turn::new(),
        })
    }

    /// A page of memory that plays the device.
    #[cfg(test)]
    pub(super) fn of_memory() -> Self {
        Self::of_uars(1)
    }

    /// One of so many UARs.
    #[cfg(test)]
    fn of_uars(uars: usize) -> Self {
        Self {
            map: Map::of_memory(uars * UAR),
            length: uars * UAR,
            offset: 0,
            page_id: 5,
            combines: true,
            turn: Turn::new(),
        }
    }

    /// What was stored at an offset.
    #[cfg(test)]
    pub(super) fn stored<const BYTES: usize>(&self, at: usize) -> [u8; BYTES] {
        assert!(at + BYTES <= self.length);
        // SAFETY: the bytes lie in the page.
        unsafe {
            self.map
                .base()
                .add(at)
                .cast::<[u8; BYTES]>()
                .read_volatile()
        }
    }

    /// Its first byte.
    #[cfg(all(feature = "c-abi", feature = "mlx5-direct"))]
    pub(super) fn first(&self) -> NonNull<u8> {
        self.map.base()
    }

    /// The number that objects name it by.
    pub(super) fn page_id(&self) -> u32 {
        self.page_id
    }

    /// Arms a completion queue: stores the word of its record, and its number, both in the register's format.
    pub(super) fn arm(&self, word: u32, cqn: u32) {
        let doorbell = u64::from(word) << 32 | u64::from(cqn);
        let _turn = self.combines.then(|| self.turn.take());
        barrier::record_before_register();
        // SAFETY: the register lies in the page and is 8 bytes, aligned; a single store to it is whole.
        unsafe {
            self.map
                .base()
                .add(ARM_DOORBELL)
                .cast::<u64>()
                .write_volatile(doorbell.to_be());
        }
        barrier::flush_write_combining();
    }
}

/// A send doorbell register.
#[derive(Debug)]
pub(super) struct Register {
    /// Where the half begins that is next.
    /// Relaxed throughout: it belongs to the thread that has the register to itself, always or by taking its
    /// turn.
    next: AtomicPtr<u8>,
    /// Bytes of a half: a power of two, the bit in which the addresses of the two halves differ. 0 if the
    /// register takes no copies.
    half: usize,
    /// Blocks of a half.
    most_blocks: u32,
    /// The CPU stores a block at once.
    at_once: bool,
    page: Arc<UarPage>,
    page_id: u32,
    /// The lock for those that share it, if the CPU may combine their stores.
    turn: Turn,
}

impl Register {
    /// The register of that index in the UAR of that index in the page.
    ///
    /// # Panics
    ///
    /// If it does not lie in the page.
    fn new(page: &Arc<UarPage>, (uar, index): (usize, usize), size: usize, at_once: bool) -> Self {
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

    /// Where the next half begins; the record is written before what is stored there.
    #[inline(always)]
    fn next(&self) -> NonNull<u8> {
        let next = self.next.load(Ordering::Relaxed);
        barrier::record_before_register();
        // SAFETY: neither half lies at address 0.
        unsafe { NonNull::new_unchecked(next) }
    }

    /// Sends what was stored there, and goes on to the other half.
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
    /// Nobody else uses the register meanwhile, or it is uncached: that takes single stores, in any order.
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
    /// A request of a control segment alone, as a send of nothing is, is copied too. libmlx5 rings with the
    /// first 8 bytes for it; UCX copies its NOPs, which are no longer (`uct_ib_mlx5_post_send`), so adapters
    /// take it.
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

/// The BlueFlame registers of a context.
#[derive(Debug)]
pub(super) struct Registers {
    /// Bytes of a register; 0 if there are none.
    size: usize,
    /// The CPU stores a block at once.
    at_once: bool,
    /// UARs in a page.
    uars: usize,
    pool: Mutex<Pool>,
}

#[derive(Debug, Default)]
struct Pool {
    free: Vec<Arc<Register>>,
    /// Registers of queue pairs that have one of their own without a thread domain.
    dedicated: usize,
    /// Those that queue pairs share, while some queue pair does.
    shared: Vec<Weak<Lease>>,
}

impl Pool {
    /// How many registers are shared.
    fn sharable(&mut self) -> usize {
        self.shared.retain(|lease| lease.strong_count() > 0);
        self.shared.len()
    }

    /// The shared register with the fewest users.
    fn least_shared(&self) -> Option<Arc<Lease>> {
        let in_use = self.shared.iter().filter_map(Weak::upgrade);
        in_use.min_by_key(Arc::strong_count)
    }
}

/// Who uses a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Users {
    /// One queue pair.
    One,
    /// The queue pairs of a thread domain.
    Domain,
    /// Several queue pairs, by turns.
    Several,
    /// One queue pair, and nobody has another register of the page: whoever is given the page reaches no
    /// other queue pair by it.
    OneOfPage,
}

/// The use of a register; dropping it returns the register.
#[derive(Debug)]
pub(crate) struct Lease {
    register: Arc<Register>,
    /// The pool that it returns to; `None` for the common register, which takes no copies.
    registers: Option<Arc<Registers>>,
    users: Users,
}

impl Lease {
    /// The use of the common register.
    pub(super) fn common(page: &Arc<UarPage>) -> Self {
        Self {
            register: Arc::new(Register::new(page, (0, 0), 0, false)),
            registers: None,
            users: Users::Several,
        }
    }

    /// The use of a page that nobody else has, of which one register is used, without copies.
    pub(super) fn of_page(page: UarPage) -> Self {
        Self {
            register: Arc::new(Register::new(&Arc::new(page), (0, 0), 0, false)),
            registers: None,
            users: Users::OneOfPage,
        }
    }

    /// The use of a register that nobody else has, and to which requests are copied at once or not.
    #[cfg(test)]
    pub(super) fn alone(page: &Arc<UarPage>, size: usize, at_once: bool) -> Self {
        Self {
            register: Arc::new(Register::new(page, (0, 0), size, at_once)),
            registers: None,
            users: Users::One,
        }
    }

    /// The register.
    pub(super) fn register(&self) -> &Arc<Register> {
        &self.register
    }

    /// Whether nobody else has a register of the page.
    pub(super) fn has_page(&self) -> bool {
        self.users == Users::OneOfPage
    }

    /// Whether others may use the register while somebody posts.
    pub(super) fn is_shared(&self) -> bool {
        self.users == Users::Several
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(registers) = &self.registers else {
            return;
        };
        let mut pool = registers.lock();
        pool.free.push(Arc::clone(&self.register));
        if self.users == Users::One {
            pool.dedicated -= 1;
        }
    }
}

impl Registers {
    /// Registers of `size` bytes, created on demand in pages of `uars` UARs; none if the size is 0.
    pub(super) fn new(size: u32, uars: u32) -> Self {
        let size = size as usize;
        let fits = SEND_DOORBELL + PER_UAR * size <= UAR;
        // A power of two, so that the halves begin at addresses that differ in one bit, and blocks fill them.
        let usable = fits && size.is_power_of_two() && size >= 2 * BLOCK;
        let size = if usable { size } else { 0 };
        Self {
            size,
            at_once: size > 0 && stores_at_once(),
            uars: uars.max(1) as usize,
            pool: Mutex::default(),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Pool> {
        // The pool is consistent after every statement, so a panic elsewhere did no harm.
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether requests are copied to them: otherwise there are none.
    #[cfg(feature = "c-abi")]
    pub(super) fn copy(&self) -> bool {
        self.size > 0
    }

    /// A register for a queue pair; `None` if there is none at all.
    pub(super) fn for_queue_pair(self: &Arc<Self>, fd: &CommandFd) -> Option<Arc<Lease>> {
        self.for_queue_pair_by(|| UarPage::new(fd, UarAllocType::BF))
    }

    fn for_queue_pair_by(
        self: &Arc<Self>,
        page: impl Fn() -> Result<UarPage>,
    ) -> Option<Arc<Lease>> {
        if self.size == 0 {
            return None;
        }
        // If there is no further page a queue pair shares a register, so the reason does not matter.
        if self.lock().dedicated < self.whole_pages(DEDICATED)
            && let Ok(register) = self.register(&page)
        {
            self.lock().dedicated += 1;
            return Some(Arc::new(self.lease(register, Users::One)));
        }
        if self.lock().sharable() < self.whole_pages(SHARED)
            && let Ok(register) = self.register(&page)
        {
            let lease = Arc::new(self.lease(register, Users::Several));
            self.lock().shared.push(Arc::downgrade(&lease));
            return Some(lease);
        }
        self.lock().least_shared()
    }

    /// A register for a thread domain; `None` if the device has no BlueFlame.
    pub(super) fn for_thread_domain(self: &Arc<Self>, fd: &CommandFd) -> Result<Option<Lease>> {
        if self.size == 0 {
            return Ok(None);
        }
        match self.register(|| UarPage::new(fd, UarAllocType::BF)) {
            Ok(register) => Ok(Some(self.lease(register, Users::Domain))),
            // The kernel has found that write combining does not work here.
            Err(error) if error.is_unsupported() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn lease(self: &Arc<Self>, register: Arc<Register>, users: Users) -> Lease {
        Lease {
            register,
            registers: Some(Arc::clone(self)),
            users,
        }
    }

    /// The number of registers in whole pages that has at least so many.
    fn whole_pages(&self, registers: usize) -> usize {
        registers.next_multiple_of(self.uars * PER_UAR)
    }

    /// A register that nobody uses: an idle one, or the first of a new page.
    fn register(&self, page: impl FnOnce() -> Result<UarPage>) -> Result<Arc<Register>> {
        if let Some(idle) = self.lock().free.pop() {
            return Ok(idle);
        }
        let page = Arc::new(page()?);
        let at = |index| (index / PER_UAR, index % PER_UAR);
        let new = |index| Arc::new(Register::new(&page, at(index), self.size, self.at_once));
        let others = (1..self.uars.min(page.length / UAR) * PER_UAR).map(new);
        // From the back, where the next is taken.
        self.lock().free.extend(others.rev());
        Ok(new(0))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::HashMap;
    use std::sync::atomic::AtomicBool;
    use std::thread;
    use std::time::Duration;

    use super::*;

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

    /// The registers of so many queue pairs, as long as `pages` of so many UARs last.
    fn registers(pages: usize, uars: u32, queue_pairs: usize) -> Vec<Arc<Lease>> {
        let registers = Arc::new(Registers::new(512, uars));
        let left = Cell::new(pages);
        let page = || {
            let lacks = || Error::unsupported(Verb::AllocUar, Subject::the("UAR"), "another");
            left.set(left.get().checked_sub(1).ok_or_else(lacks)?);
            Ok(UarPage::of_uars(uars as usize))
        };
        (0..queue_pairs)
            .map_while(|_| registers.for_queue_pair_by(page))
            .collect()
    }

    /// Where a register begins that nobody has used.
    fn place(lease: &Lease) -> usize {
        lease.register().next.load(Ordering::Relaxed).addr()
    }

    /// Would catch a queue pair without a register, two that have the same without a lock, and one register
    /// that all share.
    #[test]
    fn all_queue_pairs_have_a_register() {
        let leases = registers(usize::MAX, 1, 40);
        assert_eq!(leases.len(), 40);
        let is_shared = |lease: &Arc<Lease>| lease.is_shared();
        assert!(!leases[..16].iter().any(is_shared) && leases[16..].iter().all(is_shared));
        let mut places: HashMap<usize, usize> = HashMap::new();
        for lease in &leases {
            *places.entry(place(lease)).or_default() += 1;
        }
        let mut users: Vec<usize> = places.into_values().collect();
        users.sort_unstable();
        assert_eq!(users, [[1; 16], [2; 16]].concat()[..28]);
    }

    /// Would catch a queue pair that gets nothing where registers can be shared.
    #[test]
    fn where_pages_run_out_registers_are_shared() {
        let leases = registers(9, 1, 40);
        assert_eq!(leases.len(), 40);
        assert_eq!(leases.iter().filter(|lease| lease.is_shared()).count(), 24);
        // None that can be shared is left, for all have one user that stores there without a lock.
        assert_eq!(registers(8, 1, 40).len(), 16);
        assert!(registers(0, 1, 1).is_empty());
    }

    /// Would catch registers of a large page that are left unused, and queue pairs whose doorbells the kernel
    /// is told to be in another UAR than they are.
    #[test]
    fn all_uars_of_a_page_are_used() {
        for uars in [4, 16] {
            let per_page = uars as usize * PER_UAR;
            let leases = registers(1, uars, 100);
            let dedicated = DEDICATED.next_multiple_of(per_page).min(per_page);
            assert_eq!(leases.len(), dedicated, "{uars}");
            let base = place(&leases[0]);
            for (index, lease) in leases.iter().enumerate() {
                let (uar, within) = (index / PER_UAR, index % PER_UAR);
                let register = lease.register();
                assert_eq!(register.page_id(), 5 + uar as u32);
                assert_eq!(place(lease) - base, uar * UAR + within * 512);
            }
        }
    }

    /// Would catch a register that is not used again, or is given out twice.
    #[test]
    fn registers_come_back() {
        let registers = Arc::new(Registers::new(512, 1));
        let next = || registers.for_queue_pair_by(|| Ok(UarPage::of_memory()));
        let mut leases: Vec<_> = (0..30).map_while(|_| next()).collect();
        let third = place(&leases[3]);
        leases.remove(3);
        let again = next().unwrap();
        assert_eq!((place(&again), again.is_shared()), (third, false));
        // The last user of a shared register gives it back too.
        let shared = leases.split_off(15);
        let before = registers.lock().sharable();
        drop(shared);
        let after = registers.lock().sharable();
        assert_eq!((before, after, registers.lock().free.len()), (12, 0, 12));
    }
}
