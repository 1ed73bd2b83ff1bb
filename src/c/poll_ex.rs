//! Polling one completion at a time (`ibv_start_poll`): the queue's lock is held from the first to the end.

use std::ffi::c_int;

use uverbs_uapi::flags::CqCreateFlags;

use super::abi::attr::ibv_cq_init_attr_ex;
use super::abi::context::ibv_context;
use super::abi::queue::{ibv_cq, ibv_cq_ex, ibv_poll_cq_attr, ibv_wc_tm_info};
use super::context::context;
use super::cq::{CqObject, Wanted, create};
use super::failure::{Failure, Result, pointer};
use super::object::object;
use super::pd::pd;
use super::poll::Poller;
use crate::driver::contract::{self, methods::*};
use crate::driver::typed::{OnCq, OnPolled, PolledOf};
use crate::driver::{Completion, Completions, Listed};
use crate::error::{Errno, Error};
use crate::pd::User;

/// What a program can ask to read of completions: `enum ibv_create_cq_wc_flags`.
mod wc_flags {
    /// The length, immediate data, numbers of queue pairs, and where it came from.
    pub(super) const PLAIN: u64 = (1 << 7) - 1;
    pub(super) const TIMESTAMP: u64 = 1 << 7;
    /// The time of day.
    pub(super) const WALL_CLOCK: u64 = 1 << 11;
}

/// `enum ibv_cq_init_attr_mask`.
mod mask {
    pub(super) const FLAGS: u32 = 1 << 0;
    pub(super) const PD: u32 = 1 << 1;
}

/// `enum ibv_create_cq_attr_flags`.
mod flags {
    pub(super) const SINGLE_THREADED: u32 = 1 << 0;
    pub(super) const IGNORE_OVERRUN: u32 = 1 << 1;
}

/// `ibv_create_cq_ex(3)`.
pub(super) unsafe extern "C" fn create_cq_ex(
    c: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: the caller passes an open context, and attributes with objects of the same context.
    let created = unsafe { create_extended(c, attr) };
    pointer(created).cast()
}

