//! Steps of both sides, each a process, in an order that a seed chooses, against a model of what comes of
//! them.

use std::io::{BufRead, BufReader, Lines, Write, stdin};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use support::random::{Random, seed_and_steps};
use support::role::{self, Role};
use support::{LIMIT, Result, completion, fail, same, test_without_leaks};
use uverbs::cm::{
    Accepting, Connecting, Connection, Disconnecting, Event, Listener, Params, Pending,
    RejectReason, Request, Step,
};
use uverbs::qp::QpState;
use uverbs::{Cause, Inline, Qp, Rc, WcOpcode};

use crate::ground::{Side, listener, own_address, way_to};
use crate::listen::reason_of;

pub(crate) const ROLES: [Role; 1] = [("passive", passive)];

pub(crate) fn tests() -> Vec<Trial> {
    vec![test_without_leaks("model::states", states)]
}

/// How long the listening side waits for a request before the asking one looks whether it was refused.
const LOOK: Duration = Duration::from_millis(500);

/// How far a connection has come, seen from both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    Asked,
    Taken,
    Accepted,
    Connected,
}

/// What is done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Ask,
    /// The asking side gives up.
    Cancel,
    /// The listener goes with the request that it has not taken.
    Relisten,
    Take,
    Reject,
    DropRequest,
    Accept,
    /// The accepting side gives up.
    CancelAccepting,
    Finish,
    Talk,
    Disconnect,
    PeerDisconnects,
    Drop,
    PeerDrops,
}

impl State {
    fn actions(self) -> &'static [Action] {
        use Action::*;
        match self {
            Self::Idle => &[Ask],
            Self::Asked => &[Take, Take, Take, Cancel, Relisten],
            Self::Taken => &[Accept, Accept, Accept, Reject, DropRequest, Cancel],
            Self::Accepted => &[Finish, Finish, Finish, Cancel, CancelAccepting],
            Self::Connected => &[Talk, Disconnect, PeerDisconnects, Drop, PeerDrops],
        }
    }

    fn after(self, action: Action) -> Self {
        match action {
            Action::Ask => Self::Asked,
            Action::Take => Self::Taken,
            Action::Accept => Self::Accepted,
            Action::Finish | Action::Talk => Self::Connected,
            _ => Self::Idle,
        }
    }
}

/// Catches steps that come to something else than they must, whatever came before them, and queue pairs that
/// are not as good as new afterwards.
fn states() -> Result {
    let (seed, steps) = seed_and_steps(80)?;
    let mut random = Random::new(seed);
    let mut active = Active::new()?;
    let (mut state, mut done) = (State::Idle, Vec::new());
    for _ in 0..steps {
        let actions = state.actions();
        let action = actions[random.below(actions.len())];
        done.push(action);
        let acted = active.act(state, action);
        acted.map_err(|error| format!("seed {seed}, {done:?}: {error}"))?;
        state = state.after(action);
    }
    Ok(())
}

/// What the asking side has.
enum Has {
    Nothing,
    Connecting(Connecting<Qp<Rc>>),
    Connected(Connection<Qp<Rc>>),
}

/// The asking side, which tells the other one what to do.
struct Active {
    has: Has,
    /// The queue pair while it is in nothing.
    qp: Option<Qp<Rc>>,
    side: Side,
    port: u16,
    /// Of the last request, which has it in its data.
    number: u32,
    /// Whether the peer may still have a request of before that nobody took.
    given_up: bool,
    peer: Peer,
}

impl Active {
    fn new() -> Result<Self> {
        let mut peer = Peer::start()?;
        Ok(Self {
            has: Has::Nothing,
            qp: None,
            side: Side::new()?,
            port: peer.ask("relisten")?.parse()?,
            number: 0,
            given_up: false,
            peer,
        })
    }

