//! The path to a peer: its address, the route, whether its connection manager answers, and whether datagrams
//! and a connection work, if a server there answers pings.
//!
//! Over a connection the ping is that of `rping`, so any such server answers it; [`serve`](super::serve)
//! answers datagrams.

use std::net::SocketAddr;
use std::time::Duration;

use uverbs::cm::{self, Params, Pending, Resolve, Resolved};
use uverbs::error::Verb;
use uverbs::{Caps, Cause, Error, Qp, Rc};

use super::{Check, Finding, datagram};
use crate::failure::{Unanswered, is_nobody};
use crate::rping;

/// A port on which no program listens: the answer is a refusal, which proves the path there and back.
const NOBODY: u16 = 1;
const PATIENCE: Duration = Duration::from_secs(5);

/// The findings about a server that may answer pings at this address.
pub(super) fn findings(at: SocketAddr) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut nobody = at;
    nobody.set_port(NOBODY);
    if let Err(finding) = go(nobody, &mut findings) {
        findings.push(*finding);
        return findings;
    }
    findings.push(pinged("datagrams", at, datagram::ping(at, PATIENCE)));
    findings.push(pinged("connection", at, rping::once(at, PATIENCE)));
    findings
}

/// Adds the findings on the path; returns the finding of the step that failed.
fn go(to: SocketAddr, findings: &mut Vec<Finding>) -> Result<(), Box<Finding>> {
    let check = |name| Check::new(name, to.ip());
    let lost = |name, error: Error, remedy| Box::new(check(name).broken(error, remedy));
    let resolved = cm::resolve::<Rc>(to)
        .and_then(Resolve::start)
        .and_then(|resolving| Ok(resolving.within(PATIENCE)?));
    let route = resolved.map_err(|error| match error.verb() {
        Verb::ResolveRoute => lost("route", error, "On InfiniBand, see the subnet manager."),
        _ => {
            let remedy = "Does `ping` reach it, and by a network device that has an RDMA device (`ip route \
                get`, `ip neighbour`, `uverbs devices`)?";
            lost("address", error, remedy)
        }
    })?;
    let own = route.local_addr().ip();
    findings.push(check("address").good(format_args!("from {own}")));
    let (qp, device) = queue_pair(&route)
        .map_err(|error| lost("queue pair", error, "See the checks of this host."))?;
    let port = route.port();
    findings.push(check("route").good(format_args!("by {device}, port {port}")));
    let asked = match route.connect(qp, &Params::default(), &[]) {
        Ok(connecting) => connecting
            .within(PATIENCE)
            .map(drop)
            .map_err(|failed| failed.error),
        Err(failed) => Err(failed.error),
    };
    match asked {
        Ok(()) => findings.push(check("answer").good("it has accepted a connection")),
        Err(error) if matches!(error.cause(), Cause::Refused(_)) => {
            findings.push(check("answer").good("its connection manager answers"));
        }
        Err(error) => {
            let remedy = "The way there exists, and no answer came: UDP port 4791 (RoCE v2) may be \
                blocked, or the peer has no RDMA device on that address.";
            return Err(lost("answer", error, remedy));
        }
    }
    Ok(())
}

/// A queue pair on the device that leads to the peer, with the device's name.
fn queue_pair(route: &Resolved<Rc>) -> uverbs::Result<(Qp<Rc>, String)> {
    let context = route.device()?.open()?;
    let cq = context.create_cq(2)?;
    let qp = context.alloc_pd()?.create_qp(&cq, Caps::default())?;
    Ok((qp, context.name().to_owned()))
}

/// The result of a ping, if a server there may answer it.
fn pinged(name: &'static str, at: SocketAddr, went: Result<(), Unanswered>) -> Finding {
    let check = Check::new(name, at);
    match went {
        Ok(()) => check.good("a ping went there and came back"),
        Err(Unanswered::Refused(error)) if is_nobody(&error) => check.good(
            "not tried: nobody answers pings there (`uverbs doctor --serve` on that host does)",
        ),
        Err(Unanswered::Refused(error)) => check.broken(
            error,
            "Somebody listens on that port who is no server of pings: choose another one (-p) on both hosts.",
        ),
        Err(Unanswered::Failed(failure)) => check.broken(
            failure,
            "The connection manager's messages go through, and these do not. Unless who listens there is no \
             server of pings, see the counters of both hosts, the MTU on the way, and the flow control (PFC) \
             of the priority.",
        ),
    }
}
