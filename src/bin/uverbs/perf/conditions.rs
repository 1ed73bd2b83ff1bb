//! The conditions of a measurement on one side, so that it can be repeated.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use uverbs::device::{Adapter, PciAddress, topology};
use uverbs::{Context, Device};

use crate::files::Files;

/// The conditions on one side.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Conditions {
    pub(super) host: String,
    pub(super) kernel: String,
    pub(super) uverbs: String,
    /// Seconds since 1970.
    pub(super) time: u64,
    pub(super) device: String,
    pub(super) driver: Option<String>,
    pub(super) firmware: Option<String>,
    pub(super) port: u8,
    pub(super) gid_index: Option<u8>,
    pub(super) gid: Option<String>,
    pub(super) gid_type: Option<String>,
    /// Bytes of a packet.
    pub(super) active_mtu: Option<u32>,
    /// The bandwidth of the port, in Mb/s.
    pub(super) port_megabits: Option<u64>,
    /// The bandwidth of the PCI link, in Mb/s.
    pub(super) pci_megabits: Option<u64>,
    /// The address on the PCI bus.
    #[serde(default)]
    pub(super) pci_address: Option<String>,
    pub(super) numa_node: Option<u32>,
    /// The CPUs near the adapter.
    pub(super) near_cpus: Option<String>,
    pub(super) processor: Option<String>,
    pub(super) cpus: usize,
    /// The governor of the CPU's clock.
    pub(super) governor: Option<String>,
}

impl Conditions {
    /// The conditions of a port of a device, with the index of the GID that is used.
    pub(super) fn of(context: &Context, device: &Device, port: u8, gid_index: Option<u8>) -> Self {
        let system = rustix::system::uname();
        let text = |of: &std::ffi::CStr| of.to_string_lossy().into_owned();
        let entry = gid_index.and_then(|index| context.query_gid(port, index.into()).ok());
        let attr = context.query_port(port).ok();
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let cpus = std::thread::available_parallelism();
        let files = Files::of_this_host();
        let conditions = Self {
            host: text(system.nodename()),
            kernel: text(system.release()),
            uverbs: super::wire::version(),
            time: since.map_or(0, |time| time.as_secs()),
            device: device.name().to_owned(),
            driver: device.driver().map(|driver| driver.to_string()),
            firmware: device.firmware_version().map(str::to_owned),
            port,
            gid_index,
            gid: entry.as_ref().map(|entry| entry.gid.to_string()),
            gid_type: entry.as_ref().map(|entry| entry.gid_type.to_string()),
            active_mtu: attr.and_then(|attr| attr.active_mtu.bytes()),
            processor: processor(&files),
            cpus: cpus.map_or(0, usize::from),
            governor: governor(&files),
            ..Self::default()
        };
        conditions.with_place()
    }

    /// Adds the topology's data about the device.
    fn with_place(mut self) -> Self {
        let Some(adapter) = adapter(&self.device) else {
            return self;
        };
        let port = adapter
            .ports
            .iter()
            .find(|port| port.port.number == u32::from(self.port));
        self.port_megabits = port
            .and_then(|port| port.bandwidth)
            .map(|bandwidth| bandwidth.megabits());
        if let Some(place) = &adapter.place {
            self.pci_megabits = place.link.map(|link| link.bandwidth().megabits());
            self.pci_address = Some(place.path.address().to_string());
            self.numa_node = place.numa_node;
            self.near_cpus = Some(place.cpus.to_string()).filter(|cpus| !cpus.is_empty());
        }
        self
    }

    /// The conditions of several devices of a host as one: the sum of the bandwidth of their ports and links,
    /// and the other values by device.
    pub(super) fn joined(all: Vec<Self>) -> Self {
        let pci_megabits = pci_megabits(&all);
        let mut all = all.into_iter();
        let first = all.next().unwrap_or_default();
        all.fold(first, |one, other| Self {
            device: format!("{}, {}", one.device, other.device),
            driver: both(one.driver, other.driver),
            firmware: both(one.firmware, other.firmware),
            gid_index: one.gid_index.filter(|_| one.gid_index == other.gid_index),
            gid: both(one.gid, other.gid),
            gid_type: both(one.gid_type, other.gid_type),
            active_mtu: one.active_mtu.min(other.active_mtu),
            port_megabits: sum(one.port_megabits, other.port_megabits),
            pci_megabits,
            pci_address: both(one.pci_address, other.pci_address),
            numa_node: one.numa_node.filter(|_| one.numa_node == other.numa_node),
            near_cpus: both(one.near_cpus, other.near_cpus),
            ..one
        })
    }

