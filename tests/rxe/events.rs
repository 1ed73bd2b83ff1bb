//! Completion channels and asynchronous events.

use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use rustix::event::{PollFd, PollFlags, poll};
use uverbs::{
    AsyncEvent, AsyncEventType, AsyncEvents, CompletionChannel, ConnectOptions, Connected, Cq,
    CqEvent, EventSource, Notify, QpAttr, QpState, Rc, WcStatus,
};

use crate::common::device::{OwnDevice, open, run};
use crate::common::pair::{ALL, Side};
use crate::common::{
    LIMIT, Pair, Result, Setup, Skip, completion, completions, kernel, only_on_rxe, test, until,
};
use crate::device::device;
use crate::talk::same;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test(
            "events::a_wait_ends_with_a_completion",
            a_wait_ends_with_a_completion,
        ),
        test(
            "events::a_wait_ends_with_its_time",
            a_wait_ends_with_its_time,
        ),
        test(
            "events::poll_or_arm_misses_nothing",
            poll_or_arm_misses_nothing,
        ),
        test("events::solicited_only", solicited_only),
        test(
            "events::several_queues_on_one_channel",
            several_queues_on_one_channel,
        ),
        test(
            "events::a_queue_goes_with_unread_events",
            a_queue_goes_with_unread_events,
        ),
        test(
            "events::the_descriptor_becomes_readable",
            the_descriptor_becomes_readable,
        ),
        test(
            "events::a_channel_of_another_context",
            a_channel_of_another_context,
        ),
        test(
            "events::the_port_goes_down_and_up",
            the_port_goes_down_and_up,
        ),
        test(
            "events::queue_pairs_and_queues_are_named",
            queue_pairs_and_queues_are_named,
        ),
        test(
            "events::failures_name_their_queue_pair",
            failures_name_their_queue_pair,
        ),
        test(
            "events::a_full_queue_fails_its_receiver",
            a_full_queue_fails_its_receiver,
        ),
        test("events::the_gid_table_changes", the_gid_table_changes),
        test("events::solicited_and_flushed", solicited_and_flushed),
    ]
}

/// A pair whose side `b` reports to a channel.
fn with_channel() -> Result<(Pair<Rc>, CompletionChannel)> {
    let context = open()?;
    let channel = context.create_channel()?;
    let setup = Setup::default();
    let mut pair = Pair::<Rc>::create(&context, &setup, |qp| qp.create())?;
    let cq = context.cq(64).channel(&channel).create()?;
    let qp = pair.pd.qp(&cq).caps(setup.caps).create()?;
    let mr = pair.pd.register(vec![0; setup.length], ALL)?;
    pair.b = Side { qp, cq, mr };
    pair.connect(&setup.options)?;
    Ok((pair, channel))
}

/// Sends one message, for which `b` has a receive.
fn send<T: Connected>(pair: &mut Pair<T>, solicited: bool) -> Result {
    let mut batch = pair.a.qp.send();
    let posted = batch.send_inline(b"wake up")?.signaled(1);
    if solicited {
        posted.solicited();
    }
    batch.ring()?;
    completion(&mut pair.a.cq)?.ok()?;
    Ok(())
}

/// Reads an event that must come.
fn event(channel: &CompletionChannel, cq: &Cq) -> Result {
    let event = channel.wait_for(LIMIT)?;
    same("the event", event, Some(CqEvent { cq: cq.id() }))
}

/// Catches an event that does not come, names another queue, or comes twice.
fn a_wait_ends_with_a_completion() -> Result {
    let (mut pair, channel) = with_channel()?;
    for round in 0..5 {
        pair.b.post_recv(round, 0..64)?;
        pair.b.cq.arm(Notify::Next)?;
        same("an early event", channel.try_next()?, None)?;
        let waiting = channel.clone();
        let waiter = thread::spawn(move || waiting.wait());
        send(&mut pair, false)?;
        let event = waiter.join().map_err(|_| "the waiter panicked")??;
        same("the event", event.cq, pair.b.cq.id())?;
        same(
            "the receive",
            completion(&mut pair.b.cq)?.ok()?.wr_id,
            round,
        )?;
        same("a second event", channel.try_next()?, None)?;
    }
    // Without arming there is no event.
    pair.b.post_recv(9, 0..64)?;
    send(&mut pair, false)?;
    completion(&mut pair.b.cq)?;
    same(
        "an event of a queue that was not armed",
        channel.try_next()?,
        None,
    )
}

