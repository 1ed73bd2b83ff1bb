//! Completion queues: where finished work requests are reported.

mod create;
mod poll;

use std::fmt;
use std::sync::Arc;

use uverbs_uapi::handle::CqHandle;

pub use self::create::CqBuilder;
pub use self::poll::{CompletionIter, Completions};
pub use crate::work::PollError;

use self::create::{made_of, with_limits};
use crate::channel::CompletionChannel;
use crate::command::{DriverData, ModifyCq, ResizeCq};
use crate::context::Context;
use crate::driver;
use crate::error::{DestroyError, Error, Result, Verb};
use crate::owned::Owned;
use crate::pd::PdUse;

/// What a completion queue shares with the queue pairs that report to it.
pub(crate) struct CqShared {
    object: Owned<CqHandle, driver::CqBacking>,
    id: u64,
    /// Its place in the context's list of queues.
    place: usize,
    /// The kernel keeps the channel's file open for the queue, but without this its number could be reused.
    channel: Option<CompletionChannel>,
    domain: Option<PdUse>,
}

impl CqShared {
    /// For a queue that has been created: from here on it is in its context's list.
    fn new(
        context: &Context,
        handle: CqHandle,
        id: u64,
        backing: driver::CqBacking,
        channel: Option<CompletionChannel>,
        domain: Option<PdUse>,
    ) -> Self {
        if let (Some(channel), Some(events)) = (&channel, backing.events()) {
            channel.count_events(id, events);
        }
        let place = context.add_completion_queue(id, backing.clone());
        Self {
            object: Owned::backed(context, handle, backing),
            id,
            place,
            channel,
            domain,
        }
    }
}

#[cfg(test)]
impl CqShared {
    /// The shared part of a completion queue of the sample driver.
    pub(crate) fn sample(context: &Context) -> Arc<Self> {
        Arc::new(Self {
            object: Owned::backed(context, CqHandle(7), driver::samples::cq_backing()),
            id: 1,
            // It is in no list of the context's queues.
            place: usize::MAX,
            channel: None,
            domain: None,
        })
    }
}

impl CqShared {
    pub(crate) fn context(&self) -> &Context {
        self.object.context()
    }

    pub(crate) fn handle(&self) -> CqHandle {
        self.object.handle()
    }

    pub(crate) fn backing(&self) -> &driver::CqBacking {
        self.object.backing()
    }

    /// See [`Cq::arm`].
    pub(crate) fn arm(&self, notify: Notify) -> Result<()> {
        let solicited_only = notify == Notify::Solicited;
        let object = &self.object;
        let fd = object.context().fd();
        object.backing().arm(fd, object.handle(), solicited_only)
    }
}

impl fmt::Debug for CqShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cq")
            .field("handle", &self.handle().0)
            .finish_non_exhaustive()
    }
}

impl Drop for CqShared {
    fn drop(&mut self) {
        self.object.end(|_| ());
        self.object.context().remove_completion_queue(self.place);
        if let Some(channel) = &self.channel {
            channel.forget_events(self.id);
        }
    }
}

/// A completion queue.
///
/// Queue pairs that report to it keep it alive in the kernel. If this handle is dropped before them, their
/// completions can no longer be read.
///
/// ```no_run
/// use uverbs::{Caps, Rc, WcOpcode};
/// # fn count(context: &uverbs::Context, pd: &uverbs::Pd) -> Result<(), Box<dyn std::error::Error>> {
/// let mut cq = context.create_cq(64)?;
/// let qp = pd.create_qp::<Rc>(&cq, Caps::default())?;
/// let mut received = 0;
/// for completion in &mut cq.poll()? {
///     match completion.result() {
///         Ok(WcOpcode::RECV) => received += u64::from(completion.byte_len()),
///         Ok(_) => {}
///         Err(failed) => eprintln!("{failed}"),
///     }
/// }
/// # Ok(()) }
/// ```
pub struct Cq {
    // Before `shared`: the ring is unmapped while the kernel object still is.
    ring: driver::Cq,
    shared: Arc<CqShared>,
}

impl Cq {
    /// The context that it was created in.
    pub fn context(&self) -> &Context {
        self.shared.object.context()
    }

    /// The kernel's handle.
    pub fn handle(&self) -> CqHandle {
        self.shared.object.handle()
    }

    /// The number by which events name it; unique in its context.
    pub fn id(&self) -> u64 {
        self.shared.id
    }

    /// The maximum number of waiting completions; at least as many as requested.
    pub fn capacity(&self) -> u32 {
        self.ring.capacity()
    }

