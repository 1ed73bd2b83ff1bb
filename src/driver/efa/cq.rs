//! Completion queues: polling, and arming.
//!
//! A completion queue has one ring or several; a queue pair reports its sends in one of them and its receives
//! in one. All requests complete; completions of unsignaled requests are dropped here, unless the request
//! failed.

#[cfg(feature = "c-abi")]
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use uverbs_uapi::enums::{WcOpcode, WcStatus};
use uverbs_uapi::flags::WcFlags;
use uverbs_uapi::handle::CqHandle;
#[cfg(feature = "c-abi")]
use uverbs_uapi::types::Wc;

#[cfg(feature = "c-abi")]
use super::QueueMemory;
use super::format::{Entry, Words, doorbell, entry, request, status};
use super::order;
use super::reporters::{Directory, Name, Reporters, Ring, Whose};
use super::ring::{Register, RingMemory, View};
use crate::command::CommandFd;
#[cfg(feature = "c-abi")]
use crate::driver::contract::Completion as _;
use crate::driver::contract::{self, Driver as _};
use crate::driver::kit::turn::Turn;
use crate::error::{Result, Verb};
use crate::work::PollError;

/// What a completion queue shares with its queue pairs, and what must stay until the kernel has released it.
#[derive(Debug)]
pub(crate) struct CqCore {
    // It points into the memory.
    pub(super) directory: Arc<Directory>,
    pub(super) events: Arc<AtomicU32>,
    /// Only a queue with events has one.
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
    /// Entries that were taken of all rings, as the device knows, modulo 2^32. Only the thread that has the
    /// turn changes it.
    taken: AtomicU32,
}

impl Doorbell {
    /// Reports to the device that `more` entries were taken, which have been read. `wish` returns the bits
    /// that ask for an event, or 0; it is called when this thread has the turn.
    #[inline(always)]
    fn tell(&self, more: u32, wish: impl FnOnce() -> u32) {
        // By turns: otherwise an older count of entries or of events could be stored last. Relaxed, since the
        // turn orders it.
        let _turn = self.turn.take();
        let taken = self.taken.load(Ordering::Relaxed).wrapping_add(more);
        self.taken.store(taken, Ordering::Relaxed);
        let value = taken & u32::from(u16::MAX) | wish();
        order::after_writing();
        self.register.store(value);
    }
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
                taken: AtomicU32::new(0),
            }),
            memory,
        }
    }

    /// Gives `count` entries of a ring from this index on back, which have been read. If the queue has a
    /// doorbell, the device learns of it before the request is finished: room in a queue then also means room
    /// for one more completion.
    #[inline(always)]
    fn pass(&self, ring: &Ring, index: u32, count: u32) {
        ring.pass(index.wrapping_add(count));
        if let Some(doorbell) = &self.doorbell {
            doorbell.tell(count, || 0);
        }
    }

    /// The bits that ask for an event. They have the count of events that were read, by which the device
    /// distinguishes a new request for an event from an old one.
    fn wish(&self) -> u32 {
        // Relaxed: a thread that reads an event and then arms takes the turn too. If its turn came first, its
        // count is seen here; if it comes later, it stores the newer count.
        let sequence = self.events.load(Ordering::Relaxed) & 3;
        doorbell::ARM | sequence << doorbell::SEQUENCE
    }

    /// Its rings, which lie one after the other.
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
    poller: Poller,
    /// The last completion that was found. C programs read it, and may still do so when no newer one was
    /// found: a program for libefa may read it after `ibv_end_poll`.
    found: Option<Completion>,
    /// Entries that a ring holds.
    capacity: u32,
    core: Arc<CqCore>,
}

/// What finds completions in the rings.
#[derive(Debug)]
struct Poller {
    /// The ring that is looked at, until it is empty.
    at: usize,
    /// Entries that this poll may still take: once round the rings, while the device continues.
    left: u32,
    /// Entries of all rings.
    entries: u32,
    /// The next poll has something to do: report `wrong`, remove queues that are gone, or return the
    /// completion that waits.
    has_news: bool,
    /// Nobody has taken the completion that was found last.
    waits: bool,
    /// Entries have the GIDs of senders for whom there is no AH.
    tells_senders: bool,
    /// The error that the next poll reports.
    wrong: Option<PollError>,
    reporters: Reporters,
}

impl Cq {
    /// `qpn_mask` has the bits in which the numbers of queue pairs differ.
    pub(super) fn new(core: CqCore, qpn_mask: u32, tells_senders: bool) -> Self {
        let rings = core.directory.rings();
        let capacity = rings.first().map_or(0, |ring| ring.view.count());
        let poller = Poller {
            at: 0,
            left: 0,
            entries: capacity.saturating_mul(rings.len() as u32),
            has_news: false,
            waits: false,
            tells_senders,
            wrong: None,
            reporters: Reporters::new(qpn_mask),
        };
        Self {
            poller,
            found: None,
            capacity,
            core: Arc::new(core),
        }
    }

