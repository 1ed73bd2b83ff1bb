//! How a joiner waits for an offer that does not exist yet.
//!
//! At a path it sleeps until something happens to the name (inotify(7)): the socket appears, or the exporter
//! begins to listen, which touches the socket after listen(2). If a directory is missing, the nearest one
//! that exists is watched. There are no events for abstract names and for directories that cannot be read:
//! there it tries again after 1 ms, 2 ms and so on up to 100 ms.

use std::ffi::OsString;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};
use rustix::io::Errno;

use super::address::Address;

/// The longest time between two tries if there are events: a symbolic link on the path to the directory may
/// change, for which there is no event.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The first pause if there are no events.
const FIRST_PAUSE: Duration = Duration::from_millis(1);

/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Pauses that get longer.
#[derive(Debug)]
pub(super) struct Pauses(Duration);

impl Pauses {
    pub(super) fn new() -> Self {
        Self(FIRST_PAUSE)
    }

    /// Sleeps, but not beyond `end`.
    pub(super) fn pause(&mut self, end: Instant) {
        sleep(self.0.min(end.saturating_duration_since(Instant::now())));
        self.0 = (self.0 * 2).min(LONGEST_PAUSE);
    }
}

/// A watch for an offer at a path. It reports everything that happens after its creation.
#[derive(Debug)]
pub(super) struct Watch {
    inotify: OwnedFd,
    /// The name that the expected event has.
    name: OsString,
}

impl Watch {
    /// Watches an address; `None` if it cannot be watched.
    pub(super) fn new(address: &Address) -> Option<Self> {
        match address {
            Address::Path(path) => Self::of_path(path),
            Address::Abstract(_) => None,
        }
    }

    fn of_path(path: &Path) -> Option<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
        let what = WatchFlags::CREATE
            | WatchFlags::MOVED_TO
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        // Relative paths end at the working directory.
        let path = std::path::absolute(path).ok()?;
        let mut missing: PathBuf = path;
        loop {
            let name = missing.file_name()?.to_owned();
            missing.pop();
            match inotify::add_watch(&inotify, &missing, what) {
                Ok(_) => return Some(Self { inotify, name }),
                Err(Errno::NOENT) => {}
                Err(_) => return None,
            }
        }
    }

    /// Waits until something has happened to the name, but not beyond `end` nor longer than a second.
    pub(super) fn wait(self, end: Instant) {
        let end = end.min(Instant::now() + LOOK_AGAIN);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || self.has_happened() {
                return;
            }
            let left = Timespec {
                tv_sec: left.as_secs() as _,
                tv_nsec: left.subsec_nanos() as _,
            };
            let mut fds = [PollFd::new(&self.inotify, PollFlags::IN)];
            match poll(&mut fds, Some(&left)) {
                Ok(_) | Err(Errno::INTR) => {}
                // There is no memory. An extra try does no harm.
                Err(_) => return sleep(FIRST_PAUSE),
            }
        }
    }

    /// Whether an event concerns the name, or the directory itself.
    fn has_happened(&self) -> bool {
        let mut space = [MaybeUninit::uninit(); 4096];
        let mut events = Reader::new(&self.inotify, &mut space);
        loop {
            match events.next() {
                Ok(event) => {
                    let name = event.file_name().map(|name| name.to_bytes());
                    if name.is_none_or(|name| name == self.name.as_encoded_bytes()) {
                        return true;
                    }
                }
                Err(Errno::AGAIN | Errno::INTR) => return false,
                Err(_) => return true,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::listener::Listener;
    use super::*;

    fn end() -> Instant {
        Instant::now() + Duration::from_secs(30)
    }

    fn waits(path: &Path, happens: impl FnOnce()) -> bool {
        let watch = Watch::of_path(path).unwrap();
        happens();
        watch.has_happened()
    }

    /// Catches a watch in the wrong directory, and one that every file of a busy directory wakes.
    #[test]
    fn wakes_for_the_name_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let other = directory.path().join("other");
        assert!(!waits(&path, || std::fs::write(&other, "").unwrap()));
        assert!(waits(&path, || std::fs::write(&path, "").unwrap()));
        assert!(waits(&path, || std::fs::rename(&other, &path).unwrap()));
        let deep = directory.path().join("a/b/socket");
        assert!(waits(&deep, || std::fs::create_dir(
            directory.path().join("a")
        )
        .unwrap()));
        assert!(!waits(&deep, || std::fs::create_dir(
            directory.path().join("b")
        )
        .unwrap()));
        assert!(waits(&deep, || std::fs::remove_dir(
            directory.path().join("a")
        )
        .unwrap()));
    }

    /// Catches an exporter that begins to listen without an event.
    #[test]
    fn wakes_when_a_socket_is_listened_on() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let address = Address::Path(path.clone());
        let mut listener = None;
        assert!(waits(&path, || listener = Listener::bound(&address, false).ok()));
        let listener = listener.unwrap();
        assert!(waits(&path, || listener.listen().unwrap()));
        assert!(!waits(&path, || drop(listener.accept())));
    }

    #[test]
    fn looks_again_and_ends() {
        let directory = tempfile::tempdir().unwrap();
        let watch = || Watch::of_path(&directory.path().join("socket")).unwrap();
        let start = Instant::now();
        watch().wait(end());
        assert!((LOOK_AGAIN..LOOK_AGAIN * 10).contains(&start.elapsed()));
        watch().wait(start);
        assert!(Watch::new(&Address::Abstract("x".into())).is_none());
    }

    #[test]
    fn pauses_are_bounded() {
        let mut pauses = Pauses::new();
        let start = Instant::now();
        for _ in 0..1000 {
            pauses.pause(start);
        }
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "none goes beyond its end"
        );
        assert_eq!(pauses.0, LONGEST_PAUSE);
    }
}
