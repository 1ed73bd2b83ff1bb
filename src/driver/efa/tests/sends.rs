//! Requests field by field, and how they reach the device.

use uverbs_uapi::enums::QpType;
use uverbs_uapi::flags::SendFlags;
use uverbs_uapi::types::{QpCap, Sge};
use zerocopy::IntoBytes;

use super::super::Limits;
use super::super::format::{Head, RemoteAddress, Slice, Wqe, request};
use super::super::send::SendQueue;
use super::{CAP, Device, LIMITS, send_queue};
use crate::driver::contract::{SendQueue as _, Sending, sending};
use crate::work::{
    DatagramTo, Destination, Operation, Payload, PdTag, PostError, Remote, RemoteKey,
};

const REMOTE: Remote = Remote {
    address: 0x1122_3344_5566_7788,
    rkey: RemoteKey(0xab_cdef),
};

const SLICES: [Sge; 2] = [
    Sge {
        addr: 0x8877_6655_4433_2211,
        length: 100,
        lkey: 0x12_3456,
    },
    Sge {
        addr: 0x1000,
        length: 23,
        lkey: 7,
    },
];

pub(super) fn to() -> Option<Destination<'static, u16>> {
    Some(Destination::Datagram(DatagramTo {
        ah: &0x0a0b,
        qpn: 0x0c0d,
        qkey: 0x1234_5678,
        pd: PdTag::new(0, 0),
    }))
}

fn write(
    batch: &mut Sending<'_, SendQueue>,
    wr_id: u64,
    operation: Operation,
    payload: Payload<'_>,
) -> Result<(), PostError> {
    batch.write(wr_id, SendFlags::SIGNALED, operation, to(), payload)
}

/// Posts a single request, and returns the bytes that the device got.
fn posted<const BYTES: usize>(
    cap: &QpCap,
    operation: Operation,
    payload: Payload<'_>,
) -> [u8; BYTES] {
    let (mut queue, _, device) = send_queue(QpType::DRIVER, cap, &LIMITS);
    let mut batch = sending(&mut queue);
    write(&mut batch, 5, operation, payload).unwrap();
    assert_eq!(batch.ring(), Ok(1));
    assert_eq!(device.rung(), 1);
    device.read(0)
}

/// The header as bytes, as the device's documentation has it.
fn head(operation: u8, length: u8, imm: u32) -> [u8; 32] {
    let mut head = [0; 32];
    head[2] = operation | 1 << 7;
    head[3] = 0b1_1100;
    head[4..6].copy_from_slice(&[0x0d, 0x0c]);
    head[6] = length;
    head[8..12].copy_from_slice(&imm.to_le_bytes());
    head[12..14].copy_from_slice(&[0x0b, 0x0a]);
    head[16..20].copy_from_slice(&0x1234_5678_u32.to_le_bytes());
    head
}

fn slice(of: Sge) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&of.length.to_le_bytes());
    bytes[4..8].copy_from_slice(&of.lkey.to_le_bytes());
    bytes[8..].copy_from_slice(&of.addr.to_le_bytes());
    bytes
}

fn there(length: u32) -> [u8; 16] {
    slice(Sge {
        addr: REMOTE.address,
        length,
        lkey: REMOTE.rkey.0,
    })
}

#[test]
fn a_message_has_its_slices_in_it() {
    let sent: [u8; 64] = posted(&CAP, Operation::Send, Payload::Sges(&SLICES));
    assert_eq!(sent[..32], head(0, 2, 0));
    assert_eq!(sent[32..48], slice(SLICES[0]));
    assert_eq!(sent[48..], slice(SLICES[1]));
    let operation = Operation::SendImm { imm: 0x0102_0304 };
    let sent: [u8; 64] = posted(&CAP, operation, Payload::Sges(&SLICES[..1]));
    assert_eq!(sent[..32], head(1 << 4, 1, 0x0102_0304));
    assert_eq!(sent[48..], [0; 16]);
    let sent: [u8; 64] = posted(&CAP, Operation::Send, Payload::Sges(&[]));
    assert_eq!(
        (&sent[..32], &sent[32..]),
        (&head(0, 0, 0)[..], &[0; 32][..])
    );
}

