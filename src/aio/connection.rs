//! Connections by address with asynchronous operations.
//!
//! The steps are those of [`cm`](crate::cm), with a queue pair of this module.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::qp::{Anchor, Qp};
use crate::cm::pending::describe::Describe;
use crate::cm::{self, Failed, Initiates, Link, Listens, Params, Pending, Request, Resolved, Step};
use crate::error::{Result, Subject, Verb};
use crate::qp::transport::Connected;

/// A connection: a queue pair, and the [`Link`] that reports its end.
#[derive(Debug)]
pub struct Connection<T: Connected> {
    link: Link,
    qp: Qp<T>,
}

impl<T: Connected> Connection<T> {
    /// The queue pair, to post to.
    pub fn qp(&mut self) -> &mut Qp<T> {
        &mut self.qp
    }

    /// The link.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// The peer's address.
    pub fn peer_addr(&self) -> SocketAddr {
        self.link.peer_addr()
    }

    /// The own address.
    pub fn local_addr(&self) -> SocketAddr {
        self.link.local_addr()
    }

    /// What the peer sent with its request or acceptance: see [`Link::private_data`].
    pub fn private_data(&self) -> &[u8] {
        self.link.private_data()
    }

    /// Separates the queue pair from the link.
    pub fn into_parts(self) -> (Qp<T>, Link) {
        (self.qp, self.link)
    }

    /// Ends the connection: the peer is notified, and operations in flight end as flushed and return their
    /// buffers.
    ///
    /// # Errors
    ///
    /// The device has been removed.
    pub async fn disconnect(&mut self) -> Result<()> {
        let control = self.qp.control();
        control.fail()?;
        self.link.disconnect()?;
        control.drained().await
    }
}

impl<T: Connected + Initiates + Listens> Qp<T> {
    /// Takes it from RESET to INIT for a resolved peer, so that receives can be posted before the request is
    /// sent to the peer.
    ///
    /// # Errors
    ///
    /// It belongs to another device, or is in another state.
    pub fn init_for(&mut self, way: &Resolved<T>) -> Result<()> {
        way.init(self.raw_mut())
    }

    /// Takes it from RESET to INIT for a peer's request, so that receives can be posted before the request is
    /// answered.
    ///
    /// # Errors
    ///
    /// It belongs to another device, or is in another state.
    pub fn init_for_request(&mut self, request: &Request<T>) -> Result<()> {
        request.init(self.raw_mut())
    }

    /// Requests a connection from a peer: see [`Resolved::connect`].
    ///
    /// # Errors
    ///
    /// As for [`Resolved::connect`].
    pub fn connect_to(
        self,
        way: Resolved<T>,
        params: &Params,
        data: &[u8],
    ) -> Result<Connecting<T>, Failed<(Resolved<T>, Self)>> {
        let (raw, anchor) = self.into_parts();
        match way.connect(raw, params, data) {
            Ok(pending) => Ok(Connecting { pending, anchor }),
            Err(Failed {
                back: (way, raw),
                error,
            }) => Err(Failed {
                back: (way, Self::from_parts(raw, anchor)),
                error,
            }),
        }
    }

    /// Accepts a peer's request: see [`Request::accept`].
    ///
    /// # Errors
    ///
    /// As for [`Request::accept`].
    pub fn accept(
        self,
        request: Request<T>,
        params: &Params,
        data: &[u8],
    ) -> Result<Accepting<T>, Failed<(Request<T>, Self)>> {
        let (raw, anchor) = self.into_parts();
        match request.accept(raw, params, data) {
            Ok(pending) => Ok(Accepting { pending, anchor }),
            Err(Failed {
                back: (request, raw),
                error,
            }) => Err(Failed {
                back: (request, Self::from_parts(raw, anchor)),
                error,
            }),
        }
    }
}

/// A step of [`cm`](crate::cm) towards a connection, with a queue pair of this module.
#[derive(Debug)]
pub struct Establishing<P> {
    // Before the anchor, which checks what has become of the queue pair.
    pending: P,
    anchor: Arc<Anchor>,
}

/// The request for a connection has been sent to the peer: see [`cm::Connecting`].
pub type Connecting<T> = Establishing<cm::Connecting<crate::qp::Qp<T>>>;

/// The peer's request has been accepted: see [`cm::Accepting`].
pub type Accepting<T> = Establishing<cm::Accepting<crate::qp::Qp<T>>>;

impl<T: Connected + Initiates + Listens> Accepting<T> {
    /// The number of the queue pair. It is ready: operations that were posted before the request was accepted
    /// already complete.
    pub fn qpn(&self) -> u32 {
        self.pending.qp().qpn()
    }
}

impl<P: AsFd> AsFd for Establishing<P> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pending.as_fd()
    }
}

impl<P: Describe> Describe for Establishing<P> {
    fn describe(&self) -> (Verb, Subject) {
        self.pending.describe()
    }
}

impl<T, P> Pending for Establishing<P>
where
    T: Connected + cm::Space,
    P: Pending<Output = cm::Connection<crate::qp::Qp<T>>, Back = crate::qp::Qp<T>>,
{
    type Output = Connection<T>;
    type Back = Qp<T>;

    fn try_finish(self) -> Result<Step<Self>, Failed<Qp<T>>> {
        let anchor = self.anchor;
        match self.pending.try_finish() {
            Ok(Step::Done(connection)) => {
                let (raw, link) = connection.into_parts();
                let qp = Qp::from_parts(raw, anchor);
                Ok(Step::Done(Connection { link, qp }))
            }
            Ok(Step::Pending(pending)) => Ok(Step::Pending(Self { pending, anchor })),
            Err(Failed { back, error }) => Err(Failed {
                back: Qp::from_parts(back, anchor),
                error,
            }),
        }
    }

    fn cancel(self) -> Qp<T> {
        Qp::from_parts(self.pending.cancel(), self.anchor)
    }
}
