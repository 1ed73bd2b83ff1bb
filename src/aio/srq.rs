//! Receives that many queue pairs share.

use std::fmt;
use std::sync::Arc;

use super::cq::Cq;
use super::op::{Op, Receive};
use super::qp::{Anchor, Qp};
use super::table::{MOST_SLOTS, Table};
use crate::buf::Buf;
use crate::dc::DcTargetBuilder;
use crate::error::{Error, Result, Subject, Verb};
use crate::pd::Pd;
use crate::qp::Caps;
use crate::qp::transport::StaticTransport;
use crate::srq;

/// A shared receive queue with asynchronous receives: one pool of receives for many queue pairs.
///
/// A receive returns the next message of any of them; [`Received::qpn`](super::Received::qpn) says which
/// queue pair it came to. The messages of one queue pair consume receives in order, but there is no order
/// between queue pairs: await each receive in a task of its own, or all at the same time, but not one after
/// the other.
///
/// Dropping it ends awaited receives with [`OpError::Gone`](super::OpError::Gone), or with
/// [`OpError::Broken`](super::OpError::Broken) while queue pairs still receive from it: their buffers come
/// back with the last of these. A receive that a queue pair has begun to fill when it fails may never end;
/// its buffer comes back with the queue.
///
/// ```no_run
/// use uverbs::aio::{Cq, Qp};
/// use uverbs::{Caps, Rc, buf::Pool};
/// # async fn run(context: uverbs::Context) -> Result<(), Box<dyn std::error::Error>> {
/// let pd = context.alloc_pd()?;
/// let cq = Cq::new(&context, 4096)?;
/// let pool = Pool::on(&pd).build()?;
/// let mut srq = cq.create_srq(&pd, 256)?;
/// let clients: Vec<Qp<Rc>> = (0..100)
///     .map(|_| srq.create_qp(&pd, Caps::default()))
///     .collect::<Result<_, _>>()?;
/// # drop(clients);
/// let (received, message) = srq.recv(pool.get(4096).await?).await;
/// println!("{} bytes for the queue pair {}", message.len(), received?.qpn);
/// # Ok(()) }
/// ```
pub struct Srq {
    // Before the anchor, which checks what has become of it.
    raw: srq::Srq,
    anchor: Anchor,
}

impl Cq {
    /// Creates a shared receive queue for `receives` receives, even if the device rounds the number up. The
    /// queue pairs that receive from it report to this completion queue.
    ///
    /// # Errors
    ///
    /// As for [`SrqBuilder::create`](crate::srq::SrqBuilder::create); also if this completion queue has no
    /// room for that many receives.
    pub fn create_srq(&self, pd: &Pd, receives: u32) -> Result<Srq> {
        self.reap();
        if receives > MOST_SLOTS {
            let why = format!("more than {MOST_SLOTS} receives");
            return Err(Error::invalid(Verb::CreateSrq, Subject::the("SRQ"), why));
        }
        let admission = self.admit(Verb::CreateSrq, receives)?;
        let raw = pd.srq(receives).create()?;
        let number = admission.number();
        let table = Arc::new(Table::new(number, (None, pd.tag()), (0, receives), None));
        admission.enter(&table);
        let anchor = Anchor {
            table,
            cq: self.clone(),
            flight: Arc::clone(raw.flight()),
        };
        Ok(Srq { raw, anchor })
    }
}

impl Srq {
    /// Creates a queue pair that receives from it. It has no receive queue of its own: `max_recv_wr` is
    /// ignored, and its `recv` is refused.
    ///
    /// # Errors
    ///
    /// As for [`Cq::create_qp`].
    pub fn create_qp<T: StaticTransport>(&self, pd: &Pd, caps: Caps) -> Result<Qp<T>> {
        let counts = (caps.max_send_wr, 0);
        self.anchor
            .cq
            .create_with(pd, caps, counts, Some(&self.raw))
    }

    /// Starts the description of a target of dynamic connections that receives from it: see
    /// [`Pd::dc_target`]. [`Received::qpn`](super::Received::qpn) has its number then.
    pub fn dc_target<'a>(&'a self, pd: &'a Pd, key: u64) -> DcTargetBuilder<'a> {
        pd.dc_target_on(self.anchor.cq.shared(), &self.raw, key)
    }

    /// Receives the next message of any queue pair into the whole buffer.
    #[inline]
    pub fn recv(&mut self, buf: Buf) -> Op<Receive> {
        // SAFETY: the table belongs to the queue.
        unsafe { super::recv::post(self.raw.batch(), &self.anchor.table, buf) }
    }

    /// The completion queue on which its receives wait.
    pub fn cq(&self) -> &Cq {
        &self.anchor.cq
    }

    /// The number of receives that the device has not finished, including those whose futures were dropped.
    pub fn in_flight(&self) -> usize {
        self.anchor.table.in_flight()
    }
}

impl fmt::Debug for Srq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Srq")
            .field("raw", &self.raw)
            .field("in_flight", &self.in_flight())
            .finish()
    }
}
