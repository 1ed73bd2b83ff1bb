//! Two queue pairs that are each other's peers, and where they are in their plan.
//!
//! A pair never waits: [`Pair::turn`] does what can be done now, and completions come by [`Pair::completed`].

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use support::{device, kernel};
use uverbs::{
    Completion, WcOpcode, WcStatus,
    grh::{GRH_LENGTH, Grh},
    mr::RemoteKey,
    qp::QpType,
};

use super::figures::Figures;
use super::ledger::{Arrival, Ledger, Message, Sent};
use super::message::{self, Key};
use super::net::Host;
use super::plan::{BURST, Burst, Change, Op, Plan, Request, SLOT, Setup, Step};
use super::shadow::{Atomic, Shadow, Word};
use super::side::{Hub, Posting, RECEIVES, Side, shelf};
use super::{Orders, Result};

/// How long a queue pair may take to flush before it counts as lost by soft-RoCE of 6.1. That lets go twice
/// of a packet that arrives during a reset, and runs no task of a queue pair whose count of references has
/// come to 0 that way. It is destroyed then.
const LET_GO: Duration = Duration::from_secs(20);

/// How long anything may take that must come. Packets are lost and sent again; only a hang takes this long.
const LIMIT: Duration = Duration::from_secs(60);

/// After what time without any completion requests count as given up by the kernel: rxe of 6.1 now and then
/// sends nothing any more. They must still be flushed. A burst as a whole takes as long as the host lets it.
const STALL: Duration = Duration::from_secs(10);

/// After what time a queue pair in the error state is told once more to flush what it has.
const KICK: Duration = Duration::from_secs(1);

/// The hosts, and what the queue pairs on each share.
pub(crate) struct Place<'a> {
    pub(crate) hosts: &'a [Host; 2],
    pub(crate) hubs: &'a [Hub; 2],
}

/// The count of bursts that were to complete well.
pub(crate) const BURSTS: &str = "bursts";

/// The count of connections that broke though nobody broke them.
pub(crate) const BROKEN: &str = "connections broken by themselves";

/// What a completion said.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wc {
    pub(crate) id: Id,
    status: WcStatus,
    opcode: WcOpcode,
    byte_len: u32,
    qp_num: u32,
    src_qp: u32,
    imm: Option<u32>,
    invalidated: Option<RemoteKey>,
}

impl From<Completion> for Wc {
    fn from(completion: Completion) -> Self {
        Self {
            id: Id::from(completion.wr_id()),
            status: completion.status(),
            opcode: completion.opcode(),
            byte_len: completion.byte_len(),
            qp_num: completion.qp_num(),
            src_qp: completion.src_qp(),
            imm: completion.imm(),
            invalidated: completion.invalidated_rkey(),
        }
    }
}

/// What a completion is about: a request's `wr_id`, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Id {
    pub(crate) pair: u16,
    pub(crate) side: usize,
    receive: bool,
    serial: u32,
}

impl From<u64> for Id {
    fn from(id: u64) -> Self {
        Self {
            pair: (id >> 40) as u16,
            side: (id >> 39 & 1) as usize,
            receive: id >> 38 & 1 == 1,
            serial: id as u32,
        }
    }
}

impl From<Id> for u64 {
    fn from(id: Id) -> Self {
        u64::from(id.pair) << 40
            | (id.side as u64) << 39
            | u64::from(id.receive) << 38
            | u64::from(id.serial)
    }
}

