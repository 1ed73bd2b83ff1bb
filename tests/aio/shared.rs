//! One stock of receives for many queue pairs.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use libtest_mimic::Trial;
use support::{LIMIT, Result, fail, open, same, test_without_leaks};
use tokio::time::timeout;
use uverbs::aio::{self, Cq, OpError, Post, Qp, Srq, Wait};
use uverbs::buf::{Buf, Pool};
use uverbs::{Caps, Pd, PostError, Rc};

use crate::ground::{connect, filled};

/// A test with its name.
type Named = (&'static str, fn() -> Result);

pub(crate) fn tests() -> Vec<Trial> {
    let tests: [Named; 4] = [
        ("shared::many_queue_pairs", many_queue_pairs),
        ("shared::limits", limits),
        ("shared::dropped_receives", dropped_receives),
        ("shared::goes_first", goes_first),
    ];
    tests
        .map(|(name, run)| test_without_leaks(name, run))
        .into()
}

/// Queue pairs that receive from one queue, and their peers.
struct Ground {
    here: Vec<Qp<Rc>>,
    there: Vec<Qp<Rc>>,
    srq: Srq,
    cq: Cq,
    pool: Pool,
    pd: Pd,
}

impl Ground {
    fn new(pairs: usize, receives: u32) -> Result<Self> {
        let context = open()?;
        let pd = context.alloc_pd()?;
        let cq = Cq::new(&context, 1024)?;
        let pool = Pool::on(&pd).sizes([256]).build()?;
        let srq = cq.create_srq(&pd, receives)?;
        let (mut here, mut there) = (Vec::new(), Vec::new());
        for _ in 0..pairs {
            let mut a = srq.create_qp::<Rc>(&pd, Caps::default())?;
            let mut b = cq.create_qp::<Rc>(&pd, Caps::default())?;
            connect(&mut a, &mut b)?;
            here.push(a);
            there.push(b);
        }
        Ok(Self {
            here,
            there,
            srq,
            cq,
            pool,
            pd,
        })
    }

    fn buf(&self, bytes: &[u8]) -> Result<Buf> {
        filled(&self.pool, bytes)
    }
}

const PAIRS: usize = 8;
const MESSAGES: u32 = 40;

/// A task that receives for all queue pairs.
#[derive(Clone)]
struct Worker {
    srq: Arc<Mutex<Srq>>,
    pool: Pool,
    /// The senders by the queue pairs that they send to.
    senders: HashMap<u32, u32>,
    /// How often each message has come.
    counts: Arc<Vec<AtomicU32>>,
    /// How many have come.
    done: Arc<tokio::sync::Semaphore>,
}

impl Worker {
    async fn work(self) -> Result<Infallible> {
        loop {
            let buf = self.pool.get(256).await?;
            let message = self.srq.lock().map_err(|_| "poisoned")?.recv(buf);
            let (result, buf) = message.await;
            let from = self.senders.get(&result?.qpn).ok_or("no such queue pair")?;
            let told = u32::from_le_bytes(buf[..4].try_into()?);
            same(told / MESSAGES, *from, "the sender")?;
            self.counts[told as usize].fetch_add(1, Ordering::Relaxed);
            self.done.add_permits(1);
        }
    }
}

/// Catches messages that are told to be of another queue pair, that are lost or that come twice, with tasks
/// that all receive for all queue pairs.
fn many_queue_pairs() -> Result {
    let Ground {
        here,
        there,
        srq,
        cq,
        pool,
        ..
    } = Ground::new(PAIRS, 64)?;
    let senders: HashMap<u32, u32> = here.iter().map(Qp::qpn).zip(0..).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.spawn(aio::tokio::serve(cq.clone(), Wait::default()));
    let srq = Arc::new(Mutex::new(srq));
    let counts = (0..PAIRS as u32 * MESSAGES).map(|_| AtomicU32::new(0));
    let counts: Arc<Vec<AtomicU32>> = Arc::new(counts.collect());
    let done = Arc::new(tokio::sync::Semaphore::new(0));
    runtime.block_on(async {
        let worker = Worker {
            srq: Arc::clone(&srq),
            pool: pool.clone(),
            senders,
            counts: Arc::clone(&counts),
            done: Arc::clone(&done),
        };
        let workers: Vec<_> = (0..4)
            .map(|_| tokio::spawn(worker.clone().work()))
            .collect();
        let senders: Vec<_> = there
            .into_iter()
            .zip(0..)
            .map(|(mut qp, sender)| {
                tokio::spawn(async move {
                    for message in 0..MESSAGES {
                        let number: u32 = sender * MESSAGES + message;
                        qp.send_inline(&number.to_le_bytes()).await?;
                    }
                    Ok::<_, OpError>(qp)
                })
            })
            .collect();
        for sender in senders {
            timeout(LIMIT, sender).await???;
        }
        let all = done.acquire_many(PAIRS as u32 * MESSAGES);
        timeout(LIMIT, all).await??.forget();
        for worker in workers {
            if worker.is_finished() {
                return fail(format!("{:?}", worker.await));
            }
            // With a receive posted, which stays.
            worker.abort();
            let _ = worker.await;
        }
        Ok(())
    })?;
    for (message, count) in counts.iter().enumerate() {
        same(
            count.load(Ordering::Relaxed),
            1,
            &format!("message {message}"),
        )?;
    }
    drop((runtime, here));
    drop(srq);
    same(pool.stats().in_use(), 0, "buffers in use")
}

/// Catches a stock that takes more than it was made for, and receives that go elsewhere.
fn limits() -> Result {
    let mut ground = Ground::new(1, 2)?;
    let (own, ..) = ground
        .cq
        .block_on(ground.here[0].recv(ground.pool.try_get(256)?))?;
    let capacity = 0;
    same(
        own.err(),
        Some(PostError::QueueFull { capacity }.into()),
        "one of its own",
    )?;
    let kept: Vec<_> = (0..2)
        .map(|_| Ok(ground.srq.recv(ground.pool.try_get(256)?)))
        .collect::<Result<_>>()?;
    let refused = ground.srq.recv(ground.pool.try_get(256)?);
    let (third, _) = ground.cq.block_on(refused)?;
    let capacity = 2;
    same(
        third.err(),
        Some(PostError::QueueFull { capacity }.into()),
        "the third",
    )?;
    same(ground.srq.in_flight(), 2, "receives that wait")?;
    let foreign = Pool::on(&ground.pd.context().alloc_pd()?)
        .sizes([256])
        .build()?;
    let (foreign, _) = ground.cq.block_on(ground.srq.recv(foreign.try_get(256)?))?;
    same(
        foreign.err(),
        Some(PostError::ForeignPd.into()),
        "another domain's",
    )?;
    match ground.cq.create_srq(&ground.pd, ground.cq.capacity()) {
        Err(error) => support::says(&error, &["room"])?,
        Ok(_) => return fail("the completion queue is not that large"),
    }
    drop((ground.here, ground.srq));
    for receive in kept {
        let (result, _) = ground.cq.block_on(receive)?;
        same(result.err(), Some(OpError::Gone), "a receive at the end")?;
    }
    same(ground.pool.stats().in_use(), 0, "buffers in use")
}

/// Catches a receive whose future is gone and that gives its buffer back before a message has been put into
/// it.
fn dropped_receives() -> Result {
    let mut ground = Ground::new(2, 8)?;
    for _ in 0..3 {
        drop(ground.srq.recv(ground.pool.try_get(256)?));
    }
    same(ground.pool.stats().in_use(), 3, "the device has them")?;
    let kept = ground.srq.recv(ground.pool.try_get(256)?);
    for message in 0..4u8 {
        let from = usize::from(message) % 2;
        let sent = ground.buf(&[message; 16])?;
        let sent = ground.there[from].send(sent);
        ground.cq.block_on(sent)?.0?;
    }
    // One after the other was sent and acknowledged: the last receive has the last message.
    let (result, buf) = ground.cq.block_on(kept)?;
    same(result?.qpn, ground.here[1].qpn(), "the queue pair")?;
    same(&*buf, &[3; 16][..], "the message")?;
    drop(buf);
    while ground.srq.in_flight() > 0 {
        ground.cq.pump()?;
    }
    same(ground.pool.stats().in_use(), 0, "buffers in use")
}

/// Catches buffers that are lost when the stock goes before those that receive from it.
fn goes_first() -> Result {
    let mut ground = Ground::new(2, 8)?;
    let waiting = ground.srq.recv(ground.pool.try_get(256)?);
    drop(ground.srq.recv(ground.pool.try_get(256)?));
    drop(ground.srq);
    let (result, _) = ground.cq.block_on(waiting)?;
    same(result.err(), Some(OpError::Broken), "the receive")?;
    same(ground.pool.stats().in_use(), 2, "queue pairs still receive")?;
    ground.here.pop();
    same(ground.pool.stats().in_use(), 2, "one still receives")?;
    drop(ground.here);
    same(ground.pool.stats().in_use(), 0, "buffers in use")
}
