//! Requests as bytes, and their answers field by field.

use super::*;
use crate::layout::mad::{self as layout, Component};
use crate::port::PortKind;

const PATH_RECORD: u64 = 0x35;
const MCMEMBER_RECORD: u64 = 0x38;

/// A group of a program's own.
const GROUP: [u8; 16] = [0xff, 0x12, 0xa0, 0x1b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];
/// The group of IP over InfiniBand.
const BROADCAST: [u8; 16] = [
    0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff,
];
const FULL: u64 = 1;
const SEND_ONLY_FULL: u64 = 8;

fn port(index: u16) -> Port {
    Port::new(PortKind::InfiniBand, index)
}

/// Two ports, with the LIDs 1 and 2.
fn hosts() -> [Host; 2] {
    [0, 1].map(|index| Host::of(&port(index)))
}

/// A request, made component by component.
#[derive(Clone)]
struct Packet([u8; LENGTH]);

impl Packet {
    fn new(method: Method, attribute: u64) -> Self {
        let mut bytes = [0; LENGTH];
        for (field, value) in [
            (layout::BASE_VERSION, 1),
            (layout::MGMT_CLASS, 3),
            (layout::CLASS_VERSION, 2),
            (layout::METHOD, method as u64),
            (layout::TID, 0x1122_3344_5566_7788),
            (layout::ATTR_ID, attribute),
        ] {
            field.set(&mut bytes, value);
        }
        Self(bytes)
    }

    fn with(mut self, component: Component, value: u64) -> Self {
        component.field.set(&mut self.0[layout::DATA..], value);
        self.give(component.bit)
    }

    fn with_gid(mut self, (at, bit): (usize, u32), gid: [u8; 16]) -> Self {
        self.0[layout::DATA + at..][..16].copy_from_slice(&gid);
        self.give(bit)
    }

    fn give(mut self, bit: u32) -> Self {
        let mask = layout::COMP_MASK.get(&self.0) | 1 << bit;
        layout::COMP_MASK.set(&mut self.0, mask);
        self
    }

    fn without(mut self, component: Component) -> Self {
        let mask = layout::COMP_MASK.get(&self.0) & !(1 << component.bit);
        layout::COMP_MASK.set(&mut self.0, mask);
        self
    }

    fn set(mut self, field: crate::layout::Field, value: u64) -> Self {
        field.set(&mut self.0, value);
        self
    }
}

/// The answer to a request that has one.
fn ask(subnet: &Subnet, from: u16, packet: &Packet) -> [u8; LENGTH] {
    let answer = subnet.answer(&hosts(), from, &packet.0);
    assert!(answer.is_some(), "no answer");
    answer.unwrap_or([0; LENGTH])
}

fn status(subnet: &Subnet, from: u16, packet: &Packet) -> u64 {
    layout::STATUS.get(&ask(subnet, from, packet))
}

fn value(answer: &[u8], component: Component) -> u64 {
    component.field.get(&answer[layout::DATA..])
}

fn gid(answer: &[u8], (at, _): (usize, u32)) -> &[u8] {
    &answer[layout::DATA + at..][..16]
}

/// What ib_core asks before rdma_cm connects.
fn path_between(from: u16, to: u16) -> Packet {
    Packet::new(Method::Get, PATH_RECORD)
        .with_gid(path_record::SGID, port(from).gid())
        .with_gid(path_record::DGID, port(to).gid())
        .with(path_record::PKEY, 0xffff)
        .with(path_record::NUMB_PATH, 1)
}

/// What ib_ipoib asks first.
fn join(group: [u8; 16], index: u16, state: u64) -> Packet {
    Packet::new(Method::Set, MCMEMBER_RECORD)
        .with_gid(mcmember_record::MGID, group)
        .with_gid(mcmember_record::PORT_GID, port(index).gid())
        .with(mcmember_record::JOIN_STATE, state)
}

/// As [`join`], with all that a new group needs.
fn create(group: [u8; 16], index: u16, state: u64) -> Packet {
    join(group, index, state)
        .with(mcmember_record::QKEY, 0x1234_5678)
        .with(mcmember_record::PKEY, 0xffff)
        .with(mcmember_record::SL, 0)
        .with(mcmember_record::FLOW_LABEL, 0)
        .with(mcmember_record::TRAFFIC_CLASS, 0)
}

