//! A wire that goes down: under a connection, and while connections are made.

use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use support::{
    LIMIT, Objects, QUIET, Result, Wire, completion, fail, only_on_rxe, run, same, says, test,
    until,
};
use uverbs::cm::{Connection, Event, Failed, Listener, Params, Pending};
use uverbs::device::PortState;
use uverbs::qp::QpState;
use uverbs::{Inline, Qp, Rc, WcOpcode, WcStatus};

use crate::connect::readable;
use crate::ground::{Side, both, error, failed_well, request};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("down::under_a_connection", under_a_connection),
        test("down::while_connecting", while_connecting),
        test("down::the_neighbour_changes", the_neighbour_changes),
        test(
            "down::the_neighbour_changes_before_an_attempt",
            the_neighbour_changes_before_an_attempt,
        ),
    ]
}

/// Shorter than the kernel's own limit for a connection, which is 16 messages and 6 s for each; and longer
/// than all these steps together on a machine that is slow for a while: under emulation they take seconds.
const KERNELS_OWN: Duration = Duration::from_secs(60);

/// Takes the interface of this side down.
fn down(wire: &Wire) -> Result {
    run(&format!("ip link set {} down", wire.here.netdev)).map(drop)
}

/// Takes it up again, and waits until the devices' ports are.
fn up(wire: &Wire) -> Result {
    run(&format!("ip link set {} up", wire.here.netdev))?;
    wire.here.knows(&wire.there)?;
    wire.there.knows(&wire.here)?;
    for end in [&wire.here, &wire.there] {
        let context = end.open()?;
        until("the port is active", || {
            let state = context.query_port(1)?.state;
            Ok((state == PortState::Active).then_some(()))
        })?;
    }
    Ok(())
}

/// Two sides on the wire.
struct Two {
    here: Side,
    there: Side,
    listener: Listener<Rc>,
}

impl Two {
    fn on(wire: &Wire) -> Result<Self> {
        Ok(Self {
            here: Side::on(&wire.here.open()?)?,
            there: Side::on(&wire.there.open()?)?,
            listener: wire.listener(0)?,
        })
    }

    /// Connects these queue pairs, and sends a message.
    fn connect(
        &mut self,
        wire: &Wire,
        [here, mut there]: [Qp<Rc>; 2],
    ) -> Result<[Connection<Qp<Rc>>; 2]> {
        let params = Params::default();
        let way = wire.way(self.listener.local_addr())?;
        let connecting = way.connect(here, &params, b"").map_err(error)?;
        let request = request(&self.listener)?;
        request.init(&mut there)?;
        self.there.receive(&mut there)?;
        let accepting = request.accept(there, &params, b"").map_err(error)?;
        let mut active = connecting.within(LIMIT).map_err(error)?;
        let passive = accepting.within(LIMIT).map_err(error)?;
        self.talk(&mut active)?;
        Ok([active, passive])
    }

    /// A message from here to there.
    fn talk(&mut self, from: &mut Qp<Rc>) -> Result {
        from.post(|batch| {
            batch.signaled(2).send(Inline(b"over the wire"))?;
            Ok(())
        })?;
        completion(&mut self.here.cq)?.is(WcOpcode::SEND)?;
        same(
            self.there.received()?,
            b"over the wire".to_vec(),
            "the message",
        )
    }
}

/// Catches a send that never completes, and a connection or a queue pair that is of no use any more when the
/// wire is up again.
fn under_a_connection() -> Result {
    only_on_rxe("the adapter's wire is no network interface")?;
    let wire = Wire::new()?;
    let before = Objects::of_all_devices()?;
    let mut two = Two::on(&wire)?;
    let pair = [two.here.qp()?, two.there.qp()?];
    let [mut active, passive] = two.connect(&wire, pair)?;
    let numbers = [active.qpn(), passive.qpn()];
    down(&wire)?;
    active.post(|batch| {
        batch.signaled(3).send(Inline(b"into nothing"))?;
        Ok(())
    })?;
    let wc = completion(&mut two.here.cq)?;
    same(wc.status == WcStatus::SUCCESS, false, "the send")?;
    up(&wire)?;
    let ending = active.disconnect().map_err(error)?;
    let told = passive.link().event_within(LIMIT)?;
    same(
        told,
        Some(Event::Disconnected { timed_out: false }),
        "the end",
    )?;
    let there = passive.disconnect().map_err(error)?;
    let there = there.within(LIMIT).map_err(error)?;
    let here = ending.within(LIMIT).map_err(error)?;
    let mut pair = [here, there];
    same([pair[0].qpn(), pair[1].qpn()], numbers, "the queue pairs")?;
    pair[0].reset()?;
    pair[1].reset()?;
    let connections = two.connect(&wire, pair)?;
    drop((connections, two));
    before.await_back()
}

