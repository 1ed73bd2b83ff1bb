//! The socket that a broker listens on: made so that at no moment anybody else may connect.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{self, FileType, Mode};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::address::Address;

/// Connections that wait to be accepted; the kernel lowers it to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// A listening socket, which removes its path at the end if it is still its own.
#[derive(Debug)]
pub(super) struct Listener {
    socket: OwnedFd,
    node: Option<Node>,
}

#[derive(Debug)]
struct Node {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl Listener {
    /// Listens at `address`. Only this user may connect to a path unless `for_others`; who others are is
    /// checked at each connection.
    pub(super) fn bind(address: &Address, for_others: bool) -> Result<Self, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let mode = Mode::from_raw_mode(if for_others { 0o666 } else { 0o600 });
        // The kernel gives the node the mode of the socket's own inode, less the umask (`unix_bind_bsd`): so
        // it never has another, not even between two system calls.
        fs::fchmod(&socket, mode)?;
        rustix::net::bind(&socket, &address.to_socket()?)?;
        let mut listener = Self { socket, node: None };
        if let Address::Path(path) = address {
            let stat = fs::lstat(path)?;
            listener.node = Some(Node {
                path: path.clone(),
                device: stat.st_dev,
                inode: stat.st_ino,
            });
            if for_others {
                // The umask has taken bits away. A private node needs none back.
                fs::chmod(path, mode)?;
            }
            // Before listen(2) nobody can connect, so this is early enough.
            let stat = fs::lstat(path)?;
            let is_right = FileType::from_raw_mode(stat.st_mode) == FileType::Socket
                && Mode::from_raw_mode(stat.st_mode)
                    .difference(mode)
                    .is_empty();
            if !is_right {
                return Err(Errno::PERM);
            }
        }
        rustix::net::listen(&listener.socket, BACKLOG)?;
        Ok(listener)
    }

    /// The next connection; `None` if nobody waits.
    pub(super) fn accept(&self) -> Result<Option<OwnedFd>, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        loop {
            match rustix::net::accept_with(&self.socket, flags) {
                Ok(client) => return Ok(Some(client)),
                Err(Errno::AGAIN) => return Ok(None),
                // The client has gone before it came.
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let Some(Node {
            path,
            device,
            inode,
        }) = &self.node
        else {
            return;
        };
        if fs::lstat(path).is_ok_and(|stat| stat.st_dev == *device && stat.st_ino == *inode) {
            // Nothing can be done if the directory does not let go of it.
            let _ = fs::unlink(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &std::path::Path) -> u32 {
        fs::lstat(path).unwrap().st_mode & 0o777
    }

    /// Catches a socket that others could connect to, at the end or, by the missing chmod(2), in between.
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
}
