//! Shared receive queues. [`super::recv`] posts to them.

use std::ffi::{c_int, c_void};
use std::sync::atomic::AtomicU32;

use uverbs_uapi::enums::SrqType;
use uverbs_uapi::flags::SrqAttrMask;
use uverbs_uapi::handle::SrqHandle;
use uverbs_uapi::write as abi;

use super::abi::attr::{ibv_srq_attr, ibv_srq_init_attr, ibv_srq_init_attr_ex};
use super::abi::context::ibv_context;
use super::abi::ibv_pd;
use super::abi::queue::ibv_srq;
use super::failure::{Failure, Result, pointer, status};
use super::lock::{Locked, wait_until};
use super::object::{CStruct, Object, destroy, object};
use super::pd::{PdObject, pd};
use crate::command::{CreateSrq, DestroyCounting, DriverData, ModifySrq, QuerySrq, SrqKind};
use crate::domain::DomainState;
use crate::driver::{SharedRecvQueue, SrqBacking};
use crate::pd::{PdUse, User};

/// A shared receive queue as C programs have it.
#[repr(C)]
pub(super) struct SrqObject {
    c: CStruct<ibv_srq>,
    pub(super) queue: Locked<SharedRecvQueue>,
    handle: SrqHandle,
    /// After the queue, and before what it stands on.
    _backing: SrqBacking,
    pd: PdUse,
}

// SAFETY: the C struct is the first field.
unsafe impl Object for SrqObject {
    type C = ibv_srq;
}

impl SrqObject {
    pub(super) fn handle(&self) -> SrqHandle {
        self.handle
    }

    fn events_acknowledged(&self) -> &AtomicU32 {
        // SAFETY: the field is the object's, and only counted atomically.
        unsafe { &(*self.c.get()).events_completed }
    }
}

/// The shared receive queue of a C program's.
///
/// # Safety
///
/// As of [`object`].
pub(super) unsafe fn srq<'a>(c: *mut ibv_srq) -> Result<&'a SrqObject> {
    // SAFETY: the caller vouches for it.
    unsafe { object::<SrqObject>(c) }.ok_or(Failure::INVALID)
}

/// Creates a queue; what it can hold is told in the attributes.
fn create(
    pd: &PdObject,
    c: *mut ibv_pd,
    srq_context: *mut c_void,
    attr: &mut ibv_srq_attr,
) -> Result<*mut ibv_srq> {
    let context = pd.pd().context();
    // Events name the queue by its address, so that is there first.
    let place: Box<std::mem::MaybeUninit<SrqObject>> = Box::new_uninit();
    let command = CreateSrq {
        kind: SrqKind::Basic,
        pd: pd.pd().handle(),
        max_wr: attr.max_wr,
        max_sge: attr.max_sge,
        limit: attr.srq_limit,
        user_handle: place.as_ptr().expose_provenance() as u64,
        event_fd: context.event_fd()?,
        driver: DriverData::default(),
    };
    let driver = context.driver();
    let (handle, queue, backing, _) =
        driver.create_srq(context.fd(), command, None, pd.pd().buffers())?;
    attr.max_wr = queue.capacity();
    attr.max_sge = queue.max_sge();
    let srq = ibv_srq {
        context: pd.c_context(),
        srq_context,
        pd: c,
        handle: handle.0,
        mutex: Default::default(),
        cond: Default::default(),
        events_completed: AtomicU32::new(0),
    };
    let domain = pd.pd().domain().and_then(DomainState::thread_domain);
    let object = SrqObject {
        c: CStruct::new(srq),
        // One thread at a time uses what is in a thread domain.
        queue: Locked::new(queue, domain.is_some()),
        handle,
        _backing: backing,
        pd: pd.pd().user(User::Srq),
    };
    Ok(Box::write(place, object).give())
}

/// `ibv_create_srq(3)`.
pub unsafe extern "C" fn ibv_create_srq(
    c: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    // SAFETY: the caller passes a PD and attributes.
    pointer(unsafe {
        pd(c).and_then(|pd| {
            let init = init.as_mut().ok_or(Failure::INVALID)?;
            create(pd, c, init.srq_context, &mut init.attr)
        })
    })
}

/// `ibv_create_srq_ex(3)`: the header's inline function calls it for all but basic queues, which there are not.
pub(super) unsafe extern "C" fn create_srq_ex(
    _: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    /// `IBV_SRQ_INIT_ATTR_TYPE`.
    const TYPE: u32 = 1 << 0;
    // SAFETY: the caller passes attributes.
    let is_unknown = unsafe {
        init.as_ref().is_none_or(|init| {
            init.comp_mask & TYPE != 0 && SrqType(init.srq_type).name().is_none()
        })
    };
    pointer(Err(match is_unknown {
        true => Failure::INVALID,
        false => Failure::UNSUPPORTED,
    }))
}

/// `ibv_modify_srq(3)`.
pub unsafe extern "C" fn ibv_modify_srq(
    c: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: the caller passes a shared receive queue and attributes.
    status(unsafe {
        srq(c).and_then(|srq| {
            let attr = attr.as_ref().ok_or(Failure::INVALID)?;
            let context = srq.pd.context();
            let command = ModifySrq {
                core: abi::ModifySrq {
                    srq_handle: srq.handle.0,
                    attr_mask: mask as u32,
                    max_wr: attr.max_wr,
                    srq_limit: attr.srq_limit,
                },
                driver: DriverData::default(),
            };
            let resizes = mask as u32 & SrqAttrMask::MAX_WR.bits() != 0;
            let (driver, fd) = (context.driver(), context.fd());
            match resizes {
                true => driver.resize_srq(fd, command, &mut srq.queue.lock(), srq.pd.buffers())?,
                false => driver.modify_srq(fd, command)?,
            }
            Ok(())
        })
    })
}

/// `ibv_query_srq(3)`.
pub unsafe extern "C" fn ibv_query_srq(c: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    // SAFETY: the caller passes a shared receive queue and room for attributes.
    status(unsafe {
        srq(c).and_then(|srq| {
            let found = srq.pd.context().fd().execute(&QuerySrq(srq.handle))?;
            attr.write(ibv_srq_attr {
                max_wr: found.max_wr,
                max_sge: found.max_sge,
                srq_limit: found.srq_limit,
            });
            Ok(())
        })
    })
}

/// `ibv_destroy_srq(3)`: waits until all events that were read have been acknowledged.
pub unsafe extern "C" fn ibv_destroy_srq(c: *mut ibv_srq) -> c_int {
    // SAFETY: the caller passes a shared receive queue, for the last time if this succeeds.
    unsafe {
        destroy(c, |srq: &mut SrqObject| {
            let fd = srq.pd.context().fd();
            let counts = fd.execute(&DestroyCounting(srq.handle))?;
            wait_until(srq.events_acknowledged(), counts.events_reported);
            Ok(())
        })
    }
}
