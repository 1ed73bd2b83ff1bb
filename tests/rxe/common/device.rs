//! Devices: the guest's own, and ones that a test makes for itself, to break them or to count what is on them.

use std::process::{self, Command};
use std::sync::atomic::{AtomicU32, Ordering};

use uverbs::{Context, Errno};

use super::{Result, until};
use crate::device::{device, settle};

/// Opens the device that the guest has from the start.
pub(crate) fn open() -> Result<Context> {
    Ok(uverbs::open(device().name())?)
}

/// Runs a program that must succeed, and gives what it printed.
pub(crate) fn run(command: &str) -> Result<String> {
    let mut words = command.split_whitespace();
    let program = words.next().ok_or("no program")?;
    let output = Command::new(program)
        .args(words)
        .output()
        .map_err(|error| format!("`{command}`: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(format!("`{command}` ended with {}: {said}", output.status).into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A device that nobody else uses. Soft-RoCE's is made for one test, with the network interface under it, and both are
/// removed when it is dropped. An adapter cannot be made: there it is the guest's, for a test at a time.
pub(crate) struct OwnDevice {
    /// The RDMA device's name.
    pub(crate) name: String,
    /// The network interface's name.
    pub(crate) netdev: String,
    made: bool,
}

impl OwnDevice {
    /// Makes the two and waits for the address to appear in the GID table.
    pub(crate) fn new() -> Result<Self> {
        if device().is_mlx5() {
            let name = device().name();
            settle(name)?;
            return Ok(Self {
                name: name.to_owned(),
                netdev: String::new(),
                made: false,
            });
        }
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let id = process::id() % 0x1_0000;
        let device = Self {
            name: format!("rx{id}_{number}"),
            netdev: format!("dm{id}_{number}"),
            made: true,
        };
        let netdev = &device.netdev;
        let [high, low] = [id / 256, id % 256];
        run(&format!("ip link add {netdev} type dummy"))?;
        run(&format!(
            "ip addr add 10.{}.{low}.{}/32 dev {netdev}",
            128 + high % 64,
            1 + number
        ))?;
        run(&format!("ip link set {netdev} up"))?;
        run(&format!(
            "rdma link add {} type rxe netdev {netdev}",
            device.name
        ))?;
        device.await_address()?;
        Ok(device)
    }

    /// Opens it.
    pub(crate) fn open(&self) -> Result<Context> {
        Ok(uverbs::open(&self.name)?)
    }

    /// Removes the RDMA device, as an administrator does.
    pub(crate) fn remove(&self) -> Result {
        run(&format!("rdma link del {}", self.name)).map(drop)
    }

    /// GIDs come from a work queue of the kernel, the device node from devtmpfs: both some time after the device.
    fn await_address(&self) -> Result {
        let context = until("the character device", || match uverbs::open(&self.name) {
            Ok(context) => Ok(Some(context)),
            Err(error) if error.errno() == Some(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        })?;
        until("a GID of the address", || {
            let table = context.gid_table()?;
            Ok(table
                .iter()
                .any(|entry| entry.gid.as_ipv4().is_some())
                .then_some(()))
        })
    }
}

impl Drop for OwnDevice {
    fn drop(&mut self) {
        if !self.made {
            return;
        }
        // Either may be gone already, which is then what the test was about.
        let _ = run(&format!("rdma link del {}", self.name));
        let _ = run(&format!("ip link del {}", self.netdev));
    }
}

/// How many objects of each kind the kernel has on a device, of all processes: "pd 1 cq 1 qp 1 cm_id 0 mr 0 ctx 0".
pub(crate) fn resources(device: &str) -> Result<String> {
    let all = run(&format!("rdma resource show {device}"))?;
    let counts = all
        .split_once(&format!(" {device}: "))
        .ok_or_else(|| format!("no counts of {device} in {all:?}"))?;
    Ok(counts.1.trim().to_owned())
}

/// Waits until the kernel has as many objects as it had. It counts down when an object's last user is gone, which
/// may be a packet still under way.
pub(crate) fn await_resources(device: &str, before: &str) -> Result {
    let mut last = String::new();
    let back = until("the kernel's resource count", || {
        last = resources(device)?;
        Ok((last == before).then_some(()))
    });
    back.map_err(|error| format!("{error}: {last}, and before {before}").into())
}
