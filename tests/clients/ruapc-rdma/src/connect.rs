//! What connects a queue pair, in three transitions; and attributes as C programs have them, put into those
//! of uverbs.

use uverbs::qp::{MigState, Mtu, QpAttr, QpState};
use uverbs::{Access, AddressVector};

use crate::header::{ibv_ah_attr, ibv_gid, ibv_mtu, ibv_qp_attr, ibv_qp_attr_mask};
use crate::types::LinkLayer;
use crate::{Error, ErrorKind, Result};

const TWENTY_FOUR_BITS: u32 = 0xff_ffff;

/// What two peers have agreed on.
#[derive(Debug, Clone, Copy)]
pub struct QpConnectionConfig {
    pub local_port_num: u8,
    pub local_gid_index: u8,
    pub pkey_index: u16,
    pub link_layer: LinkLayer,
    pub path_mtu: ibv_mtu,
    pub remote_qp_num: u32,
    /// For Ethernet.
    pub remote_gid: ibv_gid,
    /// For InfiniBand.
    pub remote_lid: u16,
    pub local_psn: u32,
    pub remote_psn: u32,
    /// How many READs this side may have under way.
    pub max_rd_atomic: u8,
    /// How many READs the peer may have under way.
    pub max_dest_rd_atomic: u8,
    /// For Ethernet.
    pub traffic_class: u8,
}

impl QpConnectionConfig {
    /// Whether the protocol has such a connection. What the device can do, it says itself.
    pub fn validate(&self) -> Result<()> {
        let gid = self.remote_gid.as_ipv6();
        let rules = [
            (
                self.local_port_num != 0,
                "local_port_num: ports count from 1",
            ),
            (
                (1..=TWENTY_FOUR_BITS).contains(&self.remote_qp_num),
                "remote_qp_num has 24 bits and is not 0",
            ),
            (self.local_psn <= TWENTY_FOUR_BITS, "local_psn has 24 bits"),
            (
                self.remote_psn <= TWENTY_FOUR_BITS,
                "remote_psn has 24 bits",
            ),
            (
                self.max_rd_atomic != 0,
                "max_rd_atomic: without, there are no READs",
            ),
            (
                self.max_dest_rd_atomic != 0,
                "max_dest_rd_atomic: without, there are no READs",
            ),
            (
                self.link_layer != LinkLayer::Unspecified,
                "link layer: InfiniBand or Ethernet",
            ),
            (
                !self.link_layer.is_infiniband() || (1..0xc000).contains(&self.remote_lid),
                "remote_lid is not that of one port",
            ),
            (
                !self.link_layer.is_ethernet() || !(gid.is_unspecified() || gid.is_multicast()),
                "remote_gid is not that of one port",
            ),
        ];
        match rules.iter().find(|(holds, _)| !holds) {
            None => Ok(()),
            Some((_, rule)) => Err(ErrorKind::InvalidQueuePairConfig.because()(rule)),
        }
    }

