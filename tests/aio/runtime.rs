//! Operations on tokio: a task that pumps, timeouts, panics, many tasks, and a runtime that shuts down.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use libtest_mimic::Trial;
use support::random::{Random, seed_and_steps};
use support::{LIMIT, Result, fail, same, test_without_leaks};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Mutex;
use tokio::time::timeout;
use uverbs::aio::{self, OpError, Post, Wait};

use crate::ground::Two;

/// A test with its name.
type Named = (&'static str, fn() -> Result);

pub(crate) fn tests() -> Vec<Trial> {
    let tests: [Named; 7] = [
        ("runtime::a_task_pumps", a_task_pumps),
        ("runtime::a_timeout", a_timeout),
        ("runtime::a_task_that_panics", a_task_that_panics),
        (
            "runtime::tasks_share_a_queue_pair",
            tasks_share_a_queue_pair,
        ),
        ("runtime::it_shuts_down", it_shuts_down),
        ("runtime::without_one", without_one),
        ("runtime::cancelled_at_random", cancelled_at_random),
    ];
    tests
        .map(|(name, run)| test_without_leaks(name, run))
        .into()
}

fn runtime() -> Result<Runtime> {
    Ok(Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?)
}

/// Catches a wake-up that is lost between arming and waiting: the pump parks for each message.
fn a_task_pumps() -> Result {
    let mut two = Two::new()?;
    let runtime = runtime()?;
    for wait in [Wait::Park, Wait::default()] {
        let serving = runtime.spawn(aio::tokio::serve(two.cq.clone(), wait));
        for round in 0..100u32 {
            let received = two.b.recv(two.pool.try_get(256)?);
            let sent = two.a.send(two.buf(&round.to_le_bytes())?);
            runtime.block_on(async {
                let both = async { (sent.await.0, received.await) };
                let (sent, (received, buf)) = timeout(LIMIT, both).await?;
                sent?;
                received?;
                same(&*buf, &round.to_le_bytes()[..], "the message")
            })?;
        }
        same(serving.is_finished(), false, "the pump goes on")?;
        serving.abort();
        let _ = runtime.block_on(serving);
    }
    drop(runtime);
    two.nothing_is_missing()
}

/// Catches a timeout that gives memory back which the device still writes to, and a receive that is lost.
fn a_timeout() -> Result {
    let mut two = Two::new()?;
    let runtime = runtime()?;
    runtime.spawn(aio::tokio::serve(two.cq.clone(), Wait::default()));
    let short = Duration::from_millis(2);
    // Dropped with its buffer in flight: the message of below goes there.
    let late = two.b.recv(two.pool.try_get(256)?);
    let timed_out = runtime.block_on(async { timeout(short, late).await.is_err() });
    same(timed_out, true, "nothing was sent")?;
    same(two.pool.stats().in_use(), 1, "the buffer is in flight")?;
    // Waited for again: nothing is lost.
    let mut waiting = two.b.recv(two.pool.try_get(256)?);
    let timed_out = runtime.block_on(async { timeout(short, &mut waiting).await.is_err() });
    same(timed_out, true, "nothing was sent yet")?;
    let sends = [
        two.a.send(two.buf(b"first")?),
        two.a.send(two.buf(b"second")?),
    ];
    runtime.block_on(async {
        for send in sends {
            send.await.0?;
        }
        let (result, buf) = timeout(LIMIT, waiting).await?;
        result?;
        same(&*buf, &b"second"[..], "the message")
    })?;
    let control = two.b.control();
    runtime.block_on(control.drained())?;
    drop(runtime);
    two.nothing_is_missing()
}

/// Catches a task whose panic takes a buffer along, or the others.
fn a_task_that_panics() -> Result {
    let mut two = Two::new()?;
    let runtime = runtime()?;
    runtime.spawn(aio::tokio::serve(two.cq.clone(), Wait::default()));
    let received = two.b.recv(two.pool.try_get(256)?);
    let other = two.b.recv(two.pool.try_get(256)?);
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let panicked = runtime.block_on(async {
        tokio::spawn(async move {
            let _received = received;
            panic!("on purpose");
        })
        .await
    });
    std::panic::set_hook(hook);
    same(
        panicked.is_err_and(|error| error.is_panic()),
        true,
        "the panic",
    )?;
    let sends = [
        two.a.send(two.buf(b"first")?),
        two.a.send(two.buf(b"second")?),
    ];
    runtime.block_on(async {
        for send in sends {
            send.await.0?;
        }
        let (result, buf) = timeout(LIMIT, other).await?;
        result?;
        same(&*buf, &b"second"[..], "the message")
    })?;
    runtime.block_on(two.b.control().drained())?;
    drop(runtime);
    two.nothing_is_missing()
}

/// Catches tasks that get each other's results: all write to places of their own with one queue pair.
fn tasks_share_a_queue_pair() -> Result {
    let two = Two::new()?;
    let region = two.region(64 * 8)?;
    let runtime = runtime()?;
    runtime.spawn(aio::tokio::serve(two.cq.clone(), Wait::default()));
    let Two { a, b, pool, .. } = two;
    let a = std::sync::Arc::new(Mutex::new(a));
    let remote = region.remote();
    runtime.block_on(async {
        let tasks: Vec<_> = (0..32u64)
            .map(|task| {
                let (a, pool) = (std::sync::Arc::clone(&a), pool.clone());
                tokio::spawn(async move {
                    let at = remote.slot(task as usize, 8)?;
                    for round in 0..20u64 {
                        let mut buf = pool.get(8).await?;
                        buf.extend_from_slice(&(task << 32 | round).to_le_bytes())?;
                        // Awaited outside of the lock.
                        let written = a.lock().await.write(buf, at);
                        let (result, buf) = written.await;
                        result?;
                        let read = a.lock().await.read(buf, at);
                        let (result, buf) = read.await;
                        result?;
                        same(&*buf, &(task << 32 | round).to_le_bytes()[..], "its own")?;
                    }
                    Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
                })
            })
            .collect();
        for task in tasks {
            timeout(LIMIT, task).await???;
        }
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    })?;
    drop((a, b, runtime));
    same(pool.stats().in_use(), 0, "buffers in use")
}

/// Catches a shutdown that hangs, or that gives buffers back too early or never.
fn it_shuts_down() -> Result {
    let mut two = Two::new()?;
    let runtime = runtime()?;
    runtime.spawn(aio::tokio::serve(two.cq.clone(), Wait::default()));
    for _ in 0..8 {
        let received = two.b.recv(two.pool.try_get(256)?);
        runtime.spawn(async move {
            let _ = received.await;
        });
    }
    runtime.shutdown_timeout(LIMIT);
    same(two.pool.stats().in_use(), 8, "the device has them")?;
    // Another way to wait takes over.
    let received = two.b.recv(two.pool.try_get(256)?);
    let sends: Vec<_> = (0..9)
        .map(|_| Ok(two.a.send(two.buf(b"late")?)))
        .collect::<Result<_>>()?;
    two.run(async {
        for send in sends {
            send.await.0?;
        }
        received.await.0.map(drop)
    })??;
    two.nothing_is_missing()
}

/// Catches a panic where there is no runtime.
fn without_one() -> Result {
    let two = Two::new()?;
    let failed = two.run(aio::tokio::serve(two.cq.clone(), Wait::Park))?;
    support::says(&failed, &["completion channel"])?;
    // Nobody pumps any more, and who waits is told.
    let mut two = two;
    let mut received = two.b.recv(two.pool.try_get(256)?);
    let mut cx = Context::from_waker(Waker::noop());
    match Pin::new(&mut received).poll(&mut cx) {
        Poll::Ready((Err(OpError::Broken), buf)) => same(buf.capacity(), 0, "the buffer")?,
        other => return fail(format!("{other:?}")),
    }
    same(two.pool.stats().in_use(), 1, "it stays with the queue pair")?;
    let Two { a, b, pool, .. } = two;
    drop((a, b));
    same(pool.stats().in_use(), 0, "and comes back with its end")
}

/// Drops, forgets and awaits operations in random order, from many tasks: every buffer is accounted for.
fn cancelled_at_random() -> Result {
    let two = Two::new()?;
    let region = two.region(4096)?;
    let runtime = runtime()?;
    runtime.spawn(aio::tokio::serve(two.cq.clone(), Wait::default()));
    let Two { a, b, cq, pool, .. } = two;
    let control = a.control();
    let a = std::sync::Arc::new(Mutex::new(a));
    let remote = region.remote();
    let (seed, steps) = seed_and_steps(100)?;
    runtime.block_on(async {
        let tasks: Vec<_> = (0..8u64)
            .map(|task| {
                let (a, pool) = (std::sync::Arc::clone(&a), pool.clone());
                let mut random = Random::new(seed ^ task);
                tokio::spawn(async move {
                    for _ in 0..steps {
                        let mut buf = pool.get(1000).await?;
                        let whole = buf.capacity();
                        buf.set_len(whole)?;
                        let op = a.lock().await.write(buf, remote);
                        match random.below(3) {
                            0 => drop(op),
                            1 => {
                                let micros = Duration::from_micros(random.below(200) as u64);
                                let _ = timeout(micros, op).await;
                            }
                            _ => match op.await.0 {
                                Ok(()) | Err(OpError::Post(_)) => {}
                                Err(error) => return fail(error.to_string()),
                            },
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        for task in tasks {
            timeout(LIMIT, task).await???;
        }
        timeout(LIMIT, control.drained()).await??;
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    })?;
    same(pool.stats().in_use(), 0, "buffers in use")?;
    drop((a, b, runtime, cq));
    Ok(())
}
