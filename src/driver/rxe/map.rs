//! Mapping rxe's rings: the kernel's pages, mapped through the command file by offset.
//!
//! The kernel maps each ring only once, and only for the context that created it (`rxe_mmap` in
//! `drivers/infiniband/sw/rxe/rxe_mmap.c`); a second attempt is EINVAL. The mapping is shared, so a fork
//! leaves parent and child with the same pages rather than with copies.

use std::fmt;
use std::mem;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use arrayvec::ArrayVec;
use rustix::io::Errno;
use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap, mmap_anonymous, mremap_fixed, munmap};
use rustix::param::page_size;
use uverbs_uapi::rxe::{Mminfo, QueueBuf};

use super::ring::{Indices, Producer};
use crate::alloc::{Buffers, Grant, Purpose, ResourceType};
use crate::command::{CommandFd, Mapped};
use crate::error::{Error, Result, Subject, Verb};
use crate::work::{LocalKey, Progress};

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
    /// The ring's own length, which need not be whole pages. The kernel rounds it up everywhere but in mmap,
    /// where it compares it.
    length: usize,
    /// The user's addresses at which the ring is mapped, if any. Boxed, since few rings have them and the
    /// others should be small to move.
    place: Option<Box<Grant>>,
    mapped: Mapped,
}

// SAFETY: the mapping is owned, and any thread may use it.
unsafe impl Send for RingMap {}
// SAFETY: shared references only give the address and the length.
unsafe impl Sync for RingMap {}

const PROTECTION: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

impl RingMap {
    /// Maps the ring that `info` describes, at the place that `buffers` provides if there are buffers.
    #[inline]
    pub(super) fn new(
        fd: &CommandFd,
        info: Mminfo,
        kind: Kind,
        buffers: Option<&Buffers>,
    ) -> Result<Self> {
        let length = length(info, kind)?;
        let place = match buffers {
            Some(buffers) => place(buffers, length, kind)?,
            None => None,
        };
        // SAFETY: a new mapping at an address that the kernel chooses touches no existing memory.
        let mapped = unsafe {
            mmap(
                ptr::null_mut(),
                length,
                PROTECTION,
                MapFlags::SHARED,
                fd.as_fd(),
                info.offset,
            )
        };
        let base =
            mapped.map_err(|errno| Error::os(Verb::MapQueue, Subject::the(kind.name), errno))?;
        let base =
            NonNull::new(base.cast::<u8>()).ok_or_else(|| kind.malformed("mapped at address 0"))?;
        let map = Self {
            base,
            length,
            place: None,
            mapped: fd.mapped(base, length),
        };
        map.placed(place, kind)
    }

    /// Maps the ring that `info` describes into room that was made for it. If the kernel has made a ring of
    /// another size, maps it as [`RingMap::new`] does.
    pub(super) fn in_room(
        fd: &CommandFd,
        info: Mminfo,
        kind: Kind,
        room: Room,
        buffers: Option<&Buffers>,
    ) -> Result<Self> {
        let length = length(info, kind)?;
        if length.next_multiple_of(page_size()) != room.addresses.length {
            drop(room);
            return Self::new(fd, info, kind, buffers);
        }
        let Room { addresses, place } = room;
        let base = addresses.base;
        // Whether or not the kernel maps something there, it may have removed what was there.
        mem::forget(addresses);
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: the addresses are this ring's alone, and nobody uses what is there.
        let mapped = unsafe {
            mmap(
                base.as_ptr().cast(),
                length,
                PROTECTION,
                flags,
                fd.as_fd(),
                info.offset,
            )
        };
        mapped.map_err(|errno| Error::os(Verb::MapQueue, Subject::the(kind.name), errno))?;
        let map = Self {
            base,
            length,
            place: None,
            mapped: fd.mapped(base, length),
        };
        map.placed(place, kind)
    }

    fn placed(self, place: Option<Box<Grant>>, kind: Kind) -> Result<Self> {
        match place {
            Some(place) => self.move_to(place).map_err(|errno| over(kind, errno)),
            None => Ok(self),
        }
    }