/// Where a pair is.
#[derive(Clone, Copy, Debug)]
enum State {
    /// Not connected yet.
    New,
    /// Between two steps.
    Idle,
    /// Requests are under way, of which the last has completed then.
    Running { since: Instant },
    /// On the way to the error state, or in it: requests are being flushed.
    Failing {
        since: Instant,
        kicked: Instant,
        told: [bool; 2],
    },
    /// Reset in the middle of traffic, to be destroyed. A packet that comes to a queue pair while it is
    /// destroyed makes rxe of 7.2 warn of a task without references now and then (`rxe_sched_task` in
    /// `rxe_task.c`); to one that is reset none gets through.
    Doomed { memory: bool },
    /// Reset in the middle of traffic, to be connected anew; completions of before may still lie in the
    /// queues.
    Reset,
    /// Destroyed; completions of before may still lie in the queues.
    Destroyed { memory: bool },
    /// Failed on purpose, for the end.
    Ending { since: Instant, kicked: Instant },
    /// At the end.
    Over,
}

/// A pair.
pub(crate) struct Pair {
    number: u16,
    transport: QpType,
    plan: Plan,
    /// Connections after failures that were not planned; apart from the plan, which must not depend on them.
    unplanned: Plan,
    sides: [Side; 2],
    ledgers: [Ledger; 2],
    /// What the peer's writes may have done to the memory of each side.
    shadows: [Vec<Shadow>; 2],
    words: [Word; 2],
    /// The next number of a send and of a receive.
    sends: [u32; 2],
    receives: [u32; 2],
    /// The last request of each side, in this connection, that has surely succeeded.
    succeeded: [Option<u32>; 2],
    /// The number of each side's queue pair, or of its last one.
    qpn: [u32; 2],
    /// Where each side began to count packets last; 24 bits.
    psn: [u32; 2],
    /// All numbers that each side's queue pairs have had; datagrams of earlier ones may come late.
    qpns: [BTreeSet<u32>; 2],
    state: State,
    bursts: VecDeque<Burst>,
    /// The change that the burst under way is for.
    change: Option<Change>,
    next: Setup,
    /// The first completion that failed in this connection.
    broken: Option<(usize, Wc)>,
    pub(crate) figures: Figures,
}

impl Pair {
    /// A pair with memory, not connected.
    pub(crate) fn new(orders: Orders, number: u16, place: &Place<'_>) -> Result<Self> {
        let Orders { seed, .. } = orders;
        let mut plan = Plan::new(seed, number);
        let next = plan.setup();
        let side = |side| Side::new(&place.hubs[side], number, side);
        Ok(Self {
            number,
            transport: plan.transport(),
            plan,
            unplanned: Plan::new(!seed, number),
            sides: [side(0)?, side(1)?],
            ledgers: Default::default(),
            shadows: [fresh(), fresh()],
            words: Default::default(),
            sends: [0; 2],
            receives: [0; 2],
            succeeded: [None; 2],
            qpn: [0; 2],
            psn: [0; 2],
            qpns: Default::default(),
            state: State::New,
            bursts: VecDeque::new(),
            change: None,
            next,
            broken: None,
            figures: Figures::default(),
        })
    }

    /// Whether it has come to its end.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    /// Does what can be done now. With `stop` no new step is begun. Gives whether anything was done.
    pub(crate) fn turn(&mut self, place: &Place<'_>, stop: bool) -> Result<bool> {
        self.try_turn(place, stop)
            .map_err(|error| self.explain(&error.to_string()).into())
    }

    fn try_turn(&mut self, place: &Place<'_>, stop: bool) -> Result<bool> {
        match self.state {
            State::New => self.create(place)?,
            State::Idle if self.broken.is_some() => self.unplanned_failure()?,
            State::Idle if stop => {
                self.fail(0)?;
                self.fail(1)?;
                let now = Instant::now();
                self.state = State::Ending {
                    since: now,
                    kicked: now,
                };
            }
            State::Idle => self.step(place)?,
            State::Running { since } => return self.run(since, place),
            State::Failing {
                since,
                kicked,
                told,
            } => return self.failing(place, since, kicked, told),
            State::Doomed { memory } => {
                self.sides.iter_mut().try_for_each(Side::destroy)?;
                self.state = State::Destroyed { memory };
            }
            State::Reset => {
                self.after_failure()?;
                self.sides.iter_mut().try_for_each(Side::forget)?;
                self.connect(place)?;
            }
            State::Destroyed { memory } => {
                self.after_failure()?;
                for (side, hub) in place.hubs.iter().enumerate() {
                    self.sides[side].forget()?;
                    if memory {
                        self.sides[side].renew_memory(hub, self.number, side)?;
                        self.shadows[side] = fresh();
                        self.words[side] = Word::default();
                    }
                }
                self.create(place)?;
            }
            State::Ending { since, kicked } => return self.ending(since, kicked),
            State::Over => return Ok(false),
        }
        Ok(true)
    }

