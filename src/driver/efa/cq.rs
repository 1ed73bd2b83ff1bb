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
use super::format::{Entry, Words, doorbell, entry, failure, request};
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
    doorbell: Option<Doorbell>,
    /// The device has an event queue for it: it was created with a channel. Only then may it be armed.
    has_events: bool,
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
        order::after_reading();
        self.register.store(value);
    }
}

impl CqCore {
    /// Over rings that lie in the memory.
    pub(super) fn new(
        rings: Box<[View]>,
        memory: RingMemory,
        register: Option<Register>,
        has_events: bool,
    ) -> Self {
        Self {
            directory: Arc::new(Directory::new(rings)),
            events: Arc::default(),
            doorbell: register.map(|register| Doorbell {
                register,
                turn: Turn::new(),
                taken: AtomicU32::new(0),
            }),
            has_events,
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

    /// Its rings, which lie one after the other, for a program that polls by itself from now on.
    #[cfg(feature = "c-abi")]
    pub(crate) fn memory(&self) -> QueueMemory {
        self.directory.leave_to_program();
        let doorbell = self.doorbell.as_ref();
        let rings = self.directory.rings();
        QueueMemory {
            first: self.memory.base().as_ptr(),
            entry_bytes: Entry::BYTES as u32,
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
    kept: Kept,
    /// Entries that a ring holds, and all of them.
    capacity: u32,
    entries: u32,
    core: Arc<CqCore>,
}

/// What changes while completions are taken.
#[derive(Debug)]
struct Poller {
    /// The ring that was looked at last.
    ring: u32,
    /// Entries that this poll may still look at: once round the rings, while the device continues.
    left: u32,
    reporters: Reporters,
    /// The error that the next poll reports.
    wrong: Option<PollError>,
    /// The next poll has something to do: report `wrong`, remove queues that are gone, or return the
    /// completion that waits.
    has_news: bool,
    /// Entries have the GIDs of senders for whom there is no AH.
    tells_senders: bool,
}

/// The last completion that was found.
#[derive(Debug, Default)]
struct Kept {
    /// C programs read it, and may still do so when no newer one was found: a program for libefa may read it
    /// after `ibv_end_poll`.
    found: Option<Completion>,
    /// Nobody has taken it yet.
    waits: bool,
}

impl Cq {
    /// `qpn_mask` has the bits in which the numbers of queue pairs differ.
    pub(super) fn new(core: CqCore, qpn_mask: u32, tells_senders: bool) -> Self {
        let rings = core.directory.rings();
        let capacity = rings.first().map_or(0, |ring| ring.view.count());
        Self {
            entries: capacity.saturating_mul(rings.len() as u32),
            capacity,
            poller: Poller {
                ring: 0,
                left: 0,
                reporters: Reporters::new(qpn_mask),
                wrong: None,
                has_news: false,
                tells_senders,
            },
            kept: Kept::default(),
            core: Arc::new(core),
        }
    }

    #[cfg(test)]
    pub(super) fn core(&self) -> &Arc<CqCore> {
        &self.core
    }

    /// The queue, after it has done what has come up since the last poll. Fails if something is wrong; each
    /// error is reported once.
    #[inline(always)]
    fn up_to_date(&mut self) -> std::result::Result<&mut Self, PollError> {
        match self.needs_attention() {
            true => self.attend(),
            false => Ok(self),
        }
    }

    /// Whether something has come up since the last poll.
    #[inline(always)]
    fn needs_attention(&self) -> bool {
        self.poller.has_news || self.poller.reporters.are_stale(&self.core.directory)
    }

    #[cold]
    #[inline(never)]
    fn attend(&mut self) -> std::result::Result<&mut Self, PollError> {
        let poller = &mut self.poller;
        poller.reporters.catch_up(&self.core.directory);
        poller.reporters.settle(&self.core.directory);
        poller.has_news = poller.reporters.are_leaving() || self.kept.waits;
        match poller.wrong.take() {
            None => Ok(self),
            Some(error) => Err(error),
        }
    }

    /// Begins a poll of all rings. It starts with the next ring, so that one that is never empty does not
    /// stop the others.
    #[inline(always)]
    fn begin(&mut self) {
        self.pass_turn();
        self.poller.left = self.entries;
    }

    /// Makes the next ring come first.
    #[inline(always)]
    fn pass_turn(&mut self) {
        self.poller.ring = self.core.directory.behind(self.poller.ring).number;
    }

    /// The next completion of this poll. By reference: the caller reads what it wants of it.
    ///
    /// Out of line, as is [`poll`](contract::Cq::poll): a program that polls has the loops of all drivers in
    /// one function. If one of them took many registers, the others would have to save them.
    #[inline(never)]
    fn next_found(&mut self) -> Option<&Completion> {
        let kept = &mut self.kept;
        match kept.waits {
            true => kept.waits = false,
            // Written where it stays.
            false => Look::new(&mut self.poller, &self.core)
                .take_next(|completion| kept.found = Some(completion))?,
        }
        kept.found.as_ref()
    }
}

#[inline(always)]
fn status(code: u8) -> WcStatus {
    match code {
        0 => WcStatus::SUCCESS,
        code => failure(code),
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
            Some(doorbell) if backing.has_events => {
                doorbell.tell(0, || backing.wish());
                Ok(())
            }
            _ => lacks("events of completion queues that were created without a channel"),
        }
    }

    fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Completions of unsignaled requests that succeeded do not count.
    fn is_empty(&mut self) -> std::result::Result<bool, PollError> {
        let waits = self.poll()?.next().is_some();
        (self.kept.waits, self.poller.has_news) = (waits, true);
        self.up_to_date()?;
        Ok(!waits)
    }

    #[inline(never)]
    fn poll(&mut self) -> std::result::Result<Polled<'_>, PollError> {
        let cq = self.up_to_date()?;
        cq.begin();
        Ok(Polled { cq })
    }

    #[cfg(feature = "c-abi")]
    #[inline(always)]
    fn take_into(&mut self, places: &mut [MaybeUninit<Wc>]) -> Option<usize> {
        if self.needs_attention() {
            return None;
        }
        self.begin();
        let mut look = Look::new(&mut self.poller, &self.core);
        let mut taken = 0;
        for place in places {
            let see = |completion: Completion| _ = place.write(completion.to_wc());
            if look.take_next(see).is_none() {
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
        let cq = self.up_to_date()?;
        cq.poller.left = cq.entries;
        Ok(cq.next_found().copied())
    }

    #[cfg(feature = "c-abi")]
    fn shown(&self) -> Option<Completion> {
        self.kept.found
    }

    /// The completion that was shown stays readable (see [`Kept::found`]). The next ring comes first when the
    /// next one is shown.
    #[cfg(feature = "c-abi")]
    #[inline(always)]
    fn hide(&mut self) {
        self.pass_turn();
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

/// A look at the rings.
#[derive(Debug)]
struct Look<'q> {
    poller: &'q mut Poller,
    core: &'q CqCore,
    /// The ring that is looked at, until it is empty.
    ring: &'q Ring,
}

impl<'q> Look<'q> {
    /// Continues where the last look ended.
    #[inline(always)]
    fn new(poller: &'q mut Poller, core: &'q CqCore) -> Self {
        let ring = &core.directory.rings()[poller.ring as usize];
        Self { poller, core, ring }
    }

    /// Takes the next completion of a request that is signaled or failed; returns what `see` makes of it.
    /// `None` if there is none, and also if an entry makes no sense or a ring has overrun, which the next
    /// poll reports.
    #[inline(always)]
    fn take_next<T>(&mut self, see: impl FnOnce(Completion) -> T) -> Option<T> {
        while self.poller.left > 0 {
            let (view, index) = (self.ring.view, self.ring.passed());
            if !view.has_arrived(index) {
                match self.goes_on() {
                    true => continue,
                    false => return None,
                }
            }
            self.poller.left -= 1;
            if self.poller.reporters.are_stale(&self.core.directory) {
                self.catch_up();
            }
            let head = view.head(index);
            let (name, code) = (name(&head), head.operation());
            let reporter = match self.poller.reporters.find(name, self.ring.number, index) {
                Whose::Queue(reporter) => reporter,
                Whose::Forgotten => {
                    self.core.pass(self.ring, index, 1);
                    continue;
                }
                Whose::Nobody => return self.fail(index, PollError::Stray { number: name.qpn }),
            };
            let completion = |wr_id, bytes| Completion {
                fields: view.entry(index),
                wr_id,
                bytes,
                status: status(head.status),
                tells_sender: self.poller.tells_senders,
            };
            if head.flags & entry::UNSOLICITED != 0 {
                // The number in the entry means nothing.
                if !reporter.takes_unsolicited || code != request::WRITE {
                    return self.fail(index, PollError::Unknown { code });
                }
                let seen = see(completion(0, 0));
                self.core.pass(self.ring, index, 1);
                return Some(seen);
            }
            let Some(request) = reporter.ledger.find(head.number.get()) else {
                return self.fail(index, PollError::Unknown { code });
            };
            let is_wanted = request.is_signaled() || head.status != 0;
            if is_wanted {
                let seen = see(completion(request.id(), request.bytes()));
                self.core.pass(self.ring, index, 1);
                request.finish();
                return Some(seen);
            }
            self.core.pass(self.ring, index, 1);
            request.finish();
        }
        None
    }

    /// Moves on to the next ring that has an entry; false if none has, or one has overrun.
    #[inline(never)]
    fn goes_on(&mut self) -> bool {
        let directory = &self.core.directory;
        for _ in directory.rings() {
            let index = self.ring.passed();
            if self.ring.view.has_overrun(index) {
                self.skip_lost(index);
                return false;
            }
            self.ring = directory.behind(self.ring.number);
            self.poller.ring = self.ring.number;
            if self.ring.view.has_arrived(self.ring.passed()) {
                return true;
            }
        }
        false
    }

    /// Continues after the entries of the ring, from this index on, that the device has written over.
    #[cold]
    #[inline(never)]
    fn skip_lost(&mut self, index: u32) {
        let behind = self.ring.view.behind_lost(index).unwrap_or(index);
        self.core.pass(self.ring, index, behind.wrapping_sub(index));
        self.tell_next(PollError::Overrun);
    }

    /// Takes over what has changed among the queues that report here.
    #[cold]
    #[inline(never)]
    fn catch_up(&mut self) {
        self.poller.reporters.catch_up(&self.core.directory);
        self.poller.has_news = true;
    }

    /// Passes over an entry that makes no sense; the next poll reports it.
    #[cold]
    #[inline(never)]
    fn fail<T>(&mut self, index: u32, error: PollError) -> Option<T> {
        self.core.pass(self.ring, index, 1);
        self.tell_next(error);
        None
    }

    /// Makes the next poll report an error.
    fn tell_next(&mut self, error: PollError) {
        self.poller.wrong = Some(error);
        self.poller.has_news = true;
    }
}

/// A completion: a copy of its entry, with what was noted of its request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    fields: Words,
    /// What was noted of its request: the id, and the bytes of one of this side's.
    wr_id: u64,
    bytes: u32,
    /// Computed when the completion is taken: a call in the accessor would make all drivers' polls save
    /// registers.
    status: WcStatus,
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
        (self.tells_sender && is_unknown && is_message && self.status == WcStatus::SUCCESS)
            .then_some(self.fields.rest)
    }
}
