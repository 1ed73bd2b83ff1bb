//! Controls a queue pair whose halves are on two threads.

use std::fmt;
use std::sync::{Arc, Weak};

use uverbs_uapi::enums::QpState;

use super::{QpAttr, QpInfo, QpShared};
use crate::error::{Cause, Error, Result, Subject, Verb};

/// A handle that controls a queue pair independently of its halves. Clones control the same queue pair.
///
/// It does not keep the queue pair alive, and [`Qp::destroy`](super::Qp::destroy) succeeds while it exists;
/// its methods then fail with [`Cause::NotFound`]. While one of its calls is running on another thread, it
/// counts as a user.
///
/// ```no_run
/// # fn split(qp: uverbs::Qp<uverbs::Rc>) -> uverbs::Result<()> {
/// let control = qp.control();
/// let (send, recv) = qp.split();
/// // `send` and `recv` go to their threads. Later, from here:
/// control.fail()?;                    // both see their requests flushed
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Control {
    qp: Weak<QpShared>,
    id: u64,
    qpn: u32,
}

impl Control {
    pub(super) fn new(qp: &Arc<QpShared>) -> Self {
        Self {
            qp: Arc::downgrade(qp),
            id: qp.id,
            qpn: qp.qpn(),
        }
    }

    /// The number by which events name the queue pair; see [`Qp::id`](super::Qp::id).
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The queue pair's number on the wire; 24 bits. A reset may change it, see
    /// [`Qp::reset`](super::Qp::reset). Once the queue pair is gone, it is the number from when this handle
    /// was created.
    pub fn qpn(&self) -> u32 {
        self.qp.upgrade().map_or(self.qpn, |qp| qp.qpn())
    }

    /// Asks the kernel for all attributes.
    ///
    /// # Errors
    ///
    /// The queue pair or the device is gone. Manual page: `ibv_query_qp(3)`.
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> Result<QpInfo> {
        self.qp(Verb::QueryQp)?.query()
    }

    /// Changes attributes, as [`Qp::modify`](super::Qp::modify) does, for example to connect a queue pair
    /// whose halves are already on their threads.
    ///
    /// # Errors
    ///
    /// As for [`Qp::modify`](super::Qp::modify), or the queue pair is gone. The state RESET is refused, since
    /// it restarts the rings of both halves: [`Qp::join`](super::Qp::join) them and use
    /// [`Qp::reset`](super::Qp::reset). So is a `max_rd_atomic` of 0 once the queue pair sends, of which the
    /// send half would not know.
    pub fn modify(&self, attr: &QpAttr) -> Result<()> {
        let qp = self.qp(Verb::ModifyQp)?;
        if attr.state == Some(QpState::RESET) {
            let why = "a control cannot reset it: that takes both halves, joined";
            return Err(Error::invalid(Verb::ModifyQp, qp.subject(), why));
        }
        if qp.ends_fetches(attr) {
            let why = "a control cannot take READs from a queue pair that sends: its send half may post some";
            return Err(Error::invalid(Verb::ModifyQp, qp.subject(), why));
        }
        qp.modify(attr)
    }

    /// Takes the queue pair to the state ERR: requests in flight complete as flushed.
    ///
    /// # Errors
    ///
    /// The queue pair or the device is gone.
    pub fn fail(&self) -> Result<()> {
        self.modify(&QpAttr {
            state: Some(QpState::ERR),
            ..QpAttr::default()
        })
    }

    /// Whether the queue pair is gone.
    pub(crate) fn is_gone(&self) -> bool {
        self.qp.strong_count() == 0
    }

    fn qp(&self, verb: Verb) -> Result<Arc<QpShared>> {
        self.qp.upgrade().ok_or_else(|| {
            let subject = Subject::on_the_wire("QP", self.qpn());
            Error::new(
                verb,
                subject,
                Cause::NotFound("it has been destroyed".into()),
            )
        })
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control")
            .field("id", &self.id)
            .field("qpn", &format_args!("{:#x}", self.qpn()))
            .finish()
    }
}
