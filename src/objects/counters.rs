//! Sets of counters in the device, such as the packets that a flow rule has matched.
//!
//! A set counts nothing until it is bound to something: to a flow rule by
//! [`FlowRule::count`](crate::flow::FlowRule::count).

use std::fmt;
use std::sync::Arc;

use uverbs_uapi::flags::ReadCountersFlags;
use uverbs_uapi::handle::CountersHandle;

use crate::command::{CreateCounters, ReadCounters};
use crate::context::Context;
use crate::error::{DestroyError, Error, Result, Subject, Verb};
use crate::owned::Owned;

impl Context {
    /// Creates a set of counters that is bound to nothing yet.
    ///
    /// # Errors
    ///
    /// [`Cause::Unsupported`](crate::Cause::Unsupported) if the device has none, like rxe. Manual page:
    /// `ibv_create_counters(3)`.
    #[doc(alias = "ibv_create_counters")]
    pub fn create_counters(&self) -> Result<Counters> {
        let handle = self.fd().execute(&CreateCounters)?;
        let object = Owned::new(self, handle);
        Ok(Counters(Arc::new(CountersShared(object))))
    }
}

/// What a set of counters shares with what it is bound to.
#[derive(Debug)]
pub(crate) struct CountersShared(Owned<CountersHandle>);

impl CountersShared {
    pub(crate) fn context(&self) -> &Context {
        self.0.context()
    }
}

/// A set of counters. What it is bound to keeps it alive.
pub struct Counters(Arc<CountersShared>);

impl Counters {
    /// The context that it was created in.
    pub fn context(&self) -> &Context {
        self.0.context()
    }

    /// The kernel's handle.
    pub fn handle(&self) -> CountersHandle {
        self.0.0.handle()
    }

    pub(crate) fn shared(&self) -> &Arc<CountersShared> {
        &self.0
    }

    /// Reads the first `count` counters. `cached` allows values that the driver read some time ago.
    ///
    /// # Errors
    ///
    /// `count` is 0, or more than the set has. Manual page: `ibv_read_counters(3)`.
    #[doc(alias = "ibv_read_counters")]
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
    /// [`Cause::Busy`](crate::Cause::Busy) while it is bound to something. The error returns it. Manual page:
    /// `ibv_destroy_counters(3)`.
    #[doc(alias = "ibv_destroy_counters")]
    pub fn destroy(mut self) -> Result<(), DestroyError<Self>> {
        let result = match Arc::get_mut(&mut self.0) {
            Some(shared) => shared.0.destroy(),
            None => {
                let rules = Arc::strong_count(&self.0) - 1;
                Err(self.0.0.busy(format!("bound to {rules} flow rules")))
            }
        };
        DestroyError::of(self, result)
    }
}

impl fmt::Debug for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counters")
            .field("handle", &self.handle().0)
            .finish()
    }
}
