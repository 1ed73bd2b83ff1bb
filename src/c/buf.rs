//! Buffers that the library allocates for regions, and regions registered by attributes.

use std::alloc::{Layout, alloc, dealloc};
use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull, null_mut};

use super::abi::buf::{ibv_buf, ibv_mr_init_attr};
use super::abi::ibv_pd;
use super::abi::queue::ibv_mr;
use super::failure::{Failure, Result, minus_one, pointer};
use super::mr::{ibv_reg_dmabuf_mr, ibv_reg_mr_iova2};
use super::object::{CStruct, Object, destroy, object};
use super::pd::{PdObject, pd};
use crate::alloc::{Grant, Purpose};
use crate::error::Errno;
use crate::pd::{PdUse, User};

/// A buffer of whole pages. It is ordinary memory, or what the program's own allocator has given for it: no
/// driver here has another kind of buffer.
#[repr(C)]
pub(super) struct BufObject {
    c: CStruct<ibv_buf>,
    memory: NonNull<u8>,
    source: Source,
    /// The program uses so many bytes of it.
    size: usize,
    /// The program's pointer to the domain for which it was allocated.
    pd: *mut ibv_pd,
}

// SAFETY: the C struct is the first field.
unsafe impl Object for BufObject {
    type C = ibv_buf;
}

