//! The texts that programs print for numbers: the same as in libibverbs, since scripts search for them.

use std::ffi::{CStr, c_char, c_int};

const UNKNOWN: &CStr = c"unknown";

/// The text of a number; the first text belongs to `first`.
fn text(texts: &[&'static CStr], first: c_int, number: c_int) -> *const c_char {
    let at = number
        .checked_sub(first)
        .and_then(|at| usize::try_from(at).ok());
    let text = at.and_then(|at| texts.get(at));
    text.unwrap_or(&UNKNOWN).as_ptr()
}

const NODE_TYPES: [&CStr; 7] = [
    c"InfiniBand channel adapter",
    c"InfiniBand switch",
    c"InfiniBand router",
    c"iWARP NIC",
    c"usNIC",
    c"usNIC UDP",
    c"unspecified",
];

const PORT_STATES: [&CStr; 6] = [
    c"no state change (NOP)",
    c"down",
    c"init",
    c"armed",
    c"active",
    c"active defer",
];

const EVENT_TYPES: [&CStr; 21] = [
    c"CQ error",
    c"local work queue catastrophic error",
    c"invalid request local work queue error",
    c"local access violation work queue error",
    c"communication established",
    c"send queue drained",
    c"path migrated",
    c"path migration request error",
    c"local catastrophic error",
    c"port active",
    c"port error",
    c"LID change",
    c"P_Key change",
    c"SM change",
    c"SRQ catastrophic error",
    c"SRQ limit reached",
    c"last WQE reached",
    c"client reregistration",
    c"GID table change",
    c"WQ fatal",
    c"Device link speed change",
];

const STATUSES: [&CStr; 24] = [
    c"success",
    c"local length error",
    c"local QP operation error",
    c"local EE context operation error",
    c"local protection error",
    c"Work Request Flushed Error",
    c"memory management operation error",
    c"bad response error",
    c"local access error",
    c"remote invalid request error",
    c"remote access error",
    c"remote operation error",
    c"transport retry counter exceeded",
    c"RNR retry counter exceeded",
    c"local RDD violation error",
    c"remote invalid RD request",
    c"aborted error",
    c"invalid EE context number",
    c"invalid EE context state",
    c"fatal error",
    c"response timeout error",
    c"general error",
    c"TM error",
    c"TM software rendezvous",
];

/// Numbers in the gaps have no text.
const OPCODES: [&CStr; 16] = [
    c"rdma-write",
    c"rdma-write-with-imm",
    c"send",
    c"send-with-imm",
    c"rdma-read",
    c"atomic-cmp-and-swp",
    c"atomic-fetch-and-add",
    c"local-inv",
    c"bind-mw",
    c"send-with-inv",
    c"tso",
    c"driver1",
    UNKNOWN,
    UNKNOWN,
    c"flush",
    c"atomic-write",
];

/// `ibv_node_type_str(3)`.
pub extern "C" fn ibv_node_type_str(node_type: c_int) -> *const c_char {
    text(&NODE_TYPES, 1, node_type)
}

/// `ibv_port_state_str(3)`.
pub extern "C" fn ibv_port_state_str(state: c_int) -> *const c_char {
    text(&PORT_STATES, 0, state)
}

/// `ibv_event_type_str(3)`.
pub extern "C" fn ibv_event_type_str(event: c_int) -> *const c_char {
    text(&EVENT_TYPES, 0, event)
}

/// `ibv_wc_status_str(3)`.
pub extern "C" fn ibv_wc_status_str(status: c_int) -> *const c_char {
    text(&STATUSES, 0, status)
}

/// `ibv_wr_opcode_str`, which no manual page describes.
pub extern "C" fn ibv_wr_opcode_str(opcode: c_int) -> *const c_char {
    text(&OPCODES, 0, opcode)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: *const c_char) -> &'static str {
        // SAFETY: all texts are constants.
        unsafe { CStr::from_ptr(text) }.to_str().unwrap()
    }

    #[test]
    fn numbers_out_of_range_are_unknown() {
        assert_eq!(read(ibv_node_type_str(1)), "InfiniBand channel adapter");
        assert_eq!(read(ibv_port_state_str(4)), "active");
        assert_eq!(
            read(ibv_wc_status_str(12)),
            "transport retry counter exceeded"
        );
        for number in [c_int::MIN, -1, 1000, c_int::MAX] {
            assert_eq!(read(ibv_node_type_str(number)), "unknown");
            assert_eq!(read(ibv_event_type_str(number)), "unknown");
            assert_eq!(read(ibv_wr_opcode_str(number)), "unknown");
        }
        assert_eq!(read(ibv_wr_opcode_str(4)), "rdma-read");
        assert_eq!(read(ibv_wr_opcode_str(13)), "unknown");
        assert_eq!(read(ibv_wr_opcode_str(15)), "atomic-write");
        assert_eq!(read(ibv_node_type_str(0)), "unknown");
    }
}
