//! The way to a peer: which device leads there, and whether the peer's connection manager answers.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use uverbs::cm::{self, Params, Pending, Resolve, Resolved};
use uverbs::{Caps, Cause, Error, Qp, Rc};

use super::{Check, Finding};

/// A port that nobody listens on: the answer is a refusal, which proves the way there and back.
const NOBODY: u16 = 1;
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) fn findings(peer: IpAddr) -> Vec<Finding> {
    let to = SocketAddr::new(peer, NOBODY);
    let mut findings = Vec::new();
    if let Err(finding) = go(to, &mut findings) {
        findings.push(*finding);
    }
    findings
}

/// Adds what was found on the way; fails with the step that did.
fn go(to: SocketAddr, findings: &mut Vec<Finding>) -> Result<(), Box<Finding>> {
    let check = |name| Check::new(name, to.ip());
    let lost = |name, error: Error, remedy| Box::new(check(name).broken(error, remedy));
    let resolved = cm::resolve::<Rc>(to)
        .and_then(Resolve::start)
        .and_then(|resolving| Ok(resolving.within(PATIENCE)?));
    let route = resolved.map_err(|error| {
        let remedy = "Does `ping` reach it, and by a network device that has an RDMA device (`ip route \
            get`, `uverbs devices`)?";
        lost("route", error, remedy)
    })?;
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
