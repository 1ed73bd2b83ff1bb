//! Sets of counters that the device keeps, such as of the packets that a flow rule has led somewhere.
//!
//! What is counted is said when a set is bound to something: to a flow rule by
//! [`FlowRule::count`](crate::FlowRule::count).

use std::fmt;
use std::sync::Arc;

use uverbs_uapi::flags::ReadCountersFlags;
use uverbs_uapi::handle::CountersHandle;

use crate::command::{CreateCounters, DestroyCounters, ReadCounters};
use crate::context::Context;
use crate::error::{Cause, DestroyError, Error, Result, Subject, Verb};

impl Context {
    /// Creates a set of counters that is bound to nothing yet.
    ///
    /// # Errors
    ///
    /// [`Cause::Unsupported`] if the device has none, as rxe. Manual page: `ibv_create_counters(3)`.
    pub fn create_counters(&self) -> Result<Counters> {
        let handle = self.fd().execute(&CreateCounters)?;
        Ok(Counters(Arc::new(CountersShared {
            handle,
            alive: true,
            context: self.clone(),
        })))
    }
}

/// What a set of counters shares with what it is bound to.
#[derive(Debug)]
pub(crate) struct CountersShared {
    handle: CountersHandle,
    /// False once the kernel object is gone.
    alive: bool,
    context: Context,
}

impl CountersShared {
    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    fn destroy(&mut self) -> Result<()> {
        self.context.fd().execute(&DestroyCounters(self.handle))?;
        self.alive = false;
        Ok(())
    }
}

impl Drop for CountersShared {
    fn drop(&mut self) {
        if self.alive
            && let Err(error) = self.destroy()
        {
            // They go with the context at the latest.
            tracing::debug!(target: "uverbs", %error, "counters could not be destroyed when they were dropped");
        }
    }
}

/// A set of counters. What it is bound to keeps it alive.
pub struct Counters(Arc<CountersShared>);

impl Counters {
    /// The context that it was created in.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// The kernel's handle.
    pub fn handle(&self) -> CountersHandle {
        self.0.handle
    }

    pub(crate) fn shared(&self) -> &Arc<CountersShared> {
        &self.0
    }

    /// Reads the first `count` counters. With `cached` values will do that the driver read a while ago.
    ///
    /// # Errors
    ///
    /// `count` is 0, or more than the set has. Manual page: `ibv_read_counters(3)`.
    pub fn read(&self, count: usize, cached: bool) -> Result<Vec<u64>> {
        if count == 0 || count > ReadCounters::MAX {
            return Err(Error::invalid(
                Verb::ReadCounters,
                Subject::numbered("counters", self.handle().0.into()),
                format!("{count} counters; 1 to {} are possible", ReadCounters::MAX),
            ));
        }
        let mut flags = ReadCountersFlags::empty();
        flags.set(ReadCountersFlags::PREFER_CACHED, cached);
        self.context().fd().execute(&ReadCounters {
            counters: self.handle(),
            count,
            flags,
        })
    }

    /// Destroys the set.
    ///
    /// # Errors
    ///
    /// [`Cause::Busy`] while it is bound to something. The error gives it back. Manual page:
    /// `ibv_destroy_counters(3)`.
    pub fn destroy(self) -> Result<(), DestroyError<Self>> {
        match Arc::try_unwrap(self.0) {
            Ok(mut shared) => shared.destroy().map_err(|error| DestroyError {
                object: Self(Arc::new(shared)),
                error,
            }),
            Err(shared) => {
                let by = format!("bound to {} flow rules", Arc::strong_count(&shared) - 1);
                let subject = Subject::numbered("counters", shared.handle.0.into());
                let error = Error::new(Verb::DestroyCounters, subject, Cause::Busy(by.into()));
                Err(DestroyError {
                    object: Self(shared),
                    error,
                })
            }
        }
    }
}

impl fmt::Debug for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counters")
            .field("handle", &self.handle().0)
            .finish()
    }
}
