//! Lets a thread wait for its future and for a file at once.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Wake, Waker};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::error::{Errno, Error, Result, Subject, Verb};

/// The future must be polled.
const WOKEN: u8 = 1;
/// It has been polled since it was woken.
const IDLE: u8 = 0;
/// The thread sleeps in poll(2).
const PARKED: u8 = 2;

/// Wakes the thread.
pub(super) struct Parker(Arc<Shared>);

struct Shared {
    state: AtomicU8,
    /// Readable when a waker has ended the thread's sleep.
    event: OwnedFd,
}

impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Release: pairs with the acquire of the thread that polls, so that it sees why it was woken.
        if self.state.swap(WOKEN, Ordering::AcqRel) == PARKED {
            // The counter cannot overflow.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }
}

fn failed(errno: Errno) -> Error {
    Error::os(Verb::GetCqEvent, Subject::the("thread"), errno)
}

impl Parker {
    pub(super) fn new() -> Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self(Arc::new(Shared {
            state: AtomicU8::new(WOKEN),
            event: eventfd(0, flags).map_err(failed)?,
        })))
    }

    pub(super) fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.0))
    }

    /// Whether the future must be polled. Clears that.
    pub(super) fn is_woken(&self) -> bool {
        self.0.state.swap(IDLE, Ordering::AcqRel) == WOKEN
    }

    /// Whether the future must be polled.
    pub(super) fn is_waiting_to_poll(&self) -> bool {
        self.0.state.load(Ordering::Relaxed) == WOKEN
    }

    /// Sleeps until the future is woken, or the file is readable.
    pub(super) fn park(&self, file: BorrowedFd<'_>) -> Result<()> {
        let Shared { state, event } = &*self.0;
        let parked = state.compare_exchange(IDLE, PARKED, Ordering::AcqRel, Ordering::Acquire);
        if parked.is_err() {
            return Ok(());
        }
        let mut files = [
            PollFd::from_borrowed_fd(file, PollFlags::IN),
            PollFd::new(event, PollFlags::IN),
        ];
        let polled = poll(&mut files, None);
        // Fails if the future was woken meanwhile.
        let _ = state.compare_exchange(PARKED, IDLE, Ordering::AcqRel, Ordering::Acquire);
        // The waking thread may write only after this: then the next sleep is short.
        if files[1].revents().contains(PollFlags::IN) {
            let _ = rustix::io::read(event, &mut [0; 8]);
        }
        match polled {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(failed(errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::event::Timespec;
    use rustix::pipe::pipe;

    use super::*;

    /// Catches a thread that never sleeps again: its waker was interrupted before it wrote, and the sleep was
    /// over by then.
    #[test]
    fn a_late_wake_up_shortens_one_sleep() {
        let parker = Parker::new().unwrap();
        assert!(parker.is_woken());
        rustix::io::write(&parker.0.event, &1u64.to_ne_bytes()).unwrap();
        let (silent, _write) = pipe().unwrap();
        parker.park(silent.as_fd()).unwrap();
        let mut files = [PollFd::new(&parker.0.event, PollFlags::IN)];
        assert_eq!(poll(&mut files, Some(&Timespec::default())), Ok(0));
        assert!(!parker.is_woken(), "nobody has");
    }
}
