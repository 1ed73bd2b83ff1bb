//! The control channel: a program beside the driver asks the model for what no driver could ask for.
//!
//! Requests and replies are JSON, one a line, over a byte stream. A request is an object with `id`, which the
//! reply repeats, and `do`, which names what is asked for, with that one's fields. A reply has `ok`: what was
//! asked for, or null; or `error`: why it cannot be done.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::report::Report;
use crate::tap::Tap;

/// What every model can be asked for.
#[derive(Debug, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
enum Common {
    /// Keep the tap's records from now on.
    TapStart,
    /// Give the tap's records of until now, and keep those that come.
    TapNext,
    /// Give the records that were kept, and keep no more.
    TapTake,
    /// Let violations be whose text has this in it.
    Expect { text: String },
}

/// Their names.
const COMMON: [&str; 4] = ["tap_start", "tap_next", "tap_take", "expect"];

/// Serves the channel, from a thread of its own that ends with the stream. What not every model can be asked
/// for is executed by `own`, without its `id`.
///
/// # Errors
/// If the stream cannot be shared.
pub fn start(
    stream: UnixStream,
    report: &Report,
    tap: &Tap,
    own: impl Fn(Value) -> Result<Value, String> + Send + 'static,
) -> io::Result<()> {
    let (report, tap) = (report.clone(), tap.clone());
    let reader = BufReader::new(stream.try_clone()?);
    std::thread::spawn(move || {
        let mut stream = stream;
        for line in reader.lines().map_while(Result::ok) {
            let mut line: Value = serde_json::from_str(&line).unwrap_or_default();
            let id = line.as_object_mut().and_then(|line| line.remove("id"));
            let is_common = line["do"]
                .as_str()
                .is_some_and(|name| COMMON.contains(&name));
            let done = match is_common {
                true => common(line, &report, &tap),
                false => own(line),
            };
            let reply = match done {
                Ok(value) => json!({"id": id, "ok": value}),
                Err(error) => json!({"id": id, "error": error}),
            };
            if writeln!(stream, "{reply}").is_err() {
                return;
            }
        }
    });
    Ok(())
}

fn common(request: Value, report: &Report, tap: &Tap) -> Result<Value, String> {
    match serde_json::from_value(request).map_err(|error| error.to_string())? {
        Common::TapStart => tap.start(),
        Common::TapNext => return Ok(Value::Array(tap.next())),
        Common::TapTake => return Ok(Value::Array(tap.take())),
        Common::Expect { text } => report.expect(text),
    }
    Ok(Value::Null)
}
