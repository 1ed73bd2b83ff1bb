//! Completion queues: polling, arming, resizing.

use std::hint::unreachable_unchecked;
use std::marker::PhantomData;
use std::mem;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use uverbs_uapi::enums::{WcOpcode, WcStatus};
use uverbs_uapi::flags::WcFlags;
use uverbs_uapi::handle::CqHandle;
#[cfg(feature = "c-abi")]
use uverbs_uapi::types::Wc;
#[cfg(feature = "c-abi")]
use zerocopy::FromZeros as _;

use super::again::{is_page_fault, post_again};
use super::barrier;
use super::directory::{Change, Directory, Heard, Receiver, Reporter, give_one_back, is_before};
use super::entries::{Entries, View, Walk};
use super::format::{ARM_SOLICITED, Cqe, NUMBER, RECORD_ARM, cqe, opcode, syndrome};
use super::inline::Landed;
use super::memory::Record;
use super::uar::UarPage;
use crate::command::CommandFd;
use crate::driver::contract;
#[cfg(feature = "c-abi")]
use crate::driver::contract::{Completion as _, First, Polled as _};
use crate::error;
use crate::work::PollError;

/// What a completion queue shares with its queue pairs, and what must stay until the kernel has let go of it.
#[derive(Debug)]
pub(crate) struct CqCore {
    pub(super) directory: Arc<Directory>,
    /// Events of the queue that have been read: the device takes an arming for new by their number.
    pub(super) events: Arc<AtomicU32>,
    cqn: u32,
    /// Where it is armed.
    uar: Arc<UarPage>,
}

impl CqCore {
    pub(super) fn new(entries: Entries, record: Record, cqn: u32, uar: Arc<UarPage>) -> Self {
        Self {
            directory: Arc::new(Directory::new(entries, record)),
            events: Arc::default(),
            cqn,
            uar,
        }
    }

    /// Asks for an event for the next completion. Threads that do so at once, or while another polls, are
    /// each heard or not as if one came behind the other: what each stores is whole.
    pub(super) fn ask(&self, solicited_only: bool) {
        // Relaxed: the number only has to change after an event has been read, which came before in this
        // thread or by whatever handed the queue to it.
        let sequence = self.events.load(Ordering::Relaxed) & 3;
        let command = if solicited_only { ARM_SOLICITED } else { 0 };
        let word = sequence << 28 | command | self.directory.consumer();
        // Relaxed: the barrier in `UarPage::arm` orders it before the register.
        let record = self.directory.record();
        record
            .word(RECORD_ARM)
            .store(word.to_be(), Ordering::Relaxed);
        self.uar.arm(word, self.cqn);
    }
}

/// A completion queue's poller. The index of the next entry to look at, which counts on round the ring, is
/// the one that the directory has.
#[derive(Debug)]
pub(crate) struct Cq {
    walk: Walk,
    /// By their places, as many as a power of two; vacant ones report nothing.
    reporters: Vec<Entry>,
    /// The version of the directory that `reporters` is of.
    version: u64,
    /// Entries of `reporters` wait for the poller to pass something.
    waiting: bool,
    directory: Arc<Directory>,
    core: Arc<CqCore>,
    /// The device had no room for a completion, which the next poll tells.
    overrun: bool,
    /// What was found wrong, told by the next poll, and what a poll tells.
    wrong: Option<PollError>,
    told: Option<PollError>,
    /// The completion that [`Self::take_slowly`] has taken.
    taken: Option<Completion>,
}

// SAFETY: the walk is over memory that `core` keeps, and the poller is the only one to use it through this.
unsafe impl Send for Cq {}
// SAFETY: shared references only look whether an entry is valid.
unsafe impl Sync for Cq {}

/// A queue pair that reports here, or the place of one. Aligned so that a shift finds it, and a single line
/// holds it.
#[derive(Debug)]
#[repr(align(64))]
struct Entry {
    /// Its place if it reports sends here, and if it reports receives that finish in order or come from a
    /// shared queue; else none. So one comparison tells that the number in a completion is known, and what
    /// of.
    sends: u32,
    receives: u32,
    reporter: Reporter,
    /// Entries before this index are passed over.
    forget_until: Option<u32>,
    /// The number is free once entries before this index have been taken.
    leave_at: Option<u32>,
}

/// No place: they have 24 bits.
const NO_PLACE: u32 = u32::MAX;

impl Entry {
    /// A queue pair at this place.
    fn new(place: u32, reporter: Reporter, forget_until: Option<u32>) -> Self {
        let sends = reporter.send.is_some();
        let receives = matches!(reporter.recv, Receiver::Own(_) | Receiver::Shared(_));
        Self {
            sends: if sends { place } else { NO_PLACE },
            receives: if receives { place } else { NO_PLACE },
            reporter,
            forget_until,
            leave_at: None,
        }
    }

    /// A place that nobody has.
    fn vacant() -> Self {
        Self::new(NO_PLACE, Reporter::default(), None)
    }

    /// Whether a queue pair has the number.
    fn is_known(&self) -> bool {
        self.reporter.send.is_some() || !matches!(self.reporter.recv, Receiver::None)
    }

    /// Whether what was reported at that index dates from before a reset.
    fn has_forgotten(&self, index: u32) -> bool {
        self.forget_until
            .is_some_and(|until| is_before(index, until))
    }

