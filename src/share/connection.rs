//! Connections whose other end may be hostile: how to read from one and how to close it without waiting.
//!
//! A peer can send files along with any message (`SCM_RIGHTS`) and close its own copies. The process that
//! frees the message then closes those files, and that can take as long as the sender likes: a TCP socket
//! with `SO_LINGER` and data that nobody takes holds its closer for the whole linger time (`inet_release`).
//! So:
//!
//! * Since Linux 6.16 a socket can [refuse files](pass_files), and its peer's sendmsg(2) fails.
//! * On older kernels a message is looked at with `MSG_PEEK`, which frees nothing, and taken only if no file
//!   is with it. A connection that has a file in its queue is closed under an [`Undertaker`].

use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use nix::sys::socket::{MsgFlags, UnixCredentials, recvmsg};
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown, recv, shutdown, sockopt::set_socket_passcred};

/// Messages that are taken from a connection that is closed; what has more is closed as if it had files.
const LAST_MESSAGES: usize = 64;

/// The option that says whether a socket takes files: `asm-generic/socket.h`, `asm/socket.h` of sparc.
const SO_PASSRIGHTS: i32 = match cfg!(any(target_arch = "sparc", target_arch = "sparc64")) {
    true => 0x5c,
    false => 83,
};

/// Says whether a socket, and what it accepts from now on, takes files; unless told, it does. `ENOPROTOOPT`
/// before Linux 6.16.
pub(super) fn pass_files(socket: impl AsFd, pass: bool) -> Result<(), Errno> {
    let value = i32::from(pass);
    // SAFETY: the pointer and the length are those of `value`, which the kernel only reads.
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

/// Prepares a connection for [`take`]. It must have a name or have sent already, or else it gets a name.
pub(super) fn prepare(socket: impl AsFd) -> Result<(), Errno> {
    // Each message then has a control message with it, by which an empty message can be told from the end.
    set_socket_passcred(socket, true)
}

/// What a connection has next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing yet.
    Nothing,
    /// The end: the peer has closed its side, or this side is shut down.
    End,
    /// A message, which has been taken: the number of its bytes that fitted.
    Message(usize),
    /// A message with files, which stays where it is.
    Files,
}

/// Takes the next message if no file is with it. Never waits, and never closes a file.
pub(super) fn take(socket: &OwnedFd, bytes: &mut [u8]) -> Next {
    let mut control = nix::cmsg_space!(UnixCredentials);
    let mut parts = [IoSliceMut::new(bytes)];
    let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
    let peeked = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut control), flags);
    match peeked {
        // There is room for the credentials alone, so files show by what was cut off.
        Ok(seen) if seen.flags.contains(MsgFlags::MSG_CTRUNC) => return Next::Files,
        Ok(seen) if !seen.cmsgs().is_ok_and(|mut all| all.next().is_some()) => return Next::End,
        Ok(_) => {}
        Err(nix::Error::EAGAIN | nix::Error::EINTR) => return Next::Nothing,
        Err(_) => return Next::End,
    }
    // This side alone reads, so it is the message that was looked at.
    match recv(socket, bytes, RecvFlags::DONTWAIT) {
        Ok((length, _)) => Next::Message(length),
        Err(_) => Next::End,
    }
}

/// Ends a connection: the peer sees the end, and can send nothing more. Closes it if it has no files in its
/// queue, and otherwise gives it back, to be closed under an [`Undertaker`].
pub(super) fn close(socket: OwnedFd) -> Result<(), OwnedFd> {
    // It fails only if the peer has gone, and then nothing more comes either.
    let _ = shutdown(&socket, Shutdown::Both);
    if prepare(&socket).is_err() {
        return Err(socket);
    }
    let mut ends = 0;
    for _ in 0..LAST_MESSAGES {
        match take(&socket, &mut [0; 1]) {
            Next::Message(_) => {}
            // The kernel may report once, as an error, that the peer has gone, whatever is in the queue. The
            // second report is the end.
            Next::End if ends == 1 => return Ok(()),
            Next::End => ends += 1,
            Next::Files | Next::Nothing => break,
        }
    }
    Err(socket)
}

/// A thread that closes last what is closed while it lives.
///
/// It has a copy of this process's table of open files, so a thread that closes one of them meanwhile does
/// not close it last. Dropped, it ends, and with it the copies. The kernel does not linger for a thread that
/// ends (`PF_EXITING` in `inet_release`); and where something else should wait, this thread does.
///
/// Whatever else the process closes in this time stays open until the thread has ended too. So it is for
/// connections that hold files alone: on old kernels, under attack.
#[derive(Debug)]
pub(super) struct Undertaker(#[expect(dead_code, reason = "its end is the signal")] Sender<()>);

impl Undertaker {
    /// Starts one; `None` if there can be no thread, or a sandbox forbids the copy.
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
        // Should the other side be gone, the next call ends at once.
        let _ = ready.send(copy_files());
        // Nothing is ever sent: it ends when the other side does.
        let _ = end.recv();
    }
}

/// Gives this thread a copy of the table of open files, for itself. True if it has one.
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
    // SAFETY: as before. This is the same by another name: sandboxes tend to forbid one of the two.
    copied == 0 || unsafe { libc::unshare(libc::CLONE_FILES) } == 0
}
