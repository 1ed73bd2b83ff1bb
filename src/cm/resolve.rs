//! Address resolution: from a peer's address to the device and the path that lead there.

use std::fmt;
use std::marker::PhantomData;
use std::net::{SocketAddr, ToSocketAddrs};
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;
use std::vec;

use uverbs_uapi::enums::QpType;
use uverbs_uapi::rdma_cm::{Event, EventResp, IdOption};

use super::address::{self, Address, IbAddr};
use super::command::{ResolveRoute, resolve_addr};
use super::event;
use super::id::Id;
use super::pending::describe::Describe;
use super::pending::{Failed, Pending, Step, subject_of};
use super::queue_pair::{self, QueuePair};
use super::route::Route;
use super::space::Initiates;
use crate::error::{Cause, Errno, Error, Result, Subject, Verb};

/// How long the kernel may take to find the neighbour, and then the path, by default.
const PATIENCE: Duration = Duration::from_secs(2);

/// Starts the description of an address resolution.
///
/// Names are resolved by the system's resolver, in this call. If there are several addresses, each is tried
/// in turn; if all fail, the error is that of the first.
///
/// ```no_run
/// use std::time::Duration;
/// use uverbs::{Rc, cm::{self, Pending}};
///
/// let resolving = cm::resolve::<Rc>("storage-7:4420")?.start()?;
/// let resolved = resolving.within(Duration::from_secs(2))?;
/// println!("over {}", resolved.device()?.name());
/// # Ok::<(), uverbs::Error>(())
/// ```
///
/// # Errors
///
/// The name has no address.
pub fn resolve<T: Initiates>(peer: impl ToSocketAddrs + fmt::Debug) -> Result<Resolve<T>> {
    addresses(Verb::ResolveAddr, peer).map(Resolve::new)
}

/// Starts the description of the resolution of an InfiniBand address. The device is one with a port in the
/// peer's subnet and partition.
///
/// ```no_run
/// use std::time::Duration;
/// use uverbs::{Rc, cm::{self, IbAddr, Pending}};
///
/// let peer = IbAddr::new("fe80::2:c903:0:1491".parse()?, 4420);
/// let resolved = cm::resolve_ib::<Rc>(peer).start()?.within(Duration::from_secs(2))?;
/// println!("over {}", resolved.device()?.name());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn resolve_ib<T: Initiates>(peer: IbAddr) -> Resolve<T> {
    Resolve::new(vec![Address::Ib(peer)])
}

/// The addresses of a name.
pub(super) fn addresses(verb: Verb, name: impl ToSocketAddrs + fmt::Debug) -> Result<Vec<Address>> {
    // Formatted now: the call below consumes `name`. The resolver's errors do not name it.
    let named = format!("{name:?}");
    let failed = |why: String| {
        let cause = Cause::NotFound(why.into());
        Err(Error::new(verb, Subject::named("address", &named), cause))
    };
    match name.to_socket_addrs() {
        Ok(found) => match found.map(Address::Ip).collect::<Vec<_>>() {
            none if none.is_empty() => failed("the name has no address".into()),
            found => Ok(found),
        },
        Err(error) => failed(error.to_string()),
    }
}

/// The description of an address resolution.
#[must_use = "nothing is resolved before `start`"]
#[derive(Clone, Debug)]
pub struct Resolve<T> {
    peers: Vec<Address>,
    source: Option<Address>,
    type_of_service: Option<u8>,
    ack_timeout: Option<u8>,
    patience: Duration,
    of: PhantomData<fn() -> T>,
}

impl<T: Initiates> Resolve<T> {
    fn new(peers: Vec<Address>) -> Self {
        Self {
            peers,
            source: None,
            type_of_service: None,
            ack_timeout: None,
            patience: PATIENCE,
            of: PhantomData,
        }
    }

    /// The local address. With port 0 the kernel chooses the port. If several devices lead to the peer, this
    /// address selects one.
    pub fn source(mut self, own: SocketAddr) -> Self {
        self.source = Some(Address::Ip(own));
        self
    }

