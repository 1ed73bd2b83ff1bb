//! A transfer engine as in inference systems: a process with a cache of pages writes some of them into
//! another process's memory, over several adapters at once. The receiver knows by the number of WRITEs when
//! all pages have arrived, so it needs no order: the engine has connections where an adapter has them, and
//! reliable datagrams on an EFA.
//!
//! ```text
//! transfer prefill PAGES BYTES [DEVICE]...         # has the pages; prints an offer
//! transfer decode OFFER ROUNDS [DEVICE]...         # asks for half of them, ROUNDS times
//! transfer bench PAGES BYTES ROUNDS [DEVICE]...    # both, on this host
//! transfer                                         # a short run of both
//! ```
//!
//! By default it uses all devices, and a single one twice. Both sides need the same number of devices, in the
//! order in which they are wired to each other.

#![forbid(unsafe_code)]

mod address;
mod book;
mod connected;
mod datagrams;
mod engine;
mod peer;
mod rail;
mod region;
mod sides;
mod waiter;
mod worker;

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// How long a side waits for the other.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["prefill", pages, bytes, ref names @ ..] => {
            sides::prefill(pages.parse()?, bytes.parse()?, &devices(names)?)
        }
        ["decode", offer, rounds, ref names @ ..] => {
            let offer = serde_json::from_str(offer)?;
            sides::decode(&offer, rounds.parse()?, &devices(names)?)
        }
        ["bench", pages, bytes, rounds, ref names @ ..] => {
            both([pages, bytes], rounds.parse()?, &devices(names)?)
        }
        [] => both(["64", "8192"], 3, &devices(&[])?),
        _ => Err("usage: transfer [prefill PAGES BYTES | decode OFFER ROUNDS | bench PAGES BYTES ROUNDS] [DEVICE]...".into()),
    }
}

/// The devices to use: those that are named, or all.
fn devices(names: &[&str]) -> Result<Vec<String>> {
    if !names.is_empty() {
        return Ok(names.iter().map(|name| (*name).to_owned()).collect());
    }
    let devices = uverbs::devices()?;
    let names = devices.iter().map(|device| device.name().to_owned());
    match devices.len() {
        0 => Err("this machine has no RDMA device".into()),
        // One twice is as good as two for the engine.
        number => Ok(names.cycle().take(number.max(2)).collect()),
    }
}

/// Runs the side with the pages in a process of its own, and the other here.
fn both(pages: [&str; 2], rounds: u32, devices: &[String]) -> Result<()> {
    let mut prefill = Command::new(std::env::current_exe()?)
        .arg("prefill")
        .args(pages)
        .args(devices)
        .stdout(Stdio::piped())
        .spawn()?;
    let mut output = BufReader::new(prefill.stdout.take().ok_or("no output")?);
    let mut offer = String::new();
    output.read_line(&mut offer)?;
    let decoded = match serde_json::from_str(&offer) {
        Ok(offer) => sides::decode(&offer, rounds, devices),
        Err(_) => Err("the other side offers nothing".into()),
    };
    if decoded.is_err() {
        prefill.kill()?;
    }
    std::io::copy(&mut output, &mut std::io::stdout())?;
    let ended = prefill.wait()?;
    decoded?;
    let failed = || format!("the other side ended with {ended}");
    Ok(ended.success().then_some(()).ok_or_else(failed)?)
}
