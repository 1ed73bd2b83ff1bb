//! `uverbs devices`: the devices of this network namespace, without opening them.

use clap::Args;
use serde_json::{Value, json};
use uverbs::Device;
use uverbs::device::{Adapter, AdapterPort, Place, Port, Topology, topology};

use crate::failure::Result;
use crate::output::{self, or_dash};
use crate::{select, tree};

/// List the RDMA devices.
#[derive(Debug, Args)]
#[command(after_help = crate::failure::EXIT_CODES)]
pub(crate) struct Options {
    /// Show where the devices are: links, NUMA nodes, nearby CPUs, rails (devices behind one PCI switch), and
    /// the tree of the PCI bus
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) verbose: bool,
    /// Print JSON, with all of these
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    if !options.json && !options.verbose {
        return plain(&select::devices(None)?);
    }
    let topology = topology()?;
    match (topology.adapters(), options.json) {
        ([], _) => Err(select::none()),
        (adapters, true) => output::json(&adapters.iter().map(to_json).collect()),
        (_, false) => verbose(&topology),
    }
}

fn plain(devices: &[Device]) -> Result<()> {
    let mut rows = Vec::new();
    for device in devices {
        let ports = match device.ports() {
            // It has gone since it was listed.
            Err(error) if error.is_device_gone() => continue,
            ports => ports?,
        };
        rows.extend(of_each(&ports, |port| row(device, port)));
    }
    let header = ["DEVICE", "DRIVER", "NODE GUID", "PORT", "STATE", "NETDEV"];
    output::table(header, rows)
}

fn row(device: &Device, port: Option<&Port>) -> [String; 6] {
    [
        device.name().to_owned(),
        or_dash(device.driver()),
        or_dash(device.node_guid()),
        or_dash(port.map(|port| port.number)),
        or_dash(port.and_then(|port| port.state)),
        or_dash(port.and_then(netdev)),
    ]
}

/// A row for each port, and one for a device without ports.
fn of_each<P, T>(ports: &[P], row: impl Fn(Option<&P>) -> T) -> Vec<T> {
    match ports {
        [] => vec![row(None)],
        ports => ports.iter().map(|port| row(Some(port))).collect(),
    }
}

fn netdev(port: &Port) -> Option<&String> {
    Some(&port.netdev.as_ref()?.name)
}

fn verbose(topology: &Topology) -> Result<()> {
    let header = [
        "DEVICE", "DRIVER", "PORT", "STATE", "RATE", "NETDEV", "LAG", "RAIL", "NODE", "CPUS",
        "PCI", "LINK",
    ];
    let rows = topology.adapters().iter().flat_map(places).collect();
    output::table(header, rows)?;
    output::line(format_args!("\n{}", tree::of(topology)))
}

fn places(adapter: &Adapter) -> Vec<[String; 12]> {
    let place = adapter.place.as_ref();
    of_each(&adapter.ports, |port| {
        [
            adapter.device.name().to_owned(),
            or_dash(adapter.device.driver()),
            or_dash(port.map(|port| port.port.number)),
            or_dash(port.and_then(|port| port.port.state)),
            or_dash(port.and_then(|port| port.bandwidth)),
            or_dash(port.and_then(|port| netdev(&port.port))),
            or_dash(port.and_then(|port| Some(&port.lag.as_ref()?.name))),
            adapter.rail.to_string(),
            or_dash(place.and_then(|place| place.numa_node)),
            or_dash(place.map(|place| &place.cpus)),
            or_dash(place.map(|place| place.path.address())),
            or_dash(place.and_then(|place| place.link)),
        ]
    })
}

fn to_json(adapter: &Adapter) -> Value {
    let device = &adapter.device;
    json!({
        "name": device.name(),
        "driver": device.driver().map(|driver| driver.to_string()),
        "node_type": device.node_type().map(|node| node.to_string()),
        "node_guid": device.node_guid().map(|guid| guid.to_string()),
        "sys_image_guid": device.system_image_guid().map(|guid| guid.to_string()),
        "fw_ver": device.firmware_version(),
        "path": device.path(),
        "rail": adapter.rail,
        "place": adapter.place.as_ref().map(place_to_json),
        "ports": adapter.ports.iter().map(port_to_json).collect::<Value>(),
    })
}

fn place_to_json(place: &Place) -> Value {
    let path = &place.path;
    let bridges = path.bridges().iter().map(ToString::to_string);
    json!({
        "host_bridge": path.host_bridge(),
        "bridges": bridges.collect::<Vec<_>>(),
        "pci": path.address().to_string(),
        "numa_node": place.numa_node,
        "cpus": place.cpus.to_string(),
        "link": place.link.map(link_to_json),
        "max_link": place.max_link.map(link_to_json),
    })
}

fn link_to_json(link: uverbs::device::PciLink) -> Value {
    json!({
        "megatransfers": link.megatransfers,
        "width": link.width,
        "megabits": link.bandwidth().megabits(),
    })
}

fn port_to_json(port: &AdapterPort) -> Value {
    let AdapterPort {
        port,
        bandwidth,
        lanes,
        lag,
        ..
    } = port;
    json!({
        "port": port.number,
        "state": port.state.map(|state| state.to_string()),
        "phys_state": port.physical_state.map(|state| state.to_string()),
        "lid": port.lid,
        "netdev": netdev(port),
        "megabits": bandwidth.map(|bandwidth| bandwidth.megabits()),
        "lanes": lanes,
        "lag": lag.as_ref().map(|lag| json!({ "name": lag.name, "members": lag.members })),
    })
}
