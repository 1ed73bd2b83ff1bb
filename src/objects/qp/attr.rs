//! The attributes of a queue pair: those that can be set, and those that a query returns.

use uverbs_uapi::enums::{MigState, Mtu, QpState, QpType};
use uverbs_uapi::flags::{Access, QpAttrMask};
use uverbs_uapi::handle::QpHandle;
use uverbs_uapi::types::QpDest;
use uverbs_uapi::write as abi;

use super::Caps;
use super::transition::{self, Refused};
use crate::ah::AddressVector;
use crate::command::{DriverData, ModifyQp};
use crate::error::{Error, Result, Subject, Verb};
use crate::gid::Gid;

/// Attributes to set. Those that are `None` stay as they are.
///
/// The library checks which attributes a transition requires and allows before it asks the kernel. Manual
/// page: `ibv_modify_qp(3)`.
///
/// ```
/// use uverbs::{qp::QpAttr, Access, QpState};
///
/// let init = QpAttr {
///     state: Some(QpState::INIT),
///     pkey_index: Some(0),
///     port: Some(1),
///     access: Some(Access::REMOTE_WRITE),
///     ..QpAttr::default()
/// };
/// # let _ = init;
/// ```
#[doc(alias = "ibv_modify_qp")]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QpAttr {
    /// The state to go to.
    pub state: Option<QpState>,
    /// The state that the QP is in, if the kernel may not know it yet (send queue error, drained).
    pub cur_state: Option<QpState>,
    /// True to get an event when the send queue has drained.
    pub sqd_async_notify: Option<bool>,
    /// What a connected peer may do.
    pub access: Option<Access>,
    /// Index of the partition key.
    pub pkey_index: Option<u16>,
    /// Local port, counted from 1.
    pub port: Option<u8>,
    /// The key that datagrams to this QP must carry.
    pub qkey: Option<u32>,
    /// The path to the peer.
    pub path: Option<AddressVector>,
    /// The largest packet on the path.
    pub path_mtu: Option<Mtu>,
    /// How long to wait for an acknowledgement: 4.096 µs · 2ⁿ, n below 32; 0 means forever.
    pub timeout: Option<u8>,
    /// How often a request is sent again before it fails; at most 7.
    pub retry_cnt: Option<u8>,
    /// How often it is sent again if the peer has no receive posted; 7 means forever.
    pub rnr_retry: Option<u8>,
    /// The packet sequence number to expect first; 24 bits.
    pub rq_psn: Option<u32>,
    /// READs and atomics that may be in flight from this side.
    pub max_rd_atomic: Option<u8>,
    /// READs and atomics that may be in flight from the peer.
    pub max_dest_rd_atomic: Option<u8>,
    /// The alternate path and its partition key index, port and timeout.
    pub alt_path: Option<AltPath>,
    /// The pause that the peer should make if no receive is posted, as a code of 5 bits.
    pub min_rnr_timer: Option<u8>,
    /// The packet sequence number to send first; 24 bits.
    pub sq_psn: Option<u32>,
    /// The state of path migration.
    pub path_mig_state: Option<MigState>,
    /// The peer's QP number; 24 bits.
    pub dest_qpn: Option<u32>,
}

/// The path to migrate to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AltPath {
    /// The path to the peer.
    pub path: AddressVector,
    /// Index of the partition key there.
    pub pkey_index: u16,
    /// Local port there, counted from 1.
    pub port: u8,
    /// The acknowledgement timeout there, coded as [`QpAttr::timeout`].
    pub timeout: u8,
}

impl QpAttr {
    /// Which attributes are set.
    pub fn mask(&self) -> QpAttrMask {
        self.to_abi().mask()
    }

    /// The command that sets them.
    #[inline]
    pub(crate) fn command(&self, qp: QpHandle, driver: DriverData) -> ModifyQp {
        let mut command = ModifyQp {
            base: self.to_abi(),
            driver,
        };
        command.base.qp_handle = qp.0;
        command
    }