    /// Moves the ring over a place.
    fn move_to(mut self, place: Box<Grant>) -> std::result::Result<Self, Errno> {
        let to = place.address();
        // Before it moves: others may map and note something at its old address then.
        self.mapped.moved(to);
        // SAFETY: the ring's mapping is ours and nobody points into it yet.
        let moved = unsafe { move_over(self.base, self.length, &place) };
        if moved.is_err() {
            // Before the place goes back: others may map and note something there then.
            self.mapped.end();
        }
        let place = kept(place, moved)?;
        self.base = to;
        self.place = Some(place);
        Ok(self)
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

/// Room for a ring that the kernel has yet to make: the addresses at which it is mapped first, and the user's
/// place to which it is moved then, where empty memory of this process lies already. With this in hand,
/// mapping the ring fails for want of neither, and not because nothing can be mapped over the place.
#[derive(Debug)]
pub(super) struct Room {
    addresses: Addresses,
    place: Option<Box<Grant>>,
}

impl Room {
    /// For a ring of `slots` slots of `slot_size` bytes.
    pub(super) fn new(
        slots: u64,
        slot_size: usize,
        kind: Kind,
        buffers: Option<&Buffers>,
    ) -> Result<Self> {
        let bytes = usize::try_from(slots).ok();
        let bytes = bytes.and_then(|slots| slots.checked_mul(slot_size));
        let bytes = bytes.and_then(|bytes| bytes.checked_add(size_of::<QueueBuf>()));
        let length = bytes.and_then(|bytes| bytes.checked_next_multiple_of(page_size()));
        let no_room = |errno| Error::os(Verb::MapQueue, Subject::the(kind.name), errno);
        let length = length.ok_or_else(|| no_room(Errno::NOMEM))?;
        let addresses = Addresses::reserve(length, ProtFlags::empty()).map_err(no_room)?;
        let place = match buffers {
            Some(buffers) => place(buffers, length, kind)?,
            None => None,
        };
        let place = match place {
            Some(place) => Some(emptied(place, length).map_err(|errno| over(kind, errno))?),
            None => None,
        };
        Ok(Self { addresses, place })
    }
}

/// Addresses at which nothing is mapped but memory of this process that is still empty.
#[derive(Debug)]
struct Addresses {
    base: NonNull<u8>,
    length: usize,
}

impl Addresses {
    fn reserve(length: usize, access: ProtFlags) -> std::result::Result<Self, Errno> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses touches no existing memory.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), length, access, flags) }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { base, length })
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        // SAFETY: they are ours, and nothing points there. If the kernel has no memory to split a mapping,
        // they stay reserved without use.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.length) };
    }
}

// SAFETY: reserved addresses belong to no thread.
unsafe impl Send for Addresses {}

/// The bytes of a ring that `info` describes.
fn length(info: Mminfo, kind: Kind) -> Result<usize> {
    match info.size as usize {
        0 => Err(kind.malformed("the ring has no bytes")),
        length => Ok(length),
    }
}

/// The maps of an object's rings, the send ring's first, which are dropped together.
pub(super) type RingMaps = Arc<ArrayVec<RingMap, 2>>;

/// What keeps a ring mapped.
pub(super) type Keep = Arc<dyn Maps>;

/// The maps of rings, or an object that owns them.
pub(super) trait Maps: fmt::Debug + Send + Sync {}

impl Maps for ArrayVec<RingMap, 2> {}

/// The view of other threads on how far a work queue's ring is. It keeps the ring mapped.
#[derive(Debug)]
pub(super) struct RingView {
    // Before the maps, because they point into one.
    indices: Indices,
    _maps: Option<RingMaps>,
}

impl RingView {
    /// The view on a ring; `maps` keep its memory mapped.
    pub(super) fn new(ring: &Producer, maps: Option<&RingMaps>) -> Self {
        Self {
            indices: ring.indices(),
            _maps: maps.cloned(),
        }
    }

    pub(super) fn progress(&self) -> Progress {
        self.indices.progress()
    }

