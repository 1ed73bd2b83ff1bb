//! XRC domains, and their targets: queue pairs without queues.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::AtomicU32;

use uverbs_uapi::enums::{QpState, QpType};
use uverbs_uapi::handle::{QpHandle, XrcdHandle};

use super::abi::attr::ibv_qp_open_attr;
use super::abi::context::ibv_context;
use super::abi::domain::{ibv_xrcd, ibv_xrcd_init_attr};
use super::abi::ibv_pd;
use super::abi::queue::ibv_qp;
use super::context::context;
use super::failure::{Failure, Result, pointer};
use super::object::{CStruct, Object, destroy, object};
use super::qp::{TargetPlace, target};
use crate::command::{CreateXrcTarget, Destroy, DriverData, OpenQp, OpenXrcd};
use crate::context::Context;

/// An XRC domain of a C program.
#[repr(C)]
pub(super) struct XrcdObject {
    c: CStruct<ibv_xrcd>,
    handle: XrcdHandle,
    context: Context,
}

// SAFETY: the C struct is the first field.
unsafe impl Object for XrcdObject {
    type C = ibv_xrcd;
}

impl XrcdObject {
    pub(super) fn handle(&self) -> XrcdHandle {
        self.handle
    }

    /// Creates a target.
    pub(super) fn create_target(
        &self,
        c: *mut ibv_context,
        qp_context: *mut c_void,
        pd: *mut ibv_pd,
    ) -> Result<*mut ibv_qp> {
        let context = &self.context;
        let place: TargetPlace = Box::new_uninit();
        let command = CreateXrcTarget {
            xrcd: self.handle,
            user_handle: place.as_ptr().expose_provenance() as u64,
            event_fd: context.event_fd()?,
            driver: DriverData::default(),
        };
        let (handle, qpn) = context.driver().create_xrc_target(context.fd(), &command)?;
        let plain = ibv_qp {
            pd,
            ..plain(c, qp_context, handle, qpn, QpState::RESET.0)
        };
        Ok(target(place, context, plain, handle))
    }

    /// Opens a target that another process has created.
    fn open_target(
        &self,
        c: *mut ibv_context,
        qpn: u32,
        qp_context: *mut c_void,
    ) -> Result<*mut ibv_qp> {
        let context = &self.context;
        let place: TargetPlace = Box::new_uninit();
        let command = OpenQp {
            xrcd: self.handle,
            qpn,
            user_handle: place.as_ptr().expose_provenance() as u64,
        };
        let handle = context.fd().execute(&command)?;
        let plain = plain(c, qp_context, handle, qpn, UNKNOWN);
        Ok(target(place, context, plain, handle))
    }
}

/// `IBV_QPS_UNKNOWN`: the state of a target before it is queried.
const UNKNOWN: u32 = 7;

/// The struct of a target for a C program.
fn plain(
    context: *mut ibv_context,
    qp_context: *mut c_void,
    handle: QpHandle,
    qp_num: u32,
    state: u32,
) -> ibv_qp {
    ibv_qp {
        context,
        qp_context,
        pd: null_mut(),
        send_cq: null_mut(),
        recv_cq: null_mut(),
        srq: null_mut(),
        handle: handle.0,
        qp_num,
        state,
        qp_type: QpType::XRC_RECV.0,
        mutex: Default::default(),
        cond: Default::default(),
        events_completed: AtomicU32::new(0),
    }
}

/// The object of a C program's XRC domain.
///
/// # Safety
///
/// The contract of [`object`].
pub(super) unsafe fn xrcd<'a>(c: *mut ibv_xrcd) -> Result<&'a XrcdObject> {
    // SAFETY: the caller vouches for it.
    unsafe { object::<XrcdObject>(c) }.ok_or(Failure::INVALID)
}

/// `enum ibv_qp_open_attr_mask`.
mod open_mask {
    pub(super) const NUMBER: u32 = 1 << 0;
    pub(super) const XRCD: u32 = 1 << 1;
    pub(super) const CONTEXT: u32 = 1 << 2;
    pub(super) const TYPE: u32 = 1 << 3;
}

/// `ibv_open_qp(3)`.
pub(super) unsafe extern "C" fn open_qp(
    c: *mut ibv_context,
    attr: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    use open_mask::{CONTEXT, NUMBER, TYPE, XRCD};
    // SAFETY: the caller passes attributes with a domain of the context.
    pointer(unsafe {
        attr.as_ref().ok_or(Failure::INVALID).and_then(|attr| {
            let needed = NUMBER | XRCD | TYPE;
            if attr.comp_mask & !(needed | CONTEXT) != 0 {
                return Err(Failure::UNSUPPORTED);
            }
            if attr.comp_mask & needed != needed || attr.qp_type != QpType::XRC_RECV.0 {
                return Err(Failure::INVALID);
            }
            xrcd(attr.xrcd)?.open_target(c, attr.qp_num, attr.qp_context)
        })
    })
}

/// `enum ibv_xrcd_init_attr_mask`.
mod mask {
    pub(super) const FD: u32 = 1 << 0;
    pub(super) const OFLAGS: u32 = 1 << 1;
}

/// `ibv_open_xrcd(3)`.
pub(super) unsafe extern "C" fn open_xrcd(
    c: *mut ibv_context,
    attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    // SAFETY: the caller passes an open context and attributes.
    pointer(unsafe {
        context(c).and_then(|context| {
            let attr = attr.as_ref().ok_or(Failure::INVALID)?;
            let context = context.context();
            let handle = context.fd().execute(&command(attr)?)?;
            let object = XrcdObject {
                c: CStruct::new(ibv_xrcd { context: c }),
                handle,
                context: context.clone(),
            };
            Ok(Box::new(object).give())
        })
    })
}

fn command(attr: &ibv_xrcd_init_attr) -> Result<OpenXrcd> {
    let both = mask::FD | mask::OFLAGS;
    if attr.comp_mask & !both != 0 {
        return Err(Failure::UNSUPPORTED);
    }
    if attr.comp_mask != both {
        return Err(Failure::INVALID);
    }
    Ok(OpenXrcd {
        file: (attr.fd != -1).then_some(attr.fd),
        oflags: attr.oflags as u32,
    })
}

/// `ibv_close_xrcd(3)`.
pub(super) unsafe extern "C" fn close_xrcd(c: *mut ibv_xrcd) -> c_int {
    // SAFETY: the caller passes a domain, for the last time if this succeeds.
    unsafe {
        destroy(c, |xrcd: &mut XrcdObject| {
            Ok(xrcd.context.fd().execute(&Destroy(xrcd.handle))?)
        })
    }
}
