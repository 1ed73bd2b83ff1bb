//! The tree of the PCI bus: NUMA nodes, host bridges, bridges, and the devices at the leaves.

use std::collections::BTreeMap;

use uverbs::device::{Adapter, NumaNode, Place, Topology};

/// The lines below a line of the tree, sorted by text.
#[derive(Default)]
struct Branch(BTreeMap<String, Branch>);

impl Branch {
    /// The branch at the end of this path; missing branches are added.
    fn at(&mut self, way: impl IntoIterator<Item = String>) -> &mut Self {
        way.into_iter()
            .fold(self, |branch, line| branch.0.entry(line).or_default())
    }

    fn draw(&self, indent: &str, to: &mut String) {
        let last = self.0.len().saturating_sub(1);
        for (at, (line, branch)) in self.0.iter().enumerate() {
            let (arm, beneath) = if at == last {
                ("└─ ", "   ")
            } else {
                ("├─ ", "│  ")
            };
            to.push_str(&format!("{indent}{arm}{line}\n"));
            branch.draw(&format!("{indent}{beneath}"), to);
        }
    }
}

/// The tree as lines, without a newline at the end.
pub(crate) fn of(topology: &Topology) -> String {
    let mut roots = Branch::default();
    for adapter in topology.adapters() {
        roots.at(way(adapter, topology.numa_nodes()));
    }
    let mut text = String::new();
    for (root, branch) in &roots.0 {
        text.push_str(&format!("{root}\n"));
        branch.draw("", &mut text);
    }
    text.trim_end().to_owned()
}

/// The lines from the root to an adapter.
fn way(adapter: &Adapter, nodes: &[NumaNode]) -> Vec<String> {
    let Some(place) = &adapter.place else {
        return vec!["not on a PCI bus".to_owned(), leaf(adapter)];
    };
    let mut way = vec![root(place, nodes), place.path.host_bridge().to_owned()];
    way.extend(place.path.bridges().iter().map(ToString::to_string));
    way.push(format!("{} {}", place.path.address(), leaf(adapter)));
    way
}

fn root(place: &Place, nodes: &[NumaNode]) -> String {
    let Some(number) = place.numa_node else {
        return "no NUMA node".to_owned();
    };
    match nodes.iter().find(|node| node.number == number) {
        Some(node) if !node.cpus.is_empty() => format!("NUMA node {number}, CPUs {}", node.cpus),
        _ => format!("NUMA node {number}"),
    }
}

/// An adapter with the bandwidth of its ports: `mlx5_0, 400 Gb/s by eth0`.
fn leaf(adapter: &Adapter) -> String {
    let mut text = adapter.device.name().to_owned();
    for port in &adapter.ports {
        if let Some(bandwidth) = port.bandwidth {
            text.push_str(&format!(", {bandwidth}"));
        }
        if let Some(netdev) = &port.port.netdev {
            text.push_str(&format!(" by {}", netdev.name));
        }
    }
    text
}
