//! What each side of a connection requests, and what the two agree on.

use uverbs_uapi::flags::Access;
use uverbs_uapi::rdma_cm::{ConnParam, PrivateData};

use crate::context::Context;
use crate::error::{Error, Result, Subject, Verb};
use crate::qp::QpAttr;

/// What this side of a connection requests.
///
/// The rest comes from the connection manager: the path, its MTU, packet sequence numbers and timeouts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Params {
    /// What the peer may do.
    pub access: Access,
    /// READs and atomics of the peer that this side serves at the same time; `None` for the device's limit.
    /// The connection gets the smaller number of both sides.
    pub responder_resources: Option<u8>,
    /// READs and atomics that this side has in flight at the same time; `None` for the device's limit. The
    /// connection gets the smaller number of both sides.
    pub initiator_depth: Option<u8>,
    /// How often a request is sent again before it fails; at most 7. The connecting side's value applies to
    /// both sides. On soft-RoCE 7 means forever.
    pub retry_cnt: u8,
    /// How often the *peer* sends again if this side has no receive posted; at most 7, which means forever.
    pub rnr_retry: u8,
    /// The pause that the peer should make if no receive is posted, as a code of 5 bits; see
    /// [`QpAttr::min_rnr_timer`](crate::qp::QpAttr::min_rnr_timer). The kernel proposes 0, which is 655 ms.
    pub min_rnr_timer: u8,
}

/// Like [`ConnectOptions::default`](crate::ConnectOptions): the peer may read, write and do atomics where the
/// memory allows it, with 6 retries, and endless retries while no receive is posted. READs and atomics are
/// limited only by the devices.
impl Default for Params {
    fn default() -> Self {
        Self {
            access: Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
            responder_resources: None,
            initiator_depth: None,
            retry_cnt: 6,
            rnr_retry: 7,
            min_rnr_timer: 12,
        }
    }
}

/// READs and atomics at the same time: those that this side serves, and those that it has in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Depths {
    pub(super) responder: u8,
    pub(super) initiator: u8,
}

impl Depths {
    /// The smaller number of both sides.
    pub(super) fn min(self, other: Self) -> Self {
        Self {
            responder: self.responder.min(other.responder),
            initiator: self.initiator.min(other.initiator),
        }
    }
}

impl Params {
    /// Refuses numbers that do not fit into their fields, of 3 and 5 bits: devices and the kernel would take
    /// others for them.
    pub(super) fn check(&self, verb: Verb, subject: &Subject) -> Result<()> {
        let fields = [
            ("retry_cnt", self.retry_cnt, 7),
            ("rnr_retry", self.rnr_retry, 7),
            ("min_rnr_timer", self.min_rnr_timer, 31),
        ];
        match fields.iter().find(|(_, value, most)| value > most) {
            Some((name, value, most)) => {
                let why = format!("{name} is {value}, and at most {most}");
                Err(Error::invalid(verb, subject.clone(), why))
            }
            None => Ok(()),
        }
    }

    /// The numbers that this side offers: the requested ones, within the device's limits.
    pub(super) fn depths(&self, context: &Context) -> Result<Depths> {
        let device = context.limits()?;
        let most = |limit: u32| u8::try_from(limit).unwrap_or(u8::MAX);
        let asked = Depths {
            responder: self.responder_resources.unwrap_or(u8::MAX),
            initiator: self.initiator_depth.unwrap_or(u8::MAX),
        };
        Ok(asked.min(Depths {
            responder: most(device.max_qp_rd_atom),
            initiator: most(device.max_qp_init_rd_atom),
        }))
    }

    /// The parameters that the peer gets.
    pub(super) fn wire(&self, qpn: u32, depths: Depths, data: (PrivateData, u8)) -> ConnParam {
        ConnParam {
            qp_num: qpn,
            private_data: data.0,
            private_data_len: data.1,
            responder_resources: depths.responder,
            initiator_depth: depths.initiator,
            retry_count: self.retry_cnt,
            rnr_retry_count: self.rnr_retry,
            valid: 1,
            ..ConnParam::default()
        }
    }

    /// The kernel's proposal for the transition to RTR, with what this side decides. The kernel proposes an
    /// access of its own, and the peer's numbers without this side's limits.
    pub(super) fn to_receive(&self, proposed: QpAttr, depths: Depths) -> QpAttr {
        QpAttr {
            access: Some(self.access),
            min_rnr_timer: proposed.min_rnr_timer.map(|_| self.min_rnr_timer),
            max_dest_rd_atomic: proposed
                .max_dest_rd_atomic
                .map(|peer| peer.min(depths.responder)),
            ..proposed
        }
    }

    /// The kernel's proposal for the transition to RTS, with what this side decides.
    pub(super) fn to_send(&self, proposed: QpAttr, depths: Depths) -> QpAttr {
        QpAttr {
            max_rd_atomic: proposed
                .max_rd_atomic
                .map(|peer| peer.min(depths.initiator)),
            ..proposed
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_peer_says_is_clamped() {
        let params = Params::default();
        let depths = Depths {
            responder: 4,
            initiator: 2,
        };
        let proposed = QpAttr {
            max_dest_rd_atomic: Some(16),
            max_rd_atomic: Some(1),
            min_rnr_timer: Some(0),
            access: Some(Access::LOCAL_WRITE),
            ..QpAttr::default()
        };
        let receive = params.to_receive(proposed.clone(), depths);
        assert_eq!(receive.max_dest_rd_atomic, Some(4));
        assert_eq!(receive.min_rnr_timer, Some(12));
        assert_eq!(receive.access, Some(params.access));
        let send = params.to_send(proposed, depths);
        assert_eq!(send.max_rd_atomic, Some(1));
        // Unreliable connections have neither of the two.
        let receive = params.to_receive(QpAttr::default(), depths);
        assert_eq!(
            (receive.max_dest_rd_atomic, receive.min_rnr_timer),
            (None, None)
        );
    }

    /// Catches numbers of which a device would take the lowest bits.
    #[test]
    fn what_does_not_fit_is_refused() {
        let refused = |params: Params| {
            let checked = params.check(Verb::Connect, &Subject::the("connection"));
            checked.err().map(|error| error.to_string())
        };
        let defaults = Params::default;
        assert_eq!(refused(defaults()), None);
        let most = Params {
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 31,
            ..defaults()
        };
        assert_eq!(refused(most.clone()), None);
        for (params, name) in [
            (
                Params {
                    retry_cnt: 8,
                    ..most.clone()
                },
                "retry_cnt is 8",
            ),
            (
                Params {
                    rnr_retry: 8,
                    ..most.clone()
                },
                "rnr_retry is 8",
            ),
            (
                Params {
                    min_rnr_timer: 32,
                    ..most.clone()
                },
                "min_rnr_timer is 32",
            ),
        ] {
            assert!(refused(params).unwrap().contains(name), "{name}");
        }
    }
}
