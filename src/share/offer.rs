//! The exporter's side: a protection domain on offer.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use uverbs_uapi::handle::MrHandle;

use super::address::Address;
use super::broker::{Broker, Limits, Parcel};
use super::counters::{Counters, OfferStats};
use super::key::ShareKey;
use super::listener::Listener;
use super::message::{Grant, Region};
use super::{FOREVER, user};
use crate::error::{Cause, DestroyError, Error, Result, Subject, Verb};
use crate::event_file::is_readable;
use crate::import::ImportedMr;
use crate::memory::Memory;
use crate::mr::Mr;
use crate::pd::{Pd, PdUse, User};
use crate::work::{LocalKey, PdTag};

const VERB: Verb = Verb::AllocShpd;

impl Pd {
    /// Starts the description of an offer of this protection domain to other processes.
    ///
    /// Only processes of the same user may join unless [`OfferBuilder::allow_user`] allows others. A joiner
    /// gets the command file, and with it the same power over *everything* in this context as this process.
    pub fn offer(&self, key: ShareKey) -> OfferBuilder<'_> {
        OfferBuilder {
            pd: self,
            key,
            regions: Vec::new(),
            memory: Vec::new(),
            has_stray_memory: false,
            limits: Limits {
                users: vec![rustix::process::geteuid().as_raw()],
                silence: Duration::from_secs(2),
                pending: 64,
                joined: 256,
            },
        }
    }
}

/// The description of an offer.
#[must_use = "nothing is offered before `at`"]
#[derive(Debug)]
pub struct OfferBuilder<'a> {
    pd: &'a Pd,
    key: ShareKey,
    regions: Vec<Offered>,
    memory: Vec<BorrowedFd<'a>>,
    /// A file was given without a region that it belongs to.
    has_stray_memory: bool,
    limits: Limits,
}

/// A region to offer, and the protection domain that it belongs to.
#[derive(Debug)]
struct Offered {
    region: Region,
    pd: PdTag,
}

impl<'a> OfferBuilder<'a> {
    /// Adds a memory region of the protection domain under a name of 1 to 56 bytes. It must stay registered,
    /// unchanged, as long as the offer exists; otherwise joining fails.
    pub fn mr<M: Memory>(self, name: &str, mr: &Mr<M>) -> Self {
        self.region(name, mr.handle(), mr.lkey(), mr.len() as u64, mr.pd_tag())
    }

    /// Adds a memory region that this process has imported or disowned, as [`mr`](Self::mr) does.
    pub fn imported_mr(self, name: &str, mr: &ImportedMr) -> Self {
        self.region(name, mr.handle(), mr.lkey(), mr.len(), mr.pd_tag())
    }

    fn region(
        mut self,
        name: &str,
        handle: MrHandle,
        lkey: LocalKey,
        length: u64,
        pd: PdTag,
    ) -> Self {
        let region = Region {
            name: name.into(),
            handle: handle.0,
            lkey: lkey.0,
            length,
            has_memory: false,
        };
        self.regions.push(Offered { region, pd });
        self
    }

    /// Adds the file that the last added region's memory maps, such as a memfd. Joiners get it too.
    pub fn memory(mut self, file: BorrowedFd<'a>) -> Self {
        match self.regions.last_mut() {
            Some(Offered { region, .. }) if !region.has_memory => {
                region.has_memory = true;
                self.memory.push(file);
            }
            _ => self.has_stray_memory = true,
        }
        self
    }

    /// Allows processes with this effective user id to join, in addition to this process's user.
    ///
    /// In a user namespace that does not map every user, the overflow user 65534 cannot be allowed: all
    /// unmapped users have this number there.
    pub fn allow_user(mut self, user: u32) -> Self {
        self.limits.users.push(user);
        self
    }

    /// How long a connection may be silent before it is closed; 2 s by default.
    pub fn silence(mut self, limit: Duration) -> Self {
        self.limits.silence = limit.min(FOREVER);
        self
    }

    /// How many connections that have not joined are kept at the same time (64 by default), and how many
    /// processes may be joined at the same time (256 by default). Each takes a file descriptor of this
    /// process; if none is left, further connections wait in the kernel.
    ///
    /// The allowed users have equal shares of the first number, at least one connection each. A connection
    /// beyond its user's share replaces the one of the same user that has been silent longest.
    pub fn limits(mut self, connections: usize, joiners: usize) -> Self {
        self.limits.pending = connections.max(1);
        self.limits.joined = joiners;
        self
    }

