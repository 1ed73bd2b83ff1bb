//! Processes that are killed before each system call of an offer and of a join, one after the other.

use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use support::role::Step;
use support::{LIMIT, Result, fail, is_full, open, same, skip, test_without_leaks};
use uverbs::share::Join;

use crate::process::Process;
use crate::sharing::Meeting;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test_without_leaks("killed::an_exporter_before_each_call", || {
            before_each(&OF_AN_EXPORTER, exporter)
        }),
        test_without_leaks("killed::a_joiner_before_each_call", || {
            before_each(&OF_A_JOINER, joiner)
        }),
    ]
}

/// The calls in which something is made, told or taken.
const OF_AN_EXPORTER: [&str; 10] = [
    "ioctl",
    "socket",
    "bind",
    "listen",
    "epoll_ctl",
    "accept4",
    "recvmsg",
    "sendmsg",
    "sendto",
    "shutdown",
];
const OF_A_JOINER: [&str; 6] = [
    "socket", "connect", "sendto", "recvmsg", "shutdown", "ioctl",
];

/// How long this side waits for the other at most.
const PATIENCE: Duration = Duration::from_secs(5);

/// Tries all steps, until a process outlives what it was to do: it makes no such call any more.
fn before_each(calls: &[&'static str], try_one: fn(&Meeting, Step) -> Result<bool>) -> Result {
    if !is_full() {
        return skip("a process for each step: a part of `cargo vm test --full`");
    }
    let mut killed = Vec::new();
    for call in calls {
        let mut nth = 1;
        loop {
            let began = Instant::now();
            let outlived = try_one(&Meeting::new()?, (call, nth))
                .map_err(|error| format!("killed before {call} {nth}: {error}"))?;
            same(
                began.elapsed() < 3 * LIMIT,
                true,
                &format!("in time at {call} {nth}"),
            )?;
            if outlived {
                break;
            }
            nth += 1;
        }
        killed.push(format!("{call} {}", nth - 1));
    }
    println!("killed before {}", killed.join(", "));
    match killed.iter().all(|killed| killed.ends_with(" 0")) {
        true => fail("nobody was killed"),
        false => Ok(()),
    }
}

/// Joins at an exporter that is killed; true if it was not.
fn exporter(meeting: &Meeting, step: Step) -> Result<bool> {
    let mut exporter = Process::start_killed_at("exporter", &[&meeting.address], step)?;
    let request = Join::new(meeting.address()?, meeting.key.clone()).patience(PATIENCE);
    // Whatever it does not hear any more.
    let heard = (|| {
        exporter.say(&meeting.words())?;
        exporter.expect("offered")?;
        exporter.say("serve")?;
        exporter.expect("serving")
    })();
    match request.join() {
        // What it gave stays with the file, also after its end.
        Ok(joined) => {
            joined
                .pd()
                .register(vec![0; 64], support::exchange::OPEN)?
                .deregister()?;
        }
        Err(error) if heard.is_ok() => println!("{step:?}: {error}"),
        Err(_) => {}
    }
    exporter.outlived(heard)
}

/// Serves a joiner that is killed; true if it was not.
fn joiner(meeting: &Meeting, step: Step) -> Result<bool> {
    let context = open()?;
    let pd = context.alloc_pd()?;
    let serving = pd
        .offer(meeting.key.clone())
        .at(&meeting.address()?)?
        .spawn()?;
    let mut joiner = Process::start_killed_at("early-joiner", &[&meeting.address], step)?;
    let heard = (|| {
        joiner.say(&meeting.words())?;
        joiner.expect("waiting")?;
        joiner.expect("joined")
    })();
    let joined = heard.is_ok();
    let outlived = joiner.outlived(heard)?;
    same(joined || !outlived, true, "a joiner that lives has joined")?;
    let mut offer = serving.stop().ok_or("the thread has ended")?;
    // Nobody is counted who has gone.
    let deadline = Instant::now() + PATIENCE;
    while offer.joiners() > 0 {
        offer.serve_once(Some(Duration::from_millis(100)))?;
        same(
            Instant::now() < deadline,
            true,
            "the joiner is still counted",
        )?;
    }
    offer.withdraw()?;
    // The next one is let in.
    let offer = pd.offer(meeting.key.clone()).at(&meeting.address()?)?;
    let serving = offer.spawn()?;
    let request = Join::new(meeting.address()?, meeting.key.clone()).patience(LIMIT);
    let next = thread::spawn(move || request.join().map(drop));
    next.join().map_err(|_| "it panics")??;
    drop((serving, pd, context));
    Ok(outlived)
}
