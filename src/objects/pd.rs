//! Protection domains. Memory, queue pairs and address handles work together only if they share one.

use std::fmt;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use uverbs_uapi::handle::PdHandle;

use crate::alloc::Buffers;
use crate::command::Destroy;
use crate::context::Context;
use crate::domain::DomainState;
use crate::error::{Cause, DestroyError, Error, Result, Subject, Verb};
use crate::flight::Flights;
use crate::work::PdTag;

impl Context {
    /// Allocates a protection domain.
    ///
    /// # Errors
    ///
    /// The kernel's or the device's limit is reached. Manual page: `ibv_alloc_pd(3)`.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn alloc_pd(&self) -> Result<Pd> {
        let handle = self.driver().alloc_pd(self.fd())?;
        let stand = Stand::Owned(AtomicBool::new(true));
        Ok(Pd::new(self.clone(), handle, stand))
    }
}

/// A protection domain.
///
/// Its objects keep it alive, so it may be dropped before them. To free it at a definite time and to see
/// errors, call [`Pd::dealloc`].
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let context = uverbs::open("rxe0")?;
/// let pd = context.alloc_pd()?;
/// let mr = pd.register(vec![0u8; 4096], uverbs::Access::LOCAL_WRITE)?;
///
/// let refused = pd.dealloc().unwrap_err();        // busy: in use by 1 MR
/// let pd = refused.object;
/// mr.deregister()?;
/// pd.dealloc()?;
/// # Ok(()) }
/// ```
pub struct Pd(Arc<PdInner>);

/// The part of a PD that the objects in it share.
pub(crate) struct PdInner {
    context: Context,
    handle: PdHandle,
    users: Users,
    stand: Stand,
    /// It is offered to other processes.
    shared: AtomicBool,
    /// Set once there are queues, or a region asks for them.
    flights: OnceLock<Arc<Flights>>,
}

/// How a PD relates to the kernel's object.
pub(crate) enum Stand {
    /// Dropping it frees the kernel's object while this is true: the object is neither freed yet nor left to
    /// others.
    Owned(AtomicBool),
    /// The kernel's object belongs to another process and is left alone. The file, if any, shows the owner
    /// that the PD is still in use here.
    Imported(Option<OwnedFd>),
    /// It stands for another PD, which has the kernel's object.
    Over(Box<DomainState>),
}

/// The kinds of object that use a PD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum User {
    Mr,
    Ah,
    Qp,
    Cq,
    Srq,
    Mw,
    Domain,
    Offer,
    Pool,
}

/// How many objects of each kind use a PD, by the kind's number.
#[derive(Debug, Default)]
struct Users([AtomicU32; NAMES.len()]);