    fn create(&mut self, place: &Place<'_>) -> Result {
        for (side, hub) in place.hubs.iter().enumerate() {
            self.sides[side].create(hub, self.number, self.transport)?;
        }
        self.count("created", 1);
        self.connect(place)
    }

    fn connect(&mut self, place: &Place<'_>) -> Result {
        for side in [0, 1] {
            // A reset may have changed it.
            let qpn = self.sides[side].qp()?.qpn();
            self.qpn[side] = qpn;
            self.qpns[side].insert(qpn);
        }
        for (psn, ahead) in self.psn.iter_mut().zip(self.next.ahead) {
            *psn = (*psn + ahead) % (1 << 24);
        }
        for side in [0, 1] {
            let to = self.sides[1 - side].address()?;
            place.hosts[side].enter()?;
            let [hub, peer] = [&place.hubs[side], &place.hubs[1 - side]];
            let psn = [self.psn[side], self.psn[1 - side]];
            self.sides[side].connect(hub, peer, to, self.next.path_mtu, psn)?;
        }
        self.count("connected", 1);
        (self.broken, self.change, self.succeeded) = (None, None, [None; 2]);
        self.bursts.clear();
        self.state = State::Idle;
        Ok(())
    }

    /// Begins the next step.
    fn step(&mut self, place: &Place<'_>) -> Result {
        match self.plan.step() {
            Step::Traffic(bursts) => {
                self.bursts = bursts.into();
                self.next_burst(place)
            }
            Step::Change {
                during,
                change,
                next,
            } => {
                self.next = next;
                self.begin(&during, place)?;
                match change {
                    Change::Error { first, at_once } => {
                        self.count("taken to the error state", 1);
                        self.fail(first)?;
                        if at_once {
                            self.fail(1 - first)?;
                        }
                        let mut told = [at_once; 2];
                        told[first] = true;
                        let now = Instant::now();
                        self.state = State::Failing {
                            since: now,
                            kicked: now,
                            told,
                        };
                    }
                    Change::Destroy { first, memory } => {
                        self.count("destroyed under way", 1);
                        self.reset(first)?;
                        self.state = State::Doomed { memory };
                    }
                    Change::Reset { first } => {
                        self.count("reset under way", 1);
                        self.reset(first)?;
                        self.state = State::Reset;
                    }
                }
                Ok(())
            }
        }
    }

    /// Resets both sides, this one first.
    fn reset(&mut self, first: usize) -> Result {
        for side in [first, 1 - first] {
            self.sides[side].qp()?.reset()?;
        }
        Ok(())
    }

    fn next_burst(&mut self, place: &Place<'_>) -> Result {
        match self.bursts.pop_front() {
            Some(burst) => {
                self.begin(&burst, place)?;
                self.figures.add(BURSTS, 1);
                self.state = State::Running {
                    since: Instant::now(),
                };
            }
            None => self.state = State::Idle,
        }
        Ok(())
    }

