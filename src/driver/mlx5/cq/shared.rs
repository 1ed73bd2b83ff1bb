//! The part of a completion queue that its queue pairs share; arming it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use uverbs_uapi::handle::CqHandle;

use crate::driver::kit::turn::Turn;
use crate::driver::mlx5::directory::Directory;
use crate::driver::mlx5::entries::Entries;
use crate::driver::mlx5::format::{ARM_SOLICITED, INDEX_MASK, RECORD_ARM};
use crate::driver::mlx5::memory::Record;
use crate::driver::mlx5::page::UarPage;
#[cfg(all(feature = "c-abi", feature = "mlx5-direct"))]
use crate::driver::mlx5::place::CqPlace;
use crate::error::{self, Subject, Verb};

/// What a completion queue shares with its queue pairs, and what must stay until the kernel has released it.
#[derive(Debug)]
pub(crate) struct CqCore {
    pub(in super::super) directory: Arc<Directory>,
    /// Events of the queue that have been read. By their number the device knows a new arming from an old
    /// one.
    pub(in super::super) events: Arc<AtomicU32>,
    pub(super) cqn: u32,
    /// The device writes over entries that were not taken.
    pub(super) ignores_overrun: bool,
    /// The page where it is armed.
    pub(super) uar: Arc<UarPage>,
    /// Held by the thread that arms it.
    arming: Turn,
}

/// The refusal to arm a queue whose record is not mapped here.
#[cold]
pub(super) fn not_mapped(cq: CqHandle) -> error::Error {
    let subject = Subject::numbered("CQ", cq.0.into());
    let why = "its doorbell record lies where this process does not reach it: an agent arms it";
    error::Error::invalid(Verb::ReqNotifyCq, subject, why)
}

impl CqCore {
    pub(in super::super) fn new(
        entries: Entries,
        record: Record,
        cqn: u32,
        uar: Arc<UarPage>,
    ) -> Self {
        Self {
            directory: Arc::new(Directory::new(entries, record)),
            events: Arc::default(),
            cqn,
            ignores_overrun: false,
            uar,
            arming: Turn::new(),
        }
    }

    /// The same, for a queue whose overrun the device ignores or not.
    pub(in super::super) fn ignoring_overrun(self, ignores_overrun: bool) -> Self {
        Self {
            ignores_overrun,
            ..self
        }
    }

    /// Whether this process maps the ring and the record.
    pub(super) fn is_mapped(&self) -> bool {
        let entries = &self.directory.lock().entries;
        entries.memory().is_mapped() && self.directory.record().is_mapped()
    }

    /// Where it lies, for a program that polls by itself from now on.
    #[cfg(all(feature = "c-abi", feature = "mlx5-direct"))]
    pub(crate) fn place(&self) -> CqPlace {
        self.directory.leave_to_program();
        CqPlace {
            ring: self.directory.lock().entries.place(),
            record: self.directory.record().first(),
            page: self.uar.first(),
            number: self.cqn,
        }
    }

    /// Asks for an event for the next completion. Threads do so by turns: otherwise an older count of events
    /// could be stored last, which the device takes for an arming that it has seen.
    pub(in super::super) fn ask(&self, solicited_only: bool) {
        let _turn = self.arming.take();
        // Relaxed: a thread that reads an event and then arms takes the turn too. If its turn came first, its
        // count is seen here; if it comes later, it stores the newer count.
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
