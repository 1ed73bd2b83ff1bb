//! The tap: what the device fetches from the guest's rings and takes at its doorbells, as records for
//! programs to compare.
//!
//! A record is a JSON object on a line of its own. All have `kind` and `function`; numbers are numbers, bytes
//! are hexadecimal. The kinds are the model's.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::mem;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;

/// How many records are kept for who has asked for them.
const KEPT: usize = 100_000;

/// Where records go; shared by all functions of a model.
#[derive(Clone, Debug, Default)]
pub struct Tap {
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
    pub fn write_to(&self, path: &Path) -> io::Result<()> {
        self.lock().file = Some(File::create(path)?);
        Ok(())
    }

    /// Keeps records from now on, and forgets those that were kept.
    pub fn start(&self) {
        self.lock().kept = Some(Vec::new());
    }

    /// Gives the records that were kept, and goes on with none: what comes between two calls is not lost.
    #[must_use]
    pub fn next(&self) -> Vec<Value> {
        self.lock().kept.as_mut().map(mem::take).unwrap_or_default()
    }

    /// Gives the records that were kept, and keeps no more.
    #[must_use]
    pub fn take(&self) -> Vec<Value> {
        self.lock().kept.take().unwrap_or_default()
    }

    /// Adds a record, if somebody wants it.
    pub fn record(&self, record: impl FnOnce() -> Value) {
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
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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
