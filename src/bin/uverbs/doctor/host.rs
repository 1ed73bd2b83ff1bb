//! The requirements on the host, independent of its devices: modules, files, limits.

use std::io;
use std::path::Path;

use rustix::process::{Resource, getrlimit};

use super::{Check, Finding, library};
use crate::files::Files;

pub(super) fn findings(files: &Files) -> Vec<Finding> {
    let limit = getrlimit(Resource::Memlock);
    let mut findings = vec![
        verbs_module(files),
        connection_manager(files),
        memlock(limit.current, limit.maximum, can_lock_anyway(files)),
        namespaces(files),
    ];
    findings.extend(cgroup(files));
    findings.extend(huge_pages(files));
    findings.extend(gpu_memory(files));
    findings.push(library::finding(files));
    findings
}

/// Whether the kernel has the character devices of verbs at all.
fn verbs_module(files: &Files) -> Finding {
    let check = Check::new("verbs", "ib_uverbs");
    if !files.has("sys/class") {
        return check.warning(
            "/sys is not mounted here",
            "Most checks have nothing to look at: mount -t sysfs sysfs /sys, or see what the container is given.",
        );
    }
    match files.has("sys/class/infiniband_verbs") {
        true => check.good("the kernel has it"),
        false => check.broken("the kernel does not have it", "modprobe ib_uverbs"),
    }
}

/// Whether programs can connect by address.
fn connection_manager(files: &Files) -> Finding {
    let path = "dev/infiniband/rdma_cm";
    let check = Check::new("connections", "/dev/infiniband/rdma_cm");
    let opened = std::fs::File::options()
        .read(true)
        .write(true)
        .open(files.path(path));
    match opened {
        Ok(_) => check.good("it can be opened"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let remedy = match files.has("sys/class/misc/rdma_cm") {
                true => {
                    "The kernel has the device, and this /dev lacks the node. In a container, pass it \
                     on (docker run --device /dev/infiniband/rdma_cm)."
                }
                false => "modprobe rdma_ucm",
            };
            check.warning("no such file: no connections by address", remedy)
        }
        Err(error) => check.warning(
            error,
            "The user needs read and write permission; in a container, the device cgroup must \
             allow it.",
        ),
    }
}

