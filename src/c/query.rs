//! The properties of a device, its ports and their partition keys.

use std::ffi::c_int;
use std::mem::{MaybeUninit, offset_of};

use uverbs_uapi::enums::AtomicCap;
use uverbs_uapi::types::{ExQueryDeviceResp, QueryPortRespEx};

use super::abi::context::ibv_context;
use super::abi::device::{
    ibv_cq_moderation_caps, ibv_device_attr, ibv_device_attr_ex, ibv_odp_caps, ibv_pci_atomic_caps,
    ibv_query_device_ex_input, ibv_values_ex,
};
use super::abi::port::{COMPAT_PORT_ATTR, ibv_port_attr};
use super::context::{ContextObject, context};
use super::device::put;
use super::failure::{Failure, Result, minus_one, number, status};
use crate::command::{QueryPort, QueryPortSpeed};
use crate::driver::BusAtomics;

/// `ibv_query_device(3)`.
pub unsafe extern "C" fn ibv_query_device(
    c: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> c_int {
    // SAFETY: the caller passes an open context, and room for the struct: no more than that is written.
    unsafe {
        query_device_ex(
            c,
            std::ptr::null(),
            attr.cast(),
            size_of::<ibv_device_attr>(),
        )
    }
}

/// `ibv_query_device_ex(3)`: fills as much of the struct as the program knows.
pub(super) unsafe extern "C" fn query_device_ex(
    c: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    room: usize,
) -> c_int {
    // SAFETY: the caller passes an open context, NULL or an input, and `room` bytes at `attr`.
    status(unsafe {
        context(c).and_then(|context| {
            let unknown = input.as_ref().is_some_and(|input| input.comp_mask != 0);
            if unknown || room < size_of::<ibv_device_attr>() {
                return Err(Failure::INVALID);
            }
            let mut found = device_attr(context)?;
            // Only if it is asked for: it takes a command of its own.
            if room
                >= offset_of!(ibv_device_attr_ex, pci_atomic_caps)
                    + size_of::<ibv_pci_atomic_caps>()
            {
                let context = context.context();
                tell_atomics(&mut found, context.driver().bus_atomics(context.fd()));
            }
            fill(attr.cast(), room, &found);
            Ok(())
        })
    })
}

/// `ibv_query_port_speed(3)`.
pub unsafe extern "C" fn ibv_query_port_speed(
    c: *mut ibv_context,
    port: u32,
    speed: *mut u64,
) -> c_int {
    // SAFETY: the caller passes an open context and room for the answer.
    status(unsafe {
        context(c).and_then(|context| {
            let found = context.context().fd().execute(&QueryPortSpeed { port })?;
            speed.write(found);
            Ok(())
        })
    })
}

/// `IBV_VALUES_MASK_RAW_CLOCK`: the only value that can be requested.
const RAW_CLOCK: u32 = 1 << 0;

/// `ibv_query_rt_values_ex(3)`.
pub(super) unsafe extern "C" fn query_rt_values(
    c: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    // SAFETY: the caller passes an open context and room for the values, with a mask.
    status(unsafe {
        context(c).and_then(|context| {
            let values = values.as_mut().ok_or(Failure::INVALID)?;
            // If the device has no clock, that error comes first.
            let clock = context.context().raw_clock()?;
            if values.comp_mask & !RAW_CLOCK != 0 {
                return Err(Failure::INVALID);
            }
            if values.comp_mask & RAW_CLOCK != 0 {
                values.raw_clock = libc::timespec {
                    tv_sec: 0,
                    tv_nsec: clock as i64,
                };
            }
            Ok(())
        })
    })
}

/// Writes a struct into a program's, which may be shorter or longer than this library's.
///
/// # Safety
///
/// There is room for that many bytes, and the struct has no padding.
pub(super) unsafe fn fill<T>(to: *mut u8, room: usize, from: &T) {
    let known = room.min(size_of::<T>());
    // SAFETY: the caller vouches for the room, and no more is read than the struct has.
    unsafe {
        to.copy_from_nonoverlapping(std::ptr::from_ref(from).cast(), known);
        to.add(known).write_bytes(0, room - known);
    }
}

fn device_attr(context: &ContextObject) -> Result<ibv_device_attr_ex> {
    let found = context.context().device_limits()?;
    // SAFETY: the struct has integers only, for which zeros are values.
    let mut attr: ibv_device_attr_ex = unsafe { MaybeUninit::zeroed().assume_init() };
    plain(&mut attr.orig_attr, &found);
    match context.device().device().firmware_version() {
        Some(version) => put(&mut attr.orig_attr.fw_ver, version),
        None => {
            let version = context.context().driver().firmware(found.base.fw_ver);
            put(&mut attr.orig_attr.fw_ver, &version);
        }
    }
    extended(&mut attr, &found);
    Ok(attr)
}

fn plain(attr: &mut ibv_device_attr, found: &ExQueryDeviceResp) {
    let base = &found.base;
    *attr = ibv_device_attr {
        fw_ver: attr.fw_ver,
        node_guid: base.node_guid.get().to_be(),
        sys_image_guid: base.sys_image_guid.get().to_be(),
        max_mr_size: base.max_mr_size,
        page_size_cap: base.page_size_cap,
        vendor_id: base.vendor_id,
        vendor_part_id: base.vendor_part_id,
        hw_ver: base.hw_ver,
        max_qp: base.max_qp,
        max_qp_wr: base.max_qp_wr,
        device_cap_flags: base.device_cap_flags & !(NOT_HERE as u32),
        max_sge: base.max_sge,
        max_sge_rd: base.max_sge_rd,
        max_cq: base.max_cq,
        max_cqe: base.max_cqe,
        max_mr: base.max_mr,
        max_pd: base.max_pd,
        max_qp_rd_atom: base.max_qp_rd_atom,
        max_ee_rd_atom: base.max_ee_rd_atom,
        max_res_rd_atom: base.max_res_rd_atom,
        max_qp_init_rd_atom: base.max_qp_init_rd_atom,
        max_ee_init_rd_atom: base.max_ee_init_rd_atom,
        atomic_cap: base.atomic_cap,
        max_ee: base.max_ee,
        max_rdd: base.max_rdd,
        max_mw: base.max_mw,
        max_raw_ipv6_qp: base.max_raw_ipv6_qp,
        max_raw_ethy_qp: base.max_raw_ethy_qp,
        max_mcast_grp: base.max_mcast_grp,
        max_mcast_qp_attach: base.max_mcast_qp_attach,
        max_total_mcast_qp_attach: base.max_total_mcast_qp_attach,
        max_ah: base.max_ah,
        max_fmr: base.max_fmr,
        max_map_per_fmr: base.max_map_per_fmr,
        max_srq: base.max_srq,
        max_srq_wr: base.max_srq_wr,
        max_srq_sge: base.max_srq_sge,
        max_pkeys: base.max_pkeys,
        local_ca_ack_delay: base.local_ca_ack_delay,
        phys_port_cnt: base.phys_port_cnt,
    };
}

/// Capability flags of a device for features that this library does not use: checksums
/// (`IBV_DEVICE_UD_IP_CSUM`, `IBV_DEVICE_RC_IP_CSUM`, `IBV_DEVICE_RAW_IP_CSUM`), flow rules
/// (`IBV_DEVICE_MANAGED_FLOW_STEERING`) and `IBV_DEVICE_RAW_SCATTER_FCS`.
const NOT_HERE: u64 = 1 << 18 | 1 << 25 | 1 << 26 | 1 << 29 | 1 << 34;

/// Fills the newer fields. Work queues with their hashes, raw packets, segmentation, pacing and matching of
/// tags stay zero: a program that checks them must not use them.
fn extended(attr: &mut ibv_device_attr_ex, found: &ExQueryDeviceResp) {
    let transports = &found.odp_caps.per_transport_caps;
    attr.odp_caps = ibv_odp_caps {
        general_caps: found.odp_caps.general_caps,
        rc_odp_caps: transports.rc_odp_caps,
        uc_odp_caps: transports.uc_odp_caps,
        ud_odp_caps: transports.ud_odp_caps,
    };
    attr.completion_timestamp_mask = found.timestamp_mask;
    attr.hca_core_clock = found.hca_core_clock;
    attr.device_cap_flags_ex = found.device_cap_flags_ex & !NOT_HERE;
    attr.cq_mod_caps = ibv_cq_moderation_caps {
        max_cq_count: found.cq_moderation_caps.max_cq_moderation_count,
        max_cq_period: found.cq_moderation_caps.max_cq_moderation_period,
    };
    attr.max_dm_size = found.max_dm_size;
    attr.xrc_odp_caps = found.xrc_odp_caps;
    attr.phys_port_cnt_ex = found.base.phys_port_cnt.into();
}

/// Tells which atomic operations are atomic to the processor too.
fn tell_atomics(attr: &mut ibv_device_attr_ex, found: BusAtomics) {
    attr.pci_atomic_caps = ibv_pci_atomic_caps {
        fetch_add: found.fetch_add,
        swap: found.swap,
        compare_swap: found.compare_swap,
    };
    if attr.orig_attr.atomic_cap == AtomicCap::HCA.0 && found.has_both_of_verbs() {
        attr.orig_attr.atomic_cap = AtomicCap::GLOB.0;
    }
}

/// `ibv_query_port(3)` for programs compiled before the header had it inline.
pub unsafe extern "C" fn ibv_query_port(
    c: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: the caller passes an open context and room for the struct of that time.
    unsafe { query_port(c, port, attr, COMPAT_PORT_ATTR) }
}

/// `ibv_query_port(3)`: fills as much of the struct as the program knows.
pub(super) unsafe extern "C" fn query_port(
    c: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    room: usize,
) -> c_int {
    // SAFETY: the caller passes an open context, and `room` bytes at `attr`.
    status(unsafe {
        context(c).and_then(|context| {
            let found = context.context().fd().execute(&QueryPort { port })?;
            fill(attr.cast(), room, &port_attr(&found));
            Ok(())
        })
    })
}

fn port_attr(found: &QueryPortRespEx) -> ibv_port_attr {
    let port = &found.legacy_resp;
    ibv_port_attr {
        state: port.state.into(),
        max_mtu: port.max_mtu.into(),
        active_mtu: port.active_mtu.into(),
        gid_tbl_len: port.gid_tbl_len,
        port_cap_flags: port.port_cap_flags,
        max_msg_sz: port.max_msg_sz,
        bad_pkey_cntr: port.bad_pkey_cntr,
        qkey_viol_cntr: port.qkey_viol_cntr,
        pkey_tbl_len: port.pkey_tbl_len,
        lid: port.lid,
        sm_lid: port.sm_lid,
        lmc: port.lmc,
        max_vl_num: port.max_vl_num,
        sm_sl: port.sm_sl,
        subnet_timeout: port.subnet_timeout,
        init_type_reply: port.init_type_reply,
        active_width: port.active_width,
        active_speed: port.active_speed,
        phys_state: port.phys_state,
        link_layer: port.link_layer,
        flags: port.flags,
        port_cap_flags2: found.port_cap_flags2,
        active_speed_ex: found.active_speed_ex,
    }
}

/// `ibv_query_pkey(3)`: in network byte order.
pub unsafe extern "C" fn ibv_query_pkey(
    c: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    // SAFETY: the caller passes an open context and room for a key.
    minus_one(unsafe {
        context(c).and_then(|context| {
            *pkey = partition_key(context, port, index)?.to_be();
            Ok(())
        })
    })
}

fn partition_key(context: &ContextObject, port: u8, index: c_int) -> Result<u16> {
    let index = index.try_into().map_err(|_| Failure::INVALID)?;
    let device = context.device().device();
    Ok(device.pkey(port.into(), index)?)
}

/// `ibv_get_pkey_index(3)`: the key is in network byte order.
pub unsafe extern "C" fn ibv_get_pkey_index(c: *mut ibv_context, port: u8, pkey: u16) -> c_int {
    // SAFETY: the caller passes an open context.
    number(unsafe { context(c) }.and_then(|context| {
        let mut index = 0;
        while partition_key(context, port, index)? != u16::from_be(pkey) {
            index += 1;
        }
        Ok(index)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a device whose atomic operations are told to be atomic to the processor, where one is not.
    #[test]
    fn atomics_are_global_if_both_are() {
        let told = |cap: AtomicCap, fetch_add, compare_swap| {
            // SAFETY: the struct has integers only, for which zeros are values.
            let mut attr: ibv_device_attr_ex = unsafe { MaybeUninit::zeroed().assume_init() };
            attr.orig_attr.atomic_cap = cap.0;
            let found = BusAtomics {
                fetch_add,
                swap: 1,
                compare_swap,
            };
            tell_atomics(&mut attr, found);
            let caps = attr.pci_atomic_caps;
            assert_eq!(
                (caps.fetch_add, caps.swap, caps.compare_swap),
                (fetch_add, 1, compare_swap)
            );
            AtomicCap(attr.orig_attr.atomic_cap)
        };
        assert_eq!(told(AtomicCap::HCA, 0b11, 0b10), AtomicCap::GLOB);
        assert_eq!(told(AtomicCap::HCA, 0b10, 0b101), AtomicCap::HCA);
        assert_eq!(told(AtomicCap::HCA, 0b1, 0b10), AtomicCap::HCA);
        assert_eq!(told(AtomicCap::NONE, 0b10, 0b10), AtomicCap::NONE);
    }
}
