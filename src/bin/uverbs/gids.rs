//! `uverbs gids`: the GID tables, one line for each entry in use.

use clap::Args;
use serde_json::{Value, json};
use uverbs::{Context, Device, gid::GidEntry};

use crate::complete;
use crate::failure::{Failure, Kind, Result};
use crate::output::{self, or_dash};
use crate::select;

const NOTES: &str = "\
`uverbs pingpong -g` and rdma-core's programs take the index.
The device is asked if it can be opened, and sysfs otherwise.

";

/// Show the GID tables of the ports: the address at each index.
#[derive(Debug, Args)]
#[command(after_help = NOTES.to_owned() + crate::failure::EXIT_CODES)]
pub(crate) struct Options {
    /// The device; all by default
    #[arg(short, long, add = complete::devices())]
    pub(crate) device: Option<String>,

    /// Show only this port
    #[arg(short = 'i', long = "ib-port", value_name = "PORT",
          value_parser = clap::value_parser!(u8).range(1..), add = complete::ports())]
    pub(crate) port: Option<u8>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let mut entries = Vec::new();
    for device in select::devices(options.device.as_deref())? {
        let wanted = |entry: &GidEntry| {
            options
                .port
                .is_none_or(|port| entry.port == u32::from(port))
        };
        let gids = gids(&device)?.into_iter();
        entries.extend(gids.filter(|gid| wanted(&gid.entry)));
    }
    if let (Some(port), true) = (options.port, entries.is_empty()) {
        let text = format_args!("there is no GID of a port {port}");
        return Err(Failure::new(Kind::NotFound, text));
    }
    if options.json {
        return output::json(&entries.iter().map(to_json).collect());
    }
    let header = [
        "DEVICE", "PORT", "INDEX", "GID", "IPv4", "TYPE", "NETDEV", "DEFAULT",
    ];
    output::table(header, entries.iter().map(row).collect())
}

/// An entry of a device's table.
struct Gid {
    device: String,
    entry: GidEntry,
    /// Whether connections use it by default; unknown unless the device is opened.
    is_default: Option<bool>,
}

/// A device's entries. Sysfs needs no permission and no driver of the library; an open device needs no sysfs.
fn gids(device: &Device) -> uverbs::Result<Vec<Gid>> {
    let named = |entry, is_default| Gid {
        device: device.name().to_owned(),
        entry,
        is_default,
    };
    let opened = device.open().and_then(|context| {
        let table = context.gid_table()?.into_iter();
        let told = table.map(|entry| {
            let is_default = is_default(&context, &entry);
            named(entry, is_default)
        });
        Ok(told.collect())
    });
    opened.or_else(|error| match by_sysfs(device) {
        Ok(entries) => Ok(entries
            .into_iter()
            .map(|entry| named(entry, None))
            .collect()),
        Err(_) => Err(error),
    })
}

fn is_default(context: &Context, entry: &GidEntry) -> Option<bool> {
    let best = context.best_gid(u8::try_from(entry.port).ok()?).ok()?;
    // On InfiniBand there is no default.
    Some(best.is_some_and(|(index, _)| u32::from(index) == entry.index))
}

/// The entries that sysfs shows, without opening the device.
pub(crate) fn by_sysfs(device: &Device) -> uverbs::Result<Vec<GidEntry>> {
    let mut entries = Vec::new();
    for port in device.ports()? {
        entries.extend(device.gid_table(port.number)?);
    }
    Ok(entries)
}

/// The name of a network device, if it is in this network namespace.
pub(crate) fn netdev_here(index: u32) -> Option<String> {
    use rustix::net::{AddressFamily, SocketType, netdevice::index_to_name, socket};
    let socket = socket(AddressFamily::UNIX, SocketType::DGRAM, None).ok()?;
    index_to_name(&socket, index).ok()
}

/// The name of a network device; its index as text if it is in another network namespace.
fn netdev_name(index: u32) -> Option<String> {
    (index != 0).then(|| netdev_here(index).unwrap_or_else(|| format!("#{index}")))
}

fn row(gid: &Gid) -> [String; 8] {
    let entry = &gid.entry;
    [
        gid.device.clone(),
        entry.port.to_string(),
        entry.index.to_string(),
        entry.gid.to_string(),
        or_dash(entry.gid.as_ipv4()),
        entry.gid_type.to_string(),
        or_dash(netdev_name(entry.netdev_ifindex)),
        match gid.is_default {
            Some(true) => "*".into(),
            Some(false) => String::new(),
            None => "?".into(),
        },
    ]
}

fn to_json(gid: &Gid) -> Value {
    let entry = &gid.entry;
    json!({
        "device": gid.device,
        "port": entry.port,
        "index": entry.index,
        "gid": entry.gid.to_string(),
        "ipv4": entry.gid.as_ipv4().map(|address| address.to_string()),
        "type": entry.gid_type.to_string(),
        "netdev": netdev_name(entry.netdev_ifindex),
        "default": gid.is_default,
    })
}
