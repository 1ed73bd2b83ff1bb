//! Unusual CQEs: in error, with data in them, from before a reset, about a missing page, or senseless.

use std::ptr::NonNull;

use uverbs_uapi::enums::WcStatus;

use super::{Completion, Cq, is_plain};
use crate::driver::mlx5::again::is_page_fault;
use crate::driver::mlx5::completion::status;
use crate::driver::mlx5::directory::Known;
use crate::driver::mlx5::entries::View;
use crate::driver::mlx5::format::{Cqe, NUMBER, cqe};
use crate::driver::mlx5::inline::Landed;
use crate::driver::mlx5::reporter::Reporter;
use crate::work::PollError;

impl Cq {
    /// As [`Self::next`], for an entry that has arrived.
    #[cold]
    #[inline(never)]
    pub(super) fn take_closely(&mut self, mut entry: NonNull<Cqe>) -> Option<&Completion> {
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
            // SAFETY: as above. Data in it have been copied out, so it is read only now.
            let fields = unsafe { entry.read() };
            // Before its request is finished: then room in a queue also means room for one more completion.
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

    /// Notes that an entry makes no sense; the next poll reports it.
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
}

/// What a look at an entry has found.
#[derive(Clone, Copy, Debug)]
enum Finding {
    /// It reports a request, with this status.
    Completed(WcStatus),
    /// It dates from before a reset, or belongs to a queue pair whose completions were dropped with it.
    Forgotten,
    /// A message of a shared queue found a page missing: its request has to be posted again.
    PageMissing,
    /// No queue has posted the request that it reports.
    Senseless,
}

impl Finding {
    const SUCCESS: Self = Self::Completed(WcStatus::SUCCESS);
}

/// Looks at an entry that is not plain, or whose reporter has entries to forget. Data in it are copied to the
/// request's memory.
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
