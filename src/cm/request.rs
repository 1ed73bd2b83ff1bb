//! A request for a connection: accepted with a queue pair, or refused.

use std::marker::PhantomData;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};

use uverbs_uapi::enums::{AsyncEventType, QpType};
use uverbs_uapi::rdma_cm::{self as abi, Event, EventResp};

use super::command::{Accept, Notify, Reject};
use super::connection::{Connection, Link};
use super::data::{Message, Received};
use super::event;
use super::file::File;
use super::id::{self, Id, OWN};
use super::params::{Depths, Params};
use super::pending::describe::Describe;
use super::pending::{Failed, Pending, Step, subject_of};
use super::queue_pair::{self, QueuePair};
use super::route::Route;
use super::space::{End, Listens, LookedUp};
use crate::context::Context;
use crate::dc::DcTarget;
use crate::error::{Errno, Error, Result, Subject, Verb};
use crate::qp::transport::{Dc, Ud};
use crate::qp::{Membership, Qp};

/// A peer's request for a connection. It is accepted with a queue pair, or with an XRC target if the peer is
/// an XRC initiator. Dropping the request refuses it.
///
/// It derefs to its [`Route`].
///
/// ```no_run
/// use uverbs::{Caps, Rc, cm::{Params, Pending, Request}};
/// # fn answer(request: Request<Rc>) -> Result<(), Box<dyn std::error::Error>> {
/// if !request.private_data().starts_with(b"let me in") {
///     return Ok(request.reject(b"who are you?")?);
/// }
/// let context = request.device()?.open()?;
/// let (pd, cq) = (context.alloc_pd()?, context.create_cq(64)?);
/// let inbox = pd.register(vec![0; 4096], uverbs::Access::LOCAL_WRITE)?;
/// let mut qp = pd.create_qp(&cq, Caps::default())?;
/// request.init(&mut qp)?;                     // from here on it takes receives
/// let mut receives = qp.recv_batch();
/// receives.post(1, inbox.slice(..)?)?;
/// receives.ring();
/// let connection = request.accept(qp, &Params::default(), b"welcome")?.wait()?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Request<T> {
    id: Id,
    route: Route,
    raw: EventResp,
    data: Received,
    of: PhantomData<fn() -> T>,
}

impl std::fmt::Debug for Received {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.bytes().len())
    }
}

impl<T: Listens> Request<T> {
    /// Takes the request that an event of a listener reports, and moves it to this file.
    pub(super) fn take(listener: &Id, raw: &EventResp, file: File) -> Result<Self> {
        let subject = Subject::named("request", raw.id);
        let mut id = listener.take(raw.id, subject, file)?;
        let Some(route) = Route::of(&id, |peer| subject_of("from", peer))? else {
            return Err(id.error(Verb::GetRequest, Errno::IO));
        };
        id.rename(route.subject().clone());
        let data = match T::KIND {
            QpType::UD => {
                let param = raw.param.ud();
                Received::new(param.private_data, param.private_data_len)
            }
            _ => {
                let param = raw.param.conn();
                Received::new(param.private_data, param.private_data_len)
            }
        };
        Ok(Self {
            id,
            route,
            raw: *raw,
            data,
            of: PhantomData,
        })
    }

    /// The private data of the peer's request: the whole field of the message, padded with zeros.
    pub fn private_data(&self) -> &[u8] {
        self.data.bytes()
    }

    /// Takes a queue pair from RESET to INIT, so that receives can be posted before the peer is answered.
    /// Optional: otherwise [`accept`](Self::accept) does it. One in INIT, as a failed attempt returns it, is
    /// set up for this peer.
    ///
    /// # Errors
    ///
    /// The queue pair belongs to another device, or is in another state.
    pub fn init(&self, qp: &mut impl QueuePair<Kind = T>) -> Result<()> {
        queue_pair::init_for(&self.id, qp, self.device_index(), self.raw.ece)
    }

    /// Refuses the request. `data` is private data of the refusal: at most 148 bytes, or 136 for a datagram
    /// lookup.
    ///
    /// # Errors
    ///
    /// The data is too long, or the peer has given up meanwhile (`EINVAL`). Manual page: `rdma_reject(3)`.
    #[doc(alias = "rdma_reject")]
    pub fn reject(self, data: &[u8]) -> Result<()> {
        let message = match T::KIND {
            QpType::UD => Message::REFUSE,
            _ => Message::REJECT,
        };
        let (data, length) = message.fill(self.id.subject(), data)?;
        self.id.execute(&Reject {
            id: self.id.number(),
            private_data_len: length,
            reason: abi::RejectReason::CONSUMER_DEFINED.0 as u8,
            private_data: data,
            ..Default::default()
        })
    }
}

