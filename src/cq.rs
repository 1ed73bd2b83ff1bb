//! Completion queues: where finished work requests are reported.

use std::fmt;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::{Duration, Instant};

use uverbs_uapi::flags::CqCreateFlags;
use uverbs_uapi::handle::CqHandle;

pub use crate::work::PollError;

use crate::alloc::Buffers;
use crate::channel::CompletionChannel;
use crate::command::{CreateCq, DriverData, ModifyCq, ResizeCq};
use crate::context::Context;
use crate::domain::ParentDomain;
use crate::driver::{self, CqParts, Formed};
pub(crate) use crate::driver::{Each, Outline};
use crate::error::{DestroyError, Error, Result, Subject, Verb};
use crate::owned::Owned;
use crate::pd::{PdUse, User};
use crate::wc::Completion;

/// The description of a completion queue to create.
#[derive(Clone, Debug)]
pub struct CqBuilder<'a> {
    context: &'a Context,
    entries: u32,
    channel: Option<&'a CompletionChannel>,
    comp_vector: u32,
    flags: CqCreateFlags,
    entry_bytes: Option<u32>,
    domain: Option<&'a ParentDomain>,
}

impl Context {
    /// Creates a completion queue for at least `entries` completions, without events.
    ///
    /// # Errors
    ///
    /// `entries` is 0 or exceeds the device's `max_cqe`. Manual page: `ibv_create_cq(3)`.
    #[doc(alias = "ibv_create_cq")]
    pub fn create_cq(&self, entries: u32) -> Result<Cq> {
        self.cq(entries).create()
    }

    /// Starts the description of a completion queue for at least `entries` completions.
    pub fn cq(&self, entries: u32) -> CqBuilder<'_> {
        CqBuilder {
            context: self,
            entries,
            channel: None,
            comp_vector: 0,
            flags: CqCreateFlags::empty(),
            entry_bytes: None,
            domain: None,
        }
    }
}

impl<'a> CqBuilder<'a> {
    /// Reports events, once [armed](Cq::arm), to this channel.
    pub fn channel(mut self, channel: &'a CompletionChannel) -> Self {
        self.channel = Some(channel);
        self
    }

    /// The completion vector that signals events; below [`Context::num_comp_vectors`].
    pub fn comp_vector(mut self, vector: u32) -> Self {
        self.comp_vector = vector;
        self
    }

    /// Makes completions carry the time ([`Completion::timestamp`]).
    pub fn timestamps(mut self, wanted: bool) -> Self {
        self.flags.set(CqCreateFlags::TIMESTAMP_COMPLETION, wanted);
        self
    }

    /// Makes the device not check whether the queue is full: the user guarantees that it never is
    /// (`IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN`).
    ///
    /// # Safety
    ///
    /// If `ignore` is true: at no time do more completions wait than the queue's [capacity](Cq::capacity). A
    /// request that may have a completion, also one that is unsignaled and fails, and one that is flushed,
    /// counts from when it is posted. Without it the device writes to entries that are being read.
    pub unsafe fn ignore_overrun(mut self, ignore: bool) -> Self {
        self.flags.set(CqCreateFlags::IGNORE_OVERRUN, ignore);
        self
    }

    /// Bytes of an entry, if the device has several sizes: 64 or 128 on mlx5, by default the CPU's cache line
    /// (`cqe_size` of `mlx5dv_create_cq(3)`).
    pub fn entry_bytes(mut self, bytes: u32) -> Self {
        self.entry_bytes = Some(bytes);
        self
    }

    /// Creates the queue on a parent domain, whose allocator provides the ring (`parent_domain` of
    /// `ibv_create_cq_ex(3)`).
    pub fn domain(mut self, domain: &'a ParentDomain) -> Self {
        self.domain = Some(domain);
        self
    }

