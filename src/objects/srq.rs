//! Shared receive queues: one pool of receive requests for many queue pairs.
//!
//! Posting borrows the queue exclusively, as everywhere. The queue pairs that use it keep the kernel object
//! alive, but only this handle can post.

use std::fmt;
use std::sync::Arc;

use uverbs_uapi::flags::SrqAttrMask;
use uverbs_uapi::handle::SrqHandle;
use uverbs_uapi::write as abi;

use crate::command::{CreateSrq, DriverData, ModifySrq, QuerySrq, SrqKind};
use crate::context::Context;
use crate::cq::{Cq, CqShared};
use crate::driver::{SharedRecvQueue, SrqBacking};
use crate::error::{DestroyError, Error, Result, Subject, Verb};
use crate::flight::{Flight, Queues};
use crate::owned::Owned;
use crate::pd::{Pd, PdUse, User};
use crate::qp::RecvBatch;
use crate::query::DeviceAttr;
use crate::work::{PdTag, PostError};
use crate::xrcd::{Xrcd, XrcdShared};

/// The description of a shared receive queue to create.
#[must_use = "nothing is created before `create`"]
#[derive(Clone, Debug)]
pub struct SrqBuilder<'a> {
    pd: &'a Pd,
    max_wr: u32,
    max_sge: u32,
    limit: u32,
    kind: Kind<'a>,
}

/// The type of a shared receive queue, with its parameters.
#[derive(Clone, Copy, Debug)]
enum Kind<'a> {
    Basic,
    Xrc(&'a Xrcd, &'a Cq),
}

impl<'a> Kind<'a> {
    fn command(self) -> SrqKind {
        match self {
            Kind::Basic => SrqKind::Basic,
            Kind::Xrc(xrcd, cq) => SrqKind::Xrc {
                xrcd: xrcd.handle(),
                cq: cq.handle(),
            },
        }
    }

    fn cq(self) -> Option<&'a Cq> {
        match self {
            Kind::Basic => None,
            Kind::Xrc(_, cq) => Some(cq),
        }
    }

    fn xrcd(self) -> Option<&'a Xrcd> {
        match self {
            Kind::Xrc(xrcd, _) => Some(xrcd),
            Kind::Basic => None,
        }
    }
}

impl Pd {
    /// Starts the description of a shared receive queue for at least `max_wr` requests of one slice.
    pub fn srq(&self, max_wr: u32) -> SrqBuilder<'_> {
        SrqBuilder {
            pd: self,
            max_wr,
            max_sge: 1,
            limit: 0,
            kind: Kind::Basic,
        }
    }
}

impl<'a> SrqBuilder<'a> {
    /// Slices of a request; 1 by default.
    pub fn max_sge(mut self, max_sge: u32) -> Self {
        self.max_sge = max_sge;
        self
    }

    /// Requests one event when fewer than `limit` requests are left. See [`Srq::set_limit`].
    pub fn limit(mut self, limit: u32) -> Self {
        self.limit = limit;
        self
    }

    /// Makes it a queue of an XRC domain: peers name it in each message to a target of the domain. Its
    /// receives complete on `cq`.
    pub fn xrc(mut self, xrcd: &'a Xrcd, cq: &'a Cq) -> Self {
        self.kind = Kind::Xrc(xrcd, cq);
        self
    }

    /// Creates the queue.
    ///
    /// # Errors
    ///
    /// A number exceeds the device's limits; the text then has them.
    /// [`Cause::Unsupported`](crate::Cause::Unsupported) if the driver lacks the type (rxe has no XRC).
    /// Manual pages: `ibv_create_srq(3)`, `ibv_create_srq_ex(3)`.
    #[doc(alias = "ibv_create_srq")]
    #[doc(alias = "ibv_create_srq_ex")]
    pub fn create(self) -> Result<Srq> {
        let Self {
            pd,
            max_wr,
            max_sge,
            limit,
            kind,
        } = self;
        let context = pd.context();
        let subject = || Subject::named("SRQ", format_args!("in PD {}", pd.handle().0));
        let parts = [
            ("the CQ", kind.cq().map(Cq::context)),
            ("the XRC domain", kind.xrcd().map(Xrcd::context)),
        ];
        context.check_parts(Verb::CreateSrq, subject, parts)?;
        let id = context.new_id();
        let command = CreateSrq {
            kind: kind.command(),
            pd: pd.handle(),
            max_wr,
            max_sge,
            limit,
            user_handle: id,
            event_fd: context.event_fd()?,
            driver: DriverData::default(),
        };
        let cq = kind.cq().map(Cq::backing);
        let created = context
            .driver()
            .create_srq(context.fd(), command, cq, pd.buffers());
        let (handle, queue, backing, srqn) =
            created.map_err(|error| context.with_limits(error, limits))?;
        let user = pd.user(User::Srq);
        let subject = Subject::numbered("SRQ", handle.0.into());
        let queues = Queues::Srq(backing.clone());
        let flight = user.flights().begin(subject, queues);
        let shared = SrqShared {
            object: Owned::backed(context, handle, backing),
            id,
            srqn,
            pd: user,
            flight,
            _cq: kind.cq().map(|cq| Arc::clone(cq.shared())),
            _xrcd: kind.xrcd().map(|xrcd| Arc::clone(xrcd.shared())),
        };
        // Some drivers ignore the limit on creation.
        let srq = Srq {
            queue,
            pd: shared.pd.tag(),
            shared: Arc::new(shared),
        };
        if limit > 0 {
            srq.set_limit(limit)?;
        }
        Ok(srq)
    }
}

