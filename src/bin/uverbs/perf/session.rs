//! One side of a round: its threads, and the messages with the peer until both have finished.

use std::sync::atomic::Ordering;
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::connect::Side;
use super::plan::Plan;
use super::recorder::{Outcome, Recorder};
use super::time::Time;
use super::wire::{Message, Wire, unexpected};
use super::worker::{Clock, Shared, Worker};
use crate::failure::{Failure, Kind, Result};

/// How long the main thread listens to the peer before it looks at its own threads again.
const PAUSE: Duration = Duration::from_millis(10);

/// How often a side that still sends says so; more often if the plan's timeout is short.
const GOING: Duration = Duration::from_secs(1);

/// The peer may have much to check before it sends its outcome: it may take this many times the plan's
/// timeout.
const CHECKING: u32 = 10;

/// The role of this side.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// It sends first, and measures.
    pub(super) is_active: bool,
    /// Each time is kept.
    pub(super) keeps_samples: bool,
    /// A bar shows how far the round is.
    pub(super) shows_progress: bool,
}

/// Carries out a round on a connected side, and returns the outcomes of this side and the peer. If it fails,
/// it notifies the peer.
pub(super) fn round(side: Side, wire: &mut Wire, plan: &Plan, part: Part) -> Result<[Outcome; 2]> {
    let mut outcome = work(side.workers, wire, plan, part)?;
    // The peer does not need the single times.
    let samples = std::mem::take(&mut outcome.samples);
    let said = Message::Outcome(Box::new(outcome.clone()));
    outcome.samples = samples;
    match wire.exchange(&said, plan.patience().saturating_mul(CHECKING))? {
        Message::Outcome(peer) => {
            let nonsense = |why| {
                Failure::new(
                    Kind::Peer,
                    format!("the peer tells an outcome that no run has: {why}"),
                )
            };
            peer.validate().map_err(nonsense)?;
            Ok([outcome, *peer])
        }
        other => Err(unexpected(&other)),
    }
}

/// Sends the peer the reason why this side gives up.
pub(super) fn tell(wire: &mut Wire, failure: &Failure) {
    // The peer may be gone, which is then the reason.
    let _ = wire.say(&Message::Failed {
        is_check: failure.is(Kind::Check),
        text: failure.to_string(),
    });
}

fn work(workers: Vec<Worker>, wire: &mut Wire, plan: &Plan, part: Part) -> Result<Outcome> {
    let count = workers.iter().map(|worker| worker.lanes.all.len()).sum();
    let shared = Shared::new(workers.len(), count);
    wire.say(&Message::Ready)?;
    match wire.hear(plan.patience())? {
        Message::Ready => {}
        other => return Err(unexpected(&other)),
    }
    let from = Time::now() + plan.warm_up();
    let clock = Clock {
        from,
        until: plan.duration().map(|duration| from + duration),
    };
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for worker in workers {
            let recorder = match part.is_active {
                true => Some(Recorder::new(clock.from, clock.until, part.keeps_samples)?),
                false => None,
            };
            threads.push(start(scope, worker, plan, part, clock, &shared, recorder));
        }
        let talked = talk(&threads, wire, plan, &shared, part, clock);
        if talked.is_err() {
            // Relaxed: no other data depends on it.
            shared.stop.store(true, Ordering::Relaxed);
        }
        let mut all = Outcome::default();
        let mut failure = None;
        for thread in threads {
            match thread.join() {
                Ok(Ok(outcome)) => all.add(outcome),
                Ok(Err(error)) => failure = failure.or(Some(error)),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        match (talked, failure) {
            (Ok(()), None) => Ok(all),
            // The thread that failed first has recorded the reason.
            (Err(failure), _) | (Ok(()), Some(failure)) => Err(failure),
        }
    })
}

type Thread<'scope> = ScopedJoinHandle<'scope, Result<Outcome>>;

fn start<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    worker: Worker,
    plan: &'env Plan,
    part: Part,
    clock: Clock,
    shared: &'scope Shared,
    recorder: Option<Recorder>,
) -> Thread<'scope> {
    scope.spawn(move || {
        let found = worker.run(plan, part.is_active, clock, shared, recorder);
        if let Err(failure) = &found {
            shared.fail(failure);
        }
        found
    })
}

