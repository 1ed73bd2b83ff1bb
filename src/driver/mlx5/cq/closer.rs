//! Unusual CQEs: in error, with data in them, from before a reset, about a missing page, or senseless.

use std::ptr::NonNull;

use uverbs_uapi::enums::WcStatus;

use super::{Completion, Cq, is_plain};
use crate::driver::mlx5::again::is_page_fault;
use crate::driver::mlx5::completion::status;
use crate::driver::mlx5::entries::View;
use crate::driver::mlx5::format::{Cqe, NUMBER, cqe};
use crate::driver::mlx5::inline::Landed;
use crate::driver::mlx5::reporter::Reporter;
use crate::work::PollError;

impl Cq {
    /// Gives entries that date from before a reset, or belong to a queue pair whose completions were dropped
    /// with it, back to the device, up to the first entry that a poll tells of. Returns that one if it has
    /// arrived.
    #[cold]
    #[inline(never)]
    pub(super) fn pass_forgotten(&mut self) -> Option<NonNull<Cqe>> {
        loop {
            let index = self.directory.passed();
            let entry = self.view.arrived(index)?;
            if self.reporters.are_stale(&self.core.directory) {
                self.catch_up();
            }
            // SAFETY: the device has written the entry and leaves it alone until it is given back, which is
            // below; every bit pattern is a `Cqe`.
            let cqe = unsafe { entry.as_ref() };
            let (op_own, counter) = (cqe.op_own, cqe.wqe_counter.get());
            let known = self.reporters.get(cqe.srqn_uidx.get() & NUMBER);
            let Some(known) = known.filter(|known| known.has_forgotten(index)) else {
                return Some(entry);
            };
            // Before the element of a shared queue is free: then room in a queue also means room for one more
            // completion.
            self.core.directory.pass(index.wrapping_add(1));
            known.reporter.reclaim(op_own, counter);
        }
    }

    /// As [`Self::next`], for an entry that has arrived and is perhaps not usual.
    #[cold]
    #[inline(never)]
    pub(super) fn take_closely(&mut self) -> Option<&Completion> {
        loop {
            let entry = self.pass_forgotten()?;
            // SAFETY: the device has written the entry and leaves it alone until it is given back, which is
            // below; every bit pattern is a `Cqe`.
            let cqe = unsafe { entry.as_ref() };
            let (op_own, counter) = (cqe.op_own, cqe.wqe_counter.get());
            let number = cqe.srqn_uidx.get() & NUMBER;
            let reporter = self.reporters.get(number).map(|known| &known.reporter);
            let finding = match reporter {
                Some(_) if is_plain(op_own) => Finding::SUCCESS,
                Some(reporter) => look_closer(reporter, self.view, entry),
                None => Finding::Senseless,
            };
            // SAFETY: as above. Data in it have been copied out, so it is read only now.
            let fields = unsafe { entry.read() };
            // Before its request is finished: then room in a queue also means room for one more completion.
            let next = self.directory.passed().wrapping_add(1);
            self.core.directory.pass(next);
            let status = match (finding, reporter) {
                (Finding::Completed(status), _) => status,
                (Finding::PageMissing, Some(reporter)) if reporter.post_again(counter) => continue,
                (Finding::PageMissing, _) => status(&fields),
                (Finding::Senseless, _) => {
                    self.refuse(number, op_own);
                    return None;
                }
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

    /// Notes that an entry makes no sense; the next poll reports it, unless it has another error to report.
    #[cold]
    #[inline(never)]
    fn refuse(&mut self, number: u32, op_own: u8) {
        let code = op_own >> 4;
        let error = match self.reporters.get(number) {
            Some(known) if known.reporter.is_known() => PollError::Unknown { code },
            _ => PollError::Stray { number },
        };
        self.wrong.get_or_insert(error);
        self.has_news = true;
    }
}

/// What a look at an entry has found.
#[derive(Clone, Copy, Debug)]
enum Finding {
    /// It reports a request, with this status.
    Completed(WcStatus),
    /// A message of a shared queue found a page missing: its request has to be posted again.
    PageMissing,
    /// No queue has posted the request that it reports.
    Senseless,
}

impl Finding {
    const SUCCESS: Self = Self::Completed(WcStatus::SUCCESS);
}

/// Looks at an entry that is not plain. Data in it are copied to the request's memory.
#[cold]
#[inline(never)]
fn look_closer(reporter: &Reporter, view: View, entry: NonNull<Cqe>) -> Finding {
    // SAFETY: the caller has found that the device has written the entry, and has not given it back.
    let fields = unsafe { entry.as_ref() };
    if is_page_fault(fields) {
        return Finding::PageMissing;
    }
    match fields.op_own & cqe::FAILED == 0 && fields.op_own & cqe::SCATTERED != 0 {
        // SAFETY: as above.
        true => unsafe { land(reporter, view, entry) },
        false => Finding::Completed(status(fields)),
    }
}

/// Copies the data of an entry to the request's memory.
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
    // To the device the request succeeded, so it has no error code: the timestamp is in that field.
    // SAFETY: the entry is this side's, and only the poller reads that byte.
    unsafe { (&raw mut (*entry.as_ptr()).vendor_err_synd).write(0) };
    Finding::Completed(status)
}
