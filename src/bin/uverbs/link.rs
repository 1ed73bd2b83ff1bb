//! `uverbs link`: RDMA devices on network devices, as `rdma link add` and `rdma link delete` make them.

use clap::{Args, Subcommand, ValueEnum};

use crate::failure::{Failure, Result};
use crate::files::Files;
use crate::{complete, output, select};

const NOTES: &str = "\
Both need CAP_NET_ADMIN in the initial user namespace, which a rootless container does not have.

From Linux 7.3 on, programs that use a soft-RoCE device see it removed. Before, its deletion
waits, and cannot be killed, until the last of them has closed it.

Examples:
  uverbs link add rxe0 eth0    soft-RoCE over eth0
  uverbs link del rxe0         deletes it again

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
            let device = uverbs::device::add_link(device, kind, netdev)
                .map_err(|error| not_added(&Files::of_this_host(), kind, netdev, error.into()))?;
            output::line(device.name())
        }
        Command::Del { device } => Ok(select::one(Some(device))?.delete_link()?),
    }
}

/// The kernel's errno does not say whether the network device is missing or the kind of device is unknown.
fn not_added(files: &Files, kind: &str, netdev: &str, failure: Failure) -> Failure {
    if !files.has(format!("sys/class/net/{netdev}")) {
        let text = format!("{failure}: there is no network device {netdev} in this namespace");
        return Failure::new(failure.kind(), text);
    }
    let module = if kind == "siw" { "siw" } else { "rdma_rxe" };
    match files.has(format!("sys/module/{module}")) {
        true => failure,
        false => {
            let text = format!("{failure}: the kernel has no {module} (modprobe {module})");
            Failure::new(failure.kind(), text)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Kind;
    use crate::files::host;

    /// Catches an error that does not say what is missing.
    #[test]
    fn what_is_missing_is_named() {
        let (netdev, module) = ("sys/class/net/eth0/mtu", "sys/module/rdma_rxe/refcnt");
        let bare = host("link", &[(netdev, "1500")]);
        let loaded = host("link-loaded", &[(netdev, "1500"), (module, "0")]);
        let text = |files, netdev| {
            let failure = Failure::new(Kind::Failed, "refused");
            not_added(files, "rxe", netdev, failure).to_string()
        };
        assert!(text(&bare, "eth7").contains("no network device eth7"));
        assert!(text(&bare, "eth0").contains("modprobe rdma_rxe"));
        assert_eq!(text(&loaded, "eth0"), "refused");
    }
}
