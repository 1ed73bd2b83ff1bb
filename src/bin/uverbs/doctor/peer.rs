//! The path to a peer: its address, the route, whether its connection manager answers, and whether datagrams
//! and a connection work, if a server there answers pings.
//!
//! Over a connection the ping is that of `rping`, so any such server answers it; [`serve`](super::serve)
//! answers datagrams.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use uverbs::cm::{self, Params, Pending, Resolve, Resolved};
use uverbs::error::Verb;
use uverbs::{Caps, Cause, Device, Error, Qp, Rc};

use super::{Check, Finding, Verdict, datagram};
use crate::failure::{Unanswered, is_nobody};
use crate::rping;

/// A port on which no program listens: the answer is a refusal, which proves the path there and back.
const NOBODY: u16 = 1;
const PATIENCE: Duration = Duration::from_secs(5);

/// The findings about a server that may answer pings at one of these addresses: programs take the first that
/// has a way to it, and so do these checks.
pub(super) fn findings(addresses: &[SocketAddr]) -> Vec<Finding> {
    first_of(addresses.iter().map(|at| at_address(*at)))
}

/// The findings of the addresses up to the first without anything broken. What is broken before that one is
/// only a warning.
fn first_of(addresses: impl Iterator<Item = Vec<Finding>>) -> Vec<Finding> {
    let is_broken = |finding: &Finding| finding.verdict == Verdict::Broken;
    let mut all: Vec<Finding> = Vec::new();
    for findings in addresses {
        let works = !findings.iter().any(is_broken);
        if works {
            for finding in all.iter_mut().filter(|it| is_broken(it)) {
                finding.verdict = Verdict::Warning;
            }
        }
        all.extend(findings);
        if works {
            break;
        }
    }
    all
}

fn at_address(at: SocketAddr) -> Vec<Finding> {
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
            let remedy = nowhere(to, &error, has_only_efa());
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

/// What to do about an address that leads nowhere.
fn nowhere(to: SocketAddr, error: &Error, has_only_efa: bool) -> &'static str {
    let is_refused = matches!(error.cause(), Cause::Invalid(_));
    match to.ip() {
        ip if is_refused && ip.is_loopback() => {
            "Name an address of this host's RDMA network device; `uverbs gids` lists them."
        }
        IpAddr::V6(ip) if is_refused && ip.is_unicast_link_local() => {
            "Write it with its network device: fe80::1%eth0."
        }
        _ if has_only_efa => {
            "EFA has no connections by address: programs tell each other their endpoints, as `uverbs perf` does \
             over TCP."
        }
        _ => {
            "Does `ping` reach it, and by a network device that has an RDMA device (`ip route get`, \
             `ip neighbour`, `uverbs devices`)?"
        }
    }
}

fn has_only_efa() -> bool {
    let devices = uverbs::devices().unwrap_or_default();
    let is_efa = |device: &Device| device.driver().is_some_and(|it| it.to_string() == "efa");
    !devices.is_empty() && devices.iter().all(is_efa)
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
        Err(Unanswered::Refused(error)) if is_nobody(&error) => check.unknown(
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

#[cfg(test)]
mod tests {
    use uverbs::cm::Resolve;

    use super::*;

    /// Catches a host that is said to be out of reach because its first address is.
    #[test]
    fn the_first_address_that_works_counts() {
        let broken = || vec![Check::new("address", "::1").broken("no way", "ping")];
        let good = || vec![Check::new("address", "10.9.0.1").good("from 10.9.0.2")];
        let verdicts = |all: Vec<Vec<Finding>>| -> Vec<Verdict> {
            let all = first_of(all.into_iter());
            all.iter().map(|it| it.verdict).collect()
        };
        assert_eq!(verdicts(vec![good(), broken()]), [Verdict::Good]);
        assert_eq!(
            verdicts(vec![broken(), good(), broken()]),
            [Verdict::Warning, Verdict::Good]
        );
        assert_eq!(verdicts(vec![broken(), broken()]), [Verdict::Broken; 2]);
    }

    /// Catches advice to `ping` an address that is refused before anything is sent.
    #[test]
    fn the_remedy_fits_what_was_found() {
        let remedy = |address: &str, has_only_efa| {
            let to: SocketAddr = address.parse().unwrap();
            let error = cm::resolve::<Rc>(to).and_then(Resolve::start).err();
            // An address that is not refused needs a device: any other error stands for it.
            let error = error.unwrap_or_else(|| cm::resolve::<Rc>(&[][..]).unwrap_err());
            nowhere(to, &error, has_only_efa)
        };
        for (address, words) in [
            ("127.0.0.1:1", "uverbs gids"),
            ("[::1]:1", "uverbs gids"),
            ("[fe80::1]:1", "fe80::1%eth0"),
            ("192.0.2.1:1", "Does `ping` reach it"),
        ] {
            assert!(remedy(address, false).contains(words), "{address}");
        }
        assert!(remedy("192.0.2.1:1", true).contains("EFA"));
    }
}
