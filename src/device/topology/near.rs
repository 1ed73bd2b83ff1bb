//! The distances of adapters from a CPU, a NUMA node or another device.

use super::{Adapter, PciAddress, PciPath, Place, Topology, failed};
use crate::device::port::PortState;
use crate::error::{Cause, Error, Result, Subject, Verb};

/// The place from which distances of adapters are measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Near {
    /// A CPU, by its number.
    Cpu(u32),
    /// A NUMA node, by its number.
    Node(u32),
    /// Another device, such as a GPU.
    Pci(PciAddress),
}

/// The distance of an adapter. Nearer is less.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Distance {
    /// Functions of one device.
    Device,
    /// Behind one root port, so that traffic between them passes a PCI switch and not the host's memory.
    Switch,
    /// Behind one host bridge.
    HostBridge,
    /// On one NUMA node.
    Node,
    /// On another node, with the distance in the firmware's rating: 20 is twice the distance of the node
    /// itself.
    Remote(u32),
    /// Unknown.
    Unknown,
}

impl Distance {
    /// The distance of two functions on the bus; `None` if they are on different buses.
    pub(super) fn on_the_bus(a: &PciPath, b: &PciPath) -> Option<Self> {
        let first = |path: &PciPath| path.bridges().first().copied();
        if a.address().is_same_device(&b.address()) {
            Some(Self::Device)
        } else if a.host_bridge() != b.host_bridge() {
            None
        } else if first(a).is_some() && first(a) == first(b) {
            Some(Self::Switch)
        } else {
            Some(Self::HostBridge)
        }
    }
}

/// The place that an adapter's place is compared with.
struct Target {
    path: Option<PciPath>,
    numa_node: Option<u32>,
}

impl Topology {
    /// All adapters with their distances, the nearest first; adapters at the same distance are in the order
    /// of [`Topology::adapters`].
    ///
    /// # Errors
    /// [`Cause::NotFound`] if there is no such CPU, node or PCI device; a file of sysfs is malformed.
    pub fn by_distance(&self, near: Near) -> Result<Vec<(Distance, &Adapter)>> {
        let target = self.target(near)?;
        let distance = |adapter| (self.distance(&target, adapter), adapter);
        let mut adapters: Vec<_> = self.adapters.iter().map(distance).collect();
        adapters.sort_by_key(|(distance, _)| *distance);
        Ok(adapters)
    }

    /// The adapters to use from there: of the adapters with an active port, all that are at the least
    /// distance. If there are several, choose one for each rail, or for each worker.
    ///
    /// # Errors
    /// As for [`by_distance`](Self::by_distance). If no port is active there is no error: the list is empty.
    pub fn nearest(&self, near: Near) -> Result<Vec<&Adapter>> {
        let mut adapters = self.by_distance(near)?;
        adapters.retain(|(_, adapter)| adapter.is_active());
        let nearest = adapters.first().map(|(distance, _)| *distance);
        adapters.retain(|(distance, _)| Some(*distance) == nearest);
        Ok(adapters.into_iter().map(|(_, adapter)| adapter).collect())
    }

    fn target(&self, near: Near) -> Result<Target> {
        let on_node = |numa_node| Target {
            path: None,
            numa_node,
        };
        match near {
            // Without nodes all distances are equal.
            Near::Cpu(_) if self.nodes.is_empty() => Ok(on_node(None)),
            Near::Cpu(cpu) => {
                let node = self.nodes.iter().find(|node| node.cpus.contains(cpu));
                let missing = || missing(Subject::numbered("CPU", cpu.into()), "NUMA node with it");
                Ok(on_node(Some(node.ok_or_else(missing)?.number)))
            }
            Near::Node(number) => match self.nodes.iter().any(|node| node.number == number) {
                true => Ok(on_node(Some(number))),
                false => Err(missing(
                    Subject::numbered("NUMA node", number.into()),
                    "such node that is online",
                )),
            },
            Near::Pci(address) => {
                let place = self.sysfs.place_of_pci(address).map_err(failed)?;
                let missing = || missing(Subject::named("PCI device", address), "such device");
                let Place {
                    path, numa_node, ..
                } = place.ok_or_else(missing)?;
                Ok(Target {
                    path: Some(path),
                    numa_node,
                })
            }
        }
    }

    fn distance(&self, target: &Target, adapter: &Adapter) -> Distance {
        let Some(place) = &adapter.place else {
            return Distance::Unknown;
        };
        let on_the_bus = target
            .path
            .as_ref()
            .and_then(|path| Distance::on_the_bus(path, &place.path));
        on_the_bus.unwrap_or_else(|| match (target.numa_node, place.numa_node) {
            (Some(from), Some(to)) if from == to => Distance::Node,
            (Some(from), Some(to)) => self.between_nodes(from, to),
            _ => Distance::Unknown,
        })
    }

    fn between_nodes(&self, from: u32, to: u32) -> Distance {
        let node = self.nodes.iter().find(|node| node.number == from);
        let at = self.nodes.iter().position(|node| node.number == to);
        let rated = node.zip(at).and_then(|(node, at)| node.distances.get(at));
        rated.map_or(Distance::Unknown, |&rated| Distance::Remote(rated))
    }
}

impl Adapter {
    /// Whether a port is active.
    fn is_active(&self) -> bool {
        let state = |port: &super::AdapterPort| port.port.state;
        self.ports
            .iter()
            .any(|port| state(port) == Some(PortState::Active))
    }
}

fn missing(subject: Subject, what: &str) -> Error {
    let text = format!("sysfs shows no {what}");
    Error::new(Verb::FindDevice, subject, Cause::NotFound(text.into()))
}
