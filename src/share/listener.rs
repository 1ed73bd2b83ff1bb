//! The socket that a broker listens on. At no moment of its creation can another user connect to it.

use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, Stat, Timespec, Timestamps};
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType};

use super::address::Address;
use super::connection;

/// How many connections may wait to be accepted; the kernel lowers it to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// A listening socket. When dropped it removes its path, if that still names the socket.
#[derive(Debug)]
pub(super) struct Listener {
    socket: OwnedFd,
    node: Option<Node>,
}

impl Listener {
    /// Listens at `address`. Only this user may connect to a path unless `for_others`; the user of each
    /// connection is checked later.
    pub(super) fn bind(address: &Address, for_others: bool) -> Result<Self, Errno> {
        let listener = Self::bound(address, for_others)?;
        listener.listen()?;
        Ok(listener)
    }

    /// A socket that has its address, and to which no process can connect yet.
    pub(super) fn bound(address: &Address, for_others: bool) -> Result<Self, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        // If the kernel cannot refuse files, connections are read and closed with care.
        let _ = connection::pass_files(&socket, false);
        let mode = Mode::from_raw_mode(if for_others { 0o666 } else { 0o600 });
        // The kernel gives the node the mode of the socket's own inode, without the bits of the umask
        // (`unix_bind_bsd`): so it never has more, not even between two system calls.
        fs::fchmod(&socket, mode)?;
        let node = match address {
            Address::Path(path) => Some(Place::of(path)?.bind(&socket, address, mode)?),
            Address::Abstract(_) => {
                rustix::net::bind(&socket, &address.to_socket()?)?;
                None
            }
        };
        // Before listen(2) no process can connect, so this is early enough.
        if let Some(node) = &node {
            node.widen(mode)?;
        }
        Ok(Self { socket, node })
    }

    pub(super) fn listen(&self) -> Result<(), Errno> {
        rustix::net::listen(&self.socket, BACKLOG)?;
        if let Some(node) = &self.node {
            node.announce();
        }
        Ok(())
    }

    /// The next connection; `None` if none waits.
    pub(super) fn accept(&self) -> Result<Option<OwnedFd>, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        loop {
            match rustix::net::accept_with(&self.socket, flags) {
                Ok(client) => return Ok(Some(client)),
                Err(Errno::AGAIN) => return Ok(None),
                // The client has left before it was accepted.
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Refuses all later connections, even if a forked process still has the socket.
    pub(super) fn shut(&self) {
        // Shutting down a listening socket never fails.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The place for a socket: a name in a directory.
#[derive(Debug)]
struct Place {
    directory: OwnedFd,
    name: OsString,
}

impl Place {
    fn of(path: &Path) -> Result<Self, Errno> {
        let name = path.file_name().ok_or(Errno::INVAL)?.to_owned();
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY;
        let directory = fs::open(parent, flags, Mode::empty())?;
        Ok(Self { directory, name })
    }

    /// Binds a socket here, even if the directory's path leads elsewhere by now. If the address is too long
    /// in this form, it is bound by its path, which another directory may have taken.
    fn bind(self, socket: &OwnedFd, address: &Address, mode: Mode) -> Result<Node, Errno> {
        let by_path = address.to_socket()?;
        let directory = format!("/proc/self/fd/{}", self.directory.as_raw_fd());
        let here = SocketAddrUnix::new(Path::new(&directory).join(&self.name)).unwrap_or(by_path);
        rustix::net::bind(socket, &here)?;
        Node::find(self, mode)
    }
}

/// The name of a socket in the file system, removed at the end if it still names this socket.
///
/// All calls use the inode that was found, or a name in the directory that was found: if another user can
/// move the directory, or put a symbolic link in the name's place, files elsewhere are not affected.
#[derive(Debug)]
struct Node {
    place: Place,
    /// Keeps the inode, so that its number is not given to another file.
    file: OwnedFd,
    stat: Stat,
}

impl Node {
    /// Finds the node that bind(2) has just made: a socket of this user, with one name and a mode of no more
    /// bits than `most`.
    fn find(place: Place, most: Mode) -> Result<Self, Errno> {
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = fs::openat(&place.directory, &place.name, flags, Mode::empty())?;
        let stat = fs::fstat(&file)?;
        let is_right = FileType::from_raw_mode(stat.st_mode) == FileType::Socket
            && Mode::from_raw_mode(stat.st_mode)
                .difference(most)
                .is_empty()
            && stat.st_uid == rustix::process::geteuid().as_raw()
            && stat.st_nlink == 1;
        match is_right {
            true => Ok(Self { place, file, stat }),
            // Another process has put something else in its place.
            false => Err(Errno::PERM),
        }
    }

    /// Restores the bits that the umask has removed.
    fn widen(&self, mode: Mode) -> Result<(), Errno> {
        if Mode::from_raw_mode(self.stat.st_mode) == mode {
            return Ok(());
        }
        // chmod(2) follows this link to exactly this inode, wherever the name leads by now. A system call for
        // it (fchmodat2) exists only since Linux 6.6.
        fs::chmod(format!("/proc/self/fd/{}", self.file.as_raw_fd()), mode)
    }

    /// Wakes joiners that watch the directory for an offer: listen(2) itself makes no event.
    fn announce(&self) {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: fs::UTIME_NOW as _,
        };
        let times = Timestamps {
            last_access: now,
            last_modification: now,
        };
        // If it fails, they look again by themselves after a while.
        let _ = fs::utimensat(&self.file, "", &times, AtFlags::EMPTY_PATH);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let Place { directory, name } = &self.place;
        let is_own = fs::statat(directory, name, flags)
            .is_ok_and(|stat| (stat.st_dev, stat.st_ino) == (self.stat.st_dev, self.stat.st_ino));
        if is_own {
            // If unlinking fails, nothing can be done.
            let _ = fs::unlinkat(directory, name, AtFlags::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::lstat(path).unwrap().st_mode & 0o777
    }

    /// Catches a socket that other users could connect to: in the end or, because a chmod(2) is missing, in
    /// between.
    #[test]
    fn a_path_is_private_unless_for_others() {
        let directory = tempfile::tempdir().unwrap();
        for (name, for_others, expected) in [("own", false, 0o600), ("all", true, 0o666)] {
            let path = directory.path().join(name);
            let listener = Listener::bind(&Address::Path(path.clone()), for_others).unwrap();
            assert_eq!(mode(&path), expected);
            drop(listener);
            assert!(!path.exists(), "the path goes with the listener");
        }
    }

    #[test]
    fn a_path_of_somebody_else_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let address = Address::Path(path.clone());
        let listener = Listener::bind(&address, false).unwrap();
        assert_eq!(
            Listener::bind(&address, false).err(),
            Some(Errno::ADDRINUSE)
        );
        assert!(path.exists());
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "another file").unwrap();
        drop(listener);
        assert!(path.exists());
    }

    /// Catches a chmod(2) that follows an attacker's file in the socket's place: the attacker swaps the files
    /// while offers are made.
    #[test]
    fn a_symbolic_link_in_its_place_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let victim = directory.path().join("victim");
        std::fs::write(&victim, "secret").unwrap();
        std::fs::set_permissions(&victim, std::fs::Permissions::from_mode(0o600)).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let link = directory.path().join("link");
                while !done.load(Ordering::Relaxed) {
                    // Each call may fail, as the other side makes and removes the name.
                    let _ = symlink(&victim, &link);
                    if path.exists() || fs::lstat(&path).is_ok() {
                        let _ = std::fs::rename(&link, &path);
                    }
                }
            });
            for _ in 0..2000 {
                drop(Listener::bind(&Address::Path(path.clone()), true));
                let _ = std::fs::remove_file(&path);
                if mode(&victim) != 0o600 {
                    break;
                }
            }
            done.store(true, Ordering::Relaxed);
        });
        assert_eq!(mode(&victim), 0o600);
    }

    /// Catches a node that is taken for the socket because of its name.
    #[test]
    fn what_is_not_the_socket_is_not_taken_for_it() {
        let directory = tempfile::tempdir().unwrap();
        let most = Mode::from_raw_mode(0o666);
        let path = |name| directory.path().join(name);
        let _socket = Listener::bind(&Address::Path(path("socket")), false).unwrap();
        let find = |name, most| Node::find(Place::of(&path(name)).unwrap(), most);
        assert!(find("socket", Mode::from_raw_mode(0o400)).is_err());
        symlink(path("socket"), path("link")).unwrap();
        std::fs::write(path("file"), "").unwrap();
        for name in ["link", "file"] {
            assert_eq!(find(name, most).err(), Some(Errno::PERM));
        }
        std::fs::hard_link(path("socket"), path("second name")).unwrap();
        assert_eq!(find("socket", most).err(), Some(Errno::PERM));
    }

    /// Catches a bind(2) by the path: an attacker who replaces the directory would get a socket in the new
    /// one, or a socket there would be taken for the offer's.
    #[test]
    fn a_directory_that_is_swapped_before_the_bind_is_left_alone() {
        let base = tempfile::tempdir().unwrap();
        let (directory, moved) = (base.path().join("a"), base.path().join("b"));
        std::fs::create_dir(&directory).unwrap();
        let address = Address::Path(directory.join("x"));
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        let place = Place::of(&directory.join("x")).unwrap();
        std::fs::rename(&directory, &moved).unwrap();
        std::fs::create_dir(&directory).unwrap();
        let node = place.bind(&socket, &address, Mode::from_raw_mode(0o777));
        assert!(moved.join("x").exists() && !directory.join("x").exists());
        drop(node.unwrap());
        assert!(!moved.join("x").exists());
    }

    /// Catches an unlink(2) by the path: it would affect the directory that has the name by then.
    #[test]
    fn another_directory_in_its_place_is_left_alone() {
        let base = tempfile::tempdir().unwrap();
        let (directory, moved) = (base.path().join("a"), base.path().join("b"));
        std::fs::create_dir(&directory).unwrap();
        let listener = Listener::bind(&Address::Path(directory.join("x")), false).unwrap();
        std::fs::rename(&directory, &moved).unwrap();
        std::fs::create_dir(&directory).unwrap();
        // The same inode under the old path, so that only the directory distinguishes the two.
        std::fs::hard_link(moved.join("x"), directory.join("x")).unwrap();
        drop(listener);
        assert!(directory.join("x").exists());
        assert!(!moved.join("x").exists());
    }
}
