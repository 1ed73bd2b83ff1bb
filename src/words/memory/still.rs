//! Memory that is not moved as far as the compiler can tell, while somebody has a pointer to it.

use std::mem::{ManuallyDrop, MaybeUninit};

use super::Memory;

/// Memory at rest while a pointer to it is in use, wherever this value is moved.
///
/// Moving a `Box` or a `&mut` asserts that nobody else has a pointer to what it leads to, which would end
/// those that were made before. Nothing is asserted of a `MaybeUninit`. Like one, it does not drop what is in
/// it.
pub(crate) struct Still<T>(MaybeUninit<T>);

impl<T> Still<T> {
    /// Lays memory to rest: pointers to it are to be made from here on.
    pub(crate) fn new(memory: T) -> Self {
        Self(MaybeUninit::new(memory))
    }

    /// Gives it back; pointers that were made are to be used no more.
    pub(crate) fn into_inner(self) -> T {
        // SAFETY: it was initialised, and leaves here for good.
        unsafe { self.0.assume_init() }
    }

    /// Drops it in place.
    ///
    /// # Safety
    ///
    /// Once, and nothing is asked of it afterwards: for destructors of what holds it.
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
    /// Two as one, without a look at either.
    pub(crate) fn both(first: Still<A>, second: Still<B>) -> Self {
        let mut both = MaybeUninit::<(A, B)>::uninit();
        let place = both.as_mut_ptr();
        // SAFETY: both fields lie in `both`, and are written before anybody reads them.
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
    /// Lays memory to rest, and returns its first byte and the number of bytes: the pointer is good until the
    /// memory leaves.
    pub(crate) fn new(memory: M) -> (Self, (*mut u8, usize)) {
        let mut memory = Still::new(memory);
        let range = memory.range();
        (Self(memory), range)
    }

    /// Gives it back; the pointer is to be used no more.
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