    /// Posts a burst on both sides, and the receives that it needs before.
    ///
    /// A reliable sender is never told that the receiver is not ready: after that rxe of 7.2 now and then
    /// takes the sender's queue pair to the error state without a reason, or sends nothing any more, also
    /// without loss.
    fn begin(&mut self, burst: &Burst, place: &Place<'_>) -> Result {
        let reliable = self.transport == QpType::RC;
        for side in [0, 1] {
            let coming = burst.from[1 - side]
                .iter()
                .filter(|request| request.op.receives());
            let wanted = match reliable {
                true => coming.count(),
                // Messages may be doubled, and take a receive each.
                false => RECEIVES - self.ledgers[side].outstanding().1,
            };
            self.post_receives(side, wanted)?;
        }
        for side in [0, 1] {
            let postings: Vec<Posting> = burst.from[side]
                .iter()
                .enumerate()
                .map(|(slot, request)| self.enter(side, slot, *request))
                .collect();
            let to = self.sides[1 - side].address()?;
            let lender = (&place.hubs[side].pd, &mut self.figures);
            self.sides[side].post(lender, &postings, to, burst.batch)?;
        }
        Ok(())
    }

    fn post_receives(&mut self, side: usize, count: usize) -> Result {
        let first = self.receives[side];
        let serials = (0..count as u32).map(|number| first.wrapping_add(number));
        self.receives[side] = first.wrapping_add(count as u32);
        serials
            .clone()
            .for_each(|serial| self.ledgers[side].receives(serial));
        self.count("receives posted", count as u64);
        let pair = self.number;
        let id = |serial| Id {
            pair,
            side,
            receive: true,
            serial,
        };
        self.sides[side].post_receives(serials.map(|serial| (id(serial).into(), serial)))
    }

    /// Enters a request into the books, and makes what is to be posted.
    fn enter(&mut self, side: usize, slot: usize, request: Request) -> Posting {
        let serial = self.sends[side];
        self.sends[side] = serial.wrapping_add(1);
        let key = Key {
            pair: self.number,
            side: side as u8,
            serial,
        };
        let peer = 1 - side;
        let has_message = request.op.receives() || request.op.writes();
        let message = match has_message {
            true => key.message(request.length),
            false => Vec::new(),
        };
        self.ledgers[side].sends(Sent {
            serial,
            request,
            slot,
        });
        if request.op.receives() {
            let message = Message { key, request, slot };
            match self.transport {
                QpType::RC => self.ledgers[peer].expects(message),
                _ => self.ledgers[peer].may_get(message),
            }
        }
        if request.op.writes() {
            self.shadows[peer][slot].may_be_written(key, message.clone());
        }
        let operand = u64::from(request.number) << 20;
        let word = &mut self.words[peer];
        // Every other comparison is one that holds, if all goes well.
        let compare = word.last() ^ u64::from(request.number % 2);
        match request.op {
            Op::FetchAdd => word.may_be_changed(serial, Atomic::Add(operand)),
            Op::CompareSwap => word.may_be_changed(
                serial,
                Atomic::Swap {
                    compare,
                    swap: operand,
                },
            ),
            _ => {}
        }
        self.count("requests posted", 1);
        let id = Id {
            pair: self.number,
            side,
            receive: false,
            serial,
        };
        Posting {
            id: id.into(),
            request,
            slot,
            serial,
            message,
            compare,
            operand,
        }
    }

    fn run(&mut self, since: Instant, place: &Place<'_>) -> Result<bool> {
        if self.broken.is_some() {
            self.unplanned_failure()?;
            return Ok(true);
        }
        if !self.settled() {
            if since.elapsed() < STALL {
                return Ok(false);
            }
            self.count("went silent", 1);
            self.repair()?;
            return Ok(true);
        }
        self.after_success()?;
        self.next_burst(place)?;
        Ok(true)
    }

    /// Whether all has come that must come.
    fn settled(&self) -> bool {
        let reliable = self.transport == QpType::RC;
        self.ledgers.iter().all(|ledger| {
            let (sends, receives) = ledger.outstanding();
            sends == 0 && (!reliable || receives == 0 && ledger.underway() == 0)
        })
    }