    /// The id of the request that any completion is of, with what it changed a memory key for.
    fn any(&self, op_own: u8, counter: u16) -> Option<(u64, u32)> {
        let send = || Some(self.reporter.send.as_ref()?.finish(counter));
        let recv = || match &self.reporter.recv {
            Receiver::Own(ledger) => Some(ledger.finish()),
            Receiver::Loose(ledger) => ledger.finish(counter),
            Receiver::Shared(ledger) => ledger.finish(counter),
            Receiver::None => None,
        };
        match op_own >> 4 {
            cqe::REQ | cqe::REQ_ERR => send(),
            cqe::RESP_ERR => recv().map(|id| (id, 0)),
            cqe::RESP_WR_IMM..=cqe::RESP_SEND_INV => recv().map(|id| (id, 0)),
            _ => None,
        }
    }

    /// Frees the element of a shared receive queue that a completion is of.
    fn reclaim(&self, op_own: u8, counter: u16) {
        if let Receiver::Shared(ledger) = &self.reporter.recv
            && cqe::is_receive(op_own)
        {
            ledger.finish(counter);
        }
    }

    /// Posts the request again that found a page missing; false if it is not one of a shared queue, or this
    /// cannot be done.
    fn post_again(&self, counter: u16) -> bool {
        let Reporter {
            recv, shared_ring, ..
        } = &self.reporter;
        match recv {
            Receiver::Shared(ledger) => post_again(shared_ring, ledger, counter),
            Receiver::Own(_) | Receiver::Loose(_) | Receiver::None => false,
        }
    }

    /// How the request went that the entry is of, once its data are where they belong. None if it makes no
    /// sense.
    ///
    /// # Safety
    ///
    /// As for [`super::inline::Landing::land`].
    unsafe fn status(&self, view: View, entry: NonNull<Cqe>) -> Option<WcStatus> {
        // SAFETY: by this function's contract.
        let fields = unsafe { entry.as_ref() };
        let op_own = fields.op_own;
        if op_own & cqe::SCATTERED == 0 || op_own & cqe::FAILED != 0 {
            return Some(status(op_own, fields));
        }
        let landing = self.reporter.landing.as_ref()?;
        // SAFETY: by this function's contract.
        let landed = unsafe { landing.land(&self.reporter, view, entry) }?;
        let status = match landed {
            Landed::Whole => return Some(WcStatus::SUCCESS),
            Landed::TooLong => WcStatus::LOC_LEN_ERR,
            Landed::Forgotten => WcStatus::WR_FLUSH_ERR,
        };
        // To the device it went well, so it has no code for this: the timestamp is in its place.
        // SAFETY: the entry is this side's, and only the poller looks at that byte.
        unsafe { (&raw mut (*entry.as_ptr()).vendor_err_synd).write(0) };
        Some(status)
    }
}

/// Whether it is a receive that went well, with nothing in the entry that belongs elsewhere.
#[inline(always)]
fn is_plain_receive(op_own: u8) -> bool {
    // Four kinds, one behind the other, with one bit that does not matter: so nothing is left.
    const FIRST: u8 = cqe::RESP_WR_IMM << 4;
    const OTHERS: u8 = (cqe::RESP_SEND_INV - cqe::RESP_WR_IMM) << 4;
    op_own.wrapping_sub(FIRST) & !(OTHERS | cqe::SOLICITED) == 0
}

/// What an entry is that reports a request that was sent, without anything that belongs elsewhere; its owner
/// bit is taken out.
const SENT: u8 = cqe::REQ << 4;

impl Cq {
    pub(super) fn new(core: Arc<CqCore>) -> Self {
        let view = core.directory.lock().entries.view();
        Self {
            walk: Walk::new(view, 0),
            // As the directory has it.
            reporters: vec![Entry::vacant(), Entry::vacant()],
            version: 0,
            waiting: false,
            directory: Arc::clone(&core.directory),
            core,
            overrun: false,
            wrong: None,
            told: None,
            taken: None,
        }
    }

    #[cfg(test)]
    pub(super) fn core(&self) -> &Arc<CqCore> {
        &self.core
    }

    #[cfg(test)]
    pub(super) fn uar(&self) -> &UarPage {
        &self.core.uar
    }

    /// Whether the queue is sound.
    pub(crate) fn check(&mut self) -> Result<(), PollError> {
        if self.directory.last_place() == 0 && !self.attend().1 {
            return Err(self.tell());
        }
        Ok(())
    }

    /// Applies changes, looks which of the entries that wait for something have it, and whether something
    /// was found wrong, which is told once; false if there is something to tell. It gives the queue back, so
    /// that callers, which expect it not to be called, keep nothing over the call.
    #[cold]
    #[inline(never)]
    fn attend(&mut self) -> (&mut Self, bool) {
        self.hear();
        self.told = match mem::take(&mut self.overrun) {
            true => Some(PollError::Overrun),
            false => self.wrong.take(),
        };
        self.waiting = self.waiting && self.settle();
        self.await_more();
        let is_sound = self.told.is_none();
        (self, is_sound)
    }

    /// What [`Self::attend`] has found to tell. In line, so that whoever drops it has no room for it.
    #[inline(always)]
    fn tell(&self) -> PollError {
        self.told.unwrap_or(PollError::Overrun)
    }

