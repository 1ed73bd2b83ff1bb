//! Converts data of the kernel's connection manager to the structs of libibverbs, for librdmacm.

use super::abi::attr::{ibv_ah_attr, ibv_global_route, ibv_qp_attr, ibv_qp_cap};
use super::abi::port::ibv_gid;
use super::abi::sa::ibv_sa_path_rec;
use uverbs_uapi::rdma_cm::UserPathRec;
use uverbs_uapi::types::{AhAttr, QpAttr};

pub(super) fn path(attr: &AhAttr) -> ibv_ah_attr {
    let AhAttr { grh, .. } = attr;
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: grh.dgid },
            flow_label: grh.flow_label,
            sgid_index: grh.sgid_index,
            hop_limit: grh.hop_limit,
            traffic_class: grh.traffic_class,
        },
        dlid: attr.dlid,
        sl: attr.sl,
        src_path_bits: attr.src_path_bits,
        static_rate: attr.static_rate,
        is_global: attr.is_global,
        port_num: attr.port_num,
    }
}

/// `ibv_copy_ah_attr_from_kern(3)`.
pub unsafe extern "C" fn ibv_copy_ah_attr_from_kern(to: *mut ibv_ah_attr, from: *const AhAttr) {
    // SAFETY: the caller passes a path and room for one.
    unsafe { to.write(path(&*from)) }
}

/// `ibv_copy_qp_attr_from_kern(3)`. The program's state and rate limit stay.
pub unsafe extern "C" fn ibv_copy_qp_attr_from_kern(to: *mut ibv_qp_attr, from: *const QpAttr) {
    // SAFETY: the caller passes attributes of both kinds.
    let (to, from) = unsafe { (&mut *to, &*from) };
    *to = ibv_qp_attr {
        qp_state: to.qp_state,
        cur_qp_state: from.cur_qp_state,
        path_mtu: from.path_mtu,
        path_mig_state: from.path_mig_state,
        qkey: from.qkey,
        rq_psn: from.rq_psn,
        sq_psn: from.sq_psn,
        dest_qp_num: from.dest_qp_num,
        qp_access_flags: from.qp_access_flags,
        cap: ibv_qp_cap {
            max_send_wr: from.max_send_wr,
            max_recv_wr: from.max_recv_wr,
            max_send_sge: from.max_send_sge,
            max_recv_sge: from.max_recv_sge,
            max_inline_data: from.max_inline_data,
        },
        ah_attr: path(&from.ah_attr),
        alt_ah_attr: path(&from.alt_ah_attr),
        pkey_index: from.pkey_index,
        alt_pkey_index: from.alt_pkey_index,
        en_sqd_async_notify: from.en_sqd_async_notify,
        sq_draining: from.sq_draining,
        max_rd_atomic: from.max_rd_atomic,
        max_dest_rd_atomic: from.max_dest_rd_atomic,
        min_rnr_timer: from.min_rnr_timer,
        port_num: from.port_num,
        timeout: from.timeout,
        retry_cnt: from.retry_cnt,
        rnr_retry: from.rnr_retry,
        alt_port_num: from.alt_port_num,
        alt_timeout: from.alt_timeout,
        rate_limit: to.rate_limit,
    };
}

/// `ibv_copy_path_rec_from_kern(3)`.
pub unsafe extern "C" fn ibv_copy_path_rec_from_kern(
    to: *mut ibv_sa_path_rec,
    from: *const UserPathRec,
) {
    // SAFETY: the caller passes a path.
    let from = unsafe { &*from };
    let path = ibv_sa_path_rec {
        dgid: ibv_gid { raw: from.dgid },
        sgid: ibv_gid { raw: from.sgid },
        dlid: from.dlid.get().to_be(),
        slid: from.slid.get().to_be(),
        raw_traffic: from.raw_traffic as i32,
        flow_label: from.flow_label.get().to_be(),
        hop_limit: from.hop_limit,
        traffic_class: from.traffic_class,
        reversible: from.reversible as i32,
        numb_path: from.numb_path,
        pkey: from.pkey.get().to_be(),
        sl: from.sl,
        mtu_selector: from.mtu_selector,
        mtu: from.mtu as u8,
        rate_selector: from.rate_selector,
        rate: from.rate,
        packet_life_time_selector: from.packet_life_time_selector,
        packet_life_time: from.packet_life_time,
        preference: from.preference,
    };
    // SAFETY: the caller passes room for one.
    unsafe { to.write(path) }
}

/// `ibv_copy_path_rec_to_kern(3)`.
pub unsafe extern "C" fn ibv_copy_path_rec_to_kern(
    to: *mut UserPathRec,
    from: *const ibv_sa_path_rec,
) {
    // SAFETY: the caller passes a path, whose GIDs are bytes however they were written.
    let (from, dgid, sgid) = unsafe { (&*from, (*from).dgid.raw, (*from).sgid.raw) };
    let path = UserPathRec {
        dgid,
        sgid,
        dlid: u16::from_be(from.dlid).into(),
        slid: u16::from_be(from.slid).into(),
        raw_traffic: from.raw_traffic as u32,
        flow_label: u32::from_be(from.flow_label).into(),
        reversible: from.reversible as u32,
        mtu: from.mtu.into(),
        pkey: u16::from_be(from.pkey).into(),
        hop_limit: from.hop_limit,
        traffic_class: from.traffic_class,
        numb_path: from.numb_path,
        sl: from.sl,
        mtu_selector: from.mtu_selector,
        rate_selector: from.rate_selector,
        rate: from.rate,
        packet_life_time_selector: from.packet_life_time_selector,
        packet_life_time: from.packet_life_time,
        preference: from.preference,
    };
    // SAFETY: the caller passes room for one.
    unsafe { to.write(path) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::MaybeUninit;
    use zerocopy::{FromBytes, IntoBytes};

    /// Would catch a field that is forgotten, or mistaken for its neighbour.
    #[test]
    fn a_path_survives_both_ways() {
        let mut bytes: Vec<u8> = (1..=size_of::<UserPathRec>() as u8).collect();
        // The unit is one byte in the program's struct.
        bytes[48..52].copy_from_slice(&3u32.to_ne_bytes());
        let sent = UserPathRec::read_from_bytes(&bytes).unwrap();
        let mut between = MaybeUninit::<ibv_sa_path_rec>::uninit();
        let mut back = UserPathRec::default();
        // SAFETY: both are initialised.
        unsafe {
            ibv_copy_path_rec_from_kern(between.as_mut_ptr(), &sent);
            ibv_copy_path_rec_to_kern(&mut back, between.as_ptr());
            assert_eq!(between.assume_init().pkey.to_ne_bytes(), bytes[52..54]);
        }
        assert_eq!(back.as_bytes(), bytes);
    }

    #[test]
    fn attributes_keep_what_the_kernel_does_not_tell() {
        let from = QpAttr {
            qp_state: 1,
            dest_qp_num: 77,
            alt_timeout: 9,
            ah_attr: AhAttr {
                dlid: 5,
                ..AhAttr::default()
            },
            ..QpAttr::default()
        };
        // SAFETY: zeros are valid attributes.
        let mut to: ibv_qp_attr = unsafe { MaybeUninit::zeroed().assume_init() };
        (to.qp_state, to.rate_limit) = (3, 8);
        // SAFETY: both are initialised.
        unsafe { ibv_copy_qp_attr_from_kern(&mut to, &from) };
        assert_eq!((to.qp_state, to.rate_limit), (3, 8));
        assert_eq!((to.dest_qp_num, to.alt_timeout), (77, 9));
        assert_eq!(to.ah_attr.dlid, 5);
    }
}
