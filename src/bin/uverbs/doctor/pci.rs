//! The place of an adapter on the PCI bus, and the effect of the bus on its traffic.

use rustix::thread::{CpuSet, sched_getaffinity};
use uverbs::device::{Adapter, AdapterPort, PciAddress, Place};

use super::{Check, Finding};
use crate::files::Files;

/// Empty for a device that is not on the bus.
pub(super) fn findings(files: &Files, adapter: &Adapter) -> Vec<Finding> {
    let name = adapter.device.name();
    let Some(place) = &adapter.place else {
        return Vec::new();
    };
    let of_place = [
        link(name, place, &adapter.ports),
        near(name, place, &allowed_cpus()),
        iommu(files, name),
        redirected(files, name, place.path.bridges()),
        relaxed_ordering(files, name, place.path.address()),
    ];
    of_place.into_iter().flatten().collect()
}

/// The CPUs that this process may run on; empty if the kernel does not report them.
fn allowed_cpus() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else {
        return Vec::new();
    };
    let all = 0..CpuSet::MAX_CPU;
    all.filter(|cpu| set.is_set(*cpu)).collect()
}

/// Whether this process may run on a CPU of the adapter's NUMA node.
fn near(name: &str, place: &Place, allowed: &[usize]) -> Option<Finding> {
    let node = place.numa_node?;
    let check = Check::new("numa", name);
    if allowed.is_empty() {
        return Some(check.unknown("the kernel does not say on which CPUs this process may run"));
    }
    let is_near = allowed.iter().any(|cpu| place.cpus.contains(*cpu as u32));
    Some(match is_near {
        true => check.good(format_args!("node {node}, of which this process has a CPU")),
        false => check.warning(
            format_args!("node {node}, and this process may run on none of its CPUs"),
            format_args!(
                "All data goes from node to node: start programs with numactl --cpunodebind={node} \
                 --membind={node}, or see the CPU set of the container or service."
            ),
        ),
    })
}

/// Whether an IOMMU translates the adapter's accesses to memory.
fn iommu(files: &Files, name: &str) -> Option<Finding> {
    let group = format!("sys/class/infiniband/{name}/device/iommu_group/type");
    let kind = files.text(group).ok()?;
    let check = Check::new("iommu", name);
    Some(match kind.as_str() {
        "identity" => check.good("passes through"),
        _ => check.warning(
            format_args!("addresses are translated ({kind})"),
            "It costs bandwidth and keeps peers on PCI (GPUs) from each other: iommu=pt on the kernel's \
             command line passes through, unless a virtual machine has the adapter.",
        ),
    })
}

/// Whether the adapter's slot has the bandwidth of the adapter, and of its ports.
fn link(name: &str, place: &Place, ports: &[AdapterPort]) -> Option<Finding> {
    let (now, max) = (place.link?, place.max_link?);
    let check = Check::new("pci", name);
    let found = format!("{now} of {max} that the adapter has");
    let wire: u64 = ports
        .iter()
        .filter_map(|port| Some(port.bandwidth?.megabits()))
        .sum();
    Some(
        match now.bandwidth().megabits() < max.bandwidth().megabits() {
            true if now.bandwidth().megabits() < wire => check.warning(
                found,
                "The slot is slower than the ports: use another one, or see its settings in the \
                 firmware.",
            ),
            _ => check.good(found),
        },
    )
}

/// The numbers with their names in the kernel's `pci_regs.h`.
mod registers {
    /// `PCI_CAPABILITY_LIST`: the offset of the first capability.
    pub(super) const FIRST: usize = 0x34;
    /// `PCI_CAP_ID_EXP`: PCI Express.
    pub(super) const EXPRESS: u8 = 0x10;
    /// `PCI_EXP_DEVCTL`, in that capability.
    pub(super) const DEVICE_CONTROL: usize = 8;
    /// `PCI_EXP_DEVCTL_RELAX_EN`.
    pub(super) const RELAXED: u16 = 1 << 4;
    /// The offset of the first extended capability.
    pub(super) const FIRST_EXTENDED: usize = 0x100;
    /// `PCI_EXT_CAP_ID_ACS`: access control services.
    pub(super) const ACS: u16 = 0x0d;
    /// `PCI_ACS_CTRL`, in that capability.
    pub(super) const ACS_CONTROL: usize = 6;
    /// `PCI_ACS_RR` and `PCI_ACS_CR`: requests and completions are routed through the root.
    pub(super) const REDIRECT: u16 = 1 << 2 | 1 << 3;
}

