//! Operations on tokio: a task that pumps, timeouts, panics, many tasks, and a runtime that shuts down.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use libtest_mimic::Trial;
use support::random::{Random, seed_and_steps};
use support::{LIMIT, OwnDevice, Result, fail, same, test, test_without_leaks};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Mutex;
use tokio::time::timeout;
use uverbs::aio::{self, Cq, OpError, Post, Wait};
use uverbs::buf::Pool;
use uverbs::{Caps, ConnectOptions, Rc, Srd};

use crate::ground::{Reliable, Two, only_where_devices_go, over, served};

/// A test with its name.
type Named = (&'static str, fn() -> Result);

pub(crate) fn tests() -> Vec<Trial> {
    let tests: [Named; 10] = [
        ("runtime::a_task_pumps", || {
            over(a_task_pumps::<Rc>, a_task_pumps::<Srd>)
        }),
        ("runtime::a_timeout", a_timeout),
        ("runtime::a_task_that_panics", a_task_that_panics),
        ("runtime::tasks_share_a_queue_pair", || {
            over(
                tasks_share_a_queue_pair::<Rc>,
                tasks_share_a_queue_pair::<Srd>,
            )
        }),
        ("runtime::it_shuts_down", || {
            over(it_shuts_down::<Rc>, it_shuts_down::<Srd>)
        }),
        ("runtime::one_of_two_pumps_goes", one_of_two_pumps_goes),
        ("runtime::without_one", || {
            over(without_one::<Rc>, without_one::<Srd>)
        }),
        ("runtime::what_is_lent_again", || {
            over(what_is_lent_again::<Rc>, what_is_lent_again::<Srd>)
        }),
        ("runtime::who_waits_for_room", who_waits_for_room),
        ("runtime::cancelled_at_random", || {
            over(cancelled_at_random::<Rc>, cancelled_at_random::<Srd>)
        }),
    ];
    let mut tests: Vec<_> = tests
        .map(|(name, run)| test_without_leaks(name, run))
        .into();
    tests.push(test("runtime::the_device_goes", the_device_goes));
    tests.push(test(
        "runtime::the_device_goes_from_a_thread",
        the_device_goes_from_a_thread,
    ));
    tests.push(test(
        "runtime::the_device_goes_from_a_busy_thread",
        the_device_goes_from_a_busy_thread,
    ));
    tests
}

fn runtime() -> Result<Runtime> {
    Ok(Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?)
}

/// Catches a wake-up that is lost between arming and waiting: the pump parks for each message.
fn a_task_pumps<T: Reliable>() -> Result {
    let mut two = Two::<T>::usual()?;
    let runtime = runtime()?;
    for wait in [Wait::Park, Wait::default()] {
        let serving = runtime.spawn(aio::tokio::serve(two.cq.clone(), wait));
        for round in 0..100u32 {
            let received = two.b.recv(two.pool.try_get(256)?);
            let sent = two.send(two.buf(&round.to_le_bytes())?);
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
fn tasks_share_a_queue_pair<T: Reliable>() -> Result {
    T::needs_writes()?;
    let two = Two::<T>::usual()?;
    let region = two.region(64 * 8)?;
    let runtime = runtime()?;
    runtime.spawn(aio::tokio::serve(two.cq.clone(), Wait::default()));
    let Two {
        a, b, way, pool, ..
    } = two;
    let to = b.qpn();
    let a = std::sync::Arc::new(Mutex::new((a, way)));
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
                        let written = {
                            let (a, way) = &mut *a.lock().await;
                            T::write(a, way, to, buf, at, None)
                        };
                        let (result, buf) = written.await;
                        result?;
                        let read = {
                            let (a, way) = &mut *a.lock().await;
                            T::read(a, way, to, buf, at)
                        };
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
fn it_shuts_down<T: Reliable>() -> Result {
    let mut two = Two::<T>::usual()?;
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
        .map(|_| Ok(two.send(two.buf(b"late")?)))
        .collect::<Result<_>>()?;
    two.run(async {
        for send in sends {
            send.await.0?;
        }
        received.await.0.map(drop)
    })??;
    two.nothing_is_missing()
}

/// Catches a pump that has taken the event of all, and goes without arming the queue again.
fn one_of_two_pumps_goes() -> Result {
    let mut two = Two::new()?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    // Either may be the one that takes the event.
    for which in 0..2 {
        let mut pumps =
            [(), ()].map(|()| runtime.spawn(aio::tokio::serve(two.cq.clone(), Wait::Park)));
        let first = two.b.recv(two.pool.try_get(256)?);
        let second = two.b.recv(two.pool.try_get(256)?);
        let abort = pumps[which].abort_handle();
        let task = runtime.spawn(async move {
            let received = first.await;
            abort.abort();
            received.0.map(drop)
        });
        // All three sleep when this has had its turn.
        let short = Duration::from_millis(2);
        let late = two.a.send(two.buf(b"first")?);
        runtime.block_on(async { timeout(short, std::future::pending::<()>()).await.is_err() });
        runtime.block_on(async { timeout(LIMIT, task).await })???;
        let sent = two.a.send(two.buf(b"second")?);
        runtime.block_on(async {
            let both = async { (late.await.0, sent.await.0, second.await.0) };
            let (late, sent, received) = timeout(LIMIT, both).await?;
            late?;
            sent?;
            received?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
        })?;
        for pump in &mut pumps {
            pump.abort();
            let _ = runtime.block_on(pump);
        }
    }
    drop(runtime);
    two.nothing_is_missing()
}

/// Catches what was lent once, came back, and does not wake for another file of the same number.
fn what_is_lent_again<T: Reliable>() -> Result {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let mut watch = aio::tokio::Watch::new();
    for _ in 0..3 {
        let mut two = Two::<T>::usual()?;
        runtime.block_on(async {
            let cq = two.cq.clone();
            let message = two.message_after(tokio::time::sleep(Duration::from_millis(20)));
            served(&cq, &mut watch, timeout(LIMIT, message)).await??
        })?;
    }
    Ok(())
}

/// Catches a panic where there is no runtime.
fn without_one<T: Reliable>() -> Result {
    let two = Two::<T>::usual()?;
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
    let caps = Caps {
        max_inline_data: T::INLINE,
        ..Caps::default()
    };
    let refused = two.cq.create_qp::<T>(&two.pd, caps);
    let refused = refused.err().ok_or("one more queue pair")?;
    support::says(&refused, &["nobody takes completions any more"])?;
    let Two { a, b, pool, .. } = two;
    drop((a, b));
    same(pool.stats().in_use(), 0, "and comes back with its end")
}

/// Catches somebody who waits for ever, for room or for the device, when nobody takes completions any more.
fn who_waits_for_room() -> Result {
    let caps = Caps {
        max_send_wr: 4,
        ..Caps::default()
    };
    let two = Two::with(caps)?;
    let Two { a, b, cq, pool, .. } = two;
    let (control, other) = (a.control(), cq.clone());
    let (mut sender, receiver) = a.split();
    // There is no receive for them.
    let sends: Vec<_> = (0..4)
        .map(|_| Ok(sender.send(crate::ground::filled(&pool, b"nobody")?)))
        .collect::<Result<_>>()?;
    let runtime = runtime()?;
    let waiting = runtime.spawn(async move {
        let waited = timeout(LIMIT, sender.room()).await.is_ok();
        (sender, waited)
    });
    let draining = runtime.spawn(async move { timeout(LIMIT, control.drained()).await });
    let failed = other.block_on(aio::tokio::serve(cq, Wait::Park))?;
    support::says(&failed, &["completion channel"])?;
    let (sender, waited) = runtime.block_on(waiting)?;
    same(waited, true, "whether who waits for room is told")?;
    let drained = runtime.block_on(draining)??;
    same(drained.is_err(), true, "nobody takes what is left")?;
    drop((sender, receiver, sends, b));
    same(pool.stats().in_use(), 0, "buffers in use")
}

/// Catches a task that takes completions, and is not told that its device has gone.
fn the_device_goes() -> Result {
    only_where_devices_go()?;
    [Wait::Park, Wait::Spin(Duration::MAX)]
        .into_iter()
        .try_for_each(the_device_goes_from)
}

fn the_device_goes_from(wait: Wait) -> Result {
    let device = OwnDevice::new()?;
    let context = device.open()?;
    let pd = context.alloc_pd()?;
    let pool = Pool::on(&pd).build()?;
    let cq = Cq::new(&context, 256)?;
    let mut qp = cq.create_qp::<Rc>(&pd, Caps::default())?;
    qp.init(&ConnectOptions::default())?;
    let mut received = qp.recv(pool.try_get(256)?);
    let dropped = qp.recv(pool.try_get(256)?);
    // One thread: the pump sleeps when the future below has had its turn.
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let serving = runtime.spawn(aio::tokio::serve(cq.clone(), wait));
    let short = Duration::from_millis(2);
    let early = runtime.block_on(async { timeout(short, &mut received).await.is_ok() });
    same(early, false, "nothing was sent")?;
    drop(dropped);
    device.remove()?;
    runtime.block_on(async {
        let (result, _) = timeout(LIMIT, received).await?;
        same(result.err(), Some(OpError::Broken), "the receive")?;
        println!("{}", timeout(LIMIT, serving).await??);
        let drained = timeout(LIMIT, qp.control().drained()).await?;
        same(drained.is_err(), true, "what is left is not waited for")
    })?;
    drop(qp);
    same(pool.stats().in_use(), 0, "buffers in use")
}

/// Catches a thread that alone takes completions, and does not tell others that the device has gone.
fn the_device_goes_from_a_thread() -> Result {
    only_where_devices_go()?;
    [Wait::Park, Wait::Spin(Duration::MAX)]
        .into_iter()
        .try_for_each(the_device_goes_from_under)
}

fn the_device_goes_from_under(wait: Wait) -> Result {
    let device = OwnDevice::new()?;
    let context = device.open()?;
    let pd = context.alloc_pd()?;
    let pool = Pool::on(&pd).build()?;
    let cq = Cq::new(&context, 256)?;
    let mut qp = cq.create_qp::<Rc>(&pd, Caps::default())?;
    qp.init(&ConnectOptions::default())?;
    let (received, other) = (qp.recv(pool.try_get(256)?), qp.recv(pool.try_get(256)?));
    let runtime = runtime()?;
    let pumping = {
        let cq = cq.clone();
        std::thread::spawn(move || cq.block_on_with(other, wait).map(drop))
    };
    let waiting = runtime.spawn(async move { timeout(LIMIT, received).await });
    device.remove()?;
    let (result, _) = runtime.block_on(waiting)??;
    same(result.err(), Some(OpError::Broken), "the receive")?;
    // Its own receive may be told before the thread looks itself.
    let ended = pumping.join().map_err(|_| "a panic")?;
    println!("{ended:?}");
    drop(qp);
    same(pool.stats().in_use(), 0, "buffers in use")
}

/// Catches a thread that never learns that the device has gone, since its future wakes itself and lets it not
/// sleep.
fn the_device_goes_from_a_busy_thread() -> Result {
    only_where_devices_go()?;
    let device = OwnDevice::new()?;
    let cq = Cq::new(&device.open()?, 256)?;
    let pumping = std::thread::spawn(move || {
        let busy = poll_fn(|cx| {
            cx.waker().wake_by_ref();
            Poll::<()>::Pending
        });
        cq.block_on_with(busy, Wait::Park)
    });
    device.remove()?;
    support::until("the thread is told", || {
        Ok(pumping.is_finished().then_some(()))
    })?;
    let ended = pumping.join().map_err(|_| "a panic")?;
    same(ended.is_err(), true, "how it ended")
}

/// Drops, forgets and awaits operations in random order, from many tasks: every buffer is accounted for.
fn cancelled_at_random<T: Reliable>() -> Result {
    T::needs_writes()?;
    let two = Two::<T>::usual()?;
    let region = two.region(4096)?;
    let runtime = runtime()?;
    runtime.spawn(aio::tokio::serve(two.cq.clone(), Wait::default()));
    let Two {
        a,
        b,
        way,
        cq,
        pool,
        ..
    } = two;
    let (control, to) = (a.control(), b.qpn());
    let a = std::sync::Arc::new(Mutex::new((a, way)));
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
                        let op = {
                            let (a, way) = &mut *a.lock().await;
                            T::write(a, way, to, buf, remote, None)
                        };
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
