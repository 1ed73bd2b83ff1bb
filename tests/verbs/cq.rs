//! Completion queues of other sizes, moderation, and what is left of a queue that overflows.

use std::ptr::NonNull;
use std::result::Result as Either;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use libtest_mimic::Trial;
use rustix::param::page_size;
use support::{
    LIMIT, Pair, QUIET, Result, Setup, completion, device, fail, open, same, skip, test, until,
};
use uverbs::{
    Access, Cq, Inline, Mr, QpState, Rc, WcOpcode, WcStatus,
    alloc::{AllocError, Allocation, Allocator, BufferRequest, Counting, GuardPages, ResourceType},
    cq::PollError,
    error::Errno,
    event::{AsyncEvent, AsyncEventType, EventSource},
};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("cq::resize_keeps_what_waits", resize_keeps_what_waits),
        test(
            "cq::the_same_size_changes_nothing",
            the_same_size_changes_nothing,
        ),
        test("cq::too_small_is_refused", too_small_is_refused),
        test("cq::too_large_names_the_limit", too_large_names_the_limit),
        test("cq::resize_under_traffic", resize_under_traffic),
        test("cq::entries_of_either_size", entries_of_either_size),
        test(
            "cq::timestamps_are_of_the_clock",
            timestamps_are_of_the_clock,
        ),
        test(
            "cq::timestamps_have_a_time_of_day",
            timestamps_have_a_time_of_day,
        ),
        test("cq::on_a_domain", on_a_domain),
        test("cq::a_completion_is_a_copy", a_completion_is_a_copy),
        test("cq::moderated_or_told", moderated_or_told),
        test(
            "cq::overflow_keeps_what_was_there",
            overflow_keeps_what_was_there,
        ),
    ]
}

/// Completes a write for each of these ids, and leaves the completions in the queue.
///
/// Behind the writes goes a READ without a completion. Requests end in their order, so what it brings comes
/// when the completions of all others are there.
fn complete(pair: &mut Pair<Rc>, target: &Mr<Vec<u8>>, ids: std::ops::Range<u64>) -> Result {
    let back = pair.pd.register(vec![0u8; 1], Access::LOCAL_WRITE)?;
    let mut batch = pair.a.qp.batch();
    for id in ids {
        batch.signaled(id).write(Inline(b"x"), target.remote())?;
    }
    batch
        .unsignaled(0)
        .read(back.slice(..)?, target.remote().slice(..1)?)?;
    batch.ring()?;
    until("the requests to end", || {
        let mut byte = [0];
        back.read_at(0, &mut byte)?;
        Ok((byte == *b"x").then_some(()))
    })
}

fn target(pair: &Pair<Rc>) -> Result<Mr<Vec<u8>>> {
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    Ok(pair.pd.register(vec![0; 8], access)?)
}

/// Takes the completions with these ids, in this order.
fn take(cq: &mut Cq, ids: std::ops::Range<u64>) -> Result {
    for id in ids {
        let wc = completion(cq)?;
        wc.is(WcOpcode::RDMA_WRITE)?;
        same(wc.wr_id, id, "the completion")?;
    }
    Ok(())
}

/// Catches completions that are lost, doubled or reordered when the ring moves, also around its end.
fn resize_keeps_what_waits() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let target = target(&pair)?;
    pair.a.cq.resize(15)?;
    same(pair.a.cq.capacity(), 15, "the smaller capacity")?;
    complete(&mut pair, &target, 0..10)?;
    take(&mut pair.a.cq, 0..9)?;
    complete(&mut pair, &target, 10..24)?;
    pair.a.cq.resize(100)?;
    same(pair.a.cq.capacity(), 127, "the larger capacity")?;
    take(&mut pair.a.cq, 9..12)?;
    complete(&mut pair, &target, 24..84)?;
    take(&mut pair.a.cq, 12..70)?;
    pair.a.cq.resize(15)?;
    same(pair.a.cq.capacity(), 15, "the capacity at last")?;
    take(&mut pair.a.cq, 70..84)?;
    complete(&mut pair, &target, 84..99)?;
    take(&mut pair.a.cq, 84..99)?;
    same(pair.a.cq.poll()?.iter().count(), 0, "more completions")
}

/// Catches a poller that goes on in another ring than the device: mlx5 does nothing when the size is the old
/// one.
fn the_same_size_changes_nothing() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let target = target(&pair)?;
    for (entries, first) in [(15, 0), (15, 10), (12, 20), (60, 30), (63, 40)] {
        complete(&mut pair, &target, first..first + 10)?;
        pair.a.cq.resize(entries)?;
        take(&mut pair.a.cq, first..first + 10)?;
    }
    same(pair.a.cq.poll()?.iter().count(), 0, "more completions")
}

