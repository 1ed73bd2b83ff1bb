//! Awaiting requests for connections.

use std::fmt;
use std::marker::PhantomData;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use uverbs_uapi::enums::QpType;
use uverbs_uapi::rdma_cm::{Event, IdOption};

use super::address::{self, Address, IbAddr};
use super::command;
use super::file::{self, File};
use super::id::Id;
use super::pending::poll_until;
use super::request::Request;
use super::resolve::addresses;
use super::space::Listens;
use crate::error::{Errno, Error, Result, Subject, Verb};

/// Starts the description of a listener on a local address. With port 0 the kernel chooses the port.
///
/// If a name has several addresses, the first one that this host has is used. The wildcards `0.0.0.0` and
/// `::` mean every address of every device, including devices that are added later. Loopback addresses are
/// refused, since the kernel treats them as the wildcard.
///
/// ```no_run
/// use uverbs::{Caps, Rc, cm::{self, Params, Pending}};
///
/// let listener = cm::listen::<Rc>("10.9.0.1:4420")?.start()?;
/// let request = listener.next()?;
/// println!("{} says {:?}", request.peer_addr(), request.private_data());
/// let context = request.device()?.open()?;
/// let (pd, cq) = (context.alloc_pd()?, context.create_cq(64)?);
/// let qp = pd.create_qp(&cq, Caps::default())?;
/// let connection = request.accept(qp, &Params::default(), b"welcome")?.wait()?;
/// # Ok::<(), uverbs::Error>(())
/// ```
///
/// To listen for XRC initiators, use [`XrcTarget`](crate::xrcd::XrcTarget) as the type. The kernel refuses a
/// peer that requests another kind than the listener's, as if a program had refused
/// ([`RejectReason::Consumer`](super::RejectReason)).
///
/// # Errors
///
/// The name has no address.
pub fn listen<T: Listens>(own: impl ToSocketAddrs + fmt::Debug) -> Result<Listen<T>> {
    addresses(Verb::Listen, own).map(Listen::new)
}

/// Starts the description of a listener on an InfiniBand address. With port 0 the kernel chooses the port. A
/// GID of zeros means every InfiniBand port of every device; not for [`Ud`](crate::Ud), where the kernel
/// would refuse every lookup.
pub fn listen_ib<T: Listens>(own: IbAddr) -> Listen<T> {
    Listen::new(vec![Address::Ib(own)])
}

/// The description of a listener.
#[must_use = "nothing listens before `start`"]
#[derive(Clone, Debug)]
pub struct Listen<T> {
    own: Vec<Address>,
    backlog: u32,
    v6only: Option<bool>,
    reuse_address: bool,
    of: PhantomData<fn() -> T>,
}

impl<T: Listens> Listen<T> {
    fn new(own: Vec<Address>) -> Self {
        Self {
            own,
            backlog: 0,
            v6only: None,
            reuse_address: false,
            of: PhantomData,
        }
    }

    /// How many unread requests may wait. The default, 0, means as many as the system allows (sysctl
    /// `net.rdma_ucm.max_backlog`, usually 1024). Further requests are dropped silently; their senders retry
    /// after some seconds.
    pub fn backlog(mut self, requests: u32) -> Self {
        self.backlog = requests;
        self
    }

    /// Whether a listener on `::` excludes IPv4. By default the system decides (sysctl `net.ipv6.bindv6only`,
    /// usually not). Requests over IPv4 have IPv4 addresses.
    pub fn v6only(mut self, only: bool) -> Self {
        self.v6only = Some(only);
        self
    }

    /// Lets other listeners that also set this bind to the address and port. Two listeners on one address and
    /// port are refused nevertheless.
    pub fn reuse_address(mut self, reuse: bool) -> Self {
        self.reuse_address = reuse;
        self
    }

