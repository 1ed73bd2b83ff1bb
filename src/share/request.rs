//! The joiner's half of the protocol: sends the key to the expected listener and takes the answer. It knows
//! nothing about RDMA.
//!
//! It asks a broker that defers the request again until the time is up, and with a deadline also an address
//! where nobody listens yet.

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags,
    Shutdown, SocketFlags, SocketType, recvmsg, send, shutdown,
};

use super::address::Address;
use super::connection::{self, Next, Undertaker};
use super::key::ShareKey;
use super::message::{self, BadMessage, Grant, MAX_FILES, MAX_MESSAGE, Refusal};
use super::user;
use super::wait::{Pauses, Watch};

/// The pause before a broker that has deferred the request is asked again.
const BEFORE_NEXT_REQUEST: Duration = Duration::from_millis(5);

/// How long to try.
#[derive(Clone, Copy, Debug)]
pub(super) enum Time {
    /// Once, with so much time for each step.
    Each(Duration),
    /// Until then, whoever listens at first.
    Until(Instant),
}

impl Time {
    /// When a step that begins now must be done.
    fn end_of_step(self) -> Instant {
        match self {
            Self::Each(limit) => Instant::now() + limit,
            Self::Until(end) => end,
        }
    }
}

/// Makes a system call that waits on a socket, until then. Signals do not prolong it, as they would if the
/// call had its whole time again.
fn wait_on<T>(
    socket: &OwnedFd,
    direction: Timeout,
    end: Instant,
    mut call: impl FnMut() -> Result<T, Errno>,
) -> Result<T, Errno> {
    loop {
        let left = end.saturating_duration_since(Instant::now());
        // Sockets count microseconds, and take 0 for "no limit".
        let left = left.max(Duration::from_micros(1));
        set_socket_timeout(socket, direction, Some(left))?;
        match call() {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}

/// Why the request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failed {
    /// A system call failed; `AGAIN` when the time is up.
    Os(Errno),
    /// The deadline has passed, and until then it failed like this.
    Late(Box<Failed>),
    /// Another user than expected listens there: this one.
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

/// The answer.
#[derive(Debug)]
pub(super) struct Delivery {
    pub(super) grant: Grant,
    /// As many as the grant announces.
    pub(super) files: VecDeque<OwnedFd>,
    /// The connection: the broker counts a joiner until it ends.
    pub(super) lease: OwnedFd,
}

/// Gets what a broker gives, if `trusts` the user who listens.
pub(super) fn obtain(
    address: &Address,
    key: &ShareKey,
    trusts: impl Fn(u32) -> bool,
    time: Time,
) -> Result<Delivery, Failed> {
    // Without a deadline a broker that puts the request off has the time of one step in all.
    let end = time.end_of_step();
    let waits = matches!(time, Time::Until(_));
    let mut pauses = Pauses::new();
    let mut watch = None;
    loop {
        let failed = match attempt(address, key, &trusts, time) {
            Ok(delivery) => return Ok(delivery),
            Err(failed) => failed,
        };
        let again = match failed {
            Failed::Refused(Refusal::Later) => true,
            _ => waits && failed.is_absence(),
        };
        if !again {
            return Err(failed);
        }
        if Instant::now() >= end {
            return Err(Failed::Late(Box::new(failed)));
        }
        match failed {
            Failed::Refused(_) => std::thread::sleep(BEFORE_NEXT_REQUEST),
            // The exporter has gone just now. What is there next need not be an event.
            Failed::Os(Errno::CONNRESET) => pauses.pause(end),
            _ => watch = wait(address, watch, &mut pauses, end),
        }
    }
}

/// Waits until another try may help. The watch that it returns was made before that try.
fn wait(
    address: &Address,
    watch: Option<Watch>,
    pauses: &mut Pauses,
    end: Instant,
) -> Option<Watch> {
    if let Some(watch) = watch {
        watch.wait(end);
        return Watch::new(address);
    }
    // The first time there is no waiting: the offer may have been made before the watch was.
    let watch = Watch::new(address);
    if watch.is_none() {
        pauses.pause(end);
    }
    watch
}

impl Failed {
    /// Nobody is there, or the exporter left without an answer.
    fn is_absence(&self) -> bool {
        matches!(
            self,
            Self::Os(Errno::NOENT | Errno::CONNREFUSED | Errno::CONNRESET)
        )
    }
}

fn attempt(
    address: &Address,
    key: &ShareKey,
    trusts: impl Fn(u32) -> bool,
    time: Time,
) -> Result<Delivery, Failed> {
    ask(connect(address, time)?, key, trusts, time)
}

/// Connects to a broker.
pub(super) fn connect(address: &Address, time: Time) -> Result<OwnedFd, Failed> {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    wait_on(&socket, Timeout::Send, time.end_of_step(), || {
        rustix::net::connect(&socket, &address.to_socket()?)
    })?;
    Ok(socket)
}

/// Asks over a connection, if `trusts` the user who listens at its other end.
pub(super) fn ask(
    socket: OwnedFd,
    key: &ShareKey,
    trusts: impl FnOnce(u32) -> bool,
    time: Time,
) -> Result<Delivery, Failed> {
    match exchange(&socket, key, trusts, time) {
        Ok((grant, files)) => Ok(Delivery {
            grant,
            files,
            lease: socket,
        }),
        Err(failed) => {
            // The listener may have filled it with files.
            if let Err(socket) = connection::close(socket) {
                let _undertaker = Undertaker::start();
                drop(socket);
            }
            Err(failed)
        }
    }
}

fn exchange(
    socket: &OwnedFd,
    key: &ShareKey,
    trusts: impl FnOnce(u32) -> bool,
    time: Time,
) -> Result<(Grant, VecDeque<OwnedFd>), Failed> {
    let peer = getsockopt(socket, PeerCredentials)
        .map_err(|errno| Errno::from_raw_os_error(errno as i32))?;
    if !trusts(peer.uid()) || !user::is_certain(peer.uid()) {
        return Err(Failed::Stranger(peer.uid()));
    }
    let request = message::request(key);
    let sent = wait_on(socket, Timeout::Send, time.end_of_step(), || {
        send(socket, &request, SendFlags::NOSIGNAL)
    });
    match sent {
        Ok(_) => {}
        // The broker may have answered and closed before it read: the answer is still there.
        Err(Errno::PIPE | Errno::CONNRESET) => {}
        Err(errno) => return Err(errno.into()),
    }
    let answer = receive(socket, time.end_of_step())?;
    // Nothing more is wanted from there, so that nothing can lie in the connection when it is closed.
    shutdown(socket, Shutdown::Read)?;
    connection::prepare(socket)?;
    match connection::take(socket, &mut [0; 1]) {
        Next::End => Ok(answer),
        _ => Err(Failed::Malformed("more comes after it")),
    }
}

fn receive(socket: &OwnedFd, end: Instant) -> Result<(Grant, VecDeque<OwnedFd>), Failed> {
    // One byte more than a message can have: a longer one shows.
    let mut bytes = [0; MAX_MESSAGE + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut take = || {
        wait_on(socket, Timeout::Recv, end, || {
            let mut parts = [IoSliceMut::new(&mut bytes)];
            recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
        })
    };
    let received = match take() {
        // The broker has answered and closed without reading the request, as it does with users who are not
        // allowed. The kernel reports that once, and then delivers the answer.
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
    Ok((grant, files))
}
