//! Memory keys that refer to parts of other keys (`mlx5dv_create_mkey(3)`), the requests that set these parts
//! (`mlx5dv_wr_mkey_configure(3)`, `mlx5dv_wr_mr_list(3)`, `mlx5dv_wr_mr_interleaved(3)`), and requests that
//! the program has written itself (`mlx5dv_wr_raw_wqe(3)`).
//!
//! As with libmlx5, the program is responsible for which key a request changes and what the key then refers
//! to.

use std::ffi::{c_int, c_void};
use std::slice;

use uverbs_uapi::flags::{Access, SendFlags};

use super::dc::{device, mlx5dv_qp_ex, of};
use crate::c::abi::ibv_pd;
use crate::c::abi::work::ibv_sge;
use crate::c::failure::{Failure, Result, pointer, status};
use crate::c::pd::pd;
use crate::c::wr::{Own, begin_own, go_on_own};
use crate::direct::mlx5::gather::EmptyKey;
use crate::direct::mlx5::{DevxObject, Direct};
use crate::driver::mlx5::Device;
use crate::driver::mlx5::send::whole::{CONTROL, raw_bytes};
use crate::driver::mlx5::umr::{Layout, Part};
use crate::driver::{Position, contract};
use crate::error::Errno;
use crate::work::PostError;

type SendQueue = <Device as contract::Driver>::SendQueue;

/// `struct mlx5dv_mkey_init_attr`.
#[repr(C)]
pub struct mlx5dv_mkey_init_attr {
    pd: *mut ibv_pd,
    create_flags: u32,
    /// The requested number of parts; then the number that it can have.
    max_entries: u16,
}

/// `enum mlx5dv_mkey_init_attr_flags`. Signatures and encryption are not supported here.
mod flag {
    pub(super) const INDIRECT: u32 = 1 << 0;
    pub(super) const UPDATE_TAG: u32 = 1 << 3;
    pub(super) const REMOTE_INVALIDATE: u32 = 1 << 4;
    pub(super) const KNOWN: u32 = INDIRECT | UPDATE_TAG | REMOTE_INVALIDATE;
}

/// `struct mlx5dv_mkey`, and this library's fields after it.
#[derive(Debug)]
#[repr(C)]
pub struct mlx5dv_mkey {
    lkey: u32,
    rkey: u32,
    /// The units of its translation.
    entries: u16,
    object: DevxObject,
}

/// `mlx5dv_create_mkey(3)`.
pub unsafe extern "C" fn mlx5dv_create_mkey(attr: *mut mlx5dv_mkey_init_attr) -> *mut mlx5dv_mkey {
    // SAFETY: the caller passes attributes with a PD.
    pointer(unsafe {
        attr.as_mut().ok_or(Failure::INVALID).and_then(|attr| {
            let pd = pd(attr.pd)?.pd();
            device(pd.context())?;
            if attr.create_flags == 0 || attr.create_flags & !flag::KNOWN != 0 {
                return Err(Failure::UNSUPPORTED);
            }
            let is_invalidated = attr.create_flags & flag::REMOTE_INVALIDATE != 0;
            // It refers to nothing yet; the program is responsible for what it refers to later.
            let EmptyKey { object, key, units } = Direct::of(pd.context())?
                .empty_key(pd, attr.max_entries, is_invalidated)
                .map_err(super::of_refusal)?;
            attr.max_entries = units;
            Ok(Box::into_raw(Box::new(mlx5dv_mkey {
                lkey: key,
                rkey: key,
                entries: units,
                object,
            })))
        })
    })
}

/// `mlx5dv_destroy_mkey(3)`.
pub unsafe extern "C" fn mlx5dv_destroy_mkey(key: *mut mlx5dv_mkey) -> c_int {
    // SAFETY: it was made by the function above, and has no other user.
    status(unsafe {
        key.as_mut().ok_or(Failure::INVALID).and_then(|found| {
            found.object.destroy_in_place()?;
            drop(Box::from_raw(key));
            Ok(())
        })
    })
}

/// `struct mlx5dv_mkey_conf_attr`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct mlx5dv_mkey_conf_attr {
    conf_flags: u32,
    comp_mask: u64,
}

/// `struct mlx5dv_mr_interleaved`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct mlx5dv_mr_interleaved {
    addr: u64,
    bytes_count: u32,
    bytes_skip: u32,
    lkey: u32,
}

/// A change of a key, with the calls of the program so far.
#[derive(Debug)]
struct Change {
    wr_id: u64,
    flags: SendFlags,
    key: u32,
    /// The most units that its layout may have.
    most: usize,
    access: Option<Access>,
    layout: Option<Layout>,
    /// How many of the two are still to come.
    left: u8,
}

