//! The messages between the two sides before and after a round: lines of JSON over TCP.

use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use serde::{Deserialize, Serialize};

use super::conditions::Conditions;
use super::plan::Plan;
use super::recorder::Outcome;
use crate::failure::{Failure, Kind, Result};
use crate::output::Foreign;

/// A longer line is not one of these messages.
const LONGEST: usize = 64 << 20;

/// A client that sends no plan for this long is gone, and the server is free for others.
const IDLE: Duration = Duration::from_secs(60);

/// A peer that takes this long to read a message is gone.
const UNREAD: Duration = Duration::from_secs(30);

/// A peer whose host answers nothing for this long is gone, and for this long it is not asked.
const UNANSWERED: Duration = Duration::from_secs(30);
const UNASKED: Duration = Duration::from_secs(10);

/// A message.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Message {
    /// The client begins a round. The version shows whether the two sides are compatible.
    Plan { version: String, plan: Box<Plan> },
    /// The server waits for connections by address.
    Listening,
    /// The data that the other side needs to connect, for each device.
    Ends(Vec<Ends>),
    /// This side's queues are connected and its receives posted.
    Ready,
    /// This side still sends. It says so again and again: the kernel keeps the connection of a program that
    /// has stopped.
    Going,
    /// This side has sent this many messages on each queue pair, and sends no more.
    Finished(Vec<u64>),
    /// The outcome of this side.
    Outcome(Box<Outcome>),
    /// This side gives up.
    Failed { is_check: bool, text: String },
}

/// One side of all queue pairs of a device.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Ends {
    pub(super) conditions: Conditions,
    /// Bytes of the largest packet that this side's port accepts.
    pub(super) mtu: u32,
    /// READs and atomics of the peer that this side serves at the same time, on each queue pair.
    pub(super) reads: u8,
    pub(super) lanes: Vec<End>,
}

/// One side of a queue pair.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct End {
    /// The queue pair, as text ([`uverbs::Endpoint`]).
    pub(super) endpoint: String,
    /// The target of an XRC connection, and the number of the shared receive queue.
    pub(super) target: Option<(String, u32)>,
    /// The memory that the peer writes, as text ([`uverbs::RemoteSlice`]).
    pub(super) inbox: String,
    /// The memory that the peer reads.
    pub(super) outbox: String,
}

/// Who begins when both sides have something to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// The client.
    First,
    /// The server.
    Second,
}

/// The TCP connection between the two sides.
#[derive(Debug)]
pub(super) struct Wire {
    reader: BufReader<TcpStream>,
    turn: Turn,
    /// The part of a line that has arrived.
    line: Vec<u8>,
    /// How long the peer may take to read a message.
    unread: Duration,
    /// The peer has said something.
    is_heard: bool,
}

impl Wire {
    pub(super) fn new(stream: TcpStream, turn: Turn) -> Result<Self> {
        let set = stream
            .set_nodelay(true)
            .and_then(|()| Ok(watch_host(&stream)?));
        set.map_err(broken)?;
        Ok(Self {
            reader: BufReader::new(stream),
            turn,
            line: Vec::new(),
            unread: UNREAD,
            is_heard: false,
        })
    }

    pub(super) fn say(&mut self, message: &Message) -> Result<()> {
        let mut line =
            serde_json::to_vec(message).map_err(|error| Failure::new(Kind::Failed, error))?;
        line.push(b'\n');
        self.write(&line)
    }

    /// Says a message, and waits for that of the other side. One side says and the other hears: if both said
    /// theirs first, and these were longer than what the sockets hold, neither would ever hear.
    pub(super) fn exchange(&mut self, message: &Message, patience: Duration) -> Result<Message> {
        match self.turn {
            Turn::First => {
                self.say(message)?;
                self.hear(patience)
            }
            Turn::Second => {
                let heard = self.hear(patience)?;
                self.say(message)?;
                Ok(heard)
            }
        }
    }

