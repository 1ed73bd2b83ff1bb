//! Completion queues: polling, and arming.
//!
//! A completion queue has one ring or several; a queue pair reports its sends in one of them and its receives
//! in one. All requests complete; those that nobody asked for are dropped here, unless they failed.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use uverbs_uapi::enums::{WcOpcode, WcStatus};
use uverbs_uapi::flags::WcFlags;
use uverbs_uapi::handle::CqHandle;

#[cfg(feature = "c-abi")]
use super::QueueMemory;
use super::format::{Entry, Words, doorbell, entry, request, status};
use super::order;
use super::reporters::{Directory, Name, Reporters, Ring};
use super::ring::{Register, RingMemory, View};
use crate::command::CommandFd;
use crate::driver::contract::{self, Driver as _};
use crate::driver::kit::ledger::Noted;
use crate::driver::kit::turn::Turn;
use crate::error::{Result, Verb};
use crate::work::PollError;

/// What a completion queue shares with its queue pairs, and what must stay until the kernel has let go of it.
#[derive(Debug)]
pub(crate) struct CqCore {
    // It points into the memory.
    pub(super) directory: Arc<Directory>,
    pub(super) events: Arc<AtomicU32>,
    /// With events alone.
    doorbell: Option<Doorbell>,
    #[cfg_attr(
        not(feature = "c-abi"),
        expect(dead_code, reason = "the rings point into it")
    )]
    memory: RingMemory,
}

/// Where the device learns how many entries were taken, and whether an event is wanted.
#[derive(Debug)]
struct Doorbell {
    register: Register,
    turn: Turn,
}

impl CqCore {
    /// Over rings that lie in the memory.
    pub(super) fn new(rings: Box<[View]>, memory: RingMemory, register: Option<Register>) -> Self {
        Self {
            directory: Arc::new(Directory::new(rings)),
            events: Arc::default(),
            doorbell: register.map(|register| Doorbell {
                register,
                turn: Turn::new(),
            }),
            memory,
        }
    }

    /// Tells the device how many entries were taken, and whether an event is wanted for the next; nothing
    /// without a doorbell.
    #[inline(always)]
    fn tell(&self, wants_event: bool) {
        if let Some(Doorbell { register, turn }) = &self.doorbell {
            // By turns: else an older count could come last, of entries or of events.
            let _turn = turn.take();
            let taken = self.directory.taken() & u32::from(u16::MAX);
            let wish = if wants_event { self.wish() } else { 0 };
            order::after_writing();
            register.store(taken | wish);
        }
    }

    /// That an event is wanted, and how many were read, by which the device tells a wish from an old one.
    fn wish(&self) -> u32 {
        // Relaxed: who read an event and then asked for the next had the turn before, or has it after.
        let sequence = self.events.load(Ordering::Relaxed) & 3;
        doorbell::ARM | sequence << doorbell::SEQUENCE
    }

    /// Goes past the entry at this index of a ring, and tells the device. Before the request is finished:
    /// room in a queue means room for one more completion.
    #[inline(always)]
    fn pass(&self, ring: &Ring, index: u32) {
        self.directory.pass(ring, index.wrapping_add(1));
        self.tell(false);
    }

    /// Its rings, one behind the other.
    #[cfg(feature = "c-abi")]
    pub(crate) fn memory(&self) -> QueueMemory {
        let doorbell = self.doorbell.as_ref();
        let rings = self.directory.rings();
        QueueMemory {
            first: self.memory.base().as_ptr(),
            entry_bytes: rings.first().map_or(0, |ring| ring.view.size() as u32),
            entries: rings.first().map_or(0, |ring| ring.view.count()),
            doorbell: doorbell.map_or(std::ptr::null_mut(), |it| it.register.address()),
            max_batch: u32::MAX,
        }
    }

    #[cfg(test)]
    pub(super) fn told(&self) -> u32 {
        self.doorbell.as_ref().unwrap().register.stored()
    }
}

