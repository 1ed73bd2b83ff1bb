//! The C programs beside this file, on both libraries: what they tell is compared fact by fact.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use libtest_mimic::Trial;
use support::wait::{until_so, until_within};
use support::{Hca, Result, device, fail, kernel, run, same, skip, test, test_on_adapter};
use uverbs::device::PortState;

use crate::{crates, differences};
use support::library::{Library, c_program, gid_index};

/// The programs, with the number of their checks.
const PROGRAMS: [(&str, usize); 10] = [
    ("posting", 37),
    ("extended", 30),
    ("attributes", 26),
    ("dm", 5),
    ("domains", 8),
    ("events", 12),
    ("lifetime", 10),
    ("threads", 6),
    ("windows", 5),
    ("xrc", 5),
];

/// How long a function may take to come back after it was removed: its driver sets it up anew.
const COMES_BACK: Duration = Duration::from_secs(100);

/// What is not compared, since ours does not do it yet.
const LACKS: &str = include_str!("lacks.txt");

pub(crate) fn tests() -> Vec<Trial> {
    let programs = PROGRAMS.map(|(program, checks)| {
        test(format!("programs::{program}"), move || {
            compare(program, checks)
        })
    });
    let mut tests = Vec::from(programs);
    tests.push(test("crates::newer_headers", newer_headers));
    tests.push(test("programs::connection", connection));
    tests.push(test("programs::sanitized", sanitized));
    tests.push(test("programs::layout", layout));
    tests.push(test("programs::log", log));
    tests.push(test("programs::oldest", oldest));
    tests.push(test_on_adapter("programs::removal", removal));
    tests.push(test_on_adapter("programs::direct", |_| {
        compare("direct", 18)
    }));
    tests
}

/// The facts of one check: by what they are about and which of several about it they are.
type Facts = BTreeMap<(String, usize), String>;

/// Whether a check was carried out to its end.
fn ends_well(facts: &Facts) -> bool {
    facts
        .get(&("ends".to_owned(), 0))
        .is_some_and(|how| how == "well")
}

/// Catches a structure that C programs lay out otherwise than this project takes them: `layout.txt` is what
/// the library is built by.
fn layout() -> Result {
    let program = c_program("layout")?;
    let told = tell(&Library::Theirs, &program, &[])?;
    let written = include_str!("layout.txt");
    let differ = |(told, written): &(&str, &str)| told != written;
    match told.lines().zip(written.lines()).find(differ) {
        Some((told, written)) => fail(format!("C says {told}, layout.txt {written}")),
        None if told.lines().count() != written.lines().count() => {
            fail("C tells another number of lines than layout.txt has")
        }
        None => Ok(()),
    }
}

/// Catches an oldest version of a name that is another function than the newest. That of libibverbs takes the
/// structs of 2006, so there is nothing to compare with.
fn oldest() -> Result {
    let gid_index = gid_index(device().name())?
        .map_or(-1, i16::from)
        .to_string();
    let arguments = [device().name(), &gid_index];
    let told = tell(&Library::ours()?, &c_program("oldest")?, &arguments)?;
    let right = "traffic completion: 1 success\n\
                 traffic arrived: by old versions\n\
                 traffic ends: well\n\
                 events context: 1\n\
                 events resize: 0\n\
                 events close: 0\n\
                 events ends: well\n";
    same(told.as_str(), right, "what it tells")
}

/// Catches an error of which the log does not tell the verb, the object and the cause, a log that nobody
/// asked for, and a line about what is no failure.
fn log() -> Result {
    let (ours, program) = (Library::ours()?, c_program("extended")?);
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("log");
    let of = |program: &Path, check: &str, level: &str| -> Result<String> {
        let mut command = ours.command(program);
        command
            .args([device().name(), "-1", check])
            .env("VERBS_LOG_LEVEL", level)
            .env("VERBS_LOG_FILE", &file);
        let output = command.output()?;
        match output.status.success() {
            true => Ok(std::fs::read_to_string(&file).unwrap_or_default()),
            false => fail(format!("{output:?}")),
        }
    };
    let of_gids = of(&c_program("attributes")?, "empty_gids", "1")?;
    if !of_gids.is_empty() {
        return fail(format!("of empty GID entries: {of_gids}"));
    }
    let at_level = |level| of(&program, "refused_completion_queues", level);
    let (none, errors, all) = (at_level("0")?, at_level("1")?, at_level("5")?);
    let is_error = |line: &str| line.contains(" ERROR: create_cq on ") && line.contains("argument");
    let is_command = |line: &str| line.contains(" TRACE: create_cq: ");
    let right = none.is_empty()
        && errors.lines().any(is_error)
        && !errors.lines().any(is_command)
        && all.lines().any(is_command);
    match right {
        true => Ok(()),
        false => fail(format!("no level: {none}; the first: {errors}; all: {all}")),
    }
}

