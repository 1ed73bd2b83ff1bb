//! Traffic over every kind of domain: what rdma-core's test_parent_domain does, over every allocator.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::fs;
use std::ptr::NonNull;
use std::sync::Arc;

use libtest_mimic::Trial;
use support::{Device, Objects, Result, device, open, test_without_leaks};
use uverbs::alloc::{
    AllocError, Allocation, Allocator, Arena, BufferRequest, Counting, GuardPages, HugePageSize,
    HugePages, NumaMemory, ResourceType, SharedMemfd,
};

use crate::traffic::{cq_on, datagrams, on_domain, shared_datagrams, shared_receives};

pub(crate) fn tests() -> Vec<Trial> {
    let kinds: [(&'static str, MakeKind); 8] = [
        ("no_allocator", || Ok(None)),
        ("always_default", || defaults(AlwaysDefault)),
        ("aligned", || grants(Aligned)),
        ("arena", || grants(Arena::new(vec![0u8; 4 << 20])?)),
        ("guard_pages", || grants(GuardPages::new())),
        ("shared_memfd", || grants(SharedMemfd::new(4 << 20)?)),
        ("huge_pages", || {
            reserve_huge_pages()?;
            memory(HugePages::of(HugePageSize::Mib2)?)
        }),
        ("numa_node", || memory(NumaMemory::new(0)?)),
    ];
    let tests = kinds.into_iter().flat_map(|(name, kind)| {
        [
            test_without_leaks(format!("kinds::rc_{name}"), move || {
                over(kind()?, two_queue_pairs(), rc)
            }),
            test_without_leaks(format!("kinds::ud_{name}"), move || {
                over(kind()?, two_queue_pairs(), ud)
            }),
            test_without_leaks(format!("kinds::srq_{name}"), move || {
                over(kind()?, one_of_them_shares(), shared_receives)
            }),
            test_without_leaks(format!("kinds::ud_srq_{name}"), move || {
                over(kind()?, two_of_them_share(), shared_datagrams)
            }),
        ]
    });
    tests.collect()
}

/// Makes an allocator for a domain; `None` for a domain without.
type MakeKind = fn() -> Result<Option<Kind>>;

/// An allocator, and whether it grants what the device's driver asks.
pub(crate) struct Kind {
    allocator: Arc<Counting<Arc<dyn Allocator>>>,
    grants: bool,
}

fn grants(allocator: impl Allocator) -> Result<Option<Kind>> {
    kind(allocator, true)
}

/// Allocators whose memory is good for rings, but not as a place for soft-RoCE's, which they leave to the
/// driver.
fn memory(allocator: impl Allocator) -> Result<Option<Kind>> {
    kind(allocator, device() != Device::Rxe)
}

/// Allocators that leave everything to the driver.
fn defaults(allocator: impl Allocator) -> Result<Option<Kind>> {
    kind(allocator, false)
}

fn kind(allocator: impl Allocator, grants: bool) -> Result<Option<Kind>> {
    let allocator: Arc<dyn Allocator> = Arc::new(allocator);
    Ok(Some(Kind {
        allocator: Arc::new(Counting::new(allocator)),
        grants,
    }))
}

/// Reserves huge pages in the guest, once.
pub(crate) fn reserve_huge_pages() -> Result {
    fs::write(
        "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
        "16",
    )?;
    Ok(())
}

/// The buffers of two queue pairs and a completion queue.
fn two_queue_pairs() -> Vec<ResourceType> {
    let device = device();
    [
        device.cq_buffers(),
        device.qp_buffers(),
        device.qp_buffers(),
    ]
    .concat()
}

/// The buffers if one of the two receives from a shared queue, and that and the completion queue are given
/// another size twice.
fn one_of_them_shares() -> Vec<ResourceType> {
    let device = device();
    let mut buffers = [
        device.cq_buffers(),
        device.srq_buffers(),
        device.qp_buffers(),
        device.qp_buffers_with_srq(),
    ]
    .concat();
    buffers.extend([device.cq_ring(); 2]);
    if device.resizes_srqs() {
        buffers.extend([device.srq_ring(); 2]);
    }
    buffers
}

/// The buffers if two of three receive from a shared queue.
fn two_of_them_share() -> Vec<ResourceType> {
    let device = device();
    [
        device.cq_buffers(),
        device.srq_buffers(),
        device.qp_buffers(),
        device.qp_buffers_with_srq(),
        device.qp_buffers_with_srq(),
    ]
    .concat()
}

/// Runs traffic over a domain with an allocator, and compares what the allocator saw with the buffers that
/// there were.
fn over(
    kind: Option<Kind>,
    rings: Vec<ResourceType>,
    traffic: fn(&uverbs::ParentDomain) -> Result,
) -> Result {
    let before = Objects::now()?;
    let context = open()?;
    let pd = context.alloc_pd()?;
    let td = context.alloc_td();
    let builder = pd.parent_domain().thread_domain(&td);
    let domain = match &kind {
        Some(kind) => builder.allocator(Arc::clone(&kind.allocator)),
        None => builder,
    }
    .create()?;
    traffic(&domain)?;
    domain.dealloc()?;
    td.dealloc()?;
    pd.dealloc()?;
    drop(context);
    assert_eq!(Objects::now()?, before);

    let Some(Kind { allocator, grants }) = kind else {
        return Ok(());
    };
    let counts = allocator.counts();
    let mut buffers = BTreeMap::new();
    for resource in rings {
        *buffers.entry(u64::from(resource)).or_insert(0) += 1;
    }
    assert_eq!(counts.len(), buffers.len(), "{counts:?}");
    for (resource, number) in buffers {
        let resource = ResourceType::from(resource);
        let count = counts[&resource];
        let granted = if grants { number } else { 0 };
        assert_eq!(
            (count.asked, count.granted),
            (number, granted),
            "{resource:?}"
        );
        assert_eq!(
            (count.defaulted, count.refused),
            (number - granted, 0),
            "{resource:?}"
        );
        assert_eq!(
            (count.freed, count.live_bytes),
            (granted, 0),
            "{resource:?}"
        );
    }
    Ok(())
}

fn rc(domain: &uverbs::ParentDomain) -> Result {
    on_domain(domain)?.exchange()
}

fn ud(domain: &uverbs::ParentDomain) -> Result {
    datagrams(domain, domain, domain, cq_on(domain)?)
}

/// Leaves everything to the driver.
struct AlwaysDefault;

// SAFETY: it gives no memory.
unsafe impl Allocator for AlwaysDefault {
    fn allocate(&self, _: &BufferRequest) -> std::result::Result<Allocation, AllocError> {
        Ok(Allocation::Default)
    }

    unsafe fn free(&self, memory: NonNull<[u8]>, request: &BufferRequest) {
        panic!("{memory:?} was never granted, and comes back for {request:?}");
    }
}

/// The heap's aligned memory, as in rdma-core's test.
pub(crate) struct Aligned;

fn layout(request: &BufferRequest) -> Layout {
    Layout::from_size_align(request.size, request.alignment).expect("a sensible request")
}

// SAFETY: the heap gives memory to one user at a time. Parts of pages that a fork copies are never a ring on
// rxe, whose requests are for whole pages, which are mapped over; elsewhere no test forks while it has rings
// here.
unsafe impl Allocator for Aligned {
    fn allocate(&self, request: &BufferRequest) -> std::result::Result<Allocation, AllocError> {
        // SAFETY: the size of a ring is not 0.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout(request)) });
        let memory = memory.ok_or_else(|| AllocError::new("the heap is full"))?;
        Ok(Allocation::Memory(NonNull::slice_from_raw_parts(
            memory,
            request.size,
        )))
    }

    unsafe fn free(&self, memory: NonNull<[u8]>, request: &BufferRequest) {
        // SAFETY: by this function's contract the memory came from `alloc_zeroed` with the same layout.
        unsafe { dealloc(memory.cast().as_ptr(), layout(request)) }
    }
}
