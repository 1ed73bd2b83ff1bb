//! The tap: what the device fetches from the guest's rings and takes at its doorbells, as records for
//! programs to compare.
//!
//! A record is a JSON object on a line of its own. All have `kind` and `function`; numbers are numbers, bytes
//! are hexadecimal. The kinds: `send` (a request of a send queue, with `request` or `malformed`), `receive`
//! and `shared_receive` (a request of a receive queue), `doorbell` (a write to a send register, with the
//! record that goes with it), `blue_flame` (what follows the first 8 bytes there).

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::mem;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

use crate::engine::wqe::{AddressVector, Control, Malformed, Request, Segment};

/// How many records are kept for who has asked for them.
const KEPT: usize = 100_000;

/// Where records go; shared by all functions of a model.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tap {
    sinks: Arc<Mutex<Sinks>>,
}

#[derive(Debug, Default)]
struct Sinks {
    file: Option<File>,
    kept: Option<Vec<Value>>,
}

impl Tap {
    /// Writes records to a file from now on.
    ///
    /// # Errors
    /// If it cannot be made.
    pub(crate) fn write_to(&self, path: &Path) -> io::Result<()> {
        self.lock().file = Some(File::create(path)?);
        Ok(())
    }

    /// Keeps records from now on, and forgets those that were kept.
    pub(crate) fn start(&self) {
        self.lock().kept = Some(Vec::new());
    }

    /// Gives the records that were kept, and goes on with none: what comes between two calls is not lost.
    pub(crate) fn next(&self) -> Vec<Value> {
        self.lock().kept.as_mut().map(mem::take).unwrap_or_default()
    }

    /// Gives the records that were kept, and keeps no more.
    pub(crate) fn take(&self) -> Vec<Value> {
        self.lock().kept.take().unwrap_or_default()
    }

    /// Adds a record, if somebody wants it.
    pub(crate) fn record(&self, record: impl FnOnce() -> Value) {
        let mut sinks = self.lock();
        if sinks.file.is_none() && sinks.kept.is_none() {
            return;
        }
        let record = record();
        if let Some(file) = &mut sinks.file
            && writeln!(file, "{record}").is_err()
        {
            // The disk is full or the like: what is there is all that there is.
            sinks.file = None;
        }
        if let Some(kept) = &mut sinks.kept
            && kept.len() < KEPT
        {
            kept.push(record);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Sinks> {
        self.sinks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes in hexadecimal, without blanks.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_kept_between_start_and_take() {
        let tap = Tap::default();
        tap.record(|| unreachable!("nobody wants it"));
        tap.start();
        tap.record(|| json!({"kind": "doorbell"}));
        assert_eq!(tap.take(), [json!({"kind": "doorbell"})]);
        tap.record(|| unreachable!("nobody wants it any more"));
    }

    #[test]
    fn bytes_keep_their_zeros() {
        assert_eq!(hex(&[0, 0x0a, 0xff]), "000aff");
    }
}
