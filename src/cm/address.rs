//! Addresses as the kernel takes and tells them, and those that do not mean what sockets mean by them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use uverbs_uapi::rdma_cm::SockaddrStorage;

use crate::error::{Error, Result, Subject, Verb};

const IPV4: u16 = libc::AF_INET as u16;
const IPV6: u16 = libc::AF_INET6 as u16;

/// An address as the kernel takes it.
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

/// The IP address and port in what the kernel tells; `None` if it is of another family.
pub(crate) fn read(bytes: &SockaddrStorage) -> Option<SocketAddr> {
    let (family, bytes) = bytes.0.split_first_chunk::<2>()?;
    let (port, bytes) = bytes.split_first_chunk::<2>()?;
    let port = u16::from_be_bytes(*port);
    match u16::from_ne_bytes(*family) {
        IPV4 => {
            let ip = Ipv4Addr::from(*bytes.first_chunk::<4>()?);
            Some(SocketAddrV4::new(ip, port).into())
        }
        IPV6 => {
            let (flow, bytes) = bytes.split_first_chunk::<4>()?;
            let (ip, bytes) = bytes.split_first_chunk::<16>()?;
            let scope = u32::from_ne_bytes(*bytes.first_chunk()?);
            let flow = u32::from_be_bytes(*flow);
            Some(SocketAddrV6::new(Ipv6Addr::from(*ip), port, flow, scope).into())
        }
        _ => None,
    }
}

/// Refuses addresses of a peer that the kernel takes for something else than a user of sockets means.
pub(crate) fn check_peer(subject: &Subject, peer: SocketAddr) -> Result<()> {
    let refuse = |why: &'static str| Err(Error::invalid(Verb::ResolveAddr, subject.clone(), why));
    match peer.ip() {
        ip if ip.is_unspecified() => refuse("a peer has an address, and this is the wildcard"),
        ip if is_loopback(ip) => refuse(
            "no RDMA device has a loopback address; this host is reached by the address of a device's network \
             interface",
        ),
        _ => check_scope(Verb::ResolveAddr, subject, peer),
    }
}

/// Refuses own addresses that mean something else to the kernel than to a user of sockets.
pub(crate) fn check_own(verb: Verb, subject: &Subject, own: SocketAddr) -> Result<()> {
    if is_loopback(own.ip()) {
        let why = "the kernel takes a loopback address for the wildcard, so the whole network would be let in";
        return Err(Error::invalid(verb, subject.clone(), why));
    }
    check_scope(verb, subject, own)
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
            assert_eq!(read(&wire.bytes), Some(address));
            assert_eq!(format!("{wire:?}"), text);
        }
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
    }

    #[test]
    fn what_means_something_else_is_refused() {
        let subject = Subject::the("connection");
        let refused = |text: &str| check_peer(&subject, text.parse().unwrap());
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
        let own = |text: &str| check_own(Verb::BindAddr, &subject, text.parse().unwrap());
        assert!(own("0.0.0.0:0").is_ok());
        assert!(own("[::]:0").is_ok());
        assert!(own("127.0.0.1:0").is_err());
    }
}
