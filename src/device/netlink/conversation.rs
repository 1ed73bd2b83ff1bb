//! Requests and answers over netlink: sequence numbers, answers in many parts, interrupted dumps, datagrams
//! that do not fit. Other modules handle the contents of requests and answers.
//!
//! The kernel answers an RDMA netlink request within the `send` itself, and prepares the next part of a dump
//! within the `recv` that takes the one before (`netlink_dump_start`, `netlink_recvmsg` in
//! `net/netlink/af_netlink.c`). So nothing here ever waits: if the queue is empty, the answer is missing. The
//! socket is not bound, since the first `send` gives it an address.

use std::os::fd::OwnedFd;

use netlink_packet_core::{
    NLM_F_DUMP_INTR, NLM_F_MULTIPART, NLMSG_DONE, NLMSG_ERROR, NLMSG_NOOP, NLMSG_OVERRUN,
};
use rustix::buffer::spare_capacity;
use rustix::io::retry_on_intr;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{self, AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::message::{Message, Messages, Request};
use crate::device::failure::{Failure, Malformed};
use crate::error::Errno;

/// The kernel's parts of a dump are at most this long until it has seen a larger buffer (`NLMSG_GOODSIZE`).
/// Single answers always are (`NLMSG_DEFAULT_SIZE`).
const FIRST_BUFFER: usize = 8192;

/// How often a request is repeated because its answer was truncated or changed meanwhile.
const ATTEMPTS: usize = 8;

/// No answer has so many parts, although the kernel sends each device in a part of its own.
const MOST_DATAGRAMS: usize = 1 << 16;

/// Transports datagrams to and from the kernel.
pub(in crate::device) trait Channel {
    /// Sends one datagram.
    fn send(&mut self, datagram: &[u8]) -> Result<(), Errno>;

    /// Receives one datagram into the empty buffer's capacity, without waiting; returns its real length.
    fn receive(&mut self, buffer: &mut Vec<u8>) -> Result<usize, Errno>;
}

/// A netlink socket: for the kernel's RDMA netlink, or its routing netlink.
pub(in crate::device) struct Socket(OwnedFd);

impl Socket {
    /// Opens the socket.
    pub(in crate::device) fn open() -> Result<Self, Errno> {
        Self::of(Some(net::netlink::RDMA))
    }

    /// Opens a socket for routing netlink.
    #[cfg(feature = "c-abi")]
    pub(in crate::device) fn of_routes() -> Result<Self, Errno> {
        // The number of its protocol is 0.
        Self::of(None)
    }

    fn of(protocol: Option<Protocol>) -> Result<Self, Errno> {
        net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            protocol,
        )
        .map(Self)
    }
}

impl Channel for Socket {
    fn send(&mut self, datagram: &[u8]) -> Result<(), Errno> {
        retry_on_intr(|| net::send(&self.0, datagram, SendFlags::empty())).map(drop)
    }

    fn receive(&mut self, buffer: &mut Vec<u8>) -> Result<usize, Errno> {
        let flags = RecvFlags::TRUNC | RecvFlags::DONTWAIT;
        let (_, length, sender) =
            retry_on_intr(|| net::recvfrom(&self.0, spare_capacity(buffer), flags))?;
        let port = sender.and_then(|sender| SocketAddrNetlink::try_from(sender).ok());
        if port.is_none_or(|port| port.pid() != 0) {
            // Another process wrote to this socket; only port 0 is the kernel.
            buffer.clear();
            return Ok(0);
        }
        Ok(length)
    }
}

/// Requests and answers over one channel.
pub(in crate::device) struct Conversation<C> {
    pub(super) channel: C,
    sequence: u32,
    buffer: Vec<u8>,
}

impl<C: Channel> Conversation<C> {
    /// Begins a conversation.
    pub(in crate::device) fn new(channel: C) -> Self {
        Self {
            channel,
            sequence: 0,
            buffer: Vec::with_capacity(FIRST_BUFFER),
        }
    }

