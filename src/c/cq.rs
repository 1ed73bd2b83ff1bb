//! Completion queues: creation, arming, resizing, destruction. [`super::poll`] takes completions.

use std::any::Any;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use uverbs_uapi::handle::CqHandle;

use super::abi::attr::ibv_modify_cq_attr;
use super::abi::context::ibv_context;
use super::abi::queue::{ibv_comp_channel, ibv_cq, ibv_cq_ex};
use super::channel::ChannelObject;
use super::context::{ContextObject, context};
use super::failure::{Failure, Result, pointer, status};
use super::lock::{Locked, wait_until};
use super::object::{CStruct, Object, destroy_awaited, object};
use super::poll_ex::Extended;
use crate::command::{CreateCq, DestroyCounting, DriverData, ModifyCq, ResizeCq};
use crate::context::Context;
use crate::driver::{self, CqParts};
use crate::pd::PdUse;

/// A completion queue of a C program: always with the extended struct, of which a plain queue uses the
/// start.
#[repr(C)]
pub(super) struct CqObject {
    c: CStruct<ibv_cq_ex>,
    pub(super) ring: Locked<driver::Cq>,
    handle: CqHandle,
    context: Context,
    backing: driver::CqBacking,
    channel: Option<*const ChannelObject>,
    domain: Option<PdUse>,
    /// The data that direct verbs keep with it.
    #[allow(dead_code, reason = "they may not be built in")]
    pub(super) direct: OnceLock<Box<dyn Any>>,
}

// SAFETY: the C struct is the first field, and starts with the plain one.
unsafe impl Object for CqObject {
    type C = ibv_cq;
}

/// The properties of a completion queue to create.
pub(super) struct Wanted {
    pub(super) entries: u32,
    pub(super) cq_context: *mut c_void,
    pub(super) channel: *mut ibv_comp_channel,
    pub(super) vector: u32,
    pub(super) flags: u32,
    pub(super) single_threaded: bool,
    pub(super) domain: Option<PdUse>,
    /// Bytes of an entry, if a driver's own function sets them.
    pub(super) entry_bytes: Option<u32>,
}

impl CqObject {
    /// The struct that plain queues have.
    pub(super) fn c(&self) -> *mut ibv_cq {
        self.c.get().cast()
    }

    pub(super) fn handle(&self) -> CqHandle {
        self.handle
    }

    /// The part that queues that report to it need, whoever polls it.
    pub(super) fn backing(&self) -> &driver::CqBacking {
        &self.backing
    }

    /// The crate's context.
    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    /// The counts of completion events and of asynchronous ones that the program has acknowledged.
    pub(super) fn acknowledged(&self) -> (&AtomicU32, &AtomicU32) {
        let c = self.c();
        // SAFETY: the fields are the object's, and are only accessed atomically.
        unsafe { (&(*c).comp_events_completed, &(*c).async_events_completed) }
    }

    /// Gives the places of completions that were dropped with their queue pair back to the device. A thread
    /// that has the queue at this moment, perhaps this one, passes them over when it polls again.
    pub(super) fn clean(&self) {
        if self.ring.acquire_at_once() {
            // SAFETY: the lock is held from before the value is used until after.
            unsafe {
                self.ring.held().clean();
                self.ring.release();
            }
        }
    }