impl Change {
    /// # Safety
    ///
    /// The pointer is to a key, and the attributes exist or are NULL.
    unsafe fn new(
        (wr_id, flags): (u64, SendFlags),
        key: *mut mlx5dv_mkey,
        setters: u8,
    ) -> Result<Self> {
        if !flags.contains(SendFlags::INLINE) {
            return Err(Failure::UNSUPPORTED);
        }
        // SAFETY: by this function's contract.
        let key = unsafe { key.as_ref() }.ok_or(Failure::INVALID)?;
        Ok(Self {
            wr_id,
            flags,
            // The program may have changed the low byte of the key.
            key: key.lkey,
            most: key.entries.into(),
            access: None,
            layout: None,
            left: setters,
        })
    }

    fn set_access(&mut self, access: u32) -> Result<()> {
        let access = Access::from_bits_retain(access);
        let known = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC;
        if !known.contains(access) || self.access.is_some() {
            return Err(Failure::INVALID);
        }
        self.access = Some(access);
        self.left = self.left.saturating_sub(1);
        Ok(())
    }

    fn set_layout(&mut self, layout: Layout) -> Result<()> {
        if layout.units() > self.most {
            return Err(Failure(Errno::NOMEM));
        }
        if self.layout.is_some() {
            return Err(Failure::INVALID);
        }
        self.layout = Some(layout);
        self.left = self.left.saturating_sub(1);
        Ok(())
    }

    /// Writes the request, if all its parts have come.
    fn written(self, queue: &mut SendQueue, at: Position) -> Result<Own<Self>> {
        if self.left > 0 {
            return Ok(Own::Announced(self));
        }
        let request = (self.wr_id, self.flags);
        let end = queue.write_gathering(at, request, self.key, self.access, self.layout.as_ref());
        let end = end.map_err(full)?;
        Ok(Own::Written(end))
    }
}

/// The error of libmlx5 for a request that has no room.
fn full(error: PostError) -> Failure {
    match error {
        PostError::InlineTooLong { .. } | PostError::QueueFull { .. } => Failure(Errno::NOMEM),
        error => error.into(),
    }
}

/// The parts of a list.
///
/// # Safety
///
/// The list has `count` elements.
unsafe fn list(count: u16, sges: *const ibv_sge) -> Layout {
    // SAFETY: by this function's contract.
    let sges = unsafe { many(count, sges) };
    let part = |sge: &ibv_sge| Part {
        address: sge.addr,
        length: sge.length,
        lkey: sge.lkey,
    };
    Layout::List(sges.iter().map(part).collect())
}

/// Rows of parts. Their byte counts and strides have 16 bits, as in libmlx5.
///
/// # Safety
///
/// There are that many parts.
unsafe fn rows(count: u32, parts: u16, data: *const mlx5dv_mr_interleaved) -> Layout {
    // SAFETY: by this function's contract.
    let data = unsafe { many(parts, data) };
    let part = |of: &mlx5dv_mr_interleaved| {
        let part = Part {
            address: of.addr,
            length: of.bytes_count,
            lkey: of.lkey,
        };
        (part, of.bytes_count.wrapping_add(of.bytes_skip) as u16)
    };
    Layout::Rows(count, data.iter().map(part).collect())
}

/// # Safety
///
/// There are that many, or none and the pointer is NULL.
unsafe fn many<'a, T>(count: u16, from: *const T) -> &'a [T] {
    match count == 0 || from.is_null() {
        true => &[],
        // SAFETY: by this function's contract.
        false => unsafe { slice::from_raw_parts(from, count.into()) },
    }
}

/// `mlx5dv_wr_mkey_configure(3)`.
pub(super) unsafe extern "C" fn wr_mkey_configure(
    c: *mut mlx5dv_qp_ex,
    key: *mut mlx5dv_mkey,
    setters: u8,
    attr: *mut mlx5dv_mkey_conf_attr,
) {
    // SAFETY: the caller has started, and passes a key and attributes, here as below.
    unsafe {
        begin_own::<Device, Change>(of(c), |queue, at, request| {
            let attr = attr.as_ref().ok_or(Failure::INVALID)?;
            if attr.conf_flags & !1 != 0 || attr.comp_mask != 0 {
                return Err(Failure::UNSUPPORTED);
            }
            Change::new(request, key, setters)?.written(queue, at)
        })
    }
}

/// `mlx5dv_wr_set_mkey_access_flags(3)`.
pub(super) unsafe extern "C" fn wr_set_mkey_access_flags(c: *mut mlx5dv_qp_ex, access: u32) {
    // SAFETY: as above.
    unsafe {
        go_on_own::<Device, Change>(of(c), |queue, at, mut change| {
            change.set_access(access)?;
            change.written(queue, at)
        })
    }
}

