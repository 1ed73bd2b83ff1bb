//! Places over directories that look like a sysfs.

use std::os::unix::fs::symlink;
use std::path::Path;

use tempfile::TempDir;

use super::*;
use crate::error::Cause;

/// A made-up sysfs.
struct Tree(TempDir);

/// A function's directory below `devices`, with the attributes of a link.
struct Function<'a> {
    path: &'a str,
    node: i32,
    cpus: &'a str,
}

impl Tree {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, format!("{text}\n")).unwrap();
    }

    fn link(&self, path: &str, to: &str) {
        let path = self.0.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(self.0.path().join(to), path).unwrap();
    }

    /// A PCI function, which also appears in the bus's directory.
    fn function(&self, function: Function<'_>) {
        let Function { path, node, cpus } = function;
        let directory = format!("devices/{path}");
        self.write(&format!("{directory}/numa_node"), &node.to_string());
        self.write(&format!("{directory}/local_cpulist"), cpus);
        let name = Path::new(path).file_name().unwrap().to_str().unwrap();
        self.link(&format!("bus/pci/devices/{name}"), &directory);
    }

    /// An RDMA device with one active port.
    fn adapter(&self, name: &str, rate: &str) {
        let port = format!("class/infiniband/{name}/ports/1");
        self.write(&format!("class/infiniband/{name}/node_type"), "1: CA");
        self.write(&format!("{port}/state"), "4: ACTIVE");
        self.write(&format!("{port}/link_layer"), "Ethernet");
        self.write(&format!("{port}/rate"), rate);
    }

    fn adapter_at(&self, name: &str, path: &str) {
        self.adapter(name, "400 Gb/sec (4X NDR)");
        self.link(
            &format!("class/infiniband/{name}/device"),
            &format!("devices/{path}"),
        );
    }

    fn netdev(&self, device: &str, netdev: &str) {
        self.write(
            &format!("class/infiniband/{device}/ports/1/gid_attrs/ndevs/0"),
            netdev,
        );
        self.write(&format!("class/net/{netdev}/ifindex"), "7");
    }

    fn discovery(&self) -> Discovery {
        Discovery::Sysfs(self.0.path().to_owned())
    }

    fn topology(&self) -> Topology {
        self.discovery().topology().unwrap()
    }
}

const SWITCH_A: &str = "pci0000:00/0000:00:01.0/0000:01:00.0";
const SWITCH_B: &str = "pci0000:00/0000:00:02.0/0000:05:00.0";
const SWITCH_C: &str = "pci0000:80/0000:80:01.0/0000:81:00.0";

/// A server with two sockets and three switches: `mlx5_0` and a GPU behind A; `mlx5_1` and `mlx5_2`, the two
/// ports of a card, behind B; `mlx5_3` and a GPU behind C, on the other socket.
fn server() -> Tree {
    let tree = Tree::new();
    let functions = [
        (format!("{SWITCH_A}/0000:02:00.0/0000:03:00.0"), 0, "0-3"),
        (format!("{SWITCH_A}/0000:02:01.0/0000:04:00.0"), 0, "0-3"),
        (format!("{SWITCH_B}/0000:06:00.0/0000:07:00.0"), 0, "0-3"),
        (format!("{SWITCH_B}/0000:06:00.0/0000:07:00.1"), 0, "0-3"),
        (format!("{SWITCH_C}/0000:82:00.0/0000:83:00.0"), 1, "4-7"),
        (format!("{SWITCH_C}/0000:82:01.0/0000:84:00.0"), 1, "4-7"),
    ];
    for (path, node, cpus) in &functions {
        tree.function(Function {
            path,
            node: *node,
            cpus,
        });
    }
    for (name, at) in [("mlx5_0", 0), ("mlx5_1", 2), ("mlx5_2", 3), ("mlx5_3", 4)] {
        tree.adapter_at(name, &functions[at].0);
    }
    let nic = format!("devices/{}", functions[0].0);
    for (file, text) in [
        ("current_link_speed", "16.0 GT/s PCIe"),
        ("current_link_width", "8"),
        ("max_link_speed", "32.0 GT/s PCIe"),
        ("max_link_width", "16"),
    ] {
        tree.write(&format!("{nic}/{file}"), text);
    }
    for (node, cpus, distance) in [(0, "0-3", "10 21"), (1, "4-7", "21 10")] {
        tree.write(&format!("devices/system/node/node{node}/cpulist"), cpus);
        tree.write(
            &format!("devices/system/node/node{node}/distance"),
            distance,
        );
    }
    tree.write("devices/system/node/online", "0-1");
    tree
}

fn names(adapters: &[&Adapter]) -> Vec<String> {
    let name = |adapter: &&Adapter| adapter.device.name().to_owned();
    adapters.iter().map(name).collect()
}