fn leave(group: [u8; 16], index: u16, state: u64) -> Packet {
    join(group, index, state).set(layout::METHOD, Method::Delete as u64)
}

#[test]
fn a_path_has_both_ends_and_what_goes_over_it() {
    let answer = ask(&Subnet::default(), 1, &path_between(0, 1));
    for (field, expected) in [
        (layout::BASE_VERSION, 1),
        (layout::MGMT_CLASS, 3),
        (layout::CLASS_VERSION, 2),
        (layout::METHOD, 0x81),
        (layout::STATUS, 0),
        (layout::TID, 0x1122_3344_5566_7788),
        (layout::ATTR_ID, PATH_RECORD),
        (layout::RMPP_FLAGS, 0),
    ] {
        assert_eq!(field.get(&answer), expected, "{field:?}");
    }
    assert_eq!(gid(&answer, path_record::SGID), port(0).gid());
    assert_eq!(gid(&answer, path_record::DGID), port(1).gid());
    for (component, expected) in [
        (path_record::SLID, 1),
        (path_record::DLID, 2),
        (path_record::RAW_TRAFFIC, 0),
        // More would mean that there are routers on the way, and a global header.
        (path_record::HOP_LIMIT, 0),
        (path_record::NUMB_PATH, 1),
        (path_record::PKEY, 0xffff),
        (path_record::SL, 0),
        (path_record::MTU_SELECTOR, 2),
        (path_record::MTU, 5),
        (path_record::RATE_SELECTOR, 2),
        (path_record::RATE, 16),
        (path_record::PACKET_LIFE_TIME_SELECTOR, 2),
        (path_record::PACKET_LIFE_TIME, 14),
    ] {
        assert_eq!(value(&answer, component), expected, "{component:?}");
    }
    assert!(path_record::REVERSIBLE.is_set(&answer[layout::DATA..]));
}

#[test]
fn fields_lie_where_the_specification_has_them() {
    let answer = ask(&Subnet::default(), 1, &path_between(0, 1));
    // LIDs, flow label and hop limit, traffic class, one reversible path, partition, service level, MTU,
    // rate, life time.
    assert_eq!(
        answer[56 + 40..56 + 57],
        [
            0, 2, 0, 1, 0, 0, 0, 0, 0, 0x81, 0xff, 0xff, 0, 0, 0x85, 0x90, 0x8e
        ]
    );
    let answer = ask(&Subnet::default(), 1, &join(BROADCAST, 0, FULL));
    // Key, LID, MTU, traffic class, partition, rate, life time, service level to hop limit, scope and state.
    assert_eq!(
        answer[56 + 32..56 + 52],
        [
            0, 0, 0x0b, 0x1b, 0xc0, 0, 0x84, 0, 0xff, 0xff, 0x90, 0x8e, 0, 0, 0, 0, 0x21, 0, 0, 0
        ]
    );
}

#[test]
fn a_path_that_is_not_there_is_not_given() {
    let subnet = Subnet::default();
    let [path, table] = [Method::Get, Method::GetTable]
        .map(|method| path_between(0, 1).set(layout::METHOD, method as u64));
    let of_port = |gid| Packet::new(Method::Get, PATH_RECORD).with_gid(gid, port(0).gid());
    let selecting = |selector, value| {
        path.clone()
            .with(path_record::RATE_SELECTOR, selector)
            .with(path_record::RATE, value)
    };
    for (packet, expected, what) in [
        (of_port(path_record::SGID), 0x600, "whereto"),
        (of_port(path_record::DGID), 0x600, "whence"),
        (path_between(0, 7), 0x500, "no such destination"),
        (path_between(7, 0), 0x500, "no such source"),
        (
            path.clone().with(path_record::DLID, 1),
            0x300,
            "another port's LID",
        ),
        (
            path.clone().with(path_record::PKEY, 0x8001),
            0x300,
            "another partition",
        ),
        (
            path.clone().with(path_record::SL, 3),
            0x300,
            "another service level",
        ),
        (
            path.clone().with(path_record::RAW_TRAFFIC, 1),
            0x300,
            "raw packets",
        ),
        // 120 Gbit/s, whose code is smaller than that of 100 Gbit/s.
        (selecting(0, 10), 0x300, "faster than 120 Gbit/s"),
        (selecting(2, 10), 0x300, "exactly 120 Gbit/s"),
        (selecting(1, 10), 0, "slower than 120 Gbit/s"),
        (selecting(3, 0), 0, "as fast as can be"),
        (
            table.clone().without(path_record::NUMB_PATH),
            0x600,
            "how many",
        ),
        (table.with(path_record::NUMB_PATH, 0), 0x200, "none of them"),
    ] {
        assert_eq!(status(&subnet, 1, &packet), expected, "{what}");
    }
}

