//! Commands that a sandbox refuses, one after the other: the error names the verb, nothing is left behind,
//! and nothing hangs.
//!
//! strace refuses them with an errno of its choice, as a seccomp filter does. The kernels here have no fault
//! injection of their own (`CONFIG_FAULT_INJECTION` is not set in Debian's).

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::role::{self, await_end};
use crate::{Objects, Result, fail, same};

/// What a role says that nothing was refused.
const UNDISTURBED: &str = "all of it, undisturbed";

/// More commands than a role sends.
const MOST: usize = 200;

/// Commands that are refused to a role of this program, which ends with [`tell`].
#[derive(Clone, Copy, Debug)]
pub struct Refused<'a> {
    /// The role's name.
    pub role: &'a str,
    /// Its arguments.
    pub arguments: &'a [&'a str],
    /// The system call by which the commands go.
    pub call: &'a str,
    /// The file that they go to; none if all calls of the name are commands.
    pub file: Option<&'a Path>,
    /// What the call fails with.
    pub errno: &'a str,
}

impl Refused<'_> {
    /// Refuses the first command, and then the second, until there is none of that number. As many verbs at
    /// least must be told of.
    ///
    /// # Errors
    /// A command whose failure is not told or told without verb and object, an object that is left, and a
    /// process that hangs or panics.
    pub fn each(&self, verbs: usize) -> Result {
        let mut told = BTreeSet::new();
        let mut undisturbed = 0;
        for nth in 1..=MOST {
            let errno = self.errno;
            let said = self
                .refuse(nth)
                .map_err(|error| format!("command {nth} refused with {errno}: {error}"))?;
            println!("{nth}: {said}");
            if said == UNDISTURBED {
                // There is another way for what was refused; or there is no such command any more.
                undisturbed += 1;
                if undisturbed == 3 {
                    println!("told of {told:?}");
                    return same(told.len() >= verbs, true, "as many verbs as there are");
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
            told.insert(verb.to_owned());
        }
        fail(format!("more than {MOST} commands"))
    }

    /// Plays the role with its nth command refused, and gives what it says.
    fn refuse(&self, nth: usize) -> Result<String> {
        let before = Objects::of_all_devices()?;
        let role = role::command(self.role, self.arguments)?;
        let mut strace = Command::new("strace");
        // Without `--seccomp-bpf`, which counts otherwise.
        strace
            .args(["-qq", "-o", "/dev/null", "-e", "signal=none"])
            .args(["-e", &format!("trace={}", self.call)])
            .args([
                "-e",
                &format!("inject={}:error={}:when={nth}", self.call, self.errno),
            ]);
        if let Some(file) = self.file {
            strace.arg("-P").arg(file);
        }
        let mut process = strace
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
}

/// Says how what a role did went, and stays until its input ends. The role starts no other process: that
/// takes calls of ioctl(2) too.
///
/// # Errors
/// None; it is the role's result.
pub fn tell(done: Result) -> Result {
    match done.map_err(|error| error.downcast::<uverbs::Error>()) {
        Ok(()) => println!("{UNDISTURBED}"),
        Err(Ok(refused)) => println!("refused: {refused}"),
        Err(Err(other)) => println!("something else: {other}"),
    }
    std::io::stdin().lines().for_each(drop);
    Ok(())
}
