//! Which queue an entry belongs to, when queue pairs come, are reset, and go.

use std::sync::Arc;

use super::super::format::Entry;
use super::super::qp::ledgers;
use super::super::reporters::{Name, Registration};
use super::completions::{QPN, Ring, post, ring, sent};
use crate::driver::contract::Cq as _;
use crate::driver::kit::ledger::{About, NumberedLedger};
use crate::work::PollError;

fn complete(ring: &mut Ring, numbers: Vec<u16>) {
    for number in numbers {
        ring.write(0, sent(number, 0));
    }
}

/// Would catch completions that pass for those of a new queue pair with the same number.
#[test]
fn a_number_that_is_used_again_tells_old_completions_from_new_ones() {
    let mut ring = ring(1);
    let (old, old_ledger) = ring.register(0, false);
    complete(&mut ring, post(&old_ledger, 1..3, true));
    drop(old);
    let (_new, new_ledger) = ring.register(0, false);
    complete(&mut ring, post(&new_ledger, 11..13, true));
    assert_eq!(ring.ids(), [1, 2, 11, 12]);
    assert_eq!((old_ledger.in_flight(), new_ledger.in_flight()), (0, 0));
    complete(&mut ring, post(&new_ledger, 13..14, true));
    assert_eq!(ring.ids(), [13]);
}

/// The kernel may give the number to another queue pair before this side has said that the old one is gone.
#[test]
fn a_new_queue_pair_ends_the_old_one_of_its_number() {
    let mut ring = ring(1);
    let (old, old_ledger) = ring.register(0, false);
    complete(&mut ring, post(&old_ledger, 1..2, true));
    let (_new, new_ledger) = ring.register(0, false);
    complete(&mut ring, post(&new_ledger, 11..12, true));
    drop(old);
    assert_eq!(ring.ids(), [1, 11]);
    complete(&mut ring, post(&new_ledger, 12..13, true));
    assert_eq!(ring.ids(), [12]);
}

/// Would catch completions of the old queue pair that belong to nobody, or to the new one, which reports in
/// another ring.
#[test]
fn a_new_queue_pair_in_another_ring_ends_the_old_one_too() {
    let mut ring = ring(2);
    let (old, old_ledger) = ring.register(0, false);
    complete(&mut ring, post(&old_ledger, 1..3, true));
    let (_new, new_ledger) = ring.register(1, false);
    for number in post(&new_ledger, 11..13, true) {
        ring.write(1, sent(number, 0));
    }
    assert_eq!(ring.ids(), [11, 12, 1, 2]);
    drop(old);
    assert_eq!((old_ledger.in_flight(), new_ledger.in_flight()), (0, 0));
    for number in post(&new_ledger, 13..14, true) {
        ring.write(1, sent(number, 0));
    }
    assert_eq!(ring.ids(), [13]);
}

#[test]
fn what_was_reported_before_a_reset_is_passed_over() {
    let mut ring = ring(1);
    let (queue, before) = ring.register(0, false);
    complete(&mut ring, post(&before, 1..3, true));
    let after = Arc::new(NumberedLedger::new(64, 1));
    queue.replace(Arc::clone(&after));
    complete(&mut ring, post(&after, 11..12, true));
    assert_eq!(ring.ids(), [11]);
    assert!(Arc::ptr_eq(&queue.ledger(), &after));
    drop(queue);
    assert!(ring.ids().is_empty());
}

#[test]
fn a_queue_pair_that_is_gone_reports_no_more() {
    let mut ring = ring(1);
    let (queue, ledger) = ring.register(0, false);
    let numbers = post(&ledger, 1..3, true);
    ring.write(0, sent(numbers[0], 0));
    assert_eq!(ring.ids(), [1]);
    drop(queue);
    assert!(ring.ids().is_empty());
    ring.write(0, sent(numbers[1], 0));
    tells_of_a_stray(&mut ring);
}

/// A poll finds an entry that belongs to nobody, and the next one reports it.
fn tells_of_a_stray(ring: &mut Ring) {
    assert!(ring.ids().is_empty());
    assert!(matches!(ring.cq.poll(), Err(PollError::Stray { .. })));
}

/// Would catch changes that pile up while nobody polls, or when nobody will poll any more.
#[test]
fn queue_pairs_that_report_nothing_leave_nothing_behind() {
    let ring = ring(1);
    for _ in 0..100 {
        drop(ring.register(0, false));
    }
    let text = format!("{:?}", ring.cq.core().directory);
    assert!(!text.contains("Set"), "{text}");
    let (_queue, _) = ring.register(0, false);
    let core = Arc::clone(ring.cq.core());
    drop(ring);
    let text = format!("{:?}", core.directory);
    assert!(
        text.contains("is_closed: true") && !text.contains("Set"),
        "{text}"
    );
}

