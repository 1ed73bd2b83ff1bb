//! A kernel object that is this process's to destroy: once, at the latest when it is dropped.

use std::fmt;
use std::mem::ManuallyDrop;

use crate::command::{Command, Destroy, Object};
use crate::context::Context;
use crate::error::{Cause, Error, Result};

/// A kernel object, as its handle, and its *backing*: what the kernel or the device uses until the object is gone,
/// such as the memory of its rings.
///
/// The backing is dropped when the kernel has destroyed the object, and never otherwise. What else must outlive
/// the object stands behind it in the struct that has both, since fields are dropped in their order.
pub(crate) struct Owned<H: Object, B = ()> {
    handle: H,
    stand: Stand,
    backing: ManuallyDrop<B>,
    context: Context,
}

/// What becomes of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stand {
    /// It is this process's to destroy.
    Ours,
    /// It is left to others, at the latest to the end of the context.
    Left,
    /// It is destroyed.
    Gone,
}

impl<H: Object> Owned<H> {
    /// A new object of a context that needs nothing of this process.
    pub(crate) fn new(context: &Context, handle: H) -> Self {
        Self::backed(context, handle, ())
    }
}

impl<H: Object, B> Owned<H, B> {
    /// A new object of a context, with its backing.
    pub(crate) fn backed(context: &Context, handle: H, backing: B) -> Self {
        Self {
            handle,
            stand: Stand::Ours,
            backing: ManuallyDrop::new(backing),
            context: context.clone(),
        }
    }

    /// The context that it was created in.
    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// The kernel's handle.
    pub(crate) fn handle(&self) -> H {
        self.handle
    }

    /// What must stay until it is gone.
    pub(crate) fn backing(&self) -> &B {
        &self.backing
    }

    /// Destroys it, if that has not been done yet.
    pub(crate) fn destroy(&mut self) -> Result<()> {
        if self.stand == Stand::Ours {
            self.context.fd().execute(&Destroy(self.handle))?;
            self.stand = Stand::Gone;
        }
        Ok(())
    }

    /// Destroys it where nobody can be told of an error. If the kernel refuses, the object goes with the context
    /// and the backing stays; `instead` does what can still be done.
    pub(crate) fn end(&mut self, instead: impl FnOnce(&Self)) {
        if let Err(error) = self.destroy() {
            self.leave();
            instead(self);
            let what = H::NAME;
            tracing::debug!(target: "uverbs", %error, "{what} could not be destroyed when it was dropped");
        }
    }

    /// Leaves it to others.
    pub(crate) fn leave(&mut self) {
        self.stand = Stand::Left;
    }

    /// The error of destroying it while something of this process still needs it.
    pub(crate) fn busy(&self, by: String) -> Error {
        let subject = Destroy(self.handle).subject();
        Error::new(H::DESTROY, subject, Cause::Busy(by.into()))
    }
}

impl<H: Object, B> Drop for Owned<H, B> {
    fn drop(&mut self) {
        // A subscriber of traces that panics unwinds from here: the backing then stays, as after a refusal.
        self.end(|_| ());
        if self.stand == Stand::Gone {
            // SAFETY: it is dropped once, here, and nobody can get at it any more.
            unsafe { ManuallyDrop::drop(&mut self.backing) };
        }
    }
}

impl<H: Object, B> fmt::Debug for Owned<H, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Owned").field(&self.handle).finish()
    }
}