/// Where a buffer's memory comes from.
enum Source {
    /// An allocation of this library.
    Own(NonNull<u8>, Layout),
    /// The allocator of a parent domain, which stays as long as the buffer.
    Granted(#[expect(dead_code, reason = "dropped with the buffer")] (Grant, PdUse)),
}

/// Of buffers for regions, as libmlx5 has it.
const RESOURCE: u64 = 0;

impl Source {
    /// Memory in whole pages, and its first byte.
    fn new(pd: &PdObject, size: usize) -> Result<(Self, NonNull<u8>)> {
        let no_memory = Failure(Errno::NOMEM);
        let page = rustix::param::page_size();
        let whole = size.checked_next_multiple_of(page).ok_or(no_memory)?;
        if let Some(buffers) = pd.pd().buffers() {
            let buffers = buffers.without_dmabufs("buffers of a C program in dma-bufs");
            let granted = buffers.allocate(whole, page, RESOURCE.into(), Purpose::Memory);
            // The program's allocator says no more than that it has none.
            if let Some(grant) = granted.map_err(|_| no_memory)? {
                let memory = grant.address();
                return Ok((Self::Granted((grant, pd.pd().user(User::Pool))), memory));
            }
        }
        let layout = Layout::from_size_align(whole, page).map_err(|_| no_memory)?;
        // SAFETY: the layout has at least one byte.
        let memory = NonNull::new(unsafe { alloc(layout) }).ok_or(no_memory)?;
        Ok((Self::Own(memory, layout), memory))
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        if let Self::Own(memory, layout) = self {
            // SAFETY: it was allocated with this layout, and belongs to this value.
            unsafe { dealloc(memory.as_ptr(), *layout) };
        }
    }
}

impl BufObject {
    /// Whether the `length` bytes from `address` on lie in the buffer.
    fn has(&self, address: *mut c_void, length: usize) -> bool {
        let offset = address.addr().checked_sub(self.memory.addr().get());
        let end = offset.and_then(|offset| offset.checked_add(length));
        end.is_some_and(|end| end <= self.size)
    }
}

/// `ibv_alloc_buf(3)`.
pub unsafe extern "C" fn ibv_alloc_buf(
    c: *mut ibv_pd,
    size: usize,
    buf: *mut *mut ibv_buf,
) -> *mut c_void {
    // SAFETY: the caller passes a PD, and room for a pointer.
    pointer(unsafe { pd(c) }.and_then(|pd| {
        if buf.is_null() || size == 0 {
            return Err(Failure::INVALID);
        }
        let (source, memory) = Source::new(pd, size)?;
        let object = Box::new(BufObject {
            c: CStruct::new(ibv_buf::new()),
            memory,
            source,
            size,
            pd: c,
        });
        // SAFETY: as above.
        unsafe { buf.write(object.give()) };
        Ok(memory.as_ptr().cast())
    }))
}

/// `ibv_free_buf(3)`.
pub unsafe extern "C" fn ibv_free_buf(c: *mut ibv_buf) {
    // SAFETY: the caller passes a buffer, for the last time.
    unsafe { destroy(c, |_: &mut BufObject| Ok(())) };
}

/// `ibv_export_buf_dmabuf_fd(3)`: no buffer of this library is backed by a dma-buf.
pub unsafe extern "C" fn ibv_export_buf_dmabuf_fd(_: *mut ibv_buf) -> c_int {
    minus_one(Err(Failure(Errno::NODATA)))
}

/// `ibv_reg_buf_mr(3)`.
pub unsafe extern "C" fn ibv_reg_buf_mr(
    c: *mut ibv_pd,
    buf: *mut ibv_buf,
    address: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    let mut attr = ibv_mr_init_attr {
        length,
        access,
        comp_mask: mask::ADDR | mask::BUF,
        iova: 0,
        addr: address,
        fd: -1,
        fd_offset: 0,
        dmah: null_mut(),
        buf,
    };
    // SAFETY: the caller passes a PD and a buffer.
    unsafe { ibv_reg_mr_ex(c, &raw mut attr) }
}

/// `enum ibv_mr_init_attr_mask`.
mod mask {
    pub(super) const IOVA: u64 = 1 << 0;
    pub(super) const ADDR: u64 = 1 << 1;
    pub(super) const FD: u64 = 1 << 2;
    pub(super) const FD_OFFSET: u64 = 1 << 3;
    pub(super) const BUF: u64 = 1 << 5;
}

/// `ibv_reg_mr_ex(3)`; not with a DMA handle (`IBV_REG_MR_MASK_DMAH`).
pub unsafe extern "C" fn ibv_reg_mr_ex(c: *mut ibv_pd, attr: *mut ibv_mr_init_attr) -> *mut ibv_mr {
    if c.is_null() || attr.is_null() {
        return pointer(Err(Failure::INVALID));
    }
    // SAFETY: the caller passes attributes; those that the mask names, and these, are initialised.
    let (asked, length, access) = unsafe { ((*attr).comp_mask, (*attr).length, (*attr).access) };
    let has = |bits: u64| asked & bits == bits;
    if has(mask::BUF) {
        // SAFETY: as above, and the mask names a buffer.
        if let Err(failure) = unsafe { check_buffer(c, attr, length) } {
            return pointer(Err(failure));
        }
    }
    let known = mask::IOVA | mask::ADDR | mask::FD | mask::FD_OFFSET | mask::BUF;
    if asked & !known != 0 {
        return pointer(Err(Failure::UNSUPPORTED));
    }
    // SAFETY: the caller passes a PD, and the attributes that the mask names are initialised.
    unsafe {
        match asked & !mask::BUF & !mask::IOVA {
            mask::ADDR => {
                let address = (*attr).addr;
                let iova = match has(mask::IOVA) {
                    true => (*attr).iova,
                    false => address.addr() as u64,
                };
                ibv_reg_mr_iova2(c, address, length, iova, access as u32)
            }
            bits if bits == mask::FD | mask::FD_OFFSET && has(mask::IOVA) => {
                let (offset, iova) = ((*attr).fd_offset, (*attr).iova);
                ibv_reg_dmabuf_mr(c, offset, length, iova, (*attr).fd, access)
            }
            _ => pointer(Err(Failure::INVALID)),
        }
    }
}

/// Fails if the region would not lie in its buffer, or would be in another domain than the buffer.
///
/// # Safety
///
/// The attributes have a buffer, and those that the mask names.
unsafe fn check_buffer(c: *mut ibv_pd, attr: *mut ibv_mr_init_attr, length: usize) -> Result<()> {
    // SAFETY: by this function's contract.
    let (asked, buffer) = unsafe { ((*attr).comp_mask, object::<BufObject>((*attr).buf)) };
    let buffer = buffer.ok_or(Failure::INVALID)?;
    let by_address = asked & (mask::ADDR | mask::FD | mask::FD_OFFSET) == mask::ADDR;
    // SAFETY: as above; the address is read only if the mask names it.
    let is_inside = by_address && buffer.has(unsafe { (*attr).addr }, length);
    match is_inside && ptr::eq(buffer.pd, c) {
        true => Ok(()),
        false => Err(Failure::INVALID),
    }
}
