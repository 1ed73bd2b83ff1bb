//! A table of requests that are broken on purpose: each check bites, and a request that is right passes.

use super::*;

const QPN: u32 = 0x123;
const INDEX: u16 = 7;

fn expected(transport: Transport) -> Expected {
    Expected {
        transport,
        port: PortKind::InfiniBand,
        qpn: QPN,
        index: INDEX,
        posted: 4,
    }
}

/// A control segment, followed by these segments.
fn request(opcode: Opcode, segments: &[&[u8]]) -> Vec<u8> {
    let mut bytes = vec![0, 0, INDEX as u8, opcode as u8, 0, 1, 0x23, 0, 0, 0, 0, 8];
    bytes.extend([1, 2, 3, 4]);
    for segment in segments {
        bytes.extend_from_slice(segment);
    }
    bytes[7] = bytes.len().div_ceil(UNIT) as u8;
    bytes.resize(bytes.len().next_multiple_of(UNIT), 0);
    bytes
}

/// 64 bytes of memory.
const DATA: [u8; 16] = [0, 0, 0, 64, 0, 0, 5, 6, 0, 0, 0, 0, 0, 0, 0x10, 0];
/// 8 bytes of memory.
const EIGHT: [u8; 16] = [0, 0, 0, 8, 0, 0, 5, 6, 0, 0, 0, 0, 0, 0, 0x10, 0];
/// The peer's memory.
const REMOTE: [u8; 16] = [0, 0, 0, 0, 0, 0, 0x20, 0, 0, 0, 7, 8, 0, 0, 0, 0];
const OPERANDS: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2];
/// Five bytes of inline data.
const INLINE: [u8; 9] = [0x80, 0, 0, 5, b'h', b'e', b'l', b'l', b'o'];

fn vector() -> [u8; 48] {
    let mut bytes = [0; 48];
    bytes[3] = 9;
    bytes[8] = 0x80;
    bytes[11] = 0x44;
    bytes[15] = 3;
    bytes
}

/// On Ethernet the peer's MAC is behind the first unit.
#[test]
fn an_address_on_infiniband_may_be_one_unit() {
    let mut short = vector();
    short[8] = 0;
    for transport in [Transport::Ud, Transport::Dc] {
        let bytes = request(Opcode::Send, &[&short[..UNIT], &INLINE]);
        let on = |port| Expected {
            port,
            ..expected(transport)
        };
        let sent = decode(&bytes, on(PortKind::InfiniBand)).expect("well formed");
        let vector = sent.vector.expect("there is one");
        assert_eq!((vector.q_key, vector.qpn, vector.lid), (9, 0x44, 3));
        assert_eq!((vector.has_grh, vector.gid), (false, [0; 16]));
        assert_eq!(sent.segments, [Segment::Inline(b"hello".to_vec())]);
        let refused = decode(&bytes, on(PortKind::Roce));
        assert_eq!(
            refused.map_err(|malformed| malformed.syndrome),
            Err(Syndrome::LocalQpOperation)
        );
        let mut marked = bytes;
        marked[UNIT + 8] = 0x80;
        let refused = decode(&marked, on(PortKind::InfiniBand));
        assert_eq!(
            refused.map_err(|malformed| malformed.syndrome),
            Err(Syndrome::LocalQpOperation),
            "the other two units are missing"
        );
    }
}

#[test]
fn a_request_of_a_dc_initiator_names_target_and_key() {
    let mut target = vector();
    target[..8].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
    let bytes = request(Opcode::Write, &[&target, &REMOTE, &DATA]);
    let request = decode(&bytes, expected(Transport::Dc)).expect("well formed");
    let vector = request.vector.expect("it has one");
    assert_eq!(
        (vector.access_key, vector.qpn),
        (0x0102_0304_0506_0708, 0x44)
    );
    assert_eq!(request.remote, Some((0x2000, 0x708)));
    let change = self::request(Opcode::ChangeKey, &[&[0; 48]]);
    let refused = decode(&change, expected(Transport::Dc)).expect_err("no keys are changed");
    assert!(refused.reason.contains("no such operation"));
}

