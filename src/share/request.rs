//! The joiner's half of the protocol: sends the key to the expected listener and receives the answer. It does
//! not use RDMA.
//!
//! If a broker defers the request, the joiner repeats it until the time is up. With a deadline it also
//! retries an address where no exporter listens yet.

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
use super::wait::{LOOK_AGAIN, Pauses, Watch};

/// The pause before a request that was deferred is repeated.
const BEFORE_NEXT_REQUEST: Duration = Duration::from_millis(5);

/// How long to try.
#[derive(Clone, Copy, Debug)]
pub(super) enum Time {
    /// Once, with this time limit for each step.
    Each(Duration),
    /// Until this time, even if no exporter listens at first.
    Until(Instant),
}

impl Time {
    /// The time by which a step that begins now must be done.
    fn end_of_step(self) -> Instant {
        match self {
            Self::Each(limit) => Instant::now() + limit,
            Self::Until(end) => end,
        }
    }
}

/// Repeats a system call that waits on a socket until `end`. Signals do not prolong the wait, as they would
/// if each call had the whole time again.
fn wait_on<T>(
    socket: &OwnedFd,
    direction: Timeout,
    end: Instant,
    mut call: impl FnMut() -> Result<T, Errno>,
) -> Result<T, Errno> {
    loop {
        let left = end.saturating_duration_since(Instant::now());
        // Sockets count microseconds, and 0 means no limit.
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
    /// This user may not connect to the socket: its mode or that of a directory forbids it. For a moment that
    /// is so of a socket that is being made, since it gets its mode only then.
    Barred,
    /// The deadline has passed; this is the last failure before it.
    Late(Box<Failed>),
    /// The listener there belongs to this user, whom the joiner does not trust.
    Stranger(u32),
    /// The broker refused.
    Refused(Refusal),
    /// The answer is malformed.
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

/// The answer of a broker that granted the request.
#[derive(Debug)]
pub(super) struct Delivery {
    pub(super) grant: Grant,
    /// As many files as the grant announces.
    pub(super) files: VecDeque<OwnedFd>,
    /// The connection: the broker counts a joiner until it ends.
    pub(super) lease: OwnedFd,
}

/// Obtains a broker's parcel, if `trusts` is true for the user who listens.
pub(super) fn obtain(
    address: &Address,
    key: &ShareKey,
    trusts: impl Fn(u32) -> bool,
    time: Time,
) -> Result<Delivery, Failed> {
    // Without a deadline, all tries with a broker that defers the request share the time of one step.
    let end = time.end_of_step();
    let waits = matches!(time, Time::Until(_));
    let mut pauses = Pauses::new();
    let mut watch = None;
    let mut barred_since = None;
    loop {
        let failed = match attempt(address, key, &trusts, time) {
            Ok(delivery) => return Ok(delivery),
            Err(failed) => failed,
        };
        let again = match failed {
            Failed::Refused(Refusal::Later) => true,
            Failed::Barred => {
                let since = *barred_since.get_or_insert_with(Instant::now);
                waits && Instant::now() < end.min(since + LOOK_AGAIN)
            }
            _ => waits && failed.is_absence(),
        };
        if failed != Failed::Barred {
            barred_since = None;
        }
        if !again {
            return Err(failed);
        }
        if Instant::now() >= end {
            return Err(Failed::Late(Box::new(failed)));
        }
        match failed {
            Failed::Refused(_) => std::thread::sleep(BEFORE_NEXT_REQUEST),
            // The exporter has just left. The next one need not cause an event.
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
    // The first time it does not wait: the offer may have been made before the watch was.
    let watch = Watch::new(address);
    if watch.is_none() {
        pauses.pause(end);
    }
    watch
}

impl Failed {
    /// No exporter listens there, or the exporter left without an answer.
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
    })
    .map_err(|errno| match errno {
        Errno::ACCESS => Failed::Barred,
        errno => errno.into(),
    })?;
    Ok(socket)
}

/// Sends the request over a connection, if `trusts` is true for the user at its other end.
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
            // The listener may have sent files on the connection.
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
        // The broker may have answered and closed the connection before it read the request: the answer is
        // still there.
        Err(Errno::PIPE | Errno::CONNRESET) => {}
        Err(errno) => return Err(errno.into()),
    }
    let answer = receive(socket, time.end_of_step())?;
    // Nothing more is expected. After this, nothing can be in the queue when the connection is closed.
    shutdown(socket, Shutdown::Read)?;
    connection::prepare(socket)?;
    match connection::take(socket, &mut [0; 1]) {
        Next::End => Ok(answer),
        _ => Err(Failed::Malformed("more comes after it")),
    }
}

fn receive(socket: &OwnedFd, end: Instant) -> Result<(Grant, VecDeque<OwnedFd>), Failed> {
    // One byte more than the longest message, to detect a longer one.
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
        // The broker has answered and closed the connection without reading the request, as it does with
        // users who are not allowed. The kernel reports that once, and then delivers the answer.
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
        // There are more files than announced or, far more likely, this process has no file descriptor left.
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
