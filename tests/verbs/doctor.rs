//! `uverbs doctor` in front of real faults, each of which it has to name. They are made for its process
//! alone, by limits and namespaces, or on a device of their own, so that other tests do not see them; what is
//! changed on an adapter's bus is changed back.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Command;

use libtest_mimic::Trial;
use serde_json::Value;
use support::doctor::{examine, found, is};
use support::{
    Hca, OwnDevice, Pair, Result, completion, device, fail, only_on_rxe, open, program::uverbs,
    same, test, test_on_adapter, until,
};
use uverbs::device::{PciAddress, topology};
use uverbs::{Access, Caps, ConnectOptions, Context, Inline, Rc, WcOpcode, WcStatus};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("doctor::where_all_is_well", where_all_is_well),
        test("doctor::no_memory_to_lock", no_memory_to_lock),
        test("doctor::nodes_that_are_missing", nodes_that_are_missing),
        test("doctor::a_node_of_somebody_else", a_node_of_somebody_else),
        test("doctor::nodes_that_are_no_good", nodes_that_are_no_good),
        test("doctor::faults_of_a_port", faults_of_a_port),
        test("doctor::counters_that_have_grown", counters_that_have_grown),
        test(
            "doctor::another_network_namespace",
            another_network_namespace,
        ),
        test(
            "doctor::limits_of_a_control_group",
            limits_of_a_control_group,
        ),
        test(
            "doctor::a_library_in_place_of_another",
            a_library_in_place_of_another,
        ),
        test_on_adapter("doctor::faults_of_the_bus", faults_of_the_bus),
        test("doctor::no_sysfs", no_sysfs),
        test(
            "doctor::what_the_kernel_copies_on_demand",
            what_the_kernel_copies_on_demand,
        ),
        test("doctor::a_report_has_everything", a_report_has_everything),
    ]
}

/// What it says, and how it ends. It is started by the last word of a few lines of shell, with mounts of its
/// own.
fn doctor(start: &str) -> Result<(Vec<Value>, Option<i32>)> {
    doctor_of(device().name(), start)
}

/// As [`doctor`], of a device.
fn doctor_of(name: &str, start: &str) -> Result<(Vec<Value>, Option<i32>)> {
    let program = uverbs()?;
    let line = format!("{start} {} doctor --json -d {name}", program.display());
    let mut command = Command::new("unshare");
    examine(command.args(["--mount", "sh", "-ec", &line]))
}

/// Starts a program as a user without rights.
const AS_NOBODY: &str =
    "setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all --bounding-set=-all";

/// Gives it nodes of its own, whose modes nobody else sees.
const NODES: &str = "mkdir -p /tmp/doctor && mount -t tmpfs none /tmp/doctor\n\
                     cp -a /dev/infiniband/. /tmp/doctor\n\
                     mount --bind /tmp/doctor /dev/infiniband\n";

/// Runs lines of shell, which must succeed.
fn sh(lines: &str) -> Result {
    let output = Command::new("sh").args(["-ec", lines]).output()?;
    match output.status.success() {
        true => Ok(()),
        false => fail(format!("{lines}: {output:?}")),
    }
}

/// Catches a check that finds fault where programs work.
fn where_all_is_well() -> Result {
    let (findings, status) = doctor("exec")?;
    for (check, words) in [
        ("verbs", "the kernel has it"),
        ("connections", "can be opened"),
        ("memlock", ""),
        ("open", "can be opened"),
        ("registration", "1 MiB"),
        ("port", "ACTIVE"),
        ("gid", ""),
    ] {
        is(&findings, check, "good", words)?;
    }
    same(status, Some(0), "exit status")
}

/// Catches a limit that is overlooked, and one that does not lead to the remedy.
fn no_memory_to_lock() -> Result {
    let start = format!("{NODES}chmod 666 /dev/infiniband/*\nulimit -l 0\nexec {AS_NOBODY}");
    let (findings, status) = doctor(&start)?;
    is(&findings, "memlock", "broken", "LimitMEMLOCK=infinity")?;
    is(&findings, "registration", "broken", "memlock")?;
    same(status, Some(1), "exit status")
}

/// Catches that a container without nodes is told to load modules.
fn nodes_that_are_missing() -> Result {
    let (findings, status) = doctor("mount -t tmpfs none /dev/infiniband\nexec")?;
    is(&findings, "open", "broken", "in a container")?;
    is(&findings, "connections", "warning", "--device")?;
    is(&findings, "verbs", "good", "")?;
    same(status, Some(1), "exit status")
}

/// Catches that whoever has no sysfs is told to load modules: all that is looked for there is missing.
fn no_sysfs() -> Result {
    let (findings, status) = doctor("mount -t tmpfs none /sys\nexec")?;
    is(&findings, "verbs", "warning", "mount -t sysfs")?;
    is(&findings, "open", "good", "")?;
    same(status, Some(0), "exit status")
}

