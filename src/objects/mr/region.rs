//! A range that the kernel has registered, and what must not be freed before it is deregistered.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::RangeBounds;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use uverbs_queue::handover;
use uverbs_uapi::flags::Access;
use uverbs_uapi::handle::MrHandle;

use crate::command::{Command, Destroy};
use crate::context::Context;
use crate::error::{Cause, Errno, Error, Result, Verb};
use crate::flight::{Parked, Stands};
use crate::memory::Still;
use crate::pd::RegionUse;
use crate::probes;
use crate::work::{LocalKey, LocalSlice, OutOfBounds, RemoteKey, RemoteSlice};

/// A registered range, without the memory itself.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) handle: MrHandle,
    pub(super) lkey: LocalKey,
    pub(super) rkey: RemoteKey,
    pub(super) address: *mut u8,
    pub(super) length: usize,
    pub(super) iova: u64,
    pub(super) access: Access,
    /// Whether the kernel has pinned its pages so that a device may write to them.
    pub(super) pinned_for_writing: bool,
    /// Whether slices were ever taken of it, so that requests may name it.
    pub(super) sliced: AtomicBool,
    /// Whether windows may have been bound to it.
    pub(super) windowed: AtomicBool,
    /// Whether it is in its context's list of regions on demand.
    pub(super) on_demand: bool,
    pub(super) pd: RegionUse,
}

// SAFETY: the pointer is to memory that is `Send`. It is used for copies, and for the references that
// `unsafe` functions lend by their callers' promise.
unsafe impl Send for Region {}
// SAFETY: shared references copy bytes in and out of memory that peers may change as well; tearing is
// documented, and what they touch is never lent out without the caller's promise.
unsafe impl Sync for Region {}

impl Region {
    fn deregister(&self) -> Result<()> {
        // When a device is removed, the kernel releases all memory and still takes this command,
        // successfully. So an error always means that the device may still use the memory: adapters fail with
        // EIO.
        self.forget_on_demand();
        let deregistered = self.pd.context().fd().execute(&Destroy(self.handle));
        match &deregistered {
            Ok(()) => probes::region_gone(self.lkey.0),
            Err(_) => self.note_on_demand(),
        }
        deregistered
    }

    /// Enters it in its context's list if it is on demand.
    pub(super) fn note_on_demand(&self) {
        if self.on_demand {
            self.pd.context().on_demand().note(self.lkey.0);
        }
    }

    pub(super) fn forget_on_demand(&self) {
        if self.on_demand {
            self.pd.context().on_demand().forget(self.lkey.0);
        }
    }

    /// How far the queues are that have requests in flight which may name it.
    fn stands(&self) -> Stands {
        self.pd.reap();
        // Relaxed: every slice has been given back, and that orders the store of the flag before this load.
        match self.sliced.load(Ordering::Relaxed) {
            true => self.pd.flights().stands(self.lkey),
            false => Stands::default(),
        }
    }

    /// Fails if requests in flight may name it.
    pub(super) fn check_idle(&self, verb: Verb) -> Result<()> {
        let stands = self.stands();
        match stands.is_empty() {
            true => Ok(()),
            false => Err(self.named_by(verb, &stands)),
        }
    }

    #[cold]
    fn named_by(&self, verb: Verb, stands: &Stands) -> Error {
        let by = format!("requests in flight may name it: {stands}");
        let subject = Destroy(self.handle).subject();
        Error::new(verb, subject, Cause::Busy(by.into()))
    }

    /// Notes that requests may name it.
    #[inline]
    pub(super) fn mark_sliced(&self) {
        // Relaxed: see `stands`.
        self.sliced.store(true, Ordering::Relaxed);
    }

    /// Notes that windows may be bound to it.
    #[inline]
    pub(super) fn mark_windowed(&self) {
        self.mark_sliced();
        // Relaxed: as `sliced`.
        self.windowed.store(true, Ordering::Relaxed);
    }

    /// The whole region for an agent, whose requests may name it from then on.
    pub(super) fn named(&self) -> handover::Region {
        self.mark_sliced();
        handover::Region {
            address: self.iova,
            length: self.length as u64,
            lkey: self.lkey.0,
            rkey: self.rkey.0,
        }
    }