#[test]
fn a_write_is_decoded() {
    let bytes = request(Opcode::WriteImmediate, &[&REMOTE, &DATA]);
    let request = decode(&bytes, expected(Transport::Rc)).expect("well formed");
    assert_eq!(request.remote, Some((0x2000, 0x708)));
    assert_eq!(request.control.immediate, [1, 2, 3, 4]);
    let segment = Segment::Memory {
        length: 64,
        key: 0x506,
        address: 0x1000,
    };
    assert_eq!(request.segments, [segment]);
    assert!(request.control.is_signaled() && !request.control.is_solicited());
}

#[test]
fn inline_data_and_operands_are_decoded() {
    let bytes = request(Opcode::Send, &[&vector(), &INLINE]);
    let datagram = decode(&bytes, expected(Transport::Ud)).expect("well formed");
    let vector = datagram.vector.expect("there is one");
    assert_eq!((vector.q_key, vector.qpn, vector.lid), (9, 0x44, 3));
    assert_eq!(datagram.segments, [Segment::Inline(b"hello".to_vec())]);
    let bytes = request(Opcode::CompareSwap, &[&REMOTE, &OPERANDS, &EIGHT]);
    let atomic = decode(&bytes, expected(Transport::Rc)).expect("well formed");
    assert_eq!(atomic.operands, Some((1, 2)));
}

