//! One thread: it posts and polls for its queue pairs.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use uverbs::{CompletionChannel, Cq, Notify};

use super::lane::{Done, Id, Lane};
use super::memory::Data;
use super::pattern::{self, Checker};
use super::plan::{Operation, Plan, Until};
use super::recorder::{Outcome, Recorder};
use super::time::Time;
use crate::failure::{Failure, Kind, Result};

/// Looks at the clock, and at what others say, only after so many polls in vain.
const POLLS: u32 = 32;

/// So often a thread looks whether a message is in memory before it looks at its completion queue, which
/// takes longer.
const LOOKS: u32 = 8;

/// After so long in vain a thread leaves its CPU to others. On a machine with few CPUs that may be the peer,
/// or the kernel's part of the device.
const VAIN: Duration = Duration::from_micros(50);

/// How long a thread sleeps that waits for others to finish.
const PAUSE: Duration = Duration::from_millis(10);

/// How long a thread waits for an event before it looks at what others say.
const EVENT: Duration = Duration::from_millis(20);

/// Datagrams and the like that have not come for so long will not come.
const QUIET: Duration = Duration::from_millis(300);

/// What all threads of a side know.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// Threads that still send.
    pub(super) busy: AtomicUsize,
    /// What the peer has sent on each queue pair, when it sends no more.
    pub(super) peer_sent: OnceLock<Vec<u64>>,
    /// What this side has sent on each queue pair.
    pub(super) sent: Vec<AtomicU64>,
    /// Somebody has failed: all end.
    pub(super) stop: AtomicBool,
    /// Why the first thread failed that did.
    failure: Mutex<Option<Failure>>,
}

impl Shared {
    pub(super) fn new(threads: usize, queue_pairs: usize) -> Self {
        let mut shared = Self {
            busy: threads.into(),
            ..Self::default()
        };
        shared.sent.resize_with(queue_pairs, AtomicU64::default);
        shared
    }

    /// A thread has failed: the others end, and the main thread tells the peer.
    pub(super) fn fail(&self, failure: &Failure) {
        let mut first = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        // Who ends because another one failed comes later.
        if first.is_none() && !self.stop.load(Ordering::Relaxed) {
            *first = Some(failure.clone());
        }
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Why a thread failed, once.
    pub(super) fn take_failure(&self) -> Option<Failure> {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.take()
    }

    fn check(&self) -> Result<()> {
        // Relaxed: the flag is all that is read.
        match self.stop.load(Ordering::Relaxed) {
            false => Ok(()),
            true => Err(stopped()),
        }
    }
}

/// The failure of a thread that ends because another one has failed.
fn stopped() -> Failure {
    Failure::new(Kind::Failed, "another thread has failed")
}

/// When is measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    pub(super) from: Time,
    pub(super) until: Option<Time>,
}

/// A completion.
#[derive(Clone, Copy, Debug)]
struct Seen {
    id: Id,
    length: u32,
}

/// A thread's queues and memory.
#[derive(Debug)]
pub(super) struct Worker {
    /// The number of its first queue pair among all.
    pub(super) first: usize,
    pub(super) lanes: Vec<Lane>,
    pub(super) data: Data,
    pub(super) cq: Cq,
    pub(super) channel: Option<CompletionChannel>,
    /// The CPU on which it stays.
    pub(super) cpu: Option<usize>,
    scratch: Vec<u8>,
    seen: VecDeque<Seen>,
    checker: Option<Checker>,
    checked: u64,
    /// Polls in vain since the last look at the clock, and since when they are.
    polls: u32,
    vain: Option<Time>,
}

impl Worker {
    pub(super) fn new(
        first: usize,
        plan: &Plan,
        data: Data,
        cq: Cq,
        channel: Option<CompletionChannel>,
    ) -> Self {
        Self {
            first,
            lanes: Vec::new(),
            data,
            cq,
            channel,
            cpu: None,
            scratch: vec![0; plan.size as usize],
            seen: VecDeque::new(),
            checker: plan.check.then(|| Checker::new(plan.size as usize)),
            checked: 0,
            polls: 0,
            vain: None,
        }
    }

    /// Posts the first receives, and fills what the peer reads: from here on the peer may begin.
    pub(super) fn prepare(&mut self, plan: &Plan) -> Result<()> {
        for (own, lane) in self.lanes.iter_mut().enumerate() {
            lane.receive(own as u16, &self.data, plan)?;
            if plan.check && plan.operation == Operation::Read {
                lane.fill_outbox(&mut self.data, &mut self.scratch)?;
            }
        }
        Ok(())
    }

