//! Finding devices on the kernel that runs this test. Where there is no RDMA device, that is what is tested: that the
//! lists are empty and the errors say so.

use std::path::PathBuf;

use uverbs::{Cause, Device, Discovery, Port, devices, find};

fn by_sysfs() -> Discovery {
    Discovery::Sysfs(PathBuf::from("/sys"))
}

/// What both ways must tell alike of a device. By sysfs, not every driver is recognised.
fn told(device: &Device) -> impl PartialEq + std::fmt::Debug {
    (
        device.name().to_owned(),
        (device.node_type(), device.node_guid()),
        (device.system_image_guid(), device.port_count()),
        device.firmware_version().map(str::to_owned),
        (device.abi_version(), device.path(), device.rdev()),
    )
}

fn sorted(mut devices: Vec<Device>) -> Vec<Device> {
    devices.sort_by(|a, b| a.name().cmp(b.name()));
    devices
}

#[test]
fn netlink_and_sysfs_show_the_same_devices() {
    let automatic = sorted(devices().unwrap());
    let sysfs = sorted(by_sysfs().devices().unwrap());
    assert_eq!(automatic.len(), sysfs.len());
    for (ours, theirs) in automatic.iter().zip(&sysfs) {
        assert_eq!(told(ours), told(theirs));
        if theirs.driver().is_some() {
            assert_eq!(ours.driver(), theirs.driver());
        }
        let by_netlink = ours.ports().unwrap();
        let without_lid = |port: &Port| {
            (
                port.number,
                port.state,
                port.physical_state,
                port.netdev.clone(),
            )
        };
        let left: Vec<_> = by_netlink.iter().map(without_lid).collect();
        let right: Vec<_> = theirs.ports().unwrap().iter().map(without_lid).collect();
        assert_eq!(left, right);
    }
}

#[test]
fn every_device_is_found_by_its_name_and_opens() {
    for device in devices().unwrap() {
        let found = find(device.name()).unwrap();
        assert_eq!(found.index(), device.index());
        assert_eq!(told(&found), told(&device));
        found.open_chardev().unwrap();
    }
}

#[test]
fn the_tables_of_every_port_have_entries() {
    for device in devices().unwrap() {
        for port in device.ports().unwrap() {
            let pkeys = device.pkeys(port.number).unwrap();
            assert_eq!(device.pkey(port.number, pkeys[0].0).unwrap(), pkeys[0].1);
            for gid in device.gid_table(port.number).unwrap() {
                assert!(!gid.gid.is_zero());
            }
            assert!(device.pkey(port.number, 1 << 16).is_err());
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
