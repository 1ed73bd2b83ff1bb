//! Queue pairs. [`Batch`] and [`RecvBatch`] post.
//!
//! A [`Qp`] has two halves that share the kernel object: the send half and the receive half. Posting borrows
//! a half exclusively and takes no lock. The halves can move to different threads ([`Qp::split`]).

pub(crate) mod attr;
pub(crate) mod connect;
mod control;
mod create;
mod device;
mod ece;
mod entropy;
mod extended;
mod kernel;
mod membership;
mod multicast;
mod recv;
mod request;
mod send;
mod shared;
#[cfg(test)]
mod tests;
mod transition;
pub(crate) mod transport;

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use uverbs_uapi::handle::QpHandle;

pub use crate::work::{DataOrder, Ece, LagPort, Placement, PostError};
pub use attr::{AltPath, QpAttr, QpInfo};
pub use connect::{ConnectOptions, Endpoint, LocalEnd};
pub use control::Control;
pub use create::{Caps, QpBuilder};
pub use device::{DeviceQueue, NotHandedOver, NotReclaimed, Reclaimed};
pub use membership::{InDomain, Membership, NoDomain};
pub use multicast::{IpGroup, MULTICAST_QPN};
pub use recv::{RecvBatch, RecvHalf};
pub use request::{Inline, IntoPayload, Request};
pub use send::{Batch, SendHalf};
pub(crate) use shared::QpShared;
#[cfg(feature = "aio")]
pub(crate) use transport::sealed::Names;
pub(crate) use transport::{Any, Peer, Reaches, Transport};
pub use uverbs_uapi::enums::{MigState, Mtu, QpState, QpType};
pub use uverbs_uapi::flags::{QpAttrMask, QpCreateFlags};

use crate::context::Context;
use crate::error::{Cause, DestroyError, Error, Result, Verb};
use crate::flight::Flight;

/// A queue pair of the transport `T`.
///
/// Posting borrows it exclusively and takes no lock. It keeps its PD and its completion queues alive.
///
/// Dropping it, or both of its halves, destroys it. If the kernel refuses, for example while the queue pair
/// is attached to a multicast group, the drop resets it instead: its requests are discarded, it receives
/// nothing more, and closing the context destroys it. Only [`Qp::destroy`] and [`Qp::reset`] report errors.
/// If a drop cannot even reset it, the memory that its requests name stays in use until the context is
/// closed.
///
/// ```no_run
/// use uverbs::{Caps, Endpoint, Inline, Rc};
/// # use uverbs::{Cq, Pd};
/// # fn connect(pd: &Pd, cq: &Cq, exchange: impl Fn(Endpoint) -> Endpoint) -> uverbs::Result<()> {
/// let mut qp = pd.create_qp::<Rc>(cq, Caps::default())?;
/// let peer = exchange(qp.endpoint()?);            // over any other connection
/// qp.connect(&peer)?;
///
/// let mut receives = qp.recv_batch();
/// receives.post_empty(1)?;
/// receives.ring();
/// qp.post(|batch| {
///     batch.signaled(2).send(Inline(b"hello"))?;
///     Ok(())
/// })?;
/// # Ok(()) }
/// ```
///
/// A queue pair of a thread domain has the type `Qp<T, InDomain>`, and each post takes the domain: see
/// [`ThreadDomain`](crate::ThreadDomain).
pub struct Qp<T: Transport, M: Membership = NoDomain> {
    // Before `shared`: the rings are unmapped while the kernel object still is.
    send: SendHalf<T, M>,
    recv: RecvHalf<T>,
    shared: Arc<QpShared>,
}

impl<T: Transport, M: Membership> Qp<T, M> {
    /// The kernel's handle. A reset may change it, see [`Qp::reset`].
    pub fn handle(&self) -> QpHandle {
        self.shared.handle()
    }

    /// The queue pair's number on the wire; 24 bits. Completions and errors name the queue pair by it. A
    /// reset may change it, see [`Qp::reset`].
    pub fn qpn(&self) -> u32 {
        self.shared.qpn()
    }

    /// The number by which events name it: that of [`QpBuilder::user_data`], or otherwise one that is unique
    /// in its context. It never changes.
    pub fn id(&self) -> u64 {
        self.shared.id
    }

    /// The transport.
    pub fn transport(&self) -> QpType {
        self.shared.transport
    }

    /// The context that it was created in.
    pub fn context(&self) -> &Context {
        self.shared.context()
    }