    /// Does the thread's part of a round.
    pub(super) fn run(
        mut self,
        plan: &Plan,
        is_active: bool,
        clock: Clock,
        shared: &Shared,
        recorder: Option<Recorder>,
    ) -> Result<Outcome> {
        self.stay()?;
        let start = cpu_time();
        let mut outcome = match (is_active, recorder) {
            (true, Some(mut recorder)) => {
                let cpu = match plan.is_exchange() {
                    true => self.ping(plan, clock, shared, &mut recorder)?,
                    false => self.stream(plan, clock, shared, &mut recorder)?,
                };
                Outcome {
                    cpu_seconds: (cpu_time() - cpu).as_secs_f64(),
                    ..recorder.outcome()
                }
            }
            _ => Outcome::default(),
        };
        for (number, lane) in self.lanes.iter().enumerate() {
            // Release, for the main thread's acquire of `busy`.
            shared.sent[self.first + number].store(lane.posted, Ordering::Relaxed);
        }
        shared.busy.fetch_sub(1, Ordering::Release);
        match plan.is_exchange() && !is_active {
            true => self.pong(plan, shared)?,
            false => self.rest(plan, shared)?,
        }
        if !is_active {
            outcome.cpu_seconds = (cpu_time() - start).as_secs_f64();
        }
        self.check_written(plan, shared)?;
        outcome.sent = self.lanes.iter().map(|lane| lane.posted).sum();
        outcome.received = self.lanes.iter().map(|lane| lane.received).sum();
        outcome.checked = self.checked;
        Ok(outcome)
    }

    /// Goes to the thread's CPU, if it has one.
    fn stay(&self) -> Result<()> {
        let Some(cpu) = self.cpu else { return Ok(()) };
        let mut set = CpuSet::new();
        set.set(cpu);
        sched_setaffinity(None, &set).map_err(|error| {
            Failure::new(
                Kind::Failed,
                format_args!("cannot stay on CPU {cpu}: {error}"),
            )
        })
    }

    /// Keeps as many messages in flight as there may be. It gives the thread's processor time when the
    /// measurement began.
    fn stream(
        &mut self,
        plan: &Plan,
        clock: Clock,
        shared: &Shared,
        recorder: &mut Recorder,
    ) -> Result<Duration> {
        let mut cpu = None;
        let mut now = Time::now();
        loop {
            self.set_limits(plan, clock, now, &mut cpu, recorder);
            for (own, lane) in self.lanes.iter_mut().enumerate() {
                while lane.may_post() {
                    let posted = Time::now();
                    lane.post(own as u16, posted, &mut self.data, &mut self.scratch, plan)?;
                }
            }
            recorder.settle();
            let is_over = |lane: &Lane| lane.is_over() && lane.is_idle();
            if self.lanes.iter().all(is_over) {
                return Ok(cpu.unwrap_or_else(cpu_time));
            }
            // Something is in flight, and until it completes there is nothing to post.
            while !self.poll()? {
                self.wait(plan, shared, Some(now))?;
            }
            now = Time::now();
            self.note_all(plan, Some((recorder, now)))?;
            self.receive(plan)?;
        }
    }

    /// Sends a message, waits for its answer, and so on. As [`Self::stream`].
    fn ping(
        &mut self,
        plan: &Plan,
        clock: Clock,
        shared: &Shared,
        recorder: &mut Recorder,
    ) -> Result<Duration> {
        let mut cpu = None;
        let mut number = 0;
        let mut now = Time::now();
        loop {
            self.set_limits(plan, clock, now, &mut cpu, recorder);
            if self.lanes[0].is_over() {
                break;
            }
            let posted = Time::now();
            self.send_one(posted, plan, shared)?;
            recorder.settle();
            self.arrival(number, plan, shared, Some(posted))?;
            now = Time::now();
            recorder.completed(1, posted, now);
            number += 1;
        }
        Ok(cpu.unwrap_or_else(cpu_time))
    }

    /// Answers each message until the peer sends no more.
    fn pong(&mut self, plan: &Plan, shared: &Shared) -> Result<()> {
        let mut number = 0;
        // When an answer was posted is nobody's question.
        let start = Time::now();
        while self.arrival(number, plan, shared, None)? {
            self.send_one(start, plan, shared)?;
            number += 1;
        }
        Ok(())
    }