    pub(crate) fn backing(&self) -> &driver::CqBacking {
        self.shared.object.backing()
    }

    pub(crate) fn shared(&self) -> &Arc<CqShared> {
        &self.shared
    }

    /// The driver's part.
    pub(crate) fn ring(&mut self) -> &mut driver::Cq {
        &mut self.ring
    }

    /// The channel to wait on.
    pub(crate) fn channel(&self) -> Result<&CompletionChannel> {
        self.shared.channel.as_ref().ok_or_else(|| {
            Error::invalid(
                Verb::GetCqEvent,
                self.shared.object.subject(),
                "the queue has no completion channel to wait on: create it with one",
            )
        })
    }

    /// Requests one event on the queue's channel, for the next completion.
    ///
    /// Completions that have arrived before cause no event, so poll once more after arming;
    /// [`Cq::poll_or_arm`] does both.
    ///
    /// # Errors
    ///
    /// The kernel refuses. Manual page: `ibv_req_notify_cq(3)`.
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn arm(&mut self, notify: Notify) -> Result<()> {
        self.shared.arm(notify)
    }

    /// Whether no completion waits.
    pub(crate) fn is_empty(&mut self) -> Result<bool, PollError> {
        self.ring.is_empty()
    }

    /// Changes the size of the queue. Waiting completions stay.
    ///
    /// On a parent domain with an allocator, the allocator provides the new ring and gets the old one back.
    ///
    /// # Errors
    ///
    /// The waiting completions do not fit, the device's limit is exceeded, or there is no place for the new
    /// ring, or one that nothing can be mapped over: the queue is then unchanged. Manual page:
    /// `ibv_resize_cq(3)`.
    ///
    /// On soft-RoCE the new ring may fail to be mapped although the library has made room for it first, when
    /// the kernel has changed to it already. Then the queue is lost, which the error says: each poll fails
    /// with [`PollError::QueueLost`].
    #[doc(alias = "ibv_resize_cq")]
    pub fn resize(&mut self, entries: u32) -> Result<()> {
        let CqShared { object, domain, .. } = &*self.shared;
        let context = object.context();
        let command = ResizeCq {
            cq: object.handle(),
            cqe: entries,
            driver: DriverData::default(),
        };
        let buffers = domain.as_ref().and_then(|domain| domain.buffers());
        let resized = context.driver().resize_cq(
            context.fd(),
            command,
            &mut self.ring,
            &made_of(None, buffers),
        );
        resized.map_err(|error| with_limits(error, context))
    }

    /// Delays events until there are `count` completions or `period` microseconds have passed.
    ///
    /// # Errors
    ///
    /// [`Cause::Unsupported`](crate::Cause::Unsupported) if the device has no moderation, like rxe. Manual
    /// page: `ibv_modify_cq(3)`.
    #[doc(alias = "ibv_modify_cq")]
    pub fn moderate(&mut self, count: u16, period: u16) -> Result<()> {
        let cq = self.handle();
        self.context().fd().execute(&ModifyCq { cq, count, period })
    }

    /// Destroys the completion queue.
    ///
    /// # Errors
    ///
    /// [`Cause::Busy`](crate::Cause::Busy) while queue pairs report to it. The error returns the queue.
    /// Manual page: `ibv_destroy_cq(3)`.
    #[doc(alias = "ibv_destroy_cq")]
    pub fn destroy(mut self) -> Result<(), DestroyError<Cq>> {
        let result = match Arc::get_mut(&mut self.shared) {
            Some(shared) => shared.object.destroy(),
            None => {
                let queues = Arc::strong_count(&self.shared) - 1;
                // A QP has two, even if all its completions go to one CQ.
                let by = match queues {
                    1 => "1 queue, of a QP or an SRQ, reports to it".into(),
                    _ => format!("{queues} queues, of QPs or SRQs, report to it"),
                };
                Err(self.shared.object.busy(by))
            }
        };
        DestroyError::of(self, result)
    }
}

impl fmt::Debug for Cq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cq")
            .field("handle", &self.handle().0)
            .field("id", &self.id())
            .field("capacity", &self.capacity())
            .finish()
    }
}

/// Which completions cause an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notify {
    /// The next one of any kind.
    Next,
    /// The next completion of a message that its sender marked as solicited. By the specification failed
    /// requests count too, but devices differ: on rxe failed sends do not count, and flushed receives count
    /// only until Linux 6.3 (`rxe_cq_post` and its callers). To wait for failures too, arm for
    /// [`Next`](Self::Next).
    Solicited,
}