/// Notifies the peer when this side has sent everything, and listens to the peer until all threads have
/// ended. A peer that neither has sent everything nor says that it still sends has stopped.
fn talk(
    threads: &[Thread<'_>],
    wire: &mut Wire,
    plan: &Plan,
    shared: &Shared,
    part: Part,
    clock: Clock,
) -> Result<()> {
    let mut is_told = false;
    let (mut said, mut heard) = (Time::now(), Time::now());
    let going = GOING.min(plan.patience() / 4);
    let progress = Progress::new(plan, part, clock);
    let is_over = |is_told| is_told && threads.iter().all(ScopedJoinHandle::is_finished);
    while !is_over(is_told) {
        progress.show();
        if let Some(failure) = shared.take_failure() {
            return Err(failure);
        }
        // Acquire: makes the counts visible that the threads stored before.
        if !is_told && shared.busy.load(Ordering::Acquire) == 0 {
            let sent = shared.sent.iter().map(|sent| sent.load(Ordering::Relaxed));
            wire.say(&Message::Finished(sent.collect()))?;
            is_told = true;
        }
        if !is_told && said.is_older_than(going) {
            wire.say(&Message::Going)?;
            said = Time::now();
        }
        if shared.peer_sent.get().is_some() && is_told {
            // Only the outcome may come now, which is read later.
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        match wire.try_hear(PAUSE)? {
            None if shared.peer_sent.get().is_none() && heard.is_older_than(plan.patience()) => {
                let patience = plan.patience();
                let text = format!("the peer has not said for {patience:?} that it still sends");
                return Err(Failure::new(Kind::Peer, text));
            }
            None => {}
            Some(Message::Going) => heard = Time::now(),
            Some(Message::Finished(sent)) if sent.len() == shared.sent.len() => {
                // It is sent only once.
                let _ = shared.peer_sent.set(sent);
            }
            Some(other) => return Err(unexpected(&other)),
        }
    }
    match shared.take_failure() {
        Some(failure) => Err(failure),
        None => Ok(()),
    }
}

/// A bar for rounds that last longer than a moment, on terminals.
struct Progress {
    bar: ProgressBar,
    start: Time,
}

impl Progress {
    fn new(plan: &Plan, part: Part, clock: Clock) -> Self {
        let start = Time::now();
        let bar = match (clock.until, part.shows_progress) {
            (Some(until), true) => {
                let style = ProgressStyle::with_template("{msg} {bar:40} {eta} left");
                let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
                ProgressBar::new(until.since(start) / 1_000_000).with_style(style)
            }
            _ => ProgressBar::hidden(),
        };
        let text = format!("{} {}, {} bytes", plan.transport, plan.operation, plan.size);
        Self {
            bar: bar.with_message(text),
            start,
        }
    }

    fn show(&self) {
        self.bar
            .set_position(Time::now().since(self.start) / 1_000_000);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::super::plan::tests::plan;
    use super::super::wire::Turn;
    use super::*;

    fn pair() -> [Wire; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let server = listener.accept().unwrap().0;
        [(client, Turn::First), (server, Turn::Second)]
            .map(|(it, turn)| Wire::new(it, turn).unwrap())
    }

    /// One side of a round, in which one thread still sends.
    fn talks(wire: &mut Wire, plan: &Plan, shared: &Shared) -> Result<()> {
        let part = Part {
            is_active: false,
            keeps_samples: false,
            shows_progress: false,
        };
        let (from, until) = (Time::now(), None);
        talk(&[], wire, plan, shared, part, Clock { from, until })
    }

    /// Catches a server that a client holds for ever, of which the program has stopped and the connection is
    /// there.
    #[test]
    fn a_peer_that_stops_is_given_up() {
        let [mut here, _peer] = pair();
        let plan = Plan {
            timeout: 0.2,
            ..plan()
        };
        let failure = talks(&mut here, &plan, &Shared::new(1, 1)).unwrap_err();
        assert_eq!(failure.kind(), Kind::Peer);
        assert!(failure.to_string().contains("still sends"), "{failure}");
    }

    /// Catches a side that gives up a peer which only sends for longer than the timeout.
    #[test]
    fn a_peer_that_still_sends_is_waited_for() {
        let plan = Plan {
            timeout: 2.0,
            ..plan()
        };
        let sides = [Shared::new(1, 1), Shared::new(1, 1)];
        let [mut here, mut there] = pair();
        std::thread::scope(|scope| {
            scope.spawn(|| talks(&mut here, &plan, &sides[0]).unwrap());
            scope.spawn(|| talks(&mut there, &plan, &sides[1]).unwrap());
            std::thread::sleep(plan.patience() * 3 / 2);
            for side in &sides {
                side.busy.store(0, Ordering::Release);
            }
        });
    }
}