/// # Safety
///
/// As of [`create_cq_ex`].
unsafe fn create_extended(
    c: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> Result<*mut ibv_cq> {
    // SAFETY: by this function's contract. Only what the mask names is looked at beyond the mask.
    unsafe {
        let context = context(c)?;
        let attr = attr.as_ref().ok_or(Failure::INVALID)?;
        let unknown = Failure(context.context().driver().refusals().unknown);
        if attr.comp_mask & !(mask::FLAGS | mask::PD) != 0 {
            return Err(unknown);
        }
        let flags = match attr.comp_mask & mask::FLAGS {
            0 => 0,
            _ => attr.flags,
        };
        let times = wc_flags::TIMESTAMP | wc_flags::WALL_CLOCK;
        if attr.wc_flags & !(wc_flags::PLAIN | times) != 0 {
            return Err(Failure::UNSUPPORTED);
        }
        if attr.wc_flags & wc_flags::WALL_CLOCK != 0 {
            context.context().wall_clock()?;
        }
        if flags & !(flags::SINGLE_THREADED | flags::IGNORE_OVERRUN) != 0 {
            return Err(unknown);
        }
        let domain = match attr.comp_mask & mask::PD {
            0 => None,
            _ => Some(pd(attr.parent_domain)?.pd().user(User::Cq)),
        };
        let mut kernel = CqCreateFlags::empty();
        kernel.set(
            CqCreateFlags::TIMESTAMP_COMPLETION,
            attr.wc_flags & times != 0,
        );
        kernel.set(
            CqCreateFlags::IGNORE_OVERRUN,
            flags & flags::IGNORE_OVERRUN != 0,
        );
        let wanted = Wanted {
            entries: attr.cqe,
            cq_context: attr.cq_context,
            channel: attr.channel,
            vector: attr.comp_vector,
            flags: kernel.bits(),
            single_threaded: flags & flags::SINGLE_THREADED != 0,
            domain,
        };
        create(context, c, wanted)
    }
}

/// The extended struct of a queue, with the functions that programs call through it.
pub(super) fn extended(cq: ibv_cq) -> ibv_cq_ex {
    ibv_cq_ex {
        cq,
        comp_mask: 0,
        status: 0,
        wr_id: 0,
        start_poll: Some(start_poll),
        next_poll: Some(next_poll),
        end_poll: Some(end_poll),
        read_opcode: Some(read_opcode),
        read_vendor_err: Some(read_vendor_err),
        read_byte_len: Some(read_byte_len),
        read_imm_data: Some(read_imm_data),
        read_qp_num: Some(read_qp_num),
        read_src_qp: Some(read_src_qp),
        read_wc_flags: Some(read_wc_flags),
        read_slid: Some(read_slid),
        read_sl: Some(read_sl),
        read_dlid_path_bits: Some(read_dlid_path_bits),
        read_completion_ts: Some(read_completion_ts),
        // No queue is created for the next three, but programs call them without a look.
        read_cvlan: Some(read_nothing),
        read_flow_tag: Some(read_nothing),
        read_tm_info: Some(read_no_tag),
        read_completion_wallclock_ns: Some(read_completion_wallclock_ns),
    }
}

/// Shows a completion to the program: its id and status, and the rest as it is asked for.
///
/// # Safety
///
/// The pointers are to a completion queue and its poller, whose lock is held.
#[inline(always)]
unsafe fn show<D: Listed>(
    c: *mut ibv_cq_ex,
    poller: *mut Poller,
    next: <D::Cq as contract::Cq>::Completion,
) -> c_int {
    // SAFETY: by this function's contract. Nobody else writes to the struct.
    unsafe {
        (*c).wr_id = next.wr_id();
        (*c).status = next.status().0;
        (*poller).current = Some(D::lend(next));
    }
    0
}

/// What polling starts with: the pointers are to a queue that is locked and to its poller.
struct Start<'a> {
    cq: &'a CqObject,
    c: *mut ibv_cq_ex,
}

impl OnCq for Start<'_> {
    type Output = c_int;

    #[inline(always)]
    fn run<D: Listed>(self, ring: &mut D::Cq) -> c_int {
        // SAFETY: by what this value is.
        unsafe { start::<D>(self.cq, self.c, ring) }
    }
}

/// Starts with the first completion, or gives the lock back if there is none. Out of line for each driver, so
/// that each keeps what it needs alone.
///
/// # Safety
///
/// The ring is that of the queue, whose lock was taken.
#[inline(never)]
unsafe fn start<D: Listed>(cq: &CqObject, c: *mut ibv_cq_ex, ring: *mut D::Cq) -> c_int {
    // SAFETY: by this function's contract. What is open borrows the ring alone, which is not touched beside
    // it.
    unsafe {
        let Some(mut polled) = (*ring).poll_plainly() else {
            return start_otherwise::<D>(cq, c, ring);
        };
        if polled.has_none() {
            cq.poller.release();
            return Errno::NOENT.raw_os_error();
        }
        let Some(next) = polled.take() else {
            cq.poller.release();
            return Errno::NOENT.raw_os_error();
        };
        let poller = cq.poller.pointer();
        (*poller).open = Some(Completions::of::<D>(polled));
        show::<D>(c, poller, next)
    }
}

/// As [`start`], where there is more to do.
///
/// # Safety
///
/// As of [`start`].
#[cold]
#[inline(never)]
unsafe fn start_otherwise<D: Listed>(cq: &CqObject, c: *mut ibv_cq_ex, ring: *mut D::Cq) -> c_int {
    // SAFETY: by this function's contract.
    unsafe {
        let poller = cq.poller.pointer();
        let failure = match (*ring).poll() {
            Err(error) => Failure::from(Error::from(error)),
            Ok(mut polled) => match polled.take() {
                Some(next) => {
                    (*poller).open = Some(Completions::of::<D>(polled));
                    return show::<D>(c, poller, next);
                }
                None => Failure(Errno::NOENT),
            },
        };
        cq.poller.release();
        failure.0.raw_os_error()
    }
}

