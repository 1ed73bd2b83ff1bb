//! Work queues that only receive, and the tables that spread a queue pair's packets over them (receive-side
//! scaling, RSS).

use std::fmt;
use std::sync::Arc;

use uverbs_uapi::flags::WqAttrMask;
use uverbs_uapi::handle::{QpHandle, RwqIndTblHandle, WqHandle};
use uverbs_uapi::write as abi;

pub use uverbs_uapi::enums::WqState;
pub use uverbs_uapi::flags::WqFlags;

use crate::command::{Command, CreateRssQp, CreateRwqIndTable, CreateWq, DriverData, ModifyWq};
use crate::context::Context;
use crate::cq::{Cq, CqShared};
use crate::driver::RecvQueue;
use crate::error::{DestroyError, Error, Result, Subject, Verb};
use crate::flight::{Flight, Queues};
use crate::owned::Owned;
use crate::pd::{Pd, PdUse, User};
use crate::qp::RecvBatch;

/// The description of a work queue to create.
#[derive(Clone, Debug)]
pub struct WqBuilder<'a> {
    pd: &'a Pd,
    cq: &'a Cq,
    max_wr: u32,
    max_sge: u32,
    flags: WqFlags,
}

impl Pd {
    /// Starts the description of a work queue for at least `max_wr` receive requests of one slice, which
    /// complete on `cq`.
    pub fn wq<'a>(&'a self, cq: &'a Cq, max_wr: u32) -> WqBuilder<'a> {
        WqBuilder {
            pd: self,
            cq,
            max_wr,
            max_sge: 1,
            flags: WqFlags::empty(),
        }
    }
}

impl WqBuilder<'_> {
    /// Slices of a request; 1 by default.
    pub fn max_sge(mut self, max_sge: u32) -> Self {
        self.max_sge = max_sge;
        self
    }

    /// How it works.
    pub fn flags(mut self, flags: WqFlags) -> Self {
        self.flags = flags;
        self
    }

    /// Creates the queue, in the state RESET.
    ///
    /// # Errors
    ///
    /// [`Cause::Unsupported`](crate::Cause::Unsupported) if the device has no work queues, like rxe; a number
    /// exceeds the device's limits; the CQ belongs to another context. Manual page: `ibv_create_wq(3)`.
    #[doc(alias = "ibv_create_wq")]
    pub fn create(self) -> Result<Wq> {
        let Self {
            pd,
            cq,
            max_wr,
            max_sge,
            flags,
        } = self;
        let context = pd.context();
        let subject = || Subject::named("WQ", format_args!("in PD {}", pd.handle().0));
        let parts = [("the CQ", Some(cq.context()))];
        context.check_parts(Verb::CreateWq, subject, parts)?;
        let id = context.new_id();
        let command = CreateWq {
            pd: pd.handle(),
            cq: cq.handle(),
            max_wr,
            max_sge,
            flags,
            user_handle: id,
            event_fd: context.event_fd()?,
            driver: DriverData::default(),
        };
        let (handle, wqn, queue) =
            context
                .driver()
                .create_wq(context.fd(), command, pd.buffers())?;
        let user = pd.user(User::Wq);
        let subject = Subject::numbered("WQ", handle.0.into());
        let flight = user.flights().begin(subject, Queues::Unknown);
        let shared = WqShared {
            object: Owned::new(context, handle),
            wqn,
            id,
            pd: user,
            flight,
            _cq: Arc::clone(cq.shared()),
        };
        Ok(Wq {
            queue,
            shared: Arc::new(shared),
        })
    }
}

/// What a work queue shares with the tables that it is in.
pub(crate) struct WqShared {
    object: Owned<WqHandle>,
    wqn: u32,
    id: u64,
    pd: PdUse,
    /// What regions ask that go.
    flight: Arc<Flight>,
    _cq: Arc<CqShared>,
}

impl Drop for WqShared {
    fn drop(&mut self) {
        // Regions wait for good for what the kernel keeps.
        if self.object.end(|_| ()) {
            self.pd.flights().end(&self.flight);
        }
    }
}

/// A work queue of the receive kind.
pub struct Wq {
    // Before `shared`: the ring is unmapped while the kernel object still is.
    queue: RecvQueue,
    shared: Arc<WqShared>,
}

impl Wq {
    /// The context that it was created in.
    pub fn context(&self) -> &Context {
        self.shared.object.context()
    }