#[test]
fn inline_bytes_lie_in_the_request() {
    let bytes: [u8; 80] = std::array::from_fn(|at| at as u8 + 1);
    let sent: [u8; 64] = posted(&CAP, Operation::Send, Payload::Inline(&bytes[..32]));
    assert_eq!(sent[..32], head(1 << 5, 32, 0));
    assert_eq!(sent[32..], bytes[..32]);
    // A request of two blocks.
    let wide = QpCap {
        max_inline_data: 33,
        ..CAP
    };
    let sent: [u8; 128] = posted(&wide, Operation::Send, Payload::Inline(&bytes));
    assert_eq!(sent[..32], head(1 << 5, 80, 0));
    assert_eq!((&sent[32..112], &sent[112..]), (&bytes[..], &[0; 16][..]));
    let operation = Operation::Write { remote: REMOTE };
    let sent: [u8; 128] = posted(&wide, operation, Payload::Inline(&bytes));
    assert_eq!(sent[..32], head(2 | 1 << 5, 80, 0));
    assert_eq!((&sent[32..48], &sent[48..]), (&there(80)[..], &bytes[..]));
}

#[test]
fn what_reads_or_writes_has_the_peers_memory_first() {
    let payload = Payload::Sges(&SLICES[..1]);
    for (operation, code, imm) in [
        (Operation::Read { remote: REMOTE }, 1, 0),
        (Operation::Write { remote: REMOTE }, 2, 0),
        (
            Operation::WriteImm {
                remote: REMOTE,
                imm: 9,
            },
            2 | 1 << 4,
            9,
        ),
    ] {
        let sent: [u8; 64] = posted(&CAP, operation, payload);
        assert_eq!(sent[..32], head(code, 1, imm), "{operation:?}");
        assert_eq!(sent[32..48], there(100), "{operation:?}");
        assert_eq!(sent[48..], slice(SLICES[0]), "{operation:?}");
    }
}

/// Would catch what an earlier request has left in the same place.
#[test]
fn what_a_request_does_not_use_is_zero() {
    let (mut queue, ledger, device) = send_queue(QpType::DRIVER, &CAP, &LIMITS);
    for lap in 0..2_u16 {
        for place in 0..4 {
            let mut batch = sending(&mut queue);
            let payload = match lap {
                0 => Payload::Inline(&[0xff; 32]),
                _ => Payload::Inline(b"a"),
            };
            write(&mut batch, 1, Operation::Send, payload).unwrap();
            batch.ring().unwrap();
            ledger.finish(place).unwrap();
        }
    }
    let sent: Wqe = device.read(0);
    assert_eq!((sent.body[0], &sent.body[1..32]), (b'a', &[0; 31][..]));
}

/// Would catch a READ or WRITE of nothing that says that its bytes are in it: requests of one block have no
/// such form, and READs never have.
#[test]
fn nothing_to_write_or_read_is_no_inline_data() {
    let (mut queue, _, device) = send_queue(QpType::DRIVER, &CAP, &LIMITS);
    let mut batch = sending(&mut queue);
    let imm = 7;
    for operation in [
        Operation::WriteImm {
            remote: REMOTE,
            imm,
        },
        Operation::Read { remote: REMOTE },
        Operation::Send,
    ] {
        write(&mut batch, 1, operation, Payload::Inline(b"")).unwrap();
    }
    batch.ring().unwrap();
    let inline = |at: usize| {
        let head: Head = device.read(at * 64);
        (head.operation & request::INLINE != 0, head.length.get())
    };
    assert_eq!([0, 1, 2].map(inline), [(false, 0), (false, 0), (true, 0)]);
}

/// The bits of the phase and the numbers of the requests in the ring.
fn seen(device: &Device, requests: usize) -> Vec<(u8, u16)> {
    let heads = (0..requests).map(|at| device.read::<Head>(at * 64));
    heads
        .map(|head| (head.control & request::PHASE, head.number.get()))
        .collect()
}

#[test]
fn the_phase_begins_with_0_and_flips_with_each_lap() {
    let (mut queue, ledger, device) = send_queue(QpType::DRIVER, &CAP, &LIMITS);
    let mut post = |requests: u16| {
        let mut batch = sending(&mut queue);
        for _ in 0..requests {
            write(&mut batch, 1, Operation::Send, Payload::Inline(b"")).unwrap();
        }
        assert_eq!(batch.ring(), Ok(requests.into()));
    };
    post(4);
    assert_eq!(seen(&device, 4), [(0, 0), (0, 1), (0, 2), (0, 3)]);
    // Another than the oldest is done: its successor has the oldest's place in the ring, and this one's
    // number.
    ledger.finish(2).unwrap();
    post(1);
    assert_eq!(seen(&device, 4), [(1, 2), (0, 1), (0, 2), (0, 3)]);
    assert_eq!(device.rung(), 5);
    for number in [0, 1, 3, 2] {
        ledger.finish(number).unwrap();
    }
    post(4);
    assert_eq!(seen(&device, 4), [(0, 2), (1, 0), (1, 1), (1, 3)]);
    assert_eq!(device.rung(), 9);
}

