//! What requests look like in the ring, byte for byte, and how the device is notified.

use proptest::prelude::*;
use uverbs_uapi::enums::{QpType, WcOpcode};
use uverbs_uapi::flags::{Access, SendFlags};
use uverbs_uapi::types::{AhAttr, Sge};

use super::super::ah::{Ah, over_infiniband};
use super::super::format::{SEND_DOORBELL, cqe};
use super::super::qp::{recv_layout, send_layout};
use super::super::{Limits, entries, srq};
use super::device::{LIMITS, Pair, QPN, REGISTER, cap, completion, cq, take};
use crate::driver::contract::methods::*;
use crate::driver::contract::{receiving, sending};
use crate::work::{
    Bind, Destination, LocalKey, LocalSlice, Operation, Payload, PdTag, PostError, Remote,
    RemoteKey, TargetAt,
};

/// Where the flags of a control segment lie.
const FM_CE_SE: usize = 11;

const REMOTE: Remote = Remote {
    address: 0x1122_3344_5566_7788,
    rkey: RemoteKey(0x99aa_bbcc),
};

fn slice(address: u64, length: u32) -> LocalSlice<'static> {
    LocalSlice::new(address, length, LocalKey(0x0102_0304), PdTag::new(3, 1))
}

/// A control segment, by hand.
fn control(index: u16, opcode: u8, units: u8, flags: u8, imm: u32) -> Vec<u8> {
    let [high, low] = index.to_be_bytes();
    let [_, q2, q1, q0] = QPN.to_be_bytes();
    let mut bytes = vec![0, high, low, opcode, q2, q1, q0, units, 0, 0, 0, flags];
    bytes.extend(imm.to_be_bytes());
    bytes
}

fn remote() -> Vec<u8> {
    let mut bytes = REMOTE.address.to_be_bytes().to_vec();
    bytes.extend(REMOTE.rkey.0.to_be_bytes());
    bytes.extend([0; 4]);
    bytes
}

fn data(address: u64, length: u32) -> Vec<u8> {
    let mut bytes = length.to_be_bytes().to_vec();
    bytes.extend(0x0102_0304_u32.to_be_bytes());
    bytes.extend(address.to_be_bytes());
    bytes
}

fn rc() -> Pair {
    let (cq, _) = cq(63, 64);
    Pair::new(QpType::RC, cap(8, 2, 64), &cq, &cq)
}

/// Would catch a field in a wrong place, a wrong count of units, or leftovers of an earlier request.
#[test]
fn each_operation_has_its_segments() {
    let slices = [slice(0xa000, 100), slice(0, 0), slice(0xb000, 8)];
    let two = [data(0xa000, 100), data(0xb000, 8)].concat();
    let gather = Payload::Gather(&slices[..2]);
    let one = data(0xa000, 100);
    let compare = Operation::CompareSwap {
        remote: REMOTE,
        compare: 5,
        swap: 6,
    };
    let operands = |first: u64, second: u64| [first.to_be_bytes(), second.to_be_bytes()].concat();
    let key = RemoteKey(0x0708_090a);
    let imm = 0xdead_beef;
    let cases: Vec<(Operation, Payload<'_>, u8, u32, Vec<u8>)> = vec![
        (
            Operation::Send,
            Payload::Gather(&slices[1..]),
            0x0a,
            0,
            data(0xb000, 8),
        ),
        (Operation::Send, Payload::Gather(&[]), 0x0a, 0, vec![]),
        (Operation::SendImm { imm }, gather, 0x0b, imm, one.clone()),
        (
            Operation::SendInv { rkey: key },
            gather,
            0x01,
            key.0,
            one.clone(),
        ),
        (
            Operation::Write { remote: REMOTE },
            gather,
            0x08,
            0,
            [remote(), one.clone()].concat(),
        ),
        (
            Operation::WriteImm {
                remote: REMOTE,
                imm,
            },
            gather,
            0x09,
            imm,
            [remote(), one.clone()].concat(),
        ),
        (
            Operation::Read { remote: REMOTE },
            gather,
            0x10,
            0,
            [remote(), one.clone()].concat(),
        ),
        (
            compare,
            gather,
            0x11,
            0,
            [remote(), operands(6, 5), one.clone()].concat(),
        ),
        (
            Operation::FetchAdd {
                remote: REMOTE,
                add: 9,
            },
            gather,
            0x12,
            0,
            [remote(), operands(9, 0), one].concat(),
        ),
    ];
    let mut pair = rc();
    let mut index = 0;
    for (operation, payload, opcode, imm, rest) in cases {
        let both = SendFlags::SIGNALED | SendFlags::SOLICITED;
        pair.post(operation, payload, (0, both)).unwrap();
        let units = 1 + rest.len().div_ceil(16);
        let expected = [control(index, opcode, units as u8, 0x0a, imm), rest].concat();
        assert_eq!(
            pair.sent(index.into(), expected.len()),
            expected,
            "{operation:?}"
        );
        index += units.div_ceil(4) as u16;
        assert_eq!(pair.record().1, u32::from(index));
        if index > 8 {
            // Without completions the queue is full here.
            pair.core.reset(&mut pair.send, pair.recv.as_mut());
            index = 0;
        }
    }
    let mut pair = rc();
    let full = Payload::Gather(&[slices[0], slices[2]]);
    pair.post(Operation::Send, full, (0, SendFlags::empty()))
        .unwrap();
    assert_eq!(pair.sent(0, 48), [control(0, 0x0a, 3, 0, 0), two].concat());
}

