//! rdma-core's own tests, which the distribution ships with pyverbs: what passes on libibverbs passes on
//! ours.
//!
//! Each test prints a table of how the tests of its modules ended on both libraries.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::Trial;
use serde_json::json;
use support::{
    Control, Device, Result, device, fail, is_full, only_on_rxe, skip, test, test_on_efa,
};

use crate::newer;
use support::library::{Library, gid_index};

/// The tests: a name, the modules that always run, and those of a run of everything. Modules for mlx5 alone
/// are not among them: they need that provider's own interface.
const GROUPS: [(&str, &[&str], &[&str]); 3] = [
    (
        "pyverbs::objects",
        &["cq", "pd", "qp"],
        &["addr", "device", "flow"],
    ),
    (
        "pyverbs::traffic",
        &["cqex", "qpex"],
        &["atomic", "cq_events", "fork", "relaxed_ordering"],
    ),
    (
        "pyverbs::memory",
        &["mr", "parent_domain"],
        &["odp", "rdmacm", "shared_pd", "tag_matching"],
    ),
];

/// The classes of tests of device memory, which soft-RoCE does not have.
const DEVICE_MEMORY: [&str; 4] = [
    "device.DMTest",
    "device.SharedDMTest",
    "mr.DeviceMemoryAPITest",
    "mr.DeviceMemoryTest",
];

/// Modules and classes that have tests of XRC, beside others.
const OF_XRC: [&str; 4] = [
    "atomic",
    "cqex.CqExTestCase",
    "qpex.QpExTestCase",
    "relaxed_ordering",
];

/// The modules for mlx5's direct verbs. Those of steering, raw packets (with LAG), VFIO, encryption and GPUs
/// are not among them.
const OF_MLX5: [&str; 11] = [
    "mlx5_cq",
    "mlx5_dc",
    "mlx5_devx",
    "mlx5_dm_ops",
    "mlx5_mkey",
    "mlx5_query_port",
    "mlx5_raw_wqe",
    "mlx5_timestamp",
    "mlx5_uar",
    "mlx5_udp_sport",
    "mlx5_var",
];

/// The modules for an EFA alone: its direct verbs, and reliable datagrams.
const OF_EFA: [&str; 2] = ["efadv", "efa_srd"];

/// The modules of the newest suite: all but those of direct verbs, and of GPUs.
const NEWEST: [(&str, &[&str]); 4] = [
    (
        "newer::pyverbs_objects",
        &[
            "addr",
            "cq",
            "device",
            "dmah",
            "flow",
            "pd",
            "phc_timestamp",
            "qp",
            "rss_traffic",
            "srq",
        ],
    ),
    (
        "newer::pyverbs_traffic",
        &[
            "atomic",
            "cqex",
            "cq_events",
            "fork",
            "qpex",
            "relaxed_ordering",
        ],
    ),
    (
        "newer::pyverbs_memory",
        &[
            "buf",
            "mr",
            "odp",
            "parent_domain",
            "shared_pd",
            "tag_matching",
        ],
    ),
    ("newer::pyverbs_rdmacm", &["rdmacm"]),
];

/// The suite that they are of.
const SUITE: &str = "sid";

/// Where a distribution has pyverbs, below its root.
const PYVERBS: &str = "usr/lib/python3/dist-packages/pyverbs/__init__.py";

/// Where it has the tests.
const SOURCE: &str = "usr/share/doc/rdma-core/tests";

/// Whose python, pyverbs and tests.
enum Of {
    /// This machine's.
    System,
    /// Those of a suite, in its tree.
    Suite(PathBuf),
}

impl Of {
    fn root(&self) -> &Path {
        match self {
            Self::System => Path::new("/"),
            Self::Suite(root) => root,
        }
    }

    /// The interpreter for which pyverbs is built, over this library.
    fn python(&self, library: &Library) -> Command {
        let Self::Suite(root) = self else {
            return library.command("/usr/bin/python3");
        };
        // The suite's providers lie in a directory of their own.
        let first = match library.path() {
            Some(path) => path.split(':').map(PathBuf::from).collect(),
            None => vec![newer::libraries_of(root).join("libibverbs")],
        };
        let mut command = newer::loader(root, &first);
        command
            .arg(root.join("usr/bin/python3"))
            .env("PYTHONHOME", root.join("usr"))
            .env("PYTHONPATH", root.join("usr/lib/python3/dist-packages"));
        command
    }
}

/// What is known to fail on ours alone.
const LACKS: &str = include_str!("pyverbs.txt");