fn a_node_of_somebody_else() -> Result {
    let start = format!("{NODES}chmod 600 /dev/infiniband/*\nexec {AS_NOBODY}");
    let (findings, status) = doctor(&start)?;
    is(&findings, "open", "broken", "read and write permission")?;
    is(&findings, "connections", "warning", "permission")?;
    same(status, Some(1), "exit status")
}

/// Catches that a kernel which loses where in its page a message lies is found well, and one that is told of
/// although it has no on-demand paging. What the kernel does is tried here by another way: a READ.
fn what_the_kernel_copies_on_demand() -> Result {
    let (findings, _) = doctor("exec")?;
    let none = || {
        let none = found(&findings, "on demand").is_err();
        same(none, true, "no check of on-demand paging")
    };
    if !device().is_rxe() {
        return none();
    }
    let mut pair = Pair::<Rc>::new()?;
    let words = (0..8192_u64).step_by(8).flat_map(u64::to_ne_bytes);
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::ON_DEMAND;
    let Ok(source) = pair.pd.register(words.collect::<Vec<u8>>(), access) else {
        return none();
    };
    let target = pair.pd.register(vec![0_u8; 8], Access::LOCAL_WRITE)?;
    let mut is_right = true;
    for place in [1000, 2000] {
        let from = source.remote().slice(place..place + 8)?;
        let into = target.slice(..8)?;
        pair.a
            .post(|request| request.read(into, from))?
            .is(WcOpcode::RDMA_READ)?;
        let mut word = [0; 8];
        target.read_at(0, &mut word)?;
        is_right &= u64::from_ne_bytes(word) == place as u64;
    }
    match is_right {
        true => is(&findings, "on demand", "good", "where it lies"),
        false => is(
            &findings,
            "on demand",
            "warning",
            "Register no memory on demand",
        ),
    }
}

/// Catches a node that is taken for the device's although another device is behind it, a mount option that
/// nobody thinks of, and limits that are there and too low.
fn nodes_that_are_no_good() -> Result {
    let node = uverbs::device::find(device().name())?;
    let node = node.path().ok_or("no node")?.display().to_string();
    let another = format!("{NODES}rm {node}\nmknod {node} c 1 3\nexec");
    let (findings, status) = doctor(&another)?;
    is(&findings, "open", "broken", "is another device")?;
    same(status, Some(1), "exit status")?;
    let nodev = format!("{NODES}mount -o remount,bind,nodev /dev/infiniband\nexec");
    let (findings, _) = doctor(&nodev)?;
    is(&findings, "open", "broken", "nodev")?;
    is(&findings, "connections", "warning", "")?;
    let little = format!("{NODES}chmod 666 /dev/infiniband/*\nulimit -l 512\nexec {AS_NOBODY}");
    let (findings, _) = doctor(&little)?;
    is(&findings, "memlock", "warning", "512 KiB")?;
    is(&findings, "open", "good", "")?;
    is(&findings, "registration", "broken", "memlock")
}

/// Catches a port, an address or a VLAN that is looked at and not seen, and one that is told of when it is
/// well again.
fn faults_of_a_port() -> Result {
    only_on_rxe("no adapter can be made for a test, to break it")?;
    let own = OwnDevice::new()?;
    let context = own.open()?;
    let netdev = &own.netdev;
    let vlan = format!("{netdev}.7");
    let wrong = |check: &str, verdict: &str, words: &str| {
        let (findings, _) = doctor_of(&own.name, "exec")?;
        is(&findings, check, verdict, words).map(|()| findings)
    };
    sh(&format!("ip link set {netdev} mtu 600"))?;
    wrong("mtu", "warning", "512 bytes")?;
    sh(&format!("ip link set {netdev} mtu 4500"))?;
    let findings = wrong("mtu", "good", "4096 bytes")?;
    is(&findings, "netdev", "good", "without a VLAN")?;
    is(&findings, "netdev mtu", "good", "4500")?;
    sh(&format!("ip link set {netdev} down"))?;
    let findings = wrong("port", "broken", "ip link set")?;
    is(&findings, "netdev", "broken", "is down")?;
    sh(&format!(
        "ip link set {netdev} up; ip -4 addr flush {netdev}"
    ))?;
    await_default(&context, false)?;
    wrong("gid", "warning", "link-local")?;
    sh(&format!(
        "ip link add link {netdev} name {vlan} type vlan id 7
         ip link set {vlan} up; ip addr add 10.254.7.1/32 dev {vlan}"
    ))?;
    await_default(&context, true)?;
    let findings = wrong("netdev", "good", &format!("VLAN 7 of {netdev}"))?;
    is(&findings, "gid", "good", "10.254.7.1")?;
    sh(&format!("ip link set {vlan} mtu 1400"))?;
    wrong("netdev mtu", "warning", "mtu 4192")?;
    sh(&format!("ip link set {vlan} down"))?;
    let findings = wrong("netdev", "broken", &format!("ip link set {vlan} up"))?;
    is(&findings, "port", "good", "ACTIVE")
}

