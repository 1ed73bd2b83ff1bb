//! Objects that C programs hold by pointers: each is a box of this library, with the C struct in it.

use std::cell::UnsafeCell;
use std::ffi::c_int;

use super::failure::{Failure, Result, status};

/// A type of object.
///
/// # Safety
///
/// `AT` is the offset in bytes of a field of the type [`CStruct<Self::C>`].
pub(super) unsafe trait Object: Sized {
    /// The struct that C programs see.
    type C;
    /// The offset of the struct in the object.
    const AT: usize = 0;

    /// Gives the object to the program.
    fn give(self: Box<Self>) -> *mut Self::C {
        c_struct(Box::into_raw(self))
    }
}

/// The part of an object that the program sees, and may write at any time.
#[repr(transparent)]
pub(super) struct CStruct<C>(UnsafeCell<C>);

impl<C> CStruct<C> {
    pub(super) const fn new(c: C) -> Self {
        Self(UnsafeCell::new(c))
    }

    pub(super) fn get(&self) -> *mut C {
        self.0.get()
    }
}

/// The C struct of an object.
pub(super) fn c_struct<O: Object>(object: *mut O) -> *mut O::C {
    object.wrapping_byte_add(O::AT).cast()
}

/// The object of a C struct.
///
/// # Safety
///
/// The pointer is one that [`Object::give`] has returned, or NULL; the object is not taken back before the
/// reference is last used.
pub(super) unsafe fn object<'a, O: Object>(c: *mut O::C) -> Option<&'a O> {
    if c.is_null() {
        return None;
    }
    // SAFETY: the caller vouches for it.
    Some(unsafe { &*c.cast::<O>().wrapping_byte_sub(O::AT) })
}

/// Like [`destroy`], for an object whose events other threads may acknowledge until `how` returns.
///
/// # Safety
///
/// The contract of [`object`], and no other thread uses the object except to acknowledge its events.
pub(super) unsafe fn destroy_awaited<O: Object>(
    c: *mut O::C,
    how: impl FnOnce(&O) -> Result<()>,
) -> c_int {
    // SAFETY: by this function's contract.
    let result = match unsafe { object::<O>(c) } {
        Some(object) => how(object),
        None => Err(Failure::INVALID),
    };
    match result {
        // SAFETY: `give` made it from a box, and no thread uses it any more.
        Ok(()) => drop(unsafe { Box::from_raw(c.cast::<O>().wrapping_byte_sub(O::AT)) }),
        Err(failure) => return failure.tell(),
    }
    0
}

/// Destroys a program's object with `how`, and frees it if that succeeds.
///
/// # Safety
///
/// The contract of [`object`], and no other thread uses the object meanwhile.
pub(super) unsafe fn destroy<O: Object>(
    c: *mut O::C,
    how: impl FnOnce(&mut O) -> Result<()>,
) -> c_int {
    if c.is_null() {
        return Failure::INVALID.tell();
    }
    // SAFETY: `give` made it from a box, and the caller vouches that it has no other user.
    let mut object = unsafe { Box::from_raw(c.cast::<O>().wrapping_byte_sub(O::AT)) };
    let result = how(&mut object);
    if result.is_err() {
        // The program still has it.
        object.give();
    }
    status(result)
}