/// Catches a living connection that is told as ended because the peer's address on the link was another for a
/// while.
fn the_neighbour_changes() -> Result {
    only_on_rxe("the adapter's wire is no network interface")?;
    let wire = Wire::new()?;
    let before = Objects::of_all_devices()?;
    let mut two = Two::on(&wire)?;
    let pair = [two.here.qp()?, two.there.qp()?];
    let [mut active, mut passive] = two.connect(&wire, pair)?;
    wire.here
        .has_for_neighbour(&wire.there, "02:00:00:ff:ff:ff")?;
    let told = active.link().event_within(LIMIT)?;
    same(told, Some(Event::NeighbourChanged), "what is told")?;
    wire.here.knows(&wire.there)?;
    two.there.receive(&mut passive)?;
    two.talk(&mut active)?;
    same(active.link().event_within(QUIET)?, None, "what is told")?;
    drop((active, passive, two));
    before.await_back()
}

/// Catches an attempt that fails at once, because the peer's address on the link was another for a while
/// before it.
fn the_neighbour_changes_before_an_attempt() -> Result {
    only_on_rxe("the adapter's wire is no network interface")?;
    let wire = Wire::new()?;
    let before = Objects::of_all_devices()?;
    let two = Two::on(&wire)?;
    let way = wire.way(two.listener.local_addr())?;
    wire.here
        .has_for_neighbour(&wire.there, "02:00:00:ff:ff:ff")?;
    until("the event", || Ok(readable(&way)?.then_some(())))?;
    wire.here.knows(&wire.there)?;
    let params = Params::default();
    let connecting = way.connect(two.here.qp()?, &params, b"").map_err(error)?;
    let request = request(&two.listener)?;
    let accepting = request
        .accept(two.there.qp()?, &params, b"")
        .map_err(error)?;
    drop(both(connecting, accepting)?);
    drop(two);
    before.await_back()
}

/// Catches steps that wait for a wire that is down longer than they were told to, and queue pairs that do not
/// come back from them.
fn while_connecting() -> Result {
    only_on_rxe("the adapter's wire is no network interface")?;
    let wire = Wire::new()?;
    let before = Objects::of_all_devices()?;
    let mut two = Two::on(&wire)?;
    let pair = [two.here.qp()?, two.there.qp()?];
    let [standing, listening] = two.connect(&wire, pair)?;
    let address = two.listener.local_addr();
    let params = Params::default();
    let [first, second, third] = [two.here.qp()?, two.here.qp()?, two.there.qp()?];
    let numbers = [first.qpn(), second.qpn(), third.qpn()];
    let resolved = wire.way(address)?;
    let connecting = wire
        .way(address)?
        .connect(first, &params, b"")
        .map_err(error)?;
    let asked = request(&two.listener)?;
    down(&wire)?;
    let start = Instant::now();
    // A request that has come, and whose answer does not.
    let accepted = asked.accept(third, &params, b"");
    let first = came_back(connecting.within(QUIET), numbers[0])?;
    let third = match accepted {
        Ok(accepting) => came_back(accepting.within(QUIET), numbers[2])?,
        Err(refused) => refused.back.1,
    };
    // A request that does not come.
    let second = match resolved.connect(second, &params, b"") {
        Ok(connecting) => came_back(connecting.within(QUIET), numbers[1])?,
        Err(refused) => refused.back.1,
    };
    same(
        [first.qpn(), second.qpn(), third.qpn()],
        numbers,
        "the queue pairs",
    )?;
    // Not even a way.
    let refused = match wire.resolving(address) {
        Ok(resolving) => resolving.within(LIMIT).err().map(error),
        Err(error) => Some(error),
    };
    let refused = refused.ok_or("a way over a wire that is down")?;
    says(&refused, &["on connection to", &address.to_string()])?;
    // The end of a connection, of which the peer cannot be told.
    let mut pair = [end(standing)?, end(listening)?];
    same(start.elapsed() < KERNELS_OWN, true, "the time")?;
    up(&wire)?;
    // By hand: on Linux 6.12 and 7.3 soft-RoCE's queue pair 1, by which the connection manager speaks, is in
    // ERR since its first message into nothing, and stays there.
    let endpoints = [pair[0].endpoint()?, pair[1].endpoint()?];
    pair[0].connect(&endpoints[1])?;
    pair[1].connect(&endpoints[0])?;
    two.there.receive(&mut pair[1])?;
    two.talk(&mut pair[0])?;
    drop((pair, first, second, third, two));
    before.await_back()
}

/// The queue pair of a step that cannot have succeeded.
fn came_back<V>(ended: Ended<V>, number: u32) -> Result<Qp<Rc>> {
    let Err(failed) = ended else {
        return fail("a connection over a wire that is down");
    };
    failed_well(&failed, number)?;
    Ok(failed.back)
}

/// How a step ended.
type Ended<V> = std::result::Result<V, Failed<Qp<Rc>>>;

/// Ends a connection whose peer may not hear of it, and gives the queue pair, for another one.
fn end(connection: Connection<Qp<Rc>>) -> Result<Qp<Rc>> {
    let number = connection.qpn();
    let mut qp = match connection.disconnect().map_err(error)?.within(QUIET) {
        Ok(qp) => qp,
        Err(failed) => {
            failed_well(&failed, number)?;
            failed.back
        }
    };
    same(qp.state(), QpState::ERR, "the queue pair")?;
    same(qp.qpn(), number, "the queue pair's number")?;
    qp.reset()?;
    Ok(qp)
}
