//! The Ethernet station that takes the packets for a peer, and its VLAN, from the kernel's routes, neighbours
//! and interfaces (rtnetlink(7)).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::conversation::{Channel, Conversation, Socket};
use super::message::{Attribute, Request, attributes};
use crate::device::failure::{Failure, Malformed};
use crate::error::Errno;

/// An Ethernet address.
pub(crate) type Mac = [u8; 6];

/// The way from an interface to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Station {
    /// The peer's own address, or its router's.
    pub(crate) mac: Mac,
    /// The interface's VLAN, if it is a VLAN interface.
    pub(crate) vlan: Option<u16>,
}

/// How long a neighbour may take to answer, and how often the kernel is made to ask it meanwhile: as in
/// libibverbs.
const LIMIT: Duration = Duration::from_secs(3);
const ASK_AGAIN: Duration = Duration::from_millis(270);
/// How often this side checks whether the neighbour has answered.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// The port of datagrams that nothing should read (RFC 863).
const DISCARD: u16 = 9;

/// The station by which `to` is reached from the interface with this index, which has the address `from`. If
/// the kernel does not know the neighbour it asks for it, which may take three seconds.
///
/// # Errors
/// `EHOSTUNREACH` if there is no route, or no answer; `EINVAL` if the interface is not an Ethernet interface;
/// `EOPNOTSUPP` before Linux 5.0.
pub(crate) fn station(interface: u32, from: IpAddr, to: IpAddr) -> Result<Station, Errno> {
    let mut kernel = Routes::open()?;
    let link = kernel.link(interface)?;
    let (mac, vlan) = (link.mac.ok_or(Errno::INVAL)?, link.vlan);
    let mac = match kernel.next(interface, to)? {
        Next::Here => mac,
        Next::Hop(hop) => match mac_within(hop) {
            Some(mac) => mac,
            None => kernel.neighbour_in_time(interface, from, hop)?,
        },
    };
    Ok(Station { mac, vlan })
}

/// The Ethernet address that an IP address contains: the address of a group, or of an interface whose
/// link-local address was made from it (RFC 1112, 2464 and 4291).
fn mac_within(address: IpAddr) -> Option<Mac> {
    match address {
        IpAddr::V4(group) if group.is_multicast() => {
            let [_, b, c, d] = group.octets();
            Some([0x01, 0x00, 0x5e, b & 0x7f, c, d])
        }
        IpAddr::V4(_) => None,
        IpAddr::V6(address) => match address.octets() {
            [0xff, .., a, b, c, d] => Some([0x33, 0x33, a, b, c, d]),
            [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a, b, c, 0xff, 0xfe, d, e, f] => {
                Some([a ^ 2, b, c, d, e, f])
            }
            _ => None,
        },
    }
}

/// The next hop of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Next {
    /// To this host itself.
    Here,
    /// To the peer, or to a router.
    Hop(IpAddr),
}

/// The properties of an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Link {
    mac: Option<Mac>,
    vlan: Option<u16>,
}

/// The kernel's routing netlink.
struct Routes<C = Socket>(Conversation<C>);

impl Routes {
    fn open() -> Result<Self, Errno> {
        Ok(Self(Conversation::new(Socket::of_routes()?)))
    }
}

impl<C: Channel> Routes<C> {
    fn link(&mut self, interface: u32) -> Result<Link, Errno> {
        let request = Request::answered(libc::RTM_GETLINK, libc::RTM_NEWLINK, &of_link(interface));
        let link = self.ask(request, link)?;
        link.ok_or(Errno::NODEV)
    }

    fn next(&mut self, interface: u32, to: IpAddr) -> Result<Next, Errno> {
        let request = Request::answered(libc::RTM_GETROUTE, libc::RTM_NEWROUTE, &of_route(to))
            .with_address(libc::RTA_DST, to)
            .with_u32(libc::RTA_OIF, interface);
        // The kernel has several errors for a route that leads nowhere.
        let found = self.ask(request, |payload| next(payload, to));
        found
            .map_err(|_| Errno::HOSTUNREACH)?
            .flatten()
            .ok_or(Errno::HOSTUNREACH)
    }

