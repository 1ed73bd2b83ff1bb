//! Pages of the command file: rings in memory of the kernel or the device, and registers.

use std::fmt;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::param::page_size;

use crate::command::{CommandFd, Mapped};
use crate::error::{Error, Result, Subject, Verb};

/// A mapping, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Map {
    base: NonNull<u8>,
    length: usize,
    mapped: Mapped,
}

// SAFETY: the mapping is owned, and any thread may use it.
unsafe impl Send for Map {}
// SAFETY: shared references only give the address and the length.
unsafe impl Sync for Map {}

impl Map {
    /// Maps whole pages for `length` bytes at an offset of the command file. `what` names them in errors.
    pub(crate) fn new(
        fd: &CommandFd,
        what: &'static str,
        offset: u64,
        length: usize,
        access: ProtFlags,
    ) -> Result<Self> {
        let subject = || Subject::the(what);
        Self::by(Verb::MapQueue, subject, fd, offset, length, access)
    }

    /// As [`new`](Self::new), by another verb.
    pub(crate) fn by(
        verb: Verb,
        subject: impl Fn() -> Subject,
        fd: &CommandFd,
        offset: u64,
        length: usize,
        access: ProtFlags,
    ) -> Result<Self> {
        let malformed =
            |why: fmt::Arguments<'_>| Error::malformed(verb, subject(), why.to_string());
        let length = match length.checked_next_multiple_of(page_size()) {
            None | Some(0) => return Err(malformed(format_args!("{length} bytes"))),
            Some(length) => length,
        };
        // SAFETY: a new mapping at an address that the kernel chooses touches no existing memory.
        let base = unsafe {
            mmap(
                ptr::null_mut(),
                length,
                access,
                MapFlags::SHARED,
                fd.as_fd(),
                offset,
            )
        };
        let base = base.map_err(|errno| Error::os(verb, subject(), errno))?;
        let base = NonNull::new(base.cast::<u8>())
            .ok_or_else(|| malformed(format_args!("mapped at address 0")))?;
        let mapped = fd.mapped(base, length);
        Ok(Self {
            base,
            length,
            mapped,
        })
    }

    /// Memory of this process that plays a device's.
    #[cfg(any(test, feature = "fuzz"))]
    pub(crate) fn of_memory(length: usize) -> Self {
        let length = length.max(1).next_multiple_of(page_size());
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: as in `new`.
        let base = unsafe {
            rustix::mm::mmap_anonymous(ptr::null_mut(), length, access, MapFlags::PRIVATE)
        };
        let base = NonNull::new(base.unwrap().cast()).unwrap();
        Self {
            base,
            length,
            mapped: Mapped::default(),
        }
    }

    /// The first byte.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes.
    pub(crate) fn length(&self) -> usize {
        self.length
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        self.mapped.end();
        // SAFETY: the mapping is owned, and nothing points into it any more. An error would mean that it was
        // not mapped; there is nobody to report it to.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.length) };
    }
}
