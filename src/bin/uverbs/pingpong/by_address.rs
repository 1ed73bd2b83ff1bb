//! The two sides find each other by address (rdma_cm), instead of over a TCP connection.

use std::time::Duration;

use uverbs::cm::{self, Link as Manager, Params, Pending};
use uverbs::{Access, Endpoint, Qp, Rc, transport::Any};

use super::link::Link;
use super::options::{Options, Transport};
use crate::failure::{Failure, Kind, Result};

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
    let resolving = cm::resolve::<Rc>((server, options.port))?.start()?;
    let way = resolving.within(options.connect_timeout).map_err(peer)?;
    let options = &options.over_port(way.port());
    Link::with(&way.device()?, options, |pd, cq, caps| {
        let qp = pd.qp(cq).caps(caps).create::<Rc>()?;
        let connecting = way.connect(qp, &params(), b"").map_err(peer)?;
        let connection = connecting.within(options.connect_timeout).map_err(peer)?;
        Ok(parts(connection))
    })
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
