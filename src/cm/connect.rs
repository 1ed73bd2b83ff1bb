//! Requesting a connection from a peer.

use std::os::fd::{AsFd, BorrowedFd};

use uverbs_uapi::rdma_cm::{self as abi, Event, EventResp};

use super::command::{Accept, Connect, Reject};
use super::connection::{Connection, Link};
use super::data::{Message, Received};
use super::event;
use super::id::{Id, OWN};
use super::params::{Depths, Params};
use super::pending::describe::Describe;
use super::pending::{Failed, Pending, Step};
use super::queue_pair::{self, QueuePair};
use super::resolve::Resolved;
use super::route::Route;
use super::space::{End, Initiates};
use crate::error::{Error, Result, Subject, Verb};

impl<T: Initiates + End> Resolved<T> {
    /// Requests a connection from the peer with this queue pair, which is in RESET or INIT.
    ///
    /// `data` is private data of the request: at most 56 bytes, or 92 with InfiniBand addresses. The peer
    /// gets it padded with zeros. With InfiniBand addresses the kernel overwrites the first byte, which must
    /// be 0, and the second must not look like the start of IP addresses: its upper four bits must not be 4
    /// or 6.
    ///
    /// # Errors
    ///
    /// The queue pair belongs to another device or is in another state, the data is too long, a number in
    /// `params` is above its limit, or the device has been removed. The error returns the queue pair and the
    /// route. Manual page: `rdma_connect(3)`.
    #[doc(alias = "rdma_connect")]
    pub fn connect<Q: QueuePair<Kind = T>>(
        self,
        mut qp: Q,
        params: &Params,
        data: &[u8],
    ) -> Result<Connecting<Q>, Failed<(Self, Q)>> {
        match self.ask(&mut qp, params, data) {
            Ok(depths) => Ok(Connecting {
                id: self.id,
                route: self.route,
                params: params.clone(),
                depths,
                data: None,
                qp,
            }),
            Err(error) => Err(Failed {
                back: (self, qp),
                error,
            }),
        }
    }

    fn ask<Q: QueuePair<Kind = T>>(
        &self,
        qp: &mut Q,
        params: &Params,
        data: &[u8],
    ) -> Result<Depths> {
        params.check(Verb::Connect, self.id.subject())?;
        let message = Message::REQUEST.by(&self.route);
        let data = message.fill(self.id.subject(), data)?;
        self.init(qp)?;
        let depths = params.depths(qp.context())?;
        self.forget_changes()?;
        self.id.execute(&Connect {
            id: self.id.number(),
            conn_param: params.wire(qp.qpn(), depths, data),
            ece: queue_pair::offered_ece(qp),
            ..Default::default()
        })?;
        Ok(depths)
    }
}

/// A connection has been requested from the peer.
///
/// The kernel has no useful time limit: it gives up on a silent host only after more than a minute, and on a
/// program that listens but does not answer much later. So wait with a limit ([`Pending::within`]).
///
/// Its file becomes the file of the [`Connection`].
///
/// After a failure the returned queue pair is in the state INIT, with its posted receives, and can be used
/// for another attempt; or in ERR, if the peer accepted and the connection then failed here.
#[derive(Debug)]
pub struct Connecting<Q: QueuePair> {
    // Dropped before the queue pair: the peer is notified first.
    id: Id,
    route: Route,
    params: Params,
    depths: Depths,
    /// The private data of the peer's acceptance.
    data: Option<Received>,
    qp: Q,
}

impl<Q: QueuePair> Connecting<Q> {
    /// The queue pair, which is in INIT.
    pub fn qp(&self) -> &Q {
        &self.qp
    }

    /// The queue pair, to post more receives to.
    pub fn qp_mut(&mut self) -> &mut Q {
        &mut self.qp
    }

    /// Takes pending events; true if the connection is established.
    fn advance(&mut self) -> Result<bool> {
        while let Some(raw) = self.id.try_event()? {
            match Event(raw.event) {
                Event::CONNECT_RESPONSE if raw.status == 0 => {
                    self.confirm(&raw)?;
                    return Ok(true);
                }
                Event::ADDR_CHANGE => {}
                _ => return Err(event::failure(Verb::Connect, self.id.subject(), &raw)),
            }
        }
        Ok(false)
    }

    /// The peer has accepted: connects the queue pair and confirms.
    fn confirm(&mut self, raw: &EventResp) -> Result<()> {
        let param = raw.param.conn();
        self.data = Some(Received::new(param.private_data, param.private_data_len));
        let connected = queue_pair::use_ece(&mut self.qp, raw.ece)
            .and_then(|()| queue_pair::connect(&self.id, &mut self.qp, &self.params, self.depths));
        if let Err(error) = connected {
            // The first error is the one to return. The peer is notified at the latest when the identifier is
            // destroyed.
            let _ = self.id.execute(&Reject {
                id: self.id.number(),
                reason: abi::RejectReason::CONSUMER_DEFINED.0 as u8,
                ..Default::default()
            });
            return Err(error);
        }
        let confirmed = self.id.execute(&Accept {
            id: self.id.number(),
            uid: OWN,
            ..Default::default()
        });
        if confirmed.is_err() {
            let _ = self.qp.fail();
        }
        confirmed
    }

    fn fail(self, error: Error) -> Failed<Q> {
        Failed {
            back: self.qp,
            error,
        }
    }
}

impl<Q: QueuePair> AsFd for Connecting<Q> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.as_fd()
    }
}

impl<Q: QueuePair> Describe for Connecting<Q> {
    fn describe(&self) -> (Verb, Subject) {
        (Verb::Connect, self.id.subject().clone())
    }
}

impl<Q: QueuePair> Pending for Connecting<Q> {
    type Output = Connection<Q>;
    type Back = Q;

    fn try_finish(mut self) -> Result<Step<Self>, Failed<Q>> {
        match self.advance() {
            Ok(true) => {
                let link = Link::new(self.id, self.route, self.data);
                Ok(Step::Done(Connection::new(self.qp, link)))
            }
            Ok(false) => Ok(Step::Pending(self)),
            Err(error) => Err(self.fail(error)),
        }
    }

    fn cancel(self) -> Q {
        self.qp
    }
}
