//! The lock of the pump: one word, which is set and cleared when no other thread wants it.
//! Unlike the standard library's it is not poisoned by panics: nothing that runs under it can panic half-way.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

use super::sync::{AtomicU32, Condvar, Mutex, Ordering};

const FREE: u32 = 0;
/// A thread has the lock.
const HELD: u32 = 1;
/// A thread has it, and others may sleep until it is free.
const AWAITED: u32 = 2;

/// A value with its lock.
pub(super) struct Lock<T> {
    word: AtomicU32,
    /// Held by a thread that is about to sleep, and by one that wakes others.
    sleep: Mutex<()>,
    freed: Condvar,
    value: UnsafeCell<T>,
}

// SAFETY: the thread that holds the lock has the value to itself.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub(super) fn new(value: T) -> Self {
        Self {
            word: AtomicU32::new(FREE),
            sleep: Mutex::new(()),
            freed: Condvar::new(),
            value: UnsafeCell::new(value),
        }
    }

    /// The value, until the guard goes.
    pub(super) fn lock(&self) -> Guard<'_, T> {
        if !self.try_acquire() {
            return self.wait();
        }
        Guard(self)
    }

    /// Takes the lock, whose value the caller then [gets](Self::acquired); false if another thread has it.
    #[inline(always)]
    pub(super) fn try_acquire(&self) -> bool {
        // Acquire: pairs with the release in `drop`.
        let taken = self
            .word
            .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok()
    }

    /// The value of a lock that was taken, until the guard goes.
    ///
    /// # Safety
    ///
    /// The caller has taken it, and asks once.
    #[inline(always)]
    pub(super) unsafe fn acquired(&self) -> Guard<'_, T> {
        Guard(self)
    }

    #[cold]
    #[inline(never)]
    fn wait(&self) -> Guard<'_, T> {
        let mut sleep = self
            .sleep
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        // Acquire: as in `try_acquire`. A thread that has slept sets the word to this value, so that the next
        // sleeper is woken too.
        while self.word.swap(HELD | AWAITED, Ordering::Acquire) != FREE {
            // A thread that frees the lock after that swap wakes the sleepers, and needs `sleep` for it,
            // which this thread releases only by sleeping.
            sleep = self
                .freed
                .wait(sleep)
                .unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        Guard(self)
    }

    #[cold]
    #[inline(never)]
    fn wake(&self) {
        drop(self.sleep.lock());
        self.freed.notify_one();
    }
}

/// The value of a lock that is held.
pub(super) struct Guard<'a, T>(&'a Lock<T>);

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        // Release: pairs with the acquire of the thread that takes the lock next.
        if self.0.word.swap(FREE, Ordering::Release) != HELD {
            self.0.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holds_it() {
        let lock = Lock::new(1);
        let mut guard = lock.lock();
        *guard += 1;
        assert!(!lock.try_acquire());
        drop(guard);
        assert!(lock.try_acquire());
        // SAFETY: just now.
        drop(unsafe { lock.acquired() });
        assert_eq!(*lock.lock(), 2);
    }

    /// Would catch two threads in it at once, and one that sleeps for ever.
    #[test]
    fn threads_take_turns() {
        let lock = Lock::new(0_u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..5_000 {
                        let mut guard = lock.lock();
                        let before = *guard;
                        std::hint::black_box(());
                        *guard = before + 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), 20_000);
    }
}
