//! Completions: their fields, the phase, what is dropped, several rings, and the doorbell.

use std::sync::Arc;

use uverbs_uapi::enums::{WcOpcode, WcStatus};
use uverbs_uapi::flags::WcFlags;
use uverbs_uapi::handle::CqHandle;

use super::super::cq::{Completion, Cq, CqCore};
use super::super::format::{Entry, entry};
use super::super::reporters::{Name, Registration};
use super::super::ring::{Register, RingMemory, View};
use super::Device;
use crate::command::{CommandFd, Route};
use crate::driver::contract::{Completion as _, Cq as _};
use crate::driver::kit::ledger::{About, NumberedLedger};
use crate::driver::kit::map::Map;
use crate::work::PollError;

pub(super) const QPN: u32 = 0x105;
const DEPTH: u32 = 4;

/// A completion queue, with the rings that its device writes.
pub(super) struct Ring {
    pub(super) cq: Cq,
    pub(super) views: Box<[View]>,
    /// How many entries the device has written in each.
    pub(super) written: [u32; 2],
    _device: Device,
}

pub(super) fn ring(rings: usize) -> Ring {
    let device = Device::new(0);
    let map = RingMemory::Mapped(Map::of_memory(rings * DEPTH as usize * Entry::BYTES));
    let views = View::of(&map, rings, DEPTH).unwrap();
    let register = Register::new(Arc::clone(&device.doorbell), 0).unwrap();
    let core = CqCore::new(views.clone(), map, Some(register), true);
    Ring {
        cq: Cq::new(core, 0xff, true),
        views,
        written: [0; 2],
        _device: device,
    }
}

impl Ring {
    pub(super) fn register(
        &self,
        ring: u32,
        is_receive: bool,
    ) -> (Registration, Arc<NumberedLedger>) {
        self.register_with(ring, is_receive, false)
    }

    fn register_with(
        &self,
        ring: u32,
        is_receive: bool,
        takes_unsolicited: bool,
    ) -> (Registration, Arc<NumberedLedger>) {
        let ledger = Arc::new(NumberedLedger::new(64, 0));
        let name = Name {
            qpn: QPN,
            is_receive,
            takes_unsolicited,
        };
        let directory = &self.cq.core().directory;
        let registration = Registration::new(directory, ring, name, Arc::clone(&ledger));
        (registration.unwrap(), ledger)
    }

    /// Writes an entry to a ring, as the device does.
    pub(super) fn write(&mut self, ring: usize, fields: Entry) {
        self.views[ring].play(self.written[ring], fields);
        self.written[ring] += 1;
    }

    /// The ids of the completions that have arrived.
    pub(super) fn ids(&mut self) -> Vec<u64> {
        let polled = self.cq.poll().unwrap();
        polled.map(|completion| completion.wr_id()).collect()
    }

    fn only(&mut self) -> Completion {
        let mut polled = self.cq.poll().unwrap();
        let only = polled.next().unwrap();
        assert!(polled.next().is_none());
        only
    }
}

/// The entry of a send.
pub(super) fn sent(number: u16, status: u8) -> Entry {
    Entry {
        number: number.into(),
        status,
        flags: entry::SENDS,
        qpn: (QPN as u16).into(),
        ..Entry::default()
    }
}

/// Posts requests with these ids, signaled or not.
pub(super) fn post(
    ledger: &NumberedLedger,
    ids: std::ops::Range<u64>,
    is_signaled: bool,
) -> Vec<u16> {
    let first = ledger.posted();
    let count = (ids.end - ids.start) as u32;
    let numbers = (first..first + count)
        .zip(ids)
        .map(|(at, id)| ledger.note(at, id, About::new(is_signaled), 77));
    let numbers = numbers.collect();
    ledger.post(first + count);
    numbers
}

/// Would catch lost completions that nobody reports, and a poller that waits for ever at the lost ones.
#[test]
fn an_overrun_is_told_and_polling_goes_on() {
    for rings in [1, 2] {
        let mut ring = ring(rings);
        let own = rings - 1;
        let (_queue, ledger) = ring.register(own as u32, false);
        // Wherever in the ring the poller is, and in a lap of either phase.
        for start in 0..2 * DEPTH {
            for lost in 1..DEPTH {
                let first = u64::from(ledger.posted());
                let end = first + u64::from(DEPTH + lost);
                let numbers = post(&ledger, first..end, true);
                for number in &numbers {
                    ring.write(own, sent(*number, 0));
                }
                assert!(ring.ids().is_empty(), "{start}: {lost} of {rings} rings");
                assert_eq!(ring.cq.poll().map(drop), Err(PollError::Overrun));
                let left: Vec<u64> = (first + u64::from(lost)..end).collect();
                assert_eq!(ring.ids(), left, "{start}: {lost}");
                assert!(ring.ids().is_empty());
                // The device learns that the lost ones were taken too.
                assert_eq!(ring.cq.core().told() & 0xffff, ring.written[own]);
                for number in &numbers[..lost as usize] {
                    assert!(ledger.finish(*number).is_some(), "in flight");
                }
            }
            let first = u64::from(ledger.posted());
            for number in post(&ledger, first..first + 1, true) {
                ring.write(own, sent(number, 0));
            }
            assert_eq!(ring.ids(), [first]);
        }
    }
}