    /// Sends a request, and parses the payload of every answer.
    ///
    /// If answers were truncated, or the kernel marked them as inconsistent, the request is repeated. RDMA
    /// netlink marks none: a dump goes on behind as many devices or objects as it has sent (`cb->args[0]` in
    /// `drivers/infiniband/core/nldev.c`), so it may leave one out, or send one twice, while others come and
    /// go.
    pub(in crate::device) fn ask<T>(
        &mut self,
        request: Request,
        parse: impl Fn(&[u8]) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Failure> {
        self.ask_until(request, parse, |_| false)
    }

    /// As [`ask`](Self::ask), but stops at an answer that is `enough`, which is then the last of the set.
    ///
    /// The rest of the kernel's answer stays unread, so the kernel then refuses another dump on this channel.
    pub(in crate::device) fn ask_until<T>(
        &mut self,
        mut request: Request,
        parse: impl Fn(&[u8]) -> Result<T, Malformed>,
        enough: impl Fn(&T) -> bool,
    ) -> Result<Vec<T>, Failure> {
        for _ in 0..ATTEMPTS {
            self.sequence = self.sequence.wrapping_add(1);
            self.channel.send(request.numbered(self.sequence))?;
            if let Some(answers) = self.hear(request.answer(), &parse, &enough)? {
                return Ok(answers);
            }
        }
        Err(Malformed::from("the answer changed or was cut off every time it was asked for").into())
    }

    /// Receives until the request is answered, by messages of this type; `None` if the request must be
    /// repeated.
    fn hear<T>(
        &mut self,
        kind: u16,
        parse: &impl Fn(&[u8]) -> Result<T, Malformed>,
        enough: &impl Fn(&T) -> bool,
    ) -> Result<Option<Vec<T>>, Failure> {
        let mut answers = Vec::new();
        let mut whole = true;
        for _ in 0..MOST_DATAGRAMS {
            match self.receive() {
                Ok(true) => {}
                // Read the dump to its end anyway: before that the kernel refuses another.
                Ok(false) => whole = false,
                Err(Errno::AGAIN) if !whole => return Ok(None),
                Err(Errno::AGAIN) => return Err(Malformed::from("the answer has no end").into()),
                Err(errno) => return Err(errno.into()),
            }
            for message in Messages::new(&self.buffer) {
                let message = message?;
                if message.sequence != self.sequence {
                    continue;
                }
                whole &= message.flags & NLM_F_DUMP_INTR == 0;
                match Part::of(message, kind)? {
                    Part::Answer(payload) => {
                        let answer = parse(payload)?;
                        let enough = enough(&answer);
                        answers.push(answer);
                        if enough {
                            return Ok(Some(answers));
                        }
                    }
                    Part::Nothing => continue,
                    Part::Loss => whole = false,
                    Part::End => return Ok(whole.then_some(answers)),
                }
                if message.flags & NLM_F_MULTIPART == 0 {
                    return Ok(whole.then_some(answers));
                }
            }
        }
        Err(Malformed::from("the answer has no end").into())
    }

    /// Receives one datagram into the buffer. False if it did not fit and is lost: the buffer is then empty,
    /// and a datagram of this size will fit.
    fn receive(&mut self) -> Result<bool, Errno> {
        self.buffer.clear();
        let length = self.channel.receive(&mut self.buffer)?;
        let fits = length <= self.buffer.len();
        if !fits {
            self.buffer.clear();
            self.buffer.reserve(length);
        }
        Ok(fits)
    }
}

/// The role of a message in the conversation.
enum Part<'a> {
    Answer(&'a [u8]),
    Nothing,
    Loss,
    End,
}

impl<'a> Part<'a> {
    /// Determines the role of a message, for a request whose answers are of type `kind`.
    fn of(message: Message<'a>, kind: u16) -> Result<Self, Failure> {
        match message.kind {
            NLMSG_NOOP => Ok(Self::Nothing),
            NLMSG_OVERRUN => Ok(Self::Loss),
            NLMSG_ERROR | NLMSG_DONE => status(message.payload).map(|()| Self::End),
            other if other == kind => Ok(Self::Answer(message.payload)),
            _ => Err(Malformed::from("the answer is of another type than was asked for").into()),
        }
    }
}

/// The status that an error message or the end of a dump begins with: 0 or a negative errno.
fn status(payload: &[u8]) -> Result<(), Failure> {
    let code = payload
        .first_chunk()
        .ok_or(Malformed::from("a netlink status is cut off"))?;
    match i32::from_ne_bytes(*code) {
        0 => Ok(()),
        code @ -4095..0 => Err(Errno::from_raw_os_error(-code).into()),
        code => Err(Malformed::from(format!("{code} is no netlink status")).into()),
    }
}