    /// A part of it for a work request.
    pub(super) fn slice(
        &self,
        range: impl RangeBounds<usize>,
    ) -> Result<LocalSlice<'_>, OutOfBounds> {
        let Self {
            iova,
            length,
            lkey,
            ref pd,
            access,
            ..
        } = *self;
        self.mark_sliced();
        let tag = match access.contains(Access::LOCAL_WRITE) {
            true => pd.tag(),
            false => pd.tag().read_only(),
        };
        LocalSlice::within(range, iova, length as u64, lkey, tag)
    }

    /// The whole region as a peer names it.
    pub(super) fn remote(&self) -> RemoteSlice {
        RemoteSlice {
            address: self.iova,
            length: self.length as u64,
            rkey: self.rkey,
        }
    }

    /// Fields for the debug output of its owner.
    pub(super) fn debug(&self, fields: &mut fmt::DebugStruct<'_, '_>) -> fmt::Result {
        let Self {
            handle,
            lkey,
            rkey,
            iova,
            length,
            access,
            ..
        } = self;
        fields
            .field("handle", &handle.0)
            .field("lkey", lkey)
            .field("rkey", rkey)
            .field("iova", &format_args!("{iova:#x}"))
            .field("len", length)
            .field("access", access)
            .finish()
    }
}

/// A registered range with what must live as long as it is registered.
///
/// Dropping it deregisters the range, at once or when the requests that may name it have completed. If the
/// kernel refuses because of windows or of another holder of the file, it is asked again later; if it refuses
/// otherwise, the memory is leaked rather than freed while the device may use it.
pub(super) struct Held<T: Send + 'static> {
    memory: Still<T>,
    pub(super) region: Region,
}

impl<T: Send + 'static> Held<T> {
    pub(super) fn new(memory: Still<T>, region: Region) -> Self {
        probes::region(region.lkey.0, region.address.addr(), region.length);
        region.note_on_demand();
        Self { memory, region }
    }

    /// Takes it apart, with the range still registered.
    pub(super) fn into_parts(self) -> (Still<T>, Region) {
        let this = ManuallyDrop::new(self);
        // SAFETY: both are moved out once, and `this` is neither used nor dropped afterwards.
        unsafe {
            (
                std::ptr::read(&raw const this.memory),
                std::ptr::read(&raw const this.region),
            )
        }
    }

    /// Deregisters the range and returns the memory. If requests in flight may name the range, or if the
    /// kernel refuses, returns everything with the error.
    pub(super) fn release(self) -> Result<T, (Self, Error)> {
        match self.region.check_idle(Verb::DeregMr) {
            Ok(()) => self.let_go(),
            Err(error) => Err((self, error)),
        }
    }

    /// As [`release`](Self::release), once the requests in flight have completed.
    pub(super) fn release_by(self, deadline: Instant) -> Result<T, (Self, Error)> {
        let mut stands = self.region.stands();
        let mut pause = SHORTEST_PAUSE;
        while !stands.are_passed() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let error = self.region.named_by(Verb::DeregMr, &stands);
                return Err((self, error));
            }
            std::thread::sleep(pause.min(left));
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        self.let_go()
    }

    fn let_go(self) -> Result<T, (Self, Error)> {
        // Taken apart first: if a subscriber of traces panics, it is unknown whether the device has released
        // the memory. The memory is then leaked, and the handle, which may belong to another region by then,
        // is not used again.
        let (memory, region) = self.into_parts();
        match region.deregister() {
            Ok(()) => Ok(memory.into_inner()),
            Err(error) => Err((Self { memory, region }, error)),
        }
    }
}

/// How long to wait between two looks at queues that other threads poll.
const SHORTEST_PAUSE: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

impl<T: Send + 'static> Drop for Held<T> {
    fn drop(&mut self) {
        let Self { memory, region } = self;
        // First: this may drop other regions, with memory of any type. If the destructor of that memory
        // panics, this region stays registered, and its memory is leaked.
        let stands = region.stands();
        region.forget_on_demand();
        let left = Left {
            // SAFETY: this is the destructor; it is moved out once.
            memory: unsafe { std::ptr::read(memory) },
            handle: region.handle,
            // Relaxed: see `stands`.
            windowed: region.windowed.load(Ordering::Relaxed),
            context: region.pd.context().clone(),
        };
        let left = match stands.is_empty() {
            true => left.release(),
            false => Some(left),
        };
        if let Some(left) = left {
            region.pd.flights().wait(stands, Box::new(left));
        }
    }
}