    /// The attributes in the kernel's form, without the queue pair's handle, which is filled in later.
    pub(crate) fn to_abi(&self) -> abi::ModifyQp {
        let mut raw = abi::ModifyQp::default();
        self.put_into(&mut raw);
        raw
    }

    // A function of its own: this way the compiler skips attributes that are not set, as most are, instead of
    // selecting zeros.
    #[inline(never)]
    fn put_into(&self, raw: &mut abi::ModifyQp) {
        use QpAttrMask as Mask;
        let mut set = Set(Mask::empty());
        set.put(Mask::STATE, self.state, |it| raw.qp_state = narrow(it.0));
        set.put(Mask::CUR_STATE, self.cur_state, |it| {
            raw.cur_qp_state = narrow(it.0);
        });
        set.put(Mask::EN_SQD_ASYNC_NOTIFY, self.sqd_async_notify, |it| {
            raw.en_sqd_async_notify = it.into();
        });
        set.put(Mask::ACCESS_FLAGS, self.access, |it| {
            raw.qp_access_flags = it.bits();
        });
        set.put(Mask::PKEY_INDEX, self.pkey_index, |it| raw.pkey_index = it);
        set.put(Mask::PORT, self.port, |it| raw.port_num = it);
        set.put(Mask::QKEY, self.qkey, |it| raw.qkey = it);
        set.put(Mask::AV, self.path.as_ref(), |it| raw.dest = dest(it));
        set.put(Mask::PATH_MTU, self.path_mtu, |it| {
            raw.path_mtu = narrow(it.0);
        });
        set.put(Mask::TIMEOUT, self.timeout, |it| raw.timeout = it);
        set.put(Mask::RETRY_CNT, self.retry_cnt, |it| raw.retry_cnt = it);
        set.put(Mask::RNR_RETRY, self.rnr_retry, |it| raw.rnr_retry = it);
        set.put(Mask::RQ_PSN, self.rq_psn, |it| raw.rq_psn = it);
        set.put(Mask::MAX_QP_RD_ATOMIC, self.max_rd_atomic, |it| {
            raw.max_rd_atomic = it;
        });
        set.put(Mask::MAX_DEST_RD_ATOMIC, self.max_dest_rd_atomic, |it| {
            raw.max_dest_rd_atomic = it;
        });
        set.put(Mask::ALT_PATH, self.alt_path.as_ref(), |it| {
            raw.alt_dest = dest(&it.path);
            raw.alt_pkey_index = it.pkey_index;
            raw.alt_port_num = it.port;
            raw.alt_timeout = it.timeout;
        });
        set.put(Mask::MIN_RNR_TIMER, self.min_rnr_timer, |it| {
            raw.min_rnr_timer = it;
        });
        set.put(Mask::SQ_PSN, self.sq_psn, |it| raw.sq_psn = it);
        set.put(Mask::PATH_MIG_STATE, self.path_mig_state, |it| {
            raw.path_mig_state = narrow(it.0);
        });
        set.put(Mask::DEST_QPN, self.dest_qpn, |it| raw.dest_qp_num = it);
        raw.attr_mask = set.0.bits();
    }
}

/// A number for a field of 8 bits. One that does not fit becomes 255, a value that the kernel does not know:
/// cut off, 256 would be the state RESET.
pub(crate) fn narrow(number: u32) -> u8 {
    u8::try_from(number).unwrap_or(u8::MAX)
}

/// Which attributes are set.
struct Set(QpAttrMask);

impl Set {
    /// Puts an attribute into its place if it is set.
    #[inline(always)]
    fn put<T>(&mut self, attribute: QpAttrMask, value: Option<T>, put: impl FnOnce(T)) {
        if let Some(value) = value {
            self.0 |= attribute;
            put(value);
        }
    }
}

