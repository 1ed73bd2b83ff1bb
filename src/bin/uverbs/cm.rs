//! `uverbs cm`: the identifiers of the connection manager, of all processes, and their changes.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Args;
use uverbs::resource::CmIdResource;

use crate::complete;
use crate::failure::{Kind, Result};
use crate::files::Files;
use crate::owner::Owner;
use crate::resource::{connection_state, port_space};
use crate::{number, output, resource, select};

/// How often `--watch` queries them.
const PAUSE: Duration = Duration::from_millis(50);

/// Show the connections, listeners and lookups of all processes (rdma_cm).
///
/// The kernel shows only identifiers that are bound to a device, so not a listener on all addresses.
#[derive(Debug, Args)]
#[command(after_help = crate::failure::EXIT_CODES)]
#[group(skip)]
pub(crate) struct Options {
    /// The device; all by default
    #[arg(short, long, add = complete::devices())]
    device: Option<String>,

    /// Show only those of this process
    #[arg(short, long)]
    pid: Option<u32>,

    /// Print JSON
    #[arg(long, conflicts_with = "watch")]
    json: bool,

    /// Print each change, until interrupted
    #[arg(short, long)]
    watch: bool,

    /// Watch for this many seconds
    #[arg(long = "for", value_name = "SECONDS", requires = "watch", value_parser = number::seconds)]
    limit: Option<Duration>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    match options.watch {
        true => watch(options),
        false => resource::cm_ids(options.device.as_deref(), options.pid, options.json),
    }
}

/// An identifier with its owner, which may have ended when the identifier has gone.
struct Held {
    id: CmIdResource,
    owner: Owner,
}

/// The identifiers, by device and number.
type Ids = BTreeMap<(String, u32), Held>;

fn watch(options: &Options) -> Result<()> {
    let start = Instant::now();
    let mut before = Ids::new();
    let mut now = ids(options)?;
    loop {
        for line in changes(&before, &now) {
            output::line(format_args!(
                "{:9.3}  {line}",
                start.elapsed().as_secs_f64()
            ))?;
        }
        before = now;
        if options.limit.is_some_and(|limit| start.elapsed() >= limit) {
            return Ok(());
        }
        sleep(PAUSE);
        now = ids_again(options)?;
    }
}

fn ids(options: &Options) -> Result<Ids> {
    let files = Files::of_this_host();
    let mut ids = Ids::new();
    for device in select::devices(options.device.as_deref())? {
        let found = match device.resources().and_then(|of| of.cm_ids()) {
            Ok(found) => found,
            // The device has gone meanwhile, and its identifiers with it.
            Err(_) if uverbs::device::find(device.name()).is_err() => continue,
            Err(error) => return Err(error.into()),
        };
        for id in found {
            let owner = Owner::of(&files, &id.owner);
            if options.pid.is_none() || options.pid == owner.pid {
                ids.insert((device.name().to_owned(), id.cm_idn), Held { id, owner });
            }
        }
    }
    Ok(ids)
}

/// The identifiers while they are watched: none, once the device has gone.
fn ids_again(options: &Options) -> Result<Ids> {
    match ids(options) {
        Err(failure) if failure.is(Kind::NotFound) => Ok(Ids::new()),
        result => result,
    }
}

/// A line for each identifier that appeared, disappeared, or changed its state.
fn changes(before: &Ids, now: &Ids) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, held) in now {
        let state = connection_state(held.id.state);
        match before.get(name) {
            None => lines.push(format!("{}  {state}", told(name, held))),
            Some(old) if old.id.state != held.id.state => {
                let old = connection_state(old.id.state);
                lines.push(format!("{}  {old} -> {state}", told(name, held)));
            }
            Some(_) => {}
        }
    }
    for (name, held) in before {
        if !now.contains_key(name) {
            let state = connection_state(held.id.state);
            lines.push(format!("{}  {state} -> gone", told(name, held)));
        }
    }
    lines
}

/// An identifier as text.
fn told((device, number): &(String, u32), Held { id, owner }: &Held) -> String {
    let address = |address: Option<std::net::SocketAddr>| {
        address.map_or_else(|| "-".to_owned(), |address| address.to_string())
    };
    format!(
        "{device}  id {number}  {}  {} to {}  pid {}",
        port_space(id.port_space),
        address(id.source),
        address(id.destination),
        output::or_dash(owner.pid),
    )
}
