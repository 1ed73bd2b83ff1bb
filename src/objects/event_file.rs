//! Reading records from the kernel's event files, without blocking, with a time limit or without one.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::retry_on_intr;
use zerocopy::{FromBytes, IntoBytes};

use crate::error::{Errno, Error, Result, Subject, Verb};

/// A file to which the kernel writes records of one kind.
///
/// It blocks for as long as callers only wait for records without a limit: then a wait is one read(2). The
/// first caller that looks without waiting, waits with a limit or asks for the descriptor makes it
/// non-blocking, for good. poll(2) followed by a blocking read would not do: another reader may take the
/// event between the two. Nor would preadv2(2) with `RWF_NOWAIT`: the kernel refuses it for files without a
/// `read_iter`, as these are.
///
/// Threads and processes that share the open file may do so at any time. A reader that sleeps in read(2)
/// keeps sleeping: the kernel (`ib_uverbs_event_read` in `drivers/infiniband/core/uverbs_main.c`) checks the
/// flag before it sleeps and when it wakes up to no event. If the flag is set then, the reader waits with
/// poll(2).
#[derive(Debug)]
pub(crate) struct EventFile {
    fd: OwnedFd,
    subject: Subject,
    /// Whether `O_NONBLOCK` was set here. Another holder of the open file may have set it too.
    nonblocking: AtomicBool,
}

impl EventFile {
    /// Takes an event file, blocking or not.
    pub(crate) fn new(fd: OwnedFd, subject: Subject) -> Self {
        Self {
            fd,
            subject,
            nonblocking: AtomicBool::new(false),
        }
    }

