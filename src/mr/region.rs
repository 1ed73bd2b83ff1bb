//! A range that the kernel has registered, and what must not be freed before it is deregistered.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::RangeBounds;

use uverbs_uapi::flags::AccessFlags;
use uverbs_uapi::handle::MrHandle;

use crate::command::Destroy;
use crate::error::{Error, Result};
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

/// A registered range with what must live as long as it is registered.
///
/// Dropping it deregisters the range. Should the kernel refuse, what is held is leaked rather than freed
/// under the device.
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
            // SAFETY: this is the destructor.
            Ok(()) => unsafe { self.memory.drop() },
            Err(error) => {
                tracing::warn!(target: "uverbs", %error, "an MR could not be deregistered; its memory is leaked");
            }
        }
    }
}
