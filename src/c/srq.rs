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
use super::cq::{CqObject, cq};
use super::failure::{Failure, Result, pointer, status};
use super::lock::{Locked, wait_until};
use super::object::{CStruct, Object, destroy_awaited, object};
use super::pd::{PdObject, pd};
use super::xrcd::{XrcdObject, xrcd};
use crate::command::{CreateSrq, DestroyCounting, DriverData, ModifySrq, QuerySrq, SrqKind};
use crate::domain::DomainState;
use crate::driver::{SharedRecvQueue, SrqBacking};
use crate::pd::{PdUse, User};

/// A shared receive queue of a C program.
#[repr(C)]
pub(super) struct SrqObject {
    c: CStruct<ibv_srq>,
    pub(super) queue: Locked<SharedRecvQueue>,
    handle: SrqHandle,
    /// Its number on the wire, for an XRC queue.
    srqn: Option<u32>,
    /// After the queue, and before the objects that it uses, in the order of drops.
    backing: SrqBacking,
    pd: PdUse,
}

// SAFETY: the C struct is the first field.
unsafe impl Object for SrqObject {
    type C = ibv_srq;
}

impl SrqObject {
    /// Refuses a queue that is lost: the kernel may crash when it is asked about it. The caller has the
    /// queue's lock until the kernel has answered, since a resize in another thread may lose the queue.
    fn check_kept(&self) -> Result<()> {
        match self.backing.is_lost() {
            false => Ok(()),
            true => Err(Failure::INVALID),
        }
    }

    pub(super) fn handle(&self) -> SrqHandle {
        self.handle
    }

    #[allow(dead_code, reason = "direct verbs need it, and may not be built in")]
    pub(super) fn context(&self) -> &crate::context::Context {
        self.pd.context()
    }

    /// The part that queue pairs that receive from it need.
    pub(super) fn backing(&self) -> &SrqBacking {
        &self.backing
    }

    fn events_acknowledged(&self) -> &AtomicU32 {
        // SAFETY: the field is the object's, and is only accessed atomically.
        unsafe { &(*self.c.get()).events_completed }
    }
}

/// The object of a C program's shared receive queue.
///
/// # Safety
///
/// The contract of [`object`].
pub(super) unsafe fn srq<'a>(c: *mut ibv_srq) -> Result<&'a SrqObject> {
    // SAFETY: the caller vouches for it.
    unsafe { object::<SrqObject>(c) }.ok_or(Failure::INVALID)
}

/// Creates a queue; its actual capacity is written to the attributes.
fn create(
    pd: &PdObject,
    c: *mut ibv_pd,
    srq_context: *mut c_void,
    attr: &mut ibv_srq_attr,
    of_xrc: Option<(&XrcdObject, &CqObject)>,
) -> Result<*mut ibv_srq> {
    let context = pd.pd().context();
    // Events identify the queue by its address, so its memory is allocated first.
    let place: Box<std::mem::MaybeUninit<SrqObject>> = Box::new_uninit();
    let command = CreateSrq {
        kind: match of_xrc {
            None => SrqKind::Basic,
            Some((xrcd, cq)) => SrqKind::Xrc {
                xrcd: xrcd.handle(),
                cq: cq.handle(),
            },
        },
        pd: pd.pd().handle(),
        max_wr: attr.max_wr,
        max_sge: attr.max_sge,
        limit: attr.srq_limit,
        user_handle: place.as_ptr().expose_provenance() as u64,
        event_fd: context.event_fd()?,
        driver: DriverData::default(),
    };
    let driver = context.driver();
    let cq = of_xrc.map(|(_, cq)| cq.backing());
    let (handle, queue, backing, srqn) =
        driver.create_srq(context.fd(), command, cq, pd.pd().buffers())?;
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
        // Only one thread at a time uses the objects in a thread domain.
        queue: Locked::new(queue, domain.is_some()),
        handle,
        srqn,
        backing,
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
            create(pd, c, init.srq_context, &mut init.attr, None)
        })
    })
}

/// `enum ibv_srq_init_attr_mask`.
mod mask {
    pub(super) const TYPE: u32 = 1 << 0;
    pub(super) const PD: u32 = 1 << 1;
    pub(super) const XRCD: u32 = 1 << 2;
    pub(super) const CQ: u32 = 1 << 3;
}

/// `ibv_create_srq_ex(3)`: the header's inline function calls it for all but basic queues.
pub(super) unsafe extern "C" fn create_srq_ex(
    _: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    // SAFETY: the caller passes attributes with objects of the same context.
    pointer(unsafe { create_extended(init) })
}

/// # Safety
///
/// The pointer is to attributes with objects of one context, or NULL.
unsafe fn create_extended(init: *mut ibv_srq_init_attr_ex) -> Result<*mut ibv_srq> {
    const OF_XRC: u32 = mask::TYPE | mask::PD | mask::XRCD | mask::CQ;
    if init.is_null() {
        return Err(Failure::INVALID);
    }
    // SAFETY: by this function's contract. Fields after the mask are read only if the mask names them.
    unsafe {
        let asked = (*init).comp_mask;
        if asked & mask::TYPE == 0 {
            return Err(Failure::UNSUPPORTED);
        }
        match SrqType((*init).srq_type) {
            SrqType::XRC if asked & !OF_XRC != 0 => Err(Failure::UNSUPPORTED),
            SrqType::XRC if asked != OF_XRC => Err(Failure::INVALID),
            SrqType::XRC => {
                let init = &mut *init;
                let of_xrc = (xrcd(init.xrcd)?, cq(init.cq)?);
                let domain = pd(init.pd)?;
                create(
                    domain,
                    init.pd,
                    init.srq_context,
                    &mut init.attr,
                    Some(of_xrc),
                )
            }
            other if other.name().is_none() => Err(Failure::INVALID),
            _ => Err(Failure::UNSUPPORTED),
        }
    }
}

/// `ibv_get_srq_num(3)`: soft-RoCE's queues have none.
pub(super) unsafe extern "C" fn get_srq_num(c: *mut ibv_srq, number: *mut u32) -> c_int {
    // SAFETY: the caller passes a shared receive queue, and room for a number.
    status(unsafe {
        srq(c).and_then(|srq| {
            let found = srq.srqn.or_else(|| srq.backing.number());
            number.write(found.ok_or(Failure::UNSUPPORTED)?);
            Ok(())
        })
    })
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
            let mut queue = srq.queue.lock();
            srq.check_kept()?;
            match resizes {
                true => {
                    let resized = driver.resize_srq(fd, command, &mut queue, srq.pd.buffers());
                    // If a device cannot resize, its kernel driver calls the attribute invalid.
                    resized.map_err(|error| match Failure::from(error) {
                        Failure::UNSUPPORTED => Failure::INVALID,
                        other => other,
                    })?;
                }
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
            let _queue = srq.queue.lock();
            srq.check_kept()?;
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
        destroy_awaited(c, |srq: &SrqObject| {
            let fd = srq.pd.context().fd();
            let counts = fd.execute(&DestroyCounting(srq.handle))?;
            srq.backing.forget_received();
            wait_until(srq.events_acknowledged(), counts.events_reported);
            Ok(())
        })
    }
}
