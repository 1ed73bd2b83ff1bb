//! Device memory, and regions in it.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::IntoRawFd;
use std::ptr::null_mut;
use std::slice;

use uverbs_uapi::handle::DmHandle;

use super::abi::context::ibv_context;
use super::abi::dm::{ibv_alloc_dm_attr, ibv_dm};
use super::abi::ibv_pd;
use super::abi::queue::ibv_mr;
use super::context::context;
use super::failure::{Failure, Result, number, pointer, status};
use super::mr::{Kind, MrObject};
use super::object::{CStruct, Object, destroy, object};
use super::pd::pd;
use crate::command::{AllocDm, Destroy, ExportDmabuf, QueryDevice, RegDmMr};
use crate::context::Context;
use crate::driver::DeviceMemory;
use crate::error::Errno;
use crate::work::CopyError;

/// Device memory of a C program.
#[repr(C)]
pub(super) struct DmObject {
    c: CStruct<ibv_dm>,
    handle: DmHandle,
    memory: DeviceMemory,
    context: Context,
}

// SAFETY: the C struct is the first field.
unsafe impl Object for DmObject {
    type C = ibv_dm;
}

/// `IBV_DM_MASK_HANDLE`: the struct has the handle. Providers set it for memory that they have allocated.
const HAS_HANDLE: u32 = 1 << 0;

impl DmObject {
    fn give_new(
        c: *mut ibv_context,
        context: &Context,
        (handle, memory): (DmHandle, DeviceMemory),
        comp_mask: u32,
    ) -> *mut ibv_dm {
        let dm = ibv_dm {
            context: c,
            memcpy_to_dm: Some(memcpy_to_dm),
            memcpy_from_dm: Some(memcpy_from_dm),
            comp_mask,
            handle: handle.0,
        };
        let object = Self {
            c: CStruct::new(dm),
            handle,
            memory,
            context: context.clone(),
        };
        Box::new(object).give()
    }

    /// Fails for more bytes than the memory has: no slice of so many may be made.
    fn has(&self, length: usize) -> Result<()> {
        match length as u64 <= self.memory.length() {
            true => Ok(()),
            false => Err(Failure(Errno::FAULT)),
        }
    }
}

/// The object of a C program's device memory.
///
/// # Safety
///
/// The contract of [`object`].
unsafe fn dm<'a>(c: *mut ibv_dm) -> Result<&'a DmObject> {
    // SAFETY: the caller vouches for it.
    unsafe { object::<DmObject>(c) }.ok_or(Failure::INVALID)
}

/// The driver's object of a C program's device memory.
///
/// # Safety
///
/// The contract of [`object`].
#[allow(dead_code, reason = "direct verbs ask, and may not be built in")]
pub(super) unsafe fn device_memory<'a>(c: *mut ibv_dm) -> Result<&'a DeviceMemory> {
    // SAFETY: the caller vouches for it.
    Ok(&unsafe { dm(c)? }.memory)
}

/// `ibv_alloc_dm(3)`.
pub(super) unsafe extern "C" fn alloc_dm(
    c: *mut ibv_context,
    attr: *mut ibv_alloc_dm_attr,
) -> *mut ibv_dm {
    // SAFETY: the caller passes an open context and attributes.
    pointer(unsafe {
        context(c).and_then(|object| {
            let attr = attr.as_ref().ok_or(Failure::INVALID)?;
            // The arguments are checked only if the device has memory to allocate.
            let most = object.context().fd().execute(&QueryDevice)?.max_dm_size;
            if most > 0 && (attr.comp_mask != 0 || attr.length as u64 > most) {
                return Err(Failure::INVALID);
            }
            let command = AllocDm {
                length: attr.length as u64,
                log_align: attr.log_align_req,
            };
            let context = object.context();
            let allocated = context.driver().alloc_dm(context.fd(), &command)?;
            Ok(DmObject::give_new(c, context, allocated, HAS_HANDLE))
        })
    })
}

