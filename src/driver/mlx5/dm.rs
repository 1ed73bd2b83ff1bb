//! Device memory (MEMIC): memory in the device that the kernel allocates, and that this process maps.
//!
//! The processor reaches it by loads and stores of 4 bytes: the device takes no others. The mapping combines
//! writes, so stores are flushed, or else a request could overtake them.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::ProtFlags;
use uverbs_uapi::handle::DmHandle;
use uverbs_uapi::mlx5::MmapCmd;

use super::command::{AllocMemic, Place, QueryDm};
use super::map::Map;
use super::{barrier, contract};
use crate::command::{AllocDm, Command, CommandFd};
use crate::error::{Error, Result, Subject, Verb};
use crate::work::{CopyError, OutOfBounds};

/// Bytes of a word.
const WORD: usize = size_of::<u32>();
/// Bytes of the units in which the kernel allocates.
const UNIT: u64 = 64;
/// Bits of the low part of an index in a file offset that is counted in pages. Above it comes the kind of
/// page, in as many bits, and then the rest of the index.
const INDEX_BITS: u32 = 8;

/// Allocates device memory and maps it.
pub(super) fn alloc(fd: &CommandFd, command: &AllocDm) -> Result<(DmHandle, Dm)> {
    // Linux counts pages in 32 bits, and would allocate less than it says.
    if u32::try_from(command.length).is_err() {
        let why = "no device has 4 GiB or more";
        return Err(Error::invalid(Verb::AllocDm, command.subject(), why));
    }
    let (handle, place) = fd.execute(&AllocMemic(*command))?;
    let subject = || Subject::numbered("DM", handle.0.into());
    match Dm::map(fd, Verb::AllocDm, subject, place, command.length) {
        Ok(memory) => Ok((handle, memory)),
        Err(error) => {
            fd.abandon(handle);
            Err(error)
        }
    }
}

/// Maps device memory that was allocated in the context, by whomever.
pub(super) fn import(fd: &CommandFd, handle: DmHandle) -> Result<Dm> {
    let (place, length) = fd.execute(&QueryDm(handle))?;
    let subject = || Subject::numbered("DM", handle.0.into());
    Dm::map(fd, Verb::ImportDm, subject, place, length)
}

/// A piece of device memory, mapped.
#[derive(Debug)]
pub(crate) struct Dm {
    map: Map,
    /// Where it begins in the mapping, at a multiple of a word.
    start: usize,
    /// Bytes, not more than the mapping has from there on.
    length: usize,
    /// Where the command file has the pages, in bytes.
    file_offset: u64,
}

impl Dm {
    fn map(
        fd: &CommandFd,
        verb: Verb,
        subject: impl Fn() -> Subject,
        place: Place,
        length: u64,
    ) -> Result<Self> {
        let page = rustix::param::page_size();
        let malformed = |what| Error::malformed(verb, subject(), what);
        let shape = Shape::new(place, length, page)
            .ok_or_else(|| malformed(format!("{length} bytes of device memory at {place:?}")))?;
        let file_offset = file_offset(place.page) * page as u64;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let map = Map::by(verb, &subject, fd, file_offset, shape.mapped, access)
            .map_err(|error| error.with_detail("it could not be mapped"))?;
        Ok(shape.of(map, file_offset))
    }

    /// Its first byte, for a program that loads and stores by itself: 4 bytes at a time, aligned.
    #[cfg(all(feature = "c-abi", feature = "mlx5-direct"))]
    pub(crate) fn first(&self) -> NonNull<u8> {
        // SAFETY: the piece begins in the mapping.
        unsafe { self.map.base().add(self.start) }
    }

    /// The first word of the `length` bytes from the offset on.
    fn words(&self, offset: u64, length: usize) -> Result<NonNull<u32>, CopyError> {
        let end = offset.saturating_add(length as u64);
        if end > self.length as u64 {
            return Err(CopyError::OutOfBounds(OutOfBounds {
                start: offset,
                end,
                length: self.length as u64,
            }));
        }
        // It is at most the length, so it fits.
        let at = offset as usize;
        if !at.is_multiple_of(WORD) || !length.is_multiple_of(WORD) {
            return Err(CopyError::Unaligned {
                offset,
                length,
                word: WORD,
            });
        }
        // SAFETY: the bytes lie in the mapping, as was just checked.
        Ok(unsafe { self.map.base().add(self.start + at) }.cast())
    }
}

impl contract::DeviceMemory for Dm {
    fn length(&self) -> u64 {
        self.length as u64
    }

    fn file_offset(&self) -> u64 {
        self.file_offset
    }

