//! One operation of the data path in each function, for callgrind to count.
//!
//! callgrind collects inside the functions named `op_*` only; `phase_end` makes it write out what it has
//! collected. `rdma_core.c` has functions of the same names that do the same through libibverbs. What an
//! operation needs (room in the queue, completions to poll) is made between the calls, uncounted.

use std::hint::black_box;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use uverbs::transport::{Dc, StaticTransport};
use uverbs::{
    Caps, Context, Cq, InDomain, Inline, LocalSlice, Qp, Rc, RemoteSlice, Srq, ThreadDomain,
};

use crate::pair::Pair;

/// Calls of each operation that are counted.
pub(crate) const CALLS: usize = 64;
/// Calls before, uncounted, so that the dynamic linker has bound what it binds late.
pub(crate) const WARM_UP: usize = 4;
/// Requests of the batch.
pub(crate) const BATCH: usize = 32;
/// Completions of the longer poll.
const MANY: usize = 16;
/// Completions that are made at a time for polling.
pub(crate) const READY: usize = 128;
/// Bytes of the WRITE and of the receive.
pub(crate) const WRITE: usize = 64;
/// Bytes of the inline SEND.
pub(crate) const INLINE: usize = 32;
/// Requests that the shared receive queue holds.
const RECEIVES: usize = 2 * READY;
/// How long requests are given to complete before they are polled. On a quiet machine they complete in well
/// under a millisecond each; a poll that finds too few ends the program.
pub(crate) const SETTLE: Duration = Duration::from_millis(700);

/// Posts one signaled WRITE.
#[inline(never)]
#[unsafe(export_name = "op_post_write")]
fn post_write(qp: &mut Qp<Rc>, from: &LocalSlice, to: &RemoteSlice, wr_id: u64) -> bool {
    let mut batch = qp.batch();
    batch.signaled(wr_id).write(from, *to).is_ok() && batch.ring().is_ok()
}

/// Posts one signaled inline SEND.
#[inline(never)]
#[unsafe(export_name = "op_post_inline")]
fn post_inline(qp: &mut Qp<Rc>, bytes: &[u8; INLINE], wr_id: u64) -> bool {
    let mut batch = qp.batch();
    batch.signaled(wr_id).send(Inline(bytes)).is_ok() && batch.ring().is_ok()
}

/// Posts one signaled WRITE, in one call.
#[inline(never)]
#[unsafe(export_name = "op_one_write")]
fn one_write(qp: &mut Qp<Rc>, from: &LocalSlice, to: &RemoteSlice, wr_id: u64) -> bool {
    qp.one(wr_id).write(from, *to).is_ok()
}

/// Posts one signaled inline SEND, in one call.
#[inline(never)]
#[unsafe(export_name = "op_one_inline")]
fn one_inline(qp: &mut Qp<Rc>, bytes: &[u8; INLINE], wr_id: u64) -> bool {
    qp.one(wr_id).send(Inline(bytes)).is_ok()
}

/// Posts one signaled WRITE in a thread domain.
#[inline(never)]
#[unsafe(export_name = "op_domain_write")]
fn domain_write(
    qp: &mut Qp<Rc, InDomain>,
    td: &mut ThreadDomain,
    from: &LocalSlice,
    to: &RemoteSlice,
    wr_id: u64,
) -> bool {
    let Ok(mut batch) = qp.batch(td) else {
        return false;
    };
    batch.signaled(wr_id).write(from, *to).is_ok() && batch.ring().is_ok()
}

/// Posts one signaled WRITE in a thread domain, in one call.
#[inline(never)]
#[unsafe(export_name = "op_domain_one_write")]
fn domain_one_write(
    qp: &mut Qp<Rc, InDomain>,
    td: &mut ThreadDomain,
    from: &LocalSlice,
    to: &RemoteSlice,
    wr_id: u64,
) -> bool {
    qp.one(td, wr_id)
        .is_ok_and(|one| one.write(from, *to).is_ok())
}

/// Posts a batch of WRITEs of which the last is signaled.
#[inline(never)]
#[unsafe(export_name = "op_post_batch")]
fn post_batch(qp: &mut Qp<Rc>, from: &[LocalSlice; BATCH], to: &RemoteSlice) -> bool {
    let mut batch = qp.batch();
    for (index, slice) in from.iter().enumerate() {
        let request = match index == BATCH - 1 {
            true => batch.signaled(index as u64),
            false => batch.unsignaled(index as u64),
        };
        if request.write(slice, *to).is_err() {
            return false;
        }
    }
    batch.ring().is_ok()
}

/// Posts one receive.
#[inline(never)]
#[unsafe(export_name = "op_post_receive")]
fn post_receive(qp: &mut Qp<Rc>, into: &LocalSlice, wr_id: u64) -> bool {
    let mut batch = qp.recv_batch();
    batch.post(wr_id, into).is_ok() && batch.ring() == 1
}

