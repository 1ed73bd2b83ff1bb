//! Many queue pairs on few completion queues and few threads: whose request a completion is of, whatever
//! becomes of the queue pair in between.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use libtest_mimic::Trial;
use support::hca::{NO_COPIES, registers};
use support::pair::options;
use support::{LIMIT, Result, completion, device, fail, open, same, skip, test, until};
use uverbs::{Access, Batch, Caps, Cq, Inline, Mr, Pd, PostError, Qp, Rc, WcOpcode};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("many::several_threads_post", several_threads_post),
        test(
            "many::one_thread_polls_while_others_post",
            one_thread_polls_while_others_post,
        ),
        test(
            "many::a_reset_forgets_its_own_completions_alone",
            a_reset_forgets_its_own_completions_alone,
        ),
        test(
            "many::completions_outlive_their_queue_pair",
            completions_outlive_their_queue_pair,
        ),
        test(
            "many::a_thread_domain_has_a_register",
            a_thread_domain_has_a_register,
        ),
    ]
}

/// Queue pairs of a test: more than get registers of their own on an adapter, which are 16.
const QUEUE_PAIRS: usize = 24;
const THREADS: usize = 4;

const WORD: usize = size_of::<u64>();

fn caps() -> Caps {
    Caps {
        max_send_wr: 16,
        max_recv_wr: 1,
        ..Caps::default()
    }
}

/// A queue pair that is connected to itself.
fn loopback(pd: &Pd, cq: &Cq) -> Result<Qp<Rc>> {
    let mut qp = pd.create_qp::<Rc>(cq, caps())?;
    let own = qp.endpoint()?;
    qp.connect_with(&own, &options())?;
    Ok(qp)
}

fn words(pd: &Pd, count: usize) -> Result<Mr<Vec<u8>>> {
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    Ok(pd.register(vec![0; count * WORD], access)?)
}

