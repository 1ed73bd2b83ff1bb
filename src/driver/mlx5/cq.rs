//! Completion queues: polling, arming, resizing.

use std::mem;
#[cfg(feature = "c-abi")]
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use uverbs_uapi::enums::WcStatus;
use uverbs_uapi::handle::CqHandle;
#[cfg(feature = "c-abi")]
use uverbs_uapi::types::Wc;

use super::again::is_page_fault;
use super::completion::{Completion, status};
use super::directory::{Directory, Known, Reporters};
use super::entries::{Entries, View};
use super::format::{ARM_SOLICITED, Cqe, INDEX_MASK, NUMBER, RECORD_ARM, cqe};
use super::handover::Part;
use super::inline::Landed;
use super::memory::{RECORD, Record};
#[cfg(all(feature = "c-abi", feature = "mlx5-direct"))]
use super::place::CqPlace;
use super::register::UarPage;
use super::reporter::{Noted, Reporter};
use crate::command::CommandFd;
use crate::driver::contract;
use crate::error::{self, Subject, Verb};
use crate::work::PollError;

/// What a completion queue shares with its queue pairs, and what must stay until the kernel has let go of it.
#[derive(Debug)]
pub(crate) struct CqCore {
    pub(super) directory: Arc<Directory>,
    /// Events of the queue that have been read: the device takes an arming for new by their number.
    pub(super) events: Arc<AtomicU32>,
    cqn: u32,
    /// The device writes over entries that were not taken.
    ignores_overrun: bool,
    /// Where it is armed.
    uar: Arc<UarPage>,
}

/// The refusal to arm a queue whose record is nowhere here.
#[cold]
fn not_mapped(cq: CqHandle) -> error::Error {
    let subject = Subject::numbered("CQ", cq.0.into());
    let why = "its doorbell record lies where this process does not reach it: an agent arms it";
    error::Error::invalid(Verb::ReqNotifyCq, subject, why)
}

impl CqCore {
    pub(super) fn new(entries: Entries, record: Record, cqn: u32, uar: Arc<UarPage>) -> Self {
        Self {
            directory: Arc::new(Directory::new(entries, record)),
            events: Arc::default(),
            cqn,
            ignores_overrun: false,
            uar,
        }
    }

    /// The same, of a queue whose overrun the device ignores or not.
    pub(super) fn ignoring_overrun(self, ignores_overrun: bool) -> Self {
        Self {
            ignores_overrun,
            ..self
        }
    }

    /// Whether this side reaches the ring and the record.
    fn is_mapped(&self) -> bool {
        let entries = &self.directory.lock().entries;
        entries.memory().is_mapped() && self.directory.record().is_mapped()
    }

    /// Where it lies, for a program that polls by itself.
    #[cfg(all(feature = "c-abi", feature = "mlx5-direct"))]
    pub(crate) fn place(&self) -> CqPlace {
        CqPlace {
            ring: self.directory.lock().entries.place(),
            record: self.directory.record().first(),
            page: self.uar.first(),
            number: self.cqn,
        }
    }

    /// Asks for an event for the next completion. Threads that do so at once, or while another polls, are
    /// each heard or not as if one came behind the other: what each stores is whole.
    pub(super) fn ask(&self, solicited_only: bool) {
        // Relaxed: the number only has to change after an event has been read, which came before in this
        // thread or by whatever handed the queue to it.
        let sequence = self.events.load(Ordering::Relaxed) & 3;
        let command = if solicited_only { ARM_SOLICITED } else { 0 };
        let word = sequence << 28 | command | self.directory.passed() & INDEX_MASK;
        // Relaxed: the barrier in `UarPage::arm` orders it before the register.
        let record = self.directory.record();
        record
            .word(RECORD_ARM)
            .store(word.to_be(), Ordering::Relaxed);
        self.uar.arm(word, self.cqn);
    }
}

