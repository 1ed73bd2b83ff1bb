//! The errors of a channel: those that end it, and those that refuse a message.

use std::fmt;

use super::super::error::OpError;
use crate::buf::GetError;
use crate::error::Error;

/// Why a channel or a message failed, and which peer it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelError {
    /// The peer: its address, or the number of its queue pair.
    pub peer: String,
    /// The cause.
    pub cause: ChannelCause,
}

/// Why a channel or a message failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChannelCause {
    /// An operation failed: the channel is broken.
    Op(OpError),
    /// The connection could not be made or ended.
    Connection(Error),
    /// The pool has no buffer, or cannot grow. The channel remains usable.
    Pool(GetError),
    /// The peer violated the protocol: the channel is broken.
    Protocol(&'static str),
    /// The message is long, and its buffer's pool does not let peers read
    /// ([`PoolBuilder::remote_read`](crate::buf::PoolBuilder::remote_read)). The channel remains usable.
    NotReadable,
    /// The peer has no buffer for a message of this length. The channel remains usable.
    Refused,
    /// The peer takes no more messages: it has closed its side.
    Closed,
    /// The connection has ended, and the peer had not closed its side: its program was killed, or dropped the
    /// channel. The channel is broken. An operation in flight may fail first ([`Op`](Self::Op)).
    PeerGone,
    /// The device has been removed: the channel is broken.
    DeviceRemoved,
}

impl fmt::Display for ChannelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "channel to {}: ", self.peer)?;
        match &self.cause {
            ChannelCause::Op(error) => fmt::Display::fmt(error, f),
            ChannelCause::Connection(error) => fmt::Display::fmt(error, f),
            ChannelCause::Pool(error) => write!(f, "no buffer: {error}"),
            ChannelCause::Protocol(what) => write!(f, "the peer violates the protocol: {what}"),
            ChannelCause::NotReadable => f.write_str(
                "the message is too long for one piece, and its pool lets no peer read it",
            ),
            ChannelCause::Refused => f.write_str("the peer has no buffer for so long a message"),
            ChannelCause::Closed => f.write_str("the peer has ended its side"),
            ChannelCause::PeerGone => f.write_str("the peer has gone without ending its side"),
            ChannelCause::DeviceRemoved => f.write_str("the device has been removed"),
        }
    }
}

impl std::error::Error for ChannelError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.cause {
            ChannelCause::Op(error) => Some(error),
            ChannelCause::Connection(error) => Some(error),
            ChannelCause::Pool(error) => Some(error),
            _ => None,
        }
    }
}

impl From<OpError> for ChannelCause {
    fn from(error: OpError) -> Self {
        Self::Op(error)
    }
}

impl From<Error> for ChannelCause {
    fn from(error: Error) -> Self {
        Self::Connection(error)
    }
}

impl From<GetError> for ChannelCause {
    fn from(error: GetError) -> Self {
        Self::Pool(error)
    }
}
