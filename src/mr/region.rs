//! A range that the kernel has registered, and what must not be freed before it is deregistered.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::RangeBounds;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use uverbs_uapi::flags::AccessFlags;
use uverbs_uapi::handle::MrHandle;

use crate::command::{Command, Destroy};
use crate::context::Context;
use crate::error::{Cause, Error, Result, Verb};
use crate::flight::{Parked, Stands};
use crate::memory::Still;
use crate::pd::PdUse;
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
    pub(super) access: AccessFlags,
    /// Whether the kernel has pinned its pages so that a device may write to them.
    pub(super) pinned_for_writing: bool,
    pub(super) registered: bool,
    /// Whether slices were ever taken of it, so that requests may name it.
    pub(super) sliced: AtomicBool,
    pub(super) pd: PdUse,
    /// The protection domain that it may stand on as well, after a change that failed halfway.
    pub(super) or_pd: Option<PdUse>,
}

// SAFETY: the pointer is to memory that is `Send`, and is used by copies only.
unsafe impl Send for Region {}
// SAFETY: shared references copy bytes in and out of memory that peers may change as well; tearing is
// documented, and what they touch is never lent out without the caller's promise.
unsafe impl Sync for Region {}

impl Region {
    pub(super) fn deregister(&mut self) -> Result<()> {
        if !self.registered {
            return Ok(());
        }
        // When a device goes away the kernel lets go of all memory and still takes this command,
        // successfully. So an error always means that the device may go on using the memory: EIO is what
        // adapters fail with.
        self.pd.context().fd().execute(&Destroy(self.handle))?;
        self.registered = false;
        Ok(())
    }

    /// Where the queues stand that may have requests that name it, as far as they have any in flight.
    fn stands(&self) -> Stands {
        let mut stands = Stands::default();
        for pd in [Some(&self.pd), self.or_pd.as_ref()].into_iter().flatten() {
            pd.reap();
            // Relaxed: whoever took a slice has given it back, which orders the two.
            if self.sliced.load(Ordering::Relaxed) {
                stands.add(pd.flights().stands(self.lkey));
            }
        }
        stands
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
    pub(super) fn mark_sliced(&self) {
        // Relaxed: see `stands`.
        self.sliced.store(true, Ordering::Relaxed);
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
            ..
        } = *self;
        self.mark_sliced();
        LocalSlice::within(range, iova, length as u64, lkey, pd.tag())
    }

    /// All of it as a peer names it.
    pub(super) fn remote(&self) -> RemoteSlice {
        RemoteSlice {
            address: self.iova,
            length: self.length as u64,
            rkey: self.rkey,
        }
    }

    /// Fields for the debug output of what holds it.
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
/// Dropping it deregisters the range, at once or when the requests have completed that may name it. Should
/// the kernel refuse, what is held is leaked rather than freed under the device.
pub(super) struct Held<T: Send + 'static> {
    memory: Still<T>,
    pub(super) region: Region,
}

impl<T: Send + 'static> Held<T> {
    pub(super) fn new(memory: Still<T>, region: Region) -> Self {
        Self { memory, region }
    }

    /// Comes apart, with the range still registered.
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

    /// Deregisters the range and gives back what was held; all of it with the error if requests in flight may
    /// name it, or if the kernel refuses.
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

    fn let_go(mut self) -> Result<T, (Self, Error)> {
        match self.region.deregister() {
            Ok(()) => Ok(self.into_parts().0.into_inner()),
            Err(error) => Err((self, error)),
        }
    }
}

/// How long to wait between two looks at queues that others poll.
const SHORTEST_PAUSE: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

impl<T: Send + 'static> Drop for Held<T> {
    fn drop(&mut self) {
        let Self { memory, region } = self;
        if !region.registered {
            // SAFETY: this is the destructor, and the device does not know the memory.
            unsafe { memory.drop() };
            return;
        }
        region.registered = false;
        let left = Left {
            // SAFETY: this is the destructor; it is moved out once.
            memory: unsafe { std::ptr::read(memory) },
            handle: region.handle,
            context: region.pd.context().clone(),
        };
        let stands = region.stands();
        if !stands.is_empty() {
            region.pd.flights().wait(stands, Box::new(left));
        }
    }
}

/// A registered range that nobody has any more. It does not count with its PD: a PD that goes takes it along.
struct Left<T> {
    memory: Still<T>,
    handle: MrHandle,
    context: Context,
}

impl<T: Send> Parked for Left<T> {
    fn leak(self: Box<Self>) {
        let this = ManuallyDrop::new(*self);
        // SAFETY: it is moved out once, and `this` is neither used nor dropped afterwards.
        drop(unsafe { std::ptr::read(&raw const this.context) });
    }
}

impl<T> Drop for Left<T> {
    fn drop(&mut self) {
        // As in `Region::deregister`.
        match self.context.fd().execute(&Destroy(self.handle)) {
            // Once, here: the device does not know it any more.
            // SAFETY: this is the destructor.
            Ok(()) => unsafe { self.memory.drop() },
            Err(error) => {
                tracing::warn!(target: "uverbs", %error, "an MR could not be deregistered; its memory is leaked");
            }
        }
    }
}