    /// The local InfiniBand address, for a peer with an InfiniBand address; otherwise like
    /// [`source`](Self::source).
    pub fn source_ib(mut self, own: IbAddr) -> Self {
        self.source = Some(Address::Ib(own));
        self
    }

    /// The type of service of the connection's packets: on RoCE v2 the DSCP and ECN bits.
    pub fn type_of_service(mut self, tos: u8) -> Self {
        self.type_of_service = Some(tos);
        self
    }

    /// The acknowledgement timeout: 4.096 µs · 2ⁿ, n below 32. The kernel's default is 0.5 to 2 seconds. Only
    /// [`Rc`](crate::Rc) and [`Xrc`](crate::transport::Xrc) have one; for others [`start`](Self::start)
    /// refuses.
    pub fn ack_timeout(mut self, exponent: u8) -> Self {
        self.ack_timeout = Some(exponent);
        self
    }

    /// The kernel's time limit for finding the neighbour, and then for finding the path, each; 2 seconds by
    /// default, in units of milliseconds. The total is limited by the caller's wait.
    pub fn patience(mut self, limit: Duration) -> Self {
        self.patience = limit;
        self
    }

    /// Starts the resolution.
    ///
    /// # Errors
    ///
    /// There is no connection manager ([`Cause::Unsupported`]); the address is a wildcard or a loopback
    /// address, which the kernel interprets differently; the local address is not this host's; the
    /// acknowledgement timeout is too long or not for this type. Manual page: `rdma_resolve_addr(3)`.
    #[doc(alias = "rdma_resolve_addr")]
    pub fn start(self) -> Result<Resolving<T>> {
        let mut left = Left {
            peers: self.peers.clone().into_iter(),
            failed: None,
        };
        let (peer, subject) = self.next(&mut left)?;
        let mut resolving = Resolving {
            id: Id::create(T::PORT_SPACE, T::KIND, subject)?,
            left,
            how: self,
        };
        match resolving.how.ask(&resolving.id, peer) {
            Ok(()) => {}
            Err(error) => resolving.next(error)?,
        }
        Ok(resolving)
    }

    /// The next address that can be tried, and the name of the connection to it.
    fn next(&self, left: &mut Left) -> Result<(Address, Subject)> {
        while let Some(peer) = left.peers.next() {
            let subject = subject_of("to", peer);
            match self.check(&subject, peer) {
                Ok(()) => return Ok((peer, subject)),
                Err(error) => left.note(error),
            }
        }
        let none = || {
            let cause = Cause::NotFound("no address is left to try".into());
            Error::new(Verb::ResolveAddr, Subject::the("address"), cause)
        };
        Err(left.failed.take().unwrap_or_else(none))
    }

    /// Refuses what the kernel would understand in another way, or not at all.
    fn check(&self, subject: &Subject, peer: Address) -> Result<()> {
        address::check_peer(subject, peer)?;
        if let Some(own) = self.source {
            address::check_own(Verb::ResolveAddr, subject, own)?;
            if own.ib().is_some() != peer.ib().is_some() {
                let why =
                    "of the own address and the peer's, one is of IP and the other of InfiniBand";
                return Err(Error::invalid(Verb::ResolveAddr, subject.clone(), why));
            }
        }
        let why = match self.ack_timeout {
            None => return Ok(()),
            // The kernel would complain in its log (`rdma_set_ack_timeout` in drivers/infiniband/core/cma.c).
            Some(_) if !matches!(T::KIND, QpType::RC | QpType::XRC_SEND) => {
                "only RC and XRC have an acknowledgement timeout"
            }
            Some(..32) => return Ok(()),
            // The kernel would take it, and its packets have 5 bits for it.
            Some(_) => "the exponent of the acknowledgement timeout must be below 32",
        };
        Err(Error::invalid(Verb::SetOption, subject.clone(), why))
    }

