//! Forking while memory is registered. Since Linux 5.12 a fork copies the pages that a device uses, so that
//! the parent keeps the originals, and nothing needs to be done. On older kernels these functions do nothing
//! yet.

use std::ffi::{c_int, c_void};

use super::failure::{Failure, Result, status};
use crate::error::Errno;

/// The first kernel whose forks copy the pages that a device uses.
const COPIES: (u32, u32) = (5, 12);

/// `enum ibv_fork_status`.
const DISABLED: c_int = 0;
const UNNEEDED: c_int = 2;

/// The first two numbers of a kernel's release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn is_unneeded() -> bool {
    let name = rustix::system::uname();
    let release = name.release().to_str().ok();
    release.and_then(version).is_some_and(|is| is >= COPIES)
}

fn check() -> Result<()> {
    match is_unneeded() {
        true => Ok(()),
        false => Err(Failure(Errno::NOSYS)),
    }
}

/// `ibv_fork_init(3)`.
pub extern "C" fn ibv_fork_init() -> c_int {
    status(check())
}

/// `ibv_is_fork_initialized(3)`.
pub extern "C" fn ibv_is_fork_initialized() -> c_int {
    match is_unneeded() {
        true => UNNEEDED,
        false => DISABLED,
    }
}

/// Keeps a range from a child. Providers call it.
pub unsafe extern "C" fn ibv_dontfork_range(_: *mut c_void, _: usize) -> c_int {
    status(check())
}

/// Undoes [`ibv_dontfork_range`].
pub unsafe extern "C" fn ibv_dofork_range(_: *mut c_void, _: usize) -> c_int {
    status(check())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_by_their_numbers() {
        assert_eq!(version("6.12.57+deb13-amd64"), Some((6, 12)));
        assert_eq!(version("5.4.0"), Some((5, 4)));
        assert_eq!(version("7"), None);
        assert!(version("5.12-rc1") >= Some(COPIES));
        assert!(version("5.4.0") < Some(COPIES));
    }
}
