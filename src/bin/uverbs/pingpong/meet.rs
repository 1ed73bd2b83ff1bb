//! The TCP connection by which the two sides find each other.

use std::io;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};

use uverbs::cm::{self, Initiates, Listener, Listens, Pending, Resolve, Resolved};

use crate::failure::{Failure, Kind, Result, peer};
use crate::select;

/// How long to wait before the next attempt to connect.
const PAUSE: Duration = Duration::from_millis(50);

/// Listens on all addresses, IPv6 and IPv4, or only IPv4 if the system has no IPv6.
pub(crate) fn listen_on(port: u16) -> Result<TcpListener> {
    let listener = match listen_on_both(port) {
        Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) => TcpListener::bind(("0.0.0.0", port)),
        result => result.map_err(io::Error::from),
    };
    listener.map_err(|error| {
        Failure::new(
            Kind::Failed,
            format_args!("cannot listen on TCP port {port}: {error}"),
        )
    })
}

/// Listens on one socket for both; whether it accepts IPv4 by default depends on the system's configuration.
fn listen_on_both(port: u16) -> Result<TcpListener, Errno> {
    let socket = socket_with(
        AddressFamily::INET6,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_ipv6_v6only(&socket, false)?;
    bind(
        &socket,
        &SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0),
    )?;
    listen(&socket, 1)?;
    Ok(TcpListener::from(socket))
}

/// Waits for a client.
pub(crate) fn accept(listener: &TcpListener) -> Result<TcpStream> {
    let accepted = listener.accept();
    accepted.map(|(stream, _)| stream).map_err(|error| {
        Failure::new(
            Kind::Failed,
            format_args!("cannot accept a client: {error}"),
        )
    })
}

/// Connects to the server, and retries for some time while it does not listen yet.
pub(crate) fn connect(host: &str, port: u16, patience: Duration) -> Result<TcpStream> {
    let addresses = resolve(host, port)?;
    if addresses.iter().all(lacks_scope) {
        let text = format!("{host} is link-local, and needs its network device: {host}%eth0");
        return Err(Failure::new(Kind::Usage, text));
    }
    let deadline = Instant::now() + patience;
    loop {
        let error = match connect_to_any(&addresses, deadline) {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || !may_pass(error.kind()) {
            return Err(Failure::new(
                Kind::Peer,
                format_args!("cannot connect to {host}, TCP port {port}: {error}"),
            ));
        }
        std::thread::sleep(PAUSE.min(left));
    }
}

/// The addresses of a host, given by name or address, with the network device if the address is link-local
/// (`fe80::1%eth0`): at least one.
pub(crate) fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>> {
    addresses(host, port).map_err(|why| {
        let text = format!("cannot resolve the name of the peer, '{host}': {why}");
        Failure::new(Kind::Peer, text)
    })
}

/// The addresses of a host, or why there are none.
fn addresses(host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    match (host, port).to_socket_addrs() {
        Ok(addresses) if addresses.len() > 0 => Ok(addresses.collect()),
        Ok(_) => Err("it has no address".into()),
        Err(error) => {
            let why = error.to_string();
            let resolver = "failed to lookup address information: ";
            Err(why.strip_prefix(resolver).unwrap_or(&why).to_owned())
        }
    }
}

/// The way to a peer by address, of those that its name has the first that leads to it.
pub(crate) fn way_to<T: Initiates>(
    addresses: &[SocketAddr],
    patience: Duration,
) -> Result<Resolved<T>> {
    found(cm::resolve(addresses)?, patience)
}

/// The way that a resolution finds.
pub(crate) fn found<T: Initiates>(resolve: Resolve<T>, patience: Duration) -> Result<Resolved<T>> {
    let resolving = resolve.start().map_err(select::reason)?;
    let found = resolving.within(patience);
    found.map_err(|step| select::reason(peer(step)))
}

/// Listens on an address of this host for connections by address.
pub(crate) fn listen_by_address<T: Listens>(host: &str, port: u16) -> Result<Listener<T>> {
    let own = addresses(host, port).map_err(|why| {
        let text = format!("cannot listen on '{host}': {why}");
        Failure::new(Kind::NotFound, text)
    })?;
    cm::listen(&own[..])?.start().map_err(select::reason)
}

/// Whether it is a link-local address without the network device that it is reached by.
fn lacks_scope(address: &SocketAddr) -> bool {
    match address {
        SocketAddr::V4(_) => false,
        SocketAddr::V6(address) => address.ip().is_unicast_link_local() && address.scope_id() == 0,
    }
}

/// Tries all addresses once; the error is the last one's.
fn connect_to_any(addresses: &[SocketAddr], deadline: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::TimedOut);
    for address in addresses {
        // A time limit of zero would be an error.
        let left = deadline.saturating_duration_since(Instant::now());
        match TcpStream::connect_timeout(address, left.max(Duration::from_millis(1))) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// True if the result may change when a server or a network comes up.
fn may_pass(kind: io::ErrorKind) -> bool {
    matches!(
        kind,
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::TimedOut
    )
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddrV4};
    use std::os::fd::OwnedFd;

    use rustix::net::getsockname;

    use super::*;

    /// A port at which no program listens, and its holder: while the holder exists, no other program gets the
    /// port, and no client that connects gets it as its own port, which would connect the client to itself.
    fn held_port() -> (u16, OwnedFd) {
        let holder = socket_with(
            AddressFamily::INET,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        // A listener that sets this too may share the port.
        sockopt::set_socket_reuseaddr(&holder, true).unwrap();
        bind(&holder, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
        let name = SocketAddr::try_from(getsockname(&holder).unwrap()).unwrap();
        (name.port(), holder)
    }

    #[test]
    fn a_client_may_come_before_the_server() {
        let (port, _holder) = held_port();
        let client =
            std::thread::spawn(move || connect("127.0.0.1", port, Duration::from_secs(10)));
        std::thread::sleep(2 * PAUSE);
        let listener = listen_on(port).unwrap();
        accept(&listener).unwrap();
        client.join().unwrap().unwrap();
    }

    #[test]
    fn nobody_there_is_a_matter_of_the_peer_and_of_time() {
        let start = Instant::now();
        let (port, _holder) = held_port();
        let failure = connect("127.0.0.1", port, Duration::from_millis(80)).unwrap_err();
        assert_eq!(failure.kind(), Kind::Peer);
        assert!(failure.to_string().contains("refused"), "{failure}");
        assert!(start.elapsed() >= Duration::from_millis(80));
    }

    #[test]
    fn a_name_without_address_says_so() {
        // It is never sent to a name server: a label has at most 63 characters.
        let name = "x".repeat(64);
        let failure = connect(&name, 1, Duration::ZERO).unwrap_err();
        assert_eq!(failure.kind(), Kind::Peer);
        assert!(failure.to_string().contains("cannot resolve"), "{failure}");
    }

    #[test]
    fn a_port_in_use_says_so() {
        let holder = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = holder.local_addr().unwrap().port();
        let failure = listen_on(port).unwrap_err();
        assert!(failure.to_string().contains("in use"), "{failure}");
    }
}
