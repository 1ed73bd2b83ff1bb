//! Device memory (MEMIC): a part of BAR 0 that is memory, which the driver allocates in pieces. Memory keys
//! name the pieces, and the guest's processor reaches them through the BAR.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::command::Status;
use crate::function::Function;
use crate::layout::Field;
use crate::layout::memic::{self as layout, alloc, dealloc};
use crate::object::mkey::{MemoryKey, Translation};
use crate::pages::ADAPTER_PAGE_SHIFT;
use crate::pci::{BAR0_SIZE, UARS_SIZE};
use vfio_model::memory::GuestMemory;

/// Where it begins in BAR 0: behind the registers.
pub(crate) const START: u64 = UARS_SIZE;
/// Bytes of it.
const SIZE: u64 = 256 << 10;
/// Bytes of the largest piece.
const LARGEST: u64 = 128 << 10;
/// Pieces have whole units of so many bytes.
const UNIT: u64 = 64;
/// Pieces may begin at multiples of up to 64 KiB: as the binary logarithm of units.
const LARGEST_ALIGNMENT: u64 = 10;
/// The processor's accesses are whole words of so many bytes.
const WORD: usize = 4;

const _: () = assert!(START + SIZE <= BAR0_SIZE);

/// What the device says of it.
pub(crate) const CAPABILITIES: [(Field, u64); 6] = [
    (layout::MEMIC, 1),
    (layout::LOG_MIN_MEMIC_ALLOC_SIZE, 0),
    (layout::LOG_MAX_MEMIC_ADDR_ALIGNMENT, LARGEST_ALIGNMENT),
    (layout::MEMIC_BAR_START_ADDR, START),
    (layout::MEMIC_BAR_SIZE, SIZE),
    (layout::MAX_MEMIC_SIZE, LARGEST),
];

/// The memory of a function, by offsets in BAR 0.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    bytes: GuestMemory,
    /// What is allocated: where it begins, and where it ends.
    pieces: BTreeMap<u64, u64>,
}

impl DeviceMemory {
    /// Memory of which nothing is allocated.
    pub(crate) fn new() -> Self {
        Self {
            bytes: GuestMemory::anonymous(START, SIZE as usize),
            pieces: BTreeMap::new(),
        }
    }

    /// The bytes, for whoever knows that they are allocated.
    pub(crate) fn bytes(&self) -> &GuestMemory {
        &self.bytes
    }

    /// Whether any of it is allocated.
    pub(crate) fn is_used(&self) -> bool {
        !self.pieces.is_empty()
    }

    /// Whether all of the range lies in one piece.
    pub(crate) fn has(&self, range: &Range<u64>) -> bool {
        let piece = self.pieces.range(..=range.start).next_back();
        piece.is_some_and(|(_, end)| range.start <= range.end && range.end <= *end)
    }

    /// Whether nothing in the range is allocated.
    fn is_free(&self, range: &Range<u64>) -> bool {
        let before = self.pieces.range(..range.end).next_back();
        before.is_none_or(|(_, end)| *end <= range.start)
    }

    /// Allocates a piece: the last in the range that is free and aligned. So most do not begin where their
    /// page does, which drivers have to be prepared for.
    fn allocate(&mut self, range: &Range<u64>, length: u64, alignment: u64) -> Option<u64> {
        let last = range.end.checked_sub(length)? / alignment * alignment;
        let starts = (range.start..=last).rev().step_by(alignment as usize);
        let start = starts
            .into_iter()
            .find(|start| self.is_free(&(*start..start + length)))?;
        self.pieces.insert(start, start + length);
        Some(start)
    }
}