/// Posts one receive to a shared queue.
#[inline(never)]
#[unsafe(export_name = "op_post_shared")]
fn post_shared(srq: &mut Srq, into: &LocalSlice, wr_id: u64) -> bool {
    let mut batch = srq.batch();
    batch.post(wr_id, into).is_ok() && batch.ring() == 1
}

/// Polls at most `MAX` completions; gives how many there were, and adds up their ids.
#[inline(always)]
fn poll<const MAX: usize>(cq: &mut Cq, ids: &mut u64) -> usize {
    let Ok(mut completions) = cq.poll() else {
        return usize::MAX;
    };
    let (mut count, mut sum) = (0, 0u64);
    for completion in completions.iter().take(MAX) {
        if !completion.is_ok() {
            return usize::MAX;
        }
        sum = sum.wrapping_add(completion.wr_id());
        count += 1;
    }
    if count > 0 {
        *ids = ids.wrapping_add(sum);
    }
    count
}

/// Polls one completion.
#[inline(never)]
#[unsafe(export_name = "op_poll_one")]
pub(crate) fn poll_one(cq: &mut Cq, ids: &mut u64) -> usize {
    poll::<1>(cq, ids)
}

/// Polls many completions.
#[inline(never)]
#[unsafe(export_name = "op_poll_many")]
fn poll_many(cq: &mut Cq, ids: &mut u64) -> usize {
    poll::<MANY>(cq, ids)
}

/// Ends the counting of one row: callgrind writes out what it has collected when this function returns.
#[inline(never)]
#[unsafe(export_name = "phase_end")]
fn phase_end(row: &str) {
    println!("{}", black_box(row));
}

/// Polls until `count` more requests have completed, uncounted.
pub(crate) fn drain(cq: &mut Cq, count: usize) -> Result<()> {
    let mut left = count;
    while left > 0 {
        for completion in cq.poll()?.iter().take(left) {
            completion.result()?;
            left -= 1;
        }
    }
    Ok(())
}

/// Runs an operation, first some times for warming up, and ends the row.
pub(crate) fn row(name: &str, mut operation: impl FnMut() -> Result<()>) -> Result<()> {
    for _ in 0..WARM_UP {
        operation()?;
    }
    phase_end("-");
    for _ in 0..CALLS {
        operation()?;
    }
    phase_end(&format!("{name} {CALLS}"));
    Ok(())
}

