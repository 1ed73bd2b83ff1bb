//! The GID: the address of a port or a multicast group, as 16 bytes in network order; and the entries of a
//! port's GID table.

use std::fmt;
use std::net::{AddrParseError, IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use uverbs_uapi::{enums, types};

/// A global identifier, `union ibv_gid` in C.
///
/// On RoCE v2 it is an IP address, IPv4 in its IPv4-mapped form; on InfiniBand it is the subnet prefix
/// followed by the GUID of the port. It prints as IPv6 text and is read from IPv6 or IPv4 text:
///
/// ```
/// # use uverbs::Gid;
/// let gid: Gid = "::ffff:10.9.0.1".parse()?;
/// assert_eq!(gid, "10.9.0.1".parse()?);
/// assert_eq!(gid.to_string(), "::ffff:10.9.0.1");
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct Gid([u8; 16]);

impl Gid {
    /// The GID with these bytes, in network order.
    pub const fn new(raw: [u8; 16]) -> Self {
        Self(raw)
    }

    /// The bytes, in network order.
    pub const fn raw(self) -> [u8; 16] {
        self.0
    }

    /// True if all bytes are zero, as in the empty entries of a GID table.
    pub fn is_zero(self) -> bool {
        self == Self::default()
    }

    /// The IPv4 address, if the GID is an IPv4-mapped one.
    pub fn as_ipv4(self) -> Option<Ipv4Addr> {
        Ipv6Addr::from(self).to_ipv4_mapped()
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(address: Ipv6Addr) -> Self {
        Self(address.octets())
    }
}

impl From<Ipv4Addr> for Gid {
    /// The IPv4-mapped GID, as in the GID tables of RoCE ports.
    fn from(address: Ipv4Addr) -> Self {
        address.to_ipv6_mapped().into()
    }
}

impl From<IpAddr> for Gid {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => address.into(),
        }
    }
}

impl From<Gid> for Ipv6Addr {
    fn from(gid: Gid) -> Self {
        Ipv6Addr::from(gid.0)
    }
}

impl FromStr for Gid {
    type Err = AddrParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse::<IpAddr>().map(Self::from)
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Ipv6Addr::from(*self), f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The wire format of packets sent from a GID, `enum ibv_gid_type` in C.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum GidType {
    /// InfiniBand.
    Ib,
    /// RoCE v1: InfiniBand's network header directly over Ethernet.
    RoceV1,
    /// RoCE v2: UDP over IPv4 or IPv6.
    RoceV2,
    /// A type that this library does not know, by its number.
    Other(u32),
}

impl From<enums::GidType> for GidType {
    fn from(number: enums::GidType) -> Self {
        match number {
            enums::GidType::IB => Self::Ib,
            enums::GidType::ROCE_V1 => Self::RoceV1,
            enums::GidType::ROCE_V2 => Self::RoceV2,
            other => Self::Other(other.0),
        }
    }
}

impl fmt::Display for GidType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ib => "IB",
            Self::RoceV1 => "RoCE v1",
            Self::RoceV2 => "RoCE v2",
            Self::Other(number) => return write!(f, "GID type {number}"),
        })
    }
}

/// An entry of a port's GID table, `struct ibv_gid_entry` in C.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GidEntry {
    /// The port, counted from 1.
    pub port: u32,
    /// The index in the port's table; address vectors name the entry by it.
    pub index: u32,
    /// The GID.
    pub gid: Gid,
    /// The wire format of packets sent from it.
    pub gid_type: GidType,
    /// The interface index of its network device; 0 if it has none in this network namespace.
    pub netdev_ifindex: u32,
}

impl From<types::GidEntry> for GidEntry {
    fn from(raw: types::GidEntry) -> Self {
        Self {
            port: raw.port_num,
            index: raw.gid_index,
            gid: Gid::new(raw.gid),
            gid_type: enums::GidType(raw.gid_type).into(),
            netdev_ifindex: raw.netdev_ifindex,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_form_that_sysfs_prints() {
        let gid: Gid = "0000:0000:0000:0000:0000:ffff:0a09:0001".parse().unwrap();
        assert_eq!(gid.as_ipv4(), Some(Ipv4Addr::new(10, 9, 0, 1)));
        assert_eq!(gid.to_string(), "::ffff:10.9.0.1");
        assert_eq!(gid, Gid::from(Ipv4Addr::new(10, 9, 0, 1)));
    }

    #[test]
    fn a_link_local_gid_is_no_ipv4_address() {
        let gid: Gid = "fe80::2:c9ff:fe00:1".parse().unwrap();
        assert_eq!(gid.as_ipv4(), None);
        assert_eq!(gid.to_string().parse(), Ok(gid));
        assert_eq!(gid.raw()[..2], [0xfe, 0x80]);
    }

    #[test]
    fn zero_is_the_empty_entry() {
        assert!(Gid::new([0; 16]).is_zero());
        assert!(!Gid::from(Ipv4Addr::UNSPECIFIED).is_zero());
    }
}
