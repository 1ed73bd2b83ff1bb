//! Changing and querying queue pairs. The program's masks are passed to the kernel unchanged.

use std::ffi::c_int;

use uverbs_uapi::enums::QpState;
use uverbs_uapi::flags::QpAttrMask;
use uverbs_uapi::types::QpDest;
use uverbs_uapi::write as abi;

use super::abi::attr::{ibv_ah_attr, ibv_global_route, ibv_qp_attr, ibv_qp_cap, ibv_qp_init_attr};
use super::abi::port::ibv_gid;
use super::abi::queue::ibv_qp;
use super::ah;
use super::failure::{Failure, Result, status};
use super::qp::{QpObject, clean, qp};
use crate::command::{DriverData, ModifyQp, QueryQp};
use crate::driver::{QpName, ResetQp};
use crate::probes;
use crate::qp::DataOrder;
use crate::qp::attr::narrow;

/// `ibv_modify_qp(3)`.
pub unsafe extern "C" fn ibv_modify_qp(
    c: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: the caller passes a queue pair and attributes.
    status(unsafe {
        qp(c).and_then(|qp| {
            let attr = attr.as_ref().ok_or(Failure::INVALID)?;
            let mask = QpAttrMask::from_bits_retain(mask as u32);
            modify(qp, attr, mask)?;
            if mask.contains(QpAttrMask::STATE) {
                (*qp.c()).state = attr.qp_state;
                if attr.qp_state == QpState::RTS.0 {
                    probes::connected((*qp.c()).qp_num);
                }
            }
            Ok(())
        })
    })
}

fn modify(qp: &QpObject, attr: &ibv_qp_attr, mask: QpAttrMask) -> Result<()> {
    let to = mask
        .contains(QpAttrMask::STATE)
        .then_some(QpState(attr.qp_state));
    let connects = matches!(to, None | Some(QpState::INIT | QpState::RTR | QpState::RTS));
    if mask.contains(QpAttrMask::RATE_LIMIT) {
        return Err(Failure::UNSUPPORTED);
    }
    let command = ModifyQp {
        base: command(qp.handle.0, attr, mask),
        driver: match (&qp.backing, &qp.dc_target) {
            (Some(backing), _) if connects => backing.modify_data(),
            (None, Some(target)) => target.modify_data(),
            _ => DriverData::default(),
        },
    };
    if to == Some(QpState::RESET) {
        return reset(qp, &command);
    }
    let reply = qp.context.fd().execute(&command)?;
    if let Some(state) = to {
        qp.came_to(state);
    }
    if let Some(backing) = &qp.backing
        && connects
    {
        backing.modified(&reply);
    }
    if let Some(target) = &qp.dc_target
        && let Some(number) = target.told_number(&reply)
    {
        // SAFETY: the C struct lies in the object.
        unsafe { (*qp.c()).qp_num = number };
    }
    Ok(())
}

/// Takes it and its queues to the state RESET. It keeps its number, which the program knows.
fn reset(qp: &QpObject, command: &ModifyQp) -> Result<()> {
    let context = &qp.context;
    let Some(backing) = &qp.backing else {
        context.fd().execute(command)?;
        qp.came_to(QpState::RESET);
        return Ok(());
    };
    qp.with_sender(|send| {
        let mut recv = qp.recv.lock();
        let reset = ResetQp {
            command,
            backing,
            send: send.queue.as_mut().ok_or(Failure::INVALID)?,
            recv: recv.as_mut(),
            is_replaced: false,
        };
        context.driver().reset_qp(context.fd(), reset)?;
        // While both locks are held: a post in another thread must not get into the empty rings.
        qp.came_to(QpState::RESET);
        // The requests that this thread has begun to post are discarded.
        send.session.fail(Failure::INVALID);
        Ok::<_, Failure>(())
    })?;
    // SAFETY: the queues stay as long as the queue pair.
    unsafe { clean(qp.cqs()) };
    Ok(())
}

fn command(handle: u32, attr: &ibv_qp_attr, mask: QpAttrMask) -> abi::ModifyQp {
    abi::ModifyQp {
        dest: dest(&attr.ah_attr),
        alt_dest: dest(&attr.alt_ah_attr),
        qp_handle: handle,
        attr_mask: mask.bits(),
        qkey: attr.qkey,
        rq_psn: attr.rq_psn,
        sq_psn: attr.sq_psn,
        dest_qp_num: attr.dest_qp_num,
        qp_access_flags: attr.qp_access_flags,
        pkey_index: attr.pkey_index,
        alt_pkey_index: attr.alt_pkey_index,
        qp_state: narrow(attr.qp_state),
        cur_qp_state: narrow(attr.cur_qp_state),
        path_mtu: narrow(attr.path_mtu),
        path_mig_state: narrow(attr.path_mig_state),
        en_sqd_async_notify: attr.en_sqd_async_notify,
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port_num: attr.port_num,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        alt_port_num: attr.alt_port_num,
        alt_timeout: attr.alt_timeout,
        reserved: [0; 2],
    }
}

/// A path in the form of this command.
fn dest(attr: &ibv_ah_attr) -> QpDest {
    let path = ah::path(attr);
    QpDest {
        dgid: path.grh.dgid,
        flow_label: path.grh.flow_label,
        dlid: path.dlid,
        reserved: 0,
        sgid_index: path.grh.sgid_index,
        hop_limit: path.grh.hop_limit,
        traffic_class: path.grh.traffic_class,
        sl: path.sl,
        src_path_bits: path.src_path_bits,
        static_rate: path.static_rate,
        is_global: path.is_global,
        port_num: path.port_num,
    }
}