// Relaxed, both: the counts are for messages; the `Arc` orders everything else.
impl Users {
    fn add(&self, kind: User) {
        self.0[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn remove(&self, kind: User) {
        self.0[kind as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

/// The kinds by number, in the singular.
const NAMES: [&str; 9] = [
    "MR",
    "AH",
    "QP",
    "CQ",
    "SRQ",
    "MW",
    "parent domain",
    "offer",
    "buffer pool",
];

/// "2 MRs, 1 QP"; nothing if there are none.
impl fmt::Display for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (name, count) in NAMES.iter().zip(&self.0) {
            // Relaxed: a snapshot for a message.
            let count = count.load(Ordering::Relaxed);
            if count > 0 {
                write!(
                    f,
                    "{separator}{count} {name}{}",
                    if count == 1 { "" } else { "s" }
                )?;
                separator = ", ";
            }
        }
        Ok(())
    }
}

/// An object's use of its PD: keeps the PD alive and is counted there.
#[derive(Debug)]
pub(crate) struct PdUse {
    pd: Arc<PdInner>,
    kind: User,
}

impl PdUse {
    pub(crate) fn context(&self) -> &Context {
        &self.pd.context
    }

    /// The allocator for the rings of objects on the PD, if it has one.
    pub(crate) fn buffers(&self) -> Option<&Buffers> {
        self.pd.buffers()
    }

    #[inline]
    pub(crate) fn tag(&self) -> PdTag {
        self.pd.tag()
    }

    /// As [`Pd::reclaim`].
    pub(crate) fn reap(&self) {
        self.pd.reap();
    }

    /// The queues of the PD, and the regions that wait for them.
    pub(crate) fn flights(&self) -> &Arc<Flights> {
        self.pd.flights()
    }
}

/// Offering a PD to other processes.
impl PdUse {
    /// As [`Pd::leave`].
    pub(crate) fn leave(&self) {
        self.pd.leave();
    }

    /// Marks the PD as no longer offered.
    pub(crate) fn stop_sharing(&self) {
        self.pd.root().shared.store(false, Ordering::Relaxed);
    }
}

impl Drop for PdUse {
    fn drop(&mut self) {
        self.pd.users.remove(self.kind);
    }
}

/// As [`PdUse`], for a memory region. There may be very many of them, so this is only a pointer.
#[derive(Debug)]
pub(crate) struct RegionUse(Arc<PdInner>);

impl Deref for RegionUse {
    type Target = PdInner;

    fn deref(&self) -> &PdInner {
        &self.0
    }
}

impl Drop for RegionUse {
    fn drop(&mut self) {
        self.0.users.remove(User::Mr);
    }
}

impl Pd {
    pub(crate) fn new(context: Context, handle: PdHandle, stand: Stand) -> Self {
        Self(Arc::new(PdInner {
            context,
            handle,
            users: Users::default(),
            stand,
            shared: AtomicBool::new(false),
            flights: OnceLock::new(),
        }))
    }

    /// A PD that stands for the one under a domain.
    pub(crate) fn over(domain: DomainState) -> Self {
        let PdInner {
            context, handle, ..
        } = &*domain.base.pd;
        Self::new(context.clone(), *handle, Stand::Over(Box::new(domain)))
    }

    /// The same use, for an object that registers memory later. It counts as a user too.
    pub(crate) fn share(&self) -> Self {
        Self(Arc::clone(&self.0))
    }

    /// The identity of the protection domain, for slices and queues.
    #[inline]
    pub(crate) fn tag(&self) -> PdTag {
        self.0.tag()
    }

    /// The context that it was allocated in.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// The kernel's handle, by which other holders of the command file can import the PD.
    pub fn handle(&self) -> PdHandle {
        self.0.handle
    }

    /// Its parent domain state, if it is a parent domain.
    pub(crate) fn domain(&self) -> Option<&DomainState> {
        match &self.0.stand {
            Stand::Over(domain) => Some(domain),
            Stand::Owned(_) | Stand::Imported(_) => None,
        }
    }

    /// The allocator for the rings of objects on it, if it has one.
    pub(crate) fn buffers(&self) -> Option<&Buffers> {
        self.0.buffers()
    }

    /// Deregisters regions that were dropped while requests were in flight, if these have completed by now.
    /// Returns how many regions still wait.
    ///
    /// Calling it is optional: the same happens whenever a region is registered or dropped, and when a queue
    /// pair is reset or dropped. It is for programs that drop large regions and then do none of these for a
    /// while. See [`Mr`](crate::Mr).
    pub fn reclaim(&self) -> usize {
        self.0.reap()
    }

    /// Counts a new object of a kind in the PD.
    pub(crate) fn user(&self, kind: User) -> PdUse {
        self.0.users.add(kind);
        PdUse {
            pd: Arc::clone(&self.0),
            kind,
        }
    }

    /// As [`user`](Self::user), in the PD under all its parent domains.
    #[cfg(feature = "c-abi")]
    pub(crate) fn user_of_root(&self, kind: User) -> PdUse {
        let mut pd = &self.0;
        while let Stand::Over(domain) = &pd.stand {
            pd = &domain.base.pd;
        }
        pd.users.add(kind);
        PdUse {
            pd: Arc::clone(pd),
            kind,
        }
    }

    /// Counts a new memory region in the PD.
    pub(crate) fn region_use(&self) -> RegionUse {
        self.0.users.add(User::Mr);
        RegionUse(Arc::clone(&self.0))
    }

    /// Frees the protection domain.
    ///
    /// # Errors
    ///
    /// [`Cause::Busy`] if objects of this process still use it; the text names their kinds and counts, and no
    /// system call is made. `EBUSY` if objects of other processes use it. The error returns the PD. Manual
    /// page: `ibv_dealloc_pd(3)`.
    #[doc(alias = "ibv_dealloc_pd")]
    pub fn dealloc(self) -> Result<(), DestroyError<Pd>> {
        self.end(PdInner::dealloc)
    }

    /// Frees the PD by `how` if no object of this process uses it.
    pub(crate) fn end(
        mut self,
        how: impl FnOnce(&mut PdInner) -> Result<()>,
    ) -> Result<(), DestroyError<Pd>> {
        let result = self.end_in_place(how);
        DestroyError::of(self, result)
    }

    /// As [`Pd::dealloc`], through a reference. C programs free an imported PD for everyone with it.
    #[cfg(feature = "c-abi")]
    pub(crate) fn dealloc_in_place(&mut self) -> Result<()> {
        self.end_in_place(|inner| match inner.stand {
            Stand::Imported(_) => inner.free_object(),
            Stand::Owned(_) | Stand::Over(_) => inner.dealloc(),
        })
    }

    /// Releases a PD through a reference and leaves the kernel's object to others. A parent domain has no
    /// such object, and the PD under it may be this process's own.
    #[cfg(feature = "c-abi")]
    pub(crate) fn release_in_place(&mut self) -> Result<()> {
        self.end_in_place(|inner| match inner.stand {
            Stand::Over(_) => {
                let why = "a parent domain is not imported; it is freed";
                Err(Error::invalid(Verb::DeallocPd, inner.subject(), why))
            }
            Stand::Owned(_) | Stand::Imported(_) => {
                inner.leave();
                Ok(())
            }
        })
    }

    // In place, so that freeing a PD costs little more than its system call.
    fn end_in_place(&mut self, how: impl FnOnce(&mut PdInner) -> Result<()>) -> Result<()> {
        match Arc::get_mut(&mut self.0) {
            Some(inner) => how(inner),
            None => Err(self.busy()),
        }
    }

    #[cold]
    fn busy(&self) -> Error {
        let by = format!("in use by {}", self.0.users);
        Error::new(Verb::DeallocPd, self.0.subject(), Cause::Busy(by.into()))
    }

    /// Marks the PD as offered; false if it already is.
    pub(crate) fn start_sharing(&self) -> bool {
        // Relaxed: the flag guards no other memory.
        !self.0.root().shared.swap(true, Ordering::Relaxed)
    }

    /// Leaves the kernel's object to others: from now on nothing in this process frees it.
    pub(crate) fn leave(&self) {
        self.0.leave();
    }
}

impl PdInner {
    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    fn buffers(&self) -> Option<&Buffers> {
        match &self.stand {
            Stand::Over(domain) => domain.buffers.as_ref(),
            Stand::Owned(_) | Stand::Imported(_) => None,
        }
    }

    #[inline]
    pub(crate) fn tag(&self) -> PdTag {
        PdTag::new(self.context.raw_fd(), self.handle.0)
    }

    fn subject(&self) -> Subject {
        match &self.stand {
            Stand::Over(domain) => Subject::numbered("parent domain", domain.id),
            Stand::Owned(_) => Subject::numbered("PD", self.handle.0.into()),
            Stand::Imported(_) => Subject::numbered("imported PD", self.handle.0.into()),
        }
    }

    #[inline]
    fn dealloc(&mut self) -> Result<()> {
        if let Some(flights) = self.flights.get()
            && self.is_owned()
            && flights.reap() > 0
        {
            return Err(self.awaited(flights));
        }
        self.dealloc_by(Self::free_object)
    }

    /// Frees the kernel's object by `free` if it is this process's own.
    #[inline]
    fn dealloc_by(&mut self, free: impl FnOnce(&Self) -> Result<()>) -> Result<()> {
        if let Stand::Owned(owned) = &self.stand
            && self.is_owned()
        {
            // Until the result is known, as for other objects (`Owned::destroy`).
            owned.store(false, Ordering::Relaxed);
            let freed = free(self);
            owned.store(freed.is_err(), Ordering::Relaxed);
            freed?;
        }
        Ok(())
    }

    /// Whether the kernel's object is this process's own, and neither freed nor left to others.
    #[inline]
    fn is_owned(&self) -> bool {
        // Relaxed: who asks has `&mut`, which orders this after the call of `leave`, through the `Arc`.
        matches!(&self.stand, Stand::Owned(owned) if owned.load(Ordering::Relaxed))
    }

    /// The error of freeing it while dropped regions wait.
    #[cold]
    fn awaited(&self, flights: &Flights) -> Error {
        let by = format!("dropped MRs wait for {}", flights.waiting_for());
        Error::new(Verb::DeallocPd, self.subject(), Cause::Busy(by.into()))
    }

    /// Frees the kernel's object, whether this process owns it or not.
    #[inline]
    pub(crate) fn free_object(&self) -> Result<()> {
        self.context.fd().execute(&Destroy(self.handle))
    }

    /// Its queues, and the regions that wait for them: those of the PD with the kernel's object.
    pub(crate) fn flights(&self) -> &Arc<Flights> {
        let root = self.root();
        root.flights
            .get_or_init(|| root.context.flights(root.handle))
    }

    /// As [`Pd::reclaim`].
    pub(crate) fn reap(&self) -> usize {
        self.root()
            .flights
            .get()
            .map_or(0, |flights| flights.reap())
    }

    /// The PD with the kernel's object: itself, or the one under all its parent domains.
    fn root(&self) -> &PdInner {
        match &self.stand {
            Stand::Over(domain) => domain.base.pd.root(),
            Stand::Owned(_) | Stand::Imported(_) => self,
        }
    }

    fn leave(&self) {
        if let Stand::Owned(owned) = &self.root().stand {
            owned.store(false, Ordering::Relaxed);
        }
    }
}

impl Drop for PdInner {
    #[inline]
    fn drop(&mut self) {
        // First the regions that wait: the last one to have them deregisters them, or leaks them if the
        // kernel keeps a queue that uses them. Those that stay in the PD make the kernel refuse it.
        drop(self.flights.take());
        let patiently = |pd: &Self| pd.context.fd().destroy_patiently(pd.handle);
        if let Err(error) = self.dealloc_by(patiently) {
            // The kernel frees it when the context is closed.
            tracing::debug!(target: "uverbs", %error, "a PD could not be freed when it was dropped");
        }
    }
}

impl fmt::Debug for PdInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("Pd");
        fields
            .field("handle", &self.handle.0)
            .field("context", &self.context);
        match &self.stand {
            Stand::Over(domain) => fields.field("over", domain).finish(),
            Stand::Imported(lease) => fields.field("imported", lease).finish(),
            Stand::Owned(_) => fields.finish(),
        }
    }
}

impl fmt::Debug for Pd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}
