//! Regions that go while requests are in flight that name them: the memory stays until the requests have
//! completed, and nothing of it lands elsewhere.
//!
//! What lets regions go here is safe code. `unsafe` are the promise about a kind of memory that tells when it
//! is freed, and a request with a key that no region has.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use support::pair::options;
use support::random::{Random, seed_and_steps};
use support::{
    LIMIT, Pair, Result, Side, completion, completions, fail, kernel, only_on_rxe, own_path, same,
    says, skip, test,
};
use uverbs::event::{AsyncEvent, AsyncEventType, EventSource};
use uverbs::mr::{LocalKey, Memory};
use uverbs::{Access, Caps, Cause, Cq, Inline, Mr, Pd, Qp, Rc, Ud, WcOpcode, WcStatus};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test(
            "regions::stays_until_its_receive_has_completed",
            stays_until_received,
        ),
        test(
            "regions::stays_if_nothing_can_be_received",
            stays_if_nothing_can_be_received,
        ),
        test(
            "regions::stays_until_its_send_has_completed",
            stays_until_sent,
        ),
        test(
            "regions::deregister_says_what_is_in_flight",
            says_what_is_in_flight,
        ),
        test(
            "regions::deregister_waits_for_others_to_poll",
            waits_for_others,
        ),
        test("regions::a_reset_lets_it_go", a_reset_lets_it_go),
        test(
            "regions::a_queue_pair_that_goes_lets_it_go",
            a_queue_pair_that_goes,
        ),
        test("regions::waits_for_no_more_than_it_must", waits_for_no_more),
        test(
            "regions::a_forgotten_batch_reaches_no_device",
            a_forgotten_batch,
        ),
        test(
            "regions::elements_of_a_shared_queue",
            elements_of_a_shared_queue,
        ),
        test(
            "regions::an_element_that_was_taken_out",
            an_element_that_was_taken_out,
        ),
        test(
            "regions::elements_beside_another_completion_ring",
            elements_beside_another_completion_ring,
        ),
        test(
            "regions::elements_that_are_too_short",
            elements_that_are_too_short,
        ),
        test("regions::at_random", at_random),
    ]
}

const LENGTH: usize = 4096;

/// What was in memory when it was freed.
type Freed = Arc<Mutex<Option<Vec<u8>>>>;

/// Memory that tells when it is freed, and what was in it.
struct Watched {
    bytes: Vec<u8>,
    freed: Freed,
}

// SAFETY: a vector's elements stay where they are as long as nothing is pushed, which nobody does.
unsafe impl Memory for Watched {
    fn address(&mut self) -> *mut u8 {
        self.bytes.as_mut_ptr()
    }

    fn length(&self) -> usize {
        self.bytes.len()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        *self.freed.lock().unwrap() = Some(bytes);
    }
}

fn watched(pd: &Pd, fill: u8, access: Access) -> Result<(Mr<Watched>, Freed)> {
    let freed = Freed::default();
    let memory = Watched {
        bytes: vec![fill; LENGTH],
        freed: Arc::clone(&freed),
    };
    Ok((pd.register(memory, access)?, freed))
}

fn is_freed(freed: &Freed) -> bool {
    freed.lock().unwrap().is_some()
}

/// Posts one receive.
fn receive(qp: &mut Qp<Rc>, wr_id: u64, region: &Mr<impl Memory>) -> Result {
    let mut batch = qp.recv_batch();
    batch.post(wr_id, region.slice(..)?)?;
    batch.ring();
    Ok(())
}

/// Sends bytes inline, and takes the completion.
fn send(side: &mut Side<Rc>, bytes: &[u8]) -> Result {
    side.post(|request| request.send(Inline(bytes)))?
        .is(WcOpcode::SEND)
}

