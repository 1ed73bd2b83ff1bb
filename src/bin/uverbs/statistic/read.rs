//! The present values of counters, and the present objects.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use uverbs::resource::{ResourceOwner, Resources};
use uverbs::{Cause, Device, error::Errno};

use super::Of;
use crate::failure::Result;
use crate::files::Files;
use crate::owner::Owner;

/// A counter, or a number of objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    pub(super) device: String,
    pub(super) of: Source,
    pub(super) counter: String,
    pub(super) value: u64,
}

impl Reading {
    /// Whether it is the same counter as another, whatever their values.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.device == other.device && self.counter == other.counter && self.of.is_same(&other.of)
    }
}

/// What a reading is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Device,
    Port(u32),
    /// The queue pairs of a port that share a set of counters, and the set's number.
    QueuePairs {
        set: u32,
        port: u32,
        qps: Vec<u32>,
        owner: Owner,
    },
    Owner(Owner),
}

impl Source {
    pub(super) fn port(&self) -> Option<u32> {
        match self {
            Self::Port(port) | Self::QueuePairs { port, .. } => Some(*port),
            Self::Device | Self::Owner(_) => None,
        }
    }

    /// The number of the set of counters, and the queue pairs that share it.
    pub(super) fn set(&self) -> Option<(u32, &[u32])> {
        match self {
            Self::QueuePairs { set, qps, .. } => Some((*set, qps)),
            _ => None,
        }
    }

    /// Whether it is the same as another: queue pairs join a set of counters and leave it, and a process may
    /// change its name.
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Owner(one), Self::Owner(other)) => one.is_same(other),
            (Self::QueuePairs { .. }, Self::QueuePairs { .. }) => {
                let number = |(set, _)| set;
                self.port() == other.port() && self.set().map(number) == other.set().map(number)
            }
            _ => self == other,
        }
    }

    pub(super) fn owner(&self) -> Option<&Owner> {
        match self {
            Self::Owner(owner) | Self::QueuePairs { owner, .. } => Some(owner),
            Self::Device | Self::Port(_) => None,
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device => to.write_str("device"),
            Self::Port(port) => write!(to, "port {port}"),
            Self::QueuePairs { set, qps, .. } => {
                let qps: Vec<String> = qps.iter().map(u32::to_string).collect();
                write!(to, "counter {set} of QP {}", qps.join(","))
            }
            Self::Owner(owner) => owner.fmt(to),
        }
    }
}

/// The readings of one device.
pub(super) fn readings(files: &Files, device: &Device, of: Of) -> Result<Vec<Reading>> {
    match of {
        Of::Port => Ok(ports(files, device.name())),
        Of::Qp => queue_pairs(files, device),
        Of::Object => objects(files, &device.resources()?, device.name()),
    }
}

/// The counters of a device and its ports. The kernel's setting for how long it keeps values is not one of
/// them.
fn ports(files: &Files, device: &str) -> Vec<Reading> {
    let root = format!("sys/class/infiniband/{device}");
    let mut readings = folder(files, &format!("{root}/hw_counters"), device, None);
    let mut ports: Vec<u32> = files
        .names(format!("{root}/ports"))
        .iter()
        .filter_map(|name| name.parse().ok())
        .collect();
    ports.sort_unstable();
    for port in ports {
        for kind in ["counters", "hw_counters"] {
            let path = format!("{root}/ports/{port}/{kind}");
            readings.extend(folder(files, &path, device, Some(port)));
        }
    }
    readings
}

fn folder(files: &Files, path: &str, device: &str, port: Option<u32>) -> Vec<Reading> {
    let names = files.names(path).into_iter();
    let counters = names.filter(|name| name != "lifespan").filter_map(|name| {
        // A counter that this port does not have cannot be read.
        let value = files.number(format!("{path}/{name}"))?;
        Some(Reading {
            device: device.to_owned(),
            of: port.map_or(Source::Device, Source::Port),
            counter: name,
            value,
        })
    });
    counters.collect()
}

