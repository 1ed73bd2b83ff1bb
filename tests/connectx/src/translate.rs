//! Memory through keys: is the access allowed, and which bytes are meant.

use crate::function::Function;
use crate::object::mkey::{Access, MemoryKey, NOTHING, Part, Translation, entry};
use vfio_model::memory::GuestMemory;

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
    if place.key == NOTHING {
        let nothing = &function.objects.nothing;
        return match nothing.allows(access) {
            true => Ok(nothing),
            false => Err(KeyError::Right),
        };
    }
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

/// How many keys may name each other one behind the other.
pub(crate) const MAX_INDIRECTION: u32 = 4;

/// Visits the runs of addresses that a place consists of, each with the memory that it is in. What is done
/// there has these bits of an entry.
fn each_run(
    function: &Function,
    key: &MemoryKey,
    place: Place,
    needed: u64,
    visit: &mut dyn FnMut(&GuestMemory, u64, usize) -> Result<(), KeyError>,
) -> Result<(), KeyError> {
    each_run_below(function, key, place, needed, MAX_INDIRECTION, visit)
}

/// The runs of a place that lies in parts of other keys, so many bytes behind the start of the first. What is
/// done there must be allowed to the owner of these keys.
fn each_part(
    function: &Function,
    key: &MemoryKey,
    (parts, mut at): (&mut dyn Iterator<Item = Part>, u64),
    place: Place,
    (needed, depth): (u64, u32),
    visit: &mut dyn FnMut(&GuestMemory, u64, usize) -> Result<(), KeyError>,
) -> Result<(), KeyError> {
    let depth = depth.checked_sub(1).ok_or(KeyError::Unmapped)?;
    let mut left = place.length;
    for part in parts {
        if left == 0 {
            return Ok(());
        }
        if at >= part.length {
            at -= part.length;
            continue;
        }
        let run = left.min(part.length - at);
        let below = function.objects.mkeys.get(part.key >> 8);
        let below = below.map_err(|_| KeyError::Unknown)?;
        if u32::from(below.variant()) != part.key & 0xff {
            return Err(KeyError::Unknown);
        }
        if below.is_free() || matches!(below.translation(), Translation::Window { .. }) {
            return Err(KeyError::Free);
        }
        if below.pd() != key.pd() {
            return Err(KeyError::Domain);
        }
        let place = Place {
            key: part.key,
            address: part.address.wrapping_add(at),
            length: run,
        };
        if !below.covers(place.address, run) {
            return Err(KeyError::Range);
        }
        let rights = [
            (entry::READ, Access::LocalRead),
            (entry::WRITE, Access::LocalWrite),
        ];
        let lacks = |(bit, access)| needed & bit != 0 && !below.allows(access);
        if rights.into_iter().any(lacks) {
            return Err(KeyError::Right);
        }
        each_run_below(function, below, place, needed, depth, visit)?;
        at = 0;
        left -= run;
    }
    match left {
        0 => Ok(()),
        _ => Err(KeyError::Unmapped),
    }
}

