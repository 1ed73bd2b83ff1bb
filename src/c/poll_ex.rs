//! Polling one completion at a time (`ibv_start_poll`): the queue's lock is held from the first to the end.

use std::ffi::c_int;

use uverbs_uapi::flags::CqCreateFlags;

use super::abi::attr::ibv_cq_init_attr_ex;
use super::abi::context::ibv_context;
use super::abi::ibv_pd;
use super::abi::queue::{ibv_cq, ibv_cq_ex, ibv_poll_cq_attr, ibv_wc_tm_info};
use super::context::context;
use super::cq::{CqObject, Wanted, create};
use super::failure::{Failure, Result, pointer};
use super::object::object;
use super::pd::pd;
use super::poll::own;
use crate::driver::Listed;
use crate::driver::contract::{self, methods::*};
use crate::driver::typed::ForDriver;
use crate::error::{Errno, Error};
use crate::pd::{Pd, User};
use crate::work::PollError;

/// The fields of completions that a program can request: `enum ibv_create_cq_wc_flags`.
mod wc_flags {
    /// The length, immediate data, numbers of queue pairs, and the sender's addresses.
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
    let created = unsafe { create_extended(c, attr, None) };
    pointer(created).cast()
}

/// Creates a queue, with entries of `entry_bytes` bytes if that is given.
///
/// # Safety
///
/// As for [`create_cq_ex`].
pub(super) unsafe fn create_extended(
    c: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
    entry_bytes: Option<u32>,
) -> Result<*mut ibv_cq> {
    // SAFETY: by this function's contract. Fields after the mask are read only if the mask names them.
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
            _ => Some(parent_domain(attr.parent_domain)?.user(User::Cq)),
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
            entry_bytes,
        };
        create(context, c, wanted)
    }
}

/// A parent domain of the program; a plain domain is refused.
///
/// # Safety
///
/// The pointer is to a domain or NULL.
unsafe fn parent_domain<'a>(c: *mut ibv_pd) -> Result<&'a Pd> {
    // SAFETY: by this function's contract.
    let pd = unsafe { pd(c)? }.pd();
    match pd.domain() {
        Some(_) => Ok(pd),
        None => Err(Failure::INVALID),
    }
}

/// Makes the struct of a queue with its functions, which programs call through it. The functions belong to
/// the queue's driver, and those for a queue of one thread take no lock.
pub(super) struct Extended {
    pub(super) cq: ibv_cq,
    pub(super) single_threaded: bool,
}

type StartPoll = unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_poll_cq_attr) -> c_int;
type EndPoll = unsafe extern "C" fn(*mut ibv_cq_ex);

impl ForDriver for Extended {
    type Output = ibv_cq_ex;

    fn run<D: Listed>(self) -> ibv_cq_ex {
        let (start, end): (StartPoll, EndPoll) = match self.single_threaded {
            true => (start_poll::<D, true>, end_poll::<D, true>),
            false => (start_poll::<D, false>, end_poll::<D, false>),
        };
        ibv_cq_ex {
            cq: self.cq,
            comp_mask: 0,
            status: 0,
            wr_id: 0,
            start_poll: Some(start),
            next_poll: Some(next_poll::<D>),
            end_poll: Some(end),
            read_opcode: Some(read_opcode::<D>),
            read_vendor_err: Some(read_vendor_err::<D>),
            read_byte_len: Some(read_byte_len::<D>),
            read_imm_data: Some(read_imm_data::<D>),
            read_qp_num: Some(read_qp_num::<D>),
            read_src_qp: Some(read_src_qp::<D>),
            read_wc_flags: Some(read_wc_flags::<D>),
            read_slid: Some(read_slid::<D>),
            read_sl: Some(read_sl::<D>),
            read_dlid_path_bits: Some(read_dlid_path_bits::<D>),
            read_completion_ts: Some(read_completion_ts::<D>),
            // No queue is created for the next three, but programs call them without checking.
            read_cvlan: Some(read_nothing),
            read_flow_tag: Some(read_nothing),
            read_tm_info: Some(read_no_tag),
            read_completion_wallclock_ns: Some(read_completion_wallclock_ns::<D>),
        }
    }
}

/// The queue of an extended struct. Programs call these functions through the struct, so the queue exists.
///
/// # Safety
///
/// The pointer is to a completion queue.
#[inline(always)]
unsafe fn queue<'a>(c: *mut ibv_cq_ex) -> &'a CqObject {
    // SAFETY: by this function's contract, it is not NULL.
    unsafe { object::<CqObject>(c.cast()).unwrap_unchecked() }
}

/// There is no completion.
const NONE: c_int = Errno::NOENT.raw_os_error();

/// Takes the next completion and shows it to the program: first its id and status; the rest is read on
/// request.
///
/// # Safety
///
/// The pointer is to a completion queue of a device of this driver, whose lock the caller holds.
#[inline(always)]
unsafe fn show_next<D: Listed>(c: *mut ibv_cq_ex) -> c_int {
    // SAFETY: by this function's contract. Nothing else writes to the struct.
    unsafe {
        match own::<D>(queue(c).ring.held()).show_next() {
            Ok(Some(completion)) => {
                (*c).wr_id = completion.wr_id();
                (*c).status = completion.status().0;
                0
            }
            Ok(None) => NONE,
            Err(error) => failed(error),
        }
    }
}

