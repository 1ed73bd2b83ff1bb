//! Peers that are killed, at each step of a connection.

use libtest_mimic::Trial;
use support::role::{self, Peer, Role};
use support::{LIMIT, Result, fail, same, says, test_without_leaks, until};
use uverbs::cm::{Connecting, Event, Params, Pending, RejectReason};
use uverbs::qp::QpState;
use uverbs::{Cause, Qp, Rc};

use crate::connect::readable;
use crate::ground::{Side, listener, own_address, request, way_to};
use crate::listen::reason_of;

pub(crate) const ROLES: [Role; 2] = [("asks", asks), ("answers", answers)];

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test_without_leaks("killed::before_it_takes_the_request", || {
            unanswered("listens")
        }),
        test_without_leaks("killed::before_it_answers", || unanswered("takes")),
        test_without_leaks("killed::when_it_has_accepted", after_accepting),
        test_without_leaks("killed::while_it_asks", while_asking),
        test_without_leaks("killed::while_connected", || connected("answers")),
        test_without_leaks("killed::while_connected_as_it_asked", || connected("asks")),
    ]
}

/// Asks at the port of its first argument, until the step of its second.
fn asks() -> Result {
    let words = role::words()?;
    let [port, until] = &words[..] else {
        return fail("a port and a step");
    };
    let mut address = own_address();
    address.set_port(port.parse()?);
    let side = Side::new()?;
    let connecting = way_to(address)?.connect(side.qp()?, &Params::default(), b"")?;
    if until == "asks" {
        return role::stay(until);
    }
    let _connection = connecting.within(LIMIT)?;
    role::stay(until)
}

/// Says its port, and answers until the step of its argument.
fn answers() -> Result {
    let words = role::words()?;
    let until = words.first().ok_or("a step")?;
    let listener = listener()?;
    let side = Side::new()?;
    println!("{}", listener.local_addr().port());
    if until == "listens" {
        return role::stay(until);
    }
    let request = request(&listener)?;
    if until == "takes" {
        return role::stay(until);
    }
    let accepting = request.accept(side.qp()?, &Params::default(), b"")?;
    if until == "accepts" {
        return role::stay(until);
    }
    let _connection = accepting.within(LIMIT)?;
    role::stay(until)
}

/// A peer that answers until this step, and the connection to it under way.
fn ask(side: &Side, until: &str) -> Result<(Peer, Connecting<Qp<Rc>>)> {
    let mut peer = Peer::start("answers", &[until])?;
    let mut address = own_address();
    address.set_port(peer.hear()?.parse()?);
    let connecting = way_to(address)?.connect(side.qp()?, &Params::default(), b"")?;
    Ok((peer, connecting))
}

/// Catches a peer that is waited for after its end, and a queue pair that is lost with it.
fn unanswered(until: &str) -> Result {
    let side = Side::new()?;
    let (mut peer, connecting) = ask(&side, until)?;
    same(peer.hear()?, until.to_owned(), "the step")?;
    peer.kill()?;
    let Err(refused) = connecting.within(LIMIT) else {
        return fail("nobody accepted");
    };
    // A request that was on its way still finds nobody.
    let reason = reason_of(&refused.error)?;
    let expected = [RejectReason::Consumer, RejectReason::NoListener];
    same(expected.contains(&reason), true, &format!("{reason:?}"))?;
    same(refused.back.state(), QpState::INIT, "the queue pair")
}

/// Catches a connection to nobody that does not tell of its end. The acceptance has come; whether the kernel
/// still takes its confirmation depends on what comes next.
fn after_accepting() -> Result {
    let side = Side::new()?;
    let (mut peer, connecting) = ask(&side, "accepts")?;
    same(peer.hear()?, "accepts".to_owned(), "the step")?;
    // Else the kernel may act first on the word that the peer takes it back, which it cannot assign yet.
    until(
        "the acceptance",
        || Ok(readable(&connecting)?.then_some(())),
    )?;
    peer.kill()?;
    match connecting.within(LIMIT) {
        Err(refused) => same(refused.back.state(), QpState::ERR, "the queue pair"),
        Ok(connection) => {
            let told = connection.link().event_within(LIMIT)?;
            match told {
                Some(Event::Refused(_) | Event::Disconnected { .. }) => {}
                other => return fail(format!("{other:?} of a peer that is gone")),
            }
            let qp = connection.disconnect()?.within(LIMIT)?;
            same(qp.state(), QpState::ERR, "the queue pair")
        }
    }
}

/// Catches a request that is accepted for nobody.
fn while_asking() -> Result {
    let listener = listener()?;
    let port = listener.local_addr().port().to_string();
    let side = Side::new()?;
    let mut peer = Peer::start("asks", &[&port, "asks"])?;
    let request = request(&listener)?;
    same(peer.hear()?, "asks".to_owned(), "the step")?;
    peer.kill()?;
    match request.accept(side.qp()?, &Params::default(), b"") {
        Err(refused) => says(&refused, &["given up"])?,
        // The kernel has not heard of it yet.
        Ok(accepting) => match accepting.within(LIMIT) {
            Err(refused) => same(
                matches!(refused.error.cause(), Cause::Refused(_) | Cause::Os(_)),
                true,
                &refused.error.to_string(),
            )?,
            Ok(_) => return fail("the peer is gone"),
        },
    }
    same(listener.try_next()?.is_none(), true, "another request")
}

/// Catches an end that is not told.
fn connected(role: &str) -> Result {
    let side = Side::new()?;
    let (mut peer, connection) = match role {
        "answers" => {
            let (peer, connecting) = ask(&side, "connected")?;
            (peer, connecting.within(LIMIT)?)
        }
        _ => {
            let listener = listener()?;
            let port = listener.local_addr().port().to_string();
            let peer = Peer::start("asks", &[&port, "connected"])?;
            let request = request(&listener)?;
            let accepting = request.accept(side.qp()?, &Params::default(), b"")?;
            (peer, accepting.within(LIMIT)?)
        }
    };
    same(peer.hear()?, "connected".to_owned(), "the step")?;
    peer.kill()?;
    let told = connection.link().event_within(LIMIT)?;
    let end = Some(Event::Disconnected { timed_out: false });
    same(told, end, "the end")?;
    let qp = connection.disconnect()?.within(LIMIT)?;
    same(qp.state(), QpState::ERR, "the queue pair")
}
