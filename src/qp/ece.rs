//! Enhanced connection establishment: options that two devices of a vendor agree on beyond the standard.

use super::Qp;
use super::transport::Transport;
use crate::error::{Error, Result, Verb};
use crate::work::Ece;

impl<T: Transport> Qp<T> {
    /// The options that the queue pair has: in the state RESET those that its device offers; after
    /// [`set_ece`](Self::set_ece) none, until a change of the state has told the device; then those that it
    /// uses.
    ///
    /// The side that connects sends what it is offered. The other one sets that, connects, queries, and
    /// answers with what it got, which the first one sets before it connects.
    ///
    /// # Errors
    ///
    /// [`Cause::Unsupported`](crate::Cause::Unsupported) if the driver or the device has none, as rxe. Manual
    /// page: `ibv_query_ece(3)`.
    #[doc(alias = "ibv_query_ece")]
    pub fn query_ece(&self) -> Result<Ece> {
        let ece = self.shared.kernel().backing().query_ece();
        ece.ok_or_else(|| self.context().driver().without_ece(Verb::QueryEce))
    }

    /// Tells the queue pair which options to use. They go to the device with the next change of its state, so
    /// this comes before it is connected. The device leaves out what it does not have;
    /// [`query_ece`](Self::query_ece) tells then. A reset takes them back.
    ///
    /// # Errors
    ///
    /// [`Cause::Unsupported`](crate::Cause::Unsupported) if the driver or the device has none, as rxe; the
    /// options are of another vendor. Manual page: `ibv_set_ece(3)`.
    #[doc(alias = "ibv_set_ece")]
    pub fn set_ece(&mut self, ece: Ece) -> Result<()> {
        let Some(own) = self.shared.kernel().backing().query_ece() else {
            return Err(self.context().driver().without_ece(Verb::SetEce));
        };
        if ece.vendor_id != own.vendor_id {
            let what = format!(
                "the options are of vendor {:#x}, and the device is of {:#x}",
                ece.vendor_id, own.vendor_id
            );
            return Err(Error::invalid(Verb::SetEce, self.shared.subject(), what));
        }
        self.shared.kernel().backing().set_ece(ece.options);
        Ok(())
    }
}