    /// Notes that a completion event was read: some devices need the count for arming.
    pub(super) fn event_was_read(&self) {
        if let Some(events) = self.backing.events() {
            // Relaxed: the program arms after it has read the event, and orders the two.
            events.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The object of a C program's completion queue.
///
/// # Safety
///
/// As for [`object`].
pub(super) unsafe fn cq<'a>(c: *mut ibv_cq) -> Result<&'a CqObject> {
    // SAFETY: the caller vouches for it.
    unsafe { object::<CqObject>(c) }.ok_or(Failure::INVALID)
}

/// The parts of a queue besides its command, in this domain. Requests are accepted as in libibverbs (see
/// [`super::qp`]), so no entry has to be kept free.
fn parts(domain: Option<&PdUse>) -> CqParts<'_> {
    CqParts {
        entry_bytes: None,
        buffers: domain.and_then(PdUse::buffers),
        for_agent: false,
        follows_requests: false,
    }
}

/// No device has queues with more entries: entries are counted with 24 bits.
const MOST_ENTRIES: u32 = (1 << 24) - 1;

/// Creates a completion queue.
///
/// # Safety
///
/// The channel is NULL or one of the program's.
pub(super) unsafe fn create(
    context: &ContextObject,
    c: *mut ibv_context,
    wanted: Wanted,
) -> Result<*mut ibv_cq> {
    if wanted.entries > MOST_ENTRIES {
        return Err(Failure::INVALID);
    }
    // SAFETY: by this function's contract.
    let channel = unsafe { object::<ChannelObject>(wanted.channel) };
    let context = context.context();
    // Events identify the queue by its address, so its memory is allocated first.
    let place: Box<std::mem::MaybeUninit<CqObject>> = Box::new_uninit();
    let command = CreateCq {
        cqe: wanted.entries,
        user_handle: place.as_ptr().expose_provenance() as u64,
        channel: channel.map(|channel| std::os::fd::AsRawFd::as_raw_fd(&channel.fd())),
        comp_vector: wanted.vector,
        flags: wanted.flags,
        event_fd: context.event_fd()?,
        driver: DriverData::default(),
    };
    let driver = context.driver();
    let parts = CqParts {
        entry_bytes: wanted.entry_bytes,
        ..parts(wanted.domain.as_ref())
    };
    let (handle, ring) = driver.create_cq(context.fd(), command, &parts)?;
    if let Some(channel) = channel {
        channel.users().fetch_add(1, Ordering::Relaxed);
    }
    let plain = ibv_cq {
        context: c,
        channel: wanted.channel,
        cq_context: wanted.cq_context,
        handle: handle.0,
        cqe: ring.capacity() as c_int,
        mutex: Default::default(),
        cond: Default::default(),
        comp_events_completed: AtomicU32::new(0),
        async_events_completed: AtomicU32::new(0),
    };
    let object = CqObject {
        c: CStruct::new(driver.with(Extended {
            cq: plain,
            single_threaded: wanted.single_threaded,
        })),
        backing: ring.backing(),
        ring: Locked::new(ring, wanted.single_threaded),
        handle,
        context: context.clone(),
        channel: channel.map(ptr::from_ref),
        domain: wanted.domain,
        direct: OnceLock::new(),
    };
    Ok(Box::write(place, object).give())
}

/// `ibv_create_cq(3)`.
pub unsafe extern "C" fn ibv_create_cq(
    c: *mut ibv_context,
    entries: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    // SAFETY: the caller passes an open context and NULL or a channel.
    pointer(unsafe {
        context(c).and_then(|context| {
            let wanted = Wanted {
                entries: u32::try_from(entries).map_err(|_| Failure::INVALID)?,
                cq_context,
                channel,
                vector: vector as u32,
                flags: 0,
                single_threaded: false,
                domain: None,
                entry_bytes: None,
            };
            create(context, c, wanted)
        })
    })
}

/// `ibv_req_notify_cq(3)`: polling may continue meanwhile, also by this thread before `ibv_end_poll`.
pub(super) unsafe extern "C" fn req_notify_cq(c: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the caller passes a completion queue.
    status(unsafe { cq(c) }.and_then(|cq| {
        let fd = cq.context.fd();
        Ok(cq.backing.arm(fd, cq.handle, solicited_only != 0)?)
    }))
}

/// `ibv_resize_cq(3)`.
pub unsafe extern "C" fn ibv_resize_cq(c: *mut ibv_cq, entries: c_int) -> c_int {
    // SAFETY: the caller passes a completion queue.
    status(unsafe { cq(c) }.and_then(|cq| {
        let command = ResizeCq {
            cq: cq.handle,
            cqe: u32::try_from(entries).map_err(|_| Failure::INVALID)?,
            driver: DriverData::default(),
        };
        let mut ring = cq.ring.lock();
        let context = &cq.context;
        let driver = context.driver();
        let parts = parts(cq.domain.as_ref());
        driver.resize_cq(context.fd(), command, &mut ring, &parts)?;
        // SAFETY: the field is the object's, and is only written here, under the lock.
        unsafe { (*c).cqe = ring.capacity() as c_int };
        Ok(())
    }))
}

/// `IBV_CQ_ATTR_MODERATE`: the only attribute that can be modified.
const MODERATE: u32 = 1 << 0;

/// `ibv_modify_cq(3)`.
pub(super) unsafe extern "C" fn modify_cq(c: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    // SAFETY: the caller passes a completion queue and attributes.
    status(unsafe {
        cq(c).and_then(|cq| {
            let attr = attr.as_ref().ok_or(Failure::INVALID)?;
            if attr.attr_mask != MODERATE {
                return Err(Failure::INVALID);
            }
            Ok(cq.context.fd().execute(&ModifyCq {
                cq: cq.handle,
                count: attr.cq_count,
                period: attr.cq_period,
            })?)
        })
    })
}

/// `ibv_destroy_cq(3)`: waits until all events that were read have been acknowledged.
pub unsafe extern "C" fn ibv_destroy_cq(c: *mut ibv_cq) -> c_int {
    // SAFETY: the caller passes a completion queue, for the last time if this succeeds.
    unsafe {
        destroy_awaited(c, |cq: &CqObject| {
            let counts = cq.context.fd().execute(&DestroyCounting(cq.handle))?;
            let (completions, others) = cq.acknowledged();
            wait_until(completions, counts.comp_events_reported);
            wait_until(others, counts.async_events_reported);
            if let Some(channel) = cq.channel {
                // SAFETY: a channel stays while queues report to it.
                let users = (*channel).users();
                // Release: pairs with the acquire in `ibv_destroy_comp_channel`.
                users.fetch_sub(1, Ordering::Release);
            }
            Ok(())
        })
    }
}