/// Catches a region that is deregistered and freed under a receive, and a message that lands in the next one.
fn stays_until_received() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let (region, freed) = watched(&pair.pd, 1, Access::LOCAL_WRITE)?;
    receive(&mut pair.b.qp, 5, &region)?;
    drop(region);
    same(pair.pd.reclaim(), 1, "regions that wait")?;
    let (next, _) = watched(&pair.pd, 2, Access::LOCAL_WRITE)?;
    if is_freed(&freed) {
        return fail("the memory went under a receive");
    }
    send(&mut pair.a, b"late")?;
    same(completion(&mut pair.b.cq)?.ok()?.wr_id, 5, "the receive")?;
    same(pair.pd.reclaim(), 0, "regions that wait")?;
    let bytes = freed.lock().unwrap().take();
    same(
        bytes.map(|bytes| bytes[..5].to_vec()),
        Some(b"late\x01".to_vec()),
        "what came",
    )?;
    let mut untouched = vec![0; LENGTH];
    next.read_at(0, &mut untouched)?;
    same(untouched, vec![2; LENGTH], "the next region")
}

/// Catches a region that goes under a receive since nothing can be written to it: its key may be given out
/// again, to one that can.
fn stays_if_nothing_can_be_received() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let (region, freed) = watched(&pair.pd, 1, Access::empty())?;
    // By its own slice the receive would be refused.
    let known = region.slice(..)?;
    // SAFETY: nothing is sent, so nothing is written.
    let into = unsafe {
        pair.pd
            .raw_slice(known.lkey(), known.address(), LENGTH as u32)
    }?;
    let mut batch = pair.b.qp.recv_batch();
    batch.post(5, into)?;
    batch.ring();
    drop(region);
    same(
        (pair.pd.reclaim(), is_freed(&freed)),
        (1, false),
        "waiting, and freed",
    )?;
    pair.b.qp.reset()?;
    same(
        (pair.pd.reclaim(), is_freed(&freed)),
        (0, true),
        "waiting, and freed, after a reset",
    )
}

/// Catches a region that is freed while its bytes are still to be sent.
fn stays_until_sent() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let (region, freed) = watched(&pair.pd, 3, Access::LOCAL_WRITE)?;
    // Nobody receives yet, so the send is not finished.
    let mut batch = pair.a.qp.batch();
    batch.signaled(1).send(region.slice(..100)?)?;
    batch.ring()?;
    drop(region);
    if is_freed(&freed) {
        return fail("the memory went under a send");
    }
    pair.b.post_recv(2, 0..100)?;
    completion(&mut pair.a.cq)?.is(WcOpcode::SEND)?;
    completion(&mut pair.b.cq)?.is(WcOpcode::RECV)?;
    same(pair.b.bytes(0, 100)?, vec![3; 100], "what came")?;
    same(
        (pair.pd.reclaim(), is_freed(&freed)),
        (0, true),
        "waiting, and freed",
    )
}

/// Catches a deregistration that frees memory under a request, and one that does not say what it waits for.
fn says_what_is_in_flight() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let (region, freed) = watched(&pair.pd, 0, Access::LOCAL_WRITE)?;
    receive(&mut pair.b.qp, 5, &region)?;
    let refused = match region.deregister() {
        Ok(_) => return fail("a region was deregistered under a receive"),
        Err(refused) => refused,
    };
    if !matches!(refused.error.cause(), Cause::Busy(_)) {
        return fail(format!("another error: {}", refused.error));
    }
    says(&refused.error, &["dereg_mr", "in flight", "1 receive"])?;
    let region = refused.object;
    let deadline = Instant::now() + Duration::from_millis(20);
    let region = match region.deregister_by(deadline) {
        Ok(_) => return fail("a region was deregistered under a receive"),
        Err(refused) => refused.object,
    };
    same(Instant::now() >= deadline, true, "that the deadline came")?;
    send(&mut pair.a, b"now")?;
    completion(&mut pair.b.cq)?.is(WcOpcode::RECV)?;
    let memory = region.deregister()?;
    same(is_freed(&freed), false, "that it was freed")?;
    same(&memory.bytes[..3], b"now", "what came")
}