/// A change in the kernel's form.
pub(crate) trait Change {
    /// Which attributes.
    fn mask(&self) -> QpAttrMask;
    /// The state to go to.
    fn state(&self) -> Option<QpState>;
    /// The state that the queue pair is in, if the caller says so.
    fn cur_state(&self) -> Option<QpState>;
    /// The path to the peer.
    fn path(&self) -> Option<AddressVector>;

    /// Refuses what a queue pair of this transport does not take in the state `from`.
    ///
    /// # Errors
    ///
    /// The text names what does not exist, is missing, or is too much.
    fn check(
        &self,
        subject: impl FnOnce() -> Subject,
        transport: QpType,
        from: QpState,
    ) -> Result<()>;
}

impl Change for abi::ModifyQp {
    fn mask(&self) -> QpAttrMask {
        QpAttrMask::from_bits_retain(self.attr_mask)
    }

    fn state(&self) -> Option<QpState> {
        let is_set = self.mask().contains(QpAttrMask::STATE);
        is_set.then(|| QpState(self.qp_state.into()))
    }

    fn cur_state(&self) -> Option<QpState> {
        let is_set = self.mask().contains(QpAttrMask::CUR_STATE);
        is_set.then(|| QpState(self.cur_qp_state.into()))
    }

    fn path(&self) -> Option<AddressVector> {
        let is_set = self.mask().contains(QpAttrMask::AV);
        is_set.then(|| path(&self.dest))
    }

    fn check(
        &self,
        subject: impl FnOnce() -> Subject,
        transport: QpType,
        from: QpState,
    ) -> Result<()> {
        let to = self.state().unwrap_or(from);
        let checked = transition::check(transport, from, to, self.mask());
        if checked.is_ok() && has_short_numbers(self) {
            return Ok(());
        }
        let why = refusal(self, checked, transport, from, to);
        Err(Error::invalid(Verb::ModifyQp, subject(), why))
    }
}

/// Whether its numbers have no more bits than their fields. Numbers that are not set are 0.
pub(super) fn has_short_numbers(raw: &abi::ModifyQp) -> bool {
    numbers(raw).iter().all(Number::fits)
}

/// A number, and how many bits a device has for it. Drivers cut off the others.
struct Number {
    name: &'static str,
    value: u32,
    bits: u32,
}

impl Number {
    fn fits(&self) -> bool {
        self.value >> self.bits == 0
    }
}

/// The numbers whose fields are wider in the command than on the wire.
fn numbers(raw: &abi::ModifyQp) -> [Number; 8] {
    [
        ("rq_psn", raw.rq_psn, 24),
        ("sq_psn", raw.sq_psn, 24),
        ("dest_qpn", raw.dest_qp_num, 24),
        ("timeout", raw.timeout.into(), 5),
        ("retry_cnt", raw.retry_cnt.into(), 3),
        ("rnr_retry", raw.rnr_retry.into(), 3),
        ("min_rnr_timer", raw.min_rnr_timer.into(), 5),
        ("alt_path.timeout", raw.alt_timeout.into(), 5),
    ]
    .map(|(name, value, bits)| Number { name, value, bits })
}

/// Why a change is refused.
#[cold]
fn refusal(
    raw: &abi::ModifyQp,
    checked: Result<(), Refused>,
    transport: QpType,
    from: QpState,
    to: QpState,
) -> String {
    match checked {
        Ok(()) => long_number(raw),
        Err(Refused::NoTransition) => {
            let anew = transition::attributes(transport, QpState::RESET, to).is_some();
            format!(
                "{transport:?} has no transition from {from:?} to {to:?}{}",
                if anew { ": reset it first" } else { "" }
            )
        }
        Err(Refused::Attributes {
            missing,
            superfluous,
        }) => wrong_attributes(from, to, missing, superfluous),
    }
}

/// The number that has more bits than its field.
fn long_number(raw: &abi::ModifyQp) -> String {
    let numbers = numbers(raw);
    let long = numbers.iter().find(|number| !number.fits());
    long.map_or_else(String::new, |Number { name, value, bits }| {
        format!("{name} {value:#x} has more than {bits} bits")
    })
}

