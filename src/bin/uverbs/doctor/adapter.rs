//! The requirements on each device and each of its ports.

use std::fs::File;

use uverbs::device::{PortState, topology};
use uverbs::error::Errno;
use uverbs::gid::{GidEntry, GidType};
use uverbs::query::{LinkLayer, PortAttr};
use uverbs::{Access, Cause, Context, Device, Error};

use super::{Check, Finding, netdev, on_demand, pci};
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
    // The place of a device is not known on every host.
    for adapter in topology().iter().flat_map(|all| all.adapters()) {
        if devices.iter().any(|it| it.name() == adapter.device.name()) {
            findings.extend(pci::findings(files, adapter));
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
            "The user needs read and write permission on the node, by a group or a udev rule, and what is \
             mounted on /dev/infiniband must not be nodev."
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
    findings.extend(dmabufs(files, context));
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
                let best = best_gid(context, port);
                if let Ok(Some(gid)) = &best {
                    findings.extend(netdev::findings(files, &subject, gid, &attr));
                }
                findings.push(gid(&subject, best, attr.link_layer));
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
        Err(error) => {
            let remedy = match error.cause() {
                Cause::Os(Errno::AGAIN) => "See the check of rdma.max.",
                _ => "See the check of memlock.",
            };
            check.broken(error, remedy)
        }
    }
}

/// Whether memory of other devices can be registered. A kernel that accepts dma-bufs checks the file first,
/// and reports that this one is none.
fn dmabufs(files: &Files, context: &Context) -> Option<Finding> {
    let check = Check::new("dma-buf", context.name());
    let pd = context.alloc_pd().ok()?;
    let file = File::open("/dev/null").ok()?;
    let refused = pd.register_dmabuf(file.into(), 0..4096, 0, Access::LOCAL_WRITE);
    let error = refused.err()?.error;
    match error.cause() {
        Cause::Os(Errno::INVAL | Errno::BADF) => Some(check.good("can be registered")),
        Cause::Unsupported(_) => Some(without_dmabufs(files, check)),
        _ => None,
    }
}

/// Drivers of GPUs, whose memory would be in dma-bufs.
const GPUS: [&str; 3] = ["nvidia", "amdgpu", "xe"];