/// The check of a program that libmlx5 does not pass and that upsets the adapter, and what is right.
fn not_on_libmlx5(program: &str) -> Option<(&'static str, &'static str)> {
    if !device().is_mlx5() {
        return None;
    }
    Some(match program {
        // It rings the doorbell of the two requests before the bad one with words of the bad one, which name
        // no queue pair.
        "posting" => (
            "bad_inline_third",
            "bad_inline_third post: ENOMEM\n\
             bad_inline_third bad: 2\n\
             bad_inline_third completion: 0 success\n\
             bad_inline_third completion: 1 success\n\
             bad_inline_third then: 999 success\n\
             bad_inline_third ends: well",
        ),
        // It counts a request that no setter finishes, and rings for what it has not written.
        "extended" => ("no_setter", include_str!("no_setter.txt")),
        _ => return None,
    })
}

/// The first kernel whose soft-RoCE changes regions.
const CHANGES_REGIONS: (u32, u32) = (6, 2);

/// What is right where libibverbs has nothing to compare with: its provider for soft-RoCE has no domains, no
/// import and does not change regions.
fn right(program: &str) -> Result<BTreeMap<String, Facts>> {
    let facts = match program {
        "domains" if device().is_rxe() => include_str!("domains.txt"),
        "attributes" if device().is_rxe() => include_str!("attributes.txt"),
        _ => "",
    };
    let mut checks = read(facts)?;
    if kernel() < CHANGES_REGIONS {
        // There the kernel refuses, whichever library asks.
        checks.remove("moved_region");
    }
    Ok(checks)
}

/// Catches whatever ours does otherwise than libibverbs, unless it is said why.
fn compare(program: &'static str, checks: usize) -> Result {
    let path = c_program(program)?;
    let device = device().name();
    let gid_index = gid_index(device)?.map_or(-1, i16::from).to_string();
    let run = |library: &Library, which: &[&str]| -> Result<BTreeMap<String, Facts>> {
        library.is_used_by(&path)?;
        read(&tell(
            library,
            &path,
            &[&[device, &gid_index], which].concat(),
        )?)
    };
    let ours = Library::ours()?;
    let left_out = not_on_libmlx5(program);
    let argument = left_out.map(|(check, _)| format!("-{check}"));
    let mut theirs = run(&Library::Theirs, argument.as_deref().as_slice())?;
    theirs.extend(right(program)?);
    if let Some((_, facts)) = left_out {
        theirs.extend(read(facts)?);
    }
    if theirs.len() != checks {
        return fail(format!(
            "{} checks on libibverbs, not {checks}",
            theirs.len()
        ));
    }
    let ours = run(&ours, &[])?;
    let mut found = Vec::new();
    for (check, theirs) in &theirs {
        let none = Facts::new();
        let ours = ours.get(check).unwrap_or(&none);
        found.extend(differing(program, check, ours, theirs));
    }
    match found.is_empty() {
        true => Ok(()),
        false => fail(found.join("\n")),
    }
}

/// What is left behind a check of the connections, with rdma-core's librdmacm and with ours. A request whose
/// queue pair cannot be created is refused here; rdma-core's leaves it to the program. A creation that fails
/// leaves there pointers to completion queues that are gone. A synchronous identifier never leaves a group
/// there.
const LEFT: [(&str, &str, &str); 3] = [
    ("request_without_qp", "the request", "the listener"),
    ("failed_creation", "queues", "nothing"),
    ("leave_synchronously", "no", "well"),
];

