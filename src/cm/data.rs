//! Private data in the messages of the connection manager.
//!
//! Each kind of message has a field of fixed length. The peer gets the whole field, padded with zeros; encode
//! the length in the data if it matters.

use uverbs_uapi::rdma_cm::PrivateData;

use super::route::Route;
use crate::error::{Error, Result, Subject, Verb};

/// A kind of message with the user's private data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    verb: Verb,
    name: &'static str,
    room: usize,
    by_infiniband: bool,
}

impl Message {
    /// A request for a connection. The kernel puts the addresses into the field too, which has 92 bytes.
    pub(super) const REQUEST: Self = Self::new(Verb::Connect, "a request", 56);
    /// The acceptance of a connection.
    pub(super) const ACCEPT: Self = Self::new(Verb::Accept, "an acceptance", 196);
    /// A refusal.
    pub(super) const REJECT: Self = Self::new(Verb::Reject, "a refusal", 148);
    /// A lookup of a datagram peer.
    pub(super) const LOOK_UP: Self = Self::new(Verb::Connect, "a look-up", 180);
    /// The answer to a lookup.
    pub(super) const ANSWER: Self = Self::new(Verb::Accept, "an answer", 136);
    /// The refusal of a lookup.
    pub(super) const REFUSE: Self = Self::new(Verb::Reject, "a refusal of a look-up", 136);

    const fn new(verb: Verb, name: &'static str, room: usize) -> Self {
        Self {
            verb,
            name,
            room,
            by_infiniband: false,
        }
    }

    /// The message as sent on a route. InfiniBand addresses are in another part of it, so they leave the
    /// bytes that IP addresses take to private data (`struct cma_hdr` in `drivers/infiniband/core/cma.c`).
    pub(super) fn by(self, route: &Route) -> Self {
        match route.local_ib() {
            Some(_) => Self {
                room: self.room + 36,
                by_infiniband: true,
                ..self
            },
            None => self,
        }
    }

    /// The private data as sent, with their length.
    ///
    /// The kernel would refuse longer data with `EINVAL`, and with an acceptance it would also reject the
    /// peer.
    pub(super) fn fill(self, subject: &Subject, data: &[u8]) -> Result<(PrivateData, u8)> {
        self.fill_behind(&[], subject, data)
    }

    /// As [`fill`](Self::fill), after these bytes of the library.
    pub(super) fn fill_behind(
        self,
        own: &[u8],
        subject: &Subject,
        data: &[u8],
    ) -> Result<(PrivateData, u8)> {
        let room = self.room - own.len();
        if data.len() > room {
            let Self { verb, name, .. } = self;
            let why = format!("{} bytes of private data, {name} takes {room}", data.len());
            return Err(Error::invalid(verb, subject.clone(), why));
        }
        // The kernel writes its version into the first byte even if it puts no addresses after it. The peer's
        // kernel takes what follows for addresses if it looks like them (`cma_format_hdr`,
        // `cma_save_ip_info`).
        let data = [own, data].concat();
        let is_taken = matches!(data[..], [1..=u8::MAX, ..] | [_, 0x40..=0x4f | 0x60..=0x6f, ..]);
        if self.by_infiniband && is_taken {
            let why = "private data by an address of InfiniBand: the kernel has the first byte, which is to be 0, and takes a \
                       second one of 0x40 to 0x4f or 0x60 to 0x6f for the start of IP addresses";
            return Err(Error::invalid(self.verb, subject.clone(), why));
        }
        let mut field = PrivateData::default();
        field.0[..data.len()].copy_from_slice(&data);
        Ok((field, data.len() as u8))
    }
}

/// The private data of a received message.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Received {
    field: PrivateData,
    length: u8,
}

impl Received {
    pub(super) fn new(field: PrivateData, length: u8) -> Self {
        Self { field, length }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.field.0[..self.length.into()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_with_both_lengths() {
        let subject = Subject::the("connection");
        let (field, length) = Message::REQUEST.fill(&subject, &[7; 56]).unwrap();
        assert_eq!((length, field.0[55], field.0[56]), (56, 7, 0));
        let error = Message::REQUEST.fill(&subject, &[7; 57]).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("57 bytes of private data, a request takes 56"),
            "{text}"
        );
        assert!(Message::ACCEPT.fill(&subject, &[0; 196]).is_ok());
        assert!(Message::ACCEPT.fill(&subject, &[0; 197]).is_err());
        assert!(Message::REJECT.fill(&subject, &[0; 149]).is_err());
    }
}
