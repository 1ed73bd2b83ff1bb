//! Thread domains and parent domains.
//!
//! A *thread domain* is a promise that its objects are used by one thread at a time. In C it saves locks.
//! Here exclusive borrows replace locks, and a thread domain is a capability: posting to one of its queue
//! pairs borrows it exclusively. So the hardware that these queue pairs share (on mlx5, a doorbell register)
//! needs no lock either. rxe has no such hardware.
//!
//! A *parent domain* is a protection domain with a thread domain, an allocator, or both. Every verb takes it
//! in place of its protection domain. Creating and freeing thread and parent domains makes no system call.

use std::fmt;
use std::num::NonZeroUsize;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::alloc::{Allocator, Buffers};
use crate::context::Context;
use crate::driver;
use crate::error::{Cause, DestroyError, Error, Result, Subject, Verb};
use crate::pd::{Pd, PdUse, User};
use crate::work::PostError;

impl Context {
    /// Allocates a thread domain. Manual page: `ibv_alloc_td(3)`.
    #[doc(alias = "ibv_alloc_td")]
    pub fn alloc_td(&self) -> ThreadDomain {
        let inner = Arc::new(TdInner {
            hardware: self.driver().thread_domain(),
            context: self.clone(),
            id: self.new_id(),
            domains: AtomicU32::new(0),
        });
        ThreadDomain {
            key: DomainKey::new(&inner),
            inner,
        }
    }
}

/// A thread domain: its holder may post to its queue pairs, which share a doorbell register on mlx5.
///
/// A queue pair belongs to it if it is created by
/// [`create_in_domain`](crate::qp::QpBuilder::create_in_domain) on a parent domain with this thread domain.
/// Posting then borrows the thread domain exclusively, so nothing needs a lock: the compiler enforces the
/// promise that `ibv_alloc_td(3)` asks for. To post from another thread, move the thread domain there. Once
/// it is dropped, nobody can post to its queue pairs; receiving, polling and everything else still works.
///
/// ```no_run
/// # use uverbs::{Caps, Cq, InDomain, Inline, Qp, Rc};
/// # fn per_thread(context: &uverbs::Context, pd: &uverbs::Pd, cq: &Cq) -> uverbs::Result<()> {
/// for _ in 0..4 {
///     let mut td = context.alloc_td();
///     let domain = pd.parent_domain().thread_domain(&td).create()?;
///     let mut qps: Vec<Qp<Rc, InDomain>> = (0..8)
///         .map(|_| domain.qp(cq).create_in_domain())
///         .collect::<Result<_, _>>()?;
///     std::thread::spawn(move || -> Result<(), uverbs::PostError> {
///         for qp in &mut qps {
///             let mut batch = qp.batch(&mut td)?;
///             batch.signaled(1).send(Inline(b"hello"))?;
///             batch.ring()?;
///         }
///         Ok(())
///     });
/// }
/// # Ok(()) }
/// ```
pub struct ThreadDomain {
    // Beside the value whose address it is: posts compare the key.
    key: DomainKey,
    inner: Arc<TdInner>,
}

/// The identity of a thread domain: an address that is not reused while something uses the domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DomainKey(NonZeroUsize);

impl DomainKey {
    fn new(domain: &Arc<TdInner>) -> Self {
        Self(NonNull::from(&**domain).addr())
    }
}

struct TdInner {
    // Before the context, whose file a register is freed in.
    hardware: driver::ThreadDomain,
    context: Context,
    id: u64,
    /// The number of parent domains that use it. Relaxed: the count is for messages; the `Arc` decides.
    domains: AtomicU32,
}

impl ThreadDomain {
    /// Checks that it is the thread domain that the queue pair belongs to.
    #[inline(always)]
    pub(crate) fn check(&mut self, domain: Option<DomainKey>) -> Result<(), PostError> {
        // A comparison of numbers is one instruction.
        match domain.map_or(0, |key| key.0.get()) == self.key.0.get() {
            true => Ok(()),
            false => Err(PostError::ForeignDomain),
        }
    }

    /// The context that it was allocated in.
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// A number that no other object of the context has.
    pub fn id(&self) -> u64 {
        self.inner.id
    }

    /// Frees the thread domain.
    ///
    /// # Errors
    ///
    /// [`Cause::Busy`] while parent domains use it; the error returns it. Manual page: `ibv_dealloc_td(3)`.
    #[doc(alias = "ibv_dealloc_td")]
    pub fn dealloc(mut self) -> Result<(), DestroyError<ThreadDomain>> {
        let result = self.check_unused();
        DestroyError::of(self, result)
    }

    /// Fails while parent domains use it. Without any, dropping it frees it.
    pub(crate) fn check_unused(&mut self) -> Result<()> {
        if Arc::get_mut(&mut self.inner).is_some() {
            return Ok(());
        }
        let by = match self.inner.domains.load(Ordering::Relaxed) {
            1 => "1 parent domain uses it".into(),
            count => format!("{count} parent domains use it").into(),
        };
        let subject = Subject::numbered("thread domain", self.inner.id);
        Err(Error::new(Verb::DeallocTd, subject, Cause::Busy(by)))
    }
}