    /// The time limit is for all bytes, not for each call.
    fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        let deadline = Instant::now() + self.unread;
        let stream = self.reader.get_mut();
        while !bytes.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let text = format!("the peer has not read a message for {:?}", self.unread);
                return Err(Failure::new(Kind::Peer, text));
            }
            stream.set_write_timeout(Some(left)).map_err(broken)?;
            match stream.write(bytes) {
                Ok(0) => return Err(broken(io::ErrorKind::WriteZero.into())),
                Ok(count) => bytes = &bytes[count..],
                Err(error) if is_timeout(&error) => {}
                Err(error) => return Err(broken(error)),
            }
        }
        Ok(())
    }

    /// Waits for the next message; the other side's failure becomes a failure here.
    pub(super) fn hear(&mut self, patience: Duration) -> Result<Message> {
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if let Some(message) = self.try_hear(left)? {
                return Ok(message);
            }
            if left.is_zero() {
                let text = match self.is_heard {
                    true => format!("the peer has sent no whole message for {patience:?}"),
                    false => format!(
                        "the peer has accepted the connection, and has not answered for {patience:?}: it may be \
                         serving another client (it serves one at a time), or it is no `uverbs perf serve`"
                    ),
                };
                return Err(Failure::new(Kind::Peer, text));
            }
        }
    }

    /// The next message, if it comes in time.
    pub(super) fn try_hear(&mut self, time: Duration) -> Result<Option<Message>> {
        match self.next(time)? {
            Next::Message(message) => Ok(Some(*message)),
            Next::Nothing => Ok(None),
            Next::End => Err(Failure::new(
                Kind::Peer,
                "the peer has closed the connection",
            )),
        }
    }

    /// The plan of the next round; `None` if the client has left.
    pub(super) fn plan(&mut self) -> Result<Option<Plan>> {
        match self.next(IDLE)? {
            Next::Nothing => Err(Failure::new(
                Kind::Peer,
                format_args!("the client has planned nothing for {IDLE:?}"),
            )),
            Next::End => Ok(None),
            Next::Message(message) => match *message {
                Message::Plan { version, plan } => {
                    accept_version(&version)?;
                    plan.validate()?;
                    Ok(Some(*plan))
                }
                other => Err(unexpected(&other)),
            },
        }
    }

    /// The next message, if the whole of it comes in this time.
    fn next(&mut self, time: Duration) -> Result<Next> {
        let deadline = Instant::now() + time;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            // A time limit of zero would be an error.
            let limit = Some(left.max(Duration::from_millis(1)));
            let stream = self.reader.get_ref();
            stream.set_read_timeout(limit).map_err(broken)?;
            let bytes = match self.reader.fill_buf() {
                Ok(bytes) => bytes,
                Err(error) if is_timeout(&error) && left.is_zero() => return Ok(Next::Nothing),
                Err(error) if is_timeout(&error) => continue,
                Err(error) => return Err(broken(error)),
            };
            if bytes.is_empty() && self.line.is_empty() {
                return Ok(Next::End);
            }
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(bytes.len(), |end| end + 1);
            if taken == 0 || self.line.len() + taken > LONGEST {
                let text = "the peer broke off within a message, or it is longer than any";
                return Err(Failure::new(Kind::Peer, text));
            }
            self.line.extend_from_slice(&bytes[..taken]);
            self.reader.consume(taken);
            if end.is_some() {
                break;
            }
            if left.is_zero() {
                return Ok(Next::Nothing);
            }
        }
        self.is_heard = true;
        let line = std::mem::take(&mut self.line);
        match serde_json::from_slice(&line) {
            Ok(Message::Failed { is_check, text }) => {
                let kind = if is_check { Kind::Check } else { Kind::Peer };
                Err(Failure::new(
                    kind,
                    format_args!("the peer says: {}", Foreign(&text)),
                ))
            }
            Ok(message) => Ok(Next::Message(Box::new(message))),
            Err(error) => {
                let start = line[..line.len().min(60)].escape_ascii();
                let error = error.to_string();
                let error = Foreign(&error);
                let text = format!(
                    "the peer is no `uverbs perf`, or another version: it sent \"{start}\" ({error})"
                );
                Err(Failure::new(Kind::Peer, text))
            }
        }
    }
}

enum Next {
    Message(Box<Message>),
    Nothing,
    End,
}

/// The version of this side.
pub(super) fn version() -> String {
    env!("CARGO_PKG_VERSION").to_owned()
}

fn accept_version(version: &str) -> Result<()> {
    let own = self::version();
    match version == own {
        true => Ok(()),
        false => {
            let version = Foreign(version);
            let text = format!("the peer has version {version}, and this side {own}");
            Err(Failure::new(Kind::Peer, text))
        }
    }
}

/// The failure for a message that is not expected now.
pub(super) fn unexpected(message: &Message) -> Failure {
    let name = match message {
        Message::Plan { .. } => "a plan",
        Message::Listening => "that it listens",
        Message::Ends(_) => "its ends",
        Message::Ready => "that it is ready",
        Message::Going => "that it still sends",
        Message::Finished(_) => "that it has finished",
        Message::Outcome(_) => "its outcome",
        Message::Failed { .. } => "a failure",
    };
    Failure::new(
        Kind::Peer,
        format_args!("the peer tells {name} out of turn"),
    )
}

/// Has the kernel notice that the peer's host is gone.
fn watch_host(stream: &TcpStream) -> rustix::io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, UNASKED)?;
    sockopt::set_tcp_keepintvl(stream, UNASKED)?;
    sockopt::set_tcp_user_timeout(stream, UNANSWERED.as_millis() as u32)
}

