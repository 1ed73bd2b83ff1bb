//! Asynchronous events: what happens to a device and its objects independently of calls.
//!
//! Events name their object by a number, not by an address, so they need no acknowledgement: an object may be
//! destroyed while its events are unread.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use uverbs_uapi::event::AsyncEventDesc;

pub use uverbs_uapi::enums::AsyncEventType;

use crate::context::Context;
use crate::error::{Error, Result, Subject, Verb};
use crate::event_file::EventFile;
use crate::probes;

/// What an asynchronous event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventSource {
    /// A completion queue, by its [`Cq::id`](crate::Cq::id).
    Cq(u64),
    /// A queue pair, by its [`Qp::id`](crate::Qp::id).
    Qp(u64),
    /// A shared receive queue, by its id.
    Srq(u64),
    /// A port, counted from 1.
    Port(u32),
    /// The device as a whole.
    Device,
    /// An event of a type that this library does not know; the number is what the kernel sent with it.
    Unknown(u64),
}

/// Something that happened to a device or an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AsyncEvent {
    /// What happened.
    pub kind: AsyncEventType,
    /// The object that it happened to.
    pub source: EventSource,
}

impl From<AsyncEventDesc> for AsyncEvent {
    fn from(raw: AsyncEventDesc) -> Self {
        let kind = AsyncEventType(raw.event_type);
        let source = match kind {
            AsyncEventType::CQ_ERR => EventSource::Cq(raw.element),
            AsyncEventType::QP_FATAL
            | AsyncEventType::QP_REQ_ERR
            | AsyncEventType::QP_ACCESS_ERR
            | AsyncEventType::COMM_EST
            | AsyncEventType::SQ_DRAINED
            | AsyncEventType::PATH_MIG
            | AsyncEventType::PATH_MIG_ERR
            | AsyncEventType::QP_LAST_WQE_REACHED => EventSource::Qp(raw.element),
            AsyncEventType::SRQ_ERR | AsyncEventType::SRQ_LIMIT_REACHED => {
                EventSource::Srq(raw.element)
            }
            AsyncEventType::PORT_ACTIVE
            | AsyncEventType::PORT_ERR
            | AsyncEventType::LID_CHANGE
            | AsyncEventType::PKEY_CHANGE
            | AsyncEventType::SM_CHANGE
            | AsyncEventType::CLIENT_REREGISTER
            | AsyncEventType::GID_CHANGE
            | AsyncEventType::DEVICE_SPEED_CHANGE => EventSource::Port(raw.element as u32),
            AsyncEventType::DEVICE_FATAL => EventSource::Device,
            _ => EventSource::Unknown(raw.element),
        };
        Self { kind, source }
    }
}

impl Context {
    /// Opens the stream of the context's asynchronous events.
    ///
    /// It contains all events since the creation of the first object that can have events. All calls return
    /// the same stream, and each event goes to one reader.
    ///
    /// # Errors
    ///
    /// The process has no file descriptor left.
    pub fn async_events(&self) -> Result<AsyncEvents> {
        let subject = Subject::the("asynchronous events");
        let fd = self
            .async_fd()?
            .try_clone_to_owned()
            .map_err(|error| clone_failed(&error, &subject))?;
        Ok(AsyncEvents {
            file: EventFile::new(fd, subject),
            context: self.clone(),
        })
    }
}

fn clone_failed(error: &std::io::Error, subject: &Subject) -> Error {
    let errno = rustix::io::Errno::from_io_error(error).unwrap_or(rustix::io::Errno::IO);
    Error::os(Verb::AllocAsyncFd, subject.clone(), errno)
}

/// The stream of a context's asynchronous events.
///
/// The file descriptor, as returned by [`AsFd`], does not block and becomes readable with an event. If the
/// device is removed while it is open, [`AsyncEventType::DEVICE_FATAL`] is the last event. The kernel reports
/// the end in no other way: afterwards the stream is empty like any other, and a wait takes its whole time.
///
/// ```no_run
/// use uverbs::event::{AsyncEventType, EventSource};
/// # fn watch(context: &uverbs::Context) -> uverbs::Result<()> {
/// let events = context.async_events()?;
/// while let Some(event) = events.wait_for(std::time::Duration::from_secs(10))? {
///     match (event.kind, event.source) {
///         (AsyncEventType::CQ_ERR, EventSource::Cq(id)) => eprintln!("CQ {id} overflowed"),
///         (kind, EventSource::Qp(number)) => eprintln!("QP with the user data {number}: {kind:?}"),
///         (kind, source) => eprintln!("{source:?}: {kind:?}"),
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct AsyncEvents {
    file: EventFile,
    context: Context,
}

impl AsyncEvents {
    /// The next event if one is there.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn try_next(&self) -> Result<Option<AsyncEvent>> {
        let event = self.file.try_read::<AsyncEventDesc>(Verb::GetAsyncEvent)?;
        Ok(event.map(|event| self.noted(event)))
    }

    /// Waits for the next event for at most `timeout`; `None` if there is none by then.
    ///
    /// # Errors
    ///
    /// The kernel refuses. Manual page: `ibv_get_async_event(3)`.
    #[doc(alias = "ibv_get_async_event")]
    pub fn wait_for(&self, timeout: Duration) -> Result<Option<AsyncEvent>> {
        let event = self
            .file
            .read_for::<AsyncEventDesc>(Verb::GetAsyncEvent, timeout)?;
        Ok(event.map(|event| self.noted(event)))
    }

    /// Passes an event on to the objects that it concerns, and to probes.
    fn noted(&self, raw: AsyncEventDesc) -> AsyncEvent {
        probes::event(raw.event_type, raw.element);
        let event = AsyncEvent::from(raw);
        if let (AsyncEventType::CQ_ERR, EventSource::Cq(id)) = (event.kind, event.source) {
            self.context.completion_queue_overran(id);
        }
        event
    }
}

impl AsFd for AsyncEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