    /// Sets how many messages each queue pair posts in all, and notes the processor time when the measurement
    /// begins: from then on messages count, and at its end no more are posted.
    fn set_limits(
        &mut self,
        plan: &Plan,
        clock: Clock,
        now: Time,
        cpu: &mut Option<Duration>,
        recorder: &mut Recorder,
    ) {
        let begins = cpu.is_none() && now >= clock.from;
        if begins {
            *cpu = Some(cpu_time());
            recorder.begin(now);
        }
        let is_over = clock.until.is_some_and(|until| now >= until);
        for lane in &mut self.lanes {
            match plan.until {
                _ if is_over => lane.limit = lane.posted,
                Until::Messages(count) if begins => lane.limit = lane.posted + count,
                _ => {}
            }
        }
    }

    /// Posts the next message of an exchange. While it is under way its completion is taken, and the receive
    /// of the message before is posted again: then the next message does not wait for that.
    fn send_one(&mut self, posted: Time, plan: &Plan, shared: &Shared) -> Result<()> {
        self.lanes[0].post(0, posted, &mut self.data, &mut self.scratch, plan)?;
        self.receive(plan)?;
        let mut since = None;
        while !self.lanes[0].is_idle() {
            match self.poll()? {
                true => self.note_all(plan, None)?,
                false => {
                    let since = *since.get_or_insert_with(Time::now);
                    self.wait(plan, shared, Some(since))?;
                }
            }
        }
        Ok(())
    }

    /// Waits for a message of an exchange; false if the peer has sent all and this is none of them.
    fn arrival(
        &mut self,
        number: u64,
        plan: &Plan,
        shared: &Shared,
        since: Option<Time>,
    ) -> Result<bool> {
        loop {
            let has_come = match plan.operation {
                Operation::Write => self.is_written(number)?,
                _ => self.lanes[0].received > number,
            };
            if has_come {
                return Ok(true);
            }
            if self.poll()? {
                self.note_all(plan, None)?;
                continue;
            }
            let sent = shared.peer_sent.get().and_then(|sent| sent.get(self.first));
            if since.is_none() && sent.is_some_and(|sent| *sent == number) {
                return Ok(false);
            }
            self.wait(plan, shared, since)?;
        }
    }

    /// Whether the peer has written a message, which is checked.
    fn is_written(&mut self, number: u64) -> Result<bool> {
        let range = self.lanes[0].arrived(0);
        if !self.shows(range.end - 1, pattern::stamp(number))? {
            return Ok(false);
        }
        // The device wrote the last byte last.
        fence(Ordering::Acquire);
        self.lanes[0].received += 1;
        self.check(range, Some(number))?;
        Ok(true)
    }

