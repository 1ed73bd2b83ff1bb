//! The fallback over directories that look like a sysfs.

use std::os::unix::fs::symlink;

use tempfile::TempDir;

use super::*;
use crate::device::node_type::NodeType;
use crate::device::port::{PhysicalState, PortState};
use crate::error::Cause;
use crate::{Gid, device::Discovery, error::Errno, gid::GidType, guid::Guid};

/// A sysfs with these files.
fn sysfs(files: &[(&str, &str)]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in files {
        write(&root, path, text);
    }
    root
}

fn write(root: &TempDir, path: &str, text: &str) {
    let path = root.path().join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// The sysfs of a machine with soft-RoCE and a ConnectX on InfiniBand.
fn two_devices() -> TempDir {
    let root = sysfs(&[
        ("class/infiniband/rxe0/node_type", "1: CA\n"),
        ("class/infiniband/rxe0/node_guid", "5054:00ff:fe12:3456\n"),
        (
            "class/infiniband/rxe0/sys_image_guid",
            "5054:00ff:fe12:3457\n",
        ),
        ("class/infiniband/rxe0/fw_ver", "\n"),
        ("class/infiniband/rxe0/parent", "d0\n"),
        ("class/infiniband/rxe0/ports/1/state", "4: ACTIVE\n"),
        ("class/infiniband/rxe0/ports/1/phys_state", "5: LinkUp\n"),
        ("class/infiniband/rxe0/ports/1/link_layer", "Ethernet\n"),
        ("class/infiniband/rxe0/ports/1/lid", "0x0\n"),
        ("class/infiniband/rxe0/ports/1/pkeys/0", "0xffff\n"),
        (
            "class/infiniband/rxe0/ports/1/gids/0",
            "fe80:0000:0000:0000:5054:00ff:fe12:3456\n",
        ),
        (
            "class/infiniband/rxe0/ports/1/gids/1",
            "0000:0000:0000:0000:0000:ffff:0a09:0001\n",
        ),
        (
            "class/infiniband/rxe0/ports/1/gids/2",
            "0000:0000:0000:0000:0000:0000:0000:0000\n",
        ),
        (
            "class/infiniband/rxe0/ports/1/gid_attrs/types/0",
            "IB/RoCE v1\n",
        ),
        (
            "class/infiniband/rxe0/ports/1/gid_attrs/types/1",
            "RoCE v2\n",
        ),
        ("class/infiniband/rxe0/ports/1/gid_attrs/ndevs/0", "d0\n"),
        ("class/infiniband/rxe0/ports/1/gid_attrs/ndevs/1", "d0\n"),
        ("class/net/d0/ifindex", "3\n"),
        ("class/infiniband/mlx5_0/node_type", "1: CA\n"),
        ("class/infiniband/mlx5_0/fw_ver", "28.39.1002\n"),
        ("class/infiniband/mlx5_0/ports/2/state", "1: DOWN\n"),
        ("class/infiniband/mlx5_0/ports/2/link_layer", "InfiniBand\n"),
        ("class/infiniband/mlx5_0/ports/2/lid", "0xffff\n"),
        ("class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n"),
        ("class/infiniband/mlx5_0/ports/1/link_layer", "InfiniBand\n"),
        ("class/infiniband/mlx5_0/ports/1/lid", "0x1c\n"),
        ("class/infiniband/mlx5_0/ports/1/pkeys/0", "0xffff\n"),
        ("class/infiniband/mlx5_0/ports/1/pkeys/1", "0x0000\n"),
        ("class/infiniband/mlx5_0/ports/1/pkeys/10", "0x8001\n"),
        ("class/infiniband/mlx5_0/ports/1/pkeys/2", "0x0002\n"),
        ("class/infiniband_verbs/abi_version", "6\n"),
        ("class/infiniband_verbs/uverbs0/ibdev", "mlx5_0\n"),
        ("class/infiniband_verbs/uverbs0/abi_version", "1\n"),
        ("class/infiniband_verbs/uverbs0/dev", "231:192\n"),
        ("class/infiniband_verbs/uverbs1/ibdev", "rxe0\n"),
        ("class/infiniband_verbs/uverbs1/abi_version", "2\n"),
        ("class/infiniband_verbs/uverbs1/dev", "231:193\n"),
    ]);
    let hardware = root.path().join("class/infiniband/mlx5_0/device");
    std::fs::create_dir(&hardware).unwrap();
    symlink("../../bus/pci/drivers/mlx5_core", hardware.join("driver")).unwrap();
    root
}

fn by_sysfs(root: &TempDir) -> Discovery {
    Discovery::Sysfs(root.path().to_owned())
}

#[test]
fn lists_devices_by_name() {
    let devices = by_sysfs(&two_devices()).devices().unwrap();
    assert_eq!(devices.len(), 2);

    let mlx5 = &devices[0];
    assert_eq!(mlx5.name(), "mlx5_0");
    assert_eq!(mlx5.index(), None);
    let bus = DriverClue::Bus("mlx5_core".into());
    assert_eq!(mlx5.driver_clue(), Some(&bus));
    assert_eq!(mlx5.abi_version(), Some(1));
    assert_eq!(mlx5.firmware_version(), Some("28.39.1002"));
    assert_eq!(mlx5.node_guid(), None);
    assert_eq!(mlx5.port_count(), Some(2));

    let rxe = &devices[1];
    assert_eq!(rxe.name(), "rxe0");
    assert_eq!(rxe.driver_clue(), Some(&DriverClue::Parent));
    assert_eq!(rxe.abi_version(), Some(2));
    assert_eq!(rxe.firmware_version(), None);
    assert_eq!(rxe.node_type(), Some(NodeType::ChannelAdapter));
    assert_eq!(rxe.node_guid(), Some(Guid(0x5054_00ff_fe12_3456)));
    assert_eq!(rxe.system_image_guid(), Some(Guid(0x5054_00ff_fe12_3457)));
    assert_eq!(rxe.path().unwrap(), Path::new("/dev/infiniband/uverbs1"));
    assert_eq!(rxe.rdev(), Some(rustix::fs::makedev(231, 193)));
}

#[test]
fn finds_a_device_or_tells_which_there_are() {
    let root = two_devices();
    assert_eq!(by_sysfs(&root).find("rxe0").unwrap().name(), "rxe0");
    for name in ["rxe1", "", "..", "../infiniband/rxe0"] {
        let error = by_sysfs(&root).find(name).unwrap_err();
        assert!(matches!(error.cause(), Cause::NotFound(_)), "{error}");
        assert!(error.to_string().ends_with("mlx5_0, rxe0"), "{error}");
    }
}

/// Catches tables that are read by a name that is now another device's.
#[test]
fn a_renamed_device_has_its_own_tables() {
    let root = two_devices();
    let device = by_sysfs(&root).find("mlx5_0").unwrap();
    let class = root.path().join("class/infiniband");
    let rename = |from, to| std::fs::rename(class.join(from), class.join(to)).unwrap();
    rename("mlx5_0", "storage");
    rename("rxe0", "mlx5_0");
    let verbs = root.path().join("class/infiniband_verbs");
    let name = |chardev: &str, name| std::fs::write(verbs.join(chardev).join("ibdev"), name);
    name("uverbs0", "storage\n").unwrap();
    name("uverbs1", "mlx5_0\n").unwrap();
    assert_eq!(device.pkey(1, 10).unwrap(), 0x8001);
    assert_eq!(device.pkeys(1).unwrap().len(), 3);
    assert_eq!(device.ports().unwrap().len(), 2);
    // Another device has the number of the character device, or none has.
    std::fs::write(verbs.join("uverbs0/dev"), "231:195\n").unwrap();
    let error = device.pkey(1, 10).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::NODEV));
    std::fs::remove_dir_all(verbs.join("uverbs0")).unwrap();
    let error = device.ports().unwrap_err();
    assert_eq!(error.errno(), Some(Errno::NODEV));
}

