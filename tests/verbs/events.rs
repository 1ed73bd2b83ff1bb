//! Completion channels and asynchronous events.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use support::random::{Random, seed_and_steps};
use support::{
    ALL, LIMIT, OwnDevice, Pair, QKEY, Result, Setup, Side, completion, completions, device,
    kernel, only_on_rxe, open, own_path, run, same, skip, test, until,
};
use uverbs::{
    Access, Caps, CompletionChannel, ConnectOptions, Cq, Inline, LocalSlice, Notify, QpState, Rc,
    RemoteSlice, Request, Ud, WcStatus,
    channel::CqEvent,
    cq::PollError,
    event::{AsyncEvent, AsyncEventType, AsyncEvents, EventSource},
    mr::RemoteKey,
    qp::QpAttr,
    transport::{Peer, Reaches},
};

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
            "events::a_full_queue_fails_its_receiver",
            a_full_queue_fails_its_receiver,
        ),
        test(
            "events::what_is_told_of_broken_queue_pairs",
            what_is_told_of_broken_queue_pairs,
        ),
        test(
            "events::an_early_message_is_not_told",
            an_early_message_is_not_told,
        ),
        test(
            "events::many_queues_on_one_channel",
            many_queues_on_one_channel,
        ),
        test("events::the_gid_table_changes", the_gid_table_changes),
        test("events::solicited_and_flushed", solicited_and_flushed),
    ]
}

/// A pair whose side `b` reports to a channel.
fn with_channel() -> Result<(Pair<Rc>, CompletionChannel)> {
    let context = open()?;
    let channel = context.create_channel()?;
    let cq = context.cq(64).channel(&channel).create()?;
    let pair = Pair::reporting_to(context.create_cq(64)?, cq, &Setup::default())?;
    Ok((pair, channel))
}

/// Sends one message, for which `b` has a receive.
fn send<T: Reaches<Peer>>(pair: &mut Pair<T>, solicited: bool) -> Result {
    let request = pair.a.qp.one(1);
    let request = match solicited {
        true => request.solicited(),
        false => request,
    };
    request.send(Inline(b"wake up"))?;
    completion(&mut pair.a.cq)?.ok()?;
    Ok(())
}

/// Reads an event that must come.
fn event(channel: &CompletionChannel, cq: &Cq) -> Result {
    let event = channel.wait_for(LIMIT)?;
    same(event, Some(CqEvent { cq: cq.id() }), "the event")
}

/// Catches an event that does not come, names another queue, or comes twice; and a look beside the wait that
/// hangs or ends it.
fn a_wait_ends_with_a_completion() -> Result {
    let (mut pair, channel) = with_channel()?;
    for round in 0..5 {
        pair.b.post_recv(round, 0..64)?;
        pair.b.cq.arm(Notify::Next)?;
        let waiting = channel.clone();
        let waiter = thread::spawn(move || waiting.wait());
        // Time to fall asleep: in the first round in a read of a file that blocks.
        thread::sleep(Duration::from_millis(20));
        same(channel.try_next()?, None, "an early event")?;
        send(&mut pair, false)?;
        let event = waiter.join().map_err(|_| "the waiter panicked")??;
        same(event.cq, pair.b.cq.id(), "the event")?;
        same(
            completion(&mut pair.b.cq)?.ok()?.wr_id,
            round,
            "the receive",
        )?;
        same(channel.try_next()?, None, "a second event")?;
    }
    // Without arming there is no event.
    pair.b.post_recv(9, 0..64)?;
    send(&mut pair, false)?;
    completion(&mut pair.b.cq)?;
    same(
        channel.try_next()?,
        None,
        "an event of a queue that was not armed",
    )
}