/// Catches events of librdmacm that come otherwise than on rdma-core's, and an identifier that never ends.
fn connection() -> Result {
    let program = c_program("connection")?;
    let run = |library: &Library| -> Result<BTreeMap<String, Facts>> {
        library.is_used_by(&program)?;
        read(&tell(library, &program, &[device().name(), "-1"])?)
    };
    let mut theirs = run(&Library::Theirs)?;
    let mut ours = run(&Library::ours_with_rdmacm()?)?;
    for (check, with_theirs, with_ours) in LEFT {
        for (facts, left) in [(&mut theirs, with_theirs), (&mut ours, with_ours)] {
            let check = facts.get_mut(check);
            let told = check.and_then(|check| check.remove(&("left".to_owned(), 0)));
            same(told.as_deref(), Some(left), "what is left")?;
        }
    }
    let well = !theirs.is_empty() && theirs.values().all(ends_well);
    match well && ours == theirs {
        true => Ok(()),
        false => fail(format!("ours says {ours:?}, librdmacm {theirs:?}")),
    }
}

/// Catches objects of a device that is gone that end otherwise than on libibverbs. The second function goes,
/// and comes back each time.
fn removal(hca: Hca) -> Result {
    if hca.roce {
        return skip(
            "what matters is the same on a RoCE port, whose GIDs would have to come back too",
        );
    }
    hca.needs_two()?;
    let program = c_program("removal")?;
    let (_, device) = hca.ends();
    let removed = remove_on_both(&program, &device);
    // Later tests need it, also behind a failure.
    let back = give_address_back(&device);
    removed.and(back)
}

fn remove_on_both(program: &Path, device: &str) -> Result {
    let told = |library: &Library| -> Result<Facts> {
        library.is_used_by(program)?;
        until_so(COMES_BACK, "the device to be there", || {
            let context = uverbs::open(device);
            let port = context.and_then(|context| context.query_port(1));
            Ok(port.is_ok_and(|port| port.state == PortState::Active))
        })?;
        let mut checks = read(&tell(library, program, &[device, "-1"])?)?;
        Ok(checks.remove("removed").unwrap_or_default())
    };
    let (theirs, ours) = (told(&Library::Theirs)?, told(&Library::ours()?)?);
    match ends_well(&theirs) && ours == theirs {
        true => Ok(()),
        false => fail(format!("ours says {ours:?}, libibverbs {theirs:?}")),
    }
}

/// Gives the netdev of the second function, which is a new one, the place and the address of the old one.
fn give_address_back(device: &str) -> Result {
    let netdevs = format!("/sys/class/infiniband/{device}/device/net");
    let netdev = until_within(COMES_BACK, "the function's netdev", || {
        let found = std::fs::read_dir(&netdevs).ok();
        let netdev = found.and_then(|mut netdevs| netdevs.next()?.ok());
        Ok(netdev.map(|netdev| netdev.file_name().to_string_lossy().into_owned()))
    })?;
    run(&format!("ip link set {netdev} netns h2"))?;
    run(&format!("ip -n h2 addr add 10.9.0.2/24 dev {netdev}"))?;
    run(&format!("ip -n h2 link set {netdev} up"))?;
    until_so(COMES_BACK, "the netdev's link", || {
        Ok(run(&format!("ip -n h2 link show {netdev}"))?.contains("LOWER_UP"))
    })
}

/// Where the programs are that were compiled with headers of a later rdma-core.
const NEWER: &str = "newer";

/// Catches a program that was compiled with headers of a later rdma-core, with larger structs, and finds
/// another library than one of the distribution's headers.
fn newer_headers() -> Result {
    let ours = Library::ours()?;
    let device = device().name();
    let gid_index = gid_index(device)?.map_or(-1, i16::from).to_string();
    let mut found = Vec::new();
    for (name, checks) in PROGRAMS {
        let newer = crates::program(&format!("{NEWER}/{name}"))?;
        let of = |program: &Path| -> Result<BTreeMap<String, Facts>> {
            ours.is_used_by(program)?;
            read(&tell(&ours, program, &[device, &gid_index])?)
        };
        let (older, newer) = (of(&c_program(name)?)?, of(&newer)?);
        if newer.len() < checks {
            return fail(format!("{name}: {} checks, not {checks}", newer.len()));
        }
        for (check, older) in &older {
            // How many requests fit, and who was first, is another each time where threads run.
            if name == "threads" && !ends_well(older) {
                continue;
            }
            if newer.get(check) != Some(older) {
                found.push(format!(
                    "{name} {check}: {:?}, not {older:?}",
                    newer.get(check)
                ));
            }
        }
    }
    match found.is_empty() {
        true => Ok(()),
        false => fail(found.join("\n")),
    }
}

