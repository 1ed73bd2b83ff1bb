//! Child processes: this program again, in a role that is named by an environment variable.

use std::io::Read;
use std::process::{Child, Command, ExitCode, Stdio};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::{LIMIT, Result};

/// The variable that names the role.
const VARIABLE: &str = "UVERBS_TEST_ROLE";

/// The variable that names the device to play it on.
const DEVICE: &str = "UVERBS_TEST_DEVICE";

/// A role: its name, and what is done in it.
pub(crate) type Role = (&'static str, fn() -> Result);

/// Plays the role that this process was started for, if it was.
pub(crate) fn play(roles: &[Role]) -> Option<ExitCode> {
    let name = std::env::var(VARIABLE).ok()?;
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

/// The device that this process was told to use.
pub(crate) fn device() -> Result<String> {
    Ok(std::env::var(DEVICE)?)
}

/// This program in a role, to be started by itself or by another program such as strace.
pub(crate) fn command(name: &str, device: &str) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    cast(&mut command, name, device);
    Ok(command)
}

/// Tells a program that it, or the one that it starts, has a role.
pub(crate) fn cast(command: &mut Command, name: &str, device: &str) {
    command.env(VARIABLE, name).env(DEVICE, device);
}

/// Runs a program to its end, which must be a success, and gives what it printed.
pub(crate) fn finish(command: &mut Command) -> Result<String> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    await_end(&mut child)?;
    let mut said = String::new();
    for stream in [
        child
            .stdout
            .take()
            .map(|out| Box::new(out) as Box<dyn Read>),
        child
            .stderr
            .take()
            .map(|err| Box::new(err) as Box<dyn Read>),
    ]
    .into_iter()
    .flatten()
    {
        let mut stream = stream;
        stream.read_to_string(&mut said)?;
    }
    let status = child.wait()?;
    if status.success() {
        Ok(said)
    } else {
        Err(format!("the child ended with {status}: {said}").into())
    }
}

/// Waits for a child's end, and kills it if it does not come.
pub(crate) fn await_end(child: &mut Child) -> Result {
    let pid = Pid::from_raw(child.id() as i32).ok_or("no pid")?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    let mut waited = [PollFd::new(&pidfd, PollFlags::IN)];
    if poll(&mut waited, Some(&LIMIT.try_into()?))? == 1 {
        return Ok(());
    }
    child.kill()?;
    child.wait()?;
    Err(format!("the child did not end within {LIMIT:?}").into())
}
