//! Which transports are connected by address, and in which space of ports.

use uverbs_uapi::rdma_cm::PortSpace;

use crate::qp::transport::{Rc, StaticTransport, Uc, Ud};

/// A transport whose peers are found by IP address and port.
///
/// The ports are the connection manager's own, apart from those of TCP and UDP sockets.
#[diagnostic::on_unimplemented(
    message = "`{Self}` queue pairs are not connected by IP address and port",
    note = "the connection manager has spaces of ports for `Rc`, `Uc` and `Ud`"
)]
pub trait Space: StaticTransport {
    /// The space of ports.
    const PORT_SPACE: PortSpace;
}

impl Space for Rc {
    const PORT_SPACE: PortSpace = PortSpace::TCP;
}

/// The only space in which the kernel asks for the kind of queue pair (`ucma_get_qp_type` in
/// `drivers/infiniband/core/ucma.c`).
impl Space for Uc {
    const PORT_SPACE: PortSpace = PortSpace::IB;
}

impl Space for Ud {
    const PORT_SPACE: PortSpace = PortSpace::UDP;
}
