//! Enhanced connection establishment: options that two devices of a vendor agree on beyond the standard.

use super::Qp;
use super::transport::Transport;
use crate::error::Result;

/// A device's options for a connection. They are exchanged with the endpoint and mean something to devices of the same
/// vendor only. Manual page: `ibv_query_ece(3)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ece {
    /// The vendor, as in [`DeviceAttr::vendor_id`](crate::DeviceAttr::vendor_id).
    pub vendor_id: u32,
    /// The options; 0 is none.
    pub options: u32,
}

impl<T: Transport> Qp<T> {
    /// The options that the queue pair has: before it is connected those that it offers, then those agreed on.
    ///
    /// # Errors
    ///
    /// [`Cause::Unsupported`](crate::Cause::Unsupported) if the driver has none, as rxe. Manual page:
    /// `ibv_query_ece(3)`.
    pub fn query_ece(&self) -> Result<Ece> {
        let context = self.context();
        let options = context.driver().query_ece(self.handle())?;
        Ok(Ece {
            vendor_id: context.query_device()?.vendor_id,
            options,
        })
    }

    /// Tells the queue pair which options to use, before it is connected.
    ///
    /// # Errors
    ///
    /// [`Cause::Unsupported`](crate::Cause::Unsupported) if the driver has none, as rxe. Manual page:
    /// `ibv_set_ece(3)`.
    pub fn set_ece(&mut self, ece: Ece) -> Result<()> {
        let context = self.context();
        context.driver().set_ece(self.handle(), ece.options)
    }
}
