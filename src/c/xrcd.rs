//! XRC domains. There are no shared receive queues and queue pairs in them yet.

use std::ffi::c_int;

use uverbs_uapi::handle::XrcdHandle;

use super::abi::context::ibv_context;
use super::abi::domain::{ibv_xrcd, ibv_xrcd_init_attr};
use super::context::context;
use super::failure::{Failure, Result, pointer};
use super::object::{CStruct, Object, destroy};
use crate::command::{Destroy, OpenXrcd};
use crate::context::Context;

/// An XRC domain as C programs have it.
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
