//! Listeners: addresses, ports, backlogs, refusals.

use libtest_mimic::Trial;
use support::{LIMIT, Result, fail, same, says, test_without_leaks};
use uverbs::cm::{self, Params, Pending, RejectReason};
use uverbs::error::Errno;
use uverbs::qp::QpState;
use uverbs::{Cause, Rc};

use crate::ground::{Side, both, listener, own_address, request, way_to};

/// A test with its name.
type Named = (&'static str, fn() -> Result);

pub(crate) fn tests() -> Vec<Trial> {
    let tests: [Named; 6] = [
        ("listen::on_a_port", on_a_port),
        ("listen::on_the_wildcards", on_the_wildcards),
        ("listen::loopback_is_refused", loopback_is_refused),
        ("listen::a_port_in_use", a_port_in_use),
        ("listen::reject", reject),
        ("listen::a_dropped_request", a_dropped_request),
    ];
    tests
        .map(|(name, run)| test_without_leaks(name, run))
        .into()
}

/// Catches a port that is not the one that was asked for, or not told.
fn on_a_port() -> Result {
    let chosen = listener()?.local_addr();
    same(chosen.port() != 0, true, "the port that the kernel chose")?;
    let listener = cm::listen::<Rc>(chosen)?.backlog(3).start()?;
    same(listener.local_addr(), chosen, "the same port again")
}

/// Catches wildcards that do not take every address, and a listener for IPv6 alone that takes IPv4.
fn on_the_wildcards() -> Result {
    let side = Side::new()?;
    for (address, v6only, takes) in [
        ("0.0.0.0:0", None, true),
        ("[::]:0", Some(false), true),
        ("[::]:0", Some(true), false),
    ] {
        let mut listen = cm::listen::<Rc>(address)?;
        if let Some(only) = v6only {
            listen = listen.v6only(only);
        }
        let listener = listen.start()?;
        let mut peer = own_address();
        peer.set_port(listener.local_addr().port());
        let way = way_to(peer)?;
        let connecting = way.connect(side.qp()?, &Params::default(), b"")?;
        if takes {
            let request = request(&listener)?;
            same(request.local_addr(), peer, "the address that was asked at")?;
            request.reject(b"")?;
        }
        let Err(refused) = connecting.within(LIMIT) else {
            return fail("nobody accepted");
        };
        // The kernel's answer for a listener on another address, too.
        same(reason_of(&refused.error)?, RejectReason::Consumer, address)?;
        same(listener.try_next()?.is_none(), true, "no request is left")?;
    }
    Ok(())
}

/// Catches a listener on a loopback address, which would let the whole network in.
fn loopback_is_refused() -> Result {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let Err(refused) = cm::listen::<Rc>(address)?.start() else {
            return fail(address);
        };
        says(&refused, &["bind_addr on listener on", "wildcard"])?;
        let peer = address.replace(":0", ":7");
        let Err(refused) = cm::resolve::<Rc>(peer.as_str())?.start() else {
            return fail(peer);
        };
        says(&refused, &["resolve_addr on connection to", "loopback"])?;
    }
    Ok(())
}

/// Catches an error that does not tell the address, or what the errno means.
fn a_port_in_use() -> Result {
    let listener = listener()?;
    let address = listener.local_addr();
    let Err(refused) = cm::listen::<Rc>(address)?.start() else {
        return fail("two listeners on one port");
    };
    same(refused.errno(), Some(Errno::ADDRINUSE), "the errno")?;
    says(&refused, &[&address.to_string(), "in use"])?;
    let Err(refused) = cm::listen::<Rc>("192.0.2.1:0")?.start() else {
        return fail("an address that this host does not have");
    };
    same(refused.errno(), Some(Errno::ADDRNOTAVAIL), "the errno")
}

pub(crate) fn reason_of(error: &uverbs::Error) -> Result<RejectReason> {
    match error.cause() {
        Cause::Refused(refusal) => Ok(refusal.reason),
        _ => fail(format!("no refusal: {error}")),
    }
}

/// Catches a refusal whose reason or data do not come, and a queue pair that does not come back as it was.
fn reject() -> Result {
    let listener = listener()?;
    let side = Side::new()?;
    let way = way_to(listener.local_addr())?;
    let mut qp = side.qp()?;
    way.init(&mut qp)?;
    side.receive(&mut qp)?;
    let qpn = qp.qpn();
    let connecting = way.connect(qp, &Params::default(), b"let me in")?;
    request(&listener)?.reject(b"no")?;
    let Err(refused) = connecting.within(LIMIT) else {
        return fail("nobody accepted");
    };
    let Cause::Refused(refusal) = refused.error.cause() else {
        return fail(format!("no refusal: {}", refused.error));
    };
    same(refusal.reason, RejectReason::Consumer, "the reason")?;
    same(refusal.private_data.len(), 148, "the field")?;
    same(&refusal.private_data[..3], b"no\0", "the data")?;
    same(refused.back.qpn(), qpn, "the queue pair")?;
    same(refused.back.state(), QpState::INIT, "its state")?;
    // Another attempt with the same queue pair, and the receive that it has.
    let way = way_to(listener.local_addr())?;
    let connecting = way.connect(refused.back, &Params::default(), b"please")?;
    let accepting = request(&listener)?.accept(side.qp()?, &Params::default(), b"")?;
    both(connecting, accepting).map(drop)
}

/// Catches a peer that is left to wait when its request is dropped.
fn a_dropped_request() -> Result {
    let listener = listener()?;
    let side = Side::new()?;
    let way = way_to(listener.local_addr())?;
    let connecting = way.connect(side.qp()?, &Params::default(), b"")?;
    drop(request(&listener)?);
    let Err(refused) = connecting.within(LIMIT) else {
        return fail("nobody accepted");
    };
    same(
        reason_of(&refused.error)?,
        RejectReason::Consumer,
        "the reason",
    )
}
