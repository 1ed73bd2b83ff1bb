//! Single numbers that no queue pair has (`mlx5dv_reserved_qpn_alloc(3)`).

use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};

use crate::c::abi::context::ibv_context;
use crate::c::context::context;
use crate::c::failure::{Failure, Result, status};
use crate::direct::mlx5::{Direct, ReservedQpns};

/// The numbers of a context, reserved in sets of the size that the device chooses.
///
/// No number is given twice, so that the kernel does not take a new connection for an old one. A set goes
/// back to the device when all its numbers have been given and freed.
#[derive(Debug, Default)]
pub(in crate::c) struct Reserved(Mutex<Vec<Set>>);

#[derive(Debug)]
struct Set {
    reserved: ReservedQpns,
    /// The numbers in use.
    used: Vec<u32>,
    /// The next number to give.
    next: u32,
}

impl Set {
    fn is_spent(&self) -> bool {
        self.next == self.reserved.numbers().end
    }
}

impl Reserved {
    fn alloc(&self, direct: &Direct) -> Result<u32> {
        let mut sets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if sets.last().is_none_or(Set::is_spent) {
            let reserved = direct.reserve().map_err(super::of_refusal)?;
            sets.push(Set {
                next: reserved.numbers().start,
                used: Vec::new(),
                reserved,
            });
        }
        let set = sets.last_mut().ok_or(Failure::UNSUPPORTED)?;
        let number = set.next;
        set.used.push(number);
        set.next += 1;
        Ok(number)
    }

    fn dealloc(&self, number: u32) -> Result<()> {
        let mut sets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let used = |set: &Set| set.used.iter().position(|used| *used == number);
        let found = sets.iter_mut().find_map(|set| Some((used(set)?, set)));
        let (at, set) = found.ok_or(Failure::INVALID)?;
        set.used.swap_remove(at);
        sets.retain(|set| !(set.is_spent() && set.used.is_empty()));
        Ok(())
    }
}

/// `mlx5dv_reserved_qpn_alloc(3)`.
pub unsafe extern "C" fn mlx5dv_reserved_qpn_alloc(c: *mut ibv_context, qpn: *mut u32) -> c_int {
    // SAFETY: the caller passes an open context and room for a number.
    status(unsafe {
        context(c).and_then(|context| {
            let direct = Direct::of(context.context())?;
            qpn.write(context.kept().reserved.alloc(&direct)?);
            Ok(())
        })
    })
}

/// `mlx5dv_reserved_qpn_dealloc(3)`.
pub unsafe extern "C" fn mlx5dv_reserved_qpn_dealloc(c: *mut ibv_context, qpn: u32) -> c_int {
    // SAFETY: the caller passes an open context.
    status(unsafe {
        context(c).and_then(|context| {
            Direct::of(context.context())?;
            context.kept().reserved.dealloc(qpn)
        })
    })
}
