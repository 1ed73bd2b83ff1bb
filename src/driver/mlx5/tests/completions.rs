//! Taking completions: laps, ids, statuses, and what makes no sense.

use std::sync::Arc;

use proptest::prelude::*;
use uverbs_uapi::enums::{QpType, WcOpcode, WcStatus};
use zerocopy::FromBytes;

use super::super::completion::Completion;
use super::super::cq::Cq;
use super::super::format::{Be32, Cqe, cqe};
use super::device::{Pair, cap, completion, cq, take};
use crate::driver::contract::methods::*;
use crate::driver::contract::receiving;
use crate::work::{LocalKey, LocalSlice, PdTag, PollError, PostError};

fn send(pair: &mut Pair, id: u64) {
    pair.send_nothing(id).unwrap();
}

/// Would catch an overrun that nobody hears of because an entry of the same poll makes no sense, or the other
/// way round.
#[test]
fn an_overrun_is_reported_before_other_errors() {
    let (mut cq, mut producer) = cq(15, 64);
    for overruns_first in [true, false] {
        producer.write(completion(cqe::REQ, 5, 0));
        if overruns_first {
            Cq::overran(cq.core());
        }
        assert!(take(&mut cq).is_none());
        if !overruns_first {
            Cq::overran(cq.core());
        }
        assert_eq!(cq.told(), Err(PollError::Overrun), "{overruns_first}");
        assert_eq!(cq.told(), Ok(()));
    }
}

/// Would catch an owner bit that is read wrongly in some lap, for any size of ring and entry.
#[test]
fn the_owner_bit_turns_with_every_lap() {
    for size in [64, 128] {
        for log in 1..9 {
            let (mut cq, mut producer) = cq((1 << log) - 1, size);
            let mut pair = Pair::new(QpType::RC, cap(4, 1, 0), &cq, &cq);
            for turn in 0..5_u64 << log {
                assert!(
                    take(&mut cq).is_none() && cq.is_empty() == Ok(true),
                    "before it was written"
                );
                send(&mut pair, turn);
                producer.write(completion(cqe::REQ, pair.number, turn as u16));
                let taken = take(&mut cq).unwrap();
                assert_eq!((taken.wr_id(), taken.status()), (turn, WcStatus::SUCCESS));
            }
        }
    }
}

/// Would catch a full ring that is read as an empty one, or one entry of which is lost.
#[test]
fn a_full_ring_is_taken_whole() {
    let (mut cq, mut producer) = cq(15, 64);
    let mut pair = Pair::new(QpType::RC, cap(64, 1, 0), &cq, &cq);
    for lap in 0..3_u64 {
        for at in 0..16 {
            send(&mut pair, lap * 16 + at);
            producer.write(completion(cqe::REQ, pair.number, (lap * 16 + at) as u16));
        }
        let taken: Vec<u64> = std::iter::from_fn(|| take(&mut cq))
            .map(|c| c.wr_id())
            .collect();
        assert_eq!(taken, (lap * 16..lap * 16 + 16).collect::<Vec<_>>());
    }
}

/// Would catch a poll that never ends while the device writes on, one that ends before it has been round, and
/// one that continues where an earlier one would have ended, whether its completions are simple or not; and
/// an entry that the device's record of the consumer's index does not count, or counts twice.
#[test]
fn a_poll_goes_round_the_ring_once() {
    for (ring, size) in [(8, 64), (8, 128), (512, 64)] {
        let (mut cq, mut producer) = cq(ring as u32 - 1, size);
        let mut pair = Pair::new(QpType::RC, cap(2048, 1, 0), &cq, &cq);
        let core = Arc::clone(cq.core());
        let (mut written, mut taken) = (0, 0);
        let mut finish = || {
            send(&mut pair, written);
            let kind = match written % 3 {
                0 => cqe::REQ_ERR,
                _ => cqe::REQ,
            };
            producer.write(completion(kind, pair.number, written as u16));
            written += 1;
        };
        let mut check = |completion: Option<Completion>| {
            assert_eq!(completion.unwrap().wr_id(), taken);
            taken += 1;
            assert_eq!(u64::from(core.directory.passed()), taken);
        };
        for early in (0..=ring).cycle().step_by(ring / 8).take(100) {
            (0..early).for_each(|_| finish());
            let mut polled = cq.begin();
            (0..early).for_each(|_| check(polled.next()));
            (0..ring).for_each(|_| finish());
            let mut polled = cq.begin();
            for _ in 0..ring {
                check(polled.next());
                finish();
            }
            assert!(polled.next().is_none() && polled.next().is_none());
            (0..ring).for_each(|_| check(take(&mut cq)));
            assert!(take(&mut cq).is_none());
        }
    }
}