fn word(mr: &Mr<Vec<u8>>, at: usize) -> Result<u64> {
    let mut bytes = [0; WORD];
    mr.read_at(at * WORD, &mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Catches doorbells that go to another thread's queue pair, or are lost where registers are shared or run
/// out: single requests and batches by turns, each thread on queue pairs and a completion queue of its own.
fn several_threads_post() -> Result {
    const ROUNDS: u64 = 60;
    let context = open()?;
    let pd = context.alloc_pd()?;
    let run = |_| -> Result {
        let mut cq = context.create_cq(256)?;
        let mut qps: Vec<_> = (0..QUEUE_PAIRS / THREADS)
            .map(|_| loopback(&pd, &cq))
            .collect::<Result<_>>()?;
        let target = words(&pd, qps.len())?;
        for round in 1..=ROUNDS {
            for (index, qp) in qps.iter_mut().enumerate() {
                let at = target.remote().slice((index * WORD)..)?;
                let mut batch = qp.batch();
                for _ in 0..round % 3 {
                    batch.unsignaled(0).write(Inline(&0u64.to_ne_bytes()), at)?;
                }
                batch
                    .signaled(round)
                    .write(Inline(&(round << 8 | index as u64).to_ne_bytes()), at)?;
                batch.ring()?;
            }
            for _ in 0..qps.len() {
                let wc = completion(&mut cq)?;
                wc.is(WcOpcode::RDMA_WRITE)?;
                same(wc.wr_id, round, "the round")?;
            }
            for index in 0..qps.len() {
                same(
                    word(&target, index)?,
                    round << 8 | index as u64,
                    "what was written",
                )?;
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(move || run(thread)))
            .collect();
        threads.into_iter().try_for_each(joined)
    })
}

fn joined(thread: std::thread::ScopedJoinHandle<'_, Result>) -> Result {
    thread.join().unwrap_or_else(|_| fail("a thread panicked"))
}

/// Catches ids that are told for another request or queue pair, and requests that are never retired, when the
/// poller looks at what other threads are writing: every third request has a completion.
fn one_thread_polls_while_others_post() -> Result {
    const REQUESTS: u64 = 150;
    let context = open()?;
    let pd = context.alloc_pd()?;
    let mut cq = context.create_cq(1023)?;
    let mut qps: Vec<_> = (0..QUEUE_PAIRS)
        .map(|_| loopback(&pd, &cq))
        .collect::<Result<_>>()?;
    let numbers: Vec<u32> = qps.iter().map(Qp::qpn).collect();
    let target = words(&pd, QUEUE_PAIRS)?;
    let to = target.remote();
    let posted = AtomicUsize::new(0);
    let post = |first: usize, qps: &mut [Qp<Rc>]| -> Result {
        let mut deadline = Instant::now() + LIMIT;
        let mut sent = vec![0; qps.len()];
        while sent.iter().any(|&sent| sent < REQUESTS) {
            for (index, qp) in qps.iter_mut().enumerate() {
                let mut batch = qp.batch();
                let at = to.slice(((first + index) * WORD)..)?;
                while sent[index] < REQUESTS {
                    let number = sent[index] + 1;
                    let id = ((first + index) as u64) << 32 | number;
                    let request = match number.is_multiple_of(3) {
                        true => batch.signaled(id),
                        false => batch.unsignaled(id),
                    };
                    match request.write(Inline(&number.to_ne_bytes()), at) {
                        Ok(()) => {}
                        Err(PostError::QueueFull { .. }) => break,
                        Err(error) => return Err(error.into()),
                    }
                    sent[index] = number;
                }
                if batch.ring()? > 0 {
                    deadline = Instant::now() + LIMIT;
                }
            }
            if Instant::now() > deadline {
                return fail(format!("queues stay full: {sent:?}"));
            }
            std::thread::yield_now();
        }
        posted.fetch_add(qps.len(), Ordering::Relaxed);
        Ok(())
    };
    std::thread::scope(|scope| {
        let share = QUEUE_PAIRS / THREADS;
        let threads: Vec<_> = qps
            .chunks_mut(share)
            .enumerate()
            .map(|(chunk, qps)| scope.spawn(move || post(chunk * share, qps)))
            .collect();
        let mut last = [0; QUEUE_PAIRS];
        for _ in 0..QUEUE_PAIRS as u64 * (REQUESTS / 3) {
            let wc = completion(&mut cq)?;
            wc.is(WcOpcode::RDMA_WRITE)?;
            let index = (wc.wr_id >> 32) as usize;
            same(wc.qp_num, numbers[index], "whose completion it is")?;
            last[index] += 3;
            same(wc.wr_id & 0xffff_ffff, last[index], "the order")?;
        }
        threads.into_iter().try_for_each(joined)
    })?;
    same(
        posted.into_inner(),
        QUEUE_PAIRS,
        "queue pairs that are through",
    )?;
    same(cq.poll()?.iter().count(), 0, "completions beyond")?;
    for index in 0..QUEUE_PAIRS {
        same(word(&target, index)?, REQUESTS, "the last word")?;
    }
    Ok(())
}

/// Completes a write for each id, and leaves the completions in the queue: the READ behind them brings its
/// word when they are there.
fn complete(pd: &Pd, qp: &mut Qp<Rc>, ids: Range<u64>) -> Result {
    let memory = words(pd, 2)?;
    complete_batch(&memory, qp.batch(), ids)
}

/// As [`complete`], by a batch that has been started.
fn complete_batch<'m>(
    memory: &'m Mr<Vec<u8>>,
    mut batch: Batch<'m, Rc>,
    ids: Range<u64>,
) -> Result {
    let to = memory.remote().slice(..WORD)?;
    for id in ids {
        batch.signaled(id).write(Inline(&1u64.to_ne_bytes()), to)?;
    }
    batch.unsignaled(0).read(memory.slice(WORD..)?, to)?;
    batch.ring()?;
    until("the requests to end", || {
        Ok((word(memory, 1)? == 1).then_some(()))
    })
}

/// All completions that are there: their ids.
fn ids(cq: &mut Cq) -> Result<Vec<u64>> {
    let mut ids = Vec::new();
    for completion in &mut cq.poll()? {
        same(completion.result()?, WcOpcode::RDMA_WRITE, "opcode")?;
        ids.push(completion.wr_id());
    }
    Ok(ids)
}

/// Catches completions of before a reset that are taken for new ones, and another queue pair's that go with
/// them.
fn a_reset_forgets_its_own_completions_alone() -> Result {
    let context = open()?;
    let pd = context.alloc_pd()?;
    let mut cq = context.create_cq(63)?;
    let (mut reset, mut other) = (loopback(&pd, &cq)?, loopback(&pd, &cq)?);
    for round in 0..8 {
        let first = round * 1000;
        complete(&pd, &mut reset, first..first + 7)?;
        complete(&pd, &mut other, first + 100..first + 105)?;
        // Some are taken before the reset, at every place of the ring.
        let taken = round % 8;
        for id in 0..taken.min(7) {
            same(completion(&mut cq)?.wr_id, first + id, "before the reset")?;
        }
        reset.reset()?;
        let own = reset.endpoint()?;
        reset.connect_with(&own, &options())?;
        complete(&pd, &mut other, first + 105..first + 107)?;
        complete(&pd, &mut reset, first + 200..first + 206)?;
        let mut got = ids(&mut cq)?;
        if device().is_rxe() {
            // The kernel's queue keeps what it has.
            got.retain(|id| *id >= first + 100);
        }
        let expected = (first + 100..first + 107).chain(first + 200..first + 206);
        same(got, expected.collect(), "the ids")?;
        same(reset.halves().0.in_flight() <= 1, true, "room again")?;
    }
    Ok(())
}

/// Catches completions that are lost with their queue pair, or told as its successor's, which has the same
/// number here.
fn completions_outlive_their_queue_pair() -> Result {
    let context = open()?;
    let pd = context.alloc_pd()?;
    let mut cq = context.create_cq(63)?;
    for round in 0..8 {
        let first = round * 1000;
        let mut gone = loopback(&pd, &cq)?;
        let mut stays = loopback(&pd, &cq)?;
        complete(&pd, &mut gone, first..first + 7)?;
        let taken = round % 8;
        for id in 0..taken.min(7) {
            same(completion(&mut cq)?.wr_id, first + id, "before the end")?;
        }
        gone.destroy()?;
        let mut heir = loopback(&pd, &cq)?;
        complete(&pd, &mut heir, first + 100..first + 104)?;
        complete(&pd, &mut stays, first + 200..first + 204)?;
        let left = first + taken.min(7)..first + 7;
        let expected = left
            .chain(first + 100..first + 104)
            .chain(first + 200..first + 204);
        same(ids(&mut cq)?, expected.collect(), "the ids")?;
    }
    Ok(())
}

/// Catches a thread domain that picks no hardware of its own, and queue pairs without one that take more than
/// their share.
fn a_thread_domain_has_a_register() -> Result {
    if device().is_rxe() {
        return skip("soft-RoCE has no registers");
    }
    let context = open()?;
    let pd = context.alloc_pd()?;
    let mut cq = context.create_cq(63)?;
    let qps: Vec<_> = (0..QUEUE_PAIRS)
        .map(|_| loopback(&pd, &cq))
        .collect::<Result<_>>()?;
    // Two to a page, for the first 16 and for those that the others share, and the common one.
    let before = registers(&context)?;
    if before == 1 {
        return skip(NO_COPIES);
    }
    let shared = QUEUE_PAIRS - 16;
    same(before, 16 / 2 + shared / 2 + 1, "pages of registers")?;
    let mut tds = [context.alloc_td(), context.alloc_td()];
    let domains = [
        pd.parent_domain().thread_domain(&tds[0]).create()?,
        pd.parent_domain().thread_domain(&tds[1]).create()?,
    ];
    let of_domains = (0..6).map(|index| -> Result<_> {
        let mut qp = domains[index % 2]
            .qp(&cq)
            .caps(caps())
            .create_in_domain::<Rc>()?;
        let own = qp.endpoint()?;
        qp.connect(&own)?;
        Ok(qp)
    });
    let mut of_domains = of_domains.collect::<Result<Vec<_>>>()?;
    same(registers(&context)?, before + 1, "pages with two domains'")?;
    for (first, qp) in (0..).zip(&mut of_domains) {
        let memory = words(&pd, 2)?;
        let batch = qp.batch(&mut tds[first as usize % 2])?;
        complete_batch(&memory, batch, first * 10..first * 10 + 5)?;
        same(ids(&mut cq)?, (first * 10..first * 10 + 5).collect(), "ids")?;
    }
    drop(qps);
    Ok(())
}
