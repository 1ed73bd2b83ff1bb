//! Tasks that are cancelled at random, for as long as one wants: every buffer is accounted for, and none is
//! given back while the device has it.
//!
//! It takes some seconds in the usual run; `UVERBS_SOAK_SECONDS` says how long, `UVERBS_SOAK_SEED` what is
//! done.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use support::random::Random;
use support::{LIMIT, Result, fail, same, test_without_leaks};
use tokio::runtime::Builder;
use tokio::time::timeout;
use uverbs::aio::{self, Control, Cq, Kind, Op, OpError, Post, Qp, Wait};
use uverbs::buf::{Buf, Pool};
use uverbs::{Mr, Rc, RemoteSlice};

use crate::ground::Two;

pub(crate) fn tests() -> Vec<Trial> {
    vec![test_without_leaks("soak::cancelled_at_random", soak)]
}

/// Tasks of each kind.
const TASKS: u64 = 4;

/// Bytes of a message, or of what is written.
const LENGTH: usize = 1500;

/// How many operations had which fate.
#[derive(Default)]
struct Figures {
    awaited: AtomicU32,
    dropped: AtomicU32,
    timed_out: AtomicU32,
    forgotten: AtomicU32,
    received: AtomicU32,
    failed: AtomicU32,
}

impl Figures {
    /// Whether something has not been seen yet that a run must have.
    fn lacks(&self) -> bool {
        let seen = [
            &self.awaited,
            &self.dropped,
            &self.timed_out,
            &self.received,
        ];
        seen.iter().any(|count| count.load(Ordering::Relaxed) == 0)
    }

    fn count(&self, of: impl Fn(&Self) -> &AtomicU32) {
        of(self).fetch_add(1, Ordering::Relaxed);
    }
}

fn number(name: &str) -> Result<Option<u64>> {
    match std::env::var(name) {
        Ok(text) => Ok(Some(text.parse()?)),
        Err(_) => Ok(None),
    }
}

fn soak() -> Result {
    let limit = Duration::from_secs(number("UVERBS_SOAK_SECONDS")?.unwrap_or(3));
    let seed = number("UVERBS_SOAK_SEED")?.unwrap_or_else(|| std::process::id().into());
    println!("UVERBS_SOAK_SEED={seed}");
    let figures = Arc::new(Figures::default());
    let mut random = Random::new(seed);
    let started = Instant::now();
    let mut rounds = 0;
    while started.elapsed() < limit || figures.lacks() && started.elapsed() < limit + LIMIT {
        round(&mut random, &figures).map_err(|error| format!("round {rounds}: {error}"))?;
        rounds += 1;
    }
    let Figures {
        awaited,
        dropped,
        timed_out,
        forgotten,
        received,
        failed,
    } = &*figures;
    println!(
        "{rounds} rounds: {awaited:?} operations awaited, {dropped:?} dropped, {timed_out:?} timed out, \
         {forgotten:?} forgotten; {received:?} messages; {failed:?} ended with their queue pairs"
    );
    same(figures.lacks(), false, "something is never done")
}

/// What all tasks of a round have.
#[derive(Clone)]
struct Shared {
    a: Arc<Mutex<Qp<Rc>>>,
    b: Arc<Mutex<Qp<Rc>>>,
    pool: Pool,
    remote: RemoteSlice,
    figures: Arc<Figures>,
}

/// How a round ends.
#[derive(Clone, Copy, Debug)]
enum End {
    /// All that is under way comes to its end.
    Drained,
    /// The queue pairs fail with everything under way.
    Aborted,
    /// They are destroyed with everything under way.
    Dropped,
}

/// Two queue pairs from their beginning to their end.
fn round(random: &mut Random, figures: &Arc<Figures>) -> Result {
    let two = Two::new()?;
    let region = two.region(LENGTH)?;
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let Two { a, b, cq, pool, .. } = two;
    let wait = [Wait::Park, Wait::default()][random.below(2)];
    runtime.spawn(aio::tokio::serve(cq.clone(), wait));
    let shared = Shared {
        a: Arc::new(Mutex::new(a)),
        b: Arc::new(Mutex::new(b)),
        pool,
        remote: region.remote(),
        figures: Arc::clone(figures),
    };
    let end = [End::Drained, End::Aborted, End::Dropped][random.below(3)];
    let steps = 20 + random.below(60);
    let seed = random.below(usize::MAX) as u64;
    runtime.block_on(play(&shared, &cq, (seed, steps), end))?;
    let Shared { a, b, pool, .. } = shared;
    drop(runtime);
    // The last of those that post.
    same(Arc::strong_count(&a), 1, "tasks that are left")?;
    let controls = [control(&a)?, control(&b)?];
    drop((a, b));
    // Of futures that were forgotten.
    for control in controls {
        drop(control.reclaim());
    }
    same(
        pool.stats().in_use(),
        0,
        &format!("buffers in use, {end:?}"),
    )?;
    check(region)
}

fn control(qp: &Mutex<Qp<Rc>>) -> Result<Control> {
    Ok(qp.lock().map_err(|_| "poisoned")?.control())
}

