//! Memory that, for the compiler, is not moved while there is a pointer to it.

use std::mem::{ManuallyDrop, MaybeUninit};

use super::Memory;

/// Memory at rest while a pointer to it is in use, wherever this value is moved.
///
/// Moving a `Box` or a `&mut` asserts that there is no other pointer to its target, which would invalidate
/// pointers that were made before. Moving a `MaybeUninit` asserts nothing. Like a `MaybeUninit`, it does not
/// drop its content.
pub(crate) struct Still<T>(MaybeUninit<T>);

impl<T> Still<T> {
    /// Lays memory to rest: make pointers to it only after this.
    pub(crate) fn new(memory: T) -> Self {
        Self(MaybeUninit::new(memory))
    }

    /// Returns the memory; pointers to it must not be used any more.
    pub(crate) fn into_inner(self) -> T {
        // SAFETY: it was initialised, and this moves it out once.
        unsafe { self.0.assume_init() }
    }

    /// Drops it in place.
    ///
    /// # Safety
    ///
    /// It is called once, and the value is not used afterwards: for destructors of types that hold it.
    pub(crate) unsafe fn drop(&mut self) {
        // SAFETY: it was initialised, and by this function's contract it still is.
        unsafe { self.0.assume_init_drop() }
    }
}

impl<M: Memory> Still<M> {
    /// The first byte, and the number of bytes.
    pub(crate) fn range(&mut self) -> (*mut u8, usize) {
        // SAFETY: it was initialised.
        let memory = unsafe { self.0.assume_init_mut() };
        (memory.address(), memory.length())
    }
}

impl<A, B> Still<(A, B)> {
    /// Combines two, without asserting anything of either.
    pub(crate) fn both(first: Still<A>, second: Still<B>) -> Self {
        let mut both = MaybeUninit::<(A, B)>::uninit();
        let place = both.as_mut_ptr();
        // SAFETY: both fields lie in `both`, and are written before they are read.
        unsafe {
            (&raw mut (*place).0)
                .cast::<MaybeUninit<A>>()
                .write(first.0);
            (&raw mut (*place).1)
                .cast::<MaybeUninit<B>>()
                .write(second.0);
        }
        Still(both)
    }
}

/// Memory at rest that is dropped with this value.
pub(crate) struct Resting<M>(Still<M>);

impl<M: Memory> Resting<M> {
    /// Lays memory to rest, and returns its first byte and the number of bytes: the pointer is valid until
    /// the memory is moved out or dropped.
    pub(crate) fn new(memory: M) -> (Self, (*mut u8, usize)) {
        let mut memory = Still::new(memory);
        let range = memory.range();
        (Self(memory), range)
    }

    /// Returns the memory; the pointer must not be used any more.
    pub(crate) fn into_inner(self) -> M {
        let this = ManuallyDrop::new(self);
        // SAFETY: it is moved out once, and `this` is neither used nor dropped afterwards.
        let memory = unsafe { std::ptr::read(&raw const this.0) };
        memory.into_inner()
    }
}

impl<M> Drop for Resting<M> {
    fn drop(&mut self) {
        // SAFETY: this is the destructor.
        unsafe { self.0.drop() };
    }
}