#[test]
fn no_rdma_and_no_devices_are_empty_lists_with_different_texts() {
    let none = sysfs(&[("class/net/lo/ifindex", "1\n")]);
    assert!(by_sysfs(&none).devices().unwrap().is_empty());
    let error = by_sysfs(&none).find("rxe0").unwrap_err();
    assert!(error.to_string().contains("has no RDMA"), "{error}");

    std::fs::create_dir(none.path().join("class/infiniband")).unwrap();
    assert!(by_sysfs(&none).devices().unwrap().is_empty());
    let error = by_sysfs(&none).find("rxe0").unwrap_err();
    assert!(
        error.to_string().contains("there are no RDMA devices"),
        "{error}"
    );
}

#[test]
fn a_device_without_uverbs_is_listed_and_cannot_be_opened() {
    let root = sysfs(&[("class/infiniband/rxe0/node_type", "1: CA\n")]);
    let device = by_sysfs(&root).find("rxe0").unwrap();
    assert_eq!(
        (device.path(), device.driver(), device.rdev()),
        (None, None, None)
    );
    let error = device.open_chardev().unwrap_err();
    assert!(error.is_unsupported());
    assert!(error.to_string().contains("ib_uverbs"), "{error}");
}

/// Would catch a device that is being unplugged and makes the whole list an error about malformed files,
/// because those of its character device have just gone.
#[test]
fn a_device_without_files_of_its_character_device_is_going() {
    for file in ["uverbs1/dev", "uverbs1/abi_version", "abi_version"] {
        let root = two_devices();
        let found = by_sysfs(&root).find("rxe0").unwrap();
        std::fs::remove_file(root.path().join("class/infiniband_verbs").join(file)).unwrap();
        let device = by_sysfs(&root).find("rxe0").unwrap();
        assert_eq!(device.path(), None, "{file}");
        if file == "uverbs1/dev" {
            assert_eq!(found.ports().unwrap_err().errno(), Some(Errno::NODEV));
        }
    }
}

