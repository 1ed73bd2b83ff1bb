//! Memory from mmap(2) that is unmapped when dropped. The allocators here cut their buffers from it.

use std::io;
use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

/// A range of addresses that was mapped, and that this value owns.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping is owned, and any thread may use and unmap it.
unsafe impl Send for Mapping {}
// SAFETY: shared references only give the address and the length.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps zeroed memory that a fork shares rather than copies, with additional `flags`.
    pub(crate) fn shared(length: usize, flags: MapFlags) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        Self::anonymous(length, protection, flags)
    }

    /// Reserves addresses; touching them faults.
    pub(crate) fn reserved(length: usize) -> io::Result<Self> {
        Self::anonymous(length, ProtFlags::empty(), MapFlags::NORESERVE)
    }

    fn anonymous(length: usize, protection: ProtFlags, flags: MapFlags) -> io::Result<Self> {
        let flags = MapFlags::SHARED | flags;
        // SAFETY: a new mapping at an address that the kernel chooses touches no existing memory.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), length, protection, flags)? };
        // SAFETY: it was just mapped, with this length.
        unsafe { Self::own(base.cast(), length) }
    }

    /// Takes over a mapping.
    ///
    /// # Safety
    ///
    /// The range is mapped, and nothing else unmaps it.
    pub(crate) unsafe fn own(base: *mut u8, length: usize) -> io::Result<Self> {
        let base = NonNull::new(base).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { base, length })
    }

    /// The first byte.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// The address of the first byte.
    pub(crate) fn start(&self) -> usize {
        self.base.addr().get()
    }

    /// The address after the last byte.
    pub(crate) fn end(&self) -> usize {
        self.start() + self.length
    }

    /// The byte at an address in it, as a pointer that may reach all of it.
    pub(crate) fn at(&self, address: usize) -> NonNull<u8> {
        debug_assert!((self.start()..=self.end()).contains(&address));
        // SAFETY: the address lies in the mapping or just after its end, which callers ensure.
        unsafe { self.base.add(address - self.start()) }
    }

    /// Makes the pages from `start` on accessible.
    pub(crate) fn open(&self, start: usize, length: usize) -> io::Result<()> {
        let flags = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: the pages are the mapping's own, and allowing access takes no access away.
        let opened = unsafe { mprotect(self.at(start).as_ptr().cast(), length, flags) };
        opened.map_err(io::Error::from)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is owned, and all memory in it that was lent has been returned. An error would
        // mean that it was not mapped, and a drop cannot return one.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.length) };
    }
}
