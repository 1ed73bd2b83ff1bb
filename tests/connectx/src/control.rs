//! The control channel: a program beside the driver asks the model for what no driver could ask for.
//!
//! Requests and replies are JSON, one a line, over a byte stream. A request is an object with `id`, which the reply
//! repeats, and `do`, which names a [`Request`], with that one's fields. A reply has `ok`: what was asked for, or null; or
//! `error`: why it cannot be done.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::device::Device;
use crate::tap::Tap;

/// What can be asked for.
#[derive(Debug, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
enum Request {
    /// Keep the tap's records from now on.
    TapStart,
    /// Give the records that were kept, and keep no more.
    TapTake,
}

/// Serves the channel, from a thread of its own that ends with the stream or the device.
///
/// # Errors
/// If the stream cannot be shared.
pub(crate) fn start(device: &Arc<Device>, tap: &Tap, stream: UnixStream) -> io::Result<()> {
    let device = Arc::downgrade(device);
    let tap = tap.clone();
    let reader = BufReader::new(stream.try_clone()?);
    std::thread::spawn(move || {
        let mut stream = stream;
        for line in reader.lines().map_while(Result::ok) {
            let reply = answer(&line, &device, &tap);
            if writeln!(stream, "{reply}").is_err() {
                return;
            }
        }
    });
    Ok(())
}

fn answer(line: &str, device: &Weak<Device>, tap: &Tap) -> Value {
    let mut line: Value = serde_json::from_str(line).unwrap_or_default();
    let id = line.as_object_mut().and_then(|line| line.remove("id"));
    let done = serde_json::from_value(line)
        .map_err(|error| error.to_string())
        .and_then(|request| execute(request, device, tap));
    match done {
        Ok(value) => json!({"id": id, "ok": value}),
        Err(error) => json!({"id": id, "error": error}),
    }
}

fn execute(request: Request, _device: &Weak<Device>, tap: &Tap) -> Result<Value, String> {
    match request {
        Request::TapStart => tap.start(),
        Request::TapTake => return Ok(Value::Array(tap.take())),
    }
    Ok(Value::Null)
}
