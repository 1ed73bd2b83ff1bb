//! How a channel begins: receives, a connection, and a greeting of each side.

use std::collections::VecDeque;

use super::super::connection::Connection;
use super::super::cq::Cq;
use super::super::op::{Op, Receive};
use super::super::qp::Qp;
use super::credits::{Answers, Credits};
use super::error::{ChannelCause, ChannelError};
use super::header::{HEADER, Kind};
use super::link::Link;
use super::{Channel, QUIET, exactly};
use crate::buf::{Pool, Wanted};
use crate::cm::{Failed, Params, Pending, Request, Resolved};
use crate::error::{Error, Subject, Verb};
use crate::pd::Pd;
use crate::qp::transport::Rc;
use crate::qp::{Caps, ConnectOptions, Endpoint};
use crate::readable::Readable;

/// The settings of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Receives that are posted ahead: this many messages may be in flight. At least 4, at most 65535.
    pub receives: u32,
    /// Bytes of each. A message that is longer, with its header of 32 bytes, stays in place, and the peer
    /// reads it there.
    pub size: usize,
}

/// 32 receives of 4 KiB.
impl Default for Settings {
    fn default() -> Self {
        Self {
            receives: 32,
            size: 4096,
        }
    }
}

/// A channel whose queue pair is not connected yet.
#[derive(Debug)]
pub struct Prepared {
    qp: Qp<Rc>,
    pool: Pool,
    settings: Settings,
}

/// The name of a peer that is not known yet, for errors.
const NOBODY: &str = "nobody yet";

/// The bytes of a header and a short message: what goes into requests.
pub(super) const INLINE: usize = 64;

impl Channel {
    /// Creates a queue pair for a channel. It needs room in the completion queue for its receives, and 32
    /// more.
    ///
    /// # Errors
    ///
    /// The settings are out of range; or as for [`Cq::create_qp`].
    pub fn prepare(
        cq: &Cq,
        pd: &Pd,
        pool: &Pool,
        settings: &Settings,
    ) -> Result<Prepared, ChannelError> {
        let failed = |cause| ChannelError {
            peer: NOBODY.into(),
            cause,
        };
        if !(4..=u32::from(u16::MAX)).contains(&settings.receives) || settings.size <= HEADER {
            let why = format!("{settings:?}: at least 4 receives of more than {HEADER} bytes");
            let error = Error::invalid(Verb::CreateQp, Subject::the("channel"), why);
            return Err(failed(error.into()));
        }
        let caps = Caps {
            max_send_wr: 2 * QUIET as u32,
            max_recv_wr: settings.receives,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: INLINE as u32,
        };
        let qp = cq.create_qp::<Rc>(pd, caps);
        let qp = qp.map_err(|error| failed(error.into()))?;
        Ok(Prepared {
            qp,
            pool: pool.clone(),
            settings: *settings,
        })
    }

    fn begin(
        (qp, link): (Qp<Rc>, Option<Link>),
        peer: String,
        (pool, settings): (Pool, Settings),
        posted: VecDeque<Op<Receive>>,
    ) -> Self {
        Self {
            room: qp.room(),
            qp,
            link,
            inlet: Wanted::of(pool.clone(), settings.size),
            pool,
            peer,
            settings,
            peer_size: None,
            credits: Credits::new(settings.receives),
            posted,
            inbox: VecDeque::new(),
            reading: None,
            offers: Vec::new(),
            next_offer: 0,
            awaited: None,
            answered: None,
            due: Answers::default(),
            quiet: VecDeque::new(),
            peer_closed: false,
            broken: None,
        }
    }

    /// Greets the peer, and waits for its greeting.
    async fn greet(mut self) -> Result<Self, ChannelError> {
        let credits = self.credits.greet();
        let size = self.settings.size as u32;
        self.control(Kind::Hello { size }, credits);
        let greeted = self.until(|channel, _| channel.peer_size.map(|_| Ok(())));
        match greeted.await {
            Ok(()) => Ok(self),
            Err(cause) => Err(self.failed(cause)),
        }
    }
}

/// Posts all of the first receives.
fn receives(
    qp: &mut Qp<Rc>,
    pool: &Pool,
    settings: &Settings,
) -> Result<VecDeque<Op<Receive>>, ChannelCause> {
    let receive = |_| Ok(qp.recv(exactly(pool.try_get(settings.size)?, settings.size)));
    (0..settings.receives).map(receive).collect()
}