/// Would catch a full ring that passes for one that has overrun, also while the device fills it.
#[test]
fn a_full_ring_has_not_overrun() {
    let mut ring = ring(2);
    let (_queue, ledger) = ring.register(1, false);
    for _ in 0..3 * DEPTH {
        for count in 0..=DEPTH {
            let first = u64::from(ledger.posted());
            for number in post(&ledger, first..first + u64::from(count), true) {
                ring.write(1, sent(number, 0));
            }
            assert_eq!(ring.ids().len(), count as usize);
            assert_eq!(ring.cq.is_empty(), Ok(true));
        }
    }
}

/// Would catch a message that takes a receive which it has not consumed, and one on a queue that was not made
/// for such messages.
#[test]
fn what_consumes_no_receive_is_told_as_such() {
    for takes in [true, false] {
        let mut ring = ring(1);
        let (_queue, ledger) = ring.register_with(0, true, takes);
        post(&ledger, 50..52, true);
        let arrived = Entry {
            flags: entry::RECEIVES | entry::IMMEDIATE | entry::UNSOLICITED | 2 << 4,
            qpn: (QPN as u16).into(),
            length: 9.into(),
            imm: 0x0102_0304.into(),
            ah: entry::NO_AH.into(),
            ..Entry::default()
        };
        ring.write(0, arrived);
        if takes {
            let only = ring.only();
            assert!(only.is_unsolicited());
            assert_eq!((only.wr_id(), only.byte_len()), (0, 9));
            assert_eq!(only.opcode(), WcOpcode::RECV_RDMA_WITH_IMM);
            assert_eq!(only.sender_gid(), None, "a WRITE's length lies there");
        } else {
            assert!(ring.ids().is_empty());
            let told = ring.cq.poll().map(drop);
            assert_eq!(told, Err(PollError::Unknown { code: 2 }));
        }
        assert_eq!(ledger.in_flight(), 2);
    }
}

/// Would catch a GID that is not in the entry, or is another field.
#[test]
fn a_sender_without_a_handle_has_a_gid() {
    for (ah, has) in [(entry::NO_AH, true), (9, false)] {
        let mut ring = ring(1);
        let (_queue, ledger) = ring.register(0, true);
        let numbers = post(&ledger, 50..51, true);
        ring.write(
            0,
            Entry {
                number: numbers[0].into(),
                flags: entry::RECEIVES,
                qpn: (QPN as u16).into(),
                ah: ah.into(),
                rest: [7; 16],
                ..Entry::default()
            },
        );
        assert_eq!(ring.only().sender_gid(), has.then_some([7; 16]));
    }
}

#[test]
fn fields_of_a_receive() {
    let mut ring = ring(1);
    let (_queue, ledger) = ring.register(0, true);
    let numbers = post(&ledger, 50..52, true);
    let received = Entry {
        number: numbers[1].into(),
        flags: entry::RECEIVES | entry::IMMEDIATE,
        qpn: (QPN as u16).into(),
        length: 0x1234.into(),
        ah: 9.into(),
        src_qpn: 0x77.into(),
        imm: 0x0102_0304.into(),
        rest: [0xee; 16],
        ..Entry::default()
    };
    ring.write(0, received);
    let first = ring.only();
    assert_eq!((first.wr_id(), first.status()), (51, WcStatus::SUCCESS));
    assert_eq!((first.opcode(), first.byte_len()), (WcOpcode::RECV, 0x1234));
    assert_eq!(
        (first.qp_num(), first.src_qp(), first.slid()),
        (QPN, 0x77, 9)
    );
    assert_eq!(first.flags(), WcFlags::WITH_IMM);
    assert_eq!(u32::from_be(first.ex()), 0x0102_0304);
    // A WRITE has more bytes than fit into 16 bits.
    let mut rest = [0xee; 16];
    rest[..2].copy_from_slice(&[5, 0]);
    ring.write(
        0,
        Entry {
            number: numbers[0].into(),
            flags: entry::RECEIVES | entry::IMMEDIATE | 2 << 4,
            rest,
            ..received
        },
    );
    let second = ring.only();
    assert_eq!((second.wr_id(), second.byte_len()), (50, 0x5_1234));
    assert_eq!(second.opcode(), WcOpcode::RECV_RDMA_WITH_IMM);
}

