//! What this process and the kernel hold, to be compared before and after.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use support::{is_sanitized, run};

use super::Result;
use super::net::Host;

/// By how much memory may have grown: caches and stacks of the kernel and of the allocator come and go.
const SLACK_KIB: u64 = 24 << 10;

/// How long what is given back may take to be free: the kernel frees some of it later, and in the background.
const PATIENCE: Duration = Duration::from_secs(20);

/// What is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    descriptors: usize,
    /// Mappings of devices.
    rings: usize,
    mappings: usize,
    /// Memory of the process, in KiB.
    process: u64,
    /// Memory that the kernel uses itself, in KiB.
    kernel: u64,
    /// RDMA objects on both devices: `pd 0 cq 0 ...`.
    objects: Vec<String>,
}

impl Held {
    /// What is held now.
    pub(crate) fn now(hosts: &[Host; 2]) -> Result<Self> {
        // SAFETY: the function gives the allocator's free memory back to the kernel, and has no conditions.
        unsafe { libc::malloc_trim(0) };
        let maps = fs::read_to_string("/proc/self/maps")?;
        let memory = fs::read_to_string("/proc/meminfo")?;
        let sum = |names: &[&str]| names.iter().filter_map(|name| kib(&memory, name)).sum();
        Ok(Self {
            descriptors: fs::read_dir("/proc/self/fd")?.count(),
            rings: maps
                .lines()
                .filter(|line| line.contains("infiniband"))
                .count(),
            mappings: maps.lines().count(),
            process: kib(&fs::read_to_string("/proc/self/status")?, "RssAnon")
                .ok_or("no RssAnon")?,
            kernel: sum(&[
                "SUnreclaim",
                "KernelStack",
                "PageTables",
                "Percpu",
                "VmallocUsed",
            ]),
            objects: hosts.iter().map(objects).collect::<Result<_>>()?,
        })
    }

    /// Waits until no more is held than before; fails with what is.
    pub(crate) fn await_back(&self, hosts: &[Host; 2]) -> Result<Self> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let now = Self::now(hosts)?;
            match now.beyond(self) {
                None => return Ok(now),
                Some(what) if Instant::now() > deadline => {
                    return Err(format!("leaked {what}: before {self:?}, after {now:?}").into());
                }
                Some(_) => thread::sleep(Duration::from_millis(100)),
            }
        }
    }

    /// What is held now and was not before.
    fn beyond(&self, before: &Self) -> Option<&'static str> {
        // A sanitizer keeps what was freed.
        let tells = !is_sanitized();
        [
            (self.descriptors > before.descriptors, "file descriptors"),
            (self.rings > before.rings, "mapped rings"),
            // The allocator keeps an arena for each thread that there was.
            (tells && self.mappings > before.mappings + 16, "mappings"),
            (
                tells && self.process > before.process + SLACK_KIB,
                "memory of the process",
            ),
            (
                self.kernel > before.kernel + SLACK_KIB,
                "memory of the kernel",
            ),
            (self.objects != before.objects, "RDMA objects"),
        ]
        .into_iter()
        .find_map(|(more, what)| more.then_some(what))
    }
}

/// `Name:   123 kB` in a file of /proc.
fn kib(text: &str, name: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The counts of a device's objects.
fn objects(host: &Host) -> Result<String> {
    let all = run(&format!("rdma resource show {}", host.device))?;
    let counts = all
        .split_once(": ")
        .ok_or_else(|| format!("rdma said {all:?}"))?;
    Ok(counts.1.trim().to_owned())
}
