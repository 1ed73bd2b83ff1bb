//! An allocator that answers as a test says, and remembers everything it was asked.

use std::collections::BTreeMap;
use std::fs;
use std::ptr::NonNull;
use std::sync::Mutex;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use uverbs::alloc::{AllocError, Allocation, Allocator, BufferRequest, Purpose};

type Answer = dyn Fn(usize, &BufferRequest) -> Result<Allocation, AllocError> + Send + Sync;

/// An allocator that answers each request, by its number, as it is told.
pub(crate) struct Script {
    answer: Box<Answer>,
    seen: Mutex<Seen>,
}

/// What an allocator has been asked, and has got back.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) asked: Vec<BufferRequest>,
    /// Granted and not back yet, by address.
    pub(crate) live: BTreeMap<usize, BufferRequest>,
    pub(crate) freed: usize,
    /// Buffers that came back wrong: what was wrong.
    pub(crate) complaints: Vec<String>,
}

impl Script {
    pub(crate) fn new(
        answer: impl Fn(usize, &BufferRequest) -> Result<Allocation, AllocError> + Send + Sync + 'static,
    ) -> Self {
        Self {
            answer: Box::new(answer),
            seen: Mutex::default(),
        }
    }

    /// Everything until now.
    pub(crate) fn seen(&self) -> Seen {
        self.seen.lock().unwrap().clone()
    }
}

// SAFETY: as far as the answers keep the contract; tests that break it do so to see it found out.
unsafe impl Allocator for Script {
    fn allocate(&self, request: &BufferRequest) -> Result<Allocation, AllocError> {
        let number = {
            let mut seen = self.seen.lock().unwrap();
            seen.asked.push(*request);
            seen.asked.len()
        };
        let answer = (self.answer)(number, request);
        if let Ok(Allocation::Memory(memory)) = &answer {
            let address = memory.cast::<u8>().addr().get();
            self.seen.lock().unwrap().live.insert(address, *request);
        }
        answer
    }

    unsafe fn free(&self, memory: NonNull<[u8]>, request: &BufferRequest) {
        let address = memory.cast::<u8>().addr().get();
        let mut seen = self.seen.lock().unwrap();
        seen.freed += 1;
        match seen.live.remove(&address) {
            Some(asked) if asked == *request => {}
            other => seen
                .complaints
                .push(format!("{address:#x} came back for {request:?}: {other:?}")),
        }
        if request.purpose == Purpose::Place
            && let Some(map) = map_at(address)
            && map.contains("uverbs")
        {
            seen.complaints
                .push(format!("the kernel still has {address:#x}: {map}"));
        }
    }
}

/// The answer "here", for memory that has been mapped elsewhere and whose address is exposed.
pub(crate) fn here(address: usize, length: usize) -> Result<Allocation, AllocError> {
    let first = NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(address));
    let first = first.ok_or_else(|| AllocError::new("null"))?;
    Ok(Allocation::Memory(NonNull::slice_from_raw_parts(
        first, length,
    )))
}

/// An address for [`here`].
pub(crate) fn expose(memory: NonNull<[u8]>) -> usize {
    memory.cast::<u8>().as_ptr().expose_provenance()
}

/// The line of /proc/self/maps about an address.
pub(crate) fn map_at(address: usize) -> Option<String> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let found = maps
        .lines()
        .find(|line| range(line).is_some_and(|range| range.contains(&address)));
    found.map(str::to_owned)
}

/// The addresses of a line of /proc/self/maps.
pub(crate) fn range(line: &str) -> Option<std::ops::Range<usize>> {
    let (start, end) = line.split(' ').next()?.split_once('-')?;
    Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
}

/// Fresh zeroed private pages, which stay for the rest of the process unless they are given to [`unmap`].
pub(crate) fn fresh(size: usize) -> NonNull<[u8]> {
    mapped(size, MapFlags::PRIVATE).expect("memory")
}

/// Fresh zeroed pages with flags of choice.
pub(crate) fn mapped(size: usize, flags: MapFlags) -> rustix::io::Result<NonNull<[u8]>> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
    let base = unsafe { mmap_anonymous(std::ptr::null_mut(), size, protection, flags)? };
    let base = NonNull::new(base.cast::<u8>()).expect("an address");
    Ok(NonNull::slice_from_raw_parts(base, size))
}

/// Unmaps what [`mapped`] gave.
pub(crate) fn unmap(memory: NonNull<[u8]>) {
    // SAFETY: it was mapped with this length, and tests call this when nobody uses it any more.
    unsafe { munmap(memory.cast::<u8>().as_ptr().cast(), memory.len()) }.expect("munmap");
}