/// Would catch a wrong length, or bytes that are not where the device looks.
#[test]
fn inline_bytes_follow_their_length() {
    let mut pair = rc();
    let bytes: Vec<u8> = (1..=33).collect();
    let write = Operation::Write { remote: REMOTE };
    pair.post(write, Payload::Inline(&bytes), (0, SendFlags::empty()))
        .unwrap();
    let head = (33_u32 | 1 << 31).to_be_bytes();
    let expected = [control(0, 0x08, 5, 0, 0), remote(), head.to_vec(), bytes].concat();
    assert_eq!(pair.sent(0, expected.len()), expected);
    pair.post(
        Operation::Send,
        Payload::Inline(&[]),
        (0, SendFlags::empty()),
    )
    .unwrap();
    assert_eq!(pair.sent(2, 16), control(2, 0x0a, 1, 0, 0));
}

/// Would catch a request that does not wait for a change to a key because an abandoned batch had another one,
/// with an empty batch rung after it or not.
#[test]
fn an_abandoned_change_takes_no_fence() {
    for is_empty_batch_rung in [false, true] {
        let mut pair = rc();
        let rkey = RemoteKey(0x1202);
        let invalidate = Operation::LocalInv { rkey };
        let nothing = Payload::Gather(&[]);
        pair.post(invalidate, nothing, (0, SendFlags::empty()))
            .unwrap();
        sending(&mut pair.send)
            .write(0, SendFlags::empty(), invalidate, None, nothing)
            .unwrap();
        if is_empty_batch_rung {
            sending(&mut pair.send).ring().unwrap();
        }
        pair.post(Operation::Send, nothing, (0, SendFlags::empty()))
            .unwrap();
        let bytes = pair.sent(2, 16);
        assert_eq!(
            bytes[11] & 0x20,
            0x20,
            "{is_empty_batch_rung}: {bytes:02x?}"
        );
    }
}

/// Would catch a request that passes for one that the program has written itself, since one before it in its
/// place was: in an abandoned batch, or in an earlier lap of the ring.
#[cfg(feature = "mlx5-direct")]
#[test]
fn a_programs_own_request_leaves_no_mark() {
    let (mut cq, mut producer) = cq(63, 64);
    let mut pair = Pair::new(QpType::RC, cap(8, 2, 64), &cq, &cq);
    let own = control(0, 0x0a, 1, 8, 0);
    // The first request is never rung.
    let position = pair.send.position();
    pair.send.write_raw(position, 0, &own).unwrap();
    for block in 0..2 * pair.blocks {
        let is_own = block == 1;
        if is_own {
            let start = pair.send.position();
            let end = pair.send.write_raw(start, block.into(), &own).unwrap();
            pair.send.ring(start, end).unwrap();
        } else {
            pair.send_nothing(block.into()).unwrap();
        }
        producer.write(completion(cqe::REQ, pair.number, block as u16));
        let taken = take(&mut cq).unwrap();
        let expected = match is_own {
            true => WcOpcode::DRIVER2,
            false => WcOpcode::SEND,
        };
        assert_eq!((taken.wr_id(), taken.opcode()), (block.into(), expected));
    }
}

