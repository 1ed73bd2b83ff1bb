//! The game itself: the client sends, the server sends back what it received, and so on.
//!
//! A side sends its next message when it has both received the peer's and completed its own.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use uverbs::{Completion, Notify, WcOpcode, wc::CompletionError};

use super::link::{End, Link, RECV, SEND, Source};
use super::payload::{self, Checker};
use super::progress::Progress;
use crate::failure::{Failure, Kind, Result};

/// The number of empty polls between two checks of the clock.
const POLLS: u32 = 1024;

/// How often to check that the device still exists while nothing completes.
const LOOK: Duration = Duration::from_millis(100);

/// The longest latency that the histogram distinguishes; with a fixed limit it never grows during the game.
const LONGEST: Duration = Duration::from_secs(3600);

/// The parameters of a game.
#[derive(Debug)]
pub(super) struct Rules {
    pub(super) client: bool,
    pub(super) iters: u64,
    pub(super) check: bool,
    /// How long nothing may complete.
    pub(super) patience: Duration,
}

/// The result of a game.
#[derive(Debug)]
pub(super) struct Score {
    pub(super) elapsed: Duration,
    /// The times from one received message to the next, in nanoseconds.
    pub(super) latency: Histogram<u64>,
}

/// Plays a game over a connected link.
pub(super) fn play(link: &mut Link, rules: &Rules) -> Result<Score> {
    let mut game = Game::start(&mut link.end, rules)?;
    let mut idle = Idle::new(rules);
    while !game.is_over() {
        let before = game.completed();
        match &link.channel {
            None => {
                for completion in &mut link.cq.poll().map_err(uverbs::Error::from)? {
                    game.note(&completion)?;
                }
            }
            Some(channel) => match link.cq.poll_or_arm(Notify::Next)? {
                Some(mut completions) => {
                    for completion in &mut completions {
                        game.note(&completion)?;
                    }
                }
                None => {
                    if channel.wait_for(rules.patience)?.is_none() {
                        return Err(game.stalled(rules.patience));
                    }
                    continue;
                }
            },
        }
        game.answer()?;
        match game.completed() == before {
            true if idle.is_over() => return Err(game.stalled(idle.patience)),
            // Its error reports that the device has been removed, which the ring does not show.
            true if idle.wants_a_look() => {
                link.context.query_port(1)?;
            }
            true => {}
            false => idle.end(),
        }
    }
    Ok(game.score())
}

struct Game<'a> {
    end: &'a mut End,
    rules: &'a Rules,
    checker: Option<Checker>,
    progress: Progress,
    received: u64,
    sent: u64,
    /// The number of posted receives.
    posted: u32,
    /// The peer's message must arrive before the next one is sent.
    expects: bool,
    /// This side's message is still in flight.
    sending: bool,
    start: Instant,
    last: Instant,
    latency: Histogram<u64>,
}

impl<'a> Game<'a> {
    /// Starts the clock; the client sends its first message.
    fn start(end: &'a mut End, rules: &'a Rules) -> Result<Self> {
        let size = end.expected_len() - end.header_len();
        let checker = rules.check.then(|| match rules.client {
            true => Checker::of_echoes(size),
            false => Checker::of_any_peer(size),
        });
        let latency = Histogram::new_with_max(LONGEST.as_nanos() as u64, 3)
            .map_err(|error| Failure::new(Kind::Failed, error))?;
        let now = Instant::now();
        let mut game = Self {
            posted: end.rx_depth(),
            end,
            rules,
            checker,
            progress: Progress::new(rules.iters, now),
            received: 0,
            sent: 0,
            expects: true,
            sending: false,
            start: now,
            last: now,
            latency,
        };
        if rules.client {
            game.send()?;
        }
        Ok(game)
    }

    fn is_over(&self) -> bool {
        self.received == self.rules.iters && self.sent == self.rules.iters
    }

    fn completed(&self) -> u64 {
        self.received + self.sent
    }

    /// Notes a completion.
    fn note(&mut self, completion: &Completion) -> Result<()> {
        completion.result().map_err(|error| self.failed(error))?;
        match completion.wr_id() {
            SEND => {
                self.sent += 1;
                self.sending = false;
            }
            RECV => self.receive(completion)?,
            other => {
                let text =
                    format!("a completion for a work request {other}, which is none of ours");
                return Err(Failure::new(Kind::Failed, text));
            }
        }
        Ok(())
    }