#[test]
fn a_table_of_paths_is_one_packet_of_a_transfer() {
    let packet = Packet::new(Method::GetTable, PATH_RECORD)
        .with_gid(path_record::SGID, port(0).gid())
        .with(path_record::NUMB_PATH, 127);
    let answer = ask(&Subnet::default(), 1, &packet);
    for (field, expected) in [
        (layout::METHOD, 0x92),
        (layout::STATUS, 0),
        (layout::RMPP_VERSION, 1),
        (layout::RMPP_TYPE, 1),
        (layout::RMPP_FLAGS, 7),
        (layout::SEG_NUM, 1),
        // The administrator's header, and two records.
        (layout::PAYLEN_NEWWIN, 20 + 2 * 64),
        (layout::ATTR_OFFSET, 8),
    ] {
        assert_eq!(field.get(&answer), expected, "{field:?}");
    }
    let lids = [0, 1].map(|index| path_record::DLID.field.get(&answer[56 + index * 64..]));
    assert_eq!(lids, [1, 2]);
    let many: Vec<Host> = (0..4).map(|index| Host::of(&port(index))).collect();
    let answer = Subnet::default().answer(&many, 1, &packet.0);
    let status = answer.map(|answer| layout::STATUS.get(&answer));
    assert_eq!(status, Some(0x100), "four do not fit");
}

#[test]
fn what_is_no_request_has_no_answer() {
    let request = path_between(0, 1);
    for (packet, what) in [
        (request.clone().set(layout::METHOD, 0x81), "an answer"),
        (request.clone().set(layout::MGMT_CLASS, 7), "another class"),
        (request.clone().set(layout::SM_KEY, 1), "a wrong key"),
    ] {
        let answer = Subnet::default().answer(&hosts(), 1, &packet.0);
        assert_eq!(answer, None, "{what}");
    }
    let short = &request.0[..LENGTH - 1];
    assert_eq!(Subnet::default().answer(&hosts(), 1, short), None);
}

#[test]
fn what_the_administrator_does_not_have_is_refused_in_the_headers_words() {
    let subnet = Subnet::default();
    let request = path_between(0, 1);
    for (packet, expected, method) in [
        (request.clone().set(layout::BASE_VERSION, 2), 0x04, 0x81),
        (request.clone().set(layout::CLASS_VERSION, 1), 0x04, 0x81),
        // GetTraceTable.
        (request.clone().set(layout::METHOD, 0x13), 0x08, 0x93),
        (request.clone().set(layout::ATTR_MOD, 1), 0x1c, 0x81),
        (request.clone().set(layout::METHOD, 0x02), 0x0c, 0x81),
        (request.clone().set(layout::METHOD, 0x15), 0x0c, 0x95),
        // ServiceRecord, InformInfo.
        (request.clone().set(layout::ATTR_ID, 0x31), 0x0c, 0x81),
        (request.clone().set(layout::ATTR_ID, 0x03), 0x0c, 0x81),
    ] {
        let answer = ask(&subnet, 1, &packet);
        assert_eq!(layout::STATUS.get(&answer), expected);
        assert_eq!(layout::METHOD.get(&answer), method);
        assert_eq!(layout::TID.get(&answer), 0x1122_3344_5566_7788);
        assert_eq!(answer[layout::DATA..], packet.0[layout::DATA..]);
    }
}