    /// A neighbour's address, if it is known.
    fn neighbour(&mut self, interface: u32, hop: IpAddr) -> Result<Option<Mac>, Errno> {
        let body = of_neighbour(interface, hop);
        let request = Request::answered(libc::RTM_GETNEIGH, libc::RTM_NEWNEIGH, &body)
            .with_address(libc::NDA_DST, hop);
        match self.ask(request, neighbour) {
            Ok(found) => Ok(found.flatten()),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// A neighbour's address. If it is not known, a datagram makes the kernel ask for it.
    fn neighbour_in_time(
        &mut self,
        interface: u32,
        from: IpAddr,
        hop: IpAddr,
    ) -> Result<Mac, Errno> {
        if let Some(mac) = self.neighbour(interface, hop)? {
            return Ok(mac);
        }
        // The router of an IPv4 route may have an IPv6 address.
        let from = if from.is_ipv4() == hop.is_ipv4() {
            from
        } else {
            any_like(hop)
        };
        let socket = UdpSocket::bind(socket_address(from, 0, interface)).map_err(number)?;
        let begun = Instant::now();
        let mut ask_at = Duration::ZERO;
        while begun.elapsed() < LIMIT {
            if begun.elapsed() >= ask_at {
                ask_at += ASK_AGAIN;
                // The call may return an error about an earlier datagram, if a neighbour did not answer.
                let _ = socket.send_to(&[0], socket_address(hop, DISCARD, interface));
            }
            if let Some(mac) = self.neighbour(interface, hop)? {
                return Ok(mac);
            }
            sleep(LOOK_AGAIN);
        }
        Err(Errno::HOSTUNREACH)
    }

    /// Requests one thing.
    fn ask<T>(
        &mut self,
        request: Request,
        parse: impl Fn(&[u8]) -> Result<T, Malformed>,
    ) -> Result<Option<T>, Errno> {
        match self.0.ask(request, parse) {
            Ok(answers) => Ok(answers.into_iter().next()),
            Err(Failure::Refused(errno)) => Err(errno),
            Err(Failure::Malformed(_)) => Err(Errno::IO),
        }
    }
}

fn number(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// The wildcard address of the same family.
fn any_like(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

fn socket_address(address: IpAddr, port: u16, interface: u32) -> SocketAddr {
    match address {
        IpAddr::V4(address) => (address, port).into(),
        IpAddr::V6(address) => SocketAddrV6::new(address, port, 0, interface).into(),
    }
}

/// The number of an address's family.
fn family(address: IpAddr) -> u8 {
    (match address {
        IpAddr::V4(_) => libc::AF_INET,
        IpAddr::V6(_) => libc::AF_INET6,
    }) as u8
}

/// A `struct ifinfomsg` of one interface.
fn of_link(interface: u32) -> [u8; LINK_LENGTH] {
    let mut body = [0; LINK_LENGTH];
    body[4..8].copy_from_slice(&interface.to_ne_bytes());
    body
}

/// A `struct rtmsg` of one address.
fn of_route(to: IpAddr) -> [u8; ROUTE_LENGTH] {
    let mut body = [0; ROUTE_LENGTH];
    body[0] = family(to);
    body[1] = if to.is_ipv4() { 32 } else { 128 };
    body
}

/// A `struct ndmsg` of one neighbour.
fn of_neighbour(interface: u32, hop: IpAddr) -> [u8; NEIGHBOUR_LENGTH] {
    let mut body = [0; NEIGHBOUR_LENGTH];
    body[0] = family(hop);
    body[4..8].copy_from_slice(&interface.to_ne_bytes());
    body
}

/// The lengths of these structs.
const LINK_LENGTH: usize = 16;
const ROUTE_LENGTH: usize = 12;
const NEIGHBOUR_LENGTH: usize = 12;

/// The offsets of the route's kind in `struct rtmsg`, and of the neighbour's state in `struct ndmsg`.
const ROUTE_KIND: usize = 7;
const NEIGHBOUR_STATE: usize = 8;

/// The states in which a neighbour's address is valid.
const KNOWN: u16 = libc::NUD_REACHABLE
    | libc::NUD_STALE
    | libc::NUD_DELAY
    | libc::NUD_PROBE
    | libc::NUD_PERMANENT
    | libc::NUD_NOARP;

/// `IFLA_VLAN_ID`, in the attributes of a VLAN interface.
const VLAN_ID: u16 = 1;

/// The struct at the start of a message, and the attributes after it.
fn split(payload: &[u8], length: usize) -> Result<(&[u8], &[u8]), Malformed> {
    payload
        .split_at_checked(length)
        .ok_or_else(|| "an answer of routing netlink is cut off".into())
}

/// The answer about an interface.
fn link(payload: &[u8]) -> Result<Link, Malformed> {
    let (_, rest) = split(payload, LINK_LENGTH)?;
    let mut link = Link::default();
    for attribute in attributes(rest) {
        let attribute = attribute?;
        match attribute.kind {
            libc::IFLA_ADDRESS => link.mac = attribute.bytes().try_into().ok(),
            libc::IFLA_LINKINFO => link.vlan = vlan(attribute)?,
            _ => {}
        }
    }
    Ok(link)
}

/// The VLAN in the attributes about an interface's kind.
fn vlan(info: Attribute<'_>) -> Result<Option<u16>, Malformed> {
    let (mut is_vlan, mut number) = (false, None);
    for attribute in info.nested() {
        let attribute = attribute?;
        match attribute.kind {
            libc::IFLA_INFO_KIND => is_vlan = attribute.bytes() == b"vlan\0",
            libc::IFLA_INFO_DATA if is_vlan => {
                for attribute in attribute.nested() {
                    let attribute = attribute?;
                    if let (VLAN_ID, Ok(id)) = (attribute.kind, attribute.bytes().try_into()) {
                        number = Some(u16::from_ne_bytes(id));
                    }
                }
            }
            _ => {}
        }
    }
    Ok(number)
}

/// The answer about a route; `None` if the route leads nowhere.
fn next(payload: &[u8], to: IpAddr) -> Result<Option<Next>, Malformed> {
    let (route, rest) = split(payload, ROUTE_LENGTH)?;
    match route[ROUTE_KIND] {
        libc::RTN_LOCAL => return Ok(Some(Next::Here)),
        libc::RTN_BLACKHOLE | libc::RTN_UNREACHABLE | libc::RTN_PROHIBIT | libc::RTN_THROW => {
            return Ok(None);
        }
        _ => {}
    }
    let mut hop = to;
    for attribute in attributes(rest) {
        let attribute = attribute?;
        let router = match attribute.kind {
            libc::RTA_GATEWAY => Some(attribute.bytes()),
            // The address's family comes before it.
            libc::RTA_VIA => attribute.bytes().get(2..),
            _ => None,
        };
        if let Some(router) = router {
            hop = address(router)?;
        }
    }
    Ok(Some(Next::Hop(hop)))
}

/// The answer about a neighbour; `None` if its address is not known.
fn neighbour(payload: &[u8]) -> Result<Option<Mac>, Malformed> {
    let (neighbour, rest) = split(payload, NEIGHBOUR_LENGTH)?;
    let state = [neighbour[NEIGHBOUR_STATE], neighbour[NEIGHBOUR_STATE + 1]];
    if u16::from_ne_bytes(state) & KNOWN == 0 {
        return Ok(None);
    }
    for attribute in attributes(rest) {
        let attribute = attribute?;
        if attribute.kind == libc::NDA_LLADDR {
            return Ok(attribute.bytes().try_into().ok());
        }
    }
    Ok(None)
}

fn address(bytes: &[u8]) -> Result<IpAddr, Malformed> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    let v6 = <[u8; 16]>::try_from(bytes).map(IpAddr::from);
    v4.or(v6)
        .map_err(|_| format!("an IP address has {} bytes", bytes.len()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An attribute as the kernel writes it.
    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = 4 + value.len();
        let head = [(length as u16).to_ne_bytes(), kind.to_ne_bytes()].concat();
        let mut bytes = [head, value.to_vec()].concat();
        bytes.resize(length.next_multiple_of(4), 0);
        bytes
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn groups_and_link_local_addresses_contain_the_station() {
        let within = |text| mac_within(ip(text));
        assert_eq!(within("239.129.2.3"), Some([1, 0, 0x5e, 1, 2, 3]));
        assert_eq!(within("192.0.2.1"), None);
        assert_eq!(within("ff0e::1:2"), Some([0x33, 0x33, 0, 1, 0, 2]));
        let mac = [0x52, 0x54, 0, 0x12, 0x34, 0x56];
        assert_eq!(within("fe80::5054:ff:fe12:3456"), Some(mac));
        // The link-local address of an interface that does not reveal its Ethernet address (RFC 7217).
        assert_eq!(within("fe80::1234:5678:9abc:def0"), None);
        assert_eq!(within("2001:db8::1"), None);
    }

    #[test]
    fn a_route_leads_here_to_a_router_to_the_peer_or_nowhere() {
        let to = ip("192.0.2.9");
        let route = |kind, rest: &[u8]| {
            let mut body = of_route(to).to_vec();
            body[ROUTE_KIND] = kind;
            body.extend_from_slice(rest);
            next(&body, to)
        };
        assert_eq!(route(libc::RTN_LOCAL, &[]), Ok(Some(Next::Here)));
        assert_eq!(route(libc::RTN_UNICAST, &[]), Ok(Some(Next::Hop(to))));
        assert_eq!(route(libc::RTN_UNREACHABLE, &[]), Ok(None));
        let router = attribute(libc::RTA_GATEWAY, &[192, 0, 2, 1]);
        let expected = Ok(Some(Next::Hop(ip("192.0.2.1"))));
        assert_eq!(route(libc::RTN_UNICAST, &router), expected);
        let family = libc::AF_INET6.to_ne_bytes();
        let via = [&family[..2], &ip_bytes("fe80::1")].concat();
        let via = attribute(libc::RTA_VIA, &via);
        let expected = Ok(Some(Next::Hop(ip("fe80::1"))));
        assert_eq!(route(libc::RTN_UNICAST, &via), expected);
        assert!(route(libc::RTN_UNICAST, &attribute(libc::RTA_GATEWAY, &[1])).is_err());
        assert!(next(&[0; 4], to).is_err());
    }

    fn ip_bytes(text: &str) -> [u8; 16] {
        text.parse::<Ipv6Addr>().unwrap().octets()
    }

    #[test]
    fn a_neighbour_counts_once_it_has_answered() {
        let mac = [2, 0, 0, 0, 0, 1];
        let of = |state: u16| {
            let mut body = of_neighbour(1, ip("192.0.2.9")).to_vec();
            body[NEIGHBOUR_STATE..][..2].copy_from_slice(&state.to_ne_bytes());
            body.extend(attribute(libc::NDA_LLADDR, &mac));
            neighbour(&body)
        };
        assert_eq!(of(libc::NUD_STALE), Ok(Some(mac)));
        assert_eq!(of(libc::NUD_PERMANENT), Ok(Some(mac)));
        assert_eq!(of(libc::NUD_INCOMPLETE), Ok(None));
        assert_eq!(of(libc::NUD_FAILED), Ok(None));
    }

    #[test]
    fn an_interface_says_its_vlan() {
        let mac = [2, 0, 0, 0, 0, 1];
        let link_with = |kind: &[u8]| {
            let id = attribute(VLAN_ID, &7u16.to_ne_bytes());
            let info = [
                attribute(libc::IFLA_INFO_KIND, kind),
                attribute(libc::IFLA_INFO_DATA, &id),
            ]
            .concat();
            let body = [
                of_link(3).to_vec(),
                attribute(libc::IFLA_ADDRESS, &mac),
                attribute(libc::IFLA_LINKINFO, &info),
            ]
            .concat();
            link(&body)
        };
        let (mac, vlan) = (Some(mac), Some(7));
        assert_eq!(link_with(b"vlan\0"), Ok(Link { mac, vlan }));
        // For this kind the same number has another meaning.
        assert_eq!(link_with(b"macvlan\0"), Ok(Link { mac, vlan: None }));
    }
}