/// Waits until the GID that connections use is an IPv4 address, or is none.
fn await_default(context: &Context, is_ipv4: bool) -> Result {
    until("the table of GIDs to follow", || {
        let best = context.best_gid(1)?;
        let is_so = best.is_some_and(|(_, gid)| gid.as_ipv4().is_some()) == is_ipv4;
        Ok(is_so.then_some(()))
    })
}

/// Catches a counter that is not looked at, or not by its name: a message for which no receive was posted.
fn counters_that_have_grown() -> Result {
    only_on_rxe("an adapter's counters are those of all tests before")?;
    let own = OwnDevice::new()?;
    let (findings, _) = doctor_of(&own.name, "exec")?;
    is(&findings, "counters", "good", "none")?;
    let context = own.open()?;
    let pd = context.alloc_pd()?;
    let mut cq = context.create_cq(4)?;
    let mut here = pd.create_qp::<Rc>(&cq, Caps::default())?;
    let mut there = pd.create_qp::<Rc>(&cq, Caps::default())?;
    let options = ConnectOptions {
        rnr_retry: 0,
        ..ConnectOptions::default()
    };
    here.connect_with(&there.endpoint()?, &options)?;
    there.connect_with(&here.endpoint()?, &options)?;
    here.one(1).send(Inline(b"nobody"))?;
    let sent = completion(&mut cq)?;
    same(sent.status, WcStatus::RNR_RETRY_EXC_ERR, "the send")?;
    let (findings, _) = doctor_of(&own.name, "exec")?;
    is(&findings, "counters", "warning", "retry_rnr_exceeded_err 1")?;
    is(&findings, "counters", "warning", "no receive posted")
}

/// Catches that a container without the host's network is told that all is well.
fn another_network_namespace() -> Result {
    let (findings, status) = doctor("exec unshare --net")?;
    same(status, Some(0), "exit status")?;
    is(&findings, "open", "good", "")?;
    let table = open()?.gid_table()?;
    match table.iter().any(|entry| entry.netdev_ifindex != 0) {
        true => is(
            &findings,
            "netdev",
            "warning",
            "is not in this network namespace",
        ),
        false => same(
            found(&findings, "netdev").is_err(),
            true,
            "no network device",
        ),
    }
}

/// Lets the doctor run in a control group of its own.
const GROUP: &str = "all=/sys/fs/cgroup; mount -t cgroup2 none $all; mkdir -p $all/doctor
    echo +rdma > $all/cgroup.subtree_control\n";

/// Catches a limit of the control group that is taken for another one, or not seen.
fn limits_of_a_control_group() -> Result {
    let name = device().name();
    let with = |limits: &str| {
        doctor(&format!(
            "{GROUP}echo '{name} {limits}' > $all/doctor/rdma.max
             echo 0 > $all/doctor/cgroup.procs
             exec"
        ))
    };
    let handles = with("hca_handle=0");
    let objects = with("hca_handle=max hca_object=1");
    let none = with("hca_handle=max hca_object=max");
    let undone = Command::new("unshare")
        .args(["--mount", "sh", "-ec"])
        .arg(format!(
            "{GROUP}rmdir $all/doctor; echo -rdma > $all/cgroup.subtree_control"
        ))
        .output()?;
    same(undone.status.success(), true, &format!("{undone:?}"))?;
    let (findings, status) = handles?;
    is(&findings, "open", "broken", "rdma.max")?;
    is(&findings, "rdma.max", "warning", "hca_handle=0")?;
    same(status, Some(1), "exit status")?;
    let (findings, _) = objects?;
    is(
        &findings,
        "registration",
        "broken",
        "See the check of rdma.max",
    )?;
    is(&findings, "rdma.max", "warning", "hca_object=1")?;
    is(&none?.0, "rdma.max", "good", "no limits")
}

/// Catches a library that programs get and that is not told: here another file than the system's.
fn a_library_in_place_of_another() -> Result {
    let (findings, _) = doctor("exec env LD_LIBRARY_PATH=")?;
    let (verdict, text) = found(&findings, "libibverbs")?;
    same(verdict.as_str(), "good", &text)?;
    let path = text.trim_start_matches('"').split(',').next();
    let path = path.unwrap_or_default();
    let (findings, status) = doctor(&format!(
        "mkdir -p /tmp/doctor
         mount -t tmpfs none /tmp/doctor
         cp -L {path} /tmp/doctor/libibverbs.so.1
         exec env LD_LIBRARY_PATH=/nowhere:/tmp/doctor"
    ))?;
    is(
        &findings,
        "libibverbs",
        "warning",
        &format!("in place of {path}"),
    )?;
    same(status, Some(0), "exit status")
}