    /// Has the next poll attend to what there is to attend to. Until then no completion is a simple one.
    fn await_more(&self) {
        if self.waiting || self.wrong.is_some() || self.overrun {
            self.directory.attend();
        }
    }

    /// The index of the next entry to look at.
    #[inline(always)]
    fn next(&self) -> u32 {
        self.directory.consumer()
    }

    /// The completions that have arrived, at most as many as the queue holds.
    #[cfg(any(test, feature = "c-abi"))]
    #[inline(always)]
    pub(super) fn begin(&mut self) -> Polled<'_> {
        let directory = &raw const *self.directory;
        // SAFETY: it is this queue's.
        unsafe { self.begin_with(directory) }
    }

    /// As [`Self::begin`].
    ///
    /// # Safety
    ///
    /// The directory is this queue's.
    #[inline(always)]
    unsafe fn begin_with(&mut self, directory: *const Directory) -> Polled<'_> {
        Polled {
            at: self.walk.begin(),
            // SAFETY: by this function's contract: the queue keeps it.
            consumer: unsafe { (*directory).consumer_word() }.into(),
            directory,
            cq: NonNull::from(self),
            _borrowed: PhantomData,
        }
    }

    /// Takes the next completion, whatever there is about it, if there is one. It gives the queue back, as
    /// [`Self::attend`] does.
    #[cold]
    #[inline(never)]
    fn take_slowly(&mut self) -> &mut Self {
        self.walk.keep(self.next());
        self.taken = self.take_any();
        self
    }

    /// The next completion, even if it is not known who reports.
    fn take_any(&mut self) -> Option<Completion> {
        loop {
            let index = self.next();
            let entry = self.walk.entry(index)?;
            let op_own = self.walk.look(entry);
            if op_own & 1 != 0 {
                return None;
            }
            barrier::owner_before_entry();
            if self.version != self.directory.version() {
                self.catch_up();
            }
            // SAFETY: the device has written the entry and does not write it again before it is given back,
            // which is below; every bit pattern is a `Cqe`.
            let fields = unsafe { entry.as_ref() };
            let (number, place) = (fields.srqn_uidx.get() & NUMBER, fields.place());
            let counter = fields.wqe_counter.get();
            let release = |walk: &mut Walk| {
                let next = index.wrapping_add(1);
                self.directory.consumed(next);
                walk.pass_to(next);
            };
            let Some(reporter) = self.reporters.get(place as usize) else {
                release(&mut self.walk);
                self.refuse(PollError::Stray { number });
                return None;
            };
            if reporter.has_forgotten(index) {
                // Its request is forgotten too, but for an element of a shared queue, which is free again.
                release(&mut self.walk);
                reporter.reclaim(op_own, counter);
                continue;
            }
            // Data first: a request that is noted as finished is no longer the device's.
            // SAFETY: as above.
            let status = unsafe { reporter.status(self.walk.view(), entry) };
            // SAFETY: as above. The landing has gone over it, so it is read only now.
            let fields = unsafe { entry.read() };
            release(&mut self.walk);
            if is_page_fault(&fields) && reporter.post_again(counter) {
                continue;
            }
            let known = status.and_then(|status| Some((status, reporter.any(op_own, counter)?)));
            let Some((status, (wr_id, change))) = known else {
                match reporter.is_known() {
                    true => self.refuse_code(op_own),
                    false => self.refuse(PollError::Stray { number }),
                }
                return None;
            };
            return Some(Completion {
                fields,
                wr_id,
                status,
                change,
            });
        }
    }

    /// Notes that the entry before this place makes no sense; the next poll tells.
    fn refuse(&mut self, error: PollError) {
        self.wrong = Some(error);
        self.directory.attend();
    }

    /// As [`Self::refuse`], of what the device says that the entry is of.
    #[cold]
    #[inline(never)]
    fn refuse_code(&mut self, op_own: u8) {
        let code = op_own >> 4;
        self.refuse(PollError::Unknown { code });
    }

    /// Takes over what has changed among the queue pairs.
    fn catch_up(&mut self) {
        self.hear();
        self.await_more();
    }

    /// As [`Self::catch_up`]. What is left to attend to has to be seen to.
    fn hear(&mut self) {
        let Heard {
            changes,
            version,
            last_place,
            overrun,
        } = self.directory.hear(self.last_place());
        self.version = version;
        self.overrun |= overrun;
        // Never to less than there are.
        let places = last_place as usize + 1;
        self.reporters.resize_with(places, Entry::vacant);
        for change in changes {
            match change {
                Change::Set {
                    number,
                    reporter,
                    forget_until,
                } => {
                    self.waiting |= forget_until.is_some();
                    self.reporters[number as usize] = Entry::new(number, reporter, forget_until);
                }
                Change::Remove {
                    number,
                    until,
                    forgotten,
                } => {
                    if let Some(entry) = self.reporters.get_mut(number as usize) {
                        if forgotten {
                            entry.forget_until = Some(until);
                        }
                        entry.leave_at = Some(until);
                        self.waiting = true;
                    }
                }
            }
        }
    }

    /// The last place of the table.
    fn last_place(&self) -> u32 {
        self.reporters.len() as u32 - 1
    }

    /// Lets those entries go that waited for what has come; true if others wait on.
    fn settle(&mut self) -> bool {
        let (next, mut waiting) = (self.next(), false);
        // Dropped when the lock is no longer held: with them rings may go, whose memory an allocator gets
        // back.
        let mut gone = Vec::new();
        let core = Arc::clone(&self.core);
        let mut inner = core.directory.lock();
        for (entry, number) in self.reporters.iter_mut().zip(0..) {
            entry.forget_until = entry.forget_until.filter(|until| is_before(next, *until));
            match entry.leave_at {
                Some(until) if !is_before(next, until) => {
                    gone.push(mem::replace(entry, Entry::vacant()));
                    inner.free(number);
                }
                Some(_) => waiting = true,
                None => waiting |= entry.forget_until.is_some(),
            }
        }
        waiting
    }

    /// Entries of its ring.
    pub(super) fn count(&self) -> u32 {
        self.walk.view().count()
    }

    /// Bytes of an entry.
    pub(super) fn entry_bytes(&self) -> usize {
        self.walk.view().entry_bytes()
    }

    /// Goes on in another ring: `switch` makes the device do so. What waits is copied over.
    ///
    /// # Errors
    ///
    /// What `switch` says; the queue is as it was.
    pub(super) fn resize<E>(
        &mut self,
        new: Entries,
        switch: impl FnOnce(&Entries) -> Result<(), E>,
    ) -> Result<(), E> {
        let core = Arc::clone(&self.core);
        // Held throughout, so that nobody looks at the old ring for what is in the new one.
        let mut inner = core.directory.lock();
        let next = self.next();
        // The first of the new ring is the place behind the one that stays empty.
        new.invalidate(next.wrapping_add(1));
        switch(&new)?;
        let (old_view, view) = (self.walk.view(), new.view());
        // The device has ended the old ring with an entry that says so. Its place in the new one stays empty,
        // so what was not taken moves on by one.
        let mut index = next;
        while let Some(op_own) = old_view.poll(index) {
            barrier::owner_before_entry();
            if op_own >> 4 == cqe::RESIZE {
                break;
            }
            old_view.copy_to(index, view, index.wrapping_add(1));
            index = index.wrapping_add(1);
        }
        inner.shift();
        for entry in &mut self.reporters {
            for until in [&mut entry.forget_until, &mut entry.leave_at] {
                *until = until.map(|until| until.wrapping_add(1));
            }
        }
        let old = mem::replace(&mut inner.entries, new);
        drop(inner);
        // Not under the lock: an allocator may get the memory back, and may do with other queues as it likes.
        drop(old);
        let next = next.wrapping_add(1);
        self.walk = Walk::new(view, next);
        self.directory.consumed(next);
        Ok(())
    }
}

