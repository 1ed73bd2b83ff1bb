//! Completion queues: polling. [`closer`] handles unusual CQEs.

#[cfg(feature = "c-abi")]
mod clean;
mod closer;
mod moves;
mod shared;

#[cfg(feature = "c-abi")]
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use uverbs_uapi::enums::WcStatus;
use uverbs_uapi::handle::CqHandle;
#[cfg(feature = "c-abi")]
use uverbs_uapi::types::Wc;

pub(crate) use self::shared::CqCore;
use self::shared::not_mapped;

use super::completion::Completion;
use super::directory::{Directory, Reporters};
use super::entries::View;
use super::format::{Cqe, NUMBER, cqe};
#[cfg(test)]
use super::page::UarPage;
use super::reporter::Noted;
use crate::command::CommandFd;
use crate::driver::contract;
use crate::error;
use crate::work::PollError;

/// A completion queue's poller.
#[derive(Debug)]
pub(crate) struct Cq {
    view: View,
    reporters: Reporters,
    /// The error that the next poll reports.
    wrong: Option<PollError>,
    /// The next poll has something to do: report `wrong`, or settle reporters that wait.
    has_news: bool,
    /// This process maps all that it left to an agent, if it did leave something.
    can_come_back: bool,
    /// The completion that is shown to a C program, or the last unusual one that was taken.
    taken: Option<Completion>,
    /// The directory of `core`.
    directory: Arc<Directory>,
    core: Arc<CqCore>,
}

// SAFETY: the view is of memory that `core` keeps, and the poller is the only one to use it through this.
unsafe impl Send for Cq {}
// SAFETY: shared references only check whether an entry has arrived.
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

    /// The result of the next poll.
    #[cfg(test)]
    pub(super) fn told(&mut self) -> Result<(), PollError> {
        self.up_to_date().map(drop)
    }

    #[cfg(test)]
    pub(super) fn uar(&self) -> &UarPage {
        &self.core.uar
    }

    /// The queue, after it has done what has come up since the last poll. Fails if something was wrong: an
    /// overrun is reported once, and another error unless one comes before it is reported.
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
        // No poll tells of them, so they must not pass for completions that wait.
        self.pass_forgotten();
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

    /// Takes the completion of the next entry of `view`, which is the queue's, if it has arrived. Returns
    /// what `see` makes of it, which is called before the entry goes back. Fails if the entry is not usual.
    ///
    /// It borrows only the parts that it needs, so that `see` may use others.
    #[inline(always)]
    fn take<T>(
        reporters: &Reporters,
        directory: &Directory,
        view: View,
        see: impl FnOnce(Completion) -> T,
    ) -> Result<Option<T>, Unusual> {
        let index = directory.passed();
        let Some(entry) = view.arrived(index) else {
            return Ok(None);
        };
        if reporters.are_stale(directory) {
            return Err(Unusual);
        }
        // SAFETY: the device has written the entry and leaves it alone until it is given back, which is
        // below; every bit pattern is a `Cqe`.
        let cqe = unsafe { entry.as_ref() };
        let Some(noted) = usual(reporters, cqe) else {
            return Err(Unusual);
        };
        let (wr_id, does) = noted.id();
        let seen = see(Completion {
            fields: *cqe,
            wr_id,
            status: WcStatus::SUCCESS,
            does,
        });
        // Before its request is finished: then room in a queue also means room for one more completion.
        directory.pass(index.wrapping_add(1));
        noted.finish();
        Ok(Some(seen))
    }

    /// Takes the completion of the next entry of this view, of whatever kind; if that entry has none to take,
    /// the completion of a later one.
    #[inline(always)]
    fn next(&mut self, view: View) -> Option<Completion> {
        match Self::take(&self.reporters, &self.directory, view, |completion| {
            completion
        }) {
            Ok(completion) => completion,
            Err(Unusual) => self.take_closely().copied(),
        }
    }

    /// The completions that have arrived.
    #[inline(always)]
    pub(super) fn begin(&mut self) -> Polled<'_> {
        // Read as a number above 0, so that an empty poll does not check whether entries are left.
        let left = self.view.count.get();
        Polled {
            view: self.view,
            left,
            cq: self,
        }
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

    #[cfg(feature = "c-abi")]
    fn clean(&mut self) {
        self.take_forgotten_out();
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
                Err(Unusual) => match self.take_closely() {
                    Some(completion) => _ = completion.write_to(place),
                    None => break,
                },
            }
            taken += 1;
        }
        Some(taken)
    }

    /// An entry has gone back to the device by the time it is shown.
    #[cfg(feature = "c-abi")]
    #[inline(always)]
    fn show_next(&mut self) -> Result<Option<Completion>, PollError> {
        let cq = self.up_to_date()?;
        // Written where it stays.
        let show = |completion| _ = cq.taken.insert(completion);
        match Self::take(&cq.reporters, &cq.directory, cq.view, show) {
            Ok(Some(())) => {}
            Ok(None) => cq.taken = None,
            Err(Unusual) if cq.take_closely().is_some() => {}
            Err(Unusual) => cq.taken = None,
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
    /// Frees the elements of shared receive queues whose completions were not taken.
    fn drop(&mut self) {
        self.catch_up();
        self.core.directory.close(self.reporters.shared());
    }
}

/// An entry is to be looked at closely.
#[derive(Clone, Copy, Debug)]
struct Unusual;

/// Completions that are being taken.
#[derive(Debug)]
pub(crate) struct Polled<'q> {
    cq: &'q mut Cq,
    /// The view of the queue.
    view: View,
    /// Entries that it may still look at: once round the ring, while the device continues.
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

/// The request of an entry, if both are usual.
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
