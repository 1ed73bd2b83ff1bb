//! Completion queues: polling, arming, resizing.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use uverbs_uapi::enums::{WcOpcode, WcStatus};
use uverbs_uapi::flags::WcFlags;
use uverbs_uapi::handle::CqHandle;
#[cfg(feature = "c-abi")]
use uverbs_uapi::types::Wc;

use super::again::{is_page_fault, post_again};
use super::barrier;
use super::directory::{Change, Directory, Receiver, Reporter};
use super::entries::{Entries, View, Walk};
use super::format::{
    ARM_SOLICITED, Cqe, INDEX_MASK, NUMBER, RECORD_ARM, RECORD_CONSUMER, cqe, opcode, syndrome,
};
use super::inline::Landed;
use super::memory::Record;
use super::uar::UarPage;
use crate::command::CommandFd;
use crate::driver::contract;
#[cfg(feature = "c-abi")]
use crate::driver::contract::Polled as _;
use crate::error;
use crate::work::PollError;

/// What a completion queue shares with its queue pairs, and what must stay until the kernel has let go of it.
#[derive(Debug)]
pub(crate) struct CqCore {
    pub(super) directory: Arc<Directory>,
    record: Record,
    /// Events of the queue that have been read: the device takes an arming for new by their number.
    pub(super) events: Arc<AtomicU32>,
    cqn: u32,
    /// Where it is armed.
    uar: Arc<UarPage>,
}

impl CqCore {
    pub(super) fn new(entries: Entries, record: Record, cqn: u32, uar: Arc<UarPage>) -> Self {
        Self {
            directory: Arc::new(Directory::new(entries)),
            record,
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
        let word = sequence << 28 | command | self.directory.consumer() & INDEX_MASK;
        // Relaxed: the barrier in `UarPage::arm` orders it before the register.
        self.record
            .word(RECORD_ARM)
            .store(word.to_be(), Ordering::Relaxed);
        self.uar.arm(word, self.cqn);
    }
}

/// A completion queue's poller. The index of the next entry to look at, which counts on round the ring, is
/// the one that the directory has.
#[derive(Debug)]
pub(crate) struct Cq {
    view: View,
    /// The owner bit of that entry once the device has written it.
    lap: u8,
    /// The version of the directory that `reporters` is of, with which a completion needs nothing else; or
    /// [`NO_VERSION`] while there is something to attend to.
    simple_at: u64,
    /// The version of the directory that `reporters` is of.
    version: u64,
    /// Entries of `reporters` wait for the poller to pass something, or there is something wrong to tell.
    waiting: bool,
    /// By their numbers; vacant ones report nothing.
    reporters: Vec<Entry>,
    directory: Arc<Directory>,
    /// The word of the record, which `core` keeps, that tells the device how far entries are given back.
    word: NonNull<AtomicU32>,
    core: Arc<CqCore>,
    /// What was found wrong, told by the next poll.
    wrong: Option<PollError>,
}

// SAFETY: the view and the word are of memory that `core` keeps, and the poller is the only one to use them
// through this.
unsafe impl Send for Cq {}
// SAFETY: shared references only look whether an entry is valid.
unsafe impl Sync for Cq {}

/// A queue pair that reports here, or the place of one. Aligned so that a shift finds it, and a single line
/// holds it.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Entry {
    reporter: Reporter,
    /// Entries before this index are passed over.
    forget_until: Option<u32>,
    /// The number is free once entries before this index have been taken.
    leave_at: Option<u32>,
}

impl Entry {
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
    matches!(op_own >> 4, cqe::RESP_WR_IMM..=cqe::RESP_SEND_INV) && op_own & cqe::SCATTERED == 0
}

/// A version that no directory reaches.
const NO_VERSION: u64 = u64::MAX;

