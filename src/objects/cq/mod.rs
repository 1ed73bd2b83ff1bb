//! Completion queues: where finished work requests are reported.

mod create;

use std::fmt;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::{Duration, Instant};

use uverbs_uapi::handle::CqHandle;

pub use self::create::CqBuilder;
pub use crate::work::PollError;

use self::create::{made_of, with_limits};
use crate::channel::CompletionChannel;
use crate::command::{DriverData, ModifyCq, ResizeCq};
use crate::context::Context;
use crate::driver;
use crate::error::{DestroyError, Error, Result, Verb};
use crate::owned::Owned;
use crate::pd::PdUse;
use crate::wc::Completion;

/// What a completion queue shares with the queue pairs that report to it.
pub(crate) struct CqShared {
    object: Owned<CqHandle, driver::CqBacking>,
    id: u64,
    /// Its place among the context's.
    place: usize,
    /// The kernel keeps the channel's file open for the queue, but its number could be reused.
    channel: Option<CompletionChannel>,
    domain: Option<PdUse>,
}

impl CqShared {
    /// Of a queue that has been created: it is among those of its context from here on.
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
    /// What a completion queue of the sample driver shares.
    pub(crate) fn sample(context: &Context) -> Arc<Self> {
        Arc::new(Self {
            object: Owned::backed(context, CqHandle(7), driver::samples::cq_backing()),
            id: 1,
            // It is not among them.
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

    /// As [`Cq::arm`].
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

    /// Takes the completions that have arrived, at most as many as the queue holds, without a system call.
    ///
    /// Each entry returns to the device as soon as the loop takes it, and before the request's slot in its
    /// queue becomes free. So requests may be posted inside the loop, and a completion queue with room for
    /// all requests of the queues that report to it never overruns. What the loop does not take stays in the
    /// queue. Without completions the loop has no iterations.
    ///
    /// It asks nobody whether the device is still there: when the device has been removed, it finds nothing
    /// for ever. A program that polls without end and waits for no event asks
    /// [`Context::is_device_gone`](crate::Context::is_device_gone) now and then.
    ///
    /// ```no_run
    /// # fn poll(cq: &mut uverbs::Cq) -> Result<(), Box<dyn std::error::Error>> {
    /// for completion in &mut cq.poll()? {
    ///     println!("{} {:?}", completion.wr_id(), completion.result()?);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The queue has overrun ([`PollError::Overrun`]). Or the ring's contents are invalid: the memory that is
    /// shared with the kernel or device has been overwritten, or the device is faulty. The next call
    /// continues with the completions after the reported one. Manual page: `ibv_poll_cq(3)`.
    #[doc(alias = "ibv_poll_cq")]
    #[inline(always)]
    pub fn poll(&mut self) -> Result<Completions<'_>, PollError> {
        let raw = self.ring.poll()?;
        Ok(Completions { raw })
    }

    /// Copies the completions that have arrived into `into`, at most as many as fit, and returns the filled
    /// part. Otherwise like [`poll`](Self::poll).
    ///
    /// ```no_run
    /// # use std::mem::MaybeUninit;
    /// # fn poll(cq: &mut uverbs::Cq) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut buffer = [const { MaybeUninit::uninit() }; 16];
    /// for completion in cq.poll_into(&mut buffer)? {
    ///     println!("{} {:?}", completion.wr_id(), completion.result()?);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Cq::poll`]; nothing is taken.
    #[doc(alias = "ibv_poll_cq")]
    #[inline(always)]
    pub fn poll_into<'b>(
        &mut self,
        into: &'b mut [MaybeUninit<Completion>],
    ) -> Result<&'b mut [Completion], PollError> {
        let mut completions = self.poll()?;
        let mut count = 0;
        for (place, completion) in into.iter_mut().zip(&mut completions) {
            place.write(completion);
            count += 1;
        }
        // SAFETY: so many places, from the first on, have been written just now, and `MaybeUninit` has the
        // layout of what it holds.
        Ok(unsafe { std::slice::from_raw_parts_mut(into.as_mut_ptr().cast(), count) })
    }