/// The device's limits on shared receive queues, for errors that they may have caused.
fn limits(device: &DeviceAttr) -> String {
    format!(
        "the device's limits: max_srq_wr {}, max_srq_sge {}",
        device.max_srq_wr, device.max_srq_sge
    )
}

/// What a shared receive queue shares with the queue pairs that use it.
pub(crate) struct SrqShared {
    object: Owned<SrqHandle, SrqBacking>,
    id: u64,
    srqn: Option<u32>,
    pd: PdUse,
    /// What a region asks before it is deregistered.
    flight: Arc<Flight>,
    _cq: Option<Arc<CqShared>>,
    _xrcd: Option<Arc<XrcdShared>>,
}

impl Drop for SrqShared {
    fn drop(&mut self) {
        // Regions wait forever for an object that the kernel keeps.
        if self.object.end(|_| ()) {
            self.pd.flights().end(&self.flight);
        }
    }
}

/// The settings of a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqInfo {
    /// Requests that it holds.
    pub max_wr: u32,
    /// Slices of a request.
    pub max_sge: u32,
    /// There is an event when fewer requests than this are left; 0 for no event.
    pub limit: u32,
}

/// A shared receive queue.
///
/// `docs/examples/srq_server.rs` is a server that ends its connections in the right order.
///
/// ```no_run
/// use uverbs::{Caps, Rc};
/// # fn serve(pd: &uverbs::Pd, cq: &uverbs::Cq) -> Result<(), Box<dyn std::error::Error>> {
/// let mut srq = pd.srq(1024).limit(128).create()?;
/// let mut batch = srq.batch();
/// for id in 0..1024 {
///     batch.post_empty(id)?;
/// }
/// batch.ring();
/// let mut connections = Vec::new();
/// for number in 0..100 {
///     let qp = pd.qp(cq).srq(&srq).user_data(number).caps(Caps::default());
///     connections.push(qp.create::<Rc>()?);
/// }
/// # Ok(()) }
/// ```
pub struct Srq {
    // Before `shared`: the ring is unmapped while the kernel object still is.
    queue: SharedRecvQueue,
    /// The PD tag of `shared`, for posting.
    pd: PdTag,
    shared: Arc<SrqShared>,
}

impl Srq {
    /// The context that it was created in.
    pub fn context(&self) -> &Context {
        self.shared.pd.context()
    }

    /// The kernel's handle.
    pub fn handle(&self) -> SrqHandle {
        self.shared.object.handle()
    }

    /// The number by which events name it; unique in its context.
    pub fn id(&self) -> u64 {
        self.shared.id
    }

    /// The number by which peers name it, if it is in an XRC domain. Manual page: `ibv_get_srq_num(3)`.
    #[doc(alias = "ibv_get_srq_num")]
    pub fn srqn(&self) -> Option<u32> {
        self.shared.srqn.filter(|&srqn| srqn != 0)
    }

    /// The capacity in requests; at least as many as requested.
    pub fn capacity(&self) -> u32 {
        self.queue.capacity()
    }

    /// Slices that a request can have; at least as many as requested.
    pub fn max_sge(&self) -> u32 {
        self.queue.max_sge()
    }

    /// The number of requests that wait for a message.
    ///
    /// On hardware a request counts until its completion has been polled; see
    /// [`SendHalf::in_flight`](crate::SendHalf::in_flight).
    pub fn in_flight(&self) -> u32 {
        self.queue.in_flight()
    }

    /// By it regions learn when the device has released the queue.
    pub(crate) fn flight(&self) -> &Arc<Flight> {
        &self.shared.flight
    }

    pub(crate) fn backing(&self) -> &SrqBacking {
        self.shared.object.backing()
    }

