//! Buffers on loan from a user's allocator: requested, checked, and returned once.

use std::any::Any;
use std::collections::BTreeMap;
use std::mem;
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::mm::MapFlags;
use rustix::param::page_size;
use uverbs_uapi::handle::PdHandle;

use super::dmabuf::FileId;
use super::mapping::Mapping;
use super::{AllocError, Allocation, Allocator, BufferRequest, Dmabuf, Purpose, ResourceType};
use crate::error::{Cause, Error, Result, Subject, Verb};

/// The buffers of a context that are in use: the start of each, and its end.
#[derive(Debug, Default)]
pub(crate) struct Live(Mutex<BTreeMap<(Space, u64), u64>>);

/// The space in which a buffer's place is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Space {
    /// Addresses of this process.
    Process,
    /// Offsets in a dma-buf, of which there may be several mappings.
    Dmabuf(FileId),
}

/// A part of a space: start and length.
type Part = (Space, u64, u64);

impl Live {
    /// Notes the parts of a buffer as in use. If one overlaps a part in use, it notes none and returns false.
    fn insert(&self, parts: impl Iterator<Item = Part> + Clone) -> bool {
        // The map is consistent after every statement, so a panic elsewhere did no harm.
        let mut live = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_taken = |(space, start, length): Part| {
            let before = live.range(..(space, start + length)).next_back();
            before.is_some_and(|(&(other, _), &end)| other == space && end > start)
        };
        if parts.clone().any(is_taken) {
            return false;
        }
        live.extend(parts.map(|(space, start, length)| ((space, start), start + length)));
        true
    }

    fn remove(&self, parts: impl Iterator<Item = Part>) {
        let mut live = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (space, start, _) in parts {
            live.remove(&(space, start));
        }
    }
}

/// Whether buffers may lie in dma-bufs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dmabufs {
    /// They may, if the kernel accepts them.
    #[allow(dead_code, reason = "not every driver takes them")]
    Taken,
    /// They may not; the text says what is missing.
    Refused(&'static str),
}

/// A domain's allocator, for drivers.
#[derive(Clone)]
pub(crate) struct Buffers {
    pub(crate) allocator: Arc<dyn Allocator>,
    pub(crate) live: Arc<Live>,
    pub(crate) pd: PdHandle,
    pub(crate) domain: u64,
    pub(crate) dmabufs: Dmabufs,
    /// `None` if a buffer must be mapped in this process; otherwise the value that each byte of an unmapped
    /// buffer must have.
    pub(crate) unmapped: Option<u8>,
}

impl Buffers {
    /// For tests of what does not depend on the domain; rings in dma-bufs are refused.
    #[cfg(test)]
    pub(crate) fn of(allocator: Arc<dyn Allocator>) -> Self {
        Self {
            allocator,
            live: Arc::default(),
            pd: PdHandle(1),
            domain: 2,
            dmabufs: Dmabufs::Refused("rings in dma-bufs"),
            unmapped: None,
        }
    }

    /// The same allocator. With `Some` a buffer need not be mapped in this process, and each byte of an
    /// unmapped one must have this value.
    #[allow(dead_code, reason = "not every driver takes dma-bufs")]
    pub(crate) fn unmapped(&self, bytes: Option<u8>) -> Self {
        Self {
            unmapped: bytes,
            ..self.clone()
        }
    }

    /// The same allocator, for buffers that must not lie in dma-bufs; the text says what is missing.
    #[allow(dead_code, reason = "not every driver takes dma-bufs elsewhere")]
    pub(crate) fn without_dmabufs(&self, missing: &'static str) -> Self {
        Self {
            dmabufs: Dmabufs::Refused(missing),
            ..self.clone()
        }
    }

