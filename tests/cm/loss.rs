//! Connections that are made over a wire that loses packets.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use support::{
    LIMIT, Objects, QUIET, Result, Wire, completion, completions, only_on_rxe, same, test,
};
use uverbs::cm::{Accepting, Connection, Listener, Params, Pending};
use uverbs::{Inline, Qp, Rc, WcOpcode, WcStatus};

use crate::ground::{Side, error, failed_well};

pub(crate) fn tests() -> Vec<Trial> {
    vec![test(
        "loss::every_attempt_ends_by_its_deadline",
        every_attempt_ends,
    )]
}

/// Attempts with the short limit, and as many with the long one.
const ATTEMPTS: usize = 16;

/// Shorter than the pause after which the kernel asks again, which is 6 s: what is lost is not sent again.
const SHORT: Duration = Duration::from_secs(3);

/// Asks for all connections at once, and gives those that stand by their deadlines; each has sent a message.
fn ask(wire: &Wire, side: &mut Side, listener: &Listener<Rc>) -> Result<Vec<Connection<Qp<Rc>>>> {
    let ways = (0..2 * ATTEMPTS).map(|_| wire.way(listener.local_addr()));
    let ways = ways.collect::<Result<Vec<_>>>()?;
    wire.lose(10)?;
    let start = Instant::now();
    let mut connecting = Vec::new();
    for way in ways {
        let qp = side.qp()?;
        let number = qp.qpn();
        let asked = way.connect(qp, &Params::default(), b"").map_err(error)?;
        connecting.push((number, asked));
    }
    let mut stand = Vec::new();
    for (attempt, (number, asked)) in connecting.into_iter().enumerate() {
        let limit = if attempt < ATTEMPTS { SHORT } else { LIMIT };
        let left = limit.saturating_sub(start.elapsed());
        let since = Instant::now();
        match asked.within(left) {
            Ok(connection) => stand.push(connection),
            Err(failed) => failed_well(&failed, number)?,
        }
        // Each for itself: those before it take their time too, which is long under emulation. The kernel's
        // own limit is more than a minute.
        let late = since.elapsed().saturating_sub(left);
        same(late < LIMIT, true, &format!("{late:?} late"))?;
    }
    for connection in &mut stand {
        connection.post(|batch| {
            batch.signaled(2).send(Inline(b"over a bad wire"))?;
            Ok(())
        })?;
    }
    for wc in completions(&mut side.cq, stand.len())? {
        wc.is(WcOpcode::SEND)?;
    }
    Ok(stand)
}

/// Accepts what has come until there is nothing more to come.
fn accept(
    listener: &Listener<Rc>,
    side: &Side,
    over: &AtomicBool,
) -> Result<Vec<(u32, Accepting<Qp<Rc>>)>> {
    let mut accepting = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let Some(request) = listener.next_within(QUIET)? else {
            continue;
        };
        let mut qp = side.qp()?;
        let number = qp.qpn();
        request.init(&mut qp)?;
        side.receive(&mut qp)?;
        match request.accept(qp, &Params::default(), b"") {
            Ok(accepted) => accepting.push((number, accepted)),
            // Its sender has given up meanwhile.
            Err(refused) => same(refused.back.1.qpn(), number, "the queue pair")?,
        }
    }
    Ok(accepting)
}

/// Catches attempts that outlast their limit, that end without a cause or without their queue pair, and what
/// they leave in the kernel, when one packet in ten is lost.
fn every_attempt_ends() -> Result {
    only_on_rxe("the adapter's wire is no network interface")?;
    let wire = Wire::new()?;
    let before = Objects::of_all_devices()?;
    let mut here = Side::on(&wire.here.open()?)?;
    let mut there = Side::on(&wire.there.open()?)?;
    let listener = wire.listener(2 * ATTEMPTS as u32)?;
    let over = AtomicBool::new(false);
    let (active, passive) = std::thread::scope(|scope| {
        let accepting = scope.spawn(|| accept(&listener, &there, &over));
        let active = ask(&wire, &mut here, &listener);
        over.store(true, Ordering::Relaxed);
        let passive = accepting
            .join()
            .map_err(|_| "the listener's thread panicked")?;
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>((active?, passive?))
    })?;
    same(active.is_empty(), false, "no connection stands")?;
    let lost = wire.lost()?;
    same(lost > 0, true, "nothing was lost")?;
    let mut came = 0;
    while came < active.len() {
        let wc = completion(&mut there.cq)?;
        if wc.status == WcStatus::WR_FLUSH_ERR {
            // Of a queue pair whose request was over when it was to be accepted.
            let accepted = passive.iter().any(|(number, _)| *number == wc.qp_num);
            same(accepted, false, "a connection that was flushed")?;
            continue;
        }
        wc.is(WcOpcode::RECV)?;
        came += 1;
    }
    for (number, accepted) in passive {
        match accepted.within(QUIET) {
            Ok(connection) => same(connection.qpn(), number, "the queue pair")?,
            Err(failed) => failed_well(&failed, number)?,
        }
    }
    drop((active, listener, here, there));
    before.await_back()
}
