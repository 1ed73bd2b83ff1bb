//! `uverbs doctor` in front of real faults, each of which it has to name. The faults are made for its process
//! alone, by limits and namespaces, so that other tests do not see them.

use std::process::Command;

use libtest_mimic::Trial;
use serde_json::Value;
use support::{Pair, Result, device, fail, program::uverbs, same, test};
use uverbs::{Access, Rc, WcOpcode};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("doctor::where_all_is_well", where_all_is_well),
        test("doctor::no_memory_to_lock", no_memory_to_lock),
        test("doctor::nodes_that_are_missing", nodes_that_are_missing),
        test("doctor::a_node_of_somebody_else", a_node_of_somebody_else),
        test("doctor::no_sysfs", no_sysfs),
        test(
            "doctor::what_the_kernel_copies_on_demand",
            what_the_kernel_copies_on_demand,
        ),
        test("doctor::a_report_has_everything", a_report_has_everything),
    ]
}

/// What it says, and how it ends. It is started by the last word of a few lines of shell, with mounts of its
/// own.
fn doctor(start: &str) -> Result<(Vec<Value>, Option<i32>)> {
    let program = uverbs()?;
    let line = format!("{start} {} doctor --json", program.display());
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-ec", &line])
        .output()?;
    match serde_json::from_slice(&output.stdout) {
        Ok(findings) => Ok((findings, output.status.code())),
        Err(error) => {
            let complaint = String::from_utf8_lossy(&output.stderr);
            fail(format!("{line}: {error}: {complaint}"))
        }
    }
}

/// Starts a program as a user without rights.
const AS_NOBODY: &str =
    "setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all --bounding-set=-all";

/// Gives it nodes of its own, whose modes nobody else sees.
const NODES: &str = "mkdir -p /tmp/doctor && mount -t tmpfs none /tmp/doctor\n\
                     cp -a /dev/infiniband/. /tmp/doctor\n\
                     mount --bind /tmp/doctor /dev/infiniband\n";

/// The verdict of a check of the device under test, or of the host, with what was found and the remedy.
fn found(findings: &[Value], check: &str) -> Result<(String, String)> {
    let own = device().name();
    let is = |finding: &&Value| {
        let of = finding["of"].as_str().unwrap_or_default();
        let is_of_another = of.starts_with("rxe") || of.starts_with("mlx5_");
        finding["check"] == check && (!is_of_another || of.starts_with(own))
    };
    let Some(finding) = findings.iter().find(is) else {
        return fail(format!("no check of {check}: {findings:?}"));
    };
    let verdict = finding["verdict"].as_str().unwrap_or_default().to_owned();
    Ok((
        verdict,
        format!("{}: {}", finding["found"], finding["remedy"]),
    ))
}

/// Fails unless the check has this verdict and says these words.
fn is(findings: &[Value], check: &str, verdict: &str, words: &str) -> Result {
    let (is, text) = found(findings, check)?;
    same(
        (is.as_str(), text.contains(words)),
        (verdict, true),
        &format!("{check}: {text}"),
    )
}

/// Catches a check that finds fault where programs work.
fn where_all_is_well() -> Result {
    let (findings, status) = doctor("exec")?;
    for (check, words) in [
        ("verbs", "the kernel has it"),
        ("connections", "can be opened"),
        ("memlock", ""),
        ("open", "can be opened"),
        ("registration", "1 MiB"),
        ("port", "ACTIVE"),
        ("gid", ""),
    ] {
        is(&findings, check, "good", words)?;
    }
    same(status, Some(0), "exit status")
}

/// Catches a limit that is overlooked, and one that does not lead to the remedy.
fn no_memory_to_lock() -> Result {
    let start = format!("{NODES}chmod 666 /dev/infiniband/*\nulimit -l 0\nexec {AS_NOBODY}");
    let (findings, status) = doctor(&start)?;
    is(&findings, "memlock", "broken", "LimitMEMLOCK=infinity")?;
    is(&findings, "registration", "broken", "memlock")?;
    same(status, Some(1), "exit status")
}

/// Catches that a container without nodes is told to load modules.
fn nodes_that_are_missing() -> Result {
    let (findings, status) = doctor("mount -t tmpfs none /dev/infiniband\nexec")?;
    is(&findings, "open", "broken", "in a container")?;
    is(&findings, "connections", "warning", "--device")?;
    is(&findings, "verbs", "good", "")?;
    same(status, Some(1), "exit status")
}

/// Catches that whoever has no sysfs is told to load modules: all that is looked for there is missing.
fn no_sysfs() -> Result {
    let (findings, status) = doctor("mount -t tmpfs none /sys\nexec")?;
    is(&findings, "verbs", "warning", "mount -t sysfs")?;
    is(&findings, "open", "good", "")?;
    same(status, Some(0), "exit status")
}

fn a_node_of_somebody_else() -> Result {
    let start = format!("{NODES}chmod 600 /dev/infiniband/*\nexec {AS_NOBODY}");
    let (findings, status) = doctor(&start)?;
    is(&findings, "open", "broken", "read and write permission")?;
    is(&findings, "connections", "warning", "permission")?;
    same(status, Some(1), "exit status")
}

/// Catches that a kernel which loses where in its page a message lies is found well, and one that is told of
/// although it has no on-demand paging. What the kernel does is tried here by another way: a READ.
fn what_the_kernel_copies_on_demand() -> Result {
    let (findings, _) = doctor("exec")?;
    let none = || {
        let none = found(&findings, "on demand").is_err();
        same(none, true, "no check of on-demand paging")
    };
    if !device().is_rxe() {
        return none();
    }
    let mut pair = Pair::<Rc>::new()?;
    let words = (0..8192_u64).step_by(8).flat_map(u64::to_ne_bytes);
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::ON_DEMAND;
    let Ok(source) = pair.pd.register(words.collect::<Vec<u8>>(), access) else {
        return none();
    };
    let target = pair.pd.register(vec![0_u8; 8], Access::LOCAL_WRITE)?;
    let mut is_right = true;
    for place in [1000, 2000] {
        let from = source.remote().slice(place..place + 8)?;
        let into = target.slice(..8)?;
        pair.a
            .post(|request| request.read(into, from))?
            .is(WcOpcode::RDMA_READ)?;
        let mut word = [0; 8];
        target.read_at(0, &mut word)?;
        is_right &= u64::from_ne_bytes(word) == place as u64;
    }
    match is_right {
        true => is(&findings, "on demand", "good", "where it lies"),
        false => is(
            &findings,
            "on demand",
            "warning",
            "Register no memory on demand",
        ),
    }
}

fn a_report_has_everything() -> Result {
    let output = Command::new(uverbs()?)
        .args(["doctor", "--report"])
        .output()?;
    let text = String::from_utf8(output.stdout)?;
    let version = format!("uverbs {}", env!("CARGO_PKG_VERSION"));
    let section = format!("== device {}", device().name());
    for words in ["== system", "modules: ", "== devices", &version, &section] {
        same(text.contains(words), true, &format!("{words}: {text}"))?;
    }
    Ok(())
}