    /// The state that was last set or queried through this handle. A failed request moves the queue pair to
    /// the error state without updating it; [`Qp::query`] returns the current state.
    pub fn state(&self) -> QpState {
        self.shared.state()
    }

    /// The capacities of its queues; at least those that were requested.
    pub fn caps(&self) -> Caps {
        let (max_recv_wr, max_recv_sge) = self.recv.limits();
        Caps {
            max_send_wr: self.send.queue().capacity(),
            max_recv_wr,
            max_send_sge: self.send.queue().max_sge(),
            max_recv_sge,
            max_inline_data: self.send.queue().max_inline(),
        }
    }

    /// Changes attributes, most often the state.
    ///
    /// # Errors
    ///
    /// The transition does not exist, or attributes are missing or not allowed: the library refuses this
    /// before it asks the kernel, and names them. Or the kernel refuses a value, or has no route to the peer.
    /// The state RESET is also refused as by [`Qp::reset`]. Manual page: `ibv_modify_qp(3)`.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&mut self, attr: &QpAttr) -> Result<()> {
        if attr.state == Some(QpState::RESET) {
            self.check_halves(Verb::ModifyQp)?;
            let (send, recv) = (self.send.queue_to_reset(), self.recv.queue_to_reset());
            return self.shared.reset(attr, send, recv);
        }
        if self.shared.ends_fetches(attr) {
            self.check_halves(Verb::ModifyQp)?;
            self.shared.modify(attr)?;
            self.send.check_again();
            return Ok(());
        }
        self.shared.modify(attr)
    }

    /// Moves the queue pair to the state RESET. Requests in flight are dropped without a completion.
    ///
    /// Completions that have come keep their places in the completion queue until a poll has passed them:
    /// poll before posting again, or the queue may overrun.
    ///
    /// Its next connection starts with another packet sequence number: send the peer the new
    /// [`Qp::endpoint`].
    ///
    /// On soft-RoCE, a reliable queue pair that has been in the state RTR also gets a new [`Qp::qpn`] and a
    /// new [`Qp::handle`]. The kernel's reset keeps the remains of an interrupted READ, and the next READ or
    /// atomic would complete without data. So the library replaces the kernel's queue pair with a new one, of
    /// the same capacities, with the same [`Qp::id`], queues and domain. Its allocator, if any, is asked for
    /// new rings before it gets the old ones back. Completions from before the reset that are still in the
    /// completion queue carry the old number; on mlx5 they are skipped. Memory windows of type 2 that are
    /// bound on it grant no access until they have been invalidated and bound again; if there are any, the
    /// old queue pair stays in the kernel until this one is destroyed.
    ///
    /// # Errors
    ///
    /// The device has been removed, or a half has been [swapped](Qp::halves). On soft-RoCE also as for
    /// [`Pd::create_qp`](crate::Pd::create_qp); the queue pair is then unchanged.
    pub fn reset(&mut self) -> Result<()> {
        self.modify(&QpAttr {
            state: Some(QpState::RESET),
            ..QpAttr::default()
        })
    }

    /// Moves the queue pair to the state ERR: requests in flight complete as flushed.
    ///
    /// On soft-RoCE from Linux 6.4 on, a message that completes at that moment may be delivered again into
    /// each remaining receive, with success (`do_complete` in `drivers/infiniband/sw/rxe/rxe_resp.c`). So
    /// receives that complete after this call are not necessarily new messages.
    ///
    /// # Errors
    ///
    /// The device has been removed.
    pub fn fail(&mut self) -> Result<()> {
        self.modify(&QpAttr {
            state: Some(QpState::ERR),
            ..QpAttr::default()
        })
    }

    /// Asks the kernel for all attributes.
    ///
    /// # Errors
    ///
    /// The device has been removed. Manual page: `ibv_query_qp(3)`.
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> Result<QpInfo> {
        let info = self.shared.query()?;
        Ok(match self.shared.kernel().backing().kernel_knows_caps() {
            true => info,
            false => QpInfo {
                caps: self.caps(),
                ..info
            },
        })
    }

    pub(crate) fn shared(&self) -> &Arc<QpShared> {
        &self.shared
    }

    /// By it regions learn, once the queue pair is gone, whether the device has released its requests.
    pub(crate) fn flight(&self) -> &Arc<Flight> {
        &self.shared.flight
    }

    /// Starts a batch of receive requests.
    #[inline(always)]
    pub fn recv_batch(&mut self) -> RecvBatch<'_> {
        self.recv.batch()
    }

    /// Both halves at the same time, to post to one while the other is borrowed.
    ///
    /// A half that is swapped with that of another queue pair stays the other's: what is posted to it goes
    /// there. What concerns the queue pair and both of its halves is refused until they are swapped back:
    /// [`reset`](Self::reset), [`destroy`](Self::destroy) and [`into_device`](Qp::into_device).
    pub fn halves(&mut self) -> (&mut SendHalf<T, M>, &mut RecvHalf<T>) {
        (&mut self.send, &mut self.recv)
    }

    /// Splits the queue pair for two threads. It lives until both halves are dropped.
    pub fn split(self) -> (SendHalf<T, M>, RecvHalf<T>) {
        (self.send, self.recv)
    }

    /// Refuses what concerns the queue pair and both halves if a half belongs to another queue pair: its ring
    /// has another layout, and the regions of another protection domain.
    fn check_halves(&self, verb: Verb) -> Result<()> {
        let halves = [self.send.shared(), self.recv.shared()];
        match halves.iter().all(|half| Arc::ptr_eq(half, &self.shared)) {
            true => Ok(()),
            false => Err(Error::invalid(
                verb,
                self.shared.subject(),
                "one of its halves belongs to another queue pair: they have been swapped",
            )),
        }
    }

    /// A handle that queries, changes and fails the queue pair while its halves are on two threads. It can be
    /// cloned.
    pub fn control(&self) -> Control {
        Control::new(&self.shared)
    }

    /// Joins two halves.
    ///
    /// # Errors
    ///
    /// The halves belong to different queue pairs. They are returned.
    pub fn join(
        send: SendHalf<T, M>,
        recv: RecvHalf<T>,
    ) -> Result<Self, (SendHalf<T, M>, RecvHalf<T>)> {
        if !Arc::ptr_eq(send.shared(), recv.shared()) {
            return Err((send, recv));
        }
        let shared = Arc::clone(send.shared());
        Ok(Self { send, recv, shared })
    }

    /// The same queue pair, with its transport known only at run time.
    pub fn into_any(self) -> Qp<Any, M> {
        let Qp { send, recv, shared } = self;
        Qp {
            send: send.into_any(),
            recv: recv.into_any(),
            shared,
        }
    }

    /// Destroys the queue pair. Requests in flight are dropped without a completion. Free memory windows of
    /// type 2 that are bound on it first: soft-RoCE waits for them, see [`Mw`](crate::mw::Mw).
    ///
    /// # Errors
    ///
    /// The kernel refuses, for example while it is attached to a multicast group. Or a half has been
    /// [swapped](Qp::halves). Or a `cm::Membership` of it exists, or a call of a [`Control`] of it is
    /// running: [`Cause::Busy`](crate::Cause::Busy). The error returns the queue pair. Manual page:
    /// `ibv_destroy_qp(3)`.
    #[doc(alias = "ibv_destroy_qp")]
    pub fn destroy(self) -> Result<(), DestroyError<Self>> {
        match self.destroy_in_place() {
            Ok(()) => Ok(()),
            Err(error) => Err(DestroyError {
                object: self,
                error,
            }),
        }
    }

    // In place: a queue pair is large.
    fn destroy_in_place(&self) -> Result<()> {
        // The queue pair's own and those of its halves. A membership in a group has another, and a running
        // call of a `Control` for a moment. A `Control` that comes later finds, under the lock, that the
        // object is gone.
        const OWN: usize = 3;
        self.check_halves(Verb::DestroyQp)?;
        let shared = &self.shared;
        if Arc::strong_count(shared) > OWN {
            let cause = Cause::Busy(match shared.any_group() {
                Some(gid) => format!("it is in the multicast group {gid}").into(),
                None => "a call of a `Control` of it is running on another thread".into(),
            });
            return Err(Error::new(Verb::DestroyQp, shared.subject(), cause));
        }
        shared.destroy()
    }
}

impl<T: Transport, M: Membership> fmt::Debug for Qp<T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Qp")
            .field("transport", &self.transport())
            .field("handle", &self.handle().0)
            .field("qpn", &format_args!("{:#x}", self.qpn()))
            .field("id", &self.id())
            .field("state", &self.state())
            .finish()
    }
}

/// A type parameter that only selects methods.
type Of<T> = PhantomData<fn() -> T>;
