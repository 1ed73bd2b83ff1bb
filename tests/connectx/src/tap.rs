//! What the tap's records say of requests.
//!
//! The kinds of records: `send` (a request of a send queue, with `request` or `malformed`), `receive` and
//! `shared_receive` (a request of a receive queue), `doorbell` (a write to a send register, with the record
//! that goes with it), `blue_flame` (what follows the first 8 bytes there).

use serde_json::{Value, json};
pub(crate) use vfio_model::tap::{Tap, hex};

use crate::engine::wqe::{AddressVector, Control, Malformed, Request, Segment};

/// A request of a send queue, decoded or not.
pub(crate) fn request(decoded: &Result<Request, Malformed>) -> (&'static str, Value) {
    match decoded {
        Err(malformed) => ("malformed", json!(malformed.reason)),
        Ok(request) => {
            let segments: Vec<Value> = request.segments.iter().map(segment).collect();
            let fields = json!({
                "opcode": format!("{:?}", request.opcode),
                "control": control(&request.control),
                "vector": request.vector.as_ref().map(vector),
                "shared_queue": request.shared_queue,
                "remote": request.remote.map(|(address, key)| json!({"address": address, "key": key})),
                "operands": request.operands.map(|(first, second)| json!([first, second])),
                "segments": segments,
                "change": request.change.as_ref().map(|change| json!({
                    "flags": change.flags,
                    "mask": change.mask,
                    "context": hex(&change.context),
                    "window": change.window.map(|(key, address)| json!({"address": address, "key": key})),
                })),
            });
            ("request", fields)
        }
    }
}

fn control(control: &Control) -> Value {
    json!({
        "opcode": control.opcode,
        "opmod": control.opmod,
        "index": control.index,
        "qpn": control.qpn,
        "units": control.units,
        "flags": control.flags(),
        "immediate": hex(&control.immediate),
    })
}

fn vector(vector: &AddressVector) -> Value {
    json!({
        "q_key": vector.q_key,
        "access_key": vector.access_key,
        "qpn": vector.qpn,
        "service_level": vector.service_level,
        "lid": vector.lid,
        "mac": vector.mac,
        "traffic_class": vector.traffic_class,
        "hop_limit": vector.hop_limit,
        "source_index": vector.source_index,
        "flow_label": vector.flow_label,
        "has_grh": vector.has_grh,
        "gid": hex(&vector.gid),
    })
}

fn segment(segment: &Segment) -> Value {
    match segment {
        Segment::Inline(bytes) => json!({"inline": hex(bytes)}),
        Segment::Memory {
            length,
            key,
            address,
        } => json!({"length": length, "key": key, "address": address}),
    }
}
