//! Operations that are awaited: each kind, several at a time, in batches, and what they cost.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use libtest_mimic::Trial;
use support::{Result, fail, open, pattern, same, says, test_without_leaks};
use uverbs::aio::{Cq, Op, OpError, Post, Receive, Wait};
use uverbs::buf::Pool;
use uverbs::{Caps, PostError, Rc, Srd, WcStatus};

use crate::count::allocations;
use crate::ground::{Reliable, Two, Woken, connect, over};

/// A test with its name.
type Named = (&'static str, fn() -> Result);

pub(crate) fn tests() -> Vec<Trial> {
    let tests: [Named; 15] = [
        ("ops::messages", messages),
        ("ops::one_sided", || over(one_sided::<Rc>, one_sided::<Srd>)),
        ("ops::atomics", atomics),
        ("ops::immediate_data", || {
            over(immediate_data::<Rc>, immediate_data::<Srd>)
        }),
        ("ops::batches", batches),
        ("ops::forgotten_batches", forgotten_batches),
        ("ops::failures_give_back", failures_give_back),
        ("ops::many_at_a_time", || {
            over(many_at_a_time::<Rc>, many_at_a_time::<Srd>)
        }),
        ("ops::ten_thousand_in_flight", ten_thousand_in_flight),
        ("ops::a_stream_of_messages", || {
            over(a_stream_of_messages::<Rc>, a_stream_of_messages::<Srd>)
        }),
        ("ops::a_stream_whose_pool_was_empty", || {
            over(
                a_stream_whose_pool_was_empty::<Rc>,
                a_stream_whose_pool_was_empty::<Srd>,
            )
        }),
        ("ops::halves_in_two_threads", || {
            over(halves_in_two_threads::<Rc>, halves_in_two_threads::<Srd>)
        }),
        ("ops::ways_to_wait", || {
            over(ways_to_wait::<Rc>, ways_to_wait::<Srd>)
        }),
        ("ops::nothing_is_allocated", || {
            over(nothing_is_allocated::<Rc>, nothing_is_allocated::<Srd>)
        }),
        ("ops::connected_once", connected_once),
    ];
    tests
        .map(|(name, run)| test_without_leaks(name, run))
        .into()
}

/// Catches bytes that get lost, and lengths that are not the message's.
fn messages() -> Result {
    let mut two = Two::new()?;
    let received = two.b.recv(two.pool.try_get(256)?);
    let empty = two.b.recv(two.pool.try_get(256)?);
    let sent = two.a.send(two.buf(b"hello")?);
    let nothing = two.a.send(two.pool.try_get(1)?);
    two.run(async {
        let (result, buf) = sent.await;
        result?;
        same(&*buf, &b"hello"[..], "what was sent")?;
        let (result, buf) = received.await;
        let result = result?;
        same(
            (result.len, result.imm, result.is_message),
            (5, None, true),
            "the receive",
        )?;
        same(&*buf, &b"hello"[..], "what was received")?;
        nothing.await.0?;
        let (result, buf) = empty.await;
        same((result?.len, buf.len()), (0, 0), "an empty message")
    })??;
    let frozen = two.buf(b"the same to both")?.freeze();
    let receives = [
        two.b.recv(two.pool.try_get(256)?),
        two.b.recv(two.pool.try_get(256)?),
    ];
    let sends = [two.a.send(frozen.clone()), two.a.send(frozen.slice(4..8))];
    two.run(async {
        for send in sends {
            send.await.0?;
        }
        let [first, second] = receives;
        same(&*first.await.1, &b"the same to both"[..], "the whole")?;
        same(&*second.await.1, &b"same"[..], "a part")
    })??;
    drop(frozen);
    two.nothing_is_missing()
}

/// Catches bytes at the wrong place, and a READ whose length is not what it read.
fn one_sided<T: Reliable>() -> Result {
    T::needs_writes()?;
    let mut two = Two::<T>::usual()?;
    let region = two.region(4096)?;
    let bytes = pattern(3, 1000);
    let buf = two.buf(&bytes)?;
    let written = two.write(buf, region.remote().slice(100..1100)?);
    two.run(written)?.0?;
    let mut there = vec![0; 1000];
    region.read_at(100, &mut there)?;
    same(there, bytes.clone(), "what was written")?;
    let buf = two.pool.try_get(4096)?;
    let read = two.read(buf, region.remote().slice(600..1100)?);
    let (result, buf) = two.run(read)?;
    result?;
    same(&*buf, &bytes[500..], "what was read")?;
    drop(buf);
    // A READ that its buffer does not hold is refused here.
    let buf = two.pool.try_get(256)?;
    let read = two.read(buf, region.remote());
    let (result, buf) = two.run(read)?;
    says(
        &result.err().ok_or("it was posted")?,
        &["not posted", "4096", "256"],
    )?;
    same(buf.capacity(), 256, "the buffer")?;
    drop(buf);
    two.nothing_is_missing()
}

fn atomics() -> Result {
    let mut two = Two::new()?;
    let mut region = two.region(64)?;
    region.store_u64(8, 40)?;
    let word = region.remote().slice(8..16)?;
    let added = two.a.fetch_add(two.pool.try_get(8)?, word, 2);
    let (old, buf) = two.run(added)?;
    same(old?, 40, "before the addition")?;
    let swapped = two.a.compare_swap(buf, word, 42, 7);
    let (old, buf) = two.run(swapped)?;
    same(old?, 42, "before the swap")?;
    same(region.load_u64(8)?, 7, "after it")?;
    let crooked = two.a.fetch_add(buf, region.remote().slice(4..12)?, 1);
    let (refused, _) = two.run(crooked)?;
    says(
        &refused.err().ok_or("it was posted")?,
        &["not posted", "atomic"],
    )
}

/// Catches numbers that get lost, and a WRITE that is told as a message.
fn immediate_data<T: Reliable>() -> Result {
    T::needs_writes()?;
    let mut two = Two::<T>::usual()?;
    let region = two.region(64)?;
    let receives = [
        two.b.recv(two.pool.try_get(256)?),
        two.b.recv(two.pool.try_get(256)?),
    ];
    let (seven, eight) = (two.buf(b"seven")?, two.buf(b"eight")?);
    let (to, there) = (two.b.qpn(), region.remote());
    let sent = T::send(&mut two.a, &two.way, to, seven, Some(7));
    let written = T::write(&mut two.a, &two.way, to, eight, there, Some(8));
    let mut told = two.run(async {
        sent.await.0?;
        written.await.0?;
        let mut told = Vec::new();
        for receive in receives {
            let (result, buf) = receive.await;
            let result = result?;
            told.push((result.imm, result.is_message, buf.len()));
        }
        Result::Ok(told)
    })??;
    if !T::IS_ORDERED {
        told.sort();
    }
    let expected = [(Some(7), true, 5), (Some(8), false, 0)];
    same(&told[..], &expected[..], "the message and the WRITE")?;
    let mut there = [0; 5];
    region.read_at(0, &mut there)?;
    same(&there, b"eight", "what was written")?;
    two.nothing_is_missing()
}

/// Catches a batch that posts before it is rung, or that keeps what it did not post.
fn batches() -> Result {
    let mut two = Two::new()?;
    let region = two.region(64)?;
    let remote = region.remote();
    let bufs = [two.buf(b"one")?, two.buf(b"two")?];
    let mut batch = two.a.batch();
    let ops = bufs.map(|buf| batch.write(buf, remote));
    drop(batch);
    two.run(async {
        for op in ops {
            let (result, buf) = op.await;
            same(result, Err(OpError::NotRung), "not rung")?;
            same(buf.len(), 3, "the buffer")?;
        }
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    })??;
    let mut there = [9; 3];
    region.read_at(0, &mut there)?;
    same(there, [0; 3], "nothing was written")?;
    let bufs = [two.buf(b"one")?, two.buf(b"TWO")?];
    let mut batch = two.a.batch();
    let [first, second] = bufs.map(|buf| batch.write(buf, remote));
    same(batch.ring()?, 2, "operations")?;
    two.run(async {
        first.await.0?;
        second.await.0
    })??;
    region.read_at(0, &mut there)?;
    same(&there, b"TWO", "the last")?;
    two.nothing_is_missing()
}

/// Catches an abort that waits for ever for what a forgotten batch was to post, requests of it that are
/// posted with the next ones, and slots that it keeps.
fn forgotten_batches() -> Result {
    let mut two = Two::new()?;
    let region = two.region(64)?;
    let remote = region.remote();
    let control = two.a.control();
    // More than there are slots, so all come back.
    for round in 0..2 * Caps::default().max_send_wr {
        let (lost, posted) = (two.buf(b"lost")?, two.buf(b"here")?);
        let mut batch = two.a.batch();
        let lost = batch.write(lost, remote);
        std::mem::forget(batch);
        same(control.in_flight(), 0, "in flight")?;
        two.run(control.drained())??;
        if round % 2 == 0 {
            let write = two.a.write(posted, remote);
            two.run(write)?.0?;
        }
        drop(two.a.batch());
        let (result, buf) = two.run(lost)?;
        same(result, Err(OpError::NotRung), "not rung")?;
        same(&*buf, &b"lost"[..], "the buffer")?;
    }
    let mut there = [0; 4];
    region.read_at(0, &mut there)?;
    same(&there, b"here", "what was posted")?;
    let lost = two.buf(b"lost")?;
    let mut batch = two.a.batch();
    drop(batch.write(lost, remote));
    std::mem::forget(batch);
    let Two { a, cq, .. } = &mut two;
    cq.block_on(a.abort())??;
    two.nothing_is_missing()
}

/// Catches errors that keep a buffer, and operations that hang behind one.
fn failures_give_back() -> Result {
    let two = Two::new()?;
    // Without a connection nothing is posted.
    let other = Cq::new(&two.context, 256)?;
    let beyond = Caps {
        max_send_wr: other.capacity(),
        ..Caps::default()
    };
    let refused = other.create_qp::<Rc>(&two.pd, beyond).err();
    says(
        &refused.ok_or("there was room")?,
        &["create_qp", "room for"],
    )?;
    let mut alone = other.create_qp::<Rc>(&two.pd, Caps::default())?;
    let sent = alone.send(two.buf(b"to nobody")?);
    let (result, buf) = other.block_on(sent)?;
    match result {
        Err(OpError::Post(PostError::WrongState { .. })) => {}
        other => return fail(format!("{other:?}")),
    }
    same(&*buf, &b"to nobody"[..], "the buffer")?;
    drop(buf);
    // The peer refuses one, and the others are flushed.
    let mut two = two;
    let region = two.region(64)?;
    let mut wrong = region.remote();
    wrong.rkey = uverbs::mr::RemoteKey(wrong.rkey.0 ^ 0x5500);
    let received = two.a.recv(two.pool.try_get(256)?);
    let first = two.a.write(two.buf(b"no")?, wrong);
    let second = two.a.write(two.buf(b"no")?, region.remote());
    two.run(async {
        let (result, buf) = first.await;
        match result {
            Err(OpError::Completion(error)) => {
                same(error.status, WcStatus::REM_ACCESS_ERR, "the first")?;
            }
            other => return fail(format!("{other:?}")),
        }
        same(&*buf, &b"no"[..], "its buffer")?;
        let flushed = |result: std::result::Result<(), OpError>| {
            result.is_err_and(|error| error.is_flushed())
        };
        same(flushed(second.await.0), true, "the second")?;
        same(flushed(received.await.0.map(drop)), true, "the receive")
    })??;
    two.nothing_is_missing()
}

/// Catches a table that is too small or too large for its queue, and results that come to the wrong
/// operation.
fn many_at_a_time<T: Reliable>() -> Result {
    let caps = Caps {
        max_send_wr: 100,
        max_recv_wr: 100,
        max_inline_data: T::INLINE,
        ..Caps::default()
    };
    let mut two = Two::<T>::sized(caps)?;
    for round in 0..3u8 {
        let mut receives = Vec::new();
        let mut sends = Vec::new();
        for index in 0..100u8 {
            receives.push(two.b.recv(two.pool.try_get(256)?));
            let buf = two.buf(&[round, index])?;
            sends.push(two.send(buf));
        }
        let buf = two.buf(b"one more")?;
        let full = two.send(buf);
        same(full.is_refused(), true, "one more")?;
        two.run(async {
            let (refused, buf) = full.await;
            let error = OpError::Post(PostError::QueueFull { capacity: 100 });
            same(refused, Err(error), "one more")?;
            same(&*buf, &b"one more"[..], "its buffer")?;
            // The last first.
            for (index, send) in sends.into_iter().enumerate().rev() {
                let (result, buf) = send.await;
                result?;
                same(&*buf, &[round, index as u8][..], "what was sent")?;
            }
            let mut received = Vec::new();
            for receive in receives {
                let (result, buf) = receive.await;
                result?;
                received.push(buf.to_vec());
            }
            if !T::IS_ORDERED {
                received.sort();
            }
            let all: Vec<_> = (0..100).map(|index| vec![round, index]).collect();
            same(received, all, "what was received")
        })??;
    }
    two.nothing_is_missing()
}

/// Catches an operation among very many that is not woken, or not given back, and a completion queue that
/// overruns: 40 queue pairs on one.
fn ten_thousand_in_flight() -> Result {
    const QPS: usize = 40;
    const EACH: usize = 250;
    const SENT: usize = 10;
    let context = open()?;
    let pd = context.alloc_pd()?;
    let caps = Caps {
        max_send_wr: SENT as u32,
        max_recv_wr: EACH as u32,
        ..Caps::default()
    };
    let cq = Cq::new(&context, (QPS * (SENT + EACH)) as u32)?;
    let pool = Pool::on(&pd).sizes([64]).build()?;
    let mut qps = Vec::new();
    for _ in 0..QPS / 2 {
        let (mut a, mut b) = (cq.create_qp(&pd, caps)?, cq.create_qp(&pd, caps)?);
        connect(&mut a, &mut b)?;
        qps.extend([a, b]);
    }
    let mut receives: Vec<Vec<Op<Receive>>> = Vec::new();
    for qp in &mut qps {
        let posted = (0..EACH).map(|_| Ok(qp.recv(pool.try_get(64)?)));
        receives.push(posted.collect::<Result<_>>()?);
    }
    // Each is polled, so that each waits.
    let waiting = cq.block_on(poll_fn(|cx| {
        let all = receives.iter_mut().flatten();
        let waiting = all.map(|receive| usize::from(Pin::new(receive).poll(cx).is_pending()));
        Poll::Ready(waiting.sum())
    }))?;
    same::<usize>(waiting, QPS * EACH, "operations that wait")?;
    let in_flight = qps.iter().map(|qp| qp.control().in_flight());
    same(in_flight.sum::<usize>(), 10_000, "operations in flight")?;

    let message = |qp: usize, at: usize| [qp as u8, at as u8, 7];
    let mut sends = Vec::new();
    for (number, qp) in qps.iter_mut().enumerate() {
        sends.extend((0..SENT).map(|at| qp.send_inline(&message(number, at))));
    }
    cq.block_on(async {
        for send in sends {
            send.await?;
        }
        for (number, of) in receives.iter_mut().enumerate() {
            for (at, receive) in of.drain(..SENT).enumerate() {
                let (result, buf) = receive.await;
                result?;
                same(&*buf, &message(number ^ 1, at)[..], "a message")?;
            }
        }
        Result::Ok(())
    })??;
    for qp in &mut qps {
        cq.block_on(qp.abort())??;
    }
    cq.block_on(async {
        for receive in receives.into_iter().flatten() {
            let (result, buf) = receive.await;
            let is_flushed = result.is_err_and(|error| error.is_flushed());
            same(
                (is_flushed, buf.capacity() >= 64),
                (true, true),
                "a flushed receive",
            )?;
        }
        Result::Ok(())
    })??;
    same(pool.stats().in_use(), 0, "buffers in use")
}

/// Catches messages out of order, a stream that loses some when its future is dropped, and one that waits for
/// a receive while the message is in another one.
fn a_stream_of_messages<T: Reliable>() -> Result {
    let Two {
        mut a,
        b,
        way,
        cq,
        pool,
        ..
    } = Two::<T>::usual()?;
    let to = b.qpn();
    let (_sender, receiver) = b.split();
    let mut incoming = receiver.incoming(&pool, 256, 8);
    same(incoming.refill()?, 8, "receives ahead")?;
    cq.block_on(async {
        for number in 0..100u32 {
            // One that is asked and dropped before the message is there.
            poll_fn(|cx| {
                let next = pin!(incoming.next());
                let early = next.poll(cx).is_ready();
                Poll::Ready(same(early, false, "a message that was not sent"))
            })
            .await?;
            let mut buf = pool.try_get(4)?;
            buf.extend_from_slice(&number.to_le_bytes())?;
            T::send(&mut a, &way, to, buf, None).await.0?;
            let (received, buf) = incoming.next().await?;
            same(received.len, 4, "its length")?;
            same(&*buf, &number.to_le_bytes()[..], "the message")?;
        }
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    })??;
    drop((a, _sender, incoming));
    same(pool.stats().in_use(), 0, "buffers in use")
}

/// Catches a stream that keeps fewer receives posted than it was asked for, once its pool was empty.
fn a_stream_whose_pool_was_empty<T: Reliable>() -> Result {
    const BUFFERS: usize = 8;
    const AHEAD: usize = 4;
    let Two { a, b, cq, pd, .. } = Two::<T>::usual()?;
    let pool = Pool::on(&pd).sizes([256]).limit(BUFFERS * 256).build()?;
    let held = (1..BUFFERS)
        .map(|_| Ok(pool.try_get(256)?))
        .collect::<Result<Vec<_>>>()?;
    let control = b.control();
    let (_sender, receiver) = b.split();
    let mut incoming = receiver.incoming(&pool, 256, AHEAD);
    {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut cx = Context::from_waker(&waker);
        let mut next = pin!(incoming.next());
        same(next.as_mut().poll(&mut cx).is_ready(), false, "a message")?;
        same(control.in_flight(), 1, "receives")?;
        drop(held);
        same(woken.take(), true, "whether its task is to go on")?;
        same(next.as_mut().poll(&mut cx).is_ready(), false, "a message")?;
        same(control.in_flight(), AHEAD, "receives")?;
    }
    cq.block_on(control.abort())??;
    drop((a, _sender, incoming));
    same(pool.stats().in_use(), 0, "buffers in use")
}

/// Catches halves that need each other, and completions that a thread takes and another waits for.
fn halves_in_two_threads<T: Reliable>() -> Result {
    let Two {
        a,
        b,
        way,
        cq,
        pool,
        ..
    } = Two::<T>::usual()?;
    let to = b.qpn();
    let (mut sender, _) = a.split();
    let (_, receiver) = b.split();
    let mut incoming = receiver.incoming(&pool, 256, 32);
    incoming.refill()?;
    const MESSAGES: u32 = 300;
    std::thread::scope(|scope| {
        let (cq, pool, way) = (&cq, &pool, &way);
        let sending = scope.spawn(move || -> Result {
            cq.block_on(async {
                for number in 0..MESSAGES {
                    let mut buf = pool.get(4).await?;
                    buf.extend_from_slice(&number.to_le_bytes())?;
                    sender.room().await;
                    T::send(&mut sender, way, to, buf, None).await.0?;
                }
                Ok(())
            })?
        });
        let receiving = scope.spawn(move || -> Result {
            let mut messages = cq.block_on(async {
                let mut messages = Vec::new();
                for _ in 0..MESSAGES {
                    messages.push(incoming.next().await?.1.to_vec());
                }
                Result::Ok(messages)
            })??;
            let mut sent: Vec<_> = (0..MESSAGES).map(|it| it.to_le_bytes().to_vec()).collect();
            if !T::IS_ORDERED {
                messages.sort();
                sent.sort();
            }
            same(messages, sent, "the messages")
        });
        sending.join().map_err(|_| "a panic")??;
        receiving.join().map_err(|_| "a panic")?
    })?;
    same(pool.stats().in_use(), 0, "buffers in use")
}

/// Catches a way of waiting that misses a completion.
fn ways_to_wait<T: Reliable>() -> Result {
    let mut two = Two::<T>::usual()?;
    let spins = [
        Wait::Park,
        Wait::default(),
        Wait::Spin(std::time::Duration::MAX),
    ];
    for wait in spins {
        for _ in 0..20 {
            let received = two.b.recv(two.pool.try_get(256)?);
            let sent = two.send(two.buf(b"x")?);
            two.cq.block_on_with(
                async {
                    sent.await.0?;
                    received.await.0
                },
                wait,
            )??;
        }
    }
    // Whoever likes pumps.
    let received = two.b.recv(two.pool.try_get(256)?);
    let mut sent = two.send(two.buf(b"x")?);
    let mut cx = Context::from_waker(Waker::noop());
    let result = support::until("the send", || {
        two.cq.pump()?;
        Ok(match Pin::new(&mut sent).poll(&mut cx) {
            Poll::Ready((result, _)) => Some(result),
            Poll::Pending => None,
        })
    })?;
    result?;
    two.run(received)?.0?;
    two.nothing_is_missing()
}

/// Catches an allocation for each operation: posting, completing and awaiting allocate nothing.
fn nothing_is_allocated<T: Reliable>() -> Result {
    T::needs_writes()?;
    let mut two = Two::<T>::usual()?;
    let region = two.region(64)?;
    let remote = region.remote();
    let Two {
        a,
        b,
        way,
        cq,
        pool,
        ..
    } = &mut two;
    let to = b.qpn();
    let (counted, _) = cq.block_on(async {
        let mut counted = 0;
        for round in 0..200 {
            let before = allocations();
            let received = b.recv(pool.try_get(256)?);
            let mut buf = pool.try_get(5)?;
            buf.extend_from_slice(b"bytes")?;
            let (sent, buf) = T::send(a, way, to, buf, None).await;
            sent?;
            let there = remote.slice(..5)?;
            let (written, buf) = T::write(a, way, to, buf, there, None).await;
            written?;
            let (read, _) = T::read(a, way, to, buf, remote).await;
            read?;
            received.await.0?;
            // Lists grow to their sizes in the beginning.
            if round >= 10 {
                counted += allocations() - before;
            }
        }
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>((counted, ()))
    })??;
    same(counted, 0, "allocations")
}

/// A queue pair that is connected is not connected twice.
fn connected_once() -> Result {
    let mut two = Two::new()?;
    let again = connect(&mut two.a, &mut two.b);
    same(again.is_err(), true, "a connected queue pair")
}