/// Would catch an atomic whose slices or inline bytes reach beyond the largest request: its operands also
/// need room.
#[test]
fn operands_of_atomics_take_room() {
    let (cq, _) = cq(63, 64);
    for max_sge in 1..=31 {
        let mut pair = Pair::new(QpType::RC, cap(8, max_sge, 64), &cq, &cq);
        let layout = pair.send.layout();
        let add = Operation::FetchAdd {
            remote: REMOTE,
            add: 1,
        };
        let sge = Sge {
            addr: 0,
            length: 8,
            lkey: 0,
        };
        let sges = vec![sge; 64];
        let inline = vec![0; 1024];
        let fits = |payload| match payload {
            Payload::Sges(sges) => 3 + sges.len(),
            Payload::Inline(bytes) => 3 + (4 + bytes.len()).div_ceil(16),
            _ => 0,
        };
        let units = (4 * layout.request_blocks as usize).min(63);
        for given in 1..64 {
            for payload in [
                Payload::Sges(&sges[..given]),
                Payload::Inline(&inline[..16 * given]),
            ] {
                let mut batch = sending(&mut pair.send);
                if batch
                    .write(0, SendFlags::empty(), add, None, payload)
                    .is_ok()
                {
                    assert!(fits(payload) <= units, "{given} of {max_sge}: {layout:?}");
                }
            }
        }
        let mut batch = sending(&mut pair.send);
        batch
            .write(0, SendFlags::empty(), add, None, Payload::Sges(&sges[..1]))
            .unwrap();
    }
}

/// Would catch a key change with leftovers of other requests in its reserved bytes, or without the check that
/// it needs.
#[test]
fn key_changes_say_what_changes() {
    let mut pair = rc();
    let bind = Bind {
        mw_rkey: RemoteKey(0x1201),
        rkey: RemoteKey(0x1202),
        mr_lkey: LocalKey(0x5566_7788),
        address: 0x4000,
        length: 0x1000,
        access: Access::REMOTE_READ | Access::REMOTE_WRITE,
        of_queue_pair: true,
    };
    pair.post(
        Operation::BindMw(bind),
        Payload::Gather(&[]),
        (0, SendFlags::empty()),
    )
    .unwrap();
    let bytes = pair.sent(0, 192);
    assert_eq!(bytes[..16], control(0, 0x25, 12, 0, 0x1201));
    // Inline, offset, must be free; the block of units; length, start, key, QP, rights, free.
    assert_eq!(bytes[16..22], [0xb0, 0, 0, 0, 0, 4]);
    assert_eq!(bytes[24..32], 0x203c_6041_u64.to_be_bytes());
    assert_eq!(bytes[64..67], [0, 0, 0x30]);
    assert_eq!(bytes[68..72], [QPN.to_be_bytes()[1], 0x34, 0x56, 0x02]);
    assert_eq!(
        bytes[80..96],
        [0x4000_u64.to_be_bytes(), 0x1000_u64.to_be_bytes()].concat()
    );
    assert_eq!(bytes[128..144], {
        let mut entry = 0x1000_u32.to_be_bytes().to_vec();
        entry.extend(0x5566_7788_u32.to_be_bytes());
        entry.extend(0x4000_u64.to_be_bytes());
        entry
    });
    assert_eq!(bytes[144..], [0; 48]);

    let rkey = RemoteKey(0x1202);
    let invalidate = Operation::LocalInv { rkey };
    pair.post(invalidate, Payload::Gather(&[]), (0, SendFlags::empty()))
        .unwrap();
    let bytes = pair.sent(3, 128);
    // The fence is there because the previous request changed a key.
    assert_eq!(bytes[..16], control(3, 0x25, 8, 0x20, 0x1202));
    assert_eq!(bytes[16..22], [0x98, 0, 0, 0, 0, 0]);
    assert_eq!(bytes[24..32], 0x2000_6000_u64.to_be_bytes());
    assert_eq!(
        (bytes[64], &bytes[68..72]),
        (0x40, &[0xff, 0xff, 0xff, 0x02][..])
    );

    let long = Bind {
        length: (1 << 31) + 1,
        ..bind
    };
    let refused = pair.post(
        Operation::BindMw(long),
        Payload::Gather(&[]),
        (0, SendFlags::empty()),
    );
    assert!(matches!(refused, Err(PostError::Window(_))));
}