/// As [`each_run`], through so many keys at most.
fn each_run_below(
    function: &Function,
    key: &MemoryKey,
    place: Place,
    needed: u64,
    depth: u32,
    visit: &mut dyn FnMut(&GuestMemory, u64, usize) -> Result<(), KeyError>,
) -> Result<(), KeyError> {
    match key.translation() {
        Translation::Parts(parts) => {
            let at = place.address.wrapping_sub(key.start());
            let parts = (
                &mut parts.iter().copied() as &mut dyn Iterator<Item = Part>,
                at,
            );
            each_part(function, key, parts, place, (needed, depth), visit)
        }
        Translation::Strided(strides) => {
            let at = place.address.wrapping_sub(key.start());
            let row = strides.row();
            let first = at.checked_div(row).ok_or(KeyError::Unmapped)?;
            let parts = (
                &mut strides.from(first) as &mut dyn Iterator<Item = Part>,
                at % row,
            );
            each_part(function, key, parts, place, (needed, depth), visit)
        }
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
            each_run_below(function, below, place, needed, depth, visit)
        }
        Translation::Physical => visit(&function.memory, place.address, place.length as usize),
        Translation::DeviceMemory(start) => {
            let memory = function.objects.memic.bytes();
            visit(memory, start + place.address, place.length as usize)
        }
        Translation::Nothing | Translation::Unbound => Err(KeyError::Free),
        Translation::Pages(pages) => {
            let shift = key.page_shift();
            let size = 1_u64 << shift;
            let start = key.start() & (size - 1);
            let mut at = place.address.wrapping_sub(key.start()).wrapping_add(start);
            let mut left = place.length;
            while left > 0 {
                let page = usize::try_from(at >> shift)
                    .ok()
                    .and_then(|index| pages.get(index))
                    .filter(|page| **page & needed == needed)
                    .ok_or(KeyError::Unmapped)?;
                let within = at & (size - 1);
                let run = left.min(size - within);
                let address = (page & !entry::BITS) + within;
                let (memory, address) = function.memory_at(address, run as usize);
                visit(memory, address, run as usize)?;
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
    if *key.translation() == Translation::Nothing {
        into.resize(into.len() + place.length as usize, 0);
        return Ok(());
    }
    each_run(
        function,
        key,
        place,
        entry::READ,
        &mut |memory, address, length| {
            let start = into.len();
            into.resize(start + length, 0);
            memory
                .read(address, &mut into[start..])
                .map_err(|_| KeyError::Unmapped)
        },
    )
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
    if *key.translation() == Translation::Nothing {
        return Ok(());
    }
    let mut rest = bytes;
    each_run(
        function,
        key,
        place,
        entry::WRITE,
        &mut |memory, address, length| {
            let (now, later) = rest.split_at_checked(length).ok_or(KeyError::Range)?;
            rest = later;
            memory.write(address, now).map_err(|_| KeyError::Unmapped)
        },
    )
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
    let needed = entry::READ | entry::WRITE;
    each_run(
        function,
        key,
        place,
        needed,
        &mut |memory, address, length| {
            // Two parts of other keys cannot be changed at once.
            if length as u64 != place.length {
                return Err(KeyError::Range);
            }
            old = memory
                .update(address, &new)
                .map_err(|_| KeyError::Unmapped)?;
            Ok(())
        },
    )?;
    Ok(old)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Status;
    use crate::fixture::{self, create};
    use crate::layout::{Field, cmd, mkc};
    use crate::object::mkey::{self, Strides};

    const START: u64 = 0x7000_0100;
    const LENGTH: u64 = 0x1800;
    const VARIANT: u32 = 0x42;

    /// A function with a region of two pages, which lie in the wrong order; gives its key and its domain.
    fn function() -> Result<(Function, u32, u32), Status> {
        let mut function = fixture::function();
        let pd = function.objects.pds.insert(())?;
        let fields = [
            (mkc::PD, u64::from(pd)),
            (mkc::START_ADDR, START),
            (mkc::LEN, LENGTH),
            (mkc::LOG_PAGE_SIZE, 12),
            (mkc::ACCESS_MODE_1_0, 1),
            (mkc::QPN, 0xff_ffff),
            (mkc::MKEY_7_0, u64::from(VARIANT)),
            (mkc::LR, 1),
            (mkc::LW, 1),
            (mkc::RR, 1),
        ];
        let pages = [0x2000, 0x1000];
        let output = create(&mut function, mkey::create, cmd::CONTEXT, &fields, &pages)?;
        let key = cmd::OBJECT.get32(&output) << 8 | VARIANT;
        Ok((function, key, pd))
    }

    #[test]
    fn each_check_of_a_key_bites() -> Result<(), Status> {
        let (function, key, pd) = function()?;
        let by = User { qpn: 5, pd };
        let stranger = User { qpn: 5, pd: pd + 1 };
        let place = |key, address, length| Place {
            key,
            address,
            length,
        };
        let end = START + LENGTH;
        let table = [
            (
                "all of it",
                by,
                place(key, START, LENGTH),
                Access::LocalWrite,
                None,
            ),
            (
                "no such key",
                by,
                place(key + 0x100, START, 1),
                Access::LocalRead,
                Some(KeyError::Unknown),
            ),
            (
                "old variant",
                by,
                place(key - 1, START, 1),
                Access::LocalRead,
                Some(KeyError::Unknown),
            ),
            (
                "domain",
                stranger,
                place(key, START, 1),
                Access::LocalRead,
                Some(KeyError::Domain),
            ),
            (
                "before",
                by,
                place(key, START - 1, 2),
                Access::LocalRead,
                Some(KeyError::Range),
            ),
            (
                "behind",
                by,
                place(key, end - 1, 2),
                Access::LocalRead,
                Some(KeyError::Range),
            ),
            (
                "wraps",
                by,
                place(key, u64::MAX, 2),
                Access::LocalRead,
                Some(KeyError::Range),
            ),
            (
                "remote write",
                by,
                place(key, START, 1),
                Access::RemoteWrite,
                Some(KeyError::Right),
            ),
            (
                "atomic",
                by,
                place(key, START, 8),
                Access::Atomic,
                Some(KeyError::Right),
            ),
        ];
        for (name, by, place, access, error) in table {
            assert_eq!(check(&function, by, place, access).err(), error, "{name}");
        }
        Ok(())
    }

    #[test]
    fn an_access_follows_the_pages() -> Result<(), Status> {
        let (function, key, pd) = function()?;
        let by = User { qpn: 5, pd };
        let place = Place {
            key,
            // The last byte of the first page and the first of the second.
            address: START + 0xeff,
            length: 2,
        };
        assert_eq!(
            write(&function, by, place, Access::LocalWrite, b"ab"),
            Ok(())
        );
        let mut byte = [0];
        assert_eq!(function.memory.read(0x2fff, &mut byte), Ok(()));
        assert_eq!(&byte, b"a");
        assert_eq!(function.memory.read(0x1000, &mut byte), Ok(()));
        assert_eq!(&byte, b"b");
        let mut read_back = Vec::new();
        let result = read(&function, by, place, Access::RemoteRead, &mut read_back);
        assert_eq!((result, read_back.as_slice()), (Ok(()), b"ab".as_slice()));
        Ok(())
    }

    /// A key whose parts are of other keys: of each the length, the key and the address.
    fn gathered(
        function: &mut Function,
        pd: u32,
        rights: &[Field],
        parts: &[(u32, u32, u64)],
    ) -> Result<u32, Status> {
        let length = parts.iter().map(|(length, ..)| u64::from(*length)).sum();
        let mut fields = vec![
            (mkc::PD, u64::from(pd)),
            (mkc::LEN, length),
            (mkc::ACCESS_MODE_1_0, 2),
            (mkc::QPN, 0xff_ffff),
            (mkc::TRANSLATIONS_OCTWORD_SIZE, 4),
        ];
        fields.extend(rights.iter().map(|right| (*right, 1)));
        let mut input = vec![0; cmd::PAS + 4 * 16];
        for (field, value) in fields {
            field.set(&mut input[cmd::CONTEXT..], value);
        }
        cmd::TRANSLATIONS_OCTWORD_ACTUAL_SIZE.set(&mut input, 4);
        for (unit, (length, key, address)) in input[cmd::PAS..].chunks_mut(16).zip(parts) {
            Field::new(0, 32).set(unit, (*length).into());
            Field::new(32, 32).set(unit, (*key).into());
            Field::new(64, 64).set(unit, *address);
        }
        let mut output = [0; 16];
        mkey::create(function, &input, &mut output)?;
        Ok(cmd::OBJECT.get32(&output) << 8)
    }

    /// A key over two parts of the region, in the reverse order, with its rights.
    fn parts(
        function: &mut Function,
        pd: u32,
        below: u32,
        rights: &[Field],
    ) -> Result<u32, Status> {
        let list = [START + 0xefc, START].map(|address| (0x10, below, address));
        gathered(function, pd, rights, &list)
    }

    #[test]
    fn parts_of_other_keys_follow_each_other() -> Result<(), Status> {
        let (mut function, below, pd) = function()?;
        let by = User { qpn: 5, pd };
        let all = [mkc::LR, mkc::LW, mkc::RR, mkc::RW];
        let key = parts(&mut function, pd, below, &all)?;
        let place = |key, address, length| Place {
            key,
            address,
            length,
        };
        let bytes: Vec<u8> = (1..=0x20).collect();
        let whole = place(key, 0, 0x20);
        let wrote = write(&function, by, whole, Access::RemoteWrite, &bytes);
        assert_eq!(wrote, Ok(()));
        // The first part goes over the end of the region's first page; the second is its beginning.
        let mut found = [0; 4];
        assert_eq!(function.memory.read(0x2ffc, &mut found), Ok(()));
        assert_eq!(found, [1, 2, 3, 4]);
        assert_eq!(function.memory.read(0x1000, &mut found), Ok(()));
        assert_eq!(found, [5, 6, 7, 8]);
        assert_eq!(function.memory.read(0x2100, &mut found), Ok(()));
        assert_eq!(found, [0x11, 0x12, 0x13, 0x14]);
        // A key on the key, and one on that, up to four.
        let mut above = key;
        for depth in 1..=MAX_INDIRECTION {
            let mut read_back = Vec::new();
            let result = read(
                &function,
                by,
                place(above, 0, 4),
                Access::RemoteRead,
                &mut read_back,
            );
            assert_eq!(result.is_ok(), depth <= MAX_INDIRECTION, "{depth}");
            above = on_key(&mut function, pd, above)?;
        }
        let mut read_back = Vec::new();
        let result = read(
            &function,
            by,
            place(above, 0, 4),
            Access::RemoteRead,
            &mut read_back,
        );
        assert_eq!(result, Err(KeyError::Unmapped), "too deep");
        Ok(())
    }

    /// Catches parts of one size that are taken for as long as the list says, and a list that has to be
    /// padded.
    #[test]
    fn parts_of_one_size_have_it_from_the_key() -> Result<(), Status> {
        let (mut function, below, pd) = function()?;
        let mut input = vec![0; cmd::PAS + 3 * 16];
        for (field, value) in [
            (mkc::PD, u64::from(pd)),
            (mkc::START_ADDR, 0x5000),
            (mkc::LEN, 0x28),
            (mkc::ACCESS_MODE_1_0, 3),
            (mkc::LOG_PAGE_SIZE, 4),
            (mkc::QPN, 0xff_ffff),
            (mkc::TRANSLATIONS_OCTWORD_SIZE, 3),
            (mkc::RW, 1),
        ] {
            field.set(&mut input[cmd::CONTEXT..], value);
        }
        cmd::TRANSLATIONS_OCTWORD_ACTUAL_SIZE.set(&mut input, 3);
        let starts = [START + 0x40, START, START + 0x80];
        for (unit, start) in input[cmd::PAS..].chunks_mut(16).zip(starts) {
            Field::new(0, 32).set(unit, 1 << 31);
            Field::new(32, 32).set(unit, below.into());
            Field::new(64, 64).set(unit, start);
        }
        let mut output = [0; 16];
        mkey::create(&mut function, &input, &mut output)?;
        let key = cmd::OBJECT.get32(&output) << 8;
        let bytes: Vec<u8> = (1..=0x20).collect();
        let place = |address, length| Place {
            key,
            address,
            length,
        };
        let by = User { qpn: 5, pd };
        let wrote = write(
            &function,
            by,
            place(0x5008, 0x20),
            Access::RemoteWrite,
            &bytes,
        );
        assert_eq!(wrote, Ok(()));
        for (address, first) in [(0x2148, 1), (0x2100, 9), (0x2180, 25)] {
            let mut found = [0; 8];
            assert_eq!(function.memory.read(address, &mut found), Ok(()));
            assert_eq!(found[0], first, "{address:#x}");
        }
        let wrote = write(&function, by, place(0x5028, 1), Access::RemoteWrite, &[1]);
        assert_eq!(wrote, Err(KeyError::Range));
        Ok(())
    }

    /// A key over the first bytes of another one's.
    fn on_key(function: &mut Function, pd: u32, below: u32) -> Result<u32, Status> {
        gathered(function, pd, &[mkc::LR, mkc::RR], &[(4, below, 0)])
    }

    #[test]
    fn rows_lie_a_stride_behind_each_other() -> Result<(), Status> {
        let (mut function, below, pd) = function()?;
        let by = User { qpn: 5, pd };
        let all = [mkc::LR, mkc::LW, mkc::RR, mkc::RW];
        let key = parts(&mut function, pd, below, &all)?;
        let part = |length, address| Part {
            length,
            key: below,
            address,
        };
        // Rows of 3 and 2 bytes, of which the first are 0x10 apart and the second 0x20.
        let rows = Strides {
            count: 4,
            parts: vec![(part(3, START), 0x10), (part(2, START + 0x100), 0x20)],
        };
        let found = function.objects.mkeys.get_mut(key >> 8)?;
        assert!(found.gather(4, Translation::Strided(rows.clone())));
        assert!(!found.gather(8, Translation::Strided(rows)), "no room");
        let place = |address, length| Place {
            key,
            address,
            length,
        };
        let bytes: Vec<u8> = (1..=20).collect();
        let wrote = write(&function, by, place(0, 20), Access::RemoteWrite, &bytes);
        assert_eq!(wrote, Ok(()));
        let at = |address: u64, length| {
            let mut found = vec![0; length];
            let read = function.memory.read(0x2100 + address - START, &mut found);
            assert_eq!(read, Ok(()));
            found
        };
        assert_eq!(at(START, 3), [1, 2, 3]);
        assert_eq!(at(START + 0x100, 3), [4, 5, 0]);
        assert_eq!(at(START + 0x30, 4), [16, 17, 18, 0]);
        assert_eq!(at(START + 0x160, 2), [19, 20]);
        // From the middle of a row to that of the next but one.
        let mut some = Vec::new();
        let result = read(&function, by, place(4, 9), Access::RemoteRead, &mut some);
        assert_eq!((result, some.as_slice()), (Ok(()), &bytes[4..13]));
        // The key's length is larger than the rows.
        let behind = read(&function, by, place(19, 2), Access::RemoteRead, &mut some);
        assert_eq!(behind, Err(KeyError::Unmapped));
        Ok(())
    }

    #[test]
    fn a_part_gives_no_more_than_its_key() -> Result<(), Status> {
        let (mut function, below, pd) = function()?;
        let by = User { qpn: 5, pd };
        let place = |key, address, length| Place {
            key,
            address,
            length,
        };
        let reads = [mkc::LR, mkc::RR];
        let key = parts(&mut function, pd, below, &reads)?;
        let refused = write(&function, by, place(key, 0, 1), Access::RemoteWrite, &[0]);
        assert_eq!(
            refused,
            Err(KeyError::Right),
            "the key has no right to write"
        );
        let mut into = Vec::new();
        let behind = read(
            &function,
            by,
            place(key, 0x1f, 2),
            Access::RemoteRead,
            &mut into,
        );
        assert_eq!(behind, Err(KeyError::Range));
        let old = parts(&mut function, pd, below ^ 1, &reads)?;
        let stale = read(
            &function,
            by,
            place(old, 0, 1),
            Access::RemoteRead,
            &mut into,
        );
        assert_eq!(stale, Err(KeyError::Unknown), "the low byte is another one");
        let stranger = function.objects.pds.insert(())?;
        let foreign = parts(&mut function, stranger, below, &reads)?;
        let by_stranger = User {
            qpn: 5,
            pd: stranger,
        };
        let other = read(
            &function,
            by_stranger,
            place(foreign, 0, 1),
            Access::RemoteRead,
            &mut into,
        );
        assert_eq!(
            other,
            Err(KeyError::Domain),
            "the region is of another domain"
        );
        function.objects.mkeys.remove(below >> 8)?;
        let gone = read(
            &function,
            by,
            place(key, 0, 1),
            Access::RemoteRead,
            &mut into,
        );
        assert_eq!(gone, Err(KeyError::Unknown), "the region is gone");
        Ok(())
    }

    #[test]
    fn lists_of_parts_are_whole() {
        for (units, room, bytes, expected) in [
            (0, 4, 64, Status::BadParameter),
            (3, 4, 48, Status::BadParameter),
            (8, 4, 128, Status::BadParameter),
            (4, 4, 48, Status::BadInputLength),
            (4, 4, 128, Status::BadInputLength),
        ] {
            let mut function = fixture::function();
            let pd = function.objects.pds.insert(()).expect("a domain");
            let mut input = vec![0; cmd::PAS + bytes];
            let context = &mut input[cmd::CONTEXT..];
            mkc::PD.set(context, pd.into());
            mkc::ACCESS_MODE_1_0.set(context, 2);
            mkc::TRANSLATIONS_OCTWORD_SIZE.set(context, room);
            cmd::TRANSLATIONS_OCTWORD_ACTUAL_SIZE.set(&mut input, units);
            let refused = mkey::create(&mut function, &input, &mut [0; 16]);
            assert_eq!(
                refused,
                Err(expected),
                "{units} units, room {room}, {bytes} bytes"
            );
        }
    }
}
