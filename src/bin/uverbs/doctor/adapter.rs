//! What each device and each of its ports has to have.

use rustix::thread::{CpuSet, sched_getaffinity};
use uverbs::device::{AdapterPort, Place, PortState, topology};
use uverbs::error::Errno;
use uverbs::gid::GidType;
use uverbs::query::{LinkLayer, PortAttr};
use uverbs::{Access, Cause, Context, Device, Error};

use super::{Check, Finding, on_demand};
use crate::failure::Result;
use crate::files::Files;
use crate::select;

pub(super) fn findings(files: &Files, name: Option<&str>) -> Result<Vec<Finding>> {
    let devices = match name {
        Some(_) => select::devices(name)?,
        None => uverbs::devices()?,
    };
    if devices.is_empty() {
        return Ok(vec![none()]);
    }
    let mut findings = Vec::new();
    for device in &devices {
        match device.open() {
            Ok(context) => findings.extend(opened(files, &context)),
            Err(error) => findings.push(not_opened(device, &error)),
        }
    }
    // Where devices lie is not known everywhere.
    for adapter in topology().iter().flat_map(|all| all.adapters()) {
        let is_asked = devices.iter().any(|it| it.name() == adapter.device.name());
        if let Some(place) = adapter.place.as_ref().filter(|_| is_asked) {
            let name = adapter.device.name();
            findings.extend(link(name, place, &adapter.ports));
            findings.extend(near(name, place, &allowed_cpus()));
            findings.extend(iommu(files, name));
        }
    }
    Ok(findings)
}

fn none() -> Finding {
    Check::new("devices", "this network namespace").broken(
        "there is no RDMA device",
        "Load the adapter's driver (mlx5_ib, efa), or make a soft-RoCE device: modprobe \
         rdma_rxe, then rdma link add rxe0 type rxe netdev NAME. In a container or \
         namespace, the device may belong to another network namespace.",
    )
}

fn not_opened(device: &Device, error: &Error) -> Finding {
    let remedy = match error.cause() {
        Cause::Unsupported(_) => "This library has no driver for it.".into(),
        Cause::Os(Errno::NOENT | Errno::NXIO | Errno::NODEV) => {
            let path = device.path().unwrap_or_default();
            format!(
                "The node {} is missing: in a container, pass it on; else see that udev runs.",
                path.display()
            )
        }
        Cause::Os(Errno::ACCESS) => {
            "The user needs read and write permission on the node, by a group or a udev rule."
                .into()
        }
        Cause::Os(Errno::PERM) => {
            "The device cgroup or a security module forbids it: pass the device to the \
             container."
                .into()
        }
        Cause::Os(Errno::AGAIN) => {
            "The control group's rdma.max allows no more open devices.".into()
        }
        _ => "See the kernel's log (dmesg).".into(),
    };
    Check::new("open", device.name()).broken(error, remedy)
}

/// The checks of a device that can be opened.
fn opened(files: &Files, context: &Context) -> Vec<Finding> {
    let name = context.name();
    let mut findings = vec![
        Check::new("open", name).good("it can be opened"),
        registration(context),
    ];
    let ports = match context.query_device() {
        Ok(attr) => {
            findings.extend(on_demand::finding(context, &attr));
            1..=attr.phys_port_cnt
        }
        Err(error) => {
            findings.push(Check::new("query", name).broken(error, "See the kernel's log (dmesg)."));
            return findings;
        }
    };
    for port in ports {
        let subject = format!("{name} port {port}");
        match context.query_port(port) {
            Ok(attr) => {
                findings.push(state(&subject, &attr));
                findings.push(mtu(&subject, &attr));
                findings.push(gid(&subject, context, port, &attr));
            }
            Err(error) => {
                findings.push(
                    Check::new("port", subject).broken(error, "See the kernel's log (dmesg)."),
                );
            }
        }
        findings.extend(trouble(files, name, port));
    }
    findings
}

/// Registers memory, as every program does.
fn registration(context: &Context) -> Finding {
    const BYTES: usize = 1 << 20;
    let check = Check::new("registration", context.name());
    let registered = context
        .alloc_pd()
        .and_then(|pd| Ok(pd.register(vec![0_u8; BYTES], Access::LOCAL_WRITE)?));
    match registered {
        Ok(_) => check.good("a region of 1 MiB was registered"),
        Err(error) => check.broken(error, "See the check of memlock."),
    }
}

