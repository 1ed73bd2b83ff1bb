//! Faults on demand: what a test has asked to go wrong with a function, by the control channel.
//!
//! A fault is kept here and looked at where it bites; nothing else of the model knows that it was asked for.

use vfio_model::fault::Failing;

use crate::command::{self, Status};
use crate::function::Function;
use crate::object::cq;
use crate::object::eq::{self, Event};

/// What is wrong with a function.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Send queues are not looked at; they go on when this ends.
    pub(crate) stalled: bool,
    /// Messages that arrive are lost, as if the wire had eaten them or their answers.
    pub(crate) lossy: bool,
    /// Messages that need a receive request find none.
    pub(crate) not_ready: bool,
    /// So many messages to RC and XRC queue pairs with a shared receive queue find a page of its memory
    /// missing.
    pub(crate) pages: u32,
    /// The function has failed, and says so in its registers until the driver brings it up anew.
    pub(crate) internal_error: bool,
    /// Send doorbells come late.
    pub(crate) late: Late,
    /// Whether data are read ahead.
    pub(crate) ahead: Seeded,
    /// Commands that fail.
    failing: Failing<u16>,
}

/// Numbers that follow from a seed; none without one.
#[derive(Debug, Default)]
pub(crate) struct Seeded(Option<u64>);

impl Seeded {
    /// Draws from this seed from now on, or no more.
    pub(crate) fn set(&mut self, seed: Option<u64>) {
        // The generator must not stand at 0.
        self.0 = seed.map(|seed| seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    }

    /// The next number, below `bound`.
    pub(crate) fn below(&mut self, bound: u32) -> Option<u32> {
        let state = self.0.as_mut()?;
        // Xorshift.
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        Some((*state >> 32) as u32 % bound)
    }
}

/// Send doorbells that are on their way, as if a bridge held them back.
#[derive(Debug, Default)]
pub(crate) struct Late {
    /// Of what the delays are drawn; without a seed doorbells come at once.
    pub(crate) random: Seeded,
    /// Queue pairs whose doorbells are on their way, and for how many ticks more.
    held: Vec<(u32, u32)>,
}

impl Late {
    /// The most ticks that a doorbell is late.
    const MOST: u32 = 3;

    /// Whether a queue pair's doorbell is held back; it will be among those that are [due](Self::due).
    pub(crate) fn holds(&mut self, qpn: u32) -> bool {
        let ticks = self.random.below(Self::MOST + 1).unwrap_or(0);
        if ticks > 0 {
            self.held.push((qpn, ticks));
        }
        ticks > 0
    }

    /// Takes the queue pairs whose doorbells arrive with this tick.
    pub(crate) fn due(&mut self) -> Vec<u32> {
        for (_, ticks) in &mut self.held {
            *ticks -= 1;
        }
        let arrive = self.held.extract_if(.., |(_, ticks)| *ticks == 0);
        arrive.map(|(qpn, _)| qpn).collect()
    }
}

impl Faults {
    /// Whether messages that arrive are lost. A function that has failed takes none: its driver gives its
    /// queues up without a word to it.
    pub(crate) fn loses_messages(&self) -> bool {
        self.lossy || self.internal_error
    }

    /// Whether send queues are not looked at.
    pub(crate) fn stalls(&self) -> bool {
        self.stalled || self.internal_error
    }

    /// Lets a command fail so many times.
    ///
    /// # Errors
    /// If the model does not know the command.
    pub(crate) fn fail(&mut self, name: &str, count: u32) -> Result<(), String> {
        let opcode = command::opcode(name).ok_or(format!("there is no command {name}"))?;
        self.failing.set(opcode, count);
        Ok(())
    }

    /// Why a command is to fail, if it is; that is one time less then.
    pub(crate) fn of_command(&mut self, opcode: u16) -> Option<Status> {
        let fails = self.failing.take(&opcode);
        fails.then_some(Status::NoResources)
    }
}

/// Takes the port down or up, and tells the driver.
pub(crate) fn set_port(function: &mut Function, up: bool) {
    /// The subtypes of the event.
    const DOWN: u8 = 1;
    const ACTIVE: u8 = 4;
    function.port.is_up = up;
    if !up {
        function.subnet.leave_all(&function.port);
    }
    let mut data = [0; 28];
    // Port 1, in the upper half of the byte.
    data[8] = 1 << 4;
    let subtype = if up { ACTIVE } else { DOWN };
    eq::notify_subtype(function, Event::PortChange, subtype, data);
}

/// Makes the queue on which a queue pair completes its sends a collapsed one.
///
/// # Errors
/// If there is no such queue pair, or the queue has had entries.
pub(crate) fn collapse(function: &mut Function, qpn: u32) -> Result<(), String> {
    let queue_pair = function.objects.qps.get(qpn);
    let cqn = queue_pair
        .map_err(|_| format!("there is no queue pair {qpn:#x}"))?
        .send_cqn();
    cq::collapse(function, cqn)
}

/// Lets the queue on which a queue pair completes its sends fail as if it had overflowed.
///
/// # Errors
/// If there is no such queue pair.
pub(crate) fn overflow(function: &mut Function, qpn: u32) -> Result<(), String> {
    let queue_pair = function.objects.qps.get(qpn);
    let cqn = queue_pair
        .map_err(|_| format!("there is no queue pair {qpn:#x}"))?
        .send_cqn();
    cq::fail(function, cqn);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doorbells_are_late_by_a_seed_and_none_is_lost() {
        let run = |seed| {
            let mut late = Late::default();
            assert!(!late.holds(1));
            late.random.set(Some(seed));
            let held: Vec<u32> = (0..100).filter(|&qpn| late.holds(qpn)).collect();
            late.random.set(None);
            assert!(!late.holds(1));
            let mut came: Vec<u32> = (0..Late::MOST).flat_map(|_| late.due()).collect();
            assert!(late.due().is_empty());
            let order = came.clone();
            came.sort_unstable();
            assert_eq!(came, held);
            order
        };
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
        assert!(!run(0).is_empty());
    }

    #[test]
    fn a_command_fails_as_often_as_asked() -> Result<(), String> {
        let mut faults = Faults::default();
        faults.fail("CREATE_CQ", 2)?;
        let opcode = command::opcode("CREATE_CQ").ok_or("known")?;
        let failed = [(); 3].map(|()| faults.of_command(opcode).is_some());
        assert_eq!(failed, [true, true, false]);
        assert!(faults.fail("CREATE_WORLD", 1).is_err());
        Ok(())
    }
}