    /// Asks the allocator for a buffer; `None` if it wants the driver's default.
    pub(crate) fn allocate(
        &self,
        size: usize,
        alignment: usize,
        resource: ResourceType,
        purpose: Purpose,
    ) -> Result<Option<Grant>> {
        let request = BufferRequest {
            size,
            alignment,
            resource,
            purpose,
            pd: self.pd,
            domain: self.domain,
            dmabuf: self.dmabufs == Dmabufs::Taken,
            unmapped: self.unmapped.filter(|_| self.dmabufs == Dmabufs::Taken),
        };
        let answer = catch_unwind(AssertUnwindSafe(|| self.allocator.allocate(&request)));
        let (memory, place) = match answer {
            Ok(Ok(Allocation::Memory(memory))) => (Reach::Lent(memory), None),
            Ok(Ok(Allocation::Dmabuf {
                dmabuf,
                offset,
                memory,
            })) => (Reach::Lent(memory), Some((dmabuf, offset))),
            Ok(Ok(Allocation::Unmapped { dmabuf, offset })) => {
                (Reach::None, Some((dmabuf, offset)))
            }
            Ok(Ok(Allocation::Default)) => return Ok(None),
            Ok(Err(error)) => return Err(refused(&request, error)),
            Err(panic) => {
                let text = format!("the allocator panicked: {}", panic_text(panic));
                return Err(refused(&request, AllocError::new(text)));
            }
        };
        let mut grant = Grant {
            memory,
            place,
            request,
            allocator: Arc::clone(&self.allocator),
            live: None,
        };
        // From here on dropping the grant returns the buffer, once, even if something is wrong with it.
        if let (Some(_), Dmabufs::Refused(missing)) = (&grant.place, self.dmabufs) {
            return Err(Error::unsupported(
                Verb::AllocBuffer,
                subject(&request),
                missing,
            ));
        }
        if let Reach::None = grant.memory {
            if request.unmapped.is_none() {
                let missing = "rings that this process does not reach: queues for an agent may have such \
                               (`CqBuilder::for_agent`, `QpBuilder::for_agent`)";
                return Err(Error::unsupported(
                    Verb::AllocBuffer,
                    subject(&request),
                    missing,
                ));
            }
            let shadow = Mapping::shared(size.max(1), MapFlags::empty());
            grant.memory = Reach::Shadow(shadow.map_err(|error| {
                refused(&request, AllocError::new(format!("its shadow: {error}")))
            })?);
        }
        grant
            .check()
            .map_err(|why| refused(&request, AllocError::new(why)))?;
        if !self.live.insert(grant.parts()) {
            let place = grant.told_place();
            let why = format!("the allocator's buffer at {place} overlaps one that is in use");
            return Err(refused(&request, AllocError::new(why)));
        }
        grant.live = Some(Arc::clone(&self.live));
        Ok(Some(grant))
    }
}

impl std::fmt::Debug for Buffers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Buffers")
            .field("pd", &self.pd.0)
            .field("domain", &self.domain)
            .finish_non_exhaustive()
    }
}

fn refused(request: &BufferRequest, error: AllocError) -> Error {
    Error::new(Verb::AllocBuffer, subject(request), Cause::Allocator(error))
}

fn subject(request: &BufferRequest) -> Subject {
    let BufferRequest {
        size,
        alignment,
        resource,
        ..
    } = request;
    Subject::named(
        "buffer",
        format_args!("for the {resource:?}, {size} bytes aligned to {alignment}"),
    )
}

/// The text of a panic, where it is one.
fn panic_text(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let text = text.unwrap_or("without a text").to_owned();
    // What the allocator panicked with may panic in its turn when it is dropped.
    mem::forget(panic);
    text
}

/// A buffer on loan. Dropping it returns the buffer; the holder ensures that the kernel has released it by
/// then.
pub(crate) struct Grant {
    memory: Reach,
    /// The dma-buf that it lies in and the offset there, if the device addresses it so.
    place: Option<(Dmabuf, u64)>,
    request: BufferRequest,
    allocator: Arc<dyn Allocator>,
    /// Where the buffer is noted as in use, once it is.
    live: Option<Arc<Live>>,
}

/// How this process reaches a buffer.
#[derive(Debug)]
enum Reach {
    /// At addresses that the allocator lends.
    Lent(NonNull<[u8]>),
    /// Not at all: the buffer lies in a dma-buf. This process has memory of the same size in its place, which
    /// no device knows.
    Shadow(Mapping),
    /// Not at all, and nothing is in its place yet.
    None,
}

// SAFETY: the memory is the allocator's, which promises it to the holder alone. The allocator itself is
// `Send` and `Sync`.
unsafe impl Send for Grant {}
// SAFETY: shared references only give the address.
unsafe impl Sync for Grant {}

impl Grant {
    /// The first byte. If the buffer [is not mapped](Self::is_mapped), the first byte of the memory in its
    /// place.
    pub(crate) fn address(&self) -> NonNull<u8> {
        match &self.memory {
            Reach::Lent(memory) => memory.cast(),
            Reach::Shadow(shadow) => shadow.base(),
            Reach::None => NonNull::dangling(),
        }
    }

    /// Whether the memory at the address is the memory that the device accesses.
    #[allow(dead_code, reason = "not every driver takes dma-bufs")]
    pub(crate) fn is_mapped(&self) -> bool {
        matches!(self.memory, Reach::Lent(_))
    }