/// Catches that processors far away, a bridge that redirects, an adapter that may not reorder, or a link that
/// is slower than the adapter's port are not found, or are still told of when they are gone again.
fn faults_of_the_bus(_hca: Hca) -> Result {
    let topology = topology()?;
    let adapters = topology.adapters().iter();
    let mut own = adapters.filter(|it| it.device.name() == device().name());
    let place = own.next().and_then(|it| it.place.as_ref());
    let place = place.ok_or("an adapter without a place")?;
    let mut nodes = topology.numa_nodes().iter();
    let far = nodes.find(|node| Some(node.number) != place.numa_node && !node.cpus.is_empty());
    if let Some(cpu) = far.and_then(|node| node.cpus.iter().next()) {
        let (findings, _) = doctor(&format!("exec taskset -c {cpu}"))?;
        is(&findings, "numa", "warning", "numactl")?;
    }
    let near = place.cpus.iter().next().ok_or("no processor is near")?;
    let (findings, _) = doctor(&format!("exec taskset -c {near}"))?;
    is(&findings, "numa", "good", "")?;

    let mut bridges = place.path.bridges().iter();
    let bridge = bridges.find_map(|bridge| Some((*bridge, acs(*bridge)?)));
    let (bridge, services) = bridge.ok_or("no bridge has access control services")?;
    with_word(bridge, services + 6, 0x0c, |set| {
        let (findings, _) = doctor("exec")?;
        match set {
            true => is(&findings, "acs", "warning", &bridge.to_string()),
            false => is(&findings, "acs", "good", ""),
        }
    })?;
    let address = place.path.address();
    let express = express(address)?;
    with_word(address, express + 8, 0x10, |set| {
        let (findings, _) = doctor("exec")?;
        let verdict = if set { "good" } else { "warning" };
        is(&findings, "relaxed ordering", verdict, "the adapter may")
    })?;
    // The speed that the link is to have: 16 GT/s, or the least.
    with_word(address, express + 0x30, 4, |set| {
        let (findings, _) = doctor("exec")?;
        match set {
            true => is(&findings, "pci", "good", "16 GT/s x16 of 16 GT/s x16"),
            false => is(&findings, "pci", "warning", "2.5 GT/s x16 of 16 GT/s x16"),
        }
    })
}

fn config(address: PciAddress) -> String {
    format!("/sys/bus/pci/devices/{address}/config")
}

/// Sets bits of a word of a device's configuration, clears them, and puts back what was there.
fn with_word(
    address: PciAddress,
    at: u64,
    bits: u16,
    mut look: impl FnMut(bool) -> Result,
) -> Result {
    let file = File::options()
        .read(true)
        .write(true)
        .open(config(address))?;
    let mut before = [0; 2];
    file.read_exact_at(&mut before, at)?;
    let word = u16::from_le_bytes(before);
    let mut looked = Ok(());
    for (set, word) in [(true, word | bits), (false, word & !bits)] {
        file.write_all_at(&word.to_le_bytes(), at)?;
        looked = looked.and_then(|()| look(set));
    }
    file.write_all_at(&before, at)?;
    looked
}

/// Where a device's capability of access control services begins, by the list from byte 256 on.
fn acs(address: PciAddress) -> Option<u64> {
    let bytes = fs::read(config(address)).ok()?;
    let mut at = 0x100;
    loop {
        let entry: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
        let entry = u32::from_le_bytes(entry);
        if entry as u16 == 0x0d {
            return Some(at as u64);
        }
        let next = (entry >> 20) as usize;
        at = Some(next).filter(|next| *next > at)?;
    }
}

/// Where a device's capability of PCI Express begins.
fn express(address: PciAddress) -> Result<u64> {
    let bytes = fs::read(config(address))?;
    let mut at = usize::from(bytes[0x34]);
    for _ in 0..48 {
        match bytes.get(at..at + 2) {
            Some([0x10, _]) => return Ok(at as u64),
            Some([_, next]) => at = usize::from(*next),
            _ => break,
        }
    }
    fail(format!("{address} is not on PCI Express"))
}

fn a_report_has_everything() -> Result {
    let output = Command::new(uverbs()?)
        .args(["doctor", "--report"])
        .output()?;
    let text = String::from_utf8(output.stdout)?;
    let version = format!("uverbs {}", env!("CARGO_PKG_VERSION"));
    let section = format!("== device {}", device().name());
    for words in ["== system", "modules: ", "== devices", &version, &section] {
        same(text.contains(words), true, &format!("{words}: {text}"))?;
    }
    Ok(())
}
