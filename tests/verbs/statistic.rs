//! `uverbs statistic` beside what the kernel shows by itself, and what this process does.

use std::collections::BTreeSet;
use std::process::Command;

use libtest_mimic::Trial;
use serde_json::Value;
use support::program::uverbs;
use support::role::finish;
use support::{Result, device, open, same, test};
use uverbs::Access;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("statistic::ports_count_what_sysfs_shows", ports),
        test("statistic::objects_are_those_of_this_process", objects),
        test("statistic::rates_of_what_changes", rates),
        test("statistic::text_for_prometheus", openmetrics),
        test("statistic::queue_pairs_without_counters", queue_pairs),
    ]
}

fn statistic(words: &str) -> Result<String> {
    let mut command = Command::new(uverbs()?);
    command.arg("statistic").args(words.split_whitespace());
    finish(command.args(["-d", device().name()]))
}

fn json(words: &str) -> Result<Vec<Value>> {
    Ok(serde_json::from_str(&statistic(&format!(
        "{words} --json"
    ))?)?)
}

/// Catches counters that are left out, and those of another port. The modelled adapter counts nothing.
fn ports() -> Result {
    let mut expected = BTreeSet::new();
    for folder in ["counters", "hw_counters"] {
        let folder = format!("/sys/class/infiniband/{}/ports/1/{folder}", device().name());
        for entry in std::fs::read_dir(folder).into_iter().flatten() {
            let entry = entry?;
            let name = entry.file_name().into_string().map_err(|_| "an odd name")?;
            let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
            if name != "lifespan" && text.trim().parse::<u64>().is_ok() {
                expected.insert(name);
            }
        }
    }
    let readings = json("port")?;
    let of_port = readings.iter().filter(|it| it["port"] == 1);
    let names = of_port
        .filter_map(|it| it["counter"].as_str())
        .map(str::to_owned);
    same(names.collect(), expected.clone(), "counters")?;
    same(
        expected.contains("sent_pkts"),
        device().is_rxe(),
        "packets of soft-RoCE",
    )
}

/// Catches objects that are another's, and memory that is not counted.
fn objects() -> Result {
    const BYTES: usize = 123 << 10;
    let context = open()?;
    let pd = context.alloc_pd()?;
    let _mr = pd.register(vec![0_u8; BYTES], Access::LOCAL_WRITE)?;
    let readings = json("object")?;
    let own = std::process::id();
    let value = |counter: &str| {
        let own = readings
            .iter()
            .filter(|it| it["pid"] == own && it["counter"] == counter);
        own.filter_map(|it| it["value"].as_u64()).sum::<u64>()
    };
    // Other tests of this process may have some at the same time.
    same(value("pd") >= 1, true, &format!("{readings:?}"))?;
    same(value("mr") >= 1, true, &format!("{readings:?}"))?;
    same(
        value("registered_bytes") >= BYTES as u64,
        true,
        &format!("{readings:?}"),
    )
}

/// Catches that an object which comes is no change, and one that goes.
fn rates() -> Result {
    let mut command = Command::new(uverbs()?);
    command.args(["statistic", "object", "-w=0.5", "--for", "4", "--json"]);
    command
        .args(["-d", device().name()])
        .stdout(std::process::Stdio::piped());
    let child = command.spawn()?;
    std::thread::sleep(std::time::Duration::from_secs(2));
    let mr = open()?
        .alloc_pd()?
        .register(vec![0_u8; 4096], Access::LOCAL_WRITE)?;
    let output = child.wait_with_output()?;
    drop(mr);
    let said = String::from_utf8(output.stdout)?;
    let own = std::process::id();
    let is_it = |line: &str| {
        let value: Value = serde_json::from_str(line).unwrap_or_default();
        let changes = value["changes"].as_array().cloned().unwrap_or_default();
        changes
            .iter()
            .any(|it| it["pid"] == own && it["counter"] == "mr" && it["rate"].as_f64() > Some(0.0))
    };
    same(said.lines().any(is_it), true, &said)
}

fn openmetrics() -> Result {
    let text = statistic("--openmetrics")?;
    same(text.ends_with("# EOF\n"), true, &text)?;
    let label = format!("device=\"{}\"", device().name());
    let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    same(samples.is_empty(), false, "no samples")?;
    for sample in samples {
        let (name, value) = sample.rsplit_once(' ').ok_or("no value")?;
        let is_right =
            name.starts_with("rdma_") && name.contains(&label) && value.parse::<f64>().is_ok();
        same(is_right, true, sample)?;
    }
    Ok(())
}

/// No queue pair of a guest is bound to a counter: the answer is an empty list, not a failure.
fn queue_pairs() -> Result {
    same(json("qp")?, Vec::new(), "counters")
}
