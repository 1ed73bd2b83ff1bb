//! Memory that the device reads and writes: rings, and doorbell records.
//!
//! A ring lies in memory of the domain's allocator if that gives some, at an address or in a dma-buf;
//! otherwise in pages of its own. Doorbell records are small and many, so the default ones are packed into
//! pages, a cache line apart. fork(2) copies neither: the device keeps the parent's pages, and if the child
//! wrote first, the parent would be left with a copy that the device does not see.

use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use rustix::param::page_size;
use uverbs_uapi::enums::BufferType;
use uverbs_uapi::types::BufferDesc;

use crate::alloc::{Buffers, Dmabuf, Grant, Purpose, ResourceType};
use crate::error::{Error, Result, Subject, Verb};

/// From this size on a ring asks for huge pages; the device then translates fewer addresses.
const HUGE: usize = 2 << 20;

/// Memory of a ring: zeroed, and at one address until it is dropped.
#[derive(Debug)]
pub(crate) enum Memory {
    /// From the allocator.
    Granted(Grant),
    /// Pages of its own.
    Pages(Pages),
}

impl Memory {
    /// Finds memory for a ring.
    pub(crate) fn new(
        size: usize,
        alignment: usize,
        resource: ResourceType,
        buffers: Option<&Buffers>,
    ) -> Result<Self> {
        if let Some(buffers) = buffers
            && let Some(grant) = buffers.allocate(size, alignment, resource, Purpose::Memory)?
        {
            return Ok(Self::Granted(grant));
        }
        Pages::new(size).map(Self::Pages).map_err(|errno| {
            let subject =
                Subject::named("buffer", format_args!("of {size} bytes for {resource:?}"));
            Error::os(Verb::AllocBuffer, subject, errno)
        })
    }

    /// The first byte.
    pub(crate) fn base(&self) -> NonNull<u8> {
        match self {
            Self::Granted(grant) => grant.address(),
            Self::Pages(pages) => pages.base,
        }
    }

    /// The address for the kernel; 0 if the kernel gets a dma-buf, so that one that overlooks the dma-buf has
    /// no memory at all.
    pub(crate) fn address(&self) -> u64 {
        match self.dmabuf() {
            Some(_) => 0,
            None => self.base().as_ptr().expose_provenance() as u64,
        }
    }

    /// The dma-buf for the kernel, if the memory lies in one, with its part of exactly the length that was
    /// asked for. It names a descriptor that is open as long as this value lives.
    pub(crate) fn dmabuf(&self) -> Option<BufferDesc> {
        match self {
            Self::Granted(grant) => described(grant),
            Self::Pages(_) => None,
        }
    }

    /// Whether this process reaches the memory that the device sees. Otherwise the memory lies in a dma-buf
    /// that is not mapped here.
    #[allow(dead_code, reason = "not every driver takes dma-bufs")]
    pub(crate) fn is_mapped(&self) -> bool {
        match self {
            Self::Granted(grant) => grant.is_mapped(),
            Self::Pages(_) => true,
        }
    }

    /// The dma-buf in which the memory lies, and its offset there, if it lies in one.
    pub(crate) fn place(&self) -> Option<(&Dmabuf, u64)> {
        match self {
            Self::Granted(grant) => grant.place(),
            Self::Pages(_) => None,
        }
    }
}

/// The description of a buffer in a dma-buf for the kernel.
fn described(grant: &Grant) -> Option<BufferDesc> {
    let (file, offset, length) = grant.dmabuf()?;
    Some(BufferDesc {
        type_: BufferType::DMABUF.0,
        fd: file.as_raw_fd(),
        addr: offset,
        length,
        ..BufferDesc::default()
    })
}