    /// The kernel's handle.
    pub fn handle(&self) -> WqHandle {
        self.shared.object.handle()
    }

    /// Its number in the device.
    pub fn wqn(&self) -> u32 {
        self.shared.wqn
    }

    /// The number by which events name it; unique in its context.
    pub fn id(&self) -> u64 {
        self.shared.id
    }

    /// The capacity in requests; at least as many as requested.
    pub fn capacity(&self) -> u32 {
        self.queue.capacity()
    }

    /// Slices that a request can have; at least as many as requested.
    pub fn max_sge(&self) -> u32 {
        self.queue.max_sge()
    }

    /// Starts a batch of receive requests.
    #[inline(always)]
    pub fn batch(&mut self) -> RecvBatch<'_> {
        RecvBatch::shared(self.queue.lend(), self.shared.pd.tag())
    }

    /// Takes the queue from one state to another.
    ///
    /// # Errors
    ///
    /// It is in another state, or the device does not have the transition. Manual page: `ibv_modify_wq(3)`.
    #[doc(alias = "ibv_modify_wq")]
    pub fn set_state(&mut self, from: WqState, to: WqState) -> Result<()> {
        self.modify(abi::ExModifyWq {
            attr_mask: (WqAttrMask::STATE | WqAttrMask::CURR_STATE).bits(),
            curr_wq_state: from.0,
            wq_state: to.0,
            ..Default::default()
        })
    }

    /// Sets the flags in `mask` to their values in `flags`.
    ///
    /// # Errors
    ///
    /// The device cannot change them. Manual page: `ibv_modify_wq(3)`.
    #[doc(alias = "ibv_modify_wq")]
    pub fn set_flags(&mut self, flags: WqFlags, mask: WqFlags) -> Result<()> {
        self.modify(abi::ExModifyWq {
            attr_mask: WqAttrMask::FLAGS.bits(),
            flags: flags.bits(),
            flags_mask: mask.bits(),
            ..Default::default()
        })
    }

    fn modify(&self, core: abi::ExModifyWq) -> Result<()> {
        let command = ModifyWq {
            core: abi::ExModifyWq {
                wq_handle: self.handle().0,
                ..core
            },
            driver: DriverData::default(),
        };
        self.context().fd().execute(&command)
    }

    /// Destroys the queue.
    ///
    /// # Errors
    ///
    /// [`Cause::Busy`](crate::Cause::Busy) while tables lead to it. The error returns the queue. Manual page:
    /// `ibv_destroy_wq(3)`.
    #[doc(alias = "ibv_destroy_wq")]
    pub fn destroy(mut self) -> Result<(), DestroyError<Wq>> {
        let result = match Arc::get_mut(&mut self.shared) {
            Some(shared) => shared.object.destroy(),
            None => {
                let by = "indirection tables lead to it".into();
                Err(self.shared.object.busy(by))
            }
        };
        DestroyError::of(self, result)
    }
}

impl fmt::Debug for Wq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wq")
            .field("handle", &self.handle().0)
            .field("wqn", &self.wqn())
            .field("id", &self.id())
            .field("capacity", &self.capacity())
            .finish()
    }
}

impl Context {
    /// Creates a table over work queues. A queue may be in it several times; the number of entries is a power
    /// of two.
    ///
    /// # Errors
    ///
    /// [`Cause::Unsupported`](crate::Cause::Unsupported) if the device has no tables; the number is not a
    /// power of two or more than the device's ([`RssCaps`](crate::uapi::types::RssCaps)); a queue belongs to
    /// another context. Manual page: `ibv_create_rwq_ind_table(3)`.
    #[doc(alias = "ibv_create_rwq_ind_table")]
    pub fn create_indirection_table<'a>(
        &self,
        queues: impl IntoIterator<Item = &'a Wq>,
    ) -> Result<IndirectionTable> {
        let queues: Vec<_> = queues.into_iter().map(|wq| &wq.shared).collect();
        let subject = || Subject::the("indirection table");
        let most = 1 << abi::MAX_LOG_IND_TBL_SIZE;
        if !queues.len().is_power_of_two() || queues.len() > most {
            let given = queues.len();
            let why = format!("{given} WQs: not a power of two up to {most}");
            return Err(Error::invalid(Verb::CreateRwqIndTable, subject(), why));
        }
        let parts = queues.iter().map(|wq| ("a WQ", Some(wq.object.context())));
        self.check_parts(Verb::CreateRwqIndTable, subject, parts)?;
        let command = CreateRwqIndTable {
            log_size: queues.len().trailing_zeros(),
            wqs: queues.iter().map(|wq| wq.object.handle()).collect(),
        };
        let (handle, number) = self.fd().execute(&command)?;
        Ok(IndirectionTable(Arc::new(TableShared {
            object: Owned::new(self, handle),
            number,
            _queues: queues.into_iter().cloned().collect(),
        })))
    }
}

