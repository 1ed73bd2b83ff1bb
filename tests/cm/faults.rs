//! Faults: nobody there, nobody who answers, peers that die, data that do not fit.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use support::{LIMIT, QUIET, Result, fail, only_on_rxe, same, says, test_without_leaks};
use uverbs::cm::{self, Params, Pending, RejectReason};
use uverbs::qp::QpState;
use uverbs::{Cause, Rc};

use crate::ground::{Side, Two, both, listener, own_address, request, way_to};
use crate::listen::reason_of;

/// A test with its name.
type Named = (&'static str, fn() -> Result);

pub(crate) fn tests() -> Vec<Trial> {
    let tests: [Named; 9] = [
        ("faults::no_listener", no_listener),
        ("faults::a_listener_that_never_accepts", never_accepts),
        ("faults::a_dropped_listener", dropped_listener),
        ("faults::too_much_private_data", too_much_private_data),
        ("faults::a_peer_that_gave_up", a_peer_that_gave_up),
        (
            "faults::a_confirmation_that_fails",
            a_confirmation_that_fails,
        ),
        ("faults::no_way", no_way),
        ("faults::a_silent_host", a_silent_host),
        ("faults::another_state", another_state),
    ];
    tests
        .map(|(name, run)| test_without_leaks(name, run))
        .into()
}

/// Catches a refusal that passes for something else, and a queue pair that is lost with it.
fn no_listener() -> Result {
    let address = listener()?.local_addr();
    let side = Side::new()?;
    let connecting = way_to(address)?.connect(side.qp()?, &Params::default(), b"")?;
    let Err(refused) = connecting.within(LIMIT) else {
        return fail("nobody listens");
    };
    same(
        reason_of(&refused.error)?,
        RejectReason::NoListener,
        "the reason",
    )?;
    says(
        &refused,
        &[
            "connect on connection to",
            &address.to_string(),
            "nobody listens",
        ],
    )?;
    same(refused.back.state(), QpState::INIT, "the queue pair")
}

/// Catches a deadline that is the kernel's and not the caller's.
fn never_accepts() -> Result {
    let listener = listener()?;
    let side = Side::new()?;
    let connecting = way_to(listener.local_addr())?.connect(side.qp()?, &Params::default(), b"")?;
    let request = request(&listener)?;
    let start = Instant::now();
    let limit = Duration::from_millis(300);
    let Err(late) = connecting.within(limit) else {
        return fail("nobody accepted");
    };
    let took = start.elapsed();
    same(took >= limit, true, "not before the limit")?;
    // Under emulation everything is slow; the kernel's own limit is minutes.
    same(took < LIMIT, true, "soon after the limit")?;
    same(
        matches!(late.error.cause(), Cause::TimedOut(_)),
        true,
        &late.to_string(),
    )?;
    same(late.back.state(), QpState::INIT, "the queue pair")?;
    drop(request);
    Ok(())
}

/// Catches requests that outlive their listener: one that was read and one that was not.
fn dropped_listener() -> Result {
    let listener = listener()?;
    let side = Side::new()?;
    let ask = || -> Result<_> {
        let way = way_to(listener.local_addr())?;
        Ok(way.connect(side.qp()?, &Params::default(), b"")?)
    };
    let first = ask()?;
    let taken = request(&listener)?;
    let second = ask()?;
    await_event(&listener)?;
    drop(listener);
    let Err(refused) = second.within(LIMIT) else {
        return fail("nobody accepted");
    };
    same(
        reason_of(&refused.error)?,
        RejectReason::Consumer,
        "the unread one",
    )?;
    // What was taken does not need its listener any more.
    let accepting = taken.accept(side.qp()?, &Params::default(), b"")?;
    both(first, accepting).map(drop)
}

/// Catches data that reach the kernel, which would refuse with EINVAL, and reject the peer besides.
fn too_much_private_data() -> Result {
    let listener = listener()?;
    let side = Side::new()?;
    let way = way_to(listener.local_addr())?;
    let Err(refused) = way.connect(side.qp()?, &Params::default(), &[1; 57]) else {
        return fail("57 bytes");
    };
    says(&refused, &["57 bytes of private data, a request takes 56"])?;
    let (way, qp) = refused.back;
    same(qp.state(), QpState::RESET, "the queue pair")?;
    let connecting = way.connect(qp, &Params::default(), &[1; 56])?;
    let request = request(&listener)?;
    same(request.private_data(), &[1; 56], "the request's data")?;
    let Err(refused) = request.accept(side.qp()?, &Params::default(), &[2; 197]) else {
        return fail("197 bytes");
    };
    says(
        &refused,
        &["197 bytes of private data, an acceptance takes 196"],
    )?;
    let (request, qp) = refused.back;
    let accepting = request.accept(qp, &Params::default(), &[2; 196])?;
    let active = connecting.within(LIMIT)?;
    same(active.private_data(), &[2; 196], "the acceptance's data")?;
    accepting.within(LIMIT)?;
    Ok(())
}

/// Catches a request that can be accepted although its sender is gone, and a queue pair that is lost then.
fn a_peer_that_gave_up() -> Result {
    let listener = listener()?;
    let side = Side::new()?;
    let connecting = way_to(listener.local_addr())?.connect(side.qp()?, &Params::default(), b"")?;
    let request = request(&listener)?;
    drop(connecting.cancel());
    // The kernel learns of it with a message, which takes a moment.
    std::thread::sleep(QUIET);
    let qp = side.qp()?;
    let qpn = qp.qpn();
    match request.accept(qp, &Params::default(), b"") {
        Err(refused) => {
            says(&refused, &["given up"])?;
            same(refused.back.1.qpn(), qpn, "the queue pair")
        }
        // The message had not come yet.
        Ok(accepting) => match accepting.within(LIMIT) {
            Err(refused) => same(refused.back.qpn(), qpn, "the queue pair"),
            Ok(_) => fail("the peer is gone"),
        },
    }
}

/// Catches a queue pair that goes on receiving from a peer that is gone, where the peer accepted and went
/// before this side could confirm: it is in the state ERR, whichever step the kernel refuses.
fn a_confirmation_that_fails() -> Result {
    let listener = listener()?;
    let side = Side::new()?;
    // The kernel tells of the acceptance first, and handles the farewell behind it meanwhile. Where that is
    // still on its way, the confirmation succeeds.
    for _ in 0..20 {
        let connecting =
            way_to(listener.local_addr())?.connect(side.qp()?, &Params::default(), b"")?;
        let accepting = request(&listener)?.accept(side.qp()?, &Params::default(), b"")?;
        await_event(&connecting)?;
        drop(accepting.cancel());
        std::thread::sleep(QUIET);
        let Err(failed) = connecting.within(LIMIT) else {
            continue;
        };
        says(&failed, &["on connection to", "Invalid argument"])?;
        same(
            failed.back.state(),
            QpState::ERR,
            "the state as it is known",
        )?;
        return same(failed.back.query()?.state, QpState::ERR, "the state");
    }
    fail("every confirmation was sent")
}

/// Waits until the kernel has something to tell.
fn await_event(file: &impl AsFd) -> Result {
    support::until("an event", || {
        use rustix::event::{PollFd, PollFlags, poll};
        use rustix::io::retry_on_intr;
        let mut files = [PollFd::new(file, PollFlags::IN)];
        let ready = retry_on_intr(|| poll(&mut files, Some(&rustix::time::Timespec::default())))?;
        Ok((ready == 1).then_some(()))
    })
}

/// Catches an address without a way to it that passes for another, and an error without its meaning.
fn no_way() -> Result {
    let refused = |resolving: uverbs::Result<cm::Resolving<Rc>>| match resolving {
        Err(error) => Ok(error),
        Ok(resolving) => match resolving.within(LIMIT) {
            Err(failed) => Ok(failed.error),
            Ok(way) => fail(format!("there is a way: {way:?}")),
        },
    };
    let error = refused(cm::resolve::<Rc>("192.0.2.9:7")?.start())?;
    says(&error, &["resolve_addr on connection to 192.0.2.9:7"])?;
    let elsewhere = "192.0.2.1:0".parse()?;
    let mut peer = own_address();
    peer.set_port(7);
    let error = refused(cm::resolve::<Rc>(peer)?.source(elsewhere).start())?;
    says(&error, &["resolve_addr on connection to 10.9.0.1:7"])
}

/// Catches a host without an answer that costs more than the limit; the kernel's own is more than a minute.
fn a_silent_host() -> Result {
    only_on_rxe("the adapter's network interface asks for the address, which fails before")?;
    let mut address = own_address();
    address.set_ip([10, 9, 0, 99].into());
    address.set_port(7);
    let side = Side::new()?;
    let connecting = way_to(address)?.connect(side.qp()?, &Params::default(), b"")?;
    let start = Instant::now();
    let Err(late) = connecting.within(Duration::from_millis(300)) else {
        return fail("nobody is there");
    };
    same(
        matches!(late.error.cause(), Cause::TimedOut(_)),
        true,
        &late.to_string(),
    )?;
    same(start.elapsed() < LIMIT, true, "the time")
}

/// Catches a queue pair that is taken in a state that it cannot be connected from.
fn another_state() -> Result {
    let two = Two::new()?;
    let (qp, link) = two.active.into_parts();
    let way = way_to(two.listener.local_addr())?;
    let Err(refused) = way.connect(qp, &Params::default(), b"") else {
        return fail("a queue pair in the state RTS");
    };
    says(
        &refused,
        &[
            "the queue pair is in the state",
            "RTS, not in RESET or INIT",
        ],
    )?;
    let (way, mut qp) = refused.back;
    drop(link);
    qp.reset()?;
    drop(way.connect(qp, &Params::default(), b"")?);
    Ok(())
}
