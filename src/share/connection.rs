//! Connections with a possibly hostile other end: how to read from one and how to close it without waiting.
//!
//! A peer can send files along with any message (`SCM_RIGHTS`) and close its own copies. The process that
//! frees the message then closes those files, which can take as long as the sender likes: a TCP socket with
//! `SO_LINGER` and unread data blocks the process that closes it for the whole linger time (`inet_release`).
//! So:
//!
//! * Since Linux 6.16 a socket can [refuse files](pass_files), and its peer's sendmsg(2) fails.
//! * On older kernels a message is first read with `MSG_PEEK`, which frees nothing, and taken only if no file
//!   comes with it. A connection that has a file in its queue is closed under an [`Undertaker`].

use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use nix::sys::socket::{MsgFlags, UnixCredentials, recvmsg};
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown, recv, shutdown, sockopt::set_socket_passcred};

/// How many messages are taken from a connection before it is closed. A connection with more is closed as if
/// it had files.
const LAST_MESSAGES: usize = 64;

/// The option whether a socket accepts files: `asm-generic/socket.h`, `asm/socket.h` of sparc.
const SO_PASSRIGHTS: i32 = match cfg!(any(target_arch = "sparc", target_arch = "sparc64")) {
    true => 0x5c,
    false => 83,
};

/// Sets whether a socket, and connections that it accepts from now on, accept files; by default they do.
/// `ENOPROTOOPT` before Linux 6.16.
pub(super) fn pass_files(socket: impl AsFd, pass: bool) -> Result<(), Errno> {
    let value = i32::from(pass);
    // SAFETY: the pointer and the length describe `value`, which the kernel only reads.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const value).cast(),
            size_of_val(&value) as _,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
    }
}

/// Prepares a connection for [`take`]. If it has no name and has sent nothing yet, it gets a name.
pub(super) fn prepare(socket: impl AsFd) -> Result<(), Errno> {
    // Each message then has a control message with it, which distinguishes an empty message from the end.
    set_socket_passcred(socket, true)
}

/// The next thing on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing yet.
    Nothing,
    /// The end: the peer has closed its side, or this side is shut down.
    End,
    /// A message, which has been taken: how many of its bytes fitted.
    Message(usize),
    /// A message with files, which has not been taken.
    Files,
}

/// Takes the next message if no file comes with it. Never waits, and never closes a file.
pub(super) fn take(socket: &OwnedFd, bytes: &mut [u8]) -> Next {
    let mut control = nix::cmsg_space!(UnixCredentials);
    let mut parts = [IoSliceMut::new(bytes)];
    let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
    let peeked = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut control), flags);
    match peeked {
        // There is only room for the credentials: if files come too, the control message is truncated.
        Ok(seen) if seen.flags.contains(MsgFlags::MSG_CTRUNC) => return Next::Files,
        Ok(seen) if !seen.cmsgs().is_ok_and(|mut all| all.next().is_some()) => return Next::End,
        Ok(_) => {}
        Err(nix::Error::EAGAIN | nix::Error::EINTR) => return Next::Nothing,
        Err(_) => return Next::End,
    }
    // Only this side reads, so it is the message that was peeked at.
    match recv(socket, bytes, RecvFlags::DONTWAIT) {
        Ok((length, _)) => Next::Message(length),
        Err(_) => Next::End,
    }
}

/// Ends a connection: the peer sees the end, and can send nothing more. Closes it if it has no files in its
/// queue, and otherwise returns it, to be closed under an [`Undertaker`].
pub(super) fn close(socket: OwnedFd) -> Result<(), OwnedFd> {
    // It fails only if the peer has left, and then nothing more arrives either.
    let _ = shutdown(&socket, Shutdown::Both);
    if prepare(&socket).is_err() {
        return Err(socket);
    }
    let mut ends = 0;
    for _ in 0..LAST_MESSAGES {
        match take(&socket, &mut [0; 1]) {
            Next::Message(_) => {}
            // Whatever is in the queue, the kernel may first report, once and as an error, that the peer has
            // left. The second report is the end.
            Next::End if ends == 1 => return Ok(()),
            Next::End => ends += 1,
            Next::Files | Next::Nothing => break,
        }
    }
    Err(socket)
}

/// A thread that keeps the process's files open, so that threads that close one of them while it lives are
/// not the last.
///
/// It has a copy of this process's table of open files, so a thread that closes one of them meanwhile does
/// not close the last descriptor. When this is dropped, the thread ends and its copies are closed. The kernel
/// does not linger for a thread that ends (`PF_EXITING` in `inet_release`); if closing waits for another
/// reason, only this thread waits.
///
/// Every other file that the process closes in this time also stays open until the thread has ended. So use
/// it only for connections that hold files: on old kernels, under attack.
#[derive(Debug)]
pub(super) struct Undertaker(#[expect(dead_code, reason = "its end is the signal")] Sender<()>);

impl Undertaker {
    /// Starts one; `None` if no thread can be started, or a sandbox forbids the copy.
    pub(super) fn start() -> Option<Self> {
        let (life, end) = channel();
        let (ready, is_ready) = channel();
        thread::Builder::new()
            .name("uverbs-closer".into())
            .spawn(move || Self::wait(&ready, &end))
            .ok()?;
        match is_ready.recv() {
            Ok(true) => Some(Self(life)),
            _ => None,
        }
    }

    fn wait(ready: &Sender<bool>, end: &Receiver<()>) {
        // If the other side is gone, the next call ends at once.
        let _ = ready.send(copy_files());
        // Nothing is ever sent: the call returns when the other side is dropped.
        let _ = end.recv();
    }
}

/// Gives this thread its own copy of the table of open files. True if it has one.
fn copy_files() -> bool {
    let nothing = libc::c_uint::MAX;
    // SAFETY: the range has no descriptor in it, so none is closed, and this thread uses none.
    let copied = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            nothing,
            nothing,
            libc::CLOSE_RANGE_UNSHARE,
        )
    };
    // SAFETY: as before. It is another system call for the same: sandboxes tend to forbid only one of the
    // two.
    copied == 0 || unsafe { libc::unshare(libc::CLONE_FILES) } == 0
}