/// Catches a wait that does not notice what another thread polls.
fn waits_for_others() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let (region, _) = watched(&pair.pd, 0, Access::LOCAL_WRITE)?;
    receive(&mut pair.b.qp, 5, &region)?;
    thread::scope(|scope| {
        let waits = scope.spawn(|| region.deregister_by(Instant::now() + LIMIT));
        send(&mut pair.a, b"now")?;
        completion(&mut pair.b.cq)?.is(WcOpcode::RECV)?;
        let Ok(waited) = waits.join() else {
            return fail("the waiting thread panicked");
        };
        same(&waited?.bytes[..3], b"now", "what came")
    })
}

/// Catches regions that wait for requests that a reset has made the device forget.
fn a_reset_lets_it_go() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let (region, freed) = watched(&pair.pd, 0, Access::LOCAL_WRITE)?;
    receive(&mut pair.b.qp, 5, &region)?;
    drop(region);
    same(is_freed(&freed), false, "that it was freed under a receive")?;
    pair.b.qp.reset()?;
    same(is_freed(&freed), true, "that it was freed after the reset")
}

/// As above, where the queue pair goes.
fn a_queue_pair_that_goes() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let (region, freed) = watched(&pair.pd, 0, Access::LOCAL_WRITE)?;
    receive(&mut pair.b.qp, 5, &region)?;
    drop(region);
    same(is_freed(&freed), false, "that it was freed under a receive")?;
    let Pair { a, b, pd, context } = pair;
    let Side { qp, cq, mr } = b;
    qp.destroy()?;
    same(
        is_freed(&freed),
        true,
        "that it was freed with the queue pair",
    )?;
    drop((a, cq, mr));
    pd.dealloc()?;
    drop(context);
    Ok(())
}

/// Catches regions that wait although no request can name them.
fn waits_for_no_more() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    pair.b.post_recv(1, 0..64)?;
    let (unnamed, freed) = watched(&pair.pd, 0, Access::LOCAL_WRITE)?;
    drop(unnamed);
    same(
        is_freed(&freed),
        true,
        "that a region went of which there was no slice",
    )?;
    let (finished, freed) = watched(&pair.pd, 0, Access::LOCAL_WRITE)?;
    let mut batch = pair.a.qp.batch();
    batch.signaled(2).send(finished.slice(..8)?)?;
    batch.ring()?;
    completion(&mut pair.a.cq)?.is(WcOpcode::SEND)?;
    pair.b.post_recv(3, 0..64)?;
    drop(finished);
    same(
        is_freed(&freed),
        true,
        "that a region went while others are received into",
    )?;
    let (read_only, freed) = watched(&pair.pd, 7, Access::empty())?;
    let mut batch = pair.a.qp.batch();
    batch.signaled(2).send(read_only.slice(..8)?)?;
    batch.ring()?;
    completion(&mut pair.a.cq)?.is(WcOpcode::SEND)?;
    pair.b.post_recv(4, 0..64)?;
    drop(read_only);
    same(
        is_freed(&freed),
        true,
        "that a region went that nobody receives into",
    )
}

/// Catches requests of a batch that was forgotten, with the memory gone that they name.
fn a_forgotten_batch() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let (region, freed) = watched(&pair.pd, 9, Access::LOCAL_WRITE)?;
    let mut batch = pair.b.qp.recv_batch();
    batch.post(1, region.slice(..)?)?;
    std::mem::forget(batch);
    let mut batch = pair.a.qp.batch();
    batch.signaled(2).send(region.slice(..8)?)?;
    std::mem::forget(batch);
    drop(region);
    same(
        is_freed(&freed),
        true,
        "that it was freed: nothing was posted",
    )?;
    pair.b.post_recv(3, 0..64)?;
    send(&mut pair.a, b"posted")?;
    same(completion(&mut pair.b.cq)?.ok()?.wr_id, 3, "the receive")?;
    same(pair.b.bytes(0, 6)?, b"posted".to_vec(), "what came")
}