#[test]
fn the_administrator_tells_what_it_can_do() {
    let answer = ask(&Subnet::default(), 1, &Packet::new(Method::Get, 1));
    assert_eq!(layout::STATUS.get(&answer), 0);
    // Versions, no capabilities; in the other mask members that only send, and the time in which it answers.
    assert_eq!(answer[56..64], [1, 2, 0, 0, 0, 2, 0, 16]);
}

#[test]
fn the_broadcast_group_is_there_from_the_start_and_stays() {
    let subnet = Subnet::default();
    assert!(!subnet.reaches(0xc000, BROADCAST, &port(0)));
    let answer = ask(&subnet, 1, &join(BROADCAST, 0, FULL));
    assert_eq!(layout::STATUS.get(&answer), 0);
    assert_eq!(layout::METHOD.get(&answer), 0x81);
    assert_eq!(gid(&answer, mcmember_record::MGID), BROADCAST);
    assert_eq!(gid(&answer, mcmember_record::PORT_GID), port(0).gid());
    for (component, expected) in [
        (mcmember_record::QKEY, 0x0b1b),
        (mcmember_record::MLID, 0xc000),
        (mcmember_record::MTU, 4),
        (mcmember_record::PKEY, 0xffff),
        (mcmember_record::RATE, 16),
        (mcmember_record::SCOPE, 2),
        (mcmember_record::JOIN_STATE, 1),
    ] {
        assert_eq!(value(&answer, component), expected, "{component:?}");
    }
    assert!(subnet.reaches(0xc000, BROADCAST, &port(0)));
    assert!(!subnet.reaches(0xc000, BROADCAST, &port(1)), "not joined");
    assert!(!subnet.reaches(0xc001, BROADCAST, &port(0)), "another LID");
    let answer = ask(&subnet, 1, &leave(BROADCAST, 0, FULL));
    assert_eq!(layout::STATUS.get(&answer), 0);
    assert_eq!(layout::METHOD.get(&answer), 0x95);
    assert_eq!(value(&answer, mcmember_record::JOIN_STATE), 0);
    assert!(!subnet.reaches(0xc000, BROADCAST, &port(0)));
    assert_eq!(status(&subnet, 1, &join(BROADCAST, 0, FULL)), 0);
}

#[test]
fn a_group_is_made_by_its_first_member_and_goes_with_the_last() {
    let subnet = Subnet::default();
    assert_eq!(status(&subnet, 1, &join(GROUP, 0, FULL)), 0x600);
    let answer = ask(&subnet, 1, &create(GROUP, 0, FULL));
    assert_eq!(layout::STATUS.get(&answer), 0);
    assert_eq!(value(&answer, mcmember_record::MLID), 0xc001);
    assert_eq!(value(&answer, mcmember_record::QKEY), 0x1234_5678);
    // Now the GID is enough.
    let answer = ask(&subnet, 2, &join(GROUP, 1, SEND_ONLY_FULL));
    assert_eq!(layout::STATUS.get(&answer), 0);
    assert_eq!(value(&answer, mcmember_record::MLID), 0xc001);
    assert_eq!(value(&answer, mcmember_record::JOIN_STATE), SEND_ONLY_FULL);
    assert!(subnet.reaches(0xc001, GROUP, &port(0)));
    assert!(!subnet.reaches(0xc001, GROUP, &port(1)), "it only sends");
    assert_eq!(status(&subnet, 1, &leave(GROUP, 0, FULL)), 0);
    assert_eq!(status(&subnet, 1, &leave(GROUP, 0, FULL)), 0x200, "twice");
    assert_eq!(status(&subnet, 2, &leave(GROUP, 1, FULL)), 0x200, "not so");
    assert_eq!(status(&subnet, 2, &leave(GROUP, 1, SEND_ONLY_FULL)), 0);
    assert_eq!(status(&subnet, 1, &join(GROUP, 0, FULL)), 0x600, "gone");
    assert!(
        subnet.reaches(0xc055, GROUP, &port(1)),
        "a group that nobody has made is not routed"
    );
}