    /// Creates the queue.
    ///
    /// # Errors
    ///
    /// As for [`Context::create_cq`]. Also, the vector does not exist, the channel belongs to another
    /// context, or the driver lacks an option ([`Cause::Unsupported`](crate::Cause::Unsupported)): rxe has no
    /// timestamps, no queues that ignore overrun, and one size of entries. Manual page:
    /// `ibv_create_cq_ex(3)`.
    #[doc(alias = "ibv_create_cq_ex")]
    pub fn create(self) -> Result<Cq> {
        let context = self.context;
        let subject = || Subject::named("CQ", format_args!("of {} entries", self.entries));
        let parts = [
            ("the channel", self.channel.map(CompletionChannel::context)),
            (
                "the parent domain",
                self.domain.map(|domain| domain.context()),
            ),
        ];
        context.check_parts(Verb::CreateCq, subject, parts)?;
        let id = context.new_id();
        let command = CreateCq {
            cqe: self.entries,
            user_handle: id,
            channel: self.channel.map(|channel| channel.raw_fd()),
            comp_vector: self.comp_vector,
            flags: self.flags.bits(),
            event_fd: context.event_fd()?,
            driver: DriverData::default(),
        };
        let buffers = self.domain.and_then(|domain| domain.buffers());
        let driver = context.driver();
        let parts = made_of(self.entry_bytes, buffers);
        let created = driver.create_cq(context.fd(), command, &parts);
        let (handle, ring) = created.map_err(|error| {
            let error = with_flags(error, self.flags);
            with_limits(error, context)
        })?;
        let channel = self.channel.cloned();
        let backing = ring.backing();
        if let (Some(channel), Some(events)) = (&channel, backing.events()) {
            channel.count_events(id, events);
        }
        context.add_completion_queue(id, backing.clone());
        let shared = CqShared {
            object: Owned::backed(context, handle, backing),
            id,
            channel,
            domain: self.domain.map(|domain| domain.user(User::Cq)),
        };
        Ok(Cq {
            ring,
            shared: Arc::new(shared),
        })
    }
}

/// Adds the flags that the driver may lack.
fn with_flags(error: Error, flags: CqCreateFlags) -> Error {
    match error.is_unsupported() && !flags.is_empty() {
        true => error.with_detail(format!("with {flags:?}")),
        false => error,
    }
}

/// What a queue is made of besides its command.
fn made_of(entry_bytes: Option<u32>, buffers: Option<&Buffers>) -> CqParts<'_> {
    CqParts {
        entry_bytes,
        buffers,
        follows_requests: true,
    }
}

/// Adds the limits on completion queues to an error that they may have caused.
fn with_limits(error: Error, context: &Context) -> Error {
    context.with_limits(error, |device| {
        let vectors = context.num_comp_vectors();
        format!(
            "the device's max_cqe is {}, it has {vectors} completion vectors",
            device.max_cqe
        )
    })
}

/// What a completion queue shares with the queue pairs that report to it.
pub(crate) struct CqShared {
    object: Owned<CqHandle, driver::CqBacking>,
    id: u64,
    /// The kernel keeps the channel's file open for the queue, but its number could be reused.
    channel: Option<CompletionChannel>,
    domain: Option<PdUse>,
}

#[cfg(test)]
impl CqShared {
    /// What a completion queue of the sample driver shares.
    pub(crate) fn sample(context: &Context) -> Arc<Self> {
        Arc::new(Self {
            object: Owned::backed(context, CqHandle(7), driver::samples::cq_backing()),
            id: 1,
            channel: None,
            domain: None,
        })
    }
}

impl Drop for CqShared {
    fn drop(&mut self) {
        self.object.end(|_| ());
        self.object.context().remove_completion_queue(self.id);
        if let Some(channel) = &self.channel {
            channel.forget_events(self.id);
        }
    }
}

