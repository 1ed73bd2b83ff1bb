//! An open `/dev/infiniband/rdma_cm`, and the system calls on it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use tracing::Level;
use uverbs_uapi::rdma_cm::EventResp;
use zerocopy::IntoBytes;

use super::command::{Command, Frame, GetEvent};
use crate::command::write;
use crate::device::Manager;
use crate::error::{Errno, Result};

/// The file of one identifier. It does not block, so that waiting can end.
#[derive(Debug)]
pub(super) struct File {
    fd: OwnedFd,
    manager: Manager,
}

impl File {
    /// Opens the connection manager.
    pub(super) fn open() -> Result<Self> {
        let (manager, fd) = Manager::find_open(OFlags::NONBLOCK)?;
        Ok(Self { fd, manager })
    }

    /// Opens it once more, for another identifier.
    pub(super) fn another(&self) -> Result<Self> {
        let manager = self.manager.clone();
        let fd = manager.open(OFlags::NONBLOCK)?;
        Ok(Self { fd, manager })
    }

    /// Sends a command and reads its answer.
    pub(super) fn send<C: Command>(&self, command: &C) -> Result<C::Reply, Errno> {
        rustix::io::retry_on_intr(|| send(self.fd.as_fd(), command))
    }

    /// The next event, if one is there.
    pub(super) fn try_event(&self) -> Result<Option<EventResp>, Errno> {
        match self.send(&GetEvent::default()) {
            Ok(event) => Ok(Some(event)),
            Err(Errno::AGAIN) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Whether there is an event.
    pub(super) fn is_readable(&self) -> Result<bool, Errno> {
        let mut asked = [PollFd::new(&self.fd, PollFlags::IN)];
        rustix::io::retry_on_intr(|| poll(&mut asked, Some(&Timespec::default())))
            .map(|ready| ready > 0)
    }

    /// Waits until there may be an event, for at most `limit`; `None` means forever.
    pub(super) fn wait(&self, limit: Option<Duration>) -> Result<(), Errno> {
        wait(self.fd.as_fd(), limit)
    }
}

/// Sends a command on an open file and reads its answer. A signal may end it.
pub(crate) fn send<C: Command>(fd: BorrowedFd<'_>, command: &C) -> Result<C::Reply, Errno> {
    use zerocopy::FromZeros;
    let mut reply = C::Reply::new_zeroed();
    let bytes = reply.as_mut_bytes();
    let response = match bytes.is_empty() {
        true => 0,
        false => bytes.as_mut_ptr() as u64,
    };
    let frame = Frame::new(command, response);
    let sent = write(fd, frame.bytes());
    if tracing::enabled!(target: "uverbs::cm", Level::TRACE) {
        trace(command, sent.err());
    }
    sent.map(|_| reply)
}

#[cold]
fn trace<C: Command>(command: &C, errno: Option<Errno>) {
    tracing::trace!(
        target: "uverbs::cm",
        "{}: {command:?} -> {}",
        C::VERB,
        errno.map_or_else(|| "ok".into(), |errno| errno.to_string()),
    );
}

/// Waits until a file is readable, for at most `limit`; `None` means forever. May end early.
pub(super) fn wait(fd: BorrowedFd<'_>, limit: Option<Duration>) -> Result<(), Errno> {
    wait_for_any([fd], limit)
}

/// As [`wait`], until one of these files is readable.
pub(super) fn wait_for_any<const FILES: usize>(
    files: [BorrowedFd<'_>; FILES],
    limit: Option<Duration>,
) -> Result<(), Errno> {
    let limit = limit.and_then(|left| Timespec::try_from(left).ok());
    let mut asked = files.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    match poll(&mut asked, limit.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno),
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
