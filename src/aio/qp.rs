//! Queue pairs with asynchronous operations.

use std::fmt;
use std::sync::Arc;

use super::cargo::sealed::Inside;
use super::control::Control;
use super::cq::Cq;
use super::op::{Kind, Op, Receive};
use super::recv::Receiver;
use super::send::{Batch, Post, Sender, post_alone, take_back_forgotten};
use super::table::{MOST_SLOTS, Owner, Room, Table};
use crate::buf::Buf;
use crate::error::{Error, Result, Subject, Verb};
use crate::flight::Flight;
use crate::pd::Pd;
use crate::qp::transport::{Connected, Datagram, Dc, StaticTransport, Transport};
use crate::qp::{self, Caps, ConnectOptions, Endpoint, Request};
use crate::work::{LocalSlice, PdTag, PostError};

/// The common part of a queue pair's halves. It is dropped after them.
pub(super) struct Anchor {
    pub(super) table: Arc<Table>,
    pub(super) cq: Cq,
    pub(super) flight: Arc<Flight>,
}

impl fmt::Debug for Anchor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in flight", self.table.in_flight())
    }
}

impl Drop for Anchor {
    fn drop(&mut self) {
        // The halves are gone, and the queue pair with them: its operations end.
        self.cq
            .retire(Arc::clone(&self.table), Arc::clone(&self.flight));
    }
}

/// A queue pair with asynchronous operations. [`Post`] has its sends.
///
/// Posting borrows it exclusively and returns a future that borrows nothing, so many operations can be in
/// flight. Tasks that share it wrap it in a lock of their choice and await outside of the lock; or
/// [`split`](Self::split) gives its halves to two tasks.
///
/// Dropping it destroys the queue pair. Operations in flight then end with
/// [`OpError::Gone`](super::OpError::Gone), and their buffers come back. An EFA completes them before the
/// queue pair is gone, so there they end with [`OpError::Completion`](super::OpError::Completion) and the
/// status [`WR_FLUSH_ERR`](crate::WcStatus::WR_FLUSH_ERR).
///
/// ```no_run
/// use uverbs::aio::{Cq, Post, Qp};
/// use uverbs::{Caps, ConnectOptions, Rc, buf::Pool};
/// # fn run(exchange: impl Fn(uverbs::Endpoint) -> uverbs::Endpoint) -> Result<(), Box<dyn std::error::Error>> {
/// let context = uverbs::open("rxe0")?;
/// let pd = context.alloc_pd()?;
/// let pool = Pool::on(&pd).build()?;
/// let cq = Cq::new(&context, 256)?;
/// let mut qp: Qp<Rc> = cq.create_qp(&pd, Caps::default())?;
/// qp.init(&ConnectOptions::default())?;           // from here on receives can be posted
/// let answer = qp.recv(pool.try_get(4096)?);
/// let peer = exchange(qp.endpoint()?);            // over any other connection
/// qp.connect(&peer)?;
///
/// let mut buf = pool.try_get(64)?;
/// buf.extend_from_slice(b"how are you?")?;
/// cq.block_on(async {
///     let (sent, buf) = qp.send(buf).await;       // the buffer is back
///     sent?;
///     let (received, answer) = answer.await;
///     println!("{} bytes: {:?}", received?.len, &*answer);
///     Ok::<_, uverbs::aio::OpError>(buf)
/// })??;
/// # Ok(()) }
/// ```
pub struct Qp<T: Transport> {
    // Dropped before the anchor, which checks what has become of it.
    raw: qp::Qp<T>,
    anchor: Arc<Anchor>,
}

impl Cq {
    /// Creates a queue pair whose operations complete here. The capacities limit the operations in flight
    /// exactly, even if the device rounds them up; requests have one slice.
    ///
    /// # Errors
    ///
    /// As for [`Pd::create_qp`]; or this completion queue has no room for that many operations.
    pub fn create_qp<T: StaticTransport>(&self, pd: &Pd, caps: Caps) -> Result<Qp<T>> {
        let counts = (caps.max_send_wr, caps.max_recv_wr);
        self.create_with(pd, caps, counts, None)
    }

