//! The types that can be connected by address, and their port spaces.

use std::fmt::Debug;

use uverbs_uapi::enums::QpType;
use uverbs_uapi::rdma_cm::PortSpace;

use crate::qp::transport::{Connected, Dc, Rc, StaticTransport, Uc, Ud, Xrc};
use crate::xrcd::XrcTarget;

/// An end of a connection: a connected transport, or an XRC target.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no end of a connection",
    note = "the ends are connected transports, such as `Rc`, and `XrcTarget`"
)]
pub trait End: Space {}

impl<T: Connected + Space> End for T {}
impl End for XrcTarget {}

/// A type with a port space, in which its peers are found by IP address and port.
///
/// The ports are the connection manager's own, apart from those of TCP and UDP sockets.
#[diagnostic::on_unimplemented(
    message = "`{Self}` queue pairs are not connected by IP address and port",
    note = "the connection manager has spaces of ports for `Rc`, `Uc`, `Ud`, `Dc`, and for `Xrc` and `XrcTarget`"
)]
pub trait Space: Debug + Sized + 'static {
    /// The port space.
    const PORT_SPACE: PortSpace;
    /// The kernel's type of queue pair.
    const KIND: QpType;
}

impl Space for Rc {
    const PORT_SPACE: PortSpace = PortSpace::TCP;
    const KIND: QpType = QpType::RC;
}

/// The only port space in which the program chooses the type of queue pair (`ucma_get_qp_type` in
/// `drivers/infiniband/core/ucma.c`).
impl Space for Uc {
    const PORT_SPACE: PortSpace = PortSpace::IB;
    const KIND: QpType = QpType::UC;
}

impl Space for Ud {
    const PORT_SPACE: PortSpace = PortSpace::UDP;
    const KIND: QpType = QpType::UD;
}

/// The port space of [`Ud`]: a lookup requests only a number, and the kernel does not check what it belongs
/// to.
impl Space for Dc {
    const PORT_SPACE: PortSpace = Ud::PORT_SPACE;
    const KIND: QpType = Ud::KIND;
}

/// The port space of [`Uc`], in which each port has one listener, whatever its type.
impl Space for Xrc {
    const PORT_SPACE: PortSpace = PortSpace::IB;
    const KIND: QpType = QpType::XRC_SEND;
}

/// The port space of [`Xrc`], in which the initiator sends its request.
impl Space for XrcTarget {
    const PORT_SPACE: PortSpace = PortSpace::IB;
    const KIND: QpType = QpType::XRC_RECV;
}

/// A type that can connect to a peer: all but XRC targets.
#[diagnostic::on_unimplemented(
    message = "`{Self}` looks for no peer by address",
    note = "`Rc`, `Uc`, `Ud` and `Dc` do, and `Xrc`, the end that a target of XRC listens for"
)]
pub trait Initiates: Space + StaticTransport {}

impl Initiates for Rc {}
impl Initiates for Uc {}
impl Initiates for Ud {}
impl Initiates for Dc {}
impl Initiates for Xrc {}

/// A type that can listen: all but XRC initiators.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not listen on an address",
    note = "`Rc`, `Uc`, `Ud` and `Dc` do, and `XrcTarget`, the end that initiators of XRC connect to"
)]
pub trait Listens: Space {}

impl Listens for Rc {}
impl Listens for Uc {}
impl Listens for Ud {}
impl Listens for Dc {}
impl Listens for XrcTarget {}

/// A type without connections: a peer is looked up.
#[diagnostic::on_unimplemented(
    message = "peers of `{Self}` are not looked up",
    note = "those of `Ud` and `Dc` are; the others connect"
)]
pub trait LookedUp: Initiates {
    /// How many bytes of an answer's private data come before the user's.
    #[doc(hidden)]
    const OWN: usize;
}

/// Bytes of an access key.
pub(super) const KEY: usize = size_of::<u64>();

impl LookedUp for Ud {
    const OWN: usize = 0;
}

impl LookedUp for Dc {
    const OWN: usize = KEY;
}