    /// Keeps the buffer and the allocator forever: the kernel or the device may still use the buffer.
    #[allow(
        dead_code,
        reason = "not every driver replaces what lies at an address"
    )]
    pub(crate) fn forget(self) {
        std::mem::forget(self);
    }

    /// The dma-buf that it lies in, the offset there, and how many bytes were requested; `None` if the device
    /// addresses it by its address.
    #[allow(dead_code, reason = "not every driver takes dma-bufs")]
    pub(crate) fn dmabuf(&self) -> Option<(BorrowedFd<'_>, u64, u64)> {
        let (dmabuf, offset) = self.place.as_ref()?;
        Some((dmabuf.for_kernel(), *offset, self.request.size as u64))
    }

    /// The dma-buf that it lies in, and the offset there.
    #[allow(dead_code, reason = "not every driver takes dma-bufs")]
    pub(crate) fn place(&self) -> Option<(&Dmabuf, u64)> {
        let (dmabuf, offset) = self.place.as_ref()?;
        Some((dmabuf, *offset))
    }

    /// The parts of the address space and of a dma-buf that it occupies.
    fn parts(&self) -> impl Iterator<Item = Part> + Clone + use<> {
        let address = self.address().addr().get() as u64;
        let size = self.request.size as u64;
        let lent = self.is_mapped().then_some((Space::Process, address, size));
        let place = self.place.as_ref();
        let place = place.map(|(dmabuf, offset)| (Space::Dmabuf(dmabuf.id()), *offset, size));
        [lent, place].into_iter().flatten()
    }

    /// Where it lies, as text for an error.
    fn told_place(&self) -> String {
        match &self.place {
            Some((_, offset)) => format!("{offset:#x} of the dma-buf"),
            None => format!("{:#x}", self.address().addr()),
        }
    }

    fn check(&self) -> std::result::Result<(), String> {
        let BufferRequest {
            size, alignment, ..
        } = self.request;
        let address = self.address().addr().get();
        let place = self.told_place();
        if let Reach::Lent(memory) = &self.memory
            && memory.len() < size
        {
            return Err(format!(
                "the allocator's buffer has {} bytes, {size} are needed",
                memory.len()
            ));
        }
        // The number that the device gets must be aligned.
        let aligned = match &self.place {
            Some((_, offset)) => offset.is_multiple_of(alignment as u64),
            None => address.is_multiple_of(alignment),
        };
        if !aligned {
            return Err(format!(
                "the allocator's buffer at {place} is not aligned to {alignment} bytes"
            ));
        }
        if address.checked_add(size).is_none() {
            return Err(format!(
                "the allocator's buffer at {address:#x} reaches beyond the address space"
            ));
        }
        let Some((dmabuf, offset)) = &self.place else {
            return Ok(());
        };
        let end = offset.checked_add(size as u64);
        if end.is_none_or(|end| end > dmabuf.length()) {
            return Err(format!(
                "the allocator's buffer at {place} reaches beyond its {} bytes",
                dmabuf.length()
            ));
        }
        // Mappings are of whole pages.
        let differs = (address as u64 ^ offset) & (page_size() as u64 - 1) != 0;
        if self.is_mapped() && differs {
            return Err(format!(
                "the allocator's buffer at {place} cannot be mapped at {address:#x}"
            ));
        }
        Ok(())
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if let Some(live) = &self.live {
            live.remove(self.parts());
        }
        let freed = catch_unwind(AssertUnwindSafe(|| match (&self.memory, &self.place) {
            // SAFETY: the allocator has returned it for this request, and only this value gives it back. The
            // holder has ensured that nobody uses it any more and that a place is mapped again.
            (Reach::Lent(memory), _) => unsafe { self.allocator.free(*memory, &self.request) },
            // SAFETY: as above.
            (_, Some((dmabuf, offset))) => unsafe {
                let request = &self.request;
                self.allocator.free_unmapped(dmabuf, *offset, request);
            },
            (_, None) => {}
        }));
        if let Err(panic) = freed {
            let text = panic_text(panic);
            tracing::error!(target: "uverbs", "an allocator panicked when it was to free a buffer: {text}");
        }
    }
}

