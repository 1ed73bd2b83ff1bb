//! Address resolution: from a peer's address to the device and the path that lead there.

use std::fmt;
use std::marker::PhantomData;
use std::net::{SocketAddr, ToSocketAddrs};
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;
use std::vec;

use uverbs_uapi::rdma_cm::{Event, EventResp, IdOption};

use super::address::{self, Address, IbAddr};
use super::command::{ResolveRoute, resolve_addr};
use super::event;
use super::id::Id;
use super::pending::describe::Describe;
use super::pending::{Failed, Pending, Step, step, subject_of};
use super::queue_pair::{self, QueuePair};
use super::route::Route;
use super::space::Initiates;
use crate::error::{Cause, Errno, Error, Result, Subject, Verb};

/// How long the kernel may take to find the neighbour, and then the path, by default.
const PATIENCE: Duration = Duration::from_secs(2);

/// Starts the description of an address resolution.
///
/// Names are resolved by the system's resolver, in this call. If there are several addresses, each is tried
/// in turn.
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

    /// The acknowledgement timeout: 4.096 µs · 2ⁿ, n below 32. The kernel's default is 0.5 to 2 seconds.
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
    /// address, which the kernel interprets differently; the local address is not this host's. Manual page:
    /// `rdma_resolve_addr(3)`.
    #[doc(alias = "rdma_resolve_addr")]
    pub fn start(self) -> Result<Resolving<T>> {
        let mut peers = self.peers.clone().into_iter();
        let id = self.first(&mut peers)?;
        Ok(Resolving {
            id,
            peers,
            how: self,
        })
    }

    /// Starts with the first address that can be tried.
    fn first(&self, peers: &mut vec::IntoIter<Address>) -> Result<Id> {
        let mut refused = None;
        for peer in peers {
            match self.look(peer) {
                Ok(id) => return Ok(id),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        let none = || {
            let cause = Cause::NotFound("no address is left to try".into());
            Error::new(Verb::ResolveAddr, Subject::the("address"), cause)
        };
        Err(refused.unwrap_or_else(none))
    }

    fn look(&self, peer: Address) -> Result<Id> {
        let subject = subject_of("to", peer);
        address::check_peer(&subject, peer)?;
        if let Some(own) = self.source {
            address::check_own(Verb::ResolveAddr, &subject, own)?;
            if own.ib().is_some() != peer.ib().is_some() {
                let why =
                    "of the own address and the peer's, one is of IP and the other of InfiniBand";
                return Err(Error::invalid(Verb::ResolveAddr, subject, why));
            }
        }
        let id = Id::create(T::PORT_SPACE, T::KIND, subject)?;
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
        ))?;
        Ok(id)
    }

    /// The time limit in the kernel's form, which has no value for "no limit".
    fn milliseconds(&self) -> u32 {
        let milliseconds = self.patience.as_millis().clamp(1, i32::MAX as u128);
        milliseconds as u32
    }
}

/// An address resolution in progress.
#[derive(Debug)]
pub struct Resolving<T> {
    id: Id,
    /// The addresses that have not been tried.
    peers: vec::IntoIter<Address>,
    how: Resolve<T>,
}

impl<T: Initiates> Resolving<T> {
    /// Takes pending events; returns the last one once the route is known.
    fn advance(&mut self) -> Result<Option<EventResp>> {
        while let Some(raw) = self.id.try_event()? {
            let (verb, done) = match Event(raw.event) {
                Event::ADDR_RESOLVED if raw.status == 0 => {
                    let command = ResolveRoute {
                        id: self.id.number(),
                        timeout_ms: self.how.milliseconds(),
                    };
                    match self.id.execute(&command) {
                        Ok(()) => continue,
                        Err(error) => (Verb::ResolveRoute, Err(error)),
                    }
                }
                Event::ROUTE_RESOLVED if raw.status == 0 => return Ok(Some(raw)),
                Event::ROUTE_ERROR => (Verb::ResolveRoute, Ok(())),
                _ => (Verb::ResolveAddr, Ok(())),
            };
            let error = match done {
                Ok(()) => event::failure(verb, self.id.subject(), &raw),
                Err(error) => error,
            };
            // The next address, if there is one; otherwise the first failure is reported.
            self.id = self.how.first(&mut self.peers).map_err(|_| error)?;
        }
        Ok(None)
    }

    fn resolved(self) -> Result<Resolved<T>> {
        match Route::of(&self.id, |peer| subject_of("to", peer))? {
            Some(route) => Ok(Resolved {
                id: self.id,
                route,
                of: PhantomData,
            }),
            None => Err(self.id.error(Verb::ResolveRoute, Errno::IO)),
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
        let advanced = self.advance();
        step(self, advanced, |resolving, _| resolving.resolved())
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
    /// Takes a queue pair from RESET to INIT, so that receives can be posted before the connection is
    /// requested. Optional: otherwise [`connect`](Self::connect) does it.
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