#[test]
fn another_uverbs_abi_is_refused() {
    let root = two_devices();
    write(&root, "class/infiniband_verbs/abi_version", "7\n");
    let error = by_sysfs(&root)
        .find("rxe0")
        .unwrap()
        .open_chardev()
        .unwrap_err();
    assert!(error.is_unsupported());
    assert!(
        error.to_string().contains("version 7 of the uverbs ABI"),
        "{error}"
    );
}

#[test]
fn a_software_device_without_a_parent_has_an_unknown_driver() {
    let root = two_devices();
    std::fs::remove_file(root.path().join("class/infiniband/rxe0/parent")).unwrap();
    let device = by_sysfs(&root).find("rxe0").unwrap();
    assert_eq!(device.driver(), None);
}

#[test]
fn reads_ports_in_the_order_of_their_numbers() {
    let root = two_devices();
    let ports = by_sysfs(&root).find("mlx5_0").unwrap().ports().unwrap();
    let told: Vec<_> = ports
        .iter()
        .map(|port| (port.number, port.state, port.lid, port.netdev.clone()))
        .collect();
    assert_eq!(
        told,
        [
            (1, Some(PortState::Active), Some(0x1c), None),
            (2, Some(PortState::Down), Some(0xffff), None),
        ]
    );

    let ports = by_sysfs(&root).find("rxe0").unwrap().ports().unwrap();
    assert_eq!(ports.len(), 1);
    assert_eq!(ports[0].physical_state, Some(PhysicalState::LinkUp));
    assert_eq!(ports[0].lid, None);
    let netdev = ports[0].netdev.as_ref().unwrap();
    assert_eq!((netdev.name.as_str(), netdev.index), ("d0", Some(3)));
}

/// Would catch a device that is taken for removed because it fails to tell a port's state.
#[test]
fn what_a_device_fails_to_tell_is_not_known() {
    let root = two_devices();
    let port = root.path().join("class/infiniband/mlx5_0/ports/1");
    for attribute in ["state", "phys_state", "lid", "rate"] {
        let _ = std::fs::remove_file(port.join(attribute));
        // No page is mapped at its start, so that reading it is EIO.
        symlink("/proc/self/mem", port.join(attribute)).unwrap();
    }
    let error = std::fs::read(port.join("rate")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()));
    let ports = by_sysfs(&root).find("mlx5_0").unwrap().ports().unwrap();
    assert_eq!((ports[0].number, ports[0].state), (1, None));
    assert_eq!((ports[0].physical_state, ports[0].lid), (None, None));
    assert_eq!(ports[1].state, Some(PortState::Down));
    #[cfg(feature = "topology")]
    assert_eq!(
        by_sysfs(&root).topology().unwrap().adapters()[0].ports[0].bandwidth,
        None
    );
}