impl<T: Listens + End> Request<T> {
    /// Accepts the request with this queue pair, which is in RESET or INIT.
    ///
    /// `data` is private data of the acceptance: at most 196 bytes. The peer gets it padded with zeros. The
    /// peer may send as soon as it has the acceptance, so post receives before ([`init`](Self::init)). An XRC
    /// target has no receives; put the number of a shared receive queue into the data if the peer does not
    /// know it.
    ///
    /// # Errors
    ///
    /// The queue pair belongs to another device or is in another state, the data is too long, a number in
    /// `params` is above its limit, or the peer has given up meanwhile (`EINVAL`). The error returns the
    /// request and the queue pair. Manual page: `rdma_accept(3)`.
    #[doc(alias = "rdma_accept")]
    pub fn accept<Q: QueuePair<Kind = T>>(
        self,
        mut qp: Q,
        params: &Params,
        data: &[u8],
    ) -> Result<Accepting<Q>, Failed<(Self, Q)>> {
        match self.answer(&mut qp, params, data) {
            Ok(()) => Ok(Accepting {
                id: self.id,
                route: self.route,
                data: self.data,
                qp,
            }),
            Err(error) => Err(Failed {
                back: (self, qp),
                error,
            }),
        }
    }

    fn answer(
        &self,
        qp: &mut impl QueuePair<Kind = T>,
        params: &Params,
        data: &[u8],
    ) -> Result<()> {
        params.check(Verb::Accept, self.id.subject())?;
        let data = Message::ACCEPT.fill(self.id.subject(), data)?;
        self.init(qp)?;
        // The kernel reports the request from this side's point of view.
        let asked = self.raw.param.conn();
        let depths = params.depths(qp.context())?.min(Depths {
            responder: asked.responder_resources,
            initiator: asked.initiator_depth,
        });
        queue_pair::connect(&self.id, qp, params, depths)?;
        let answered = self.id.execute(&Accept {
            id: self.id.number(),
            uid: OWN,
            conn_param: params.wire(qp.qpn(), depths, data),
            ece: queue_pair::answered_ece(qp, self.raw.ece),
            ..Default::default()
        });
        if answered.is_err() {
            let _ = qp.fail();
        }
        answered
    }
}

impl Request<Ud> {
    /// Answers a lookup with the number of this queue pair, which should be ready to receive
    /// ([`activate`](Self::activate)). `data` is private data of the answer: at most 136 bytes.
    ///
    /// No connection is made: any number of peers may get the same queue pair, and nothing reports when they
    /// leave.
    ///
    /// # Errors
    ///
    /// The queue pair belongs to another device, the data is too long, or the peer has given up meanwhile
    /// (`EINVAL`). The error returns the request. Manual page: `rdma_accept(3)`.
    pub fn answer_with(
        self,
        qp: &Qp<Ud, impl Membership>,
        data: &[u8],
    ) -> Result<(), Failed<Self>> {
        let answered = self.tell((qp.context(), qp.qpn()), &[], data);
        answered.map_err(|error| Failed { back: self, error })
    }

    /// Takes a queue pair from RESET or INIT to RTS, with the Q_Key that all datagrams of the connection
    /// manager use.
    ///
    /// # Errors
    ///
    /// The queue pair belongs to another device, or is in another state.
    pub fn activate(&self, qp: &mut Qp<Ud, impl Membership>) -> Result<()> {
        let device = (self.device_index(), self.port());
        queue_pair::activate(&self.id, Verb::Accept, qp, device)
    }
}

impl Request<Dc> {
    /// Answers a lookup with the number of this target and its access key. `data` is private data of the
    /// answer: at most 128 bytes, after the key.
    ///
    /// No connection is made: any number of peers may get the same target, and nothing reports when they
    /// leave. A server that must reach a peer needs the number and the key of a target of the peer, which the
    /// peer can send with the private data of its lookup or in its first message.
    ///
    /// # Errors
    ///
    /// The target belongs to another device, the data is too long, or the peer has given up meanwhile
    /// (`EINVAL`). The error returns the request. Manual page: `rdma_accept(3)`.
    pub fn answer_with(self, target: &DcTarget, data: &[u8]) -> Result<(), Failed<Self>> {
        let key = target.key().to_be_bytes();
        let answered = self.tell((target.context(), target.number()), &key, data);
        answered.map_err(|error| Failed { back: self, error })
    }
}