/// Would catch a number after the peer's address, or leftovers of an earlier request after it.
#[test]
fn requests_of_xrc_name_a_shared_queue_first() {
    let (cq, _) = cq(63, 64);
    let mut pair = Pair::new(QpType::XRC_SEND, cap(8, 2, 64), &cq, &cq);
    let mut batch = sending(&mut pair.send);
    let slices = [slice(0xa000, 100)];
    let to = Some(Destination::Srq(0x0003_0201));
    let write = Operation::Write { remote: REMOTE };
    batch
        .write(0, SendFlags::empty(), write, to, Payload::Gather(&slices))
        .unwrap();
    batch
        .write(
            0,
            SendFlags::empty(),
            Operation::Send,
            to,
            Payload::Inline(b"now"),
        )
        .unwrap();
    batch.ring().unwrap();
    let mut named = vec![0, 3, 2, 1];
    named.resize(16, 0);
    let bytes = [
        control(0, 8, 4, 0, 0),
        named.clone(),
        remote(),
        data(0xa000, 100),
    ]
    .concat();
    assert_eq!(*pair.sent(0, 64), bytes[..]);
    let mut inline = vec![0x80, 0, 0, 3, b'n', b'o', b'w'];
    inline.resize(16, 0);
    let bytes = [control(1, 10, 3, 0, 0), named, inline].concat();
    assert_eq!(pair.sent(1, 48)[..39], bytes[..39]);
}

/// Would catch a key whose halves are swapped, a number without the mark of the long vector, and a peer's
/// address before the destination.
#[test]
fn requests_of_dc_name_target_and_key_first() {
    let (cq, _) = cq(63, 64);
    let mut pair = Pair::new(QpType::DCI, cap(8, 2, 64), &cq, &cq);
    let path = AhAttr {
        dlid: 0x0a0b,
        sl: 3,
        ..AhAttr::default()
    };
    let ah = Ah(over_infiniband(&path));
    let to = Destination::Target(TargetAt {
        ah: &ah,
        number: 0x0003_0201,
        key: 0x0102_0304_0506_0708,
        stream: 0x0102,
        pd: PdTag::new(3, 1),
    });
    let mut batch = sending(&mut pair.send);
    let slices = [slice(0xa000, 100)];
    let write = Operation::Write { remote: REMOTE };
    batch
        .write(
            0,
            SendFlags::empty(),
            write,
            Some(to),
            Payload::Gather(&slices),
        )
        .unwrap();
    batch.ring().unwrap();
    let mut vector = vec![1, 2, 3, 4, 5, 6, 7, 8, 0x80, 3, 2, 1, 3, 0, 0x0a, 0x0b];
    vector.resize(48, 0);
    let mut bytes = [control(0, 8, 6, 0, 0), vector, remote(), data(0xa000, 100)].concat();
    // The stream, between the signature and the flags.
    bytes[9..11].copy_from_slice(&[1, 2]);
    assert_eq!(*pair.sent(0, 96), bytes[..]);
}

/// Would catch a doorbell that goes to the wrong half, or a copy of a request that does not fit into one.
#[test]
fn a_small_request_is_copied_to_the_register_in_halves_and_a_batch_is_not() {
    let mut pair = rc();
    let half = REGISTER / 2;
    for (turn, at) in [SEND_DOORBELL, SEND_DOORBELL + half, SEND_DOORBELL]
        .into_iter()
        .enumerate()
    {
        let bytes = [turn as u8 + 1; 20];
        pair.post(
            Operation::Send,
            Payload::Inline(&bytes),
            (0, SendFlags::empty()),
        )
        .unwrap();
        assert_eq!(
            pair.page.stored::<64>(at),
            *pair.sent(turn as u32, 64),
            "turn {turn}"
        );
    }
    let mut batch = sending(&mut pair.send);
    for _ in 0..2 {
        batch
            .write(
                0,
                SendFlags::empty(),
                Operation::Send,
                None,
                Payload::Gather(&[slice(1, 1)]),
            )
            .unwrap();
    }
    batch.ring().unwrap();
    let at = SEND_DOORBELL + half;
    assert_eq!(
        pair.page.stored::<8>(at),
        *pair.sent(4, 8),
        "the last request rings"
    );
    assert_eq!(
        pair.page.stored::<16>(at)[8..],
        pair.sent(1, 16)[8..],
        "and no more is written"
    );
}

