//! Options of connections beyond the standard (ECE).

use std::ffi::c_int;

use super::abi::attr::ibv_ece;
use super::abi::queue::ibv_qp;
use super::failure::{Failure, status};
use super::qp::qp;

/// `ibv_query_ece(3)`.
pub unsafe extern "C" fn ibv_query_ece(c: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the caller passes a queue pair and room for options.
    status(unsafe {
        qp(c).and_then(|qp| {
            let backing = qp.backing.as_ref().ok_or(Failure::UNSUPPORTED)?;
            let found = backing.query_ece().ok_or(Failure::UNSUPPORTED)?;
            ece.write(ibv_ece {
                vendor_id: found.vendor_id,
                options: found.options,
                comp_mask: 0,
            });
            Ok(())
        })
    })
}

/// `ibv_set_ece(3)`: the device gets them with the next change of the state.
pub unsafe extern "C" fn ibv_set_ece(c: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the caller passes a queue pair and options.
    status(unsafe {
        qp(c).and_then(|qp| {
            let ece = ece.as_ref().ok_or(Failure::INVALID)?;
            let backing = qp.backing.as_ref().ok_or(Failure::UNSUPPORTED)?;
            let own = backing.query_ece();
            match own {
                Some(own) if ece.vendor_id != 0 => {
                    if ece.comp_mask != 0 || ece.vendor_id != own.vendor_id {
                        return Err(Failure::INVALID);
                    }
                    backing.set_ece(ece.options);
                    Ok(())
                }
                _ => Err(Failure::UNSUPPORTED),
            }
        })
    })
}
