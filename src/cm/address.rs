//! Addresses in the kernel's form, and checks for those whose meaning differs from that of sockets.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use uverbs_uapi::rdma_cm::{PortSpace, SockaddrStorage};

use crate::error::{Error, Result, Subject, Verb};
use crate::gid::Gid;

const IPV4: u16 = libc::AF_INET as u16;
const IPV6: u16 = libc::AF_INET6 as u16;
/// `AF_IB`, which libc does not name.
const INFINIBAND: u16 = 27;

/// A native InfiniBand address (`AF_IB`): an adapter's port by its GID, a partition, and a port number.
///
/// It needs no IP over InfiniBand. The port number belongs to the transport's port space, the same as with IP
/// addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IbAddr {
    /// The GID of the adapter's port.
    pub gid: Gid,
    /// The port number; 0 for one that the kernel chooses.
    pub port: u16,
    /// The partition key, including the full-membership bit.
    pub pkey: u16,
}

impl IbAddr {
    /// An address in the default partition, of which each port is a member.
    pub const fn new(gid: Gid, port: u16) -> Self {
        Self {
            gid,
            port,
            pkey: 0xffff,
        }
    }

    /// The same address in another partition.
    pub const fn in_partition(self, pkey: u16) -> Self {
        Self { pkey, ..self }
    }
}

impl fmt::Display for IbAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { gid, port, pkey } = self;
        write!(f, "[{gid}]:{port} in partition {pkey:#06x}")
    }
}

/// An address of either kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    Ip(SocketAddr),
    Ib(IbAddr),
}

impl Address {
    /// Whether it is the InfiniBand wildcard.
    pub(super) fn is_every_infiniband_port(self) -> bool {
        matches!(self, Self::Ib(own) if own.gid == Gid::default())
    }

    /// In the form that the kernel takes, for an identifier in this port space.
    pub(crate) fn wire(self, space: PortSpace) -> Wire {
        match self {
            Self::Ip(address) => Wire::from(address),
            Self::Ib(address) => Wire::of(address, space),
        }
    }

    /// In the form of a socket's address: a GID has the form of an IPv6 address.
    pub(super) fn socket(self) -> SocketAddr {
        match self {
            Self::Ip(address) => address,
            Self::Ib(IbAddr { gid, port, .. }) => SocketAddr::new(Ipv6Addr::from(gid).into(), port),
        }
    }

    /// The InfiniBand address, if it is one.
    pub(super) fn ib(self) -> Option<IbAddr> {
        match self {
            Self::Ip(_) => None,
            Self::Ib(address) => Some(address),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::Ib(address) => address.fmt(f),
        }
    }
}

/// An address in the form that the kernel takes.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Wire {
    pub(crate) bytes: SockaddrStorage,
    pub(crate) length: u16,
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match read(&self.bytes) {
            Some(address) => fmt::Display::fmt(&address, f),
            None => fmt::Debug::fmt(&self.bytes, f),
        }
    }
}

impl From<SocketAddr> for Wire {
    fn from(address: SocketAddr) -> Self {
        let mut wire = Self::default();
        let bytes = &mut wire.bytes.0;
        bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
        match address {
            SocketAddr::V4(address) => {
                bytes[..2].copy_from_slice(&IPV4.to_ne_bytes());
                bytes[4..8].copy_from_slice(&address.ip().octets());
                wire.length = 16;
            }
            SocketAddr::V6(address) => {
                bytes[..2].copy_from_slice(&IPV6.to_ne_bytes());
                bytes[4..8].copy_from_slice(&address.flowinfo().to_be_bytes());
                bytes[8..24].copy_from_slice(&address.ip().octets());
                bytes[24..28].copy_from_slice(&address.scope_id().to_ne_bytes());
                wire.length = 28;
            }
        }
        wire
    }
}