/// Catches a limit that is ignored or taken in other units.
fn a_wait_ends_with_its_time() -> Result {
    let (_pair, channel) = with_channel()?;
    let started = Instant::now();
    let limit = Duration::from_millis(50);
    same("an event", channel.wait_for(limit)?, None)?;
    let took = started.elapsed();
    if took < limit || took > LIMIT {
        return Err(format!("waiting for {limit:?} took {took:?}").into());
    }
    Ok(())
}

/// Catches the gap between polling and arming, in which a completion would go unnoticed for ever.
fn poll_or_arm_misses_nothing() -> Result {
    const MESSAGES: u64 = 500;
    let (pair, channel) = with_channel()?;
    let Pair { mut a, mut b, .. } = pair;
    for id in 0..32 {
        b.post_recv(id, 0..64)?;
    }
    thread::scope(|scope| {
        let sender = scope.spawn(move || -> Result<_> {
            for id in 0..MESSAGES {
                let mut batch = a.qp.send();
                batch.send_inline(b"x")?.signaled(id);
                batch.ring()?;
                completion(&mut a.cq)?.ok()?;
            }
            Ok(a)
        });
        let mut received = 0;
        let cq = b.cq.id();
        while received < MESSAGES {
            let mut taken = Vec::new();
            match b.cq.poll_or_arm(Notify::Next)? {
                Some(mut completions) => {
                    for wc in &mut completions {
                        wc.result()?;
                        taken.push(wc.wr_id());
                    }
                }
                None => same("the event", channel.wait_for(LIMIT)?, Some(CqEvent { cq }))?,
            }
            received += taken.len() as u64;
            for id in taken {
                b.post_recv(id, 0..64)?;
            }
        }
        sender.join().map_err(|_| "the sender panicked")??;
        Ok(())
    })
}

/// Catches the two kinds of arming being mixed up, and a solicited flag that does not travel.
fn solicited_only() -> Result {
    let (mut pair, channel) = with_channel()?;
    pair.b.cq.arm(Notify::Solicited)?;
    for id in 0..3 {
        pair.b.post_recv(id, 0..64)?;
    }
    send(&mut pair, false)?;
    completion(&mut pair.b.cq)?.ok()?;
    same("an event of an ordinary message", channel.try_next()?, None)?;
    send(&mut pair, true)?;
    event(&channel, &pair.b.cq)?;
    completion(&mut pair.b.cq)?.ok()?;
    Ok(())
}

/// Catches a promise that rxe does not keep: the specification wants an event for a failed request as well.
fn solicited_and_flushed() -> Result {
    only_on_rxe("on the adapter a flushed receive gives an event, as a failed request does")?;
    let (mut pair, channel) = with_channel()?;
    for id in 0..3 {
        pair.b.post_recv(id, 0..64)?;
    }
    pair.b.cq.arm(Notify::Solicited)?;
    pair.b.qp.fail()?;
    for wc in completions(&mut pair.b.cq, 3)? {
        same("the status", wc.status, WcStatus::WR_FLUSH_ERR)?;
    }
    // 6.1 tells: a flushed receive counts as solicited there (`do_complete` in `rxe_resp.c`), and no more since 6.4
    // (`flush_recv_wqe`).
    if kernel() < (6, 4) {
        return event(&channel, &pair.b.cq);
    }
    same("an event of flushed receives", channel.try_next()?, None)?;
    Err(
        Skip("this kernel's rxe tells no flushed receives as solicited (until Linux 6.3)".into())
            .into(),
    )
}

/// Catches events that name another queue than the one that has completions.
fn several_queues_on_one_channel() -> Result {
    let context = open()?;
    let channel = context.create_channel()?;
    let pd = context.alloc_pd()?;
    let mut queues = Vec::new();
    for _ in 0..4 {
        let cq = context.cq(8).channel(&channel).create()?;
        let mut qp = pd.qp(&cq).create::<Rc>()?;
        qp.connect(&qp.endpoint()?)?;
        queues.push((qp, cq));
    }
    let mr = pd.register(vec![0_u8; 8], ALL)?;
    for index in [2, 0, 3, 1, 1] {
        for (_, cq) in &mut queues {
            cq.arm(Notify::Next)?;
        }
        let (qp, cq) = &mut queues[index];
        let mut batch = qp.send();
        batch.write_inline(b"x", mr.remote())?.signaled(1);
        batch.ring()?;
        event(&channel, cq)?;
        completion(cq)?.ok()?;
        same("another event", channel.try_next()?, None)?;
    }
    Ok(())
}

