//! Thread domains, and parent domains with a C program's allocator.
//!
//! Queues in a thread domain have no lock: one thread at a time uses them, as `ibv_alloc_td(3)` requires. On
//! a device with doorbell registers they share one register, also without a lock: a queue pair uses it only
//! while it rings, and not already from `ibv_wr_start` on.

use std::ffi::{c_int, c_void};
use std::ptr::{NonNull, without_provenance_mut};

use super::abi::context::ibv_context;
use super::abi::domain::{Alloc, Free, ibv_parent_domain_init_attr, ibv_td, ibv_td_init_attr};
use super::abi::ibv_pd;
use super::context::context;
use super::failure::{Failure, Result, pointer};
use super::object::{CStruct, Object, destroy, object};
use super::pd::{PdObject, pd};
use crate::alloc::{AllocError, Allocation, Allocator, BufferRequest};
use crate::domain::ThreadDomain;

/// A thread domain of a C program.
#[repr(C)]
pub(super) struct TdObject {
    c: CStruct<ibv_td>,
    td: ThreadDomain,
}

// SAFETY: the C struct is the first field.
unsafe impl Object for TdObject {
    type C = ibv_td;
}

/// `ibv_alloc_td(3)`.
pub(super) unsafe extern "C" fn alloc_td(
    c: *mut ibv_context,
    attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    // SAFETY: the caller passes an open context and attributes.
    pointer(unsafe {
        context(c).and_then(|context| match attr.as_ref() {
            Some(ibv_td_init_attr { comp_mask: 0 }) => {
                let td = context.context().alloc_td();
                let c = CStruct::new(ibv_td { context: c });
                Ok(Box::new(TdObject { c, td }).give())
            }
            _ => Err(Failure::INVALID),
        })
    })
}

/// `ibv_dealloc_td(3)`.
pub(super) unsafe extern "C" fn dealloc_td(c: *mut ibv_td) -> c_int {
    // SAFETY: the caller passes a thread domain, for the last time if this succeeds.
    unsafe { destroy(c, |td: &mut TdObject| Ok(td.td.check_unused()?)) }
}

/// `enum ibv_parent_domain_init_attr_mask`.
mod mask {
    pub(super) const ALLOCATORS: u32 = 1 << 0;
    pub(super) const PD_CONTEXT: u32 = 1 << 1;
    /// Has no effect if devices reach all memory, and this library has no other devices.
    pub(super) const ALLOW_CC_UNPROTECTED_ALLOC: u32 = 1 << 2;
    pub(super) const KNOWN: u32 = ALLOCATORS | PD_CONTEXT | ALLOW_CC_UNPROTECTED_ALLOC;
}

/// `ibv_alloc_parent_domain(3)`.
pub(super) unsafe extern "C" fn alloc_parent_domain(
    c: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    // SAFETY: the caller passes an open context, and attributes with objects of it.
    pointer(unsafe { context(c).and_then(|_| build(c, attr.as_ref().ok_or(Failure::INVALID)?)) })
}

/// # Safety
///
/// The attributes name objects of the context.
unsafe fn build(c: *mut ibv_context, attr: &ibv_parent_domain_init_attr) -> Result<*mut ibv_pd> {
    // SAFETY: by this function's contract.
    let (base, td) = unsafe { (pd(attr.pd)?, object::<TdObject>(attr.td)) };
    if attr.comp_mask & !mask::KNOWN != 0 {
        return Err(Failure::INVALID);
    }
    let mut domain = base.pd().parent_domain();
    if let Some(td) = td {
        domain = domain.thread_domain(&td.td);
    }
    // The program's functions get the domain's address, so its memory is allocated first.
    let mut place: Box<std::mem::MaybeUninit<PdObject>> = Box::new_uninit();
    // As in libmlx5, one function without the other has no effect.
    if attr.comp_mask & mask::ALLOCATORS != 0
        && let (Some(alloc), Some(free)) = (attr.alloc, attr.free)
    {
        domain = domain.allocator(Callbacks {
            domain: place.as_mut_ptr().cast(),
            context: match attr.comp_mask & mask::PD_CONTEXT {
                0 => std::ptr::null_mut(),
                _ => attr.pd_context,
            },
            alloc,
            free,
        });
    }
    let domain = domain.create()?;
    Ok(PdObject::give_at(place, c, domain.into()))
}

/// The allocator of a program. On soft-RoCE the kernel's pages take the place of the returned memory. So
/// there it must return whole pages, which hold private pages of zeros when it gets them back.
struct Callbacks {
    domain: *mut ibv_pd,
    context: *mut c_void,
    alloc: Alloc,
    free: Free,
}

// SAFETY: programs create objects from any thread, and their functions must expect it.
unsafe impl Send for Callbacks {}
// SAFETY: as above.
unsafe impl Sync for Callbacks {}

/// The value with which `alloc` requests the driver's own memory (`IBV_ALLOCATOR_USE_DEFAULT`).
const USE_DEFAULT: *mut c_void = without_provenance_mut(usize::MAX);

// SAFETY: `ibv_alloc_parent_domain(3)` requires the same of the program's functions: zeroed memory that is
// not copied on write, until it is freed.
unsafe impl Allocator for Callbacks {
    fn allocate(&self, request: &BufferRequest) -> std::result::Result<Allocation, AllocError> {
        let (size, alignment) = request.span();
        let resource = request.resource.into();
        // SAFETY: the program has passed the function for this. The domain stays while objects use it.
        let memory = unsafe { (self.alloc)(self.domain, self.context, size, alignment, resource) };
        match NonNull::new(memory.cast::<u8>()) {
            None => Err(AllocError::new("the program's allocator returned NULL")),
            Some(_) if memory == USE_DEFAULT => Ok(Allocation::Default),
            Some(memory) => Ok(Allocation::Memory(NonNull::slice_from_raw_parts(
                memory, size,
            ))),
        }
    }

    unsafe fn free(&self, memory: NonNull<[u8]>, request: &BufferRequest) {
        let (address, resource) = (memory.as_ptr().cast(), request.resource.into());
        // SAFETY: `allocate` got it from the program, and it is freed once.
        unsafe { (self.free)(self.domain, self.context, address, resource) }
    }
}