/// The result of a function if the queue has an error.
#[cold]
#[inline(never)]
fn failed(error: PollError) -> c_int {
    Failure::from(Error::from(error)).0.raw_os_error()
}

/// `ibv_start_poll(3)`: does not hold the lock if there is no completion. That is the usual case, so `errno`
/// is not set.
unsafe extern "C" fn start_poll<D: Listed, const SINGLE_THREADED: bool>(
    c: *mut ibv_cq_ex,
    attr: *mut ibv_poll_cq_attr,
) -> c_int {
    // SAFETY: the caller passes a completion queue and attributes.
    unsafe {
        if D::REFUSALS.poll_attributes && attr.as_ref().is_some_and(|attr| attr.comp_mask != 0) {
            return Errno::INVAL.raw_os_error();
        }
        queue(c).ring.acquire_known::<SINGLE_THREADED>();
        let result = show_next::<D>(c);
        if result != 0 {
            queue(c).ring.release_known::<SINGLE_THREADED>();
        }
        result
    }
}

/// `ibv_next_poll(3)`.
unsafe extern "C" fn next_poll<D: Listed>(c: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the caller passes a completion queue, which it polls.
    unsafe { show_next::<D>(c) }
}

/// `ibv_end_poll(3)`.
unsafe extern "C" fn end_poll<D: Listed, const SINGLE_THREADED: bool>(c: *mut ibv_cq_ex) {
    // SAFETY: the caller passes a completion queue, which it polls.
    unsafe {
        let cq = queue(c);
        own::<D>(cq.ring.held()).hide();
        cq.ring.release_known::<SINGLE_THREADED>();
    }
}

/// Reads a field of the completion that is shown; zeros if none is.
///
/// # Safety
///
/// The pointer is to a completion queue that the caller polls, of a device of this driver.
#[inline(always)]
unsafe fn read<D: Listed, T: Default>(
    c: *mut ibv_cq_ex,
    what: impl FnOnce(<D::Cq as contract::Cq>::Completion) -> T,
) -> T {
    // SAFETY: by this function's contract.
    let ring = unsafe { own::<D>(queue(c).ring.held()) };
    ring.shown().map(what).unwrap_or_default()
}

/// `ibv_wc_read_opcode(3)`.
unsafe extern "C" fn read_opcode<D: Listed>(c: *mut ibv_cq_ex) -> u32 {
    // SAFETY: the caller polls the queue, here as in the functions below.
    unsafe { read::<D, _>(c, |completion| completion.opcode().0) }
}

unsafe extern "C" fn read_vendor_err<D: Listed>(c: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as in `read_opcode`.
    unsafe { read::<D, _>(c, |completion| completion.vendor_err()) }
}

unsafe extern "C" fn read_byte_len<D: Listed>(c: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as in `read_opcode`.
    unsafe { read::<D, _>(c, |completion| completion.byte_len()) }
}

unsafe extern "C" fn read_imm_data<D: Listed>(c: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as in `read_opcode`.
    unsafe { read::<D, _>(c, |completion| completion.ex()) }
}

unsafe extern "C" fn read_qp_num<D: Listed>(c: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as in `read_opcode`.
    unsafe { read::<D, _>(c, |completion| completion.qp_num()) }
}

unsafe extern "C" fn read_src_qp<D: Listed>(c: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as in `read_opcode`.
    unsafe { read::<D, _>(c, |completion| completion.src_qp()) }
}

unsafe extern "C" fn read_wc_flags<D: Listed>(c: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as in `read_opcode`.
    unsafe { read::<D, _>(c, |completion| completion.flags().bits()) }
}

unsafe extern "C" fn read_slid<D: Listed>(c: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as in `read_opcode`.
    unsafe { read::<D, _>(c, |completion| completion.slid().into()) }
}

unsafe extern "C" fn read_sl<D: Listed>(c: *mut ibv_cq_ex) -> u8 {
    // SAFETY: as in `read_opcode`.
    unsafe { read::<D, _>(c, |completion| completion.sl()) }
}

unsafe extern "C" fn read_dlid_path_bits<D: Listed>(c: *mut ibv_cq_ex) -> u8 {
    // SAFETY: as in `read_opcode`.
    unsafe { read::<D, _>(c, |completion| completion.dlid_path_bits()) }
}

unsafe extern "C" fn read_completion_ts<D: Listed>(c: *mut ibv_cq_ex) -> u64 {
    // SAFETY: as in `read_opcode`.
    unsafe { read::<D, _>(c, |completion| completion.timestamp().unwrap_or(0)) }
}

unsafe extern "C" fn read_completion_wallclock_ns<D: Listed>(c: *mut ibv_cq_ex) -> u64 {
    // SAFETY: as in `read_opcode`.
    let stamp = unsafe { read::<D, _>(c, |completion| completion.timestamp()) };
    // SAFETY: as in `read_opcode`.
    let cq = unsafe { queue(c) };
    let told = stamp.zip(cq.context().wall_clock().ok());
    told.map_or(0, |(stamp, clock)| clock.nanoseconds(stamp))
}

unsafe extern "C" fn read_nothing<T: Default>(_: *mut ibv_cq_ex) -> T {
    T::default()
}

unsafe extern "C" fn read_no_tag(_: *mut ibv_cq_ex, to: *mut ibv_wc_tm_info) {
    // SAFETY: the caller passes room for the data about a tag.
    unsafe { to.write(ibv_wc_tm_info::default()) };
}
