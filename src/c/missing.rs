//! Functions for names that this library does not implement: they all fail. `errno` is `EOPNOTSUPP`, as in
//! libibverbs when a provider lacks a function. `docs/c-abi.md` lists the names.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use super::failure::Failure;

const MISSING: Failure = Failure::UNSUPPORTED;

/// For functions that return an errno.
pub extern "C" fn missing() -> c_int {
    MISSING.tell()
}

/// For functions that return an object.
pub extern "C" fn missing_object() -> *mut c_void {
    MISSING.tell();
    null_mut()
}

/// For functions that return a number, or -1 if they fail.
pub extern "C" fn missing_number() -> c_int {
    MISSING.tell();
    -1
}

/// For functions with which providers register themselves, since this library does not use providers, and for
/// functions that take back objects that were never given out.
pub extern "C" fn ignored() {}

/// For functions that say whether a device is of a kind that this library does not have.
pub extern "C" fn no() -> bool {
    false
}

/// For functions that return a number as long as a pointer, or -1 if they fail.
pub extern "C" fn missing_size() -> isize {
    MISSING.tell();
    -1
}
