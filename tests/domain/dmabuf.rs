//! Rings and doorbell records in dma-bufs: traffic where the kernel's driver takes them, and refusal by name
//! everywhere else.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use libtest_mimic::Trial;
use support::exchange::CAPS;
use support::{Device, Result, device, kernel, open, same, says, skip, test_without_leaks};
use uverbs::alloc::{
    AllocError, Allocation, Allocator, Arena, BufferRequest, Counting, DmaHeap, Dmabuf,
    DmabufMemory, ResourceType, SharedMemfd, Udmabuf,
};
use uverbs::{Cause, Context, Error, ParentDomain, Rc, buf::Pool, error::Verb};

use crate::traffic::{cq_on, on_domain, shared_datagrams};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test_without_leaks("dmabuf::rings_lie_there", rings_lie_there),
        test_without_leaks("dmabuf::shared_receive_queues", shared),
        test_without_leaks("dmabuf::of_a_heap", of_a_heap),
        test_without_leaks("dmabuf::of_any_exporter", of_any_exporter),
        test_without_leaks("dmabuf::an_arena_over_one", an_arena),
        test_without_leaks("dmabuf::rings_or_records_alone", mixed),
        test_without_leaks("dmabuf::resize_is_refused", resize),
        test_without_leaks("dmabuf::bad_answers_are_refused", bad_answers),
        test_without_leaks("dmabuf::nothing_is_pinned_of_the_process", pinned),
        test_without_leaks("dmabuf::others_look_on", others_look_on),
        test_without_leaks("dmabuf::pools_are_refused", pools),
    ]
}

/// Bytes of a dma-buf.
const LENGTH: usize = 1 << 20;

/// Whether completion queues and queue pairs may lie in dma-bufs.
fn takes() -> bool {
    device().is_mlx5() && kernel() >= (7, 2)
}

/// A dma-buf; the test is skipped where the kernel makes none.
fn udmabuf() -> Result<Udmabuf> {
    made(Udmabuf::new(LENGTH))
}

fn made<T>(made: io::Result<T>) -> Result<T> {
    match made {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {
            skip(format!("no dma-buf here: {error}"))
        }
        made => Ok(made?),
    }
}

/// As [`udmabuf`], on devices that take them; where others refuse is in the first tests.
fn taken() -> Result<Udmabuf> {
    match takes() {
        true => udmabuf(),
        false => skip("rings in dma-bufs are mlx5's, since Linux 7.2"),
    }
}

fn domain_with(context: &Context, allocator: impl Allocator) -> Result<ParentDomain> {
    let pd = context.alloc_pd()?;
    Ok(pd.parent_domain().allocator(allocator).create()?)
}

/// What a buffer is for, its offset in the dma-buf, and its bytes.
type Place = (ResourceType, u64, usize);

/// An allocator that notes where in a dma-buf the buffers of another one lie.
#[derive(Clone)]
struct Noting(Arc<(Udmabuf, Mutex<Vec<Place>>)>);

impl Noting {
    fn new(udmabuf: Udmabuf) -> Self {
        Self(Arc::new((udmabuf, Mutex::default())))
    }

    fn places(&self) -> Vec<Place> {
        self.0.1.lock().unwrap().clone()
    }

    /// Bytes of the file, past any mapping of the allocator's.
    fn bytes(&self, offset: u64, length: usize) -> Result<Vec<u8>> {
        let file = File::from(self.0.0.as_fd().try_clone_to_owned()?);
        let mut bytes = vec![0; length];
        file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }
}

// SAFETY: memory comes from the allocator in it and goes back there.
unsafe impl Allocator for Noting {
    fn allocate(&self, request: &BufferRequest) -> std::result::Result<Allocation, AllocError> {
        let answer = self.0.0.allocate(request)?;
        if let Allocation::Dmabuf { offset, .. } = answer {
            let mut places = self.0.1.lock().unwrap();
            places.push((request.resource, offset, request.size));
        }
        Ok(answer)
    }

    unsafe fn free(&self, memory: NonNull<[u8]>, request: &BufferRequest) {
        // SAFETY: by this function's contract.
        unsafe { self.0.0.free(memory, request) }
    }
}