    /// Whether one of the elements in flight may have this key in it.
    pub(super) fn names(&self, in_flight: Progress, LocalKey(key): LocalKey) -> bool {
        self.indices.have(in_flight, key)
    }
}

/// Whole pages of the user's for a ring of this length, if the allocator gives any.
fn place(buffers: &Buffers, length: usize, kind: Kind) -> Result<Option<Box<Grant>>> {
    let page = page_size();
    let granted = buffers.allocate(
        length.next_multiple_of(page),
        page,
        kind.resource,
        Purpose::Place,
    )?;
    Ok(granted.map(Box::new))
}

/// Moves a mapping over what lies at a place. It is not mapped there anew: if the kernel refused that, it
/// might already have removed what was there.
///
/// # Safety
///
/// The mapping is the caller's, and nobody points into it.
unsafe fn move_over(
    from: NonNull<u8>,
    length: usize,
    place: &Grant,
) -> std::result::Result<(), Errno> {
    // SAFETY: by this function's contract. The allocator promised these whole pages to one ring alone, and
    // that nobody relies on what is there.
    let moved = unsafe {
        mremap_fixed(
            from.as_ptr().cast(),
            length,
            length,
            MremapFlags::MAYMOVE,
            place.address().as_ptr().cast(),
        )
    };
    moved.map(|_| ())
}

/// The place, if a mapping was moved over it. If not, it goes back to its allocator, unless there may be a
/// hole now.
fn kept(
    place: Box<Grant>,
    moved: std::result::Result<(), Errno>,
) -> std::result::Result<Box<Grant>, Errno> {
    match moved {
        Ok(()) => Ok(place),
        // For pages that cannot be replaced the kernel returns this error before it replaces any.
        Err(Errno::INVAL) => Err(Errno::INVAL),
        Err(errno) => {
            // Others may have mapped something into the hole: the allocator never gets the place back.
            place.forget();
            Err(errno)
        }
    }
}

/// The place, with empty memory over what was there: what can be mapped over it now can be later.
fn emptied(place: Box<Grant>, length: usize) -> std::result::Result<Box<Grant>, Errno> {
    let empty = Addresses::reserve(length, PROTECTION)?;
    // SAFETY: the mapping has just been made.
    let moved = unsafe { move_over(empty.base, length, &place) };
    if moved.is_ok() {
        // It does not lie there any more.
        mem::forget(empty);
    }
    kept(place, moved)
}

/// The error of a ring that could not be moved over a place.
fn over(kind: Kind, errno: Errno) -> Error {
    let error = Error::os(Verb::MapQueue, Subject::the(kind.name), errno);
    error.with_detail(
        "the allocator's place may not be one that can be mapped over, such as a part of a huge page"
            .to_owned(),
    )
}