/// Would catch changes that pile up because the program polls by itself, and nobody here passes the entries.
#[cfg(feature = "c-abi")]
#[test]
fn queue_pairs_of_a_program_that_polls_by_itself_leave_nothing_behind() {
    let mut ring = ring(1);
    ring.cq.core().memory();
    for _ in 0..100 {
        let (queue, ledger) = ring.register(0, false);
        complete(&mut ring, post(&ledger, 1..2, true));
        queue.forget();
        drop(queue);
    }
    let text = format!("{:?}", ring.cq.core().directory);
    assert!(!text.contains("Set") && !text.contains("End"), "{text}");
}

/// Would catch a late completion of a queue pair that finishes a request of the next one with its number, for
/// queues so long that numbers have one bit left.
#[test]
fn numbers_of_one_queue_pair_differ_from_those_of_the_next() {
    let most = NumberedLedger::MOST;
    let number = |ledger: &NumberedLedger| ledger.note(0, 1, About::new(true), 0);
    let [sends, receives] = ledgers(most, most);
    let [next_sends, next_receives] = ledgers(most, most);
    assert_ne!(number(&sends), number(&next_sends));
    assert_ne!(number(&receives), number(&next_receives));
}

/// Completions that are dropped with their queue pair, as in libefa.
#[cfg(feature = "c-abi")]
#[test]
fn what_is_forgotten_goes_with_its_queue_pair() {
    let mut ring = ring(1);
    let (queue, ledger) = ring.register(0, false);
    complete(&mut ring, post(&ledger, 1..3, true));
    queue.forget();
    drop(queue);
    assert!(ring.ids().is_empty());
}

/// Would catch queues that are gone and stay in the poller's table for good: every entry would be compared
/// with them.
#[test]
fn a_queue_that_is_gone_leaves_the_table_when_its_entries_are_passed() {
    let mut ring = ring(1);
    let (queue, ledger) = ring.register(0, false);
    complete(&mut ring, post(&ledger, 1..3, true));
    drop(queue);
    assert_eq!(ring.ids(), [1, 2]);
    assert!(has_none_gone(&mut ring));
    // The poller learns of it while it takes completions.
    let (queue, ledger) = ring.register(0, false);
    complete(&mut ring, post(&ledger, 3..5, true));
    let mut polled = ring.cq.poll().unwrap();
    drop(queue);
    assert_eq!(polled.by_ref().count(), 2);
    assert!(has_none_gone(&mut ring));
}

fn has_none_gone(ring: &mut Ring) -> bool {
    assert!(ring.ids().is_empty());
    format!("{:?}", ring.cq).contains("gone: []")
}

/// Would catch a poll that looks its entries up in the table as it was when the poll began.
#[test]
fn a_queue_pair_that_comes_during_a_poll_reports_in_it() {
    let mut ring = ring(1);
    let directory = Arc::clone(&ring.cq.core().directory);
    let ledger = Arc::new(NumberedLedger::new(4, 0));
    let name = Name {
        qpn: QPN,
        is_receive: false,
        takes_unsolicited: false,
    };
    let mut polled = ring.cq.poll().unwrap();
    let _queue = Registration::new(&directory, 0, name, Arc::clone(&ledger)).unwrap();
    let numbers = post(&ledger, 1..2, true);
    ring.views[0].play(0, sent(numbers[0], 0));
    assert!(polled.next().is_some());
}

/// Would catch an entry that passes for one of a queue pair whose number has the same low bits, or that
/// reports in another ring.
#[test]
fn an_entry_is_of_the_queue_pair_with_all_of_its_number_and_its_ring() {
    let mut other = ring(1);
    let (_queue, ledger) = other.register(0, false);
    let numbers = post(&ledger, 1..2, true);
    let stray = Entry {
        qpn: (QPN as u16 + 0x100).into(),
        ..sent(numbers[0], 0)
    };
    other.write(0, stray);
    tells_of_a_stray(&mut other);
    let mut elsewhere = ring(2);
    let (_queue, ledger) = elsewhere.register(0, false);
    let numbers = post(&ledger, 1..2, true);
    elsewhere.write(1, sent(numbers[0], 0));
    tells_of_a_stray(&mut elsewhere);
}