/// `ibv_start_poll(3)`: holds nothing if there is no completion. That there is none is the usual case:
/// `errno` stays.
unsafe extern "C" fn start_poll(c: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the caller passes a completion queue and attributes.
    unsafe {
        let Some(cq) = object::<CqObject>(c.cast()) else {
            return Errno::INVAL.raw_os_error();
        };
        if attr.as_ref().is_some_and(|attr| attr.comp_mask != 0) {
            return Errno::INVAL.raw_os_error();
        }
        if !cq.poller.try_acquire() {
            return start_after(cq, c);
        }
        (*cq.poller.pointer()).ring().with(Start { cq, c })
    }
}

/// As [`start_poll`], when the lock is free.
///
/// # Safety
///
/// As there.
#[cold]
#[inline(never)]
unsafe fn start_after(cq: &CqObject, c: *mut ibv_cq_ex) -> c_int {
    cq.poller.acquire_slowly();
    // SAFETY: by this function's contract.
    unsafe { (*cq.poller.pointer()).ring().with(Start { cq, c }) }
}

/// What polling goes on with: the pointers are to a queue that the caller polls and to its poller.
struct Next {
    c: *mut ibv_cq_ex,
    poller: *mut Poller,
}

impl OnPolled for Next {
    type Output = c_int;

    #[inline(always)]
    fn run<D: Listed>(self, polled: &mut PolledOf<'_, D>) -> c_int {
        // SAFETY: by what this value is.
        unsafe { next::<D>(self.c, self.poller, polled) }
    }
}

/// Goes to the next completion. Out of line for each driver, so that each keeps what it needs alone.
///
/// # Safety
///
/// The pointers are to a completion queue that the caller polls, to its poller, and to what is open in that.
#[inline(never)]
unsafe fn next<D: Listed>(
    c: *mut ibv_cq_ex,
    poller: *mut Poller,
    polled: *mut PolledOf<'_, D>,
) -> c_int {
    // SAFETY: by this function's contract.
    unsafe {
        match (*polled).take() {
            Some(next) => show::<D>(c, poller, next),
            None => look_again(c, poller),
        }
    }
}

/// Goes to a completion that has come meanwhile.
///
/// # Safety
///
/// As of [`next`].
#[cold]
#[inline(never)]
unsafe fn look_again(c: *mut ibv_cq_ex, poller: *mut Poller) -> c_int {
    // SAFETY: by this function's contract. What is open borrows the ring alone, and is gone before the next.
    unsafe {
        (*poller).open = None;
        (*poller).ring_apart().with(Again { c, poller })
    }
}

/// As [`Next`], where nothing is open.
struct Again {
    c: *mut ibv_cq_ex,
    poller: *mut Poller,
}

impl OnCq for Again {
    type Output = c_int;

    #[inline(always)]
    fn run<D: Listed>(self, ring: &mut D::Cq) -> c_int {
        let Self { c, poller } = self;
        let ring: *mut D::Cq = ring;
        // SAFETY: by what this value is. What is open borrows the ring, to which there is no other reference.
        unsafe {
            match (*ring).poll() {
                Err(error) => Failure::from(Error::from(error)).0.raw_os_error(),
                Ok(mut polled) => match polled.take() {
                    None => Errno::NOENT.raw_os_error(),
                    Some(next) => {
                        (*poller).open = Some(Completions::of::<D>(polled));
                        show::<D>(c, poller, next)
                    }
                },
            }
        }
    }
}

/// `ibv_next_poll(3)`.
unsafe extern "C" fn next_poll(c: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the caller passes a completion queue, which it polls.
    unsafe {
        let Some(cq) = object::<CqObject>(c.cast()) else {
            return Errno::INVAL.raw_os_error();
        };
        let poller = cq.poller.pointer();
        match &mut (*poller).open {
            Some(open) => open.with(Next { c, poller }),
            None => look_again(c, poller),
        }
    }
}

