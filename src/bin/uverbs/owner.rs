//! The owners of objects: processes, and parts of the kernel.

use std::fmt;

use uverbs::resource::ResourceOwner;

use crate::files::Files;

/// A process, or a part of the kernel; neither, if the kernel does not tell.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Owner {
    pub(crate) pid: Option<u32>,
    pub(crate) comm: Option<String>,
}

impl Owner {
    /// The owner. Of a process the kernel tells the thread that created the object, not the process.
    pub(crate) fn of(files: &Files, owner: &ResourceOwner) -> Self {
        match owner {
            ResourceOwner::Process(thread) => {
                let pid = process(files, *thread);
                Self {
                    pid: Some(pid),
                    comm: files.text(format!("proc/{pid}/comm")).ok(),
                }
            }
            ResourceOwner::Kernel(name) => Self {
                pid: None,
                comm: Some(name.clone()),
            },
            _ => Self {
                pid: None,
                comm: None,
            },
        }
    }

    /// Whether it is the same owner: a process may change its name.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (self.pid, other.pid) {
            (None, None) => self.comm == other.comm,
            (one, other) => one == other,
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(self.comm.as_deref().unwrap_or("-"))?;
        match self.pid {
            Some(pid) => write!(to, " ({pid})"),
            None => Ok(()),
        }
    }
}

/// The process of a thread. A thread that has ended since the kernel told of it keeps its own number.
fn process(files: &Files, thread: u32) -> u32 {
    let status = files.text(format!("proc/{thread}/status"));
    let status = status.unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    line.and_then(|pid| pid.trim().parse().ok())
        .unwrap_or(thread)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::host;

    /// Catches objects of a process's later threads that are told as another process's.
    #[test]
    fn a_thread_stands_for_its_process() {
        let files = host(
            "owners",
            &[
                ("proc/78/status", "Name:\tworker\nTgid:\t77\nPid:\t78\n"),
                ("proc/78/comm", "worker\n"),
                ("proc/77/status", "Name:\tserver\nTgid:\t77\nPid:\t77\n"),
                ("proc/77/comm", "server\n"),
            ],
        );
        let server = Owner {
            pid: Some(77),
            comm: Some("server".into()),
        };
        let of = |owner| Owner::of(&files, &owner);
        assert_eq!(of(ResourceOwner::Process(78)), server);
        assert_eq!(of(ResourceOwner::Process(77)), server);
        let ended = of(ResourceOwner::Process(79));
        assert_eq!((ended.pid, ended.comm), (Some(79), None));
        let kernel = of(ResourceOwner::Kernel("ib_core".into()));
        assert_eq!(kernel.to_string(), "ib_core");
        assert_eq!(of(ResourceOwner::Unknown).to_string(), "-");
    }

    #[test]
    fn a_process_that_changes_its_name_is_the_same() {
        let named = |pid, comm: &str| Owner {
            pid,
            comm: Some(comm.into()),
        };
        assert!(named(Some(7), "a").is_same(&named(Some(7), "b")));
        assert!(!named(Some(7), "a").is_same(&named(Some(8), "a")));
        assert!(!named(None, "ib_core").is_same(&named(None, "rdma_cm")));
        assert!(!named(None, "a").is_same(&named(Some(7), "a")));
    }
}
