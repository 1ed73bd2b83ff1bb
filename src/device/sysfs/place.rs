//! The places of devices, by sysfs.
//!
//! Sources: `drivers/pci/pci-sysfs.c`, `drivers/base/node.c`, `drivers/net/bonding/bond_sysfs.c`, `rate_show`
//! in `drivers/infiniband/core/sysfs.c`, `Documentation/ABI/testing/sysfs-bus-pci`.

use std::path::{Path, PathBuf};

use super::attribute::{entries, if_told, nonsense, parsed, text};
use super::{Sysfs, is_file_name};
use crate::device::bandwidth::Bandwidth;
use crate::device::failure::Failure;
use crate::device::port::{Netdev, Port};
use crate::device::topology::{
    AdapterPort, CpuList, Lag, NumaNode, PciAddress, PciLink, PciPath, Place,
};

impl Sysfs {
    /// The place of the RDMA device or, if it is made of software, of this network device.
    pub(in crate::device) fn place_of_device(
        &self,
        device: &str,
        netdev: Option<&Netdev>,
    ) -> Result<Option<Place>, Failure> {
        let hardware = self.place(&self.device(device).join("device"))?;
        match (hardware, netdev) {
            (None, Some(netdev)) if is_file_name(&netdev.name) => {
                self.place(&self.class("net").join(&netdev.name).join("device"))
            }
            (place, _) => Ok(place),
        }
    }

    /// The place of a PCI device; `None` if the device does not exist.
    pub(in crate::device) fn place_of_pci(
        &self,
        address: PciAddress,
    ) -> Result<Option<Place>, Failure> {
        let devices = self.root().join("bus/pci/devices");
        self.place(&devices.join(address.to_string()))
    }

    /// The place of the device with this directory; `None` if there is no such directory, or it is on no PCI
    /// bus.
    fn place(&self, directory: &Path) -> Result<Option<Place>, Failure> {
        let Some((path, function)) = pci_path(directory) else {
            return Ok(None);
        };
        let node: Option<i64> = parsed(&function.join("numa_node"))?;
        // A virtual function (SR-IOV) has no link of its own.
        let physical = function.join("physfn");
        let linked = if physical.exists() {
            &physical
        } else {
            &function
        };
        Ok(Some(Place {
            path,
            // -1 means none.
            numa_node: node.and_then(|node| node.try_into().ok()),
            cpus: parsed(&function.join("local_cpulist"))?.unwrap_or_default(),
            link: pci_link(linked, "current")?,
            max_link: pci_link(linked, "max")?,
        }))
    }

    /// The NUMA nodes that are online.
    pub(in crate::device) fn numa_nodes(&self) -> Result<Vec<NumaNode>, Failure> {
        let directory = self.root().join("devices/system/node");
        let mut nodes = Vec::new();
        for name in entries(&directory)?.unwrap_or_default() {
            let Some(number) = name.strip_prefix("node").and_then(|n| n.parse().ok()) else {
                continue;
            };
            let node = directory.join(&name);
            let cpus: Option<CpuList> = parsed(&node.join("cpulist"))?;
            nodes.push(NumaNode {
                number,
                cpus: cpus.unwrap_or_default(),
                distances: distances(&node.join("distance"))?,
            });
        }
        nodes.sort_by_key(|node| node.number);
        Ok(nodes)
    }

    /// A port with its link and its bond.
    pub(in crate::device) fn adapter_port(
        &self,
        device: &str,
        port: Port,
    ) -> Result<AdapterPort, Failure> {
        let file = self.port_directory(device, port.number).join("rate");
        let (bandwidth, lanes) = if_told(rate(&file))?.unzip();
        let lag = match &port.netdev {
            Some(netdev) if is_file_name(&netdev.name) => self.lag(&netdev.name)?,
            _ => None,
        };
        Ok(AdapterPort {
            port,
            bandwidth,
            lanes,
            lag,
        })
    }

    /// The bond that the network device is, or belongs to.
    fn lag(&self, netdev: &str) -> Result<Option<Lag>, Failure> {
        let directory = self.class("net").join(netdev);
        let master = std::fs::read_link(directory.join("master")).ok();
        let master = master.as_deref().and_then(Path::file_name);
        let master = master.and_then(|name| name.to_str());
        for name in [Some(netdev), master].into_iter().flatten() {
            let members = self.class("net").join(name).join("bonding/slaves");
            if let Some(members) = text(&members)? {
                return Ok(Some(Lag {
                    name: name.to_owned(),
                    members: members.split_whitespace().map(str::to_owned).collect(),
                }));
            }
        }
        Ok(None)
    }
}

/// The path to the last PCI function on a device's path, with that function's directory.
fn pci_path(directory: &Path) -> Option<(PciPath, PathBuf)> {
    let directory = directory.canonicalize().ok()?;
    let names = directory.components().map(|part| part.as_os_str().to_str());
    let path = PciPath::of_components(names.map(Option::unwrap_or_default))?;
    let name = path.address().to_string();
    let function = directory
        .ancestors()
        .find(|ancestor| ancestor.ends_with(&name))?;
    let function = function.to_owned();
    Some((path, function))
}

/// A link as the kernel reports it: `which` is `current` or `max`.
fn pci_link(function: &Path, which: &str) -> Result<Option<PciLink>, Failure> {
    let file = function.join(format!("{which}_link_speed"));
    let speed = text(&file)?;
    let width: Option<u32> = parsed(&function.join(format!("{which}_link_width")))?;
    let (Some(speed), Some(width)) = (speed, width) else {
        return Ok(None);
    };
    // Without a link the speed begins with this word, and the width is 0 or 255.
    if speed.starts_with("Unknown") || matches!(width, 0 | 255) {
        return Ok(None);
    }
    let number = speed.split_once(" GT/s").map(|(number, _)| number);
    let transfers = number.and_then(|number| Bandwidth::parse(number, 1000));
    let transfers = transfers.ok_or_else(|| nonsense(&file, &speed))?;
    Ok(Some(PciLink::new(transfers.megabits(), width)))
}

/// The distances of a node: numbers with spaces between them.
fn distances(file: &Path) -> Result<Vec<u32>, Failure> {
    let text = text(file)?.unwrap_or_default();
    let numbers: Result<_, _> = text.split_whitespace().map(str::parse).collect();
    numbers.map_err(|_| nonsense(file, &text).into())
}

/// The bandwidth of a port's link and its lanes, from a text of the form `100 Gb/sec (4X EDR)`.
fn rate(file: &Path) -> Result<Option<(Bandwidth, u32)>, Failure> {
    let Some(text) = text(file)? else {
        return Ok(None);
    };
    let parts = text.split_once(" Gb/sec (").and_then(|(number, rest)| {
        let lanes = rest.split_once('X')?.0.parse().ok()?;
        Some((Bandwidth::parse(number, 1000)?, lanes))
    });
    parts.map(Some).ok_or_else(|| nonsense(file, &text).into())
}
