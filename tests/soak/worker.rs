//! A thread with pairs of its own.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;

use super::figures::Figures;
use super::net::Host;
use super::pair::{Pair, Place};
use super::side::Hub;
use super::{Orders, Result};

/// How long a thread waits for a completion before it looks at the clock.
const NAP: Duration = Duration::from_millis(20);

/// Runs these pairs for so long from when all are connected, and then until each has come to its end; not so
/// long if another thread fails.
pub(crate) fn work(
    hosts: &[Host; 2],
    orders: Orders,
    pairs: Range<u16>,
    abort: &AtomicBool,
) -> Result<Figures> {
    // Relaxed: it only ends the others' work early, and guards no memory.
    let result = try_work(hosts, orders, pairs, abort);
    if result.is_err() {
        abort.store(true, Ordering::Relaxed);
    }
    result
}

fn try_work(
    hosts: &[Host; 2],
    orders: Orders,
    pairs: Range<u16>,
    abort: &AtomicBool,
) -> Result<Figures> {
    let mut figures = Figures::default();
    let mut hubs = [
        Hub::new(&hosts[0], pairs.len())?,
        Hub::new(&hosts[1], pairs.len())?,
    ];
    let first = pairs.start;
    let mut all = Vec::new();
    for number in pairs {
        all.push(Pair::new(orders, number, &Place { hosts, hubs: &hubs })?);
    }
    let mut found = Vec::new();
    let mut until = None;
    while !all.iter().all(Pair::is_over) && !abort.load(Ordering::Relaxed) {
        let stop = until.is_some_and(|until| Instant::now() >= until);
        let place = Place { hosts, hubs: &hubs };
        let mut busy = false;
        for pair in &mut all {
            busy |= pair.turn(&place, stop)?;
        }
        // The first turn of each pair connects it.
        until.get_or_insert_with(|| Instant::now() + orders.time);
        for hub in &mut hubs {
            hub.take(&mut found)?;
            hub.take_events(&mut figures)?;
        }
        busy |= !found.is_empty();
        for wc in found.drain(..) {
            let number = wc.id.pair.checked_sub(first).map(usize::from);
            let pair = number.and_then(|number| all.get_mut(number));
            let pair = pair.ok_or_else(|| format!("a completion of no pair: {wc:?}"))?;
            pair.completed(&wc)?;
        }
        if !busy {
            wait(&mut hubs)?;
        }
    }
    for pair in all {
        figures.merge(pair.figures);
    }
    Ok(figures)
}

/// Waits for a completion on either host, at most for a nap.
fn wait(hubs: &mut [Hub; 2]) -> Result {
    let [a, b] = hubs;
    if a.arm()? && b.arm()? {
        let mut channels = [a, b].map(|hub| PollFd::from_borrowed_fd(hub.channel(), PollFlags::IN));
        let nap = Timespec::try_from(NAP)?;
        retry_on_intr(|| poll(&mut channels, Some(&nap)))?;
    }
    Ok(())
}
