//! The header before a datagram's data: what is left of the network layer (40 bytes, of an IPv4 header the
//! last 20).

use crate::engine::cqe::NetworkHeader;
use crate::engine::wqe::AddressVector;
use crate::function::Function;
use crate::port::PortKind;

/// Bytes of the header.
pub(crate) const LENGTH: usize = 40;

/// The version of the table's entries that is carried in UDP.
const ROCE_V2: u8 = 2;

/// What a receiver gets of the network layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    pub(crate) bytes: [u8; LENGTH],
    pub(crate) kind: NetworkHeader,
}

/// Makes the header of a datagram with so many bytes of data. On InfiniBand without a GID there is none, but
/// its place.
pub(super) fn of(function: &Function, vector: &AddressVector, length: usize) -> Header {
    let mut header = Header {
        bytes: [0; LENGTH],
        kind: NetworkHeader::None,
    };
    let Some(to) = vector.gid_on(function.port.kind) else {
        return header;
    };
    let entry = function.objects.addresses.get(&vector.source_index);
    let (from, version) = match function.port.kind {
        PortKind::InfiniBand => (function.port.gid(), 0),
        PortKind::Roce => entry.map_or(([0; 16], 0), |entry| (entry.gid, entry.version)),
    };
    let v4 = from.starts_with(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
    if version == ROCE_V2 && v4 {
        header.kind = NetworkHeader::Ipv4;
        let bytes = &mut header.bytes[20..];
        // Before the check sum is made.
        (bytes[1], bytes[8]) = (vector.traffic_class, vector.hop_limit);
        ipv4(bytes, &from[12..], &to[12..], length);
        return header;
    }
    header.kind = if version == ROCE_V2 {
        NetworkHeader::Ipv6
    } else {
        NetworkHeader::Grh
    };
    let next = if version == ROCE_V2 { 17 } else { 0x1b };
    let first = 6 << 28 | u32::from(vector.traffic_class) << 20 | vector.flow_label;
    header.bytes[..4].copy_from_slice(&first.to_be_bytes());
    header.bytes[4..6].copy_from_slice(&u16::try_from(length).unwrap_or(u16::MAX).to_be_bytes());
    header.bytes[6] = next;
    header.bytes[7] = vector.hop_limit;
    header.bytes[8..24].copy_from_slice(&from);
    header.bytes[24..].copy_from_slice(&to);
    header
}

/// Fills in a header whose type of service and time to live are there.
fn ipv4(bytes: &mut [u8], from: &[u8], to: &[u8], length: usize) {
    /// Headers of IP, UDP and the transport, and the check sum behind the data.
    const OTHERS: usize = 20 + 8 + 12 + 8 + 4;
    let total = u16::try_from(length + OTHERS).unwrap_or(u16::MAX);
    bytes[0] = 0x45;
    bytes[2..4].copy_from_slice(&total.to_be_bytes());
    bytes[6] = 0x40;
    bytes[9] = 17;
    bytes[12..16].copy_from_slice(from);
    bytes[16..20].copy_from_slice(to);
    let (words, _) = bytes.as_chunks::<2>();
    let sum: u32 = words
        .iter()
        .map(|word| u32::from(u16::from_be_bytes(*word)))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    bytes[10..12].copy_from_slice(&(!(folded as u16)).to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_sum_of_an_ipv4_header_adds_up() {
        let mut bytes = [0; 20];
        (bytes[1], bytes[8]) = (0x28, 64);
        ipv4(&mut bytes, &[10, 8, 0, 1], &[10, 8, 0, 2], 64);
        let (words, _) = bytes.as_chunks::<2>();
        let sum: u32 = words
            .iter()
            .map(|word| u32::from(u16::from_be_bytes(*word)))
            .sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
    }
}