    fn drained(&self) -> bool {
        self.ledgers
            .iter()
            .all(|ledger| ledger.outstanding() == (0, 0))
    }

    fn fail(&mut self, side: usize) -> Result {
        Ok(self.sides[side].qp()?.fail()?)
    }

    /// The kernel broke the connection: it is made anew, if that is something which may happen.
    fn unplanned_failure(&mut self) -> Result {
        let Some((side, wc)) = self.broken else {
            return Ok(());
        };
        if !may_break(self.transport, wc.status) {
            return Err(format!("side {side} failed: {wc:?}").into());
        }
        self.count(&format!("broke by itself, with {:?}", wc.status), 1);
        self.repair()
    }

    /// Takes a connection that is of no use any more to the error state, to be connected anew.
    fn repair(&mut self) -> Result {
        self.figures.add(BROKEN, 1);
        self.fail(0)?;
        self.fail(1)?;
        self.next = self.unplanned.setup();
        let now = Instant::now();
        self.state = State::Failing {
            since: now,
            kicked: now,
            told: [true; 2],
        };
        Ok(())
    }

    fn failing(
        &mut self,
        place: &Place<'_>,
        since: Instant,
        kicked: Instant,
        told: [bool; 2],
    ) -> Result<bool> {
        if self.drained() {
            self.after_failure()?;
            for side in [0, 1] {
                self.sides[side].qp()?.reset()?;
                self.sides[side].forget()?;
            }
            self.count("reset", 1);
            self.connect(place)?;
            return Ok(true);
        }
        if since.elapsed() > LET_GO && kernel() < (6, 2) && device().is_rxe() {
            self.count("let go by the kernel", 1);
            self.reset(0)?;
            self.state = State::Doomed { memory: false };
            return Ok(true);
        }
        if since.elapsed() > LIMIT {
            return Err(format!("requests that are not flushed after {LIMIT:?}").into());
        }
        // The side that was not told hears of it when its requests fail.
        let deaf = (0..2).find(|side| !told[*side] && self.ledgers[*side].outstanding().0 == 0);
        if let Some(side) = deaf {
            self.fail(side)?;
            self.state = State::Failing {
                since,
                kicked,
                told: [true; 2],
            };
            return Ok(true);
        }
        if told == [true; 2] && kicked.elapsed() > KICK {
            self.kick()?;
            self.state = State::Failing {
                since,
                kicked: Instant::now(),
                told,
            };
        }
        Ok(false)
    }

    /// Has rxe flush once more. It flushes receives once, when it finds the error state, and leaves those
    /// that are posted after that (`rxe_resp.c`) until it is told to enter the state again. If the kernel
    /// finds the failure itself, it may flush before this side has stopped posting.
    fn kick(&mut self) -> Result {
        self.count("told twice to flush", 1);
        self.fail(0)?;
        self.fail(1)
    }

    fn ending(&mut self, since: Instant, kicked: Instant) -> Result<bool> {
        if self.drained() {
            self.after_failure()?;
            for side in [0, 1] {
                let lost = self.ledgers[side].gives_up_before(u32::MAX);
                self.count("lost messages", lost);
            }
            self.sides.iter_mut().try_for_each(Side::destroy)?;
            self.state = State::Over;
            return Ok(true);
        }
        if since.elapsed() > LIMIT {
            return Err(format!("requests that are not flushed after {LIMIT:?}").into());
        }
        if kicked.elapsed() > KICK {
            self.kick()?;
            self.state = State::Ending {
                since,
                kicked: Instant::now(),
            };
        }
        Ok(false)
    }