/// Catches elements of a shared receive queue that count as finished too early or never: on soft-RoCE the
/// kernel takes them out of the ring before their message has come, hardware finishes them in any order.
fn elements_of_a_shared_queue() -> Result {
    let context = support::open()?;
    let pd = context.alloc_pd()?;
    let mut srq = pd.srq(8).create()?;
    let mut queue_pairs = Vec::new();
    for _ in 0..2 {
        let cq = context.create_cq(16)?;
        let mut qp: Qp<Rc> = pd.qp(&cq).srq(&srq).create()?;
        qp.connect_with(&qp.endpoint()?, &options())?;
        queue_pairs.push((qp, cq));
    }
    for round in 0..20_u8 {
        let made = (0..3)
            .map(|_| watched(&pd, 0, Access::LOCAL_WRITE))
            .collect::<Result<Vec<_>>>()?;
        let mut batch = srq.batch();
        for (id, (region, _)) in (0..).zip(&made) {
            batch.post(id, region.slice(..)?)?;
        }
        batch.ring();
        let freed: Vec<Freed> = made.into_iter().map(|(_, freed)| freed).collect();
        for at in 0..3_u8 {
            same(
                freed.iter().any(is_freed),
                false,
                "that any was freed under a receive",
            )?;
            let (qp, cq) = &mut queue_pairs[usize::from(at + round) % 2];
            let mut batch = qp.batch();
            batch.signaled(9).send(Inline(&[round, at]))?;
            batch.ring()?;
            let wcs = completions(cq, 2)?;
            let received = wcs.iter().find(|wc| wc.opcode == WcOpcode::RECV);
            same(received.map(|wc| wc.wr_id), Some(at.into()), "the element")?;
            same(pd.reclaim() == 0, at == 2, "that none waits any more")?;
        }
        for (at, freed) in (0..).zip(freed) {
            let bytes = freed.lock().unwrap().take();
            let came = bytes.map(|bytes| bytes[..2].to_vec());
            same(came, Some(vec![round, at]), "what came")?;
        }
    }
    Ok(())
}

/// Catches completions that are counted twice when the completion queue gets another ring while they wait: a
/// region would then go too early, or never. Soft-RoCE counts them when another queue pair comes.
fn elements_beside_another_completion_ring() -> Result {
    let context = support::open()?;
    let pd = context.alloc_pd()?;
    let (mut sends, mut receives) = (context.create_cq(16)?, context.create_cq(16)?);
    let mut srq = pd.srq(8).create()?;
    let mut qp: Qp<Rc> = pd.qp(&sends).recv_cq(&receives).srq(&srq).create()?;
    qp.connect_with(&qp.endpoint()?, &options())?;
    let (region, _) = watched(&pd, 0, Access::LOCAL_WRITE)?;
    let mut post = |ids: std::ops::Range<u64>, region: &Mr<Watched>| -> Result {
        let mut batch = srq.batch();
        for id in ids {
            batch.post(id, region.slice(..)?)?;
        }
        batch.ring();
        Ok(())
    };
    post(0..4, &region)?;
    for id in 0..3 {
        let mut batch = qp.batch();
        batch.signaled(id).send(Inline(b"few"))?;
        batch.ring()?;
        completion(&mut sends)?.is(WcOpcode::SEND)?;
    }
    // Its receives complete on the other queue: nothing else has that position.
    let _other: Qp<Rc> = pd.qp(&sends).recv_cq(&receives).srq(&srq).create()?;
    receives.resize(100)?;
    completions(&mut receives, 3)?;
    drop(region);
    same(pd.reclaim(), 1, "regions while a receive waits")?;
    let mut batch = qp.batch();
    batch.signaled(3).send(Inline(b"last"))?;
    batch.ring()?;
    completion(&mut sends)?.is(WcOpcode::SEND)?;
    completion(&mut receives)?.is(WcOpcode::RECV)?;
    same(pd.reclaim(), 0, "regions at the end")
}

