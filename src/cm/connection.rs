//! A connection: the queue pair, and the link that reports its end.

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

/// A connection: a queue pair in the state RTS, or an XRC target, and its [`Link`].
///
/// It derefs to the queue pair. Dropping it notifies the peer and does not wait, also while a process
/// that was forked meanwhile has its file.
///
/// ```no_run
/// use std::time::Duration;
/// use uverbs::{Inline, Qp, Rc, cm::{Connection, Pending}};
/// # fn talk(mut connection: Connection<Qp<Rc>>) -> Result<(), Box<dyn std::error::Error>> {
/// println!("{} says {:?}", connection.peer_addr(), connection.private_data());
/// connection.one(1).send(Inline(b"hello"))?;          // as on its queue pair
/// if let Some(event) = connection.link().try_event()? {
///     println!("{event:?}");
/// }
/// let qp = connection.disconnect()?.within(Duration::from_secs(5))?;
/// # Ok(()) }
/// ```
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

    /// Separates the queue pair from the link: for example, to move the halves of the queue pair to two
    /// threads and the link to a third.
    pub fn into_parts(self) -> (Q, Link) {
        (self.qp, self.link)
    }

    /// Puts a queue pair and its link together.
    pub fn from_parts(qp: Q, link: Link) -> Self {
        Self { link, qp }
    }

    /// The local address.
    pub fn local_addr(&self) -> SocketAddr {
        self.link.local_addr()
    }

    /// The peer's address.
    pub fn peer_addr(&self) -> SocketAddr {
        self.link.peer_addr()
    }

    /// The private data of the peer's request or acceptance: see [`Link::private_data`].
    pub fn private_data(&self) -> &[u8] {
        self.link.private_data()
    }

    /// Ends the connection: requests in flight complete as flushed, and the peer is notified.
    ///
    /// # Errors
    ///
    /// The device has been removed. The error returns the connection.
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

/// The connection manager's side of a connection: it reports the end of the connection. The file becomes
/// readable with an event.
///
/// It derefs to its [`Route`]. Dropping it ends the connection for the peer; the queue pair is not touched.
///
/// ```no_run
/// use uverbs::{Qp, Rc, cm::Link};
/// # fn watch(link: &Link, qp: &mut Qp<Rc>) -> uverbs::Result<()> {
/// // In a thread of its own, or when the file is readable.
/// while let Some(event) = link.try_event()? {
///     if event.ends() {
///         qp.fail()?;                 // what is in flight is flushed
///         link.disconnect()?;         // and the peer knows that this side knows
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Link {
    id: Id,
    route: Route,
    data: Option<Received>,
    /// An event has reported that the connection is over.
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

    /// The private data of the peer's request, or of its acceptance if this side made the request: the whole
    /// field of the message, padded with zeros.
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
    /// The process's credentials have changed since it opened the file (`EACCES`).
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

    /// Waits for the next event for at most `limit`; `None` if there is none by then.
    ///
    /// # Errors
    ///
    /// As for [`try_event`](Self::try_event).
    pub fn event_within(&self, limit: Duration) -> Result<Option<Event>> {
        poll_until(limit, || self.try_event(), |left| self.id.wait(left))
    }

    /// Notifies the peer that the connection ends, or confirms that it has ended. The queue pair is not
    /// touched; take it to the state ERR first ([`Qp::fail`](crate::Qp::fail)), as [`Connection::disconnect`]
    /// does.
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
            // The connection is already over, or the device is gone.
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

/// The peer has been notified that the connection ends, and has not confirmed yet.
///
/// The kernel gives up on a silent peer after some minutes. The result is the queue pair, in the state ERR.
#[derive(Debug)]
pub struct Disconnecting<Q: QueuePair> {
    link: Link,
    qp: Q,
}

impl<Q: QueuePair> Disconnecting<Q> {
    /// The queue pair, which is in ERR.
    pub fn qp(&self) -> &Q {
        &self.qp
    }

    /// The queue pair, to poll the flushed completions from.
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