    /// All requests of a burst have completed well: memory must be as they say.
    fn after_success(&mut self) -> Result {
        for side in [0, 1] {
            for slot in 0..BURST {
                let now = self.sides[side].written(slot)?;
                self.shadows[side][slot]
                    .check(&now)
                    .map_err(|error| format!("side {side}, slot {slot}: {error}"))?;
                self.shadows[side][slot].age(&now);
            }
            let last = self.words[side].last();
            let now = self.sides[side].word()?;
            if now != last {
                return Err(
                    format!("side {side}: the word is {now:#x} and should be {last:#x}").into(),
                );
            }
            let old = self.sends[1 - side].saturating_sub(1000);
            let lost = self.ledgers[side].gives_up_before(old);
            self.count("lost messages", lost);
        }
        Ok(())
    }

    /// The connection is gone, and nothing changes any more: each request was done, or not, or in part if it
    /// is a write.
    fn after_failure(&mut self) -> Result {
        for side in [0, 1] {
            let peer = 1 - side;
            if let Some(last) = self.succeeded[peer]
                && self.transport == QpType::RC
                && let Some(lost) = (0..=last)
                    .rev()
                    .take(4 * BURST)
                    .find(|serial| self.ledgers[side].awaits(*serial))
            {
                return Err(format!(
                    "side {peer} was told that request {last} succeeded, and {lost} did not arrive"
                )
                .into());
            }
            for slot in 0..BURST {
                let now = self.sides[side].written(slot)?;
                let shadow = &mut self.shadows[side][slot];
                shadow
                    .check(&now)
                    .map_err(|error| format!("side {side}, slot {slot}: {error}"))?;
                match self.transport {
                    QpType::RC => shadow.settle(&now),
                    _ => shadow.age(&now),
                }
            }
            let now = self.sides[side].word()?;
            self.words[side].settle(now)?;
        }
        for side in [0, 1] {
            let (sends, receives) = self.ledgers[side].close();
            self.count("sends that went with their queue pair", sends.len() as u64);
            self.count("receives that went with their queue pair", receives as u64);
        }
        Ok(())
    }

    /// A completion of this pair.
    pub(crate) fn completed(&mut self, wc: &Wc) -> Result {
        let Id {
            side,
            receive,
            serial,
            ..
        } = wc.id;
        let result = match (self.qpn[side] == wc.qp_num, receive) {
            (false, _) => Err("of a queue pair that is gone, or not of this side".into()),
            (true, true) => self.received(side, serial, wc),
            (true, false) => self.sent(side, serial, wc),
        };
        if let State::Running { since } = &mut self.state {
            *since = Instant::now();
        }
        result.map_err(|error| self.explain(&format!("{wc:?}: {error}")).into())
    }

    fn sent(&mut self, side: usize, serial: u32, wc: &Wc) -> Result {
        let (silent, sent) = self.ledgers[side].sent(serial)?;
        for sent in silent {
            self.succeeds(side, sent)?;
        }
        if wc.status != WcStatus::SUCCESS {
            self.fails(side, wc);
            return Ok(());
        }
        let expected = opcode(sent.request.op);
        if wc.opcode != expected {
            return Err(format!("should be {expected:?}").into());
        }
        self.succeeds(side, sent)
    }

    fn fails(&mut self, side: usize, wc: &Wc) {
        let what = if wc.id.receive { "receives" } else { "sends" };
        self.count(&format!("{what} completed with {:?}", wc.status), 1);
        // The reason may come after what was flushed because of it.
        let says_more = |(_, before): (usize, Wc)| {
            before.status == WcStatus::WR_FLUSH_ERR && wc.status != WcStatus::WR_FLUSH_ERR
        };
        if self.broken.is_none_or(says_more) {
            self.broken = Some((side, *wc));
        }
    }