/// A registered range that the program has dropped. It does not count as a user of its PD: it goes when the
/// PD goes.
struct Left<T> {
    memory: Still<T>,
    handle: MrHandle,
    windowed: bool,
    context: Context,
}

impl<T> Left<T> {
    /// Deregisters the range, and drops the memory. Returns it if the kernel refuses, but may not do so
    /// later.
    fn release(self) -> Option<Self> {
        // If a subscriber of traces panics, the memory is leaked, and the handle is not used again.
        let this = ManuallyDrop::new(self);
        let deregistered = this.deregister();
        if let Err(error) = &deregistered
            && (this.windowed || error.errno() == Some(Errno::BUSY))
        {
            return Some(ManuallyDrop::into_inner(this));
        }
        // SAFETY: they are moved out once, and `this` is neither used nor dropped afterwards.
        let (memory, _context) = unsafe {
            (
                std::ptr::read(&raw const this.memory),
                std::ptr::read(&raw const this.context),
            )
        };
        match deregistered {
            Ok(()) => drop(memory.into_inner()),
            Err(error) => report_leak(&error),
        }
        None
    }

    fn deregister(&self) -> Result<()> {
        // As in `Region::deregister`.
        self.context.fd().destroy_patiently(self.handle)
    }
}

fn report_leak(error: &Error) {
    tracing::warn!(target: "uverbs", %error, "an MR could not be deregistered; its memory is leaked");
}

impl<T: Send + 'static> Parked for Left<T> {
    fn release(self: Box<Self>) -> Option<Box<dyn Parked>> {
        Some(Box::new(Left::release(*self)?))
    }

    fn leak(self: Box<Self>) {
        let this = ManuallyDrop::new(*self);
        // SAFETY: it is moved out once, and `this` is neither used nor dropped afterwards.
        drop(unsafe { std::ptr::read(&raw const this.context) });
    }
}

