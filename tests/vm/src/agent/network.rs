//! Lays out the guest's netdevs and soft-RoCE devices, and takes them down again.

use std::process::Command;
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context, Result, ensure};

use crate::guest::protocol::Network;
use crate::process;

/// One host. rxe on `lo` is refused by Linux 6.1, hence the dummy.
const ONE_HOST: &str = "
ip link set lo up
ip link add d0 type dummy
ip addr add 10.9.0.1/24 dev d0
ip link set d0 up
rdma link add rxe0 type rxe netdev d0
";

/// Two hosts: two network namespaces and a wire between them.
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

/// Moves the two soft-RoCE devices to a second wire, both ends of which are in the initial namespace, for
/// kernels whose rxe sends and receives only there. Policy routing puts what goes from one end to the other
/// on the wire, where the kernel would otherwise deliver it on the spot. The namespaces keep the first wire,
/// with the same addresses.
const WIRE_IN_INITIAL_NAMESPACE: &str = "
rdma link del rxe1
rdma link del rxe2
ip link add veth1 type veth peer name veth2
sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.veth1.rp_filter=0 net.ipv4.conf.veth2.rp_filter=0
sysctl -qw net.ipv4.conf.veth1.accept_local=1 net.ipv4.conf.veth2.accept_local=1
ip addr add 10.9.0.1/24 dev veth1
ip addr add 10.9.0.2/24 dev veth2
ip link set veth1 up
ip link set veth2 up
ip rule add pref 100 lookup local
ip rule del pref 0
ip rule add pref 10 iif lo from 10.9.0.1 to 10.9.0.2 lookup 101
ip rule add pref 10 iif lo from 10.9.0.2 to 10.9.0.1 lookup 102
ip route add 10.9.0.2 dev veth1 src 10.9.0.1 table 101
ip route add 10.9.0.1 dev veth2 src 10.9.0.2 table 102
rdma link add rxe1 type rxe netdev veth1
rdma link add rxe2 type rxe netdev veth2
";

/// Where the kernel shows RDMA devices.
const DEVICES: &str = "/sys/class/infiniband";

/// The drivers of adapters' functions, with a link to each of them, and how the names of their devices begin.
const DRIVERS: [(&str, &str); 2] = [
    ("/sys/bus/pci/drivers/mlx5_core", "mlx5_"),
    ("/sys/bus/pci/drivers/efa", EFA),
];

/// How the names of an EFA's devices begin.
const EFA: &str = "efa_";

/// RoCE's UDP port, 4791, as /proc/net/udp writes it.
const ROCE_PORT: &str = ":12B7 ";

/// Lays out the network.
///
/// # Errors
/// If one of the commands fails.
pub(crate) fn lay_out(network: Network) -> Result<()> {
    match network {
        Network::OneHost => run_all(ONE_HOST)?,
        Network::TwoHosts => {
            run_all(TWO_HOSTS)?;
            if !rxe_listens_in_namespaces()? {
                run_all(WIRE_IN_INITIAL_NAMESPACE)?;
            }
        }
        Network::Adapter { functions, guest } => return lay_out_adapter(functions, guest),
    }
    devices().try_for_each(|device| wait_for_gid(&device))
}

/// The names of the RDMA devices.
fn devices() -> impl Iterator<Item = String> {
    let entries = fs::read_dir(DEVICES).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned())
}

/// Waits until a device has the GID of its IPv4 address: the kernel enters it some time after the device is
/// there.
fn wait_for_gid(device: &str) -> Result<()> {
    const MAPPED: &str = "0000:0000:0000:0000:0000:ffff:";
    let table = format!("{DEVICES}/{device}/ports/1/gids");
    let has_it = |index: u32| {
        let gid = fs::read_to_string(format!("{table}/{index}"));
        gid.is_ok_and(|gid| gid.starts_with(MAPPED))
    };
    wait_for(&format!("{device}'s GID for its IPv4 address"), || {
        (0..8).any(has_it)
    })
}

/// How long the kernel may take with a device. It is a matter of moments, but of many more where the host is
/// busy: a driver has to set up two functions of an adapter.
const PATIENCE: Duration = Duration::from_secs(300);

