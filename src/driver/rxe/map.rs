//! Mapping rxe's rings: pages of the kernel's, reached through the command file by an offset.
//!
//! The kernel maps each ring once only and only for the context that created it (`rxe_mmap` in
//! `drivers/infiniband/sw/rxe/rxe_mmap.c`); a second attempt is EINVAL. The mapping is shared, so a fork leaves
//! parent and child with the same pages rather than with copies.

use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use rustix::param::page_size;
use uverbs_uapi::rxe::Mminfo;

use crate::alloc::{Buffers, Grant, Purpose, ResourceType};
use crate::error::{Error, Result, Subject, Verb};

/// A kind of ring: for errors, and for the allocator.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    pub(super) name: &'static str,
    pub(super) resource: ResourceType,
}

impl Kind {
    /// An error about a ring of this kind that makes no sense.
    pub(super) fn malformed(self, what: impl std::fmt::Display) -> Error {
        Error::malformed(Verb::MapQueue, Subject::the(self.name), what.to_string())
    }
}

/// A ring's memory, unmapped when dropped.
#[derive(Debug)]
pub(super) struct RingMap {
    base: NonNull<u8>,
    length: usize,
    /// The user's addresses that it lies over, if it does.
    place: Option<Grant>,
}

// SAFETY: the mapping is owned, and it is as good in one thread as in another.
unsafe impl Send for RingMap {}
// SAFETY: shared references give out the address and the length only.
unsafe impl Sync for RingMap {}

const PROTECTION: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

impl RingMap {
    /// Maps the ring that `info` describes, where `buffers` says if there are any.
    pub(super) fn new(
        fd: BorrowedFd<'_>,
        info: Mminfo,
        kind: Kind,
        buffers: Option<&Buffers>,
    ) -> Result<Self> {
        let length = (info.size as usize).next_multiple_of(page_size());
        if length == 0 {
            return Err(kind.malformed("the ring has no bytes"));
        }
        let place = match buffers {
            Some(buffers) => {
                buffers.allocate(length, page_size(), kind.resource, Purpose::Place)?
            }
            None => None,
        };
        let (address, fixed) = match &place {
            Some(place) => (place.address().as_ptr(), MapFlags::FIXED),
            None => (ptr::null_mut(), MapFlags::empty()),
        };
        // The kernel compares with the ring's own length, which need not be whole pages.
        let size = info.size as usize;
        // SAFETY: without a place, a new mapping at an address of the kernel's choice touches no memory of ours.
        // With one, the allocator promised these whole pages to this ring alone, and that nobody relies on them.
        let mapped = unsafe {
            mmap(
                address.cast(),
                size,
                PROTECTION,
                MapFlags::SHARED | fixed,
                fd,
                info.offset,
            )
        };
        let base = mapped.map_err(|errno| {
            if let Some(place) = &place {
                fill_hole(place, length);
            }
            map_error(kind, errno, place.as_ref())
        })?;
        let base =
            NonNull::new(base.cast::<u8>()).ok_or_else(|| kind.malformed("mapped at address 0"))?;
        Ok(Self {
            base,
            length,
            place,
        })
    }

    /// The first byte.
    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes, in whole pages.
    pub(super) fn length(&self) -> usize {
        self.length
    }
}

/// Maps fresh pages where a place has none: a `MAP_FIXED` that fails may have removed what was there, and the
/// allocator is to get addresses back that can be used.
fn fill_hole(place: &Grant, length: usize) {
    let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: `FIXED_NOREPLACE` never touches a mapping that is there; if one is, this fails and all is well.
    let _ = unsafe { mmap_anonymous(place.address().as_ptr().cast(), length, PROTECTION, flags) };
}

fn map_error(kind: Kind, errno: Errno, place: Option<&Grant>) -> Error {
    let error = Error::os(Verb::MapQueue, Subject::the(kind.name), errno);
    match place {
        Some(place) => error.with_detail(format!(
            "the allocator's place at {:p} may not be one that can be mapped over, such as a part of a huge page",
            place.address()
        )),
        None => error,
    }
}

impl Drop for RingMap {
    fn drop(&mut self) {
        let address = self.base.as_ptr().cast();
        // An error would mean that the range was not mapped, or that the kernel has no memory for a mapping; the
        // ring's pages then stay where they are, which harms nobody, and there is nobody to tell.
        match self.place {
            None => {
                // SAFETY: the mapping is ours and nobody uses it any more: rings point into it and go first.
                let _ = unsafe { munmap(address, self.length) };
            }
            Some(_) => {
                let flags = MapFlags::PRIVATE | MapFlags::FIXED;
                // SAFETY: as above; the range is replaced in one step, so the addresses stay the allocator's
                // throughout, and the grant gives them back after this.
                let _ = unsafe { mmap_anonymous(address, self.length, PROTECTION, flags) };
            }
        }
    }
}
