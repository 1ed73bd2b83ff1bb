//! One thread: it posts and polls for its queue pairs.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use uverbs::{CompletionChannel, Cq, Notify};

use super::lane::Lane;
use super::lanes::Lanes;
use super::memory::Data;
use super::plan::{Operation, Plan, Until};
use super::recorder::{Outcome, Recorder};
use super::time::Time;
use crate::failure::{Failure, Kind, Result};

/// How many polls without a completion come before each check of the clock and of the other threads.
const POLLS: u32 = 32;

/// After this long without a completion, a thread yields its CPU. On a machine with few CPUs the peer may
/// need it, or the kernel's part of the device.
const VAIN: Duration = Duration::from_micros(50);

/// How long a thread sleeps that waits for others to finish.
const PAUSE: Duration = Duration::from_millis(10);

/// How long a thread waits for an event before it checks the other threads.
const EVENT: Duration = Duration::from_millis(20);

/// After this long, an unreliable message counts as lost.
const QUIET: Duration = Duration::from_millis(300);

/// The state that all threads of a side share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// The number of threads that still send.
    pub(super) busy: AtomicUsize,
    /// How many messages the peer has sent on each queue pair, once it sends no more.
    pub(super) peer_sent: OnceLock<Vec<u64>>,
    /// How many messages this side has sent on each queue pair.
    pub(super) sent: Vec<AtomicU64>,
    /// A thread has failed: all must end.
    pub(super) stop: AtomicBool,
    /// The reason why the first thread failed.
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

    /// Records that a thread has failed: the others end, and the main thread notifies the peer.
    pub(super) fn fail(&self, failure: &Failure) {
        let mut first = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        // Threads that end because another one failed come later.
        if first.is_none() && !self.stop.load(Ordering::Relaxed) {
            *first = Some(failure.clone());
        }
        self.stop.store(true, Ordering::Relaxed);
    }

    /// The reason why a thread failed, once.
    pub(super) fn take_failure(&self) -> Option<Failure> {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.take()
    }

    fn check(&self) -> Result<()> {
        // Relaxed: nothing but the flag is read.
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

/// The times of the measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    pub(super) from: Time,
    pub(super) until: Option<Time>,
}