/// `ibv_free_dm(3)`.
pub(super) unsafe extern "C" fn free_dm(c: *mut ibv_dm) -> c_int {
    // SAFETY: the caller passes device memory, for the last time if this succeeds.
    unsafe {
        destroy(c, |dm: &mut DmObject| {
            Ok(dm.context.fd().execute(&Destroy(dm.handle))?)
        })
    }
}

/// `ibv_import_dm(3)`.
pub unsafe extern "C" fn ibv_import_dm(c: *mut ibv_context, handle: u32) -> *mut ibv_dm {
    // SAFETY: the caller passes an open context.
    pointer(unsafe { context(c) }.and_then(|object| {
        let (context, handle) = (object.context(), DmHandle(handle));
        let memory = context.driver().import_dm(context.fd(), handle)?;
        Ok(DmObject::give_new(c, context, (handle, memory), 0))
    }))
}

/// `ibv_unimport_dm(3)`.
pub unsafe extern "C" fn ibv_unimport_dm(c: *mut ibv_dm) {
    // SAFETY: the caller passes device memory, for the last time. Dropping it only unmaps it.
    unsafe { destroy(c, |_: &mut DmObject| Ok(())) };
}

/// `ibv_dm_export_dmabuf_fd(3)`.
pub unsafe extern "C" fn ibv_dm_export_dmabuf_fd(c: *mut ibv_dm) -> c_int {
    // SAFETY: the caller passes device memory.
    number(unsafe { dm(c) }.and_then(|dm| {
        let dmabuf = dm.context.fd().execute(&ExportDmabuf {
            dm: dm.handle,
            offset: dm.memory.file_offset(),
        })?;
        Ok(dmabuf.into_raw_fd())
    }))
}

/// `ibv_memcpy_to_dm(3)`.
unsafe extern "C" fn memcpy_to_dm(
    c: *mut ibv_dm,
    offset: u64,
    host: *const c_void,
    length: usize,
) -> c_int {
    // SAFETY: the caller passes device memory, and `length` bytes to copy.
    status(unsafe {
        dm(c).and_then(|dm| {
            dm.has(length)?;
            let bytes = match length {
                0 => &[],
                _ => slice::from_raw_parts(host.cast(), length),
            };
            Ok(dm.memory.write(offset, bytes)?)
        })
    })
}

/// `ibv_memcpy_from_dm(3)`.
unsafe extern "C" fn memcpy_from_dm(
    host: *mut c_void,
    c: *mut ibv_dm,
    offset: u64,
    length: usize,
) -> c_int {
    // SAFETY: the caller passes device memory, and room for `length` bytes.
    status(unsafe {
        dm(c).and_then(|dm| {
            dm.has(length)?;
            let into = match length {
                0 => &mut [],
                _ => slice::from_raw_parts_mut(host.cast(), length),
            };
            Ok(dm.memory.read(offset, into)?)
        })
    })
}

/// The errors of libmlx5.
impl From<CopyError> for Failure {
    fn from(error: CopyError) -> Self {
        match error {
            CopyError::OutOfBounds(_) => Self(Errno::FAULT),
            CopyError::Unaligned { .. } => Self::INVALID,
        }
    }
}

/// `ibv_reg_dm_mr(3)`. The region has no address in this process.
pub(super) unsafe extern "C" fn reg_dm_mr(
    c: *mut ibv_pd,
    memory: *mut ibv_dm,
    offset: u64,
    length: usize,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: the caller passes a PD and device memory.
    let (pd, dm) = unsafe { (pd(c), dm(memory)) };
    pointer(pd.and_then(|pd| {
        let reply = pd.pd().context().fd().execute(&RegDmMr {
            pd: pd.pd().handle(),
            dm: dm?.handle,
            offset,
            length: length as u64,
            access,
        })?;
        Ok(MrObject::give_new(
            pd,
            c,
            (null_mut(), length),
            reply,
            Kind::Device,
        ))
    }))
}
