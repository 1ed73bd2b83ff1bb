//! Ours to ours: connections made, used and ended.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use support::{
    Hca, LIMIT, QUIET, Result, device, fail, open, same, says, test_on_adapter, test_without_leaks,
};
use uverbs::cm::{self, Event, First, Listener, Params, Pending, RejectReason, Resolved, Step};
use uverbs::qp::{Ece, QpState};
use uverbs::{Access, Inline, Rc, Uc};

use crate::ground::{Side, Two, both, listener, own_address, request, way_to};
use crate::listen::reason_of;

/// A test with its name.
type Named = (&'static str, fn() -> Result);

pub(crate) fn tests() -> Vec<Trial> {
    let tests: [Named; 11] = [
        ("connect::and_talk", and_talk),
        ("connect::unreliably", unreliably),
        (
            "connect::private_data_comes_whole",
            private_data_comes_whole,
        ),
        ("connect::from_a_source", from_a_source),
        ("connect::depths_are_agreed_on", depths_are_agreed_on),
        ("connect::attributes_are_ours", attributes_are_ours),
        ("connect::without_blocking", without_blocking),
        ("connect::disconnect", disconnect),
        ("connect::one_wait_for_both", one_wait_for_both),
        ("connect::a_queue_pair_again", a_queue_pair_again),
        ("connect::many", many),
    ];
    let mut tests = Vec::from(tests.map(|(name, run)| test_without_leaks(name, run)));
    tests.push(test_on_adapter(
        "connect::options_of_one_in_init",
        |_: Hca| options_of_one_in_init(),
    ));
    tests
}

/// Catches an answer about options that the queue pair of the accepting side does not use, since it was in
/// INIT before the request came.
fn options_of_one_in_init() -> Result {
    let listener = listener()?;
    let (here, there) = (Side::new()?, Side::new()?);
    let way = way_to(listener.local_addr())?;
    let mut other = there.qp()?;
    way.init(&mut other)?;
    let mut qp = here.qp()?;
    // One of the device's two options.
    let some = Ece {
        options: qp.query_ece()?.options & !0b10,
        ..qp.query_ece()?
    };
    qp.set_ece(some)?;
    let connecting = way.connect(qp, &Params::default(), b"")?;
    let accepting = request(&listener)?.accept(other, &Params::default(), b"")?;
    let (active, passive) = both(connecting, accepting)?;
    same(passive.query_ece()?, some, "what the accepting side uses")?;
    same(active.query_ece()?, some, "what the asking side uses")
}

/// Catches connections between the wrong queue pairs, and addresses of the wrong side.
fn and_talk() -> Result {
    let mut two = Two::new()?;
    same(two.active.state(), QpState::RTS, "the active side")?;
    same(two.passive.state(), QpState::RTS, "the passive side")?;
    same(
        two.active.peer_addr(),
        two.listener.local_addr(),
        "the peer of the active side",
    )?;
    same(
        two.active.local_addr(),
        two.passive.peer_addr(),
        "the peer of the passive side",
    )?;
    two.talk()
}

/// Catches unreliable connections that are asked for as reliable ones, or in their space of ports.
fn unreliably() -> Result {
    let listener = cm::listen::<Uc>(own_address())?.start()?;
    let way = cm::resolve::<Uc>(listener.local_addr())?;
    let way = way.start()?.within(LIMIT)?;
    write_and_send(way, &listener, b"request")?;
    // The same port of reliable connections has no listener.
    let side = Side::new()?;
    let way = way_to(listener.local_addr())?;
    let connecting = way.connect(side.qp()?, &Params::default(), b"")?;
    let Err(failed) = connecting.within(LIMIT) else {
        return fail("a listener for unreliable connections took a reliable one");
    };
    same(
        reason_of(&failed.error)?,
        RejectReason::NoListener,
        "the reason",
    )
}

/// Makes an unreliable connection, writes and sends over it, and ends it.
pub(crate) fn write_and_send(way: Resolved<Uc>, listener: &Listener<Uc>, data: &[u8]) -> Result {
    let (here, mut there) = (Side::new()?, Side::new()?);
    let connecting = way.connect(here.qp()?, &Params::default(), data)?;
    let request = listener.next_within(LIMIT)?.ok_or("no request came")?;
    same(
        &request.private_data()[..data.len()],
        data,
        "the request's data",
    )?;
    let mut qp = there.qp::<Uc>()?;
    request.init(&mut qp)?;
    there.receive(&mut qp)?;
    let accepting = request.accept(qp, &Params::default(), b"acceptance")?;
    let mut active = connecting.within(LIMIT)?;
    let passive = accepting.within(LIMIT)?;
    same(
        &active.private_data()[..10],
        b"acceptance",
        "the acceptance's data",
    )?;
    active.post(|batch| {
        batch
            .unsignaled(0)
            .write(Inline(b"written"), there.mr.remote().slice(64..71)?)?;
        batch.signaled(2).send(Inline(b"sent"))?;
        Ok(())
    })?;
    same(there.received()?, b"sent".to_vec(), "the message")?;
    let mut bytes = [0; 7];
    there.mr.read_at(64, &mut bytes)?;
    same(&bytes, b"written", "what was written before")?;
    passive.disconnect()?;
    Ok(())
}

/// Catches data that are cut off or not told in full: the field comes whole, with zeros behind the data.
fn private_data_comes_whole() -> Result {
    let two = Two::new()?;
    let field = |data: &[u8], length: usize| {
        let mut field = data.to_vec();
        field.resize(length, 0);
        field
    };
    let (active, passive) = (two.active.private_data(), two.passive.private_data());
    same(
        passive.to_vec(),
        field(b"request", 56),
        "the request's data",
    )?;
    same(
        active.to_vec(),
        field(b"acceptance", 196),
        "the acceptance's data",
    )
}

/// Catches a source that is not used, and options that the kernel does not take.
fn from_a_source() -> Result {
    let listener = listener()?;
    let resolving = cm::resolve::<Rc>(listener.local_addr())?
        .source(own_address())
        .type_of_service(0x20)
        .ack_timeout(14)
        .start()?;
    let way = resolving.within(LIMIT)?;
    same(way.local_addr().ip(), own_address().ip(), "the source")?;
    same(way.device()?.name(), device().name(), "the device")?;
    same(way.port(), 1, "the port")?;
    let side = Side::new()?;
    let connecting = way.connect(side.qp()?, &Params::default(), b"")?;
    let request = request(&listener)?;
    let accepting = request.accept(side.qp()?, &Params::default(), b"")?;
    let connection = connecting.within(LIMIT)?;
    accepting.within(LIMIT)?;
    let info = connection.query()?;
    same(info.timeout, 14, "the timeout")?;
    // On InfiniBand packets within the subnet have no network header.
    let class = if device().has_gids() { 0x20 } else { 0 };
    same(info.path.traffic_class, class, "the traffic class")
}

/// Catches depths that one side has and the other does not serve: the operations would fail. Soft-RoCE rounds
/// what it serves up to powers of two.
fn depths_are_agreed_on() -> Result {
    let few = Params {
        responder_resources: Some(4),
        initiator_depth: Some(2),
        ..Params::default()
    };
    let most = Params::default();
    for (active, passive) in [(&few, &most), (&most, &few)] {
        let two = Two::with(active, passive)?;
        let (a, p) = (two.active.query()?, two.passive.query()?);
        let (small, large) = match active == &few {
            true => (&a, &p),
            false => (&p, &a),
        };
        same(small.max_dest_rd_atomic, 4, "served by the small side")?;
        same(small.max_rd_atomic, 2, "under way from the small side")?;
        same(large.max_dest_rd_atomic, 2, "served by the large side")?;
        same(large.max_rd_atomic, 4, "under way from the large side")?;
    }
    Ok(())
}

/// Catches what the kernel proposes being taken where the caller has a say: access, and the RNR timer.
fn attributes_are_ours() -> Result {
    let params = Params {
        access: Access::REMOTE_READ,
        min_rnr_timer: 9,
        retry_cnt: 5,
        rnr_retry: 4,
        ..Params::default()
    };
    let two = Two::with(&params, &params)?;
    for connection in [&two.active, &two.passive] {
        let info = connection.query()?;
        same(
            info.access & !Access::LOCAL_WRITE,
            Access::REMOTE_READ,
            "access",
        )?;
        same(info.min_rnr_timer, 9, "the RNR timer")?;
        same(info.retry_cnt, 5, "the retries")?;
        same(info.rnr_retry, 4, "the RNR retries")?;
    }
    Ok(())
}

/// Catches a look that blocks, and a file that is readable without news.
fn without_blocking() -> Result {
    let listener = listener()?;
    same(listener.try_next()?.is_none(), true, "no request yet")?;
    same(readable(&listener)?, false, "the listener without news")?;
    let way = way_to(listener.local_addr())?;
    let side = Side::new()?;
    let mut connecting = way.connect(side.qp()?, &Params::default(), b"")?;
    support::until("the listener is readable", || {
        Ok(readable(&listener)?.then_some(()))
    })?;
    let request = listener.try_next()?.ok_or("no request")?;
    connecting = match connecting.try_finish()? {
        Step::Pending(still) => still,
        Step::Done(_) => return fail("nobody has accepted yet"),
    };
    let start = Instant::now();
    connecting = match connecting.wait_for(QUIET)? {
        Step::Pending(still) => still,
        Step::Done(_) => return fail("nobody has accepted yet"),
    };
    same(
        start.elapsed() >= QUIET,
        true,
        "the wait was as long as it was to be",
    )?;
    let accepting = request.accept(side.qp()?, &Params::default(), b"")?;
    support::until("the connection's file is readable", || {
        Ok(readable(&connecting)?.then_some(()))
    })?;
    let Step::Done(connection) = connecting.try_finish()? else {
        return fail("the answer is there");
    };
    let _passive = accepting.within(LIMIT)?;
    same(connection.link().try_event()?, None, "no event yet")
}

/// Whether there is news.
pub(crate) fn readable(file: &impl AsFd) -> Result<bool> {
    use rustix::event::{PollFd, PollFlags, poll};
    let none = rustix::time::Timespec::default();
    let mut files = [PollFd::new(file, PollFlags::IN)];
    Ok(rustix::io::retry_on_intr(|| poll(&mut files, Some(&none)))? == 1)
}

/// Catches an end that one side does not learn of, or that is not confirmed: that would come late, as timed
/// out.
fn disconnect() -> Result {
    let two = Two::new()?;
    let disconnecting = two.active.disconnect()?;
    let told = two.passive.link().event_within(LIMIT)?;
    same(
        told,
        Some(Event::Disconnected { timed_out: false }),
        "the passive side",
    )?;
    // It has been told already, so there is nothing more to wait for.
    let qp = two.passive.disconnect()?.within(LIMIT)?;
    same(qp.state(), QpState::ERR, "the passive queue pair")?;
    let qp = disconnecting.within(LIMIT)?;
    same(qp.state(), QpState::ERR, "the active queue pair")
}

/// Catches a queue pair that cannot be connected a second time.
fn a_queue_pair_again() -> Result {
    let listener = listener()?;
    let (here, there) = (Side::new()?, Side::new()?);
    let mut qp = here.qp()?;
    for round in 0..3u8 {
        let way = way_to(listener.local_addr())?;
        let connecting = way.connect(qp, &Params::default(), &[round])?;
        let request = request(&listener)?;
        same(request.private_data()[0], round, "the request")?;
        let accepting = request.accept(there.qp()?, &Params::default(), b"")?;
        let active = connecting.within(LIMIT)?;
        let passive = accepting.within(LIMIT)?;
        let disconnecting = active.disconnect()?;
        passive.link().event_within(LIMIT)?.ok_or("no end")?;
        drop(passive);
        qp = disconnecting.within(LIMIT)?;
        qp.reset()?;
    }
    Ok(())
}

/// Catches ids and files that stay behind.
fn many() -> Result {
    let files = || -> Result<usize> { Ok(std::fs::read_dir("/proc/self/fd")?.count()) };
    let before = files()?;
    let listener = listener()?;
    let (here, there) = (Side::new()?, Side::new()?);
    for _ in 0..32 {
        let way = way_to(listener.local_addr())?;
        let connecting = way.connect(here.qp()?, &Params::default(), b"")?;
        let accepting = request(&listener)?.accept(there.qp()?, &Params::default(), b"")?;
        let active = connecting.within(LIMIT)?;
        let passive = accepting.within(LIMIT)?;
        drop(active);
        passive.link().event_within(LIMIT)?.ok_or("no end")?;
    }
    drop((listener, here, there));
    same(files()?, before, "open files")
}

/// Catches a wait for completions that sleeps on when the peer is gone, one that does not wake up for a
/// completion, and a message that is lost behind the end.
fn one_wait_for_both() -> Result {
    let context = open()?;
    let channel = context.create_channel()?;
    let mut here = Side::on(&context)?;
    let mut bare = std::mem::replace(&mut here.cq, context.cq(64).channel(&channel).create()?);
    let there = Side::new()?;
    let listener = listener()?;
    let mut qp = here.qp()?;
    let way = way_to(listener.local_addr())?;
    way.init(&mut qp)?;
    here.receive(&mut qp)?;
    here.receive(&mut qp)?;
    let connecting = way.connect(qp, &Params::default(), b"")?;
    let accepting = request(&listener)?.accept(there.qp()?, &Params::default(), b"")?;
    let (active, mut passive) = both(connecting, accepting)?;
    let link = active.link();

    let refused = link.completions_or_event(&mut bare, LIMIT).err();
    let refused = refused.ok_or("there is no channel")?;
    says(&refused, &["no completion channel"])?;
    let short = Duration::from_millis(100);
    let neither = link.completions_or_event(&mut here.cq, short)?.is_none();
    same(neither, true, "nothing has come")?;
    let mut send = || -> Result {
        let mut batch = passive.batch();
        batch.signaled(1).send(Inline(b"hello"))?;
        Ok(batch.ring().map(drop)?)
    };
    let mut took = |count: usize| -> Result {
        let mut left = count;
        while left > 0 {
            match link.completions_or_event(&mut here.cq, LIMIT)? {
                Some(First::Output(mut completions)) => left -= completions.iter().count(),
                other => return fail(format!("{other:?}")),
            }
        }
        Ok(())
    };
    send()?;
    took(1)?;
    send()?;
    // It has acknowledged: the message is there before the farewell.
    let mut there_cq = there.cq;
    support::completions(&mut there_cq, 2)?;
    drop(passive);
    support::until("the farewell", || {
        use rustix::event::{PollFd, PollFlags, poll};
        let mut files = [PollFd::new(link, PollFlags::IN)];
        let ready = rustix::io::retry_on_intr(|| {
            poll(&mut files, Some(&rustix::time::Timespec::default()))
        })?;
        Ok((ready == 1).then_some(()))
    })?;
    took(1)?;
    match link.completions_or_event(&mut here.cq, LIMIT)? {
        Some(First::Event(event)) => same(event.ends(), true, &format!("{event:?}")),
        other => fail(format!("{other:?}")),
    }
}