fn state(subject: &str, attr: &PortAttr) -> Finding {
    let check = Check::new("port", subject);
    let found = format!("{}, link {}", attr.state, attr.phys_state);
    match attr.state {
        PortState::Active | PortState::ActiveDefer => check.good(found),
        PortState::Init | PortState::Armed if attr.link_layer == LinkLayer::INFINIBAND => check
            .broken(
                found,
                "No subnet manager has configured the port: run one (opensm), or see that it \
                 reaches this host.",
            ),
        _ => check.broken(
            found,
            "Bring the network device up (ip link set NAME up), and look at cable and switch.",
        ),
    }
}

fn mtu(subject: &str, attr: &PortAttr) -> Finding {
    let check = Check::new("mtu", subject);
    let (active, max) = (attr.active_mtu.bytes(), attr.max_mtu.bytes());
    match (active, max) {
        (Some(active), Some(max)) if active < max => {
            let found = format!("{active} bytes a packet of {max} that the port has");
            match attr.link_layer {
                LinkLayer::ETHERNET => check.warning(
                    found,
                    "Packets carry less than they could: give the network device an MTU of 4200 or \
                     more, on all hosts and switches.",
                ),
                _ => check.good(found),
            }
        }
        (Some(active), _) => check.good(format!("{active} bytes a packet")),
        (None, _) => check.good(format!("{:?}", attr.active_mtu)),
    }
}

const LINK_LOCAL: &str = "The address is link-local, so it reaches this subnet alone: give the network \
    device an address.";
const NOT_ROUTED: &str = "There is no RoCE v2 address, so packets are not routed: see the type of \
    default GIDs (cma_roce_mode) and the switch.";

/// The GID that connections use if nobody chooses another.
fn gid(subject: &str, context: &Context, port: u8, attr: &PortAttr) -> Finding {
    let check = Check::new("gid", subject);
    let best = context.best_gid(port).and_then(|best| {
        let best = best.map(|(index, _)| context.query_gid(port, index.into()));
        best.transpose()
    });
    match best {
        Ok(Some(entry)) => {
            let found = format!("index {}: {} ({})", entry.index, entry.gid, entry.gid_type);
            let is_link_local = entry.gid.raw()[..2] == [0xfe, 0x80];
            match entry.gid_type {
                GidType::RoceV2 if is_link_local => check.warning(found, LINK_LOCAL),
                GidType::RoceV1 if attr.link_layer == LinkLayer::ETHERNET => {
                    check.warning(found, NOT_ROUTED)
                }
                _ => check.good(found),
            }
        }
        Ok(None) => check.good("peers in the subnet need none"),
        Err(error) => check.broken(
            error,
            "Give the port's network device an address, and bring it up.",
        ),
    }
}

/// Counters of sysfs that grow when something goes wrong, with what it means.
const TROUBLE: [(&str, &str); 12] = [
    (
        "out_of_buffer",
        "messages came and no receive was posted: post more, or earlier",
    ),
    (
        "out_of_sequence",
        "packets were lost or overtook each other: flow control (PFC, ECN) of the network",
    ),
    (
        "packet_seq_err",
        "packets were lost: flow control (PFC, ECN) of the network",
    ),
    (
        "local_ack_timeout_err",
        "a peer did not answer in time: the network loses packets, or the peer is gone",
    ),
    (
        "rnr_nak_retry_err",
        "a peer had no receive posted for as long as it was retried",
    ),
    ("roce_adp_retrans", "packets were sent again"),
    (
        "rx_icrc_encapsulated",
        "packets were corrupted on their way",
    ),
    (
        "duplicate_request",
        "peers sent requests again: answers were lost",
    ),
    (
        "retry_exceeded_err",
        "connections broke because a peer did not answer",
    ),
    (
        "retry_rnr_exceeded_err",
        "connections broke because a peer had no receive posted",
    ),
    (
        "send_rnr_err",
        "messages came and no receive was posted: post more, or earlier",
    ),
    ("completer_retry_err", "requests were sent again"),
];

fn trouble(files: &Files, device: &str, port: u8) -> Option<Finding> {
    let folder = format!("sys/class/infiniband/{device}/ports/{port}/hw_counters");
    if !files.has(&folder) {
        return None;
    }
    let check = Check::new("counters", format!("{device} port {port}"));
    let grown: Vec<(String, &str)> = TROUBLE
        .iter()
        .filter_map(|(name, meaning)| {
            let count = files
                .number(format!("{folder}/{name}"))
                .filter(|it| *it > 0)?;
            Some((format!("{name} {count}"), *meaning))
        })
        .collect();
    Some(match grown.is_empty() {
        true => check.good("none that tells of trouble has counted"),
        false => {
            let (counts, meanings): (Vec<String>, Vec<&str>) = grown.into_iter().unzip();
            check.warning(counts.join(", "), meanings.join("; "))
        }
    })
}