#[test]
fn fields_of_a_send() {
    let mut ring = ring(1);
    let (_queue, ledger) = ring.register(0, false);
    let numbers = post(&ledger, 1..4, true);
    for (number, code, opcode) in [
        (numbers[2], 0, WcOpcode::SEND),
        (numbers[0], 1, WcOpcode::RDMA_READ),
        (numbers[1], 2, WcOpcode::RDMA_WRITE),
    ] {
        let fields = sent(number, 0);
        ring.write(
            0,
            Entry {
                flags: fields.flags | code << 4,
                imm: 0xffff_ffff.into(),
                ..fields
            },
        );
        let done = ring.only();
        assert_eq!(
            (done.opcode(), done.wr_id()),
            (opcode, u64::from(number) + 1)
        );
        // The bytes that were read are those that the request asked for.
        assert_eq!((done.byte_len(), done.flags()), (77, WcFlags::empty()));
    }
    let failed = post(&ledger, 9..10, false);
    ring.write(0, sent(failed[0], 14));
    let failed = ring.only();
    assert_eq!((failed.wr_id(), failed.status()), (9, WcStatus::REM_OP_ERR));
    assert_eq!(failed.vendor_err(), 14);
}

/// Would catch an entry of the previous lap that is taken again, and one that is missed.
#[test]
fn the_phase_flips_with_each_lap() {
    let mut ring = ring(1);
    let (_queue, ledger) = ring.register(0, false);
    assert!(ring.ids().is_empty());
    for lap in 0..5 {
        for count in [1, 3, 4] {
            let first = lap * 100 + count * 10;
            let numbers = post(&ledger, first..first + count, true);
            for number in numbers {
                ring.write(0, sent(number, 0));
            }
            assert!(!ring.cq.is_empty().unwrap());
            assert!(ring.ids().into_iter().eq(first..first + count));
            assert!(ring.ids().is_empty());
            assert!(ring.cq.is_empty().unwrap());
        }
    }
}

/// Would catch a count that spills into the other fields of the doorbell.
#[test]
fn counts_go_on_beyond_16_bits() {
    let mut ring = ring(2);
    let (_sends, sends) = ring.register(0, false);
    let (_receives, receives) = ring.register(1, true);
    for count in 0..35_000_u32 {
        for (own, ledger, flags) in [(0, &sends, entry::SENDS), (1, &receives, entry::RECEIVES)] {
            let number = post(ledger, 5..6, true)[0];
            ring.write(
                own,
                Entry {
                    flags,
                    ..sent(number, 0)
                },
            );
        }
        assert_eq!(ring.ids(), [5, 5]);
        assert_eq!(ring.cq.core().told(), (2 * (count + 1)) & 0xffff);
    }
}

/// Would catch a completion that nobody asked for, and one that makes a queue look non-empty.
#[test]
fn what_nobody_asked_for_is_dropped() {
    let mut ring = ring(1);
    let (_queue, ledger) = ring.register(0, false);
    let quiet = post(&ledger, 0..3, false);
    for number in [quiet[2], quiet[0]] {
        ring.write(0, sent(number, 0));
    }
    assert!(ring.cq.is_empty().unwrap());
    assert_eq!(ledger.in_flight(), 1);
    let loud = post(&ledger, 7..8, true);
    ring.write(0, sent(loud[0], 0));
    ring.write(0, sent(quiet[1], 0));
    // It waits, although `is_empty` has taken it from the ring.
    assert!(!ring.cq.is_empty().unwrap());
    assert!(!ring.cq.is_empty().unwrap());
    assert_eq!(ring.ids(), [7]);
    assert!(ring.cq.is_empty().unwrap());
    assert_eq!((ledger.in_flight(), ledger.progress().finished()), (0, 4));
}

/// Completes all these requests in a ring, as the device does.
fn complete(ring: &mut Ring, own: usize, flags: u8, numbers: Vec<u16>) {
    for number in numbers {
        let fields = Entry {
            flags,
            ..sent(number, 0)
        };
        ring.write(own, fields);
    }
}

/// Would catch a poll that leaves a ring before it is empty, and one that misses another ring.
#[test]
fn a_poll_takes_one_ring_after_the_other() {
    let mut ring = ring(2);
    let (_first, sends) = ring.register(0, false);
    let (_second, receives) = ring.register(1, true);
    for round in 0..3 {
        let first = 10 * round;
        complete(
            &mut ring,
            0,
            entry::SENDS,
            post(&sends, first..first + 4, true),
        );
        let other = 100 + first;
        let numbers = post(&receives, other..other + 2, true);
        complete(&mut ring, 1, entry::RECEIVES, numbers);
        let expected: Vec<u64> = (other..other + 2).chain(first..first + 4).collect();
        assert_eq!(ring.ids(), expected, "{round}");
    }
    // The same whichever ring comes first, if the other is empty.
    for round in 40..43 {
        complete(
            &mut ring,
            0,
            entry::SENDS,
            post(&sends, round..round + 1, true),
        );
        assert_eq!(ring.ids(), [round]);
    }
}