fn without_dmabufs(files: &Files, check: Check) -> Finding {
    let gpu = GPUS
        .into_iter()
        .find(|module| files.has(format!("sys/module/{module}")));
    match gpu {
        None => check.good("the driver registers none"),
        Some(gpu) => check.warning(
            format_args!("the driver registers none, and {gpu} is loaded"),
            "Memory of the GPU is not reached by dma-bufs: a newer kernel, or firmware with on-demand paging, \
             may have them.",
        ),
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

const NO_NETDEV: &str = "GIDs come from the port's network device. Load its driver, or bind the device to it \
    again (/sys/bus/auxiliary/drivers), and give the network device an address.";

/// The GID that connections use by default. InfiniBand needs none.
fn best_gid(context: &Context, port: u8) -> uverbs::Result<Option<GidEntry>> {
    let best = context.best_gid(port)?;
    let entry = best.map(|(index, _)| context.query_gid(port, index.into()));
    entry.transpose()
}

fn gid(subject: &str, best: uverbs::Result<Option<GidEntry>>, layer: LinkLayer) -> Finding {
    let check = Check::new("gid", subject);
    match best {
        Ok(Some(entry)) => {
            let found = format!("index {}: {} ({})", entry.index, entry.gid, entry.gid_type);
            let is_link_local = entry.gid.raw()[..2] == [0xfe, 0x80];
            match entry.gid_type {
                GidType::RoceV2 if is_link_local => check.warning(found, LINK_LOCAL),
                GidType::RoceV1 if layer == LinkLayer::ETHERNET => check.warning(found, NOT_ROUTED),
                _ => check.good(found),
            }
        }
        Ok(None) => check.good("peers in the subnet need none"),
        Err(error) => check.broken(error, NO_NETDEV),
    }
}

/// Counters of sysfs that grow when something goes wrong, with their meanings: those that the driver adds,
/// and those of the link that every port may have.
const TROUBLE: [(&str, &str); 19] = [
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
    (
        "symbol_error",
        "bits were corrupted: see cable and transceiver",
    ),
    (
        "link_error_recovery",
        "the link trained anew: see cable and transceiver",
    ),
    (
        "link_downed",
        "the link went down: see cable, transceiver and switch",
    ),
    (
        "port_rcv_errors",
        "packets were corrupted on their way: see cable and transceiver",
    ),
    (
        "local_link_integrity_errors",
        "too many bits were corrupted: see cable and transceiver",
    ),
    (
        "excessive_buffer_overrun_errors",
        "the other end of the link sends more than it may: see its firmware",
    ),
    (
        "port_xmit_discards",
        "packets were dropped before they were sent: the port is down, or the network congested",
    ),
];

/// Counters never go back: what they tell may be long over.
const SINCE: &str = "since the driver was loaded";

fn trouble(files: &Files, device: &str, port: u8) -> Option<Finding> {
    let folders = ["hw_counters", "counters"]
        .map(|kind| format!("sys/class/infiniband/{device}/ports/{port}/{kind}"));
    if !folders.iter().any(|folder| files.has(folder)) {
        return None;
    }
    let check = Check::new("counters", format!("{device} port {port}"));
    let grown: Vec<(String, &str)> = TROUBLE
        .iter()
        .filter_map(|(name, meaning)| {
            let mut counts = folders
                .iter()
                .filter_map(|folder| files.number(format!("{folder}/{name}")));
            let count = counts.find(|count| *count > 0)?;
            Some((format!("{name} {count}"), *meaning))
        })
        .collect();
    Some(match grown.is_empty() {
        true => check.good(format!("none that tells of trouble has counted {SINCE}")),
        false => {
            let (counts, meanings): (Vec<String>, Vec<&str>) = grown.into_iter().unzip();
            check.warning(
                format!("{} {SINCE}", counts.join(", ")),
                meanings.join("; "),
            )
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;
    use crate::files::host;
    use std::fs;

    #[test]
    fn a_gpu_whose_memory_is_out_of_reach_is_told() {
        let of = |name: &str, files: &[(&str, &str)]| {
            without_dmabufs(&host(name, files), Check::new("dma-buf", "mlx5_0"))
        };
        assert_eq!(of("no-gpu-bufs", &[]).verdict, Verdict::Good);
        let finding = of("gpu-bufs", &[("sys/module/amdgpu/refcnt", "0\n")]);
        assert_eq!(finding.verdict, Verdict::Warning);
        assert!(finding.found.contains("amdgpu is loaded"), "{finding:?}");
    }

    /// The only entry of a port whose device has only RoCE v1, as adapters before ConnectX-3 Pro have
    /// (`mlx4_port_immutable` in the kernel's `mlx4/main.c`): its type in the table is that of InfiniBand.
    #[test]
    fn packets_that_are_not_routed_are_told() {
        let verdict = |gid: &str, gid_type, layer| {
            let entry = GidEntry {
                port: 1,
                index: 0,
                gid: gid.parse().unwrap(),
                gid_type,
                netdev_ifindex: 2,
            };
            super::gid("mlx4_0 port 1", Ok(Some(entry)), layer)
        };
        let finding = verdict("::ffff:10.9.0.1", GidType::RoceV1, LinkLayer::ETHERNET);
        assert_eq!(finding.verdict, Verdict::Warning);
        assert!(finding.found.contains("RoCE v1"), "{finding:?}");
        assert_eq!(finding.remedy, NOT_ROUTED);
        let routed = verdict("::ffff:10.9.0.1", GidType::RoceV2, LinkLayer::ETHERNET);
        assert_eq!(routed.verdict, Verdict::Good);
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
        assert_eq!(finding.found, format!("out_of_buffer 3 {SINCE}"));
        assert!(finding.remedy.contains("no receive was posted"));
        assert_eq!(trouble(&files, "rxe1", 1), None);
        // Those of the link are in a folder of their own.
        let errors = "sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error";
        let files = host("link-counters", &[(errors, "7\n")]);
        let finding = trouble(&files, "mlx5_0", 1).unwrap();
        assert_eq!(finding.found, format!("symbol_error 7 {SINCE}"));
    }
}
