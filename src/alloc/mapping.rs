//! Memory from mmap(2) that is unmapped when dropped: what the allocators here cut their buffers from.

use std::io;
use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

/// A range of addresses that was mapped and is owned.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping is owned, and it is as good in one thread as in another.
unsafe impl Send for Mapping {}
// SAFETY: shared references give out the address and the length only.
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
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), length, protection, flags)? };
        // SAFETY: it was just mapped, with this length.
        unsafe { Self::own(base.cast(), length) }
    }

    /// Takes over a mapping.
    ///
    /// # Safety
    ///
    /// The range is mapped, and nobody else unmaps it.
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

    /// The byte at an address in it, with the right to reach all of it.
    pub(crate) fn at(&self, address: usize) -> NonNull<u8> {
        debug_assert!((self.start()..=self.end()).contains(&address));
        // SAFETY: the address lies in the mapping or just after its end, which callers ensure.
        unsafe { self.base.add(address - self.start()) }
    }

    /// Makes the pages from `start` on accessible.
    pub(crate) fn open(&self, start: usize, length: usize) -> io::Result<()> {
        let flags = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: the pages are the mapping's own, and allowing access takes nothing from anybody.
        let opened = unsafe { mprotect(self.at(start).as_ptr().cast(), length, flags) };
        opened.map_err(io::Error::from)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is owned, and all memory in it that was lent has come back. An error would mean
        // that it was not mapped, and could not be returned from here.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.length) };
    }
}
