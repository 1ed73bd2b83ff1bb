//! The locks of queues: C programs may post and poll from any thread.
//!
//! A lock is one word, on which a thread spins for a while and then sleeps. Some calls return with the lock
//! held (`ibv_wr_start`, `ibv_start_poll`), so a lock can also be acquired and released without a guard.
//! Where libibverbs allows only one thread for a queue, such as in a thread domain for one thread, the lock
//! does nothing.

use std::cell::UnsafeCell;
use std::hint::spin_loop;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};

use rustix::thread::futex;

const FREE: u32 = 0;
/// A thread has the lock.
const HELD: u32 = 1;
/// A thread has the lock, and others may sleep until it is free.
const AWAITED: u32 = 2;

/// How often to check the lock before sleeping: about as long as a post takes.
const SPINS: u32 = 100;

/// Whether a queue takes requests.
/// Relaxed throughout: a program that relies on a state orders its posts after the call that brought the
/// queue pair there. A post that overlaps a reset is in the queue before it, and is discarded, or finds the
/// gate shut: the one looks at the gate, and the other shuts it, under the queue's lock.
pub(super) struct Gate(AtomicBool);

impl Gate {
    pub(super) const fn new(is_shut: bool) -> Self {
        Self(AtomicBool::new(is_shut))
    }

    pub(super) fn is_shut(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn shut(&self, is_shut: bool) {
        self.0.store(is_shut, Ordering::Relaxed);
    }
}

/// The thread that holds a lock between two calls of the program, if there is one.
/// Relaxed throughout: a thread finds its own number only if it has written it and not removed it.
pub(super) struct Owner(AtomicUsize);

impl Owner {
    pub(super) const fn new() -> Self {
        Self(AtomicUsize::new(0))
    }

    /// Notes this thread, which has acquired the lock.
    #[inline(always)]
    pub(super) fn begin(&self) {
        self.0.store(this_thread(), Ordering::Relaxed);
    }

    /// Notes that this thread releases the lock.
    #[inline(always)]
    pub(super) fn end(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Whether it is this thread.
    pub(super) fn is_this_thread(&self) -> bool {
        self.0.load(Ordering::Relaxed) == this_thread()
    }
}

/// A number that belongs to this thread while it runs, and is never 0: the address of its control block,
/// which one instruction reads.
#[cfg(all(target_arch = "x86_64", target_pointer_width = "64", not(miri)))]
#[inline(always)]
fn this_thread() -> usize {
    let address;
    // SAFETY: the first word of the block is its own address (System V ABI, thread-local storage).
    unsafe {
        std::arch::asm!(
            "mov {}, fs:0",
            out(reg) address,
            options(nostack, preserves_flags, pure, readonly),
        );
    }
    address
}

/// A number that belongs to this thread while it runs, and is never 0: the address of a thread-local
/// variable.
#[cfg(not(all(target_arch = "x86_64", target_pointer_width = "64", not(miri))))]
fn this_thread() -> usize {
    thread_local!(static OWN: u8 = const { 0 });
    OWN.with(|own| std::ptr::from_ref(own).addr())
}

/// A value with its lock, on cache lines of its own.
#[repr(align(64))]
pub(super) struct Locked<T> {
    word: AtomicU32,
    /// Only one thread at a time uses the value anyway.
    skipped: bool,
    value: UnsafeCell<T>,
}

// SAFETY: only the thread that holds the lock has the value; if the lock is skipped, the program guarantees
// that only one thread uses it.
unsafe impl<T: Send> Sync for Locked<T> {}

impl<T> Locked<T> {
    pub(super) const fn new(value: T, skipped: bool) -> Self {
        Self {
            word: AtomicU32::new(FREE),
            skipped,
            value: UnsafeCell::new(value),
        }
    }

    /// The value, until the guard is dropped.
    #[inline(always)]
    pub(super) fn lock(&self) -> Guard<'_, T> {
        self.acquire();
        Guard(self)
    }

    /// Acquires the lock; [`Self::release`] releases it.
    #[inline(always)]
    pub(super) fn acquire(&self) {
        if !self.acquire_at_once() {
            self.acquire_slowly();
        }
    }

    /// Like [`Self::acquire`], if it is known at compile time whether the lock is `SKIPPED`.
    #[inline(always)]
    pub(super) fn acquire_known<const SKIPPED: bool>(&self) {
        debug_assert_eq!(SKIPPED, self.skipped);
        if !SKIPPED && !self.take() {
            self.acquire_slowly();
        }
    }

    /// Acquires the lock if no other thread has it; false if one does.
    #[inline(always)]
    pub(super) fn acquire_at_once(&self) -> bool {
        self.skipped || self.take()
    }

    #[inline(always)]
    fn take(&self) -> bool {
        // Acquire: pairs with the release in `give`. A single bit is set, which is one instruction on x86.
        self.word.fetch_or(HELD, Ordering::Acquire) & HELD == 0
    }

    /// Acquires the lock, which another thread has.
    #[cold]
    #[inline(never)]
    pub(super) fn acquire_slowly(&self) {
        for _ in 0..SPINS {
            spin_loop();
            // Acquire: as in `acquire`.
            if self.word.load(Ordering::Relaxed) & HELD == 0
                && self.word.fetch_or(HELD, Ordering::Acquire) & HELD == 0
            {
                return;
            }
        }
        let awaited = HELD | AWAITED;
        // Acquire: as in `acquire`. A thread that has slept sets the word to this value, so that the next
        // sleeper is woken too.
        while self.word.fetch_or(awaited, Ordering::Acquire) & HELD != 0 {
            // It returns early if the word has changed or a signal came; the loop then checks the word again.
            let _ = futex::wait(&self.word, futex::Flags::PRIVATE, awaited, None);
        }
    }