/// Fails unless the error says what is missing where dma-bufs are not taken.
fn is_refused(error: &Error, since: &str) -> Result {
    same(error.is_unsupported(), true, "that it is unsupported")?;
    match device().is_mlx5() {
        true => says(error, &["rings in dma-bufs", since]),
        false => says(error, &["rings in dma-bufs", "driver"]),
    }
}

/// Catches rings and records that lie elsewhere: each part of the file has been written to, and the kernel
/// had no address. Where they are not taken, catches a driver or kernel that overlooks the answer.
fn rings_lie_there() -> Result {
    if device() == Device::Efa {
        return skip(
            "of an EFA completion rings alone: `fabric srd::completion_rings_in_given_memory`",
        );
    }
    let noting = Noting::new(udmabuf()?);
    let counting = Arc::new(Counting::new(noting.clone()));
    let context = open()?;
    let domain = domain_with(&context, Arc::clone(&counting))?;
    if !takes() {
        let error = context.cq(32).domain(&domain).create().unwrap_err();
        is_refused(&error, "7.2")?;
        let cq = context.create_cq(32)?;
        is_refused(&domain.create_qp::<Rc>(&cq, CAPS).unwrap_err(), "7.2")?;
        let live = counting.counts().values().map(|counts| counts.live()).sum();
        return same(live, 0u64, "buffers that did not come back");
    }
    let mut pair = on_domain(&domain)?;
    pair.exchange()?;
    let places = noting.places();
    let device = device();
    let expected = [
        device.cq_buffers(),
        device.qp_buffers(),
        device.qp_buffers(),
    ]
    .concat();
    let resources: Vec<_> = places.iter().map(|(resource, ..)| *resource).collect();
    same(resources, expected, "what was asked for")?;
    for (resource, offset, length) in places {
        let bytes = noting.bytes(offset, length)?;
        let used = bytes.iter().any(|&byte| byte != 0);
        same(used, true, &format!("that {resource:?} was written to"))?;
    }
    // A queue pair's rings are as new after a reset, at the same place.
    let (a, b) = (&mut pair.a, &mut pair.b);
    a.reset()?;
    b.reset()?;
    let (at_a, at_b) = (a.endpoint()?, b.endpoint()?);
    a.connect(&at_b)?;
    b.connect(&at_a)?;
    pair.exchange()?;
    drop(pair);
    for (resource, counts) in counting.counts() {
        let (asked, freed) = (counts.asked, counts.freed);
        same(counts.granted, asked, &format!("{resource:?} in a dma-buf"))?;
        same(freed, asked, &format!("{resource:?} that came back"))?;
    }
    Ok(())
}

/// The same of shared receive queues, which a later kernel takes.
fn shared() -> Result {
    let udmabuf = taken()?;
    let counting = Arc::new(Counting::new(udmabuf));
    let context = open()?;
    let domain = domain_with(&context, Arc::clone(&counting))?;
    if kernel() < (7, 3) {
        return is_refused(&domain.srq(7).create().unwrap_err(), "7.3");
    }
    shared_datagrams(&domain)?;
    // Of every size, since the kernel takes none that is longer than the ring.
    for (requests, slices) in [(1, 1), (63, 1), (64, 3), (1000, 7)] {
        let srq = domain.srq(requests).max_sge(slices).create()?;
        srq.destroy()?;
    }
    let counts = counting.counts();
    for resource in device().srq_buffers() {
        let counts = counts[resource];
        same(counts.granted, counts.freed, "what came back")?;
    }
    same(
        counts[&device().srq_buffers()[0]].granted,
        5,
        "rings of SRQs",
    )
}

fn of_a_heap() -> Result {
    if !takes() {
        return skip("rings in dma-bufs are mlx5's, since Linux 7.2");
    }
    // SAFETY: the processor's caches and the modelled adapter see the same bytes.
    let heap = made(unsafe { DmaHeap::new("system", LENGTH) })?;
    same(heap.capacity(), LENGTH, "the heap's memory")?;
    let context = open()?;
    on_domain(&domain_with(&context, heap)?)?.exchange()
}

