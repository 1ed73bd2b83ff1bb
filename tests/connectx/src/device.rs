//! The device: all functions under one lock, and what their registers set going.
//!
//! One lock is enough: it is not about speed, and what two functions exchange is then in order.

use std::sync::{Mutex, MutexGuard, PoisonError};

use vfio_model::report::Report;

use crate::Config;
use crate::command::queue::{Entry, LOG_ENTRIES};
use crate::command::{self};
use crate::engine;
use crate::function::Function;
use crate::object::eq::{self, Event};
use crate::port::Port;
use crate::registers::Action;
use crate::subnet::Subnet;
use crate::tap::Tap;

/// All functions.
#[derive(Debug)]
pub(crate) struct Device {
    functions: Mutex<Vec<Function>>,
}

impl Device {
    /// A device after power-on.
    pub(crate) fn new(config: &Config, report: &Report, tap: &Tap) -> Self {
        let subnet = Subnet::default();
        let function = |index| {
            let port = Port::new(config.port, index);
            Function::new(port, subnet.clone(), report.clone(), tap.clone())
        };
        let functions = (0..config.functions).map(function).collect();
        Self {
            functions: Mutex::new(functions),
        }
    }

    /// Takes the lock.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Vec<Function>> {
        self.functions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Does what an access to a function's registers has set going.
pub(crate) fn act(functions: &mut [Function], index: usize, action: Action) {
    match action {
        Action::None => {}
        Action::Commands { queue, entries } => {
            for entry in 0..1 << LOG_ENTRIES {
                if entries & (1 << entry) != 0 {
                    command(functions, index, queue, entry);
                }
            }
        }
        Action::Send(doorbell) => engine::doorbell(functions, index, doorbell),
        Action::BlueFlame {
            doorbell,
            at,
            bytes,
        } => {
            if let Some(function) = functions.get_mut(index) {
                engine::blue_flame(function, doorbell, at, &bytes);
            }
        }
    }
}

/// Executes the command in one entry of the queue, and tells the driver by an event.
fn command(functions: &mut [Function], index: usize, queue: u64, number: u32) {
    let Some(function) = functions.get_mut(index) else {
        return;
    };
    let entry = match Entry::read(&function.memory, queue, number) {
        Ok(Some(entry)) => entry,
        Ok(None) => {
            let text = format!("doorbell for command {number}, which the driver still owns");
            function.report.violation(text);
            return;
        }
        Err(unmapped) => {
            let text = format!("the command queue is not in memory: {unmapped:x?}");
            function.report.violation(text);
            return;
        }
    };
    // The queue for such events must exist before the command: the driver does not expect one for the command
    // that makes the queue itself.
    let had_queue = eq::is_wanted(function, Event::Command);
    let input = entry.input(&function.memory);
    let output = input.and_then(|input| {
        let length = entry.output_length()?;
        Ok(command::execute(function, &input, length))
    });
    if let Err(delivery) = &output {
        let text = format!("command {number} cannot be delivered: {delivery:?}");
        function.report.violation(text);
    }
    let result = match &output {
        Ok(output) => Ok(output.as_slice()),
        Err(delivery) => Err(*delivery),
    };
    if let Err(unmapped) = entry.complete(&function.memory, result) {
        let text = format!("command {number} cannot be answered: {unmapped:x?}");
        function.report.violation(text);
        return;
    }
    if had_queue {
        let mut data = [0; 28];
        data[..4].copy_from_slice(&(1_u32 << number).to_be_bytes());
        eq::notify(function, Event::Command, data);
    }
    for qpn in std::mem::take(&mut function.kicked) {
        engine::advance(functions, index, qpn);
    }
}