    /// Makes the offer at an address.
    ///
    /// A path is created with mode 0600, or 0666 if other users are allowed; their user is then checked when
    /// they connect. It is removed when the offer ends. [`Address`] says who must own its directory. An offer
    /// answers no request until it is [served](Offer::serve_once).
    ///
    /// # Errors
    ///
    /// [`Cause::Busy`] if the protection domain is already on offer. [`Cause::Unsupported`] if the driver has
    /// no imported contexts, without which nobody could join (an EFA's). [`Cause::Invalid`] for a name that
    /// is too long, empty or used twice, for more than 64 regions or one of another protection domain, for a
    /// [`memory`](Self::memory) that follows no region or another file, or if an allowed user cannot be
    /// distinguished from others. `EADDRINUSE` if the address is taken; `EPERM` if another process has
    /// replaced the socket. Manual page: `ibv_alloc_shpd(3)`, of Oracle's libibverbs.
    #[doc(alias = "ibv_alloc_shpd")]
    pub fn at(mut self, address: &Address) -> Result<Offer> {
        let subject = || Subject::named("offer", address);
        let pd = self.pd.context().clone();
        let failed = |errno| Error::os(VERB, subject(), errno);
        let invalid = |why| Error::invalid(VERB, subject(), why);
        // Before a file exists by which others get the command file.
        pd.driver().check_joinable(VERB)?;
        let foreign = self.regions.iter().find(|one| one.pd != self.pd.tag());
        if let Some(Offered { region, .. }) = foreign {
            let why = format!("the region {:?} belongs to another PD", region.name);
            return Err(invalid(why));
        }
        if self.has_stray_memory {
            let why = "the file of a region's memory comes behind the region, once";
            return Err(invalid(why.into()));
        }
        let regions: Vec<Region> = self.regions.into_iter().map(|one| one.region).collect();
        if let Some(name) = twice(&regions) {
            return Err(invalid(format!("two regions have the name {name:?}")));
        }
        let own = rustix::process::geteuid().as_raw();
        let for_others = self.limits.users.iter().any(|user| *user != own);
        self.limits.users = certain(&self.limits.users).map_err(invalid)?;
        let grant = Grant {
            pd: self.pd.handle().0,
            regions,
        };
        let message = grant.encode().map_err(|bad| invalid(bad.0.into()))?;
        let files = std::iter::once(pd.as_fd())
            .chain(self.memory)
            .map(|file| rustix::io::fcntl_dupfd_cloexec(file, 0))
            .collect::<Result<_, _>>()
            .map_err(failed)?;
        let share = Share::new(self.pd, &subject)?;
        let listener = Listener::bind(address, for_others).map_err(failed)?;
        let parcel = Parcel { message, files };
        let broker = Broker::new(listener, self.key, parcel, self.limits).map_err(failed)?;
        Ok(Offer {
            broker: Box::new(broker),
            share,
            address: address.clone(),
        })
    }
}

/// The users whose numbers identify them, each once. The first is this process's user; it may be missing if
/// other users are named.
pub(super) fn certain(users: &[u32]) -> Result<Vec<u32>, String> {
    let (own, named) = users.split_at(1);
    let uncertain = |user: &&u32| !user::is_certain(**user);
    let unknown = match named {
        [] => own.iter().find(uncertain),
        _ => named.iter().find(uncertain),
    };
    match unknown {
        Some(user) => Err(format!(
            "user {user} stands for all users that this process's user namespace does not map"
        )),
        None => {
            let certain = users.iter().copied().filter(|user| user::is_certain(*user));
            let each: BTreeSet<u32> = certain.collect();
            Ok(each.into_iter().collect())
        }
    }
}

/// A name that two regions have.
fn twice(regions: &[Region]) -> Option<&str> {
    let mut names: Vec<&str> = regions.iter().map(|region| region.name.as_str()).collect();
    names.sort_unstable();
    names
        .windows(2)
        .find(|pair| pair[0] == pair[1])
        .map(|pair| pair[0])
}

/// An offer's use of its PD: there is at most one at a time.
#[derive(Debug)]
struct Share(PdUse);

impl Share {
    fn new(pd: &Pd, subject: &impl Fn() -> Subject) -> Result<Self> {
        if pd.start_sharing() {
            return Ok(Self(pd.user(User::Offer)));
        }
        let text = "the PD is on offer already, which it can be once only at a time";
        Err(Error::new(VERB, subject(), Cause::Busy(text.into())))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.0.stop_sharing();
    }
}

/// A protection domain on offer to other processes.
///
/// While it exists, the [`Pd`] cannot be freed. [`Offer::withdraw`] ends it if no joiner uses the protection
/// domain. Dropping always ends it; if a joiner uses the protection domain, the kernel's object then stays
/// until the last process that holds the file ends.
///
/// ```no_run
/// use uverbs::share::{Address, ShareKey};
/// # fn offer(pd: &uverbs::Pd) -> Result<(), Box<dyn std::error::Error>> {
/// let heap = pd.register(vec![0u8; 1 << 20], uverbs::Access::LOCAL_WRITE)?;
/// let key = ShareKey::random()?;
/// let address = Address::Path("/run/heap.sock".into());
/// let mut offer = pd.offer(key).mr("heap", &heap).at(&address)?;
/// while offer.joiners() == 0 {
///     offer.serve_once(None)?;                    // or `spawn` a thread
/// }
/// # Ok(()) }
/// ```
pub struct Offer {
    broker: Box<Broker>,
    share: Share,
    address: Address,
}