/// Rings in a mapping of the dma-buf itself, which has no pages that could be pinned by address.
fn of_any_exporter() -> Result {
    let udmabuf = taken()?;
    // SAFETY: nothing is allocated of the udmabuf itself.
    let file = unsafe { udmabuf.dmabuf().file() }.try_clone_to_owned()?;
    let dmabuf = Dmabuf::new(file)?;
    same(&dmabuf, udmabuf.dmabuf(), "the dma-buf")?;
    // SAFETY: as above; memory of a file in memory is coherent.
    let memory = unsafe { DmabufMemory::new(dmabuf)? };
    same(memory.capacity(), LENGTH, "its length")?;
    let context = open()?;
    let domain = domain_with(&context, memory)?;
    let mut pair = on_domain(&domain)?;
    // The rings go on when the first owner of the descriptor is gone.
    drop(udmabuf);
    pair.exchange()
}

/// Catches an arena that tells the device addresses, or offsets that are those of other buffers.
fn an_arena() -> Result {
    let arena = Arena::in_dmabuf(taken()?.into_memory())?;
    let counting = Arc::new(Counting::new(arena));
    let context = open()?;
    let domain = domain_with(&context, Arc::clone(&counting))?;
    let mut pair = on_domain(&domain)?;
    pair.exchange()?;
    let arena = counting.inner();
    same(arena.reset().is_err(), true, "that buffers are in use")?;
    drop((pair, domain));
    same(arena.live(), 0, "buffers that did not come back")?;
    arena.reset()?;
    let domain = domain_with(&context, Arc::clone(&counting))?;
    on_domain(&domain)?.exchange()
}

/// An allocator that changes another one's answers.
struct Bent<F>(Udmabuf, F);

// SAFETY: memory comes from the allocator in it and goes back there; tests that bend it do so to see it
// found out.
unsafe impl<F> Allocator for Bent<F>
where
    F: Fn(&BufferRequest, Allocation) -> Allocation + Send + Sync + 'static,
{
    fn allocate(&self, request: &BufferRequest) -> std::result::Result<Allocation, AllocError> {
        Ok((self.1)(request, self.0.allocate(request)?))
    }

    unsafe fn free(&self, _: NonNull<[u8]>, _: &BufferRequest) {
        // What was bent would not be found again.
    }
}

/// A ring in the dma-buf with its record at an address, and the reverse.
fn mixed() -> Result {
    let context = open()?;
    for records in [true, false] {
        let choose = move |request: &BufferRequest, answer| {
            assert!(request.dmabuf, "{request:?}");
            match (request.resource == ResourceType::MLX5_DBR) == records {
                true => answer,
                false => Allocation::Default,
            }
        };
        let domain = domain_with(&context, Bent(taken()?, choose))?;
        on_domain(&domain)?.exchange()?;
    }
    Ok(())
}

/// Catches a completion queue that leaves the dma-buf without a word, one that gets its new ring there, and
/// one that is of no use afterwards.
fn resize() -> Result {
    let context = open()?;
    let domain = domain_with(&context, taken()?)?;
    let mut pair = on_domain(&domain)?;
    let refused = pair.cq.resize(500).unwrap_err();
    same(refused.verb(), Verb::ResizeCq, "the verb")?;
    same(refused.is_unsupported(), true, "that it is unsupported")?;
    says(&refused, &["new ring in a dma-buf"])?;
    pair.exchange()?;

    // Its first ring is at an address.
    let first = Mutex::new(true);
    let domain = domain_with(
        &context,
        Bent(udmabuf()?, move |request: &BufferRequest, answer| {
            let is_ring = request.resource == ResourceType::MLX5_CQ;
            match is_ring && std::mem::take(&mut *first.lock().unwrap()) {
                true => Allocation::Default,
                false => answer,
            }
        }),
    )?;
    let mut pair = on_domain(&domain)?;
    let refused = pair.cq.resize(500).unwrap_err();
    same(refused.is_unsupported(), true, "that it is unsupported")?;
    says(&refused, &["new ring in a dma-buf"])?;
    pair.exchange()
}

