//! Completion queues of exactly the size of the queues that report to them: however slowly they are polled,
//! no completion is lost, for no request is taken whose completion has no room.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use support::{LIMIT, Pair, Result, Setup, device, fail, is_full, open, same, test, until};
use uverbs::{Caps, Cq, Inline, PostError, Rc, RecvHalf, SendHalf, mr::LocalSlice};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test(
            "full::posters_against_a_slow_poller",
            posters_against_a_slow_poller,
        ),
        test("full::posting_while_taking", posting_while_taking),
        test("full::a_poll_takes_as_many_as_asked_for", bounded),
        test("full::no_poll_goes_on_for_ever", no_poll_goes_on_for_ever),
    ]
}

/// Requests of either queue.
const CAPACITY: u32 = 15;

/// How many requests make the load: over a thousand times around the queues, ten times that in a full run.
/// Here most of the time is the kernel's, or the adapter's. Millions go through the same queues over plain
/// memory, in the unit tests `threads` of each driver.
fn requests() -> u64 {
    if is_full() { 200_000 } else { 20_000 }
}

/// Two queue pairs with completion queues of the size of their queues: that of `a` holds its sends, that of
/// `b` its receives.
fn exact() -> Result<Pair<Rc>> {
    let caps = Caps {
        max_send_wr: CAPACITY,
        max_recv_wr: CAPACITY,
        ..Caps::default()
    };
    let setup = Setup {
        caps,
        ..Setup::default()
    };
    let context = open()?;
    let probe = Pair::<Rc>::on(&context, &setup)?;
    let caps = probe.a.qp.caps();
    let sizes = [caps.max_send_wr, caps.max_recv_wr];
    drop(probe);
    // Hardware uses the entry that the capacity leaves free: without it the queue is no larger than it must
    // be.
    let spare = if device().is_rxe() { 0 } else { 1 };
    let [a, b] = sizes.map(|size| context.create_cq(size - spare));
    Pair::reporting_to(a?, b?, &setup)
}

/// Posts `total` receives, as many at a time as there is room for, and tells how many.
fn post_receives(
    queue: &mut RecvHalf<Rc>,
    into: &LocalSlice,
    total: u64,
    posted: &AtomicU64,
) -> Result {
    for number in 0..total {
        until("room for a receive", || {
            let mut batch = queue.batch();
            match batch.post(number, into) {
                Ok(()) => batch.ring(),
                Err(PostError::QueueFull { .. }) => {
                    thread::yield_now();
                    return Ok(None);
                }
                Err(error) => return Err(error.into()),
            };
            Ok(Some(()))
        })?;
        posted.store(number + 1, Ordering::Release);
    }
    Ok(())
}

/// Sends `total` messages, each when there is room for it and a receive.
fn post_sends(queue: &mut SendHalf<Rc>, total: u64, receives: &AtomicU64) -> Result {
    for number in 0..total {
        until("room for a send", || {
            if receives.load(Ordering::Acquire) <= number {
                thread::yield_now();
                return Ok(None);
            }
            let mut batch = queue.batch();
            match batch.signaled(number).send(Inline(&number.to_ne_bytes())) {
                Ok(()) => {}
                Err(PostError::QueueFull { .. }) => {
                    thread::yield_now();
                    return Ok(None);
                }
                Err(error) => return Err(error.into()),
            };
            batch.ring()?;
            Ok(Some(()))
        })?;
    }
    Ok(())
}

/// Takes at most `most` completions, which must be those from `next` on.
fn take(cq: &mut Cq, next: &mut u64, most: usize) -> Result {
    for completion in cq.poll()?.iter().take(most) {
        completion.result()?;
        same(completion.wr_id(), *next, "the order")?;
        *next += 1;
    }
    Ok(())
}