/// Private pages of this process that fork(2) does not hand on.
#[derive(Debug)]
pub(crate) struct Pages {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping is owned, and any thread may use it.
unsafe impl Send for Pages {}
// SAFETY: shared references only give the address.
unsafe impl Sync for Pages {}

impl Pages {
    pub(crate) fn new(size: usize) -> std::result::Result<Self, Errno> {
        let page = page_size();
        let length = size
            .max(1)
            .checked_next_multiple_of(page)
            .ok_or(Errno::NOMEM)?;
        let mut flags = MapFlags::PRIVATE;
        if length < HUGE {
            // The kernel pins the pages for the device's reads, and without this the first post would fault.
            // Huge pages are asked for once there is a mapping.
            flags |= MapFlags::POPULATE;
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses touches no existing memory.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), length, access, flags)? };
        let base = NonNull::new(base.cast::<u8>()).ok_or(Errno::NOMEM)?;
        let pages = Self { base, length };
        pages.advise(Advice::LinuxDontFork)?;
        if length >= HUGE {
            // Only a wish: the ring also works without huge pages.
            let _ = pages.advise(Advice::LinuxHugepage);
        }
        Ok(pages)
    }

    fn advise(&self, advice: Advice) -> std::result::Result<(), Errno> {
        // SAFETY: the pages are this mapping's own, and neither advice changes what is in them.
        unsafe { madvise(self.base.as_ptr().cast(), self.length, advice) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is owned, and nothing points into it any more. An error would mean that it was
        // not mapped; there is nobody to report it to.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.length) };
    }
}

/// Bytes from one packed record to the next: a cache line, so that queues of two threads do not share one.
const STRIDE: usize = 64;
/// Bytes of a record, and what its address must be a multiple of.
pub(crate) const RECORD: usize = 8;

/// The pages of a context's doorbell records.
#[derive(Debug)]
pub(crate) struct Records {
    /// The type of the buffer that an allocator is asked for.
    resource: ResourceType,
    pages: Mutex<Vec<Arc<RecordPage>>>,
}

impl Records {
    pub(crate) fn new(resource: ResourceType) -> Self {
        Self {
            resource,
            pages: Mutex::new(Vec::new()),
        }
    }
}

#[derive(Debug)]
struct RecordPage {
    pages: Pages,
    /// Which places are taken.
    taken: Mutex<Vec<bool>>,
}

impl RecordPage {
    fn new() -> std::result::Result<Self, Errno> {
        Ok(Self {
            pages: Pages::new(page_size())?,
            taken: Mutex::new(vec![false; page_size() / STRIDE]),
        })
    }

    /// Takes a free place, if there is one.
    fn take(self: &Arc<Self>) -> Option<Packed> {
        // The list is whole after every statement, so a panic elsewhere has not spoilt it.
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let place = taken.iter().position(|taken| !taken)?;
        taken[place] = true;
        Some(Packed {
            page: Arc::clone(self),
            place,
        })
    }
}

/// A place in a page of records.
#[derive(Debug)]
pub(crate) struct Packed {
    page: Arc<RecordPage>,
    place: usize,
}

impl Drop for Packed {
    fn drop(&mut self) {
        let mut taken = self
            .page
            .taken
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        taken[self.place] = false;
    }
}

/// A doorbell record: two words by which the device learns how far a queue is filled.
#[derive(Debug)]
pub(crate) struct Record {
    words: NonNull<AtomicU32>,
    place: Place,
}

/// What keeps a record's memory.
#[derive(Debug)]
enum Place {
    Granted(Grant),
    Packed(#[expect(dead_code, reason = "held until the record goes")] Packed),
}

// SAFETY: the words are atomics in memory that the record owns.
unsafe impl Send for Record {}
// SAFETY: as above.
unsafe impl Sync for Record {}

impl Record {
    /// Finds a place for a record and zeroes it.
    pub(crate) fn new(records: &Records, buffers: Option<&Buffers>) -> Result<Self> {
        let granted = match buffers {
            Some(buffers) => buffers.allocate(RECORD, RECORD, records.resource, Purpose::Memory)?,
            None => None,
        };
        let record = match granted {
            Some(grant) => Self {
                words: grant.address().cast(),
                place: Place::Granted(grant),
            },
            None => Self::packed(records).map_err(|errno| {
                Error::os(Verb::AllocBuffer, Subject::the("doorbell record"), errno)
            })?,
        };
        for index in 0..2 {
            // Relaxed: nobody else has the record yet.
            record.word(index).store(0, Ordering::Relaxed);
        }
        Ok(record)
    }