fn wrong_attributes(
    from: QpState,
    to: QpState,
    missing: QpAttrMask,
    superfluous: QpAttrMask,
) -> String {
    let mut text = format!("the transition from {from:?} to {to:?}");
    let mut separator = "";
    for (what, mask) in [(" lacks ", missing), (" does not take ", superfluous)] {
        if !mask.is_empty() {
            text.push_str(separator);
            text.push_str(what);
            let names: Vec<_> = mask.iter_names().map(|(name, _)| name).collect();
            text.push_str(&names.join(", "));
            separator = " and";
        }
    }
    text
}

/// A path in the form that the kernel takes for a QP.
#[inline]
pub(super) fn dest(path: &AddressVector) -> QpDest {
    QpDest {
        dgid: path.dgid.map_or([0; 16], |gid| gid.raw()),
        flow_label: path.flow_label,
        dlid: path.dlid,
        sgid_index: path.sgid_index,
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
        sl: path.sl,
        src_path_bits: path.src_path_bits,
        static_rate: path.static_rate,
        is_global: path.dgid.is_some().into(),
        port_num: path.port,
        ..Default::default()
    }
}

/// The attributes of a queue pair. Those that its transport does not have are 0.
///
/// Manual page: `ibv_query_qp(3)`.
#[doc(alias = "ibv_query_qp")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QpInfo {
    /// The state.
    pub state: QpState,
    /// True while the send queue drains.
    pub sq_draining: bool,
    /// What a connected peer may do.
    pub access: Access,
    /// Index of the partition key.
    pub pkey_index: u16,
    /// Local port, counted from 1.
    pub port: u8,
    /// The key that datagrams to this QP must carry.
    pub qkey: u32,
    /// The path to the peer.
    pub path: AddressVector,
    /// The largest packet on the path.
    pub path_mtu: Mtu,
    /// Acknowledgement timeout, coded as [`QpAttr::timeout`].
    pub timeout: u8,
    /// How often a request is sent again before it fails.
    pub retry_cnt: u8,
    /// How often it is sent again if the peer has no receive posted; 7 means forever.
    pub rnr_retry: u8,
    /// The packet sequence number that is expected next.
    pub rq_psn: u32,
    /// The packet sequence number that is sent next.
    pub sq_psn: u32,
    /// READs and atomics that may be in flight from this side.
    pub max_rd_atomic: u8,
    /// READs and atomics that may be in flight from the peer.
    pub max_dest_rd_atomic: u8,
    /// The pause that the peer should make if no receive is posted, as a code of 5 bits.
    pub min_rnr_timer: u8,
    /// The state of path migration.
    pub path_mig_state: MigState,
    /// The peer's QP number.
    pub dest_qpn: u32,
    /// True if every send request is signaled.
    pub sq_sig_all: bool,
    /// The capacities that the kernel reports.
    pub caps: Caps,
}

impl From<abi::QueryQpResp> for QpInfo {
    fn from(raw: abi::QueryQpResp) -> Self {
        Self {
            state: raw.qp_state.into(),
            sq_draining: raw.sq_draining != 0,
            access: Access::from_bits_retain(raw.qp_access_flags),
            pkey_index: raw.pkey_index,
            port: raw.port_num,
            qkey: raw.qkey,
            path: path(&raw.dest),
            path_mtu: raw.path_mtu.into(),
            timeout: raw.timeout,
            retry_cnt: raw.retry_cnt,
            rnr_retry: raw.rnr_retry,
            rq_psn: raw.rq_psn,
            sq_psn: raw.sq_psn,
            max_rd_atomic: raw.max_rd_atomic,
            max_dest_rd_atomic: raw.max_dest_rd_atomic,
            min_rnr_timer: raw.min_rnr_timer,
            path_mig_state: raw.path_mig_state.into(),
            dest_qpn: raw.dest_qp_num,
            sq_sig_all: raw.sq_sig_all != 0,
            caps: Caps {
                max_send_wr: raw.max_send_wr,
                max_recv_wr: raw.max_recv_wr,
                max_send_sge: raw.max_send_sge,
                max_recv_sge: raw.max_recv_sge,
                max_inline_data: raw.max_inline_data,
            },
        }
    }
}

