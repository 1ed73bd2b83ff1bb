//! Buffers in huge pages, which need fewer translations in the device and the processor.

use std::fmt;
use std::fs;
use std::io;
use std::ptr::NonNull;

use rustix::mm::MapFlags;

use super::mapping::Mapping;
use super::pool::Pool;
use super::{AllocError, Allocation, Allocator, BufferRequest};

/// An allocator that cuts buffers from huge pages and keeps the pages until it is dropped.
///
/// A part of a huge page cannot be mapped over, so for a [`Purpose::Place`](super::Purpose::Place) it answers
/// [`Allocation::Default`]: on rxe it has no effect.
///
/// ```
/// use uverbs::{alloc::{HugePageSize, HugePages}, ParentDomain, Pd};
///
/// fn in_huge_pages(pd: &Pd) -> Result<ParentDomain, Box<dyn std::error::Error>> {
///     Ok(pd.parent_domain().allocator(HugePages::new()?).create()?)
/// }
///
/// match HugePages::of(HugePageSize::Gib1) {
///     Ok(pages) => println!("{pages:?}"),
///     Err(error) => println!("{error}"), // It says how to reserve some.
/// }
/// ```
#[derive(Debug)]
pub struct HugePages {
    size: HugePageSize,
    pool: Pool,
}

/// Sizes of huge pages on x86-64, and on arm64 with pages of 4 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HugePageSize {
    /// 2 MiB.
    #[default]
    Mib2,
    /// 1 GiB.
    Gib1,
}

impl HugePageSize {
    /// Bytes of a page.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Mib2 => 2 << 20,
            Self::Gib1 => 1 << 30,
        }
    }

    fn map_flag(self) -> MapFlags {
        match self {
            Self::Mib2 => MapFlags::HUGE_2MB,
            Self::Gib1 => MapFlags::HUGE_1GB,
        }
    }

    /// The directory where the kernel describes its pages of this size.
    fn directory(self) -> String {
        format!(
            "/sys/kernel/mm/hugepages/hugepages-{}kB",
            self.bytes() >> 10
        )
    }

    /// One of the kernel's counts of pages, or the error of reading its file.
    fn count(self, name: &str) -> io::Result<u64> {
        let text = fs::read_to_string(format!("{}/{name}", self.directory()))?;
        text.trim().parse().map_err(io::Error::other)
    }
}

impl fmt::Display for HugePageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mib2 => "2 MiB",
            Self::Gib1 => "1 GiB",
        })
    }
}

impl HugePages {
    /// An allocator of huge pages of 2 MiB.
    ///
    /// # Errors
    ///
    /// As for [`HugePages::of`].
    pub fn new() -> io::Result<Self> {
        Self::of(HugePageSize::default())
    }

    /// An allocator of huge pages of a size. Pages are taken when they are needed.
    ///
    /// # Errors
    ///
    /// `Unsupported` if the kernel has no pages of this size, `OutOfMemory` if none are reserved; the text
    /// says how to reserve some.
    pub fn of(size: HugePageSize) -> io::Result<Self> {
        let reserved = size.count("nr_hugepages").map_err(|error| {
            let why = format!(
                "the kernel has no huge pages of {size}: {}: {error}",
                size.directory()
            );
            io::Error::new(io::ErrorKind::Unsupported, why)
        })?;
        // Pages that the kernel may make in addition to the reserved ones.
        let overcommit = size.count("nr_overcommit_hugepages").unwrap_or(0);
        if reserved + overcommit == 0 {
            let why = format!(
                "no huge pages of {size} are reserved; write how many to {}/nr_hugepages",
                size.directory()
            );
            return Err(io::Error::new(io::ErrorKind::OutOfMemory, why));
        }
        Ok(Self {
            size,
            pool: Pool::default(),
        })
    }

    /// The size of its pages.
    pub fn page_size(&self) -> HugePageSize {
        self.size
    }