/// A path in the form of programs.
fn path(dest: &QpDest) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: dest.dgid },
            flow_label: dest.flow_label,
            sgid_index: dest.sgid_index,
            hop_limit: dest.hop_limit,
            traffic_class: dest.traffic_class,
        },
        dlid: dest.dlid,
        sl: dest.sl,
        src_path_bits: dest.src_path_bits,
        static_rate: dest.static_rate,
        is_global: dest.is_global,
        port_num: dest.port_num,
    }
}

/// `ibv_query_qp(3)`.
pub unsafe extern "C" fn ibv_query_qp(
    c: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the caller passes a queue pair and room for both kinds of attributes.
    status(unsafe {
        qp(c).and_then(|qp| {
            let mask = mask as u32;
            // The kernel ignores them, and there is no answer to them.
            if mask >= QpAttrMask::RATE_LIMIT.bits() {
                return Err(Failure::UNSUPPORTED);
            }
            let command = QueryQp {
                qp: qp.handle,
                attr_mask: mask,
            };
            let found = qp.context.fd().execute(&command)?;
            let caps = match &qp.backing {
                Some(backing) if backing.kernel_knows_caps() => kernel_caps(&found),
                _ => qp.caps,
            };
            let c = qp.c();
            if mask & QpAttrMask::STATE.bits() != 0 {
                (*c).state = found.qp_state.into();
                // The device may have come to it by itself.
                let state = QpState((*c).state);
                if state == QpState::ERR {
                    qp.came_to(state);
                }
            }
            attr.write(c_attr(&found, caps));
            init.write(ibv_qp_init_attr {
                qp_context: (*c).qp_context,
                send_cq: (*c).send_cq,
                recv_cq: (*c).recv_cq,
                srq: (*c).srq,
                cap: caps,
                qp_type: (*c).qp_type,
                sq_sig_all: found.sq_sig_all.into(),
            });
            Ok(())
        })
    })
}

fn kernel_caps(found: &abi::QueryQpResp) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: found.max_send_wr,
        max_recv_wr: found.max_recv_wr,
        max_send_sge: found.max_send_sge,
        max_recv_sge: found.max_recv_sge,
        max_inline_data: found.max_inline_data,
    }
}

fn c_attr(found: &abi::QueryQpResp, cap: ibv_qp_cap) -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: found.qp_state.into(),
        cur_qp_state: found.cur_qp_state.into(),
        path_mtu: found.path_mtu.into(),
        path_mig_state: found.path_mig_state.into(),
        qkey: found.qkey,
        rq_psn: found.rq_psn,
        sq_psn: found.sq_psn,
        dest_qp_num: found.dest_qp_num,
        qp_access_flags: found.qp_access_flags,
        cap,
        ah_attr: path(&found.dest),
        alt_ah_attr: path(&found.alt_dest),
        pkey_index: found.pkey_index,
        alt_pkey_index: found.alt_pkey_index,
        en_sqd_async_notify: 0,
        sq_draining: found.sq_draining,
        max_rd_atomic: found.max_rd_atomic,
        max_dest_rd_atomic: found.max_dest_rd_atomic,
        min_rnr_timer: found.min_rnr_timer,
        port_num: found.port_num,
        timeout: found.timeout,
        retry_cnt: found.retry_cnt,
        rnr_retry: found.rnr_retry,
        alt_port_num: found.alt_port_num,
        alt_timeout: found.alt_timeout,
        rate_limit: 0,
    }
}

/// `IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS`: the result is a set of promises, and not only whether there is
/// one.
const RETURN_CAPS: u32 = 1 << 0;
/// `IBV_QUERY_QP_DATA_IN_ORDER_DEVICE_ONLY`: the promise is only about the device, not about the CPU.
const DEVICE_ONLY: u32 = 1 << 1;
/// `IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES`.
const ALIGNED_128: c_int = 1 << 1;
/// `IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG`, and with it the other.
const WHOLE: c_int = 1 << 0 | ALIGNED_128;

/// `ibv_query_qp_data_in_order(3)`. The promise is the same for all operations. If this cannot be queried,
/// nothing is promised.
pub unsafe extern "C" fn ibv_query_qp_data_in_order(c: *mut ibv_qp, _: c_int, flags: u32) -> c_int {
    let is_known = flags & !(RETURN_CAPS | DEVICE_ONLY) == 0;
    // In which order CPUs other than x86 see the writes of a device is not known.
    let is_asked = is_known && (cfg!(target_arch = "x86_64") || flags & DEVICE_ONLY != 0);
    let order = match is_asked {
        // SAFETY: the caller passes a queue pair.
        true => unsafe { qp(c).and_then(data_order) }.unwrap_or(DataOrder::Any),
        false => DataOrder::Any,
    };
    let promises = match order {
        DataOrder::Any => 0,
        DataOrder::Aligned128 => ALIGNED_128,
        DataOrder::Whole => WHOLE,
    };
    match flags & RETURN_CAPS {
        0 => (promises == WHOLE).into(),
        _ => promises,
    }
}

fn data_order(qp: &QpObject) -> Result<DataOrder> {
    // SAFETY: the C struct lies in the object.
    let (state, qpn) = unsafe { ((*qp.c()).state, (*qp.c()).qp_num) };
    let (context, handle) = (&qp.context, qp.handle);
    let (driver, name) = (context.driver(), QpName { handle, qpn });
    Ok(driver.data_order(context.fd(), name, QpState(state))?)
}