fn path(raw: &QpDest) -> AddressVector {
    AddressVector {
        dgid: (raw.is_global != 0).then(|| Gid::new(raw.dgid)),
        flow_label: raw.flow_label,
        sgid_index: raw.sgid_index,
        hop_limit: raw.hop_limit,
        traffic_class: raw.traffic_class,
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
    fn a_wrong_set_is_refused_by_name() {
        let qp = Subject::numbered("QP", 3);
        let attr = QpAttr {
            state: Some(QpState::INIT),
            port: Some(1),
            qkey: Some(1),
            ..QpAttr::default()
        };
        let error = attr
            .to_abi()
            .check(|| qp, QpType::RC, QpState::RESET)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("lacks ACCESS_FLAGS, PKEY_INDEX and does not take QKEY"),
            "{error}"
        );
    }

    /// Would catch numbers that are cut off: soft-RoCE and ConnectX would take 32 for 0, which is 655 ms as a
    /// pause and forever as a timeout.
    #[test]
    fn numbers_beyond_their_fields_are_refused() {
        let to_rts = QpAttr {
            state: Some(QpState::RTS),
            timeout: Some(31),
            retry_cnt: Some(7),
            rnr_retry: Some(7),
            sq_psn: Some(0xff_ffff),
            max_rd_atomic: Some(1),
            ..QpAttr::default()
        };
        let refusal = |attr: QpAttr| {
            let checked =
                attr.to_abi()
                    .check(|| Subject::numbered("QP", 3), QpType::RC, QpState::RTR);
            checked.err().map(|error| error.to_string())
        };
        assert_eq!(refusal(to_rts.clone()), None);
        let beyond = [
            (
                QpAttr {
                    sq_psn: Some(1 << 24),
                    ..to_rts.clone()
                },
                "sq_psn 0x1000000 has more than 24 bits",
            ),
            (
                QpAttr {
                    timeout: Some(32),
                    ..to_rts.clone()
                },
                "timeout 0x20 has more than 5 bits",
            ),
            (
                QpAttr {
                    rnr_retry: Some(8),
                    ..to_rts.clone()
                },
                "rnr_retry 0x8 has more than 3 bits",
            ),
            (
                QpAttr {
                    min_rnr_timer: Some(32),
                    ..to_rts
                },
                "min_rnr_timer 0x20 has more than 5 bits",
            ),
        ];
        for (attr, why) in beyond {
            let refusal = refusal(attr).unwrap_or_default();
            assert!(refusal.contains(why), "{refusal}");
        }
    }

    /// Would catch a state that is cut off to RESET: the kernel would reset the queue pair, and the rings
    /// here would go on.
    #[test]
    fn a_state_that_does_not_fit_is_no_reset() {
        for state in [0x100, 0x103, u32::MAX] {
            let attr = QpAttr {
                state: Some(QpState(state)),
                ..QpAttr::default()
            };
            let checked =
                attr.to_abi()
                    .check(|| Subject::numbered("QP", 3), QpType::RC, QpState::RTS);
            assert!(checked.is_err(), "{state:#x}");
        }
    }

    #[test]
    fn the_mask_follows_from_the_fields() {
        assert_eq!(QpAttr::default().mask(), QpAttrMask::empty());
        let attr = QpAttr {
            qkey: Some(0),
            dest_qpn: Some(0),
            ..QpAttr::default()
        };
        assert_eq!(attr.mask(), QpAttrMask::QKEY | QpAttrMask::DEST_QPN);
        assert_eq!(attr.to_abi().attr_mask, attr.mask().bits());
    }
}