/// A completion queue's poller.
#[derive(Debug)]
pub(crate) struct Cq {
    /// The ring that is looked at next.
    turn: usize,
    reporters: Reporters,
    /// What the next poll has to tell.
    wrong: Option<PollError>,
    /// Entries that this poll may still look at: once round the rings, while the device goes on.
    left: u32,
    /// The last completion that was found.
    found: Option<Completion>,
    /// Nobody has taken it yet.
    waits: bool,
    /// What a C program looks at.
    #[cfg(feature = "c-abi")]
    shown: Option<Completion>,
    /// Entries that a ring holds, and all of them.
    capacity: u32,
    entries: u32,
    /// Entries have the GIDs of senders for whom there is no AH.
    tells_senders: bool,
    core: Arc<CqCore>,
}

impl Cq {
    /// `qpn_mask` has the bits in which the numbers of queue pairs differ.
    pub(super) fn new(core: CqCore, qpn_mask: u32, tells_senders: bool) -> Self {
        let rings = core.directory.rings();
        let capacity = rings.first().map_or(0, |ring| ring.view.count());
        Self {
            entries: capacity.saturating_mul(rings.len() as u32),
            capacity,
            turn: 0,
            reporters: Reporters::new(qpn_mask),
            wrong: None,
            left: 0,
            found: None,
            waits: false,
            #[cfg(feature = "c-abi")]
            shown: None,
            tells_senders,
            core: Arc::new(core),
        }
    }

    #[cfg(test)]
    pub(super) fn core(&self) -> &Arc<CqCore> {
        &self.core
    }

    /// The queue, once it has seen to what has come up since the last poll. Fails if something is wrong,
    /// which is told once. Out of line, as [`Self::next`].
    #[inline(never)]
    fn up_to_date(&mut self) -> std::result::Result<&mut Self, PollError> {
        self.left = self.entries;
        let is_stale = self.reporters.are_stale(&self.core.directory);
        match is_stale || self.reporters.are_leaving() || self.wrong.is_some() {
            true => self.attend(),
            false => Ok(self),
        }
    }

    #[cold]
    #[inline(never)]
    fn attend(&mut self) -> std::result::Result<&mut Self, PollError> {
        self.reporters.catch_up(&self.core.directory);
        self.reporters.settle(&self.core.directory);
        match self.wrong.take() {
            None => Ok(self),
            Some(error) => Err(error),
        }
    }

    /// Has the next ring looked at next.
    #[inline(always)]
    fn pass_turn(&mut self) {
        let next = self.turn + 1;
        self.turn = match next == self.core.directory.rings().len() {
            true => 0,
            false => next,
        };
    }

    /// The next completion that somebody wants. By reference: the caller reads what it wants of it.
    ///
    /// Out of line: a program that polls has the loops of all drivers in one function, and one that takes
    /// many registers would have the others save them.
    #[inline(never)]
    fn next(&mut self) -> Option<&Completion> {
        match self.next_usual() {
            Some(completion) => Some(self.found.insert(completion)),
            None => self.next_closely(),
        }
    }

    /// The next completion, if it is in the ring whose turn it is, tells of a request in the usual way, and
    /// all is well. None tells nothing.
    #[inline(always)]
    fn next_usual(&mut self) -> Option<Completion> {
        let ring = self.core.directory.rings().get(self.turn)?;
        let (view, index) = (ring.view, ring.passed());
        if self.left == 0 || self.waits || !view.has_arrived(index) {
            return None;
        }
        let fields = view.entry(index);
        if !fields.is_usual() || self.reporters.are_stale(&self.core.directory) {
            return None;
        }
        let reporter = self.reporters.usual(name(&fields), self.turn)?;
        let request = reporter.ledger.find(fields.number.get())?;
        self.core.pass(ring, index);
        let noted = request.finish();
        self.left -= 1;
        self.pass_turn();
        noted.is_signaled.then_some(Completion {
            fields,
            noted,
            status: WcStatus::SUCCESS,
            tells_sender: self.tells_senders,
        })
    }