    #[cfg(test)]
    pub(super) fn core(&self) -> &Arc<CqCore> {
        &self.core
    }

    /// The next completion of this poll. By reference: the caller reads what it wants of it.
    ///
    /// Out of line, as is [`poll`](contract::Cq::poll): a program that polls has the loops of all drivers in
    /// one function. If one of them took many registers, the others would have to save them.
    #[inline(never)]
    fn next_found(&mut self) -> Option<&Completion> {
        match self.poller.waits {
            true => self.poller.waits = false,
            false => {
                let found = &mut self.found;
                // Written where it stays.
                let see = |completion| *found = Some(completion);
                let mut ring = self.poller.ring(&self.core);
                self.poller.take_next(&self.core, &mut ring, see)?;
            }
        }
        self.found.as_ref()
    }
}

impl Poller {
    /// Does what has come up since the last poll. Fails if something is wrong; each error is reported once.
    #[inline(always)]
    fn catch_up(&mut self, core: &CqCore) -> std::result::Result<(), PollError> {
        match self.needs_attention(core) {
            true => self.attend(core),
            false => Ok(()),
        }
    }

    /// Whether something has come up since the last poll.
    #[inline(always)]
    fn needs_attention(&self, core: &CqCore) -> bool {
        self.has_news || self.reporters.are_stale(&core.directory)
    }

    #[cold]
    #[inline(never)]
    fn attend(&mut self, core: &CqCore) -> std::result::Result<(), PollError> {
        self.reporters.catch_up(&core.directory);
        self.reporters.settle(&core.directory);
        self.has_news = self.reporters.are_leaving() || self.waits;
        self.wrong.take().map_or(Ok(()), Err)
    }

    /// Begins a poll of all rings. It starts with the next ring, so that one that is never empty does not
    /// stop the others.
    #[inline(always)]
    fn begin(&mut self, core: &CqCore) {
        self.pass_turn(core);
        self.left = self.entries;
    }

    /// Makes the next ring come first.
    #[inline(always)]
    fn pass_turn(&mut self, core: &CqCore) {
        self.at = match self.at + 1 {
            next if next < core.directory.rings().len() => next,
            _ => 0,
        };
    }