pub(crate) fn tests() -> Vec<Trial> {
    let groups = GROUPS.map(|(name, always, in_full)| {
        test(name, move || {
            only_on_rxe("what is known to fail is known of soft-RoCE alone")?;
            let ours = Library::ours()?;
            match is_full() {
                true => compare(&Of::System, &ours, &[always, in_full].concat()),
                false => compare(&Of::System, &ours, always),
            }
        })
    });
    let mut tests = Vec::from(groups);
    tests.extend(NEWEST.map(|(name, modules)| test(name, || newest(modules))));
    tests.push(test("pyverbs::device_memory", || {
        if device().is_rxe() {
            return skip("soft-RoCE has no device memory");
        }
        // Each word that the processor stores there leaves the guest.
        match is_full() {
            true => compare(&Of::System, &Library::ours()?, &DEVICE_MEMORY),
            false => skip("it takes a minute, and runs with everything"),
        }
    }));
    tests.push(test("pyverbs::own_rdmacm", || {
        if device().is_rxe() {
            return skip(
                "pyverbs asks sysfs for the device's netdev, which soft-RoCE does not show there",
            );
        }
        match is_full() {
            true => compare(&Of::System, &Library::ours_with_rdmacm()?, &["rdmacm"]),
            false => skip("it takes a minute, and runs with everything"),
        }
    }));
    tests.push(test("pyverbs::of_mlx5", || {
        if !device().is_mlx5() {
            return skip("they are of the adapter's own verbs");
        }
        match is_full() {
            true => compare(&Of::System, &Library::ours()?, &OF_MLX5),
            false => skip("it takes minutes, and runs with everything"),
        }
    }));
    tests.push(test("newer::pyverbs_of_mlx5", || {
        if !device().is_mlx5() {
            return skip("they are of the adapter's own verbs");
        }
        newest(&OF_MLX5)
    }));
    tests.push(test("pyverbs::of_xrc", || {
        if device().is_rxe() {
            return skip("soft-RoCE has no XRC");
        }
        match is_full() {
            true => compare(&Of::System, &Library::ours()?, &OF_XRC),
            false => skip("it takes a minute, and runs with everything"),
        }
    }));
    tests
}

/// Those of an EFA.
pub(crate) fn tests_on_efa() -> Vec<Trial> {
    vec![
        test_on_efa("pyverbs::of_efa", |_| {
            compare(&Of::System, &Library::ours()?, &OF_EFA)
        }),
        test_on_efa("newer::pyverbs_of_efa", |_| newest(&OF_EFA)),
    ]
}

/// Compares modules of the newest suite, on all of our libraries.
fn newest(modules: &[&str]) -> Result {
    if device().has_raw_packets() && modules.contains(&"qp") {
        return skip(
            "raw packets are among them, which Ethernet ports have and the model does not",
        );
    }
    match is_full() {
        true => compare(
            &Of::Suite(newer::root(SUITE)?),
            &Library::ours_with_rdmacm()?,
            modules,
        ),
        false => skip("it takes minutes, and runs with everything"),
    }
}

/// How a test ended, and why.
type Outcomes = BTreeMap<String, (String, String)>;

/// Catches a test that ends well on libibverbs and otherwise on ours.
fn compare(of: &Of, ours: &Library, modules: &[&str]) -> Result {
    if !of.root().join(PYVERBS).is_file() {
        return skip("there is no pyverbs here");
    }
    let ours = outcomes(of, ours, modules)?;
    if device() == Device::Efa {
        // libefa rings for a receive that it then refuses.
        let expected = json!({"text": "it is rung in state RESET"});
        Control::open()?.ask("expect", expected)?;
    }
    let theirs = outcomes(of, &Library::Theirs, modules)?;
    let nothing = (String::new(), "did not run".to_owned());
    let mut worse = Vec::new();
    for (name, (theirs, why_theirs)) in &theirs {
        let (ours, why) = ours.get(name).unwrap_or(&nothing);
        println!("{name}: ours {ours} {why}; libibverbs {theirs} {why_theirs}");
        if is_worse(ours, theirs) && !is_known(name) {
            worse.push(format!(
                "{name} {theirs} on libibverbs, on ours {ours}: {why}"
            ));
        }
    }
    match worse.is_empty() {
        true => Ok(()),
        false => fail(worse.join("\n")),
    }
}

/// Whether ours is the worse end: what passes must pass, and what skips must not fail.
fn is_worse(ours: &str, theirs: &str) -> bool {
    match theirs {
        "passed" => ours != "passed",
        "skipped" => !["passed", "skipped"].contains(&ours),
        _ => false,
    }
}

/// Whether the list of lacks has the test.
fn is_known(name: &str) -> bool {
    let lines = LACKS.lines().filter(|line| !line.starts_with('#'));
    let names = lines.filter_map(|line| {
        let name = line.split_whitespace().next()?;
        match name.strip_prefix("mlx5:") {
            Some(name) => device().is_mlx5().then_some(name),
            None => Some(name),
        }
    });
    names.into_iter().any(|begin| name.starts_with(begin))
}

fn outcomes(of: &Of, library: &Library, modules: &[&str]) -> Result<Outcomes> {
    let device = device().name();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c_abi/run_pyverbs.py");
    let gid_index = gid_index(device)?.map_or(-1, i16::from).to_string();
    let output = of
        .python(library)
        .arg(script)
        .arg(of.root().join(SOURCE))
        .args([device, &gid_index])
        .args(modules.iter().map(|module| format!("test_{module}")))
        .output()?;
    let said = String::from_utf8(output.stdout)?;
    if !output.status.success() || said.is_empty() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        return fail(format!(
            "{modules:?} on {library:?}: {}: {said}{complaint}",
            output.status
        ));
    }
    let outcome = |line: &str| {
        let mut words = line.split('\t');
        let name = words.next()?.trim_start_matches("tests.").to_owned();
        let how = words.next()?.to_owned();
        Some((name, (how, words.next()?.to_owned())))
    };
    Ok(said.lines().filter_map(outcome).collect())
}