/// A device's configuration space, as far as this process may read it. Only administrators may read more than
/// the first 64 bytes.
struct Config(Vec<u8>);

impl Config {
    fn of(files: &Files, address: PciAddress) -> Option<Self> {
        let path = format!("sys/bus/pci/devices/{address}/config");
        let bytes = std::fs::read(files.path(path)).ok()?;
        (bytes.len() > 64).then_some(Self(bytes))
    }

    fn word(&self, at: usize) -> Option<u16> {
        let bytes = self.0.get(at..at + 2)?;
        Some(u16::from_le_bytes(bytes.try_into().ok()?))
    }

    /// The offset of a capability. The search is bounded by the room for capabilities, even if the list is a
    /// ring.
    fn capability(&self, id: u8) -> Option<usize> {
        let mut at = usize::from(*self.0.get(registers::FIRST)?);
        for _ in 0..48 {
            let [own, next] = self.word(at & !3).filter(|_| at >= 64)?.to_le_bytes();
            if own == id {
                return Some(at & !3);
            }
            at = next.into();
        }
        None
    }

    /// The offset of an extended capability.
    fn extended(&self, id: u16) -> Option<usize> {
        let mut at = registers::FIRST_EXTENDED;
        for _ in 0..960 {
            if self.word(at)? == id {
                return Some(at);
            }
            at = usize::from(self.word(at + 2)? >> 4 & !3);
            if at < registers::FIRST_EXTENDED {
                return None;
            }
        }
        None
    }
}

const UNKNOWN: &str = "administrators alone may read the configuration of PCI devices";

/// Whether a bridge above the adapter routes traffic to a neighbour on the bus through the root.
fn redirected(files: &Files, name: &str, bridges: &[PciAddress]) -> Option<Finding> {
    if bridges.is_empty() {
        return None;
    }
    let check = Check::new("acs", name);
    let configs: Option<Vec<(PciAddress, Config)>> = bridges
        .iter()
        .map(|bridge| Some((*bridge, Config::of(files, *bridge)?)))
        .collect();
    let Some(configs) = configs else {
        return Some(check.unknown(UNKNOWN));
    };
    let redirects = |config: &Config| {
        let control = config.word(config.extended(registers::ACS)? + registers::ACS_CONTROL)?;
        Some(control & registers::REDIRECT != 0)
    };
    let redirecting: Vec<String> = configs
        .iter()
        .filter(|(_, config)| redirects(config) == Some(true))
        .map(|(bridge, _)| bridge.to_string())
        .collect();
    Some(match redirecting.is_empty() {
        true => check.good("no bridge above it redirects requests to the root"),
        false => check.warning(
            format!("requests are redirected by {}", redirecting.join(", ")),
            "What the adapter and a neighbour on the bus (GPU, NVMe) send each other goes by the root, and is \
             slow: access control services are for virtual machines; the firmware's settings, or setpci at \
             each start, turn them off.",
        ),
    })
}