/// Catches a refusal after which completions are gone, or come no more.
fn too_small_is_refused() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let target = target(&pair)?;
    complete(&mut pair, &target, 0..40)?;
    let capacity = pair.a.cq.capacity();
    for entries in [0, 10] {
        let Err(error) = pair.a.cq.resize(entries) else {
            return fail(format!("40 completions in a ring of {entries}"));
        };
        same(error.errno(), Some(Errno::INVAL), "the errno")?;
    }
    same(pair.a.cq.capacity(), capacity, "capacity")?;
    take(&mut pair.a.cq, 0..40)?;
    complete(&mut pair, &target, 40..60)?;
    take(&mut pair.a.cq, 40..60)
}

/// Catches a refusal that does not tell what would have been possible.
fn too_large_names_the_limit() -> Result {
    let context = open()?;
    let max = context.query_device()?.max_cqe;
    let mut cq = context.create_cq(4)?;
    let text = cq.resize(max + 1).err().map(|error| error.to_string());
    let text = text.unwrap_or_default();
    if text.contains(&format!("max_cqe is {max}")) {
        return Ok(());
    }
    fail(format!("no limit in {text:?}"))
}

/// Catches completions that go astray when the kernel writes to a ring that is being exchanged.
fn resize_under_traffic() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let target = target(&pair)?;
    let (mut posted, mut taken) = (0, 0);
    while taken < 1500 {
        let mut batch = pair.a.qp.batch();
        while posted < taken + 12 {
            batch
                .signaled(posted)
                .write(Inline(b"x"), target.remote())?;
            posted += 1;
        }
        batch.ring()?;
        // The completions of these requests arrive meanwhile.
        if taken % 3 == 0 {
            pair.a.cq.resize([15, 200, 31, 60][(taken % 4) as usize])?;
        }
        take(&mut pair.a.cq, taken..taken + 5)?;
        taken += 5;
    }
    take(&mut pair.a.cq, taken..posted)
}

/// Catches a clock that is not that of the completions, or stands still.
fn timestamps_are_of_the_clock() -> Result {
    let context = open()?;
    if !device().has_clock() {
        return skip("it has no clock, which lacking::clock holds it to");
    }
    same(
        context.query_device()?.hca_core_clock > 0,
        true,
        "a frequency",
    )?;
    let cq = context.cq(8).timestamps(true).create()?;
    let mut pair = Pair::<Rc>::reporting_to(cq, context.create_cq(64)?, &Setup::default())?;
    let target = target(&pair)?;
    let mut before = match context.raw_clock() {
        // A page larger than 4 KiB would show other registers beside the clock.
        Err(error) if error.is_unsupported() && page_size() > 4096 => {
            return skip(
                "the kernel shows the clock only on pages of 4 KiB (`mlx5_ib_alloc_ucontext`)",
            );
        }
        clock => clock?,
    };
    for id in 0..3 {
        complete(&mut pair, &target, id..id + 1)?;
        let mut completions = pair.a.cq.poll()?;
        let Some(completed) = completions.iter().next().and_then(|wc| wc.timestamp()) else {
            return fail("no completion, or none with a timestamp");
        };
        let after = context.raw_clock()?;
        if !(before < completed && completed < after) {
            return fail(format!("{before}, then {completed}, then {after}"));
        }
        before = after;
    }
    Ok(())
}

/// Catches time stamps whose time of day is another, and one that does not go on with the device's clock.
fn timestamps_have_a_time_of_day() -> Result {
    let context = open()?;
    if device().is_rxe() {
        let refused = context.wall_clock().err();
        let told = refused.is_some_and(|error| error.is_unsupported());
        return same(told, true, "that there is none");
    }
    let cq = context.cq(8).timestamps(true).create()?;
    let mut pair = Pair::<Rc>::reporting_to(cq, context.create_cq(64)?, &Setup::default())?;
    let target = target(&pair)?;
    let before = SystemTime::now().duration_since(UNIX_EPOCH)?;
    complete(&mut pair, &target, 0..1)?;
    let mut completions = pair.a.cq.poll()?;
    let Some(stamp) = completions.iter().next().and_then(|wc| wc.timestamp()) else {
        return fail("no completion, or none with a timestamp");
    };
    let clock = context.wall_clock()?;
    let told = Duration::from_nanos(clock.nanoseconds(stamp));
    // The kernel read both clocks when its driver started, and an emulated one need not run as fast.
    let off = told.abs_diff(before);
    println!("{told:?}, {off:?} off");
    same(off < Duration::from_secs(60), true, "within a minute")?;
    let later = clock.nanoseconds(stamp + 1_000_000) - clock.nanoseconds(stamp);
    // The model's clock counts nanoseconds; the kernel's scale has fewer digits.
    same(later.abs_diff(1_000_000) < 10, true, "a millisecond later")
}

