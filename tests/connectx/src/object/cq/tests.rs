//! Entries, owner bits, overflow, events and resizing, on plain memory.

use super::*;

/// Where things lie in the memory.
const RECORD: u64 = 0x0;
const OLD: u64 = 0x1000;
const NEW: u64 = 0x2000;

/// The kind of an entry whose buffer is followed by another.
const RESIZED: u8 = 0x5;

fn context(log_size: u64, size_code: u64) -> Vec<u8> {
    let mut context = vec![0; CONTEXT_SIZE];
    for (field, value) in [
        (cqc::LOG_CQ_SIZE, log_size),
        (cqc::CQE_SZ, size_code),
        (cqc::DBR_ADDR, RECORD),
    ] {
        field.set(&mut context, value);
    }
    context
}

/// A queue of so many entries, as a binary logarithm, and its memory.
fn queue(log_size: u64, size_code: u64) -> Result<(CompletionQueue, GuestMemory), Status> {
    let memory = GuestMemory::anonymous(0, 0x4000);
    let queue = CompletionQueue::new(&context(log_size, size_code), &OLD.to_be_bytes())?;
    Ok((queue, memory))
}

fn consume(memory: &GuestMemory, consumer: u32) -> Result<(), Unmapped> {
    memory.write(RECORD, &(consumer & 0xff_ffff).to_be_bytes())
}

/// An entry of this content, of the kind 2.
fn entry(content: u8) -> [u8; 64] {
    let mut entry = [content; 64];
    entry[63] = 0x20;
    entry
}

#[test]
fn entries_follow_each_other_and_their_owner_bit_turns_each_round() -> Result<(), Status> {
    for (size_code, stride) in [(0, 64), (1, 128), (2, 128)] {
        for log_size in [0, 1, 3] {
            let (mut queue, memory) = queue(log_size, size_code)?;
            let size = 1_u32 << log_size;
            for count in 0..3 * size {
                assert_eq!(queue.push(&memory, entry(count as u8), false), Ok(true));
                // The entry counts 64 bytes, and is the second half of a larger one.
                let at = OLD + u64::from(count % size) * stride + stride - 64;
                let mut found = [0; 64];
                assert_eq!(memory.read(at, &mut found), Ok(()));
                let owner = u8::from(count / size % 2 == 1);
                assert_eq!(found[..63], [count as u8; 63]);
                assert_eq!(found[63], 0x20 | owner, "{count} of {size}");
                assert_eq!(consume(&memory, count + 1), Ok(()));
            }
        }
    }
    Ok(())
}

#[test]
fn a_full_queue_overflows_for_good() -> Result<(), Status> {
    let (mut queue, memory) = queue(2, 0)?;
    for count in 0..4 {
        assert_eq!(queue.push(&memory, entry(count), false), Ok(true));
    }
    assert!(!queue.failed);
    assert_eq!(queue.push(&memory, entry(4), false), Ok(false));
    assert!(queue.failed);
    let mut first = [0; 1];
    assert_eq!(memory.read(OLD, &mut first), Ok(()));
    assert_eq!(first, [0], "what was there stays");
    Ok(())
}

#[test]
fn overrun_is_ignored_where_that_is_asked_for() -> Result<(), Status> {
    let memory = GuestMemory::anonymous(0, 0x4000);
    let mut context = context(2, 0);
    cqc::OI.set(&mut context, 1);
    // Its record is nowhere: it is not looked at.
    cqc::DBR_ADDR.set(&mut context, 0xffff_0000);
    let mut queue = CompletionQueue::new(&context, &OLD.to_be_bytes())?;
    for count in 0..11 {
        assert_eq!(queue.push(&memory, entry(count), false), Ok(true));
    }
    for (place, content, owner) in [(0, 8, 0), (1, 9, 0), (2, 10, 0), (3, 7, 1)] {
        let mut found = [0; 64];
        assert_eq!(memory.read(OLD + place * 64, &mut found), Ok(()));
        assert_eq!((found[0], found[63]), (content, 0x20 | owner), "{place}");
    }
    Ok(())
}

#[test]
fn a_collapsed_queue_has_one_place() -> Result<(), Status> {
    let memory = GuestMemory::anonymous(0, 0x4000);
    let mut context = context(2, 1);
    for field in [cqc::CC, cqc::OI] {
        field.set(&mut context, 1);
    }
    let mut queue = CompletionQueue::new(&context, &OLD.to_be_bytes())?;
    for count in 0..9 {
        assert_eq!(queue.push(&memory, entry(count), false), Ok(true));
        let mut found = [0; 128];
        assert_eq!(memory.read(OLD + 64, &mut found), Ok(()));
        assert_eq!(found[..63], [count; 63]);
        assert_eq!(found[64..], [0; 64], "the next entry's place");
    }
    Ok(())
}