    /// Takes the next entry of the rings, which are looked at in turn: its ring, its index and what it says.
    /// None as well if a ring has overrun.
    fn take(&mut self) -> Option<(usize, u32, Words)> {
        for _ in 0..self.core.directory.rings().len() {
            let turn = self.turn;
            self.pass_turn();
            let ring = &self.core.directory.rings()[turn];
            let (view, index) = (ring.view, ring.passed());
            if view.has_arrived(index) {
                let fields = view.entry(index);
                self.core.pass(ring, index);
                return Some((turn, index, fields));
            }
            if view.has_overrun(index) {
                self.skip_lost(turn);
                return None;
            }
        }
        None
    }

    /// Goes on behind the entries of a ring that the device has written over. The next poll tells.
    #[cold]
    #[inline(never)]
    fn skip_lost(&mut self, ring: usize) {
        let ring = &self.core.directory.rings()[ring];
        let from = ring.passed();
        let behind = ring.view.behind_lost(from).unwrap_or(from);
        self.core.directory.pass(ring, behind);
        self.core.tell(false);
        self.wrong = Some(PollError::Overrun);
    }

    /// As [`Self::next`], whatever the entry is. None as well if it makes no sense, which the next poll
    /// tells.
    #[inline(never)]
    fn next_closely(&mut self) -> Option<&Completion> {
        if mem::take(&mut self.waits) {
            return self.found.as_ref();
        }
        while self.left > 0 {
            self.left -= 1;
            let (ring, index, fields) = self.take()?;
            if self.reporters.are_stale(&self.core.directory) {
                self.reporters.catch_up(&self.core.directory);
            }
            let (name, code) = (name(&fields), fields.operation());
            let Some(reporter) = self.reporters.find(name, ring, index) else {
                self.wrong = Some(PollError::Stray { number: name.qpn });
                return None;
            };
            if reporter.is_forgotten {
                continue;
            }
            let noted = match fields.flags & entry::UNSOLICITED {
                0 => reporter.ledger.finish(fields.number.get()),
                // Its number means nothing.
                _ => (reporter.takes_unsolicited && code == request::WRITE).then_some(UNSOLICITED),
            };
            let Some(noted) = noted else {
                self.wrong = Some(PollError::Unknown { code });
                return None;
            };
            let status = status(fields.status);
            if noted.is_signaled || status != WcStatus::SUCCESS {
                return Some(self.found.insert(Completion {
                    fields,
                    noted,
                    status,
                    tells_sender: self.tells_senders,
                }));
            }
        }
        None
    }
}

/// What is noted of messages that consume no receive.
const UNSOLICITED: Noted = Noted {
    id: 0,
    is_signaled: true,
    bytes: 0,
};

#[inline(always)]
fn name(fields: &Entry) -> Name {
    Name {
        qpn: fields.qpn.get().into(),
        is_receive: fields.is_receive(),
        takes_unsolicited: false,
    }
}

impl contract::Cq for Cq {
    type Backing = Arc<CqCore>;
    type Completion = Completion;
    type Polled<'q> = Polled<'q>;

    fn backing(&self) -> Arc<CqCore> {
        Arc::clone(&self.core)
    }

    fn events(backing: &Arc<CqCore>) -> Option<&Arc<AtomicU32>> {
        Some(&backing.events)
    }

    fn arm(
        backing: &Arc<CqCore>,
        _fd: &CommandFd,
        _cq: CqHandle,
        solicited_only: bool,
    ) -> Result<()> {
        let lacks = |what| Err(super::Efa::lacks(Verb::ReqNotifyCq, what));
        match &backing.doorbell {
            _ if solicited_only => lacks("events for solicited messages alone"),
            None => lacks("events of completion queues that were created without a channel"),
            Some(_) => {
                backing.tell(true);
                Ok(())
            }
        }
    }

    fn capacity(&self) -> u32 {
        self.capacity
    }