    /// The transitions, with their names.
    pub(crate) fn transitions(&self) -> [(&'static str, QpAttr); 3] {
        let init = QpAttr {
            state: Some(QpState::INIT),
            pkey_index: Some(self.pkey_index),
            port: Some(self.local_port_num),
            access: Some(Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE),
            ..QpAttr::default()
        };
        let receive = QpAttr {
            state: Some(QpState::RTR),
            path: Some(self.path()),
            path_mtu: Some(Mtu(self.path_mtu as u32)),
            dest_qpn: Some(self.remote_qp_num),
            rq_psn: Some(self.remote_psn),
            max_dest_rd_atomic: Some(self.max_dest_rd_atomic),
            // 10 µs: a receive that is late is posted soon.
            min_rnr_timer: Some(1),
            ..QpAttr::default()
        };
        let send = QpAttr {
            state: Some(QpState::RTS),
            sq_psn: Some(self.local_psn),
            // About a second for each try.
            timeout: Some(18),
            retry_cnt: Some(6),
            rnr_retry: Some(6),
            max_rd_atomic: Some(self.max_rd_atomic),
            ..QpAttr::default()
        };
        [
            ("RESET -> INIT", init),
            ("INIT -> RTR", receive),
            ("RTR -> RTS", send),
        ]
    }

    fn path(&self) -> AddressVector {
        if self.link_layer.is_infiniband() {
            return AddressVector::local(self.local_port_num, self.remote_lid);
        }
        AddressVector {
            hop_limit: u8::MAX,
            traffic_class: self.traffic_class,
            ..AddressVector::global(
                self.local_port_num,
                self.local_gid_index,
                self.remote_gid.into(),
            )
        }
    }
}

/// Those attributes that the mask names. Alternate paths, new capacities and rate limits are refused.
pub(crate) fn attributes(attr: &ibv_qp_attr, mask: ibv_qp_attr_mask) -> Result<QpAttr> {
    type Mask = ibv_qp_attr_mask;
    let known = Mask::all()
        .difference(Mask::IBV_QP_ALT_PATH)
        .difference(Mask::IBV_QP_RATE_LIMIT)
        .difference(Mask::IBV_QP_CAP);
    let unknown = mask.0 & !known.0;
    if unknown != 0 {
        let msg = format!("attributes {unknown:#x} are not supported");
        return Err(Error::new(ErrorKind::IBModifyQueuePairFail, msg));
    }
    let named = |flag: Mask| mask.contains(flag);
    Ok(QpAttr {
        state: named(Mask::IBV_QP_STATE).then_some(QpState(attr.qp_state as u32)),
        cur_state: named(Mask::IBV_QP_CUR_STATE).then_some(QpState(attr.cur_qp_state as u32)),
        sqd_async_notify: named(Mask::IBV_QP_EN_SQD_ASYNC_NOTIFY)
            .then_some(attr.en_sqd_async_notify != 0),
        access: named(Mask::IBV_QP_ACCESS_FLAGS)
            .then_some(Access::from_bits_retain(attr.qp_access_flags)),
        pkey_index: named(Mask::IBV_QP_PKEY_INDEX).then_some(attr.pkey_index),
        port: named(Mask::IBV_QP_PORT).then_some(attr.port_num),
        qkey: named(Mask::IBV_QP_QKEY).then_some(attr.qkey),
        path: named(Mask::IBV_QP_AV).then(|| path(&attr.ah_attr)),
        path_mtu: named(Mask::IBV_QP_PATH_MTU).then_some(Mtu(attr.path_mtu as u32)),
        timeout: named(Mask::IBV_QP_TIMEOUT).then_some(attr.timeout),
        retry_cnt: named(Mask::IBV_QP_RETRY_CNT).then_some(attr.retry_cnt),
        rnr_retry: named(Mask::IBV_QP_RNR_RETRY).then_some(attr.rnr_retry),
        rq_psn: named(Mask::IBV_QP_RQ_PSN).then_some(attr.rq_psn),
        max_rd_atomic: named(Mask::IBV_QP_MAX_QP_RD_ATOMIC).then_some(attr.max_rd_atomic),
        min_rnr_timer: named(Mask::IBV_QP_MIN_RNR_TIMER).then_some(attr.min_rnr_timer),
        sq_psn: named(Mask::IBV_QP_SQ_PSN).then_some(attr.sq_psn),
        max_dest_rd_atomic: named(Mask::IBV_QP_MAX_DEST_RD_ATOMIC)
            .then_some(attr.max_dest_rd_atomic),
        path_mig_state: named(Mask::IBV_QP_PATH_MIG_STATE)
            .then_some(MigState(attr.path_mig_state as u32)),
        dest_qpn: named(Mask::IBV_QP_DEST_QPN).then_some(attr.dest_qp_num),
        alt_path: None,
    })
}

fn path(attr: &ibv_ah_attr) -> AddressVector {
    AddressVector {
        dgid: (attr.is_global != 0).then(|| attr.grh.dgid.into()),
        flow_label: attr.grh.flow_label,
        sgid_index: attr.grh.sgid_index,
        hop_limit: attr.grh.hop_limit,
        traffic_class: attr.grh.traffic_class,
        sl: attr.sl,
        src_path_bits: attr.src_path_bits,
        static_rate: attr.static_rate,
        ..AddressVector::local(attr.port_num, attr.dlid)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    fn config() -> QpConnectionConfig {
        QpConnectionConfig {
            local_port_num: 1,
            local_gid_index: 1,
            pkey_index: 0,
            link_layer: LinkLayer::Ethernet,
            path_mtu: ibv_mtu::IBV_MTU_1024,
            remote_qp_num: 17,
            remote_gid: Ipv6Addr::LOCALHOST.into(),
            remote_lid: 0,
            local_psn: 0,
            remote_psn: TWENTY_FOUR_BITS,
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            traffic_class: 0,
        }
    }

    /// Catches a rule that lets something else through.
    #[test]
    fn what_the_protocol_lacks_is_refused() {
        type Change = fn(&mut QpConnectionConfig);
        let changes: [(&str, Change); 9] = [
            ("local_port_num", |config| config.local_port_num = 0),
            ("remote_qp_num", |config| config.remote_qp_num = 0),
            ("remote_qp_num", |config| config.remote_qp_num = 1 << 24),
            ("local_psn", |config| config.local_psn = 1 << 24),
            ("max_rd_atomic", |config| config.max_rd_atomic = 0),
            ("max_dest_rd_atomic", |config| config.max_dest_rd_atomic = 0),
            ("remote_gid", |config| {
                config.remote_gid = ibv_gid::default()
            }),
            ("link layer", |config| {
                config.link_layer = LinkLayer::Unspecified
            }),
            ("remote_lid", |config| {
                config.link_layer = LinkLayer::InfiniBand
            }),
        ];
        config().validate().expect("a good one");
        for (field, change) in changes {
            let mut config = config();
            change(&mut config);
            let error = config.validate().expect_err(field);
            assert_eq!(error.kind, ErrorKind::InvalidQueuePairConfig);
            assert!(error.msg.contains(field), "{field}: {error}");
        }
    }

    /// Catches an attribute that is dropped in silence, or goes where another belongs.
    #[test]
    fn what_the_mask_names_is_passed_on() {
        type Mask = ibv_qp_attr_mask;
        let attr = ibv_qp_attr {
            dest_qp_num: 5,
            rq_psn: 6,
            ..ibv_qp_attr::default()
        };
        let passed = attributes(&attr, Mask::IBV_QP_DEST_QPN | Mask::IBV_QP_RQ_PSN);
        let passed = passed.expect("attributes");
        assert_eq!(
            (passed.dest_qpn, passed.rq_psn, passed.sq_psn),
            (Some(5), Some(6), None)
        );
        assert_eq!(
            passed.mask().bits(),
            (Mask::IBV_QP_DEST_QPN | Mask::IBV_QP_RQ_PSN).0
        );
        for refused in [
            Mask::IBV_QP_ALT_PATH,
            Mask::IBV_QP_CAP,
            ibv_qp_attr_mask(1 << 30),
        ] {
            assert!(attributes(&attr, refused).is_err(), "{refused:?}");
        }
    }
}