/// Catches receives that count as in flight for ever because they were too short for a datagram: their queue
/// pair goes on, and peers decide how long their datagrams are.
fn elements_that_are_too_short() -> Result {
    const QKEY: u32 = 0x77;
    only_on_rxe("hardware drops such a datagram, or ends the queue pair")?;
    let ends_queue_pair = kernel() == (6, 1);
    let context = support::open()?;
    let pd = context.alloc_pd()?;
    let (mut sends, mut receives) = (context.create_cq(16)?, context.create_cq(16)?);
    let mut srq = pd.srq(8).create()?;
    let mut sender = pd.create_qp::<Ud>(&sends, Caps::default())?;
    let mut receiver: Qp<Ud> = pd.qp(&receives).srq(&srq).create()?;
    sender.activate(QKEY, &options())?;
    receiver.activate(QKEY, &options())?;
    let ah = pd.create_ah(&own_path(&context)?)?;
    let (region, _) = watched(&pd, 0, Access::LOCAL_WRITE)?;
    let mut batch = srq.batch();
    batch.post(1, region.slice(..50)?)?;
    batch.post(2, region.slice(..200)?)?;
    batch.ring();
    let mut outcomes = Vec::new();
    let lengths = match ends_queue_pair {
        true => &[64][..],
        false => &[64, 10],
    };
    for &length in lengths {
        let mut batch = sender.batch();
        let to = ah.to(receiver.qpn(), QKEY);
        batch.signaled(9).to(to).send(Inline(&vec![5; length]))?;
        batch.ring()?;
        completion(&mut sends)?.is(WcOpcode::SEND)?;
        let wc = completion(&mut receives)?;
        outcomes.push((wc.wr_id, wc.status));
    }
    if ends_queue_pair {
        same(outcomes, vec![(1, WcStatus::LOC_QP_OP_ERR)], "the receive")?;
        same(receiver.query()?.state, uverbs::QpState::ERR, "the state")?;
        return skip(
            "Linux 6.1 ends the queue pair: check_length lets the datagram pass, and the EINVAL of copy_data is \
             RESPST_ERR_MALFORMED_WQE (mended by f67ac0061c76 of Linux 6.10)",
        );
    }
    same(
        outcomes,
        vec![(1, WcStatus::REM_INV_REQ_ERR), (2, WcStatus::SUCCESS)],
        "the receives",
    )?;
    drop(region);
    same(pd.reclaim(), 0, "regions that wait")
}