/// Would catch a ring that starves while another is never empty: completions are taken one at a time.
#[test]
fn the_next_poll_begins_with_the_next_ring() {
    let mut ring = ring(2);
    let (_first, sends) = ring.register(0, false);
    let (_second, receives) = ring.register(1, true);
    complete(&mut ring, 0, entry::SENDS, post(&sends, 0..3, true));
    complete(&mut ring, 1, entry::RECEIVES, post(&receives, 10..12, true));
    let mut next = || ring.cq.poll().unwrap().next().map(|it| it.wr_id());
    let all: Vec<u64> = std::iter::from_fn(&mut next).collect();
    assert_eq!(all, [10, 0, 11, 1, 2]);
}

/// As the test before, for a C program that is shown one completion after the other.
#[cfg(feature = "c-abi")]
#[test]
fn what_is_shown_comes_from_one_ring_until_it_is_hidden() {
    let mut ring = ring(2);
    let (_first, sends) = ring.register(0, false);
    let (_second, receives) = ring.register(1, true);
    complete(&mut ring, 0, entry::SENDS, post(&sends, 0..4, true));
    complete(&mut ring, 1, entry::RECEIVES, post(&receives, 10..13, true));
    let mut shown = Vec::new();
    for count in [2, 2, 1, 2] {
        for _ in 0..count {
            let next = ring.cq.show_next().unwrap().unwrap();
            assert_eq!(ring.cq.shown().unwrap().wr_id(), next.wr_id());
            shown.push(next.wr_id());
        }
        ring.cq.hide();
    }
    assert_eq!(shown, [0, 1, 10, 11, 2, 12, 3]);
    assert!(ring.cq.show_next().unwrap().is_none());
}

#[test]
fn what_makes_no_sense_is_told_once() {
    let mut ring = ring(1);
    let (_queue, ledger) = ring.register(0, false);
    let numbers = post(&ledger, 1..2, true);
    let stranger = Entry {
        qpn: (QPN as u16 + 1).into(),
        ..sent(0, 0)
    };
    ring.write(0, stranger);
    ring.write(0, sent(numbers[0] + 1, 0));
    ring.write(0, sent(numbers[0], 0));
    assert!(ring.ids().is_empty());
    let stray = ring.cq.poll().map(drop).unwrap_err();
    assert_eq!(stray, PollError::Stray { number: QPN + 1 });
    assert!(ring.ids().is_empty());
    let unknown = ring.cq.is_empty().unwrap_err();
    assert_eq!(unknown, PollError::Unknown { code: 0 });
    assert_eq!(ring.ids(), [1]);
}

/// Would catch a device that does not learn what was taken, an event that is asked for twice with the same
/// number, and one that is not asked for.
#[test]
fn the_doorbell_has_the_count_and_the_events() {
    let mut ring = ring(1);
    let (_queue, ledger) = ring.register(0, false);
    let core = Arc::clone(ring.cq.core());
    for round in 0..6_u32 {
        for number in post(&ledger, 0..2, true) {
            ring.write(0, sent(number, 0));
        }
        assert_eq!(ring.ids().len(), 2);
        let taken = (round + 1) * 2;
        assert_eq!(core.told(), taken);
        let file = std::fs::File::open("/dev/null").unwrap();
        let fd = CommandFd::new(file.into(), 0, Route::Best);
        assert!(
            Cq::arm(&core, &fd, CqHandle(1), true)
                .unwrap_err()
                .is_unsupported()
        );
        Cq::arm(&core, &fd, CqHandle(1), false).unwrap();
        assert_eq!(core.told(), 1 << 31 | (round & 3) << 29 | taken);
        let events = Cq::events(&core).unwrap();
        events.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}

/// Would catch a poll that lasts for as long as the device writes.
#[test]
fn a_poll_ends_once_round_the_rings() {
    let mut ring = ring(1);
    let (_queue, ledger) = ring.register(0, false);
    let numbers = post(&ledger, 0..64, true);
    let mut polled = ring.cq.poll().unwrap();
    let mut taken = 0;
    for (at, number) in numbers.into_iter().enumerate() {
        ring.views[0].play(at as u32, sent(number, 0));
        taken += usize::from(polled.next().is_some());
    }
    assert_eq!(taken, DEPTH as usize);
}

/// Would catch a call of `is_empty` that hides an error, or leaves it for later.
#[test]
fn who_asks_whether_all_is_taken_is_told_what_is_wrong() {
    let mut ring = ring(1);
    ring.write(0, sent(0, 0));
    assert!(matches!(ring.cq.is_empty(), Err(PollError::Stray { .. })));
    assert!(ring.cq.is_empty().unwrap());
}
