//! Sending a message.

use super::error::{ChannelCause, ChannelError};
use super::header::{HEADER, Header, Kind};
use super::start::INLINE;
use super::{Channel, Post};
use crate::buf::Buf;

impl Channel {
    /// Sends a message: the filled bytes, which may be none. The buffer comes back once the peer has them.
    ///
    /// Short messages are copied: those that fit, with 32 bytes of header, into the peer's receives and into
    /// a buffer of this side's pool. If the future is dropped, the message may or may not have been sent; the
    /// buffer of a long one goes back to its pool when the peer has read it.
    ///
    /// A long message is sent when the peer receives it. If both sides send a long one and receive only after
    /// that, they wait for each other for ever. So a program that sends long messages sets a limit, and
    /// receives when it has passed.
    ///
    /// # Errors
    ///
    /// The message could not be sent: [`ChannelCause`] says whether the channel remains usable. The buffer
    /// has no capacity if the channel broke while the peer could read it; it goes back to its pool with the
    /// channel.
    pub async fn send(&mut self, message: Buf) -> (Result<(), ChannelError>, Buf) {
        self.give_up();
        let room = self.peer_size.unwrap_or(0).saturating_sub(HEADER);
        let length = HEADER + message.len();
        if message.len() <= room && (length <= INLINE || self.pool.has_class_for(length)) {
            let sent = self.send_short(&message).await;
            return (sent.map_err(|cause| self.failed(cause)), message);
        }
        let (sent, message) = self.send_long(message).await;
        (sent.map_err(|cause| self.failed(cause)), message)
    }

    async fn send_short(&mut self, message: &[u8]) -> Result<(), ChannelCause> {
        let length = HEADER + message.len();
        let kind = Kind::Small;
        if length <= INLINE {
            let credits = self.credit().await?;
            let mut bytes = [0; INLINE];
            bytes[..HEADER].copy_from_slice(&Header { kind, credits }.to_bytes());
            bytes[HEADER..length].copy_from_slice(message);
            let sent = self.qp.send_inline(&bytes[..length]);
            return Ok(self.ended(sent).await??);
        }
        let mut buf = self.get(length).await?;
        let credits = self.credit().await?;
        // The pool's buffer has as many bytes as were asked for.
        let _ = buf.set_len(length);
        buf[..HEADER].copy_from_slice(&Header { kind, credits }.to_bytes());
        buf[HEADER..].copy_from_slice(message);
        let sent = self.qp.send(buf);
        Ok(self.ended(sent).await?.0?)
    }

    async fn send_long(&mut self, message: Buf) -> (Result<(), ChannelCause>, Buf) {
        let Some(at) = message.remote_on(self.qp.pd()) else {
            return (Err(ChannelCause::NotReadable), message);
        };
        let credits = match self.credit().await {
            Ok(credits) => credits,
            Err(cause) => return (Err(cause), message),
        };
        let number = self.next_offer;
        self.next_offer = number.wrapping_add(1);
        self.awaited = Some(number);
        self.offers.push((number, message));
        self.control(Kind::Offer { number, at }, credits);
        match self
            .until(|channel, _| channel.answered.take().map(Ok))
            .await
        {
            Ok((true, message)) => (Ok(()), message),
            Ok((false, message)) => (Err(ChannelCause::Refused), message),
            // The peer may still read it: the channel keeps it.
            Err(cause) => (Err(cause), Buf::default()),
        }
    }
}
