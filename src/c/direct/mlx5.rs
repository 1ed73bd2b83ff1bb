//! Direct verbs of ConnectX adapters that the crate's own can carry out. They fail with `EOPNOTSUPP` on other
//! devices.

#[cfg(feature = "mlx5-direct")]
pub mod dc;
#[cfg(feature = "mlx5-direct")]
pub mod devx;
#[cfg(feature = "mlx5-direct")]
pub mod keys;
#[cfg(feature = "mlx5-direct")]
pub mod objects;
#[cfg(feature = "mlx5-direct")]
pub mod reserved;

use std::ffi::{c_int, c_void};

use uverbs_uapi::enums::{QpState, QpType};

use crate::c::abi::context::ibv_context;
use crate::c::abi::queue::ibv_qp;
use crate::c::context::{ContextObject, context};
use crate::c::failure::{Failure, Result, status};
use crate::c::qp::{QpObject, qp};
#[cfg(feature = "mlx5-direct")]
use crate::direct::mlx5::CommandError;
#[cfg(feature = "mlx5-direct")]
use crate::direct::mlx5::layout::{CmdHcaCap, Structure as _};
use crate::driver::QpName;
#[cfg(feature = "mlx5-direct")]
use crate::error::Error;

/// `struct mlx5dv_context`, up to the last field that is written here.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct mlx5dv_context {
    version: u8,
    flags: u64,
    /// `enum mlx5dv_context_comp_mask`: the requested fields, then the reported ones.
    comp_mask: u64,
    _of_offloads: [u32; 12],
    max_clock_info_update_nsec: u64,
    _of_flows_and_dc: [u32; 2],
    hca_core_clock: *mut c_void,
    num_lag_ports: u8,
    _of_signatures: [u64; 2],
    dci_streams_caps: [u8; 2],
    _of_copies_and_encryption: [u64; 3],
    max_dc_rd_atom: u64,
    max_dc_init_rd_atom: u64,
}

/// `struct mlx5dv_clock_info`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct mlx5dv_clock_info {
    nsec: u64,
    last_cycles: u64,
    frac: u64,
    mult: u32,
    shift: u32,
    mask: u64,
}

/// `mlx5dv_query_device(3)`: what this library can do with the device. For everything else, the bits in
/// `comp_mask` are cleared, and the fields keep their values.
pub unsafe extern "C" fn mlx5dv_query_device(
    c: *mut ibv_context,
    attr: *mut mlx5dv_context,
) -> c_int {
    // SAFETY: the caller passes an open context and attributes.
    status(unsafe {
        context(c).and_then(|context| {
            if attr.is_null() {
                return Err(Failure::INVALID);
            }
            tell(context, &mut *attr)
        })
    })
}