/// Catches a limit that is ignored or taken in other units.
fn a_wait_ends_with_its_time() -> Result {
    let (_pair, channel) = with_channel()?;
    let started = Instant::now();
    let limit = Duration::from_millis(50);
    same(channel.wait_for(limit)?, None, "an event")?;
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
                let mut batch = a.qp.batch();
                batch.signaled(id).send(Inline(b"x"))?;
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
                None => same(channel.wait_for(LIMIT)?, Some(CqEvent { cq }), "the event")?,
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
    same(channel.try_next()?, None, "an event of an ordinary message")?;
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
        same(wc.status, WcStatus::WR_FLUSH_ERR, "the status")?;
    }
    // 6.1 tells: a flushed receive counts as solicited there (`do_complete` in `rxe_resp.c`), and no more
    // since 6.4 (`flush_recv_wqe`).
    if kernel() < (6, 4) {
        return event(&channel, &pair.b.cq);
    }
    same(channel.try_next()?, None, "an event of flushed receives")?;
    skip("this kernel's rxe tells no flushed receives as solicited (until Linux 6.3)")
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
        let mut batch = qp.batch();
        batch.signaled(1).write(Inline(b"x"), mr.remote())?;
        batch.ring()?;
        event(&channel, cq)?;
        completion(cq)?.ok()?;
        same(channel.try_next()?, None, "another event")?;
    }
    Ok(())
}

/// Catches events that go to another queue where there are many, that come for queues which were not armed,
/// or come twice; and queues that wait for events to be acknowledged when they go.
fn many_queues_on_one_channel() -> Result {
    let context = open()?;
    let channel = context.create_channel()?;
    let pd = context.alloc_pd()?;
    let mut queues = Vec::new();
    for _ in 0..200 {
        let cq = context.cq(1).channel(&channel).create()?;
        // Datagrams to nobody: they are sent, and that is all.
        let mut qp = pd.qp(&cq).caps(FEW).create::<Ud>()?;
        qp.activate(QKEY, &ConnectOptions::default())?;
        queues.push((qp, cq, false));
    }
    let path = own_path(&context)?;
    let ah = pd.create_ah(&path)?;
    let (seed, _) = seed_and_steps(0)?;
    let mut random = Random::new(seed);
    for round in 0..4 {
        let mut expected = BTreeSet::new();
        let mut used = Vec::new();
        for (index, (qp, cq, armed)) in queues.iter_mut().enumerate() {
            if random.below(2) == 0 {
                cq.arm(Notify::Next)?;
                *armed = true;
            }
            if random.below(3) == 0 {
                let mut batch = qp.batch();
                batch
                    .signaled(1)
                    .to(ah.to(NOBODY, QKEY))
                    .send(Inline(b"x"))?;
                batch.ring()?;
                used.push(index);
                // Once for each time that it was armed, however long ago.
                if std::mem::take(armed) {
                    expected.insert(cq.id());
                }
            }
        }
        if round == 3 {
            // These go with their queues.
            break;
        }
        while !expected.is_empty() {
            let event = channel.wait_for(LIMIT)?;
            if !event.is_some_and(|event| expected.remove(&event.cq)) {
                return Err(format!("{event:?}, and still to come {expected:?}").into());
            }
        }
        for index in used {
            completion(&mut queues[index].1)?.ok()?;
        }
        same(channel.try_next()?, None, "another event")?;
    }
    for (qp, cq, _) in queues {
        drop(qp);
        cq.destroy()?;
    }
    same(
        channel.try_next()?,
        None,
        "an event of a queue that is gone",
    )
}

/// Capacities of a queue pair that sends one datagram at a time.
const FEW: Caps = Caps {
    max_send_wr: 1,
    max_recv_wr: 1,
    max_send_sge: 1,
    max_recv_sge: 1,
    max_inline_data: 8,
};

/// The number of a queue pair that there is not.
const NOBODY: u32 = 0x00ff_fff0;

/// Catches a destruction that waits for events to be acknowledged, and a late event that is taken for
/// another's.
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
        channel.try_next()?,
        None,
        "an event of a queue that is gone",
    )
}