impl Drop for RingMap {
    fn drop(&mut self) {
        self.mapped.end();
        let address = self.base.as_ptr().cast();
        let Some(place) = self.place.take() else {
            // SAFETY: the mapping is ours and nobody uses it any more: rings that point into it are dropped
            // first. If the kernel has no memory to split a mapping, the ring's pages stay at addresses that
            // nobody uses. There is nobody to report it to.
            let _ = unsafe { munmap(address, self.length) };
            return;
        };
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: as above; the range is replaced in one step, so the addresses stay the allocator's
        // throughout.
        let replaced = unsafe { mmap_anonymous(address, self.length, PROTECTION, flags) };
        match replaced {
            Ok(_) => drop(place),
            // The kernel has no memory for a mapping. The ring's pages, to which it continues to write, may
            // still be mapped: if the allocator got these addresses back, its user would take them for
            // memory.
            Err(_) => place.forget(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::alloc::{Allocation, Allocator, BufferRequest};
    use crate::error::AllocError;

    type Result<T, E> = std::result::Result<T, E>;

    /// Gives pages out that are not empty, and counts what comes back.
    struct OnePage(AtomicUsize);

    // SAFETY: each buffer is a new mapping that stays for good.
    unsafe impl Allocator for OnePage {
        fn allocate(&self, request: &BufferRequest) -> Result<Allocation, AllocError> {
            let memory = pages(request.size);
            // SAFETY: the pages are new.
            unsafe { memory.write(0xdd) };
            Ok(Allocation::Memory(NonNull::slice_from_raw_parts(
                memory,
                request.size,
            )))
        }

        unsafe fn free(&self, memory: NonNull<[u8]>, _: &BufferRequest) {
            // SAFETY: pages lie at what comes back, and nobody uses them.
            let first = unsafe { memory.cast::<u8>().read_volatile() };
            assert_eq!(first, 0, "the ring's pages are still there");
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Pages of this process in the place of a ring's.
    fn pages(length: usize) -> NonNull<u8> {
        let flags = MapFlags::SHARED;
        // SAFETY: a new mapping at an address that the kernel chooses touches no existing memory.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), length, PROTECTION, flags) };
        NonNull::new(base.unwrap().cast()).unwrap()
    }

    fn place(allocator: &Arc<OnePage>) -> Box<Grant> {
        let buffers = Buffers::of(Arc::clone(allocator) as Arc<dyn Allocator>);
        let page = page_size();
        let granted = buffers.allocate(page, page, ResourceType::RXE_CQ, Purpose::Place);
        Box::new(granted.unwrap().unwrap())
    }

    fn ring() -> RingMap {
        let length = page_size();
        let base = pages(length);
        // SAFETY: the page is this test's.
        unsafe { base.write_bytes(0xee, length) };
        RingMap {
            base,
            length,
            place: None,
            mapped: Mapped::default(),
        }
    }

    #[test]
    fn a_place_comes_back_without_the_ring() {
        let allocator = Arc::new(OnePage(AtomicUsize::new(0)));
        let place = place(&allocator);
        let at = place.address();
        let ring = ring().move_to(place).unwrap();
        assert_eq!(ring.base(), at);
        // SAFETY: the ring's page lies there, and nobody writes to it.
        assert_eq!(unsafe { at.read_volatile() }, 0xee);
        drop(ring);
        assert_eq!(allocator.0.load(Ordering::Relaxed), 1);
        assert_eq!(Arc::strong_count(&allocator), 1);
    }

    /// Would catch a place whose contents are found out to be in the way when the kernel has made the ring.
    #[test]
    fn room_has_its_place_empty() {
        let allocator = Arc::new(OnePage(AtomicUsize::new(0)));
        let buffers = Buffers::of(Arc::clone(&allocator) as Arc<dyn Allocator>);
        let room = Room::new(7, 8, super::super::COMPLETION, Some(&buffers)).unwrap();
        let place = room.place.as_ref().unwrap().address();
        // SAFETY: memory lies there, and nobody writes to it.
        assert_eq!(unsafe { place.read_volatile() }, 0);
        drop(room);
        assert_eq!(allocator.0.load(Ordering::Relaxed), 1);
    }

    /// Would catch a place that the allocator gets back with pages that the kernel still writes to.
    #[test]
    fn a_place_that_the_ring_does_not_leave_is_kept() {
        let allocator = Arc::new(OnePage(AtomicUsize::new(0)));
        let mut ring = ring().move_to(place(&allocator)).unwrap();
        // An address that the kernel maps nothing at.
        ring.base = NonNull::<u8>::dangling();
        drop(ring);
        assert_eq!(allocator.0.load(Ordering::Relaxed), 0);
        assert_eq!(
            Arc::strong_count(&allocator),
            2,
            "the allocator must not go either"
        );
    }

    /// Would catch a place that is given back although something else may lie in it.
    #[test]
    fn a_place_that_may_have_a_hole_is_kept() {
        let allocator = Arc::new(OnePage(AtomicUsize::new(0)));
        let mut ring = ring();
        // Nothing is ever mapped there.
        ring.base = NonNull::new(ptr::without_provenance_mut(page_size())).unwrap();
        let refused = ring.move_to(place(&allocator)).unwrap_err();
        assert_eq!(refused, Errno::FAULT);
        assert_eq!(allocator.0.load(Ordering::Relaxed), 0);
    }
}