    /// The conditions by name, without those that differ from run to run.
    pub(super) fn named(&self) -> Vec<(String, String)> {
        let value = serde_json::to_value(self).unwrap_or_default();
        let object = value.as_object().cloned().unwrap_or_default();
        let told = object
            .into_iter()
            .filter(|(name, value)| name != "time" && !value.is_null());
        told.map(|(name, value)| match value {
            serde_json::Value::String(text) => (name, text),
            other => (name, other.to_string()),
        })
        .collect()
    }
}

/// A value of several devices, once if it is the same.
fn both(one: Option<String>, other: Option<String>) -> Option<String> {
    match (one, other) {
        (Some(one), Some(other)) if one != other => Some(format!("{one}, {other}")),
        (one, other) => one.or(other),
    }
}

/// A sum that is known if each part is known.
fn sum(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one?.checked_add(other?)
}

/// The bandwidth of the PCI links of devices together, if each is known. The ports of a card share its link.
fn pci_megabits(all: &[Conditions]) -> Option<u64> {
    let mut cards: Vec<PciAddress> = Vec::new();
    let mut megabits = Some(0);
    for of in all {
        let address = of.pci_address.as_ref();
        let address = address.and_then(|text| text.parse::<PciAddress>().ok());
        let is_other_port = |card: &PciAddress| address.is_some_and(|it| it.is_same_device(card));
        if !cards.iter().any(is_other_port) {
            megabits = sum(megabits, of.pci_megabits);
            cards.extend(address);
        }
    }
    megabits
}

/// The topology's data about a device, if it has any.
pub(super) fn adapter(device: &str) -> Option<Adapter> {
    let topology = topology().ok()?;
    let mut adapters = topology.adapters().iter();
    let found = adapters.find(|adapter| adapter.device.name() == device);
    found.cloned()
}

fn processor(files: &Files) -> Option<String> {
    let info = files.text("proc/cpuinfo").ok()?;
    let line = info.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn governor(files: &Files) -> Option<String> {
    let path = "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor";
    files.text(path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_told_together() {
        let of = |device: &str, megabits, node| Conditions {
            host: "here".into(),
            device: device.into(),
            driver: Some("mlx5".into()),
            gid: Some(format!("gid of {device}")),
            port_megabits: megabits,
            numa_node: Some(node),
            ..Conditions::default()
        };
        let joined = Conditions::joined(vec![of("a", Some(100), 0), of("b", Some(200), 1)]);
        let expected = Conditions {
            device: "a, b".into(),
            gid: Some("gid of a, gid of b".into()),
            port_megabits: Some(300),
            numa_node: None,
            ..of("a", None, 0)
        };
        assert_eq!(joined, expected);
        // A port whose rate is not known makes the sum unknown.
        let joined = Conditions::joined(vec![of("a", Some(100), 0), of("b", None, 0)]);
        assert_eq!((joined.port_megabits, joined.numa_node), (None, Some(0)));
        assert_eq!(Conditions::joined(vec![of("a", None, 0)]), of("a", None, 0));
    }

    /// Catches a link that is counted once for each of its ports.
    #[test]
    fn ports_of_a_card_share_its_link() {
        let of = |address: &str, megabits| Conditions {
            pci_address: Some(address.into()),
            pci_megabits: megabits,
            ..Conditions::default()
        };
        let joined = |all: &[Conditions]| Conditions::joined(all.to_vec()).pci_megabits;
        let [one, same_card, other] = [
            of("0000:43:00.0", Some(100)),
            of("0000:43:00.1", Some(100)),
            of("0000:83:00.0", Some(200)),
        ];
        assert_eq!(joined(&[one.clone(), same_card.clone()]), Some(100));
        assert_eq!(joined(&[one.clone(), other.clone()]), Some(300));
        assert_eq!(joined(&[one.clone(), other, same_card]), Some(300));
        assert_eq!(joined(&[one.clone(), of("0000:84:00.0", None)]), None);
        assert_eq!(joined(&[one]), Some(100));
    }
}
