//! The two sides find each other by address (rdma_cm), instead of over a TCP connection.

use std::time::{Duration, Instant};

use uverbs::cm::{self, Connection, Link as Manager, Params, Pending, RejectReason, Resolved};
use uverbs::{Access, Cause, Endpoint, Qp, Rc, transport::Any};

use super::link::Link;
use super::options::{Options, Transport};
use crate::failure::{Failure, Kind, Result};

/// How long to wait before the next attempt to connect.
const PAUSE: Duration = Duration::from_millis(50);

/// A link with its peer; receives are posted.
pub(super) fn meet(options: &Options) -> Result<(Link, Endpoint)> {
    if options.transport != Transport::Rc {
        let text = "--cm is for rc: rdma_cm has no connections of other kinds by IP address";
        return Err(Failure::new(Kind::Usage, text));
    }
    let (mut link, manager) = match &options.server {
        Some(server) => as_client(server, options)?,
        None => as_server(options)?,
    };
    link.manager = Some(manager);
    link.end.post_receives(options.rx_depth)?;
    let remote = link.remote()?;
    Ok((link, remote))
}

/// What the game needs of a connection, which is nothing: it only sends.
fn params() -> Params {
    Params {
        access: Access::empty(),
        ..Params::default()
    }
}

fn peer<B>(failed: cm::Failed<B>) -> Failure {
    Failure::new(Kind::Peer, failed.error)
}

fn parts(connection: cm::Connection<Rc>) -> (Qp<Any>, Manager) {
    let (qp, manager) = connection.into_parts();
    (qp.into_any(), manager)
}

fn as_client(server: &str, options: &Options) -> Result<(Link, Manager)> {
    let deadline = Instant::now() + options.connect_timeout;
    let way = way_to(server, options.port, deadline)?;
    let options = &options.over_port(way.port());
    Link::with(&way.device()?, options, |pd, cq, caps| {
        let qp = pd.qp(cq).caps(caps).create::<Rc>()?;
        let look = || way_to(server, options.port, deadline);
        Ok(parts(connect(way, qp, deadline, look)?))
    })
}

fn way_to(server: &str, port: u16, deadline: Instant) -> Result<Resolved<Rc>> {
    let resolving = cm::resolve::<Rc>((server, port))?.start()?;
    resolving.within(until(deadline)).map_err(peer)
}

fn until(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// Connects to the server, and tries again for some time while it does not listen yet.
fn connect(
    mut way: Resolved<Rc>,
    mut qp: Qp<Rc>,
    deadline: Instant,
    look: impl Fn() -> Result<Resolved<Rc>>,
) -> Result<Connection<Rc>> {
    loop {
        let connecting = way.connect(qp, &params(), b"").map_err(peer)?;
        let failed = match connecting.within(until(deadline)) {
            Ok(connection) => return Ok(connection),
            Err(failed) => failed,
        };
        let left = until(deadline);
        if left.is_zero() || !nobody_listens(&failed.error) {
            return Err(peer(failed));
        }
        std::thread::sleep(PAUSE.min(left));
        (way, qp) = (look()?, failed.back);
    }
}

fn nobody_listens(error: &uverbs::Error) -> bool {
    matches!(error.cause(), Cause::Refused(refusal) if refusal.reason == RejectReason::NoListener)
}

fn as_server(options: &Options) -> Result<(Link, Manager)> {
    let listener = cm::listen::<Rc>(("::", options.port))?;
    let request = listener.v6only(false).start()?.next()?;
    let options = &options.over_port(request.port());
    Link::with(&request.device()?, options, |pd, cq, caps| {
        let qp = pd.qp(cq).caps(caps).create::<Rc>()?;
        let accepting = request.accept(qp, &params(), b"").map_err(peer)?;
        let patience = options.patience().unwrap_or(Duration::MAX);
        Ok(parts(accepting.within(patience).map_err(peer)?))
    })
}