    /// Makes the kernel look for the way to a peer.
    fn ask(&self, id: &Id, peer: Address) -> Result<()> {
        if let Some(tos) = self.type_of_service {
            id.set(IdOption::TOS, &[tos])?;
        }
        if let Some(exponent) = self.ack_timeout {
            id.set(IdOption::ACK_TIMEOUT, &[exponent])?;
        }
        id.execute(&resolve_addr(
            id.number(),
            self.milliseconds(),
            self.source.map(|own| own.wire(T::PORT_SPACE)),
            peer.wire(T::PORT_SPACE),
        ))
    }

    /// The time limit in the kernel's form, which has no value for "no limit".
    fn milliseconds(&self) -> u32 {
        let milliseconds = self.patience.as_millis().clamp(1, i32::MAX as u128);
        milliseconds as u32
    }
}

/// What is left to try.
#[derive(Debug)]
struct Left {
    peers: vec::IntoIter<Address>,
    /// Why the first address failed: it is the one to report if all fail.
    failed: Option<Error>,
}

impl Left {
    /// Notes why an address failed.
    fn note(&mut self, error: Error) {
        self.failed.get_or_insert(error);
    }
}

/// An address resolution in progress. Its file becomes the file of the [`Resolved`].
#[derive(Debug)]
pub struct Resolving<T> {
    /// The same file for all addresses: whoever waits for it need not know that there are several.
    id: Id,
    left: Left,
    how: Resolve<T>,
}

/// What an event means to a resolution in progress.
#[derive(Debug, PartialEq, Eq)]
enum News {
    /// The device and the neighbour are known.
    Address,
    /// The path is known.
    Path,
    /// This verb has failed.
    Failed(Verb),
    /// Nothing: another event will come.
    Nothing,
}

impl News {
    fn of(raw: &EventResp) -> Self {
        match Event(raw.event) {
            Event::ADDR_RESOLVED if raw.status == 0 => Self::Address,
            Event::ROUTE_RESOLVED if raw.status == 0 => Self::Path,
            Event::ROUTE_ERROR => Self::Failed(Verb::ResolveRoute),
            // The address of the interface or of the neighbour has changed meanwhile.
            Event::ADDR_CHANGE | Event::UNREACHABLE => Self::Nothing,
            _ => Self::Failed(Verb::ResolveAddr),
        }
    }
}

impl<T: Initiates> Resolving<T> {
    /// Takes pending events; returns the route once it is known.
    fn advance(&mut self) -> Result<Option<Route>> {
        while let Some(raw) = self.id.try_event()? {
            match News::of(&raw) {
                News::Address => self.id.execute(&ResolveRoute {
                    id: self.id.number(),
                    timeout_ms: self.how.milliseconds(),
                })?,
                News::Path => {
                    let route = Route::of(&self.id, |peer| subject_of("to", peer))?;
                    let none = || self.id.error(Verb::ResolveRoute, Errno::IO);
                    return route.ok_or_else(none).map(Some);
                }
                News::Failed(verb) => {
                    return Err(event::failure(verb, self.id.subject(), &raw));
                }
                News::Nothing => {}
            }
        }
        Ok(None)
    }

    /// Goes on with the next address that can be tried, on the same file, since this one has failed.
    fn next(&mut self, mut error: Error) -> Result<()> {
        loop {
            self.left.note(error);
            let (peer, subject) = self.how.next(&mut self.left)?;
            let made = self.id.replace(T::PORT_SPACE, T::KIND, subject);
            match made.and_then(|()| self.how.ask(&self.id, peer)) {
                Ok(()) => return Ok(()),
                Err(another) => error = another,
            }
        }
    }
}

impl<T> AsFd for Resolving<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.as_fd()
    }
}

impl<T> Describe for Resolving<T> {
    fn describe(&self) -> (Verb, Subject) {
        (Verb::ResolveAddr, self.id.subject().clone())
    }
}

impl<T: Initiates> Pending for Resolving<T> {
    type Output = Resolved<T>;
    type Back = ();