    /// Posts receives for the noted completions, and sends the next message if it is due.
    ///
    /// It is not called while completions are iterated, since they borrow the end.
    fn answer(&mut self) -> Result<()> {
        if self.posted <= 1 && self.received < self.rules.iters {
            let missing = self.end.rx_depth() - self.posted;
            self.end.post_receives(missing)?;
            self.posted += missing;
        }
        let may_send = !self.expects && !self.sending;
        if may_send && self.sent < self.rules.iters {
            self.send()?;
        }
        Ok(())
    }

    fn receive(&mut self, completion: &Completion) -> Result<()> {
        if !self.expects {
            let text = format!("the peer sends out of turn, {}", self.progress_text());
            return Err(Failure::new(Kind::Peer, text));
        }
        self.check_len(completion)?;
        self.note_time();
        if let Some(checker) = &mut self.checker {
            let message = self.end.received(self.received)?;
            checker
                .check(self.received + 1, message)
                .map_err(|mismatch| Failure::new(Kind::Check, mismatch))?;
        }
        self.received += 1;
        self.expects = false;
        self.posted -= 1;
        Ok(())
    }

    fn check_len(&self, completion: &Completion) -> Result<()> {
        let (got, expected) = (completion.byte_len() as usize, self.end.expected_len());
        if completion.opcode() == WcOpcode::RECV && got == expected {
            return Ok(());
        }
        let header = self.end.header_len();
        Err(Failure::new(
            Kind::Peer,
            format_args!(
                "a message of {} bytes instead of {}: both sides must be given the same size (-s)",
                got.saturating_sub(header),
                expected - header
            ),
        ))
    }

    fn note_time(&mut self) {
        let now = Instant::now();
        // The server's first message measures the client's start more than the path.
        if self.rules.client || self.received > 0 {
            let nanoseconds = (now - self.last).as_nanos() as u64;
            self.latency.saturating_record(nanoseconds);
        }
        self.last = now;
        self.progress.show(self.received, now);
    }

    fn send(&mut self) -> Result<()> {
        let source = match self.rules.client {
            true => Source::Own,
            false => Source::Echo(self.received - 1),
        };
        if self.rules.client && self.checker.is_some() {
            let number = self.sent + 1;
            self.end
                .write_own(|message| payload::fill_numbered(message, number))?;
        }
        self.end.send(source)?;
        self.sending = true;
        self.expects = true;
        Ok(())
    }

    /// A work request has failed. Most likely the peer has left, or plays another game.
    fn failed(&self, error: CompletionError) -> Failure {
        let hint = match self.received {
            0 => "; both sides must be given the same size (-s) and MTU (-m)",
            _ => "",
        };
        let progress = self.progress_text();
        Failure::new(Kind::Peer, format_args!("{error}, {progress}{hint}"))
    }

    fn progress_text(&self) -> String {
        format!(
            "after {} of {} messages sent and {} received",
            self.sent, self.rules.iters, self.received
        )
    }

    fn stalled(&self, patience: Duration) -> Failure {
        Failure::new(
            Kind::Peer,
            format_args!(
                "nothing has come from the peer for {} s, {}: it has gone, or a message was lost",
                patience.as_secs_f64(),
                self.progress_text()
            ),
        )
    }

    fn score(self) -> Score {
        Score {
            elapsed: self.start.elapsed(),
            latency: self.latency,
        }
    }
}

/// Counts empty polls until they have lasted too long.
struct Idle {
    patience: Duration,
    polls: u32,
    since: Option<Instant>,
    /// The idle time after which the device is checked next.
    next_look: Duration,
}

impl Idle {
    fn new(rules: &Rules) -> Self {
        Self {
            patience: rules.patience,
            polls: 0,
            since: None,
            next_look: LOOK,
        }
    }

    /// Something has completed.
    fn end(&mut self) {
        self.polls = 0;
        self.since = None;
        self.next_look = LOOK;
    }

    /// Whether it is time to check the device again.
    fn wants_a_look(&mut self) -> bool {
        let idle = match (self.polls, self.since) {
            (0, Some(since)) => since.elapsed(),
            _ => return false,
        };
        let wants = idle >= self.next_look;
        if wants {
            self.next_look = idle + LOOK;
        }
        wants
    }

    /// Counts an empty poll; true if they have lasted too long.
    fn is_over(&mut self) -> bool {
        std::hint::spin_loop();
        self.polls += 1;
        if self.polls < POLLS {
            return false;
        }
        self.polls = 0;
        // On a machine with few processors the peer, or the kernel's part of the device, may need this one.
        std::thread::yield_now();
        self.since.get_or_insert_with(Instant::now).elapsed() >= self.patience
    }
}
