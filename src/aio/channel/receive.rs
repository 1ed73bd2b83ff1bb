//! Receiving a message.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use super::error::{ChannelCause, ChannelError};
use super::{Channel, Message, Post};
use crate::buf::Buf;
use crate::work::RemoteSlice;

impl Channel {
    /// The next message, in a buffer of this side's pool; `None` when the peer has ended its side and
    /// everything that it sent before has been received.
    ///
    /// Dropping the future loses no message.
    ///
    /// # Errors
    ///
    /// The channel is broken. If it was made by address, this is reported at the latest when the connection
    /// manager reports that the peer has gone ([`ChannelCause::PeerGone`]), and earlier messages have been
    /// received. Or the pool has no buffer for so long a message ([`ChannelCause::Pool`]): the peer is
    /// notified, and the next call returns the next message.
    pub async fn recv(&mut self) -> Result<Option<Buf>, ChannelError> {
        self.give_up();
        match self.next().await {
            Ok(message) => Ok(message),
            Err(cause) => Err(self.failed(cause)),
        }
    }

    async fn next(&mut self) -> Result<Option<Buf>, ChannelCause> {
        let there = self.until(|channel, _| {
            let there = !channel.inbox.is_empty();
            (there || channel.peer_closed).then_some(Ok(()))
        });
        there.await?;
        match self.inbox.front() {
            None => Ok(None),
            Some(&Message::Offer(number, at)) => self.take(number, at).await.map(Some),
            Some(Message::Small(_)) => {
                let Some(Message::Small(message)) = self.inbox.pop_front() else {
                    return Ok(None);
                };
                self.go_on().await;
                Ok(Some(message))
            }
        }
    }

    /// Reads the message that was offered first.
    async fn take(&mut self, number: u32, at: RemoteSlice) -> Result<Buf, ChannelCause> {
        if self.reading.is_none() {
            let length = usize::try_from(at.length).unwrap_or(usize::MAX);
            let buf = match self.get(length).await {
                Err(ChannelCause::Pool(error)) => {
                    self.answer(number, false).await;
                    return Err(error.into());
                }
                got => got?,
            };
            self.until(|channel, cx| channel.room.poll(cx).is_ready().then_some(Ok(())))
                .await?;
            self.reading = Some(self.qp.read(buf, at));
        }
        let read = self.until(|channel, cx| {
            let op = channel.reading.as_mut()?;
            match Pin::new(op).poll(cx) {
                Poll::Ready(read) => Some(Ok(read)),
                Poll::Pending => None,
            }
        });
        let (read, buf) = read.await?;
        self.reading = None;
        self.answer(number, read.is_ok()).await;
        read?;
        Ok(buf)
    }

    /// The first message in the inbox has been handled.
    async fn answer(&mut self, number: u32, taken: bool) {
        self.inbox.pop_front();
        self.due.push(number, taken);
        self.go_on().await;
    }

    /// The user has taken a message: posts receives and sends the channel's own messages, without waiting.
    async fn go_on(&mut self) {
        poll_fn(|cx| {
            // The next call reports that the pool never has a buffer.
            let _ = self.refill(cx);
            self.flush(cx);
            Poll::Ready(())
        })
        .await;
    }
}
