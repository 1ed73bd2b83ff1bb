//! Memory windows: allocating them, and binding windows of type 1. [`super::send`] and [`super::wr`] bind
//! both types.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

use uverbs_uapi::enums::{MwType, WrOpcode};
use uverbs_uapi::flags::Access;
use uverbs_uapi::handle::MwHandle;

use super::abi::ibv_pd;
use super::abi::queue::{ibv_mr, ibv_mw, ibv_qp};
use super::abi::work::{ibv_mw_bind, ibv_mw_bind_info, ibv_send_wr};
use super::failure::{Failure, Result, pointer};
use super::mr::{Kind, MrObject};
use super::object::{CStruct, Object, destroy, object};
use super::pd::pd;
use crate::command::{AllocMw, Destroy};
use crate::pd::{PdUse, User};
use crate::work::{Bind, LocalKey, Operation, RemoteKey};

/// A memory window of a C program.
#[repr(C)]
pub(super) struct MwObject {
    c: CStruct<ibv_mw>,
    handle: MwHandle,
    pd: PdUse,
}

// SAFETY: the C struct is the first field.
unsafe impl Object for MwObject {
    type C = ibv_mw;
}

/// `ibv_alloc_mw(3)`.
pub(super) unsafe extern "C" fn alloc_mw(c: *mut ibv_pd, kind: c_int) -> *mut ibv_mw {
    // SAFETY: the caller passes a PD.
    pointer(unsafe { pd(c) }.and_then(|pd| {
        // The kernel's field for it has one byte.
        let number = u8::try_from(kind).map_err(|_| Failure::INVALID)?;
        let command = AllocMw {
            pd: pd.pd().handle(),
            kind: MwType(number.into()),
        };
        let (handle, rkey) = pd.pd().context().fd().execute(&command)?;
        let mw = ibv_mw {
            context: pd.c_context(),
            pd: c,
            rkey,
            handle: handle.0,
            mw_type: kind,
        };
        let object = MwObject {
            c: CStruct::new(mw),
            handle,
            pd: pd.pd().user_of_root(User::Mw),
        };
        Ok(Box::new(object).give())
    }))
}

/// `ibv_dealloc_mw(3)`.
pub(super) unsafe extern "C" fn dealloc_mw(c: *mut ibv_mw) -> c_int {
    // SAFETY: the caller passes a window, for the last time if this succeeds.
    unsafe {
        destroy(c, |mw: &mut MwObject| {
            Ok(mw.pd.context().fd().execute(&Destroy(mw.handle))?)
        })
    }
}

/// `ibv_bind_mw(3)`: for windows of type 1, which the header's inline function has checked. The window's key
/// changes to the next one.
pub(super) unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    bind: *mut ibv_mw_bind,
) -> c_int {
    // SAFETY: the caller passes a queue pair, a window and what to bind it to. Zeros are valid in all fields
    // of a request.
    unsafe {
        let (Some(_), Some(mw), Some(bind)) = (qp.as_ref(), mw.as_mut(), bind.as_ref()) else {
            return Failure::INVALID.tell();
        };
        // The queue pair may belong to another context than the window, so the function of its own context is
        // called.
        let Some(post_send) = (*(*qp).context).ops.post_send else {
            return Failure::INVALID.tell();
        };
        let access = Access::from_bits_retain(bind.bind_info.mw_access_flags);
        if access.contains(Access::ZERO_BASED) {
            return Failure::INVALID.tell();
        }
        if let Err(failure) = check_region(bind.bind_info.mr) {
            return failure.tell();
        }
        let mut request = MaybeUninit::<ibv_send_wr>::zeroed().assume_init();
        request.opcode = WrOpcode::BIND_MW.0;
        (request.wr_id, request.send_flags) = (bind.wr_id, bind.send_flags);
        request.bind_mw.mw = mw;
        request.bind_mw.rkey = RemoteKey(mw.rkey).next().0;
        request.bind_mw.bind_info = bind.bind_info;
        let posted = post_send(qp, &raw mut request, &mut null_mut());
        if posted == 0 {
            mw.rkey = request.bind_mw.rkey;
        }
        posted
    }
}

/// Refuses a region that is not addressed by addresses of this process: a request that binds a window to it
/// would fail, and the queue pair with it.
///
/// # Safety
///
/// The pointer is to a region or NULL.
unsafe fn check_region(c: *mut ibv_mr) -> Result<()> {
    // SAFETY: by this function's contract.
    match unsafe { object::<MrObject>(c) } {
        None => Ok(()),
        Some(mr) => match mr.kind() {
            Kind::Memory => Ok(()),
            Kind::ZeroBased | Kind::Device => Err(Failure::INVALID),
            Kind::Elsewhere => Err(Failure::UNSUPPORTED),
        },
    }
}

/// The request that binds a window. Device and kernel check the memory that it is bound to.
///
/// # Safety
///
/// The pointers are to a window, and to a region or NULL.
pub(super) unsafe fn binding(
    mw: *const ibv_mw,
    rkey: u32,
    info: &ibv_mw_bind_info,
) -> Result<Operation> {
    // SAFETY: by this function's contract.
    let (mw, mr): (_, Option<&ibv_mr>) = unsafe { (mw.as_ref(), info.mr.as_ref()) };
    let mw = mw.ok_or(Failure::INVALID)?;
    let mr_lkey = match mr {
        Some(mr) => LocalKey(mr.lkey),
        None if info.length == 0 => LocalKey(0),
        None => return Err(Failure::INVALID),
    };
    Ok(Operation::BindMw(Bind {
        mw_rkey: RemoteKey(mw.rkey),
        rkey: RemoteKey(rkey),
        mr_lkey,
        address: info.addr,
        length: info.length,
        access: Access::from_bits_retain(info.mw_access_flags),
        of_queue_pair: mw.mw_type == MwType::TYPE_2.0 as c_int,
    }))
}
