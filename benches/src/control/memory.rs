//! Memory to register: anonymous pages, present and of a known size.

use std::io;
use std::ptr::{self, NonNull};

use anyhow::{Context, Result};

/// An anonymous mapping.
pub(super) struct Mapping {
    address: NonNull<u8>,
    length: usize,
}

impl Mapping {
    /// Maps so many bytes and makes their pages present.
    ///
    /// # Errors
    /// If there is not so much memory, or not so many huge pages are reserved.
    pub(super) fn new(length: usize, huge: bool) -> Result<Self> {
        let huge_flag = if huge { libc::MAP_HUGETLB } else { 0 };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE | huge_flag;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let address = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                -1,
                0,
            )
        };
        let kind = if huge { "of huge pages" } else { "of memory" };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error())
                .with_context(|| format!("mapping {length} bytes {kind}"));
        }
        let address = NonNull::new(address.cast::<u8>()).context("mapped at address 0")?;
        if !huge {
            // Transparent huge pages come and go, and with them the number of pages to pin.
            // SAFETY: advice about our own mapping.
            unsafe { libc::madvise(address.as_ptr().cast(), length, libc::MADV_NOHUGEPAGE) };
        }
        Ok(Self { address, length })
    }

    pub(super) fn address(&self) -> NonNull<u8> {
        self.address
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and regions over it are gone.
        unsafe { libc::munmap(self.address.as_ptr().cast(), self.length) };
    }
}
