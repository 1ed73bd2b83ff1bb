//! What the host and the agent in the guest say to each other over the virtio-serial port.
//!
//! Frames: one byte of kind, four of a process's number, four of length (little-endian), then the content.
//! Control messages are JSON; the bytes of streams go as they are.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

/// Longest content of a frame; more means that something else than the agent writes to the port.
const LONGEST: u32 = 1 << 24;

/// What a frame holds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A [`Request`] or a [`Report`].
    Control = b'c',
    /// Bytes for a process's standard input; empty at its end.
    Input = b'i',
    /// Bytes of a process's standard output.
    Output = b'o',
    /// Bytes of a process's standard error.
    Error = b'e',
    /// A line of the kernel's log.
    Log = b'l',
}

/// One frame.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Frame {
    /// What it holds.
    pub(crate) kind: Kind,
    /// The process that it concerns, 0 for none.
    pub(crate) process: u32,
    /// The content.
    pub(crate) content: Vec<u8>,
}

/// Numbers of rows and columns of a terminal.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct WindowSize {
    /// Rows.
    pub(crate) rows: u16,
    /// Columns.
    pub(crate) columns: u16,
}

/// A command for the guest.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Spec {
    /// The program, found by the PATH in `environment`, and its arguments.
    pub(crate) words: Vec<String>,
    /// The whole environment.
    pub(crate) environment: BTreeMap<String, String>,
    /// The working directory.
    pub(crate) directory: String,
    /// Whether standard input is fed from the host; else it is /dev/null.
    pub(crate) input: bool,
    /// A terminal of this size to run on; else standard output and error are separate pipes.
    pub(crate) terminal: Option<WindowSize>,
}

/// How the guest's network is laid out.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) enum Network {
    /// `rxe0` on a dummy netdev, in the one network namespace.
    #[default]
    OneHost,
    /// Network namespaces `h1` and `h2`, joined by a veth pair, with `rxe1` in one and `rxe2` in the other.
    TwoHosts,
    /// Functions of an adapter, with addresses on those netdevs that they have; no soft-RoCE.
    Adapter {
        /// How many functions.
        functions: u16,
        /// The guest's number, counted from 0.
        guest: u16,
    },
}

/// From the host to the agent.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) enum Request {
    /// Lay out the network; answered by [`Report::Ready`].
    Prepare(Network),
    /// Start a process under the frame's number.
    Start(Spec),
    /// Send a signal to the process's group.
    Signal(i32),
    /// The terminal has a new size.
    Resize(WindowSize),
    /// End all processes, take the network down, send the rest of the kernel's log, and power off.
    Shutdown,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) enum Ending {
    /// By itself, with this status.
    Exited(i32),
    /// By this signal.
    Signalled(i32),
}

impl Ending {
    /// The status that a shell gives for it: 128 and the signal's number for a signal.
    pub(crate) fn status(self) -> i32 {
        match self {
            Self::Exited(status) => status,
            Self::Signalled(signal) => 128 + signal,
        }
    }
}

/// From the agent to the host.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) enum Report {
    /// The agent runs.
    Hello,
    /// The network is laid out.
    Ready,
    /// It could not be.
    NotReady(String),
    /// The process could not be started, for this reason, and with the status that a shell gives for it.
    NotStarted(String, i32),
    /// The process ended.
    Ended(Ending),
    /// Sent every few seconds, so that silence means that the guest hangs.
    Alive,
    /// All of the log has been sent; the guest powers off.
    Goodbye,
}

impl Frame {
    /// A frame with a control message.
    pub(crate) fn control<T: Serialize>(process: u32, message: &T) -> Self {
        // The messages above have no map with keys other than strings, the one thing that JSON cannot hold.
        let content = serde_json::to_vec(message).unwrap_or_default();
        Self {
            kind: Kind::Control,
            process,
            content,
        }
    }

    /// Writes the frame in one piece.
    ///
    /// # Errors
    /// Those of the writer.
    pub(crate) fn write(&self, mut to: impl Write) -> io::Result<()> {
        let length = u32::try_from(self.content.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut bytes = Vec::with_capacity(self.content.len() + 9);
        bytes.push(self.kind as u8);
        bytes.extend(self.process.to_le_bytes());
        bytes.extend(length.to_le_bytes());
        bytes.extend(&self.content);
        to.write_all(&bytes)
    }

    /// Reads a frame; none at the end of the stream.
    ///
    /// # Errors
    /// Those of the reader, and `InvalidData` for what is not a frame.
    pub(crate) fn read(mut from: impl Read) -> io::Result<Option<Self>> {
        let mut header = [0; 9];
        if from.read(&mut header[..1])? == 0 {
            return Ok(None);
        }
        from.read_exact(&mut header[1..])?;
        let [kind, p0, p1, p2, p3, l0, l1, l2, l3] = header;
        let length = u32::from_le_bytes([l0, l1, l2, l3]);
        let kind = Kind::try_from(kind).map_err(|()| io::ErrorKind::InvalidData)?;
        if length > LONGEST {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut content = vec![0; length as usize];
        from.read_exact(&mut content)?;
        Ok(Some(Self {
            kind,
            process: u32::from_le_bytes([p0, p1, p2, p3]),
            content,
        }))
    }
}

impl TryFrom<u8> for Kind {
    type Error = ();

    fn try_from(byte: u8) -> Result<Self, ()> {
        let kinds = [
            Self::Control,
            Self::Input,
            Self::Output,
            Self::Error,
            Self::Log,
        ];
        kinds.into_iter().find(|kind| *kind as u8 == byte).ok_or(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_any_value_go_through() {
        let frame = Frame {
            kind: Kind::Output,
            process: 7,
            content: (0..=255).collect(),
        };
        let mut bytes = Vec::new();
        frame.write(&mut bytes).expect("written");
        frame.write(&mut bytes).expect("written");
        let mut reader = bytes.as_slice();
        assert_eq!(
            Frame::read(&mut reader).expect("a frame"),
            Some(frame.clone())
        );
        assert_eq!(Frame::read(&mut reader).expect("a frame"), Some(frame));
        assert_eq!(Frame::read(&mut reader).expect("the end"), None);
    }

    #[test]
    fn what_is_not_a_frame_is_refused() {
        let garbage = b"login: root\r\nPassword:".as_slice();
        assert_eq!(
            Frame::read(garbage).map_err(|error| error.kind()),
            Err(io::ErrorKind::InvalidData)
        );
        let too_long = [b'o', 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff].as_slice();
        assert_eq!(
            Frame::read(too_long).map_err(|error| error.kind()),
            Err(io::ErrorKind::InvalidData)
        );
    }

    #[test]
    fn a_signal_counts_from_128() {
        assert_eq!(Ending::Signalled(9).status(), 137);
        assert_eq!(Ending::Exited(3).status(), 3);
    }
}