/// Would catch a doorbell or a number with more bits than the device takes, and a count that wraps where they
/// do.
#[test]
fn counts_go_on_beyond_16_bits() {
    let (mut queue, ledger, device) = send_queue(QpType::DRIVER, &CAP, &LIMITS);
    for count in 0..70_000_u32 {
        let mut batch = sending(&mut queue);
        write(&mut batch, 1, Operation::Send, Payload::Inline(b"")).unwrap();
        batch.ring().unwrap();
        assert_eq!(device.rung(), (count + 1) & 0xffff);
        let (place, number) = (count % 4, (count % 4) as u16);
        let phase = (count / 4 % 2) as u8;
        assert_eq!(seen(&device, 4)[place as usize], (phase, number));
        assert!(ledger.finish(number).is_some());
    }
}

#[test]
fn a_full_queue_takes_no_request_until_one_is_done() {
    let (mut queue, ledger, _device) = send_queue(QpType::DRIVER, &CAP, &LIMITS);
    let full = Err(PostError::QueueFull { capacity: 4 });
    let mut batch = sending(&mut queue);
    for wr_id in 0..4 {
        write(&mut batch, wr_id, Operation::Send, Payload::Inline(b"")).unwrap();
    }
    assert_eq!(
        write(&mut batch, 4, Operation::Send, Payload::Inline(b"")),
        full
    );
    batch.ring().unwrap();
    assert_eq!(queue.in_flight(), 4);
    let mut batch = sending(&mut queue);
    assert_eq!(
        write(&mut batch, 4, Operation::Send, Payload::Inline(b"")),
        full
    );
    ledger.finish(3).unwrap();
    write(&mut batch, 4, Operation::Send, Payload::Inline(b"")).unwrap();
    batch.ring().unwrap();
    assert_eq!(queue.in_flight(), 4);
}

/// Would catch a request of a forgotten batch that the device gets to see, and a batch that exceeds what it
/// takes between two doorbells.
#[test]
fn nothing_is_handed_over_before_the_doorbell_and_then_in_bounds() {
    let (mut queue, _, device) = send_queue(QpType::DRIVER, &CAP, &LIMITS);
    let mut batch = sending(&mut queue);
    write(&mut batch, 1, Operation::Send, Payload::Inline(b"lost")).unwrap();
    assert_eq!(batch.pending(), 1);
    assert_eq!(device.read::<[u8; 256]>(0), [0; 256]);
    let mut batch = sending(&mut queue);
    write(&mut batch, 2, Operation::Send, Payload::Inline(b"kept")).unwrap();
    batch.ring().unwrap();
    assert_eq!(device.read::<Wqe>(0).body[..4], *b"kept");
    assert_eq!(device.read::<[u8; 64]>(64), [0; 64]);
    let most = |max_batch_blocks, min_sq_wr, max_inline_data| {
        let limits = Limits {
            max_batch_blocks,
            min_sq_wr,
            ..LIMITS
        };
        let cap = QpCap {
            max_inline_data,
            ..CAP
        };
        let (queue, ..) = send_queue(QpType::DRIVER, &cap, &limits);
        let layout = queue.layout();
        (layout.max_batch, layout.depth)
    };
    assert_eq!(most(0, 0, 32), (4, 4));
    assert_eq!(most(3, 0, 32), (3, 4));
    assert_eq!(most(3, 0, 80), (1, 4));
    assert_eq!(most(0, 16, 32), (15, 16));
    assert_eq!(most(8, 16, 32), (8, 16));
}

#[test]
fn a_batch_beyond_the_limit_is_handed_over_in_parts() {
    let limits = Limits {
        max_batch_blocks: 3,
        ..LIMITS
    };
    let (mut queue, ledger, device) = send_queue(QpType::DRIVER, &CAP, &limits);
    let mut batch = sending(&mut queue);
    for wr_id in 0..4 {
        write(&mut batch, wr_id, Operation::Send, Payload::Inline(b"")).unwrap();
    }
    assert_eq!(batch.ring(), Ok(4));
    assert_eq!(device.rung(), 4);
    assert_eq!(seen(&device, 4), [(0, 0), (0, 1), (0, 2), (0, 3)]);
    assert_eq!(ledger.posted(), 4);
}

