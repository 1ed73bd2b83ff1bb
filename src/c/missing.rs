//! What stands for names that this library does not have: nothing that pretends. The number in `errno` is
//! `EOPNOTSUPP`, as libibverbs has it where a provider lacks a function. `docs/c-abi.md` lists the names.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use super::failure::Failure;

const MISSING: Failure = Failure::UNSUPPORTED;

/// Stands for functions that return an errno.
pub extern "C" fn missing() -> c_int {
    MISSING.tell()
}

/// Stands for functions that return an object.
pub extern "C" fn missing_object() -> *mut c_void {
    MISSING.tell();
    null_mut()
}

/// Stands for functions that return a number that is -1 if they fail.
pub extern "C" fn missing_number() -> c_int {
    MISSING.tell();
    -1
}

/// Stands for functions by which providers register themselves, as this library does not use providers, and
/// for those that take back what nobody has been given.
pub extern "C" fn ignored() {}

/// Stands for functions that say whether a device is of a kind which this library does not have.
pub extern "C" fn no() -> bool {
    false
}

/// Stands for functions that return a number that is -1 if they fail, and that may be as long as a pointer.
pub extern "C" fn missing_size() -> isize {
    MISSING.tell();
    -1
}
