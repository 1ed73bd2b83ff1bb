//! The places of adapters: their PCI switch and NUMA node, the CPUs near them, and their links.
//!
//! Everything comes from sysfs and is as of when it was read; no device is opened. This is for programs that
//! have several adapters and want each worker, and each GPU, to use the adapters near it:
//!
//! ```no_run
//! use uverbs::device::{Near, topology};
//!
//! let topology = topology()?;
//! for adapter in topology.nearest(Near::Pci("0000:0f:00.0".parse()?))? {
//!     println!("{} is next to the GPU", adapter.device.name());
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod cpus;
mod near;
mod pci;

pub use cpus::CpuList;
pub use near::{Distance, Near};
pub use pci::{PciAddress, PciLink, PciPath};

use super::bandwidth::Bandwidth;
use super::failure::Failure;
use super::port::Port;
use super::sysfs::Sysfs;
use super::{Device, Discovery};
use crate::error::{Result, Subject, Verb};

/// Reads the places of the adapters of this network namespace.
///
/// # Errors
/// As for [`devices`](super::devices); a file of sysfs is malformed.
pub fn topology() -> Result<Topology> {
    Discovery::Automatic.topology()
}

/// The adapters with their places.
/// It also has adapters that sysfs says nothing about, without a place: software devices without a hardware
/// network device, and all adapters if sysfs is not mounted.
#[derive(Clone, Debug)]
pub struct Topology {
    adapters: Vec<Adapter>,
    nodes: Vec<NumaNode>,
    sysfs: Sysfs,
}

/// An adapter and its place.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Adapter {
    /// The device.
    pub device: Device,
    /// Its place; for a device made of software, the place of its network device. `None` if there is none.
    pub place: Option<Place>,
    /// The number of its rail, from 0. Adapters with the same number are behind one root port, so that they
    /// share a PCI switch and its path to memory, or are functions of one card.
    pub rail: usize,
    /// Its ports.
    pub ports: Vec<AdapterPort>,
}

/// A place on the PCI bus.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Place {
    /// The path from the host bridge.
    pub path: PciPath,
    /// The NUMA node, if the firmware reports it.
    pub numa_node: Option<u32>,
    /// The CPUs near it: the CPUs of the node, or all.
    pub cpus: CpuList,
    /// The PCI link in its present state. `None` if there is none, as on an emulated bus.
    pub link: Option<PciLink>,
    /// The PCI link at its best. The link is slower than that if the slot is, or if the link is bad.
    pub max_link: Option<PciLink>,
}

/// A port of an adapter.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct AdapterPort {
    /// Number, states and network device.
    pub port: Port,
    /// The bandwidth of its link in its present state. soft-RoCE reports that of its network device, and
    /// 2.5 Gb/s if that is 1 Gb/s or less, or unknown (`ib_get_eth_speed` of the kernel).
    pub bandwidth: Option<Bandwidth>,
    /// Lanes of its link.
    pub lanes: Option<u32>,
    /// The bond that its network device is, or belongs to.
    pub lag: Option<Lag>,
}

/// A link aggregation: a bond of network devices (`drivers/net/bonding` of the kernel).
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Lag {
    /// The bond's name.
    pub name: String,
    /// The names of its network devices.
    pub members: Vec<String>,
}

/// A NUMA node.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct NumaNode {
    /// Its number.
    pub number: u32,
    /// Its CPUs; empty if it has only memory.
    pub cpus: CpuList,
    /// The distance of each online node, in their order, as the firmware rates it: 10 is the node itself.
    pub distances: Vec<u32>,
}

impl Discovery {
    /// Reads the places of the adapters that this source finds.
    ///
    /// # Errors
    /// As for [`Discovery::devices`]; a file of sysfs is malformed.
    pub fn topology(&self) -> Result<Topology> {
        let sysfs = match self {
            Self::Sysfs(root) => Sysfs::at(root),
            Self::Automatic | Self::Netlink => Sysfs::default(),
        };
        let mut adapters = Vec::new();
        for device in self.devices()? {
            match adapter(device, &sysfs) {
                // It has gone since it was listed.
                Err(error) if error.is_device_gone() => {}
                adapter => adapters.push(adapter?),
            }
        }
        number_rails(&mut adapters);
        Ok(Topology {
            adapters,
            nodes: sysfs.numa_nodes().map_err(failed)?,
            sysfs,
        })
    }
}

impl Topology {
    /// The adapters, in the order of [`devices`](super::devices).
    pub fn adapters(&self) -> &[Adapter] {
        &self.adapters
    }

    /// The NUMA nodes that are online; empty if the kernel reports none.
    pub fn numa_nodes(&self) -> &[NumaNode] {
        &self.nodes
    }

    /// The adapters by rail, in the order of the rails' numbers.
    pub fn rails(&self) -> Vec<Vec<&Adapter>> {
        let count = self.adapters.iter().map(|adapter| adapter.rail + 1).max();
        let mut rails = vec![Vec::new(); count.unwrap_or(0)];
        for adapter in &self.adapters {
            rails[adapter.rail].push(adapter);
        }
        rails
    }
}

fn adapter(device: Device, sysfs: &Sysfs) -> Result<Adapter> {
    let ports = device.ports()?;
    let name = device.name();
    let first_netdev = ports.iter().find_map(|port| port.netdev.as_ref());
    let place = sysfs
        .place_of_device(name, first_netdev)
        .map_err(|failure| failure.of(Verb::ListDevices, Subject::named("device", name)))?;
    let ports: Result<_, Failure> = ports
        .into_iter()
        .map(|port| sysfs.adapter_port(name, port))
        .collect();
    Ok(Adapter {
        ports: ports.map_err(failed)?,
        rail: 0,
        place,
        device,
    })
}

/// Numbers the rails in the order of their first adapters.
fn number_rails(adapters: &mut [Adapter]) {
    let mut rails = 0;
    for at in 0..adapters.len() {
        let (before, rest) = adapters.split_at_mut(at);
        let same = before
            .iter()
            .find(|adapter| share_a_rail(adapter, &rest[0]));
        rest[0].rail = match same {
            Some(adapter) => adapter.rail,
            None => {
                rails += 1;
                rails - 1
            }
        };
    }
}

fn share_a_rail(a: &Adapter, b: &Adapter) -> bool {
    match (&a.place, &b.place) {
        (Some(a), Some(b)) => {
            Distance::on_the_bus(&a.path, &b.path).is_some_and(|far| far <= Distance::Switch)
        }
        _ => false,
    }
}

fn failed(failure: Failure) -> crate::error::Error {
    failure.of(Verb::ListDevices, Subject::the("topology"))
}

#[cfg(test)]
mod tests;