    fn map(&self, needed: usize) -> io::Result<Mapping> {
        let bytes = needed.checked_next_multiple_of(self.size.bytes());
        let bytes = bytes.ok_or(io::ErrorKind::OutOfMemory)?;
        let flags = MapFlags::HUGETLB | self.size.map_flag();
        let failed = |what: &str, error: io::Error| {
            let pages = bytes / self.size.bytes();
            let free = self.size.count("free_hugepages").unwrap_or(0);
            let why = format!(
                "{what} {pages} huge pages of {}, of which {free} are free: {error}",
                self.size
            );
            io::Error::new(error.kind(), why)
        };
        let mapping = Mapping::shared(bytes, flags).map_err(|error| failed("mapping", error))?;
        populate(&mapping).map_err(|error| {
            let limit = "; a cgroup may have a limit (hugetlb.*.max)";
            failed(
                "taking",
                io::Error::new(error.kind(), format!("{error}{limit}")),
            )
        })?;
        Ok(mapping)
    }
}

/// Takes the pages of a mapping. The kernel has reserved them, but a limit of the cgroup holds when a page is
/// first touched, and then ends the process by SIGBUS. Before Linux 5.14 there is no call for it.
///
/// With `libc`: not every rustix has the advice.
fn populate(mapping: &Mapping) -> io::Result<()> {
    let (base, length) = (mapping.base().as_ptr(), mapping.length());
    // SAFETY: the range is a mapping of this process, of which only the pages are taken.
    let status = unsafe { libc::madvise(base.cast(), length, libc::MADV_POPULATE_WRITE) };
    if status == 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        error => Err(error),
    }
}

// SAFETY: the pool gives each byte to one buffer at a time, zeroed, from mappings that are shared at a fork
// and live as long as the allocator.
unsafe impl Allocator for HugePages {
    fn allocate(&self, request: &BufferRequest) -> Result<Allocation, AllocError> {
        let granularity = self.size.bytes();
        self.pool
            .allocate(request, granularity, |needed| self.map(needed))
    }

    unsafe fn free(&self, memory: NonNull<[u8]>, _: &BufferRequest) {
        // SAFETY: by this function's contract; all memory is the pool's.
        unsafe { self.pool.free(memory) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alloc::testing::{self, memory, place};

    /// A kernel may have none, and the error must then say so; the test guest reserves some.
    #[test]
    fn a_kernel_without_them_is_told_apart_from_one_with_them() {
        for size in [HugePageSize::Mib2, HugePageSize::Gib1] {
            let reserved = size.count("nr_hugepages");
            match HugePages::of(size) {
                Ok(pages) => {
                    assert_eq!(pages.allocate(&place(0x1000)), Ok(Allocation::Default));
                    if size.count("free_hugepages").unwrap() > 0 {
                        testing::keeps_the_contract(&pages);
                    }
                }
                Err(error) if reserved.is_ok() => {
                    assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
                    assert!(error.to_string().contains("nr_hugepages"), "{error}");
                }
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::Unsupported),
            }
        }
    }

    /// Pages of the ordinary size stand in for huge ones: only the pool cuts buffers from them.
    #[test]
    fn buffers_of_one_page_share_it() {
        let pool = Pool::default();
        let mut mapped = 0;
        let request = memory(64, 64);
        let mut addresses = Vec::new();
        for _ in 0..3 {
            let memory = pool.allocate(&request, 0x1000, |needed| {
                mapped += 1;
                Mapping::shared(needed.next_multiple_of(0x10000), MapFlags::empty())
            });
            match memory.unwrap() {
                Allocation::Memory(memory) => addresses.push(memory),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(mapped, 1);
        // SAFETY: it is the pool's, and nothing uses it.
        unsafe { pool.free(addresses[1]) };
        let again = pool.allocate(&request, 0x1000, |_| Err(io::ErrorKind::OutOfMemory.into()));
        assert_eq!(again.unwrap(), Allocation::Memory(addresses[1]));
    }

    /// Would catch one huge page too many: of 1 GiB there may be only one.
    #[test]
    fn a_buffer_of_a_page_takes_one_page() {
        let pool = Pool::default();
        for (alignment, expected) in [(0x1000, 0x10000), (0x10000, 0x10000), (0x20000, 0x30000)] {
            let _ = pool.allocate(&memory(0x10000, alignment), 0x10000, |needed| {
                assert_eq!(needed, expected);
                Err(io::ErrorKind::OutOfMemory.into())
            });
        }
    }

    #[test]
    fn more_than_there_are_is_an_error() {
        let pages = HugePages {
            size: HugePageSize::Gib1,
            pool: Pool::default(),
        };
        let error = pages.allocate(&memory(1 << 45, 8)).unwrap_err();
        assert!(error.to_string().contains("are free"), "{error}");
        assert!(pages.allocate(&memory(usize::MAX, 8)).is_err());
    }
}