/// A thread's queues and memory.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) lanes: Lanes,
    pub(super) cq: Cq,
    pub(super) channel: Option<CompletionChannel>,
    /// The CPU on which it stays.
    pub(super) cpu: Option<usize>,
    /// Polls without a completion since the last check of the clock, and since when there are such polls.
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
            lanes: Lanes::new(first, plan, data),
            cq,
            channel,
            cpu: None,
            polls: 0,
            vain: None,
        }
    }

    /// Carries out the thread's part of a round.
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
        for (number, lane) in self.lanes.all.iter().enumerate() {
            // Relaxed: the release on `busy` below publishes it.
            shared.sent[self.lanes.first + number].store(lane.posted, Ordering::Relaxed);
        }
        shared.busy.fetch_sub(1, Ordering::Release);
        match plan.is_exchange() && !is_active {
            true => self.pong(plan, shared)?,
            false => self.rest(plan, shared)?,
        }
        if !is_active {
            outcome.cpu_seconds = (cpu_time() - start).as_secs_f64();
        }
        self.lanes.check_written(plan, shared)?;
        outcome.sent = self.lanes.all.iter().map(|lane| lane.posted).sum();
        outcome.received = self.lanes.all.iter().map(|lane| lane.received).sum();
        outcome.checked = self.lanes.checked;
        Ok(outcome)
    }

    /// Moves the thread to its CPU, if it has one.
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

    /// Keeps as many messages in flight as allowed. Returns the thread's processor time at the start of the
    /// measurement.
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
            self.lanes.post_all(plan)?;
            recorder.settle();
            let is_over = |lane: &Lane| lane.is_over() && lane.is_idle();
            if self.lanes.all.iter().all(is_over) {
                return Ok(cpu.unwrap_or_else(cpu_time));
            }
            // Something is in flight, and until it completes nothing can be posted.
            while !self.poll(plan, Some((recorder, &mut now)))? {
                self.wait(plan, shared, Some(now))?;
            }
            self.lanes.receive(plan)?;
        }
    }

    /// Sends a message, waits for its answer, and repeats that. See [`Self::stream`].
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
            if self.lanes.all[0].is_over() {
                break;
            }
            let posted = Time::now();
            self.send_one(posted, plan, shared)?;
            self.arrival(number, plan, shared, Some(posted))?;
            now = Time::now();
            // Between two messages there is no other wait.
            recorder.completed(1, posted, now);
            recorder.settle();
            number += 1;
        }
        Ok(cpu.unwrap_or_else(cpu_time))
    }

    /// Answers each message until the peer sends no more.
    fn pong(&mut self, plan: &Plan, shared: &Shared) -> Result<()> {
        let mut number = 0;
        // The time at which an answer was posted is not used.
        let start = Time::now();
        while self.arrival(number, plan, shared, None)? {
            self.send_one(start, plan, shared)?;
            number += 1;
        }
        Ok(())
    }

    /// Sets how many messages each queue pair posts in all, and notes the processor time when the measurement
    /// begins: messages count after that, and at its end no more are posted.
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
        for lane in &mut self.lanes.all {
            match plan.until {
                _ if is_over => lane.limit = lane.posted,
                Until::Messages(count) if begins => lane.limit = lane.posted.saturating_add(count),
                _ => {}
            }
        }
    }

    /// Posts the next message of an exchange. While it is in flight, its completion is polled, and the
    /// receive of the message before is posted again, so that the next message does not wait for that.
    fn send_one(&mut self, posted: Time, plan: &Plan, shared: &Shared) -> Result<()> {
        self.lanes.post(posted, plan)?;
        self.lanes.receive(plan)?;
        let mut since = None;
        while !self.lanes.all[0].is_idle() {
            if !self.poll(plan, None)? {
                let since = *since.get_or_insert_with(Time::now);
                self.wait(plan, shared, Some(since))?;
            }
        }
        Ok(())
    }

    /// Waits for a message of an exchange; false if the peer has sent everything and no message is left. What
    /// is left then must come in time.
    fn arrival(
        &mut self,
        number: u64,
        plan: &Plan,
        shared: &Shared,
        since: Option<Time>,
    ) -> Result<bool> {
        let mut due = since;
        loop {
            let has_come = match plan.operation {
                Operation::Write => self.lanes.is_written(number)?,
                _ => self.lanes.all[0].received > number,
            };
            if has_come {
                return Ok(true);
            }
            if self.poll(plan, None)? {
                continue;
            }
            let sent = shared.peer_sent.get();
            if let (None, Some(sent)) = (since, sent.and_then(|sent| sent.get(self.lanes.first))) {
                if *sent == number {
                    return Ok(false);
                }
                due = due.or_else(|| Some(Time::now()));
            }
            self.wait(plan, shared, due)?;
        }
    }

    /// Receives what the peer still sends. Once it sends no more, what is left must come in time.
    fn rest(&mut self, plan: &Plan, shared: &Shared) -> Result<()> {
        let receives = plan.operation.takes_receive();
        let (mut last, mut due) = (Time::now(), None);
        loop {
            self.lanes.receive(plan)?;
            if receives && self.poll(plan, None)? {
                (last, due) = (Time::now(), None);
                continue;
            }
            if let Some(sent) = shared.peer_sent.get() {
                let mut lanes = self.lanes.all.iter().zip(&sent[self.lanes.first..]);
                let has_all = !receives || lanes.all(|(lane, sent)| lane.received >= *sent);
                let is_quiet = !plan.transport.is_reliable() && last.is_older_than(QUIET);
                if has_all || is_quiet {
                    return Ok(());
                }
                due = due.or_else(|| Some(Time::now()));
            }
            match receives {
                true => self.wait(plan, shared, due)?,
                false => {
                    shared.check()?;
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }

    /// After a poll without a completion: waits for an event, or returns when it is time to poll again.
    /// `since` is the time from which something is due, if anything is.
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

    /// Notes completions; false if there were none, and then, with events, it arms the queue. A recorder gets
    /// them, with the present time.
    fn poll(
        &mut self,
        plan: &Plan,
        mut recorder: Option<(&mut Recorder, &mut Time)>,
    ) -> Result<bool> {
        let completions = match self.channel {
            Some(_) => self.cq.poll_or_arm(Notify::Next)?,
            None => Some(self.cq.poll().map_err(uverbs::Error::from)?),
        };
        let Some(mut completions) = completions else {
            return Ok(false);
        };
        let mut has_some = false;
        for completion in &mut completions {
            if let (false, Some((_, now))) = (has_some, &mut recorder) {
                **now = Time::now();
            }
            has_some = true;
            let recorder = recorder.as_mut();
            let recorder = recorder.map(|(recorder, now)| (&mut **recorder, **now));
            self.lanes.note(&completion, plan, recorder)?;
        }
        if has_some {
            self.vain = None;
        }
        Ok(has_some)
    }
}

/// The processor time of this thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec.max(0) as u32)
}