    pub(crate) fn shared(&self) -> &Arc<SrqShared> {
        &self.shared
    }

    /// Starts a batch of receive requests.
    #[inline(always)]
    pub fn batch(&mut self) -> RecvBatch<'_> {
        RecvBatch::shared(self.queue.lend(), self.pd)
    }

    /// Requests an event
    /// ([`AsyncEventType::SRQ_LIMIT_REACHED`](crate::event::AsyncEventType::SRQ_LIMIT_REACHED)) for when
    /// fewer than `limit` requests are left. Each call causes one event; 0 cancels it.
    ///
    /// # Errors
    ///
    /// The limit exceeds the capacity. Manual page: `ibv_modify_srq(3)`.
    #[doc(alias = "ibv_modify_srq")]
    pub fn set_limit(&self, limit: u32) -> Result<()> {
        self.check_kept(Verb::ModifySrq)?;
        let core = abi::ModifySrq {
            srq_handle: self.handle().0,
            attr_mask: SrqAttrMask::LIMIT.bits(),
            srq_limit: limit,
            ..Default::default()
        };
        let command = ModifySrq {
            core,
            driver: DriverData::default(),
        };
        let context = self.context();
        context.driver().modify_srq(context.fd(), command)
    }

    /// Changes the size of the queue. Waiting requests stay.
    ///
    /// On a parent domain with an allocator, the allocator provides the new ring and gets the old one back.
    ///
    /// # Errors
    ///
    /// The waiting requests do not fit, the device's limit is exceeded, the kernel has no memory for the new
    /// ring, or there is no place for it: the queue is then unchanged. Manual page: `ibv_modify_srq(3)`.
    ///
    /// On soft-RoCE the kernel may run out of memory after the library has made sure that it has enough, or
    /// the new ring may not be mapped. Then the queue is lost, which the error says: on Linux 6.1 the kernel
    /// would crash if it were used. Posting to it fails with
    /// [`PostError::QueueLost`](crate::PostError::QueueLost). Destroy the queue pairs that receive from it,
    /// at once if messages may come in, and then the queue.
    #[doc(alias = "ibv_modify_srq")]
    pub fn resize(&mut self, max_wr: u32) -> Result<()> {
        self.check_kept(Verb::ModifySrq)?;
        let core = abi::ModifySrq {
            srq_handle: self.handle().0,
            attr_mask: SrqAttrMask::MAX_WR.bits(),
            max_wr,
            ..Default::default()
        };
        let command = ModifySrq {
            core,
            driver: DriverData::default(),
        };
        let context = self.shared.pd.context();
        let resized = context.driver().resize_srq(
            context.fd(),
            command,
            &mut self.queue,
            self.shared.pd.buffers(),
        );
        resized.map_err(|error| context.with_limits(error, limits))
    }

    /// Asks the kernel for the queue's settings.
    ///
    /// # Errors
    ///
    /// The device has been removed. Manual page: `ibv_query_srq(3)`.
    #[doc(alias = "ibv_query_srq")]
    pub fn query(&self) -> Result<SrqInfo> {
        self.check_kept(Verb::QuerySrq)?;
        let abi::QuerySrqResp {
            max_wr,
            max_sge,
            srq_limit,
            ..
        } = self.context().fd().execute(&QuerySrq(self.handle()))?;
        Ok(SrqInfo {
            max_wr,
            max_sge,
            limit: srq_limit,
        })
    }

    /// Refuses a queue that is lost.
    fn check_kept(&self, verb: Verb) -> Result<()> {
        match self.backing().is_lost() {
            false => Ok(()),
            true => {
                let subject = Subject::numbered("SRQ", self.handle().0.into());
                Err(Error::invalid(
                    verb,
                    subject,
                    PostError::QueueLost.to_string(),
                ))
            }
        }
    }

    /// Destroys the queue.
    ///
    /// # Errors
    ///
    /// [`Cause::Busy`](crate::Cause::Busy) while queue pairs use it. The error returns the queue. Manual
    /// page: `ibv_destroy_srq(3)`.
    #[doc(alias = "ibv_destroy_srq")]
    pub fn destroy(mut self) -> Result<(), DestroyError<Srq>> {
        let result = match Arc::get_mut(&mut self.shared) {
            Some(shared) => shared.object.destroy(),
            None => {
                let users = Arc::strong_count(&self.shared) - 1;
                Err(self
                    .shared
                    .object
                    .busy(format!("{users} QPs receive from it")))
            }
        };
        DestroyError::of(self, result)
    }
}

impl fmt::Debug for Srq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Srq")
            .field("handle", &self.handle().0)
            .field("id", &self.id())
            .field("capacity", &self.capacity())
            .finish()
    }
}
