//! The global route header that lies before a received datagram: 40 bytes at the start of its buffer.
//!
//! On InfiniBand and RoCE v1 it is a GRH, which has the layout of an IPv6 header; on RoCE v2 over IPv6 it is
//! the IPv6 header, and over IPv4 the IPv4 header, in the last 20 of the 40 bytes.
//!
//! Source: the InfiniBand specification, volume 1, section 8.3, and annex A17 (RoCE v2).

use std::net::Ipv4Addr;

use crate::gid::Gid;

/// Bytes that the header takes, whether all of them are used or not.
pub const GRH_LENGTH: usize = 40;

/// A received datagram's header: the fields that all networks have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grh {
    /// The sender.
    pub sgid: Gid,
    /// The address that it was sent to: of a port of this side, or of a multicast group.
    pub dgid: Gid,
    /// Traffic class; for IPv4 the type of service.
    pub traffic_class: u8,
    /// Flow label, 20 bits; 0 for IPv4.
    pub flow_label: u32,
    /// Hop limit; for IPv4 the time to live.
    pub hop_limit: u8,
    /// The network that it arrived over.
    pub network: GrhNetwork,
}

/// The networks that headers come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GrhNetwork {
    /// IPv4, with addresses mapped into IPv6.
    Ipv4,
    /// IPv6, or InfiniBand's own header, which looks the same.
    Ipv6,
}

impl Grh {
    /// Reads a header from the first 40 bytes of a received datagram's buffer; `None` if there is no header.
    ///
    /// An IPv4 header is recognised by its version and length in the last 20 bytes. With suitable addresses
    /// an IPv6 header looks the same: then the checksum decides. Otherwise the checksum is ignored, since rxe
    /// omits it in datagrams that stay on the machine.
    pub fn parse(bytes: &[u8; GRH_LENGTH]) -> Option<Self> {
        Self::parse_ipv4(bytes).or_else(|| Self::parse_ipv6(bytes))
    }

    fn parse_ipv4(bytes: &[u8; GRH_LENGTH]) -> Option<Self> {
        let header: &[u8; 20] = bytes.last_chunk()?;
        let may_be_ipv6 = bytes[0] >> 4 == 6;
        if header[0] != 0x45 || may_be_ipv6 && !checksum_holds(header) {
            return None;
        }
        let address =
            |at: usize| Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3]);
        Some(Self {
            sgid: address(12).into(),
            dgid: address(16).into(),
            traffic_class: header[1],
            flow_label: 0,
            hop_limit: header[8],
            network: GrhNetwork::Ipv4,
        })
    }

    fn parse_ipv6(header: &[u8; GRH_LENGTH]) -> Option<Self> {
        let [a, b, c, d, ..] = *header;
        let word = u32::from_be_bytes([a, b, c, d]);
        if word >> 28 != 6 {
            return None;
        }
        let gid = |at: usize| header[at..at + 16].try_into().map(Gid::new).ok();
        Some(Self {
            sgid: gid(8)?,
            dgid: gid(24)?,
            traffic_class: (word >> 20) as u8,
            flow_label: word & 0x000f_ffff,
            hop_limit: header[7],
            network: GrhNetwork::Ipv6,
        })
    }
}

/// Whether the checksum of an IPv4 header is right (RFC 791).
fn checksum_holds(header: &[u8; 20]) -> bool {
    let words = header
        .chunks_exact(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    (sum & 0xffff) + (sum >> 16) == 0xffff
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An IPv4 header from 10.9.0.1 to 10.9.0.2, TOS 0x28, TTL 64, with its checksum.
    fn ipv4() -> [u8; GRH_LENGTH] {
        let mut bytes = [0; GRH_LENGTH];
        bytes[20..].copy_from_slice(&[
            0x45, 0x28, 0, 60, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2,
        ]);
        let sum: u32 = bytes[20..]
            .chunks(2)
            .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]))
            .sum();
        let checksum = !(((sum & 0xffff) + (sum >> 16)) as u16);
        bytes[30..32].copy_from_slice(&checksum.to_be_bytes());
        bytes
    }

    #[test]
    fn reads_ipv4_from_the_last_20_bytes() {
        let grh = Grh::parse(&ipv4()).unwrap();
        assert_eq!(grh.network, GrhNetwork::Ipv4);
        assert_eq!(grh.sgid, "10.9.0.1".parse().unwrap());
        assert_eq!(grh.dgid, "10.9.0.2".parse().unwrap());
        assert_eq!((grh.traffic_class, grh.hop_limit), (0x28, 64));
    }

    #[test]
    fn reads_ipv6() {
        let mut bytes = [0; GRH_LENGTH];
        bytes[..8].copy_from_slice(&[0x62, 0x8a, 0xbc, 0xde, 0, 20, 17, 5]);
        bytes[8..24].copy_from_slice(&"fe80::1".parse::<Gid>().unwrap().raw());
        bytes[24..].copy_from_slice(&"ff02::2".parse::<Gid>().unwrap().raw());
        let grh = Grh::parse(&bytes).unwrap();
        assert_eq!(grh.network, GrhNetwork::Ipv6);
        assert_eq!(
            (grh.traffic_class, grh.flow_label, grh.hop_limit),
            (0x28, 0xabcde, 5)
        );
        assert_eq!(
            (grh.sgid.to_string(), grh.dgid.to_string()),
            ("fe80::1".into(), "ff02::2".into())
        );
    }

    /// If the bytes can be either header, a wrong checksum must not turn parts of IPv6 addresses into IPv4
    /// ones.
    #[test]
    fn the_checksum_decides_between_ipv4_and_ipv6() {
        let mut bytes = ipv4();
        bytes[0] = 0x60;
        let network = |bytes: &[u8; GRH_LENGTH]| Grh::parse(bytes).map(|grh| grh.network);
        assert_eq!(network(&bytes), Some(GrhNetwork::Ipv4));
        bytes[30] ^= 1;
        assert_eq!(network(&bytes), Some(GrhNetwork::Ipv6));
    }

    /// rxe delivers headers without a checksum.
    #[test]
    fn ipv4_needs_no_checksum_where_it_cannot_be_ipv6() {
        let mut bytes = ipv4();
        let with = Grh::parse(&bytes);
        bytes[30..32].fill(0);
        assert!(with.is_some());
        assert_eq!(Grh::parse(&bytes), with);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: [u8; GRH_LENGTH]) {
            if let Some(grh) = Grh::parse(&bytes) {
                prop_assert!(grh.flow_label < 1 << 20);
            }
        }
    }
}
