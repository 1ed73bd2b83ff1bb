//! The attributes that the kernel proposes for a transition of the queue pair, as attributes to set.

use uverbs_uapi::enums::{Mtu, QpState};
use uverbs_uapi::flags::{Access, QpAttrMask};
use uverbs_uapi::types::{AhAttr, QpAttr as Proposed};

use crate::ah::AddressVector;
use crate::gid::Gid;
use crate::qp::QpAttr;

/// The kernel's proposal for a transition to this state. Fields outside its mask are ignored.
pub(super) fn read(proposed: &Proposed, state: QpState) -> QpAttr {
    let mask = QpAttrMask::from_bits_retain(proposed.qp_attr_mask);
    let has = |bit| mask.contains(bit);
    let p = proposed;
    QpAttr {
        state: Some(state),
        access: has(QpAttrMask::ACCESS_FLAGS).then(|| Access::from_bits_retain(p.qp_access_flags)),
        pkey_index: has(QpAttrMask::PKEY_INDEX).then_some(p.pkey_index),
        port: has(QpAttrMask::PORT).then_some(p.port_num),
        qkey: has(QpAttrMask::QKEY).then_some(p.qkey),
        path: has(QpAttrMask::AV).then(|| path(&p.ah_attr)),
        path_mtu: has(QpAttrMask::PATH_MTU).then_some(Mtu(p.path_mtu)),
        timeout: has(QpAttrMask::TIMEOUT).then_some(p.timeout),
        retry_cnt: has(QpAttrMask::RETRY_CNT).then_some(p.retry_cnt),
        rnr_retry: has(QpAttrMask::RNR_RETRY).then_some(p.rnr_retry),
        rq_psn: has(QpAttrMask::RQ_PSN).then_some(p.rq_psn),
        max_rd_atomic: has(QpAttrMask::MAX_QP_RD_ATOMIC).then_some(p.max_rd_atomic),
        max_dest_rd_atomic: has(QpAttrMask::MAX_DEST_RD_ATOMIC).then_some(p.max_dest_rd_atomic),
        min_rnr_timer: has(QpAttrMask::MIN_RNR_TIMER).then_some(p.min_rnr_timer),
        sq_psn: has(QpAttrMask::SQ_PSN).then_some(p.sq_psn),
        dest_qpn: has(QpAttrMask::DEST_QPN).then_some(p.dest_qp_num),
        ..QpAttr::default()
    }
}

/// A path as the kernel describes it.
pub(super) fn path(raw: &AhAttr) -> AddressVector {
    AddressVector {
        dgid: (raw.is_global != 0).then(|| Gid::new(raw.grh.dgid)),
        flow_label: raw.grh.flow_label,
        sgid_index: raw.grh.sgid_index,
        hop_limit: raw.grh.hop_limit,
        traffic_class: raw.grh.traffic_class,
        dlid: raw.dlid,
        sl: raw.sl,
        src_path_bits: raw.src_path_bits,
        static_rate: raw.static_rate,
        port: raw.port_num,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_mask_names_is_set() {
        let mut proposed = Proposed {
            qp_attr_mask: (QpAttrMask::STATE | QpAttrMask::PORT | QpAttrMask::PKEY_INDEX).bits(),
            port_num: 1,
            rq_psn: 0xdead_beef,
            path_mtu: 99,
            ..Proposed::default()
        };
        let read_as = read(&proposed, QpState::INIT);
        let expected = QpAttr {
            state: Some(QpState::INIT),
            port: Some(1),
            pkey_index: Some(0),
            ..QpAttr::default()
        };
        assert_eq!(read_as, expected);
        // Bits that exist only in the kernel, for link-layer addresses.
        proposed.qp_attr_mask |= 0x01e0_0000;
        assert_eq!(read(&proposed, QpState::INIT), expected);
    }
}
