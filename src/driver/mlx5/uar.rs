//! Which queue pair rings at which doorbell register.
//!
//! The first queue pairs of a context get registers of their own. The others share some, and each gets the
//! one with the fewest users. Only a queue pair's send half rings the queue pair's own register, so there is
//! no lock. The queue pairs of a thread domain share its register, and the posting thread has the domain to
//! itself: no lock either. A register that queue pairs share otherwise has a lock
//! ([`Turn`](super::turn::Turn)) for all stores to it: the CPU may merge 8 bytes of one request with the copy
//! of another, and the device would execute the result. Registers in the uncached UAR need no lock: single
//! stores are atomic.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use uverbs_uapi::mlx5::UarAllocType;

use super::copy::stores_at_once;
use super::format::{BLOCK, SEND_DOORBELL};
use super::page::{UAR, UarPage};
use super::register::Register;
use crate::command::CommandFd;
use crate::error::Result;

/// BlueFlame registers in a UAR of 4 KiB.
const PER_UAR: usize = 2;
/// So many registers, and UARs for them, are allocated to give queue pairs without a thread domain one of
/// their own.
const DEDICATED: usize = 16;
/// The number of registers that further queue pairs share. libmlx5 has as many by default.
const SHARED: usize = 12;

/// The BlueFlame registers of a context.
#[derive(Debug)]
pub(super) struct Registers {
    /// Bytes of a register; 0 if the device has none.
    size: usize,
    /// The CPU can store a block at once.
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
    /// The registers that queue pairs share, as long as some queue pair does.
    shared: Vec<Weak<Lease>>,
}

impl Pool {
    /// How many registers are shared.
    fn sharable(&mut self) -> usize {
        self.shared.retain(|lease| lease.strong_count() > 0);
        self.shared.len()
    }

    /// The shared registers.
    fn shared(&self) -> Vec<Arc<Lease>> {
        self.shared.iter().filter_map(Weak::upgrade).collect()
    }
}

/// The users of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Users {
    /// One queue pair.
    One,
    /// The queue pairs of a thread domain.
    Domain,
    /// Several queue pairs, by turns.
    Several,
    /// One queue pair. No other has a register of the page, so an agent that gets the page reaches no other
    /// queue pair by it.
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

    /// The use of a page that no other queue pair has. One of its registers is used, without copies.
    pub(super) fn of_page(page: UarPage) -> Self {
        Self {
            register: Arc::new(Register::new(&Arc::new(page), (0, 0), 0, false)),
            registers: None,
            users: Users::OneOfPage,
        }
    }

    /// The use of a register that no other queue pair has, on a CPU that can store a block at once or not.
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

    /// Whether no other queue pair has a register of the page.
    pub(super) fn has_page(&self) -> bool {
        self.users == Users::OneOfPage
    }

    /// Whether other queue pairs may use the register while one posts.
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

    /// Whether requests are copied to registers: otherwise there are no registers.
    #[cfg(feature = "c-abi")]
    pub(super) fn copy(&self) -> bool {
        self.size > 0
    }

    /// A register for a queue pair; `None` if the device has none.
    pub(super) fn for_queue_pair(self: &Arc<Self>, fd: &Arc<CommandFd>) -> Option<Arc<Lease>> {
        self.for_queue_pair_by(|| UarPage::new(fd, UarAllocType::BF))
    }

    fn for_queue_pair_by(
        self: &Arc<Self>,
        page: impl Fn() -> Result<UarPage>,
    ) -> Option<Arc<Lease>> {
        if self.size == 0 {
            return None;
        }
        // If there is no further page, a queue pair shares a register, whatever the reason.
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
        // The one with the fewest users. Without the lock: if their users have gone by now, the others go
        // here, and a lease that goes takes the lock.
        let shared = self.lock().shared();
        shared.into_iter().min_by_key(Arc::strong_count)
    }

    /// A register for a thread domain; `None` if the device has no BlueFlame.
    pub(super) fn for_thread_domain(
        self: &Arc<Self>,
        fd: &Arc<CommandFd>,
    ) -> Result<Option<Lease>> {
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

    /// `registers`, rounded up to what whole pages hold.
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
        let others = (1..self.uars.min(page.uars()) * PER_UAR).map(new);
        // From the back, where the next is taken.
        self.lock().free.extend(others.rev());
        Ok(new(0))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::HashMap;
    use std::sync::mpsc;
    use std::time::Duration;
    use std::{mem, thread};

    use super::*;
    use crate::error::{Error, Subject, Verb};

    fn no_page() -> Error {
        Error::unsupported(Verb::AllocUar, Subject::the("UAR"), "another")
    }

    /// The registers of `queue_pairs` queue pairs, as long as `pages` pages of `uars` UARs last.
    fn registers(pages: usize, uars: u32, queue_pairs: usize) -> Vec<Arc<Lease>> {
        let registers = Arc::new(Registers::new(512, uars));
        let left = Cell::new(pages);
        let page = || {
            left.set(left.get().checked_sub(1).ok_or_else(no_page)?);
            Ok(UarPage::of_uars(uars as usize))
        };
        (0..queue_pairs)
            .map_while(|_| registers.for_queue_pair_by(page))
            .collect()
    }

    /// Where the register begins that nobody has used yet.
    fn place(lease: &Lease) -> usize {
        lease.register().begins_at()
    }

    /// Would catch a queue pair without a register, two that have the same one without a lock, and a single
    /// register that all share.
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

    /// Would catch a queue pair that gets no register although some can be shared.
    #[test]
    fn where_pages_run_out_registers_are_shared() {
        let leases = registers(9, 1, 40);
        assert_eq!(leases.len(), 40);
        assert_eq!(leases.iter().filter(|lease| lease.is_shared()).count(), 24);
        // None that can be shared is left: all have one user, which stores there without a lock.
        assert_eq!(registers(8, 1, 40).len(), 16);
        assert!(registers(0, 1, 1).is_empty());
    }

    /// Would catch registers of a large page that are left unused, and queue pairs whose UAR is not the one
    /// that the kernel was given.
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

    /// Would catch a thread that waits for itself: a register's last user goes while another looks for the
    /// register with the fewest users, and so has it for a moment.
    #[test]
    fn users_that_go_and_come_do_not_wait_for_each_other() {
        const TURNS: usize = if cfg!(miri) { 100 } else { 100_000 };
        // 16 have a register of their own. Six registers are left, which others share.
        let mut alone = registers(11, 1, 22);
        alone.truncate(16);
        let registers = alone[0].registers.as_ref().unwrap();
        let (done, all_done) = mpsc::channel();
        let threads = [(); 6].map(|()| {
            let (registers, done) = (Arc::clone(registers), done.clone());
            thread::spawn(move || {
                let mut held = None;
                for _ in 0..TURNS {
                    let next = registers.for_queue_pair_by(|| Err(no_page()));
                    drop(mem::replace(&mut held, next));
                }
                done.send(()).unwrap();
            })
        });
        for thread in threads {
            all_done.recv_timeout(Duration::from_secs(60)).unwrap();
            thread.join().unwrap();
        }
    }
}
