//! Netlink messages as bytes: builds a request, splits a datagram, reads attributes and checks their lengths.
//! Sockets and the meaning of attributes are in other modules.
//!
//! Layout: `include/uapi/linux/netlink.h`, netlink(7). The crate `netlink-packet-core` has the headers.

use netlink_packet_core::{
    Emitable, NLA_ALIGNTO, NLA_HEADER_SIZE, NLM_F_REQUEST, NLMSG_ALIGNTO, NetlinkBuffer,
    NetlinkHeader, NlaBuffer, NlasIterator,
};

use crate::device::failure::Malformed;

/// A request to the kernel.
pub(in crate::device) struct Request {
    bytes: Vec<u8>,
    answer: u16,
}

impl Request {
    /// A request of type `kind` with `flags` in addition to `NLM_F_REQUEST`, without attributes.
    pub(in crate::device) fn new(kind: u16, flags: u16) -> Self {
        let mut bytes = Vec::with_capacity(64);
        bytes.resize(NetlinkHeader::default().buffer_len(), 0);
        let mut header = NetlinkBuffer::new(&mut bytes[..]);
        header.set_message_type(kind);
        header.set_flags(NLM_F_REQUEST | flags);
        Self {
            bytes,
            answer: kind,
        }
    }

    /// A request of type `kind` for one thing. Messages of another type answer it. The struct of the protocol
    /// comes before the attributes.
    #[cfg(feature = "c-abi")]
    pub(super) fn answered(kind: u16, answer: u16, body: &[u8]) -> Self {
        let mut request = Self::new(kind, 0);
        request.bytes.extend_from_slice(body);
        request.answer = answer;
        request
    }

    /// Adds an IP address.
    #[cfg(feature = "c-abi")]
    pub(super) fn with_address(self, kind: u16, address: std::net::IpAddr) -> Self {
        match address {
            std::net::IpAddr::V4(address) => self.with(kind, &address.octets()),
            std::net::IpAddr::V6(address) => self.with(kind, &address.octets()),
        }
    }

    /// Adds a 32-bit attribute.
    pub(in crate::device) fn with_u32(self, kind: u16, value: u32) -> Self {
        self.with(kind, &value.to_ne_bytes())
    }

    /// Adds a text attribute, with the NUL that the kernel requires.
    pub(in crate::device) fn with_text(self, kind: u16, text: &std::ffi::CStr) -> Self {
        self.with(kind, text.to_bytes_with_nul())
    }

    fn with(mut self, kind: u16, value: &[u8]) -> Self {
        let start = self.bytes.len();
        let length = NLA_HEADER_SIZE + value.len();
        self.bytes.resize(start + NLA_HEADER_SIZE, 0);
        let mut header = NlaBuffer::new(&mut self.bytes[start..]);
        header.set_kind(kind);
        header.set_length(u16::try_from(length).expect("attributes of requests are short"));
        self.bytes.extend_from_slice(value);
        self.bytes
            .resize(start + length.next_multiple_of(NLA_ALIGNTO), 0);
        self
    }

    /// The message type of the answers.
    pub(super) fn answer(&self) -> u16 {
        self.answer
    }

    /// The bytes to send under this sequence number.
    pub(super) fn numbered(&mut self, sequence: u32) -> &[u8] {
        let length = self.bytes.len() as u32;
        let mut header = NetlinkBuffer::new(&mut self.bytes[..]);
        header.set_length(length);
        header.set_sequence_number(sequence);
        &self.bytes
    }
}

/// One message of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Message<'a> {
    pub(super) kind: u16,
    pub(super) flags: u16,
    pub(super) sequence: u32,
    pub(super) payload: &'a [u8],
}

/// The messages of a datagram. After an error there are no more.
pub(super) struct Messages<'a> {
    rest: &'a [u8],
}

impl<'a> Messages<'a> {
    pub(super) fn new(datagram: &'a [u8]) -> Self {
        Self { rest: datagram }
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let Ok(message) = NetlinkBuffer::new_checked(self.rest) else {
            self.rest = &[];
            return Some(Err(
                "a netlink message is longer than its datagram, or shorter than its header".into(),
            ));
        };
        // The last message may come without the padding that separates two messages.
        let next = (message.length() as usize).next_multiple_of(NLMSG_ALIGNTO.into());
        self.rest = self.rest.get(next..).unwrap_or_default();
        Some(Ok(Message {
            kind: message.message_type(),
            flags: message.flags(),
            sequence: message.sequence_number(),
            payload: message.payload(),
        }))
    }
}

/// One attribute of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Attribute<'a> {
    pub(super) kind: u16,
    value: &'a [u8],
}

/// The attributes of a message's payload. After an error there are no more.
pub(super) fn attributes(payload: &[u8]) -> impl Iterator<Item = Result<Attribute<'_>, Malformed>> {
    NlasIterator::new(payload).map(|attribute| match attribute {
        Ok(attribute) => {
            let (kind, end) = (attribute.kind(), attribute.length().into());
            let value = &attribute.into_inner()[NLA_HEADER_SIZE..end];
            Ok(Attribute { kind, value })
        }
        Err(_) => {
            Err("a netlink attribute is longer than its message, or shorter than its header".into())
        }
    })
}

impl<'a> Attribute<'a> {
    /// The value as a byte.
    pub(super) fn u8(self, what: &str) -> Result<u8, Malformed> {
        self.fixed(what).map(u8::from_ne_bytes)
    }

    /// The value as a 32-bit number in host order.
    pub(super) fn u32(self, what: &str) -> Result<u32, Malformed> {
        self.fixed(what).map(u32::from_ne_bytes)
    }

    /// The value as a 64-bit number in host order.
    pub(super) fn u64(self, what: &str) -> Result<u64, Malformed> {
        self.fixed(what).map(u64::from_ne_bytes)
    }

    /// The value as text: one NUL, at its end, and UTF-8 before it.
    pub(super) fn text(self, what: &str) -> Result<&'a str, Malformed> {
        let text = std::ffi::CStr::from_bytes_with_nul(self.value)
            .map_err(|_| Malformed::from(format!("the {what} does not end in its only NUL")))?;
        text.to_str()
            .map_err(|_| format!("the {what} is not UTF-8").into())
    }

    /// The attributes that the value consists of.
    pub(super) fn nested(self) -> impl Iterator<Item = Result<Attribute<'a>, Malformed>> {
        attributes(self.value)
    }

    /// The value as bytes.
    pub(super) fn bytes(self) -> &'a [u8] {
        self.value
    }

    fn fixed<const N: usize>(self, what: &str) -> Result<[u8; N], Malformed> {
        self.value
            .try_into()
            .map_err(|_| format!("the {what} has {} bytes, not {N}", self.value.len()).into())
    }
}
