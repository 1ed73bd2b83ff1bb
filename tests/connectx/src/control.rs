//! What a program beside the driver may ask the model for over the control channel.

use std::sync::Weak;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::device::Device;
use crate::engine;
use crate::fault;
use crate::function::Function;
use crate::layout::qpc::{self, path};

/// What can be asked for. `function` counts from 0.
#[derive(Debug, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
enum Request {
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
    /// Let the completion queue for the sends of a queue pair be a collapsed one that ignores overrun.
    Collapse { function: usize, qpn: u32 },
    /// Let send doorbells come late, by this seed, or at once again.
    LateDoorbells { function: usize, seed: Option<u64> },
    /// Let data be read ahead, by this seed, or no more.
    ReadAhead { function: usize, seed: Option<u64> },
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

/// Does what is asked for.
///
/// # Errors
/// If it cannot be done.
pub(crate) fn answer(device: &Weak<Device>, request: Value) -> Result<Value, String> {
    let request = serde_json::from_value(request).map_err(|error| error.to_string())?;
    execute(request, device)
}

fn execute(request: Request, device: &Weak<Device>) -> Result<Value, String> {
    let device = device.upgrade().ok_or("the device is gone")?;
    let mut functions = device.lock();
    let mut change = |index: usize, change: &dyn Fn(&mut Function) -> Result<(), String>| {
        let function = functions.get_mut(index);
        change(function.ok_or(format!("there is no function {index}"))?)
    };
    match request {
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
        Request::Collapse { function, qpn } => {
            change(function, &|function| fault::collapse(function, qpn))?;
        }
        Request::LateDoorbells { function, seed } => change(function, &|function| {
            // Those on their way come when they come.
            function.faults.late.random.set(seed);
            Ok(())
        })?,
        Request::ReadAhead { function, seed } => change(function, &|function| {
            function.faults.ahead.set(seed);
            Ok(())
        })?,
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
