//! Mapping rxe's rings: pages of the kernel's, reached through the command file by an offset.
//!
//! The kernel maps each ring once only and only for the context that created it (`rxe_mmap` in
//! `drivers/infiniband/sw/rxe/rxe_mmap.c`); a second attempt is EINVAL.

use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use uverbs_uapi::rxe::Mminfo;

use crate::error::{Error, Result, Subject, Verb};

/// A ring's memory, unmapped when dropped.
#[derive(Debug)]
pub(super) struct RingMap {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping is owned, and it is as good in one thread as in another.
unsafe impl Send for RingMap {}
// SAFETY: shared references give out the address and the length only.
unsafe impl Sync for RingMap {}

impl RingMap {
    /// Maps the ring that `info` describes; `what` names it in errors.
    pub(super) fn new(fd: BorrowedFd<'_>, info: Mminfo, what: &'static str) -> Result<Self> {
        let length = info.size as usize;
        if length == 0 {
            return Err(Error::malformed(
                Verb::MapQueue,
                Subject::the(what),
                "the ring has no bytes",
            ));
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let base = unsafe {
            mmap(
                ptr::null_mut(),
                length,
                protection,
                MapFlags::SHARED,
                fd,
                info.offset,
            )
        }
        .map_err(|errno| Error::os(Verb::MapQueue, Subject::the(what), errno))?;
        let base = NonNull::new(base.cast::<u8>()).ok_or_else(|| {
            Error::malformed(Verb::MapQueue, Subject::the(what), "mapped at address 0")
        })?;
        Ok(Self { base, length })
    }

    /// The first byte.
    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes.
    pub(super) fn length(&self) -> usize {
        self.length
    }
}

impl Drop for RingMap {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nobody uses it any more: rings own their map and go first.
        // An error would mean that it was not mapped, and there is nobody to tell.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.length) };
    }
}