/// A completion queue's poller.
#[derive(Debug)]
pub(crate) struct Cq {
    view: View,
    reporters: Reporters,
    /// What the next poll has to tell.
    wrong: Option<PollError>,
    /// The next poll has something to see to: what is `wrong`, or reporters that wait.
    has_news: bool,
    /// This side reaches all that it left to an agent, if it did.
    can_come_back: bool,
    /// What C programs look at, or what was taken last of what is not plain.
    taken: Option<Completion>,
    /// That of `core`.
    directory: Arc<Directory>,
    core: Arc<CqCore>,
}

// SAFETY: the view is of memory that `core` keeps, and the poller is the only one to use it through this.
unsafe impl Send for Cq {}
// SAFETY: shared references only look whether an entry has arrived.
unsafe impl Sync for Cq {}

impl Cq {
    pub(super) fn new(core: Arc<CqCore>) -> Self {
        let view = core.directory.lock().entries.view();
        Self {
            view,
            reporters: Reporters::new(),
            wrong: None,
            has_news: false,
            can_come_back: true,
            taken: None,
            directory: Arc::clone(&core.directory),
            core,
        }
    }

    #[cfg(test)]
    pub(super) fn core(&self) -> &Arc<CqCore> {
        &self.core
    }

    /// What the next poll tells.
    #[cfg(test)]
    pub(super) fn told(&mut self) -> Result<(), PollError> {
        self.up_to_date().map(drop)
    }

    #[cfg(test)]
    pub(super) fn uar(&self) -> &UarPage {
        &self.core.uar
    }

    /// The queue, once it has seen to what has come up since the last poll. Fails if something is wrong,
    /// which is told once.
    #[inline(always)]
    fn up_to_date(&mut self) -> Result<&mut Self, PollError> {
        match self.needs_attention() {
            true => self.attend(),
            false => Ok(self),
        }
    }

    /// Whether something has come up since the last poll.
    #[inline(always)]
    fn needs_attention(&self) -> bool {
        self.has_news || self.reporters.are_stale(&self.directory)
    }

    #[cold]
    #[inline(never)]
    fn attend(&mut self) -> Result<&mut Self, PollError> {
        self.catch_up();
        self.reporters
            .settle(&self.core.directory, self.directory.passed());
        self.has_news = self.reporters.are_waiting();
        match self.wrong.take() {
            None => Ok(self),
            Some(error) => Err(error),
        }
    }

    /// Takes over what has changed among the queues that report here.
    #[cold]
    #[inline(never)]
    fn catch_up(&mut self) {
        if self.reporters.catch_up(&self.core.directory) {
            self.wrong = Some(PollError::Overrun);
        }
        self.has_news = true;
    }

    /// Takes the completion of the next entry of this view, the queue's, if it has arrived; returns what
    /// `see` makes of it before its entry goes back. Gives the entry if it is not as usual.
    ///
    /// It has the parts that it needs, so that `see` may use others.
    #[inline(always)]
    fn take<T>(
        reporters: &Reporters,
        directory: &Directory,
        view: View,
        see: impl FnOnce(Completion) -> T,
    ) -> Result<Option<T>, NonNull<Cqe>> {
        let index = directory.passed();
        let Some(entry) = view.arrived(index) else {
            return Ok(None);
        };
        if reporters.are_stale(directory) {
            return Err(entry);
        }
        // SAFETY: the device has written the entry and leaves it alone until it is given back, which is
        // below; every bit pattern is a `Cqe`.
        let cqe = unsafe { entry.as_ref() };
        let Some(noted) = usual(reporters, cqe) else {
            return Err(entry);
        };
        let (wr_id, does) = noted.id();
        let seen = see(Completion {
            fields: *cqe,
            wr_id,
            status: WcStatus::SUCCESS,
            does,
        });
        // Before its request is finished: room in a queue means room for one more completion.
        directory.pass(index.wrapping_add(1));
        noted.finish();
        Ok(Some(seen))
    }

    /// Takes the completion of the next entry of this view, whatever it is; or of one behind it if that is of
    /// none.
    #[inline(always)]
    fn next(&mut self, view: View) -> Option<Completion> {
        match Self::take(&self.reporters, &self.directory, view, |completion| {
            completion
        }) {
            Ok(completion) => completion,
            Err(entry) => self.take_closely(entry).copied(),
        }
    }

