//! `uverbs devices`: the devices of this network namespace, without opening them.

use clap::Args;
use serde_json::{Value, json};
use uverbs::{Device, device::Port};

use crate::failure::Result;
use crate::output::{self, or_dash};

/// List the RDMA devices.
#[derive(Debug, Args)]
#[command(after_help = "No device is no failure: the list is empty then.")]
pub(crate) struct Options {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let mut found = Vec::new();
    for device in uverbs::devices()? {
        let ports = device.ports()?;
        found.push((device, ports));
    }
    if options.json {
        return output::json(&found.iter().map(to_json).collect());
    }
    if found.is_empty() {
        eprintln!("uverbs: there is no RDMA device in this network namespace");
        return Ok(());
    }
    let header = ["DEVICE", "DRIVER", "NODE GUID", "PORT", "STATE", "NETDEV"];
    output::table(header, found.iter().flat_map(rows).collect())
}

/// A row for each port, and one for a device without ports.
fn rows((device, ports): &(Device, Vec<Port>)) -> Vec<[String; 6]> {
    let row = |port: Option<&Port>| {
        [
            device.name().to_owned(),
            or_dash(device.driver()),
            or_dash(device.node_guid()),
            or_dash(port.map(|port| port.number)),
            or_dash(port.and_then(|port| port.state)),
            or_dash(port.and_then(|port| Some(&port.netdev.as_ref()?.name))),
        ]
    };
    match ports.is_empty() {
        true => vec![row(None)],
        false => ports.iter().map(|port| row(Some(port))).collect(),
    }
}

fn to_json((device, ports): &(Device, Vec<Port>)) -> Value {
    json!({
        "name": device.name(),
        "driver": device.driver().map(|driver| driver.to_string()),
        "node_type": device.node_type().map(|node| node.to_string()),
        "node_guid": device.node_guid().map(|guid| guid.to_string()),
        "sys_image_guid": device.system_image_guid().map(|guid| guid.to_string()),
        "fw_ver": device.firmware_version(),
        "path": device.path(),
        "ports": ports.iter().map(port_to_json).collect::<Value>(),
    })
}

fn port_to_json(port: &Port) -> Value {
    json!({
        "port": port.number,
        "state": port.state.map(|state| state.to_string()),
        "phys_state": port.physical_state.map(|state| state.to_string()),
        "lid": port.lid,
        "netdev": port.netdev.as_ref().map(|netdev| &netdev.name),
    })
}
