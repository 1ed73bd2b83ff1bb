//! Dynamic connections (DC): one queue pair that reaches any number of peers, reliably.
//!
//! A *target* ([`DcTarget`]) takes messages from every peer that knows its number and its access key. Their
//! receives are those of a shared receive queue. An *initiator*, a queue pair of the type
//! [`Dc`](crate::transport::Dc), names a target with each request, by an address handle, the number and the
//! key. The device connects to the target when it is needed. So a server with ten thousand clients has one
//! target, and each client one initiator. No connections are set up in advance, and a peer costs nothing but
//! an address handle.
//!
//! A request that a target refuses fails the initiator: with
//! [`REM_ACCESS_ERR`](crate::WcStatus::REM_ACCESS_ERR) for a wrong key or rights that the target does not
//! give, and with [`RETRY_EXC_ERR`](crate::WcStatus::RETRY_EXC_ERR) if there is no such target. The initiator
//! is then in the error state, and the requests after the failed one are flushed, whatever their targets.
//! After [`Qp::reset`](crate::Qp::reset) it can be used again. The target is not affected. With
//! [streams](crate::qp::QpBuilder::dc_streams) a failure stops the requests of one stream only.
//!
//! mlx5 has dynamic connections; other drivers refuse them by name.
//!
//! ```no_run
//! use uverbs::{Caps, ConnectOptions, Endpoint, Inline, transport::Dc};
//! # type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
//! # fn tell(target: Endpoint, key: u64) {}
//! # fn told() -> (Endpoint, u64) { unimplemented!() }
//! fn receive(pd: &uverbs::Pd, cq: &uverbs::Cq) -> Result<()> {
//!     let mut srq = pd.srq(1024).create()?;
//!     let mut batch = srq.batch();
//!     batch.post_empty(1)?;
//!     batch.ring();
//!     let target = pd.dc_target(cq, &srq, 0x5eed).create()?;
//!     tell(target.endpoint(), target.key());
//!     // ... messages of all initiators complete on `cq`
//! #   Ok(())
//! }
//!
//! fn send(pd: &uverbs::Pd, cq: &uverbs::Cq) -> Result<()> {
//!     let options = ConnectOptions::default();
//!     let mut qp = pd.create_qp::<Dc>(cq, Caps::default())?;
//!     qp.activate_initiator(&options)?;
//!     let (target, key) = told();
//!     let ah = pd.create_ah(&pd.context().path_to(&target, &options)?)?;
//!     qp.one(1).to(ah.to_target(target.qpn, key)).send(Inline(b"hello"))?;
//! #   Ok(())
//! }
//! ```

use std::fmt;
use std::sync::Arc;

use uverbs_uapi::enums::QpType;
use uverbs_uapi::flags::QpCreateFlags;
use uverbs_uapi::handle::QpHandle;
use uverbs_uapi::types::QpCap;

use crate::ah::Ah;
use crate::command::QpSpec;
use crate::context::Context;
use crate::cq::{Cq, CqShared};
use crate::driver::{self, DcTargetBacking, DcTargetParts};
use crate::error::{DestroyError, Result, Subject, Verb};
use crate::owned::Owned;
use crate::pd::{Pd, PdUse, User};
use crate::qp::connect::LocalEnd;
use crate::qp::{ConnectOptions, Endpoint};
use crate::srq::{Srq, SrqShared};
use crate::work::{Destination, TargetAt};

/// The destination of a request of an initiator: a path, and the target at its end.
#[derive(Clone, Copy, Debug)]
pub struct DcPeer<'a> {
    ah: &'a Ah,
    number: u32,
    key: u64,
    stream: u16,
}

impl<'a> DcPeer<'a> {
    pub(crate) fn new(ah: &'a Ah, number: u32, key: u64) -> Self {
        Self {
            ah,
            number,
            key,
            stream: 0,
        }
    }

    /// The same target for a request in another stream than the first, of an initiator with streams
    /// ([`QpBuilder::dc_streams`](crate::qp::QpBuilder::dc_streams)). Any number is valid: if there are more
    /// numbers than streams, several numbers share a stream.
    #[inline(always)]
    pub fn on_stream(self, stream: u16) -> Self {
        Self { stream, ..self }
    }

    #[inline(always)]
    pub(crate) fn destination(&self) -> Destination<'_, driver::Ah> {
        Destination::Target(TargetAt {
            ah: self.ah.vector(),
            number: self.number,
            key: self.key,
            stream: self.stream,
            pd: self.ah.tag(),
        })
    }
}

/// The description of a target to create.
#[must_use = "nothing is created before `create`"]
#[derive(Clone, Debug)]
pub struct DcTargetBuilder<'a> {
    pd: &'a Pd,
    cq: &'a Arc<CqShared>,
    srq: &'a Srq,
    key: u64,
    options: ConnectOptions,
    user_data: Option<u64>,
}

impl Pd {
    /// Starts the description of a target of dynamic connections. Its receives are those of `srq`, and
    /// complete on `cq`. Requests that name another access key than `key` are refused.
    pub fn dc_target<'a>(&'a self, cq: &'a Cq, srq: &'a Srq, key: u64) -> DcTargetBuilder<'a> {
        self.dc_target_on(cq.shared(), srq, key)
    }

    /// As [`Pd::dc_target`], for a caller that does not have the queue itself.
    pub(crate) fn dc_target_on<'a>(
        &'a self,
        cq: &'a Arc<CqShared>,
        srq: &'a Srq,
        key: u64,
    ) -> DcTargetBuilder<'a> {
        DcTargetBuilder {
            pd: self,
            cq,
            srq,
            key,
            options: ConnectOptions::default(),
            user_data: None,
        }
    }
}