/// Would catch a request with other contents, or that is copied elsewhere, where the CPU can store a block at
/// once.
#[test]
fn where_a_block_is_stored_at_once_requests_are_the_same() {
    let (cq, _) = cq(63, 64);
    let caps = cap(16, 2, 200);
    let pairs = [
        Pair::new(QpType::RC, caps, &cq, &cq),
        Pair::at_once(QpType::RC, caps, &cq),
    ];
    let write = Operation::Write { remote: REMOTE };
    let of = [slice(0x5000, 64)];
    let seen = pairs.map(|mut pair| {
        // One block, several blocks, then a batch.
        pair.post(write, Payload::Gather(&of), (1, SendFlags::empty()))
            .unwrap();
        pair.post(write, Payload::Inline(&[7; 150]), (0, SendFlags::empty()))
            .unwrap();
        let mut batch = sending(&mut pair.send);
        for _ in 0..2 {
            batch
                .write(0, SendFlags::empty(), write, None, Payload::Gather(&of))
                .unwrap();
        }
        assert_eq!(batch.ring(), Ok(2));
        (
            pair.page.stored::<{ REGISTER }>(SEND_DOORBELL),
            pair.sent(0, 16 * 64),
            pair.record().1,
            pair.send.in_flight(),
        )
    });
    let [pieces, whole] = seen;
    assert_eq!(pieces, whole);
    assert_eq!(pieces.3, 4);
}

/// Would catch a fence that is replaced by the smaller one, or flags of an earlier request.
#[test]
fn flags_are_those_of_the_request() {
    let mut pair = rc();
    let mut batch = sending(&mut pair.send);
    let rkey = RemoteKey(1);
    batch
        .write(
            0,
            SendFlags::empty(),
            Operation::LocalInv { rkey },
            None,
            Payload::Gather(&[]),
        )
        .unwrap();
    let nothing = Payload::Gather(&[]);
    batch
        .write(0, SendFlags::FENCE, Operation::Send, None, nothing)
        .unwrap();
    batch
        .write(0, SendFlags::empty(), Operation::Send, None, nothing)
        .unwrap();
    batch.ring().unwrap();
    assert_eq!(
        [0, 2, 3].map(|block| pair.sent(block, 16)[FM_CE_SE]),
        [0, 0x80, 0]
    );
}

#[test]
fn a_full_queue_and_what_does_not_fit_are_refused() {
    let mut pair = rc();
    let (capacity, max_sge, max_inline) = (
        pair.send.capacity(),
        pair.send.max_sge(),
        pair.send.max_inline(),
    );
    assert!(capacity >= 8 && max_sge >= 2 && max_inline >= 64);
    let slices = vec![slice(1, 1); max_sge as usize + 1];
    let bytes = vec![0; max_inline as usize + 1];
    let nothing = Payload::Gather(&[]);
    let mut batch = sending(&mut pair.send);
    let refused = batch.write(
        0,
        SendFlags::empty(),
        Operation::Send,
        None,
        Payload::Gather(&slices),
    );
    assert!(matches!(refused, Err(PostError::TooManySges { .. })));
    let refused = batch.write(
        0,
        SendFlags::empty(),
        Operation::Send,
        None,
        Payload::Inline(&bytes),
    );
    assert!(matches!(refused, Err(PostError::InlineTooLong { .. })));
    for _ in 0..capacity {
        batch
            .write(0, SendFlags::empty(), Operation::Send, None, nothing)
            .unwrap();
    }
    let refused = batch.write(0, SendFlags::empty(), Operation::Send, None, nothing);
    assert!(matches!(refused, Err(PostError::QueueFull { .. })));
    assert_eq!(batch.pending(), capacity);
    // It is given up here, and leaves nothing.
    assert_eq!(pair.send.in_flight(), 0);
    for _ in 0..capacity {
        pair.send_nothing(0).unwrap();
    }
    assert!(pair.send_nothing(0).is_err());
}

/// Would catch a ring that is written over, over and over, once a device has told of an older request behind
/// a newer one, by more than the ring has room for.
#[test]
fn an_older_request_that_is_told_later_makes_no_room() {
    let (mut cq, mut producer) = cq(63, 64);
    let mut pair = Pair::new(QpType::RC, cap(8, 2, 64), &cq, &cq);
    let capacity = pair.send.capacity();
    let newest = (2 * capacity - 1) as u16;
    assert!(u32::from(newest) < pair.blocks, "older requests are noted");
    let number = pair.number;
    let mut told = |index| {
        producer.write(completion(cqe::REQ, number, index));
        take(&mut cq).unwrap();
    };
    for _ in 0..capacity {
        pair.send_nothing(0).unwrap();
    }
    told(newest / 2);
    for _ in 0..capacity {
        pair.send_nothing(0).unwrap();
    }
    told(0);
    for _ in 0..3 {
        let refused = pair.send_nothing(0);
        assert!(matches!(refused, Err(PostError::QueueFull { .. })));
    }
    told(newest);
    for _ in 0..capacity {
        pair.send_nothing(0).unwrap();
    }
    assert!(pair.send_nothing(0).is_err());
}