    fn start(&self) -> u64 {
        self.start as u64
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), CopyError> {
        let from = self.words(offset, into.len())?;
        barrier::memory_before_device_loads();
        let (words, _) = into.as_chunks_mut::<WORD>();
        for (index, word) in words.iter_mut().enumerate() {
            // SAFETY: `words` has checked that they lie in the mapping, aligned.
            let from = unsafe { AtomicU32::from_ptr(from.add(index).as_ptr()) };
            // Relaxed: nothing orders the device with the processor here; other threads may copy at the same
            // time.
            *word = from.load(Ordering::Relaxed).to_ne_bytes();
        }
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), CopyError> {
        let to = self.words(offset, bytes.len())?;
        let (words, _) = bytes.as_chunks::<WORD>();
        for (index, word) in words.iter().enumerate() {
            // SAFETY: as in `read`.
            let to = unsafe { AtomicU32::from_ptr(to.add(index).as_ptr()) };
            // Relaxed: as in `read`.
            to.store(u32::from_ne_bytes(*word), Ordering::Relaxed);
        }
        barrier::flush_write_combining();
        Ok(())
    }
}

/// The offset in the file of the pages with that index, in pages (`MLX5_IB_MMAP_CMD_SHIFT` in the kernel).
fn file_offset(index: u16) -> u64 {
    let (index, command) = (u64::from(index), u64::from(MmapCmd::DEVICE_MEM.0));
    let low = index & ((1 << INDEX_BITS) - 1);
    (index >> INDEX_BITS) << (2 * INDEX_BITS) | command << INDEX_BITS | low
}

/// How a piece lies in its mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    mapped: usize,
    start: usize,
    length: usize,
}

impl Shape {
    /// The mapping must be as long as the kernel's. `None` if the piece does not lie in it.
    fn new(place: Place, length: u64, page: usize) -> Option<Self> {
        let units = length.checked_next_multiple_of(UNIT)?;
        let mapped = usize::try_from(units)
            .ok()?
            .checked_next_multiple_of(page)?;
        let start = usize::try_from(place.offset).ok()?;
        let length = usize::try_from(length).ok()?;
        let fits = start.checked_add(length)? <= mapped && start.is_multiple_of(WORD);
        fits.then_some(Self {
            mapped,
            start,
            length,
        })
    }

    fn of(self, map: Map, file_offset: u64) -> Dm {
        Dm {
            map,
            start: self.start,
            length: self.length,
            file_offset,
        }
    }
}

#[cfg(test)]
impl Dm {
    /// A piece of memory that plays the device's.
    fn of_memory(start: usize, length: usize) -> Self {
        let mapped = rustix::param::page_size();
        let shape = Shape {
            mapped,
            start,
            length,
        };
        shape.of(Map::of_memory(mapped), 0)
    }
}

#[cfg(test)]
mod tests {
    use super::contract::DeviceMemory;
    use super::*;

    /// Would catch a mapping that the kernel refuses for its length, and a piece that reaches beyond it.
    #[test]
    fn a_mapping_has_the_kernels_length() {
        let shape = |offset, length| Shape::new(Place { offset, page: 0 }, length, 4096);
        let found = |mapped, start, length| {
            Some(Shape {
                mapped,
                start,
                length,
            })
        };
        assert_eq!(shape(0, 1), found(4096, 0, 1));
        assert_eq!(shape(4032, 64), found(4096, 4032, 64));
        assert_eq!(shape(0, 4096), found(4096, 0, 4096));
        assert_eq!(shape(0, 4097), found(8192, 0, 4097));
        assert_eq!(shape(4096, 1), None);
        assert_eq!(shape(64, 4096), None);
        assert_eq!(shape(2, 64), None);
        assert_eq!(shape(u64::MAX, 64), None);
        assert_eq!(shape(0, u64::MAX), None);
    }

    /// Would catch an index whose high part is lost, or passes for another kind of page.
    #[test]
    fn the_index_goes_around_the_kind() {
        assert_eq!(file_offset(0), 0x800);
        assert_eq!(file_offset(0xff), 0x8ff);
        assert_eq!(file_offset(0x1234), 0x12_0834);
    }

    /// Would catch a copy beside the piece, and one of bytes beyond it.
    #[test]
    fn copies_stay_within_the_piece() {
        let memory = Dm::of_memory(64, 70);
        let bytes: Vec<u8> = (1..=68).collect();
        memory.write(0, &bytes).unwrap();
        let mut found = [0; 8];
        memory.read(60, &mut found).unwrap();
        assert_eq!(found, [61, 62, 63, 64, 65, 66, 67, 68]);
        // SAFETY: the mapping is a page.
        let beside = |at| unsafe { memory.map.base().add(at).read_volatile() };
        assert_eq!((beside(63), beside(64), beside(64 + 68)), (0, 1, 0));
        for (offset, length) in [(68, 4), (72, 0), (0, 72), (u64::MAX, 4), (u64::MAX - 3, 8)] {
            let refused = memory.write(offset, &vec![0; length]);
            assert!(
                matches!(refused, Err(CopyError::OutOfBounds(_))),
                "{offset}: {refused:?}"
            );
        }
        for (offset, length) in [(2, 4), (0, 3), (67, 1)] {
            let refused = memory.read(offset, &mut vec![0; length]);
            assert!(
                matches!(refused, Err(CopyError::Unaligned { word: 4, .. })),
                "{offset}: {refused:?}"
            );
        }
        assert_eq!(memory.read(68, &mut []), Ok(()));
    }
}
