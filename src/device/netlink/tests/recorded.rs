//! Answers of a real kernel, byte for byte; only the sequence numbers are replaced by 0.

use super::*;
use crate::device::driver::{DriverClue, DriverId};
use crate::device::node_type::NodeType;
use crate::device::port::{Netdev, PhysicalState, PortState};
use crate::guid::Guid;

/// The answer of Linux 7.2.12 about a soft-RoCE device over a dummy interface: the device, the end of the
/// dump.
#[rustfmt::skip]
const LINUX_7_2_DEVICE: [&[u8]; 2] = [
    &[
        0x74, 0, 0, 0, 0x01, 0x14, 2, 0, 0, 0, 0, 0, 0xc1, 0, 0, 0,
        8, 0, 1, 0, 0, 0, 0, 0, 9, 0, 2, 0, b'r', b'x', b'e', b'0',
        0, 0, 0, 0, 8, 0, 3, 0, 1, 0, 0, 0, 12, 0, 4, 0,
        0x76, 0x3c, 0x22, 0x01, 0xc0, 1, 0, 0, 12, 0, 6, 0, 0x57, 0x8b, 0x7d, 0xfe,
        0xff, 0x11, 0x25, 0xa4, 12, 0, 7, 0, 0x57, 0x8b, 0x7d, 0xfe, 0xff, 0x11, 0x25, 0xa4,
        5, 0, 14, 0, 1, 0, 0, 0, 5, 0, 0x54, 0, 0, 0, 0, 0,
        5, 0, 0x65, 0, 1, 0, 0, 0, 9, 0, 0x43, 0, b'r', b'o', b'c', b'e',
        0, 0, 0, 0,
    ],
    &[0x14, 0, 0, 0, 3, 0, 2, 0, 0, 0, 0, 0, 0xc1, 0, 0, 0, 0, 0, 0, 0],
];

/// Its answer about the device's character device.
#[rustfmt::skip]
const LINUX_7_2_CHARDEV: [&[u8]; 1] = [
    &[
        0x3c, 0, 0, 0, 0x0f, 0x14, 0, 0, 0, 0, 0, 0, 0xc1, 0, 0, 0,
        8, 0, 0x49, 0, 14, 0, 0, 0, 12, 0, 0x48, 0, 0xc0, 0xe7, 0, 0,
        0, 0, 0, 0, 12, 0, 0x47, 0, 2, 0, 0, 0, 0, 0, 0, 0,
        12, 0, 0x46, 0, b'u', b'v', b'e', b'r', b'b', b's', b'0', 0,
    ],
];

/// Its answer about the device's port, and the end of the dump.
#[rustfmt::skip]
const LINUX_7_2_PORT: [&[u8]; 2] = [
    &[
        0x4c, 0, 0, 0, 0x05, 0x14, 2, 0, 0, 0, 0, 0, 0xc1, 0, 0, 0,
        8, 0, 1, 0, 0, 0, 0, 0, 9, 0, 2, 0, b'r', b'x', b'e', b'0',
        0, 0, 0, 0, 8, 0, 3, 0, 1, 0, 0, 0, 5, 0, 12, 0,
        4, 0, 0, 0, 5, 0, 13, 0, 5, 0, 0, 0, 8, 0, 0x32, 0,
        3, 0, 0, 0, 7, 0, 0x33, 0, b'd', b'0', 0, 0,
    ],
    LINUX_7_2_DEVICE[1],
];

#[test]
fn reads_what_a_kernel_says_of_a_device() {
    let answers = [LINUX_7_2_DEVICE.map(<[u8]>::to_vec).to_vec()];
    let infos = Netlink::over(Script::new(answers)).list(|_| false);
    assert_eq!(
        infos.unwrap(),
        [Info {
            name: "rxe0".into(),
            index: Some(0),
            ports: Some(1),
            firmware: None,
            node_guid: Some(Guid(0xa425_11ff_fe7d_8b57)),
            system_image_guid: Some(Guid(0xa425_11ff_fe7d_8b57)),
            node_type: Some(NodeType::ChannelAdapter),
        }]
    );
}

#[test]
fn reads_what_a_kernel_says_of_a_character_device() {
    let answers = [LINUX_7_2_CHARDEV.map(<[u8]>::to_vec).to_vec()];
    let chardev = Netlink::over(Script::new(answers)).chardev(0);
    assert_eq!(
        chardev.unwrap().unwrap(),
        Chardev {
            name: "uverbs0".into(),
            number: rustix::fs::makedev(231, 192),
            driver: Some(DriverClue::Number(DriverId(14))),
            abi_version: 2,
            uverbs_abi_version: 6,
        }
    );
}

#[test]
fn reads_what_a_kernel_says_of_a_port() {
    let answers = [LINUX_7_2_PORT.map(<[u8]>::to_vec).to_vec()];
    let ports = Netlink::over(Script::new(answers)).ports(0);
    assert_eq!(
        ports.unwrap(),
        [Port {
            number: 1,
            state: Some(PortState::Active),
            physical_state: Some(PhysicalState::LinkUp),
            lid: None,
            netdev: Some(Netdev {
                name: "d0".into(),
                index: Some(3)
            }),
        }]
    );
}
