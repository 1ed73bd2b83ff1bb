//! Answers about objects that soft-RoCE does not give, or not on every kernel.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use super::*;
use crate::device::netlink::resources;
use crate::device::resource::ResourceOwner;

const RES_SRQ_GET: u16 = 0x1417;

fn number(kind: u16, value: u32) -> Vec<u8> {
    attribute(kind, &value.to_ne_bytes())
}

/// An answer with a table of entries.
fn table(table: u16, entry: u16, entries: &[Vec<u8>]) -> Vec<u8> {
    let entries: Vec<u8> = entries
        .iter()
        .flat_map(|content| attribute(entry, content))
        .collect();
    let device = rxe_device(0, "rxe0");
    [device, attribute(table, &entries)].concat()
}

fn srq(srqn: u32, more: &[Vec<u8>]) -> Vec<u8> {
    [number(attr::RES_SRQN, srqn), more.concat()].concat()
}

#[test]
fn an_srqs_queue_pairs_come_one_by_one_or_in_ranges() {
    let one = attribute(attr::RES_QP_ENTRY, &number(attr::RES_LQPN, 5));
    let both = [number(attr::MIN_RANGE, 7), number(attr::MAX_RANGE, 9)];
    let range = attribute(attr::RES_QP_ENTRY, &both.concat());
    let qps = attribute(attr::RES_QP, &[one, range].concat());
    let entry = srq(
        3,
        &[
            qps,
            attribute(attr::RES_TYPE, &[1]),
            number(attr::RES_CQN, 4),
        ],
    );
    let found = resources::srqs(&table(attr::RES_SRQ, attr::RES_SRQ_ENTRY, &[entry])).unwrap();
    assert_eq!(found[0].qps, [5..=5, 7..=9]);
    assert_eq!((found[0].srqn, found[0].cqn), (3, Some(4)));
    assert_eq!(found[0].owner, ResourceOwner::Unknown);
}

#[test]
fn a_table_comes_in_several_parts_or_not_at_all() {
    let part = |numbers: &[u32]| {
        let entries: Vec<_> = numbers.iter().map(|&srqn| srq(srqn, &[])).collect();
        let payload = table(attr::RES_SRQ, attr::RES_SRQ_ENTRY, &entries);
        message(RES_SRQ_GET, MULTI, 0, &payload)
    };
    let script = Script::new([vec![part(&[1, 2]), part(&[3]), done()]]);
    let found = Netlink::over(script).srqs(0).unwrap();
    let numbers: Vec<_> = found.iter().map(|srq| srq.srqn).collect();
    assert_eq!(numbers, [1, 2, 3]);
    let none = Netlink::over(Script::new([vec![done()]])).srqs(0);
    assert_eq!(none, Ok(Vec::new()));
}

#[test]
fn what_has_no_number_makes_no_sense() {
    let nameless = table(attr::RES_SRQ, attr::RES_SRQ_ENTRY, &[Vec::new()]);
    let text = malformed(resources::srqs(&nameless).map_err(Failure::from));
    assert_eq!(text, "the SRQ's number is missing");
}

#[test]
fn a_connection_has_addresses_of_either_family_or_none() {
    let address = |family: u16, octets: &[u8], at: usize| {
        let mut bytes = [0; 128];
        bytes[..2].copy_from_slice(&family.to_ne_bytes());
        bytes[2..4].copy_from_slice(&18515_u16.to_be_bytes());
        bytes[at..at + octets.len()].copy_from_slice(octets);
        bytes
    };
    let (ipv4, ipv6) = (Ipv4Addr::new(10, 9, 0, 1), Ipv6Addr::LOCALHOST);
    let of = |source: &[u8]| {
        let entry = [
            number(attr::RES_CM_IDN, 1),
            attribute(attr::RES_STATE, &[5]),
            number(attr::RES_PS, 0x106),
            attribute(attr::RES_SRC_ADDR, source),
            attribute(attr::RES_KERN_NAME, b"rdma_cm\0"),
        ];
        let payload = table(attr::RES_CM_ID, attr::RES_CM_ID_ENTRY, &[entry.concat()]);
        resources::cm_ids(&payload).map(|mut ids| ids.remove(0))
    };
    let v4 = of(&address(2, &ipv4.octets(), 4)).unwrap();
    assert_eq!(v4.source, Some(SocketAddr::from((ipv4, 18515))));
    assert_eq!(v4.destination, None);
    assert_eq!(v4.owner, ResourceOwner::Kernel("rdma_cm".into()));
    let v6 = of(&address(10, &ipv6.octets(), 8)).unwrap();
    assert_eq!(v6.source, Some(SocketAddr::from((ipv6, 18515))));
    assert_eq!(of(&address(27, &[1; 16], 8)).unwrap().source, None);
    assert!(of(&address(10, &[], 8)[..20]).is_err());
}

/// As the kernel's `fill_stat_counter_qps` and `fill_stat_counter_hwcounters` write it.
#[test]
fn a_set_of_counters_has_its_queue_pairs_and_values() {
    let qp = |number_: u32| attribute(attr::RES_QP_ENTRY, &number(attr::RES_LQPN, number_));
    let value = |name: &str, value: u64| {
        let name = attribute(
            attr::STAT_HWCOUNTER_ENTRY_NAME,
            format!("{name}\0").as_bytes(),
        );
        let value = attribute(attr::STAT_HWCOUNTER_ENTRY_VALUE, &value.to_ne_bytes());
        attribute(attr::STAT_HWCOUNTER_ENTRY, &[name, value].concat())
    };
    let values = [
        value("rx_write_requests", 7),
        value("out_of_buffer", u64::MAX),
    ];
    let entry = [
        number(attr::PORT_INDEX, 1),
        number(attr::STAT_COUNTER_ID, 4),
        number(attr::STAT_MODE, 1),
        number(attr::RES_PID, 77),
        attribute(attr::RES_QP, &[qp(17), qp(19)].concat()),
        attribute(attr::STAT_HWCOUNTERS, &values.concat()),
    ];
    let payload = table(
        attr::STAT_COUNTER,
        attr::STAT_COUNTER_ENTRY,
        &[entry.concat()],
    );
    let found = resources::qp_counters(&payload).unwrap();
    assert_eq!((found.len(), found[0].port, found[0].id), (1, 1, 4));
    assert_eq!(found[0].qps, [17, 19]);
    assert_eq!(found[0].owner, ResourceOwner::Process(77));
    let expected = [("rx_write_requests", 7), ("out_of_buffer", u64::MAX)];
    let expected = expected.map(|(name, value)| (name.to_owned(), value));
    assert_eq!(found[0].counters, expected);
}
