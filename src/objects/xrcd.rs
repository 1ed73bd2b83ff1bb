//! XRC domains: shared receive queues of many processes that share one connection from each peer.
//!
//! A domain that belongs to a file can be opened by every process that can open the file. A peer sends to the
//! domain's *target*, a queue pair without queues, and names a shared receive queue in each message. So a
//! host with many processes needs one connection from each peer, not one for each process.
//!
//! soft-RoCE has no XRC. [`Pd::srq`](crate::Pd::srq) creates the shared receive queues
//! ([`SrqBuilder::xrc`](crate::srq::SrqBuilder::xrc)); the sending side, the *initiator*, is a queue pair of
//! the type [`Xrc`](crate::transport::Xrc).
//!
//! ```no_run
//! use uverbs::{Caps, Endpoint, Inline, PeerSrq, transport::Xrc, xrcd::XrcdFile};
//! # use std::os::fd::AsFd;
//! # type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
//! # fn exchange(ours: Endpoint) -> Result<Endpoint> { unimplemented!("{ours}") }
//! # fn told() -> u32 { 1 }
//! fn receive(pd: &uverbs::Pd, cq: &uverbs::Cq, file: &std::fs::File) -> Result<()> {
//!     let domain = pd.context().open_xrcd_of(file.as_fd(), XrcdFile::Create)?;
//!     let srq = pd.srq(64).xrc(&domain, cq).create()?;
//!     let number = srq.srqn();                                // for the peer
//!     let mut target = domain.create_target()?;
//!     let initiator = exchange(target.endpoint()?)?;
//!     target.connect(&initiator)?;
//!     // ... receives are posted to `srq`, and complete on `cq`
//! #   drop((target, number)); Ok(())
//! }
//!
//! fn send(pd: &uverbs::Pd, cq: &uverbs::Cq) -> Result<()> {
//!     let mut qp = pd.create_qp::<Xrc>(cq, Caps::default())?;
//!     let target = exchange(qp.endpoint()?)?;
//!     qp.connect(&target)?;
//!     let mut batch = qp.batch();
//!     batch.signaled(1).to(PeerSrq(told())).send(Inline(b"hello"))?;
//!     batch.ring()?;
//! #   Ok(())
//! }
//! ```
//!
//! The module `cm` connects them by IP address and port, like other queue pairs.

use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use rustix::fs::OFlags;
use uverbs_uapi::enums::{QpState, QpType};
use uverbs_uapi::flags::QpAttrMask;
use uverbs_uapi::handle::{QpHandle, XrcdHandle};
use uverbs_uapi::write as abi;

use crate::command::{CreateXrcTarget, DriverData, ModifyQp, OpenQp, OpenXrcd, QueryQp};
use crate::context::Context;
use crate::error::{DestroyError, Result, Subject};
use crate::owned::Owned;
use crate::qp::attr::Change;
use crate::qp::connect::End;
use crate::qp::{ConnectOptions, Endpoint, QpAttr, QpInfo};

/// Whether the domain of a file must exist already, as `O_CREAT` and `O_EXCL` for open(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum XrcdFile {
    /// Some process must have it open.
    Existing,
    /// It is created if no process has it open.
    Create,
    /// No process may have it open.
    CreateNew,
}

impl XrcdFile {
    fn oflags(self) -> u32 {
        match self {
            Self::Existing => OFlags::empty(),
            Self::Create => OFlags::CREATE,
            Self::CreateNew => OFlags::CREATE | OFlags::EXCL,
        }
        .bits()
    }
}

impl Context {
    /// Opens an XRC domain that no other context can open.
    ///
    /// # Errors
    ///
    /// [`Cause::Unsupported`](crate::Cause::Unsupported) if the device has no XRC, like rxe. Manual page:
    /// `ibv_open_xrcd(3)`.
    #[doc(alias = "ibv_open_xrcd")]
    pub fn open_xrcd(&self) -> Result<Xrcd> {
        // Without a file there is no existing domain to find, and the kernel requires the flag that creates
        // one.
        self.xrcd(None, XrcdFile::Create)
    }

    /// Opens the XRC domain of a file's inode, which other users of the device can open too. The kernel does
    /// not read the file.
    ///
    /// # Errors
    ///
    /// As for [`Context::open_xrcd`]. `EAGAIN` if the domain is not open yet, `EINVAL` if it is and had to be
    /// new.
    pub fn open_xrcd_of(&self, file: BorrowedFd<'_>, how: XrcdFile) -> Result<Xrcd> {
        self.xrcd(Some(file), how)
    }

