//! Requests of shared receive queues that are posted again by the poller.
//!
//! A message for on-demand memory may find a page missing. The kernel fetches the page and the sender repeats
//! the message, but the element that the message found is used up. A completion reports it, which the user
//! does not see: the poller posts the request again, to another element, since the kernel may still read the
//! first one. The poller does not leave this to the next post, because the user may wait for this message
//! before posting.

use std::sync::Weak;

use super::format::{Cqe, RECORD_RECEIVE, cqe, syndrome};
use super::ledger::SrqLedger;
use super::recv::tell;
use super::srq::SrqRing;

/// Whether an error is a missing page that the kernel fetches.
pub(super) fn is_page_fault(fields: &Cqe) -> bool {
    /// The device's own code for it (`MLX5_CQE_VENDOR_SYNDROME_ODP_PFAULT`).
    const PAGE_FAULT: u8 = 0x93;
    fields.op_own >> 4 == cqe::RESP_ERR
        && fields.syndrome == syndrome::REMOTE_ABORTED
        && fields.vendor_err_synd == PAGE_FAULT
}

/// Posts the request of an element again. False if the device does not have the element, if the ring is gone,
/// or if the kernel has no barrier for all threads.
pub(super) fn post_again(ring: &Weak<SrqRing>, ledger: &SrqLedger, index: u16) -> bool {
    let Some(ring) = ring.upgrade() else {
        return false;
    };
    let Some(_closed) = ledger.gate.close() else {
        return false;
    };
    let is_posted = ledger.is_posted(index);
    let index = u32::from(index);
    let posting = &ledger.posting;
    let (first, head) = (posting.told_head(), posting.head());
    let told = posting.told();
    let (id, number) = ledger.of(index);
    if !is_posted || told.wrapping_sub(number).cast_signed() <= 0 {
        return false;
    }
    // If no other element is free, this one itself. Where a batch has to make room, it is overwritten at
    // once. The kernel may still be reading it for the page fault: then it fetches the pages of the new
    // request, and the message is repeated once more.
    let spare = ledger.behind(head).unwrap_or(index);
    let request = ring.copy_of(index);
    ledger.unpost(index);
    let head = match first == head {
        true => spare,
        false => {
            // The device's next element belongs to a batch that is being written: its request makes room.
            ring.write(spare, &ring.copy_of(first));
            ledger.move_to(first, spare);
            put_off(&ring, ledger, spare, head);
            head
        }
    };
    ring.write(first, &request);
    ring.lead_to(first, spare);
    // With its number, so that a region which the request names keeps waiting for it.
    ledger.post(first, id, number);
    posting.go_on(head);
    let told = told.wrapping_add(1);
    posting.tell(told, spare);
    tell(ring.record().counter(RECORD_RECEIVE), told);
    ledger.count();
    true
}

/// Notes that one more request comes before those from `index` up to `head`.
fn put_off(ring: &SrqRing, ledger: &SrqLedger, mut index: u32, head: u32) {
    while index != head {
        ledger.put_off(index);
        index = ring.link(index);
    }
}
