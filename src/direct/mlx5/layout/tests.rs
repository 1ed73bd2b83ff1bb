//! Compares fields with the kernel's header, and with their bits in bytes.

use std::collections::HashMap;

use super::*;

/// The output of a C program about `include/linux/mlx5/mlx5_ifc.h` of Linux 6.12: the bytes of each
/// structure, and the first bit and the width of each field.
const HEADER: &str = include_str!("mlx5_ifc.txt");

/// Fields that are not in the kernel's header, but in NVIDIA's own (`include/host/mlx5_ifc.h` of gpunetio),
/// or in another one.
const ELSEWHERE: [(&str, &str); 12] = [
    ("create_cq_in", "cq_umem_offset"),
    ("create_cq_in", "cq_umem_id"),
    ("cqc", "dbr_umem_id"),
    ("qpc", "dbr_umem_id"),
    ("klm", "bcount"),
    ("klm", "key"),
    ("klm", "va"),
    ("query_hca_cap_out", "general"),
    ("query_hca_cap_out", "roce"),
    ("query_hca_cap_out", "general_2"),
    ("cmd_hca_cap_2", "log_reserved_qpn_granularity"),
    ("general_obj_in_cmd_hdr", "log_obj_range"),
];

/// Fields by structure and name, and the bytes of structures.
type Printed<'a> = (
    HashMap<(&'a str, &'a str), (usize, usize)>,
    HashMap<&'a str, usize>,
);

fn printed(text: &str) -> Printed<'_> {
    let number = |word: &str| match word.strip_prefix("0x") {
        Some(digits) => usize::from_str_radix(digits, 16).unwrap(),
        None => word.parse().unwrap(),
    };
    let (mut fields, mut sizes) = (HashMap::new(), HashMap::new());
    let mut structure = "";
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [name, "=", bytes] => {
                structure = name;
                sizes.insert(name, number(bytes));
            }
            [name, bit, width] => {
                fields.insert((structure, name), (number(bit), number(width)));
            }
            _ => panic!("{line}"),
        }
    }
    (fields, sizes)
}

/// Compares a structure with the header; returns how many fields were compared.
fn compare<L: Structure>((fields, sizes): &Printed<'_>) -> usize {
    if L::NAME != "klm" {
        assert_eq!(sizes.get(L::NAME), Some(&size_of::<L>()), "{}", L::NAME);
    }
    let mut compared = 0;
    for (name, bit, width) in L::FIELDS {
        let name = name.to_lowercase();
        assert!(bit + width <= size_of::<L>() * 8, "{} {name}", L::NAME);
        if ELSEWHERE.contains(&(L::NAME, &name)) {
            continue;
        }
        let found = fields.get(&(L::NAME, name.as_str()));
        assert_eq!(found, Some(&(*bit, *width)), "{} {name}", L::NAME);
        compared += 1;
    }
    compared
}

#[test]
fn every_field_lies_where_the_header_has_it() {
    let header = printed(HEADER);
    let compared = [
        compare::<Header>(&header),
        compare::<Answer>(&header),
        compare::<QueryHcaCapIn>(&header),
        compare::<QueryHcaCapOut>(&header),
        compare::<CmdHcaCap>(&header),
        compare::<CmdHcaCap2>(&header),
        compare::<GeneralObjInCmdHdr>(&header),
        compare::<GeneralObjOutCmdHdr>(&header),
        compare::<RoceCap>(&header),
        compare::<QueryRoceAddressIn>(&header),
        compare::<QueryRoceAddressOut>(&header),
        compare::<RoceAddrLayout>(&header),
        compare::<CreateDctIn>(&header),
        compare::<CreateDctOut>(&header),
        compare::<Dctc>(&header),
        compare::<CreateMkeyIn>(&header),
        compare::<CreateMkeyOut>(&header),
        compare::<QueryMkeyIn>(&header),
        compare::<QueryMkeyOut>(&header),
        compare::<Mkc>(&header),
        compare::<CreateCqIn>(&header),
        compare::<CreateCqOut>(&header),
        compare::<QueryCqIn>(&header),
        compare::<QueryCqOut>(&header),
        compare::<Cqc>(&header),
        compare::<CreateRmpIn>(&header),
        compare::<CreateRmpOut>(&header),
        compare::<Rmpc>(&header),
        compare::<Wq>(&header),
        compare::<CreateQpIn>(&header),
        compare::<CreateQpOut>(&header),
        compare::<Rst2initQpIn>(&header),
        compare::<Init2rtrQpIn>(&header),
        compare::<Rtr2rtsQpIn>(&header),
        compare::<Rts2rtsQpIn>(&header),
        compare::<Qp2errIn>(&header),
        compare::<Qp2rstIn>(&header),
        compare::<QpModifyOut>(&header),
        compare::<QueryQpIn>(&header),
        compare::<QueryQpOut>(&header),
        compare::<Qpc>(&header),
        compare::<Ads>(&header),
        compare::<Klm>(&header),
    ];
    let all: usize = compared.iter().sum();
    assert!(all > 290, "only {all} fields were compared");
}

