//! Completion entries (`struct mlx5_cqe64`, `struct mlx5_err_cqe`).

use crate::engine::frame::Frame;
use crate::engine::syndrome::Syndrome;

/// The kind of an entry, in the upper half of its last byte.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    /// A send request is done.
    Requester = 0x0,
    /// A write with immediate data arrived.
    WriteImmediate = 0x1,
    /// A message arrived.
    Send = 0x2,
    /// A message with immediate data arrived.
    SendImmediate = 0x3,
    /// A message arrived, and took a key away.
    SendInvalidate = 0x4,
    /// A send request failed.
    RequesterError = 0xd,
    /// A receive request failed.
    ResponderError = 0xe,
}

/// What an entry says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    pub(crate) kind: Kind,
    pub(crate) qpn: u32,
    /// The number that the provider gave the queue pair, by which it finds it.
    pub(crate) user_index: u32,
    /// The index of the request.
    pub(crate) counter: u16,
    /// For a send request its opcode.
    pub(crate) opcode: u8,
    pub(crate) length: u32,
    /// Immediate data, an invalidated key, or a partition key.
    pub(crate) immediate: [u8; 4],
    /// Where a datagram came from.
    pub(crate) source: Option<Source>,
    pub(crate) syndrome: Option<Syndrome>,
    pub(crate) timestamp: u64,
}

/// Where a message came from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Source {
    pub(crate) qpn: u32,
    pub(crate) lid: u16,
    pub(crate) service_level: u8,
    /// What is before the data.
    pub(crate) header: NetworkHeader,
}

/// The kind of header before a datagram's data.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum NetworkHeader {
    /// None.
    None,
    /// A global routing header.
    Grh,
    /// An IPv6 header.
    Ipv6,
    /// An IPv4 header.
    Ipv4,
}

impl Completion {
    /// The entry, but for its owner bit.
    pub(crate) fn encode(&self) -> [u8; 64] {
        let mut entry = [0; 64];
        if let Some(source) = self.source {
            entry[22..24].copy_from_slice(&source.lid.to_be_bytes());
            // On Ethernet the kind of header is in the place of the service level.
            let (has_header, level) = match source.header {
                NetworkHeader::None => (0, source.service_level),
                NetworkHeader::Grh => (1, source.service_level),
                NetworkHeader::Ipv6 => (1, 1),
                NetworkHeader::Ipv4 => (1, 2),
            };
            let flags = u32::from(level) << 24 | has_header << 28 | source.qpn & 0xff_ffff;
            entry[24..28].copy_from_slice(&flags.to_be_bytes());
        }
        entry[32..36].copy_from_slice(&self.user_index.to_be_bytes());
        let opcode_and_qpn = u32::from(self.opcode) << 24 | self.qpn;
        entry[56..60].copy_from_slice(&opcode_and_qpn.to_be_bytes());
        entry[60..62].copy_from_slice(&self.counter.to_be_bytes());
        entry[63] = (self.kind as u8) << 4;
        match self.syndrome {
            Some(syndrome) => entry[54..56].copy_from_slice(&[syndrome.vendor(), syndrome as u8]),
            None => {
                entry[36..40].copy_from_slice(&self.immediate);
                entry[44..48].copy_from_slice(&self.length.to_be_bytes());
                entry[48..56].copy_from_slice(&self.timestamp.to_be_bytes());
            }
        }
        entry
    }
}

/// The entry for a received frame, but for its owner bit.
pub(crate) fn of_frame(frame: &Frame, counter: u16, timestamp: u64) -> [u8; 64] {
    /// The check sums of all layers are right.
    const ALL_RIGHT: u8 = 0b111;
    let mut entry = [0; 64];
    let length = u32::try_from(frame.bytes().len()).unwrap_or(u32::MAX);
    entry[20..22].copy_from_slice(&frame.sum().to_be_bytes());
    entry[28] = ALL_RIGHT;
    entry[29] = frame.kinds();
    entry[44..48].copy_from_slice(&length.to_be_bytes());
    entry[48..56].copy_from_slice(&timestamp.to_be_bytes());
    entry[60..62].copy_from_slice(&counter.to_be_bytes());
    entry[63] = (Kind::Send as u8) << 4;
    entry
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_where_the_provider_looks_for_them() {
        let completion = Completion {
            kind: Kind::SendImmediate,
            qpn: 0x010203,
            user_index: 0x0a0b0c,
            counter: 0x1234,
            opcode: 0,
            length: 0x40,
            immediate: [9, 8, 7, 6],
            source: Some(Source {
                qpn: 0x445566,
                lid: 7,
                service_level: 3,
                header: NetworkHeader::Grh,
            }),
            syndrome: None,
            timestamp: 5,
        };
        let entry = completion.encode();
        assert_eq!(entry[22..28], [0, 7, 0x13, 0x44, 0x55, 0x66]);
        assert_eq!(entry[32..40], [0, 0x0a, 0x0b, 0x0c, 9, 8, 7, 6]);
        assert_eq!(entry[44..56], [0, 0, 0, 0x40, 0, 0, 0, 0, 0, 0, 0, 5]);
        assert_eq!(entry[56..], [0, 1, 2, 3, 0x12, 0x34, 0, 0x30]);
    }
}