/// One side's steps to a connection, which end with a channel.
async fn make<P>(
    mut prepared: Prepared,
    peer: String,
    init: Result<(), Error>,
    start: impl FnOnce(Qp<Rc>) -> Result<P, Error>,
    mut by: Box<dyn Readable + Send + Sync>,
) -> Result<Channel, ChannelError>
where
    P: Pending<Output = Connection<Rc>> + Unpin,
{
    let failed = |cause| ChannelError {
        peer: peer.clone(),
        cause,
    };
    let Prepared { qp, pool, settings } = &mut prepared;
    init.map_err(|error| failed(error.into()))?;
    let posted = receives(qp, pool, settings).map_err(failed)?;
    let Prepared { qp, pool, settings } = prepared;
    let pending = start(qp).map_err(|error| failed(error.into()))?;
    let connected = pending.finish(&mut by).await;
    let connection = connected.map_err(|Failed { error, .. }| failed(error.into()))?;
    let (qp, link) = connection.into_parts();
    let link = Link::new(link, by);
    Channel::begin((qp, Some(link)), peer, (pool, settings), posted)
        .greet()
        .await
}

impl Prepared {
    /// What the peer must know to connect.
    ///
    /// # Errors
    ///
    /// As for [`uverbs::Qp::endpoint_with`](crate::Qp::endpoint_with).
    pub fn endpoint_with(&self, options: &ConnectOptions) -> Result<Endpoint, ChannelError> {
        self.qp
            .endpoint_with(options)
            .map_err(|error| ChannelError {
                peer: NOBODY.into(),
                cause: error.into(),
            })
    }

    /// Connects to a peer whose endpoint came over another connection, and which has this one's. If this side
    /// sends long messages, the options must let the peer read.
    ///
    /// Such a channel learns that its peer has gone only when a message is not acknowledged.
    ///
    /// # Errors
    ///
    /// The pool does not have enough buffers, the connection cannot be made, or the peer greets with
    /// nonsense. The caller should set a limit: this waits for the greeting as long as the connection stands.
    pub async fn connect_with(
        mut self,
        peer: &Endpoint,
        options: &ConnectOptions,
    ) -> Result<Channel, ChannelError> {
        let name = format!("QP {:#x}", peer.qpn);
        let connected = (|| {
            self.qp.init(options)?;
            let posted = receives(&mut self.qp, &self.pool, &self.settings)?;
            self.qp.connect_with(peer, options)?;
            Ok(posted)
        })();
        match connected {
            Ok(posted) => {
                let Self { qp, pool, settings } = self;
                Channel::begin((qp, None), name, (pool, settings), posted)
                    .greet()
                    .await
            }
            Err(cause) => Err(ChannelError { peer: name, cause }),
        }
    }

    /// Connects to a peer by address. `by` is what the runtime contributes: the channel keeps it, and learns
    /// through it that the peer has gone.
    ///
    /// # Errors
    ///
    /// The pool does not have enough buffers, or the peer refuses, goes, or greets with nonsense. This waits
    /// for the greeting as long as the connection stands.
    pub async fn connect_to(
        mut self,
        way: Resolved<Rc>,
        params: &Params,
        by: impl Readable + Send + Sync + 'static,
    ) -> Result<Channel, ChannelError> {
        let peer = way.peer_addr().to_string();
        let init = self.qp.init_for(&way);
        let start = |qp: Qp<Rc>| Ok(qp.connect_to(way, params, b"")?);
        make(self, peer, init, start, Box::new(by)).await
    }

    /// Accepts a peer's request. `by` is what the runtime contributes, as for
    /// [`connect_to`](Self::connect_to).
    ///
    /// # Errors
    ///
    /// The pool does not have enough buffers, or the peer has given up, goes, or greets with nonsense. This
    /// waits for the greeting as long as the connection stands.
    pub async fn accept(
        mut self,
        request: Request<Rc>,
        params: &Params,
        by: impl Readable + Send + Sync + 'static,
    ) -> Result<Channel, ChannelError> {
        let peer = request.peer_addr().to_string();
        let init = self.qp.init_for_request(&request);
        let start = |qp: Qp<Rc>| Ok(qp.accept(request, params, b"")?);
        make(self, peer, init, start, Box::new(by)).await
    }
}