/// What an indirection table shares with the queue pairs that receive through it.
struct TableShared {
    object: Owned<RwqIndTblHandle>,
    number: u32,
    _queues: Vec<Arc<WqShared>>,
}

/// A table that spreads packets over work queues. It keeps them alive.
pub struct IndirectionTable(Arc<TableShared>);

impl IndirectionTable {
    /// The context that it was created in.
    pub fn context(&self) -> &Context {
        self.0.object.context()
    }

    /// The kernel's handle.
    pub fn handle(&self) -> RwqIndTblHandle {
        self.0.object.handle()
    }

    /// Its number in the device.
    pub fn number(&self) -> u32 {
        self.0.number
    }

    /// Creates a queue pair for raw packets without queues of its own: what it receives is spread over the
    /// table's.
    ///
    /// # Errors
    ///
    /// [`Cause::Unsupported`](crate::Cause::Unsupported): how packets are spread (`rx_hash_conf` of
    /// `ibv_create_qp_ex(3)`) is in the driver's own data, which no driver of this library sends yet; for a
    /// driver without it, like rxe, the kernel refuses. The PD belongs to another context. Manual page:
    /// `ibv_create_qp_ex(3)`.
    #[doc(alias = "ibv_create_qp_ex")]
    pub fn create_qp(&self, pd: &Pd) -> Result<RssQp> {
        let context = self.context();
        let id = context.new_id();
        let command = CreateRssQp {
            pd: pd.handle(),
            table: self.handle(),
            user_handle: id,
            event_fd: context.event_fd()?,
            driver: DriverData::default(),
        };
        let parts = [("the PD", Some(pd.context()))];
        context.check_parts(Verb::CreateQp, || command.subject(), parts)?;
        let (handle, qpn) = context.driver().create_rss_qp(context.fd(), &command)?;
        Ok(RssQp {
            object: Owned::new(context, handle),
            qpn,
            id,
            _pd: pd.user(User::Qp),
            _table: Arc::clone(&self.0),
        })
    }

    /// Destroys the table.
    ///
    /// # Errors
    ///
    /// [`Cause::Busy`](crate::Cause::Busy) while queue pairs use it. The error returns it. Manual page:
    /// `ibv_destroy_rwq_ind_table(3)`.
    #[doc(alias = "ibv_destroy_rwq_ind_table")]
    pub fn destroy(mut self) -> Result<(), DestroyError<Self>> {
        let result = match Arc::get_mut(&mut self.0) {
            Some(shared) => shared.object.destroy(),
            None => {
                let users = Arc::strong_count(&self.0) - 1;
                Err(self
                    .0
                    .object
                    .busy(format!("{users} QPs receive through it")))
            }
        };
        DestroyError::of(self, result)
    }
}

impl fmt::Debug for IndirectionTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IndirectionTable")
            .field("handle", &self.handle().0)
            .field("number", &self.number())
            .finish()
    }
}

/// A queue pair that receives raw packets into the work queues of an [`IndirectionTable`], which it keeps
/// alive.
pub struct RssQp {
    object: Owned<QpHandle>,
    qpn: u32,
    id: u64,
    _pd: PdUse,
    _table: Arc<TableShared>,
}

impl RssQp {
    /// The kernel's handle.
    pub fn handle(&self) -> QpHandle {
        self.object.handle()
    }

    /// Its number in the device.
    pub fn qpn(&self) -> u32 {
        self.qpn
    }

    /// The number by which events name it; unique in its context.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Destroys it.
    ///
    /// # Errors
    ///
    /// The kernel refuses, for example while flow rules lead to it; the error returns it. Manual page:
    /// `ibv_destroy_qp(3)`.
    #[doc(alias = "ibv_destroy_qp")]
    pub fn destroy(mut self) -> Result<(), DestroyError<Self>> {
        let result = self.object.destroy();
        DestroyError::of(self, result)
    }
}

impl fmt::Debug for RssQp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RssQp")
            .field("handle", &self.handle().0)
            .field("qpn", &self.qpn)
            .finish()
    }
}