    /// As [`Self::next`], of an entry that has arrived.
    #[cold]
    #[inline(never)]
    fn take_closely(&mut self, mut entry: NonNull<Cqe>) -> Option<&Completion> {
        loop {
            let index = self.directory.passed();
            if self.reporters.are_stale(&self.core.directory) {
                self.catch_up();
            }
            // SAFETY: the device has written the entry and leaves it alone until it is given back, which is
            // below; every bit pattern is a `Cqe`.
            let cqe = unsafe { entry.as_ref() };
            let (op_own, counter) = (cqe.op_own, cqe.wqe_counter.get());
            let number = cqe.srqn_uidx.get() & NUMBER;
            let known = self.reporters.get(number);
            let finding = match known {
                Some(known) if is_plain(op_own) && !known.forgets() => Finding::SUCCESS,
                Some(known) => look_closer(known, self.view, entry, index),
                None => Finding::Senseless,
            };
            // SAFETY: as above. Data in it have been brought to their place, so it is read only now.
            let fields = unsafe { entry.read() };
            // Before its request is finished: room in a queue means room for one more completion.
            let next = index.wrapping_add(1);
            self.core.directory.pass(next);
            let reporter = known.map(|known| &known.reporter);
            let status = match (finding, reporter) {
                (Finding::Completed(status), _) => Some(status),
                (Finding::PageMissing, Some(reporter)) if reporter.post_again(counter) => None,
                (Finding::PageMissing, _) => Some(status(&fields)),
                (Finding::Forgotten, Some(reporter)) => {
                    reporter.reclaim(op_own, counter);
                    None
                }
                (Finding::Forgotten, None) | (Finding::Senseless, _) => {
                    self.refuse(number, op_own);
                    return None;
                }
            };
            let Some(status) = status else {
                entry = self.view.arrived(next)?;
                continue;
            };
            let finished = reporter.and_then(|reporter| reporter.finish(op_own, counter));
            let Some((wr_id, does)) = finished else {
                self.refuse(number, op_own);
                return None;
            };
            return Some(self.taken.insert(Completion {
                fields,
                wr_id,
                status,
                does,
            }));
        }
    }

    /// Notes that an entry makes no sense; the next poll tells.
    #[cold]
    #[inline(never)]
    fn refuse(&mut self, number: u32, op_own: u8) {
        let code = op_own >> 4;
        self.wrong = Some(match self.reporters.get(number) {
            Some(known) if known.reporter.is_known() => PollError::Unknown { code },
            _ => PollError::Stray { number },
        });
        self.has_news = true;
    }

