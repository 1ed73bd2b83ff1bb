//! Memory through keys: is the access allowed, and which bytes are meant.

use crate::function::Function;
use crate::object::mkey::{Access, MemoryKey, Translation};

/// Why an access through a key is refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum KeyError {
    /// There is no such key, or only with another low byte.
    Unknown,
    /// The key stands for no memory now.
    Free,
    /// The key is of another protection domain or queue pair.
    Domain,
    /// The addresses go beyond the key's range.
    Range,
    /// The key does not give the right.
    Right,
    /// The key leads to no memory.
    Unmapped,
}

/// Who uses a key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct User {
    /// The queue pair's number.
    pub(crate) qpn: u32,
    /// Its protection domain.
    pub(crate) pd: u32,
}

/// A place in memory as work requests name it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Place {
    pub(crate) key: u32,
    pub(crate) address: u64,
    pub(crate) length: u64,
}

/// Checks an access.
///
/// # Errors
/// If it is not allowed.
pub(crate) fn check(
    function: &Function,
    by: User,
    place: Place,
    access: Access,
) -> Result<&MemoryKey, KeyError> {
    let key = function
        .objects
        .mkeys
        .get(place.key >> 8)
        .map_err(|_| KeyError::Unknown)?;
    if u32::from(key.variant()) != place.key & 0xff {
        return Err(KeyError::Unknown);
    }
    if key.is_free() {
        return Err(KeyError::Free);
    }
    if key.pd() != by.pd || !key.is_for(by.qpn) {
        return Err(KeyError::Domain);
    }
    if !key.covers(place.address, place.length) {
        return Err(KeyError::Range);
    }
    if !key.allows(access) {
        return Err(KeyError::Right);
    }
    Ok(key)
}

/// Visits the runs of bus addresses that a place consists of.
fn each_run(
    function: &Function,
    key: &MemoryKey,
    place: Place,
    visit: &mut dyn FnMut(u64, usize) -> Result<(), KeyError>,
) -> Result<(), KeyError> {
    match key.translation() {
        Translation::Window {
            key: below,
            address,
        } => {
            let below = function.objects.mkeys.get(below >> 8);
            let below = below.map_err(|_| KeyError::Unknown)?;
            // A window lies on a region, never on a window.
            if matches!(below.translation(), Translation::Window { .. }) || below.is_free() {
                return Err(KeyError::Free);
            }
            let place = Place {
                address: address.wrapping_add(place.address.wrapping_sub(key.start())),
                ..place
            };
            if !below.covers(place.address, place.length) {
                return Err(KeyError::Range);
            }
            each_run(function, below, place, visit)
        }
        Translation::Physical => visit(place.address, place.length as usize),
        Translation::Unbound => Err(KeyError::Free),
        Translation::Pages { shift, pages } => {
            let size = 1_u64 << shift;
            let start = key.start() & (size - 1);
            let mut at = place.address.wrapping_sub(key.start()).wrapping_add(start);
            let mut left = place.length;
            while left > 0 {
                let page = usize::try_from(at >> shift)
                    .ok()
                    .and_then(|index| pages.get(index))
                    .ok_or(KeyError::Unmapped)?;
                let within = at & (size - 1);
                let run = left.min(size - within);
                visit(page + within, run as usize)?;
                at += run;
                left -= run;
            }
            Ok(())
        }
    }
}

/// Reads what a place holds, after a check.
///
/// # Errors
/// If the access is not allowed.
pub(crate) fn read(
    function: &Function,
    by: User,
    place: Place,
    access: Access,
    into: &mut Vec<u8>,
) -> Result<(), KeyError> {
    let key = check(function, by, place, access)?;
    each_run(function, key, place, &mut |address, length| {
        let start = into.len();
        into.resize(start + length, 0);
        function
            .memory
            .read(address, &mut into[start..])
            .map_err(|_| KeyError::Unmapped)
    })
}

/// Writes to a place, after a check. The bytes are as many as the place is long.
///
/// # Errors
/// If the access is not allowed.
pub(crate) fn write(
    function: &Function,
    by: User,
    place: Place,
    access: Access,
    bytes: &[u8],
) -> Result<(), KeyError> {
    let key = check(function, by, place, access)?;
    let mut rest = bytes;
    each_run(function, key, place, &mut |address, length| {
        let (now, later) = rest.split_at_checked(length).ok_or(KeyError::Range)?;
        rest = later;
        function
            .memory
            .write(address, now)
            .map_err(|_| KeyError::Unmapped)
    })
}

/// Changes 8 bytes at once, after a check; gives the old value.
///
/// # Errors
/// If the access is not allowed.
pub(crate) fn update(
    function: &Function,
    by: User,
    place: Place,
    new: impl Fn(u64) -> u64,
) -> Result<u64, KeyError> {
    let key = check(function, by, place, Access::Atomic)?;
    let mut old = 0;
    each_run(function, key, place, &mut |address, _| {
        old = function
            .memory
            .update(address, &new)
            .map_err(|_| KeyError::Unmapped)?;
        Ok(())
    })?;
    Ok(old)
}
