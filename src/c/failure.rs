//! How failures reach C programs: the errno of every error of this library, in one place.

use std::ffi::c_int;
use std::ptr::null_mut;

use crate::driver::Refusals;
use crate::error::{Cause, Errno, Error};
use crate::work::PostError;

/// The errno with which a function for C fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failure(pub(super) Errno);

pub(super) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// An invalid argument.
    pub(super) const INVALID: Self = Self(Errno::INVAL);
    /// This library, the driver or the kernel does not have it.
    pub(super) const UNSUPPORTED: Self = Self(Errno::OPNOTSUPP);

    /// Stores it in `errno`, and returns its number.
    pub(super) fn tell(self) -> c_int {
        let number = self.0.raw_os_error();
        // SAFETY: the address of this thread's errno is always valid.
        unsafe { *libc::__errno_location() = number };
        number
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self(errno)
    }
}

impl From<Error> for Failure {
    #[cold]
    fn from(error: Error) -> Self {
        super::log::start();
        tracing::error!(target: "uverbs", "{error}");
        Self(match error.cause() {
            Cause::Os(errno) => *errno,
            // The kernel returns ENOTTY, EPROTONOSUPPORT and others. C programs and tests expect this one.
            Cause::Unsupported(_) => Errno::OPNOTSUPP,
            Cause::Invalid(_) => Errno::INVAL,
            Cause::Busy(_) => Errno::BUSY,
            Cause::NotFound(_) => Errno::NOENT,
            Cause::Malformed(_) | Cause::Failed(_) => Errno::IO,
            Cause::Allocator(_) => Errno::NOMEM,
            Cause::Refused(_) => Errno::CONNREFUSED,
            Cause::TimedOut(_) => Errno::TIMEDOUT,
        })
    }
}

impl Failure {
    /// The failure of a request in a list, for which providers differ in the errno.
    #[cold]
    pub(super) fn of_request(error: PostError, refusals: &Refusals) -> Self {
        match error {
            PostError::TooManySges { .. } | PostError::InlineTooLong { .. } => {
                Self(refusals.long_request)
            }
            _ => Self::of_post(error),
        }
    }

    /// The failure of a request for which all providers have the same errno.
    #[inline(always)]
    fn of_post(error: PostError) -> Self {
        Self(match error {
            PostError::QueueFull { .. } => Errno::NOMEM,
            PostError::Doorbell(errno) => errno,
            // No driver but mlx5's looks at windows, and libmlx5 refuses them like this.
            PostError::Window(_) => Errno::OPNOTSUPP,
            _ => Errno::INVAL,
        })
    }

    /// Like [`Failure::of_request`], for a request posted by functions.
    #[cold]
    pub(super) fn of_function(error: PostError, refusals: &Refusals) -> Self {
        match error {
            PostError::TooManySges { .. } | PostError::InlineTooLong { .. } => {
                Self(refusals.long_by_functions)
            }
            PostError::QueueFull { .. } => Self(refusals.full_by_functions),
            _ => Self::of_post(error),
        }
    }
}

/// A request that is not posted.
impl From<PostError> for Failure {
    // Out of line, so that posting keeps less state.
    #[cold]
    #[inline(never)]
    fn from(error: PostError) -> Self {
        Self::of_post(error)
    }
}

/// For functions that return 0 or the errno, which they also store in `errno`.
pub(super) fn status(result: Result<()>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(failure) => failure.tell(),
    }
}

/// For functions that return 0, or -1 with the errno in `errno`.
pub(super) fn minus_one(result: Result<()>) -> c_int {
    number(result.map(|()| 0))
}

/// For functions that return a number, or -1 with the errno in `errno`.
pub(super) fn number(result: Result<c_int>) -> c_int {
    result.unwrap_or_else(|failure| {
        failure.tell();
        -1
    })
}

/// For functions that return an object, or NULL with the errno in `errno`.
pub(super) fn pointer<T>(result: Result<*mut T>) -> *mut T {
    result.unwrap_or_else(|failure| {
        failure.tell();
        null_mut()
    })
}