/// What the kernel would not find wrong, or would say of it no more than EINVAL.
fn bad_answers() -> Result {
    type Change = fn(u64, NonNull<[u8]>) -> (u64, NonNull<[u8]>);
    let cases: [(Change, &str); 4] = [
        (|offset, memory| (offset + 64, memory), "not aligned"),
        (|_, memory| (LENGTH as u64, memory), "beyond"),
        (|_, memory| (u64::MAX - 0xfff, memory), "beyond"),
        (
            |offset, memory| {
                // SAFETY: within the buffer; nobody looks there.
                let later = unsafe { memory.cast::<u8>().add(64) };
                (offset, NonNull::slice_from_raw_parts(later, memory.len()))
            },
            "cannot be mapped",
        ),
    ];
    let context = open()?;
    for (change, why) in cases {
        let domain = domain_with(
            &context,
            Bent(taken()?, move |_: &BufferRequest, answer| match answer {
                Allocation::Dmabuf {
                    dmabuf,
                    offset,
                    memory,
                } => {
                    let (offset, memory) = change(offset, memory);
                    Allocation::Dmabuf {
                        dmabuf,
                        offset,
                        memory,
                    }
                }
                other => other,
            }),
        )?;
        let error = context.cq(32).domain(&domain).create().unwrap_err();
        assert!(matches!(error.cause(), Cause::Allocator(_)), "{error:?}");
        says(&error, &[why])?;
    }
    // The same bytes by another mapping.
    let udmabuf = taken()?;
    // SAFETY: the library is to refuse that two use the memory.
    let second = unsafe { DmabufMemory::new(udmabuf.dmabuf().clone())? };
    let (first, second) = (
        domain_with(&context, udmabuf)?,
        domain_with(&context, second)?,
    );
    let _cq = cq_on(&first)?;
    let error = context.cq(32).domain(&second).create().unwrap_err();
    says(&error, &["overlaps"])
}

/// Pages that the kernel counts as pinned of this process.
fn pinned_kib() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    Ok(number.ok_or("no VmPin")?.parse()?)
}

/// What objects pin that lie in an allocator's memory.
fn pinned_by(context: &Context, allocator: impl Allocator) -> Result<u64> {
    let domain = domain_with(context, allocator)?;
    let cq = cq_on(&domain)?;
    let before = pinned_kib()?;
    let _second = cq_on(&domain)?;
    let _qp = domain.create_qp::<Rc>(&cq, CAPS)?;
    Ok(pinned_kib()? - before)
}

/// Holds what the documentation says of RLIMIT_MEMLOCK.
fn pinned() -> Result {
    let udmabuf = taken()?;
    let context = open()?;
    let by_address = pinned_by(&context, SharedMemfd::new(LENGTH)?)?;
    same(by_address > 0, true, "that rings at an address are pinned")?;
    same(pinned_by(&context, udmabuf)?, 0, "KiB pinned by dma-bufs")
}

/// Catches a file that changes the rings, and a dma-buf that does not.
fn others_look_on() -> Result {
    let udmabuf = udmabuf()?;
    let file = File::from(udmabuf.as_fd().try_clone_to_owned()?);
    same(
        file.write_all_at(&[1], 0).is_err(),
        true,
        "no write by the file",
    )?;
    same(file.set_len(0).is_err(), true, "no end of the file")?;
    same(file.metadata()?.len(), LENGTH as u64, "the file's length")?;
    // SAFETY: no object lies there.
    let memory = unsafe { DmabufMemory::new(udmabuf.dmabuf().clone())? };
    let request = BufferRequest {
        size: 64,
        alignment: 64,
        resource: ResourceType::MLX5_CQ,
        purpose: uverbs::alloc::Purpose::Memory,
        pd: uverbs::uapi::handle::PdHandle(0),
        domain: 0,
        dmabuf: true,
        unmapped: None,
    };
    let Allocation::Dmabuf { offset, memory, .. } = memory.allocate(&request)? else {
        return Err("no dma-buf".into());
    };
    // SAFETY: the buffer is this test's, and its mapping lives as long as `memory`.
    unsafe { memory.cast::<u8>().write_bytes(0x5a, 64) };
    let mut bytes = [0; 64];
    file.read_exact_at(&mut bytes, offset)?;
    same(bytes, [0x5a; 64], "what was written by the dma-buf")
}

/// Catches a pool whose regions are somewhere else than its allocator says.
fn pools() -> Result {
    let udmabuf = udmabuf()?;
    let pd = open()?.alloc_pd()?;
    let pool = Pool::on(&pd)
        .sizes([4096])
        .limit(1 << 20)
        .allocator(udmabuf)
        .build()?;
    let refused = pool.try_get(1).unwrap_err();
    says(&refused, &["pool in a dma-buf"])
}
