//! The parser and the conversation over bytes that a kernel sends, could send, and never should.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::device::driver::DriverId;
use crate::device::node_type::NodeType;
use crate::device::port::{PhysicalState, PortState};
use crate::guid::Guid;

const NOOP: u16 = 1;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const OVERRUN: u16 = 4;
const MULTI: u16 = 2;
const INTERRUPTED: u16 = 16;
const GET: u16 = 0x1401;
const GET_CHARDEV: u16 = 0x140f;
const PORT_GET: u16 = 0x1405;

/// A kernel that answers every request with the next datagrams of a script.
///
/// A datagram in the script bears the sequence number 0 in the messages that answer the request; the kernel
/// puts the request's own there.
#[derive(Default)]
struct Script {
    answers: VecDeque<Vec<Vec<u8>>>,
    queue: VecDeque<Vec<u8>>,
    requests: Vec<Vec<u8>>,
}

impl Script {
    /// A kernel that answers the first request with the first list of datagrams, and so on.
    fn new(answers: impl IntoIterator<Item = Vec<Vec<u8>>>) -> Self {
        Self {
            answers: answers.into_iter().collect(),
            ..Self::default()
        }
    }
}

impl Channel for Script {
    fn send(&mut self, datagram: &[u8]) -> Result<(), Errno> {
        self.requests.push(datagram.to_vec());
        for mut answer in self.answers.pop_front().unwrap_or_default() {
            stamp(&mut answer, &datagram[8..12]);
            self.queue.push_back(answer);
        }
        Ok(())
    }

    fn receive(&mut self, buffer: &mut Vec<u8>) -> Result<usize, Errno> {
        let datagram = self.queue.pop_front().ok_or(Errno::AGAIN)?;
        let fits = datagram.len().min(buffer.capacity());
        buffer.extend_from_slice(&datagram[..fits]);
        Ok(datagram.len())
    }
}

/// Puts the sequence number into every well-formed message whose own is 0.
fn stamp(datagram: &mut [u8], sequence: &[u8]) {
    let mut at = 0;
    while let Some(header) = datagram.get_mut(at..at + 16) {
        if header[8..12] == [0; 4] {
            header[8..12].copy_from_slice(sequence);
        }
        let length = u32::from_ne_bytes(header[..4].try_into().unwrap()) as usize;
        at += length.next_multiple_of(4).max(16);
    }
}