/// Catches a region that goes although a message comes into it: the kernel has taken its element out of the
/// ring, which tells nothing of it any more. The message is one that ends in its middle, since the rest of
/// what is sent has no region.
fn an_element_that_was_taken_out() -> Result {
    only_on_rxe("the kernel takes elements out of the ring before their message has come")?;
    let context = support::open()?;
    let pd = context.alloc_pd()?;
    let mut srq = pd.srq(8).create()?;
    let cq = || context.create_cq(16);
    let (sends, cut_off, whole) = (cq()?, cq()?, cq()?);
    let mut sender: Qp<Rc> = pd.qp(&sends).create()?;
    let mut cut_off: Qp<Rc> = pd.qp(&cut_off).srq(&srq).create()?;
    let (mut whole, mut received): (Qp<Rc>, Cq) = (pd.qp(&whole).srq(&srq).create()?, whole);
    sender.connect(&cut_off.endpoint()?)?;
    cut_off.connect(&sender.endpoint()?)?;
    whole.connect(&whole.endpoint()?)?;
    let (first, first_freed) = watched(&pd, 0, Access::LOCAL_WRITE)?;
    let (second, second_freed) = watched(&pd, 0, Access::LOCAL_WRITE)?;
    let mut batch = srq.batch();
    batch.post(1, first.slice(..)?)?;
    batch.post(2, second.slice(..)?)?;
    batch.ring();
    srq.set_limit(2)?;
    let events = context.async_events()?;

    let source = pd.register(vec![6; LENGTH], Access::empty())?;
    let mut sends = sends;
    let mut batch = sender.batch();
    // SAFETY: no region has this key, so the device reads nothing by it.
    let nothing = unsafe { pd.raw_slice(LocalKey(0x00ff_ff00), 0, LENGTH as u32)? };
    let half = LENGTH / 2;
    batch.signaled(9).send([source.slice(..half)?, nothing])?;
    batch.ring()?;
    // By the key, or flushed for it.
    same(
        completion(&mut sends)?.status == WcStatus::SUCCESS,
        false,
        "that it is sent without the rest",
    )?;
    // The sender is told no more. That the responder, which works for itself, has the element is told by the
    // limit; without that, the next message could be earlier.
    let taken = AsyncEvent {
        kind: AsyncEventType::SRQ_LIMIT_REACHED,
        source: EventSource::Srq(srq.id()),
    };
    same(
        events.wait_for(LIMIT)?,
        Some(taken),
        "that half a message came",
    )?;
    drop(first);
    // One of the other queue pair comes whole, into the second.
    let mut batch = whole.batch();
    batch.signaled(3).send(Inline(b"whole"))?;
    batch.ring()?;
    let wcs = completions(&mut received, 2)?;
    let came = wcs.iter().find(|wc| wc.opcode == WcOpcode::RECV);
    same(
        came.map(|wc| wc.wr_id),
        Some(2),
        "the element of the whole message",
    )?;
    let mut bytes = [0; 5];
    second.read_at(0, &mut bytes)?;
    same(&bytes, b"whole", "what came")?;
    drop(second);
    pd.reclaim();
    same(
        is_freed(&first_freed),
        false,
        "that it was freed under half a message",
    )?;
    // Nothing tells which of the two is finished while both queue pairs are there.
    drop(cut_off);
    drop(whole);
    same(
        (
            pd.reclaim(),
            is_freed(&first_freed),
            is_freed(&second_freed),
        ),
        (0, true, true),
        "waiting, and freed, once nobody receives",
    )
}

/// A queue pair that is connected to itself, with what was posted to it and has not completed.
struct Loop {
    qp: Qp<Rc>,
    cq: Cq,
    receives: VecDeque<u8>,
    reads: VecDeque<u8>,
}

/// A region of the random test: a number that its messages carry, and what becomes of it.
struct Target {
    number: u8,
    region: Option<Mr<Watched>>,
    freed: Freed,
    /// What should be in its first byte.
    expected: Expected,
    receives: u32,
    reads: u32,
    is_gone: bool,
}

/// What is in the first byte of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    Nothing,
    /// A request was cut off that may have brought its number.
    Perhaps,
    Number,
}

/// Random registrations, posts, drops, resets and polls over several queue pairs of several threads, all of
/// one PD, so that keys go from one to another. Each message carries the number of the region that its
/// receive names, and each READ fetches it; memory is used again as soon as it is freed. So it is seen if one
/// lands elsewhere, or if a region is freed before it came.
fn at_random() -> Result {
    let context = support::open()?;
    let (seed, steps) = seed_and_steps(400)?;
    let pd = context.alloc_pd()?;
    // Each byte is its offset.
    let numbers = pd.register((0..=255).collect::<Vec<u8>>(), Access::REMOTE_READ)?;
    thread::scope(|scope| {
        let threads = [0, 1, 2].map(|thread| {
            let (pd, numbers) = (&pd, &numbers);
            let random = Random::new(seed.wrapping_add(thread << 32));
            scope.spawn(move || {
                // What fails is no `Send`.
                Churn::new(pd, numbers, random)
                    .and_then(|mut churn| churn.run(steps / 2))
                    .map_err(|error| format!("thread {thread}: {error}"))
            })
        });
        for thread in threads {
            match thread.join() {
                Ok(ended) => ended?,
                Err(_) => return fail("a thread panicked"),
            }
        }
        Ok(())
    })
}

/// What one thread of the random test has.
struct Churn<'p> {
    pd: &'p Pd,
    numbers: &'p Mr<Vec<u8>>,
    random: Random,
    loops: Vec<Loop>,
    targets: Vec<Target>,
    last: u8,
    /// Memory of regions that are gone.
    free: Vec<Vec<u8>>,
}