impl contract::Cq for Cq {
    type Backing = Arc<CqCore>;
    type Completion = Completion;
    type Polled<'q> = Polled<'q>;
    /// A copy, for its entry goes back to the device before its request is known as finished.
    #[cfg(feature = "c-abi")]
    type Shown = Completion;

    fn backing(&self) -> Arc<CqCore> {
        Arc::clone(&self.core)
    }

    fn events(backing: &Arc<CqCore>) -> Option<&Arc<AtomicU32>> {
        Some(&backing.events)
    }

    fn overran(backing: &Arc<CqCore>) {
        backing.directory.overran();
    }

    fn capacity(&self) -> u32 {
        self.count() - 1
    }

    fn is_empty(&mut self) -> Result<bool, PollError> {
        self.check()?;
        Ok(self.walk.view().poll(self.next()).is_none())
    }

    fn arm(
        backing: &Arc<CqCore>,
        _fd: &CommandFd,
        _cq: CqHandle,
        solicited_only: bool,
    ) -> error::Result<()> {
        backing.ask(solicited_only);
        Ok(())
    }

    #[inline(always)]
    fn poll(&mut self) -> Result<Polled<'_>, PollError> {
        let mut cq = self;
        let mut directory = &raw const *cq.directory;
        if cq.directory.last_place() == 0 {
            let is_sound;
            (cq, is_sound) = cq.attend();
            if !is_sound {
                return Err(cq.tell());
            }
            directory = &raw const *cq.directory;
        }
        // SAFETY: it is the queue's, which keeps it. (Not to be looked up once more.)
        Ok(unsafe { cq.begin_with(directory) })
    }

    #[cfg(feature = "c-abi")]
    #[inline(always)]
    fn poll_plainly(&mut self) -> Option<Polled<'_>> {
        (self.directory.last_place() != 0).then(|| self.begin())
    }

    #[cfg(feature = "c-abi")]
    #[inline(always)]
    unsafe fn take_first(&mut self, most: usize, to: *mut Wc) -> First {
        let Some(mut polled) = self.poll_plainly() else {
            return First::Otherwise;
        };
        if most != 1 {
            return match polled.has_none() {
                true => First::None,
                false => First::Several,
            };
        }
        // SAFETY: by this function's contract.
        match unsafe { polled.take_to(to) } {
            Plain::Taken(false) => First::One,
            Plain::Taken(true) => First::Raw,
            Plain::Nothing => First::None,
            Plain::Other => First::Otherwise,
        }
    }

    #[cfg(feature = "c-abi")]
    fn show_nothing(&self) -> Completion {
        Completion {
            fields: Cqe::new_zeroed(),
            wr_id: 0,
            status: WcStatus(0),
            change: 0,
        }
    }

    #[cfg(feature = "c-abi")]
    fn show_first(&mut self, shown: &mut Completion) -> Result<bool, PollError> {
        match self.poll()?.take() {
            Some(taken) => *shown = taken,
            None => return Ok(false),
        }
        Ok(true)
    }

    #[cfg(feature = "c-abi")]
    #[inline(always)]
    fn show_plainly(&mut self, shown: &mut Completion) -> Option<bool> {
        let mut polled = self.poll_plainly()?;
        let to = &raw mut shown.fields;
        // Straight to where it is shown.
        // SAFETY: the entry is this side's; every bit pattern is a `Cqe`.
        let copy = |entry: NonNull<Cqe>| unsafe { entry.as_ptr().copy_to_nonoverlapping(to, 1) };
        match polled.take_plain(copy) {
            Plain::Taken(((), wr_id, change)) => {
                (shown.wr_id, shown.status, shown.change) = (wr_id, WcStatus::SUCCESS, change);
                Some(true)
            }
            Plain::Nothing => Some(false),
            Plain::Other => None,
        }
    }
}