impl<T: LookedUp> Request<T> {
    /// Answers with a number of this device, and private data after the library's own.
    fn tell(&self, (context, number): (&Context, u32), own: &[u8], data: &[u8]) -> Result<()> {
        let (verb, subject) = (Verb::Accept, self.id.subject());
        id::check_device(verb, subject, context, self.device_index())?;
        let (private_data, private_data_len) = Message::ANSWER.fill_behind(own, subject, data)?;
        self.id.execute(&Accept {
            id: self.id.number(),
            uid: OWN,
            conn_param: abi::ConnParam {
                qp_num: number,
                private_data,
                private_data_len,
                valid: 1,
                ..abi::ConnParam::default()
            },
            ..Default::default()
        })
    }
}

impl<T> Deref for Request<T> {
    type Target = Route;

    fn deref(&self) -> &Route {
        &self.route
    }
}

impl<T> AsFd for Request<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.as_fd()
    }
}

/// The request has been accepted, and the peer has not confirmed yet.
///
/// The queue pair is ready: a message of the peer may arrive before its confirmation. Use
/// [`qp_mut`](Self::qp_mut) to answer it.
///
/// Its file is the request's file, and becomes the file of the [`Connection`].
#[derive(Debug)]
pub struct Accepting<Q: QueuePair> {
    // Dropped before the queue pair: the peer is notified first.
    id: Id,
    route: Route,
    data: Received,
    qp: Q,
}

impl<Q: QueuePair> Accepting<Q> {
    /// The queue pair, which is in RTS: completions have its number.
    pub fn qp(&self) -> &Q {
        &self.qp
    }

    /// The queue pair, to post to. Once a message of the peer has arrived, the peer has the acceptance.
    ///
    /// Before that, a send may reach a peer that has not connected its queue pair; the device then repeats it
    /// until the peer has.
    pub fn qp_mut(&mut self) -> &mut Q {
        &mut self.qp
    }

    /// Notifies the kernel that a message of the peer has arrived, which also confirms the connection. Call
    /// it on [`COMM_EST`](AsyncEventType::COMM_EST) among the device's events, which soft-RoCE never raises.
    ///
    /// # Errors
    ///
    /// The peer has quit. Manual page: `rdma_notify(3)`.
    #[doc(alias = "rdma_notify")]
    pub fn notify(&self) -> Result<()> {
        let told = self.id.execute(&Notify {
            id: self.id.number(),
            event: AsyncEventType::COMM_EST.0,
        });
        match told {
            Err(error) if error.errno() == Some(Errno::ISCONN) => Ok(()),
            told => told,
        }
    }

    /// Takes pending events; true if the connection is established.
    fn advance(&self) -> Result<bool> {
        while let Some(raw) = self.id.try_event()? {
            match Event(raw.event) {
                Event::ESTABLISHED if raw.status == 0 => return Ok(true),
                Event::ADDR_CHANGE => {}
                _ => return Err(event::failure(Verb::Accept, self.id.subject(), &raw)),
            }
        }
        Ok(false)
    }

    fn fail(mut self, error: Error) -> Failed<Q> {
        // The queue pair is connected, but the peer's is not.
        let _ = self.qp.fail();
        Failed {
            back: self.qp,
            error,
        }
    }
}

impl<Q: QueuePair> AsFd for Accepting<Q> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.as_fd()
    }
}

impl<Q: QueuePair> Describe for Accepting<Q> {
    fn describe(&self) -> (Verb, Subject) {
        (Verb::Accept, self.id.subject().clone())
    }
}

impl<Q: QueuePair> Pending for Accepting<Q> {
    type Output = Connection<Q>;
    type Back = Q;

    fn try_finish(self) -> Result<Step<Self>, Failed<Q>> {
        match self.advance() {
            Ok(true) => {
                let link = Link::new(self.id, self.route, Some(self.data));
                Ok(Step::Done(Connection::new(self.qp, link)))
            }
            Ok(false) => Ok(Step::Pending(self)),
            Err(error) => Err(self.fail(error)),
        }
    }

    fn cancel(mut self) -> Q {
        let _ = self.qp.fail();
        self.qp
    }
}
