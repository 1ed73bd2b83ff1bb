//! The guest's memory, as the device sees it: the pieces that QEMU maps for DMA, found by bus address.
//!
//! The guest writes this memory while the model reads it, as with any device. So it is reached by copies
//! only, never by references.

use std::fs::File;
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use memmap2::{MmapOptions, MmapRaw};

/// Bus addresses that no mapped memory covers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Unmapped {
    /// Where the access began.
    pub address: u64,
    /// How long it was.
    pub length: usize,
}

/// One piece of memory.
#[derive(Debug)]
struct Piece {
    address: u64,
    map: MmapRaw,
}

/// All mapped pieces.
#[derive(Debug, Default)]
pub struct GuestMemory {
    pieces: Vec<Piece>,
}

impl GuestMemory {
    /// Maps a piece of a file at a bus address.
    ///
    /// # Errors
    /// If the file cannot be mapped.
    pub fn map(&mut self, file: &File, offset: u64, address: u64, size: u64) -> io::Result<()> {
        let length = usize::try_from(size).map_err(io::Error::other)?;
        let map = MmapOptions::new()
            .offset(offset)
            .len(length)
            .map_raw(file)?;
        self.pieces.push(Piece { address, map });
        Ok(())
    }

    /// Unmaps what begins in this range.
    pub fn unmap(&mut self, address: u64, size: u64) {
        let range = address..address.saturating_add(size);
        self.pieces.retain(|piece| !range.contains(&piece.address));
    }

    /// Copies from the guest.
    ///
    /// # Errors
    /// If the range is not covered by one piece.
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Unmapped> {
        let source = self.locate(address, bytes.len())?;
        fence(Ordering::Acquire);
        // SAFETY: `locate` has checked that the mapping holds that many bytes from there on; the destination
        // is a separate buffer of this process. The guest may write meanwhile: no reference to its memory is
        // made, and any bytes are valid.
        unsafe { ptr::copy_nonoverlapping(source.cast_const(), bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    /// Copies to the guest.
    ///
    /// # Errors
    /// As [`GuestMemory::read`].
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Unmapped> {
        let destination = self.locate(address, bytes.len())?;
        // SAFETY: as in `read`, with the roles changed; the mapping is writable.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), destination, bytes.len()) };
        fence(Ordering::Release);
        Ok(())
    }

    /// Reads a big-endian word of 32 bits.
    ///
    /// # Errors
    /// As [`GuestMemory::read`].
    pub fn read_be32(&self, address: u64) -> Result<u32, Unmapped> {
        let mut bytes = [0; 4];
        self.read(address, &mut bytes)?;
        Ok(u32::from_be_bytes(bytes))
    }

    /// Replaces 8 bytes, taken as a number of the host's order, by what the function makes of them; gives the
    /// old value.
    ///
    /// # Errors
    /// As [`GuestMemory::read`], and if the address is not a multiple of 8.
    pub fn update(&self, address: u64, mut new: impl FnMut(u64) -> u64) -> Result<u64, Unmapped> {
        let place = self.locate(address, 8)?.cast::<u64>();
        if !place.is_aligned() {
            return Err(Unmapped { address, length: 8 });
        }
        // SAFETY: `locate` has checked the 8 bytes, they are aligned, and the guest changes them by its
        // processor's own atomics only, or accepts what a race gives.
        let atomic = unsafe { AtomicU64::from_ptr(place) };
        atomic
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |old| Some(new(old)))
            .map_err(|_| Unmapped { address, length: 8 })
    }

    fn locate(&self, address: u64, length: usize) -> Result<*mut u8, Unmapped> {
        let found = self.pieces.iter().find_map(|piece| {
            let offset = usize::try_from(address.checked_sub(piece.address)?).ok()?;
            let end = offset.checked_add(length)?;
            (end <= piece.map.len()).then(|| piece.map.as_mut_ptr().wrapping_add(offset))
        });
        found.ok_or(Unmapped { address, length })
    }

    /// Memory that is not a guest's.
    ///
    /// # Panics
    /// If there is none left.
    pub fn anonymous(address: u64, size: usize) -> Self {
        let map = memmap2::MmapMut::map_anon(size).expect("anonymous memory");
        let map = MmapRaw::from(map);
        Self {
            pieces: vec![Piece { address, map }],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_access_beyond_the_end_is_refused() {
        let memory = GuestMemory::anonymous(0x1000, 0x1000);
        assert_eq!(memory.write(0x1ffc, &[1; 4]), Ok(()));
        let beyond = Unmapped {
            address: 0x1ffd,
            length: 4,
        };
        assert_eq!(memory.write(0x1ffd, &[1; 4]), Err(beyond));
        assert!(memory.read(u64::MAX, &mut [0; 2]).is_err());
    }

    #[test]
    fn an_update_gives_the_old_value() {
        let memory = GuestMemory::anonymous(0, 0x1000);
        assert_eq!(memory.update(8, |old| old + 5), Ok(0));
        assert_eq!(memory.update(8, |old| old + 5), Ok(5));
        assert!(memory.update(4, |old| old).is_err());
    }
}
