//! What becomes of operations whose futures are dropped, forgotten or panic, and of those whose queue pair
//! goes.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Barrier;
use std::task::{Context, Poll, Waker};

use libtest_mimic::Trial;
use support::{Device, QKEY, Result, device, fail, pattern, same, test_without_leaks};
use uverbs::aio::{Cq, OpError, Qp};
use uverbs::buf::{Buf, Pool};
use uverbs::transport::Transport;
use uverbs::{Caps, ConnectOptions, PostError, QpState, Rc, Srd, Uc, Ud};

use crate::ground::{Reliable, Side, Two, over};

/// A test with its name.
type Named = (&'static str, fn() -> Result);

pub(crate) fn tests() -> Vec<Trial> {
    macro_rules! tests {
        ($($run:ident),*) => {
            [$((concat!("cancel::", stringify!($run)), || over($run::<Rc>, $run::<Srd>))),*]
        };
    }
    let tests: [Named; 8] = tests![
        a_dropped_receive_keeps_its_buffer,
        dropped_at_any_time,
        abort_gives_everything_back,
        abort_from_elsewhere,
        forgotten,
        a_panic,
        the_queue_pair_goes_first,
        halves_go_one_by_one
    ];
    let others: [Named; 2] = [
        ("cancel::failed_while_it_goes", failed_while_it_goes),
        (
            "cancel::abort_without_connections",
            abort_without_connections,
        ),
    ];
    tests
        .into_iter()
        .chain(others)
        .map(|(name, run)| test_without_leaks(name, run))
        .collect()
}

/// Catches the fault that others have: a buffer that goes back while the device still writes to it.
fn a_dropped_receive_keeps_its_buffer<T: Reliable>() -> Result {
    let mut two = Two::<T>::usual()?;
    drop(two.b.recv(two.pool.try_get(256)?));
    same(two.pool.stats().in_use(), 1, "it is in flight")?;
    same(two.b.control().in_flight(), 1, "in flight")?;
    // Nobody else may get it before the message has come: each that the pool gives stays as it is filled.
    let mut others = (0..31)
        .map(|_| two.pool.try_get(256))
        .collect::<std::result::Result<Vec<Buf>, _>>()?;
    for other in &mut others {
        other.whole_mut().fill(0xaa);
    }
    let sent = two.send(two.buf(&pattern(1, 200))?);
    two.run(sent)?.0?;
    let drained = two.b.control();
    two.run(drained.drained())??;
    for other in &mut others {
        same(
            other.whole_mut().iter().all(|byte| *byte == 0xaa),
            true,
            "another buffer",
        )?;
    }
    drop(others);
    two.nothing_is_missing()
}

/// Catches slots that get lost: futures are dropped before, while and after their completions come.
fn dropped_at_any_time<T: Reliable>() -> Result {
    let mut two = Two::<T>::usual()?;
    let mut cx = Context::from_waker(Waker::noop());
    for round in 0..600u32 {
        let mut received = two.b.recv(two.pool.try_get(256)?);
        let mut sent = two.send(two.buf(&round.to_le_bytes())?);
        same(
            sent.is_refused() || received.is_refused(),
            false,
            "a free slot",
        )?;
        match round % 4 {
            0 => drop((sent, received)),
            1 => {
                let _ = Pin::new(&mut sent).poll(&mut cx);
                let _ = Pin::new(&mut received).poll(&mut cx);
                drop((sent, received));
            }
            2 => {
                two.run(sent)?.0?;
                drop(received);
            }
            _ => {
                drop(sent);
                let (result, buf) = two.run(received)?;
                result?;
                same(&*buf, &round.to_le_bytes()[..], "the message of this round")?;
            }
        }
        let (a, b) = (two.a.control(), two.b.control());
        two.run(async {
            a.drained().await?;
            b.drained().await
        })??;
    }
    two.nothing_is_missing()
}

/// Catches an abort that forgets a buffer, or that does not end, and a receive behind it that never ends.
fn abort_gives_everything_back<T: Reliable>() -> Result {
    let Two { b, cq, pool, .. } = &mut Two::<T>::usual()?;
    gives_everything_back(b, cq, pool)
}

/// The same where each datagram, or each connection that answers nothing, stands for itself: the queue pair
/// does not fail with a request.
fn abort_without_connections() -> Result {
    let Side { cq, pool, pd } = &Side::new()?;
    let options = ConnectOptions::default();
    let caps = Caps {
        max_inline_data: 0,
        ..Caps::default()
    };
    let mut ud = cq.create_qp::<Ud>(pd, caps)?;
    ud.activate(QKEY, &options)?;
    gives_everything_back(&mut ud, cq, pool)?;
    // An EFA has no other.
    if device() != Device::Efa {
        let mut uc = cq.create_qp::<Uc>(pd, caps)?;
        uc.init(&options)?;
        gives_everything_back(&mut uc, cq, pool)?;
    }
    Ok(())
}

/// Aborts a queue pair with receives, and posts some more.
fn gives_everything_back<T: Transport>(qp: &mut Qp<T>, cq: &Cq, pool: &Pool) -> Result {
    let receives: Vec<_> = (0..32)
        .map(|_| Ok(qp.recv(pool.try_get(256)?)))
        .collect::<Result<_>>()?;
    for _ in 0..16 {
        drop(qp.recv(pool.try_get(256)?));
    }
    let control = qp.control();
    same(control.in_flight(), 48, "in flight")?;
    cq.block_on(qp.abort())??;
    same(control.in_flight(), 0, "in flight after the abort")?;
    same(pool.stats().in_use(), 32, "those whose futures are there")?;
    cq.block_on(async {
        for receive in receives {
            let (result, buf) = receive.await;
            match result {
                Err(error) if error.is_flushed() => {}
                other => return fail(format!("{other:?}")),
            }
            same(buf.capacity(), 256, "the buffer")?;
        }
        Ok(())
    })??;
    drop(qp.recv(pool.try_get(256)?));
    let refused = qp.recv(pool.try_get(256)?);
    let (result, _) = cq.block_on(refused)?;
    let state = QpState::ERR;
    let error = OpError::Post(PostError::WrongState { state });
    match result {
        // By whoever comes to know it first: this side, or the device, which flushes it.
        Err(other) if other == error || other.is_flushed() => {}
        other => return fail(format!("a receive behind it: {other:?}")),
    }
    cq.block_on(control.drained())??;
    same(pool.stats().in_use(), 0, "buffers in use")
}

/// Catches an abort that waits for somebody else to pump.
fn abort_from_elsewhere<T: Reliable>() -> Result {
    let mut two = Two::<T>::usual()?;
    let receive = two.b.recv(two.pool.try_get(256)?);
    let control = two.b.control();
    std::thread::scope(|scope| {
        let cq = &two.cq;
        let waiting = scope.spawn(move || cq.block_on(receive));
        let aborting = scope.spawn(move || cq.block_on(control.abort()));
        aborting.join().map_err(|_| "a panic")???;
        let (result, buf) = waiting.join().map_err(|_| "a panic")??;
        same(
            result.is_err_and(|error| error.is_flushed()),
            true,
            "the receive",
        )?;
        same(buf.capacity(), 256, "its buffer")
    })?;
    two.nothing_is_missing()
}

/// Catches buffers that are lost with a queue pair that somebody else still asks something of when it is
/// dropped, and a wait for them that does not end.
fn failed_while_it_goes() -> Result {
    let side = Side::new()?;
    for _ in 0..20 {
        let mut qp = side.qp::<Rc>()?;
        qp.init(&ConnectOptions::default())?;
        let mut received = qp.recv(side.pool.try_get(256)?);
        drop(qp.recv(side.pool.try_get(256)?));
        let control = qp.control();
        let together = Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 1..4 {
                scope.spawn(|| {
                    together.wait();
                    // So that it is gone in the end: as long as one asks, it stays.
                    for _ in 0..8 {
                        let _ = control.fail();
                    }
                });
            }
            together.wait();
            drop(qp);
        });
        side.cq.pump()?;
        same(control.in_flight(), 0, "in flight")?;
        let mut cx = Context::from_waker(Waker::noop());
        match Pin::new(&mut received).poll(&mut cx) {
            Poll::Ready((Err(OpError::Gone), _)) => {}
            Poll::Ready((Err(error), _)) if error.is_flushed() => {}
            other => return fail(format!("{other:?}")),
        }
        drop(received);
        same(side.pool.stats().in_use(), 0, "buffers in use")?;
    }
    Ok(())
}