/// Whether the adapter may let its writes overtake each other.
fn relaxed_ordering(files: &Files, name: &str, address: PciAddress) -> Option<Finding> {
    let check = Check::new("relaxed ordering", name);
    let Some(config) = Config::of(files, address) else {
        return Some(check.unknown(UNKNOWN));
    };
    let control =
        config.word(config.capability(registers::EXPRESS)? + registers::DEVICE_CONTROL)?;
    Some(match control & registers::RELAXED {
        0 => check.warning(
            "the adapter may not use it",
            "Regions with relaxed ordering gain nothing, which costs bandwidth on hosts with many cores: see \
             the firmware's settings. The kernel turns it off below root ports that do it wrong.",
        ),
        _ => check.good("the adapter may use it, for regions that ask for it"),
    })
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;
    use crate::files::host;
    use std::fs;

    /// The types are those of Linux: Documentation/ABI/testing/sysfs-kernel-iommu_groups.
    #[test]
    fn an_iommu_that_translates_is_told() {
        let group = "sys/class/infiniband/mlx5_0/device/iommu_group/type";
        let verdict = |kind: &str| {
            let finding = iommu(&host("iommu", &[(group, kind)]), "mlx5_0").unwrap();
            (finding.verdict, finding.found)
        };
        assert_eq!(verdict("identity\n").0, Verdict::Good);
        let (warning, found) = verdict("DMA-FQ\n");
        assert_eq!(warning, Verdict::Warning);
        assert!(found.contains("DMA-FQ"));
        assert_eq!(iommu(&host("iommu", &[]), "mlx5_1"), None);
    }

    fn address(bus: u8) -> PciAddress {
        format!("0000:{bus:02x}:00.0").parse().unwrap()
    }

    /// A configuration space of PCI Express: the device's control register, and the one of ACS.
    fn configuration(device_control: u16, acs_control: u16) -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        let mut put = |at: usize, word: u16| bytes[at..at + 2].copy_from_slice(&word.to_le_bytes());
        put(0x34, 0x50);
        put(0x50, 0x6005);
        put(0x60, 0x0010);
        put(0x68, device_control);
        put(0x100, 0x0001);
        put(0x102, 0x1481);
        put(0x148, 0x000d);
        put(0x14a, 0x0001);
        put(0x14e, acs_control);
        bytes
    }

    fn bus(name: &str, configs: &[(u8, Vec<u8>)]) -> Files {
        let files = host(name, &[]);
        for (bus, config) in configs {
            let folder = files.path(format!("sys/bus/pci/devices/{}", address(*bus)));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("config"), config).unwrap();
        }
        files
    }

    /// Catches a bridge that is missed because it is below another, and services that redirect nothing.
    #[test]
    fn a_bridge_that_redirects_is_named() {
        let verdict = |name: &str, lower: u16| {
            let configs = [(1, configuration(0, 1)), (2, configuration(0, lower))];
            let files = bus(name, &configs);
            redirected(&files, "mlx5_0", &[address(1), address(2)]).unwrap()
        };
        assert_eq!(verdict("acs-off", 0x11).verdict, Verdict::Good);
        let finding = verdict("acs-on", 0x1d);
        assert_eq!(finding.verdict, Verdict::Warning);
        assert_eq!(finding.found, "requests are redirected by 0000:02:00.0");
        assert_eq!(redirected(&host("acs-none", &[]), "mlx5_0", &[]), None);
    }

    #[test]
    fn relaxed_ordering_that_is_off_is_told() {
        let verdict = |name: &str, control: u16| {
            let files = bus(name, &[(3, configuration(control, 0))]);
            let finding = relaxed_ordering(&files, "mlx5_0", address(3)).unwrap();
            finding.verdict
        };
        assert_eq!(verdict("relaxed", 0x2810), Verdict::Good);
        assert_eq!(verdict("strict", 0x2800), Verdict::Warning);
    }

    /// Catches a verdict from bytes that could not be read: users see 64 bytes of each configuration space.
    #[test]
    fn what_may_not_be_read_is_not_known() {
        let mut head = configuration(0x2810, 0);
        head.truncate(64);
        let files = bus("head", &[(1, head.clone()), (3, head)]);
        for finding in [
            redirected(&files, "mlx5_0", &[address(1)]),
            relaxed_ordering(&files, "mlx5_0", address(3)),
        ] {
            let finding = finding.unwrap();
            assert_eq!(finding.verdict, Verdict::Unknown);
            assert_eq!(finding.found, UNKNOWN);
        }
    }

    /// Catches a list of capabilities that is followed forever.
    #[test]
    fn a_list_that_is_a_ring_has_an_end() {
        let mut ring = configuration(0, 0);
        ring[0x51] = 0x50;
        ring[0x14a..0x14c].copy_from_slice(&0x1481_u16.to_le_bytes());
        let config = Config(ring);
        assert_eq!(config.capability(registers::EXPRESS), None);
        assert_eq!(config.extended(0x1e), None);
    }
}
