//! Inline scatter: data in completions go where their requests want them, and nowhere else, whatever the
//! device claims.

use std::sync::Arc;

use proptest::prelude::*;
use uverbs_uapi::enums::{QpType, WcStatus};
use uverbs_uapi::flags::SendFlags;

use super::super::cq::Cq;
use super::super::format::{Be32, Cqe, cqe, opcode};
use super::super::ledger::SendLedger;
use super::device::{Pair, Producer, cap, completion, cq, take};
use crate::driver::contract::methods::*;
use crate::driver::contract::receiving;
use crate::work::{LocalKey, LocalSlice, Operation, Payload, PdTag, PollError, Remote, RemoteKey};

/// What no test writes.
const UNTOUCHED: u8 = 0xa5;

/// Memory to receive into, with room around.
struct Buffer(Vec<u8>);

impl Buffer {
    fn new() -> Self {
        Self(vec![UNTOUCHED; 256])
    }

    /// A slice of it.
    fn slice(&mut self, start: usize, length: u32) -> LocalSlice<'static> {
        LocalSlice::new(
            self.0.as_mut_ptr().expose_provenance() as u64 + start as u64,
            length,
            LocalKey(0x1234),
            PdTag::new(3, 1),
        )
    }

    fn is_untouched(&self) -> bool {
        self.0.iter().all(|byte| *byte == UNTOUCHED)
    }

    /// Clears the bytes in that range, so that the rest can be compared.
    fn take(&mut self, start: usize, length: usize) -> Vec<u8> {
        let range = start..start + length;
        let bytes = self.0[range.clone()].to_vec();
        self.0[range].fill(UNTOUCHED);
        bytes
    }
}

/// Where data lie.
#[derive(Clone, Copy, Debug)]
enum Format {
    Bytes32,
    Bytes64,
}

/// Writes a completion with data, which claims to have `claimed` bytes.
fn write(producer: &mut Producer, mut entry: Cqe, data: &[u8], claimed: u32, format: Format) {
    entry.byte_cnt = Be32::new(claimed);
    match format {
        Format::Bytes32 => {
            let bytes = zerocopy::IntoBytes::as_mut_bytes(&mut entry);
            // Leftovers that must not pass for a source.
            bytes[..32].fill(0xff);
            bytes[..data.len()].copy_from_slice(data);
            entry.op_own |= cqe::SCATTERED_32;
        }
        Format::Bytes64 => {
            producer.write_before(data);
            entry.op_own |= cqe::SCATTERED_64;
        }
    }
    producer.write(entry);
}