impl fmt::Debug for ThreadDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadDomain")
            .field("id", &self.inner.id)
            .finish_non_exhaustive()
    }
}

/// A parent domain's share in its thread domain.
struct TdUse(Arc<TdInner>);

impl TdUse {
    fn new(td: &Arc<TdInner>) -> Self {
        td.domains.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(td))
    }
}

impl Drop for TdUse {
    fn drop(&mut self) {
        self.0.domains.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How many parent domains may lie over each other. Operations on all of them nest, so they must fit on the
/// stack of any thread.
const DEEPEST: u32 = 256;

/// The description of a parent domain to build.
#[must_use = "nothing is created before `create`"]
pub struct ParentDomainBuilder<'a> {
    pd: &'a Pd,
    td: Option<&'a ThreadDomain>,
    allocator: Option<Arc<dyn Allocator>>,
}

impl Pd {
    /// Starts the description of a parent domain over this protection domain.
    ///
    /// Called on a parent domain, it builds another one over the same kernel object. The outer domain
    /// inherits the inner domain's thread domain and allocator unless it gets its own, and keeps the inner
    /// domain in use. At most 256 may lie over each other.
    pub fn parent_domain(&self) -> ParentDomainBuilder<'_> {
        ParentDomainBuilder {
            pd: self,
            td: None,
            allocator: None,
        }
    }
}

impl<'a> ParentDomainBuilder<'a> {
    /// Attaches a thread domain.
    pub fn thread_domain(mut self, td: &'a ThreadDomain) -> Self {
        self.td = Some(td);
        self
    }

    /// Attaches an allocator, which decides where the rings and doorbell records of the domain's objects lie.
    pub fn allocator(mut self, allocator: impl Allocator) -> Self {
        self.allocator = Some(Arc::new(allocator));
        self
    }

    /// Builds the domain.
    ///
    /// # Errors
    ///
    /// The thread domain belongs to another context, or there are 256 domains under this one. Manual page:
    /// `ibv_alloc_parent_domain(3)`.
    #[doc(alias = "ibv_alloc_parent_domain")]
    pub fn create(self) -> Result<ParentDomain> {
        let context = self.pd.context();
        let subject = || Subject::numbered("PD", self.pd.handle().0.into());
        let parts = [("the thread domain", self.td.map(ThreadDomain::context))];
        context.check_parts(Verb::AllocParentDomain, subject, parts)?;
        let inner = self.pd.domain();
        let depth = inner.map_or(1, |inner| inner.depth + 1);
        if depth > DEEPEST {
            let why = format!("{DEEPEST} parent domains lie over each other already");
            return Err(Error::invalid(Verb::AllocParentDomain, subject(), why));
        }
        let id = context.new_id();
        let td = self
            .td
            .map(|td| &td.inner)
            .or_else(|| inner.and_then(|inner| inner.td.as_ref().map(|td| &td.0)));
        let allocator = self
            .allocator
            .or_else(|| Some(Arc::clone(&inner?.buffers.as_ref()?.allocator)));
        let live = Arc::clone(context.live_buffers());
        let pd = self.pd.handle();
        let state = DomainState {
            id,
            td: td.map(TdUse::new),
            buffers: allocator.map(|allocator| Buffers {
                allocator,
                live,
                pd,
                domain: id,
                dmabufs: context.driver().dmabufs(),
                unmapped: None,
            }),
            base: self.pd.user(User::Domain),
            depth,
        };
        Ok(ParentDomain(Pd::over(state)))
    }
}

impl fmt::Debug for ParentDomainBuilder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ParentDomainBuilder")
            .field("pd", self.pd)
            .field("td", &self.td)
            .field("allocator", &self.allocator.is_some())
            .finish()
    }
}

/// What a parent domain adds to a protection domain.
pub(crate) struct DomainState {
    pub(crate) id: u64,
    td: Option<TdUse>,
    pub(crate) buffers: Option<Buffers>,
    /// The protection domain under it, which may be a parent domain again.
    pub(crate) base: PdUse,
    /// Itself and the parent domains under it.
    depth: u32,
}

impl DomainState {
    /// Its thread domain, if it has one.
    pub(crate) fn thread_domain(&self) -> Option<DomainRef<'_>> {
        self.td.as_ref().map(|td| DomainRef(&td.0))
    }
}

/// A thread domain, for creating a queue pair in it.
#[derive(Clone, Copy)]
pub(crate) struct DomainRef<'a>(&'a Arc<TdInner>);

