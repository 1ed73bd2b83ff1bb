//! What is ordered before what, and what a queue says of its requests when the device learns of them.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use uverbs_uapi::enums::QpType;
use uverbs_uapi::flags::SendFlags;
use uverbs_uapi::types::QpCap;

use super::super::Limits;
use super::super::order::{Step, watch::watch};
use super::completions::{post, ring, sent};
use super::sends::to;
use super::{CAP, LIMITS, recv_queue, send_queue};
use crate::driver::contract::{RecvQueue as _, receiving, sending};
use crate::driver::kit::ledger::NumberedLedger;
use crate::work::{LocalSlice, Operation, Payload};

/// Watches the steps of this thread. At each store to a register the ledger must already know of that many
/// requests.
fn steps(ledger: Option<Arc<NumberedLedger>>) -> Rc<RefCell<Vec<Step>>> {
    let steps = Rc::new(RefCell::default());
    let noted = Rc::clone(&steps);
    watch(move |step| {
        if let (Step::Stored(count), Some(ledger)) = (step, &ledger) {
            assert!(ledger.posted() >= count, "the device knows of more");
        }
        let noted: &RefCell<Vec<Step>> = &noted;
        noted.borrow_mut().push(step);
    });
    steps
}

/// Would catch a doorbell before its requests have left the CPU, requests that mix with earlier stores, a
/// part of a batch without a doorbell, and one that the device may finish before the ledger knows of it.
#[test]
fn requests_have_left_before_their_doorbell() {
    use Step::{Copied, Flushed, Stored, Written};
    let in_parts = Limits {
        max_batch_blocks: 3,
        ..LIMITS
    };
    let whole = [Copied(0), Copied(1), Copied(2), Copied(3), Flushed];
    let parts = [
        Copied(0),
        Copied(1),
        Copied(2),
        Flushed,
        Stored(3),
        Written,
        Copied(3),
        Flushed,
    ];
    for (limits, expected) in [(LIMITS, &whole[..]), (in_parts, &parts)] {
        let (mut queue, ledger, _device) = send_queue(QpType::DRIVER, &CAP, &limits);
        let seen = steps(Some(ledger));
        let mut batch = sending(&mut queue);
        for wr_id in 0..4 {
            let payload = Payload::Inline(b"");
            let written = batch.write(wr_id, SendFlags::empty(), Operation::Send, to(), payload);
            assert_eq!(written, Ok(()));
        }
        assert_eq!(*seen.borrow(), [], "before the batch is rung");
        assert_eq!(batch.ring(), Ok(4));
        let expected = [&[Written], expected, &[Stored(4)]].concat();
        assert_eq!(*seen.borrow(), expected);
    }
}

/// Would catch a doorbell before the descriptors that it announces.
#[test]
fn receives_are_written_before_their_doorbell() {
    let one = QpCap {
        max_recv_sge: 1,
        ..CAP
    };
    let (mut queue, ledger, _device) = recv_queue(&one);
    let seen = steps(Some(ledger));
    let mut batch = receiving(&mut queue);
    let none: &[LocalSlice<'_>] = &[];
    batch.write(1, none).unwrap();
    batch.write(2, none).unwrap();
    assert_eq!(*seen.borrow(), []);
    batch.ring();
    assert_eq!(*seen.borrow(), [Step::Written, Step::Stored(2)]);
    assert_eq!(queue.in_flight(), 2);
}

/// Would catch fields that are read before the phase says that they are there, and an entry that the device
/// gets back while it is read.
#[test]
fn an_entry_is_read_behind_its_phase_and_then_told() {
    use Step::{Arrived, Read, Stored, Taken};
    let mut ring = ring(1);
    let (_queue, ledger) = ring.register(0, false);
    for number in post(&ledger, 0..2, true) {
        ring.write(0, sent(number, 0));
    }
    let seen = steps(None);
    assert_eq!(ring.ids(), [0, 1]);
    let one = |count| [Arrived, Read, Read, Taken, Stored(count)];
    assert_eq!(*seen.borrow(), [one(1), one(2)].concat());
}