/// Would catch a request that a batch wrote which was given up, and that comes back later over one that was
/// posted.
#[test]
fn a_batch_that_is_given_up_leaves_nothing() {
    let (mut cq, mut producer) = cq(255, 64);
    let mut pair = Pair::new(QpType::RC, cap(8, 12, 0), &cq, &cq);
    let (blocks, mut block, mut number) = (pair.blocks, 0, 0_u8);
    let long: Vec<LocalSlice> = (0..12).map(|at| slice(at, 1)).collect();
    // Every distance from the ring's end, several times round it.
    for _ in 0..4 * blocks {
        let mut batch = sending(&mut pair.send);
        for _ in 0..3 {
            let rkey = RemoteKey(0x77);
            batch
                .write(
                    0,
                    SendFlags::empty(),
                    Operation::Send,
                    None,
                    Payload::Gather(&long),
                )
                .unwrap();
            batch
                .write(
                    0,
                    SendFlags::empty(),
                    Operation::LocalInv { rkey },
                    None,
                    Payload::Gather(&[]),
                )
                .unwrap();
        }
        // It is given up here.
        number = number.wrapping_add(1);
        let bytes = [number; 20];
        pair.post(
            Operation::Send,
            Payload::Inline(&bytes),
            (0, SendFlags::empty()),
        )
        .unwrap();
        let head = (20_u32 | 1 << 31).to_be_bytes().to_vec();
        let start = control(block as u16, 0x0a, 3, 0, 0);
        let expected = [start, head, bytes.to_vec()].concat();
        let sent = pair.sent(block, expected.len());
        // A fence too many does no harm.
        let same = |at: usize| sent[at] == expected[at] || at == FM_CE_SE;
        assert!((0..expected.len()).all(same), "{sent:x?} at {block}");
        producer.write(super::device::completion(0, pair.number, block as u16));
        assert!(take(&mut cq).is_some());
        block += 1;
    }
}

/// Would catch requests of several sizes that lie in one another, or in one that is in flight, or for which
/// there is no room.
#[test]
fn requests_of_all_sizes_go_round_the_ring() {
    let (mut cq, mut producer) = cq(255, 64);
    let mut pair = Pair::new(QpType::RC, cap(7, 12, 0), &cq, &cq);
    let (capacity, mut random) = (pair.send.capacity() as usize, 1_u64);
    let mut below = |limit: usize| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) as usize % limit
    };
    // The block and slices of each request that is in flight, and the next block.
    let (mut flying, mut next, mut refused) = (std::collections::VecDeque::new(), 0_u32, 0);
    for round in 0..3000_u64 {
        let mut batch = sending(&mut pair.send);
        let (mut written, mut at) = (Vec::new(), next);
        for _ in 0..below(6) {
            let slices = vec![slice(round, 1); 1 + below(12)];
            let pushed = batch.write(
                at.into(),
                SendFlags::empty(),
                Operation::Send,
                None,
                Payload::Gather(&slices),
            );
            let full = flying.len() + written.len() == capacity;
            assert_eq!(pushed.is_err(), full);
            refused += usize::from(full);
            if pushed.is_ok() {
                written.push((at, slices.len(), round));
                at += (1 + slices.len() as u32).div_ceil(4);
            }
        }
        if below(4) > 0 {
            batch.ring().unwrap();
            flying.extend(written);
            next = at;
        }
        for (block, slices, round) in &flying {
            let start = control(*block as u16, 0x0a, *slices as u8 + 1, 0, 0);
            let expected = [start, data(*round, 1).repeat(*slices)].concat();
            assert_eq!(pair.sent(*block, expected.len()), expected);
        }
        assert_eq!(pair.send.in_flight() as usize, flying.len());
        for (block, ..) in flying.drain(..below(flying.len() + 1)) {
            producer.write(super::device::completion(0, pair.number, block as u16));
            assert_eq!(take(&mut cq).map(|taken| taken.wr_id()), Some(block.into()));
        }
    }
    assert!(refused > 100 && next > 10_000, "{refused} {next}");
}