impl Cq {
    pub(super) fn new(core: Arc<CqCore>) -> Self {
        let view = core.directory.lock().entries.view();
        Self {
            view,
            lap: view.lap(0),
            simple_at: 0,
            version: 0,
            waiting: false,
            reporters: Vec::new(),
            directory: Arc::clone(&core.directory),
            word: NonNull::from(core.record.word(RECORD_CONSUMER)),
            core,
            wrong: None,
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
    #[inline(always)]
    pub(crate) fn check(&mut self) -> Result<(), PollError> {
        match self.directory.needs_attention() {
            false => Ok(()),
            true => self.attend(),
        }
    }

    /// Tells what was found wrong, once, and looks which of the entries that wait for something have it.
    #[cold]
    #[inline(never)]
    fn attend(&mut self) -> Result<(), PollError> {
        let overran = self.directory.attended();
        let waiting = self.settle();
        self.wait(waiting);
        if overran {
            return Err(PollError::Overrun);
        }
        match self.wrong.take() {
            None => Ok(()),
            Some(error) => Err(error),
        }
    }

    /// Notes whether there is something to attend to at the next poll, in which case no completion is simple.
    fn wait(&mut self, waiting: bool) {
        self.waiting = waiting;
        if waiting {
            self.directory.attend();
        }
        self.simple_at = match waiting {
            false => self.version,
            true => NO_VERSION,
        };
    }

    /// The index of the next entry to look at.
    #[inline(always)]
    fn next(&self) -> u32 {
        self.directory.consumer()
    }

    /// Gives the entries before this index back to the device, and goes on there.
    fn release(&mut self, next: u32) {
        self.lap = self.view.lap(next);
        release(&self.directory, self.word, next);
    }

    /// The completions that have arrived, at most as many as the queue holds.
    #[inline(always)]
    pub(super) fn begin(&mut self) -> Polled<'_> {
        let next = self.next();
        Polled {
            walk: self.view.walk(next, self.lap),
            next: next.into(),
            until: next.wrapping_add(self.view.count()).into(),
            directory: NonNull::from(&*self.directory),
            cq: self,
        }
    }

    /// The next completion before `until`, of an entry that has been seen to be this side's. Its callers
    /// expect it not to be called; most often it is a plain receive of a shared queue.
    #[cold]
    #[inline(never)]
    fn take_slowly(&mut self, until: u32) -> Option<Completion> {
        let index = self.next();
        // SAFETY: the device has written the entry and does not write it again before it is given back,
        // which is below; every bit pattern is a `Cqe`.
        let fields = unsafe { self.view.entry(index).read() };
        let number = fields.srqn_uidx.get() & NUMBER;
        if self.directory.version() == self.simple_at
            && is_plain_receive(fields.op_own)
            && let Some(Entry { reporter, .. }) = self.reporters.get(number as usize)
            && let Receiver::Shared(ledger) = &reporter.recv
        {
            let (ledger, next) = (&**ledger, index.wrapping_add(1));
            self.lap = self.view.lap(next);
            release(&self.directory, self.word, next);
            let Some(wr_id) = ledger.finish(fields.wqe_counter.get()) else {
                return self.refuse_code(fields.op_own);
            };
            return Some(Completion {
                fields,
                wr_id,
                status: WcStatus::SUCCESS,
                change: 0,
            });
        }
        self.take_any(until)
    }

    /// The next completion before `until`, whatever there is about it, and even if it is not known who
    /// reports.
    #[inline(never)]
    fn take_any(&mut self, until: u32) -> Option<Completion> {
        loop {
            let index = self.next();
            if index == until {
                return None;
            }
            let op_own = self.view.poll(index)?;
            barrier::owner_before_entry();
            let entry = self.view.entry(index);
            if self.version != self.directory.version() {
                self.catch_up();
            }
            // SAFETY: the device has written the entry and does not write it again before it is given back,
            // which is below; every bit pattern is a `Cqe`.
            let fields = unsafe { entry.as_ref() };
            let number = fields.srqn_uidx.get() & NUMBER;
            let counter = fields.wqe_counter.get();
            let Some(reporter) = self.reporters.get(number as usize) else {
                self.release(index.wrapping_add(1));
                return self.refuse(PollError::Stray { number });
            };
            if reporter.has_forgotten(index) {
                // Its request is forgotten too, but for an element of a shared queue, which is free again.
                let next = index.wrapping_add(1);
                self.lap = self.view.lap(next);
                release(&self.directory, self.word, next);
                reporter.reclaim(op_own, counter);
                continue;
            }
            // Data first: a request that is noted as finished is no longer the device's.
            // SAFETY: as above.
            let status = unsafe { reporter.status(self.view, entry) };
            // SAFETY: as above. The landing has gone over it, so it is read only now.
            let fields = unsafe { entry.read() };
            let next = index.wrapping_add(1);
            self.lap = self.view.lap(next);
            release(&self.directory, self.word, next);
            if is_page_fault(&fields) && reporter.post_again(counter) {
                continue;
            }
            let known = status.and_then(|status| Some((status, reporter.any(op_own, counter)?)));
            let Some((status, (wr_id, change))) = known else {
                return match reporter.is_known() {
                    true => self.refuse_code(op_own),
                    false => self.refuse(PollError::Stray { number }),
                };
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
    fn refuse(&mut self, error: PollError) -> Option<Completion> {
        self.wrong = Some(error);
        self.wait(true);
        None
    }

    /// As [`Self::refuse`], of what the device says that the entry is of.
    #[cold]
    fn refuse_code(&mut self, op_own: u8) -> Option<Completion> {
        let code = op_own >> 4;
        self.refuse(PollError::Unknown { code })
    }

    /// Takes over what has changed among the queue pairs.
    fn catch_up(&mut self) {
        let (version, changes) = self.core.directory.changes();
        let mut waiting = self.waiting;
        self.version = version;
        for change in changes {
            match change {
                Change::Set {
                    number,
                    reporter,
                    forget_until,
                } => {
                    waiting |= forget_until.is_some();
                    self.set(
                        number,
                        Entry {
                            reporter,
                            forget_until,
                            leave_at: None,
                        },
                    );
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
                        waiting = true;
                    }
                }
            }
        }
        self.wait(waiting);
    }

    fn set(&mut self, number: u32, entry: Entry) {
        let number = number as usize;
        if number >= self.reporters.len() {
            self.reporters.resize_with(number + 1, Entry::default);
        }
        self.reporters[number] = entry;
    }

    /// Lets those entries go that waited for what has come; true if others wait on.
    fn settle(&mut self) -> bool {
        let (next, mut waiting) = (self.next(), false);
        // Dropped when the lock is no longer held: with them rings may go, whose memory an allocator gets
        // back.
        let mut gone = Vec::new();
        let core = Arc::clone(&self.core);
        let mut inner = core.directory.lock();
        for (number, entry) in self.reporters.iter_mut().enumerate() {
            entry.forget_until = entry.forget_until.filter(|until| is_before(next, *until));
            match entry.leave_at {
                Some(until) if !is_before(next, until) => {
                    gone.push(std::mem::take(entry));
                    inner.free(number as u32);
                }
                Some(_) => waiting = true,
                None => waiting |= entry.forget_until.is_some(),
            }
        }
        waiting
    }

    /// Entries of its ring.
    pub(super) fn count(&self) -> u32 {
        self.view.count()
    }

    /// Bytes of an entry.
    pub(super) fn entry_bytes(&self) -> usize {
        self.view.entry_bytes()
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
        let view = new.view();
        // The device has ended the old ring with an entry that says so. Its place in the new one stays empty,
        // so what was not taken moves on by one.
        let mut index = next;
        while let Some(op_own) = self.view.poll(index) {
            barrier::owner_before_entry();
            if op_own >> 4 == cqe::RESIZE {
                break;
            }
            self.view.copy_to(index, view, index.wrapping_add(1));
            index = index.wrapping_add(1);
        }
        inner.shift();
        for entry in &mut self.reporters {
            for until in [&mut entry.forget_until, &mut entry.leave_at] {
                *until = until.map(|until| until.wrapping_add(1));
            }
        }
        let old = std::mem::replace(&mut inner.entries, new);
        drop(inner);
        // Not under the lock: an allocator may get the memory back, and may do with other queues as it likes.
        drop(old);
        self.view = view;
        self.release(next.wrapping_add(1));
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
        self.view.count() - 1
    }

    fn is_empty(&mut self) -> Result<bool, PollError> {
        self.check()?;
        Ok(self.view.poll(self.next()).is_none())
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
        self.check()?;
        Ok(self.begin())
    }

    #[cfg(feature = "c-abi")]
    #[inline(always)]
    fn poll_plainly(&mut self) -> Option<Polled<'_>> {
        match self.directory.needs_attention() {
            false => Some(self.begin()),
            true => None,
        }
    }

    #[cfg(feature = "c-abi")]
    fn show(&mut self) -> Result<Option<Completion>, PollError> {
        Ok(self.poll()?.take())
    }

    #[cfg(feature = "c-abi")]
    #[inline(always)]
    fn show_plainly(&mut self) -> Option<Option<Completion>> {
        let mut polled = self.poll_plainly()?;
        if polled.has_none() {
            return Some(None);
        }
        Some(polled.take())
    }

    #[cfg(feature = "c-abi")]
    #[inline(always)]
    fn show_next(&mut self, shown: &mut Completion) -> bool {
        let Some(Some(next)) = self.show_plainly() else {
            return false;
        };
        *shown = next;
        true
    }

    /// The entry went back to the device when it was copied.
    #[cfg(feature = "c-abi")]
    #[inline(always)]
    fn go_on(&mut self, _: &mut Completion) {}
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
/// is of 64 bits, since two that share a word are taken out of it and put back. So would be what lies over
/// the fields of an error where the two share memory in a result: what is rarely used comes first.)
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Polled<'q> {
    /// The index of the first entry that is left to another poll.
    until: u64,
    cq: &'q mut Cq,
    walk: Walk,
    /// The index of the next entry.
    next: u64,
    /// The queue's own.
    directory: NonNull<Directory>,
}

impl contract::Polled for Polled<'_> {
    type Completion = Completion;

    #[cfg(feature = "c-abi")]
    #[inline(always)]
    fn has_none(&self) -> bool {
        self.walk.entry().1 & 1 != 0
    }

    #[inline(always)]
    fn take(&mut self) -> Option<Completion> {
        let (entry, op_own) = self.walk.entry();
        if op_own & 1 != 0 {
            return None;
        }
        barrier::owner_before_entry();
        let cq = &*self.cq;
        // SAFETY: the queue keeps it.
        let directory = unsafe { self.directory.as_ref() };
        if directory.version() != cq.simple_at {
            return self.take_otherwise();
        }
        // SAFETY: the device has written the entry and does not write it again before it is given back,
        // which is below; every bit pattern is a `Cqe`.
        let fields = unsafe { entry.read() };
        let number = fields.srqn_uidx.get() & NUMBER;
        let Some(Entry { reporter, .. }) = cq.reporters.get(number as usize) else {
            return self.take_otherwise();
        };
        let (next, counter) = ((self.next as u32).wrapping_add(1), fields.wqe_counter.get());
        let (wr_id, change) = if op_own & (0xf0 | cqe::SCATTERED) == cqe::REQ << 4
            && let Some(ledger) = reporter.send.as_deref()
        {
            release(directory, cq.word, next);
            ledger.finish(counter)
        } else if is_plain_receive(op_own)
            && let Receiver::Own(ledger) = &reporter.recv
        {
            let ledger = &**ledger;
            release(directory, cq.word, next);
            (ledger.finish(), 0)
        } else {
            return self.take_otherwise();
        };
        self.next += 1;
        if cq.view.step(&mut self.walk) {
            self.cq.lap ^= 1;
        }
        Some(Completion {
            fields,
            wr_id,
            status: WcStatus::SUCCESS,
            change,
        })
    }

    #[inline(always)]
    fn take_by(&mut self, each: &mut impl contract::Each<Completion>) -> Option<bool> {
        match self.take_found(|outline| each.find(outline)) {
            Found::Nothing => None,
            Found::It(found) => Some(each.found(found)),
            Found::Another => Some(each.other(self.take()?)),
        }
    }
}

/// What a look at the next entry finds.
enum Found<R> {
    /// There is none.
    Nothing,
    /// This. It has been taken.
    It(R),
    /// Not the completion of a send that succeeded, or one that a look is not enough for.
    Another,
}

impl Polled<'_> {
    /// Takes the next completion if it is that of a send that succeeded, and a look is enough.
    #[inline(always)]
    fn take_found<R>(&mut self, find: impl FnOnce(contract::Outline) -> Option<R>) -> Found<R> {
        let (entry, op_own) = self.walk.entry();
        if op_own & 1 != 0 {
            return Found::Nothing;
        }
        barrier::owner_before_entry();
        let cq = &*self.cq;
        // SAFETY: the queue keeps it.
        let directory = unsafe { self.directory.as_ref() };
        // SAFETY: as in `take`. The reference goes before the entry is given back.
        let fields = unsafe { entry.as_ref() };
        let number = fields.srqn_uidx.get() & NUMBER;
        if directory.version() == cq.simple_at
            && op_own & (0xf0 | cqe::SCATTERED) == cqe::REQ << 4
            && let Some(Entry { reporter, .. }) = cq.reporters.get(number as usize)
            && let Some(ledger) = reporter.send.as_deref()
            && let (wr_id, count_change) = ledger.look(fields.wqe_counter.get())
            && let Some(found) = find(contract::Outline {
                wr_id,
                qp_num: fields.sop_drop_qpn.get() & NUMBER,
                is_ok: true,
            })
        {
            release(directory, cq.word, (self.next as u32).wrapping_add(1));
            ledger.finish_seen(count_change);
            self.next += 1;
            if cq.view.step(&mut self.walk) {
                self.cq.lap ^= 1;
            }
            return Found::It(found);
        }
        Found::Another
    }