    fn xrcd(&self, file: Option<BorrowedFd<'_>>, how: XrcdFile) -> Result<Xrcd> {
        let command = OpenXrcd {
            file: file.map(|file| file.as_raw_fd()),
            oflags: how.oflags(),
        };
        let handle = self.fd().execute(&command)?;
        let object = Owned::new(self, handle);
        Ok(Xrcd(Arc::new(XrcdShared(object))))
    }
}

/// The part of an XRC domain that the objects in it share.
pub(crate) struct XrcdShared(Owned<XrcdHandle>);

/// An XRC domain. The objects in it keep it open.
///
/// ```no_run
/// # fn share(context: &uverbs::Context) -> Result<(), Box<dyn std::error::Error>> {
/// let (pd, cq) = (context.alloc_pd()?, context.create_cq(64)?);
/// let domain = context.open_xrcd()?;
/// let srq = pd.srq(64).xrc(&domain, &cq).create()?;   // peers name it by its number
/// let target = domain.create_target()?;               // and connect to this
/// println!("{:?} of {:?}", srq.srqn(), target);
/// # Ok(()) }
/// ```
pub struct Xrcd(Arc<XrcdShared>);

impl Xrcd {
    /// The context that it was opened in.
    pub fn context(&self) -> &Context {
        self.0.0.context()
    }

    /// The kernel's handle.
    pub fn handle(&self) -> XrcdHandle {
        self.0.0.handle()
    }

    pub(crate) fn shared(&self) -> &Arc<XrcdShared> {
        &self.0
    }

    /// Creates a target of the domain, to which a peer connects.
    ///
    /// # Errors
    ///
    /// The device's limit is reached. Manual page: `ibv_create_qp_ex(3)`.
    #[doc(alias = "ibv_create_qp_ex")]
    pub fn create_target(&self) -> Result<XrcTarget> {
        let context = self.context();
        let id = context.new_id();
        let command = CreateXrcTarget {
            xrcd: self.handle(),
            user_handle: id,
            event_fd: context.event_fd()?,
            driver: DriverData::default(),
        };
        let (handle, qpn) = context.driver().create_xrc_target(context.fd(), &command)?;
        Ok(self.target(handle, qpn, id))
    }

    /// Opens a target of the domain that another context has created, by its number on the wire. The kernel
    /// reports the target's events only to the context that has created it.
    ///
    /// # Errors
    ///
    /// The domain has no such target (`EINVAL`), or its state cannot be queried. Manual page:
    /// `ibv_open_qp(3)`.
    #[doc(alias = "ibv_open_qp")]
    pub fn open_target(&self, qpn: u32) -> Result<XrcTarget> {
        let context = self.context();
        let id = context.new_id();
        let command = OpenQp {
            xrcd: self.handle(),
            qpn,
            user_handle: id,
        };
        let handle = context.fd().execute(&command)?;
        let mut target = self.target(handle, qpn, id);
        // Other users may have taken it to any state.
        target.query()?;
        Ok(target)
    }

    fn target(&self, handle: QpHandle, qpn: u32, id: u64) -> XrcTarget {
        XrcTarget {
            object: Owned::new(self.context(), handle),
            qpn,
            id,
            state: QpState::RESET,
            end: None,
            _xrcd: Arc::clone(&self.0),
        }
    }

    /// Closes the domain.
    ///
    /// # Errors
    ///
    /// [`Cause::Busy`](crate::Cause::Busy) while targets or shared receive queues of this process are in it.
    /// The error returns it. Manual page: `ibv_close_xrcd(3)`.
    #[doc(alias = "ibv_close_xrcd")]
    pub fn close(mut self) -> Result<(), DestroyError<Self>> {
        let result = match Arc::get_mut(&mut self.0) {
            Some(shared) => shared.0.destroy(),
            None => {
                let users = Arc::strong_count(&self.0) - 1;
                Err(self.0.0.busy(format!("{users} QPs and SRQs are in it")))
            }
        };
        DestroyError::of(self, result)
    }
}

impl fmt::Debug for Xrcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Xrcd")
            .field("handle", &self.handle().0)
            .finish()
    }
}

/// A target of an XRC domain: the receiving end of a connection, without queues.
///
/// Messages go to the shared receive queues of the domain.
pub struct XrcTarget {
    object: Owned<QpHandle>,
    qpn: u32,
    id: u64,
    state: QpState,
    /// The end that the peer knows.
    end: Option<End>,
    _xrcd: Arc<XrcdShared>,
}

impl XrcTarget {
    /// What an initiator must know to connect: as [`Qp::endpoint`](crate::Qp::endpoint).
    ///
    /// # Errors
    ///
    /// As for [`Qp::endpoint`](crate::Qp::endpoint).
    pub fn endpoint(&mut self) -> Result<Endpoint> {
        self.endpoint_with(&ConnectOptions::default())
    }