fn receive(pair: &mut Pair, id: u64, slices: &[LocalSlice<'_>]) {
    let mut recv = receiving(pair.recv.as_mut().unwrap());
    recv.write(id, slices).unwrap();
    recv.ring();
}

fn pair(cq: &Cq) -> Pair {
    Pair::inline(QpType::RC, cap(4, 3, 0), cq)
}

/// Catches bytes that are lost, in the wrong slice, or written behind their end, in either format and size of
/// entry, on every lap of the ring, whether the device counts on there or tells elements; and left-over of
/// the data that passes for where a message came from.
#[test]
fn data_go_where_the_receive_wants_them() {
    for (size, format, most, mask) in [
        (64, Format::Bytes32, 32, u16::MAX),
        (128, Format::Bytes32, 32, 3),
        (128, Format::Bytes64, 64, u16::MAX),
        (128, Format::Bytes64, 64, 3),
    ] {
        let (mut cq, mut producer) = cq(3, size);
        let mut pair = pair(&cq);
        for length in 0..=most {
            let data: Vec<u8> = (1..=length as u8).collect();
            let mut buffer = Buffer::new();
            let slices = [
                buffer.slice(8, 5),
                buffer.slice(100, 0),
                buffer.slice(50, 60),
            ];
            receive(&mut pair, length as u64, &slices);
            let entry = completion(cqe::RESP_SEND, pair.number, length as u16 & mask);
            write(&mut producer, entry, &data, length as u32, format);
            let taken = take(&mut cq).unwrap();
            assert_eq!(
                (taken.wr_id(), taken.status(), taken.byte_len()),
                (length as u64, WcStatus::SUCCESS, length as u32)
            );
            if matches!(format, Format::Bytes32) {
                let source = (
                    taken.slid(),
                    taken.src_qp(),
                    taken.sl(),
                    taken.dlid_path_bits(),
                );
                assert_eq!(source, (0, 0, 0, 0));
                assert!(taken.flags().is_empty());
            }
            let head = length.min(5);
            let found = [buffer.take(8, head), buffer.take(50, length - head)].concat();
            assert_eq!(found, data, "{length} bytes, {format:?} of {size}");
            assert!(buffer.is_untouched());
        }
    }
}

/// Catches a copy beyond the slices or the entry, for a device that claims more than there is; and a queue
/// that continues with the id of another request.
#[test]
fn more_than_fits_is_an_error_and_is_not_copied() {
    for (size, format, length, claimed) in [
        (64, Format::Bytes32, 100, 33),
        (64, Format::Bytes32, 10, 11),
        (128, Format::Bytes64, 100, 65),
        (128, Format::Bytes64, 63, 64),
        (128, Format::Bytes64, 100, u32::MAX),
        (64, Format::Bytes32, 0, 1),
    ] {
        let (mut cq, mut producer) = cq(15, size);
        let mut pair = pair(&cq);
        let mut buffer = Buffer::new();
        for id in 0..2 {
            receive(&mut pair, id, &[buffer.slice(10, length)]);
        }
        let mut entry = completion(cqe::RESP_SEND, pair.number, 0);
        // A part of the timestamp.
        entry.vendor_err_synd = 9;
        write(&mut producer, entry, &[7; 32], claimed, format);
        let taken = take(&mut cq).unwrap();
        assert_eq!((taken.wr_id(), taken.status()), (0, WcStatus::LOC_LEN_ERR));
        assert_eq!((taken.vendor_err(), taken.timestamp()), (0, None));
        assert!(buffer.is_untouched());
        producer.write(completion(cqe::RESP_SEND, pair.number, 1));
        assert_eq!(take(&mut cq).unwrap().wr_id(), 1);
    }
}

/// Catches data that are copied for a request that the device does not have, or for a queue pair that has not
/// asked for it.
#[test]
fn what_makes_no_sense_is_told_and_not_copied() {
    type Spoil = fn(&mut Cqe);
    let nonsense: [(&str, Spoil); 5] = [
        ("another index", |entry| entry.wqe_counter = 1.into()),
        ("both formats", |entry| entry.op_own |= cqe::SCATTERED_64),
        ("a half that is not there", |entry| {
            entry.op_own ^= cqe::SCATTERED;
        }),
        ("a write", |entry| {
            entry.op_own = cqe::RESP_WR_IMM << 4 | cqe::SCATTERED_32;
        }),
        ("a send", |entry| entry.op_own = cqe::SCATTERED_32),
    ];
    for (name, spoil) in nonsense {
        let (mut cq, mut producer) = cq(15, 64);
        let mut pair = pair(&cq);
        let mut buffer = Buffer::new();
        receive(&mut pair, 5, &[buffer.slice(0, 64)]);
        pair.send_nothing(6).unwrap();
        let mut entry = completion(cqe::RESP_SEND, pair.number, 0);
        entry.byte_cnt = Be32::new(8);
        entry.op_own |= cqe::SCATTERED_32;
        spoil(&mut entry);
        let code = entry.op_own >> 4;
        producer.write(entry);
        assert!(take(&mut cq).is_none(), "{name}");
        assert_eq!(cq.told(), Err(PollError::Unknown { code }), "{name}");
        assert!(buffer.is_untouched(), "{name}");
    }
    for asked in [false, true] {
        let (mut cq, mut producer) = cq(15, 64);
        let mut buffer = Buffer::new();
        let mut pair = match asked {
            true => pair(&cq),
            false => Pair::new(QpType::RC, cap(4, 3, 0), &cq, &cq),
        };
        let mut recv = receiving(pair.recv.as_mut().unwrap());
        recv.write(1, &[buffer.slice(0, 64)]).unwrap();
        if !asked {
            recv.ring();
        }
        let entry = completion(cqe::RESP_SEND, pair.number, 0);
        write(&mut producer, entry, &[7; 8], 8, Format::Bytes32);
        assert!(take(&mut cq).is_none(), "not asked for, or not handed over");
        assert!(cq.told().is_err() && buffer.is_untouched());
    }
}

/// Catches a copy into memory that has gone back to its owner.
#[test]
fn forgotten_requests_get_nothing() {
    for reset in [false, true] {
        let (mut cq, mut producer) = cq(15, 64);
        let mut pair = pair(&cq);
        let mut buffer = Buffer::new();
        receive(&mut pair, 5, &[buffer.slice(0, 64)]);
        // The poller knows the queue pair from before.
        pair.send_nothing(6).unwrap();
        producer.write(completion(cqe::REQ, pair.number, 0));
        take(&mut cq).unwrap();
        let entry = completion(cqe::RESP_SEND, pair.number, 0);
        write(&mut producer, entry, &[7; 8], 8, Format::Bytes32);
        if reset {
            pair.core.reset(&mut pair.send, pair.recv.as_mut());
            assert!(take(&mut cq).is_none());
            assert!(buffer.is_untouched());
            // And it works again.
            receive(&mut pair, 8, &[buffer.slice(0, 64)]);
            let entry = completion(cqe::RESP_SEND, pair.number, 0);
            write(&mut producer, entry, &[9; 8], 8, Format::Bytes32);
            assert_eq!(take(&mut cq).unwrap().wr_id(), 8);
            assert_eq!(buffer.take(0, 8), [9; 8]);
        } else {
            pair.core.close();
            drop(pair);
            let taken = take(&mut cq).unwrap();
            assert_eq!((taken.wr_id(), taken.status()), (5, WcStatus::WR_FLUSH_ERR));
        }
        assert!(buffer.is_untouched());
    }
}

/// Catches a poller that reads a request's place in the ring when another thread may already be writing the
/// next request there: halfway through a reset.
#[test]
fn a_ring_that_starts_anew_is_not_looked_at() {
    let (mut cq, mut producer) = cq(15, 64);
    let mut pair = pair(&cq);
    let mut buffer = Buffer::new();
    let slices = [buffer.slice(0, 8)];
    let read = Operation::Read { remote: REMOTE };
    pair.post(read, Payload::Gather(&slices), (3, SendFlags::empty()))
        .unwrap();
    let mut entry = completion(cqe::REQ, pair.number, 0);
    entry.sop_drop_qpn = Be32::new(u32::from(opcode::RDMA_READ) << 24);
    write(&mut producer, entry, &[7; 8], 8, Format::Bytes32);
    pair.core.close();
    pair.send.reset(Arc::new(SendLedger::new(pair.blocks)));
    pair.send_nothing(4).unwrap();
    let taken = take(&mut cq).unwrap();
    assert_eq!((taken.wr_id(), taken.status()), (3, WcStatus::WR_FLUSH_ERR));
    assert!(buffer.is_untouched());
}

const REMOTE: Remote = Remote {
    address: 0x7000,
    rkey: RemoteKey(9),
};

/// Catches results of a READ or an atomic operation in the wrong place: their slices follow different
/// segments, and the request may wrap at the ring's end.
#[test]
fn what_comes_back_goes_where_the_request_wants_it() {
    let (mut cq, mut producer) = cq(15, 64);
    let mut pair = Pair::inline(QpType::RC, cap(4, 5, 0), &cq);
    let mut block = 0_u16;
    for turn in 0..40_u64 {
        let mut buffer = Buffer::new();
        let (operation, code) = match turn % 3 {
            0 => (Operation::Read { remote: REMOTE }, opcode::RDMA_READ),
            1 => {
                let add = Operation::FetchAdd {
                    remote: REMOTE,
                    add: 1,
                };
                (add, opcode::ATOMIC_FA)
            }
            _ => {
                let swap = Operation::CompareSwap {
                    remote: REMOTE,
                    compare: 1,
                    swap: 2,
                };
                (swap, opcode::ATOMIC_CS)
            }
        };
        let is_read = code == opcode::RDMA_READ;
        let slices: Vec<LocalSlice> = match is_read {
            true => (0..5).map(|at| buffer.slice(at * 40, 6)).collect(),
            false => vec![buffer.slice(3, 8)],
        };
        pair.post(
            operation,
            Payload::Gather(&slices),
            (turn, SendFlags::empty()),
        )
        .unwrap();
        let (_, posted) = pair.record();
        let mut entry = completion(cqe::REQ, pair.number, block);
        entry.sop_drop_qpn = Be32::new(u32::from(code) << 24);
        let length = if is_read { 29 } else { 8 };
        let data: Vec<u8> = (1..=length).collect();
        // The length of an atomic operation follows from its kind.
        let claimed = if is_read { length.into() } else { 99 };
        write(&mut producer, entry, &data, claimed, Format::Bytes32);
        let taken = take(&mut cq).unwrap();
        assert_eq!((taken.wr_id(), taken.status()), (turn, WcStatus::SUCCESS));
        let found: Vec<u8> = match is_read {
            true => (0..5)
                .flat_map(|at| buffer.take(at * 40, if at == 4 { 5 } else { 6 }))
                .collect(),
            false => buffer.take(3, 8),
        };
        assert_eq!(found, data, "turn {turn}");
        assert!(buffer.is_untouched());
        block = posted as u16;
        // The same once more reports a request that has completed.
        let mut entry = completion(cqe::REQ, pair.number, block.wrapping_sub(1));
        entry.op_own |= cqe::SCATTERED_32;
        producer.write(entry);
        assert!(take(&mut cq).is_none() && cq.told().is_err());
    }
}

/// Catches entries whose data are left in the old ring when the ring moves.
#[test]
fn data_move_with_a_resized_ring() {
    use super::super::entries::Entries;
    use super::super::memory::Memory;
    use crate::alloc::ResourceType;
    let (mut cq, mut producer) = cq(3, 128);
    let mut pair = pair(&cq);
    let mut buffer = Buffer::new();
    receive(&mut pair, 1, &[buffer.slice(0, 64)]);
    let entry = completion(cqe::RESP_SEND, pair.number, 0);
    write(&mut producer, entry, &[7; 64], 64, Format::Bytes64);
    let bytes = Entries::bytes(16, 128);
    let memory = Memory::new(bytes, 4096, ResourceType::MLX5_CQ, None).unwrap();
    let moved: Result<(), ()> = cq.resize(Entries::new(memory, 16, 128), Ok);
    moved.unwrap();
    assert_eq!(take(&mut cq).unwrap().wr_id(), 1);
    assert_eq!(buffer.take(0, 64), [7; 64]);
    assert!(buffer.is_untouched());
}

proptest! {
    /// Catches memory that is written outside of what was posted, whatever a device writes.
    #[test]
    fn nothing_is_written_but_what_was_posted(
        entries in prop::collection::vec((prop::array::uniform32(any::<u8>()), any::<u8>(), 0..80_u32, 0..6_u16), 1..40)
    ) {
        let (mut cq, mut producer) = cq(63, 128);
        let mut pair = pair(&cq);
        let mut buffer = Buffer::new();
        for id in 0..4 {
            receive(&mut pair, id, &[buffer.slice(20, 7), buffer.slice(40, 30)]);
        }
        let slice = buffer.slice(90, 20);
        let read = Operation::Read { remote: REMOTE };
        pair.post(read, Payload::Gather(&[slice]), (0, SendFlags::empty())).unwrap();
        for (data, op_own, claimed, counter) in entries {
            let mut entry = completion(0, pair.number, counter);
            entry.op_own = op_own;
            producer.write_before(&data);
            entry.reserved0.copy_from_slice(&data[..17]);
            entry.byte_cnt = Be32::new(claimed);
            producer.write(entry);
            let _ = cq.told();
            let _ = take(&mut cq);
        }
        for (start, length) in [(20, 7), (40, 30), (90, 20)] {
            buffer.take(start, length);
        }
        prop_assert!(buffer.is_untouched());
    }
}