/// Asks until it is so, for at most [`PATIENCE`].
fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        ensure!(
            Instant::now() < deadline,
            "not there after {} s: {what}",
            PATIENCE.as_secs()
        );
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Waits for the adapter's devices, and gives their netdevs the addresses 10.9.0.1/24 and on, in the devices'
/// order. Each netdev but the first is in a namespace of its own, `h2` and on, since Linux keeps what goes
/// from one of its own addresses to another off the wire.
fn lay_out_adapter(functions: u16, guest: u16) -> Result<()> {
    run("ip link set lo up")?;
    let wanted = usize::from(functions);
    wait_for("the adapter's devices", || devices().count() == wanted)?;
    // Those of an EFA have no netdevs.
    if devices().any(|device| device.starts_with(EFA)) {
        return lay_out_wire(guest);
    }
    for number in 0..functions {
        let device = format!("mlx5_{number}");
        let netdev = netdev_of(&device)?;
        let host = guest * functions + number + 1;
        let ip = if number == 0 {
            "ip".to_owned()
        } else {
            run(&format!("ip netns add h{host}"))?;
            run(&format!("ip -n h{host} link set lo up"))?;
            run(&format!("ip link set {netdev} netns h{host}"))?;
            format!("ip -n h{host}")
        };
        run(&format!("{ip} addr add 10.9.0.{host}/24 dev {netdev}"))?;
        run(&format!("{ip} link set {netdev} up"))?;
        if is_infiniband(&device) {
            wait_for_link(&ip, &netdev)?;
        } else {
            wait_for_gid(&device)?;
        }
    }
    Ok(())
}

/// Gives the end of a wire to another guest, if there is one, the address 10.9.0.1/24 or 10.9.0.2/24.
fn lay_out_wire(guest: u16) -> Result<()> {
    let is_it = |netdev: &String| {
        let driver = fs::read_link(format!("/sys/class/net/{netdev}/device/driver"));
        driver.is_ok_and(|driver| driver.ends_with("virtio_net"))
    };
    let netdevs = fs::read_dir("/sys/class/net")
        .into_iter()
        .flatten()
        .flatten();
    let mut netdevs = netdevs.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let Some(netdev) = netdevs.find(is_it) else {
        return Ok(());
    };
    let host = guest + 1;
    run(&format!("ip addr add 10.9.0.{host}/24 dev {netdev}"))?;
    run(&format!("ip link set {netdev} up")).map(drop)
}

/// The netdev of an adapter's function: on InfiniBand that of ib_ipoib, which comes after the device.
fn netdev_of(device: &str) -> Result<String> {
    let find = || {
        let netdevs = fs::read_dir(format!("{DEVICES}/{device}/device/net")).ok()?;
        let netdev = netdevs.flatten().next()?;
        Some(netdev.file_name().to_string_lossy().into_owned())
    };
    let mut netdev = None;
    wait_for(&format!("{device}'s netdev"), || {
        netdev = find();
        netdev.is_some()
    })?;
    netdev.with_context(|| format!("{device} has no netdev"))
}

/// Whether a device's port is one of InfiniBand.
fn is_infiniband(device: &str) -> bool {
    let layer = fs::read_to_string(format!("{DEVICES}/{device}/ports/1/link_layer"));
    layer.is_ok_and(|layer| layer.trim() == "InfiniBand")
}

/// Waits until a netdev has a link. One of ib_ipoib has it when its port has joined the broadcast group; what
/// is sent before is dropped.
fn wait_for_link(ip: &str, netdev: &str) -> Result<()> {
    wait_for(&format!("{netdev}'s link"), || {
        run(&format!("{ip} link show {netdev}")).is_ok_and(|link| link.contains("LOWER_UP"))
    })
}

/// Removes all RDMA devices: only then does a driver look whether anything was left behind, and log it.
pub(crate) fn take_down() {
    let is_adapters = |device: &str| DRIVERS.iter().any(|(_, name)| device.starts_with(name));
    for device in devices().filter(|device| !is_adapters(device)) {
        if let Err(error) = run(&format!("rdma link del {device}")) {
            eprintln!("vm-agent: {error:#}");
        }
    }
    for (driver, _) in DRIVERS {
        for function in fs::read_dir(driver).into_iter().flatten().flatten() {
            let name = function.file_name();
            if name.to_string_lossy().contains(':')
                && let Err(error) = fs::write(format!("{driver}/unbind"), name.as_encoded_bytes())
            {
                eprintln!("vm-agent: taking {name:?} from its driver: {error}");
            }
        }
    }
    // On a debug kernel, memory that nothing points to any more is logged now. Stock kernels have no such
    // file.
    let _ = fs::write("/sys/kernel/debug/kmemleak", "scan");
}

/// Whether rxe has opened its socket in the namespace that a device of its is in. Linux 6.1 and 6.12 know one
/// socket, in the initial namespace (drivers/infiniband/sw/rxe/rxe_net.c); 7.2 has one in each.
fn rxe_listens_in_namespaces() -> Result<bool> {
    let sockets = run("ip netns exec h1 cat /proc/net/udp").context("looking for rxe's socket")?;
    Ok(sockets.contains(ROCE_PORT))
}

fn run_all(lines: &str) -> Result<()> {
    for line in lines.lines().filter(|line| !line.is_empty()) {
        run(line).context("laying out the guest's network")?;
    }
    Ok(())
}

fn run(line: &str) -> Result<String> {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or_default());
    process::output("in the guest", command.args(words))
}
