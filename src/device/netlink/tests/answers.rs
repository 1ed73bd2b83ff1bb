//! The meaning of answers, and answers that are refused.

use super::*;
use crate::device::netlink::answers as parse;
use crate::device::node_type::NodeType;
use crate::device::port::{PhysicalState, PortState};

#[test]
fn a_device_with_firmware_and_a_kind_of_node_that_is_new() {
    let device = [
        rxe_device(2, "new0"),
        attribute(attr::FW_VERSION, b"28.39.1002\0"),
    ];
    let mut info = parse::device(&device.concat()).unwrap();
    assert_eq!(info.firmware.take().as_deref(), Some("28.39.1002"));
    assert_eq!(info.node_type, Some(NodeType::ChannelAdapter));
    assert_eq!(NodeType::from(8), NodeType::Other(8));
}

#[test]
fn a_device_number_has_its_minor_part_around_the_major_one() {
    let number = |encoded: u64| {
        let chardev = [
            attribute(attr::CHARDEV, &encoded.to_ne_bytes()),
            attribute(attr::CHARDEV_ABI, &1_u64.to_ne_bytes()),
            attribute(attr::CHARDEV_NAME, b"uverbs1\0"),
        ];
        parse::chardev(&chardev.concat()).map(|chardev| chardev.number)
    };
    assert_eq!(
        number(0x1235_e789),
        Ok(rustix::fs::makedev(0x5e7, 0x1_2389))
    );
    assert!(number(0x1_0000_0000).is_err());
}

#[test]
fn no_character_device_is_no_failure() {
    for errno in [Errno::OPNOTSUPP, Errno::NOENT, Errno::INVAL] {
        let mut netlink = Netlink::over(Script::new([vec![refusal(errno)]]));
        assert_eq!(netlink.chardev(0), Ok(None));
    }
    let mut netlink = Netlink::over(Script::new([vec![refusal(Errno::NOMEM)]]));
    assert_eq!(netlink.chardev(0), Err(Failure::Refused(Errno::NOMEM)));
}

/// Would catch a device that has gone and is told as a wrong argument, and a command that the kernel does not
/// know and is told as a device that has gone.
#[test]
fn a_device_that_has_gone_is_told_from_a_command_that_is_not_known() {
    let refused = || vec![refusal(Errno::INVAL)];
    let ended = message(
        DONE,
        MULTI,
        0,
        &(-Errno::INVAL.raw_os_error()).to_ne_bytes(),
    );
    let there = message(GET, 0, 0, &rxe_device(3, "rxe0"));
    for (first, device, errno) in [
        (refused(), refused(), Errno::NODEV),
        (vec![ended], refused(), Errno::NODEV),
        (refused(), vec![there], Errno::INVAL),
        (vec![refusal(Errno::PERM)], vec![], Errno::PERM),
    ] {
        let netlink = || Netlink::over(Script::new([first.clone(), device.clone()]));
        let refused = Failure::Refused(errno);
        assert_eq!(netlink().ports(3), Err(refused.clone()));
        assert_eq!(netlink().summary(3), Err(refused.clone()));
        assert_eq!(netlink().srqs(3), Err(refused.clone()));
        assert_eq!(netlink().qp_counters(3), Err(refused));
    }
}

#[test]
fn reads_ports_in_the_order_of_their_numbers() {
    let dump = [2, 1].map(|number| message(PORT_GET, MULTI, 0, &rxe_port("rxe0", number)));
    let mut netlink = Netlink::over(Script::new([vec![dump.concat(), done()]]));
    let ports = netlink.ports(0).unwrap();
    assert_eq!([ports[0].number, ports[1].number], [1, 2]);
    assert_eq!(ports[0].state, Some(PortState::Active));
    assert_eq!(ports[0].physical_state, Some(PhysicalState::LinkUp));
    assert_eq!(ports[0].lid, None);
    let netdev = ports[0].netdev.as_ref().unwrap();
    assert_eq!((netdev.name.as_str(), netdev.index), ("d0", Some(3)));
}

#[test]
fn ports_of_another_device_are_refused() {
    let dump = message(PORT_GET, MULTI, 0, &rxe_port("rxe0", 1));
    let mut netlink = Netlink::over(Script::new([vec![dump, done()]]));
    assert_eq!(netlink.ports(9), Err(Failure::Refused(Errno::NODEV)));
}

/// Catches a device that is looked up by a name that it no longer has.
#[test]
fn a_device_has_the_name_that_its_index_has_now() {
    let name = |answer| Netlink::over(Script::new([vec![answer]])).name(7);
    let renamed = message(GET, 0, 0, &rxe_device(7, "storage"));
    assert_eq!(name(renamed), Ok("storage".into()));
    let gone = Err(Failure::Refused(Errno::NODEV));
    let another = message(GET, 0, 0, &rxe_device(8, "rxe0"));
    assert_eq!(name(another), gone);
    assert_eq!(name(refusal(Errno::INVAL)), gone);
    let forbidden = Err(Failure::Refused(Errno::PERM));
    assert_eq!(name(refusal(Errno::PERM)), forbidden);
}

#[test]
fn a_port_that_comes_twice_is_refused() {
    let dump = message(PORT_GET, MULTI, 0, &rxe_port("rxe0", 1)).repeat(2);
    let mut netlink = Netlink::over(Script::new([vec![dump, done()]]));
    assert_eq!(malformed(netlink.ports(0)), "a port comes twice");
}

#[test]
fn nonsense_in_the_attributes_is_malformed() {
    let index = attribute(attr::DEV_INDEX, &[0; 4]);
    let name = attribute(attr::DEV_NAME, b"rxe0\0");
    let named = |name: &[u8]| [index.clone(), attribute(attr::DEV_NAME, name)].concat();
    let both = |more: &[u8]| [&index, &name, more].concat();
    for (payload, expected) in [
        (index.clone(), "the device name is missing"),
        (name.clone(), "the device index is missing"),
        (named(b"rxe0"), "does not end in its only NUL"),
        (named(b"rx\0e0\0"), "does not end in its only NUL"),
        (named(b""), "does not end in its only NUL"),
        (named(b"\0"), "cannot be the name of a file"),
        (named(b"..\0"), "cannot be the name of a file"),
        (named(b"a/b\0"), "cannot be the name of a file"),
        (named(b"\xff\0"), "is not UTF-8"),
        (both(&index), "the device index comes twice"),
        (
            both(&attribute(attr::NODE_GUID, &[0; 4])),
            "has 4 bytes, not 8",
        ),
        (
            both(&attribute(attr::DEV_NODE_TYPE, &[])),
            "has 0 bytes, not 1",
        ),
        (both(&[3, 0, 0, 0]), "shorter than its header"),
        (both(&[9, 0, 0, 0, 1]), "longer than its message"),
        (both(&[4, 0]), "shorter than its header"),
    ] {
        let text = malformed(list([vec![part(&payload), done()]]));
        assert!(text.contains(expected), "{text}");
    }
}