#[cfg(feature = "c-abi")]
impl contract::Shown for Completion {
    type Completion = Self;

    #[inline(always)]
    unsafe fn completion(&self) -> Self {
        *self
    }
}

/// Completions that are being taken. It counts for itself, so that the compiler keeps that in registers. (All
/// is of 64 bits, since two that share a word are taken out of it and put back.)
#[derive(Debug)]
pub(crate) struct Polled<'q> {
    /// The queue, which is borrowed.
    cq: NonNull<Cq>,
    /// The next entry, or one that never comes.
    at: NonNull<Cqe>,
    /// The queue's own, and the word of its record that says how far entries are given back.
    directory: *const Directory,
    consumer: NonNull<AtomicU32>,
    _borrowed: PhantomData<&'q mut Cq>,
}

impl contract::Polled for Polled<'_> {
    type Completion = Completion;

    #[cfg(feature = "c-abi")]
    #[inline(always)]
    fn has_none(&self) -> bool {
        self.look() & 1 != 0
    }

    #[inline(always)]
    fn take(&mut self) -> Option<Completion> {
        // SAFETY: it is this side's; every bit pattern is a `Cqe`.
        let copy = |entry: NonNull<Cqe>| unsafe { entry.read() };
        match self.take_plain(copy) {
            Plain::Taken((fields, wr_id, change)) => Some(Completion {
                fields,
                wr_id,
                status: WcStatus::SUCCESS,
                change,
            }),
            Plain::Nothing => None,
            Plain::Other => self.take_otherwise(),
        }
    }

    #[cfg(feature = "c-abi")]
    #[inline(always)]
    unsafe fn take_into(&mut self, most: usize, to: *mut Wc) -> usize {
        for count in 0..most {
            // SAFETY: by this function's contract there is room for it.
            unsafe {
                let to = to.add(count);
                match self.take_to(to) {
                    Plain::Taken(false) => {}
                    Plain::Taken(true) => Self::finish(to),
                    Plain::Nothing => return count,
                    Plain::Other => match self.take_otherwise() {
                        Some(completion) => to.write(completion.to_wc()),
                        None => return count,
                    },
                }
            }
        }
        most
    }

    #[cfg(feature = "c-abi")]
    #[cold]
    #[inline(never)]
    unsafe fn finish(to: *mut Wc) {
        // SAFETY: by this function's contract it is there, as `take_to` has left it.
        let wc = unsafe { &mut *to };
        let change = std::mem::take(&mut wc.vendor_err);
        wc.opcode &= !u32::from(RAW);
        match WcOpcode(wc.opcode) {
            WcOpcode::LOCAL_INV if change == BIND => wc.opcode = WcOpcode::BIND_MW.0,
            WcOpcode::COMP_SWAP | WcOpcode::FETCH_ADD => wc.byte_len = size_of::<u64>() as u32,
            _ => {}
        }
    }

    #[inline(always)]
    fn take_by(&mut self, each: &mut impl contract::Each<Completion>) -> Option<bool> {
        let op_own = self.look();
        if op_own & 1 != 0 {
            return None;
        }
        if op_own == SENT
            && let Some(found) = self.take_found(|outline| each.find(outline))
        {
            return Some(each.found(found));
        }
        Some(each.other(self.take()?))
    }
}

/// What a look for a completion about which there is no more than its id has found.
enum Plain<T> {
    Taken(T),
    /// There is no completion.
    Nothing,
    /// It has not taken it.
    Other,
}

impl<'q> Polled<'q> {
    /// What the next entry is; as for [`Walk::look`].
    #[inline(always)]
    fn look(&self) -> u8 {
        // SAFETY: the queue is borrowed by this value, and written to by nothing but this value's methods.
        unsafe { &(*self.cq.as_ptr()).walk }.look(self.at)
    }