impl Wire {
    /// `struct sockaddr_ib`. A service's number consists of the port space and the port in it.
    fn of(address: IbAddr, space: PortSpace) -> Self {
        let service = u64::from(space.0) << 16 | u64::from(address.port);
        // Without a port the kernel compares the rest of the number.
        let mask = match address.port {
            0 => !0xffff,
            _ => u64::MAX,
        };
        let mut wire = Self {
            length: 48,
            ..Self::default()
        };
        let bytes = &mut wire.bytes.0;
        bytes[..2].copy_from_slice(&INFINIBAND.to_ne_bytes());
        bytes[2..4].copy_from_slice(&address.pkey.to_be_bytes());
        bytes[8..24].copy_from_slice(&address.gid.raw());
        bytes[24..32].copy_from_slice(&service.to_be_bytes());
        bytes[32..40].copy_from_slice(&mask.to_be_bytes());
        wire
    }
}

/// The address in the kernel's answer; `None` if it is of another family.
pub(crate) fn read(bytes: &SockaddrStorage) -> Option<Address> {
    let (family, bytes) = bytes.0.split_first_chunk::<2>()?;
    // For InfiniBand these bytes are the partition.
    let (port, bytes) = bytes.split_first_chunk::<2>()?;
    let port = u16::from_be_bytes(*port);
    let ip = match u16::from_ne_bytes(*family) {
        IPV4 => {
            let ip = Ipv4Addr::from(*bytes.first_chunk::<4>()?);
            SocketAddrV4::new(ip, port).into()
        }
        IPV6 => {
            let (flow, bytes) = bytes.split_first_chunk::<4>()?;
            let (ip, bytes) = bytes.split_first_chunk::<16>()?;
            let scope = u32::from_ne_bytes(*bytes.first_chunk()?);
            let flow = u32::from_be_bytes(*flow);
            SocketAddrV6::new(Ipv6Addr::from(*ip), port, flow, scope).into()
        }
        INFINIBAND => {
            let (_flow, bytes) = bytes.split_first_chunk::<4>()?;
            let (gid, bytes) = bytes.split_first_chunk::<16>()?;
            let service = u64::from_be_bytes(*bytes.first_chunk()?);
            return Some(Address::Ib(IbAddr {
                gid: Gid::new(*gid),
                port: service as u16,
                pkey: port,
            }));
        }
        _ => return None,
    };
    Some(Address::Ip(ip))
}

/// Refuses addresses of a peer that mean something else to the kernel than to a user of sockets.
pub(crate) fn check_peer(subject: &Subject, peer: Address) -> Result<()> {
    let refuse = |why: &'static str| Err(Error::invalid(Verb::ResolveAddr, subject.clone(), why));
    let peer = match peer {
        Address::Ip(peer) => peer,
        Address::Ib(IbAddr { gid, .. }) => {
            return match Ipv6Addr::from(gid) {
                gid if gid.is_unspecified() => refuse("a peer's GID must not be all zeros"),
                gid if gid.is_loopback() => refuse("no port has the loopback address as its GID"),
                _ => Ok(()),
            };
        }
    };
    match peer.ip() {
        ip if ip.is_unspecified() => refuse("a peer's address must not be the wildcard"),
        ip if is_loopback(ip) => refuse(
            "no RDMA device has a loopback address; this host is reached by the address of a device's network \
             interface",
        ),
        _ => check_scope(Verb::ResolveAddr, subject, peer),
    }
}

/// Refuses own addresses that mean something else to the kernel than to a user of sockets.
pub(crate) fn check_own(verb: Verb, subject: &Subject, own: Address) -> Result<()> {
    if is_loopback(own.socket().ip()) {
        let why = "the kernel takes a loopback address for the wildcard, so the whole network would be let in";
        return Err(Error::invalid(verb, subject.clone(), why));
    }
    match own {
        Address::Ip(own) => check_scope(verb, subject, own),
        Address::Ib(_) => Ok(()),
    }
}