    /// Creates a queue pair, with a shared receive queue if one is given, and slots for its requests.
    pub(super) fn create_with<T: StaticTransport>(
        &self,
        pd: &Pd,
        caps: Caps,
        counts: (u32, u32),
        srq: Option<&crate::srq::Srq>,
    ) -> Result<Qp<T>> {
        self.reap();
        let slots = counts.0.checked_add(counts.1);
        let Some(slots) = slots.filter(|slots| *slots <= MOST_SLOTS) else {
            let why = format!("more than {MOST_SLOTS} requests");
            return Err(Error::invalid(Verb::CreateQp, Subject::the("QP"), why));
        };
        let admission = self.admit(Verb::CreateQp, slots)?;
        let builder = pd.qp_on(self.shared()).caps(caps);
        let raw = match srq {
            Some(srq) => builder.srq(srq).create::<T>()?,
            None => builder.create::<T>()?,
        };
        let owner = Owner {
            control: raw.control(),
            fails_as_one: T::QP_TYPE == qp::QpType::RC,
        };
        let table = Arc::new(Table::new(
            admission.number(),
            (Some(raw.qpn()), pd.tag()),
            counts,
            Some(owner),
        ));
        admission.enter(&table);
        let anchor = Arc::new(Anchor {
            table,
            cq: self.clone(),
            flight: Arc::clone(raw.flight()),
        });
        Ok(Qp { raw, anchor })
    }
}

impl<T: Transport> Qp<T> {
    pub(super) fn from_parts(raw: qp::Qp<T>, anchor: Arc<Anchor>) -> Self {
        Self { raw, anchor }
    }

    /// The queue pair without its operations, to be connected, and its anchor, which must be dropped after
    /// it.
    pub(super) fn into_parts(self) -> (qp::Qp<T>, Arc<Anchor>) {
        (self.raw, self.anchor)
    }

    /// The protection domain, for which its buffers need a key.
    pub(super) fn pd(&self) -> PdTag {
        self.anchor.table.pd
    }

    /// Waits until another operation can be posted.
    pub(super) fn room(&self) -> Room {
        Room::of(&self.anchor.table)
    }

    pub(super) fn raw_mut(&mut self) -> &mut qp::Qp<T> {
        &mut self.raw
    }

    /// The queue pair's number on the wire.
    pub fn qpn(&self) -> u32 {
        self.raw.qpn()
    }

    /// The completion queue on which its operations wait.
    pub fn cq(&self) -> &Cq {
        &self.anchor.cq
    }

    /// The state that was last set.
    pub fn state(&self) -> qp::QpState {
        self.raw.state()
    }

    /// Asks the kernel for all attributes.
    ///
    /// # Errors
    ///
    /// The device has been removed.
    pub fn query(&self) -> Result<qp::QpInfo> {
        self.raw.query()
    }

    /// What the peer must know to connect: see [`uverbs::Qp::endpoint`](qp::Qp::endpoint).
    ///
    /// # Errors
    ///
    /// As for [`uverbs::Qp::endpoint`](qp::Qp::endpoint).
    pub fn endpoint(&self) -> Result<Endpoint>
    where
        T: Connected,
    {
        self.raw.endpoint()
    }

    /// As [`endpoint`](Self::endpoint), with options of your choice.
    ///
    /// # Errors
    ///
    /// As for [`uverbs::Qp::endpoint_with`](qp::Qp::endpoint_with).
    pub fn endpoint_with(&self, options: &ConnectOptions) -> Result<Endpoint>
    where
        T: Connected,
    {
        self.raw.endpoint_with(options)
    }

    /// Takes it from RESET to INIT, so that receives can be posted before the connection is established.
    ///
    /// # Errors
    ///
    /// It is in another state.
    pub fn init(&mut self, options: &ConnectOptions) -> Result<()>
    where
        T: Connected,
    {
        self.raw.init(options)
    }

    /// Connects it to a peer: see [`uverbs::Qp::connect`](qp::Qp::connect).
    ///
    /// # Errors
    ///
    /// As for [`uverbs::Qp::connect`](qp::Qp::connect).
    pub fn connect(&mut self, peer: &Endpoint) -> Result<()>
    where
        T: Connected,
    {
        self.raw.connect(peer)
    }