/// Catches a forgotten future that hangs an abort, and buffers that nobody can get at any more.
fn forgotten<T: Reliable>() -> Result {
    let mut two = Two::<T>::usual()?;
    mem::forget(two.b.recv(two.pool.try_get(256)?));
    let mut polled = two.b.recv(two.pool.try_get(256)?);
    let mut cx = Context::from_waker(Waker::noop());
    same(
        Pin::new(&mut polled).poll(&mut cx).is_pending(),
        true,
        "nothing came",
    )?;
    mem::forget(polled);
    let alive = two.b.recv(two.pool.try_get(256)?);
    let control = two.b.control();
    two.run(control.abort())??;
    let back = control.reclaim();
    same(back.len(), 3, "buffers that came back")?;
    let (result, buf) = two.run(alive)?;
    same(result.err(), Some(OpError::Reclaimed), "one that was alive")?;
    same(buf.capacity(), 0, "its buffer")?;
    drop(back);
    two.nothing_is_missing()
}

/// Catches a panic that keeps a lock or a buffer.
fn a_panic<T: Reliable>() -> Result {
    let mut two = Two::<T>::usual()?;
    let received = two.b.recv(two.pool.try_get(256)?);
    let sent = two.send(two.buf(b"x")?);
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        two.cq.block_on(async {
            let _ = sent.await;
            let _received = received;
            panic!("on purpose")
        })
    }));
    std::panic::set_hook(hook);
    same(
        panicked
            .map(|never: uverbs::Result<()>| drop(never))
            .is_err(),
        true,
        "the panic",
    )?;
    let (a, b) = (two.a.control(), two.b.control());
    two.run(async {
        a.drained().await?;
        b.drained().await
    })??;
    two.nothing_is_missing()?;
    let received = two.b.recv(two.pool.try_get(256)?);
    let sent = two.send(two.buf(b"y")?);
    two.run(async {
        sent.await.0?;
        received.await.0
    })??;
    two.nothing_is_missing()
}