/// Catches entries that are looked for at the wrong distance, in rings of any size.
fn entries_of_either_size() -> Result {
    let context = open()?;
    let refused = |bytes| context.cq(8).entry_bytes(bytes).create().err();
    let Some(other) = refused(96) else {
        return fail("entries of 96 bytes");
    };
    if !device().is_mlx5() {
        return same(other.is_unsupported(), true, &other.to_string());
    }
    same(other.to_string().contains("96 bytes"), true, "what it says")?;
    for bytes in [64, 128] {
        let cq = context.cq(15).entry_bytes(bytes).create()?;
        let mut pair = Pair::<Rc>::reporting_to(cq, context.create_cq(64)?, &Setup::default())?;
        let target = target(&pair)?;
        let mut id = 0;
        // Three times round the ring, then in rings of other sizes.
        for entries in [15, 63, 7] {
            pair.a.cq.resize(entries)?;
            for _ in 0..10 {
                complete(&mut pair, &target, id..id + 5)?;
                take(&mut pair.a.cq, id..id + 5)?;
                id += 5;
            }
        }
    }
    Ok(())
}

/// Catches a ring that does not lie where the allocator said, and buffers that are not asked for anew or not
/// given back when the size changes.
fn on_a_domain() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let counting = Arc::new(Counting::new(GuardPages::new()));
    let domain = pair.pd.parent_domain();
    let domain = domain.allocator(Arc::clone(&counting)).create()?;
    let counts = || {
        let counts = counting.counts();
        let cq = counts.get(&device().cq_ring()).copied();
        cq.map(|cq| (cq.asked, cq.granted, cq.freed))
    };
    let mut cq = pair.context.cq(15).domain(&domain).create()?;
    same(counts(), Some((1, 1, 0)), "asked, granted, freed")?;
    let mut a = pair.pd.create_qp::<Rc>(&cq, Setup::default().caps)?;
    let mut b = pair.pd.create_qp::<Rc>(&pair.b.cq, Setup::default().caps)?;
    let (from, to) = (a.endpoint()?, b.endpoint()?);
    let options = Setup::default().options;
    a.connect_with(&to, &options)?;
    b.connect_with(&from, &options)?;
    (pair.a.qp, pair.b.qp) = (a, b);
    let target = target(&pair)?;
    complete(&mut pair, &target, 0..12)?;
    take(&mut cq, 0..4)?;
    cq.resize(300)?;
    same(counts(), Some((2, 2, 1)), "after the resize")?;
    complete(&mut pair, &target, 12..70)?;
    same(cq.resize(20).is_err(), true, "66 do not fit")?;
    // The ring that is refused is the kernel's on soft-RoCE, and so never asked for; elsewhere it comes back.
    let all = if device().is_rxe() { 2 } else { 3 };
    same(counts(), Some((all, all, all - 1)), "after the refusal")?;
    take(&mut cq, 4..70)?;
    drop(pair);
    cq.destroy()?;
    same(counts(), Some((all, all, all)), "at the end")
}

/// An allocator that tells where the last buffer of a type is.
struct Telling {
    pages: GuardPages,
    resource: ResourceType,
    last: Mutex<Option<usize>>,
}

// SAFETY: memory comes from the allocator in it and goes back there.
unsafe impl Allocator for Telling {
    fn allocate(&self, request: &BufferRequest) -> Either<Allocation, AllocError> {
        let answer = self.pages.allocate(request);
        if let Ok(Allocation::Memory(memory)) = &answer
            && request.resource == self.resource
        {
            let address = memory.cast::<u8>().as_ptr().expose_provenance();
            *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(address);
        }
        answer
    }

    unsafe fn free(&self, memory: NonNull<[u8]>, request: &BufferRequest) {
        // SAFETY: by this function's contract; all memory is that allocator's.
        unsafe { self.pages.free(memory, request) };
    }
}