impl<'a> DomainRef<'a> {
    /// The hardware that it selects for a new queue pair.
    ///
    /// # Safety
    ///
    /// A thread that posts to the queue pair has exclusive access to the thread domain:
    /// [`ThreadDomain::check`].
    pub(crate) unsafe fn hardware(&self) -> &'a driver::ThreadDomain {
        &self.0.hardware
    }

    /// The key by which the queue pair recognises it. The queue pair keeps the domain alive.
    pub(crate) fn key(&self) -> DomainKey {
        DomainKey::new(self.0)
    }
}

impl fmt::Debug for DomainState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DomainState")
            .field("id", &self.id)
            .field("thread_domain", &self.td.as_ref().map(|td| td.0.id))
            .field("buffers", &self.buffers)
            .field("base", &self.base)
            .finish()
    }
}

/// A parent domain. It is a [`Pd`] in every verb that takes one.
///
/// ```no_run
/// use uverbs::{Caps, Rc, alloc::HugePages};
/// # fn build(context: &uverbs::Context, pd: &uverbs::Pd) -> Result<(), Box<dyn std::error::Error>> {
/// let td = context.alloc_td();
/// let domain = pd.parent_domain().thread_domain(&td).allocator(HugePages::new()?).create()?;
/// let cq = context.cq(64).domain(&domain).create()?;
/// let qp = domain.create_qp::<Rc>(&cq, Caps::default())?;     // its rings lie in huge pages
/// # Ok(()) }
/// ```
pub struct ParentDomain(Pd);

impl ParentDomain {
    /// The number by which its allocator identifies it; unique in the context.
    pub fn id(&self) -> u64 {
        self.0.domain().map_or(0, |domain| domain.id)
    }

    /// Frees the parent domain. The protection domain under it stays.
    ///
    /// # Errors
    ///
    /// [`Cause::Busy`] while objects use it; the text names their kinds and counts, and the error returns it.
    /// Manual page: `ibv_dealloc_pd(3)`.
    #[doc(alias = "ibv_dealloc_pd")]
    pub fn dealloc(self) -> Result<(), DestroyError<ParentDomain>> {
        self.0
            .dealloc()
            .map_err(|DestroyError { object, error }| DestroyError {
                object: ParentDomain(object),
                error,
            })
    }
}

/// For C programs, which have one type for all protection domains.
#[cfg(feature = "c-abi")]
impl From<ParentDomain> for Pd {
    fn from(domain: ParentDomain) -> Self {
        domain.0
    }
}

impl Deref for ParentDomain {
    type Target = Pd;

    fn deref(&self) -> &Pd {
        &self.0
    }
}

impl fmt::Debug for ParentDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    #[cfg(feature = "c-abi")]
    use uverbs_uapi::cmd;
    use uverbs_uapi::handle::PdHandle;
    #[cfg(feature = "c-abi")]
    use uverbs_uapi::write::CmdHdr;
    #[cfg(feature = "c-abi")]
    use zerocopy::FromBytes;

    use super::*;
    use crate::context::Context;
    use crate::pd::Stand;

    /// Would catch domains that overflow the stack when they are dropped or printed: 200,000 of them did.
    #[test]
    fn domains_lie_over_each_other_to_a_depth() {
        let (_, file) = rustix::pipe::pipe().unwrap();
        let pd = Pd::new(Context::over(file), PdHandle(1), Stand::Imported(None));
        let mut domain = pd.parent_domain().create().unwrap();
        for _ in 1..DEEPEST {
            domain = domain.parent_domain().create().unwrap();
        }
        let refused = domain.parent_domain().create().unwrap_err();
        assert!(matches!(refused.cause(), Cause::Invalid(_)));
        let words = refused.to_string();
        assert!(words.contains("256 parent domains"), "{words}");
        // The smallest stack that threads have by any library's defaults.
        let small = std::thread::Builder::new().stack_size(512 << 10);
        let gone = small.spawn(move || {
            assert!(format!("{domain:#?}").len() > DEEPEST as usize);
            drop(domain);
        });
        gone.unwrap().join().unwrap();
    }

    /// Would catch a protection domain that nobody frees because a C program has unimported a parent domain
    /// over it.
    #[cfg(feature = "c-abi")]
    #[test]
    fn a_domain_does_not_give_its_pd_away() {
        let (kernel, file) = rustix::pipe::pipe().unwrap();
        let pd = Context::over(file).alloc_pd().unwrap();
        let mut domain = Pd::from(pd.parent_domain().create().unwrap());
        domain.release_in_place().unwrap_err();
        drop(domain);
        let next = || {
            let mut command = [0; 64];
            rustix::io::read(&kernel, &mut command[..8]).unwrap();
            let (header, _) = CmdHdr::read_from_prefix(&command).unwrap();
            let length = usize::from(header.in_words) * 4;
            rustix::io::read(&kernel, &mut command[8..length]).unwrap();
            header.command
        };
        assert_eq!(next(), cmd::ALLOC_PD);
        pd.dealloc().unwrap();
        assert_eq!(next(), cmd::DEALLOC_PD);
    }
}
