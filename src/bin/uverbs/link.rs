//! `uverbs link`: RDMA devices on network devices, as `rdma link add` and `rdma link delete` make them.

use clap::{Args, Subcommand, ValueEnum};

use crate::failure::Result;
use crate::{complete, output, select};

const NOTES: &str = "\
Both need CAP_NET_ADMIN.

Examples:
  uverbs link add rxe0 eth0    soft-RoCE over eth0
  uverbs link del rxe0         programs that use it see it removed

";

/// Make and delete RDMA devices on network devices (soft-RoCE).
#[derive(Debug, Args)]
#[command(after_help = NOTES.to_owned() + crate::failure::EXIT_CODES)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a device
    Add {
        /// Its name
        device: String,

        /// The network device
        netdev: String,

        /// What it is
        #[arg(short, long, default_value = "rxe")]
        kind: Kind,
    },
    /// Delete a device
    #[command(visible_alias = "delete")]
    Del {
        /// Its name
        #[arg(add = complete::devices())]
        device: String,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    /// soft-RoCE
    Rxe,
    /// soft-iWARP, for which this library has no driver
    Siw,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    match &options.command {
        Command::Add {
            device,
            netdev,
            kind,
        } => {
            let kind = match kind {
                Kind::Rxe => "rxe",
                Kind::Siw => "siw",
            };
            let device = uverbs::device::add_link(device, kind, netdev)?;
            output::line(device.name())
        }
        Command::Del { device } => Ok(select::one(Some(device))?.delete_link()?),
    }
}