/// Catches a destruction that waits for events to be acknowledged, and a late event that is taken for another's.
fn a_queue_goes_with_unread_events() -> Result {
    let (mut pair, channel) = with_channel()?;
    pair.b.post_recv(1, 0..64)?;
    pair.b.cq.arm(Notify::Next)?;
    send(&mut pair, false)?;
    completion(&mut pair.b.cq)?;
    let Side { qp, cq, mr } = pair.b;
    qp.destroy()?;
    drop(mr);
    cq.destroy()?;
    // The kernel drops unread events with the queue.
    same(
        "an event of a queue that is gone",
        channel.try_next()?,
        None,
    )
}

/// Catches a descriptor that blocks, or one that does not become readable, which every event loop needs.
fn the_descriptor_becomes_readable() -> Result {
    let (mut pair, channel) = with_channel()?;
    let ready = |limit: Duration| -> Result<bool> {
        let mut fds = [PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::IN)];
        Ok(poll(&mut fds, Some(&limit.try_into()?))? == 1)
    };
    pair.b.post_recv(1, 0..64)?;
    pair.b.cq.arm(Notify::Next)?;
    same("readable before", ready(Duration::ZERO)?, false)?;
    send(&mut pair, false)?;
    same("readable after", ready(LIMIT)?, true)?;
    event(&channel, &pair.b.cq)?;
    same("readable when read", ready(Duration::ZERO)?, false)?;
    let mut byte = [0; 8];
    let read = rustix::io::read(channel.as_fd(), &mut byte).err();
    same("reading without an event", read, Some(uverbs::Errno::AGAIN))
}

/// Catches a channel whose number means another file in the other context.
fn a_channel_of_another_context() -> Result {
    let channel = open()?.create_channel()?;
    let error = open()?
        .cq(8)
        .channel(&channel)
        .create()
        .map(drop)
        .unwrap_err();
    same(
        "the kind",
        error.io_kind(),
        std::io::ErrorKind::InvalidInput,
    )
}

/// Reads asynchronous events until the one that must come.
fn async_event(events: &AsyncEvents, expected: AsyncEvent) -> Result {
    let deadline = Instant::now() + LIMIT;
    let mut others = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match events.wait_for(left)? {
            Some(event) if event == expected => return Ok(()),
            Some(event) => others.push(event),
            None => return Err(format!("no {expected:?}, but {others:?}").into()),
        }
    }
}

/// Catches events that are lost or misread when the network interface goes down and comes back.
fn the_port_goes_down_and_up() -> Result {
    only_on_rxe("here soft-RoCE's network interface goes down")?;
    let device = OwnDevice::new()?;
    let context = device.open()?;
    let events = context.async_events()?;
    let source = EventSource::Port(1);
    run(&format!("ip link set {} down", device.netdev))?;
    async_event(
        &events,
        AsyncEvent {
            kind: AsyncEventType::PORT_ERR,
            source,
        },
    )?;
    same(
        "the state",
        context.query_port(1)?.state,
        uverbs::PortState::Down,
    )?;
    run(&format!("ip link set {} up", device.netdev))?;
    async_event(
        &events,
        AsyncEvent {
            kind: AsyncEventType::PORT_ACTIVE,
            source,
        },
    )?;
    same(
        "the state",
        context.query_port(1)?.state,
        uverbs::PortState::Active,
    )
}

/// Catches events that carry another number than [`Cq::id`] and [`uverbs::Qp::id`].
fn queue_pairs_and_queues_are_named() -> Result {
    // A message that comes before this side is ready to send: rxe has no COMM_EST, but a queue that overflows has.
    let setup = Setup {
        cqe: 1,
        options: ConnectOptions::default(),
        ..Setup::default()
    };
    let mut pair = Pair::<Rc>::connected(&setup)?;
    let events = pair.context.async_events()?;
    let room = u64::from(pair.a.cq.capacity()) + device().spare_completions();
    let to = pair.b.mr.remote();
    let mut batch = pair.a.qp.send();
    for id in 0..=room {
        batch.write_inline(b"x", to)?.signaled(id);
    }
    batch.ring()?;
    let source = EventSource::Cq(pair.a.cq.id());
    async_event(
        &events,
        AsyncEvent {
            kind: AsyncEventType::CQ_ERR,
            source,
        },
    )?;
    // What the queue held is still there.
    completions(&mut pair.a.cq, room as usize)?;
    Ok(())
}