    /// Whether a byte of this memory becomes this one within a few looks.
    fn shows(&self, offset: usize, expected: u8) -> Result<bool> {
        for _ in 0..LOOKS {
            let mut byte = [0];
            self.data.read_at(offset, &mut byte)?;
            if byte[0] == expected {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Receives what the peer still sends.
    fn rest(&mut self, plan: &Plan, shared: &Shared) -> Result<()> {
        let receives = plan.operation.takes_receive();
        let mut last = Time::now();
        loop {
            self.receive(plan)?;
            if receives && self.poll()? {
                self.note_all(plan, None)?;
                last = Time::now();
                continue;
            }
            if let Some(sent) = shared.peer_sent.get() {
                let mut lanes = self.lanes.iter().zip(&sent[self.first..]);
                let has_all = !receives || lanes.all(|(lane, sent)| lane.received >= *sent);
                let is_quiet = !plan.transport.is_reliable() && last.is_older_than(QUIET);
                if has_all || is_quiet {
                    return Ok(());
                }
            }
            match receives {
                true => self.wait(plan, shared, None)?,
                false => {
                    shared.check()?;
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }

    /// After a poll in vain: waits for an event, or says when it is time to poll again. If something is due,
    /// it is so since then.
    fn wait(&mut self, plan: &Plan, shared: &Shared, since: Option<Time>) -> Result<()> {
        match &self.channel {
            Some(channel) => {
                // The poll that found nothing has armed the queue.
                channel.wait_for(EVENT)?;
            }
            None => {
                self.polls += 1;
                if self.polls < POLLS {
                    if !plan.spin {
                        std::hint::spin_loop();
                    }
                    return Ok(());
                }
                self.polls = 0;
                let since = *self.vain.get_or_insert_with(Time::now);
                if !plan.spin && since.is_older_than(VAIN) {
                    std::thread::yield_now();
                }
            }
        }
        shared.check()?;
        match since {
            Some(since) if since.is_older_than(plan.patience()) => {
                let text = format!(
                    "nothing has completed for {:?}: the peer has gone, or a message was lost",
                    plan.patience()
                );
                Err(Failure::new(Kind::Peer, text))
            }
            _ => Ok(()),
        }
    }

    /// Looks what has completed; false if nothing has. With events, asks for one then.
    fn poll(&mut self) -> Result<bool> {
        let completions = match self.channel {
            Some(_) => self.cq.poll_or_arm(Notify::Next)?,
            None => Some(self.cq.poll().map_err(uverbs::Error::from)?),
        };
        let Some(mut completions) = completions else {
            return Ok(false);
        };
        for completion in &mut completions {
            if let Err(error) = completion.result() {
                return Err(Failure::new(Kind::Peer, error));
            }
            self.seen.push_back(Seen {
                id: Id::of_wr_id(completion.wr_id()),
                length: match completion.is_recv() {
                    true => completion.byte_len(),
                    false => 0,
                },
            });
        }
        Ok(!self.seen.is_empty())
    }

    /// Takes note of what has completed: with a recorder, of when.
    fn note_all(&mut self, plan: &Plan, mut recorder: Option<(&mut Recorder, Time)>) -> Result<()> {
        self.vain = None;
        while let Some(completion) = self.seen.pop_front() {
            self.note(completion, plan, recorder.as_mut())?;
        }
        Ok(())
    }

    /// Posts the receives again that have completed.
    fn receive(&mut self, plan: &Plan) -> Result<()> {
        for (own, lane) in self.lanes.iter_mut().enumerate() {
            lane.receive(own as u16, &self.data, plan)?;
        }
        Ok(())
    }

    fn note(
        &mut self,
        Seen { id, length }: Seen,
        plan: &Plan,
        recorder: Option<&mut (&mut Recorder, Time)>,
    ) -> Result<()> {
        let Some(lane) = self.lanes.get_mut(usize::from(id.lane)) else {
            return Err(failed("a completion names no queue pair"));
        };
        if !id.is_receive {
            let Some(done) = lane.note_sent(id.slot) else {
                return Ok(());
            };
            if let Some((recorder, now)) = recorder {
                recorder.completed(done.messages.into(), done.posted, *now);
            }
            return self.check_fetched(id, done, plan);
        }
        let expected = plan.transport.header() + plan.size as usize;
        if length as usize != expected {
            let text = format!("a message of {length} bytes came instead of {expected}");
            return Err(Failure::new(Kind::Peer, text));
        }
        let number = lane.received;
        lane.note_received(id.slot);
        let range = match plan.operation {
            Operation::Send => lane.arrived(id.slot as usize),
            // Of several WRITEs the next may be there already: they are looked at in the end.
            _ if plan.is_exchange() => lane.arrived(0),
            _ => return Ok(()),
        };
        let in_turn = plan.transport.is_reliable() && plan.transport.is_ordered();
        self.check(range, in_turn.then_some(number))
    }

    /// Checks what a batch has fetched.
    fn check_fetched(&mut self, id: Id, done: Done, plan: &Plan) -> Result<()> {
        if self.checker.is_none() || !plan.operation.fetches() {
            return Ok(());
        }
        for message in 0..done.messages {
            let place = Lane::place_of(&done, message, plan);
            let range = self.lanes[usize::from(id.lane)].arrived(place);
            if plan.operation == Operation::Read {
                let start = range.start;
                self.check(range, Some(place as u64))?;
                // The next READ to this place must bring its bytes itself.
                self.scratch.fill(0);
                self.data.write_at(start, &self.scratch)?;
                continue;
            }
            // The word before this operation, which was the only one in its turn.
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
    fn check(&mut self, range: std::ops::Range<usize>, expected: Option<u64>) -> Result<()> {
        let Some(checker) = &mut self.checker else {
            return Ok(());
        };
        self.data.read_at(range.start, &mut self.scratch)?;
        self.checked += 1;
        checker
            .check(&self.scratch, expected)
            .map_err(|wrong| Failure::new(Kind::Check, wrong))
    }

    /// Checks what the peer has written in the end: each place has a whole message, and the last one is
    /// there.
    fn check_written(&mut self, plan: &Plan, shared: &Shared) -> Result<()> {
        let writes = matches!(plan.operation, Operation::Write | Operation::WriteImm);
        if self.checker.is_none() || !writes || plan.is_exchange() {
            return Ok(());
        }
        let sent: Vec<u64> = shared.peer_sent.get().cloned().unwrap_or_default();
        for own in 0..self.lanes.len() {
            let sent = sent.get(self.first + own).copied().unwrap_or(0);
            let mut last = None;
            for place in 0..plan.depth as usize {
                let range = self.lanes[own].arrived(place);
                self.data.read_at(range.start, &mut self.scratch)?;
                // Nothing was ever written there: a short round does not reach all places.
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

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::new(Kind::Failed, error)
}

/// The processor time of this thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec.max(0) as u32)
}