    #[inline(always)]
    fn directory(&self) -> &'q Directory {
        // SAFETY: the queue keeps it.
        unsafe { &*self.directory }
    }

    /// The next entry, which has been seen to be this side's, and who reports with it, if nothing else has to
    /// be attended to. `place` gives where whoever is known reports such entries from.
    #[inline(always)]
    fn reporter(&self, place: impl FnOnce(&Entry) -> u32) -> Option<(&'q Reporter, &'q Cqe)> {
        barrier::owner_before_entry();
        // SAFETY: the device has written the entry and does not write it again before it is given back;
        // every bit pattern is a `Cqe`. Nobody uses the reference behind that.
        let fields = unsafe { self.at.as_ref() };
        // SAFETY: as in `look`.
        let reporters = unsafe { &(*self.cq.as_ptr()).reporters };
        let at = fields.place() & self.directory().last_place();
        // SAFETY: it is at most the last place of the table, or the first.
        let known = unsafe { reporters.get_unchecked(at as usize) };
        (place(known) == fields.place()).then_some((&known.reporter, fields))
    }

    /// Gives the next entry back to the device, of which all has been read that is needed, and goes on behind
    /// it. It is one inside of a stretch (see [`Walk`]).
    #[inline(always)]
    fn release(&mut self) {
        // SAFETY: as in `directory`.
        give_one_back(unsafe { self.consumer.as_ref() });
        // SAFETY: the queue is borrowed by this value, and nothing else has a reference to its walk.
        self.at = unsafe { (*self.cq.as_ptr()).walk.step(self.at) };
    }

    /// Takes the next completion if there is no more about it than its id: what `keep` makes of its entry,
    /// the id, and what the request changed a memory key for.
    #[inline(always)]
    fn take_plain<R>(&mut self, keep: impl FnOnce(NonNull<Cqe>) -> R) -> Plain<(R, u64, u32)> {
        let op_own = self.look();
        let taken = if op_own == SENT {
            self.take_sent(keep)
        } else if op_own & 1 != 0 {
            return Plain::Nothing;
        } else if is_plain_receive(op_own) {
            self.take_received(keep)
        } else {
            None
        };
        match taken {
            Some(taken) => Plain::Taken(taken),
            None => Plain::Other,
        }
    }

    /// As [`Self::take_plain`], in the kernel's form; true if [`finish`](contract::Polled::finish) has to see
    /// to it.
    ///
    /// # Safety
    ///
    /// There is room for it.
    #[cfg(feature = "c-abi")]
    #[inline(always)]
    unsafe fn take_to(&mut self, to: *mut Wc) -> Plain<bool> {
        let op_own = self.look();
        let taken = if op_own == SENT {
            // SAFETY: the entry is this side's, and by this function's contract.
            let write = |entry: NonNull<Cqe>| unsafe { write_sent(entry.as_ref(), to) };
            self.take_sent(write)
        } else if op_own & 1 != 0 {
            return Plain::Nothing;
        } else if is_plain_receive(op_own) {
            let write = |entry: NonNull<Cqe>| {
                // SAFETY: as above.
                unsafe { to.write(received(entry.as_ref())) };
                0
            };
            self.take_received(write)
        } else {
            None
        };
        let Some((opcode, wr_id, change)) = taken else {
            return Plain::Other;
        };
        // SAFETY: by this function's contract.
        let wc = unsafe { &mut *to };
        wc.wr_id = wr_id;
        if opcode & RAW == 0 {
            return Plain::Taken(false);
        }
        wc.vendor_err = change;
        Plain::Taken(true)
    }

    /// As [`Self::take_plain`], of a request that was sent.
    #[inline(always)]
    fn take_sent<R>(&mut self, keep: impl FnOnce(NonNull<Cqe>) -> R) -> Option<(R, u64, u32)> {
        let (reporter, fields) = self.reporter(|known| known.sends)?;
        // SAFETY: it has one, as the place says that is in `sends`.
        let ledger = unsafe { reporter.send.as_deref().unwrap_unchecked() };
        let (counter, kept) = (fields.wqe_counter.get(), keep(self.at));
        self.release();
        let (wr_id, change) = ledger.finish(counter);
        Some((kept, wr_id, change))
    }

    /// As [`Self::take_sent`], if a look is enough.
    #[inline(always)]
    fn take_found<R>(&mut self, find: impl FnOnce(contract::Outline) -> Option<R>) -> Option<R> {
        let (reporter, fields) = self.reporter(|known| known.sends)?;
        // SAFETY: as in `take_sent`.
        let ledger = unsafe { reporter.send.as_deref().unwrap_unchecked() };
        let (wr_id, count, _) = ledger.look(fields.wqe_counter.get());
        let found = find(contract::Outline {
            wr_id,
            qp_num: fields.sop_drop_qpn.get() & NUMBER,
            is_ok: true,
        })?;
        self.release();
        ledger.finish_seen(count);
        Some(found)
    }

    /// As [`Self::take_plain`], of a receive without anything that belongs elsewhere.
    #[inline(always)]
    fn take_received<R>(&mut self, keep: impl FnOnce(NonNull<Cqe>) -> R) -> Option<(R, u64, u32)> {
        let (reporter, fields) = self.reporter(|known| known.receives)?;
        let (kept, wr_id) = match &reporter.recv {
            Receiver::Own(ledger) => {
                let kept = keep(self.at);
                self.release();
                (kept, ledger.finish())
            }
            Receiver::Shared(ledger) => {
                let element = ledger.posted(fields.wqe_counter.get())?;
                let kept = keep(self.at);
                self.release();
                (kept, ledger.finish_posted(element))
            }
            // SAFETY: it is one of the two, as the place says that is in `receives`.
            Receiver::Loose(_) | Receiver::None => unsafe { unreachable_unchecked() },
        };
        Some((kept, wr_id, 0))
    }

    /// The next completion, if there is more about it, or it is not known who reports.
    #[inline(always)]
    fn take_otherwise(&mut self) -> Option<Completion> {
        // SAFETY: the queue is borrowed by this value, and there is no other reference to it.
        let cq = unsafe { self.cq.as_mut() }.take_slowly();
        self.at = cq.walk.now();
        // Looked up again, so that callers, which expect this not to be called, keep nothing over the call.
        self.directory = &raw const *cq.directory;
        self.consumer = cq.directory.consumer_word().into();
        let taken = cq.taken;
        self.cq = NonNull::from(cq);
        let Completion {
            fields,
            wr_id,
            status,
            change,
        } = taken?;
        // Field by field, so that this one's memory is not where all are put.
        Some(Completion {
            fields,
            wr_id,
            status,
            change,
        })
    }
}

