//! Devices that a test makes for itself, to break them or to count what is on them.

use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use uverbs::{Context, error::Errno};

use crate::device::settle;
use crate::{Result, device, run, until};

/// A device that nobody else uses. Soft-RoCE's is made for one test, with the network interface under it, and
/// both are removed when it is dropped. An adapter cannot be made: there it is the guest's, for a test at a
/// time.
#[derive(Debug)]
pub struct OwnDevice {
    /// The RDMA device's name.
    pub name: String,
    /// The network interface's name.
    pub netdev: String,
    made: bool,
}

impl OwnDevice {
    /// Makes the two and waits for the address to appear in the GID table.
    ///
    /// # Errors
    /// If one cannot be made.
    pub fn new() -> Result<Self> {
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
        await_address(&device.name)?;
        Ok(device)
    }

    /// Opens it.
    ///
    /// # Errors
    /// If it has gone.
    pub fn open(&self) -> Result<Context> {
        Ok(uverbs::open(&self.name)?)
    }

    /// Removes the RDMA device, as an administrator does.
    ///
    /// # Errors
    /// If `rdma` fails.
    pub fn remove(&self) -> Result {
        run(&format!("rdma link del {}", self.name)).map(drop)
    }
}

/// Waits for a new device's address: GIDs come from a work queue of the kernel, the device node from
/// devtmpfs, both some time after the device.
///
/// # Errors
/// If it does not come.
pub fn await_address(name: &str) -> Result {
    let context = until("the character device", || match uverbs::open(name) {
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