/// The peer's shared receive queue.
const SHARED: [u8; 16] = [0, 3, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

#[test]
fn a_request_of_xrc_names_a_shared_queue() {
    let bytes = request(Opcode::Write, &[&SHARED, &REMOTE, &DATA]);
    let write = decode(&bytes, expected(Transport::Xrc)).expect("well formed");
    assert_eq!(write.shared_queue, Some(0x0003_0201));
    assert_eq!(write.remote, Some((0x2000, 0x708)));
    assert_eq!(write.segments.len(), 1);
    for at in [0, 4, 15] {
        let mut shared = SHARED;
        shared[at] = 1;
        let bytes = request(Opcode::Send, &[&shared, &DATA]);
        let refused = decode(&bytes, expected(Transport::Xrc)).map(|_| ());
        let syndrome = refused.map_err(|malformed| malformed.syndrome);
        assert_eq!(syndrome, Err(Syndrome::LocalQpOperation), "byte {at}");
    }
    assert!(decode(&request(Opcode::Send, &[]), expected(Transport::Xrc)).is_err());
}

#[test]
fn a_bind_is_decoded() {
    let mut head = [0; 48];
    // It says where its addresses begin.
    (head[0], head[5], head[15]) = (0x80, 4, 1 << 6);
    let bytes = request(Opcode::ChangeKey, &[&head, &[0; 64], &DATA, &[0; 48]]);
    let bind = decode(&bytes, expected(Transport::Rc)).expect("well formed");
    assert!(bind.change.is_some_and(|change| change.window.is_some()));
    let bytes = request(
        Opcode::ChangeKey,
        &[&head, &[0; 64], &DATA, &DATA, &[0; 32]],
    );
    let two = decode(&bytes, expected(Transport::Rc));
    assert!(two.is_err(), "a window lies in one region");
}

/// What a change of a key gives it of other keys, in so many blocks of units.
fn layout(units: &[&[u8]]) -> Result<Translation, ()> {
    let mut head = [0; 48];
    let bytes: usize = units.iter().map(|unit| unit.len()).sum();
    (head[0], head[5], head[15]) = (0x80, (bytes / UNIT) as u8, 1);
    let pieces = [&[&head as &[u8], &[0; 64]], units].concat();
    let change = decode(
        &request(Opcode::ChangeKey, &pieces),
        expected(Transport::Rc),
    );
    let change = change.map_err(drop)?.change.ok_or(())?;
    let (told, layout) = change.layout.ok_or(())?;
    assert_eq!((told as usize * UNIT, change.window), (bytes, None));
    Ok(layout)
}

/// A unit of a list: how many bytes, the key, the address.
fn unit(length: u32, key: u32, address: u64) -> [u8; UNIT] {
    let mut unit = [0; UNIT];
    unit[..4].copy_from_slice(&length.to_be_bytes());
    unit[4..8].copy_from_slice(&key.to_be_bytes());
    unit[8..].copy_from_slice(&address.to_be_bytes());
    unit
}

#[test]
fn parts_of_other_keys_are_decoded() {
    let (first, second) = (unit(100, 0x305, 0x1000), unit(u32::MAX, 0x406, 7));
    let part = |length, key, address| Part {
        length,
        key,
        address,
    };
    let expected = vec![part(100, 0x305, 0x1000), part(u32::MAX.into(), 0x406, 7)];
    assert_eq!(
        layout(&[&first, &second, &[0; 32]]),
        Ok(Translation::Parts(expected))
    );
    let five = [first; 5].as_flattened().to_vec();
    let found = layout(&[&five, &[0; 48]]);
    assert!(matches!(found, Ok(Translation::Parts(parts)) if parts.len() == 5));
    assert!(layout(&[&first]).is_err(), "no whole block");
}

#[test]
fn rows_of_parts_are_decoded() {
    // Of each row 8 bytes every 32, then 16 every 64.
    let head = unit(24, 0x400, 3 << 32 | 2);
    let (first, second) = (
        unit(32 << 16 | 8, 0x305, 0x1000),
        unit(64 << 16 | 16, 0x406, 0),
    );
    let part = |length, key, address| Part {
        length,
        key,
        address,
    };
    let rows = Strides {
        count: 3,
        parts: vec![(part(8, 0x305, 0x1000), 32), (part(16, 0x406, 0), 64)],
    };
    let units: [&[u8]; 4] = [&head, &first, &second, &[0; 16]];
    assert_eq!(layout(&units), Ok(Translation::Strided(rows)));
    for (wrong, why) in [
        (unit(23, 0x400, 3 << 32 | 2), "a row of other parts"),
        (unit(24, 0x400, 3 << 32 | 3), "more parts than follow"),
        (unit(24, 0x400, 3 << 32 | 1), "fewer parts than follow"),
        (unit(24, 0x400, 2), "no rows"),
        (unit(24, 0x400, 3 << 32 | 1 << 16 | 2), "a reserved field"),
    ] {
        assert!(
            layout(&[&wrong, &first, &second, &[0; 16]]).is_err(),
            "{why}"
        );
    }
}

/// The head of a request that loads pages from that unit on.
fn page_list(offset: u8) -> [u8; 48] {
    let mut head = [0; 48];
    // A translation of four units, with an offset.
    (head[0], head[5], head[7]) = (0x10, 4, offset);
    head
}

#[test]
fn a_list_of_pages_is_decoded() {
    let bytes = request(Opcode::ChangeKey, &[&page_list(8), &[0; 64], &DATA]);
    let load = decode(&bytes, expected(Transport::RegUmr)).expect("well formed");
    let list = load.change.and_then(|change| change.list);
    let list = list.expect("there is one");
    assert_eq!((list.offset, list.entries.length()), (8, 64));

    // In the request itself, as the driver writes short ones.
    let (mut head, mut context) = (page_list(0), [0; 64]);
    head[0] = 0x80;
    mkc::ACCESS_MODE_1_0.set(&mut context, 1);
    let bytes = request(Opcode::ChangeKey, &[&head, &context, &[7; 64]]);
    let load = decode(&bytes, expected(Transport::Rc)).expect("well formed");
    let change = load.change.expect("there is one");
    let list = change.list.expect("there is one");
    assert_eq!(change.window, None);
    assert_eq!(list.entries, Segment::Inline(vec![7; 64]));
}

#[test]
fn what_is_broken_is_refused() {
    use Opcode::{ChangeKey, CompareSwap, Read, Send, Write};
    use Syndrome::{LocalLength, LocalQpOperation};
    use Transport::{Rc, RegUmr, Uc, Ud};
    let send = || request(Send, &[&DATA]);
    let changed = |at: usize, value: u8| {
        let mut bytes = send();
        bytes[at] = value;
        bytes
    };
    let mut bad_remote = REMOTE;
    bad_remote[15] = 1;
    let mut old_vector = vector();
    old_vector[8] = 0;
    // The translation is in the request, and has one unit.
    let mut one_unit = [0; 48];
    (one_unit[0], one_unit[5]) = (0x80, 1);
    let (mut inside, mut pages) = (page_list(0), [0; 64]);
    inside[0] = 0x80;
    mkc::ACCESS_MODE_1_0.set(&mut pages, 1);
    let mut no_offset = page_list(4);
    no_offset[0] = 0;
    let load = |head: &[u8], list: &[u8]| request(ChangeKey, &[head, &[0; 64], list]);
    let table: [(&str, Transport, Vec<u8>, Syndrome); 25] = [
        ("opcode", Rc, changed(3, 0x77), LocalQpOperation),
        ("variant", Rc, changed(0, 1), LocalQpOperation),
        ("index", Rc, changed(2, 8), LocalQpOperation),
        ("queue pair", Rc, changed(6, 0x24), LocalQpOperation),
        ("no units", Rc, changed(7, 0), LocalQpOperation),
        ("many units", Rc, changed(7, 64), LocalQpOperation),
        ("doorbell", Rc, changed(7, 17), LocalQpOperation),
        ("signature", Rc, changed(8, 1), LocalQpOperation),
        ("reserved bytes", Rc, changed(10, 1), LocalQpOperation),
        ("flags", Rc, changed(11, 0x10), LocalQpOperation),
        ("fence", Rc, changed(11, 0xa8), LocalQpOperation),
        ("zero length", Rc, changed(19, 0), LocalLength),
        (
            "read on UC",
            Uc,
            request(Read, &[&REMOTE, &DATA]),
            LocalQpOperation,
        ),
        (
            "write on UD",
            Ud,
            request(Write, &[&REMOTE, &DATA]),
            LocalQpOperation,
        ),
        (
            "reserved",
            Rc,
            request(Write, &[&bad_remote, &DATA]),
            LocalQpOperation,
        ),
        // What is behind the first unit of an address that is not extended are data segments.
        (
            "address",
            Ud,
            request(Send, &[&old_vector, &DATA]),
            LocalLength,
        ),
        ("no address", Ud, request(Send, &[]), LocalQpOperation),
        (
            "inline read",
            Rc,
            request(Read, &[&REMOTE, &INLINE]),
            LocalQpOperation,
        ),
        (
            "atomic's room",
            Rc,
            request(CompareSwap, &[&REMOTE, &OPERANDS, &DATA]),
            LocalLength,
        ),
        (
            "part of a block of a translation",
            Rc,
            request(ChangeKey, &[&one_unit, &[0; 64], &DATA, &[0; 48]]),
            LocalQpOperation,
        ),
        (
            "pages in the request, cut off",
            Rc,
            request(ChangeKey, &[&inside, &pages, &[0; 48]]),
            LocalQpOperation,
        ),
        (
            "no pages",
            RegUmr,
            load(&page_list(0), &[]),
            LocalQpOperation,
        ),
        (
            "few pages",
            RegUmr,
            load(&page_list(0), &EIGHT),
            LocalQpOperation,
        ),
        (
            "within a block",
            RegUmr,
            load(&page_list(3), &DATA),
            LocalQpOperation,
        ),
        ("offset", RegUmr, load(&no_offset, &DATA), LocalQpOperation),
    ];
    for (name, transport, bytes, syndrome) in table {
        let result = decode(&bytes, expected(transport));
        assert_eq!(
            result.map_err(|malformed| malformed.syndrome),
            Err(syndrome),
            "{name}"
        );
    }
}

#[test]
fn inline_data_ends_with_the_request() {
    let mut bytes = request(Opcode::Send, &[&INLINE]);
    bytes[UNIT + 3] = 13;
    let result = decode(&bytes, expected(Transport::Rc));
    assert_eq!(
        result.map_err(|malformed| malformed.syndrome),
        Err(Syndrome::LocalLength)
    );
}