/// Executes ALLOC_MEMIC: a piece within the range that the driver has chosen.
///
/// # Errors
/// If the length or the alignment is none that the device has, the range is not of whole pages within the
/// memory, or there is no room in it.
pub(crate) fn alloc(
    function: &mut Function,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Status> {
    let length = alloc::MEMIC_SIZE.get(input);
    if length == 0 || !length.is_multiple_of(UNIT) || length > LARGEST {
        return Err(Status::BadParameter);
    }
    let log_alignment = alloc::LOG_MEMIC_ADDR_ALIGNMENT.get(input);
    if log_alignment > LARGEST_ALIGNMENT {
        return Err(Status::BadParameter);
    }
    let (start, size) = (
        alloc::RANGE_START_ADDR.get(input),
        alloc::RANGE_SIZE.get(input),
    );
    let page = 1 << ADAPTER_PAGE_SHIFT;
    let inside = (START..START + SIZE).contains(&start) && size <= START + SIZE - start;
    if !inside || !start.is_multiple_of(page) || !size.is_multiple_of(page) {
        return Err(Status::BadParameter);
    }
    let memory = &mut function.objects.memic;
    let piece = memory
        .allocate(&(start..start + size), length, UNIT << log_alignment)
        .ok_or(Status::NoResources)?;
    alloc::MEMIC_START_ADDR.set(output, piece);
    Ok(())
}

/// Executes DEALLOC_MEMIC.
///
/// # Errors
/// If there is no such piece, it has another length, or keys name it.
pub(crate) fn dealloc(function: &mut Function, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let start = dealloc::MEMIC_START_ADDR.get(input);
    let objects = &mut function.objects;
    let end = *objects
        .memic
        .pieces
        .get(&start)
        .ok_or(Status::BadResource)?;
    if dealloc::MEMIC_SIZE.get(input) != end - start {
        return Err(Status::BadParameter);
    }
    let inside = |key: &MemoryKey| match key.translation() {
        Translation::DeviceMemory(at) => (start..end).contains(at),
        _ => false,
    };
    if objects.mkeys.values().any(inside) {
        return Err(Status::ResourceBusy);
    }
    objects.memic.pieces.remove(&start);
    Ok(())
}

/// Reads what the processor loads. What is not allocated reads as zeros.
pub(crate) fn read(function: &Function, offset: u64, data: &mut [u8]) {
    data.fill(0);
    if is_right(function, "load", offset, data.len()) {
        // It lies in a piece, so in memory.
        let _ = function.objects.memic.bytes.read(offset, data);
    }
}

/// Writes what the processor stores.
pub(crate) fn write(function: &Function, offset: u64, data: &[u8]) {
    if is_right(function, "store", offset, data.len()) {
        // As in `read`.
        let _ = function.objects.memic.bytes.write(offset, data);
    }
}

/// Whether an access of the processor is one that the device takes; reports it if not.
fn is_right(function: &Function, what: &str, offset: u64, length: usize) -> bool {
    let whole = length.is_multiple_of(WORD) && offset.is_multiple_of(WORD as u64);
    let allocated = function
        .objects
        .memic
        .has(&(offset..offset.saturating_add(length as u64)));
    let why = match (whole, allocated) {
        (true, true) => return true,
        (false, _) => "which are not whole words",
        (true, false) => "which are not allocated",
    };
    let text = format!("{what} of {length} bytes of device memory at {offset:#x}, {why}");
    function.report.violation(text);
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use crate::layout::{cmd, mkc};
    use crate::object::mkey::{self, Access};
    use crate::translate::{self, KeyError, Place, User};

    const PAGE: u64 = 0x1000;

    /// Executes ALLOC_MEMIC in the first pages.
    fn allocate(
        function: &mut Function,
        pages: u64,
        length: u64,
        log_alignment: u64,
    ) -> Result<u64, Status> {
        allocate_in(function, (START, pages * PAGE), length, log_alignment)
    }

    fn allocate_in(
        function: &mut Function,
        (start, size): (u64, u64),
        length: u64,
        log_alignment: u64,
    ) -> Result<u64, Status> {
        let mut input = [0; 0x20];
        alloc::RANGE_START_ADDR.set(&mut input, start);
        alloc::RANGE_SIZE.set(&mut input, size);
        alloc::MEMIC_SIZE.set(&mut input, length);
        alloc::LOG_MEMIC_ADDR_ALIGNMENT.set(&mut input, log_alignment);
        let mut output = [0; 0x10];
        alloc(function, &input, &mut output)?;
        Ok(alloc::MEMIC_START_ADDR.get(&output))
    }

    fn free(function: &mut Function, start: u64, length: u64) -> Result<(), Status> {
        let mut input = [0; 0x20];
        dealloc::MEMIC_START_ADDR.set(&mut input, start);
        dealloc::MEMIC_SIZE.set(&mut input, length);
        dealloc(function, &input, &mut [])
    }

    #[test]
    fn pieces_are_aligned_and_apart_until_the_range_is_full() {
        let mut function = fixture::function();
        let (a, b, c) = (
            allocate(&mut function, 1, 64, 0),
            allocate(&mut function, 1, 128, 3),
            allocate(&mut function, 1, 64, 0),
        );
        assert_eq!((a, b), (Ok(START + PAGE - 64), Ok(START + PAGE - 512)));
        assert_eq!(c, Ok(START + PAGE - 128));
        let whole = allocate(&mut function, 1, PAGE, 0);
        assert_eq!(whole, Err(Status::NoResources));
        assert_eq!(free(&mut function, START + PAGE - 512, 128), Ok(()));
        assert_eq!(allocate(&mut function, 2, PAGE, 6), Ok(START + PAGE));
    }

    #[test]
    fn a_piece_that_the_device_does_not_have_is_refused() {
        let mut function = fixture::function();
        for (length, log_alignment) in [(0, 0), (63, 0), (96, 0), (LARGEST + 64, 0), (64, 11)] {
            let refused = allocate(&mut function, SIZE / PAGE, length, log_alignment);
            assert_eq!(refused, Err(Status::BadParameter), "{length}");
        }
        let end = START + SIZE;
        for range in [
            (START - PAGE, PAGE),
            (START + 64, PAGE),
            (START, 64),
            (end, PAGE),
            (end - PAGE, 2 * PAGE),
            (u64::MAX - 0xfff, PAGE),
        ] {
            let refused = allocate_in(&mut function, range, 64, 0);
            assert_eq!(refused, Err(Status::BadParameter), "{range:x?}");
        }
    }

    #[test]
    fn only_what_is_allocated_is_freed_and_only_once() {
        let mut function = fixture::function();
        let start = allocate(&mut function, 1, 128, 0).expect("room");
        let free = |function: &mut Function, at, length| free(function, at, length);
        assert_eq!(
            free(&mut function, start + 64, 64),
            Err(Status::BadResource)
        );
        assert_eq!(free(&mut function, start, 64), Err(Status::BadParameter));
        assert_eq!(free(&mut function, start, 128), Ok(()));
        assert_eq!(free(&mut function, start, 128), Err(Status::BadResource));
    }

    #[test]
    fn the_processor_reaches_words_of_what_is_allocated() {
        let mut function = fixture::function();
        let start = allocate(&mut function, 1, 64, 0).expect("room");
        write(&function, start + 60, &[1, 2, 3, 4]);
        let mut word = [9; 4];
        read(&function, start + 60, &mut word);
        assert_eq!((word, function.report.take().len()), ([1, 2, 3, 4], 0));
        for (at, length) in [(start - 4, 4), (start + 60, 8), (start, 2), (start + 2, 4)] {
            write(&function, at, &vec![5; length]);
            let complaints = function.report.take();
            assert_eq!(complaints.len(), 1, "{complaints:?}");
        }
        read(&function, start + 64, &mut word);
        assert_eq!((word, function.report.take().len()), ([0; 4], 1));
    }

    /// A key for so many bytes from there on, with all rights of this side.
    fn key(function: &mut Function, pd: u32, start: u64, length: u64) -> Result<u32, Status> {
        let fields = [
            (mkc::PD, u64::from(pd)),
            (mkc::START_ADDR, start),
            (mkc::LEN, length),
            (mkc::ACCESS_MODE_4_2, 1),
            (mkc::ACCESS_MODE_1_0, 1),
            (mkc::QPN, 0xff_ffff),
            (mkc::LR, 1),
            (mkc::LW, 1),
        ];
        let output = fixture::create(function, mkey::create, cmd::CONTEXT, &fields, &[])?;
        Ok(cmd::OBJECT.get32(&output) << 8)
    }

    #[test]
    fn a_key_counts_from_where_it_begins_and_holds_its_piece() {
        let mut function = fixture::function();
        let pd = function.objects.pds.insert(()).expect("a domain");
        let start = allocate(&mut function, 1, 128, 0).expect("room");
        for (start, length) in [(start - 4, 8), (start + 64, 65), (START, 4), (0, 4)] {
            let refused = key(&mut function, pd, start, length);
            assert_eq!(refused, Err(Status::BadParameter), "{start:#x}");
        }
        let key = key(&mut function, pd, start + 64, 16).expect("a key");
        let by = User { qpn: 5, pd };
        let place = |address, length| Place {
            key,
            address,
            length,
        };
        let bytes = [7; 16];
        let access = Access::LocalWrite;
        let all = translate::write(&function, by, place(0, 16), access, &bytes);
        assert_eq!(all, Ok(()));
        for beyond in [place(1, 16), place(start + 64, 4), place(u64::MAX, 2)] {
            let refused = translate::write(&function, by, beyond, access, &bytes);
            assert_eq!(refused, Err(KeyError::Range), "{beyond:x?}");
        }
        let mut word = [0; 4];
        for (at, expected) in [(60, [0; 4]), (64, [7; 4]), (76, [7; 4]), (80, [0; 4])] {
            read(&function, start + at, &mut word);
            assert_eq!(word, expected, "{at}");
        }
        assert!(function.report.take().is_empty());
        assert_eq!(free(&mut function, start, 128), Err(Status::ResourceBusy));
        function.objects.mkeys.remove(key >> 8).expect("the key");
        assert_eq!(free(&mut function, start, 128), Ok(()));
    }

    /// Catches a dma-buf of such memory that leads elsewhere, or beyond what is allocated.
    #[test]
    fn a_list_of_pages_reaches_what_is_allocated_by_its_bus_address() {
        const BAR0: u64 = 0xfe_0000_0000;
        let mut function = fixture::function();
        let pd = function.objects.pds.insert(()).expect("a domain");
        let start = allocate(&mut function, 1, 128, 0).expect("room");
        let fields = [
            (mkc::PD, u64::from(pd)),
            (mkc::LEN, PAGE),
            (mkc::LOG_PAGE_SIZE, ADAPTER_PAGE_SHIFT.into()),
            (mkc::ACCESS_MODE_1_0, 1),
            (mkc::QPN, 0xff_ffff),
            (mkc::LR, 1),
            (mkc::LW, 1),
        ];
        let pages = [BAR0 + START];
        let output = fixture::create(&mut function, mkey::create, cmd::CONTEXT, &fields, &pages);
        let key = cmd::OBJECT.get32(&output.expect("a key")) << 8;
        let write = |function: &Function, address, length| {
            let place = Place {
                key,
                address,
                length,
            };
            let bytes = vec![7; length as usize];
            let by = User { qpn: 5, pd };
            translate::write(function, by, place, Access::LocalWrite, &bytes)
        };
        assert_eq!(
            write(&function, PAGE - 128, 128),
            Err(KeyError::Unmapped),
            "without an address"
        );
        function.bar0 = Some(BAR0);
        assert_eq!(write(&function, PAGE - 128, 128), Ok(()));
        assert_eq!(write(&function, PAGE - 132, 8), Err(KeyError::Unmapped));
        let mut word = [0; 4];
        read(&function, start, &mut word);
        assert_eq!(word, [7; 4]);
    }
}