/// Catches a place in a queue that is given out before the completion that freed it has given its entry back:
/// the device then has no room for a completion, and drops it.
fn posters_against_a_slow_poller() -> Result {
    let total = requests();
    let pair = exact()?;
    let events = pair.context.async_events()?;
    let (mut sends, _) = pair.a.qp.split();
    let (_, mut receives) = pair.b.qp.split();
    let (mut a, mut b) = (pair.a.cq, pair.b.cq);
    let into = pair.b.mr.slice(..8)?;
    let posted = AtomicU64::new(0);
    let started = Instant::now();
    thread::scope(|scope| -> Result {
        let receiver = scope.spawn(|| {
            post_receives(&mut receives, &into, total, &posted).map_err(|error| error.to_string())
        });
        let sender = scope
            .spawn(|| post_sends(&mut sends, total, &posted).map_err(|error| error.to_string()));
        let (mut sent, mut received, mut round) = (0, 0, 0_u64);
        let mut last = (Instant::now(), 0);
        while sent < total || received < total {
            // Now one, now more than a step, now all; and all that could come has come when this goes on.
            let most = [1, 2, usize::MAX, 7][round as usize % 4];
            take(&mut a, &mut sent, most)?;
            take(&mut b, &mut received, most)?;
            round += 1;
            match round % 64 {
                0 => thread::sleep(Duration::from_millis(1)),
                _ => thread::yield_now(),
            }
            if sent + received > last.1 {
                last = (Instant::now(), sent + received);
            } else if last.0.elapsed() > LIMIT {
                return fail(format!("stuck after {sent} sends and {received} receives"));
            }
        }
        for poster in [receiver, sender] {
            poster.join().map_err(|_| "a poster panicked")??;
        }
        Ok(())
    })?;
    println!("{total} requests in {:.1?}", started.elapsed());
    same(events.try_next()?, None, "events")
}

/// Catches a completion that has been taken and still holds its entry: who posts the next request for each
/// completion, as long as there are any, then loses completions.
fn posting_while_taking() -> Result {
    let total = requests() / 4;
    let mut pair = exact()?;
    let events = pair.context.async_events()?;
    let to = pair.b.mr.remote();
    let window = u64::from(pair.a.qp.caps().max_send_wr);
    let write = |batch: &mut uverbs::Batch<'_, Rc>, number: u64| -> Result {
        batch
            .signaled(number)
            .write(Inline(&number.to_ne_bytes()), to)?;
        Ok(())
    };
    let mut batch = pair.a.qp.batch();
    for number in 0..window {
        write(&mut batch, number)?;
    }
    batch.ring()?;
    let (mut next, mut taken) = (window, 0);
    while taken < total {
        until("a completion", || {
            let before = taken;
            for completion in &mut pair.a.cq.poll()? {
                completion.result()?;
                same(completion.wr_id(), taken, "the order")?;
                taken += 1;
                if next < total {
                    let mut batch = pair.a.qp.batch();
                    write(&mut batch, next)?;
                    batch.ring()?;
                    next += 1;
                }
            }
            Ok((taken > before).then_some(()))
        })?;
    }
    same(events.try_next()?, None, "events")
}

/// Catches a poll that takes more than there is room for, or gives what it has not taken.
fn bounded() -> Result {
    let mut pair = exact()?;
    let to = pair.b.mr.remote();
    let mut batch = pair.a.qp.batch();
    for number in 0..u64::from(CAPACITY) {
        batch.signaled(number).write(Inline(b"x"), to)?;
    }
    batch.ring()?;
    let mut next = 0;
    while next < u64::from(CAPACITY) {
        let mut buffer = [const { MaybeUninit::uninit() }; 4];
        let room = 1 + next as usize % buffer.len();
        let taken = pair.a.cq.poll_into(&mut buffer[..room])?;
        same(taken.len() <= room, true, "the number")?;
        for completion in taken {
            completion.result()?;
            same(completion.wr_id(), next, "the order")?;
            next += 1;
        }
    }
    same(pair.a.cq.poll_into(&mut [])?.len(), 0, "none asked for")?;
    same(pair.a.cq.poll()?.iter().count(), 0, "completions beyond")
}

/// Catches a loop that never ends where each completion makes another one.
fn no_poll_goes_on_for_ever() -> Result {
    let mut pair = exact()?;
    let to = pair.b.mr.remote();
    let most = pair.a.cq.capacity() as usize + 1;
    let mut post = |number: u64| -> Result {
        let mut batch = pair.a.qp.batch();
        batch.signaled(number).write(Inline(b"x"), to)?;
        batch.ring()?;
        Ok(())
    };
    post(0)?;
    let mut longest = 0;
    for _ in 0..20 {
        until("a completion", || {
            let mut taken = 0;
            for completion in &mut pair.a.cq.poll()? {
                completion.result()?;
                post(completion.wr_id() + 1)?;
                // The device has all the time that it needs.
                thread::sleep(Duration::from_millis(1));
                taken += 1;
            }
            longest = longest.max(taken);
            Ok((taken > 0).then_some(()))
        })?;
    }
    same(longest <= most, true, &format!("a poll of {longest}"))
}
