//! Enhanced connection establishment: options that two devices of a vendor agree on beyond the standard.

use super::transport::Transport;
use super::{Membership, Qp};
use crate::error::{Error, Result, Verb};
use crate::work::Ece;

impl<T: Transport, M: Membership> Qp<T, M> {
    /// The options of the queue pair. In the state RESET these are the options that its device offers. After
    /// [`set_ece`](Self::set_ece) there are none until the next state change; then they are the options that
    /// the device uses.
    ///
    /// The connecting side sends the options that its device offers. The other side sets them, connects,
    /// queries, and sends back the result. The first side sets that before it connects.
    ///
    /// # Errors
    ///
    /// [`Cause::Unsupported`](crate::Cause::Unsupported) if the driver or the device has none, like rxe.
    /// Manual page: `ibv_query_ece(3)`.
    #[doc(alias = "ibv_query_ece")]
    pub fn query_ece(&self) -> Result<Ece> {
        let ece = self.ece_if_any();
        ece.ok_or_else(|| self.context().driver().without_ece(Verb::QueryEce))
    }

    /// As [`query_ece`](Self::query_ece); `None` if there are no options.
    pub(crate) fn ece_if_any(&self) -> Option<Ece> {
        self.shared.kernel().backing().query_ece()
    }

    /// Sets the options that the queue pair has to use. The device gets them with the next change of the
    /// state, so call this before connecting. The device ignores those that it lacks;
    /// [`query_ece`](Self::query_ece) then returns what it uses. A reset removes them.
    ///
    /// # Errors
    ///
    /// [`Cause::Unsupported`](crate::Cause::Unsupported) if the driver or the device has none, like rxe; the
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