    /// Starts listening.
    ///
    /// # Errors
    ///
    /// There is no connection manager ([`Cause::Unsupported`](crate::Cause::Unsupported)); the address is a
    /// loopback address; this host, or no device of it, has the address; it is in use. Manual pages:
    /// `rdma_bind_addr(3)`, `rdma_listen(3)`.
    #[doc(alias = "rdma_listen")]
    #[doc(alias = "rdma_bind_addr")]
    pub fn start(self) -> Result<Listener<T>> {
        let mut refused = None;
        for own in &self.own {
            match self.on(*own) {
                Ok(listener) => return Ok(listener),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        let none = || {
            Error::invalid(
                Verb::Listen,
                Subject::the("listener"),
                "there is no address",
            )
        };
        Err(refused.unwrap_or_else(none))
    }

    fn on(&self, own: Address) -> Result<Listener<T>> {
        let subject = |address: Address| Subject::named("listener", format_args!("on {address}"));
        address::check_own(Verb::BindAddr, &subject(own), own)?;
        if T::KIND == QpType::UD && own.is_every_infiniband_port() {
            let why = "the kernel refuses every look-up of datagrams at a listener on all InfiniBand ports: it seeks \
                       the GID of zeros on the port that was asked (cma_ib_acquire_dev); listen on a port's GID";
            return Err(Error::unsupported(Verb::Listen, subject(own), why));
        }
        let mut id = Id::create(T::PORT_SPACE, T::KIND, subject(own))?;
        if self.reuse_address {
            id.switch(IdOption::REUSEADDR, true)?;
        }
        if let Some(only) = self.v6only {
            id.switch(IdOption::AFONLY, only)?;
        }
        id.bind(own.wire(T::PORT_SPACE))?;
        id.execute(&command::Listen {
            id: id.number(),
            backlog: self.backlog,
        })?;
        let local = id.place()?.local.unwrap_or(own);
        id.rename(subject(local));
        Ok(Listener {
            id,
            local,
            spare: Mutex::new(None),
            removal: Removal::new()
                .map_err(|errno| Error::os(Verb::Listen, subject(local), errno))?,
            of: PhantomData,
        })
    }
}

/// Awaits requests for connections.
///
/// Its file becomes readable with a request. Dropping it refuses requests that have not been taken. It keeps
/// a second file, for the next request, and a third, by which all waiting threads learn of a removed device.
///
/// ```no_run
/// use std::time::Duration;
/// use uverbs::{Caps, Rc, cm::{Listener, Params, Pending}};
/// # fn serve(listener: &Listener<Rc>, pd: &uverbs::Pd, cq: &uverbs::Cq) -> uverbs::Result<()> {
/// while let Some(request) = listener.next_within(Duration::from_secs(60))? {
///     let qp = pd.create_qp(cq, Caps::default())?;
///     match request.accept(qp, &Params::default(), b"")?.within(Duration::from_secs(5)) {
///         Ok(connection) => println!("{} is connected", connection.peer_addr()),
///         Err(failed) => println!("a peer has given up: {failed}"),
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Listener<T> {
    id: Id,
    local: Address,
    /// The file for the next request.
    spare: Mutex<Option<File>>,
    removal: Removal,
    of: PhantomData<fn() -> T>,
}

/// Whether the device of the listener's address has been removed. The kernel tells only whoever reads the
/// event.
#[derive(Debug)]
struct Removal {
    /// Relaxed: it guards no memory.
    is_known: AtomicBool,
    /// Readable from then on, for the threads that wait.
    wakes: OwnedFd,
}

impl Removal {
    fn new() -> Result<Self, Errno> {
        Ok(Self {
            is_known: AtomicBool::new(false),
            wakes: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    fn is_known(&self) -> bool {
        self.is_known.load(Ordering::Relaxed)
    }

    fn tell_all(&self) {
        self.is_known.store(true, Ordering::Relaxed);
        // Writing fails only if the counter is full, and then it is readable.
        let _ = rustix::io::write(&self.wakes, &1_u64.to_ne_bytes());
    }
}

impl<T: Listens> Listener<T> {
    /// The address that it listens on, with the port. For an InfiniBand address the GID, in the form of an
    /// IPv6 address.
    pub fn local_addr(&self) -> SocketAddr {
        self.local.socket()
    }

    /// The InfiniBand address that it listens on, if it is one.
    pub fn local_ib(&self) -> Option<IbAddr> {
        self.local.ib()
    }

    pub(super) fn subject(&self) -> Subject {
        self.id.subject().clone()
    }

    /// The next request, if there is one. It has a file of its own. A request whose device was removed before
    /// it was taken is refused; on a wildcard other devices go on.
    ///
    /// # Errors
    ///
    /// The device of the listener's address has been removed (`EIO`): every call says so from then on, though
    /// the file is readable only until the first. Or no file descriptor is left for the request (`EMFILE`):
    /// then the request and its sender wait until there is a descriptor and this is called again.
    pub fn try_next(&self) -> Result<Option<Request<T>>> {
        if self.removal.is_known() {
            return Err(self.id.error(Verb::GetCmEvent, Errno::IO));
        }
        // Before the event is read: a request that was read but could not be moved to a file would be
        // refused.
        while let Some(file) = self.file()? {
            let raw = match self.id.try_event() {
                Ok(Some(raw)) => raw,
                nothing => {
                    self.keep(file);
                    return nothing.map(|_| None);
                }
            };
            match Event(raw.event) {
                Event::CONNECT_REQUEST => match Request::take(&self.id, &raw, file) {
                    // Its device has been removed since it came. The listener may be one for all devices.
                    Err(error) if error.is_device_gone() => {
                        tracing::warn!(target: "uverbs", %error, "a request for a connection is refused");
                    }
                    taken => return taken.map(Some),
                },
                Event::DEVICE_REMOVAL => {
                    self.removal.tell_all();
                    return Err(self.id.error(Verb::GetCmEvent, Errno::IO));
                }
                // An address has changed, or an event of a later kernel.
                _ => self.keep(file),
            }
        }
        Ok(None)
    }

    /// A file for the next request; `None` if there is neither a file nor a request.
    fn file(&self) -> Result<Option<File>> {
        if let Some(spare) = self.spare().take() {
            return Ok(Some(spare));
        }
        match self.id.another_file() {
            Ok(file) => Ok(Some(file)),
            Err(_) if !self.id.has_event()? => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Keeps a file that is not needed yet.
    fn keep(&self, file: File) {
        *self.spare() = Some(file);
    }

    fn spare(&self) -> MutexGuard<'_, Option<File>> {
        // A thread that panicked left a file or none: both are valid.
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next request for at most `limit`; `None` if there is none by then.
    ///
    /// # Errors
    ///
    /// As for [`try_next`](Self::try_next).
    pub fn next_within(&self, limit: Duration) -> Result<Option<Request<T>>> {
        poll_until(limit, || self.try_next(), |left| self.wait(left))
    }

    /// Waits for the next request.
    ///
    /// # Errors
    ///
    /// As for [`try_next`](Self::try_next). Manual page: `rdma_get_request(3)`.
    #[doc(alias = "rdma_get_request")]
    pub fn next(&self) -> Result<Request<T>> {
        loop {
            if let Some(request) = self.try_next()? {
                return Ok(request);
            }
            self.wait(None)?;
        }
    }

    /// Waits until there may be a request, or the device has been removed, for at most `limit`.
    fn wait(&self, limit: Option<Duration>) -> Result<()> {
        let waited = file::wait_for_any([self.as_fd(), self.removal.wakes.as_fd()], limit);
        waited.map_err(|errno| self.id.error(Verb::GetCmEvent, errno))
    }
}

impl<T> AsFd for Listener<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.as_fd()
    }
}