    /// The next completion, if there is more about it than its id, or it is not known who reports.
    #[inline(always)]
    fn take_otherwise(&mut self) -> Option<Completion> {
        let until = self.until as u32;
        let taken = self.cq.take_slowly(until);
        let next = self.cq.next();
        self.next = next.into();
        self.walk = self.cq.view.walk_of(next, until.wrapping_sub(next));
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

/// Gives the entries before this index back to the device. What is in them has been copied; what their
/// completions free is given out behind this.
#[inline(always)]
fn release(directory: &Directory, word: NonNull<AtomicU32>, next: u32) {
    directory.consumed(next);
    // SAFETY: the word is the record's, which the queue keeps.
    let record = unsafe { word.as_ref() };
    // Release: the entries have been read before the device may write them again; its counterpart is the
    // device's look at the record before it writes. That this look finds the index at the latest when a
    // completion comes for which one of these entries made room is the ledgers' release, which comes behind
    // this store, with the poster's acquire and the barrier before its doorbell.
    record.store((next & INDEX_MASK).to_be(), Ordering::Release);
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

/// Whether an index comes before another; both count on round the ring and are less than 2^31 apart.
#[inline(always)]
fn is_before(index: u32, other: u32) -> bool {
    index.wrapping_sub(other).cast_signed() < 0
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
    #[inline(always)]
    fn to_wc(self) -> Wc {
        let mut wc = Wc {
            wr_id: self.wr_id,
            status: self.status.0,
            opcode: self.opcode().0,
            vendor_err: self.vendor_err(),
            byte_len: self.byte_len(),
            qp_num: self.qp_num(),
            ..Wc::default()
        };
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