    fn act(&mut self, state: State, action: Action) -> Result {
        match action {
            Action::Ask => self.ask(),
            Action::Cancel => self.cancel(state),
            Action::Relisten => {
                self.port = self.peer.ask("relisten")?.parse()?;
                // The request may have been on its way, and found nobody.
                let mut reasons = vec![RejectReason::Consumer, RejectReason::NoListener];
                reasons.extend(self.given_up.then_some(RejectReason::Stale));
                self.refused(&reasons)
            }
            Action::Take => self.take(),
            Action::Reject | Action::DropRequest => {
                let reject = action == Action::Reject;
                self.peer
                    .does(if reject { "reject" } else { "drop" }, "done")?;
                self.refused(&[RejectReason::Consumer])
            }
            Action::Accept => self.peer.does("accept", "accepted"),
            Action::CancelAccepting => self.cancelled_by_peer(),
            Action::Finish => self.finish(),
            Action::Talk => self.talk(),
            Action::Disconnect => self.disconnect(),
            Action::PeerDisconnects => self.peer_disconnects(),
            Action::Drop => {
                drop(self.connection()?);
                self.peer.does("told", "told")
            }
            Action::PeerDrops => {
                self.peer.does("drop", "done")?;
                let connection = self.connection()?;
                ended(&connection)?;
                let qp = connection.disconnect()?.within(LIMIT)?;
                self.back(qp)
            }
        }
    }

    fn ask(&mut self) -> Result {
        self.number += 1;
        self.request()
    }

    fn request(&mut self) -> Result {
        let qp = self.qp.take();
        let mut qp = qp.map_or_else(|| self.side.qp(), Ok)?;
        let mut address = own_address();
        address.set_port(self.port);
        let way = way_to(address)?;
        way.init(&mut qp)?;
        self.side.receive(&mut qp)?;
        let number = self.number.to_ne_bytes();
        self.has = Has::Connecting(way.connect(qp, &Params::default(), &number)?);
        Ok(())
    }

    /// Has the peer take the request, which may have to be sent again.
    fn take(&mut self) -> Result {
        let deadline = Instant::now() + LIMIT;
        while Instant::now() < deadline {
            match self.peer.ask(&format!("take {}", self.number))?.as_str() {
                "taken" => {
                    // What came before this request was taken and dropped.
                    self.given_up = false;
                    return Ok(());
                }
                "none" => self.stale()?,
                other => return fail(format!("{other:?} and not a request")),
            }
        }
        fail("no request came")
    }

    /// Sends a request again that came before the news that the one before was given up: the kernel handles
    /// what comes to each CPU in order, not what comes to two. The queue pair is then taken by the request
    /// before (cm_match_req in drivers/infiniband/core/cm.c; InfiniBand specification, 12.9.8.3.1).
    fn stale(&mut self) -> Result {
        match self.connecting()?.try_finish() {
            Ok(Step::Pending(connecting)) => self.has = Has::Connecting(connecting),
            Ok(Step::Done(_)) => return fail("nobody accepted"),
            Err(refused) => {
                let reason = reason_of(&refused.error)?;
                same(reason, RejectReason::Stale, "why it was refused")?;
                same(self.given_up, true, "a request was given up before")?;
                eprintln!("request {} came too early", self.number);
                self.back(refused.back)?;
                self.request()?;
            }
        }
        Ok(())
    }

    /// Keeps a queue pair that has come back, for the next connection.
    fn back(&mut self, mut qp: Qp<Rc>) -> Result {
        qp.reset()?;
        while self.side.cq.poll()?.iter().next().is_some() {}
        self.qp = Some(qp);
        Ok(())
    }

    fn connecting(&mut self) -> Result<Connecting<Qp<Rc>>> {
        match std::mem::replace(&mut self.has, Has::Nothing) {
            Has::Connecting(connecting) => Ok(connecting),
            _ => fail("nothing is asked"),
        }
    }

    fn connection(&mut self) -> Result<Connection<Qp<Rc>>> {
        match std::mem::replace(&mut self.has, Has::Nothing) {
            Has::Connected(connection) => Ok(connection),
            _ => fail("nothing is connected"),
        }
    }

    fn cancel(&mut self, state: State) -> Result {
        let qp = self.connecting()?.cancel();
        same(qp.state(), QpState::INIT, "the queue pair")?;
        self.back(qp)?;
        match state {
            // The request may be on its way. Who takes the next one finds both.
            State::Asked => {
                self.given_up = true;
                Ok(())
            }
            State::Taken => self.peer.does("accept in vain", "gone"),
            _ => self.peer.does("finish", "gone"),
        }
    }

