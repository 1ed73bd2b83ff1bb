//! Device memory: memory that the device has itself, for what peers read and write often.
//!
//! A piece of it is registered in parts by [`Pd::register_dm`](crate::Pd::register_dm). Copying from and to it by the
//! processor needs a mapping that only drivers know; no driver of this library has one so far.

use std::fmt;
use std::sync::Arc;

use uverbs_uapi::handle::DmHandle;

use crate::command::{AllocDm, FreeDm};
use crate::context::Context;
use crate::error::{Cause, DestroyError, Error, Result, Subject, Verb};

impl Context {
    /// Allocates `length` bytes of the device's own memory, aligned to 2 to the power `log_align` bytes.
    ///
    /// # Errors
    ///
    /// [`Cause::Unsupported`] if the device has none, as rxe; `ENOMEM` if not so much is left
    /// ([`DeviceAttr::max_dm_size`](crate::DeviceAttr::max_dm_size)). Manual page: `ibv_alloc_dm(3)`.
    pub fn alloc_dm(&self, length: u64, log_align: u32) -> Result<Dm> {
        let command = AllocDm { length, log_align };
        let handle = self.driver().alloc_dm(self.fd(), &command)?;
        Ok(Dm(Arc::new(DmShared {
            handle,
            length,
            allocated: true,
            context: self.clone(),
        })))
    }
}

/// What device memory shares with the regions in it.
pub(crate) struct DmShared {
    pub(crate) handle: DmHandle,
    /// Bytes.
    pub(crate) length: u64,
    /// False once the kernel object is gone.
    allocated: bool,
    context: Context,
}

impl DmShared {
    fn subject(&self) -> Subject {
        Subject::numbered("DM", self.handle.0.into())
    }

    fn free(&mut self) -> Result<()> {
        self.context.fd().execute(&FreeDm(self.handle))?;
        self.allocated = false;
        Ok(())
    }
}

impl Drop for DmShared {
    fn drop(&mut self) {
        if self.allocated
            && let Err(error) = self.free()
        {
            // It goes with the context at the latest.
            tracing::debug!(target: "uverbs", %error, "DM could not be freed when it was dropped");
        }
    }
}

/// A piece of device memory. Regions in it keep it allocated.
pub struct Dm(Arc<DmShared>);

impl Dm {
    /// The context that it was allocated in.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// The kernel's handle.
    pub fn handle(&self) -> DmHandle {
        self.0.handle
    }

    /// Bytes.
    pub fn length(&self) -> u64 {
        self.0.length
    }

    pub(crate) fn shared(&self) -> &Arc<DmShared> {
        &self.0
    }

    /// Frees the memory.
    ///
    /// # Errors
    ///
    /// [`Cause::Busy`] while regions are registered in it. The error gives it back. Manual page: `ibv_free_dm(3)`.
    pub fn free(self) -> Result<(), DestroyError<Self>> {
        match Arc::try_unwrap(self.0) {
            Ok(mut shared) => shared.free().map_err(|error| DestroyError {
                object: Self(Arc::new(shared)),
                error,
            }),
            Err(shared) => {
                let by = format!("{} MRs are in it", Arc::strong_count(&shared) - 1);
                let error = Error::new(Verb::FreeDm, shared.subject(), Cause::Busy(by.into()));
                Err(DestroyError {
                    object: Self(shared),
                    error,
                })
            }
        }
    }
}

impl fmt::Debug for Dm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dm")
            .field("handle", &self.handle().0)
            .field("length", &self.length())
            .finish()
    }
}
