//! Completion queues: rings of completions in the guest's memory.

use serde_json::json;
use vfio_model::tap::hex;

use crate::event;
use crate::function::Function;

/// Where in its page the doorbell of a completion queue is.
pub(crate) const DOORBELL: u64 = 0x20;

/// A completion queue.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    pub(crate) base: u64,
    /// Entries of each of its rings.
    pub(crate) depth: u16,
    /// Bytes of an entry: 16 or 32.
    pub(crate) entry: usize,
    /// The event queue that it tells, if any.
    pub(crate) eqn: Option<u32>,
    /// Whether entries have the address of a sender for which there is no handle.
    pub(crate) with_source: bool,
    /// Whether ids of sends have 64 bits.
    pub(crate) wide_ids: bool,
    /// How many completions each ring got.
    pub(crate) written: Vec<u32>,
    /// How many the driver has taken of all of them.
    taken: u32,
    /// What was written when it was armed, if it is.
    armed: Option<u32>,
    /// How many events it has caused.
    events: u32,
    /// At which count the last event was.
    told: u32,
}

impl CompletionQueue {
    /// A queue without entries.
    pub(crate) fn new(base: u64, depth: u16, entry: usize, rings: u16, eqn: Option<u32>) -> Self {
        Self {
            base,
            depth,
            entry,
            eqn,
            with_source: false,
            wide_ids: false,
            written: vec![0; rings.into()],
            taken: 0,
            armed: None,
            events: 0,
            told: 0,
        }
    }

    fn total(&self) -> u32 {
        self.written
            .iter()
            .fold(0, |sum, count| sum.wrapping_add(*count))
    }
}

/// Where the flags are, with the phase, which are written last.
const FLAGS: usize = 3;

/// Writes a completion to a ring. Its phase is put in here. The guest learns of it if it has asked to.
pub(crate) fn push(function: &mut Function, cqn: u32, ring: u16, mut entry: [u8; 32]) {
    let Ok(queue) = function.objects.cqs.get_mut(cqn) else {
        return;
    };
    let (depth, size) = (u32::from(queue.depth), queue.entry as u64);
    let unread = queue.total().wrapping_sub(queue.taken);
    let is_full = unread >= depth * queue.written.len() as u32;
    let written = &mut queue.written[usize::from(ring)];
    let (round, index) = (*written / depth, *written % depth);
    *written += 1;
    let first = queue.base + u64::from(ring) * u64::from(depth) * size;
    let place = first + u64::from(index) * size;
    entry[FLAGS] |= u8::from(round.is_multiple_of(2));
    let entry = &entry[..queue.entry];
    let number = function.number;
    function.tap.record(|| {
        json!({"kind": "completion", "function": number, "cqn": cqn, "ring": ring, "bytes": hex(entry)})
    });
    let memory = &function.memory;
    let done = memory
        .write(place, &entry[..FLAGS])
        .and_then(|()| memory.write(place + 4, &entry[4..]))
        .and_then(|()| memory.write(place + FLAGS as u64, &entry[FLAGS..4]));
    if let Err(unmapped) = done {
        function.violation(format_args!(
            "completion queue {cqn} is not in memory: {unmapped:x?}"
        ));
    }
    if is_full {
        function.violation(format_args!(
            "completion queue {cqn} has no room: {unread} are not taken"
        ));
    }
    tell(function, cqn);
}

/// Makes an event if the queue is armed and has entries of which none was told.
fn tell(function: &mut Function, cqn: u32) {
    let Ok(queue) = function.objects.cqs.get_mut(cqn) else {
        return;
    };
    let total = queue.total();
    let is_new = |since: u32| total.wrapping_sub(since) as i32 > 0;
    if let (Some(since), Some(eqn)) = (queue.armed, queue.eqn)
        && is_new(since)
        && is_new(queue.told)
    {
        queue.armed = None;
        queue.told = total;
        queue.events += 1;
        event::completion(function, eqn, cqn);
    }
}

/// Takes the doorbell: how many completions were taken, and whether an event is wanted.
pub(crate) fn doorbell(function: &mut Function, cqn: u32, value: u32) {
    const RESERVED: u32 = 0x1fff_0000;
    const ARM: u32 = 1 << 31;
    let number = function.number;
    function.tap.record(|| {
        json!({"kind": "doorbell", "queue": "completion", "function": number, "number": cqn, "value": value})
    });
    let Ok(queue) = function.objects.cqs.get_mut(cqn) else {
        function.violation(format_args!(
            "doorbell of completion queue {cqn}, which is none"
        ));
        return;
    };
    let taken = queue
        .taken
        .wrapping_add(u32::from((value as u16).wrapping_sub(queue.taken as u16)));
    let total = queue.total();
    if value & RESERVED != 0 || (total.wrapping_sub(taken) as i32) < 0 {
        function.violation(format_args!(
            "the doorbell of completion queue {cqn} has {value:#x} after {total} completions"
        ));
        return;
    }
    queue.taken = taken;
    if value & ARM == 0 {
        return;
    }
    let (seen, events) = (value >> 29 & 3, queue.events & 3);
    if queue.eqn.is_none() {
        function.violation(format_args!(
            "completion queue {cqn} is armed and has no events"
        ));
    } else if seen == events {
        queue.armed = Some(taken);
        tell(function, cqn);
    } else if (seen + 1) & 3 != events {
        // Who has not read the last event yet may arm: that event is still to be seen.
        function.violation(format_args!(
            "completion queue {cqn} is armed after {seen} events of {events} (modulo 4)"
        ));
    }
}