    /// Takes the completions that have arrived; if there are none, arms the queue and polls once more.
    ///
    /// `None` means that the queue is empty *and* armed: the next completion causes an event on its channel.
    /// Only this order misses no completion, since there is no event for completions that arrive before
    /// arming.
    ///
    /// # Errors
    ///
    /// As for [`Cq::poll`] and [`Cq::arm`].
    pub fn poll_or_arm(&mut self, notify: Notify) -> Result<Option<Completions<'_>>> {
        if self.ring.is_empty()? {
            self.arm(notify)?;
            if self.ring.is_empty()? {
                return Ok(None);
            }
        }
        Ok(Some(self.poll()?))
    }

    /// Takes the completions that have arrived; if there are none, waits for one for at most `timeout`.
    /// `None` if none arrived.
    ///
    /// It sleeps on the queue's [channel](CqBuilder::channel), which should not be shared: events of other
    /// queues that it reads are dropped.
    ///
    /// ```no_run
    /// # fn wait(context: &uverbs::Context) -> uverbs::Result<()> {
    /// let channel = context.create_channel()?;
    /// let mut cq = context.cq(64).channel(&channel).create()?;
    /// match cq.wait(std::time::Duration::from_secs(1))? {
    ///     Some(mut completions) => for completion in &mut completions { println!("{completion:?}") },
    ///     None => println!("nothing for a second"),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The queue has no channel; otherwise as for [`Cq::poll`], [`Cq::arm`] and
    /// [`CompletionChannel::wait_for`].
    pub fn wait(&mut self, timeout: Duration) -> Result<Option<Completions<'_>>> {
        let channel = self.channel()?.clone();
        // None: so far away that it never comes.
        let deadline = Instant::now().checked_add(timeout);
        while self.ring.is_empty()? {
            self.arm(Notify::Next)?;
            if !self.ring.is_empty()? {
                break;
            }
            let left = deadline.map_or(Duration::MAX, |at| {
                at.saturating_duration_since(Instant::now())
            });
            if channel.wait_for(left)?.is_none() && left.is_zero() {
                return Ok(None);
            }
        }
        Ok(Some(self.poll()?))
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
    /// ring: the queue is then unchanged. Manual page: `ibv_resize_cq(3)`.
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
                let users = Arc::strong_count(&self.shared) - 1;
                let by = format!("{users} users, such as QPs, report to it");
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

/// Completions that are being taken from their queue.
///
/// Iterate over a mutable reference. What the loop does not take stays in the queue.
pub struct Completions<'cq> {
    raw: driver::Polled<'cq>,
}

impl<'i, 'cq> IntoIterator for &'i mut Completions<'cq> {
    type Item = Completion;
    type IntoIter = CompletionIter<'i, 'cq>;

    #[inline(always)]
    fn into_iter(self) -> CompletionIter<'i, 'cq> {
        CompletionIter { raw: &mut self.raw }
    }
}

impl<'cq> Completions<'cq> {
    /// An iterator over the completions, the same as in `for` over a mutable reference.
    #[inline(always)]
    pub fn iter(&mut self) -> CompletionIter<'_, 'cq> {
        self.into_iter()
    }
}

impl fmt::Debug for Completions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completions")
            .field("raw", &self.raw)
            .finish()
    }
}

/// The iterator over [`Completions`].
pub struct CompletionIter<'i, 'cq> {
    raw: &'i mut driver::Polled<'cq>,
}

impl Iterator for CompletionIter<'_, '_> {
    type Item = Completion;

    #[inline(always)]
    fn next(&mut self) -> Option<Completion> {
        self.raw.next().map(Completion::new)
    }
}

impl fmt::Debug for CompletionIter<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionIter")
            .field("raw", &self.raw)
            .finish()
    }
}