fn message(kind: u16, flags: u16, sequence: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (16 + payload.len() as u32).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend(4711_u32.to_ne_bytes());
    bytes.extend(payload);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = (4 + value.len() as u16).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn rxe_device(index: u32, name: &str) -> Vec<u8> {
    [
        attribute(attr::DEV_INDEX, &index.to_ne_bytes()),
        attribute(attr::DEV_NAME, format!("{name}\0").as_bytes()),
        attribute(attr::PORT_INDEX, &1_u32.to_ne_bytes()),
        attribute(attr::NODE_GUID, &0x5054_00ff_fe12_3456_u64.to_ne_bytes()),
        attribute(attr::SYS_IMAGE_GUID, &1_u64.to_ne_bytes()),
        attribute(attr::DEV_NODE_TYPE, &[1]),
        // Something newer than this library.
        attribute(4000, b"new"),
    ]
    .concat()
}

fn rxe_chardev() -> Vec<u8> {
    [
        attribute(attr::UVERBS_DRIVER_ID, &14_u32.to_ne_bytes()),
        attribute(attr::CHARDEV, &0xe7c0_u64.to_ne_bytes()),
        attribute(attr::CHARDEV_ABI, &2_u64.to_ne_bytes()),
        attribute(attr::CHARDEV_NAME, b"uverbs0\0"),
    ]
    .concat()
}

fn rxe_port(device: &str, number: u32) -> Vec<u8> {
    [
        attribute(attr::DEV_INDEX, &0_u32.to_ne_bytes()),
        attribute(attr::DEV_NAME, format!("{device}\0").as_bytes()),
        attribute(attr::PORT_INDEX, &number.to_ne_bytes()),
        attribute(attr::PORT_STATE, &[4]),
        attribute(attr::PORT_PHYS_STATE, &[5]),
        attribute(attr::NDEV_INDEX, &3_u32.to_ne_bytes()),
        attribute(attr::NDEV_NAME, b"d0\0"),
    ]
    .concat()
}

fn part(payload: &[u8]) -> Vec<u8> {
    message(GET, MULTI, 0, payload)
}

fn done() -> Vec<u8> {
    message(DONE, MULTI, 0, &0_i32.to_ne_bytes())
}

fn refusal(errno: Errno) -> Vec<u8> {
    let mut payload = (-errno.raw_os_error()).to_ne_bytes().to_vec();
    payload.extend([0; 16]);
    message(ERROR, 0, 0, &payload)
}

fn list(answers: impl IntoIterator<Item = Vec<Vec<u8>>>) -> Result<Vec<String>, Failure> {
    let infos = Netlink::over(Script::new(answers)).list()?;
    Ok(infos.into_iter().map(|info| info.name).collect())
}

fn malformed<T: std::fmt::Debug>(result: Result<T, Failure>) -> String {
    match result {
        Err(Failure::Malformed(Malformed(text))) => text.into_owned(),
        other => panic!("{other:?} is not malformed"),
    }
}

#[test]
fn a_request_is_what_the_kernel_expects() {
    let mut netlink = Netlink::over(Script::new([vec![message(
        GET_CHARDEV,
        0,
        0,
        &rxe_chardev(),
    )]]));
    netlink.chardev(7).unwrap();
    let expected = [
        message(GET_CHARDEV, 1, 1, &[])[4..12].to_vec(),
        0_u32.to_ne_bytes().to_vec(),
        attribute(attr::DEV_INDEX, &7_u32.to_ne_bytes()),
        attribute(attr::CHARDEV_TYPE, b"uverbs\0"),
    ]
    .concat();
    let request = &netlink.0.channel.requests[0];
    assert_eq!(request[..4], (request.len() as u32).to_ne_bytes());
    assert_eq!(request[4..], expected);
}

#[test]
fn reads_a_device() {
    let mut netlink = Netlink::over(Script::new([vec![part(&rxe_device(0, "rxe0")), done()]]));
    assert_eq!(
        netlink.list().unwrap(),
        [Info {
            name: "rxe0".into(),
            index: Some(0),
            ports: Some(1),
            firmware: None,
            node_guid: Some(Guid(0x5054_00ff_fe12_3456)),
            system_image_guid: Some(Guid(1)),
            node_type: Some(NodeType::ChannelAdapter),
        }]
    );
}

#[test]
fn reads_a_character_device() {
    let mut netlink = Netlink::over(Script::new([vec![message(
        GET_CHARDEV,
        0,
        0,
        &rxe_chardev(),
    )]]));
    assert_eq!(
        netlink.chardev(0).unwrap().unwrap(),
        Chardev {
            name: "uverbs0".into(),
            number: rustix::fs::makedev(231, 192),
            driver: Some(DriverId::RXE),
            abi_version: 2,
            uverbs_abi_version: 6,
        }
    );
}

#[test]
fn a_device_number_has_its_minor_part_around_the_major_one() {
    let number = |encoded: u64| {
        let chardev = [
            attribute(attr::CHARDEV, &encoded.to_ne_bytes()),
            attribute(attr::CHARDEV_ABI, &1_u64.to_ne_bytes()),
            attribute(attr::CHARDEV_NAME, b"uverbs1\0"),
        ];
        answers::chardev(&chardev.concat()).map(|chardev| chardev.number)
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

#[test]
fn reads_ports_in_the_order_of_their_numbers() {
    let dump = [2, 1].map(|number| message(PORT_GET, MULTI, 0, &rxe_port("rxe0", number)));
    let mut netlink = Netlink::over(Script::new([vec![dump.concat(), done()]]));
    let ports = netlink.ports(0, "rxe0").unwrap();
    assert_eq!([ports[0].number, ports[1].number], [1, 2]);
    assert_eq!(ports[0].state, Some(PortState::Active));
    assert_eq!(ports[0].physical_state, Some(PhysicalState::LinkUp));
    assert_eq!(ports[0].lid, None);
    let netdev = ports[0].netdev.as_ref().unwrap();
    assert_eq!((netdev.name.as_str(), netdev.index), ("d0", Some(3)));
}

#[test]
fn ports_of_another_device_are_refused() {
    let dump = message(PORT_GET, MULTI, 0, &rxe_port("rxe9", 1));
    let mut netlink = Netlink::over(Script::new([vec![dump, done()]]));
    assert_eq!(
        netlink.ports(0, "rxe0"),
        Err(Failure::Refused(Errno::NODEV))
    );
}

#[test]
fn a_port_that_comes_twice_is_refused() {
    let dump = message(PORT_GET, MULTI, 0, &rxe_port("rxe0", 1)).repeat(2);
    let mut netlink = Netlink::over(Script::new([vec![dump, done()]]));
    assert_eq!(malformed(netlink.ports(0, "rxe0")), "a port comes twice");
}

#[test]
fn a_dump_may_come_in_many_datagrams_or_in_one() {
    let devices: Vec<_> = (0..40)
        .map(|index| part(&rxe_device(index, &format!("rxe{index}"))))
        .collect();
    let names: Vec<_> = (0..40).map(|index| format!("rxe{index}")).collect();
    let in_one = [devices.concat(), done()].concat();
    let in_three = vec![devices[..13].concat(), devices[13..].concat(), done()];
    let each = devices.into_iter().chain([done()]).collect();
    for datagrams in [vec![in_one], in_three, each] {
        assert_eq!(list([datagrams]).unwrap(), names);
    }
}

#[test]
fn no_devices_are_an_empty_list() {
    assert_eq!(list([vec![done()]]).unwrap(), [""; 0]);
}

#[test]
fn what_answers_another_question_is_passed_over() {
    let stale = message(GET, MULTI, 99, &rxe_device(5, "old"));
    let noise = message(NOOP, 0, 0, &[]);
    let datagrams = vec![
        [stale, noise].concat(),
        vec![],
        part(&rxe_device(0, "rxe0")),
        done(),
    ];
    assert_eq!(list([datagrams]).unwrap(), ["rxe0"]);
}

#[test]
fn an_interrupted_dump_is_asked_for_again() {
    let torn = [
        part(&rxe_device(0, "rxe0")),
        message(DONE, MULTI | INTERRUPTED, 0, &[0; 4]),
    ];
    let whole = [part(&rxe_device(1, "rxe1")), done()];
    assert_eq!(list([torn.to_vec(), whole.to_vec()]).unwrap(), ["rxe1"]);
    let text = malformed(list(vec![torn.to_vec(); 100]));
    assert!(text.contains("every time"), "{text}");
}

#[test]
fn an_overrun_is_asked_for_again() {
    let lost = vec![message(OVERRUN, 0, 0, &[]), done()];
    let whole = vec![part(&rxe_device(1, "rxe1")), done()];
    assert_eq!(list([lost, whole]).unwrap(), ["rxe1"]);
}

#[test]
fn a_datagram_that_does_not_fit_is_asked_for_again() {
    let devices: Vec<_> = (0..200)
        .map(|index| part(&rxe_device(index, "rxe0")))
        .collect();
    for end in [
        vec![devices.concat(), done()],
        vec![[devices.concat(), done()].concat()],
    ] {
        assert_eq!(list([end.clone(), end]).unwrap().len(), 200);
    }
}

#[test]
fn a_refusal_is_the_answer() {
    assert_eq!(
        list([vec![refusal(Errno::PERM)]]),
        Err(Failure::Refused(Errno::PERM))
    );
    let late = vec![
        part(&rxe_device(0, "rxe0")),
        message(
            DONE,
            MULTI,
            0,
            &(-Errno::NOMEM.raw_os_error()).to_ne_bytes(),
        ),
    ];
    assert_eq!(list([late]), Err(Failure::Refused(Errno::NOMEM)));
}

#[test]
fn an_answer_that_stops_short_is_malformed() {
    for datagrams in [vec![], vec![part(&rxe_device(0, "rxe0"))]] {
        assert_eq!(malformed(list([datagrams])), "the answer has no end");
    }
}

#[test]
fn nonsense_in_the_frame_is_malformed() {
    let mut long = part(&rxe_device(0, "rxe0"));
    long[0] += 4;
    let mut short = part(&[]);
    short[0] = 15;
    for (datagram, expected) in [
        (long, "longer than its datagram"),
        (short, "shorter than its header"),
        (vec![0; 7], "shorter than its header"),
        (message(GET_CHARDEV, 0, 0, &[]), "another type"),
        (message(ERROR, 0, 0, &[0, 0, 0]), "status is cut off"),
        (
            message(ERROR, 0, 0, &1_i32.to_ne_bytes()),
            "1 is no netlink status",
        ),
        (
            message(ERROR, 0, 0, &i32::MIN.to_ne_bytes()),
            "no netlink status",
        ),
        (
            message(ERROR, 0, 0, &(-4096_i32).to_ne_bytes()),
            "no netlink status",
        ),
    ] {
        let text = malformed(list([vec![datagram, done()]]));
        assert!(text.contains(expected), "{text}");
    }
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

proptest! {
    #[test]
    fn random_bytes_never_panic(datagrams: Vec<Vec<u8>>) {
        let script = || Script::new([datagrams.clone()]);
        let _ = Netlink::over(script()).list();
        let _ = Netlink::over(script()).chardev(0);
        let _ = Netlink::over(script()).ports(0, "rxe0");
    }

    #[test]
    fn random_attributes_never_panic(payload: Vec<u8>) {
        let _ = answers::device(&payload);
        let _ = answers::chardev(&payload);
        let _ = answers::port(&payload);
    }

    #[test]
    fn mutated_answers_never_panic(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
    ) {
        for (kind, payload) in [
            (GET, rxe_device(0, "rxe0")),
            (GET_CHARDEV, rxe_chardev()),
            (PORT_GET, rxe_port("rxe0", 1)),
        ] {
            let mut datagram = [message(kind, MULTI, 0, &payload).repeat(3), done()].concat();
            for (at, byte) in &flips {
                let at = at.index(datagram.len());
                datagram[at] = *byte;
            }
            let cut = datagram[..cut.index(datagram.len())].to_vec();
            for datagram in [datagram, cut] {
                let script = || Script::new(vec![vec![datagram.clone()]; 2]);
                let _ = Netlink::over(script()).list();
                let _ = Netlink::over(script()).chardev(0);
                let _ = Netlink::over(script()).ports(0, "rxe0");
            }
        }
    }

    #[test]
    fn a_cut_dump_is_never_taken_for_a_whole_one(cut in any::<prop::sample::Index>()) {
        let whole = [part(&rxe_device(0, "rxe0")), part(&rxe_device(1, "rxe1")), done()].concat();
        let cut = cut.index(whole.len());
        prop_assert!(list([vec![whole[..cut].to_vec()]]).is_err());
    }
}