/// Catches a descriptor that blocks, or one that does not become readable, which every event loop needs.
fn the_descriptor_becomes_readable() -> Result {
    let (mut pair, channel) = with_channel()?;
    let ready = |limit: Duration| -> Result<bool> {
        let mut fds = [PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::IN)];
        let limit = limit.try_into()?;
        Ok(retry_on_intr(|| poll(&mut fds, Some(&limit)))? == 1)
    };
    pair.b.post_recv(1, 0..64)?;
    pair.b.cq.arm(Notify::Next)?;
    same(ready(Duration::ZERO)?, false, "readable before")?;
    send(&mut pair, false)?;
    same(ready(LIMIT)?, true, "readable after")?;
    event(&channel, &pair.b.cq)?;
    same(ready(Duration::ZERO)?, false, "readable when read")?;
    let mut byte = [0; 8];
    let read = rustix::io::read(channel.as_fd(), &mut byte).err();
    same(
        read,
        Some(uverbs::error::Errno::AGAIN),
        "reading without an event",
    )
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
        error.io_kind(),
        std::io::ErrorKind::InvalidInput,
        "the kind",
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
        context.query_port(1)?.state,
        uverbs::device::PortState::Down,
        "the state",
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
        context.query_port(1)?.state,
        uverbs::device::PortState::Active,
        "the state",
    )
}