    /// What nobody wants does not count.
    fn is_empty(&mut self) -> std::result::Result<bool, PollError> {
        let cq = self.up_to_date()?;
        cq.waits = cq.next_closely().is_some();
        let cq = cq.up_to_date()?;
        Ok(!cq.waits)
    }

    #[inline(always)]
    fn poll(&mut self) -> std::result::Result<Polled<'_>, PollError> {
        Ok(Polled(self.up_to_date()?))
    }

    /// Entries have gone back when they are shown. The last one stays to be looked at when there is none: a
    /// program of libefa's may ask about it behind `ibv_end_poll`.
    #[cfg(feature = "c-abi")]
    fn show_next(&mut self) -> std::result::Result<Option<Completion>, PollError> {
        let next = self.poll()?.next();
        self.shown = next.or(self.shown);
        Ok(next)
    }

    #[cfg(feature = "c-abi")]
    fn shown(&self) -> Option<Completion> {
        self.shown
    }

    #[cfg(feature = "c-abi")]
    fn hide(&mut self) {
        // What was shown stays, as in `show_next`.
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        self.core.directory.close();
    }
}

/// Completions that are being taken.
#[derive(Debug)]
pub(crate) struct Polled<'q>(&'q mut Cq);

impl Iterator for Polled<'_> {
    type Item = Completion;

    #[inline(always)]
    fn next(&mut self) -> Option<Completion> {
        self.0.next().copied()
    }
}

/// A completion: a copy of its entry, with what was noted of its request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    fields: Words,
    noted: Noted,
    status: WcStatus,
    /// It has the sender's GID if there is no AH for that.
    tells_sender: bool,
}

impl contract::Completion for Completion {
    #[inline(always)]
    fn wr_id(&self) -> u64 {
        self.noted.id
    }

    #[inline(always)]
    fn status(&self) -> WcStatus {
        self.status
    }

    #[inline(always)]
    fn opcode(&self) -> WcOpcode {
        match (self.fields.is_receive(), self.fields.operation()) {
            (true, request::WRITE) => WcOpcode::RECV_RDMA_WITH_IMM,
            (true, _) => WcOpcode::RECV,
            (false, request::READ) => WcOpcode::RDMA_READ,
            (false, request::WRITE) => WcOpcode::RDMA_WRITE,
            (false, _) => WcOpcode::SEND,
        }
    }

    #[inline(always)]
    fn vendor_err(&self) -> u32 {
        self.fields.status.into()
    }

    /// What a request of this side's had in it is noted: its entry has an id in that place.
    #[inline(always)]
    fn byte_len(&self) -> u32 {
        match self.fields.is_receive() {
            true => self.fields.bytes(),
            false => self.noted.bytes,
        }
    }

    #[inline(always)]
    fn qp_num(&self) -> u32 {
        self.fields.qpn.get().into()
    }

    #[inline(always)]
    fn src_qp(&self) -> u32 {
        self.fields.src_qpn.get().into()
    }

    #[inline(always)]
    fn ex(&self) -> u32 {
        self.fields.imm.get().to_be()
    }

    #[inline(always)]
    fn flags(&self) -> WcFlags {
        match self.fields.is_receive() && self.fields.flags & entry::IMMEDIATE != 0 {
            true => WcFlags::WITH_IMM,
            false => WcFlags::empty(),
        }
    }

    /// The number of this side's AH for the sender, as libefa has it; 65,535 if there is none.
    #[inline(always)]
    fn slid(&self) -> u16 {
        self.fields.ah.get()
    }

    #[inline(always)]
    fn is_unsolicited(&self) -> bool {
        self.fields.flags & entry::UNSOLICITED != 0
    }

    /// In its place a WRITE has the high half of its length.
    #[inline(always)]
    fn sender_gid(&self) -> Option<[u8; 16]> {
        let is_unknown = self.fields.ah.get() == entry::NO_AH;
        let is_message = self.fields.is_receive() && self.fields.operation() == request::SEND;
        (self.tells_sender && is_unknown && is_message && self.status == WcStatus::SUCCESS)
            .then_some(self.fields.rest)
    }
}
