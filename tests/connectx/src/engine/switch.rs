//! The switch between the netdevs of Ethernet ports. It knows where each address is, so it need not learn.

use crate::engine::frame::Frame;
use crate::function::Function;
use crate::object::rq;
use crate::port::PortKind;

/// The bit of an address that makes it a group's.
const GROUP: u64 = 1 << 40;

/// Carries a frame to whom it is for: one function, or for a group's address all others.
pub(crate) fn carry(functions: &mut [Function], from: usize, frame: &Frame) {
    let to = frame.destination();
    if functions.get(from).is_none_or(|from| !from.port.is_up) {
        return;
    }
    for (index, function) in functions.iter_mut().enumerate() {
        let is_meant = to & GROUP != 0 || function.port.mac == to;
        let takes = function.port.is_up && !function.faults.internal_error;
        if index != from && is_meant && takes && function.port.kind == PortKind::Roce {
            rq::deliver(function, frame);
        }
    }
}