#[test]
fn a_place_has_its_way_and_its_links() {
    let tree = server();
    let topology = tree.topology();
    let adapter = &topology.adapters()[0];
    let place = adapter.place.as_ref().unwrap();
    let way = format!("{SWITCH_A}/0000:02:00.0/0000:03:00.0");
    assert_eq!(place.path.to_string(), way);
    assert_eq!(place.path.host_bridge(), "pci0000:00");
    assert_eq!(place.path.bridges().len(), 3);
    assert_eq!(place.numa_node, Some(0));
    assert_eq!(place.cpus.to_string(), "0-3");
    assert_eq!(place.link.unwrap().to_string(), "16 GT/s x8");
    assert_eq!(place.max_link.unwrap().to_string(), "32 GT/s x16");

    let port = &adapter.ports[0];
    assert_eq!(port.bandwidth, Some(Bandwidth::from_megabits(400_000)));
    assert_eq!((port.lanes, &port.lag), (Some(4), &None));
    let other = topology.adapters()[3].place.as_ref().unwrap();
    assert_eq!((other.link, other.max_link), (None, None));
}

#[test]
fn rails_share_a_root_port_or_a_card() {
    let tree = server();
    let topology = tree.topology();
    let rails: Vec<_> = topology.rails().iter().map(|rail| names(rail)).collect();
    assert_eq!(
        rails,
        [vec!["mlx5_0"], vec!["mlx5_1", "mlx5_2"], vec!["mlx5_3"]]
    );

    // On a bus without bridges the functions of one card form a rail of their own.
    let tree = Tree::new();
    for (name, path) in [
        ("a", "pci0000:00/0000:00:05.0"),
        ("b", "pci0000:00/0000:00:06.0"),
        ("c", "pci0000:00/0000:00:05.1"),
    ] {
        tree.function(Function {
            path,
            node: -1,
            cpus: "0-1",
        });
        tree.adapter_at(name, path);
    }
    tree.adapter("rxe0", "2.5 Gb/sec (1X SDR)");
    let rails: Vec<_> = tree
        .topology()
        .rails()
        .iter()
        .map(|rail| names(rail))
        .collect();
    assert_eq!(rails, [vec!["a", "c"], vec!["b"], vec!["rxe0"]]);
}

#[test]
fn a_gpu_has_the_adapter_of_its_switch() {
    let tree = server();
    let topology = tree.topology();
    let near = |gpu: &str| Near::Pci(gpu.parse().unwrap());
    assert_eq!(
        names(&topology.nearest(near("0000:04:00.0")).unwrap()),
        ["mlx5_0"]
    );
    assert_eq!(
        names(&topology.nearest(near("84:00.0")).unwrap()),
        ["mlx5_3"]
    );

    let by_distance = topology.by_distance(near("0000:04:00.0")).unwrap();
    let distances: Vec<_> = by_distance.iter().map(|(distance, _)| *distance).collect();
    use Distance::{HostBridge, Remote, Switch};
    assert_eq!(distances, [Switch, HostBridge, HostBridge, Remote(21)]);
    let itself = topology.by_distance(near("0000:07:00.1")).unwrap();
    assert_eq!(itself[0].0, Distance::Device);
    assert_eq!(itself[1].0, Distance::Device);
}

#[test]
fn a_cpu_and_a_node_have_those_of_the_node() {
    let tree = server();
    let topology = tree.topology();
    let of_socket_0 = ["mlx5_0", "mlx5_1", "mlx5_2"];
    assert_eq!(names(&topology.nearest(Near::Cpu(2)).unwrap()), of_socket_0);
    assert_eq!(
        names(&topology.nearest(Near::Node(0)).unwrap()),
        of_socket_0
    );
    assert_eq!(names(&topology.nearest(Near::Cpu(7)).unwrap()), ["mlx5_3"]);
}

#[test]
fn a_node_without_adapters_has_those_of_the_nearest_node() {
    let tree = server();
    for (node, cpus, distance) in [
        (0, "0-3", "10 21 31"),
        (1, "4-7", "21 10 12"),
        (2, "", "31 12 10"),
    ] {
        tree.write(&format!("devices/system/node/node{node}/cpulist"), cpus);
        tree.write(
            &format!("devices/system/node/node{node}/distance"),
            distance,
        );
    }
    let topology = tree.topology();
    assert_eq!(names(&topology.nearest(Near::Node(2)).unwrap()), ["mlx5_3"]);
    let by_distance = topology.by_distance(Near::Node(2)).unwrap();
    assert_eq!(by_distance[0].0, Distance::Remote(12));
}

#[test]
fn adapters_without_an_active_port_are_not_picked() {
    let tree = server();
    tree.write("class/infiniband/mlx5_3/ports/1/state", "1: DOWN");
    let topology = tree.topology();
    let picked = topology.nearest(Near::Node(1)).unwrap();
    assert_eq!(names(&picked), ["mlx5_0", "mlx5_1", "mlx5_2"]);
    assert_eq!(topology.by_distance(Near::Node(1)).unwrap().len(), 4);
}

#[test]
fn what_is_not_there_is_not_found() {
    let tree = server();
    let topology = tree.topology();
    for near in [
        Near::Cpu(8),
        Near::Node(2),
        Near::Pci("0000:99:00.0".parse().unwrap()),
    ] {
        let error = topology.nearest(near).unwrap_err();
        assert!(matches!(error.cause(), Cause::NotFound(_)), "{error}");
    }
}