#[test]
fn reads_partition_keys() {
    let root = two_devices();
    let device = by_sysfs(&root).find("mlx5_0").unwrap();
    assert_eq!(
        device.pkeys(1).unwrap(),
        [(0, 0xffff), (2, 2), (10, 0x8001)]
    );
    assert_eq!(device.pkey(1, 10).unwrap(), 0x8001);
    assert_eq!(device.pkey(1, 1).unwrap(), 0);
    for (port, index) in [(1, 3), (3, 0)] {
        let error = device.pkey(port, index).unwrap_err();
        assert!(matches!(error.cause(), Cause::NotFound(_)), "{error}");
    }
    assert!(matches!(
        device.pkeys(3).unwrap_err().cause(),
        Cause::NotFound(_)
    ));
}

#[test]
fn without_sysfs_there_are_no_tables() {
    let root = two_devices();
    let device = by_sysfs(&root).find("rxe0").unwrap();
    std::fs::remove_dir_all(root.path().join("class")).unwrap();
    assert!(device.pkey(1, 0).unwrap_err().is_unsupported());
    assert!(device.pkeys(1).unwrap_err().is_unsupported());
    assert!(device.gid_table(1).unwrap_err().is_unsupported());
    assert_eq!(device.ports().unwrap_err().errno(), Some(Errno::NODEV));
}

#[test]
fn reads_the_gid_table_without_its_empty_entries() {
    let root = two_devices();
    let device = by_sysfs(&root).find("rxe0").unwrap();
    let table = device.gid_table(1).unwrap();
    assert_eq!(table.len(), 2);
    assert_eq!((table[0].index, table[0].gid_type), (0, GidType::RoceV1));
    assert_eq!((table[1].index, table[1].gid_type), (1, GidType::RoceV2));
    assert_eq!(table[1].gid, "10.9.0.1".parse::<Gid>().unwrap());
    assert_eq!((table[1].port, table[1].netdev_ifindex), (1, 3));

    for link_layer in ["InfiniBand\n", "Unspecified\n"] {
        write(
            &root,
            "class/infiniband/rxe0/ports/1/link_layer",
            link_layer,
        );
        assert_eq!(device.gid_table(1).unwrap()[0].gid_type, GidType::Ib);
    }
    assert!(matches!(
        device.gid_table(2).unwrap_err().cause(),
        Cause::NotFound(_)
    ));
}

#[test]
fn nonsense_is_an_error_that_names_the_file() {
    for (path, text) in [
        ("class/infiniband/rxe0/node_type", "CA\n"),
        ("class/infiniband/rxe0/node_type", "300: CA\n"),
        ("class/infiniband/rxe0/node_guid", "5054:00ff:fe12\n"),
        ("class/infiniband_verbs/uverbs1/dev", "231\n"),
        ("class/infiniband_verbs/uverbs1/dev", "231:x\n"),
        ("class/infiniband_verbs/uverbs1/abi_version", "two\n"),
        ("class/infiniband_verbs/abi_version", "\n"),
    ] {
        let root = two_devices();
        write(&root, path, text);
        let error = by_sysfs(&root).find("rxe0").unwrap_err();
        assert!(matches!(error.cause(), Cause::Malformed(_)), "{error}");
        assert!(error.to_string().contains(path), "{error}");
    }
}

#[test]
fn nonsense_in_a_port_is_an_error_that_names_the_file() {
    for (path, text) in [
        ("state", "ACTIVE\n"),
        ("phys_state", ": LinkUp\n"),
        ("gid_attrs/ndevs/0", "../../d0\n"),
        ("gids/1", "10.9.0\n"),
        ("pkeys/0", "ffff\n"),
        ("pkeys/0", "0x1ffff\n"),
    ] {
        let root = two_devices();
        let path = format!("class/infiniband/rxe0/ports/1/{path}");
        write(&root, &path, text);
        let device = by_sysfs(&root).find("rxe0").unwrap();
        let error = [
            device.ports().err(),
            device.gid_table(1).err(),
            device.pkeys(1).err(),
        ];
        let error = error.into_iter().flatten().next().unwrap();
        assert!(matches!(error.cause(), Cause::Malformed(_)), "{error}");
        assert!(error.to_string().contains(&path), "{error}");
    }
}