    fn refused(&mut self, reasons: &[RejectReason]) -> Result {
        let Err(refused) = self.connecting()?.within(LIMIT) else {
            return fail("nobody accepted");
        };
        let reason = reason_of(&refused.error)?;
        same(reasons.contains(&reason), true, &format!("{reason:?}"))?;
        same(refused.back.state(), QpState::INIT, "the queue pair")?;
        self.back(refused.back)
    }

    /// The acceptance was sent and then taken back: which of the two this side acts on first is open. If it
    /// is the second, the kernel knows nothing yet that it takes back, and the connection learns of its end
    /// when it sends (cm_acquire_rejected_id in drivers/infiniband/core/cm.c).
    fn cancelled_by_peer(&mut self) -> Result {
        self.peer.does("drop", "done")?;
        let qp = match self.connecting()?.within(LIMIT) {
            // Refused, or an acceptance that is no more when the queue pair is to follow it: but told.
            Err(refused) if matches!(refused.error.cause(), Cause::TimedOut(_)) => {
                return Err(refused.error.into());
            }
            Err(refused) => refused.back,
            Ok(connection) => {
                match connection.link().event_within(LOOK)? {
                    None => eprintln!("request {}: taken back too early", self.number),
                    Some(event) => end(&event)?,
                }
                connection.disconnect()?.within(LIMIT)?
            }
        };
        self.back(qp)
    }

    fn finish(&mut self) -> Result {
        let connection = self.connecting()?.within(LIMIT)?;
        same(connection.state(), QpState::RTS, "the queue pair")?;
        self.has = Has::Connected(connection);
        self.peer.does("finish", "connected")
    }

    fn talk(&mut self) -> Result {
        let mut connection = self.connection()?;
        connection.post(|batch| {
            batch.signaled(2).send(Inline(b"and back"))?;
            Ok(())
        })?;
        self.peer.does("talk", "done")?;
        for _ in 0..2 {
            let wc = completion(&mut self.side.cq)?.ok()?;
            if wc.opcode == WcOpcode::RECV {
                same(wc.byte_len, 8, "the answer")?;
                self.side.receive(&mut connection)?;
            }
        }
        self.has = Has::Connected(connection);
        Ok(())
    }

    fn disconnect(&mut self) -> Result {
        let ending = self.connection()?.disconnect()?;
        self.peer.does("told", "told")?;
        let qp = ending.within(LIMIT)?;
        same(qp.state(), QpState::ERR, "the queue pair")?;
        self.back(qp)
    }

    fn peer_disconnects(&mut self) -> Result {
        self.peer.does("disconnect", "done")?;
        let connection = self.connection()?;
        ended(&connection)?;
        let qp = connection.disconnect()?.within(LIMIT)?;
        self.peer.does("end", "done")?;
        self.back(qp)
    }
}

/// Waits until a connection is told of its end.
fn ended(connection: &Connection<Qp<Rc>>) -> Result {
    let event = connection.link().event_within(LIMIT)?;
    end(&event.ok_or("nothing was told")?)
}

fn end(event: &Event) -> Result {
    match event {
        Event::Disconnected { timed_out: false } | Event::Refused(_) => Ok(()),
        other => fail(format!("{other:?} and not the end")),
    }
}

/// The process that listens.
struct Peer {
    child: Child,
    to: ChildStdin,
    from: Lines<BufReader<ChildStdout>>,
}

impl Peer {
    fn start() -> Result<Self> {
        let mut command = role::command("passive", &[])?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let to = child.stdin.take().ok_or("no input")?;
        let from = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
        Ok(Self { child, to, from })
    }

    /// Tells it to do something, and gives what it says of it.
    fn ask(&mut self, what: &str) -> Result<String> {
        writeln!(self.to, "{what}")?;
        let said = self
            .from
            .next()
            .ok_or_else(|| format!("the peer ended at {what:?}"))?;
        Ok(said?)
    }