/// Refuses a link-local address that does not say on which link.
fn check_scope(verb: Verb, subject: &Subject, address: SocketAddr) -> Result<()> {
    match address {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() && v6.scope_id() == 0 => {
            let why = "a link-local address needs its scope, the index of the network interface";
            Err(Error::invalid(verb, subject.clone(), why))
        }
        _ => Ok(()),
    }
}

fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_go_both_ways() {
        for text in ["10.9.0.2:7471", "[fe80::1%3]:80", "[2001:db8::7]:65535"] {
            let address: SocketAddr = text.parse().unwrap();
            let wire = Wire::from(address);
            assert_eq!(read(&wire.bytes), Some(Address::Ip(address)));
            assert_eq!(format!("{wire:?}"), text);
        }
        let address = IbAddr::new("fe80::5".parse().unwrap(), 7471).in_partition(0x8001);
        let wire = Address::Ib(address).wire(PortSpace::TCP);
        assert_eq!(read(&wire.bytes), Some(Address::Ib(address)));
        assert_eq!(format!("{wire:?}"), "[fe80::5]:7471 in partition 0x8001");
        assert_eq!(read(&SockaddrStorage::default()), None);
    }

    #[test]
    fn bytes_lie_where_c_has_them() {
        let wire = Wire::from("10.9.0.2:258".parse::<SocketAddr>().unwrap());
        assert_eq!(wire.bytes.0[..8], [2, 0, 1, 2, 10, 9, 0, 2]);
        assert_eq!(wire.length, 16);
        let wire = Wire::from("[fe80::1%3]:258".parse::<SocketAddr>().unwrap());
        assert_eq!(wire.bytes.0[..10], [10, 0, 1, 2, 0, 0, 0, 0, 0xfe, 0x80]);
        assert_eq!((wire.bytes.0[24], wire.length), (3, 28));
        let address = IbAddr::new("fe80::5".parse().unwrap(), 258);
        let wire = Address::Ib(address).wire(PortSpace::UDP);
        assert_eq!(wire.bytes.0[..9], [27, 0, 0xff, 0xff, 0, 0, 0, 0, 0xfe]);
        assert_eq!(wire.bytes.0[23..32], [5, 0, 0, 0, 0, 1, 0x11, 1, 2]);
        assert_eq!((&wire.bytes.0[32..40], wire.length), (&[0xff; 8][..], 48));
        let any = IbAddr { port: 0, ..address };
        let wire = Address::Ib(any).wire(PortSpace::UDP);
        assert_eq!(wire.bytes.0[37..40], [0xff, 0, 0]);
    }

    #[test]
    fn what_means_something_else_is_refused() {
        let subject = Subject::the("connection");
        let refused = |text: &str| check_peer(&subject, Address::Ip(text.parse().unwrap()));
        for text in [
            "127.0.0.1:1",
            "127.9.9.9:1",
            "[::1]:1",
            "[::ffff:127.0.0.1]:1",
            "0.0.0.0:1",
            "[::]:1",
            "[fe80::1]:1",
        ] {
            assert!(refused(text).is_err(), "{text}");
        }
        assert!(refused("[fe80::1%2]:1").is_ok());
        assert!(refused("10.9.0.1:1").is_ok());
        let own = |text: &str| {
            let own = Address::Ip(text.parse().unwrap());
            check_own(Verb::BindAddr, &subject, own)
        };
        let gid = |text: &str| Address::Ib(IbAddr::new(text.parse().unwrap(), 1));
        assert!(check_peer(&subject, gid("::")).is_err());
        assert!(check_peer(&subject, gid("::1")).is_err());
        assert!(check_peer(&subject, gid("fe80::1")).is_ok());
        assert!(check_own(Verb::BindAddr, &subject, gid("::1")).is_err());
        assert!(check_own(Verb::BindAddr, &subject, gid("::")).is_ok());
        assert!(own("0.0.0.0:0").is_ok());
        assert!(own("[::]:0").is_ok());
        assert!(own("127.0.0.1:0").is_err());
    }
}