async fn play(shared: &Shared, cq: &Cq, (seed, steps): (u64, usize), end: End) -> Result {
    let mut posting = Vec::new();
    let mut receiving = Vec::new();
    for task in 0..TASKS {
        let random = Random::new(seed ^ task);
        posting.push(tokio::spawn(shared.clone().post(random, steps)));
        let random = Random::new(seed ^ (task + 1) << 32);
        receiving.push(tokio::spawn(shared.clone().receive(random)));
    }
    if let End::Drained = end {
        for task in posting {
            timeout(LIMIT, task).await???;
        }
        timeout(LIMIT, control(&shared.a)?.drained()).await??;
    } else {
        // In the middle of it.
        tokio::time::sleep(Duration::from_millis(seed % 40)).await;
        if let End::Aborted = end {
            for qp in [&shared.a, &shared.b] {
                timeout(LIMIT, control(qp)?.abort()).await??;
            }
        }
        for task in posting {
            task.abort();
            if let Ok(ended) = task.await {
                ended?;
            }
        }
    }
    for task in receiving {
        task.abort();
        // What it has found wrong counts, and that it was stopped does not.
        if let Ok(ended) = task.await {
            ended?;
        }
    }
    let _ = cq.pump();
    Ok(())
}

impl Shared {
    /// Posts operations of all kinds, and lets go of them in all ways.
    async fn post(self, mut random: Random, steps: usize) -> Result {
        for _ in 0..steps {
            let mut buf = self.pool.get(LENGTH).await?;
            let kind = random.below(4);
            // Who gets this buffer too early would spoil it: all bytes are alike.
            buf.set_len(LENGTH)?;
            buf.fill(random.below(256) as u8);
            let lock = || self.a.lock().map_err(|_| "poisoned");
            let ended = match kind {
                0 => {
                    let op = lock()?.read(buf, self.remote);
                    self.fate(op, &mut random).await.map(|(result, _)| result)
                }
                1 => {
                    let word = self.remote.slice(..8)?;
                    // The word is not to be changed: the region is one that is looked at.
                    let op = lock()?.fetch_add(buf, word, 0);
                    self.fate(op, &mut random)
                        .await
                        .map(|(result, _)| result.map(drop))
                }
                2 => {
                    let op = lock()?.write(buf, self.remote);
                    self.fate(op, &mut random).await.map(|(result, _)| result)
                }
                _ => {
                    let op = lock()?.send(buf);
                    self.fate(op, &mut random).await.map(|(result, _)| result)
                }
            };
            match ended {
                None | Some(Ok(()) | Err(OpError::Post(_))) => {}
                Some(Err(_)) => self.figures.count(|figures| &figures.failed),
            }
        }
        Ok(())
    }

    /// What becomes of an operation; its result, if it is awaited to its end.
    async fn fate<K: Kind>(&self, op: Op<K>, random: &mut Random) -> Option<K::Output> {
        let figures = &self.figures;
        match random.below(8) {
            0 | 1 => {
                drop(op);
                figures.count(|figures| &figures.dropped);
                None
            }
            2 | 3 => {
                let micros = Duration::from_micros(random.below(2000) as u64);
                let ended = timeout(micros, op).await;
                if ended.is_err() {
                    figures.count(|figures| &figures.timed_out);
                }
                ended.ok()
            }
            // With one that was refused its buffer would be forgotten for good.
            4 if !op.is_refused() && random.below(8) == 0 => {
                std::mem::forget(op);
                figures.count(|figures| &figures.forgotten);
                None
            }
            _ => {
                let ended = op.await;
                figures.count(|figures| &figures.awaited);
                Some(ended)
            }
        }
    }

    /// Receives messages, lets go of some receives, and looks at what comes.
    async fn receive(self, mut random: Random) -> Result {
        loop {
            let buf = self.pool.get(LENGTH).await?;
            let op = self.b.lock().map_err(|_| "poisoned")?.recv(buf);
            if op.is_refused() {
                // As many are under way as there can be, or the queue pair has failed.
                tokio::time::sleep(Duration::from_millis(1)).await;
                continue;
            }
            let Some((result, buf)) = self.fate(op, &mut random).await else {
                continue;
            };
            if result.is_ok() {
                is_whole(&buf)?;
                self.figures.count(|figures| &figures.received);
            }
        }
    }
}

/// All bytes of a message are alike.
fn is_whole(buf: &Buf) -> Result {
    same(buf.len(), LENGTH, "the length")?;
    match buf.iter().all(|byte| *byte == buf[0]) {
        true => Ok(()),
        false => fail("a message is of several buffers"),
    }
}

/// What was written last is of one buffer, but for a WRITE that was under way at the end. Each packet is.
fn check(region: Mr<Vec<u8>>) -> Result {
    const PACKET: usize = 256;
    let bytes = region.deregister().map_err(|failed| failed.error)?;
    match bytes
        .chunks(PACKET)
        .all(|packet| packet.iter().all(|byte| *byte == packet[0]))
    {
        true => Ok(()),
        false => fail("what was written is of several buffers"),
    }
}