#[cfg(feature = "mlx5")]
fn tell(context: &ContextObject, attr: &mut mlx5dv_context) -> Result<()> {
    #[cfg(feature = "mlx5-direct")]
    use crate::direct::mlx5::Direct;
    use crate::driver::OneOf;

    // `enum mlx5dv_context_flags`: completions carry the numbers that this side gave the queues.
    const CQE_V1: u64 = 1 << 0;
    // There are registers to which requests are copied.
    const BLUE_FLAME: u64 = 1 << 8;

    // `enum mlx5dv_context_comp_mask`.
    const CLOCK_INFO_UPDATE: u64 = 1 << 5;
    const HCA_CORE_CLOCK: u64 = 1 << 8;
    const NUM_LAG_PORTS: u64 = 1 << 9;
    const DCI_STREAMS: u64 = 1 << 11;
    #[cfg(feature = "mlx5-direct")]
    const MAX_DC_RD_ATOM: u64 = 1 << 14;

    let context = context.context();
    let device = match context.driver() {
        OneOf::Mlx5(device) => device,
        #[allow(unreachable_patterns, reason = "there may be no other driver")]
        _ => return Err(Failure::UNSUPPORTED),
    };
    let asked = attr.comp_mask;
    let mut told = 0;
    if asked & CLOCK_INFO_UPDATE != 0
        && let Ok(period) = device.clock_info_period(context.fd())
    {
        attr.max_clock_info_update_nsec = period;
        told |= CLOCK_INFO_UPDATE;
    }
    if asked & HCA_CORE_CLOCK != 0
        && let Ok(Some(clock)) = device.clock_address(context.fd())
    {
        attr.hca_core_clock = clock.as_ptr().cast();
        told |= HCA_CORE_CLOCK;
    }
    if asked & NUM_LAG_PORTS != 0
        && let Some(ports) = device.lag_ports(context.fd())
    {
        attr.num_lag_ports = ports.get();
        told |= NUM_LAG_PORTS;
    }
    if asked & DCI_STREAMS != 0 && cfg!(feature = "mlx5-direct") {
        // Where they cannot be asked for there are none: programs ask for more than they look at.
        let limits = device.stream_limits(context.fd()).unwrap_or_default();
        attr.dci_streams_caps = [limits.max_log_num_concurent, limits.max_log_num_errored];
        told |= DCI_STREAMS;
    }
    #[cfg(feature = "mlx5-direct")]
    if asked & MAX_DC_RD_ATOM != 0
        && let Ok(capabilities) = Direct::of(context).and_then(|direct| direct.capabilities())
    {
        (attr.max_dc_rd_atom, attr.max_dc_init_rd_atom) = dc_rd_atom(&capabilities);
        told |= MAX_DC_RD_ATOM;
    }
    attr.version = 0;
    attr.flags = CQE_V1
        | if device.copies_requests() {
            BLUE_FLAME
        } else {
            0
        };
    attr.comp_mask = told;
    Ok(())
}

/// How many READs and atomic operations a target answers at a time, and how many an initiator has on the way.
/// The device's names are from its other side: what a target answers are requests, what an initiator waits
/// for are responses.
#[cfg(feature = "mlx5-direct")]
fn dc_rd_atom(capabilities: &CmdHcaCap) -> (u64, u64) {
    let [target, initiator] = [CmdHcaCap::LOG_MAX_RA_REQ_DC, CmdHcaCap::LOG_MAX_RA_RES_DC];
    (
        1 << capabilities.get(target),
        1 << capabilities.get(initiator),
    )
}

#[cfg(not(feature = "mlx5"))]
fn tell(_: &ContextObject, _: &mut mlx5dv_context) -> Result<()> {
    Err(Failure::UNSUPPORTED)
}

/// `mlx5dv_get_clock_info(3)`.
pub unsafe extern "C" fn mlx5dv_get_clock_info(
    c: *mut ibv_context,
    info: *mut mlx5dv_clock_info,
) -> c_int {
    // SAFETY: the caller passes an open context and room for the answer.
    status(unsafe {
        context(c).and_then(|context| {
            let clock = context.context().wall_clock()?;
            info.write(mlx5dv_clock_info {
                nsec: clock.nsec,
                last_cycles: clock.cycles,
                frac: clock.frac,
                mult: clock.mult,
                shift: clock.shift,
                mask: clock.mask,
            });
            Ok(())
        })
    })
}

/// `mlx5dv_query_qp_lag_port(3)`.
pub unsafe extern "C" fn mlx5dv_query_qp_lag_port(
    c: *mut ibv_qp,
    port: *mut u8,
    active: *mut u8,
) -> c_int {
    // SAFETY: the caller passes a queue pair and room for two ports.
    status(unsafe {
        qp(c).and_then(|qp| {
            let context = &qp.context;
            let found = context.driver().lag_port(context.fd(), name(qp))?;
            // libmlx5 refuses those that have none.
            port.write(found.configured.ok_or(Failure::UNSUPPORTED)?);
            active.write(found.active.unwrap_or(0));
            Ok(())
        })
    })
}

/// `mlx5dv_modify_qp_lag_port(3)`.
pub unsafe extern "C" fn mlx5dv_modify_qp_lag_port(c: *mut ibv_qp, port: u8) -> c_int {
    // SAFETY: the caller passes a queue pair.
    status(unsafe { qp(c) }.and_then(|qp| {
        must_send(qp)?;
        let context = &qp.context;
        Ok(context
            .driver()
            .set_lag_port(context.fd(), name(qp), port)?)
    }))
}

