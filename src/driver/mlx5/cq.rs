//! Completion queues: polling, arming, resizing.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use uverbs_uapi::enums::{WcOpcode, WcStatus};
use uverbs_uapi::flags::WcFlags;
use uverbs_uapi::handle::CqHandle;

use super::barrier;
use super::directory::{Change, Directory, Receiver, Reporter};
use super::entries::{Entries, View};
use super::format::{
    ARM_SOLICITED, Cqe, INDEX_MASK, NUMBER, RECORD_ARM, RECORD_CONSUMER, cqe, opcode, syndrome,
};
use super::inline::Landed;
use super::memory::Record;
use super::uar::UarPage;
use crate::command::CommandFd;
use crate::driver::contract;
use crate::error;
use crate::work::PollError;

/// What a completion queue shares with its queue pairs, and what must stay until the kernel has let go of it.
#[derive(Debug)]
pub(crate) struct CqCore {
    pub(super) directory: Arc<Directory>,
    record: Record,
    /// Events of the queue that have been read: the device takes an arming for new by their number.
    pub(super) events: Arc<AtomicU32>,
}

impl CqCore {
    pub(super) fn new(entries: Entries, record: Record) -> Self {
        Self {
            directory: Arc::new(Directory::new(entries)),
            record,
            events: Arc::default(),
        }
    }
}

/// A completion queue's poller.
#[derive(Debug)]
pub(crate) struct Cq {
    view: View,
    /// Index of the next entry to look at, and of the first that has not been given back; they count on round
    /// the ring.
    next: u32,
    released: u32,
    /// The owner bit of the next entry once the device has written it.
    lap: u8,
    /// The version of the directory that `reporters` is of, with which a completion needs nothing else; or
    /// [`NO_VERSION`] while there is something to attend to.
    simple_at: u64,
    /// The version of the directory that `reporters` is of.
    version: u64,
    /// There is something wrong to tell, or entries of `reporters` wait for the poller to pass something.
    attention: bool,
    /// By their numbers; vacant ones report nothing.
    reporters: Vec<Entry>,
    directory: Arc<Directory>,
    core: Arc<CqCore>,
    /// What was found wrong, told by the next poll.
    wrong: Option<PollError>,
    cqn: u32,
    uar: Arc<UarPage>,
}

