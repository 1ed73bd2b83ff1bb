//! Commands that a sandbox refuses, one after the other: the error names the verb, nothing is left behind,
//! and nothing hangs.
//!
//! strace refuses them with an errno of its choice, as a seccomp filter does. The kernels here have no fault
//! injection of their own (`CONFIG_FAULT_INJECTION` is not set in Debian's).

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use libtest_mimic::Trial;
use support::role::{self, Role, await_end};
use support::{
    Device, Objects, Result, completion, device, fail, is_full, same, skip, test_without_leaks,
};
use uverbs::context::{OpenOptions, Route};
use uverbs::{Access, Caps, Inline, Rc};

pub(crate) const ROLES: [Role; 1] = [("one_of_each", one_of_each)];

pub(crate) fn tests() -> Vec<Trial> {
    ["EPERM", "ENOSYS", "ENOMEM"]
        .map(|errno| {
            let name = format!("refused::each_command_with_{}", errno.to_lowercase());
            test_without_leaks(name, move || each(errno))
        })
        .into()
}

/// What a role says that nothing was refused.
const UNDISTURBED: &str = "all of it, undisturbed";

/// More commands than a role sends.
const MOST: usize = 200;

/// Refuses the first command, and then the second, until there is none of that number. Catches a command
/// whose failure is not told or told of another verb, an object that is left, and a process that hangs or
/// panics.
fn each(errno: &str) -> Result {
    if !is_full() {
        return skip("a process for each command: a part of `cargo vm test --full`");
    }
    if matches!(device(), Device::Efa) {
        return skip("the role's queue pair is a reliable connection, which an EFA lacks");
    }
    let mut verbs = BTreeSet::new();
    let mut undisturbed = 0;
    for nth in 1..=MOST {
        let said = refuse(errno, nth)
            .map_err(|error| format!("command {nth} refused with {errno}: {error}"))?;
        println!("{nth}: {said}");
        if said == UNDISTURBED {
            // There is another way for what was refused; or there is no such command any more.
            undisturbed += 1;
            if undisturbed == 3 {
                println!("told of {verbs:?}");
                return same(verbs.len() >= 12, true, "as many verbs as there are");
            }
            continue;
        }
        undisturbed = 0;
        // *verb* on *object*: why.
        let error = said.strip_prefix("refused: ").unwrap_or_default();
        let (verb, rest) = error.split_once(" on ").unwrap_or_default();
        let is_word = !verb.is_empty() && !verb.contains(' ');
        same(
            is_word && rest.contains(": "),
            true,
            &format!("verb and object in {said:?}"),
        )?;
        verbs.insert(verb.to_owned());
    }
    fail(format!("more than {MOST} commands"))
}

/// Plays the role with its nth command refused, and gives what it says.
fn refuse(errno: &str, nth: usize) -> Result<String> {
    let before = Objects::of_all_devices()?;
    let role = role::command("one_of_each", &[device().name()])?;
    let mut process = Command::new("strace")
        // Without `--seccomp-bpf`, which counts otherwise.
        .args(["-qq", "-o", "/dev/null", "-e", "signal=none"])
        .args(["-e", "trace=ioctl"])
        .args(["-e", &format!("inject=ioctl:error={errno}:when={nth}")])
        .arg(role.get_program())
        .args(role.get_args())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut said = String::new();
    BufReader::new(process.stdout.take().ok_or("no output")?).read_line(&mut said)?;
    // While the process is there: its end takes everything with it.
    let left = before.await_back();
    drop(process.stdin.take());
    await_end(&mut process)?;
    left.map_err(|error| format!("{error}; it said {said:?}"))?;
    Ok(said.trim().to_owned())
}

/// Makes one object of each kind, uses them and lets them go, says how that went, and stays until its input
/// ends. It starts no other process: that takes calls of ioctl(2) too.
fn one_of_each() -> Result {
    match make().map_err(|error| error.downcast::<uverbs::Error>()) {
        Ok(()) => println!("{UNDISTURBED}"),
        Err(Ok(refused)) => println!("refused: {refused}"),
        Err(Err(other)) => println!("something else: {other}"),
    }
    std::io::stdin().lines().for_each(drop);
    Ok(())
}

fn make() -> Result {
    let device = uverbs::device::find(&role::device()?)?;
    let context = OpenOptions::new().route(Route::Ioctl).open(&device)?;
    let pd = context.alloc_pd()?;
    let channel = context.create_channel()?;
    let mut cq = context.cq(16).channel(&channel).create()?;
    let srq = pd.srq(16).create()?;
    let mr = pd.register(vec![0; 64], Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    let mr = mr.map_err(|failed| failed.error)?;
    let mut qp = pd.create_qp::<Rc>(&cq, Caps::default())?;
    let endpoint = qp.endpoint()?;
    qp.connect(&endpoint)?;
    // The doorbell is a command of soft-RoCE.
    let written = qp.one(1).write(Inline(b"here"), mr.remote().slice(..4)?);
    written.map_err(uverbs::Error::from)?;
    completion(&mut cq)?.ok()?;
    qp.reset()?;
    cq.resize(32)?;
    qp.destroy().map_err(|failed| failed.error)?;
    mr.deregister().map_err(|failed| failed.error)?;
    srq.destroy().map_err(|failed| failed.error)?;
    cq.destroy().map_err(|failed| failed.error)?;
    drop(channel);
    pd.dealloc().map_err(|failed| failed.error)?;
    Ok(())
}