    fn succeeds(&mut self, side: usize, sent: Sent) -> Result {
        let Sent {
            serial,
            request,
            slot,
        } = sent;
        let length = request.length as usize;
        let peer = 1 - side;
        match request.op {
            Op::Read => {
                let start = Posting::read_offset(&request);
                let expected = &shelf(self.number, peer)[start..start + length];
                message::check(&self.sides[side].brought(slot, length)?, expected)
                    .map_err(|error| format!("READ {serial}: {error}"))?;
            }
            op if op.is_atomic() => {
                let found = self.sides[side].brought(slot, length)?;
                let found = found
                    .first_chunk()
                    .map_or(0, |bytes| u64::from_ne_bytes(*bytes));
                self.words[peer].is_changed(serial, found)?;
            }
            op if op.writes() && self.transport == QpType::RC => {
                let key = Key {
                    pair: self.number,
                    side: side as u8,
                    serial,
                };
                self.shadows[peer][slot].is_written(key);
            }
            _ => {}
        }
        self.succeeded[side] = Some(serial);
        self.count(&format!("succeeded: {}", request.op.name()), 1);
        self.count("bytes sent well", length as u64);
        Ok(())
    }

    fn received(&mut self, side: usize, serial: u32, wc: &Wc) -> Result {
        self.ledgers[side].received(serial)?;
        if wc.status != WcStatus::SUCCESS {
            self.fails(side, wc);
            return Ok(());
        }
        self.count("receives completed", 1);
        if self.came_again(side, serial, wc) {
            self.count("messages that came again as their queue pair failed", 1);
            return Ok(());
        }
        let (message, arrival) = match self.transport {
            QpType::RC => {
                let next = self.ledgers[side].next_expected();
                (
                    next.ok_or("a message that nobody has sent")?,
                    Arrival::First,
                )
            }
            _ => {
                let sender = self.sender(side, serial, wc)?;
                self.ledgers[side].arrives(sender)?
            }
        };
        let doubled = u64::from(arrival == Arrival::Again);
        self.count("messages that came twice", doubled);
        self.check_message(side, serial, &message, wc)
    }

    /// Whether a queue pair that is taken to the error state has its last message once more. The kernel
    /// carries a message that completes at that moment out again, into each receive that is left
    /// (`do_complete` in `rxe_resp.c`, since Linux 6.4). Unreliable ones may come twice anyway.
    fn came_again(&mut self, side: usize, serial: u32, wc: &Wc) -> bool {
        let is_failing = self.broken.is_some()
            || matches!(self.state, State::Failing { .. } | State::Ending { .. });
        if self.transport != QpType::RC || !is_failing {
            return false;
        }
        let (last, next) = self.ledgers[side].last_and_next();
        let [is_last, is_next] = [last, next].map(|message| {
            message.is_some_and(|message| self.check_message(side, serial, &message, wc).is_ok())
        });
        is_last && !is_next
    }

    /// Which message of an unreliable peer this is.
    fn sender(&mut self, side: usize, serial: u32, wc: &Wc) -> Result<u32> {
        if wc.opcode == WcOpcode::RECV_RDMA_WITH_IMM {
            return Ok(wc.imm.ok_or("no immediate data")?);
        }
        let bytes = self.sides[side].received(serial, wc.byte_len as usize)?;
        let header = self.header(side, &bytes, wc)?;
        let (key, _) = Key::read(&bytes[header..]).ok_or("corrupted: no message of ours")?;
        if (key.pair, usize::from(key.side)) != (self.number, 1 - side) {
            return Err(format!("a message to another: {key:?}").into());
        }
        Ok(key.serial)
    }

    /// Bytes before the message. A datagram's route header must name the peer.
    fn header(&self, side: usize, bytes: &[u8], wc: &Wc) -> Result<usize> {
        if self.transport != QpType::UD {
            return Ok(0);
        }
        if !self.qpns[1 - side].contains(&wc.src_qp) {
            return Err("a datagram of a stranger".into());
        }
        let header = bytes
            .first_chunk::<GRH_LENGTH>()
            .ok_or("too short for a datagram")?;
        let grh = Grh::parse(header).ok_or("no route header")?;
        let addresses =
            [grh.sgid, grh.dgid].map(|gid| gid.as_ipv4().map(|address| address.octets()[3]));
        // 10.9.0.1 and 10.9.0.2.
        if addresses != [Some(2 - side as u8), Some(1 + side as u8)] {
            return Err(format!("a route header that says {grh:?}").into());
        }
        Ok(GRH_LENGTH)
    }

