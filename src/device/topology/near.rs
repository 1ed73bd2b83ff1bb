//! How far adapters are from a CPU, a NUMA node or another device.

use super::{Adapter, PciAddress, PciPath, Place, Topology, failed};
use crate::device::port::PortState;
use crate::error::{Cause, Error, Result, Subject, Verb};

/// What adapters are to be near to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Near {
    /// A CPU, by its number.
    Cpu(u32),
    /// A NUMA node, by its number.
    Node(u32),
    /// Another device, such as a GPU.
    Pci(PciAddress),
}

/// How far an adapter is. What is nearer is less.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Distance {
    /// Functions of one device.
    Device,
    /// Behind one root port, so that a PCI switch is between them and the host's memory is not.
    Switch,
    /// Behind one host bridge.
    HostBridge,
    /// On one NUMA node.
    Node,
    /// On another node, so far as the firmware rates it: 20 is twice as far as the node itself.
    Remote(u32),
    /// Unknown.
    Unknown,
}

impl Distance {
    /// How far two functions are apart on the bus; `None` if they are on different ones.
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

/// What an adapter's place is compared with.
struct Target {
    path: Option<PciPath>,
    numa_node: Option<u32>,
}

impl Topology {
    /// All adapters with their distances, the nearest first; those that are equally far in the order of
    /// [`Topology::adapters`].
    ///
    /// # Errors
    /// [`Cause::NotFound`] if there is no such CPU, node or PCI device; sysfs says what makes no sense.
    pub fn by_distance(&self, near: Near) -> Result<Vec<(Distance, &Adapter)>> {
        let target = self.target(near)?;
        let distance = |adapter| (self.distance(&target, adapter), adapter);
        let mut adapters: Vec<_> = self.adapters.iter().map(distance).collect();
        adapters.sort_by_key(|(distance, _)| *distance);
        Ok(adapters)
    }

    /// The adapters to use from there: of those with a port that is active, all that are as near as the
    /// nearest. Several are a choice for several rails, or for several workers.
    ///
    /// # Errors
    /// As for [`by_distance`](Self::by_distance). That no port is active is none: the list is empty then.
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
            // Without nodes nothing is nearer than anything else.
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