    /// The descriptor, to pass to the kernel's commands. Commands do not read it.
    pub(crate) fn handle(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The next record if there is one.
    pub(crate) fn try_read<T: FromBytes + IntoBytes>(&self, verb: Verb) -> Result<Option<T>> {
        self.set_nonblocking()
            .map_err(|errno| Error::os(verb, self.subject.clone(), errno))?;
        self.read_one(verb)
    }

    /// The next record, waiting without a limit for it.
    pub(crate) fn read<T: FromBytes + IntoBytes>(&self, verb: Verb) -> Result<T> {
        loop {
            if let Some(record) = self.read_one(verb)? {
                return Ok(record);
            }
            if self.wait(verb, None)?.is_closed() {
                return self.read_last(verb);
            }
        }
    }

    /// The next record, waiting at most `timeout` for it.
    pub(crate) fn read_for<T: FromBytes + IntoBytes>(
        &self,
        verb: Verb,
        timeout: Duration,
    ) -> Result<Option<T>> {
        // No deadline if the clock cannot represent it: nobody waits that long.
        let Some(deadline) = Instant::now().checked_add(timeout) else {
            return self.read(verb).map(Some);
        };
        loop {
            if let Some(record) = self.try_read(verb)? {
                return Ok(Some(record));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            if self.wait(verb, Some(left))?.is_closed() {
                return self.read_last(verb).map(Some);
            }
        }
    }

    /// The next record of a file to which the kernel writes no more: `EIO` if there is none. Linux before 6.4
    /// may tell a reader that does not block only by poll(2) that the device is gone (62fab312fa16).
    fn read_last<T: FromBytes + IntoBytes>(&self, verb: Verb) -> Result<T> {
        let record = self.read_one(verb)?;
        record.ok_or_else(|| Error::os(verb, self.subject.clone(), Errno::IO))
    }

    /// Reads a record. `None` if there is none and the file does not block.
    fn read_one<T: FromBytes + IntoBytes>(&self, verb: Verb) -> Result<Option<T>> {
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

    /// Makes the file non-blocking, at the first call.
    fn set_nonblocking(&self) -> std::result::Result<(), Errno> {
        // Acquire: the kernel has set the flag before this thread reads. Pairs with the release below.
        if self.nonblocking.load(Ordering::Acquire) {
            return Ok(());
        }
        let flags = fcntl_getfl(&self.fd)?;
        fcntl_setfl(&self.fd, flags | OFlags::NONBLOCK)?;
        self.nonblocking.store(true, Ordering::Release);
        Ok(())
    }

    /// Waits for at most `timeout` until there may be a record.
    fn wait(&self, verb: Verb, timeout: Option<Duration>) -> Result<Waited> {
        let timeout = timeout.and_then(|left| Timespec::try_from(left).ok());
        let mut files = [PollFd::new(&self.fd, PollFlags::IN)];
        match poll(&mut files, timeout.as_ref()) {
            Ok(_) => Ok(Waited(files[0].revents())),
            Err(Errno::INTR) => Ok(Waited(PollFlags::empty())),
            Err(errno) => Err(Error::os(verb, self.subject.clone(), errno)),
        }
    }
}

/// What poll(2) says of an event file.
struct Waited(PollFlags);

impl Waited {
    /// Whether the file is empty and the kernel writes no more to it.
    fn is_closed(&self) -> bool {
        self.0.intersects(PollFlags::ERR | PollFlags::HUP) && !self.0.contains(PollFlags::IN)
    }
}

/// For poll(2) and runtimes, so the file does not block from then on.
impl AsFd for EventFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // If this fails, the next look without waiting tries again, and reports the error.
        let _ = self.set_nonblocking();
        self.fd.as_fd()
    }
}

/// Whether a file is readable now. A signal does not end the look with an error; the file then counts as not
/// readable.
pub(crate) fn is_readable(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let mut files = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    Ok(retry_on_intr(|| poll(&mut files, Some(&Timespec::default())))? > 0)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::thread;

    use super::*;

    /// Would catch a look that a signal ends with an error.
    #[test]
    #[cfg_attr(miri, ignore = "it has no signals")]
    fn a_signal_ends_no_look() {
        extern "C" fn nothing(_: libc::c_int) {}
        let (read, write) = rustix::pipe::pipe().unwrap();
        let is_over = AtomicBool::new(false);
        // SAFETY: the handler does nothing; the thread that is signalled waits for the one that signals it.
        let looks: Vec<_> = unsafe {
            let handler = nothing as extern "C" fn(libc::c_int) as usize;
            libc::signal(libc::SIGUSR2, handler);
            let here = libc::pthread_self();
            thread::scope(|scope| {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        libc::pthread_kill(here, libc::SIGUSR2);
                    }
                });
                let looks = (0..20_000).map(|_| is_readable(read.as_fd()).ok());
                let looks = looks.collect();
                is_over.store(true, Ordering::Relaxed);
                looks
            })
        };
        assert!(looks.iter().all(|look| *look == Some(false)));
        rustix::io::write(&write, b"x").unwrap();
        assert!(is_readable(read.as_fd()).unwrap());
    }

    fn file() -> (EventFile, OwnedFd) {
        let (read, write) = rustix::pipe::pipe().unwrap();
        (EventFile::new(read, Subject::the("channel")), write)
    }

    fn blocks(file: &EventFile) -> bool {
        !fcntl_getfl(&file.fd).unwrap().contains(OFlags::NONBLOCK)
    }

    #[test]
    fn gives_records_as_they_come() {
        let (file, write) = file();
        assert_eq!(file.try_read::<u64>(Verb::GetCqEvent).unwrap(), None);
        rustix::io::write(&write, 7u64.as_bytes()).unwrap();
        assert_eq!(file.read::<u64>(Verb::GetCqEvent).unwrap(), 7);
    }

    #[test]
    fn a_wait_ends() {
        let (file, _write) = file();
        assert_eq!(
            file.read_for::<u64>(Verb::GetCqEvent, Duration::from_millis(5))
                .unwrap(),
            None
        );
    }

    #[test]
    fn blocks_until_somebody_does_not_wait() {
        let (file, write) = file();
        let wait_for = |record: u64, limit: Option<Duration>| {
            rustix::io::write(&write, record.as_bytes()).unwrap();
            let read: u64 = match limit {
                None => file.read(Verb::GetCqEvent).unwrap(),
                Some(limit) => file.read_for(Verb::GetCqEvent, limit).unwrap().unwrap(),
            };
            assert_eq!(record, read);
            blocks(&file)
        };
        assert!(wait_for(1, None));
        assert!(wait_for(2, Some(Duration::MAX)));
        assert!(!wait_for(3, Some(Duration::ZERO)));
        assert!(!wait_for(4, None));
    }

    #[test]
    fn the_descriptor_that_others_wait_for_does_not_block() {
        let (file, _write) = file();
        assert_eq!(file.handle().as_raw_fd(), file.fd.as_raw_fd());
        assert!(blocks(&file));
        assert_eq!(file.as_fd().as_raw_fd(), file.fd.as_raw_fd());
        assert!(!blocks(&file));
    }

    #[test]
    fn who_looks_without_waiting_does_not_disturb_who_waits() {
        let (file, write) = file();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| file.read::<u64>(Verb::GetCqEvent).unwrap());
            // Whether it sleeps already or finds the flag set: in both cases it ends with the record.
            assert_eq!(file.try_read::<u64>(Verb::GetCqEvent).unwrap(), None);
            rustix::io::write(&write, 7u64.as_bytes()).unwrap();
            assert_eq!(waiter.join().unwrap(), 7);
        });
    }

    /// A file of which poll(2) reports an error, and read(2) that there is nothing to read: a socket with a
    /// message in its queue of errors.
    fn in_error() -> OwnedFd {
        use std::net::UdpSocket;
        let here = || UdpSocket::bind("127.0.0.1:0").unwrap();
        let nobody = here().local_addr().unwrap();
        let socket = here();
        socket.connect(nobody).unwrap();
        let on: libc::c_int = 1;
        // SAFETY: the value is an int, of that size.
        let set = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_IP,
                libc::IP_RECVERR,
                (&raw const on).cast(),
                size_of_val(&on) as libc::socklen_t,
            )
        };
        assert_eq!(set, 0);
        socket.send(b"to nobody").unwrap();
        // That nobody is there is reported once.
        let told = socket.recv(&mut [0; 1]).unwrap_err();
        assert_eq!(told.kind(), io::ErrorKind::ConnectionRefused);
        socket.into()
    }

    /// Would catch a wait that spins, for as long as it may, when the device is gone.
    #[test]
    #[cfg_attr(miri, ignore = "it has no such sockets")]
    fn a_wait_ends_when_nothing_will_come() {
        let file = EventFile::new(in_error(), Subject::the("channel"));
        assert_eq!(file.try_read::<u64>(Verb::GetCqEvent).unwrap(), None);
        let limit = Duration::from_secs(10);
        let waited = file.read_for::<u64>(Verb::GetCqEvent, limit).unwrap_err();
        assert!(waited.is_device_gone(), "{waited}");
        let waited = file.read::<u64>(Verb::GetCqEvent).unwrap_err();
        assert!(waited.is_device_gone(), "{waited}");
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