/// Would catch a missing end of the list, or one after a list that is full.
#[test]
fn receives_end_where_their_slices_do() {
    let (cq, _) = cq(15, 64);
    let mut pair = Pair::new(QpType::RC, cap(8, 2, 0), &cq, &cq);
    let mut recv = receiving(pair.recv.as_mut().unwrap());
    recv.write(1, &[slice(0xa000, 100)]).unwrap();
    recv.write(2, &[slice(0xa000, 100), slice(0xb000, 8)])
        .unwrap();
    recv.write(3, &[]).unwrap();
    recv.ring();
    let end = [0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(pair.element(0), [data(0xa000, 100), end.to_vec()].concat());
    assert_eq!(
        pair.element(1),
        [data(0xa000, 100), data(0xb000, 8)].concat()
    );
    assert_eq!(pair.element(2)[..16], end);
    assert_eq!(pair.record().0, 3);
    let mut recv = receiving(pair.recv.as_mut().unwrap());
    let longest = recv.write(4, &[slice(0, 1 << 31)]);
    assert!(longest.is_ok());
    let sge = Sge {
        addr: 0,
        length: (1 << 31) + 1,
        lkey: 7,
    };
    let refused = pair.recv.as_mut().unwrap().write(1, 5, &[sge]);
    assert!(matches!(refused, Err(PostError::MessageTooLong { .. })));
}

/// Would catch a slice that is cut to the device's 31 bits, and so posted without its end.
#[test]
fn a_send_of_more_than_31_bits_is_refused() {
    let (cq, _) = cq(15, 64);
    let mut pair = Pair::new(QpType::RC, cap(8, 2, 0), &cq, &cq);
    let sge = |length| Sge {
        addr: 0xa000,
        length,
        lkey: 7,
    };
    let (fits, too_long) = (sge(1 << 31), sge((1 << 31) + 16));
    let mut post = |sges: &[Sge]| {
        pair.post(
            Operation::Send,
            Payload::Sges(sges),
            (0, SendFlags::empty()),
        )
    };
    assert!(post(&[fits]).is_ok());
    for sges in [&[too_long][..], &[fits, too_long]] {
        let refused = post(sges);
        assert!(matches!(refused, Err(PostError::MessageTooLong { .. })));
    }
}

proptest! {
    /// Would catch a request that is torn at the ring's end, whatever its size and the ring's.
    #[test]
    fn requests_of_every_size_go_round_rings_of_every_size(
        wr in 1_u32..40,
        sges in 1_u32..30,
        lengths in prop::collection::vec(0_usize..30, 1..200),
    ) {
        let (mut cq, mut producer) = cq(255, 64);
        let mut pair = Pair::new(QpType::RC, cap(wr, sges, 0), &cq, &cq);
        let max = pair.send.max_sge() as usize;
        let mut block = 0_u32;
        for (turn, length) in lengths.into_iter().enumerate() {
            let count = length.min(max);
            let slices: Vec<LocalSlice> =
                (0..count).map(|at| slice((turn * 100 + at) as u64, 1)).collect();
            pair.post(Operation::Send, Payload::Gather(&slices), (0, SendFlags::empty())).unwrap();
            let rest: Vec<u8> = (0..count).flat_map(|at| data((turn * 100 + at) as u64, 1)).collect();
            let units = 1 + count;
            let expected = [control(block as u16, 0x0a, units as u8, 0, 0), rest].concat();
            prop_assert_eq!(pair.sent(block, expected.len()), expected);
            producer.write(super::device::completion(0, pair.number, block as u16));
            prop_assert!(take(&mut cq).is_some());
            block += units.div_ceil(4) as u32;
        }
    }

    /// Would catch sizes that overflow or go below zero, capacities for which the ring has no room, and
    /// requests that are longer than the device reads, whatever is asked for and whatever the device reports.
    #[test]
    fn layouts_hold_what_they_promise(
        wr in number(9000), sge in number(70), inline in number(1100), limits in limits(),
    ) {
        let cap = cap(wr, sge, inline);
        for qp_type in [QpType::RC, QpType::UC, QpType::UD, QpType::DCI] {
            if let Some(layout) = send_layout(qp_type, &cap, &limits) {
                prop_assert!(layout.capacity >= wr && (wr == 0 || layout.max_sge >= sge.max(1) && layout.max_inline >= inline));
                prop_assert!(u64::from(layout.capacity) * u64::from(layout.request_blocks) <= layout.blocks.into());
                let before = match qp_type {
                    QpType::UD => 64,
                    QpType::DCI => 80,
                    _ => 32,
                };
                // 63 units of 16 bytes are the longest request.
                let room = (layout.request_blocks * 64).min(1008) - before;
                prop_assert!(layout.max_sge * 16 <= room);
                prop_assert!(layout.max_inline == 0 || layout.max_inline + 4 <= room);
                prop_assert!(layout.request_blocks * 64 <= limits.max_sq_desc_sz.into());
                prop_assert!(layout.blocks <= limits.max_send_wqebb.min(1 << 15));
            }
        }
        for loose in [false, true] {
            if let Some(layout) = recv_layout(&cap, loose, &limits) {
                prop_assert!(layout.capacity >= wr && (wr == 0 || layout.max_sge >= sge));
                prop_assert_eq!(layout.count, layout.capacity << u32::from(loose));
                prop_assert!(layout.count <= limits.max_recv_wr || wr == 0);
                prop_assert!(u64::from(layout.max_sge) * 16 <= layout.stride.into());
                prop_assert_eq!(layout.bytes() % 64, 0);
            }
        }
        if let Some((count, stride)) = srq::layout(wr, sge, &limits) {
            prop_assert!(count > wr && count.is_power_of_two() && count <= 1 << 16);
            prop_assert!(u64::from(stride) >= 16 + 16 * u64::from(sge) && stride.is_power_of_two());
        }
        if let Some(count) = entries(wr, sge) {
            prop_assert!(count > wr && count.is_power_of_two() && wr <= sge);
        }
    }
}

/// A capacity: an ordinary one, or one at either end of the possible range.
fn number(usual: u32) -> impl Strategy<Value = u32> {
    prop_oneof![
        4 => 0..usual,
        2 => 0..4_u32,
        1 => u32::MAX - 3..=u32::MAX,
        1 => (0..32_u32, 0..3_u32).prop_map(|(bit, beside)| (1_u32 << bit).wrapping_add(beside).wrapping_sub(1)),
        1 => any::<u32>(),
    ]
}

/// The limits of a ConnectX, or any others.
fn limits() -> impl Strategy<Value = Limits> {
    let any = (
        any::<u16>(),
        any::<u16>(),
        number(1 << 16),
        number(1 << 16),
        number(1 << 17),
    );
    let any = any.prop_map(|(send, recv, blocks, elements, shared)| Limits {
        max_sq_desc_sz: send,
        max_rq_desc_sz: recv,
        max_send_wqebb: blocks,
        max_recv_wr: elements,
        max_srq_recv_wr: shared,
    });
    prop_oneof![2 => Just(LIMITS), 1 => any]
}

/// Would catch a request that is written beyond the ring: the segments before the payload of a datagram fill
/// a block, and there must be room for one slice all the same.
#[test]
fn a_datagram_without_payload_takes_a_slice() {
    let (cq, _) = cq(63, 64);
    let mut pair = Pair::new(QpType::UD, cap(8, 0, 0), &cq, &cq);
    assert_eq!((pair.send.max_sge(), pair.send.max_inline()), (4, 60));
    let refused = pair.post(
        Operation::Send,
        Payload::Inline(&[0xee; 1000]),
        (0, SendFlags::empty()),
    );
    assert_eq!(
        refused,
        Err(PostError::InlineTooLong {
            given: 1000,
            max: 60
        })
    );
    pair.send_nothing(1).unwrap();
}

/// Would catch a count of units that does not fit into the field that the device reads.
#[test]
fn the_longest_requests_are_counted_in_six_bits() {
    let longest = |qp_type, sge, inline| send_layout(qp_type, &cap(8, sge, inline), &LIMITS);
    for (qp_type, sge, inline) in [
        (QpType::RC, 61, 972),
        (QpType::UD, 59, 940),
        (QpType::DCI, 58, 924),
    ] {
        for layout in [longest(qp_type, sge, 0), longest(qp_type, 0, inline)] {
            let layout = layout.unwrap();
            assert_eq!((layout.max_sge, layout.max_inline), (sge, inline));
        }
        assert_eq!(longest(qp_type, sge + 1, 0), None);
        assert_eq!(longest(qp_type, 0, inline + 1), None);
    }
}

/// Would catch a ring whose full record looks as an empty one, of a device that would have it.
#[test]
fn a_full_ring_looks_different_from_an_empty_one() {
    let most = |max_send_wqebb| {
        let limits = Limits {
            max_send_wqebb,
            ..LIMITS
        };
        let layout = |wr| send_layout(QpType::RC, &cap(wr, 1, 0), &limits);
        let layouts = (10..=16).filter_map(|log| layout(1 << log));
        layouts.map(|layout| layout.blocks).max()
    };
    assert_eq!(
        [1 << 14, 1 << 15, 1 << 16].map(most),
        [1 << 14, 1 << 15, 1 << 15].map(Some)
    );
}
