//! A range that the kernel has registered, and what must not be freed before it is deregistered.

use std::fmt;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::RangeBounds;

use uverbs_uapi::flags::AccessFlags;
use uverbs_uapi::handle::MrHandle;

use super::Memory;
use crate::command::Destroy;
use crate::error::{Error, Result};
use crate::key::{LocalKey, LocalSlice, OutOfBounds, RemoteKey, RemoteSlice};
use crate::pd::PdUse;

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
        // When a device goes away the kernel lets go of all memory and still takes this command, successfully. So an error
        // always means that the device may go on using the memory: EIO is what adapters fail with.
        self.pd.context().fd().execute(&Destroy(self.handle))?;
        self.registered = false;
        Ok(())
    }

    /// A part of it for a work request.
    pub(super) fn slice(&self, range: impl RangeBounds<u64>) -> Result<LocalSlice, OutOfBounds> {
        let Self {
            iova,
            length,
            lkey,
            ref pd,
            ..
        } = *self;
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

/// Memory at rest while a pointer to it is in use, wherever this value is moved.
///
/// Moving a `Box` or a `&mut` asserts that nobody else has a pointer to what it leads to, which would end those that were made
/// before. Nothing is asserted of a `MaybeUninit`. Like one, it does not drop what is in it.
pub(super) struct Still<T>(MaybeUninit<T>);

impl<T> Still<T> {
    /// Lays memory to rest: pointers to it are to be made from here on.
    pub(super) fn new(memory: T) -> Self {
        Self(MaybeUninit::new(memory))
    }

    /// Gives it back; pointers that were made are to be used no more.
    pub(super) fn into_inner(self) -> T {
        // SAFETY: it was initialised, and leaves here for good.
        unsafe { self.0.assume_init() }
    }

    /// Drops it in place.
    fn drop(&mut self) {
        // SAFETY: it was initialised; the only caller is the destructor of what holds it.
        unsafe { self.0.assume_init_drop() }
    }
}

impl<M: Memory> Still<M> {
    /// The first byte, and the number of bytes.
    pub(super) fn range(&mut self) -> (*mut u8, usize) {
        // SAFETY: it was initialised.
        let memory = unsafe { self.0.assume_init_mut() };
        (memory.address(), memory.length())
    }
}

impl<A, B> Still<(A, B)> {
    /// Two as one, without a look at either.
    pub(super) fn both(first: Still<A>, second: Still<B>) -> Self {
        let mut both = MaybeUninit::<(A, B)>::uninit();
        let place = both.as_mut_ptr();
        // SAFETY: both fields lie in `both`, and are written before anybody reads them.
        unsafe {
            (&raw mut (*place).0)
                .cast::<MaybeUninit<A>>()
                .write(first.0);
            (&raw mut (*place).1)
                .cast::<MaybeUninit<B>>()
                .write(second.0);
        }
        Still(both)
    }
}

/// A registered range with what must live as long as it is registered.
///
/// Dropping it deregisters the range. Should the kernel refuse, what is held is leaked rather than freed under the device.
pub(super) struct Held<T> {
    memory: Still<T>,
    pub(super) region: Region,
}

impl<T> Held<T> {
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

    /// Deregisters the range and gives back what was held; if the kernel refuses, all of it with the error.
    pub(super) fn release(mut self) -> Result<T, (Self, Error)> {
        match self.region.deregister() {
            Ok(()) => Ok(self.into_parts().0.into_inner()),
            Err(error) => Err((self, error)),
        }
    }
}

impl<T> Drop for Held<T> {
    fn drop(&mut self) {
        match self.region.deregister() {
            // Once, here: the device does not know it any more.
            Ok(()) => self.memory.drop(),
            Err(error) => {
                tracing::warn!(target: "uverbs", %error, "an MR could not be deregistered; its memory is leaked");
            }
        }
    }
}