/// `mlx5dv_wr_set_mkey_layout_list(3)`.
pub(super) unsafe extern "C" fn wr_set_mkey_layout_list(
    c: *mut mlx5dv_qp_ex,
    count: u16,
    sges: *const ibv_sge,
) {
    // SAFETY: as above, and there are that many parts.
    unsafe {
        go_on_own::<Device, Change>(of(c), |queue, at, mut change| {
            change.set_layout(list(count, sges))?;
            change.written(queue, at)
        })
    }
}

/// `mlx5dv_wr_set_mkey_layout_interleaved(3)`.
pub(super) unsafe extern "C" fn wr_set_mkey_layout_interleaved(
    c: *mut mlx5dv_qp_ex,
    repeat: u32,
    count: u16,
    data: *const mlx5dv_mr_interleaved,
) {
    // SAFETY: as above, and there are that many parts.
    unsafe {
        go_on_own::<Device, Change>(of(c), |queue, at, mut change| {
            change.set_layout(rows(repeat, count, data))?;
            change.written(queue, at)
        })
    }
}

/// `mlx5dv_wr_mr_list(3)`.
pub(super) unsafe extern "C" fn wr_mr_list(
    c: *mut mlx5dv_qp_ex,
    key: *mut mlx5dv_mkey,
    access: u32,
    count: u16,
    sges: *mut ibv_sge,
) {
    // SAFETY: as above, and there are that many parts.
    unsafe {
        begin_own::<Device, Change>(of(c), |queue, at, request| {
            let mut change = Change::new(request, key, 2)?;
            change.set_access(access)?;
            change.set_layout(list(count, sges))?;
            change.written(queue, at)
        })
    }
}

/// `mlx5dv_wr_mr_interleaved(3)`.
pub(super) unsafe extern "C" fn wr_mr_interleaved(
    c: *mut mlx5dv_qp_ex,
    key: *mut mlx5dv_mkey,
    access: u32,
    repeat: u32,
    count: u16,
    data: *mut mlx5dv_mr_interleaved,
) {
    // SAFETY: as above, and there are that many parts.
    unsafe {
        begin_own::<Device, Change>(of(c), |queue, at, request| {
            let mut change = Change::new(request, key, 2)?;
            change.set_access(access)?;
            change.set_layout(rows(repeat, count, data))?;
            change.written(queue, at)
        })
    }
}

/// `mlx5dv_wr_raw_wqe(3)`: the program provides all of it but its position in the ring.
pub(super) unsafe extern "C" fn wr_raw_wqe(c: *mut mlx5dv_qp_ex, request: *const c_void) {
    // SAFETY: the caller has started, and passes a request with as many units as it says.
    unsafe {
        begin_own::<Device, ()>(of(c), |queue, at, (wr_id, _)| {
            if request.is_null() {
                return Err(Failure::INVALID);
            }
            let bytes = raw_bytes(&request.cast::<[u8; CONTROL]>().read_unaligned());
            let all = slice::from_raw_parts(request.cast::<u8>(), bytes);
            let end = queue.write_raw(at, wr_id, all).map_err(full)?;
            Ok(Own::Written(end))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn fields_lie_where_the_header_has_them() {
        assert_eq!(offset_of!(mlx5dv_mkey_init_attr, create_flags), 8);
        assert_eq!(offset_of!(mlx5dv_mkey_init_attr, max_entries), 12);
        assert_eq!(offset_of!(mlx5dv_mkey, rkey), 4);
        assert_eq!(offset_of!(mlx5dv_mkey_conf_attr, comp_mask), 8);
        assert_eq!(offset_of!(mlx5dv_mr_interleaved, bytes_skip), 12);
        assert_eq!(offset_of!(mlx5dv_mr_interleaved, lkey), 16);
        assert_eq!(size_of::<mlx5dv_mr_interleaved>(), 24);
    }

    fn change(setters: u8, most: usize) -> Change {
        Change {
            wr_id: 1,
            flags: SendFlags::INLINE,
            key: 0x500,
            most,
            access: None,
            layout: None,
            left: setters,
        }
    }

    #[test]
    fn each_setter_comes_once_and_fits() {
        let part = Part {
            address: 0,
            length: 1,
            lkey: 0x100,
        };
        let mut changed = change(2, 2);
        assert_eq!(changed.set_access(1 << 20), Err(Failure::INVALID));
        assert_eq!(changed.set_access(1), Ok(()));
        assert_eq!(changed.set_access(1), Err(Failure::INVALID));
        let list = |parts| Layout::List(vec![part; parts]);
        let nothing = Err(Failure(Errno::NOMEM));
        assert_eq!(changed.set_layout(list(3)), nothing);
        let rows = Layout::Rows(3, vec![(part, 4); 2]);
        assert_eq!(changed.set_layout(rows), nothing, "with the head");
        assert_eq!((changed.set_layout(list(2)), changed.left), (Ok(()), 0));
        assert_eq!(changed.set_layout(list(2)), Err(Failure::INVALID));
    }
}
