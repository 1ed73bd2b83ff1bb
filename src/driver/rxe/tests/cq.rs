//! Completions as they lie in the ring, those that no kernel would write too.

use std::sync::Arc;

use proptest::prelude::*;
use uverbs_uapi::enums::{WcOpcode, WcStatus};
use uverbs_uapi::flags::WcFlags;
use uverbs_uapi::types::Wc;
use zerocopy::FromBytes;

use super::memory::*;
use super::ring::consumer;
use crate::driver;
#[cfg(feature = "c-abi")]
use crate::driver::contract::methods::*;
use crate::driver::rxe::cq::Cq;
use crate::wc::Completion;
use crate::work::{CompletionError, PollError, RemoteKey};

/// x86's size of a completion slot.
const LOG2: u32 = 7;

fn cq(memory: &Arc<Memory>) -> driver::Cq {
    let ring = consumer(memory, size_of::<Wc>()).unwrap();
    let capacity = ring.capacity();
    driver::Cq::Rxe(Cq::new(ring, capacity, None))
}

/// Takes the completion of a ring that the kernel has put `wc` into, and looks at it.
fn with_completion<R>(wc: Wc, look: impl FnOnce(&Completion) -> R) -> R {
    let memory = Memory::ring(4, LOG2);
    assert!(KernelProducer::new(&memory).put(wc));
    let mut cq = cq(&memory);
    let mut completions = cq.poll().unwrap();
    let raw = completions.next().unwrap();
    look(&Completion::new(raw))
}

#[test]
fn every_field_is_read_from_its_place() {
    let wc = Wc {
        wr_id: 0x0102_0304_0506_0708,
        status: 0,
        opcode: WcOpcode::RECV.0,
        vendor_err: 3,
        byte_len: 4,
        ex: 5,
        qp_num: 6,
        src_qp: 7,
        wc_flags: 0,
        pkey_index: 8,
        slid: 9,
        sl: 10,
        dlid_path_bits: 11,
        port_num: 12,
        reserved: 0,
    };
    with_completion(wc, |completion| {
        assert_eq!(completion.wr_id(), 0x0102_0304_0506_0708);
        assert_eq!(completion.result(), Ok(WcOpcode::RECV));
        assert!(completion.is_recv() && !completion.has_grh());
        assert_eq!(completion.vendor_err(), 3);
        assert_eq!(completion.byte_len(), 4);
        assert_eq!(
            (completion.imm(), completion.invalidated_rkey()),
            (None, None)
        );
        assert_eq!((completion.qp_num(), completion.src_qp()), (6, 7));
        assert_eq!((completion.pkey_index(), completion.slid()), (8, 9));
        assert_eq!((completion.sl(), completion.dlid_path_bits()), (10, 11));
    });
}

#[test]
fn a_failure_says_what_failed() {
    let wc = Wc {
        wr_id: 1,
        status: WcStatus::RETRY_EXC_ERR.0,
        vendor_err: 0x81,
        qp_num: 17,
        ..Wc::default()
    };
    let error = with_completion(wc, |completion| completion.result().unwrap_err());
    let expected = CompletionError {
        status: WcStatus::RETRY_EXC_ERR,
        vendor_err: 0x81,
        wr_id: 1,
        qp_num: 17,
    };
    assert_eq!(error, expected);
    assert!(
        error.to_string().contains("retries are exhausted"),
        "{error}"
    );
}

#[test]
fn an_invalidated_key_is_told_as_such_and_not_as_a_good_checksum() {
    // What rxe writes on a SEND_WITH_INV: the GRH flag, and the kernel's own bit 2.
    let wc = Wc {
        wc_flags: 0b101,
        ex: 0x1234_5678,
        ..Wc::default()
    };
    with_completion(wc, |completion| {
        assert_eq!(completion.flags(), WcFlags::GRH | WcFlags::WITH_INV);
        assert_eq!(completion.invalidated_rkey(), Some(RemoteKey(0x1234_5678)));
        assert_eq!(completion.imm(), None);
    });
}

