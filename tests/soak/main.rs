//! A soak: many queue pairs of all transports with random traffic, random failures and random destruction,
//! over a wire that loses, doubles and reorders packets. Every completion is accounted for, every payload is
//! looked at, and nothing may be left in this process or in the kernel.
//!
//! `cargo vm test` runs it for a short time on each kernel, `cargo vm soak` for as long as one wants. What it
//! is to do comes from a seed (`UVERBS_SOAK_SEED`), which it prints, and how long from `UVERBS_SOAK_SECONDS`.
//! The plan is the same for the same seed; what the network does is not.
//!
//! * [`plan`]: what each pair is to do.
//! * [`pair`]: where a pair is, and what a completion means to it; [`side`] has the objects.
//! * [`fleeting`]: regions that are dropped while their requests are in flight.
//! * [`ledger`] and [`shadow`]: the accounts of requests and of memory.
//! * [`net`]: the hosts and the wire. [`leak`]: what is left behind.

mod figures;
mod fleeting;
mod host;
mod leak;
mod ledger;
mod message;
mod net;
mod pair;
mod plan;
mod shadow;
mod side;
mod worker;

use std::error::Error;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Completion, Trial};
use rustix::rand::GetRandomFlags;

use figures::Figures;
use leak::Held;
use net::{BadWire, Host};

/// The result of anything here.
pub(crate) type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Pairs in all.
const PAIRS: u16 = 64;

/// Threads that share them.
const THREADS: u16 = 2;

fn main() -> ExitCode {
    let mut tests = vec![Trial::ignorable_test(
        "soak::all_is_accounted_for",
        in_guest,
    )];
    tests.extend(host::tests());
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}

fn in_guest() -> std::result::Result<Completion, libtest_mimic::Failed> {
    if std::env::var_os("VM_GUEST").is_none() {
        return Ok(Completion::ignored_with(
            "needs two hosts with soft-RoCE: run `cargo vm soak`",
        ));
    }
    soak()?;
    Ok(Completion::Completed)
}

fn number(name: &str) -> Result<Option<u64>> {
    match std::env::var(name) {
        Ok(text) => Ok(Some(
            text.parse()
                .map_err(|error| format!("{name}={text}: {error}"))?,
        )),
        Err(_) => Ok(None),
    }
}

/// How long it takes in the usual run of all tests, in seconds: longest where rxe has most to show.
fn usual() -> u64 {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy().into_owned();
    match release.starts_with("6.") {
        true => 8,
        false => 15,
    }
}

/// A seed that is short to type.
fn draw() -> Result<u64> {
    let mut bytes = [0; 4];
    rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(u32::from_ne_bytes(bytes).into())
}

fn soak() -> Result {
    let seconds = number("UVERBS_SOAK_SECONDS")?.unwrap_or_else(usual);
    let seed = match number("UVERBS_SOAK_SEED")? {
        Some(seed) => seed,
        None => draw()?,
    };
    println!("soak of {seconds} s, UVERBS_SOAK_SEED={seed}");
    let orders = |time| Orders { seed, time };
    let hosts = Host::both()?;
    // What is loaded or allocated at the first use only is no leak: a run of a moment goes before.
    run(&hosts, orders(Duration::ZERO))?;
    let before = Held::now(&hosts)?;
    let started = Instant::now();
    let figures = run(&hosts, orders(Duration::from_secs(seconds)))?;
    let after = before.await_back(&hosts)?;
    println!("{figures}");
    // What breaks now and then is told; what breaks all the time is no soak.
    let (bursts, broken) = (figures.get(pair::BURSTS), figures.get(pair::BROKEN));
    if bursts < u64::from(PAIRS) / 2 {
        return Err(format!("hardly anything was done: {bursts} bursts").into());
    }
    if figures.get(fleeting::UNDER_WAY) == 0 {
        return Err("no region was dropped under way".into());
    }
    if figures.get(net::PACKETS) < bursts {
        return Err("the packets took another wire than the bad one".into());
    }
    if broken > 5 + bursts / 50 {
        return Err(format!("{broken} connections broke by themselves in {bursts} bursts").into());
    }
    println!("before {before:?}\nafter  {after:?}");
    println!("{:.1} s", started.elapsed().as_secs_f64());
    Ok(())
}

/// What a run is to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Orders {
    pub(crate) seed: u64,
    /// How long new steps are begun.
    pub(crate) time: Duration,
}

/// Runs all pairs for so long, and then to their ends.
fn run(hosts: &[Host; 2], orders: Orders) -> Result<Figures> {
    let wire = BadWire::new(hosts)?;
    let share = PAIRS / THREADS;
    let mut figures = Figures::default();
    let abort = &AtomicBool::new(false);
    thread::scope(|scope| -> Result {
        let workers: Vec<_> = (0..THREADS)
            .map(|number| {
                scope.spawn(move || {
                    let pairs = number * share..(number + 1) * share;
                    worker::work(hosts, orders, pairs, abort)
                })
            })
            .collect();
        for worker in workers {
            figures.merge(worker.join().map_err(|_| "a thread panicked")??);
        }
        Ok(())
    })?;
    let (sent, dropped) = wire.packets()?;
    figures.add(net::PACKETS, sent);
    figures.add("packets lost on the wire", dropped);
    Ok(figures)
}
