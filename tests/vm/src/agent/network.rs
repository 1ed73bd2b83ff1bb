//! Lays out the guest's netdevs and soft-RoCE devices, and takes them down again.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};

use crate::guest::protocol::Network;
use crate::process;

/// Commands that lay out one host. rxe on `lo` is refused by Linux 6.1, hence the dummy.
const ONE_HOST: &str = "
ip link set lo up
ip link add d0 type dummy
ip addr add 10.9.0.1/24 dev d0
ip link set d0 up
rdma link add rxe0 type rxe netdev d0
";

/// Commands that lay out two hosts.
const TWO_HOSTS: &str = "
ip link set lo up
ip netns add h1
ip netns add h2
ip -n h1 link set lo up
ip -n h2 link set lo up
ip link add veth1 netns h1 type veth peer name veth2 netns h2
ip -n h1 addr add 10.9.0.1/24 dev veth1
ip -n h2 addr add 10.9.0.2/24 dev veth2
ip -n h1 link set veth1 up
ip -n h2 link set veth2 up
ip netns exec h1 rdma link add rxe1 type rxe netdev veth1
ip netns exec h2 rdma link add rxe2 type rxe netdev veth2
";

/// Lays out the network.
///
/// # Errors
/// If one of the commands fails.
pub(crate) fn lay_out(network: Network) -> Result<()> {
    let commands = match network {
        Network::OneHost => ONE_HOST,
        Network::TwoHosts => TWO_HOSTS,
    };
    for line in commands.lines().filter(|line| !line.is_empty()) {
        run(line).context("laying out the guest's network")?;
    }
    Ok(())
}

/// Removes all soft-RoCE devices: only then does the driver look whether anything was left behind, and log it.
pub(crate) fn take_down() {
    let devices = fs::read_dir("/sys/class/infiniband")
        .into_iter()
        .flatten()
        .flatten();
    for device in devices {
        let name = device.file_name();
        if let Err(error) = run(&format!("rdma link del {}", name.to_string_lossy())) {
            eprintln!("vm-agent: {error:#}");
        }
    }
}

fn run(line: &str) -> Result<()> {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or_default());
    process::output("in the guest", command.args(words))?;
    Ok(())
}
