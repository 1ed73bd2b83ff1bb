//! Regions that go while requests are in flight that name them: the memory stays until the requests have
//! completed, and nothing of it lands elsewhere.
//!
//! All posting here is safe code. The one `unsafe` is the promise about a kind of memory that tells when it
//! is freed.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use support::random::{Random, seed_and_steps};
use support::{LIMIT, Pair, Result, Side, completion, completions, fail, same, says, test};
use uverbs::mr::Memory;
use uverbs::{Access, Caps, Cause, Cq, Mr, Pd, Qp, Rc, WcOpcode};

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
    let mut batch = qp.recv();
    batch.post(wr_id, region.slice(..)?)?;
    batch.ring()?;
    Ok(())
}

/// Sends bytes inline, and takes the completion.
fn send(side: &mut Side<Rc>, bytes: &[u8]) -> Result {
    side.post(|batch| batch.send_inline(bytes))?
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

/// Catches a region that goes under a receive since nothing can be written to it: its key may be given out again, to one
/// that can.
fn stays_if_nothing_can_be_received() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let (region, freed) = watched(&pair.pd, 1, Access::empty())?;
    receive(&mut pair.b.qp, 5, &region)?;
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
    let mut batch = pair.a.qp.send();
    batch.send(region.slice(..100)?)?.signaled(1);
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
    let mut batch = pair.a.qp.send();
    batch.send(finished.slice(..8)?)?.signaled(2);
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
    let mut batch = pair.a.qp.send();
    batch.send(read_only.slice(..8)?)?.signaled(2);
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
    let mut batch = pair.b.qp.recv();
    batch.post(1, region.slice(..)?)?;
    std::mem::forget(batch);
    let mut batch = pair.a.qp.send();
    batch.send(region.slice(..8)?)?.signaled(2);
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
        qp.connect(&qp.endpoint()?)?;
        queue_pairs.push((qp, cq));
    }
    for round in 0..20_u8 {
        let made = (0..3)
            .map(|_| watched(&pd, 0, Access::LOCAL_WRITE))
            .collect::<Result<Vec<_>>>()?;
        let mut batch = srq.recv();
        for (id, (region, _)) in (0..).zip(&made) {
            batch.post(id, region.slice(..)?)?;
        }
        batch.ring()?;
        let freed: Vec<Freed> = made.into_iter().map(|(_, freed)| freed).collect();
        for at in 0..3_u8 {
            same(
                freed.iter().any(is_freed),
                false,
                "that any was freed under a receive",
            )?;
            let (qp, cq) = &mut queue_pairs[usize::from(at + round) % 2];
            let mut batch = qp.send();
            batch.send_inline(&[round, at])?.signaled(9);
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

/// A queue pair that is connected to itself, with what was posted to it and has not completed.
struct Loop {
    qp: Qp<Rc>,
    cq: Cq,
    receives: VecDeque<u8>,
}

/// A region of the random test: a number that its messages carry, and what becomes of it.
struct Target {
    number: u8,
    region: Option<Mr<Watched>>,
    freed: Freed,
    /// What should be in its first byte.
    expected: u8,
    in_flight: u32,
}

/// Random registrations, posts, drops, resets and polls over several queue pairs. Each message carries the
/// number of the region that its receive names, so it is seen if it lands elsewhere, and if a region is freed
/// before it came.
fn at_random() -> Result {
    let context = support::open()?;
    let (seed, steps) = seed_and_steps(400)?;
    let mut random = Random::new(seed);
    let pd = context.alloc_pd()?;
    let mut loops = Vec::new();
    for _ in 0..3 {
        let cq = context.create_cq(64)?;
        let mut qp = pd.create_qp::<Rc>(&cq, Caps::default())?;
        qp.connect(&qp.endpoint()?)?;
        loops.push(Loop {
            qp,
            cq,
            receives: VecDeque::new(),
        });
    }
    let mut targets: Vec<Target> = Vec::new();
    let mut number = 0_u8;
    for _ in 0..steps {
        let one = random.below(3);
        match random.below(10) {
            0 | 1 if targets.len() < 40 => {
                number = number.wrapping_add(1).max(1);
                if targets.iter().all(|target| target.number != number) {
                    let (region, freed) = watched(&pd, 0, Access::LOCAL_WRITE)?;
                    let region = Some(region);
                    targets.push(Target {
                        number,
                        region,
                        freed,
                        expected: 0,
                        in_flight: 0,
                    });
                }
            }
            2..5 => post(&mut loops[one], &mut targets, &mut random)?,
            5..7 => talk(&mut loops[one], &mut targets)?,
            7 | 8 if !targets.is_empty() => {
                let at = random.below(targets.len());
                let _gone = targets[at].region.take();
            }
            9 => {
                let this = &mut loops[one];
                this.qp.reset()?;
                for number in this.receives.drain(..) {
                    find(&mut targets, number)?.in_flight -= 1;
                }
                this.qp.connect(&this.qp.endpoint()?)?;
            }
            _ => {}
        }
        check(&pd, &mut targets)?;
    }
    Ok(())
}

fn find(targets: &mut [Target], number: u8) -> Result<&mut Target> {
    let target = targets.iter_mut().find(|target| target.number == number);
    Ok(target.ok_or("a message for no region")?)
}

/// Posts a receive into a region that is there.
fn post(this: &mut Loop, targets: &mut [Target], random: &mut Random) -> Result {
    let there: Vec<_> = targets
        .iter_mut()
        .filter(|target| target.region.is_some())
        .collect();
    if there.is_empty() || this.receives.len() > 30 {
        return Ok(());
    }
    let at = random.below(there.len());
    let target = there.into_iter().nth(at).ok_or("no such region")?;
    let Some(region) = &target.region else {
        return Ok(());
    };
    receive(&mut this.qp, target.number.into(), region)?;
    target.in_flight += 1;
    this.receives.push_back(target.number);
    Ok(())
}

/// Sends to the oldest receive, and takes both completions.
fn talk(this: &mut Loop, targets: &mut [Target]) -> Result {
    let Some(number) = this.receives.pop_front() else {
        return Ok(());
    };
    let mut batch = this.qp.send();
    batch.send_inline(&[number])?.signaled(0);
    batch.ring()?;
    let wcs = completions(&mut this.cq, 2)?;
    let received = wcs.iter().find(|wc| wc.opcode == WcOpcode::RECV);
    same(
        received.map(|wc| wc.wr_id),
        Some(number.into()),
        "whose receive it is",
    )?;
    let target = find(targets, number)?;
    target.expected = number;
    target.in_flight -= 1;
    Ok(())
}

/// Compares every region with what should be in it, and forgets those that are freed.
fn check(pd: &Pd, targets: &mut Vec<Target>) -> Result {
    pd.reclaim();
    let mut gone = Vec::new();
    for target in &*targets {
        let mut byte = [0];
        match (&target.region, &*target.freed.lock().unwrap()) {
            (Some(_), Some(_)) => return fail("a region that is there was freed"),
            (Some(region), None) => region.read_at(0, &mut byte)?,
            (None, Some(bytes)) => {
                if target.in_flight > 0 {
                    return fail("a region went under a receive");
                }
                byte[0] = bytes[0];
                gone.push(target.number);
            }
            (None, None) => continue,
        }
        same(byte[0], target.expected, "what came")?;
    }
    targets.retain(|target| !gone.contains(&target.number));
    Ok(())
}
