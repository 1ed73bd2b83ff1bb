//! Queue pairs for the functions of `ibv_wr_*(3)`, and with flags.

use std::ptr::null_mut;

use uverbs_uapi::enums::QpType;
use uverbs_uapi::flags::QpCreateFlags;

use super::abi::attr::ibv_qp_init_attr_ex;
use super::abi::context::ibv_context;
use super::abi::queue::ibv_qp;
use super::context::context;
use super::failure::{Failure, Result, pointer};
use super::qp::{Own, create_with};
use super::xrcd::xrcd;
use crate::driver::Refusals;
use crate::work::Operations;

/// `enum ibv_qp_init_attr_mask`.
mod mask {
    pub(super) const PD: u32 = 1 << 0;
    pub(super) const XRCD: u32 = 1 << 1;
    pub(super) const CREATE_FLAGS: u32 = 1 << 2;
    pub(super) const SEND_OPS_FLAGS: u32 = 1 << 6;
}

/// The bits of `enum ibv_qp_create_flags` for queue pairs that this library has: the others are for raw
/// packets, and for datagrams that are sent in the name of another queue pair. The kernel has one more, which
/// makes a queue pair signal each send.
const FLAGS: QpCreateFlags =
    QpCreateFlags::BLOCK_MULTICAST_LOOPBACK.union(QpCreateFlags::PCI_WRITE_END_PADDING);

/// For each bit of `enum ibv_qp_create_send_ops_flags`, by its number, the operations that the queue pair
/// needs. TSO is not among them.
const OPERATIONS: [Option<Operations>; 13] = [
    Some(Operations::WRITE),
    Some(Operations::WRITE_IMM),
    Some(Operations::SEND),
    Some(Operations::SEND_IMM),
    Some(Operations::READ),
    Some(Operations::ATOMIC),
    Some(Operations::ATOMIC),
    Some(Operations::LOCAL_INV),
    Some(Operations::BIND_MW),
    Some(Operations::SEND_INV),
    None,
    Some(Operations::FLUSH_GLOBAL),
    Some(Operations::ATOMIC_WRITE),
];

/// The operations that the requested functions need.
fn operations(asked: u64) -> Result<Operations> {
    if asked >> OPERATIONS.len() != 0 {
        return Err(Failure::UNSUPPORTED);
    }
    let mut wanted = OPERATIONS
        .iter()
        .enumerate()
        .filter(|(bit, _)| asked >> bit & 1 != 0);
    wanted.try_fold(Operations::empty(), |all, (_, needs)| {
        Ok(all.union(needs.ok_or(Failure::UNSUPPORTED)?))
    })
}

/// `ibv_create_qp_ex(3)`.
pub(super) unsafe extern "C" fn create_qp_ex(
    c: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: the caller passes an open context, and attributes with objects of it.
    pointer(unsafe {
        context(c).and_then(|context| {
            let refusals = context.context().driver().refusals();
            match init.as_ref() {
                Some(init) if init.qp_type == QpType::XRC_RECV.0 => {
                    create_target(c, init, &refusals)
                }
                _ => create(init, &refusals, Own::default()),
            }
        })
    })
}

/// Creates a target of XRC.
///
/// # Safety
///
/// The attributes have objects of this context.
unsafe fn create_target(
    c: *mut ibv_context,
    init: &ibv_qp_init_attr_ex,
    refusals: &Refusals,
) -> Result<*mut ibv_qp> {
    let asked = init.comp_mask;
    if asked & !(mask::PD | mask::XRCD | mask::CREATE_FLAGS) != 0 {
        return Err(Failure::UNSUPPORTED);
    }
    if asked & mask::XRCD == 0 {
        return Err(Failure::INVALID);
    }
    if asked & mask::CREATE_FLAGS != 0 && init.create_flags != 0 {
        return Err(Failure(refusals.unknown));
    }
    // SAFETY: by this function's contract.
    let xrcd = unsafe { xrcd(init.xrcd)? };
    // libibverbs stores the program's PD here, although the kernel's target has none.
    let pd = match asked & mask::PD {
        0 => null_mut(),
        _ => init.pd,
    };
    xrcd.create_target(c, init.qp_context, pd)
}

/// # Safety
///
/// The pointer is to attributes with objects of one context, or NULL.
pub(super) unsafe fn create(
    init: *mut ibv_qp_init_attr_ex,
    refusals: &Refusals,
    own: Own,
) -> Result<*mut ibv_qp> {
    if init.is_null() {
        return Err(Failure::INVALID);
    }
    // SAFETY: by this function's contract. Fields after the mask are read only if the mask names them.
    unsafe {
        let asked = (*init).comp_mask;
        if asked & mask::PD == 0 {
            return Err(Failure::INVALID);
        }
        let known = mask::PD | mask::XRCD | mask::CREATE_FLAGS | mask::SEND_OPS_FLAGS;
        if asked & !known != 0 {
            return Err(Failure::UNSUPPORTED);
        }
        let flags = match asked & mask::CREATE_FLAGS {
            0 => QpCreateFlags::empty(),
            _ => QpCreateFlags::from_bits_retain((*init).create_flags),
        };
        if !FLAGS.contains(flags) {
            return Err(Failure(refusals.unknown));
        }
        let functions = match asked & mask::SEND_OPS_FLAGS {
            0 => None,
            _ => Some(operations((*init).send_ops_flags)?),
        };
        create_with((*init).pd, &mut *init.cast(), flags, functions, own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_has_is_refused() {
        assert_eq!(operations(0), Ok(Operations::empty()));
        let read_and_send = operations(1 << 2 | 1 << 4).unwrap();
        assert_eq!(read_and_send, Operations::SEND | Operations::READ);
        for unknown in [1 << 10, 1 << 13, u64::MAX] {
            assert_eq!(operations(unknown), Err(Failure::UNSUPPORTED));
        }
    }
}