#[test]
fn a_port_without_a_link_is_in_no_group() {
    let subnet = Subnet::default();
    assert_eq!(status(&subnet, 1, &join(BROADCAST, 0, FULL)), 0);
    assert_eq!(status(&subnet, 1, &create(GROUP, 0, FULL)), 0);
    subnet.leave_all(&port(0));
    assert!(!subnet.reaches(0xc000, BROADCAST, &port(0)));
    assert_eq!(status(&subnet, 1, &join(GROUP, 0, FULL)), 0x600);
}

#[test]
fn who_joins_must_say_what_fits() {
    let subnet = Subnet::default();
    let mine = || join(BROADCAST, 0, FULL);
    let [zero, unicast] = [[0; 16], port(1).gid()];
    for (packet, expected, what) in [
        (
            Packet::new(Method::Set, MCMEMBER_RECORD),
            0x600,
            "nothing given",
        ),
        (
            mine().without(mcmember_record::JOIN_STATE),
            0x600,
            "not how",
        ),
        (join(BROADCAST, 0, 0), 0x200, "in no way"),
        (join(unicast, 0, FULL), 0x500, "a port's GID"),
        (join(zero, 0, FULL), 0x500, "a GID of the manager's choice"),
        (join(BROADCAST, 1, FULL), 0x700, "for another port"),
        (
            join(BROADCAST, 7, FULL),
            0x500,
            "for a port that is not there",
        ),
        (
            mine().with(mcmember_record::PROXY_JOIN, 1),
            0x700,
            "as another",
        ),
        (mine().with(mcmember_record::QKEY, 1), 0x200, "another key"),
        (
            mine().with(mcmember_record::PKEY, 0x8001),
            0x200,
            "another partition",
        ),
        (
            mine().with(mcmember_record::MLID, 0xc123),
            0x200,
            "another LID",
        ),
        (
            mine()
                .with(mcmember_record::MTU_SELECTOR, 2)
                .with(mcmember_record::MTU, 5),
            0x200,
            "another MTU",
        ),
        (
            mine()
                .with(mcmember_record::MTU_SELECTOR, 0)
                .with(mcmember_record::MTU, 3),
            0,
            "a larger MTU than 1024",
        ),
        (create(GROUP, 0, 4), 0x200, "a new one to send only"),
        (
            create(GROUP, 0, FULL).with(mcmember_record::PKEY, 0x8001),
            0x200,
            "a new one in another partition",
        ),
        (
            create(GROUP, 0, FULL)
                .with(mcmember_record::MTU_SELECTOR, 2)
                .with(mcmember_record::MTU, 6),
            0x200,
            "a new one with an MTU that there is not",
        ),
    ] {
        assert_eq!(status(&subnet, 1, &packet), expected, "{what}");
    }
    let partial = create(GROUP, 0, FULL).without(mcmember_record::QKEY);
    assert_eq!(status(&subnet, 1, &partial), 0x600, "a new one, no key");
}

#[test]
fn groups_are_found_by_what_they_are() {
    let subnet = Subnet::default();
    assert_eq!(status(&subnet, 1, &create(GROUP, 0, FULL)), 0);
    let get = Packet::new(Method::Get, MCMEMBER_RECORD);
    assert_eq!(status(&subnet, 2, &get), 0x400, "two are there");
    let lid = |lid| get.clone().with(mcmember_record::MLID, lid);
    let answer = ask(&subnet, 2, &lid(0xc001));
    assert_eq!(layout::STATUS.get(&answer), 0);
    assert_eq!(gid(&answer, mcmember_record::MGID), GROUP);
    assert_eq!(gid(&answer, mcmember_record::PORT_GID), [0; 16]);
    assert_eq!(status(&subnet, 2, &lid(0xc002)), 0x300);
    let table = Packet::new(Method::GetTable, MCMEMBER_RECORD)
        .with_gid(mcmember_record::PORT_GID, port(0).gid());
    let answer = ask(&subnet, 2, &table);
    assert_eq!(layout::PAYLEN_NEWWIN.get(&answer), 20 + 56);
    assert_eq!(layout::ATTR_OFFSET.get(&answer), 7);
    assert_eq!(value(&answer, mcmember_record::JOIN_STATE), FULL);
}
