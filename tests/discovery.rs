//! Finding devices on the kernel that runs this test, also from within sandboxes that close one of the two
//! ways. Where there is no RDMA device, that is what is tested: that the lists are empty and the errors say
//! so.

use std::path::PathBuf;
use std::thread;

use rustix::io::Errno;
use rustix::mount::{self, MountFlags, MountPropagationFlags};
use rustix::thread::UnshareFlags;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use uverbs::{
    Cause, Device,
    device::{Discovery, Near, Port, find, topology},
    devices,
};

/// What both ways must tell alike of a device.
#[derive(Clone, PartialEq, Debug)]
struct Told {
    device: String,
    port: Vec<String>,
}

impl Told {
    fn by(device: &Device) -> Self {
        let device_tells = format!(
            "{} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?}",
            device.name(),
            device.node_type(),
            device.node_guid(),
            device.system_image_guid(),
            device.firmware_version(),
            device.port_count(),
            device.abi_version(),
            device.path(),
            device.rdev(),
        );
        let port_tells = |port: Port| {
            let Port {
                number,
                state,
                physical_state,
                netdev,
                ..
            } = port;
            // Of one in another network namespace sysfs tells the name, and netlink nothing.
            let netdev = netdev.filter(|netdev| netdev.index.is_some());
            format!("{number} {state:?} {physical_state:?} {netdev:?}")
        };
        Self {
            device: device_tells,
            port: device
                .ports()
                .unwrap()
                .into_iter()
                .map(port_tells)
                .collect(),
        }
    }
}

/// What all devices tell, in the order of their names.
fn all(found: uverbs::Result<Vec<Device>>) -> Vec<Told> {
    let mut told: Vec<_> = found.unwrap().iter().map(Told::by).collect();
    told.sort_by(|a, b| a.device.cmp(&b.device));
    told
}

/// Runs `test` in a thread of its own, which `close` has locked up first.
fn sandboxed(close: fn() -> Result<(), Errno>, test: impl FnOnce() + Send) {
    thread::scope(|scope| {
        scope.spawn(|| match close() {
            Ok(()) => test(),
            Err(errno) => eprintln!("skipped: the sandbox cannot be made: {errno}"),
        });
    });
}

/// Forbids this thread to make sockets, as the default filters of container engines forbid some families.
fn without_sockets() -> Result<(), Errno> {
    let filter = SeccompFilter::new(
        [(libc::SYS_socket, vec![])].into(),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EPERM as u32),
        std::env::consts::ARCH.try_into().unwrap(),
    );
    let program: BpfProgram = filter.unwrap().try_into().unwrap();
    seccompiler::apply_filter(&program).map_err(|_| Errno::NOSYS)
}

/// Hides sysfs from this thread behind an empty file system.
fn without_sysfs() -> Result<(), Errno> {
    // SAFETY: other threads keep their mount namespace and working directory, and this one opens no files but
    // those of the test.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }?;
    mount::mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )?;
    mount::mount("none", "/sys", "tmpfs", MountFlags::empty(), None)
}

#[test]
fn netlink_and_sysfs_tell_the_same() {
    let sysfs = Discovery::Sysfs(PathBuf::from("/sys")).devices();
    assert_eq!(all(devices()), all(sysfs));
}

#[test]
fn without_netlink_sysfs_tells() {
    let expected = all(devices());
    let drivers =
        |devices: Vec<Device>| -> Vec<_> { devices.iter().map(|device| device.driver()).collect() };
    let expected_drivers = drivers(devices().unwrap());
    sandboxed(without_sockets, || {
        assert_eq!(all(devices()), expected);
        assert_eq!(drivers(devices().unwrap()), expected_drivers);
        let error = Discovery::Netlink.devices().unwrap_err();
        assert_eq!(error.errno(), Some(Errno::PERM));
        assert!(error.to_string().contains("sandbox"), "{error}");
    });
}

#[test]
fn without_sysfs_netlink_tells() {
    let expected = all(devices());
    sandboxed(without_sysfs, || {
        assert_eq!(all(devices()), expected);
        for device in devices().unwrap() {
            device.open_chardev().unwrap();
            let error = device.pkey(1, 0).unwrap_err();
            assert!(error.is_unsupported(), "{error}");
        }
    });
}

#[test]
fn every_device_is_found_by_its_name_and_opens() {
    for device in devices().unwrap() {
        let found = find(device.name()).unwrap();
        assert_eq!(found.index(), device.index());
        assert_eq!(Told::by(&found), Told::by(&device));
        found.open_chardev().unwrap();
    }
}

#[test]
fn the_tables_of_every_port_have_entries() {
    for device in devices().unwrap() {
        for port in device.ports().unwrap() {
            let pkeys = device.pkeys(port.number).unwrap();
            assert_eq!(device.pkey(port.number, pkeys[0].0).unwrap(), pkeys[0].1);
            assert!(device.pkey(port.number, 1 << 16).is_err());
            for entry in device.gid_table(port.number).unwrap() {
                assert!(!entry.gid.is_zero());
            }
        }
    }
}

#[test]
fn a_missing_device_is_not_found_and_the_error_lists_the_others() {
    let error = find("no such device").unwrap_err();
    let Cause::NotFound(text) = error.cause() else {
        panic!("{error}");
    };
    for device in devices().unwrap() {
        assert!(text.contains(device.name()), "{error}");
    }
}

#[test]
fn the_topology_has_every_device_and_what_its_ports_carry() {
    let topology = topology().unwrap();
    let devices = devices().unwrap();
    assert_eq!(topology.adapters().len(), devices.len());
    for (adapter, device) in topology.adapters().iter().zip(devices) {
        assert_eq!(adapter.device.name(), device.name());
        let context = uverbs::open(device.name()).unwrap();
        for port in &adapter.ports {
            let attr = context.query_port(port.port.number as u8).unwrap();
            assert_eq!(port.bandwidth, attr.bandwidth, "{}", device.name());
            assert!(port.bandwidth.is_some() && port.lanes.is_some());
        }
    }
    // On the host there are no devices, and there is a CPU all the same.
    assert!(topology.nearest(Near::Cpu(0)).is_ok());
}
