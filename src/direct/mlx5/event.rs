//! Events of objects that commands have created, and of the device.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use uverbs_uapi::mlx5::DevxEventChannelFlags;

use super::Direct;
use super::command::{OpenChannel, Subscribe};
use super::object::DevxObject;
use crate::context::Context;
use crate::error::{Error, Result, Subject, Verb};

/// A kind of event, by the device's number (`MLX5_EVENT_TYPE_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventType(pub u16);

impl EventType {
    /// A completion queue that was armed has a completion.
    pub const COMPLETION: Self = Self(0x00);
    /// The first packet has come to a queue pair in the state RTR.
    pub const COMM_EST: Self = Self(0x02);
    /// The requests of a queue pair that were posted before it was drained are done.
    pub const SQ_DRAINED: Self = Self(0x03);
    /// A completion queue has failed.
    pub const CQ_ERROR: Self = Self(0x04);
    /// A queue has failed.
    pub const WQ_CATASTROPHIC_ERROR: Self = Self(0x05);
    /// A port has gone up or down, or has changed otherwise.
    pub const PORT_CHANGE: Self = Self(0x09);
    /// A request of a peer was invalid.
    pub const WQ_INVAL_REQ_ERROR: Self = Self(0x10);
    /// A request of a peer named memory that it may not use.
    pub const WQ_ACCESS_ERROR: Self = Self(0x11);
    /// A shared receive queue has failed.
    pub const SRQ_CATASTROPHIC_ERROR: Self = Self(0x12);
    /// A queue pair takes no more receives from its shared queue.
    pub const SRQ_LAST_WQE: Self = Self(0x13);
    /// A shared receive queue has fewer receives than its limit.
    pub const SRQ_RQ_LIMIT: Self = Self(0x14);
}

/// Bytes before the device's data.
const HEADER: usize = 8;
/// Bytes of the device's data (`struct mlx5_eqe`).
const DATA: usize = 64;
/// The most kinds of events of a subscription.
const MOST_KINDS: usize = 16;

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The number that was given when subscribing to the event.
    pub cookie: u64,
    /// What the device wrote about it; `None` on a channel without data.
    pub data: Option<[u8; DATA]>,
}

impl Direct {
    /// Opens a channel for events. Without data it holds one event of each subscription at a time, with data
    /// all events.
    ///
    /// # Errors
    ///
    /// The process has no file descriptor left. Manual page: `mlx5dv_devx_create_event_channel(3)`.
    #[doc(alias = "mlx5dv_devx_create_event_channel")]
    pub fn event_channel(&self, data: bool) -> Result<EventChannel> {
        let flags = match data {
            true => DevxEventChannelFlags::empty(),
            false => DevxEventChannelFlags::OMIT_DATA,
        };
        let file = self.context().fd().execute(&OpenChannel(flags))?;
        Ok(EventChannel {
            file,
            data,
            context: self.context().clone(),
        })
    }
}

/// A file on which events arrive. It can be polled, and turned non-blocking.
pub struct EventChannel {
    file: OwnedFd,
    data: bool,
    context: Context,
}

impl EventChannel {
    /// Subscribes to events of an object.
    ///
    /// # Errors
    ///
    /// The object belongs to another context; the device does not report such events, or the object has none
    /// (`EINVAL`); there are more than 16 kinds, or none. Manual page: `mlx5dv_devx_subscribe_devx_event(3)`.
    #[doc(alias = "mlx5dv_devx_subscribe_devx_event")]
    pub fn subscribe(&self, object: &DevxObject, events: &[EventType], cookie: u64) -> Result<()> {
        let subject = || Subject::numbered("object", object.handle().into());
        let parts = [("the object", Some(object.context()))];
        (self.context).check_parts(Verb::DevxSubscribeEvent, subject, parts)?;
        self.subscribe_to(Some(object.handle()), events, cookie)
    }

    /// Subscribes to events that concern no object, such as changes of ports.
    ///
    /// # Errors
    ///
    /// As for [`subscribe`](Self::subscribe).
    pub fn subscribe_to_device(&self, events: &[EventType], cookie: u64) -> Result<()> {
        self.subscribe_to(None, events, cookie)
    }

    /// As both, with a handle.
    pub(crate) fn subscribe_to(
        &self,
        object: Option<u32>,
        events: &[EventType],
        cookie: u64,
    ) -> Result<()> {
        let numbers: Vec<u16> = events.iter().map(|event| event.0).collect();
        let command = Subscribe {
            channel: self.file.as_raw_fd(),
            object,
            events: &numbers,
            cookie,
        };
        if !(1..=MOST_KINDS).contains(&numbers.len()) {
            use crate::command::Command;
            let why = format!(
                "{} kinds of events: 1 to {MOST_KINDS} are possible",
                numbers.len()
            );
            return Err(Error::invalid(Subscribe::VERB, command.subject(), why));
        }
        self.context.fd().execute(&command)
    }

    /// Reads the next event, and waits for one unless the file is non-blocking.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if there is none and the file is non-blocking; `EOVERFLOW` once if the kernel had no memory
    /// for one; `EIO` if the device was removed. Manual page: `mlx5dv_devx_get_event(3)`.
    #[doc(alias = "mlx5dv_devx_get_event")]
    pub fn read(&self) -> Result<Event> {
        let subject = || Subject::the("event channel");
        let mut bytes = [0; HEADER + DATA];
        let room = match self.data {
            true => HEADER + DATA,
            false => HEADER,
        };
        let read = rustix::io::retry_on_intr(|| rustix::io::read(&self.file, &mut bytes[..room]));
        let read = read.map_err(|errno| Error::os(Verb::DevxGetEvent, subject(), errno))?;
        if read != room {
            let what = format!("an event of {read} bytes");
            return Err(Error::malformed(Verb::DevxGetEvent, subject(), what));
        }
        let [c0, c1, c2, c3, c4, c5, c6, c7, data @ ..] = bytes;
        Ok(Event {
            cookie: u64::from_ne_bytes([c0, c1, c2, c3, c4, c5, c6, c7]),
            data: self.data.then_some(data),
        })
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl fmt::Debug for EventChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventChannel")
            .field("fd", &self.file.as_raw_fd())
            .finish()
    }
}
