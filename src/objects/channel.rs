//! Completion channels: where armed completion queues report new completions.
//!
//! An event names its queue by a number ([`Cq::id`](crate::Cq::id)), so it needs no acknowledgement: a queue
//! may be destroyed while its events are unread. A late event carries a number that no queue has any more.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use uverbs_uapi::event::CompEventDesc;

use crate::command::CreateCompChannel;
use crate::context::Context;
use crate::error::{Result, Subject, Verb};
use crate::event_file::EventFile;

impl Context {
    /// Creates a completion channel.
    ///
    /// # Errors
    ///
    /// The process has no file descriptor left. Manual page: `ibv_create_comp_channel(3)`.
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn create_channel(&self) -> Result<CompletionChannel> {
        let fd: OwnedFd = self.fd().execute(&CreateCompChannel)?;
        let file = EventFile::new(fd, Subject::the("completion channel"));
        Ok(CompletionChannel(Arc::new(Inner {
            file,
            context: self.clone(),
            counts: Mutex::default(),
        })))
    }
}

/// A completion channel. Clones share the channel; queues that report to it keep it open.
///
/// The file descriptor, as returned by [`AsFd`], does not block and becomes readable with an event, so it
/// works with poll(2) and with any runtime that waits for file descriptors. As long as the program neither
/// asks for the descriptor nor calls [`try_next`](Self::try_next) or [`wait_for`](Self::wait_for), the file
/// blocks, and [`wait`](Self::wait) is a single read(2). Removal of the device shows only as an error
/// (`POLLERR`), which tokio's `AsyncFd` takes for a closed write side.
///
/// ```no_run
/// use uverbs::Notify;
/// # fn serve(context: &uverbs::Context) -> uverbs::Result<()> {
/// let channel = context.create_channel()?;
/// let mut queues = Vec::new();
/// for _ in 0..4 {
///     queues.push(context.cq(64).channel(&channel).create()?);
/// }
/// loop {
///     let mut idle = true;
///     for cq in &mut queues {
///         // `None`: it is empty and armed, so the next completion causes an event.
///         if let Some(mut completions) = cq.poll_or_arm(Notify::Next)? {
///             idle = false;
///             // At most 64 in a round, so that a busy queue does not starve the others.
///             for completion in completions.iter().take(64) {
///                 println!("{completion:?}");
///             }
///         }
///     }
///     if idle {
///         channel.wait()?;
///     }
/// }
/// # }
/// ```
#[derive(Clone)]
pub struct CompletionChannel(Arc<Inner>);

struct Inner {
    file: EventFile,
    context: Context,
    /// The number of events read for each queue, by the queue's number: some devices need it for arming.
    counts: Mutex<BTreeMap<u64, Arc<AtomicU32>>>,
}

/// A completion queue has something to poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CqEvent {
    /// The [`Cq::id`](crate::Cq::id) of the queue. The queue reports again only after it has been armed
    /// again.
    pub cq: u64,
}

impl CompletionChannel {
    /// The next event, if there is one.
    ///
    /// # Errors
    ///
    /// The device has been removed (`EIO`). Linux before 6.4 may not report that here.
    pub fn try_next(&self) -> Result<Option<CqEvent>> {
        let event = self.0.file.try_read::<CompEventDesc>(Verb::GetCqEvent)?;
        Ok(event.map(|event| self.event(event)))
    }

    /// Waits for the next event without a time limit.
    ///
    /// # Errors
    ///
    /// The device has been removed (`EIO`). Manual page: `ibv_get_cq_event(3)`.
    #[doc(alias = "ibv_get_cq_event")]
    pub fn wait(&self) -> Result<CqEvent> {
        let event = self.0.file.read::<CompEventDesc>(Verb::GetCqEvent)?;
        Ok(self.event(event))
    }

    /// Waits for the next event for at most `timeout`; `None` if there is none by then.
    ///
    /// # Errors
    ///
    /// The device has been removed (`EIO`).
    pub fn wait_for(&self, timeout: Duration) -> Result<Option<CqEvent>> {
        let event = self
            .0
            .file
            .read_for::<CompEventDesc>(Verb::GetCqEvent, timeout)?;
        Ok(event.map(|event| self.event(event)))
    }

    fn event(&self, event: CompEventDesc) -> CqEvent {
        let cq = event.cq_handle;
        if let Some(count) = self.counts().get(&cq) {
            // Relaxed: the thread that next arms the queue has learned of the event from this thread, and
            // that communication orders the two.
            count.fetch_add(1, Ordering::Relaxed);
        }
        CqEvent { cq }
    }

    fn counts(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<AtomicU32>>> {
        // The map is consistent after every statement, so a panic elsewhere did no harm.
        self.0.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the events of a queue that are read from now on.
    pub(crate) fn count_events(&self, cq: u64, count: &Arc<AtomicU32>) {
        self.counts().insert(cq, Arc::clone(count));
    }

    /// Stops counting the events of a queue.
    pub(crate) fn forget_events(&self, cq: u64) {
        self.counts().remove(&cq);
    }

    pub(crate) fn context(&self) -> &Context {
        &self.0.context
    }

    pub(crate) fn raw_fd(&self) -> i32 {
        self.0.file.handle().as_raw_fd()
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.file.as_fd()
    }
}

impl fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionChannel")
            .field("fd", &self.raw_fd())
            .finish()
    }
}