impl<'p> Churn<'p> {
    fn new(pd: &'p Pd, numbers: &'p Mr<Vec<u8>>, random: Random) -> Result<Self> {
        let mut loops = Vec::new();
        for _ in 0..2 {
            let cq = pd.context().create_cq(64)?;
            let mut qp = pd.create_qp::<Rc>(&cq, Caps::default())?;
            qp.connect_with(&qp.endpoint()?, &options())?;
            loops.push(Loop {
                qp,
                cq,
                receives: VecDeque::new(),
                reads: VecDeque::new(),
            });
        }
        Ok(Self {
            pd,
            numbers,
            random,
            loops,
            targets: Vec::new(),
            last: 0,
            free: Vec::new(),
        })
    }

    fn run(&mut self, steps: usize) -> Result {
        for _ in 0..steps {
            let one = self.random.below(self.loops.len());
            match self.random.below(12) {
                0 | 1 if self.targets.len() < 40 => self.register()?,
                2..5 => self.receive(one)?,
                5 | 6 => self.fetch(one)?,
                7 | 8 => self.talk(one)?,
                9 | 10 if !self.targets.is_empty() => {
                    let at = self.random.below(self.targets.len());
                    let _gone = self.targets[at].region.take();
                }
                11 => self.reset(one)?,
                _ => {}
            }
            self.check()?;
        }
        Ok(())
    }

    fn register(&mut self) -> Result {
        self.last = self.last.wrapping_add(1).max(1);
        let number = self.last;
        if self.targets.iter().any(|target| target.number == number) {
            return Ok(());
        }
        let freed = Freed::default();
        let memory = Watched {
            bytes: self.free.pop().unwrap_or_else(|| vec![0; LENGTH]),
            freed: Arc::clone(&freed),
        };
        self.targets.push(Target {
            number,
            region: Some(self.pd.register(memory, Access::LOCAL_WRITE)?),
            freed,
            expected: Expected::Nothing,
            receives: 0,
            reads: 0,
            is_gone: false,
        });
        Ok(())
    }

    /// One of the regions that are there.
    fn any(&mut self) -> Option<&mut Target> {
        let there = |target: &&mut Target| target.region.is_some();
        let count = self.targets.iter_mut().filter(there).count();
        let at = (count > 0).then(|| self.random.below(count))?;
        self.targets.iter_mut().filter(there).nth(at)
    }

    /// Posts a receive into a region that is there.
    fn receive(&mut self, one: usize) -> Result {
        if self.loops[one].receives.len() > 30 {
            return Ok(());
        }
        let Some(target) = self.any() else {
            return Ok(());
        };
        let (number, region) = (target.number, target.region.take());
        target.receives += 1;
        let this = &mut self.loops[one];
        if let Some(region) = &region {
            receive(&mut this.qp, number.into(), region)?;
        }
        this.receives.push_back(number);
        find(&mut self.targets, number)?.region = region;
        Ok(())
    }

    /// Posts a READ of a region's number into it.
    fn fetch(&mut self, one: usize) -> Result {
        if self.loops[one].reads.len() > 10 {
            return Ok(());
        }
        let Some(target) = self.any() else {
            return Ok(());
        };
        let (number, region) = (target.number, target.region.take());
        target.reads += 1;
        let this = &mut self.loops[one];
        if let Some(region) = &region {
            let at = usize::from(number);
            let from = self.numbers.remote().slice(at..at + 1)?;
            let mut batch = this.qp.batch();
            batch
                .signaled(number.into())
                .read(region.slice(..1)?, from)?;
            batch.ring()?;
        }
        this.reads.push_back(number);
        find(&mut self.targets, number)?.region = region;
        Ok(())
    }

