//! Where adapters lie, on a machine that has two NUMA nodes with a PCI switch on each: the adapter's
//! functions are halved over the switches, and behind each switch is another device beside them.

use std::collections::BTreeMap;
use std::fs;

use libtest_mimic::Trial;
use support::{Hca, Result, fail, program, run, skip, test_on_adapter};
use uverbs::device::{Distance, Near, PciAddress, Topology, topology};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test_on_adapter("topology::switches_and_nodes", switches_and_nodes),
        test_on_adapter("topology::the_command_line_shows_it", command_line),
    ]
}

/// The vendor and device of QEMU's `pci-testdev`.
const BESIDE: (&str, &str) = ("0x1b36", "0x0005");

/// Catches places that are not those which the machine was made with, and adapters picked on the wrong node.
fn switches_and_nodes(hca: Hca) -> Result {
    hca.needs_two()?;
    let topology = of_two_nodes()?;
    let beside = beside()?;
    if beside.len() != 2 {
        return fail(format!("devices beside the functions: {beside:?}"));
    }
    for (node, address) in beside {
        let expected = on_node(&topology, node);
        let nodes = topology.numa_nodes().iter();
        let cpus = nodes.filter(|other| other.number == node);
        let cpu = cpus.flat_map(|node| node.cpus.iter()).next();
        let mut targets = vec![Near::Pci(address), Near::Node(node)];
        targets.extend(cpu.map(Near::Cpu));
        for near in targets {
            let nearest = topology.nearest(near)?;
            let names: Vec<_> = nearest.iter().map(|a| a.device.name()).collect();
            if names != expected || names.is_empty() {
                return fail(format!("near {near:?} are {names:?}, not {expected:?}"));
            }
        }
        let distances = topology.by_distance(Near::Pci(address))?;
        for (distance, adapter) in distances {
            let place = adapter.place.as_ref().ok_or("no place")?;
            let is_right = match place.numa_node == Some(node) {
                true => distance == Distance::Switch && place.path.bridges().len() == 3,
                false => matches!(distance, Distance::Remote(11..)),
            };
            if !is_right {
                return fail(format!("from {address} to {place:?}: {distance:?}"));
            }
        }
    }
    match topology.rails().len() {
        2 => Ok(()),
        rails => fail(format!("{rails} rails")),
    }
}

/// Catches a table or a tree without a device, or without its place.
fn command_line(hca: Hca) -> Result {
    hca.needs_two()?;
    let topology = of_two_nodes()?;
    let verbose = uverbs("devices -v")?;
    let json: serde_json::Value = serde_json::from_str(&uverbs("devices --json")?)?;
    for (at, adapter) in topology.adapters().iter().enumerate() {
        let place = adapter.place.as_ref().ok_or("no place")?;
        let leaf = format!("{} {}, ", place.path.address(), adapter.device.name());
        let lines: Vec<_> = verbose.lines().collect();
        let has = |part: &str| lines.iter().any(|line| line.contains(part));
        let of_json = &json[at]["place"];
        if !has(&leaf)
            || !has(&format!("{} ", adapter.device.name()))
            || of_json["numa_node"] != serde_json::json!(place.numa_node)
            || of_json["bridges"].as_array().map(Vec::len) != Some(3)
        {
            return fail(format!("{}: {verbose}\n{json:#}", adapter.device.name()));
        }
    }
    Ok(())
}

/// The topology of this machine, if it has the nodes.
fn of_two_nodes() -> Result<Topology> {
    let topology = topology()?;
    match topology.numa_nodes().len() {
        2 => Ok(topology),
        _ => skip("only machines of x86-64 are made with two NUMA nodes"),
    }
}

fn on_node(topology: &Topology, node: u32) -> Vec<&str> {
    let adapters = topology.adapters().iter();
    let on_node = adapters.filter(|adapter| {
        let place = adapter.place.as_ref();
        place.and_then(|place| place.numa_node) == Some(node)
    });
    on_node.map(|adapter| adapter.device.name()).collect()
}

/// The devices beside the functions, by their nodes, found without this library.
fn beside() -> Result<BTreeMap<u32, PciAddress>> {
    let mut beside = BTreeMap::new();
    for entry in fs::read_dir("/sys/bus/pci/devices")? {
        let path = entry?.path();
        let read = |file: &str| fs::read_to_string(path.join(file));
        if (read("vendor")?.trim(), read("device")?.trim()) == BESIDE {
            let name = path.file_name().ok_or("no name")?.to_string_lossy();
            beside.insert(read("numa_node")?.trim().parse()?, name.parse()?);
        }
    }
    Ok(beside)
}

fn uverbs(arguments: &str) -> Result<String> {
    run(&format!("{} {arguments}", program::uverbs()?.display()))
}