fn broken(error: io::Error) -> Failure {
    Failure::new(
        Kind::Peer,
        format_args!("the connection to the peer: {error}"),
    )
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::mpsc::RecvTimeoutError;

    use super::*;

    fn pair() -> (Wire, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let here = Wire::new(here, Turn::First).unwrap();
        (here, listener.accept().unwrap().0)
    }

    const SOON: Duration = Duration::from_millis(20);

    #[test]
    fn a_message_may_come_in_pieces() {
        let (mut wire, mut peer) = pair();
        peer.write_all(b"{\"finished\":").unwrap();
        assert!(wire.try_hear(SOON).unwrap().is_none());
        peer.write_all(b"[1,2]}\n\"ready\"\n").unwrap();
        let heard = wire.hear(SOON).unwrap();
        assert!(matches!(heard, Message::Finished(sent) if sent == [1, 2]));
        assert!(matches!(wire.hear(SOON).unwrap(), Message::Ready));
    }

    /// Catches a time limit that each byte begins anew: a client would hold the server for ever.
    #[test]
    fn a_message_that_never_ends_is_not_waited_for() {
        let (mut wire, mut peer) = pair();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let pause = Duration::from_millis(5);
                // Ends with the wire, or if the test fails.
                let waited = || stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout);
                while waited() && peer.write_all(b" ").is_ok() {}
            });
            let failure = wire.hear(Duration::from_millis(50)).unwrap_err();
            assert_eq!(failure.kind(), Kind::Peer);
            drop(stop);
        });
    }

    /// Catches a server that waits for ever until a client reads.
    #[test]
    fn a_peer_that_never_reads_is_not_waited_for() {
        let (mut wire, _peer) = pair();
        wire.unread = SOON;
        // More than the buffers of both sockets take.
        let message = Message::Finished(vec![u64::MAX; 1 << 20]);
        let failure = wire.say(&message).unwrap_err();
        assert!(failure.to_string().contains("not read"), "{failure}");
    }

    /// Catches two sides that both wait until the other reads.
    #[test]
    fn long_messages_are_exchanged() {
        // The kernel's default is larger than the messages.
        const BUFFER: usize = 64 << 10;
        let (mut first, peer) = pair();
        let mut second = Wire::new(peer, Turn::Second).unwrap();
        let limit = Duration::from_secs(5);
        let message = Message::Finished(vec![u64::MAX; 1 << 16]);
        for wire in [&mut first, &mut second] {
            wire.unread = limit;
            let stream = wire.reader.get_ref();
            sockopt::set_socket_send_buffer_size(stream, BUFFER).unwrap();
            sockopt::set_socket_recv_buffer_size(stream, BUFFER).unwrap();
        }
        let exchange = |wire: &mut Wire| {
            let heard = wire.exchange(&message, limit).unwrap();
            assert!(matches!(heard, Message::Finished(sent) if sent.len() == 1 << 16));
        };
        std::thread::scope(|scope| {
            scope.spawn(|| exchange(&mut second));
            exchange(&mut first);
        });
    }

    /// Catches a message that says that a peer is silent, where it serves another client.
    #[test]
    fn a_server_that_has_not_answered_yet_may_be_busy() {
        let (mut wire, mut peer) = pair();
        let failure = wire.hear(SOON).unwrap_err().to_string();
        assert!(failure.contains("another client"), "{failure}");
        peer.write_all(b"\"ready\"\n").unwrap();
        wire.hear(SOON).unwrap();
        let failure = wire.hear(SOON).unwrap_err().to_string();
        assert!(!failure.contains("another client"), "{failure}");
    }

    #[test]
    fn who_is_no_perf_is_told_apart() {
        let (mut wire, mut peer) = pair();
        peer.write_all(b"GET / HTTP/1.1\r\n").unwrap();
        let failure = wire.hear(SOON).unwrap_err();
        assert_eq!(failure.kind(), Kind::Peer);
        assert!(failure.to_string().contains("GET / HTTP"), "{failure}");
    }

    #[test]
    fn the_peers_failure_is_one_of_this_side() {
        let (mut wire, peer) = pair();
        let mut peer = Wire::new(peer, Turn::Second).unwrap();
        let said = Message::Failed {
            is_check: true,
            text: "byte 7".into(),
        };
        peer.say(&said).unwrap();
        let failure = wire.hear(SOON).unwrap_err();
        assert_eq!(failure.kind(), Kind::Check);
        assert!(failure.to_string().contains("byte 7"), "{failure}");
    }

    #[test]
    fn an_end_is_an_end() {
        let (mut wire, peer) = pair();
        drop(peer);
        assert!(wire.plan().unwrap().is_none());
        assert_eq!(wire.hear(SOON).unwrap_err().kind(), Kind::Peer);
        let (mut wire, mut peer) = pair();
        peer.write_all(b"\"rea").unwrap();
        drop(peer);
        assert!(wire.plan().is_err());
    }
}