#[test]
fn without_nodes_all_adapters_are_alike() {
    let tree = server();
    std::fs::remove_dir_all(tree.0.path().join("devices/system")).unwrap();
    let topology = tree.topology();
    assert!(topology.numa_nodes().is_empty());
    let picked = topology.by_distance(Near::Cpu(0)).unwrap();
    assert!(picked.iter().all(|(far, _)| *far == Distance::Unknown));
    assert_eq!(topology.nearest(Near::Cpu(0)).unwrap().len(), 4);
}

#[test]
fn software_lies_where_its_network_device_does() {
    let tree = server();
    tree.adapter("rxe0", "2.5 Gb/sec (1X SDR)");
    tree.netdev("rxe0", "eth0");
    // As with virtio: the network device's device is below the function.
    let virtio = format!("devices/{SWITCH_C}/0000:82:01.0/0000:84:00.0/virtio0");
    std::fs::create_dir(tree.0.path().join(&virtio)).unwrap();
    tree.link("class/net/eth0/device", &virtio);
    let topology = tree.topology();
    let rxe = topology.adapters().last().unwrap();
    let place = rxe.place.as_ref().unwrap();
    assert_eq!(place.path.address().to_string(), "0000:84:00.0");
    assert_eq!((place.numa_node, rxe.rail), (Some(1), 2));
    assert_eq!(rxe.ports[0].bandwidth.unwrap().to_string(), "2.5 Gb/s");
}

#[test]
fn a_virtual_function_has_the_link_of_its_physical_one() {
    let tree = server();
    let virtual_function = format!("{SWITCH_A}/0000:02:00.0/0000:03:00.2");
    tree.function(Function {
        path: &virtual_function,
        node: 0,
        cpus: "0-3",
    });
    tree.adapter_at("mlx5_4", &virtual_function);
    tree.write(
        &format!("devices/{virtual_function}/current_link_speed"),
        "Unknown",
    );
    tree.write(
        &format!("devices/{virtual_function}/current_link_width"),
        "0",
    );
    let link = |tree: &Tree| tree.topology().adapters()[4].place.as_ref().unwrap().link;
    assert_eq!(link(&tree), None);
    let physical = format!("devices/{SWITCH_A}/0000:02:00.0/0000:03:00.0");
    tree.link(&format!("devices/{virtual_function}/physfn"), &physical);
    assert_eq!(link(&tree).unwrap().to_string(), "16 GT/s x8");
}

#[test]
fn a_bond_is_found_by_itself_and_by_its_members() {
    let tree = server();
    tree.netdev("mlx5_0", "eth0");
    tree.netdev("mlx5_1", "bond0");
    tree.netdev("mlx5_2", "eth2");
    tree.netdev("mlx5_3", "eth3");
    tree.write("class/net/bond0/bonding/slaves", "eth0 eth1");
    tree.link("class/net/eth0/master", "class/net/bond0");
    // A bridge is not a link aggregation.
    tree.write("class/net/br0/bridge/stp_state", "0");
    tree.link("class/net/eth2/master", "class/net/br0");
    let topology = tree.topology();
    let lags: Vec<_> = topology
        .adapters()
        .iter()
        .map(|a| a.ports[0].lag.clone())
        .collect();
    let bond = Some(Lag {
        name: "bond0".into(),
        members: vec!["eth0".into(), "eth1".into()],
    });
    assert_eq!(lags, [bond.clone(), bond, None, None]);
}

#[test]
fn nonsense_is_an_error_that_names_the_file() {
    let nic = format!("devices/{SWITCH_A}/0000:02:00.0/0000:03:00.0");
    for (path, text) in [
        (format!("{nic}/numa_node"), "none"),
        (format!("{nic}/local_cpulist"), "all"),
        (format!("{nic}/current_link_speed"), "fast"),
        (format!("{nic}/max_link_width"), "x16"),
        ("class/infiniband/mlx5_0/ports/1/rate".into(), "much"),
        ("devices/system/node/node1/distance".into(), "10 far"),
        ("devices/system/node/node1/cpulist".into(), "3-1"),
    ] {
        let tree = server();
        tree.write(&path, text);
        let error = tree.discovery().topology().unwrap_err();
        assert!(matches!(error.cause(), Cause::Malformed(_)), "{error}");
        assert!(error.to_string().contains(&path), "{error}");
    }
}

/// Would catch an adapter that is unplugged and hides all others: sysfs shows what is left of it.
#[test]
fn an_adapter_that_goes_meanwhile_is_not_there() {
    let tree = server();
    std::fs::remove_dir_all(tree.0.path().join("class/infiniband/mlx5_1/ports")).unwrap();
    let topology = tree.topology();
    let there: Vec<_> = topology.adapters().iter().collect();
    assert_eq!(names(&there), ["mlx5_0", "mlx5_2", "mlx5_3"]);
}

#[test]
fn without_devices_there_is_nothing() {
    let topology = Tree::new().topology();
    assert!(topology.adapters().is_empty() && topology.rails().is_empty());
}