    /// As [`Qp::endpoint_with`](crate::Qp::endpoint_with). The port and the GID are queried once: later calls
    /// with the same options return the same endpoint, until the target is reset.
    ///
    /// # Errors
    ///
    /// As for [`Qp::endpoint_with`](crate::Qp::endpoint_with).
    pub fn endpoint_with(&mut self, options: &ConnectOptions) -> Result<Endpoint> {
        Ok(self.end(options)?.endpoint())
    }

    fn end(&mut self, options: &ConnectOptions) -> Result<End> {
        if let Some(end) = self.end.filter(|end| end.is_for(options)) {
            return Ok(end);
        }
        let context = self.object.context();
        let end = End::find(context, options, self.qpn, || self.subject())?;
        self.end = Some(end);
        Ok(end)
    }

    /// Connects to an initiator with the default options, from RESET to RTS: as
    /// [`Qp::connect`](crate::Qp::connect).
    ///
    /// # Errors
    ///
    /// As for [`Qp::connect`](crate::Qp::connect).
    pub fn connect(&mut self, initiator: &Endpoint) -> Result<()> {
        self.connect_with(initiator, &ConnectOptions::default())
    }

    /// Connects to an initiator with options of your choice; use the same with [`XrcTarget::endpoint_with`].
    ///
    /// # Errors
    ///
    /// As for [`Qp::connect`](crate::Qp::connect).
    pub fn connect_with(&mut self, initiator: &Endpoint, options: &ConnectOptions) -> Result<()> {
        let end = self.end(options)?;
        let of = (self.context(), || self.subject());
        let steps = end.steps(QpType::XRC_RECV, initiator, options, of)?;
        steps.each(|step| self.change(step.core))
    }

    /// The context that its domain was opened in.
    pub fn context(&self) -> &Context {
        self.object.context()
    }

    /// The kernel's handle.
    pub fn handle(&self) -> QpHandle {
        self.object.handle()
    }

    /// The number on the wire; 24 bits.
    pub fn qpn(&self) -> u32 {
        self.qpn
    }

    /// The number by which events name it; unique in its context. A target that was
    /// [opened](Xrcd::open_target) has no events here.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The state that was last set or queried through this handle; after [`Xrcd::open_target`], the state at
    /// that moment.
    pub fn state(&self) -> QpState {
        self.state
    }

    /// Changes attributes, most often the state.
    ///
    /// # Errors
    ///
    /// As for [`Qp::modify`](crate::Qp::modify).
    pub fn modify(&mut self, attr: &QpAttr) -> Result<()> {
        self.change(attr.to_abi())
    }

    fn change(&mut self, base: abi::ModifyQp) -> Result<()> {
        let from = base.cur_state().unwrap_or(self.state);
        base.check(|| self.subject(), QpType::XRC_RECV, from)?;
        let to = base.state();
        let command = ModifyQp {
            base: abi::ModifyQp {
                qp_handle: self.handle().0,
                ..base
            },
            driver: DriverData::default(),
        };
        self.object.context().fd().execute(&command)?;
        self.state = to.unwrap_or(self.state);
        if to == Some(QpState::RESET) {
            // The next connection starts with another PSN.
            self.end = None;
        }
        Ok(())
    }

    /// Moves the target to the state RESET; its next connection starts with another packet sequence number.
    ///
    /// # Errors
    ///
    /// The device has been removed.
    pub fn reset(&mut self) -> Result<()> {
        self.modify(&QpAttr {
            state: Some(QpState::RESET),
            ..QpAttr::default()
        })
    }

    /// Moves the target to the state ERR: it takes no more messages.
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
    pub fn query(&mut self) -> Result<QpInfo> {
        let command = QueryQp {
            qp: self.handle(),
            attr_mask: QpAttrMask::all().bits(),
        };
        let info = QpInfo::from(self.object.context().fd().execute(&command)?);
        self.state = info.state;
        Ok(info)
    }

    /// Destroys the target, or closes it if another context has it open.
    ///
    /// # Errors
    ///
    /// The kernel refuses; the error returns it. Manual page: `ibv_destroy_qp(3)`.
    #[doc(alias = "ibv_destroy_qp")]
    pub fn destroy(mut self) -> Result<(), DestroyError<Self>> {
        let result = self.object.destroy();
        DestroyError::of(self, result)
    }

    fn subject(&self) -> Subject {
        Subject::numbered("XRC target", self.handle().0.into())
    }
}

impl fmt::Debug for XrcTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XrcTarget")
            .field("handle", &self.handle().0)
            .field("qpn", &format_args!("{:#x}", self.qpn))
            .field("state", &self.state)
            .finish()
    }
}
