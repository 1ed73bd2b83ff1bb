//! Sends, which finish in order: a completion reports its request and all before it.

use super::super::sync::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// What a request does that its completion does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Does {
    /// What the completion says.
    #[default]
    AsTold,
    /// It binds a memory window.
    Binds,
    /// It makes a memory key cover parts of others.
    #[allow(
        dead_code,
        reason = "direct verbs alone post it, and may not be built in"
    )]
    Gathers,
    /// A request that the program has written itself.
    #[allow(
        dead_code,
        reason = "direct verbs alone post it, and may not be built in"
    )]
    Own,
}

impl Does {
    #[inline(always)]
    fn of(code: u8) -> Self {
        match code {
            1 => Self::Binds,
            2 => Self::Gathers,
            3 => Self::Own,
            _ => Self::AsTold,
        }
    }
}

/// The note of a send request. Relaxed throughout: the module's documentation says who reads it when.
#[derive(Debug, Default)]
pub(crate) struct SendNote {
    id: AtomicU64,
    /// Requests posted, this one included, counted from the start, modulo 2^32.
    count: AtomicU32,
    /// What it does ([`Does`]). If it does nothing special, this may still be the note of an earlier request
    /// in this place, except [`Does::Own`]: a queue that has had such a request notes of every one what it
    /// does.
    does: AtomicU8,
}

impl SendNote {
    /// Notes a request.
    #[inline(always)]
    pub(crate) fn write(&self, id: u64, count: u32) {
        self.id.store(id, Ordering::Relaxed);
        self.count.store(count, Ordering::Relaxed);
    }

    /// The request's id, and what it does if its opcode alone does not say it.
    #[inline(always)]
    pub(crate) fn id(&self) -> (u64, Does) {
        let id = self.id.load(Ordering::Relaxed);
        (id, Does::of(self.does.load(Ordering::Relaxed)))
    }

    /// Notes what the request does.
    #[inline(always)]
    pub(crate) fn does(&self, what: Does) {
        self.does.store(what as u8, Ordering::Relaxed);
    }
}

/// The notes of a send queue, one for each block of its ring.
#[derive(Debug)]
pub(crate) struct SendLedger {
    /// As many as a power of two. `mask` is one less.
    notes: Box<[SendNote]>,
    mask: u32,
    /// Requests that the device knows of, and those that are finished, counted from the start, modulo 2^32.
    posted: AtomicU32,
    done: AtomicU32,
}

impl SendLedger {
    /// A ledger for a ring of `blocks` blocks, a power of two or 0.
    pub(crate) fn new(blocks: u32) -> Self {
        assert!(blocks == 0 || blocks.is_power_of_two());
        Self {
            notes: (0..blocks.max(1)).map(|_| SendNote::default()).collect(),
            mask: blocks.max(1) - 1,
            posted: AtomicU32::new(0),
            done: AtomicU32::new(0),
        }
    }

    /// The note of the request that begins in this block; the index is taken modulo the ring.
    #[inline(always)]
    pub(crate) fn note(&self, block: u32) -> &SendNote {
        self.place(block).1
    }

    /// As [`note`](Self::note), with the index in the ring.
    #[inline(always)]
    pub(crate) fn place(&self, block: u32) -> (u32, &SendNote) {
        let index = block & self.mask;
        // SAFETY: `new` checked that the number of notes is a power of two, so the masked index is below it.
        (index, unsafe { self.notes.get_unchecked(index as usize) })
    }

    /// Notes how many requests the device knows of.
    #[inline(always)]
    pub(crate) fn post(&self, count: u32) {
        // Relaxed: threads that ask about requests are ordered after the poster (`progress`).
        self.posted.store(count, Ordering::Relaxed);
    }

    /// How many requests the device knows of, and how many of them are finished.
    pub(crate) fn progress(&self) -> (u32, u32) {
        // In this order: finished requests were posted before. Relaxed: threads that ask about requests are
        // ordered after the poster.
        let finished = self.done();
        (self.posted.load(Ordering::Relaxed), finished)
    }

    /// Requests that are finished.
    #[inline(always)]
    pub(crate) fn done(&self) -> u32 {
        // Acquire: pairs with the release in `finish`.
        self.done.load(Ordering::Acquire)
    }

    /// Whether a request that is not finished begins in this block, for the poller.
    pub(crate) fn is_in_flight(&self, block: u16) -> bool {
        // Relaxed: see the module on the note, and only the one poller stores `done`.
        let count = self.note(block.into()).count.load(Ordering::Relaxed);
        let done = self.done.load(Ordering::Relaxed);
        count.wrapping_sub(done).cast_signed() > 0
    }

    /// Finishes the request that begins in this block, and all before it; returns its id, and what it did.
    #[inline(always)]
    pub(crate) fn finish(&self, block: u16) -> (u64, Does) {
        let note = self.note(block.into());
        let id = note.id();
        self.finish_noted(note);
        id
    }

    /// As [`finish`](Self::finish), for the request with this note, which has been read.
    #[inline(always)]
    pub(crate) fn finish_noted(&self, note: &SendNote) {
        let count = note.count.load(Ordering::Relaxed);
        // Release: the note is read before its place may be used again; pairs with the acquire in `done`.
        self.done.store(count, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_finishes_all_requests_before_it() {
        let ledger = SendLedger::new(8);
        ledger.note(0).write(10, 1);
        ledger.note(2).write(11, 2);
        ledger.note(3).write(12, 3);
        ledger.note(3).does(Does::Binds);
        assert_eq!(ledger.done(), 0);
        assert_eq!(ledger.finish(3), (12, Does::Binds));
        assert_eq!(ledger.done(), 3);
        ledger.note(8).write(13, 4);
        assert_eq!(
            ledger.finish(0x8000),
            (13, Does::AsTold),
            "indices are modulo the ring"
        );
    }
}