    /// The ring that is looked at.
    #[inline(always)]
    fn ring<'c>(&self, core: &'c CqCore) -> &'c Ring {
        &core.directory.rings()[self.at]
    }

    /// Takes the next completion of a request that is signaled or failed; returns what `see` makes of it.
    /// `None` if there is none, and also if an entry makes no sense or a ring has overrun, which the next
    /// poll reports. `ring` is the one that is looked at.
    #[inline(always)]
    fn take_next<'c, T>(
        &mut self,
        core: &'c CqCore,
        ring: &mut &'c Ring,
        mut see: impl FnMut(Completion) -> T,
    ) -> Option<T> {
        while self.left > 0 {
            let (view, index) = (ring.view, ring.passed());
            if !view.has_arrived(index) {
                *ring = self.go_on(core)?;
                continue;
            }
            // Only now: a change is made before the device reports what depends on it.
            if self.reporters.are_stale(&core.directory) {
                self.reporters.catch_up(&core.directory);
                self.has_news = true;
            }
            self.left -= 1;
            let head = view.head(index);
            let (name, code) = (name(&head), head.operation());
            let reporter = match self.reporters.find(name, ring.number, index) {
                Whose::Queue(reporter) => reporter,
                Whose::Forgotten => {
                    core.pass(ring, index, 1);
                    continue;
                }
                Whose::Nobody => {
                    return self.fail(core, ring, PollError::Stray { number: name.qpn });
                }
            };
            let completion = |wr_id, bytes| Completion {
                fields: view.entry(index),
                wr_id,
                bytes,
                tells_sender: self.tells_senders,
            };
            if head.flags & entry::UNSOLICITED != 0 {
                // The number in the entry means nothing.
                if !reporter.takes_unsolicited || code != request::WRITE {
                    return self.fail(core, ring, PollError::Unknown { code });
                }
                let seen = see(completion(0, 0));
                core.pass(ring, index, 1);
                return Some(seen);
            }
            let Some(request) = reporter.ledger.find(head.number.get()) else {
                return self.fail(core, ring, PollError::Unknown { code });
            };
            if request.is_signaled() || head.status != 0 {
                let seen = see(completion(request.id(), request.bytes()));
                core.pass(ring, index, 1);
                request.finish();
                return Some(seen);
            }
            core.pass(ring, index, 1);
            request.finish();
        }
        None
    }

    /// Moves on to the next ring that has an entry; `None` if none has, or one has overrun.
    #[inline(never)]
    fn go_on<'c>(&mut self, core: &'c CqCore) -> Option<&'c Ring> {
        let mut others = 1..core.directory.rings().len();
        let mut ring = self.ring(core);
        loop {
            if ring.has_overrun() {
                self.skip_lost(core, ring);
                return None;
            }
            others.next()?;
            self.pass_turn(core);
            ring = self.ring(core);
            if ring.has_entry() {
                return Some(ring);
            }
        }
    }

    /// Continues after the entries of the ring that the device has written over.
    #[cold]
    #[inline(never)]
    fn skip_lost(&mut self, core: &CqCore, ring: &Ring) {
        let index = ring.passed();
        let behind = ring.view.behind_lost(index).unwrap_or(index);
        core.pass(ring, index, behind.wrapping_sub(index));
        self.tell_next(PollError::Overrun);
    }

    /// Passes over an entry that makes no sense; the next poll reports it.
    #[cold]
    #[inline(never)]
    fn fail<T>(&mut self, core: &CqCore, ring: &Ring, error: PollError) -> Option<T> {
        core.pass(ring, ring.passed(), 1);
        self.tell_next(error);
        None
    }

    /// Makes the next poll report an error.
    fn tell_next(&mut self, error: PollError) {
        self.wrong = Some(error);
        self.has_news = true;
    }
}

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
            Some(doorbell) => {
                doorbell.tell(0, || backing.wish());
                Ok(())
            }
        }
    }

    fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Completions of unsignaled requests that succeeded do not count.
    fn is_empty(&mut self) -> std::result::Result<bool, PollError> {
        let waits = self.poll()?.next().is_some();
        (self.poller.waits, self.poller.has_news) = (waits, true);
        self.poller.catch_up(&self.core)?;
        Ok(!waits)
    }

    #[inline(never)]
    fn poll(&mut self) -> std::result::Result<Polled<'_>, PollError> {
        self.poller.catch_up(&self.core)?;
        self.poller.begin(&self.core);
        Ok(Polled { cq: self })
    }

    #[cfg(feature = "c-abi")]
    #[inline(always)]
    fn take_into(&mut self, places: &mut [MaybeUninit<Wc>]) -> Option<usize> {
        if self.poller.needs_attention(&self.core) {
            return None;
        }
        self.poller.begin(&self.core);
        let mut ring = self.poller.ring(&self.core);
        let mut taken = 0;
        for place in places {
            let see = |completion: Completion| _ = place.write(completion.to_wc());
            if self.poller.take_next(&self.core, &mut ring, see).is_none() {
                break;
            }
            taken += 1;
        }
        Some(taken)
    }

    /// An entry has gone back to the device by the time it is shown.
    #[cfg(feature = "c-abi")]
    #[inline(always)]
    fn show_next(&mut self) -> std::result::Result<Option<Completion>, PollError> {
        self.poller.catch_up(&self.core)?;
        self.poller.left = self.poller.entries;
        Ok(self.next_found().copied())
    }

    #[cfg(feature = "c-abi")]
    fn shown(&self) -> Option<Completion> {
        self.found
    }

    /// The completion that was shown stays readable (see [`Cq::found`]). The next ring comes first when the
    /// next one is shown.
    #[cfg(feature = "c-abi")]
    #[inline(always)]
    fn hide(&mut self) {
        self.poller.pass_turn(&self.core);
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        self.core.directory.close();
    }
}

/// Completions that are being taken. It is only a reference, and its state is in the queue: the other
/// drivers' loops keep their state in registers, which they could not if one variant lay on the stack.
#[derive(Debug)]
pub(crate) struct Polled<'q> {
    cq: &'q mut Cq,
}

impl Iterator for Polled<'_> {
    type Item = Completion;

    #[inline(always)]
    fn next(&mut self) -> Option<Completion> {
        self.cq.next_found().copied()
    }
}

/// A completion: a copy of its entry, with what was noted of its request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    fields: Words,
    /// What was noted of its request: the id, and the bytes of one of this side's.
    wr_id: u64,
    bytes: u32,
    /// The entry has the sender's GID if this side has no AH for the sender.
    tells_sender: bool,
}

impl contract::Completion for Completion {
    #[inline(always)]
    fn wr_id(&self) -> u64 {
        self.wr_id
    }

    #[inline(always)]
    fn status(&self) -> WcStatus {
        status(self.fields.status)
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

    /// For a request of this side the bytes come from its note: its entry has an id in that field.
    #[inline(always)]
    fn byte_len(&self) -> u32 {
        match self.fields.is_receive() {
            true => self.fields.bytes(),
            false => self.bytes,
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

    /// An entry of a WRITE has the high half of its length there instead.
    #[inline(always)]
    fn sender_gid(&self) -> Option<[u8; 16]> {
        let is_unknown = self.fields.ah.get() == entry::NO_AH;
        let is_message = self.fields.is_receive() && self.fields.operation() == request::SEND;
        (self.tells_sender && is_unknown && is_message && self.fields.status == 0)
            .then_some(self.fields.rest)
    }
}