/// A completion queue.
///
/// Queue pairs that report to it keep it alive in the kernel; when this handle is dropped before them, their
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

    /// The most completions that can wait; at least as many as requested.
    pub fn capacity(&self) -> u32 {
        self.ring.capacity()
    }

    pub(crate) fn backing(&self) -> &driver::CqBacking {
        self.shared.object.backing()
    }

    pub(crate) fn shared(&self) -> &Arc<CqShared> {
        &self.shared
    }

    /// Takes the completions that have arrived, at most as many as the queue holds.
    ///
    /// Each entry goes back to the device as soon as the loop has it, and before the request's place in its
    /// queue is free again: requests may be posted inside the loop, and a completion queue that holds as much
    /// as the queues that report to it never overruns. What the loop does not reach stays in the queue. No
    /// completion is an empty loop. No system call is made.
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
    /// The queue has overrun ([`PollError::Overrun`]). Or the ring's contents make no sense: the memory that
    /// is shared with the kernel or device has been overwritten, or the device errs. Completions behind the
    /// one that is told of here can be taken by the next call. Manual page: `ibv_poll_cq(3)`.
    #[doc(alias = "ibv_poll_cq")]
    #[inline(always)]
    pub fn poll(&mut self) -> Result<Completions<'_>, PollError> {
        let raw = self.ring.poll()?;
        Ok(Completions { raw })
    }

    /// Takes the completions that have arrived, at most as many as `into` has room for, and puts them there;
    /// gives those that it has put. It otherwise does what [`poll`](Self::poll) does.
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
    /// As for [`Cq::poll`]; nothing has been taken then.
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

    /// As [`poll`](Self::poll), for each completion until one is the last that is wanted. What is done with
    /// one is compiled for each driver by itself: so it is copied no further than it is looked at.
    #[inline(always)]
    pub(crate) fn take_each(&mut self, each: &mut impl Each<Completion>) -> Result<(), PollError> {
        self.ring.take_each(&mut Formed(each, Completion::new))
    }

    /// Takes the completions that have arrived; if there are none, asks for an event and looks again.
    ///
    /// `None` means that the queue is empty *and* armed: an event will come to its channel. This is the only
    /// order in which no completion goes unnoticed, since an event comes for those only that arrive after
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

    /// Takes the completions that have arrived; if there are none, waits for one, at most so long. `None` if
    /// none came.
    ///
    /// It sleeps on the queue's [channel](CqBuilder::channel), which should be this queue's alone: events of
    /// other queues that it reads are dropped.
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
    /// The queue has no channel; besides, as for [`Cq::poll`], [`Cq::arm`] and
    /// [`CompletionChannel::wait_for`].
    pub fn wait(&mut self, timeout: Duration) -> Result<Option<Completions<'_>>> {
        let Some(channel) = self.shared.channel.clone() else {
            return Err(Error::invalid(
                Verb::GetCqEvent,
                self.shared.object.subject(),
                "the queue has no completion channel to wait on: create it with one",
            ));
        };
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

    /// Asks for one event on the queue's channel when the next completion arrives.
    ///
    /// Completions that are there already cause none, so poll once more after arming; [`Cq::poll_or_arm`]
    /// does.
    ///
    /// # Errors
    ///
    /// The kernel refuses. Manual page: `ibv_req_notify_cq(3)`.
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn arm(&mut self, notify: Notify) -> Result<()> {
        let solicited_only = notify == Notify::Solicited;
        let object = &self.shared.object;
        let fd = object.context().fd();
        object.backing().arm(fd, object.handle(), solicited_only)
    }

    /// Changes the size of the queue; the completions that wait stay.
    ///
    /// On a parent domain with an allocator, the allocator provides the new ring and gets the old one back.
    ///
    /// # Errors
    ///
    /// More completions wait than fit, or the device's limit is exceeded: the queue is unchanged. If the
    /// kernel has resized and the new ring cannot be mapped, the queue can only be destroyed. Manual page:
    /// `ibv_resize_cq(3)`.
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
    /// [`Cause::Unsupported`](crate::Cause::Unsupported) if the device has no moderation, as rxe. Manual
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
    /// [`Cause::Busy`](crate::Cause::Busy) while queue pairs report to it. The error gives the queue back.
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
    /// The next one of a message that its sender marked as solicited. By the specification failed requests
    /// count too, but devices differ: with rxe no failed send counts, and flushed receives count until Linux
    /// 6.3 (`rxe_cq_post` and its callers). To wait for failures too, arm for [`Next`](Self::Next).
    Solicited,
}

/// Completions that are being taken from their queue.
///
/// Iterate over a mutable reference; what the loop does not reach stays in the queue.
pub struct Completions<'cq> {
    raw: driver::Completions<'cq>,
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
    /// The completions one after the other, as `for` over a mutable reference takes them.
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
    raw: &'i mut driver::Completions<'cq>,
}

impl Iterator for CompletionIter<'_, '_> {
    type Item = Completion;

    #[inline(always)]
    fn next(&mut self) -> Option<Completion> {
        self.raw.take().map(Completion::new)
    }
}

impl fmt::Debug for CompletionIter<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionIter")
            .field("raw", &self.raw)
            .finish()
    }
}