    fn packed(records: &Records) -> std::result::Result<Self, Errno> {
        let mut pages = records.pages.lock().unwrap_or_else(PoisonError::into_inner);
        let packed = match pages.iter().find_map(RecordPage::take) {
            Some(packed) => packed,
            None => {
                let page = Arc::new(RecordPage::new()?);
                let packed = page.take().ok_or(Errno::NOMEM)?;
                pages.push(page);
                packed
            }
        };
        // SAFETY: the place lies in the page, since its number is below the count of places.
        let words = unsafe { packed.page.pages.base.add(packed.place * STRIDE) };
        Ok(Self {
            words: words.cast(),
            place: Place::Packed(packed),
        })
    }

    /// One of the two words. It holds big-endian numbers.
    #[inline(always)]
    pub(crate) fn word(&self, index: usize) -> &AtomicU32 {
        debug_assert!(index < 2);
        // SAFETY: a record has two words, aligned to 8, which this value keeps and which only atomics touch.
        unsafe { self.words.add(index).as_ref() }
    }

    /// Where it begins.
    #[allow(dead_code, reason = "direct verbs ask, and may not be built in")]
    pub(crate) fn first(&self) -> NonNull<u8> {
        self.words.cast()
    }

    /// The lower half of a word that counts. The device takes only that half; the upper one stays 0. Nobody
    /// uses the word as a whole then: atomics of different sizes at one place are a data race.
    #[inline(always)]
    pub(crate) fn counter(&self, index: usize) -> &AtomicU16 {
        let word = NonNull::from(self.word(index)).cast::<AtomicU16>();
        // SAFETY: the word has two halves, of which the lower one comes second. It lives as long as the word.
        unsafe { word.add(1).as_ref() }
    }

    /// Zeroes both counters. Other threads may load them meanwhile.
    pub(crate) fn clear_counters(&self) {
        for index in 0..2 {
            // Relaxed: the device is at rest.
            self.counter(index).store(0, Ordering::Relaxed);
        }
    }

    /// The address for the kernel, as [`Memory::address`].
    pub(crate) fn address(&self) -> u64 {
        match self.dmabuf() {
            Some(_) => 0,
            None => self.words.as_ptr().expose_provenance() as u64,
        }
    }

    /// The dma-buf for the kernel, as [`Memory::dmabuf`].
    pub(crate) fn dmabuf(&self) -> Option<BufferDesc> {
        match &self.place {
            Place::Granted(grant) => described(grant),
            Place::Packed(_) => None,
        }
    }

    /// As [`Memory::is_mapped`].
    #[allow(dead_code, reason = "not every driver takes dma-bufs")]
    pub(crate) fn is_mapped(&self) -> bool {
        match &self.place {
            Place::Granted(grant) => grant.is_mapped(),
            Place::Packed(_) => true,
        }
    }

    /// As [`Memory::place`].
    pub(crate) fn place(&self) -> Option<(&Dmabuf, u64)> {
        match &self.place {
            Place::Granted(grant) => grant.place(),
            Place::Packed(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESOURCE: ResourceType = ResourceType::RXE_CQ;

    #[test]
    fn records_are_a_cache_line_apart_and_their_places_are_used_again() {
        let records = Records::new(RESOURCE);
        let per_page = page_size() / STRIDE;
        let mut taken: Vec<Record> = (0..per_page + 1)
            .map(|_| Record::new(&records, None).unwrap())
            .collect();
        let mut addresses: Vec<u64> = taken.iter().map(Record::address).collect();
        addresses.sort_unstable();
        for pair in addresses.windows(2) {
            assert!(pair[1] - pair[0] >= STRIDE as u64);
        }
        assert_eq!(records.pages.lock().unwrap().len(), 2);
        let gone = taken.swap_remove(3).address();
        assert_eq!(Record::new(&records, None).unwrap().address(), gone);
        assert_eq!(records.pages.lock().unwrap().len(), 2);
    }

    #[test]
    fn a_record_is_zero_when_it_is_handed_out_again() {
        let records = Records::new(RESOURCE);
        let record = Record::new(&records, None).unwrap();
        record.word(1).store(7, Ordering::Relaxed);
        let address = record.address();
        drop(record);
        let again = Record::new(&records, None).unwrap();
        assert_eq!(again.address(), address);
        assert_eq!(again.word(1).load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_size_that_no_memory_has_is_refused() {
        assert!(Memory::new(usize::MAX, 1, RESOURCE, None).is_err());
    }
}