    /// As [`connect`](Self::connect), with options of your choice.
    ///
    /// # Errors
    ///
    /// As for [`uverbs::Qp::connect_with`](qp::Qp::connect_with).
    pub fn connect_with(&mut self, peer: &Endpoint, options: &ConnectOptions) -> Result<()>
    where
        T: Connected,
    {
        self.raw.connect_with(peer, options)
    }

    /// Makes a queue pair for datagrams ready: see [`uverbs::Qp::activate`](qp::Qp::activate).
    ///
    /// # Errors
    ///
    /// As for [`uverbs::Qp::activate`](qp::Qp::activate).
    pub fn activate(&mut self, qkey: u32, options: &ConnectOptions) -> Result<()>
    where
        T: Datagram,
    {
        self.raw.activate(qkey, options)
    }

    /// Starts a batch of operations.
    #[inline]
    pub fn batch(&mut self) -> Batch<'_, T> {
        Batch::new(self.raw.halves().0, &self.anchor.table)
    }

    /// Receives the next message into a buffer: see [`Receiver::recv`].
    #[inline]
    pub fn recv(&mut self, buf: Buf) -> Op<Receive> {
        // SAFETY: the table belongs to the queue pair.
        unsafe { super::recv::post(self.raw.halves().1.batch(), &self.anchor.table, buf) }
    }

    /// A handle with which any thread can fail and drain the queue pair.
    pub fn control(&self) -> Control {
        Control::new(self.raw.control(), &self.anchor)
    }

    /// Ends all operations and returns their buffers: see [`Control::abort`].
    ///
    /// # Errors
    ///
    /// As for [`Control::abort`].
    pub async fn abort(&mut self) -> Result<()> {
        // SAFETY: the table is that of the queue pair, which nobody else has.
        unsafe { take_back_forgotten(&self.anchor.table) };
        self.control().abort().await
    }

    /// Splits it for two tasks. It lives until both halves are gone.
    pub fn split(self) -> (Sender<T>, Receiver<T>) {
        let (send, recv) = self.raw.split();
        (
            Sender::new(send, Arc::clone(&self.anchor)),
            Receiver::new(recv, self.anchor),
        )
    }

    /// Joins two halves again.
    ///
    /// # Errors
    ///
    /// The halves belong to different queue pairs. They are returned.
    pub fn join(
        sender: Sender<T>,
        receiver: Receiver<T>,
    ) -> Result<Self, (Sender<T>, Receiver<T>)> {
        let (send, anchor) = sender.into_parts();
        let (recv, other) = receiver.into_parts();
        match qp::Qp::join(send, recv) {
            Ok(raw) => Ok(Self { raw, anchor }),
            Err((send, recv)) => Err((Sender::new(send, anchor), Receiver::new(recv, other))),
        }
    }
}

impl Qp<Dc> {
    /// Makes an initiator of dynamic connections ready: see
    /// [`uverbs::Qp::activate_initiator`](qp::Qp::activate_initiator). It receives nothing; a target's
    /// receives are those of a [`Srq`](super::Srq).
    ///
    /// # Errors
    ///
    /// As for [`uverbs::Qp::activate_initiator`](qp::Qp::activate_initiator).
    pub fn activate_initiator(&mut self, options: &ConnectOptions) -> Result<()> {
        self.raw.activate_initiator(options)
    }
}

impl<T: Transport> Post<T> for Qp<T> {
    #[inline(always)]
    fn post<K: Kind>(
        &mut self,
        buf: Buf,
        push: impl FnOnce(Request<'_, '_, T>, &[LocalSlice<'static>]) -> Result<(), PostError>,
        _: Inside,
    ) -> Op<K> {
        post_alone(self.raw.halves().0, &self.anchor.table, buf, push)
    }
}

impl<T: Transport> fmt::Debug for Qp<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Qp")
            .field("raw", &self.raw)
            .field("in_flight", &self.anchor.table.in_flight())
            .finish()
    }
}