    /// The completions that have arrived.
    #[inline(always)]
    pub(super) fn begin(&mut self) -> Polled<'_> {
        // Read as what it is, a number above 0, so that an empty poll does not ask whether any are left.
        let left = self.view.count.get();
        Polled {
            view: self.view,
            left,
            cq: self,
        }
    }

    /// Entries of its ring.
    pub(super) fn count(&self) -> u32 {
        self.view.count()
    }

    /// Bytes of an entry.
    pub(super) fn entry_bytes(&self) -> usize {
        self.view.entry_bytes()
    }

    /// The dma-bufs that the ring and the record lie in, if both do.
    pub(super) fn parts(&self) -> Option<(Part, Part)> {
        let directory = &self.core.directory;
        let bytes = Entries::bytes(self.count(), self.entry_bytes());
        let entries = Part::of(directory.lock().entries.memory().place(), bytes)?;
        Some((entries, Part::of(directory.record().place(), RECORD)?))
    }

    /// Whether its ring lies in a dma-buf.
    pub(super) fn is_in_dmabuf(&self) -> bool {
        let inner = self.core.directory.lock();
        inner.entries.memory().dmabuf().is_some()
    }

    /// The device's number of the queue.
    pub(super) fn cqn(&self) -> u32 {
        self.core.cqn
    }

    /// Whether this side reaches what it left to an agent.
    pub(super) fn can_come_back(&self) -> bool {
        self.can_come_back
    }

    /// Whether the device writes over entries that were not taken.
    pub(super) fn ignores_overrun(&self) -> bool {
        self.core.ignores_overrun
    }

    /// The first entry that has not been given back.
    pub(super) fn passed(&self) -> u32 {
        self.directory.passed()
    }

    /// Leaves the ring to an agent, with a queue pair whose rings this side reaches or not. Nobody polls
    /// until it has come back.
    pub(super) fn leave(&mut self, reaches_rings: bool) {
        self.can_come_back = reaches_rings && self.core.is_mapped();
        self.core.directory.lock().entries.leave();
    }

    /// Has the ring back from an agent, when the device has written so many entries in all, of which it is
    /// told the lower bits. It writes none meanwhile. What was written while the ring was away is passed
    /// over.
    pub(super) fn come_back(&mut self, produced: u32) {
        let directory = &self.core.directory;
        let passed = directory.passed();
        // On from where this side was: what it has noted of the ring's places lies before.
        let next = passed.wrapping_add(produced.wrapping_sub(passed) & INDEX_MASK);
        directory.lock().entries.come_back(next);
        directory.pass(next);
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
        let directory = &self.core.directory;
        // Held throughout, so that nobody looks at the old ring for what is in the new one.
        let mut inner = directory.lock();
        let next = directory.passed().wrapping_add(1);
        // The first of the new ring is the place behind the one that stays empty.
        new.invalidate(next);
        switch(&new)?;
        let (old_view, view) = (self.view, new.view());
        // The device has ended the old ring with an entry that says so. Its place in the new one stays empty,
        // so what was not taken moves on by one.
        let mut index = directory.passed();
        while let Some(entry) = old_view.arrived(index) {
            // SAFETY: the device has written the entry, and nobody gives it back.
            if unsafe { entry.as_ref() }.op_own >> 4 == cqe::RESIZE {
                break;
            }
            old_view.copy_to(index, view, index.wrapping_add(1));
            index = index.wrapping_add(1);
        }
        inner.shift();
        self.reporters.shift();
        let old = mem::replace(&mut inner.entries, new);
        drop(inner);
        // Not under the lock: an allocator may get the memory back, and may do with other queues as it likes.
        drop(old);
        self.view = view;
        directory.pass(next);
        Ok(())
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

    fn overran(backing: &Arc<CqCore>) {
        backing.directory.overran();
    }

    fn capacity(&self) -> u32 {
        self.count() - 1
    }

    fn is_empty(&mut self) -> Result<bool, PollError> {
        let cq = self.up_to_date()?;
        Ok(cq.view.arrived(cq.directory.passed()).is_none())
    }

    fn arm(
        backing: &Arc<CqCore>,
        _fd: &CommandFd,
        cq: CqHandle,
        solicited_only: bool,
    ) -> error::Result<()> {
        if !backing.directory.record().is_mapped() {
            return Err(not_mapped(cq));
        }
        backing.ask(solicited_only);
        Ok(())
    }

    #[inline(always)]
    fn poll(&mut self) -> Result<Polled<'_>, PollError> {
        let cq = self.up_to_date()?;
        Ok(cq.begin())
    }

    #[cfg(feature = "c-abi")]
    #[inline(always)]
    fn take_into(&mut self, places: &mut [MaybeUninit<Wc>]) -> Option<usize> {
        if self.needs_attention() {
            return None;
        }
        let view = self.view;
        let mut taken = 0;
        for place in places {
            let see = |completion: Completion| _ = completion.write_to(place);
            match Self::take(&self.reporters, &self.directory, view, see) {
                Ok(Some(())) => {}
                Ok(None) => break,
                Err(entry) => match self.take_closely(entry) {
                    Some(completion) => _ = completion.write_to(place),
                    None => break,
                },
            }
            taken += 1;
        }
        Some(taken)
    }

    /// Entries have gone back when they are shown.
    #[cfg(feature = "c-abi")]
    #[inline(always)]
    fn show_next(&mut self) -> Result<Option<Completion>, PollError> {
        let cq = self.up_to_date()?;
        // Written where it stays.
        let show = |completion| _ = cq.taken.insert(completion);
        match Self::take(&cq.reporters, &cq.directory, cq.view, show) {
            Ok(Some(())) => {}
            Ok(None) => cq.taken = None,
            Err(entry) if cq.take_closely(entry).is_some() => {}
            Err(_) => cq.taken = None,
        }
        Ok(cq.taken)
    }

    #[cfg(feature = "c-abi")]
    #[inline(always)]
    fn shown(&self) -> Option<Completion> {
        self.taken
    }

    #[cfg(feature = "c-abi")]
    #[inline(always)]
    fn hide(&mut self) {
        self.taken = None;
    }
}