impl<T> Drop for Left<T> {
    fn drop(&mut self) {
        match self.deregister() {
            // Dropped once, here: the device does not know the range any more.
            // SAFETY: this is the destructor.
            Ok(()) => unsafe { self.memory.drop() },
            Err(error) => report_leak(&error),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::fd::OwnedFd;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    use rustix::io::ioctl_fionbio;
    use uverbs_uapi::cmd;
    use uverbs_uapi::handle::PdHandle;
    use uverbs_uapi::write::{CmdHdr, DeregMr};
    use zerocopy::{FromZeros, IntoBytes};

    use super::*;
    use crate::error::Subject;
    use crate::flight::Queues;
    use crate::mw::Type1;
    use crate::owned::tests::Listener;
    use crate::pd::{Pd, Stand, User};

    /// Counts how often it is dropped, and then panics if its flag is set.
    pub(crate) struct Memory(Arc<AtomicU32>, bool);

    impl Drop for Memory {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
            assert!(!self.1, "so it is with this memory");
        }
    }

    /// A pipe as the kernel, and a protection domain that it knows.
    pub(crate) fn kernel() -> (OwnedFd, Pd) {
        let (kernel, file) = rustix::pipe::pipe().unwrap();
        ioctl_fionbio(&kernel, true).unwrap();
        let pd = Pd::new(Context::over(file), PdHandle(1), Stand::Imported(None));
        (kernel, pd)
    }

    /// A region of which slices were taken, with its memory's count.
    pub(crate) fn region(pd: &Pd, handle: u32, panics: bool) -> (Held<Memory>, Arc<AtomicU32>) {
        let drops = Arc::new(AtomicU32::new(0));
        let region = Region {
            handle: MrHandle(handle),
            lkey: LocalKey(handle),
            rkey: RemoteKey(handle),
            address: std::ptr::null_mut(),
            length: 1,
            iova: 0,
            access: Access::empty(),
            pinned_for_writing: false,
            sliced: AtomicBool::new(true),
            windowed: AtomicBool::new(false),
            on_demand: false,
            pd: pd.region_use(),
        };
        let memory = Memory(Arc::clone(&drops), panics);
        (Held::new(Still::new(memory), region), drops)
    }

    /// The handles of the regions that were deregistered in the kernel.
    pub(crate) fn deregistered(kernel: &OwnedFd) -> Vec<u32> {
        let mut handles = Vec::new();
        let mut command = (CmdHdr::new_zeroed(), DeregMr::new_zeroed());
        while let Ok(length @ 1..) = rustix::io::read(kernel, command.0.as_mut_bytes()) {
            assert_eq!((length, command.0.command), (8, cmd::DEREG_MR));
            rustix::io::read(kernel, command.1.as_mut_bytes()).unwrap();
            handles.push(command.1.mr_handle);
        }
        handles
    }

    /// Catches: region B is deregistered although requests still name it, because the destructor of region
    /// A's memory panics while B checks whether it must wait.
    #[test]
    fn a_panic_of_other_memory_lets_no_region_go() {
        let (kernel, pd) = kernel();
        let flights = pd.user(User::Mr);
        let flight = flights.flights().begin(Subject::the("QP"), Queues::Unknown);
        let (first, _) = region(&pd, 3, true);
        drop(first);
        // The first region's request is forgotten, so that region may go. The new request is one for which
        // the second waits.
        flight.renew(Subject::the("QP"), Queues::Unknown);
        let (second, drops) = region(&pd, 4, false);
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(second)));
        assert!(dropped.is_err(), "nothing has panicked");
        assert_eq!(deregistered(&kernel), [3]);
        assert_eq!(drops.load(Ordering::Relaxed), 0);
    }

    /// Would catch memory that stays registered, and counts towards the limits, while a program registers
    /// more: nothing else asks about the regions that it has dropped.
    #[test]
    fn registering_lets_go_of_what_waits() {
        // SAFETY: nobody gets a key of it.
        let everything = |pd: &Pd| unsafe { pd.register_everything(Access::empty()) }.map(drop);
        let dmabuf = |pd: &Pd| {
            let file = rustix::pipe::pipe().unwrap().0;
            let registered = pd.register_dmabuf(file, 0..1, 0, Access::empty());
            registered.map(drop).map_err(Error::from)
        };
        let memory = |pd: &Pd| {
            let registered = pd.register(vec![0_u8; 8], Access::empty());
            registered.map(drop).map_err(Error::from)
        };
        type Register = dyn Fn(&Pd) -> Result<()>;
        let ways: [&Register; 3] = [&memory, &dmabuf, &everything];
        for (way, register) in ways.into_iter().enumerate() {
            let (kernel, pd) = kernel();
            let user = pd.user(User::Mr);
            let flight = user.flights().begin(Subject::the("QP"), Queues::Unknown);
            let (held, drops) = region(&pd, 3, false);
            drop(held);
            flight.renew(Subject::the("QP"), Queues::Unknown);
            assert_eq!(drops.load(Ordering::Relaxed), 0);
            // Whether it can be registered does not matter.
            let _ = register(&pd);
            assert_eq!(drops.load(Ordering::Relaxed), 1, "{way}");
            drop(kernel);
        }
    }

    /// Would catch device memory that cannot be freed because of regions in it, of whatever protection
    /// domain, that have nothing left to wait for.
    #[test]
    fn a_context_lets_go_of_what_waits_in_all_its_domains() {
        let (kernel, pd) = kernel();
        let other = Pd::new(pd.context().clone(), PdHandle(2), Stand::Imported(None));
        let waiting = [&pd, &other].map(|pd| {
            let user = pd.user(User::Mr);
            let flight = user.flights().begin(Subject::the("QP"), Queues::Unknown);
            let (held, drops) = region(pd, pd.handle().0, false);
            drop(held);
            flight.renew(Subject::the("QP"), Queues::Unknown);
            (drops, user)
        });
        pd.context().reap();
        for (drops, _) in &waiting {
            assert_eq!(drops.load(Ordering::Relaxed), 1);
        }
        drop(kernel);
    }

    /// Would catch regions that are deregistered although the kernel keeps a queue pair that uses them,
    /// because another region's memory panics when it is dropped, or a subscriber panics at the report of the
    /// leak.
    #[test]
    fn a_panic_at_the_end_of_the_domain_lets_no_region_go() {
        for by_memory in [true, false] {
            let (kernel, pd) = kernel();
            let flights = pd.user(User::Mr);
            let begin = || flights.flights().begin(Subject::the("QP"), Queues::Unknown);
            let passed = begin();
            if by_memory {
                drop(region(&pd, 3, true));
            }
            let kept = begin();
            let counts = [4, 5].map(|handle| region(&pd, handle, false).1);
            passed.renew(Subject::the("QP"), Queues::Unknown);
            let panics = Listener("uverbs", |text| panic!("told of {text}"));
            let dropped = tracing::subscriber::with_default(panics, || {
                catch_unwind(AssertUnwindSafe(|| drop((pd, flights))))
            });
            assert!(dropped.is_err(), "nothing has panicked");
            let expected: &[u32] = if by_memory { &[3] } else { &[] };
            assert_eq!(deregistered(&kernel), expected);
            assert_eq!(counts.map(|count| count.load(Ordering::Relaxed)), [0, 0]);
            drop(kept);
        }
    }

    /// Would catch a region that stays because another holder of the file has just looked at it, however long
    /// that takes; and one of which the kernel says that the device still has it that is asked for again.
    #[test]
    fn a_region_that_others_look_at_goes_when_they_have() {
        for (times, waits, errno) in [(3, 0, Errno::BUSY), (40, 1, Errno::BUSY), (1, 0, Errno::IO)]
        {
            let (kernel, pd) = kernel();
            let fd = pd.context().fd();
            let (held, drops) = region(&pd, 3, false);
            fd.refuse(Verb::DeregMr, errno, times);
            drop(held);
            assert_eq!(pd.reclaim(), waits, "{errno}");
            while fd.refusals_left() > 0 {
                assert_eq!(drops.load(Ordering::Relaxed), 0);
                pd.reclaim();
            }
            let goes = errno == Errno::BUSY;
            assert_eq!(deregistered(&kernel), if goes { vec![3] } else { vec![] });
            assert_eq!(drops.load(Ordering::Relaxed), u32::from(goes));
        }
    }

    /// Would catch a region that stays registered for good because it was dropped before a window that is
    /// bound to it.
    #[test]
    fn a_region_goes_behind_its_windows() {
        let (kernel, pd) = kernel();
        let mw = pd.alloc_mw::<Type1>().unwrap();
        let (held, drops) = region(&pd, 3, false);
        held.region.mark_windowed();
        let fd = pd.context().fd();
        fd.refuse(Verb::DeregMr, Errno::INVAL, 3);
        drop(held);
        assert_eq!((pd.reclaim(), drops.load(Ordering::Relaxed)), (1, 0));
        assert_eq!(fd.refusals_left(), 0);
        drop(mw);
        assert_eq!(drops.load(Ordering::Relaxed), 1);
        drop((pd, kernel));
    }

    /// Would catch a protection domain that stays until the context is closed, since at its end the kernel is
    /// not asked because of a region that others looked at.
    #[test]
    fn the_kernel_is_asked_for_a_domain_whatever_waits() {
        let (kernel, file) = rustix::pipe::pipe().unwrap();
        ioctl_fionbio(&kernel, true).unwrap();
        let stand = Stand::Owned(AtomicBool::new(true));
        let pd = Pd::new(Context::over(file), PdHandle(7), stand);
        let context = pd.context().clone();
        let (held, drops) = region(&pd, 3, false);
        context.fd().refuse(Verb::DeregMr, Errno::BUSY, 100);
        drop(held);
        assert_eq!(pd.reclaim(), 1);
        drop(pd);
        let mut header = CmdHdr::new_zeroed();
        rustix::io::read(&kernel, header.as_mut_bytes()).unwrap();
        assert_eq!(header.command, cmd::DEALLOC_PD);
        assert_eq!(drops.load(Ordering::Relaxed), 0, "it is leaked");
    }

    /// Would catch memory that is given back, or a handle that is used again, when it is not known whether
    /// the region is registered.
    #[test]
    fn a_panic_behind_the_command_leaks_the_memory() {
        let (kernel, pd) = kernel();
        let (held, drops) = region(&pd, 3, false);
        let panics = Listener("uverbs::command", |text| panic!("told of {text}"));
        let released = tracing::subscriber::with_default(panics, || {
            catch_unwind(AssertUnwindSafe(|| held.release().is_ok()))
        });
        assert!(released.is_err(), "the subscriber was not asked");
        assert_eq!(deregistered(&kernel), [3]);
        assert_eq!(drops.load(Ordering::Relaxed), 0);
    }
}
