//! Completion queues: polling, arming, resizing.

use std::mem;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use uverbs_uapi::enums::WcStatus;
use uverbs_uapi::handle::CqHandle;

use super::again::is_page_fault;
use super::completion::{Completion, status};
use super::directory::{Directory, Known, Reporters};
use super::entries::{Entries, View};
use super::format::{ARM_SOLICITED, Cqe, INDEX_MASK, NUMBER, RECORD_ARM, cqe};
use super::inline::Landed;
use super::memory::Record;
use super::reporter::Reporter;
use super::uar::UarPage;
use crate::command::CommandFd;
use crate::driver::contract;
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
    /// The index of the next entry to look at, which counts on round the ring and wraps at 2^32.
    next: u32,
    reporters: Reporters,
    /// What the next poll has to tell.
    wrong: Option<PollError>,
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
            next: 0,
            reporters: Reporters::new(),
            wrong: None,
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
        self.up_to_date().check()
    }

    #[cfg(test)]
    pub(super) fn uar(&self) -> &UarPage {
        &self.core.uar
    }

    /// The queue, once it has seen to what has come up since the last poll.
    #[inline(always)]
    fn up_to_date(&mut self) -> &mut Self {
        let reporters = &self.reporters;
        match reporters.are_stale(&self.directory) || reporters.are_waiting() {
            true => self.attend(),
            false => self,
        }
    }

    #[cold]
    #[inline(never)]
    fn attend(&mut self) -> &mut Self {
        self.catch_up();
        self.reporters.settle(&self.core.directory, self.next);
        self
    }

    /// Fails if something is wrong, which is told once.
    #[inline(always)]
    fn check(&mut self) -> Result<(), PollError> {
        match self.wrong {
            None => Ok(()),
            Some(error) => {
                self.wrong = None;
                Err(error)
            }
        }
    }

    /// Takes over what has changed among the queues that report here.
    #[cold]
    #[inline(never)]
    fn catch_up(&mut self) {
        if self.reporters.catch_up(&self.core.directory) {
            self.wrong = Some(PollError::Overrun);
        }
    }

    /// Takes the completion of the next entry, which has arrived, or of one behind it if that is of none.
    /// `index` is the entry's.
    #[inline(always)]
    fn take(&mut self, index: u32, entry: NonNull<Cqe>) -> Option<Completion> {
        if self.reporters.are_stale(&self.directory) {
            return self.take_closely(entry).copied();
        }
        // SAFETY: the device has written the entry and leaves it alone until it is given back, which is
        // below; every bit pattern is a `Cqe`.
        let fields = unsafe { entry.read() };
        let number = fields.srqn_uidx.get() & NUMBER;
        let known = self.reporters.get(number);
        let usual = known.filter(|known| is_plain(fields.op_own) && !known.forgets());
        let Some(ledger) = usual.and_then(|known| known.reporter.ledger(fields.op_own)) else {
            return self.take_closely(entry).copied();
        };
        // Before its request is finished: room in a queue means room for one more completion.
        self.next = index.wrapping_add(1);
        self.directory.pass(self.next);
        let Some((wr_id, change)) = ledger.finish(fields.wqe_counter.get()) else {
            self.refuse(number, fields.op_own);
            return None;
        };
        Some(Completion {
            fields,
            wr_id,
            status: WcStatus::SUCCESS,
            change,
        })
    }

    /// As [`Self::take`], whatever the entry is.
    #[cold]
    #[inline(never)]
    fn take_closely(&mut self, mut entry: NonNull<Cqe>) -> Option<&Completion> {
        loop {
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
                Some(known) => look_closer(known, self.view, entry, self.next),
                None => Finding::Senseless,
            };
            // SAFETY: as above. Data in it have been brought to their place, so it is read only now.
            let fields = unsafe { entry.read() };
            // Before its request is finished: room in a queue means room for one more completion.
            self.next = self.next.wrapping_add(1);
            self.core.directory.pass(self.next);
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
                entry = self.view.arrived(self.next)?;
                continue;
            };
            let finished = reporter.and_then(|reporter| reporter.finish(op_own, counter));
            let Some((wr_id, change)) = finished else {
                self.refuse(number, op_own);
                return None;
            };
            return Some(self.taken.insert(Completion {
                fields,
                wr_id,
                status,
                change,
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
    }

    /// The completions that have arrived.
    #[inline(always)]
    pub(super) fn begin(&mut self) -> Polled<'_> {
        Polled {
            view: self.view,
            left: self.view.count(),
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
        let next = self.next.wrapping_add(1);
        // The first of the new ring is the place behind the one that stays empty.
        new.invalidate(next);
        switch(&new)?;
        let (old_view, view) = (self.view, new.view());
        // The device has ended the old ring with an entry that says so. Its place in the new one stays empty,
        // so what was not taken moves on by one.
        let mut index = self.next;
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
        (self.view, self.next) = (view, next);
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
        let cq = self.up_to_date();
        cq.check()?;
        Ok(cq.view.arrived(cq.next).is_none())
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
        let cq = self.up_to_date();
        cq.check()?;
        Ok(cq.begin())
    }

    /// Entries have gone back when they are shown.
    #[cfg(feature = "c-abi")]
    #[inline(always)]
    fn show_next(&mut self) -> Result<Option<Completion>, PollError> {
        let cq = self.up_to_date();
        cq.check()?;
        let index = cq.next;
        let entry = cq.view.arrived(index);
        cq.taken = entry.and_then(|entry| cq.take(index, entry));
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
        let index = self.cq.next;
        self.cq.take(index, self.view.arrived(index)?)
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
