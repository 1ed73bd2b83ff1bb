//! What a program beside the driver may ask the model for over the control channel.

use std::sync::Weak;

use serde::Deserialize;
use serde_json::Value;

use crate::command;
use crate::event;
use crate::fabric::{Chance, Fabric, State};
use crate::function::Function;

/// The group of events of a device that has failed.
const FATAL_ERROR: u16 = 1;

/// What can be asked for. `function` counts from 0.
#[derive(Debug, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
enum Request {
    /// Let a command fail so many times, for want of resources.
    FailCommand {
        function: usize,
        command: String,
        count: u32,
    },
    /// Leave a command without an answer so many times.
    IgnoreCommand {
        function: usize,
        command: String,
        count: u32,
    },
    /// Lose so many events of completions.
    LoseEvents { function: usize, count: u32 },
    /// Tell the driver of an event of this group: 1 fatal error, 2 warning, 3 notification, 4 keep alive.
    Event { function: usize, group: u16 },
    /// Have no receive requests for messages, or have them again.
    NotReady { function: usize, on: bool },
    /// Find no address handle for those who send, or find them again.
    ForgetPeers { function: usize, on: bool },
    /// Do not look at send queues, or do so again.
    Stall { function: usize, on: bool },
    /// Lose messages that arrive, or do so no more.
    Lose { function: usize, on: bool },
    /// Fail as a whole, until the driver resets the function.
    InternalError { function: usize },
    /// Begin anew with the order that follows from this number.
    Seed { seed: u64 },
}

/// Finds a function.
fn find(state: &mut State, index: usize) -> Result<&mut Function, String> {
    let function = state.functions.get_mut(index);
    function.ok_or(format!("there is no function {index}"))
}

/// Does what is asked for.
///
/// # Errors
/// If it cannot be done.
pub(crate) fn answer(fabric: &Weak<Fabric>, request: Value) -> Result<Value, String> {
    let request = serde_json::from_value(request).map_err(|error| error.to_string())?;
    let fabric = fabric.upgrade().ok_or("the device is gone")?;
    let state = &mut *fabric.lock();
    let opcode = |name: &str| command::opcode(name).ok_or(format!("there is no command {name}"));
    match request {
        Request::FailCommand {
            function,
            command,
            count,
        } => find(state, function)?
            .faults
            .failing
            .set(opcode(&command)?, count),
        Request::IgnoreCommand {
            function,
            command,
            count,
        } => find(state, function)?
            .faults
            .unanswered
            .set(opcode(&command)?, count),
        Request::LoseEvents { function, count } => {
            find(state, function)?.faults.lost_events = count
        }
        Request::Event { function, group } => event::notify(find(state, function)?, group)?,
        Request::NotReady { function, on } => find(state, function)?.faults.not_ready = on,
        Request::ForgetPeers { function, on } => find(state, function)?.faults.knows_nobody = on,
        Request::Stall { function, on } => find(state, function)?.faults.stalled = on,
        Request::Lose { function, on } => find(state, function)?.faults.silent = on,
        Request::Seed { seed } => state.chance = Chance::new(seed),
        Request::InternalError { function } => {
            let function = find(state, function)?;
            // A driver that has not asked for such events sees it in the status.
            let _ = event::notify(function, FATAL_ERROR);
            function.faults.failed = true;
        }
    }
    Ok(Value::Null)
}