/// Everything that has been told of a context, up to an event that is provoked here: it comes behind what has happened
/// before.
fn told_so_far(pair: &Pair<Rc>, events: &AsyncEvents) -> Result<Vec<AsyncEvent>> {
    let mut sentinel = pair.pd.qp(&pair.a.cq).create::<Rc>()?;
    sentinel.connect(&sentinel.endpoint()?)?;
    sentinel.modify(&QpAttr {
        state: Some(QpState::SQD),
        sqd_async_notify: Some(true),
        ..QpAttr::default()
    })?;
    let end = AsyncEvent {
        kind: AsyncEventType::SQ_DRAINED,
        source: EventSource::Qp(sentinel.id()),
    };
    let mut told = Vec::new();
    loop {
        match events.wait_for(LIMIT)? {
            Some(event) if event == end => return Ok(told),
            Some(event) => told.push(event),
            None => return Err(format!("no {end:?}, but {told:?}").into()),
        }
    }
}

/// Catches an event of a failure that names another queue pair than the one that was harmed, or comes twice. The
/// requester has the completion; it is the responder of whom rxe tells.
fn failures_name_their_queue_pair() -> Result {
    only_on_rxe("the states that this goes through are not all there on the adapter")?;
    let mut pair = Pair::<Rc>::connected(&Setup::default())?;
    let events = pair.context.async_events()?;
    let mut to = pair.b.mr.remote();
    to.rkey = uverbs::RemoteKey(!to.rkey.0);
    let mut batch = pair.a.qp.send();
    batch.write_inline(b"x", to)?.signaled(1);
    batch.ring()?;
    let status = completion(&mut pair.a.cq)?.status;
    same("the status", status, WcStatus::REM_ACCESS_ERR)?;
    let told = told_so_far(&pair, &events)?;
    if told.is_empty() && kernel() < (7, 2) {
        let why = "this kernel's rxe tells no failures of queue pairs (Linux 7.2 does)";
        return Err(Skip(why.into()).into());
    }
    let expected = AsyncEvent {
        kind: AsyncEventType::QP_ACCESS_ERR,
        source: EventSource::Qp(pair.b.qp.id()),
    };
    same("what was told", told, vec![expected])
}

/// Catches a queue pair that goes on when its receives can no longer be told, and events that name another object.
fn a_full_queue_fails_its_receiver() -> Result {
    let setup = Setup {
        cqe: 3,
        ..Setup::default()
    };
    let mut pair = Pair::<Rc>::connected(&setup)?;
    let events = pair.context.async_events()?;
    let room = u64::from(pair.b.cq.capacity()) + device().spare_completions();
    for id in 0..room + 1 {
        pair.b.post_recv(id, 0..64)?;
    }
    // Without completions, or the sender's queue would overflow too.
    let mut batch = pair.a.qp.send();
    for id in 0..room + 1 {
        batch.send_inline(b"x")?.id(id);
    }
    batch.ring()?;
    let queue = AsyncEvent {
        kind: AsyncEventType::CQ_ERR,
        source: EventSource::Cq(pair.b.cq.id()),
    };
    async_event(&events, queue)?;
    // Not at once: the event comes first.
    until("the error state", || {
        Ok((pair.b.qp.query()?.state == QpState::ERR).then_some(()))
    })?;
    // The adapter does not have the state that tells when all events have come.
    if device().is_rxe() {
        let of_b = [EventSource::Qp(pair.b.qp.id()), queue.source];
        for event in told_so_far(&pair, &events)? {
            same("the object", of_b.contains(&event.source), true)?;
        }
    }
    completions(&mut pair.b.cq, room as usize)?;
    Ok(())
}

/// Catches a change of the addresses that passes unnoticed, or is told of another port.
fn the_gid_table_changes() -> Result {
    only_on_rxe("here soft-RoCE's network interface gets another address")?;
    let device = OwnDevice::new()?;
    let context = device.open()?;
    let events = context.async_events()?;
    let changed = AsyncEvent {
        kind: AsyncEventType::GID_CHANGE,
        source: EventSource::Port(1),
    };
    for change in ["add", "del"] {
        run(&format!(
            "ip addr {change} 10.222.33.44/32 dev {}",
            device.netdev
        ))?;
        async_event(&events, changed)?;
    }
    Ok(())
}
