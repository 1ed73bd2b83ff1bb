//! The buffer of a queue: a list of pages and an offset into the first.

use std::sync::Arc;

use vfio_model::memory::{GuestMemory, Unmapped};

/// The device's own pages have 4 KiB; sizes of pages are given as powers of two of these.
pub(crate) const ADAPTER_PAGE_SHIFT: u32 = 12;

/// A queue's buffer.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Pages {
    shift: u32,
    offset: u64,
    pages: Vec<u64>,
    /// Keeps the user's memory that they are of.
    of: Option<Arc<()>>,
}

impl Pages {
    /// Reads the list from a command. The unit of `page_offset` is a 64th of the size of the pages.
    pub(crate) fn from_command(list: &[u8], log_page_size: u32, page_offset: u64) -> Self {
        let shift = log_page_size + ADAPTER_PAGE_SHIFT;
        Self {
            shift,
            offset: page_offset << (shift - 6),
            pages: addresses(list),
            of: None,
        }
    }

    /// Those of a user's memory, of so many bytes each as a binary logarithm, from that byte of the first on.
    pub(crate) fn from_byte(list: &[u8], shift: u32, offset: u64) -> Self {
        Self {
            shift,
            offset,
            pages: addresses(list),
            of: None,
        }
    }

    /// What lies so many bytes on, which keeps the memory.
    pub(crate) fn part(&self, offset: u64, of: &Arc<()>) -> Self {
        Self {
            offset: self.offset.saturating_add(offset),
            of: Some(Arc::clone(of)),
            ..self.clone()
        }
    }

    /// Whether so many bytes lie within the pages.
    pub(crate) fn holds(&self, bytes: u64) -> bool {
        let end = self.offset.checked_add(bytes);
        end.is_some_and(|end| end <= (self.pages.len() as u64) << self.shift)
    }

    /// Copies from the buffer.
    ///
    /// # Errors
    /// If it goes beyond the pages, or these are not memory.
    pub(crate) fn read(
        &self,
        memory: &GuestMemory,
        at: u64,
        bytes: &mut [u8],
    ) -> Result<(), Unmapped> {
        let mut done = 0;
        while done < bytes.len() {
            let (address, run) = self.locate(at + done as u64, bytes.len() - done)?;
            memory.read(address, &mut bytes[done..done + run])?;
            done += run;
        }
        Ok(())
    }

    /// Copies to the buffer.
    ///
    /// # Errors
    /// As [`Pages::read`].
    pub(crate) fn write(
        &self,
        memory: &GuestMemory,
        at: u64,
        bytes: &[u8],
    ) -> Result<(), Unmapped> {
        let mut done = 0;
        while done < bytes.len() {
            let (address, run) = self.locate(at + done as u64, bytes.len() - done)?;
            memory.write(address, &bytes[done..done + run])?;
            done += run;
        }
        Ok(())
    }

    /// The bus address of a byte, and how many of the wanted ones follow it in the same page.
    pub(crate) fn locate(&self, at: u64, wanted: usize) -> Result<(u64, usize), Unmapped> {
        let at = at.saturating_add(self.offset);
        let unmapped = Unmapped {
            address: at,
            length: wanted,
        };
        let index = usize::try_from(at >> self.shift).map_err(|_| unmapped)?;
        let page = self.pages.get(index).ok_or(unmapped)?;
        let within = at & ((1 << self.shift) - 1);
        let left = (1 << self.shift) - within;
        Ok((
            page + within,
            wanted.min(usize::try_from(left).unwrap_or(wanted)),
        ))
    }
}

/// The addresses in a list of pages, without the flags in their low bits.
pub(crate) fn addresses(list: &[u8]) -> Vec<u64> {
    let (entries, _) = list.as_chunks::<8>();
    entries
        .iter()
        .map(|entry| u64::from_be_bytes(*entry) & !0xfff)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(pages: &[u64]) -> Vec<u8> {
        pages.iter().flat_map(|page| page.to_be_bytes()).collect()
    }

    #[test]
    fn the_unit_of_the_offset_grows_with_the_pages() {
        let small = Pages::from_command(&list(&[0x10000]), 0, 3);
        assert_eq!(small.locate(0, 8), Ok((0x10000 + 3 * 64, 8)));
        let large = Pages::from_command(&list(&[0x10000]), 4, 3);
        assert_eq!(large.locate(0, 8), Ok((0x10000 + 3 * 1024, 8)));
    }

    #[test]
    fn a_copy_goes_on_in_the_next_page() -> Result<(), Unmapped> {
        let memory = GuestMemory::anonymous(0, 0x4000);
        let pages = Pages::from_command(&list(&[0x2003, 0x1000]), 0, 0);
        pages.write(&memory, 0xffe, &[1, 2, 3, 4])?;
        let mut bytes = [0; 2];
        memory.read(0x1000, &mut bytes)?;
        assert_eq!(bytes, [3, 4]);
        assert!(pages.write(&memory, 0x1ffe, &[0; 4]).is_err());
        Ok(())
    }
}