/// Catches a completion that is read where the device may have written another: a field that is changed in
/// the ring after the completion was taken is read as it was then.
fn a_completion_is_a_copy() -> Result {
    const LENGTH: u32 = 1234;
    const CHANGED: u32 = 4321;
    let mut pair = Pair::<Rc>::new()?;
    let telling = Arc::new(Telling {
        pages: GuardPages::new(),
        resource: device().cq_ring(),
        last: Mutex::default(),
    });
    let domain = pair.pd.parent_domain();
    let domain = domain.allocator(Arc::clone(&telling)).create()?;
    let mut cq = pair.context.cq(3).domain(&domain).create()?;
    let ring = *telling.last.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(ring) = ring else {
        return fail("the ring is not where the allocator said");
    };
    pair.b.qp = pair.pd.create_qp::<Rc>(&cq, Setup::default().caps)?;
    pair.a.qp.reset()?;
    let (from, to) = (pair.a.qp.endpoint()?, pair.b.qp.endpoint()?);
    let options = Setup::default().options;
    pair.a.qp.connect_with(&to, &options)?;
    pair.b.qp.connect_with(&from, &options)?;
    let mut mr = pair.pd.register(vec![0u8; 4096], Access::LOCAL_WRITE)?;
    mr.write_at(0, &[1; LENGTH as usize])?;
    let mut batch = pair.b.qp.recv_batch();
    batch.post(7, mr.slice(2048..)?)?;
    batch.ring();
    let slice = mr.slice(..LENGTH as usize)?;
    pair.a
        .post(|request| request.send(slice))?
        .is(WcOpcode::SEND)?;
    let deadline = Instant::now() + LIMIT;
    loop {
        let mut completions = cq.poll()?;
        if let Some(completion) = completions.iter().next() {
            same(completion.wr_id(), 7, "the id")?;
            same(completion.status(), WcStatus::SUCCESS, "the status")?;
            same(exchange(ring, LENGTH, CHANGED), 1, "fields with the length")?;
            return same(completion.byte_len(), LENGTH, "the length");
        }
        if Instant::now() > deadline {
            return fail("no completion");
        }
    }
}

/// Replaces a number in the first page of a ring, in the device's order of bytes, wherever it is.
fn exchange(ring: usize, from: u32, to: u32) -> usize {
    let bytes = |number: u32| match device().is_rxe() {
        true => number.to_ne_bytes(),
        false => number.to_be_bytes(),
    };
    let words = std::ptr::with_exposed_provenance_mut::<[u8; 4]>(ring);
    let mut found = 0;
    for index in 0..1024 {
        // SAFETY: a ring has whole pages, which stay mapped while its queue is there; nobody has a reference
        // to an entry between two looks at a completion, and the device has no reason to write.
        unsafe {
            let word = words.add(index);
            if word.read_volatile() == bytes(from) {
                word.write_volatile(bytes(to));
                found += 1;
            }
        }
    }
    found
}

/// Catches a refusal that looks like a wrong argument, and one that harms the queue; and moderation that
/// does.
fn moderated_or_told() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let target = target(&pair)?;
    match pair.a.cq.moderate(8, 100) {
        Ok(()) => same(device().is_mlx5(), true, "a device with moderation")?,
        Err(error) => {
            same(device().is_rxe(), true, &error.to_string())?;
            same(error.is_unsupported(), true, &error.to_string())?;
        }
    }
    complete(&mut pair, &target, 0..3)?;
    take(&mut pair.a.cq, 0..3)
}

/// Catches an overflow that passes unnoticed, and completions that it overwrites.
fn overflow_keeps_what_was_there() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let target = target(&pair)?;
    let events = pair.context.async_events()?;
    pair.a.cq.resize(7)?;
    let room = 7 + device().spare_completions(7);
    complete(&mut pair, &target, 0..room)?;
    same(events.wait_for(QUIET)?, None, "an event of a full queue")?;
    let mut batch = pair.a.qp.batch();
    batch.signaled(room).write(Inline(b"y"), target.remote())?;
    batch.ring()?;
    let expected = AsyncEvent {
        kind: AsyncEventType::CQ_ERR,
        source: EventSource::Cq(pair.a.cq.id()),
    };
    same(events.wait_for(LIMIT)?, Some(expected), "the event")?;
    let told = pair.a.cq.poll().map(drop);
    same(told, Err(PollError::Overrun), "the poll behind the event")?;
    take(&mut pair.a.cq, 0..room)?;
    same(pair.a.cq.poll()?.iter().count(), 0, "completions beyond")?;
    // The completion that did not fit is lost, so who gets the event gives the queue pair up: that still
    // works.
    pair.a.qp.fail()?;
    same(pair.a.qp.query()?.state, QpState::ERR, "state")
}