/// What is left of an operation whose queue pair has gone: an EFA completes it before.
fn went_with_its_queue_pair(error: Option<OpError>) -> Result {
    match error {
        Some(OpError::Gone) if device() != Device::Efa => Ok(()),
        Some(error) if error.is_flushed() && device() == Device::Efa => Ok(()),
        other => fail(format!("{other:?}")),
    }
}

/// Catches operations that wait for a queue pair that is no more.
fn the_queue_pair_goes_first<T: Reliable>() -> Result {
    let Two {
        a, mut b, cq, pool, ..
    } = Two::<T>::usual()?;
    let received = b.recv(pool.try_get(256)?);
    drop(b.recv(pool.try_get(256)?));
    let control = b.control();
    drop(b);
    same(
        pool.stats().in_use(),
        1,
        "that of the dropped future is back",
    )?;
    let (result, buf) = cq.block_on(received)?;
    went_with_its_queue_pair(result.err())?;
    same(buf.capacity(), 256, "its buffer")?;
    same(control.in_flight(), 0, "in flight")?;
    cq.block_on(control.abort())??;
    drop((a, buf));
    same(pool.stats().in_use(), 0, "buffers in use")
}

fn halves_go_one_by_one<T: Reliable>() -> Result {
    let Two { a, b, cq, pool, .. } = Two::<T>::usual()?;
    let (sender, mut receiver) = b.split();
    let received = receiver.recv(pool.try_get(256)?);
    drop(sender);
    let mut received = received;
    let mut cx = Context::from_waker(Waker::noop());
    same(
        Pin::new(&mut received).poll(&mut cx).is_pending(),
        true,
        "the other half is there",
    )?;
    drop(receiver);
    match Pin::new(&mut received).poll(&mut cx) {
        Poll::Ready((result, buf)) => {
            went_with_its_queue_pair(result.err())?;
            same(buf.capacity(), 256, "the buffer")?;
        }
        Poll::Pending => return fail("it waits"),
    }
    drop((a, received));
    let _ = cq.pump()?;
    same(pool.stats().in_use(), 0, "buffers in use")
}