impl Drop for Cq {
    /// The elements of shared receive queues that unread completions are of are free again.
    fn drop(&mut self) {
        self.catch_up();
        let shared = self
            .reporters
            .iter()
            .zip(0..)
            .filter_map(|(entry, number)| match &entry.reporter.recv {
                Receiver::Shared(ledger) => Some((number, Arc::clone(ledger))),
                _ => None,
            });
        self.core.directory.close(shared.collect());
    }
}

/// What [`super::ledger::SendNote`] says that a change to a memory key was for.
pub(super) const BIND: u32 = 1;
pub(super) const INVALIDATE: u32 = 2;

/// A completion: a copy of its entry, of which the compiler makes as much as is looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    fields: Cqe,
    wr_id: u64,
    status: WcStatus,
    change: u32,
}

/// How the request went that a completion is of.
fn status(op_own: u8, fields: &Cqe) -> WcStatus {
    if op_own & cqe::FAILED == 0 {
        return WcStatus::SUCCESS;
    }
    match fields.syndrome {
        syndrome::LOCAL_LENGTH => WcStatus::LOC_LEN_ERR,
        syndrome::LOCAL_QP_OP => WcStatus::LOC_QP_OP_ERR,
        syndrome::LOCAL_PROT => WcStatus::LOC_PROT_ERR,
        syndrome::WR_FLUSH => WcStatus::WR_FLUSH_ERR,
        syndrome::MW_BIND => WcStatus::MW_BIND_ERR,
        syndrome::BAD_RESP => WcStatus::BAD_RESP_ERR,
        syndrome::LOCAL_ACCESS => WcStatus::LOC_ACCESS_ERR,
        syndrome::REMOTE_INVAL_REQ => WcStatus::REM_INV_REQ_ERR,
        syndrome::REMOTE_ACCESS => WcStatus::REM_ACCESS_ERR,
        syndrome::REMOTE_OP => WcStatus::REM_OP_ERR,
        syndrome::TRANSPORT_RETRY => WcStatus::RETRY_EXC_ERR,
        syndrome::RNR_RETRY => WcStatus::RNR_RETRY_EXC_ERR,
        syndrome::REMOTE_ABORTED => WcStatus::REM_ABORT_ERR,
        _ => WcStatus::GENERAL_ERR,
    }
}

impl Completion {
    #[inline(always)]
    fn code(&self) -> u8 {
        self.fields.op_own >> 4
    }

