//! The control channel: a program beside the driver asks the model for what no driver could ask for.
//!
//! Requests and replies are JSON, one a line, over a byte stream. A request is an object with `id`, which the
//! reply repeats, and `do`, which names a [`Request`], with that one's fields. A reply has `ok`: what was
//! asked for, or null; or `error`: why it cannot be done.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::device::Device;
use crate::engine;
use crate::fault;
use crate::function::Function;
use crate::layout::qpc::{self, path};
use crate::tap::Tap;

/// What can be asked for. `function` counts from 0.
#[derive(Debug, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
enum Request {
    /// Keep the tap's records from now on.
    TapStart,
    /// Give the tap's records of until now, and keep those that come.
    TapNext,
    /// Give the records that were kept, and keep no more.
    TapTake,
    /// Let violations be whose text has this in it.
    Expect { text: String },
    /// Take the port down or up.
    Port { function: usize, up: bool },
    /// Do not look at send queues, or do so again.
    Stall { function: usize, on: bool },
    /// Lose messages that arrive, or do so no more.
    Lose { function: usize, on: bool },
    /// Have no receive requests for messages, or have them again.
    NotReady { function: usize, on: bool },
    /// Let so many messages find a page missing, of the memory of a shared receive queue's request.
    PageFaults { function: usize, count: u32 },
    /// Let the completion queue for the sends of a queue pair overflow.
    Overflow { function: usize, qpn: u32 },
    /// Let a command fail so many times, for want of resources.
    FailCommand {
        function: usize,
        command: String,
        count: u32,
    },
    /// Tell what a queue pair's context has of the way of its packets.
    Ways { function: usize, qpn: u32 },
    /// Fail as a whole, until the driver brings the function up anew.
    InternalError { function: usize },
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

fn execute(request: Request, device: &Weak<Device>, tap: &Tap) -> Result<Value, String> {
    let device = device.upgrade().ok_or("the device is gone")?;
    let mut functions = device.lock();
    let mut change = |index: usize, change: &dyn Fn(&mut Function) -> Result<(), String>| {
        let function = functions.get_mut(index);
        change(function.ok_or(format!("there is no function {index}"))?)
    };
    match request {
        Request::TapStart => tap.start(),
        Request::TapNext => return Ok(Value::Array(tap.next())),
        Request::TapTake => return Ok(Value::Array(tap.take())),
        Request::Expect { text } => change(0, &|function| {
            function.report.expect(text.clone());
            Ok(())
        })?,
        Request::Port { function, up } => change(function, &|function| {
            fault::set_port(function, up);
            Ok(())
        })?,
        Request::Stall { function, on } => {
            change(function, &|function| {
                function.faults.stalled = on;
                Ok(())
            })?;
            engine::resume(&mut functions, function);
        }
        Request::Lose { function, on } => change(function, &|function| {
            function.faults.lossy = on;
            Ok(())
        })?,
        Request::NotReady { function, on } => change(function, &|function| {
            function.faults.not_ready = on;
            Ok(())
        })?,
        Request::PageFaults { function, count } => change(function, &|function| {
            function.faults.pages = count;
            Ok(())
        })?,
        Request::Overflow { function, qpn } => {
            change(function, &|function| fault::overflow(function, qpn))?;
        }
        Request::FailCommand {
            function,
            command,
            count,
        } => change(function, &|function| function.faults.fail(&command, count))?,
        Request::Ways { function, qpn } => {
            let found = functions.get(function);
            let found = found.and_then(|function| function.objects.qps.get(qpn).ok());
            let found = found.ok_or(format!("there is no queue pair {qpn:#x}"))?;
            return Ok(json!({
                "udp_source_port": found.field(path::UDP_SPORT),
                "lag_port": found.field(qpc::LAG_TX_PORT_AFFINITY),
            }));
        }
        Request::InternalError { function } => change(function, &|function| {
            function.faults.internal_error = true;
            Ok(())
        })?,
    }
    Ok(Value::Null)
}