/// Would catch a completion that C programs get with other fields than the crate's.
#[cfg(feature = "c-abi")]
#[test]
fn c_programs_get_all_that_a_completion_tells() {
    use std::mem::MaybeUninit;

    use uverbs_uapi::types::Wc;

    use super::super::format::{Be16, opcode};

    let (mut cq, mut producer) = cq(63, 64);
    let mut pair = Pair::new(QpType::RC, cap(64, 1, 0), &cq, &cq);
    let sent = [
        opcode::SEND,
        opcode::SEND_IMM,
        opcode::SEND_INVAL,
        opcode::RDMA_WRITE,
        opcode::RDMA_WRITE_IMM,
        opcode::RDMA_READ,
        opcode::ATOMIC_CS,
        opcode::ATOMIC_FA,
        opcode::UMR,
    ];
    let received = cqe::RESP_WR_IMM..=cqe::RESP_SEND_INV;
    let sends = sent.map(|operation| (cqe::REQ, operation));
    let mut counter = 0_u16;
    for (kind, operation) in sends.into_iter().chain(received.map(|kind| (kind, 0))) {
        let mut entry = completion(kind, pair.number, 0);
        entry.sop_drop_qpn = Be32::new(u32::from(operation) << 24 | 0x1234);
        entry.byte_cnt = Be32::new(77);
        entry.imm_inval_pkey = [1, 2, 3, 4];
        entry.flags_rqpn = Be32::new(0x1500_4321);
        entry.slid = Be16::new(0x567);
        entry.ml_path = 0xff;
        (entry.syndrome, entry.vendor_err_synd) = (0x89, 0x45);
        for _ in 0..3 {
            send(&mut pair, 9);
            let mut recv = receiving(pair.recv.as_mut().unwrap());
            recv.write(9, &[]).unwrap();
            recv.ring();
            entry.wqe_counter = Be16::new(counter);
            producer.write(entry);
            counter += 1;
        }
        let wcs = [(); 2].map(|()| *take(&mut cq).unwrap().write_to(&mut MaybeUninit::uninit()));
        let told = take(&mut cq).unwrap();
        let mut expected = Wc {
            wr_id: 9,
            status: WcStatus::SUCCESS.0,
            opcode: told.opcode().0,
            byte_len: told.byte_len(),
            qp_num: 0x1234,
            ..Wc::default()
        };
        if kind != cqe::REQ {
            expected.ex = told.ex();
            expected.src_qp = 0x4321;
            expected.wc_flags = told.flags().bits();
            expected.pkey_index = told.pkey_index();
            (expected.slid, expected.sl, expected.dlid_path_bits) = (0x567, 5, 0x7f);
        }
        for wc in wcs {
            assert_eq!(
                format!("{wc:?}"),
                format!("{expected:?}"),
                "{kind} {operation}"
            );
        }
    }
}

/// Would catch requests that stay in the queue's count although a later one has completed.
#[test]
fn unsignaled_requests_finish_with_the_next_completion() {
    let (mut cq, mut producer) = cq(15, 64);
    let mut pair = Pair::new(QpType::RC, cap(8, 1, 0), &cq, &cq);
    for id in 0..5 {
        send(&mut pair, id);
    }
    assert_eq!(pair.send.in_flight(), 5);
    producer.write(completion(cqe::REQ, pair.number, 3));
    assert_eq!(take(&mut cq).unwrap().wr_id(), 3);
    assert_eq!(pair.send.in_flight(), 1);
}