impl Offer {
    /// The address of the offer.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The number of processes that have joined and still hold the protection domain, when the offer was last
    /// served.
    ///
    /// A process that has ended is not counted, although its objects stay in the kernel until the file is
    /// closed.
    pub fn joiners(&self) -> usize {
        self.broker.joined()
    }

    /// Counts of events since the offer was made.
    pub fn stats(&self) -> OfferStats {
        self.broker.counters().snapshot()
    }

    /// Waits for at most `timeout` until a process connects, sends something or leaves, and handles it.
    /// Returns true if something happened; a request may need several calls.
    ///
    /// To wait for other things as well, wait until the offer's [file descriptor](AsFd) is readable.
    ///
    /// # Errors
    ///
    /// The kernel is out of memory.
    pub fn serve_once(&mut self, timeout: Option<Duration>) -> Result<bool> {
        self.broker
            .serve(timeout)
            .map_err(|errno| Error::os(VERB, Subject::named("offer", &self.address), errno))
    }

    /// Serves on a new thread until [`Serving::stop`].
    ///
    /// # Errors
    ///
    /// No thread can be started.
    pub fn spawn(mut self) -> io::Result<Serving> {
        let wake = Arc::clone(self.broker.wake());
        let counters = Arc::clone(self.broker.counters());
        let stop = Arc::clone(&wake);
        let thread = thread::Builder::new()
            .name("uverbs-offer".into())
            .spawn(move || {
                while !is_set(&stop) {
                    if let Err(error) = self.serve_once(None) {
                        tracing::error!(target: "uverbs::share", %error, "an offer is not served any more");
                        break;
                    }
                }
                self
            })?;
        Ok(Serving {
            thread: Some(thread),
            wake,
            counters,
        })
    }

    /// Ends the offer if no joiner uses the protection domain any more. The protection domain may then be
    /// freed or offered again.
    ///
    /// No process can join during this call: connections that have not joined are closed.
    ///
    /// # Errors
    ///
    /// [`Cause::Busy`] while processes that have joined hold the protection domain. The error returns the
    /// offer, unchanged.
    pub fn withdraw(mut self) -> Result<(), DestroyError<Offer>> {
        // Processes that have left by now do not count.
        self.broker.reap();
        let joiners = self.joiners();
        if joiners == 0 {
            return Ok(());
        }
        let by = format!("{joiners} processes that have joined use the PD");
        let subject = Subject::named("offer", &self.address);
        Err(DestroyError {
            object: self,
            error: Error::new(VERB, subject, Cause::Busy(by.into())),
        })
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        self.broker.reap();
        if self.joiners() > 0 {
            self.share.0.leave();
        }
    }
}

/// Readable when [`Offer::serve_once`] has something to do, timeouts included.
impl AsFd for Offer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.broker.as_fd()
    }
}

impl fmt::Debug for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Offer")
            .field("address", &self.address)
            .field("pd", &self.share.0)
            .field("joiners", &self.joiners())
            .field("stats", &self.stats())
            .finish()
    }
}

/// An offer that its own thread serves. Dropping it stops the thread and drops the offer.
#[derive(Debug)]
pub struct Serving {
    thread: Option<JoinHandle<Offer>>,
    wake: Arc<OwnedFd>,
    counters: Arc<Counters>,
}

impl Serving {
    /// Counts of events since the offer was made.
    pub fn stats(&self) -> OfferStats {
        self.counters.snapshot()
    }

    /// Stops the thread and returns the offer, which stays valid.
    ///
    /// `None` if the thread has panicked, which ends the offer.
    pub fn stop(mut self) -> Option<Offer> {
        self.join()
    }

    fn join(&mut self) -> Option<Offer> {
        let thread = self.thread.take()?;
        set(&self.wake);
        let offer = thread.join().ok();
        clear(&self.wake);
        offer
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        drop(self.join());
    }
}

/// Sets an eventfd. Writing fails only if its counter is full, and then it is set.
fn set(event: &OwnedFd) {
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}

/// Clears an eventfd. Reading fails only if it is clear.
fn clear(event: &OwnedFd) {
    let _ = rustix::io::read(event, &mut [0; 8]);
}

/// Whether an eventfd is set. It stays set.
fn is_set(event: &OwnedFd) -> bool {
    // If polling it fails it counts as set, so that a thread that waits for it stops.
    is_readable(event.as_fd()).unwrap_or(true)
}