impl std::fmt::Debug for Grant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grant")
            .field("memory", &self.memory)
            .field("place", &self.place)
            .field("request", &self.request)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::device::DriverId;

    type Answer = Box<dyn Fn(&BufferRequest) -> Result<Allocation, AllocError> + Send + Sync>;

    /// An allocator that gives the answer it was made with, and counts what comes back.
    struct Scripted {
        answer: Answer,
        freed: AtomicUsize,
    }

    // SAFETY: the tests never touch the memory.
    unsafe impl Allocator for Scripted {
        fn allocate(&self, request: &BufferRequest) -> Result<Allocation, AllocError> {
            (self.answer)(request)
        }

        unsafe fn free(&self, _: NonNull<[u8]>, _: &BufferRequest) {
            self.freed.fetch_add(1, Ordering::Relaxed);
        }

        unsafe fn free_unmapped(&self, _: &Dmabuf, _: u64, _: &BufferRequest) {
            self.freed.fetch_add(UNMAPPED, Ordering::Relaxed);
        }
    }

    /// What an unmapped buffer counts when it is returned.
    const UNMAPPED: usize = 1000;

    fn buffers(
        answer: impl Fn(&BufferRequest) -> Result<Allocation, AllocError> + Send + Sync + 'static,
    ) -> (Arc<Scripted>, Buffers) {
        let scripted = Arc::new(Scripted {
            answer: Box::new(answer),
            freed: AtomicUsize::new(0),
        });
        let allocator: Arc<dyn Allocator> = scripted.clone();
        (scripted, Buffers::of(allocator))
    }

    /// As [`buffers`], where dma-bufs are accepted. They need not be mapped if `unmapped` is the value of
    /// each byte.
    fn with_dmabufs(
        unmapped: Option<u8>,
        answer: impl Fn(&BufferRequest) -> Result<Allocation, AllocError> + Send + Sync + 'static,
    ) -> (Arc<Scripted>, Buffers) {
        let (scripted, buffers) = buffers(answer);
        let buffers = Buffers {
            dmabufs: Dmabufs::Taken,
            unmapped,
            ..buffers
        };
        (scripted, buffers)
    }

    /// A record of 8 bytes.
    fn ask_record(buffers: &Buffers) -> Result<Option<Grant>> {
        let resource = ResourceType::new(DriverId(77), 3);
        buffers.allocate(8, 8, resource, Purpose::Memory)
    }

    /// The kernel checks neither the alignment of records nor where they end.
    #[test]
    fn a_place_in_a_dmabuf_is_checked() {
        for (offset, why) in [
            (4, "not aligned to 8"),
            (0x1000, "beyond its 4096 bytes"),
            (u64::MAX - 7, "beyond its 4096 bytes"),
        ] {
            let (scripted, buffers) = with_dmabufs(Some(0), move |_| {
                let dmabuf = Dmabuf::of_length(0x1000);
                Ok(Allocation::Unmapped { dmabuf, offset })
            });
            let error = ask_record(&buffers).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
            assert_eq!(scripted.freed.load(Ordering::Relaxed), UNMAPPED);
        }
    }

    #[test]
    fn what_is_not_mapped_is_taken_for_agents_alone() {
        let answer = |request: &BufferRequest| {
            assert!(matches!(request.unmapped, None | Some(0xff)));
            let dmabuf = Dmabuf::of_length(0x2000);
            Ok(Allocation::Unmapped {
                dmabuf,
                offset: 0x1000,
            })
        };
        let (scripted, buffers) = with_dmabufs(None, answer);
        let error = ask(&buffers).unwrap_err();
        assert!(error.is_unsupported());
        assert!(error.to_string().contains("for_agent"), "{error}");
        assert_eq!(scripted.freed.load(Ordering::Relaxed), UNMAPPED);
        let error = ask(&buffers.without_dmabufs("rings in dma-bufs")).unwrap_err();
        assert!(error.to_string().contains("rings in dma-bufs"), "{error}");

        let buffers = buffers.unmapped(Some(0xff));
        let grant = ask(&buffers).unwrap().unwrap();
        assert!(!grant.is_mapped());
        let (_, offset, length) = grant.dmabuf().unwrap();
        assert_eq!((offset, length), (0x1000, 0x1000));
        // The memory in its place is this process's own.
        // SAFETY: it has 0x1000 bytes, and nobody else uses them.
        unsafe { grant.address().write_bytes(1, 0x1000) };
        let error = ask(&buffers).unwrap_err();
        assert!(error.to_string().contains("overlaps"), "{error}");
        assert_eq!(scripted.freed.load(Ordering::Relaxed), 3 * UNMAPPED);
        drop(grant);
        assert_eq!(scripted.freed.load(Ordering::Relaxed), 4 * UNMAPPED);
        assert!(ask(&buffers).is_ok());
    }

    fn at(address: usize, length: usize) -> Result<Allocation, AllocError> {
        let pointer = std::ptr::without_provenance_mut::<u8>(address);
        let memory = NonNull::slice_from_raw_parts(NonNull::new(pointer).unwrap(), length);
        Ok(Allocation::Memory(memory))
    }

    fn ask(buffers: &Buffers) -> Result<Option<Grant>> {
        buffers.allocate(
            0x1000,
            0x1000,
            ResourceType::new(DriverId(77), 1),
            Purpose::Place,
        )
    }

    /// Would catch a buffer that leaks or is freed twice.
    #[test]
    fn each_buffer_comes_back_once() {
        let (scripted, buffers) = buffers(|_| at(0x10000, 0x1000));
        let grant = ask(&buffers).unwrap().unwrap();
        assert_eq!(scripted.freed.load(Ordering::Relaxed), 0);
        drop(grant);
        assert_eq!(scripted.freed.load(Ordering::Relaxed), 1);
        drop(ask(&buffers).unwrap().unwrap());
        assert_eq!(scripted.freed.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn the_default_never_comes_back() {
        let (scripted, buffers) = buffers(|_| Ok(Allocation::Default));
        assert!(ask(&buffers).unwrap().is_none());
        assert_eq!(scripted.freed.load(Ordering::Relaxed), 0);
    }

    /// A bad buffer would otherwise be handed to the device, or leak.
    #[test]
    fn a_bad_buffer_is_refused_and_comes_back() {
        for (address, length, why) in [
            (0x10000, 0xfff, "4095 bytes"),
            (0x10800, 0x1000, "not aligned"),
            (usize::MAX - 0xfff, 0x1000, "beyond"),
        ] {
            let (scripted, buffers) = buffers(move |_| at(address, length));
            let error = ask(&buffers).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
            assert_eq!(scripted.freed.load(Ordering::Relaxed), 1);
        }
    }

    #[test]
    fn overlap_with_a_live_buffer_is_refused() {
        let (scripted, buffers) = buffers(|_| at(0x10000, 0x1000));
        let first = ask(&buffers).unwrap();
        let error = ask(&buffers).unwrap_err();
        assert!(error.to_string().contains("overlaps"), "{error}");
        assert_eq!(scripted.freed.load(Ordering::Relaxed), 1);
        drop(first);
        assert!(ask(&buffers).is_ok());
    }

    #[test]
    fn neighbours_do_not_overlap() {
        let live = Live::default();
        let insert = |space, start, end| live.insert([(space, start, end - start)].into_iter());
        let file = |inode| Space::Dmabuf(FileId::of(inode));
        for space in [Space::Process, file(7), file(6), file(8)] {
            assert!(insert(space, 0x2000, 0x3000));
            assert!(insert(space, 0x1000, 0x2000));
            assert!(insert(space, 0x3000, 0x4000));
            assert!(!insert(space, 0x0, 0x5000));
            assert!(!insert(space, 0x2800, 0x2900));
        }
    }

    /// Of a buffer with two parts, none is noted if one overlaps.
    #[test]
    fn a_part_that_is_refused_leaves_nothing_behind() {
        let live = Live::default();
        let dmabuf = Space::Dmabuf(FileId::of(7));
        let parts = |address, offset| {
            [(Space::Process, address, 0x1000), (dmabuf, offset, 0x1000)].into_iter()
        };
        assert!(live.insert(parts(0x1000, 0)));
        // Another mapping of the same bytes.
        assert!(!live.insert(parts(0x5000, 0x800)));
        assert!(live.insert(parts(0x5000, 0x1000)));
        live.remove(parts(0x1000, 0));
        assert!(live.insert(parts(0x1000, 0)));
    }

    /// The allocator's own error must reach the caller of the verb.
    #[test]
    fn an_error_surfaces_unchanged() {
        let (_, buffers) = buffers(|_| Err(AllocError::new(std::fmt::Error)));
        let error = ask(&buffers).unwrap_err();
        let source = std::error::Error::source(&error).unwrap();
        assert!(source.downcast_ref::<std::fmt::Error>().is_some());
    }

    #[test]
    fn a_panic_becomes_an_error() {
        let (scripted, buffers) = buffers(|_| panic!("out of luck"));
        let error = ask(&buffers).unwrap_err();
        assert!(
            error.to_string().contains("panicked: out of luck"),
            "{error}"
        );
        assert_eq!(scripted.freed.load(Ordering::Relaxed), 0);
    }

    /// Would catch what an allocator panics with being dropped in the middle of a verb, where it panics
    /// again.
    #[test]
    fn a_panic_that_panics_again_becomes_an_error() {
        struct Twice;
        impl Drop for Twice {
            fn drop(&mut self) {
                panic!("once more");
            }
        }
        let (_, buffers) = buffers(|_| std::panic::panic_any(Twice));
        let error = ask(&buffers).unwrap_err();
        assert!(
            error.to_string().contains("panicked: without a text"),
            "{error}"
        );
    }
}
