//! Reading records from the kernel's event files, without blocking or with a time limit.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use zerocopy::{FromBytes, IntoBytes};

use crate::error::{Errno, Error, Result, Subject, Verb};

/// A file that the kernel writes records of one kind to.
#[derive(Debug)]
pub(crate) struct EventFile {
    fd: OwnedFd,
    subject: Subject,
}

impl EventFile {
    /// Takes an event file and makes it non-blocking. Waiting uses poll(2), so that it can end, and so that
    /// no reader hangs on an event that another reader took.
    pub(crate) fn new(fd: OwnedFd, verb: Verb, subject: Subject) -> Result<Self> {
        let set = fcntl_getfl(&fd).and_then(|flags| fcntl_setfl(&fd, flags | OFlags::NONBLOCK));
        match set {
            Ok(()) => Ok(Self { fd, subject }),
            Err(errno) => Err(Error::os(verb, subject, errno)),
        }
    }

    /// The next record if there is one.
    pub(crate) fn try_read<T: FromBytes + IntoBytes>(&self, verb: Verb) -> Result<Option<T>> {
        let mut record = T::new_zeroed();
        loop {
            return match rustix::io::read(&self.fd, record.as_mut_bytes()) {
                Ok(length) if length == size_of::<T>() => Ok(Some(record)),
                Ok(length) => {
                    let what = format!("an event of {length} bytes instead of {}", size_of::<T>());
                    Err(Error::malformed(verb, self.subject.clone(), what))
                }
                Err(Errno::AGAIN) => Ok(None),
                Err(Errno::INTR) => continue,
                Err(errno) => Err(Error::os(verb, self.subject.clone(), errno)),
            };
        }
    }

    /// The next record, waiting at most `timeout` for it.
    pub(crate) fn read<T: FromBytes + IntoBytes>(
        &self,
        verb: Verb,
        timeout: Duration,
    ) -> Result<Option<T>> {
        // No deadline if the clock cannot represent it: nobody waits that long.
        let deadline = Instant::now().checked_add(timeout);
        loop {
            if let Some(record) = self.try_read(verb)? {
                return Ok(Some(record));
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            self.wait(verb, left)?;
        }
    }

    /// Waits for at most `timeout` until there may be a record.
    fn wait(&self, verb: Verb, timeout: Option<Duration>) -> Result<()> {
        let timeout = timeout.and_then(|left| Timespec::try_from(left).ok());
        match poll(
            &mut [PollFd::new(&self.fd, PollFlags::IN)],
            timeout.as_ref(),
        ) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(Error::os(verb, self.subject.clone(), errno)),
        }
    }
}

impl AsFd for EventFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> (EventFile, OwnedFd) {
        let (read, write) = rustix::pipe::pipe().unwrap();
        (
            EventFile::new(read, Verb::GetCqEvent, Subject::the("channel")).unwrap(),
            write,
        )
    }

    #[test]
    fn gives_records_as_they_come() {
        let (file, write) = file();
        assert_eq!(file.try_read::<u64>(Verb::GetCqEvent).unwrap(), None);
        rustix::io::write(&write, 7u64.as_bytes()).unwrap();
        assert_eq!(
            file.read::<u64>(Verb::GetCqEvent, Duration::MAX).unwrap(),
            Some(7)
        );
    }

    #[test]
    fn a_wait_ends() {
        let (file, _write) = file();
        assert_eq!(
            file.read::<u64>(Verb::GetCqEvent, Duration::from_millis(5))
                .unwrap(),
            None
        );
    }

    #[test]
    fn a_short_record_is_an_error() {
        let (file, write) = file();
        rustix::io::write(&write, &[1, 2, 3]).unwrap();
        let error = file.try_read::<u64>(Verb::GetCqEvent).unwrap_err();
        assert!(
            error.to_string().contains("3 bytes instead of 8"),
            "{error}"
        );
    }
}
