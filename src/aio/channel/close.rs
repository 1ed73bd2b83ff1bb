//! The orderly end of a channel.

use std::future::Future;
use std::pin::Pin;
use std::task::Poll;

use super::error::{ChannelCause, ChannelError};
use super::header::{Header, Kind};
use super::link::Link;
use super::{Channel, Message, Post};

impl Channel {
    /// Ends the channel: notifies the peer, waits until the peer has ended its side too, and returns every
    /// buffer. Messages that the peer still sends are not received.
    ///
    /// Dropping the channel instead, or this future, ends it at once: the peer's operations fail.
    ///
    /// # Errors
    ///
    /// The peer was gone before it ended its side.
    pub async fn close(mut self) -> Result<(), ChannelError> {
        let said = self.say_bye().await;
        let failed = said.err().map(|cause| self.failed(cause));
        let control = self.qp.control();
        let aborted = match control.abort().await {
            Ok(()) => self.link.as_ref().map_or(Ok(()), Link::disconnect),
            Err(error) => Err(error),
        };
        match (failed, aborted) {
            (Some(error), _) => Err(error),
            (None, Err(error)) => Err(self.failed(error)),
            (None, Ok(())) => Ok(()),
        }
    }

    async fn say_bye(&mut self) -> Result<(), ChannelCause> {
        self.give_up();
        let credits = self
            .until(|channel, cx| {
                channel.discard();
                channel.try_credit(cx).map(Ok)
            })
            .await?;
        let kind = Kind::Bye;
        let bytes = Header { kind, credits }.to_bytes();
        let mut bye = self.qp.send_inline(&bytes);
        let mut said = false;
        let ended = self.until(|channel, cx| {
            channel.discard();
            if !said && let Poll::Ready(sent) = Pin::new(&mut bye).poll(cx) {
                if let Err(error) = sent {
                    return Some(Err(error.into()));
                }
                said = true;
            }
            (said && channel.peer_closed).then_some(Ok(()))
        });
        match ended.await {
            // The peer ends its side in answer to this side's end, and may be gone before it acknowledges.
            Err(_) if self.peer_closed => Ok(()),
            ended => ended,
        }
    }

    /// Drops the messages that have come.
    fn discard(&mut self) {
        // A READ under way ends with the queue pair.
        self.reading = None;
        while let Some(message) = self.inbox.pop_front() {
            if let Message::Offer(number, _) = message {
                self.due.push(number, false);
            }
        }
    }
}
