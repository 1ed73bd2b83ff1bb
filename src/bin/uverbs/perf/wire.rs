//! The messages between the two sides before and after a round: lines of JSON over TCP.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_keepalive;
use serde::{Deserialize, Serialize};

use super::conditions::Conditions;
use super::plan::Plan;
use super::recorder::Outcome;
use crate::failure::{Failure, Kind, Result};
use crate::output::Foreign;

/// A longer line is not one of these messages.
const LONGEST: u64 = 64 << 20;

/// A client that sends no plan for this long is gone, and the server is free for others.
const IDLE: Duration = Duration::from_secs(60);

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

/// The TCP connection between the two sides.
#[derive(Debug)]
pub(super) struct Wire {
    reader: BufReader<TcpStream>,
    /// The part of a line that has arrived.
    line: Vec<u8>,
}

impl Wire {
    pub(super) fn new(stream: TcpStream) -> Result<Self> {
        let set = stream
            .set_nodelay(true)
            .and_then(|()| Ok(set_socket_keepalive(&stream, true)?));
        set.map_err(broken)?;
        Ok(Self {
            reader: BufReader::new(stream),
            line: Vec::new(),
        })
    }

    pub(super) fn say(&mut self, message: &Message) -> Result<()> {
        let mut line =
            serde_json::to_vec(message).map_err(|error| Failure::new(Kind::Failed, error))?;
        line.push(b'\n');
        self.reader.get_mut().write_all(&line).map_err(broken)
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
                let text = format!("the peer has said nothing for {patience:?}");
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

    fn next(&mut self, time: Duration) -> Result<Next> {
        // A time limit of zero would be an error.
        let limit = Some(time.max(Duration::from_millis(1)));
        self.reader
            .get_ref()
            .set_read_timeout(limit)
            .map_err(broken)?;
        let left = LONGEST.saturating_sub(self.line.len() as u64);
        let read = (&mut self.reader)
            .take(left)
            .read_until(b'\n', &mut self.line);
        match read {
            Err(error) if is_timeout(&error) => return Ok(Next::Nothing),
            Err(error) => return Err(broken(error)),
            Ok(_) if self.line.last() == Some(&b'\n') => {}
            Ok(_) if self.line.is_empty() => return Ok(Next::End),
            Ok(_) => {
                return Err(Failure::new(
                    Kind::Peer,
                    "the peer broke off within a message",
                ));
            }
        }
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
        Message::Finished(_) => "that it has finished",
        Message::Outcome(_) => "its outcome",
        Message::Failed { .. } => "a failure",
    };
    Failure::new(
        Kind::Peer,
        format_args!("the peer tells {name} out of turn"),
    )
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

    use super::*;

    fn pair() -> (Wire, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (Wire::new(here).unwrap(), listener.accept().unwrap().0)
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
        let mut peer = Wire::new(peer).unwrap();
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