#[test]
fn immediate_data_comes_in_network_byte_order() {
    let wc = Wc {
        wc_flags: WcFlags::WITH_IMM.bits(),
        ex: u32::from_ne_bytes([1, 2, 3, 4]),
        ..Wc::default()
    };
    with_completion(wc, |completion| {
        assert_eq!(completion.imm(), Some(0x0102_0304));
        assert_eq!(completion.invalidated_rkey(), None);
    });
}

#[cfg(feature = "c-abi")]
#[test]
fn a_shown_completion_keeps_its_slot_until_the_next_is_shown() {
    let memory = Memory::ring(4, LOG2);
    let mut kernel = KernelProducer::new(&memory);
    let mut put = |wr_id| {
        let wc = Wc {
            wr_id,
            ..Wc::default()
        };
        kernel.put(wc)
    };
    let mut cq = Cq::new(consumer(&memory, size_of::<Wc>()).unwrap(), 3, None);
    let show = |cq: &mut Cq| {
        let shown = cq.show_next().unwrap().map(|completion| completion.wr_id());
        assert_eq!(shown, cq.shown().map(|completion| completion.wr_id()));
        (shown, cq.count().unwrap())
    };
    assert_eq!(show(&mut cq), (None, 0));
    assert!(put(1) && put(2));
    assert_eq!(show(&mut cq), (Some(1), 2));
    assert!(put(3), "behind the start");
    assert_eq!(show(&mut cq), (Some(2), 2));
    assert_eq!(show(&mut cq), (Some(3), 1));
    cq.hide();
    assert_eq!(cq.count(), Ok(0));
    cq.hide();
    assert_eq!(show(&mut cq), (None, 0));
    assert!(put(4));
    assert_eq!(show(&mut cq), (Some(4), 1));
    assert_eq!(show(&mut cq), (None, 0));
}

#[test]
fn an_index_beyond_the_ring_is_an_error() {
    let memory = Memory::ring(4, LOG2);
    let mut cq = cq(&memory);
    memory.set(PRODUCER_INDEX, 4);
    let error = PollError::Index {
        index: 4,
        highest: 3,
    };
    assert_eq!(cq.poll().err(), Some(error));
}

/// Calls everything that a completion has.
fn exercise(completion: &Completion) {
    let text = format!("{completion:?} {:?}", completion.opcode());
    assert!(text.contains("wr_id"), "{text}");
    if let Err(error) = completion.result() {
        assert!(error.to_string().contains("failed"), "{error}");
    }
    let flags = completion.flags();
    assert_eq!(
        completion.imm().is_some(),
        flags.contains(WcFlags::WITH_IMM)
    );
    assert_eq!(
        completion.invalidated_rkey().is_some(),
        flags.contains(WcFlags::WITH_INV)
    );
    assert!(!flags.contains(WcFlags::IP_CSUM_OK));
    assert_eq!(completion.has_grh(), flags.contains(WcFlags::GRH));
    let _ = (completion.vendor_err(), completion.byte_len());
    let _ = (completion.qp_num(), completion.src_qp(), completion.slid());
    let _ = (completion.pkey_index(), completion.sl());
    let _ = (completion.dlid_path_bits(), completion.is_recv());
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 16 } else { 2_000 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Seven completions of random bytes each: 14,000 in all.
    #[test]
    fn random_completions_and_indices_never_panic(
        contents in prop::collection::vec(any::<[u8; 48]>(), 7),
        small in any::<bool>(),
        index: u32,
    ) {
        let memory = Memory::ring(8, LOG2);
        let mut kernel = KernelProducer::new(&memory);
        let mut cq = cq(&memory);
        for content in contents {
            let mut wc = Wc::read_from_bytes(&content).unwrap();
            if small {
                // Numbers near those that the kernel has.
                (wc.status, wc.opcode) = (wc.status % 32, wc.opcode % 256);
            }
            prop_assert!(kernel.put(wc));
        }
        let mut taken = 0;
        for raw in cq.poll().unwrap() {
            exercise(&Completion::new(raw));
            taken += 1;
        }
        prop_assert_eq!(taken, 7);

        memory.set(PRODUCER_INDEX, index);
        prop_assert_eq!(cq.poll().is_ok(), index < 8);
    }
}