/// Would catch ids that are mixed up between the queue pairs of a completion queue, or between sends and
/// receives.
#[test]
fn one_queue_serves_many_queue_pairs() {
    let (mut cq, mut producer) = cq(255, 64);
    let mut pairs: Vec<Pair> = (0..20)
        .map(|_| Pair::new(QpType::RC, cap(4, 1, 0), &cq, &cq))
        .collect();
    for (index, pair) in pairs.iter_mut().enumerate() {
        send(pair, index as u64);
        let mut recv = receiving(pair.recv.as_mut().unwrap());
        recv.write(1000 + index as u64, &[]).unwrap();
        recv.ring();
    }
    for pair in pairs.iter().rev() {
        producer.write(completion(cqe::RESP_SEND, pair.number, 0));
        producer.write(completion(cqe::REQ, pair.number, 0));
    }
    for index in (0..20).rev() {
        assert_eq!(take(&mut cq).unwrap().wr_id(), 1000 + index);
        assert_eq!(take(&mut cq).unwrap().wr_id(), index);
    }
    assert!(take(&mut cq).is_none());
}

/// For a queue pair that takes packets in any order, would catch receives with the ids of others, a place
/// that is given out while the device has it, and an unfinished request that counts as finished.
#[test]
fn loose_receives_finish_where_the_device_says() {
    let (mut cq, mut producer) = cq(63, 64);
    let mut pair = Pair::loose(QpType::RC, cap(4, 1, 0), &cq);
    let post = |pair: &mut Pair, id: u64| -> Result<(), PostError> {
        let mut recv = receiving(pair.recv.as_mut().unwrap());
        let key = LocalKey(id as u32);
        recv.write(id, &[LocalSlice::new(0x1000, 8, key, PdTag::new(3, 1))])?;
        recv.ring();
        Ok(())
    };
    let mut receive = |pair: &Pair, request: u64| {
        producer.write(completion(cqe::RESP_SEND, pair.number, request as u16));
        assert_eq!(take(&mut cq).map(|taken| taken.wr_id()), Some(request));
    };
    let receives = |pair: &Pair| pair.core.receives().unwrap().in_flight();
    for id in 0..4 {
        post(&mut pair, id).unwrap();
    }
    let full = Err(PostError::QueueFull { capacity: 4 });
    assert_eq!(post(&mut pair, 4), full);
    // In pairs, round the ring.
    for id in (0..40).step_by(2) {
        receive(&pair, id + 1);
        assert_eq!(receives(&pair), 4, "the first is not finished");
        receive(&pair, id);
        assert_eq!(receives(&pair), 2);
        for next in [id + 4, id + 5] {
            post(&mut pair, next).unwrap();
        }
    }
    // One stays unfinished until its place is needed.
    for id in 41..45 {
        receive(&pair, id);
        if id < 44 {
            post(&mut pair, id + 3).unwrap();
        }
    }
    post(&mut pair, 47).unwrap();
    assert_eq!(receives(&pair), 8);
    let named = |key: u32| {
        let in_flight = pair.core.receives().unwrap();
        pair.core.receives_name(in_flight, LocalKey(key))
    };
    assert_eq!(
        [40, 42, 44, 45, 47].map(named),
        [true, false, false, true, true]
    );
    assert_eq!(post(&mut pair, 48), full);
    receive(&pair, 40);
    assert_eq!(receives(&pair), 3);
}

/// Would catch a field that is read from a wrong place.
#[test]
fn fields_are_where_the_device_puts_them() {
    let (mut cq, mut producer) = cq(15, 64);
    let mut pair = Pair::new(QpType::UD, cap(4, 1, 0), &cq, &cq);
    for id in 0..3 {
        let mut recv = receiving(pair.recv.as_mut().unwrap());
        recv.write(id, &[]).unwrap();
        recv.ring();
    }
    let mut entry = completion(cqe::RESP_SEND_IMM, pair.number, 0);
    entry.imm_inval_pkey = [1, 2, 3, 4];
    entry.byte_cnt = Be32::new(99);
    entry.flags_rqpn = Be32::new(1 << 28 | 0x5 << 24 | 0x0a_0b0c);
    entry.slid = 0x1234.into();
    entry.ml_path = 0x83;
    producer.write(entry);
    let taken = take(&mut cq).unwrap();
    assert_eq!(u32::from_be(taken.ex()), 0x0102_0304);
    assert_eq!(
        (taken.byte_len(), taken.src_qp(), taken.sl()),
        (99, 0x0a_0b0c, 5)
    );
    assert_eq!((taken.slid(), taken.dlid_path_bits()), (0x1234, 3));
    assert_eq!(taken.opcode(), WcOpcode::RECV);
    assert!(taken.flags().contains(uverbs_uapi::flags::WcFlags::GRH));

    let mut entry = completion(cqe::RESP_SEND_INV, pair.number, 0);
    entry.imm_inval_pkey = 0x99_u32.to_be_bytes();
    producer.write(entry);
    assert_eq!(take(&mut cq).unwrap().ex(), 0x99);

    let mut entry = completion(cqe::RESP_ERR, pair.number, 0);
    (entry.syndrome, entry.vendor_err_synd) = (0x05, 0x7b);
    producer.write(entry);
    let taken = take(&mut cq).unwrap();
    assert_eq!(
        (taken.status(), taken.vendor_err()),
        (WcStatus::WR_FLUSH_ERR, 0x7b)
    );
    assert_eq!(taken.wr_id(), 2);
}