    fn does(&mut self, what: &str, expected: &str) -> Result {
        same(self.ask(what)?, expected.to_owned(), what)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It has nothing that outlives it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the listening side has.
enum Stage {
    Nothing,
    Taken(Request<Rc>),
    Accepting(Accepting<Qp<Rc>>),
    Connected(Connection<Qp<Rc>>),
    Ending(Disconnecting<Qp<Rc>>),
}

/// Does what standard input says, a line each, and says what came of it.
fn passive() -> Result {
    let mut side = Side::new()?;
    let mut listener = listener()?;
    let mut stage = Stage::Nothing;
    for line in stdin().lines() {
        let before = std::mem::replace(&mut stage, Stage::Nothing);
        let said = match (line?.as_str(), before) {
            ("relisten", Stage::Nothing) => {
                listener = crate::ground::listener()?;
                listener.local_addr().port().to_string()
            }
            ("accept in vain", Stage::Taken(request)) => in_vain(request, &side)?,
            ("reject", Stage::Taken(request)) => {
                request.reject(b"no")?;
                "done".into()
            }
            ("drop", _) => "done".into(),
            ("accept", Stage::Taken(request)) => {
                let mut qp = side.qp()?;
                request.init(&mut qp)?;
                side.receive(&mut qp)?;
                stage = Stage::Accepting(request.accept(qp, &Params::default(), b"")?);
                "accepted".into()
            }
            ("finish", Stage::Accepting(accepting)) => match accepting.within(LIMIT) {
                Ok(connection) => {
                    stage = Stage::Connected(connection);
                    "connected".into()
                }
                Err(refused) => gone(refused.back)?,
            },
            ("talk", Stage::Connected(mut connection)) => {
                answer(&mut side, &mut connection)?;
                stage = Stage::Connected(connection);
                "done".into()
            }
            ("told", Stage::Connected(connection)) => {
                ended(&connection)?;
                connection.disconnect()?.within(LIMIT)?;
                "told".into()
            }
            ("disconnect", Stage::Connected(connection)) => {
                stage = Stage::Ending(connection.disconnect()?);
                "done".into()
            }
            ("end", Stage::Ending(ending)) => {
                ending.within(LIMIT)?;
                "done".into()
            }
            (other, Stage::Nothing) if let Some(number) = other.strip_prefix("take ") => {
                match take(&listener, number.parse()?)? {
                    Some(request) => {
                        stage = Stage::Taken(request);
                        "taken".into()
                    }
                    None => "none".into(),
                }
            }
            (other, _) => return fail(format!("{other:?} now")),
        };
        // What is left of a queue pair that has gone is none of the next one's.
        if matches!(stage, Stage::Nothing) {
            while side.cq.poll()?.iter().next().is_some() {}
        }
        println!("{said}");
    }
    Ok(())
}

/// The queue pair of a connection to a peer that has given up.
fn gone(qp: Qp<Rc>) -> Result<String> {
    same(qp.state(), QpState::ERR, "the queue pair")?;
    Ok("gone".into())
}

/// The request with this number, if it comes soon. Senders of those before it have given up.
fn take(listener: &Listener<Rc>, number: u32) -> Result<Option<Request<Rc>>> {
    while let Some(request) = listener.next_within(LOOK)? {
        if request.private_data().starts_with(&number.to_ne_bytes()) {
            return Ok(Some(request));
        }
    }
    Ok(None)
}

/// Accepts a request whose sender has given up: the kernel knows, or learns of it before the connection
/// stands.
fn in_vain(request: Request<Rc>, side: &Side) -> Result<String> {
    match request.accept(side.qp()?, &Params::default(), b"") {
        Err(refused) => {
            drop(refused.back);
            Ok("gone".into())
        }
        Ok(accepting) => match accepting.within(LIMIT) {
            Err(refused) => gone(refused.back),
            Ok(_) => fail("a connection to nobody"),
        },
    }
}

/// Takes a message and sends one.
fn answer(side: &mut Side, connection: &mut Connection<Qp<Rc>>) -> Result {
    same(side.received()?, b"and back".to_vec(), "the message")?;
    side.receive(connection)?;
    connection.post(|batch| {
        batch.signaled(3).send(Inline(b"and back"))?;
        Ok(())
    })?;
    completion(&mut side.cq)?.is(WcOpcode::SEND)
}