#[test]
fn the_consumers_counter_has_24_bits() -> Result<(), Status> {
    let (mut queue, memory) = queue(2, 0)?;
    queue.producer = 0xff_fffe;
    for count in 0..8 {
        assert_eq!(consume(&memory, queue.producer), Ok(()));
        assert_eq!(queue.push(&memory, entry(count), false), Ok(true));
    }
    Ok(())
}

#[test]
fn each_arming_is_good_for_one_event() -> Result<(), Status> {
    let (mut queue, memory) = queue(4, 0)?;
    let push = |queue: &mut CompletionQueue, solicited| {
        assert_eq!(queue.push(&memory, entry(0), solicited), Ok(true));
    };
    push(&mut queue, true);
    assert!(!queue.event_due(), "nobody asked");
    queue.armed = Armed::Any;
    assert!(queue.event_due(), "what came before arming was not told");
    assert!(!queue.event_due(), "once");
    queue.armed = Armed::Any;
    assert!(!queue.event_due(), "nothing new");
    push(&mut queue, false);
    assert!(queue.event_due());
    queue.armed = Armed::Solicited;
    push(&mut queue, false);
    assert!(!queue.event_due(), "not a solicited one");
    push(&mut queue, true);
    assert!(queue.event_due());
    assert!(!queue.event_due(), "once");
    Ok(())
}

#[test]
fn who_has_not_read_an_event_gets_no_other() -> Result<(), Status> {
    let (mut queue, memory) = queue(4, 0)?;
    let word = |sequence: u32| sequence << 28;
    for sequence in [0, 1, 2, 3, 0, 1] {
        // As often as one likes before.
        assert!(queue.arm(word(sequence)) && queue.arm(word(sequence)));
        assert_eq!(queue.push(&memory, entry(0), false), Ok(true));
        assert!(queue.event_due());
        assert!(
            !queue.arm(word(sequence)),
            "armed by the number of the event"
        );
        assert_eq!(queue.push(&memory, entry(0), false), Ok(true));
        assert!(!queue.event_due(), "{sequence}");
        assert_eq!(consume(&memory, queue.producer), Ok(()));
    }
    Ok(())
}

#[test]
fn a_resize_says_so_in_the_old_buffer_and_goes_on_in_the_new() -> Result<(), Status> {
    let (mut queue, memory) = queue(2, 0)?;
    for count in 0..2 {
        assert_eq!(queue.push(&memory, entry(count), false), Ok(true));
    }
    let too_small = queue.resize(&memory, &context(1, 0), &NEW.to_be_bytes());
    assert_eq!(too_small, Err(Status::BadResourceState));
    assert_eq!(queue.producer, 2, "as it was");
    assert_eq!(
        queue.resize(&memory, &context(3, 1), &NEW.to_be_bytes()),
        Ok(())
    );
    let mut last = [0; 1];
    assert_eq!(memory.read(OLD + 2 * 64 + 63, &mut last), Ok(()));
    assert_eq!(last, [RESIZED << 4]);
    assert_eq!(queue.push(&memory, entry(7), false), Ok(true));
    let mut found = [0; 64];
    // The fourth place, whose half of the entry is the second.
    assert_eq!(memory.read(NEW + 3 * 128 + 64, &mut found), Ok(()));
    assert_eq!((found[0], found[63]), (7, 0x20));
    Ok(())
}

#[test]
fn entries_of_a_new_queue_must_be_marked() -> Result<(), Status> {
    for (size_code, stride) in [(0, 64), (1, 128)] {
        let (queue, memory) = queue(3, size_code)?;
        let report = Report::new("connectx", false);
        let complaints = || {
            queue.check_marks(&memory, &report);
            report.take()
        };
        assert_eq!(complaints().len(), 1, "zeros");
        for place in 0..8 {
            // By either owner.
            let mark = 0xf0 | place as u8 & 1;
            assert_eq!(
                memory.write(OLD + (place + 1) * stride - 1, &[mark]),
                Ok(())
            );
        }
        assert!(complaints().is_empty());
        assert_eq!(memory.write(OLD + 8 * stride - 1, &[0x01]), Ok(()));
        assert!(complaints()[0].contains("entry 7"));
    }
    Ok(())
}
