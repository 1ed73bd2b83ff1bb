//! Faults on demand: what programs and the kernel see when a function fails as it was asked to.

use std::fs;
use std::time::Duration;

use libtest_mimic::Trial;
use serde_json::json;
use support::wait::until_so;
use support::{Control, Efa, Result, fail, is_full, run, skip, test_on_efa};

use crate::programs::perftest;

/// How long the kernel may take to count an event.
const LIMIT: Duration = Duration::from_secs(20);

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test_on_efa("faults::a_command_fails", command_fails),
        test_on_efa("faults::keep_alive_is_counted", keep_alive),
        test_on_efa("faults::without_receives_a_sender_waits", not_ready),
        test_on_efa(
            "faults::a_peer_without_a_handle_refuses_reads",
            unknown_peer,
        ),
        test_on_efa("faults::lost_messages_are_told", lost),
        test_on_efa("faults::a_command_without_an_answer", no_answer),
    ]
}

/// Runs a program of perftest between the functions.
fn measure(efa: Efa, run: &str) -> Result {
    let (here, there) = efa.ends();
    perftest(run, 5, [&here, &there])
}

/// Checks that a run fails, and that somebody says this.
fn fails(efa: Efa, run: &str, why: &str) -> Result {
    match measure(efa, run) {
        Ok(()) => fail("it did not fail"),
        Err(said) if said.to_string().contains(why) => Ok(()),
        Err(said) => fail(format!("nobody says `{why}`: {said}")),
    }
}

/// Catches a fault that does not reach the driver, or stays.
fn command_fails(efa: Efa) -> Result {
    let mut control = Control::open()?;
    control.ask(
        "fail_command",
        json!({"function": 0, "command": "CREATE_QP", "count": 1}),
    )?;
    fails(efa, "ib_send_lat -c SRD", "create QP")?;
    measure(efa, "ib_send_lat -c SRD")
}

/// Catches an asynchronous event that does not reach the driver.
fn keep_alive(_: Efa) -> Result {
    const COUNTER: &str = "/sys/class/infiniband/efa_0/hw_counters/keep_alive_rcvd";
    let count = || -> Result<u64> { Ok(fs::read_to_string(COUNTER)?.trim().parse()?) };
    let before = count()?;
    Control::open()?.ask("event", json!({"function": 0, "group": 4}))?;
    until_so(LIMIT, "the event to be counted", || {
        Ok(count()? == before + 1)
    })
}

/// Catches a sender that gives up although it may try for ever.
fn not_ready(efa: Efa) -> Result {
    let mut control = Control::open()?;
    control.ask("not_ready", json!({"function": 0, "on": true}))?;
    let ready = std::thread::spawn(move || {
        // As long as some attempts take; whether it was long enough changes nothing.
        std::thread::sleep(Duration::from_secs(2));
        let asked = control.ask("not_ready", json!({"function": 0, "on": false}));
        asked.map(drop).map_err(|error| error.to_string())
    });
    let measured = measure(efa, "ib_send_bw -c SRD");
    ready.join().map_err(|_| "the thread panicked")??;
    measured
}

/// Catches a READ that a peer serves for somebody whom it does not know.
fn unknown_peer(efa: Efa) -> Result {
    let mut control = Control::open()?;
    control.ask("forget_peers", json!({"function": 0, "on": true}))?;
    let failed = fails(efa, "ib_read_bw -c SRD", "syndrom 0xe");
    control.ask("forget_peers", json!({"function": 0, "on": false}))?;
    failed
}

/// Catches a message that is lost and reported as sent.
fn lost(efa: Efa) -> Result {
    let mut control = Control::open()?;
    control.ask("lose", json!({"function": 0, "on": true}))?;
    let failed = fails(efa, "ib_send_bw -c SRD", "syndrom 0xd");
    control.ask("lose", json!({"function": 0, "on": false}))?;
    failed
}

/// Catches a model that a reset does not put right: after a command that is never answered the driver uses
/// the device no more, until it is bound anew.
fn no_answer(efa: Efa) -> Result {
    const DRIVER: &str = "/sys/bus/pci/drivers/efa";
    if !is_full() {
        skip("the driver waits for 30 s: only with `--full`")?;
    }
    let (_, last) = efa.ends();
    let function = fs::read_link(format!("/sys/class/infiniband/{last}/device"))?;
    let function = function
        .file_name()
        .ok_or("no name of a function")?
        .as_encoded_bytes();
    let opens = || run(&format!("ibv_devinfo -d {last}"));
    let mut control = Control::open()?;
    let number = efa.functions.min(2) - 1;
    let ask = json!({"function": number, "command": "ALLOC_UAR", "count": 1});
    control.ask("ignore_command", ask)?;
    for _ in 0..2 {
        if opens().is_ok() {
            fail("the device opens")?;
        }
    }
    fs::write(format!("{DRIVER}/unbind"), function)?;
    fs::write(format!("{DRIVER}/bind"), function)?;
    until_so(LIMIT, "the device to be back", || Ok(opens().is_ok()))?;
    measure(efa, "ib_send_lat -c SRD")
}
