//! Programs on libibverbs, rdma-core's and perftest's, on the device that this library uses at the same time:
//! each with a queue pair of its own, and neither disturbs the other.

use std::process::Command;
use std::thread;

use libtest_mimic::Trial;
use support::peers::{free_port, listens, play};
use support::{Objects, Pair, Result, Setup, nothing, only_on_rxe, open, talk, test};
use uverbs::Rc;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("beside::ib_send", || perftest("send")),
        test("beside::ib_write", || perftest("write")),
        test("beside::ib_read", || perftest("read")),
        test("beside::ib_atomic", || perftest("atomic")),
        test("beside::ibv_srq_pingpong", srq_pingpong),
    ]
}

/// The latency and the bandwidth program of an operation. What they measure is of no interest here.
fn perftest(operation: &str) -> Result {
    for kind in ["lat", "bw"] {
        // -F: the processor's frequency does not matter.
        let mut arguments = vec!["-d", "rxe0", "-x", "1", "-n", "20", "-F"];
        if operation != "atomic" {
            arguments.extend(["-s", "1500"]);
        }
        beside(&format!("ib_{operation}_{kind}"), &arguments)?;
    }
    Ok(())
}

/// Catches what [`beside`] does, with a shared receive queue of theirs.
fn srq_pingpong() -> Result {
    let arguments = ["-d", "rxe0", "-g", "1", "-n", "20", "-q", "2"];
    beside("ibv_srq_pingpong", &arguments)
}

/// Catches a program of theirs that fails because of our traffic, a payload or a completion of ours that goes
/// wrong because of theirs, and objects that are left behind.
fn beside(program: &str, arguments: &[&str]) -> Result {
    only_on_rxe("the adapter has tests of its own with perftest")?;
    let before = Objects::on("rxe0")?;
    let context = open()?;
    let mut pair = Pair::<Rc>::on(&context, &Setup::default())?;
    let port = free_port()?;
    let command = || {
        let mut command = Command::new(program);
        command.args(arguments).args(["-p", &port.to_string()]);
        command
    };
    let (server, mut client) = (command(), command());
    client.arg("127.0.0.1");
    let theirs = thread::spawn(move || play(server, client, || listens(port)));
    let mut rounds = 0;
    while !theirs.is_finished() {
        round(&mut pair).map_err(|error| format!("our round {rounds}: {error}"))?;
        rounds += 1;
    }
    let played = theirs.join().map_err(|_| "a thread panicked")?;
    played.map_err(|error| format!("{program}: {error}"))?;
    println!("{rounds} rounds of ours beside {program}");
    nothing(&mut pair.a.cq)?;
    nothing(&mut pair.b.cq)?;
    drop(pair);
    drop(context);
    before.await_back()
}

/// Every operation once, with its payload checked.
fn round(pair: &mut Pair<Rc>) -> Result {
    talk::sends(pair)?;
    talk::writes(pair)?;
    talk::reads(pair)?;
    talk::atomics(pair)
}