/// Would catch an atomic operation whose length is a leftover in the entry.
#[test]
fn an_atomic_operation_reads_eight_bytes() {
    let (mut cq, mut producer) = cq(15, 64);
    let mut pair = Pair::new(QpType::RC, cap(4, 1, 0), &cq, &cq);
    for (index, (opcode, bytes)) in [(0x11, 8), (0x12, 8), (0x10, 99)].into_iter().enumerate() {
        send(&mut pair, 0);
        let mut entry = completion(cqe::REQ, pair.number, index as u16);
        entry.sop_drop_qpn = Be32::new(opcode << 24);
        entry.byte_cnt = Be32::new(99);
        producer.write(entry);
        assert_eq!(take(&mut cq).unwrap().byte_len(), bytes);
    }
}

/// Would catch nonsense that passes for a completion, that is not reported, or that stops the queue.
#[test]
fn nonsense_is_told_once_and_passed_over() {
    let (mut cq, mut producer) = cq(15, 64);
    let mut pair = Pair::new(QpType::RC, cap(4, 1, 0), &cq, &cq);
    send(&mut pair, 9);
    let strays = [
        (completion(cqe::REQ, 77, 0), PollError::Stray { number: 77 }),
        (
            completion(0x7, pair.number, 0),
            PollError::Unknown { code: 7 },
        ),
    ];
    for (entry, error) in strays {
        producer.write(entry);
        assert!(take(&mut cq).is_none());
        assert_eq!(cq.told(), Err(error));
        assert_eq!(cq.told(), Ok(()));
    }
    producer.write(completion(cqe::REQ, pair.number, 0));
    assert_eq!(take(&mut cq).unwrap().wr_id(), 9);
}

/// Would catch a doorbell that arms at the wrong index, or twice with the same number after an event.
#[test]
fn arming_names_the_place_and_counts_the_events() {
    use std::sync::atomic::Ordering;
    let (mut cq, mut producer) = cq(15, 64);
    let mut pair = Pair::new(QpType::RC, cap(4, 1, 0), &cq, &cq);
    send(&mut pair, 1);
    producer.write(completion(cqe::REQ, pair.number, 0));
    take(&mut cq).unwrap();
    for (events, solicited, word) in [
        (0, false, 1),
        (1, true, 0x1100_0001),
        (5, false, 0x1000_0001),
    ] {
        cq.core().events.store(events, Ordering::Relaxed);
        cq.core().ask(solicited);
        let doorbell = cq.uar().stored::<8>(0x20);
        assert_eq!(
            u64::from_be_bytes(doorbell),
            u64::from(word as u32) << 32 | 0x77
        );
    }
}

proptest! {
    /// Would catch a panic, or memory touched elsewhere, whatever a device writes.
    #[test]
    fn whatever_a_device_writes_is_an_error_or_a_completion(
        entries in prop::collection::vec(prop::array::uniform32(any::<u16>()), 1..40)
    ) {
        let (mut cq, mut producer) = cq(63, 64);
        let mut pair = Pair::new(QpType::RC, cap(4, 1, 0), &cq, &cq);
        send(&mut pair, 1);
        for words in entries {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            let mut entry = Cqe::read_from_bytes(&bytes).unwrap();
            entry.srqn_uidx = Be32::new(entry.srqn_uidx.get() % 3);
            producer.write(entry);
            let _ = cq.told();
            if let Some(taken) = take(&mut cq) {
                let _ = (taken.status(), taken.opcode(), taken.flags(), taken.ex(), taken.byte_len());
            }
        }
    }
}