impl Drop for Cq {
    /// The elements of shared receive queues that unread completions are of are free again.
    fn drop(&mut self) {
        self.catch_up();
        self.core.directory.close(self.reporters.shared());
    }
}

/// Completions that are being taken.
#[derive(Debug)]
pub(crate) struct Polled<'q> {
    cq: &'q mut Cq,
    /// That of the queue.
    view: View,
    /// Entries that it may still look at: once round the ring, while the device goes on.
    left: u32,
}

impl Iterator for Polled<'_> {
    type Item = Completion;

    #[inline(always)]
    fn next(&mut self) -> Option<Completion> {
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        self.cq.next(self.view)
    }
}

/// What a look at an entry has found.
#[derive(Clone, Copy, Debug)]
enum Finding {
    /// It reports a request, which went so.
    Completed(WcStatus),
    /// It dates from before a reset, or is of a queue pair that took its completions with it.
    Forgotten,
    /// A message of a shared queue found a page missing: its request is to be posted again.
    PageMissing,
    /// No queue has posted what it reports.
    Senseless,
}

impl Finding {
    const SUCCESS: Self = Self::Completed(WcStatus::SUCCESS);
}

/// The request of an entry, if both are as usual.
#[inline(always)]
fn usual<'r>(reporters: &'r Reporters, cqe: &Cqe) -> Option<Noted<'r>> {
    let known = reporters.get(cqe.srqn_uidx.get() & NUMBER)?;
    match is_plain(cqe.op_own) && !known.forgets() {
        true => known.reporter.noted(cqe.op_own, cqe.wqe_counter.get()),
        false => None,
    }
}

/// Whether an entry reports a success, and has nothing in it that belongs elsewhere.
#[inline(always)]
fn is_plain(op_own: u8) -> bool {
    op_own & (cqe::FAILED | cqe::SCATTERED) == 0
}

/// Looks at an entry that is not plain, or whose reporter has entries to forget. Data that lie in it are
/// brought to where they belong.
#[cold]
#[inline(never)]
fn look_closer(known: &Known, view: View, entry: NonNull<Cqe>, index: u32) -> Finding {
    if known.has_forgotten(index) {
        return Finding::Forgotten;
    }
    // SAFETY: the caller has found that the device has written the entry, and has not given it back.
    let fields = unsafe { entry.as_ref() };
    if is_page_fault(fields) {
        return Finding::PageMissing;
    }
    match fields.op_own & cqe::FAILED == 0 && fields.op_own & cqe::SCATTERED != 0 {
        // SAFETY: as above.
        true => unsafe { land(&known.reporter, view, entry) },
        false => Finding::Completed(status(fields)),
    }
}

/// Brings the data of an entry to where they belong.
///
/// # Safety
///
/// As for [`super::inline::Landing::land`].
unsafe fn land(reporter: &Reporter, view: View, entry: NonNull<Cqe>) -> Finding {
    let Some(landing) = &reporter.landing else {
        return Finding::Senseless;
    };
    // SAFETY: by this function's contract.
    let status = match unsafe { landing.land(reporter, view, entry) } {
        None => return Finding::Senseless,
        Some(Landed::Whole) => return Finding::SUCCESS,
        Some(Landed::TooLong) => WcStatus::LOC_LEN_ERR,
        Some(Landed::Forgotten) => WcStatus::WR_FLUSH_ERR,
    };
    // To the device it went well, so it has no code for this: the timestamp is in its place.
    // SAFETY: the entry is this side's, and only the poller looks at that byte.
    unsafe { (&raw mut (*entry.as_ptr()).vendor_err_synd).write(0) };
    Finding::Completed(status)
}