/// The counters that are bound to queue pairs. Most drivers have none.
fn queue_pairs(files: &Files, device: &Device) -> Result<Vec<Reading>> {
    let sets = match device.resources()?.qp_counters() {
        Ok(sets) => sets,
        Err(error) if matches!(error.cause(), Cause::Os(Errno::OPNOTSUPP | Errno::INVAL)) => {
            Vec::new()
        }
        // It has gone since it was listed.
        Err(error) if error.is_device_gone() => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    let mut readings = Vec::new();
    for set in sets {
        let of = Source::QueuePairs {
            set: set.id,
            port: set.port,
            qps: set.qps,
            owner: Owner::of(files, &set.owner),
        };
        readings.extend(set.counters.into_iter().map(|(counter, value)| Reading {
            device: device.name().to_owned(),
            of: of.clone(),
            counter,
            value,
        }));
    }
    Ok(readings)
}

/// How many objects each process and each part of the kernel has, and how much memory it has registered.
fn objects(files: &Files, resources: &Resources, device: &str) -> Result<Vec<Reading>> {
    // The threads of a process, as the kernel names them, each looked up once.
    let mut owners: HashMap<ResourceOwner, Owner> = HashMap::new();
    let mut sums: BTreeMap<Owner, BTreeMap<&str, u64>> = BTreeMap::new();
    let mut add = |owner: &ResourceOwner, what: &'static str, count: u64| {
        let known = owners.entry(owner.clone());
        let owner = known.or_insert_with(|| Owner::of(files, owner));
        let of_owner = sums.entry(owner.clone()).or_default();
        let sum = of_owner.entry(what).or_default();
        // A region of all memory has 2^64 - 1 bytes.
        *sum = sum.saturating_add(count);
    };
    resources
        .pds()?
        .iter()
        .for_each(|it| add(&it.owner, "pd", 1));
    resources
        .cqs()?
        .iter()
        .for_each(|it| add(&it.owner, "cq", 1));
    resources
        .qps()?
        .iter()
        .for_each(|it| add(&it.owner, "qp", 1));
    resources
        .cm_ids()?
        .iter()
        .for_each(|it| add(&it.owner, "cm_id", 1));
    for mr in resources.mrs()? {
        add(&mr.owner, "mr", 1);
        add(&mr.owner, "registered_bytes", mr.length);
    }
    // Older kernels do not list these two.
    let srqs = resources.srqs().unwrap_or_default();
    srqs.iter().for_each(|it| add(&it.owner, "srq", 1));
    let contexts = resources.contexts().unwrap_or_default();
    contexts.iter().for_each(|it| add(&it.owner, "ctx", 1));
    let readings = sums.into_iter().flat_map(|(owner, sums)| {
        let of = Source::Owner(owner);
        sums.into_iter().map(move |(what, value)| Reading {
            device: device.to_owned(),
            of: of.clone(),
            counter: what.to_owned(),
            value,
        })
    });
    Ok(readings.collect())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn counters_are_those_of_the_device_and_of_each_port() {
        let root = std::env::temp_dir().join(format!("statistic-{}", std::process::id()));
        let device = root.join("sys/class/infiniband/mlx5_0");
        for (path, text) in [
            ("hw_counters/lifespan", "10"),
            ("hw_counters/out_of_memory", "1"),
            ("ports/10/counters/port_xmit_data", "3"),
            ("ports/2/counters/port_xmit_data", "4"),
            ("ports/2/counters/unreadable", "N/A (no PMA)"),
            ("ports/2/hw_counters/np_cnp_sent", "5"),
        ] {
            let path = device.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }
        let readings = ports(&Files::below(&root), "mlx5_0");
        let texts: Vec<String> = readings.iter().map(|it| it.of.to_string()).collect();
        let told: Vec<(&str, &str, u64)> = readings
            .iter()
            .zip(&texts)
            .map(|(it, of)| (of.as_str(), it.counter.as_str(), it.value))
            .collect();
        let expected = [
            ("device", "out_of_memory", 1),
            ("port 2", "port_xmit_data", 4),
            ("port 2", "np_cnp_sent", 5),
            ("port 10", "port_xmit_data", 3),
        ];
        assert_eq!(told, expected);
        fs::remove_dir_all(root).unwrap();
    }
}