    fn check_message(&mut self, side: usize, serial: u32, message: &Message, wc: &Wc) -> Result {
        let Message { key, request, slot } = *message;
        let by_write = request.op == Op::WriteImm;
        let opcode = match by_write {
            true => WcOpcode::RECV_RDMA_WITH_IMM,
            false => WcOpcode::RECV,
        };
        let bytes = match by_write {
            true => self.sides[side].written(slot)?,
            false => self.sides[side].received(serial, wc.byte_len as usize)?,
        };
        let header = match by_write {
            true => 0,
            false => self.header(side, &bytes, wc)?,
        };
        let imm = request.op.has_imm().then_some(key.serial);
        let window = &self.sides[side].window;
        let invalidated = window
            .as_ref()
            .filter(|_| request.op == Op::SendInv)
            .map(|window| window.rkey());
        let said = (
            wc.opcode,
            wc.byte_len as usize - header,
            wc.imm,
            wc.invalidated,
        );
        let expected = (opcode, request.length as usize, imm, invalidated);
        if said != expected {
            return Err(format!("{message:?} came as {said:?}, expected {expected:?}").into());
        }
        if by_write && self.transport != QpType::RC {
            // A late packet of another write to the same place may have come meanwhile.
            return Ok(self.shadows[side][slot].check(&bytes)?);
        }
        let bytes = &bytes[header..header + request.length as usize];
        Ok(message::check(bytes, &key.message(request.length))?)
    }

    fn count(&mut self, what: &str, count: u64) {
        self.figures
            .add(format!("{:?} {what}", self.transport), count);
    }

    /// Adds where the pair is to what went wrong.
    fn explain(&mut self, error: &str) -> String {
        let mut text = format!(
            "pair {} ({:?}): {error}\n  state {:?}, change {:?}, broken {:?}, next numbers {:?} and {:?}",
            self.number,
            self.transport,
            self.state,
            self.change,
            self.broken,
            self.sends,
            self.receives
        );
        for side in [0, 1] {
            let info = self.sides[side]
                .qp
                .as_ref()
                .map(|qp| (qp.qpn(), qp.query().map(|info| info.state)));
            text += &format!("\n  side {side}: {info:?}\n    {:?}", self.ledgers[side]);
        }
        text
    }
}

fn fresh() -> Vec<Shadow> {
    (0..BURST).map(|_| Shadow::new(SLOT as usize)).collect()
}

/// The opcode in the completion of a request.
fn opcode(op: Op) -> WcOpcode {
    match op {
        Op::Send | Op::SendImm | Op::SendInline | Op::SendImmInline | Op::SendInv => WcOpcode::SEND,
        Op::Write | Op::WriteInline | Op::WriteImm | Op::WriteWindow => WcOpcode::RDMA_WRITE,
        Op::Read => WcOpcode::RDMA_READ,
        Op::FetchAdd => WcOpcode::FETCH_ADD,
        Op::CompareSwap => WcOpcode::COMP_SWAP,
        Op::Bind => WcOpcode::BIND_MW,
        Op::LocalInv => WcOpcode::LOCAL_INV,
    }
}

/// What may break a connection that nobody broke.
fn may_break(transport: QpType, status: WcStatus) -> bool {
    match status {
        // So many packets in a row were lost.
        WcStatus::RETRY_EXC_ERR => transport == QpType::RC,
        // rxe since 6.2 or so now and then fails while it sends again what has arrived already, as it seems
        // because a negative acknowledgement has counted for it (`req_retry` in `rxe_req.c`). All comes back
        // as flushed.
        WcStatus::WR_FLUSH_ERR => transport == QpType::RC,
        _ => false,
    }
}