/// The CPUs that this process may run on; none if the kernel does not say.
fn allowed_cpus() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else {
        return Vec::new();
    };
    let all = 0..CpuSet::MAX_CPU;
    all.filter(|cpu| set.is_set(*cpu)).collect()
}

/// Whether this process may run on a CPU of the adapter's NUMA node.
fn near(name: &str, place: &Place, allowed: &[usize]) -> Option<Finding> {
    let node = place.numa_node?;
    let check = Check::new("numa", name);
    let is_near = allowed.iter().any(|cpu| place.cpus.contains(*cpu as u32));
    Some(match is_near || allowed.is_empty() {
        true => check.good(format_args!("node {node}, of which this process has a CPU")),
        false => check.warning(
            format_args!("node {node}, and this process may run on none of its CPUs"),
            format_args!(
                "All data goes from node to node: start programs with numactl --cpunodebind={node} \
                 --membind={node}, or see the CPU set of the container or service."
            ),
        ),
    })
}

/// Whether an IOMMU translates what the adapter reads and writes.
fn iommu(files: &Files, name: &str) -> Option<Finding> {
    let group = format!("sys/class/infiniband/{name}/device/iommu_group/type");
    let kind = files.text(group).ok()?;
    let check = Check::new("iommu", name);
    Some(match kind.as_str() {
        "identity" => check.good("passes through"),
        _ => check.warning(
            format_args!("addresses are translated ({kind})"),
            "It costs bandwidth and keeps peers on PCI (GPUs) from each other: iommu=pt on the kernel's \
             command line passes through, unless a virtual machine has the adapter.",
        ),
    })
}

/// Whether the adapter's slot takes what the adapter has, and its ports.
fn link(name: &str, place: &Place, ports: &[AdapterPort]) -> Option<Finding> {
    let (now, max) = (place.link?, place.max_link?);
    let check = Check::new("pci", name);
    let found = format!("{now} of {max} that the adapter has");
    let wire: u64 = ports
        .iter()
        .filter_map(|port| Some(port.bandwidth?.megabits()))
        .sum();
    Some(
        match now.bandwidth().megabits() < max.bandwidth().megabits() {
            true if now.bandwidth().megabits() < wire => check.warning(
                found,
                "The slot is slower than the ports: use another one, or see its settings in the \
                 firmware.",
            ),
            _ => check.good(found),
        },
    )
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;
    use crate::files::host;
    use std::fs;

    /// The types are those of Linux: Documentation/ABI/testing/sysfs-kernel-iommu_groups.
    #[test]
    fn an_iommu_that_translates_is_told() {
        let group = "sys/class/infiniband/mlx5_0/device/iommu_group/type";
        let verdict = |kind: &str| {
            let finding = iommu(&host("iommu", &[(group, kind)]), "mlx5_0").unwrap();
            (finding.verdict, finding.found)
        };
        assert_eq!(verdict("identity\n").0, Verdict::Good);
        let (warning, found) = verdict("DMA-FQ\n");
        assert_eq!(warning, Verdict::Warning);
        assert!(found.contains("DMA-FQ"));
        assert_eq!(iommu(&host("iommu", &[]), "mlx5_1"), None);
    }

    #[test]
    fn counters_of_trouble_are_told_with_their_meaning() {
        let folder = "sys/class/infiniband/rxe0/ports/1/hw_counters";
        let [sent, lost] = ["sent_pkts", "out_of_buffer"].map(|name| format!("{folder}/{name}"));
        let files = host("counters", &[(&sent, "7\n"), (&lost, "0\n")]);
        assert_eq!(trouble(&files, "rxe0", 1).unwrap().verdict, Verdict::Good);
        fs::write(files.path(&lost), "3\n").unwrap();
        let finding = trouble(&files, "rxe0", 1).unwrap();
        assert_eq!(finding.verdict, Verdict::Warning);
        assert_eq!(finding.found, "out_of_buffer 3");
        assert!(finding.remedy.contains("no receive was posted"));
        assert_eq!(trouble(&files, "rxe1", 1), None);
    }
}