    #[inline(always)]
    fn sent(&self) -> WcOpcode {
        match (self.fields.sop_drop_qpn.get() >> 24) as u8 {
            opcode::RDMA_WRITE | opcode::RDMA_WRITE_IMM => WcOpcode::RDMA_WRITE,
            opcode::RDMA_READ => WcOpcode::RDMA_READ,
            opcode::ATOMIC_CS => WcOpcode::COMP_SWAP,
            opcode::ATOMIC_FA => WcOpcode::FETCH_ADD,
            opcode::UMR if self.change == BIND => WcOpcode::BIND_MW,
            opcode::UMR => WcOpcode::LOCAL_INV,
            _ => WcOpcode::SEND,
        }
    }
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
        match self.code() {
            cqe::RESP_WR_IMM => WcOpcode::RECV_RDMA_WITH_IMM,
            cqe::REQ | cqe::REQ_ERR => self.sent(),
            _ => WcOpcode::RECV,
        }
    }

    #[inline(always)]
    fn vendor_err(&self) -> u32 {
        self.fields.vendor_err_synd.into()
    }

    /// What an atomic operation reads is told by the operation; libmlx5's `ibv_poll_cq` does not rely on the
    /// entry either.
    #[inline(always)]
    fn byte_len(&self) -> u32 {
        match self.opcode() {
            WcOpcode::COMP_SWAP | WcOpcode::FETCH_ADD => size_of::<u64>() as u32,
            _ => self.fields.byte_cnt.get(),
        }
    }

    #[inline(always)]
    fn qp_num(&self) -> u32 {
        self.fields.sop_drop_qpn.get() & NUMBER
    }

    #[inline(always)]
    fn src_qp(&self) -> u32 {
        self.fields.flags_rqpn.get() & NUMBER
    }

    /// The immediate data in network byte order, or the rkey in the host's.
    #[inline(always)]
    fn ex(&self) -> u32 {
        let bytes = self.fields.imm_inval_pkey;
        if self.code() == cqe::RESP_SEND_INV {
            u32::from_be_bytes(bytes)
        } else {
            u32::from_ne_bytes(bytes)
        }
    }

    #[inline(always)]
    fn flags(&self) -> WcFlags {
        let mut flags = match self.code() {
            cqe::RESP_WR_IMM | cqe::RESP_SEND_IMM => WcFlags::WITH_IMM,
            cqe::RESP_SEND_INV => WcFlags::WITH_INV,
            _ => WcFlags::empty(),
        };
        flags.set(WcFlags::GRH, self.fields.flags_rqpn.get() >> 28 & 3 != 0);
        flags
    }

    /// The device writes it whether it was asked for or not; an error stands in its place.
    #[inline(always)]
    fn timestamp(&self) -> Option<u64> {
        let fields = self.fields;
        let [a, b, c, d, e, f] = fields.timestamp;
        let ticks = u64::from_be_bytes([a, b, c, d, e, f, fields.vendor_err_synd, fields.syndrome]);
        (self.status() == WcStatus::SUCCESS).then_some(ticks)
    }

    #[inline(always)]
    fn pkey_index(&self) -> u16 {
        let [_, _, high, low] = self.fields.imm_inval_pkey;
        match self.code() {
            cqe::RESP_SEND => u16::from_be_bytes([high, low]),
            _ => 0,
        }
    }

    #[inline(always)]
    fn slid(&self) -> u16 {
        self.fields.slid.get()
    }

    #[inline(always)]
    fn sl(&self) -> u8 {
        (self.fields.flags_rqpn.get() >> 24) as u8 & 0xf
    }

    #[inline(always)]
    fn dlid_path_bits(&self) -> u8 {
        self.fields.ml_path & 0x7f
    }

    /// Of a request that was sent there is less to tell.
    #[cfg(feature = "c-abi")]
    fn to_wc(self) -> Wc {
        let mut wc = Wc {
            wr_id: self.wr_id,
            status: self.status.0,
            opcode: self.opcode().0,
            byte_len: self.byte_len(),
            qp_num: self.qp_num(),
            ..Wc::default()
        };
        if self.status != WcStatus::SUCCESS {
            wc.vendor_err = self.vendor_err();
        }
        if !matches!(self.code(), cqe::REQ | cqe::REQ_ERR) {
            wc.ex = self.ex();
            wc.src_qp = self.src_qp();
            wc.wc_flags = self.flags().bits();
            wc.pkey_index = self.pkey_index();
            wc.slid = self.slid();
            wc.sl = self.sl();
            wc.dlid_path_bits = self.dlid_path_bits();
        }
        wc
    }
}

/// The opcodes of completions of requests that were sent, by the device's operations, which with [`RAW`] tell
/// not all.
#[cfg(feature = "c-abi")]
static SENT_OPCODES: [u8; 256] = {
    let mut opcodes = [WcOpcode::SEND.0 as u8; 256];
    opcodes[opcode::RDMA_WRITE as usize] = WcOpcode::RDMA_WRITE.0 as u8;
    opcodes[opcode::RDMA_WRITE_IMM as usize] = WcOpcode::RDMA_WRITE.0 as u8;
    opcodes[opcode::RDMA_READ as usize] = WcOpcode::RDMA_READ.0 as u8;
    opcodes[opcode::ATOMIC_CS as usize] = WcOpcode::COMP_SWAP.0 as u8 | RAW;
    opcodes[opcode::ATOMIC_FA as usize] = WcOpcode::FETCH_ADD.0 as u8 | RAW;
    opcodes[opcode::UMR as usize] = WcOpcode::LOCAL_INV.0 as u8 | RAW;
    opcodes
};

/// Marks an opcode that is told by more than the operation, or tells more.
#[cfg(feature = "c-abi")]
const RAW: u8 = 1 << 7;

/// Writes what a completion of a request tells that was sent and went well, but for its id; gives the opcode
/// that is there.
///
/// # Safety
///
/// There is room for it.
#[cfg(feature = "c-abi")]
#[inline(always)]
unsafe fn write_sent(fields: &Cqe, to: *mut Wc) -> u8 {
    let [operation, ..] = fields.sop_drop_qpn.to_bytes();
    let opcode = SENT_OPCODES[usize::from(operation)];
    let wc = Wc {
        status: WcStatus::SUCCESS.0,
        opcode: opcode.into(),
        byte_len: fields.byte_cnt.get(),
        qp_num: fields.sop_drop_qpn.get() & NUMBER,
        ..Wc::default()
    };
    // SAFETY: by this function's contract.
    unsafe { to.write(wc) };
    opcode
}

/// What a completion of a receive tells that went well, but for its id.
#[cfg(feature = "c-abi")]
#[inline(always)]
fn received(fields: &Cqe) -> Wc {
    let completion = Completion {
        fields: *fields,
        wr_id: 0,
        status: WcStatus::SUCCESS,
        change: 0,
    };
    let is_immediate = completion.code() == cqe::RESP_WR_IMM;
    let opcode = match is_immediate {
        true => WcOpcode::RECV_RDMA_WITH_IMM,
        false => WcOpcode::RECV,
    };
    Wc {
        opcode: opcode.0,
        byte_len: fields.byte_cnt.get(),
        ex: completion.ex(),
        qp_num: completion.qp_num(),
        src_qp: completion.src_qp(),
        wc_flags: completion.flags().bits(),
        pkey_index: completion.pkey_index(),
        slid: completion.slid(),
        sl: completion.sl(),
        dlid_path_bits: completion.dlid_path_bits(),
        ..Wc::default()
    }
}
