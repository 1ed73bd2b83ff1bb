//! The two sides find each other by address (rdma_cm), instead of over a TCP connection.

use std::time::{Duration, Instant};

use uverbs::cm::{
    self, Connection, Failed, IbAddr, Initiates, Link as Manager, Listens, Params, Pending,
    Request, Resolved,
};
use uverbs::transport::{Any, Connected};
use uverbs::{Access, Cause, Endpoint, Error, Gid, Qp, Rc, Uc, Ud};

use super::link::{Link, Parts, Peer};
use super::options::{By, Options, Transport};
use super::{exchange, meet};
use crate::failure::{Failure, Kind, Result, is_nobody, peer};
use crate::{rping, select};

/// How long to wait before the next attempt to connect.
const PAUSE: Duration = Duration::from_millis(50);

/// A link to its peer; receives are posted.
pub(super) fn meet(options: &Options, by: By) -> Result<(Link, Endpoint)> {
    match options.transport {
        Transport::Rc => connected::<Rc>(options, by),
        Transport::Uc => connected::<Uc>(options, by),
        Transport::Ud => datagrams(options, by),
        Transport::Srd => Err(Failure::new(
            Kind::Usage,
            "--cm is for rc, uc and ud: no address leads to a queue pair of a device's own type",
        )),
    }
}

fn connected<T>(options: &Options, by: By) -> Result<(Link, Endpoint)>
where
    T: Initiates + Listens + Connected,
{
    let (mut link, manager) = match &options.server {
        Some(server) => as_client::<T>(server, options, by)?,
        None => as_server::<T>(options, by)?,
    };
    link.manager = Some(manager);
    let remote = link.remote()?;
    Ok((link, remote))
}

/// The game needs nothing of a connection: it only sends.
fn params() -> Params {
    Params {
        access: Access::empty(),
        ..Params::default()
    }
}

fn parts<T: Connected + cm::Space>(connection: Connection<Qp<T>>) -> (Qp<Any>, Manager) {
    let (qp, manager) = connection.into_parts();
    (qp.into_any(), manager)
}

fn as_client<T>(server: &str, options: &Options, by: By) -> Result<(Link, Manager)>
where
    T: Initiates + Connected,
{
    let look = |deadline| way_to::<T>(server, options.port, by, deadline);
    let way = look(Instant::now() + options.connect_timeout)?;
    let options = &options.over_port(way.port());
    Link::with(&way.device()?, options, |made: &Parts<'_>| {
        let mut qp = made.qp::<T>()?;
        way.init(&mut qp)?;
        made.post_receives(&mut qp)?;
        // The time that this side took to make its objects is not subtracted from the server's time.
        let deadline = Instant::now() + options.connect_timeout;
        Ok(parts(connect(way, qp, deadline, look)?))
    })
}

fn way_to<T: Initiates>(server: &str, port: u16, by: By, deadline: Instant) -> Result<Resolved<T>> {
    match by {
        By::Ip => meet::way_to(&meet::resolve(server, port)?, until(deadline)),
        By::Gid => {
            let address = IbAddr::new(gid(server)?, port);
            meet::found(cm::resolve_ib(address), until(deadline))
        }
    }
}

fn gid(text: &str) -> Result<Gid> {
    let gid = text.parse();
    gid.map_err(|_| Failure::new(Kind::Usage, format_args!("{text} is no GID")))
}