    fn try_finish(mut self) -> Result<Step<Self>, Failed<()>> {
        loop {
            let failed = match self.advance() {
                Ok(Some(route)) => {
                    return Ok(Step::Done(Resolved {
                        id: self.id,
                        route,
                        of: PhantomData,
                    }));
                }
                Ok(None) => return Ok(Step::Pending(self)),
                Err(error) => self.next(error),
            };
            failed.map_err(|error| Failed { back: (), error })?;
        }
    }

    fn cancel(self) {}
}

/// A resolved peer: the device and the path are known, and nothing has been sent to the peer itself.
///
/// It derefs to its [`Route`].
#[derive(Debug)]
pub struct Resolved<T> {
    pub(super) id: Id,
    pub(super) route: Route,
    of: PhantomData<fn() -> T>,
}

impl<T: Initiates> Resolved<T> {
    /// Takes events of the time since it was resolved. Addresses that have changed meanwhile do not end an
    /// attempt that is only made now.
    pub(super) fn forget_changes(&self) -> Result<()> {
        while let Some(raw) = self.id.try_event()? {
            if News::of(&raw) != News::Nothing {
                return Err(event::failure(Verb::Connect, self.id.subject(), &raw));
            }
        }
        Ok(())
    }

    /// Takes a queue pair from RESET to INIT, so that receives can be posted before the connection is
    /// requested. Optional: otherwise [`connect`](Self::connect) does it. One in INIT, as a failed attempt
    /// returns it, is set up for this peer.
    ///
    /// # Errors
    ///
    /// The queue pair belongs to another device, or is in another state.
    pub fn init(&self, qp: &mut impl QueuePair<Kind = T>) -> Result<()> {
        queue_pair::init(&self.id, Verb::Connect, qp, self.device_index())
    }
}

impl<T> Deref for Resolved<T> {
    type Target = Route;

    fn deref(&self) -> &Route {
        &self.route
    }
}

impl<T> AsFd for Resolved<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Rc, Ud, transport::Xrc};

    /// Catches a change of an address that passes for the end of a resolution: others than that.
    #[test]
    fn a_change_is_no_failure() {
        let news = |event: Event, status: i32| {
            News::of(&EventResp {
                event: event.0,
                status: status as u32,
                ..EventResp::default()
            })
        };
        let address = News::Failed(Verb::ResolveAddr);
        assert_eq!(news(Event::ADDR_RESOLVED, 0), News::Address);
        assert_eq!(news(Event::ADDR_RESOLVED, -19), address);
        assert_eq!(news(Event::ROUTE_RESOLVED, 0), News::Path);
        assert_eq!(news(Event::ADDR_ERROR, -110), address);
        let route = News::Failed(Verb::ResolveRoute);
        assert_eq!(news(Event::ROUTE_ERROR, -22), route);
        assert_eq!(news(Event::DEVICE_REMOVAL, 0), address);
        assert_eq!(news(Event::ADDR_CHANGE, 0), News::Nothing);
        assert_eq!(news(Event::UNREACHABLE, -110), News::Nothing);
    }

    /// Catches a timeout that reaches a kernel that refuses it, or that puts it into five bits.
    #[test]
    fn a_timeout_that_cannot_be_is_refused() {
        fn refused<T: Initiates>(exponent: u8) -> Option<String> {
            let resolve = resolve::<T>("10.9.0.2:7").unwrap();
            let resolve = resolve.ack_timeout(exponent);
            let peer = resolve.peers[0];
            let checked = resolve.check(&Subject::the("connection"), peer);
            checked.err().map(|error| error.to_string())
        }
        assert_eq!(refused::<Rc>(31), None);
        assert_eq!(refused::<Xrc>(0), None);
        let too_long = refused::<Rc>(32).unwrap();
        assert!(too_long.contains("set_option on connection"), "{too_long}");
        assert!(too_long.contains("below 32"), "{too_long}");
        let not_here = refused::<Ud>(14).unwrap();
        assert!(not_here.contains("only RC and XRC"), "{not_here}");
    }
}
