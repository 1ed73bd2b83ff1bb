//! Child processes: this program again, in a role that its first arguments name.

use std::io::{BufRead, BufReader, Lines, Read, Seek};
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, set_parent_process_death_signal};

use crate::wait::PROCESS;
use crate::{Result, fail};

/// The first argument of a process that has a role. The role's name and its own arguments follow.
const FLAG: &str = "--role";

/// A role: its name, and what is done in it.
pub type Role = (&'static str, fn() -> Result);

/// The role of this process, and its arguments, if it is not the test program itself.
pub fn own() -> Option<(String, Vec<String>)> {
    let mut words = std::env::args().skip(1);
    (words.next()? == FLAG).then_some(())?;
    die_with_parent();
    Some((words.next()?, words.collect()))
}

/// Plays the role that this process was started for, if it was.
pub fn play(roles: &[Role]) -> Option<ExitCode> {
    let (name, _) = own()?;
    let role = roles.iter().find(|role| role.0 == name);
    let result = role.map_or_else(|| Err(format!("no role {name}").into()), |role| role.1());
    Some(match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error}");
            ExitCode::FAILURE
        }
    })
}

/// The device that this process was told to use: the first argument of its role.
///
/// # Errors
/// If it was told none.
pub fn device() -> Result<String> {
    let arguments = own().map(|(_, arguments)| arguments);
    let first = arguments.and_then(|arguments| arguments.into_iter().next());
    Ok(first.ok_or("the role has no device")?)
}

/// This program in a role.
///
/// # Errors
/// If the program cannot be found.
pub fn command(name: &str, arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args([FLAG, name]).args(arguments);
    Ok(command)
}

/// This program in a role, which is killed before it makes the call of this name for the `nth` time, counted
/// from 1 and in each of its threads. strace does it, and ends as the role does.
///
/// # Errors
/// If the program cannot be found.
pub fn killed_at(name: &str, arguments: &[&str], (call, nth): Step) -> Result<Command> {
    let role = command(name, arguments)?;
    let mut command = Command::new("strace");
    command
        .args(["-f", "-qq", "-o", "/dev/null", "-e", "signal=none"])
        .args(["-e", &format!("trace={call}")])
        .args(["-e", &format!("inject={call}:signal=SIGKILL:when={nth}")])
        .arg(role.get_program())
        .args(role.get_args())
        // Should strace itself be killed, nobody would be left to end the role.
        .env(DIES_WITH_PARENT, "1");
    Ok(command)
}

/// A system call, and which one of its kind.
pub type Step = (&'static str, usize);

/// Set for a role that must not outlive what has started it.
const DIES_WITH_PARENT: &str = "TEST_ROLE_DIES_WITH_PARENT";

/// Has this process end with its parent, if it was started so.
fn die_with_parent() {
    if std::env::var_os(DIES_WITH_PARENT).is_some() {
        // Without it the process ends with its own limits.
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
    }
}

/// The arguments of this process's role.
///
/// # Errors
/// If it has no role.
pub fn words() -> Result<Vec<String>> {
    Ok(own().ok_or("no role")?.1)
}

/// Says how far this process has come, and stays until it is killed.
///
/// # Errors
/// If nobody kills it.
pub fn stay(step: &str) -> Result {
    println!("{step}");
    std::thread::sleep(2 * PROCESS);
    fail("nobody has killed this process")
}

/// A process in a role, which says a line at each step. It is killed when this is dropped.
#[derive(Debug)]
pub struct Peer {
    child: Child,
    says: Lines<BufReader<ChildStdout>>,
}

impl Peer {
    /// Starts it.
    ///
    /// # Errors
    /// If the program cannot be started.
    pub fn start(name: &str, words: &[&str]) -> Result<Self> {
        Self::spawn(command(name, words)?)
    }

    /// Starts one that is killed at this step.
    ///
    /// # Errors
    /// As of [`start`](Self::start).
    pub fn start_killed_at(name: &str, words: &[&str], step: Step) -> Result<Self> {
        Self::spawn(killed_at(name, words, step)?)
    }

    fn spawn(mut command: Command) -> Result<Self> {
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let says = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
        Ok(Self { child, says })
    }

    /// The next line that it says.
    ///
    /// # Errors
    /// If it has ended.
    pub fn hear(&mut self) -> Result<String> {
        Ok(self.says.next().ok_or("the peer has ended")??)
    }

    /// Whether it has ended.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Kills it, and waits until it is gone.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn kill(mut self) -> Result {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It has ended already, if all went well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Plays a role in a process of its own, on the device under test: for a test that changes its process.
///
/// # Errors
/// If the role fails.
pub fn in_process(name: &str) -> Result {
    finish(&mut command(name, &[crate::device().name()])?).map(drop)
}

/// Runs a program to its end, which must be a success, and gives what it printed.
///
/// # Errors
/// If it fails or does not end in time; the error has what it printed.
pub fn finish(command: &mut Command) -> Result<String> {
    // Files: nobody reads before the child has ended, and it may say more than a pipe holds.
    let (mut said, mut complained) = (tempfile::tempfile()?, tempfile::tempfile()?);
    command.stdin(Stdio::null());
    command
        .stdout(said.try_clone()?)
        .stderr(complained.try_clone()?);
    let mut child = command.spawn()?;
    let ended = await_end(&mut child);
    let mut words = String::new();
    for file in [&mut said, &mut complained] {
        file.rewind()?;
        file.read_to_string(&mut words)?;
    }
    ended.map_err(|error| format!("{error}: {words}"))?;
    let status = child.wait()?;
    match status.success() {
        true => Ok(words),
        false => fail(format!("the child ended with {status}: {words}")),
    }
}

/// Waits for a child's end, and kills it if it does not come.
///
/// # Errors
/// If it did not.
pub fn await_end(child: &mut Child) -> Result {
    let pid = Pid::from_raw(child.id() as i32).ok_or("no pid")?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    let mut waited = [PollFd::new(&pidfd, PollFlags::IN)];
    let limit = PROCESS.try_into()?;
    if retry_on_intr(|| poll(&mut waited, Some(&limit)))? == 1 {
        return Ok(());
    }
    child.kill()?;
    child.wait()?;
    fail(format!("the child did not end within {PROCESS:?}"))
}