/// Whether a device has queue pairs of a transport.
///
/// # Errors
/// If it cannot be told.
pub fn has<T: StaticTransport>(context: &Context) -> Result<bool> {
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(1)?);
    match pd.create_qp::<T>(&cq, Caps::default()) {
        Ok(_) => Ok(true),
        Err(error) if error.is_unsupported() => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Does all operations in turn. Each prints the name and the number of its calls, in the order of the
/// profiles that callgrind writes; the warm-up before it prints a dash. With `arena` all rings lie in an
/// arena of a parent domain, which is to make no difference. Where there are no connections they are those of
/// [`crate::srd`].
///
/// # Errors
/// If an operation fails or a poll finds another number of completions than there must be.
pub fn run(device: &str, arena: bool) -> Result<()> {
    let context = uverbs::open(device)?;
    if !has::<Rc>(&context)? {
        // Their rings are the kernel's and the device's.
        return if arena {
            Ok(())
        } else {
            crate::srd::run(&context)
        };
    }
    let mut pair = match arena {
        true => Pair::in_arena(&context, 4096)?,
        false => Pair::new(&context, 4096)?,
    };
    let local = pair.source.slice(..WRITE)?;
    let remote = pair.target.remote().slice(..WRITE)?;
    let into = pair.target.slice(..WRITE)?;
    if !arena && has::<Dc>(&context)? {
        crate::dc::run(&context)?;
    }
    let (here, there) = (&mut pair.here, &mut pair.there);

    row("post_write", || {
        ensure!(post_write(here, &local, &remote, 7), "posting a WRITE");
        drain(&mut pair.cq, 1)
    })?;
    row("one_write", || {
        ensure!(one_write(here, &local, &remote, 7), "posting a WRITE");
        drain(&mut pair.cq, 1)
    })?;
    row("post_receive", || {
        ensure!(post_receive(there, &into, 8), "posting a receive");
        Ok(())
    })?;
    row("post_inline", || {
        ensure!(post_inline(here, &[9; INLINE], 9), "posting a SEND");
        drain(&mut pair.cq, 1)
    })?;
    drain(&mut pair.peer_cq, WARM_UP + CALLS)?;
    receive(there, &into, WARM_UP + CALLS)?;
    row("one_inline", || {
        ensure!(one_inline(here, &[9; INLINE], 9), "posting a SEND");
        drain(&mut pair.cq, 1)
    })?;
    drain(&mut pair.peer_cq, WARM_UP + CALLS)?;
    row("post_batch", || {
        ensure!(
            post_batch(here, &[local; BATCH], &remote),
            "posting a batch"
        );
        drain(&mut pair.cq, 1)
    })?;

    let mut ids = 0;
    row("poll_nothing", || {
        ensure!(
            poll_one(&mut pair.cq, &mut ids) == 0,
            "a completion that nobody asked for"
        );
        Ok(())
    })?;
    polls(&mut pair.cq, ["poll_one", "poll_many"], &mut ids, || {
        make_ready(here, &local, &remote)
    })?;
    polls(
        &mut pair.peer_cq,
        ["poll_received", "poll_received_many"],
        &mut ids,
        || {
            receive(there, &into, READY)?;
            send(here, &mut pair.cq)
        },
    )?;
    shared(&mut pair, &mut ids)?;
    black_box(ids);
    in_a_thread_domain(&mut pair)
}

/// Posts to a queue pair of a thread domain.
fn in_a_thread_domain(pair: &mut Pair) -> Result<()> {
    let (mut td, mut qp) = pair.in_thread_domain()?;
    let from = pair.source.slice(..WRITE)?;
    let to = pair.target.remote().slice(..WRITE)?;
    let (qp, td) = (&mut qp, &mut td);
    row("domain_write", || {
        ensure!(domain_write(qp, td, &from, &to, 7), "posting a WRITE");
        drain(&mut pair.cq, 1)
    })?;
    row("domain_one_write", || {
        ensure!(domain_one_write(qp, td, &from, &to, 7), "posting a WRITE");
        drain(&mut pair.cq, 1)
    })
}

/// Polls completions that wait in the queue, one at a time and then many; `make_ready` makes [`READY`] more.
pub(crate) fn polls(
    cq: &mut Cq,
    [one, many]: [&str; 2],
    ids: &mut u64,
    mut make_ready: impl FnMut() -> Result<()>,
) -> Result<()> {
    let mut ready = 0;
    let mut polls = |name, want, operation: fn(&mut Cq, &mut u64) -> usize| {
        row(name, || {
            if ready < want {
                make_ready()?;
                ready += READY;
            }
            let found = operation(cq, ids);
            ensure!(
                found == want,
                "{found} completions where there must be {want}"
            );
            ready -= want;
            Ok(())
        })
    };
    polls(one, 1, poll_one)?;
    polls(many, MANY, poll_many)?;
    // What is left would be taken for what comes next.
    drain(cq, ready)
}

/// Posts to a shared receive queue, and polls what has been received into it.
fn shared(pair: &mut Pair, ids: &mut u64) -> Result<()> {
    let (mut srq, mut qp) = pair.share(RECEIVES as u32)?;
    let into = pair.target.slice(..WRITE)?;
    let mut posted = 0;
    row("post_shared", || {
        ensure!(post_shared(&mut srq, &into, 8), "posting a receive");
        posted += 1;
        Ok(())
    })?;
    let rows = ["poll_shared", "poll_shared_many"];
    polls(&mut pair.peer_cq, rows, ids, || {
        // Not by `post_shared`, whose instructions would count as those of the polls.
        let mut batch = srq.batch();
        for _ in posted..READY {
            batch.post(8, into)?;
        }
        batch.ring();
        posted = posted.max(READY);
        posted -= READY;
        send(&mut qp, &mut pair.cq)
    })
}

/// Posts receives, uncounted.
fn receive(qp: &mut Qp<Rc>, into: &LocalSlice, count: usize) -> Result<()> {
    let mut batch = qp.recv_batch();
    for _ in 0..count {
        batch.post(8, into)?;
    }
    batch.ring();
    Ok(())
}

/// Posts [`READY`] SENDs, uncounted, and waits until their messages have been received.
fn send(qp: &mut Qp<Rc>, cq: &mut Cq) -> Result<()> {
    let mut batch = qp.batch();
    for wr_id in 0..READY {
        batch.signaled(wr_id as u64).send(Inline(&[9; INLINE]))?;
    }
    batch.ring()?;
    drain(cq, READY)?;
    sleep(SETTLE);
    Ok(())
}

/// Posts [`READY`] signaled WRITEs, uncounted, and waits until they have completed.
fn make_ready(qp: &mut Qp<Rc>, from: &LocalSlice, to: &RemoteSlice) -> Result<()> {
    let mut batch = qp.batch();
    for wr_id in 0..READY {
        batch.signaled(wr_id as u64).write(from, *to)?;
    }
    batch.ring()?;
    sleep(SETTLE);
    Ok(())
}
