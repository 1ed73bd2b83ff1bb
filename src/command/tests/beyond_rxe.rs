//! The commands that soft-RoCE refuses, compared with frames and buffers made by hand: the kernel's refusal
//! does not say whether it would have understood them.

use uverbs_uapi::flags::QpCreateFlags;
use uverbs_uapi::handle::{DmHandle, PdHandle, XrcdHandle};

use super::encoding::*;
use crate::command::samples::*;
use crate::command::{AllocDm, Destroy, ExportDmabuf, OpenQp, OpenXrcd, RegDmMr};

#[test]
fn open_xrcd_of_a_file_and_of_none() {
    let open = OpenXrcd {
        file: Some(5),
        oflags: 0o300,
    };
    let (bytes, address) = buffer(&open);
    let mut expected = words(&[37]);
    expected.extend_from_slice([6u16, 1].map(u16::to_ne_bytes).as_flattened());
    expected.extend(words(&[0, 0, 5, 0o300]));
    assert_eq!(bytes, expected);
    assert_ne!(address, 0);
    let (bytes, _) = buffer(&OpenXrcd { file: None, ..open });
    assert_eq!(bytes[16..20], [0xff; 4], "no file is -1");
    let (found, attributes) = frame(&Destroy(XrcdHandle(0xdd)), Spelling::Native);
    assert_eq!(found, header(10, 0, 1));
    assert_eq!(attributes, [(0, 0, MANDATORY, 0xdd)]);
}

#[test]
fn an_xrc_target_stands_on_its_domain_alone() {
    let (found, attributes) = frame(&create_xrc_target(), Spelling::Native);
    assert_eq!(found, header(4, 0, 8));
    let expected = [
        (0, 0, MANDATORY, NEW),
        (1, 0, MANDATORY, 0xdd),
        (7, 8, MANDATORY, 0x3_0000_0008),
        (8, 20, MANDATORY, POINTER),
        (9, 8, MANDATORY, 10),
        (13, 20, MANDATORY, POINTER),
        (14, 4, MANDATORY, POINTER),
        (12, 0, MANDATORY, 8),
    ];
    assert_eq!(attributes, expected);
    let (bytes, _) = buffer(&create_xrc_target());
    let mut expected = words(&[24]);
    expected.extend_from_slice([16u16, 8].map(u16::to_ne_bytes).as_flattened());
    expected.extend(words(&[0, 0]));
    expected.extend(words(&wide(0x3_0000_0008)));
    // The domain is in the field of the PD; no CQs, no SRQ, no capacities.
    expected.extend(words(&[0xdd, 0, 0, 0, 0, 0, 0, 0, 0]));
    expected.extend_from_slice(&[0, 10, 0, 0]);
    assert_eq!(bytes, expected);
}

