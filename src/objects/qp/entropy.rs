//! The path of a queue pair's packets through a network with several paths, and the order in which their
//! bytes are written.

use super::transport::{Connected, Dc, Transport};
use super::{DataOrder, LagPort, Membership, Qp, QpState};
use crate::error::{Error, Result, Verb};

impl<T: Transport, M: Membership> Qp<T, M> {
    /// In which order the device writes the bytes of each message to memory. [`DataOrder::Any`] if that is
    /// not known: the driver or the device makes no promise, or makes none yet (mlx5 for queue pairs that are
    /// not in the state RTS). It says nothing about the order in which a CPU sees the bytes; on x86-64 that
    /// is the same.
    ///
    /// # Errors
    ///
    /// The device cannot be asked. Manual page: `ibv_query_qp_data_in_order(3)`, with the flag
    /// `IBV_QUERY_QP_DATA_IN_ORDER_DEVICE_ONLY`.
    #[doc(alias = "ibv_query_qp_data_in_order")]
    pub fn data_order(&self) -> Result<DataOrder> {
        let kernel = self.shared.kernel();
        let context = self.context();
        let driver = context.driver();
        driver.data_order(context.fd(), kernel.name(), self.state())
    }

    /// The physical port through which the queue pair's packets leave, on a device whose ports are bonded.
    ///
    /// # Errors
    ///
    /// [`Cause::Unsupported`](crate::Cause::Unsupported) if the driver or the device has no such ports, like
    /// rxe, or they are not bonded. Manual page: `mlx5dv_query_qp_lag_port(3)`.
    pub fn lag_port(&self) -> Result<LagPort> {
        let kernel = self.shared.kernel();
        let context = self.context();
        context.driver().lag_port(context.fd(), kernel.name())
    }

    /// Makes the queue pair's packets leave through this physical port, counted from 1, on a device whose
    /// ports are bonded. The queue pair must be in the state RTS.
    ///
    /// # Errors
    ///
    /// As for [`lag_port`](Self::lag_port); also if the device has no such port, or cannot change the port of
    /// an existing queue pair. Manual page: `mlx5dv_modify_qp_lag_port(3)`.
    pub fn set_lag_port(&mut self, port: u8) -> Result<()> {
        let kernel = self.shared.kernel();
        self.must_send(Verb::ModifyQpLagPort)?;
        let context = self.context();
        let driver = context.driver();
        driver.set_lag_port(context.fd(), kernel.name(), port)
    }

    fn must_send(&self, verb: Verb) -> Result<()> {
        match self.state() {
            QpState::RTS => Ok(()),
            state => {
                let why = format!("the queue pair is in the state {state:?}, not RTS");
                Err(Error::invalid(verb, self.shared.subject(), why))
            }
        }
    }
}

impl<M: Membership> Qp<Dc, M> {
    /// Lets a failed stream continue. The completions of all requests in it must have come. The queue pair
    /// must be in the state RTS.
    ///
    /// # Errors
    ///
    /// [`Cause::Unsupported`](crate::Cause::Unsupported) if the driver or the device has no streams, or the
    /// queue pair has none. Manual page: `mlx5dv_dci_stream_id_reset(3)`.
    pub fn reset_stream(&mut self, stream: u16) -> Result<()> {
        self.must_send(Verb::DciStreamIdReset)?;
        let context = self.context();
        let name = self.shared.kernel().name();
        context.driver().reset_stream(context.fd(), name, stream)
    }
}

impl<T: Connected, M: Membership> Qp<T, M> {
    /// Sets the UDP source port of the queue pair's packets on RoCE v2, by which routers and bonds choose
    /// among paths of equal cost (ECMP). The queue pair must be in the state RTS. Until then the port follows
    /// from the flow label of its path, or from the numbers of the queue pair and its peer.
    ///
    /// # Errors
    ///
    /// [`Cause::Unsupported`](crate::Cause::Unsupported) if the driver or the device cannot change it, like
    /// rxe and InfiniBand ports. Manual page: `mlx5dv_modify_qp_udp_sport(3)`.
    pub fn set_udp_source_port(&mut self, port: u16) -> Result<()> {
        let kernel = self.shared.kernel();
        self.must_send(Verb::ModifyQpUdpSport)?;
        let context = self.context();
        let driver = context.driver();
        driver.set_udp_source_port(context.fd(), kernel.name(), port)
    }
}