/// Sets each field by itself: the value comes back, and nothing else changes.
fn fields_keep_their_neighbours<L: Structure>() {
    for (name, bit, width) in L::FIELDS {
        let field = Field::<L>::new(*bit, *width);
        if *width > 64 {
            continue;
        }
        let most = u64::MAX >> (64 - width);
        for (before, value) in [(0, most), (0xff, 0), (0, 1), (0xff, most / 2)] {
            let mut structure = L::new_zeroed();
            structure.as_mut_bytes().fill(before);
            let untouched = structure;
            structure.set(field, value);
            assert_eq!(structure.get(field), value, "{} {name}", L::NAME);
            for (place, byte) in structure.as_bytes().iter().enumerate() {
                for number in 0..8 {
                    let at = place * 8 + number;
                    if (*bit..bit + width).contains(&at) {
                        continue;
                    }
                    let mask = 0x80 >> number;
                    let old = untouched.as_bytes()[place];
                    assert_eq!(byte & mask, old & mask, "{} {name}, bit {at:#x}", L::NAME);
                }
            }
        }
    }
}

#[test]
fn a_field_that_is_set_leaves_others_alone() {
    fields_keep_their_neighbours::<Header>();
    fields_keep_their_neighbours::<Cqc>();
    fields_keep_their_neighbours::<Qpc>();
    fields_keep_their_neighbours::<Mkc>();
    fields_keep_their_neighbours::<Ads>();
    fields_keep_their_neighbours::<Dctc>();
    fields_keep_their_neighbours::<Wq>();
}

#[test]
fn bytes_are_where_the_device_looks() {
    let mut command = CreateQpIn::new();
    assert_eq!(command.as_bytes()[..2], [5, 0]);
    command
        .inner_mut(CreateQpIn::QPC)
        .set(Qpc::PD, 0x12_3456)
        .set(Qpc::DBR_ADDR, 0x40)
        .inner_mut(Qpc::PRIMARY_ADDRESS_PATH)
        .set_bytes(Ads::RGID_RIP, &[7; 16])
        .set(Ads::VHCA_PORT_NUM, 1);
    let bytes = command.as_bytes();
    assert_eq!(bytes[0x18 + 5..0x18 + 8], [0x12, 0x34, 0x56]);
    assert_eq!(bytes[0x18 + 0xa7], 0x40);
    assert_eq!(bytes[0x18 + 0x18 + 16..][..16], [7; 16]);
    assert_eq!(bytes[0x18 + 0x18 + 0x25], 1);
}

#[test]
fn a_list_of_parts_fills_whole_blocks() {
    let mut part = Klm::default();
    part.set(Klm::BCOUNT, 0x1000)
        .set(Klm::KEY, 0x0102_0304)
        .set(Klm::VA, 0x7f00_0000_1000);
    let command = CreateMkeyIn::new().with_list(&[part; 5]);
    assert_eq!(command.len(), 0x110 + 8 * 16);
    assert_eq!(command[..2], [2, 0]);
    // The number of units in the command, and their room in the context.
    assert_eq!(command[0x60..0x64], [0, 0, 0, 8]);
    assert_eq!(command[0x10 + 0x34..][..4], [0, 0, 0, 8]);
    let expected = [0, 0, 0x10, 0, 1, 2, 3, 4, 0, 0, 0x7f, 0, 0, 0, 0x10, 0];
    assert_eq!(command[0x110 + 4 * 16..][..16], expected);
    assert_eq!(command[0x110 + 5 * 16..], [0; 48]);
}

#[test]
#[should_panic(expected = "in a field of 24 bits")]
fn a_value_that_does_not_fit_is_refused() {
    Cqc::default().set(Cqc::UAR_PAGE, 1 << 24);
}