    /// Sends to the oldest receive, and takes the completions of all that is under way before.
    fn talk(&mut self, one: usize) -> Result {
        let this = &mut self.loops[one];
        let Some(number) = this.receives.pop_front() else {
            return Ok(());
        };
        let mut batch = this.qp.batch();
        batch.signaled(0).send(Inline(&[number]))?;
        batch.ring()?;
        let reads = this
            .reads
            .drain(..)
            .map(|number| (WcOpcode::RDMA_READ, number));
        let mut expected: Vec<_> = reads.collect();
        expected.extend([(WcOpcode::SEND, 0), (WcOpcode::RECV, number)]);
        let wcs = completions(&mut this.cq, expected.len())?;
        // Each queue completes in order; a receive comes whenever it comes.
        expected.sort_by_key(|(opcode, _)| *opcode == WcOpcode::RECV);
        let mut came = Vec::new();
        for wc in wcs {
            came.push((wc.ok()?.opcode, wc.wr_id as u8));
        }
        came.sort_by_key(|(opcode, _)| *opcode == WcOpcode::RECV);
        same(&came, &expected, "what has completed")?;
        for (opcode, number) in came {
            if opcode == WcOpcode::SEND {
                continue;
            }
            let target = find(&mut self.targets, number)?;
            target.expected = Expected::Number;
            match opcode == WcOpcode::RECV {
                true => target.receives -= 1,
                false => target.reads -= 1,
            }
        }
        Ok(())
    }

    fn reset(&mut self, one: usize) -> Result {
        let this = &mut self.loops[one];
        this.qp.reset()?;
        for number in this.receives.drain(..) {
            find(&mut self.targets, number)?.receives -= 1;
        }
        for number in this.reads.drain(..) {
            let target = find(&mut self.targets, number)?;
            target.reads -= 1;
            if target.expected == Expected::Nothing {
                target.expected = Expected::Perhaps;
            }
        }
        // Completions of before.
        for _ in this.cq.poll()?.iter() {}
        this.qp.connect_with(&this.qp.endpoint()?, &options())?;
        Ok(())
    }

    /// Compares every region with what should be in it, and takes back the memory of those that are gone.
    fn check(&mut self) -> Result {
        self.pd.reclaim();
        let mut free = mem::take(&mut self.free);
        let mut left = Vec::new();
        for mut target in self.targets.drain(..) {
            let freed = target.freed.lock().unwrap().take();
            match (&target.region, freed) {
                (Some(_), Some(_)) => return fail("a region that is there was freed"),
                (Some(region), None) => {
                    let mut byte = [0];
                    region.read_at(0, &mut byte)?;
                    target.holds(byte[0])?;
                    left.push(target);
                }
                (None, Some(mut bytes)) => {
                    same(target.receives, 0, "receives that a region went under")?;
                    // A READ may be finished and not polled. If none is, it has come.
                    if target.reads > 0 {
                        target.expected = Expected::Number;
                    }
                    target.holds(bytes[0])?;
                    bytes[0] = 0;
                    same(
                        bytes.iter().all(|byte| *byte == 0),
                        true,
                        "the rest is clean",
                    )?;
                    free.push(bytes);
                    target.is_gone = true;
                    left.push(target);
                }
                (None, None) => left.push(target),
            }
        }
        left.retain(|target| !target.is_gone || target.reads > 0);
        (self.targets, self.free) = (left, free);
        Ok(())
    }
}

impl Target {
    /// Fails unless this may be its first byte.
    fn holds(&self, byte: u8) -> Result {
        let is_so = match self.expected {
            // READs that are under way may have come.
            Expected::Nothing if self.reads > 0 => byte == 0 || byte == self.number,
            Expected::Nothing => byte == 0,
            Expected::Perhaps => byte == 0 || byte == self.number,
            Expected::Number => byte == self.number,
        };
        match is_so {
            true => Ok(()),
            false => fail(format!(
                "{byte} in region {}, where {:?} is expected",
                self.number, self.expected
            )),
        }
    }
}

fn find(targets: &mut [Target], number: u8) -> Result<&mut Target> {
    let target = targets.iter_mut().find(|target| target.number == number);
    Ok(target.ok_or("a message for no region")?)
}
