//! A connection: the queue pair, and the link that tells of its end.

use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::command;
use super::data::Received;
use super::event::Event;
use super::id::Id;
use super::pending::describe::Describe;
use super::pending::{Failed, Pending, Step, poll_until};
use super::queue_pair::QueuePair;
use super::route::Route;
use crate::error::{Errno, Result, Subject, Verb};

/// A connection: a queue pair in the state RTS, or a target of XRC, and its [`Link`].
///
/// It is used as the queue pair. Dropping it tells the peer and waits for nobody.
#[derive(Debug)]
pub struct Connection<Q: QueuePair> {
    link: Link,
    qp: Q,
}

impl<Q: QueuePair> Connection<Q> {
    pub(super) fn new(qp: Q, link: Link) -> Self {
        Self { link, qp }
    }

    /// The link.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// The queue pair and the link, each to go its way: halves of the queue pair to two threads, the link to
    /// who waits for events.
    pub fn into_parts(self) -> (Q, Link) {
        (self.qp, self.link)
    }

    /// Puts a queue pair and its link together.
    pub fn from_parts(qp: Q, link: Link) -> Self {
        Self { link, qp }
    }

    /// The own address.
    pub fn local_addr(&self) -> SocketAddr {
        self.link.local_addr()
    }

    /// The peer's address.
    pub fn peer_addr(&self) -> SocketAddr {
        self.link.peer_addr()
    }

    /// What the peer sent with its request or acceptance: see [`Link::private_data`].
    pub fn private_data(&self) -> &[u8] {
        self.link.private_data()
    }

    /// Ends the connection: requests in flight complete as flushed, and the peer is told.
    ///
    /// # Errors
    ///
    /// The device has been removed. The error gives the connection back.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(mut self) -> Result<Disconnecting<Q>, Failed<Self>> {
        let ended = self.qp.fail().and_then(|()| self.link.disconnect());
        match ended {
            Ok(()) => Ok(Disconnecting {
                link: self.link,
                qp: self.qp,
            }),
            Err(error) => Err(Failed { back: self, error }),
        }
    }
}

impl<Q: QueuePair> Deref for Connection<Q> {
    type Target = Q;

    fn deref(&self) -> &Q {
        &self.qp
    }
}

impl<Q: QueuePair> DerefMut for Connection<Q> {
    fn deref_mut(&mut self) -> &mut Q {
        &mut self.qp
    }
}

impl<Q: QueuePair> AsFd for Connection<Q> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

/// What the connection manager has of a connection: it tells of its end. The file becomes readable with an
/// event.
///
/// It is used as the [`Route`] that it has. Dropping it ends the connection for the peer; the queue pair is
/// not touched.
#[derive(Debug)]
pub struct Link {
    id: Id,
    route: Route,
    data: Option<Received>,
    /// An event has told that the connection is over.
    ///
    /// Relaxed throughout: it decides whether to wait for another, and guards no memory.
    over: AtomicBool,
}

impl Link {
    pub(super) fn new(id: Id, route: Route, data: Option<Received>) -> Self {
        Self {
            id,
            route,
            data,
            over: AtomicBool::new(false),
        }
    }

    /// What the peer sent when the connection was made, with its request if it asked for it, and else with
    /// its acceptance: the whole field of the message, filled up with zeros.
    pub fn private_data(&self) -> &[u8] {
        self.data.as_ref().map_or(&[], Received::bytes)
    }

    pub(super) fn subject(&self) -> Subject {
        self.id.subject().clone()
    }

    /// The next event, if one is there.
    ///
    /// # Errors
    ///
    /// The process has other credentials than when it opened the file (`EACCES`).
    #[doc(alias = "rdma_get_cm_event")]
    pub fn try_event(&self) -> Result<Option<Event>> {
        let Some(raw) = self.id.try_event()? else {
            return Ok(None);
        };
        let event = Event::from(&raw);
        if event.ends() {
            self.over.store(true, Ordering::Relaxed);
        }
        Ok(Some(event))
    }

    /// Waits for the next event, at most so long; `None` if none has come.
    ///
    /// # Errors
    ///
    /// As for [`try_event`](Self::try_event).
    pub fn event_within(&self, limit: Duration) -> Result<Option<Event>> {
        poll_until(limit, || self.try_event(), |left| self.id.wait(left))
    }

    /// Tells the peer that the connection ends, or confirms that it has ended. The queue pair is not touched:
    /// it should be in the state ERR before ([`Qp::fail`](crate::Qp::fail)), as [`Connection::disconnect`]
    /// has it.
    ///
    /// The peer's confirmation is an event, [`Event::Disconnected`]; there is none if the peer ended the
    /// connection.
    ///
    /// # Errors
    ///
    /// The kernel refuses. Manual page: `rdma_disconnect(3)`.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&self) -> Result<()> {
        let command = command::Disconnect {
            id: self.id.number(),
        };
        match self.id.execute(&command) {
            // It is over, or the device is gone.
            Err(error) if matches!(error.errno(), Some(Errno::INVAL | Errno::NXIO)) => {
                self.over.store(true, Ordering::Relaxed);
                Ok(())
            }
            told => told,
        }
    }
}

impl Deref for Link {
    type Target = Route;

    fn deref(&self) -> &Route {
        &self.route
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.as_fd()
    }
}

/// The peer has been told that the connection ends, and has yet to confirm.
///
/// The kernel gives up on a silent peer after some minutes. What comes of it is the queue pair, in the state
/// ERR.
#[derive(Debug)]
pub struct Disconnecting<Q: QueuePair> {
    link: Link,
    qp: Q,
}

impl<Q: QueuePair> Disconnecting<Q> {
    /// The queue pair, to take the flushed completions of.
    pub fn qp_mut(&mut self) -> &mut Q {
        &mut self.qp
    }
}

impl<Q: QueuePair> AsFd for Disconnecting<Q> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

impl<Q: QueuePair> Describe for Disconnecting<Q> {
    fn describe(&self) -> (Verb, Subject) {
        (Verb::Disconnect, self.link.id.subject().clone())
    }
}

impl<Q: QueuePair> Pending for Disconnecting<Q> {
    type Output = Q;
    type Back = Q;

    fn try_finish(self) -> Result<Step<Self>, Failed<Q>> {
        loop {
            if self.link.over.load(Ordering::Relaxed) {
                return Ok(Step::Done(self.qp));
            }
            match self.link.try_event() {
                Ok(Some(_)) => {}
                Ok(None) => return Ok(Step::Pending(self)),
                Err(error) => {
                    return Err(Failed {
                        back: self.qp,
                        error,
                    });
                }
            }
        }
    }

    fn cancel(self) -> Q {
        self.qp
    }
}