#[test]
fn open_qp_names_the_target() {
    let open = OpenQp {
        xrcd: XrcdHandle(0xdd),
        qpn: 0x1234,
        user_handle: 0x3_0000_0007,
    };
    let (bytes, _) = buffer(&open);
    let mut expected = words(&[40]);
    expected.extend_from_slice([10u16, 8].map(u16::to_ne_bytes).as_flattened());
    expected.extend(words(&[0, 0]));
    expected.extend(words(&wide(0x3_0000_0007)));
    expected.extend(words(&[0xdd, 0x1234]));
    expected.extend_from_slice(&[10, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes, expected);
}

#[test]
fn shared_receive_queues_of_each_type() {
    let common = [
        (0, 0, MANDATORY, NEW),
        (1, 0, MANDATORY, 0xd0),
        (4, 8, MANDATORY, 0x3_0000_0007),
        (5, 4, MANDATORY, 0x11),
        (6, 4, MANDATORY, 0x22),
        (7, 4, MANDATORY, 0x33),
    ];
    let answers = [
        (11, 4, MANDATORY, POINTER),
        (12, 4, MANDATORY, POINTER),
        (10, 0, MANDATORY, 8),
    ];
    let of = |kind, number, more: &[(u16, u16, u16, u64)]| {
        let (found, attributes) = frame(&create_srq(kind), Spelling::Native);
        assert_eq!((found.object_id, found.method_id), (5, 0));
        let mut expected = common.to_vec();
        expected.push((9, 8, MANDATORY, number));
        expected.extend(answers);
        expected.extend(more);
        assert_eq!(attributes, expected);
    };
    of(
        XRC,
        1,
        &[
            (2, 0, MANDATORY, 0xdd),
            (3, 0, MANDATORY, 0xc1),
            (13, 4, MANDATORY, POINTER),
        ],
    );
    let written = |kind, number, rest: &[u32]| {
        let (bytes, _) = buffer(&create_srq(kind));
        let mut expected = words(&[39]);
        expected.extend_from_slice([14u16, 4].map(u16::to_ne_bytes).as_flattened());
        expected.extend(words(&[0, 0]));
        expected.extend(words(&wide(0x3_0000_0007)));
        expected.extend(words(&[number, 0xd0, 0x11, 0x22, 0x33]));
        expected.extend(words(rest));
        assert_eq!(bytes, expected);
    };
    written(XRC, 1, &[0, 0xdd, 0xc1]);
}

#[test]
fn create_qp_with_flags_by_both_spellings() {
    let mut command = create_qp();
    command.spec.flags = QpCreateFlags::SCATTER_FCS;
    let (_, attributes) = frame(&command, Spelling::Native);
    // In addition to SQ_SIG_ALL.
    assert!(attributes.contains(&(10, 4, MANDATORY, 1 << 8 | 1 << 12)));
    let (bytes, _) = buffer(&command);
    let mut expected = words(&[0x8000_0018]);
    // Units of 8: core 64 in, 40 out; 32 out for the driver.
    expected.extend_from_slice([8u16, 5].map(u16::to_ne_bytes).as_flattened());
    expected.extend(words(&[0, 0]));
    expected.extend_from_slice([0u16, 4, 0, 0].map(u16::to_ne_bytes).as_flattened());
    expected.extend(words(&wide(0x2_0000_0006)));
    expected.extend(words(&[0xd0, 0xc1, 0xc2, 0x5a]));
    expected.extend(words(&[0x11, 0x22, 0x33, 0x44, 0x55]));
    expected.extend_from_slice(&[1, 2, 1, 0]);
    // No optional fields; SQ_SIG_ALL is a field of its own here.
    expected.extend(words(&[0, 1 << 8, 0, 0]));
    assert_eq!(bytes, expected);
}

#[test]
fn device_memory_and_regions_in_it() {
    let alloc = AllocDm {
        length: 0x1_0000,
        log_align: 6,
    };
    let (found, attributes) = frame(&alloc, Spelling::Native);
    assert_eq!(found, header(14, 0, 3));
    let expected = [
        (0, 0, MANDATORY, NEW),
        (1, 8, MANDATORY, 0x1_0000),
        (2, 4, MANDATORY, 6),
    ];
    assert_eq!(attributes, expected);
    let register = RegDmMr {
        pd: PdHandle(0xd0),
        dm: DmHandle(0xdc),
        offset: 0x40,
        length: 0x80,
        access: 0x21,
    };
    let (found, attributes) = frame(&register, Spelling::Native);
    assert_eq!(found, header(7, 0, 8));
    let expected = [
        (0, 0, MANDATORY, NEW),
        (1, 8, MANDATORY, 0x40),
        (2, 8, MANDATORY, 0x80),
        (3, 0, MANDATORY, 0xd0),
        (4, 4, MANDATORY, 0x21),
        (5, 0, MANDATORY, 0xdc),
        (6, 4, MANDATORY, POINTER),
        (7, 4, MANDATORY, POINTER),
    ];
    assert_eq!(attributes, expected);
    let export = ExportDmabuf {
        dm: DmHandle(0xdc),
        offset: 0x80_1000,
    };
    let (found, attributes) = frame(&export, Spelling::Native);
    assert_eq!(found, header(18, 0, 2));
    let expected = [(0, 0, MANDATORY, NEW), (1, 8, MANDATORY, 0x80_1000)];
    assert_eq!(attributes, expected);
}