/// Whether this process is exempt from limits on locked memory: CAP_IPC_LOCK in the initial user namespace.
fn can_lock_anyway(files: &Files) -> bool {
    const IPC_LOCK: u32 = 14;
    let status = files.text("proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // In another user namespace the kernel's RDMA core ignores the capability.
    let is_initial = files
        .text("proc/self/uid_map")
        .is_ok_and(|map| map.split_whitespace().eq(["0", "0", "4294967295"]));
    is_initial && mask.is_some_and(|mask| mask >> IPC_LOCK & 1 == 1)
}

/// Registered memory counts as locked.
fn memlock(soft: Option<u64>, hard: Option<u64>, is_exempt: bool) -> Finding {
    const LITTLE: u64 = 64 << 20;
    let check = Check::new("memlock", "this process");
    if is_exempt {
        return check.good("no limit holds: the process has CAP_IPC_LOCK");
    }
    let Some(soft) = soft else {
        return check.good("unlimited");
    };
    let may_raise = match hard {
        None => "`ulimit -l unlimited` lifts it, since the hard limit is none. ",
        Some(hard) if hard > soft => "`ulimit -l` may raise it up to the hard limit. ",
        Some(_) => "",
    };
    let remedy = format!(
        "{may_raise}For all sessions: memlock in /etc/security/limits.conf; for a \
         service: LimitMEMLOCK=infinity; in a container: --ulimit memlock=-1."
    );
    let found = format!("{} KiB may be registered", soft >> 10);
    match soft {
        0 => check.broken("no memory may be registered", remedy),
        little if little < LITTLE => check.warning(found, remedy),
        _ => check.good(found),
    }
}

/// Whether each network namespace has its own devices.
fn namespaces(files: &Files) -> Finding {
    let check = Check::new("namespaces", "ib_core");
    match files.text("sys/module/ib_core/parameters/netns_mode") {
        Ok(mode) if mode == "N" => check.good(
            "exclusive: a device is in one network namespace (`rdma dev set NAME netns` moves \
             it)",
        ),
        Ok(_) => check.good("shared: every network namespace sees all devices"),
        Err(_) => check.unknown("the kernel does not say"),
    }
}

/// The limits on RDMA objects of this process's control group, and of those above it, which hold for it too.
fn cgroup(files: &Files) -> Option<Finding> {
    let own = files.text("proc/self/cgroup").ok()?;
    let own = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let groups = Path::new(own).ancestors().filter_map(|group| {
        let limits = files.text(Path::new("sys/fs/cgroup").join(group).join("rdma.max"));
        Some((group, limits.ok()?))
    });
    let groups: Vec<(&Path, String)> = groups.collect();
    let (top, _) = groups.last()?;
    // The root has no limits, so that what has the name of the root here is below others.
    let is_root_hidden = top.as_os_str().is_empty();
    let is_limit = |line: &&str| {
        let mut of_line = line.split_whitespace().skip(1);
        of_line.any(|of| !of.ends_with("=max"))
    };
    let of_group = |(group, limits): &(&Path, String)| {
        let limits = limits.lines().filter(is_limit);
        let named = limits.map(|line| format!("{line} (control group /{})", group.display()));
        named.collect::<Vec<_>>()
    };
    let limited: Vec<String> = groups.iter().flat_map(of_group).collect();
    let check = Check::new("rdma.max", format!("control group /{own}"));
    Some(match limited.is_empty() {
        true if is_root_hidden => {
            check.unknown("no limits that are seen here; there may be some above this container")
        }
        true => check.good("no limits"),
        false => check.warning(
            limited.join(", "),
            "Creating objects beyond these limits fails with EAGAIN. Who manages the control \
             group raises them.",
        ),
    })
}

/// Whether huge pages are reserved, which make large regions cheaper.
fn huge_pages(files: &Files) -> Option<Finding> {
    let folder = "sys/kernel/mm/hugepages";
    let kinds = files.names(folder);
    let reserved: Vec<String> = kinds
        .iter()
        .filter_map(|kind| {
            let count = files.number(format!("{folder}/{kind}/nr_hugepages"))?;
            let size = kind.strip_prefix("hugepages-")?;
            (count > 0).then(|| format!("{count} of {size}"))
        })
        .collect();
    let check = Check::new("huge pages", "this host");
    (!kinds.is_empty()).then(|| match reserved.is_empty() {
        true => check.good("none are reserved"),
        false => check.good(reserved.join(", ")),
    })
}

/// Whether adapters can reach the memory of a GPU whose driver is loaded.
fn gpu_memory(files: &Files) -> Option<Finding> {
    if !files.has("sys/module/nvidia") {
        return None;
    }
    let check = Check::new("gpu memory", "nvidia");
    Some(match files.has("sys/module/nvidia_peermem") {
        true => check.good("nvidia_peermem is loaded"),
        false => check.warning(
            "nvidia_peermem is not loaded",
            "Programs that register GPU memory by address need it (modprobe nvidia_peermem). Those that \
             register a dma-buf need it not, and the open kernel modules of the driver.",
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;
    use crate::files::host;

    #[track_caller]
    fn is(finding: &Finding, verdict: Verdict, words: &str) {
        assert_eq!(finding.verdict, verdict, "{finding:?}");
        assert_eq!(finding.remedy.is_empty(), verdict <= Verdict::Unknown);
        let text = format!("{}: {}", finding.found, finding.remedy);
        assert!(text.contains(words), "{text}");
    }

    #[test]
    fn a_kernel_without_verbs_is_broken() {
        let bare = host("bare", &[("sys/class/net/lo/mtu", "65536")]);
        is(&verbs_module(&bare), Verdict::Broken, "modprobe ib_uverbs");
        is(
            &connection_manager(&bare),
            Verdict::Warning,
            "modprobe rdma_ucm",
        );
        assert!(!can_lock_anyway(&bare));
        assert_eq!((cgroup(&bare), huge_pages(&bare)), (None, None));
    }

    /// Catches advice to load a module that is loaded, on a host without sysfs.
    #[test]
    fn without_sysfs_nothing_is_said_of_modules() {
        is(
            &verbs_module(&host("no-sysfs", &[])),
            Verdict::Warning,
            "mount -t sysfs",
        );
    }

    /// Would catch advice to load a module, for a container that only lacks the node.
    #[test]
    fn a_node_that_only_the_container_lacks_is_told_apart() {
        let files = [
            ("sys/class/misc/rdma_cm/dev", "10:58"),
            ("sys/class/infiniband_verbs/abi_version", "6"),
        ];
        let container = host("container", &files);
        is(
            &connection_manager(&container),
            Verdict::Warning,
            "--device",
        );
        is(&verbs_module(&container), Verdict::Good, "");
    }

    #[test]
    fn little_memory_to_lock_is_a_warning_and_none_is_broken() {
        let of = |soft, hard| memlock(Some(soft), hard, false);
        is(&of(0, Some(0)), Verdict::Broken, "LimitMEMLOCK=infinity");
        is(&of(8 << 20, Some(8 << 20)), Verdict::Warning, "8192 KiB");
        is(&of(8 << 20, None), Verdict::Warning, "ulimit -l unlimited");
        is(
            &of(8 << 20, Some(1 << 30)),
            Verdict::Warning,
            "up to the hard limit",
        );
        is(&of(64 << 20, None), Verdict::Good, "65536 KiB");
        is(&memlock(None, None, false), Verdict::Good, "unlimited");
        is(
            &memlock(Some(0), Some(0), true),
            Verdict::Good,
            "CAP_IPC_LOCK",
        );
    }

    /// Would catch a capability that counts although the kernel ignores it in a user namespace.
    #[test]
    fn a_capability_of_another_user_namespace_does_not_count() {
        let status = "Name:\tx\nCapEff:\t000001ffffffffff\n";
        let initial = [
            ("proc/self/status", status),
            ("proc/self/uid_map", "         0          0 4294967295\n"),
        ];
        assert!(can_lock_anyway(&host("initial", &initial)));
        let nested = [
            ("proc/self/status", status),
            ("proc/self/uid_map", "         0       1000          1\n"),
        ];
        assert!(!can_lock_anyway(&host("nested", &nested)));
        let none = [
            ("proc/self/status", "CapEff:\t0000000000000000\n"),
            ("proc/self/uid_map", "0 0 4294967295"),
        ];
        assert!(!can_lock_anyway(&host("none", &none)));
    }

    #[test]
    fn limits_of_the_control_group_are_told() {
        let limits = "mlx5_0 hca_handle=2 hca_object=max\nmlx5_1 hca_handle=max hca_object=max\n";
        let files = [
            ("proc/self/cgroup", "0::/job\n"),
            ("sys/fs/cgroup/job/rdma.max", limits),
        ];
        let limited = cgroup(&host("limited", &files)).unwrap();
        is(&limited, Verdict::Warning, "mlx5_0 hca_handle=2");
        assert!(!limited.found.contains("mlx5_1"));
        let files = [
            ("proc/self/cgroup", "0::/job/step\n"),
            (
                "sys/fs/cgroup/job/step/rdma.max",
                "mlx5_0 hca_handle=max hca_object=max",
            ),
            (
                "sys/fs/cgroup/job/rdma.max",
                "mlx5_0 hca_handle=max hca_object=9",
            ),
        ];
        let above = cgroup(&host("above", &files)).unwrap();
        is(
            &above,
            Verdict::Warning,
            "hca_object=9 (control group /job)",
        );
        let free = [files[0], files[1]];
        let free = cgroup(&host("free", &free)).unwrap();
        is(&free, Verdict::Good, "no limits");
        // The root of the host has no such file, so this is a group that a container takes for its root.
        let files = [
            ("proc/self/cgroup", "0::/\n"),
            (
                "sys/fs/cgroup/rdma.max",
                "mlx5_0 hca_handle=max hca_object=max",
            ),
        ];
        let hidden = cgroup(&host("hidden", &files)).unwrap();
        is(&hidden, Verdict::Unknown, "above this container");
    }

    #[test]
    fn a_gpu_without_its_module_for_peers_is_told() {
        assert_eq!(gpu_memory(&host("no-gpu", &[])), None);
        let driver = ("sys/module/nvidia/version", "580.82");
        let without = host("gpu", &[driver]);
        is(
            &gpu_memory(&without).unwrap(),
            Verdict::Warning,
            "modprobe nvidia_peermem",
        );
        let module = ("sys/module/nvidia_peermem/version", "580.82");
        let with = host("gpu-peers", &[driver, module]);
        is(&gpu_memory(&with).unwrap(), Verdict::Good, "is loaded");
    }

    #[test]
    fn modes_and_huge_pages_are_told() {
        let files = [
            ("sys/module/ib_core/parameters/netns_mode", "N\n"),
            (
                "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
                "8\n",
            ),
            (
                "sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages",
                "0\n",
            ),
        ];
        let host = host("modes", &files);
        is(&namespaces(&host), Verdict::Good, "exclusive");
        let pages = huge_pages(&host).unwrap();
        assert_eq!(pages.found, "8 of 2048kB");
    }
}
