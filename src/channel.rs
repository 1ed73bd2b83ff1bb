//! Completion channels: where armed completion queues report that something has arrived.
//!
//! An event names its queue by a number ([`Cq::id`](crate::Cq::id)), so it needs no acknowledgement: a queue may
//! be destroyed while events of it are under way, and who reads them late finds that nobody has the number.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
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
    pub fn create_channel(&self) -> Result<CompletionChannel> {
        let fd: OwnedFd = self.fd().execute(&CreateCompChannel)?;
        let file = EventFile::new(
            fd,
            Verb::CreateCompChannel,
            Subject::the("completion channel"),
        )?;
        Ok(CompletionChannel(Arc::new(Inner {
            file,
            context: self.clone(),
        })))
    }
}

/// A completion channel. Clones are the same channel; queues that report to it keep it open.
///
/// The file descriptor does not block and becomes readable with an event, so it fits into poll(2) and into
/// any runtime that waits for file descriptors.
#[derive(Clone)]
pub struct CompletionChannel(Arc<Inner>);

struct Inner {
    file: EventFile,
    context: Context,
}

/// A completion queue has something to poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CqEvent {
    /// The [`Cq::id`](crate::Cq::id) of the queue. It must be armed again before it reports again.
    pub cq: u64,
}

impl CompletionChannel {
    /// The next event if one is there.
    ///
    /// # Errors
    ///
    /// The device has been removed (`EIO`).
    pub fn try_next(&self) -> Result<Option<CqEvent>> {
        let event = self.0.file.try_read::<CompEventDesc>(Verb::GetCqEvent)?;
        Ok(event.map(|event| CqEvent {
            cq: event.cq_handle,
        }))
    }

    /// Waits for the next event, as long as it takes.
    ///
    /// # Errors
    ///
    /// The device has been removed (`EIO`). Manual page: `ibv_get_cq_event(3)`.
    pub fn wait(&self) -> Result<CqEvent> {
        loop {
            if let Some(event) = self.wait_for(Duration::MAX)? {
                return Ok(event);
            }
        }
    }

    /// Waits for the next event, at most so long; `None` if none has come.
    ///
    /// # Errors
    ///
    /// The device has been removed (`EIO`).
    pub fn wait_for(&self, timeout: Duration) -> Result<Option<CqEvent>> {
        let event = self
            .0
            .file
            .read::<CompEventDesc>(Verb::GetCqEvent, timeout)?;
        Ok(event.map(|event| CqEvent {
            cq: event.cq_handle,
        }))
    }

    pub(crate) fn context(&self) -> &Context {
        &self.0.context
    }

    pub(crate) fn raw_fd(&self) -> i32 {
        self.as_fd().as_raw_fd()
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
