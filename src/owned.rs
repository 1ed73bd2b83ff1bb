//! A kernel object that is this process's to destroy: once, at the latest when it is dropped.

use std::fmt;

use crate::command::Command;
use crate::context::Context;
use crate::error::{Cause, Error, Result};

/// A kernel object, as the command that destroys it.
///
/// What must outlive the object in the kernel stands behind it in the struct that has both, since fields are dropped in
/// their order.
pub(crate) struct Owned<D: Command> {
    destroy: D,
    /// False once the kernel object is gone, or somebody else's.
    alive: bool,
    context: Context,
}

impl<D: Command> Owned<D> {
    /// A new object of a context.
    pub(crate) fn new(context: &Context, destroy: D) -> Self {
        Self {
            destroy,
            alive: true,
            context: context.clone(),
        }
    }

    /// The context that it was created in.
    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// The command that destroys it, which has its handle.
    pub(crate) fn command(&self) -> &D {
        &self.destroy
    }

    /// Destroys it, if that has not been done yet.
    pub(crate) fn destroy(&mut self) -> Result<()> {
        if self.alive {
            self.context.fd().execute(&self.destroy)?;
            self.alive = false;
        }
        Ok(())
    }

    /// Leaves it to others.
    pub(crate) fn leave(&mut self) {
        self.alive = false;
    }

    /// The error of destroying it while something of this process still needs it.
    pub(crate) fn busy(&self, by: String) -> Error {
        Error::new(D::VERB, self.destroy.subject(), Cause::Busy(by.into()))
    }
}

impl<D: Command> Drop for Owned<D> {
    fn drop(&mut self) {
        if let Err(error) = self.destroy() {
            // It goes with the context at the latest.
            tracing::debug!(target: "uverbs", %error, "an object could not be destroyed when it was dropped");
        }
    }
}

impl<D: Command> fmt::Debug for Owned<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Owned").field(&self.destroy).finish()
    }
}