/// Catches events that carry another number than [`Cq::id`] and [`uverbs::Qp::id`].
fn queue_pairs_and_queues_are_named() -> Result {
    // A message that comes before this side is ready to send: rxe has no COMM_EST, but a queue that overflows
    // has.
    let setup = Setup {
        cqe: 1,
        options: ConnectOptions::default(),
        ..Setup::default()
    };
    let mut pair = Pair::<Rc>::with(&setup)?;
    let events = pair.context.async_events()?;
    let capacity = pair.a.cq.capacity();
    let room = u64::from(capacity) + device().spare_completions(capacity);
    let to = pair.b.mr.remote();
    let mut batch = pair.a.qp.batch();
    for id in 0..=room {
        batch.signaled(id).write(Inline(b"x"), to)?;
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
    let told = pair.a.cq.poll().map(drop);
    same(told, Err(PollError::Overrun), "the poll behind the event")?;
    // What the queue held is still there.
    completions(&mut pair.a.cq, room as usize)?;
    Ok(())
}

/// The number of a queue pair, which no other has.
const SENTINEL: u64 = u64::MAX - 7;

/// Everything that has been told of a context, up to an event that is provoked here: it comes behind what has
/// happened before.
fn told_so_far(pair: &Pair<Rc>, events: &AsyncEvents) -> Result<Vec<AsyncEvent>> {
    let mut cq = pair.context.create_cq(1)?;
    let mut sentinel = pair.pd.qp(&cq).user_data(SENTINEL).create::<Rc>()?;
    same(sentinel.id(), SENTINEL, "the number of choice")?;
    sentinel.connect(&sentinel.endpoint()?)?;
    let kind = match device().is_rxe() {
        true => {
            sentinel.modify(&QpAttr {
                state: Some(QpState::SQD),
                sqd_async_notify: Some(true),
                ..QpAttr::default()
            })?;
            AsyncEventType::SQ_DRAINED
        }
        // The adapter has no such state, and tells of a wrong key.
        false => {
            let mut batch = sentinel.batch();
            let to = unknown_key(pair.b.mr.remote());
            batch.signaled(1).write(Inline(b"x"), to)?;
            batch.ring()?;
            completion(&mut cq)?;
            AsyncEventType::QP_ACCESS_ERR
        }
    };
    let end = AsyncEvent {
        kind,
        source: EventSource::Qp(SENTINEL),
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

/// The same memory by a key that nobody has.
fn unknown_key(memory: RemoteSlice) -> RemoteSlice {
    RemoteSlice {
        rkey: RemoteKey(!memory.rkey.0),
        ..memory
    }
}

/// A request that breaks the queue pairs, and what is told of the responder's.
struct Breach {
    what: &'static str,
    /// Posts the request; the requester may be given its memory.
    post: fn(&mut Pair<Rc>) -> Result,
    /// What soft-RoCE tells since Linux 7.2; before, it tells nothing of this kind.
    rxe: Option<AsyncEventType>,
    adapter: Option<AsyncEventType>,
}

const ACCESS: Option<AsyncEventType> = Some(AsyncEventType::QP_ACCESS_ERR);

/// Everything for which the specification has an event of a queue pair's responder, or soft-RoCE could have
/// one.
///
/// soft-RoCE has `QP_ACCESS_ERR` alone, of RC, for keys and ranges that are wrong, unless a receive request
/// can tell it (`get_rkey_violation_state` and `do_qp_event` in `rxe_resp.c`). It never raises `QP_FATAL`,
/// `QP_REQ_ERR`, `PATH_MIG` or `PATH_MIG_ERR`: whatever else fails is answered and completed
/// (`do_class_ac_error`), and no event is made.
const BREACHES: [Breach; 8] = [
    Breach {
        what: "a WRITE with an unknown key",
        post: |pair| {
            let to = unknown_key(pair.b.mr.remote());
            post(pair, |request, _| Ok(request.write(Inline(b"x"), to)?))
        },
        rxe: ACCESS,
        adapter: ACCESS,
    },
    Breach {
        what: "a WRITE beyond the end",
        post: |pair| {
            let mut to = pair.b.mr.remote();
            to.address += to.length - 4;
            post(pair, |request, _| {
                Ok(request.write(Inline(b"8 bytes."), to)?)
            })
        },
        rxe: ACCESS,
        adapter: ACCESS,
    },
    Breach {
        what: "a READ with an unknown key",
        post: |pair| {
            let from = unknown_key(pair.b.mr.remote()).slice(..8)?;
            post(pair, |request, own| Ok(request.read(own, from)?))
        },
        rxe: ACCESS,
        adapter: ACCESS,
    },
    Breach {
        what: "a FETCH_ADD with an unknown key",
        post: |pair| {
            let at = unknown_key(pair.b.mr.remote()).slice(..8)?;
            post(pair, |request, own| Ok(request.fetch_add(own, at, 1)?))
        },
        rxe: ACCESS,
        adapter: ACCESS,
    },
    Breach {
        what: "a WRITE with immediate data and an unknown key",
        post: |pair| {
            pair.b.post_recv(2, 0..64)?;
            let to = unknown_key(pair.b.mr.remote());
            post(pair, |request, _| {
                Ok(request.write_imm(Inline(b"x"), to, 7)?)
            })
        },
        rxe: None,
        adapter: ACCESS,
    },
    Breach {
        what: "a READ that the queue pair does not allow",
        post: |pair| {
            let from = pair.b.mr.remote().slice(..8)?;
            pair.b.qp.modify(&QpAttr {
                access: Some(Access::REMOTE_WRITE),
                ..QpAttr::default()
            })?;
            post(pair, |request, own| Ok(request.read(own, from)?))
        },
        rxe: None,
        adapter: ACCESS,
    },
    Breach {
        what: "a message longer than its receive",
        post: |pair| {
            pair.b.post_recv(2, 0..4)?;
            post(pair, |request, _| Ok(request.send(Inline(b"8 bytes."))?))
        },
        rxe: None,
        adapter: None,
    },
    Breach {
        what: "a receive into memory that is gone",
        post: |pair| {
            let gone = pair.pd.register(vec![0_u8; 64], ALL)?;
            // SAFETY: nobody has references to memory that may get the key.
            let slice = unsafe { pair.pd.raw_slice(gone.lkey(), gone.iova(), 64)? };
            drop(gone);
            let mut batch = pair.b.qp.recv_batch();
            batch.post(2, slice)?;
            batch.ring();
            post(pair, |request, _| Ok(request.send(Inline(b"8 bytes."))?))
        },
        rxe: None,
        adapter: None,
    },
];

/// Posts one request that can name 8 bytes of the requester's own.
fn post(
    pair: &mut Pair<Rc>,
    fill: impl for<'b, 'q> FnOnce(Request<'b, 'q, Rc>, LocalSlice<'q>) -> Result,
) -> Result {
    let own = pair.a.mr.slice(..8)?;
    fill(pair.a.qp.one(1), own)
}

/// Catches events that are lost, come twice, name another object or are of another kind than the driver's;
/// and an event that a driver has learnt to tell.
fn what_is_told_of_broken_queue_pairs() -> Result {
    let setup = Setup::default();
    let mut pair = Pair::<Rc>::with(&setup)?;
    let events = pair.context.async_events()?;
    for breach in BREACHES {
        let what = breach.what;
        (breach.post)(&mut pair)?;
        let status = completion(&mut pair.a.cq)?.status;
        same(
            status == WcStatus::SUCCESS,
            false,
            &format!("{what}: a success"),
        )?;
        let kind = match device().is_rxe() {
            true => breach.rxe.filter(|_| kernel() >= (7, 2)),
            false => breach.adapter,
        };
        let source = EventSource::Qp(pair.b.qp.id());
        let expected = kind.map(|kind| AsyncEvent { kind, source });
        let told = told_so_far(&pair, &events)?;
        same(told, Vec::from_iter(expected), &format!("told of {what}"))?;
        for side in [&mut pair.a, &mut pair.b] {
            side.qp.reset()?;
            for _ in &mut side.cq.poll()? {}
        }
        pair.connect(&setup.options)?;
    }
    Ok(())
}

/// Catches a message that is lost when it comes before its queue pair is ready to send, for which the
/// specification has `COMM_EST`. Neither device tells: soft-RoCE takes the message and raises nothing
/// (`check_qp_state` and the handlers behind it in `rxe_recv.c`, `rxe_resp.c`). So a server that waits with
/// its last step for the event would wait for ever.
fn an_early_message_is_not_told() -> Result {
    let setup = Setup::default();
    let mut pair = Pair::<Rc>::unconnected(&open()?, &setup)?;
    let events = pair.context.async_events()?;
    let options = &setup.options;
    let (a, b) = (
        pair.a.qp.endpoint_with(options)?,
        pair.b.qp.endpoint_with(options)?,
    );
    pair.b.qp.modify(&QpAttr {
        state: Some(QpState::INIT),
        port: Some(options.port),
        pkey_index: Some(options.pkey_index),
        access: Some(options.access),
        ..QpAttr::default()
    })?;
    pair.b.qp.modify(&QpAttr {
        state: Some(QpState::RTR),
        path: Some(pair.context.path_to(&a, options)?),
        path_mtu: Some(pair.context.query_port(1)?.active_mtu),
        dest_qpn: Some(a.qpn),
        rq_psn: Some(a.psn),
        max_dest_rd_atomic: Some(options.max_dest_rd_atomic),
        min_rnr_timer: Some(options.min_rnr_timer),
        ..QpAttr::default()
    })?;
    pair.b.post_recv(2, 0..64)?;
    pair.a.qp.connect_with(&b, options)?;
    send(&mut pair, false)?;
    same(completion(&mut pair.b.cq)?.ok()?.wr_id, 2, "the receive")?;
    same(pair.b.qp.query()?.state, QpState::RTR, "the state")?;
    same(told_so_far(&pair, &events)?, Vec::new(), "what was told")
}

/// Catches a queue pair that goes on when its receives can no longer be told, and events that name another
/// object.
fn a_full_queue_fails_its_receiver() -> Result {
    let setup = Setup {
        cqe: 3,
        ..Setup::default()
    };
    let mut pair = Pair::<Rc>::with(&setup)?;
    let events = pair.context.async_events()?;
    let capacity = pair.b.cq.capacity();
    let room = u64::from(capacity) + device().spare_completions(capacity);
    for id in 0..room + 1 {
        pair.b.post_recv(id, 0..64)?;
    }
    // Without completions, or the sender's queue would overflow too.
    let mut batch = pair.a.qp.batch();
    for id in 0..room + 1 {
        batch.unsignaled(id).send(Inline(b"x"))?;
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
            same(of_b.contains(&event.source), true, "the object")?;
        }
    }
    let told = pair.b.cq.poll().map(drop);
    same(told, Err(PollError::Overrun), "the poll behind the event")?;
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
