//! The queue pairs of a thread, with the memory of their messages.
//!
//! Completions are noted, and messages checked if that is requested.

use std::ops::Range;
use std::sync::atomic::{Ordering, fence};

use uverbs::Completion;

use super::lane::{Done, Id, Lane};
use super::memory::Data;
use super::pattern::{self, Checker};
use super::plan::{Operation, Plan};
use super::recorder::Recorder;
use super::time::Time;
use super::worker::Shared;
use crate::failure::{Failure, Kind, Result};

/// How often memory is checked for a message before the completion queue, which takes longer to check.
const LOOKS: u32 = 8;

/// The lanes of a thread.
#[derive(Debug)]
pub(super) struct Lanes {
    /// The number of the first one among the lanes of all threads.
    pub(super) first: usize,
    pub(super) all: Vec<Lane>,
    pub(super) data: Data,
    scratch: Vec<u8>,
    checker: Option<Checker>,
    /// Messages that were checked byte by byte.
    pub(super) checked: u64,
}

impl Lanes {
    pub(super) fn new(first: usize, plan: &Plan, data: Data) -> Self {
        Self {
            first,
            all: Vec::new(),
            data,
            scratch: vec![0; plan.size as usize],
            checker: plan.check.then(|| Checker::new(plan.size as usize)),
            checked: 0,
        }
    }

    /// Posts the first receives, and fills the memory that the peer reads. After this the peer may begin.
    pub(super) fn prepare(&mut self, plan: &Plan) -> Result<()> {
        self.receive(plan)?;
        if plan.check && plan.operation == Operation::Read {
            for lane in &self.all {
                lane.fill_outbox(&mut self.data, &mut self.scratch)?;
            }
        }
        Ok(())
    }

    /// Posts as many messages as may be in flight.
    pub(super) fn post_all(&mut self, plan: &Plan) -> Result<()> {
        for (own, lane) in self.all.iter_mut().enumerate() {
            while lane.may_post() {
                let posted = Time::now();
                lane.post(own as u16, posted, &mut self.data, &mut self.scratch, plan)?;
            }
        }
        Ok(())
    }

    /// Posts a batch on the first lane.
    pub(super) fn post(&mut self, posted: Time, plan: &Plan) -> Result<()> {
        self.all[0].post(0, posted, &mut self.data, &mut self.scratch, plan)
    }

    /// Posts the completed receives again.
    pub(super) fn receive(&mut self, plan: &Plan) -> Result<()> {
        for (own, lane) in self.all.iter_mut().enumerate() {
            lane.receive(own as u16, &self.data, plan)?;
        }
        Ok(())
    }

    /// Whether the peer has written a message; if so, the message is checked.
    pub(super) fn is_written(&mut self, number: u64) -> Result<bool> {
        let range = self.all[0].arrived(0);
        if !self.shows(range.end - 1, pattern::stamp(number))? {
            return Ok(false);
        }
        // The device wrote the last byte last.
        fence(Ordering::Acquire);
        self.all[0].received += 1;
        self.check(range, Some(number))?;
        Ok(true)
    }

    /// Whether a byte of this memory gets this value within a few checks.
    fn shows(&self, offset: usize, expected: u8) -> Result<bool> {
        for _ in 0..LOOKS {
            if self.data.get(offset)? == expected {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Notes a completion; with a recorder, also its time.
    pub(super) fn note(
        &mut self,
        completion: &Completion,
        plan: &Plan,
        recorder: Option<(&mut Recorder, Time)>,
    ) -> Result<()> {
        if let Err(error) = completion.result() {
            return Err(Failure::new(Kind::Peer, error));
        }
        let id = Id::of_wr_id(completion.wr_id());
        let Some(lane) = self.all.get_mut(usize::from(id.lane)) else {
            return Err(Failure::new(
                Kind::Failed,
                "a completion names no queue pair",
            ));
        };
        if !id.is_receive {
            let Some(done) = lane.note_sent(id.slot) else {
                return Ok(());
            };
            if let Some((recorder, now)) = recorder {
                recorder.completed(done.messages.into(), done.posted, now);
            }
            return self.check_fetched(id, done, plan);
        }
        let length = completion.byte_len();
        let expected = plan.transport.header() + plan.size as usize;
        if length as usize != expected {
            let text = format!("a message of {length} bytes came instead of {expected}");
            return Err(Failure::new(Kind::Peer, text));
        }
        let number = lane.received;
        lane.note_received(id.slot);
        if self.checker.is_none() {
            return Ok(());
        }
        let range = match plan.operation {
            Operation::Send => lane.arrived(id.slot as usize),
            // If several WRITEs are in flight, the next may have arrived already: they are checked at the end
            // of the round.
            _ if plan.is_exchange() => lane.arrived(0),
            _ => return Ok(()),
        };
        let in_turn = plan.transport.is_reliable() && plan.transport.is_ordered();
        self.check(range, in_turn.then_some(number))
    }

    /// Checks the data that a batch has fetched.
    fn check_fetched(&mut self, id: Id, done: Done, plan: &Plan) -> Result<()> {
        if self.checker.is_none() || !plan.operation.fetches() {
            return Ok(());
        }
        for message in 0..done.messages {
            let place = Lane::place_of(&done, message, plan);
            let range = self.all[usize::from(id.lane)].arrived(place);
            if plan.operation == Operation::Read {
                let start = range.start;
                self.check(range, Some(place as u64))?;
                // The next READ to this place must write its bytes itself.
                self.scratch.fill(0);
                self.data.write_at(start, &self.scratch)?;
                continue;
            }
            // The value of the word before this operation: the number of operations before it.
            let should = done.first + u64::from(message);
            let is = self.data.load_u64(range.start)?;
            if is != should {
                let text = format!("the word was {is} instead of {should}");
                return Err(Failure::new(Kind::Check, text));
            }
            self.checked += 1;
        }
        Ok(())
    }

    /// Checks a message in memory, if messages are checked.
    fn check(&mut self, range: Range<usize>, expected: Option<u64>) -> Result<()> {
        let Some(checker) = &mut self.checker else {
            return Ok(());
        };
        self.data.read_at(range.start, &mut self.scratch)?;
        self.checked += 1;
        checker
            .check(&self.scratch, expected)
            .map_err(|wrong| Failure::new(Kind::Check, wrong))
    }

    /// Checks at the end of a round what the peer has written: each place has a whole message, and the last
    /// message is there.
    pub(super) fn check_written(&mut self, plan: &Plan, shared: &Shared) -> Result<()> {
        let writes = matches!(plan.operation, Operation::Write | Operation::WriteImm);
        if self.checker.is_none() || !writes || plan.is_exchange() {
            return Ok(());
        }
        let sent: Vec<u64> = shared.peer_sent.get().cloned().unwrap_or_default();
        for own in 0..self.all.len() {
            let sent = sent.get(self.first + own).copied().unwrap_or(0);
            let mut last = None;
            for place in 0..plan.depth as usize {
                let range = self.all[own].arrived(place);
                self.data.read_at(range.start, &mut self.scratch)?;
                // This place was never written: a short round does not reach all places.
                if self.scratch.iter().all(|byte| *byte == 0) {
                    continue;
                }
                self.check(range, None)?;
                last = last.max(Some(pattern::number(&self.scratch)));
            }
            if last != sent.checked_sub(1) {
                let text = format!("of {sent} messages the last is not in memory");
                return Err(Failure::new(Kind::Check, text));
            }
        }
        Ok(())
    }
}
