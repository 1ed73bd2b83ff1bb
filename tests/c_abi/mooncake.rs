//! Mooncake's transfer engine on both libraries, in one guest. That of two guests is in `tests/guests`.

use libtest_mimic::Trial;
use support::library::Library;
use support::mooncake::{Layout, Node, Side, wheel};
use support::own_device::await_address;
use support::{Device, Hca, Result, device, kernel, run, skip, test};

use crate::runs::ADDRESS;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("engines::mooncake", transfers),
        test("engines::mooncake_cache", cache),
        test("engines::mooncake_after_a_killed_host", killed_host),
        test("engines::mooncake_after_a_killed_target", killed_target),
    ]
}

/// One node for both sides, with the device of the tests.
fn one_node() -> Node {
    Node {
        namespace: None,
        address: ADDRESS.to_owned(),
        devices: vec![device().name().to_owned()],
    }
}

/// Catches what the engine understands differently over the two libraries: several regions, of a page to a
/// mebibyte.
fn transfers() -> Result {
    wheel()?;
    let node = one_node();
    between_all([&node, &node], Layout::Sizes)
}

/// Catches what many regions on several devices of each side change: keys that are those of another device,
/// blocks of a batch that get lost among the queues, queues that are full. On soft-RoCE two nodes have two
/// devices each, and on the adapter one node has both functions.
fn cache() -> Result {
    wheel()?;
    let nodes = Nodes::new()?;
    between_all([&nodes.first, &nodes.second], Layout::Cache)
}

/// Transfers with each library on either side, a target on the first node and a host on the second.
fn between_all([first, second]: [&Node; 2], layout: Layout) -> Result {
    let ours = Library::ours()?;
    for (one, other) in ours.pairs() {
        between((one, first), (other, second), layout)
            .map_err(|error| format!("{other:?} to {one:?}: {error}"))?;
    }
    Ok(())
}

fn between(of_target: (&Library, &Node), of_host: (&Library, &Node), layout: Layout) -> Result {
    let (mut target, line) = Side::target(of_target.0, of_target.1, layout)?;
    let mut host = Side::host(of_host.0, of_host.1, layout)?;
    host.transfer(&line)?;
    host.is_connected_on(of_host.1)?;
    target.is_connected_on(of_target.1)?;
    target.has_all()
}

/// Catches a target that is spoiled by a host which is killed in the midst of transfers: it serves another.
fn killed_host() -> Result {
    wheel()?;
    let ours = Library::ours()?;
    let nodes = Nodes::new()?;
    let (mut target, line) = Side::target(&ours, &nodes.first, Layout::Cache)?;
    let mut host = Side::host(&ours, &nodes.second, Layout::Cache)?;
    host.begin(&line, true)?;
    host.kill()?;
    let mut host = Side::host(&ours, &nodes.second, Layout::Cache)?;
    host.transfer(&line)?;
    target.has_all()
}

/// Catches a host that hangs, or is spoiled, when its target is killed in the midst of transfers: it is told
/// so, and goes on with the next one. Beside it one does so on the distribution's library.
fn killed_target() -> Result {
    wheel()?;
    let ours = Library::ours()?;
    let nodes = Nodes::new()?;
    for library in [&Library::Theirs, &ours] {
        killed_target_of(library, &nodes).map_err(|error| format!("{library:?}: {error}"))?;
    }
    Ok(())
}

fn killed_target_of(library: &Library, nodes: &Nodes) -> Result {
    let (target, line) = Side::target(library, &nodes.first, Layout::Cache)?;
    let mut host = Side::host(library, &nodes.second, Layout::Cache)?;
    host.begin(&line, true)?;
    target.kill()?;
    host.ends_failed()?;
    let (mut target, line) = Side::target(library, &nodes.first, Layout::Cache)?;
    host.transfer(&line)?;
    target.has_all()
}

/// Two nodes with two devices each. What was made for them is removed with this.
struct Nodes {
    first: Node,
    second: Node,
    made: bool,
}

/// The namespaces of both nodes on soft-RoCE, each with two wires to a router, which is the test's own
/// namespace. Any device reaches any other by it: on one subnet another device of the node would answer.
const NAMESPACES: [&str; 2] = ["m1", "m2"];
const WIRES: [[u8; 2]; 2] = [[11, 12], [21, 22]];

/// How the router is told to be one, and what it was before.
const FORWARD: &str = "sysctl -qw net.ipv4.ip_forward";

impl Nodes {
    fn new() -> Result<Self> {
        if let Some(hca) = Hca::of_guest() {
            hca.needs_two()?;
            let node = Node {
                devices: hca.devices().collect(),
                ..one_node()
            };
            return Ok(Self {
                first: node.clone(),
                second: node,
                made: false,
            });
        }
        if device() == Device::Rxe && kernel() < (7, 2) {
            return skip("soft-RoCE has no devices in network namespaces before Linux 7.2");
        }
        let node = |number: usize| Node {
            namespace: Some(NAMESPACES[number]),
            address: format!("10.9.{}.2", WIRES[number][0]),
            devices: WIRES[number].map(|wire| format!("rxe{wire}")).to_vec(),
        };
        let nodes = Self {
            first: node(0),
            second: node(1),
            made: true,
        };
        run(&format!("{FORWARD}=1"))?;
        for (namespace, wires) in NAMESPACES.iter().zip(WIRES) {
            run(&format!("ip netns add {namespace}"))?;
            run(&format!("ip -n {namespace} link set lo up"))?;
            for wire in wires {
                lay(wire, namespace)?;
            }
        }
        Ok(nodes)
    }
}

/// Lays a wire from the router to a node, and makes a device at its end.
fn lay(wire: u8, namespace: &str) -> Result {
    for command in [
        format!("ip link add r{wire} type veth peer name w{wire} netns {namespace}"),
        format!("ip addr add 10.9.{wire}.1/24 dev r{wire}"),
        format!("ip link set r{wire} up"),
        format!("ip -n {namespace} addr add 10.9.{wire}.2/24 dev w{wire}"),
        format!("ip -n {namespace} link set w{wire} up"),
        format!("ip -n {namespace} route add default via 10.9.{wire}.1 dev w{wire} metric {wire}"),
        format!("ip netns exec {namespace} rdma link add rxe{wire} type rxe netdev w{wire}"),
    ] {
        run(&command)?;
    }
    await_address(&format!("rxe{wire}"))
}

impl Drop for Nodes {
    fn drop(&mut self) {
        if !self.made {
            return;
        }
        // Some may not have been made.
        for (namespace, wires) in NAMESPACES.iter().zip(WIRES) {
            for wire in wires {
                let _ = run(&format!(
                    "ip netns exec {namespace} rdma link del rxe{wire}"
                ));
                let _ = run(&format!("ip link del r{wire}"));
            }
            let _ = run(&format!("ip netns del {namespace}"));
        }
        let _ = run(&format!("{FORWARD}=0"));
    }
}