/// Where the library lies that was built with the thread sanitizer, beside ours.
const SANITIZED: &str = "../thread";

/// Catches accesses of threads to the same memory that nothing orders: in the library, and between it and a
/// program whose threads share what it allows them to.
fn sanitized() -> Result {
    let Library::Ours(directory) = Library::ours()? else {
        return fail("no library of ours");
    };
    let directory = directory.join(SANITIZED);
    if !directory.join("libibverbs.so.1").is_file() {
        return skip("it is not built with the thread sanitizer: `cargo vm test --full` builds it");
    }
    let (library, program) = (Library::Ours(directory), c_program("threads-sanitized")?);
    let device = device().name();
    let gid_index = gid_index(device)?.map_or(-1, i16::from).to_string();
    let output = library
        .command(&program)
        .args([device, &gid_index])
        .env("TSAN_OPTIONS", "exitcode=66")
        .output()?;
    let complaints = String::from_utf8_lossy(&output.stderr);
    let checks = read(&String::from_utf8(output.stdout)?)?;
    let ended = checks.values().filter(|facts| ends_well(facts)).count();
    let all = PROGRAMS.iter().find(|(name, _)| *name == "threads");
    match output.status.success() && all.is_some_and(|(_, all)| ended == *all) {
        true => Ok(()),
        false => fail(format!("{}: {checks:?}: {complaints}", output.status)),
    }
}

/// Whether the list of lacks has the fact.
fn is_lacking(program: &str, check: &str, fact: &str) -> bool {
    let lines = LACKS.lines().filter(|line| !line.starts_with('#'));
    lines.into_iter().any(|line| {
        let mut parts = line.split('|').map(str::trim);
        let is_of_check = parts.next() == Some(program) && parts.next() == Some(check);
        is_of_check && parts.next().is_some_and(|of| of == "*" || of == fact)
    })
}

/// What differs in a check, in words. Where theirs does not come to the end of the check, nothing is asked of
/// ours, which may go further than theirs anywhere.
fn differing(program: &str, check: &str, ours: &Facts, theirs: &Facts) -> Vec<String> {
    if !ends_well(theirs) {
        return Vec::new();
    }
    let facts = theirs.iter().filter_map(|(key, theirs)| {
        let ours = ours.get(key).map_or("nothing", String::as_str);
        let (fact, number) = key;
        let right = ours == theirs
            || is_lacking(program, check, fact)
            || differences::is_known(program, check, fact, ours, theirs);
        (!right)
            .then(|| format!("{check} {fact} ({number}): ours says {ours}, libibverbs {theirs}"))
    });
    facts.collect()
}

/// Runs a program to its end. It limits its time itself.
fn tell(library: &Library, program: &Path, arguments: &[&str]) -> Result<String> {
    let output = library.command(program).args(arguments).output()?;
    let said = String::from_utf8(output.stdout)?;
    match output.status.success() {
        true => Ok(said),
        false => fail(format!(
            "{} ended with {} on {library:?}: {said}{}",
            program.display(),
            output.status,
            String::from_utf8_lossy(&output.stderr)
        )),
    }
}

/// Reads the lines `CHECK FACT: VALUE`.
fn read(said: &str) -> Result<BTreeMap<String, Facts>> {
    let mut checks = BTreeMap::<String, Facts>::new();
    for line in said.lines() {
        let parts = line.split_once(' ').and_then(|(check, rest)| {
            let (fact, value) = rest.split_once(": ")?;
            Some((check, fact, value))
        });
        let (check, fact, value) = parts.ok_or_else(|| format!("no fact: {line}"))?;
        let facts = checks.entry(check.to_owned()).or_default();
        let number = facts.keys().filter(|(other, _)| other == fact).count();
        facts.insert((fact.to_owned(), number), value.to_owned());
    }
    Ok(checks)
}
