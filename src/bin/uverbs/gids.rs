//! `uverbs gids`: the GID tables, one line for each entry in use.

use clap::Args;
use serde_json::{Value, json};
use uverbs::{Device, Gid, gid::GidType};

use crate::failure::Result;
use crate::output::{self, or_dash};
use crate::select;

/// Show the GIDs of the ports: which index stands for which address.
#[derive(Debug, Args)]
#[command(
    after_help = "The index is what `uverbs pingpong -g` and rdma-core's programs take.\n\
    The device is asked if it can be opened, and sysfs otherwise."
)]
pub(crate) struct Options {
    /// The device; all if it is not said
    device: Option<String>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// An entry of the GID table of a device's port.
struct Entry {
    device: String,
    port: u32,
    index: u32,
    gid: Gid,
    gid_type: GidType,
    netdev: Option<String>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let mut entries = Vec::new();
    for device in select::devices(options.device.as_deref())? {
        entries.extend(of_device(&device)?);
    }
    if options.json {
        return output::json(&entries.iter().map(to_json).collect());
    }
    let header = ["DEVICE", "PORT", "INDEX", "GID", "IPv4", "TYPE", "NETDEV"];
    output::table(header, entries.iter().map(row).collect())
}

/// A device's entries. Sysfs needs no permission and no driver of the library; opening needs no sysfs.
fn of_device(device: &Device) -> Result<Vec<Entry>> {
    match by_verbs(device) {
        Ok(entries) => Ok(entries),
        Err(error) => by_sysfs(device).map_err(|_| error.into()),
    }
}

fn by_verbs(device: &Device) -> uverbs::Result<Vec<Entry>> {
    let context = uverbs::OpenOptions::new().open(device)?;
    let table = context.gid_table()?;
    let entries = table.into_iter().map(|entry| Entry {
        device: device.name().to_owned(),
        port: entry.port,
        index: entry.index,
        gid: entry.gid,
        gid_type: entry.gid_type,
        netdev: netdev_name(entry.netdev_ifindex),
    });
    Ok(entries.collect())
}

fn by_sysfs(device: &Device) -> uverbs::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for port in device.ports()? {
        entries.extend(
            device
                .gid_table(port.number)?
                .into_iter()
                .map(|entry| Entry {
                    device: device.name().to_owned(),
                    port: port.number,
                    index: entry.index,
                    gid: entry.gid,
                    gid_type: entry.gid_type,
                    netdev: entry.netdev.map(|netdev| netdev.name),
                }),
        );
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

fn row(entry: &Entry) -> [String; 7] {
    [
        entry.device.clone(),
        entry.port.to_string(),
        entry.index.to_string(),
        entry.gid.to_string(),
        or_dash(entry.gid.as_ipv4()),
        entry.gid_type.to_string(),
        or_dash(entry.netdev.as_ref()),
    ]
}

fn to_json(entry: &Entry) -> Value {
    json!({
        "device": entry.device,
        "port": entry.port,
        "index": entry.index,
        "gid": entry.gid.to_string(),
        "ipv4": entry.gid.as_ipv4().map(|address| address.to_string()),
        "type": entry.gid_type.to_string(),
        "netdev": entry.netdev,
    })
}