// SAFETY: the view is of memory that `core` keeps, and the poller is the only one to read it through this.
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

    /// Whether what was reported at that index is of before a reset.
    fn has_forgotten(&self, index: u32) -> bool {
        self.forget_until
            .is_some_and(|until| is_before(index, until))
    }

    /// What the completion of a request that went well is of, if nothing but its id is to be found out: of a
    /// send, or of a receive from a queue of the queue pair's own.
    #[inline(always)]
    fn simple(&self, op_own: u8, counter: u16) -> Option<(u64, u32)> {
        if op_own & (0xf0 | cqe::SCATTERED) == cqe::REQ << 4 {
            Some(self.reporter.send.as_ref()?.finish(counter))
        } else if is_plain_receive(op_own)
            && let Receiver::Own(ledger) = &self.reporter.recv
        {
            Some((ledger.finish(), 0))
        } else {
            None
        }
    }

    /// The id of the request that any completion is of, with what it changed a memory key for.
    fn any(&self, op_own: u8, counter: u16) -> Option<(u64, u32)> {
        let send = || Some(self.reporter.send.as_ref()?.finish(counter));
        let recv = || match &self.reporter.recv {
            Receiver::Own(ledger) => Some(ledger.finish()),
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

/// A version that no directory comes to.
const NO_VERSION: u64 = u64::MAX;

impl Cq {
    pub(super) fn new(core: Arc<CqCore>, cqn: u32, uar: Arc<UarPage>) -> Self {
        let view = core.directory.lock().entries.view();
        Self {
            view,
            next: 0,
            released: 0,
            lap: view.lap(0),
            simple_at: 0,
            version: 0,
            attention: false,
            reporters: Vec::new(),
            directory: Arc::clone(&core.directory),
            core,
            wrong: None,
            cqn,
            uar,
        }
    }

    pub(crate) fn core(&self) -> &Arc<CqCore> {
        &self.core
    }

    #[cfg(test)]
    pub(super) fn uar(&self) -> &UarPage {
        &self.uar
    }

    /// Whether the queue is sound. Completions are taken as long as there are any: each entry says itself
    /// whether it is there.
    #[inline(always)]
    pub(crate) fn check(&mut self) -> Result<(), PollError> {
        match self.attention {
            false => Ok(()),
            true => self.attend(),
        }
    }

    /// Tells what was found wrong, once, and looks which of the entries that wait for something have it.
    #[cold]
    #[inline(never)]
    fn attend(&mut self) -> Result<(), PollError> {
        self.release();
        self.attention = self.settle();
        self.simplify();
        match self.wrong.take() {
            None => Ok(()),
            Some(error) => Err(error),
        }
    }

    /// Notes whether completions are simple now.
    fn simplify(&mut self) {
        self.simple_at = match self.attention {
            false => self.version,
            true => NO_VERSION,
        };
    }

    /// The next completion; `moved` is set if there is one, or entries were passed over.
    ///
    /// It must not be used after [`Self::release`]; the caller's lifetimes see to that.
    #[inline(always)]
    pub(crate) fn take(&mut self, moved: &mut bool) -> Option<Completion> {
        let index = self.next;
        let entry = self.view.entry(index);
        // Without the lap its last bit is 0 in entries that are this side's.
        let op_own = View::op_own(entry) ^ self.lap;
        if op_own & 1 != 0 {
            return None;
        }
        *moved = true;
        barrier::owner_before_entry();
        if self.directory.version() == self.simple_at {
            // SAFETY: the device has written the entry and does not write it again before it is given back,
            // which is after the loan of the completion; every bit pattern is a `Cqe`.
            let fields = unsafe { entry.as_ref() };
            let number = fields.srqn_uidx.get() & NUMBER;
            if let Some(reporter) = self.reporters.get(number as usize)
                && let Some((wr_id, change)) = reporter.simple(op_own, fields.wqe_counter.get())
            {
                self.advance();
                return Some(Completion {
                    entry,
                    wr_id,
                    status: WcStatus::SUCCESS,
                    change,
                });
            }
        }
        let Completion {
            entry,
            wr_id,
            status,
            change,
        } = self.take_slowly()?;
        // Field by field, so that this one's memory is not where all are put.
        Some(Completion {
            entry,
            wr_id,
            status,
            change,
        })
    }

    /// Goes on to the next entry.
    #[inline(always)]
    fn advance(&mut self) {
        self.next = self.next.wrapping_add(1);
        if self.view.is_first(self.next) {
            self.lap ^= 1;
        }
    }

    /// The next completion, if there is more about it than its id, or if it is not known who reports.
    #[cold]
    #[inline(never)]
    fn take_slowly(&mut self) -> Option<Completion> {
        loop {
            let index = self.next;
            let op_own = self.view.poll(index)?;
            barrier::owner_before_entry();
            let entry = self.view.entry(index);
            self.advance();
            if self.version != self.directory.version() {
                self.catch_up();
            }
            // SAFETY: as in `take`.
            let fields = unsafe { entry.as_ref() };
            let number = fields.srqn_uidx.get() & NUMBER;
            let stray = PollError::Stray { number };
            let Some(reporter) = self.reporters.get(number as usize) else {
                return self.refuse(stray);
            };
            if reporter.has_forgotten(index) {
                continue;
            }
            let counter = fields.wqe_counter.get();
            // Data first: a request that is noted as finished is no longer the device's.
            // SAFETY: as in `take`.
            let status = unsafe { reporter.status(self.view, entry) };
            let known = status.and_then(|status| Some((status, reporter.any(op_own, counter)?)));
            let Some((status, (wr_id, change))) = known else {
                let code = op_own >> 4;
                let known = reporter.is_known();
                return self.refuse(if known {
                    PollError::Unknown { code }
                } else {
                    stray
                });
            };
            return Some(Completion {
                entry,
                wr_id,
                status,
                change,
            });
        }
    }

    /// Notes that the entry before this place makes no sense; the next poll tells.
    fn refuse(&mut self, error: PollError) -> Option<Completion> {
        self.wrong = Some(error);
        self.attention = true;
        self.simplify();
        None
    }

    /// Gives all completions that have been taken back to the device.
    #[inline(always)]
    pub(crate) fn release(&mut self) {
        let next = self.next;
        self.released = next;
        self.directory.consumed(next);
        let word = (next & INDEX_MASK).to_be();
        // Release: the entries have been read before the device may write them again; its counterpart is the
        // device's look at the record before it writes.
        self.core
            .record
            .word(RECORD_CONSUMER)
            .store(word, Ordering::Release);
    }

    /// Asks for an event for the next completion.
    pub(super) fn ask(&mut self, solicited_only: bool) {
        // Relaxed: the number only has to change after an event has been read, which came before in this
        // thread or by whatever handed the queue to it.
        let sequence = self.core.events.load(Ordering::Relaxed) & 3;
        let command = if solicited_only { ARM_SOLICITED } else { 0 };
        let word = sequence << 28 | command | self.released & INDEX_MASK;
        // Relaxed: the barrier in `UarPage::arm` orders it before the register.
        self.core
            .record
            .word(RECORD_ARM)
            .store(word.to_be(), Ordering::Relaxed);
        self.uar.arm(word, self.cqn);
    }

    /// Takes over what has changed among the queue pairs.
    fn catch_up(&mut self) {
        let (version, changes) = self.core.directory.changes();
        self.version = version;
        for change in changes {
            match change {
                Change::Set {
                    number,
                    reporter,
                    forget_until,
                } => {
                    self.attention |= forget_until.is_some();
                    self.set(
                        number,
                        Entry {
                            reporter,
                            forget_until,
                            leave_at: None,
                        },
                    );
                }
                Change::Remove { number, until } => {
                    if let Some(entry) = self.reporters.get_mut(number as usize) {
                        entry.leave_at = Some(until);
                        self.attention = true;
                    }
                }
            }
        }
        self.simplify();
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
        let (next, mut waiting) = (self.next, false);
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
        // The first of the new ring is the place behind the one that stays empty.
        new.invalidate(self.next.wrapping_add(1));
        switch(&new)?;
        let view = new.view();
        // The device has ended the old ring with an entry that says so. Its place in the new one stays empty,
        // so what was not taken moves on by one.
        let mut index = self.next;
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
        self.next = self.next.wrapping_add(1);
        self.lap = view.lap(self.next);
        self.release();
        Ok(())
    }
}

impl contract::Cq for Cq {
    type Backing = Arc<CqCore>;
    type Completion = Completion;
    type Polled<'q> = &'q mut Cq;

    fn backing(&self) -> Arc<CqCore> {
        Arc::clone(&self.core)
    }

    fn events(backing: &Arc<CqCore>) -> Option<&Arc<AtomicU32>> {
        Some(&backing.events)
    }

    fn capacity(&self) -> u32 {
        self.view.count() - 1
    }

    fn is_empty(&mut self) -> Result<bool, PollError> {
        self.check()?;
        Ok(self.view.poll(self.next).is_none())
    }

    fn arm(&mut self, _fd: &CommandFd, _cq: CqHandle, solicited_only: bool) -> error::Result<()> {
        self.ask(solicited_only);
        Ok(())
    }

    #[inline(always)]
    fn poll(&mut self) -> Result<&mut Cq, PollError> {
        self.check()?;
        Ok(self)
    }
}

impl contract::Polled for &mut Cq {
    type Completion = Completion;

    #[inline(always)]
    fn take(&mut self, moved: &mut bool) -> Option<Completion> {
        Cq::take(self, moved)
    }

    #[inline(always)]
    fn release(&mut self) {
        Cq::release(self);
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        self.core.directory.close();
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

/// A completion that lies in the ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    entry: NonNull<Cqe>,
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
    fn fields(&self) -> &Cqe {
        // SAFETY: the device has written the entry and it is not given back before the loan to the user ends.
        // The device writes to no entry before that: it looks at the consumer index, or who let it not look
        // answers for it (`CqBuilder::ignore_overrun`). Every bit pattern is a `Cqe`.
        unsafe { self.entry.as_ref() }
    }

    #[inline(always)]
    fn code(&self) -> u8 {
        self.fields().op_own >> 4
    }

    #[inline(always)]
    fn sent(&self) -> WcOpcode {
        match (self.fields().sop_drop_qpn.get() >> 24) as u8 {
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
        self.fields().vendor_err_synd.into()
    }

    /// What an atomic operation reads is told by the operation; libmlx5's `ibv_poll_cq` does not rely on the
    /// entry either.
    #[inline(always)]
    fn byte_len(&self) -> u32 {
        match self.opcode() {
            WcOpcode::COMP_SWAP | WcOpcode::FETCH_ADD => size_of::<u64>() as u32,
            _ => self.fields().byte_cnt.get(),
        }
    }

    #[inline(always)]
    fn qp_num(&self) -> u32 {
        self.fields().sop_drop_qpn.get() & NUMBER
    }

    #[inline(always)]
    fn src_qp(&self) -> u32 {
        self.fields().flags_rqpn.get() & NUMBER
    }

    /// The immediate data in network byte order, or the rkey in the host's.
    #[inline(always)]
    fn ex(&self) -> u32 {
        let bytes = self.fields().imm_inval_pkey;
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
        flags.set(WcFlags::GRH, self.fields().flags_rqpn.get() >> 28 & 3 != 0);
        flags
    }

    /// The device writes it whether it was asked for or not; an error stands in its place.
    #[inline(always)]
    fn timestamp(&self) -> Option<u64> {
        let fields = self.fields();
        let [a, b, c, d, e, f] = fields.timestamp;
        let ticks = u64::from_be_bytes([a, b, c, d, e, f, fields.vendor_err_synd, fields.syndrome]);
        (self.status() == WcStatus::SUCCESS).then_some(ticks)
    }

    #[inline(always)]
    fn pkey_index(&self) -> u16 {
        let [_, _, high, low] = self.fields().imm_inval_pkey;
        match self.code() {
            cqe::RESP_SEND => u16::from_be_bytes([high, low]),
            _ => 0,
        }
    }

    #[inline(always)]
    fn slid(&self) -> u16 {
        self.fields().slid.get()
    }

    #[inline(always)]
    fn sl(&self) -> u8 {
        (self.fields().flags_rqpn.get() >> 24) as u8 & 0xf
    }

    #[inline(always)]
    fn dlid_path_bits(&self) -> u8 {
        self.fields().ml_path & 0x7f
    }
}