impl DcTargetBuilder<'_> {
    /// Where and how it receives. These of the options are used: port, GID, MTU, partition key, what peers
    /// may do ([`ConnectOptions::access`]), the traffic class, the hop limit, and how long a peer has to
    /// pause while no receive is posted.
    pub fn options(mut self, options: &ConnectOptions) -> Self {
        self.options = options.clone();
        self
    }

    /// Sets the number by which events name it, as [`QpBuilder::user_data`](crate::qp::QpBuilder::user_data)
    /// does for a queue pair.
    pub fn user_data(mut self, number: u64) -> Self {
        self.user_data = Some(number);
        self
    }

    /// Creates the target. It receives from then on.
    ///
    /// # Errors
    ///
    /// [`Cause::Unsupported`](crate::Cause::Unsupported) if the driver, the device or the kernel has no
    /// dynamic connections. The completion queue or the shared receive queue belongs to another context.
    /// There is no such port, GID or partition key. Manual page: `mlx5dv_create_qp(3)`.
    pub fn create(self) -> Result<DcTarget> {
        let Self {
            pd,
            cq,
            srq,
            key,
            options,
            user_data,
        } = self;
        let context = pd.context();
        let subject = || Subject::named("DC target", format_args!("in PD {}", pd.handle().0));
        let parts = [
            ("the CQ", Some(cq.context())),
            ("the SRQ", Some(srq.context())),
        ];
        context.check_parts(Verb::CreateQp, subject, parts)?;
        let end = LocalEnd::find(context, &options)?;
        let id = user_data.unwrap_or_else(|| context.new_id());
        let spec = QpSpec {
            pd: pd.handle(),
            send_cq: cq.handle(),
            recv_cq: cq.handle(),
            srq: Some(srq.handle()),
            qp_type: QpType::DCT,
            cap: QpCap::default(),
            sq_sig_all: false,
            flags: QpCreateFlags::empty(),
            user_handle: id,
            event_fd: context.event_fd()?,
        };
        let parts = DcTargetParts {
            cq: cq.backing(),
            srq: srq.backing(),
            access_key: key,
            changes: end.target_changes(&options)?,
        };
        let created = context
            .driver()
            .create_dc_target(context.fd(), &spec, &parts);
        let (handle, number, backing) = created.map_err(|error| match error.is_unsupported() {
            true => error.with_detail("a target of dynamic connections (DC)"),
            false => error,
        })?;
        Ok(DcTarget {
            object: Owned::backed(context, handle, backing).on_the_wire(number),
            endpoint: end.of_target(number),
            key,
            id,
            _srq: Arc::clone(srq.shared()),
            _cq: Arc::clone(cq),
            _pd: pd.user(User::Qp),
        })
    }
}

/// A target of dynamic connections: it takes messages from every initiator that knows its number and key.
///
/// Its completions have its [number](Self::number) as the [queue pair's](crate::Completion::qp_num), and the
/// initiator's as the [source](crate::Completion::src_qp). It keeps its shared receive queue and its
/// completion queue alive, but only the owner of the queue can post receives.
///
/// Dropping it destroys it. The kernel waits until no message to it is under way. Later requests find no
/// target: they fail with [`RETRY_EXC_ERR`](crate::WcStatus::RETRY_EXC_ERR).
pub struct DcTarget {
    object: Owned<QpHandle, DcTargetBacking>,
    endpoint: Endpoint,
    key: u64,
    id: u64,
    // After the object, which uses it.
    _srq: Arc<SrqShared>,
    _cq: Arc<CqShared>,
    _pd: PdUse,
}

impl DcTarget {
    /// The context that it was created in.
    pub fn context(&self) -> &Context {
        self.object.context()
    }

    /// The kernel's handle.
    pub fn handle(&self) -> QpHandle {
        self.object.handle()
    }

    /// Its number on the wire; 24 bits.
    pub fn number(&self) -> u32 {
        self.endpoint.qpn
    }

    /// The access key that requests must name.
    pub fn key(&self) -> u64 {
        self.key
    }

    /// Where initiators find it: an endpoint with its number as the queue pair's. They also need the
    /// [key](Self::key). The packet sequence number has no meaning.
    pub fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    /// The number by which events name it: that of [`DcTargetBuilder::user_data`], or otherwise one that is
    /// unique in its context.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Destroys the target.
    ///
    /// # Errors
    ///
    /// The kernel refuses; the error returns it. Manual page: `ibv_destroy_qp(3)`.
    #[doc(alias = "ibv_destroy_qp")]
    pub fn destroy(mut self) -> Result<(), DestroyError<Self>> {
        let result = self.object.destroy();
        DestroyError::of(self, result)
    }
}

impl fmt::Debug for DcTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DcTarget")
            .field("handle", &self.handle().0)
            .field("number", &format_args!("{:#x}", self.number()))
            .field("id", &self.id)
            .finish()
    }
}
