//! What the connection manager reports about a channel's connection.

use std::fmt;
use std::task::{Context, Poll};

use super::super::qp::Qp;
use super::error::ChannelCause;
use crate::cm;
use crate::error::Result;
use crate::qp::transport::Rc;
use crate::readable::{Readable, Watching};

/// The link of a channel's connection, which is watched for its end.
pub(super) struct Link {
    // Before the file that it watches.
    by: Watching<Box<dyn Readable + Send + Sync>>,
    inner: cm::Link,
    /// The last look has found nothing.
    looked: bool,
    end: Option<End>,
}

/// The end of a connection.
struct End {
    cause: ChannelCause,
    /// The queue pair was failed because of it: messages that had arrived are still there, and everything
    /// after them is flushed.
    is_flushed: bool,
}

impl Link {
    pub(super) fn new(inner: cm::Link, by: Box<dyn Readable + Send + Sync>) -> Self {
        Self {
            by: Watching(by),
            inner,
            looked: false,
            end: None,
        }
    }

    /// Why the connection has ended, if it has.
    pub(super) fn end(&self) -> Option<&ChannelCause> {
        self.end.as_ref().map(|end| &end.cause)
    }

    /// Looks whether the connection has ended, and if so fails the queue pair.
    ///
    /// # Errors
    ///
    /// It has ended, and the queue pair cannot be failed, so that operations under way do not end by
    /// themselves. Or the link cannot be watched.
    pub(super) fn look(&mut self, qp: &Qp<Rc>, cx: &mut Context<'_>) -> Result<(), ChannelCause> {
        if self.end.is_none()
            && let Poll::Ready(cause) = self.poll_end(cx)?
        {
            let failed = qp.control().fail().and_then(|()| self.disconnect());
            self.end = Some(End {
                cause,
                is_flushed: failed.is_ok(),
            });
        }
        match &self.end {
            Some(end) if !end.is_flushed => Err(end.cause.clone()),
            _ => Ok(()),
        }
    }

    /// Notifies the peer that the connection ends, or confirms that it has ended.
    pub(super) fn disconnect(&self) -> Result<()> {
        self.inner.disconnect()
    }

    fn poll_end(&mut self, cx: &mut Context<'_>) -> Result<Poll<ChannelCause>> {
        loop {
            let Poll::Ready(event) = self.inner.poll_event(&mut self.by.0, &mut self.looked, cx)
            else {
                return Ok(Poll::Pending);
            };
            let event = event?;
            if event.ends() {
                return Ok(Poll::Ready(match event {
                    cm::Event::DeviceRemoved => ChannelCause::DeviceRemoved,
                    _ => ChannelCause::PeerGone,
                }));
            }
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.inner, f)
    }
}