fn until(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// Connects to the server, and retries for some time while it does not listen yet.
fn connect<T: Initiates + Connected>(
    mut way: Resolved<T>,
    mut qp: Qp<T>,
    deadline: Instant,
    look: impl Fn(Instant) -> Result<Resolved<T>>,
) -> Result<Connection<Qp<T>>> {
    let mut patience = Patience::until(deadline);
    loop {
        let connecting = way.connect(qp, &params(), b"").map_err(peer)?;
        let failed = match connecting.within(until(deadline)) {
            Ok(connection) => return Ok(connection),
            Err(failed) => failed,
        };
        qp = patience.after(failed)?;
        way = look(deadline).map_err(|failure| patience.told(failure))?;
    }
}

/// Retries until some time has passed, for a server that may not listen yet.
struct Patience {
    deadline: Instant,
    /// The last refusal: no program listened.
    refused: Option<Error>,
}

impl Patience {
    fn until(deadline: Instant) -> Self {
        Self {
            deadline,
            refused: None,
        }
    }

    /// Waits a little if no program listened and there is time for another attempt. Fails otherwise: with
    /// this attempt's error, or with the one before if this attempt was cut short.
    fn after<B>(&mut self, failed: Failed<B>) -> Result<B> {
        let Failed { back, error } = failed;
        if !is_nobody(&error) || until(self.deadline) < 2 * PAUSE {
            let failure = Failure::new(Kind::Peer, &error);
            return Err(match error.cause() {
                Cause::TimedOut(_) => self.told(failure),
                _ => failure,
            });
        }
        self.refused = Some(error);
        std::thread::sleep(PAUSE);
        Ok(back)
    }

    /// The failure to report: the last refusal, if this failure is only that the time is over.
    fn told(&self, failure: Failure) -> Failure {
        match &self.refused {
            Some(refused) if until(self.deadline).is_zero() => {
                Failure::new(Kind::Peer, refused.clone())
            }
            _ => failure,
        }
    }
}

/// The first request that comes.
fn first_request<T: Listens>(port: u16, by: By, gid: Gid) -> Result<Request<T>> {
    let listener = match by {
        By::Ip => rping::on_all_addresses(port)?,
        By::Gid => {
            let listen = cm::listen_ib(IbAddr::new(gid, port));
            listen.start().map_err(select::reason)?
        }
    };
    Ok(listener.next()?)
}

/// The GID of the first device's first port: a listener for datagrams cannot listen on all InfiniBand ports.
fn first_gid() -> Result<Gid> {
    let context = select::one(None)?.open()?;
    Ok(context.query_gid(1, 0)?.gid)
}

fn as_server<T>(options: &Options, by: By) -> Result<(Link, Manager)>
where
    T: Initiates + Listens + Connected,
{
    let request = first_request::<T>(options.port, by, Gid::default())?;
    let options = &options.over_port(request.port());
    Link::with(&request.device()?, options, |made: &Parts<'_>| {
        let mut qp = made.qp::<T>()?;
        request.init(&mut qp)?;
        made.post_receives(&mut qp)?;
        let accepting = request.accept(qp, &params(), b"").map_err(peer)?;
        Ok(parts(accepting.within(options.timeout).map_err(peer)?))
    })
}

/// Each side sends the other its endpoint, in the lookup and in the answer: the server learns nothing else
/// about the client.
fn datagrams(options: &Options, by: By) -> Result<(Link, Endpoint)> {
    let (mut link, (peer, remote)) = match &options.server {
        Some(server) => asking(server, options, by)?,
        None => answering(options, by)?,
    };
    link.speak_to(peer);
    Ok((link, remote))
}

fn asking(server: &str, options: &Options, by: By) -> Result<(Link, (Peer, Endpoint))> {
    let look = |deadline| way_to::<Ud>(server, options.port, by, deadline);
    let mut way = look(Instant::now() + options.connect_timeout)?;
    let options = &options.over_port(way.port());
    Link::with(&way.device()?, options, |made: &Parts<'_>| {
        let mut qp = made.qp::<Ud>()?;
        way.activate(&mut qp)?;
        made.post_receives(&mut qp)?;
        let question = exchange::question(&made.endpoint_of(&qp)?)?;
        let deadline = Instant::now() + options.connect_timeout;
        let mut patience = Patience::until(deadline);
        let found = loop {
            match way.look_up(&question)?.within(until(deadline)) {
                Ok(found) => break found,
                Err(failed) => patience.after(failed)?,
            }
            way = look(deadline).map_err(|failure| patience.told(failure))?;
        };
        let remote = exchange::receive_endpoint(&mut found.private_data())?;
        let peer = Peer {
            path: made.pd.create_ah(found.path())?,
            qpn: found.qpn(),
            qkey: found.qkey(),
        };
        Ok((qp.into_any(), (peer, remote)))
    })
}

fn answering(options: &Options, by: By) -> Result<(Link, (Peer, Endpoint))> {
    let gid = match by {
        By::Ip => Gid::default(),
        By::Gid => first_gid()?,
    };
    let request = first_request::<Ud>(options.port, by, gid)?;
    let options = &options.over_port(request.port());
    Link::with(&request.device()?, options, |made: &Parts<'_>| {
        let mut qp = made.qp::<Ud>()?;
        request.activate(&mut qp)?;
        made.post_receives(&mut qp)?;
        let remote = exchange::asked(request.private_data())?;
        let peer = Peer {
            path: made.path_to(&remote)?,
            qpn: remote.qpn,
            // The client uses the Q_Key of all datagrams of the connection manager, as this side does.
            qkey: qp.query()?.qkey,
        };
        let mut answer = Vec::new();
        exchange::send_endpoint(&mut answer, &made.endpoint_of(&qp)?)?;
        request
            .answer_with(&qp, &answer)
            .map_err(crate::failure::peer)?;
        Ok((qp.into_any(), (peer, remote)))
    })
}