    /// The value, for the thread that holds the lock.
    ///
    /// # Safety
    ///
    /// The caller holds the lock as long as it uses the value, and has no other reference to the value.
    #[inline(always)]
    #[allow(clippy::mut_from_ref, reason = "the lock makes it exclusive")]
    pub(super) unsafe fn held(&self) -> &mut T {
        // SAFETY: by this function's contract.
        unsafe { &mut *self.value.get() }
    }

    /// Releases the lock.
    ///
    /// # Safety
    ///
    /// The caller has acquired it, and has no reference to the value any more.
    #[inline(always)]
    pub(super) unsafe fn release(&self) {
        // SAFETY: by this function's contract.
        if unsafe { !self.release_at_once() } {
            self.wake();
        }
    }

    /// Like [`Self::release`], if it is known at compile time whether the lock is `SKIPPED`.
    ///
    /// # Safety
    ///
    /// As for [`Self::release`].
    #[inline(always)]
    pub(super) unsafe fn release_known<const SKIPPED: bool>(&self) {
        if !SKIPPED && !self.give() {
            self.wake();
        }
    }

    /// Like [`Self::release`]; false if the caller must then [wake](Self::wake) other threads.
    ///
    /// # Safety
    ///
    /// As for [`Self::release`].
    #[inline(always)]
    pub(super) unsafe fn release_at_once(&self) -> bool {
        self.skipped || self.give()
    }

    #[inline(always)]
    fn give(&self) -> bool {
        // Release: pairs with the acquire of the thread that takes the lock next. That thread may destroy the
        // object, so the word is not accessed again.
        self.word.swap(FREE, Ordering::Release) == HELD
    }

    /// Wakes one of the threads that may sleep. That thread notes again that there may be more.
    #[cold]
    #[inline(never)]
    pub(super) fn wake(&self) {
        // Only the word's address is used: the word itself may be freed, and a thread that sleeps on another
        // word at this address checks it again. The call fails for no word of this process.
        let _ = futex::wake(&self.word, futex::Flags::PRIVATE, 1);
    }
}

/// A guard for the value of a lock that is held.
pub(super) struct Guard<'a, T>(&'a Locked<T>);

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock.
        unsafe { self.0.held() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock.
        unsafe { self.0.held() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: `lock` took it for this guard.
        unsafe { self.0.release() };
    }
}

/// How many threads are in [`wait_until`], for any word: nearly always none.
static WAITING: AtomicU32 = AtomicU32::new(0);

/// Waits until a word that other threads count up has this value.
pub(super) fn wait_until(word: &AtomicU32, value: u32) {
    WAITING.fetch_add(1, Ordering::Relaxed);
    // Either this thread sees the count below, or the counting thread sees this thread. Pairs with `count`.
    fence(Ordering::SeqCst);
    wait_for(word, value);
    WAITING.fetch_sub(1, Ordering::Relaxed);
}

fn wait_for(word: &AtomicU32, value: u32) {
    loop {
        // Acquire: what was done with an event happens before the object is destroyed. Pairs with `count`.
        let now = word.load(Ordering::Acquire);
        if now == value {
            return;
        }
        // As in `acquire_slowly`.
        let _ = futex::wait(word, futex::Flags::PRIVATE, now, None);
    }
}

/// Adds to a word, and wakes the threads that wait for it.
pub(super) fn count(word: &AtomicU32, by: u32) {
    // Release: pairs with `wait_until`.
    word.fetch_add(by, Ordering::Release);
    // Pairs with `wait_until`.
    fence(Ordering::SeqCst);
    if WAITING.load(Ordering::Relaxed) > 0 {
        let _ = futex::wake(word, futex::Flags::PRIVATE, i32::MAX as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_threads_count_under_a_lock() {
        let counter = Locked::new(0u64, false);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        *counter.lock() += 1;
                    }
                });
            }
        });
        assert_eq!(*counter.lock(), 40_000);
    }

    #[test]
    fn a_lock_is_held_across_calls() {
        let value = Locked::new(1, false);
        value.acquire();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| *value.lock());
            // SAFETY: it was taken above.
            unsafe {
                *value.held() = 2;
                value.release();
            }
            assert_eq!(other.join().unwrap(), 2);
        });
    }

    /// Would catch a thread that takes another's batch for its own, and one that waits forever for its own
    /// batch.
    #[test]
    fn a_batch_is_of_one_thread() {
        let batch = Owner::new();
        assert!(!batch.is_this_thread());
        batch.begin();
        assert!(batch.is_this_thread());
        std::thread::scope(|scope| {
            let other = scope.spawn(|| batch.is_this_thread());
            assert!(!other.join().unwrap());
        });
        batch.end();
        assert!(!batch.is_this_thread());
    }

    #[test]
    fn a_gate_is_shut_and_opened() {
        let gate = Gate::new(true);
        assert!(gate.is_shut());
        gate.shut(false);
        assert!(!gate.is_shut());
    }

    #[test]
    fn a_waiter_is_told_of_the_count() {
        let word = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| wait_until(&word, 3));
            count(&word, 1);
            count(&word, 2);
        });
    }
}