#[test]
fn each_operation_has_its_limits() {
    let (mut queue, _, device) = send_queue(QpType::DRIVER, &CAP, &LIMITS);
    let mut batch = sending(&mut queue);
    let three = [SLICES[0], SLICES[1], SLICES[0]];
    let read = Operation::Read { remote: REMOTE };
    let inline = Operation::Write { remote: REMOTE };
    let too_many = |given, max| Err(PostError::TooManySges { given, max });
    let too_long = |given, max| Err(PostError::InlineTooLong { given, max });
    let mut refused = |operation, payload| write(&mut batch, 1, operation, payload);
    assert_eq!(
        refused(Operation::Send, Payload::Sges(&three)),
        too_many(3, 2)
    );
    assert_eq!(refused(read, Payload::Sges(&SLICES)), too_many(2, 1));
    assert_eq!(
        refused(Operation::Send, Payload::Inline(&[0; 33])),
        too_long(33, 32)
    );
    assert_eq!(refused(read, Payload::Inline(b"a")), too_long(1, 0));
    assert_eq!(refused(inline, Payload::Inline(b"a")), too_long(1, 0));
    let long = [Sge {
        length: (1 << 30) + 1,
        ..SLICES[0]
    }];
    let (given, max) = (long[0].length.into(), 1 << 30);
    let refusal = Err(PostError::MessageTooLong { given, max });
    assert_eq!(refused(inline, Payload::Sges(&long)), refusal);
    let swap = Operation::CompareSwap {
        remote: REMOTE,
        compare: 0,
        swap: 1,
    };
    let transport = QpType::DRIVER;
    let lacks = Err(PostError::NotInTransport { transport });
    assert_eq!(refused(swap, Payload::Sges(&SLICES[..1])), lacks);
    for flag in [SendFlags::FENCE, SendFlags::SOLICITED, SendFlags::IP_CSUM] {
        let flags = SendFlags::SIGNALED | flag;
        let flagged = batch.write(1, flags, Operation::Send, to(), Payload::Inline(b""));
        assert_eq!(flagged, lacks, "{flag:?}");
    }
    let nowhere = batch.write(
        1,
        SendFlags::empty(),
        Operation::Send,
        None,
        Payload::Inline(b""),
    );
    assert_eq!(nowhere, Err(PostError::Destination));
    assert_eq!((batch.pending(), device.rung()), (0, 0));
}

/// Would catch a region that is deregistered while a request in the device's ring names it.
#[test]
fn the_keys_of_requests_are_noted() {
    let (mut queue, ledger, _device) = send_queue(QpType::DRIVER, &CAP, &LIMITS);
    let mut batch = sending(&mut queue);
    write(&mut batch, 1, Operation::Send, Payload::Sges(&SLICES)).unwrap();
    batch.ring().unwrap();
    assert!(ledger.names(ledger.progress(), 0x12_3456) && ledger.names(ledger.progress(), 7));
    assert!(!ledger.names(ledger.progress(), REMOTE.rkey.0));
    ledger.finish(0).unwrap();
    assert_eq!(ledger.progress().finished(), 1);
}

#[test]
fn a_queue_begins_again_after_a_reset() {
    let (mut queue, _, device) = send_queue(QpType::DRIVER, &CAP, &LIMITS);
    for _ in 0..2 {
        let mut batch = sending(&mut queue);
        for _ in 0..3 {
            write(&mut batch, 1, Operation::Send, Payload::Inline(b"")).unwrap();
        }
        batch.ring().unwrap();
        assert_eq!(seen(&device, 3), [(0, 0), (0, 1), (0, 2)]);
        assert_eq!(device.rung(), 3);
        let depth = queue.layout().depth;
        queue.reset(std::sync::Arc::new(super::NumberedLedger::new(depth, 0)));
        assert_eq!(queue.in_flight(), 0);
    }
}

/// The structs agree with what the helpers above write by hand.
#[test]
fn structs_are_as_their_bytes() {
    let written = Slice {
        length: SLICES[0].length.into(),
        lkey: SLICES[0].lkey.into(),
        address: SLICES[0].addr.into(),
    };
    assert_eq!(written.as_bytes(), slice(SLICES[0]));
    let remote = RemoteAddress {
        length: 3.into(),
        rkey: REMOTE.rkey.0.into(),
        address: REMOTE.address.into(),
    };
    assert_eq!(remote.as_bytes(), there(3));
}
