//! The system calls of a role, as strace tells them.

use std::process::Command;

use crate::{Result, role};

/// System calls in their order, a line each, with descriptors named by their paths.
#[derive(Debug)]
pub struct Trace(Vec<String>);

/// Plays a role under strace; `calls` names the system calls to trace, as its option `-e` does. The others
/// run at their own speed.
///
/// # Errors
/// If strace or the role fails.
pub fn traced(name: &str, device: &str, calls: &str) -> Result<Trace> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("trace");
    let role = role::command(name, &[device])?;
    let mut command = Command::new("strace");
    command
        .args(["-f", "--seccomp-bpf", "-y", "-qq", "-e", "signal=none"])
        .args(["-e", &format!("trace={calls}"), "-o"])
        .arg(&file)
        .arg(role.get_program())
        .args(role.get_args());
    role::finish(&mut command)?;
    let text = std::fs::read_to_string(&file)?;
    // A line starts with the process's number.
    let call = |line: &str| {
        line.split_once(' ')
            .map(|(_, call)| call.trim_start().to_owned())
    };
    Ok(Trace(text.lines().filter_map(call).collect()))
}

impl Trace {
    /// The calls for which `keep` holds.
    pub fn only(mut self, keep: impl Fn(&str) -> bool) -> Self {
        self.0.retain(|call| keep(call));
        self
    }

    /// The calls of one name.
    pub fn of(&self, name: &str) -> Vec<&str> {
        self.0
            .iter()
            .map(String::as_str)
            .filter(|call| call.split('(').next() == Some(name))
            .collect()
    }

    /// The calls between one [`mark`] and the next, for all of them.
    pub fn sections(&self) -> Vec<&[String]> {
        let mut sections: Vec<_> = self.0.split(|call| call.starts_with("getppid(")).collect();
        // What came before the first mark and after the last.
        sections.pop();
        if !sections.is_empty() {
            sections.remove(0);
        }
        sections
    }
}

/// Marks the end of a stage in the trace of a role, by a call that nothing else makes.
pub fn mark() {
    let _ = rustix::process::getppid();
}

/// The names of system calls.
pub fn names(calls: &[String]) -> Vec<String> {
    let name = |call: &String| call.split('(').next().unwrap_or_default().to_owned();
    calls.iter().map(name).collect()
}