/// `mlx5dv_modify_qp_udp_sport(3)`.
pub unsafe extern "C" fn mlx5dv_modify_qp_udp_sport(c: *mut ibv_qp, port: u16) -> c_int {
    // SAFETY: the caller passes a queue pair.
    status(unsafe { qp(c) }.and_then(|qp| {
        must_send(qp)?;
        if ![QpType::RC, QpType::UC].contains(&qp.transport) {
            return Err(Failure::UNSUPPORTED);
        }
        let context = &qp.context;
        Ok(context
            .driver()
            .set_udp_source_port(context.fd(), name(qp), port)?)
    }))
}

/// The failure of a verb for which this library gives the device a command: by the device's status, as
/// libmlx5 tells it. Where the command is the program's own, it is told of the refusal, and reads the status
/// itself.
#[cfg(feature = "mlx5-direct")]
fn of_refusal(error: CommandError) -> Failure {
    let status = error.refusal().map(|refusal| refusal.status);
    let failure = Failure::from(Error::from(error));
    status.map_or(failure, |status| Failure(status.errno()))
}

pub(super) fn name(qp: &QpObject) -> QpName {
    QpName {
        handle: qp.handle,
        // SAFETY: the C struct lies in the object.
        qpn: unsafe { (*qp.c()).qp_num },
    }
}

/// libmlx5 refuses other states so.
pub(super) fn must_send(qp: &QpObject) -> Result<()> {
    // SAFETY: the C struct lies in the object.
    match unsafe { (*qp.c()).state } == QpState::RTS.0 {
        true => Ok(()),
        false => Err(Failure::UNSUPPORTED),
    }
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    #[cfg(feature = "mlx5-direct")]
    use zerocopy::FromZeros as _;

    use super::*;

    /// Would catch the two limits changing places: what libmlx5 takes for each is said by its `verbs.c`.
    #[cfg(feature = "mlx5-direct")]
    #[test]
    fn a_target_answers_requests_and_an_initiator_waits_for_responses() {
        let mut capabilities = CmdHcaCap::new_zeroed();
        capabilities
            .set(CmdHcaCap::LOG_MAX_RA_REQ_DC, 4)
            .set(CmdHcaCap::LOG_MAX_RA_RES_DC, 6);
        assert_eq!(dc_rd_atom(&capabilities), (16, 64));
    }

    /// Would catch a device without room that is told as one that cannot be reached.
    #[cfg(feature = "mlx5-direct")]
    #[test]
    fn a_refusal_is_told_by_its_status() {
        use crate::direct::mlx5::{Refusal, Status};
        use crate::error::{Errno, Subject, Verb};

        let refused = |status| CommandError::Device {
            refusal: Refusal {
                opcode: 0x200,
                status,
                syndrome: 1,
            },
            verb: Verb::DevxObjCreate,
            subject: Subject::the("key"),
        };
        let failure = |status| of_refusal(refused(status));
        assert_eq!(failure(Status::NO_RES_ERR), Failure(Errno::AGAIN));
        assert_eq!(failure(Status::LIM_ERR), Failure(Errno::NOMEM));
        assert_eq!(failure(Status::BAD_PARAM_ERR), Failure::INVALID);
        let kernels = Error::os(Verb::DevxObjCreate, Subject::the("device"), Errno::PERM);
        assert_eq!(of_refusal(kernels.into()), Failure(Errno::PERM));
    }

    #[test]
    fn fields_lie_where_the_header_has_them() {
        assert_eq!(offset_of!(mlx5dv_context, flags), 8);
        assert_eq!(offset_of!(mlx5dv_context, comp_mask), 16);
        assert_eq!(offset_of!(mlx5dv_context, max_clock_info_update_nsec), 72);
        assert_eq!(offset_of!(mlx5dv_context, hca_core_clock), 88);
        assert_eq!(offset_of!(mlx5dv_context, num_lag_ports), 96);
        assert_eq!(offset_of!(mlx5dv_context, dci_streams_caps), 120);
        assert_eq!(offset_of!(mlx5dv_context, max_dc_rd_atom), 152);
        assert_eq!(offset_of!(mlx5dv_context, max_dc_init_rd_atom), 160);
        assert_eq!(size_of::<mlx5dv_clock_info>(), 40);
    }
}
