//! The joiner's half of the protocol: says the key to whoever listens, if that is who it should be, and takes
//! what comes back. It knows nothing of RDMA.

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags,
    SocketFlags, SocketType, recvmsg, send,
};

use super::address::Address;
use super::key::ShareKey;
use super::message::{self, BadMessage, Grant, MAX_FILES, MAX_MESSAGE, Refusal};

/// Why there is nothing to be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failed {
    /// A system call failed; `AGAIN` when the time is up.
    Os(Errno),
    /// Somebody else than expected listens there: this user.
    Stranger(u32),
    /// The broker says no.
    Refused(Refusal),
    /// The answer makes no sense.
    Malformed(&'static str),
}

impl From<Errno> for Failed {
    fn from(errno: Errno) -> Self {
        Self::Os(errno)
    }
}

impl From<BadMessage> for Failed {
    fn from(bad: BadMessage) -> Self {
        Self::Malformed(bad.0)
    }
}

/// What came back.
#[derive(Debug)]
pub(super) struct Delivery {
    pub(super) grant: Grant,
    /// As many as the grant announces.
    pub(super) files: VecDeque<OwnedFd>,
    /// The connection: the broker counts a joiner until it ends.
    pub(super) lease: OwnedFd,
}

/// Connects to a broker. Each step takes at most `patience`.
pub(super) fn connect(address: &Address, patience: Duration) -> Result<OwnedFd, Failed> {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // The kernel counts in microseconds and takes 0 for "no limit".
    let patience = Some(patience.max(Duration::from_micros(1)));
    set_socket_timeout(&socket, Timeout::Send, patience)?;
    set_socket_timeout(&socket, Timeout::Recv, patience)?;
    rustix::io::retry_on_intr(|| rustix::net::connect(&socket, &address.to_socket()?))?;
    Ok(socket)
}

/// Asks over a connection, if `trusts` the user who listens at its other end.
pub(super) fn ask(
    socket: OwnedFd,
    key: &ShareKey,
    trusts: impl FnOnce(u32) -> bool,
) -> Result<Delivery, Failed> {
    let peer = getsockopt(&socket, PeerCredentials)
        .map_err(|errno| Errno::from_raw_os_error(errno as i32))?;
    if !trusts(peer.uid()) {
        return Err(Failed::Stranger(peer.uid()));
    }
    match send(&socket, &message::request(key), SendFlags::NOSIGNAL) {
        Ok(_) => {}
        // The broker may have answered and closed before it read: the answer is still there.
        Err(Errno::PIPE | Errno::CONNRESET) => {}
        Err(errno) => return Err(errno.into()),
    }
    receive(socket)
}

fn receive(socket: OwnedFd) -> Result<Delivery, Failed> {
    // One byte more than a message can have: a longer one shows.
    let mut bytes = [0; MAX_MESSAGE + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut take = || {
        rustix::io::retry_on_intr(|| {
            let mut parts = [IoSliceMut::new(&mut bytes)];
            recvmsg(&socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
        })
    };
    let received = match take() {
        // The broker has answered and closed without reading the request, as it does with users who are not
        // allowed. The kernel tells of that first, once, and then gives the answer.
        Err(Errno::CONNRESET) => take()?,
        received => received?,
    };
    let files: VecDeque<OwnedFd> = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(files) => Some(files),
            _ => None,
        })
        .flatten()
        .collect();
    if received.bytes == 0 {
        return Err(Errno::CONNRESET.into());
    }
    if received.flags.contains(ReturnFlags::CTRUNC) {
        // More than announced, or this process has no file descriptor left, which is far more likely.
        return Err(Errno::MFILE.into());
    }
    let grant = message::parse_reply(&bytes[..received.bytes])?.map_err(Failed::Refused)?;
    if files.len() != grant.files() {
        return Err(Failed::Malformed(
            "it has not the file descriptors that it announces",
        ));
    }
    Ok(Delivery {
        grant,
        files,
        lease: socket,
    })
}
