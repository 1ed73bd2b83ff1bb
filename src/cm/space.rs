//! Which transports are connected by address, and in which space of ports.

use uverbs_uapi::rdma_cm::PortSpace;

use crate::qp::transport::{Rc, StaticTransport, Ud};

/// A transport whose peers are found by IP address and port.
///
/// The ports are the connection manager's own, apart from those of TCP and UDP sockets.
#[diagnostic::on_unimplemented(
    message = "`{Self}` queue pairs are not connected by IP address and port",
    note = "the connection manager has spaces of ports for `Rc` and `Ud`"
)]
pub trait Space: StaticTransport {
    /// The space of ports.
    const PORT_SPACE: PortSpace;
}

impl Space for Rc {
    const PORT_SPACE: PortSpace = PortSpace::TCP;
}

impl Space for Ud {
    const PORT_SPACE: PortSpace = PortSpace::UDP;
}