/// `ibv_end_poll(3)`.
unsafe extern "C" fn end_poll(c: *mut ibv_cq_ex) {
    // SAFETY: the caller passes a completion queue, which it polls.
    unsafe {
        if let Some(cq) = object::<CqObject>(c.cast()) {
            (*cq.poller.pointer()).open = None;
            cq.poller.release();
        }
    }
}

/// Reads something of the completion that is polled.
///
/// # Safety
///
/// The pointer is to a completion queue that the caller polls.
#[inline(always)]
unsafe fn read<T: Default>(c: *mut ibv_cq_ex, what: impl FnOnce(&Completion) -> T) -> T {
    // SAFETY: by this function's contract.
    unsafe {
        let cq = object::<CqObject>(c.cast());
        let current = cq.and_then(|cq| (*cq.poller.pointer()).current.as_ref());
        current.map_or_else(T::default, what)
    }
}

/// `ibv_wc_read_opcode(3)`.
unsafe extern "C" fn read_opcode(c: *mut ibv_cq_ex) -> u32 {
    // SAFETY: the caller polls the queue, here as in the functions below.
    unsafe { read(c, |completion| completion.opcode().0) }
}

unsafe extern "C" fn read_vendor_err(c: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as in `read_opcode`.
    unsafe { read(c, Completion::vendor_err) }
}

unsafe extern "C" fn read_byte_len(c: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as in `read_opcode`.
    unsafe { read(c, Completion::byte_len) }
}

unsafe extern "C" fn read_imm_data(c: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as in `read_opcode`.
    unsafe { read(c, Completion::ex) }
}

unsafe extern "C" fn read_qp_num(c: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as in `read_opcode`.
    unsafe { read(c, Completion::qp_num) }
}

unsafe extern "C" fn read_src_qp(c: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as in `read_opcode`.
    unsafe { read(c, Completion::src_qp) }
}

unsafe extern "C" fn read_wc_flags(c: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as in `read_opcode`.
    unsafe { read(c, |completion| completion.flags().bits()) }
}

unsafe extern "C" fn read_slid(c: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as in `read_opcode`.
    unsafe { read(c, |completion| completion.slid().into()) }
}

unsafe extern "C" fn read_sl(c: *mut ibv_cq_ex) -> u8 {
    // SAFETY: as in `read_opcode`.
    unsafe { read(c, Completion::sl) }
}

unsafe extern "C" fn read_dlid_path_bits(c: *mut ibv_cq_ex) -> u8 {
    // SAFETY: as in `read_opcode`.
    unsafe { read(c, Completion::dlid_path_bits) }
}

unsafe extern "C" fn read_completion_ts(c: *mut ibv_cq_ex) -> u64 {
    // SAFETY: as in `read_opcode`.
    unsafe { read(c, |completion| completion.timestamp().unwrap_or(0)) }
}

unsafe extern "C" fn read_completion_wallclock_ns(c: *mut ibv_cq_ex) -> u64 {
    // SAFETY: as in `read_opcode`.
    let stamp = unsafe { read(c, Completion::timestamp) };
    // SAFETY: as in `read_opcode`.
    let cq = unsafe { object::<CqObject>(c.cast()) };
    let told = stamp.zip(cq.and_then(|cq| cq.context().wall_clock().ok()));
    told.map_or(0, |(stamp, clock)| clock.nanoseconds(stamp))
}

unsafe extern "C" fn read_nothing<T: Default>(_: *mut ibv_cq_ex) -> T {
    T::default()
}

unsafe extern "C" fn read_no_tag(_: *mut ibv_cq_ex, to: *mut ibv_wc_tm_info) {
    // SAFETY: the caller passes room for what belongs to a tag.
    unsafe { to.write(ibv_wc_tm_info::default()) };
}
