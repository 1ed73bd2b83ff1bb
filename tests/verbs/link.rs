//! `uverbs link`, and what else the command line says of devices by their names.

use std::process::Command;

use libtest_mimic::Trial;
use serde_json::Value;
use support::program::{run, uverbs};
use support::role::finish;
use support::{Result, device, fail, only_on_rxe, open, same, test};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("link::a_device_is_made_and_deleted", made_and_deleted),
        test("link::the_default_gid_is_marked", default_gid),
        test("link::every_subcommand_has_the_version", version),
        test("link::no_device_at_all", no_device_at_all),
    ]
}

fn said(words: &[&str]) -> Result<String> {
    finish(Command::new(uverbs()?).args(words))
}

fn fails(words: &[&str], code: i32) -> Result {
    let output = Command::new(uverbs()?).args(words).output()?;
    match output.status.code() == Some(code) {
        true => Ok(()),
        false => fail(format!("{words:?}: {output:?}")),
    }
}

/// A network device that goes with its test.
struct Netdev(&'static str);

impl Drop for Netdev {
    fn drop(&mut self) {
        // The test has failed, or passed, already.
        let _ = run(&format!("ip link del {}", self.0));
    }
}

/// Catches a device that is another than was asked for, one whose driver is not shown, one that stays, and a
/// refusal that is none.
fn made_and_deleted() -> Result {
    only_on_rxe("the guests of adapters need no module of soft-RoCE")?;
    run("ip link add linktest type dummy")?;
    let netdev = Netdev("linktest");
    run("ip link set linktest up")?;
    same(
        said(&["link", "add", "rxelink", netdev.0])?.as_str(),
        "rxelink\n",
        "name",
    )?;
    let devices: Vec<Value> = serde_json::from_str(&said(&["devices", "--json"])?)?;
    let made = devices.iter().find(|device| device["name"] == "rxelink");
    let netdev_of = made.map(|device| &device["ports"][0]["netdev"]);
    same(
        netdev_of.and_then(Value::as_str),
        Some(netdev.0),
        "network device",
    )?;
    let places = said(&["devices", "-v"])?;
    let place = places.lines().find(|line| line.starts_with("rxelink"));
    let driver = place.and_then(|line| line.split_whitespace().nth(1));
    same(driver, Some("rxe"), "driver")?;
    fails(&["link", "add", "rxelink", netdev.0], 1)?;
    fails(&["link", "add", "rxelink2", "nosuch"], 1)?;
    let nobody =
        "setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all --bounding-set=-all";
    let program = uverbs()?;
    let output = Command::new("sh")
        .args([
            "-c",
            &format!("{nobody} {} link del rxelink", program.display()),
        ])
        .output()?;
    same(output.status.code(), Some(4), &format!("{output:?}"))?;
    said(&["link", "del", "rxelink"])?;
    same(
        said(&["devices"])?.contains("rxelink"),
        false,
        "it has gone",
    )?;
    fails(&["link", "del", "rxelink"], 3)
}

/// Catches a mark at another entry than the one that is used.
fn default_gid() -> Result {
    let context = open()?;
    let expected = context.best_gid(1)?.map(|(index, _)| u64::from(index));
    let name = device().name();
    let table = said(&["gids", "-d", name, "-i", "1", "--json"])?;
    let table: Vec<Value> = serde_json::from_str(&table)?;
    let marked: Vec<u64> = table
        .iter()
        .filter(|entry| entry["default"] == true)
        .filter_map(|entry| entry["index"].as_u64())
        .collect();
    same(marked, expected.into_iter().collect(), "default")?;
    said(&["resource", "cm_id", "-d", name]).map(drop)
}

/// Catches a subcommand that takes a host without devices for one that has nothing to say. Who sees neither
/// RDMA netlink nor sysfs sees no device.
fn no_device_at_all() -> Result {
    let program = uverbs()?;
    let line = format!(
        "mount -t tmpfs none /sys
         for words in devices 'devices --json' info gids resource statistic cm 'pingpong rc' doctor; do
             status=0; {} $words > /dev/null 2>&1 || status=$?; echo $words: $status
         done",
        program.display()
    );
    let refused =
        "strace -f -qq -o /dev/null -e trace=socket -e inject=socket:error=EPROTONOSUPPORT";
    let said = finish(
        Command::new("unshare")
            .arg("--mount")
            .args(refused.split(' '))
            .args(["sh", "-ec", &line]),
    )?;
    let expected = [
        "devices: 3",
        "devices --json: 3",
        "info: 3",
        "gids: 3",
        "resource: 3",
        "statistic: 3",
        "cm: 3",
        "pingpong rc: 3",
        "doctor: 1",
    ];
    same(said.lines().collect(), expected.to_vec(), "exit codes")
}

fn version() -> Result {
    let own = env!("CARGO_PKG_VERSION");
    same(said(&["--version"])?, format!("uverbs {own}\n"), "version")?;
    for words in [&["perf", "--version"][..], &["gids", "--version"]] {
        same(said(words)?.trim_end().ends_with(own), true, "version")?;
    }
    Ok(())
}
