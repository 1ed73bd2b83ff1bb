//! `uverbs gids`: the GID tables, one line for each entry in use.

use clap::Args;
use serde_json::{Value, json};
use uverbs::{Device, gid::GidEntry};

use crate::failure::Result;
use crate::output::{self, or_dash};
use crate::select;

/// Show the GID tables of the ports: the address at each index.
#[derive(Debug, Args)]
#[command(
    after_help = "`uverbs pingpong -g` and rdma-core's programs take the index.\n\
    The device is asked if it can be opened, and sysfs otherwise."
)]
pub(crate) struct Options {
    /// The device; all by default
    pub(crate) device: Option<String>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let mut entries = Vec::new();
    for device in select::devices(options.device.as_deref())? {
        let table = gids(&device)?.into_iter();
        entries.extend(table.map(|entry| (device.name().to_owned(), entry)));
    }
    if options.json {
        return output::json(&entries.iter().map(to_json).collect());
    }
    let header = ["DEVICE", "PORT", "INDEX", "GID", "IPv4", "TYPE", "NETDEV"];
    output::table(header, entries.iter().map(row).collect())
}

/// A device's entries. Sysfs needs no permission and no driver of the library; opening needs no sysfs.
fn gids(device: &Device) -> uverbs::Result<Vec<GidEntry>> {
    let opened = device.open().and_then(|context| context.gid_table());
    opened.or_else(|error| by_sysfs(device).map_err(|_| error))
}

fn by_sysfs(device: &Device) -> uverbs::Result<Vec<GidEntry>> {
    let mut entries = Vec::new();
    for port in device.ports()? {
        entries.extend(device.gid_table(port.number)?);
    }
    Ok(entries)
}

/// The name of a network device; its index as text if it is in another network namespace.
fn netdev_name(index: u32) -> Option<String> {
    use rustix::net::{AddressFamily, SocketType, netdevice::index_to_name, socket};
    if index == 0 {
        return None;
    }
    let name = socket(AddressFamily::UNIX, SocketType::DGRAM, None)
        .and_then(|socket| index_to_name(&socket, index));
    Some(name.unwrap_or_else(|_| format!("#{index}")))
}

fn row((device, entry): &(String, GidEntry)) -> [String; 7] {
    [
        device.clone(),
        entry.port.to_string(),
        entry.index.to_string(),
        entry.gid.to_string(),
        or_dash(entry.gid.as_ipv4()),
        entry.gid_type.to_string(),
        or_dash(netdev_name(entry.netdev_ifindex)),
    ]
}

fn to_json((device, entry): &(String, GidEntry)) -> Value {
    json!({
        "device": device,
        "port": entry.port,
        "index": entry.index,
        "gid": entry.gid.to_string(),
        "ipv4": entry.gid.as_ipv4().map(|address| address.to_string()),
        "type": entry.gid_type.to_string(),
        "netdev": netdev_name(entry.netdev_ifindex),
    })
}
