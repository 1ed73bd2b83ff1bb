//! Which attributes each state transition needs and takes, so that a wrong set is refused by name instead of
//! with EINVAL.
//!
//! Source: the InfiniBand specification, volume 1, section 11.2.5.2, as in `ib_modify_qp_is_ok` in
//! `drivers/infiniband/core/verbs.c`; for a device's own type `srd_qp_state_table` in
//! `drivers/infiniband/hw/efa/efa_verbs.c`.

use uverbs_uapi::enums::{QpState, QpType};
use uverbs_uapi::flags::QpAttrMask;

/// The attributes of one transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub(crate) required: QpAttrMask,
    pub(crate) optional: QpAttrMask,
}

const NONE: QpAttrMask = QpAttrMask::empty();

/// Attributes that every transition takes: the states themselves.
const STATES: QpAttrMask = QpAttrMask::STATE.union(QpAttrMask::CUR_STATE);

/// The attributes of the transition, or `None` if there is no such transition.
pub(crate) fn attributes(transport: QpType, from: QpState, to: QpState) -> Option<Attributes> {
    let (required, optional) = match (from, to) {
        (_, QpState::RESET | QpState::ERR) => (NONE, NONE),
        (QpState::RESET, QpState::INIT) => (initial(transport), NONE),
        (QpState::INIT, QpState::INIT) => (NONE, initial(transport)),
        (QpState::INIT, QpState::RTR) => (to_receive(transport), to_receive_optional(transport)),
        (QpState::RTR, QpState::RTS) => (to_send(transport), to_send_optional(transport)),
        (QpState::RTS, QpState::RTS) | (QpState::SQD, QpState::RTS) => {
            (NONE, while_sending(transport))
        }
        (QpState::SQE, QpState::RTS)
            if matches!(transport, QpType::UC | QpType::UD | QpType::DRIVER) =>
        {
            (NONE, after_send_error(transport))
        }
        (QpState::RTS, QpState::SQD) => (NONE, QpAttrMask::EN_SQD_ASYNC_NOTIFY),
        (QpState::SQD, QpState::SQD) => (NONE, while_drained(transport)),
        _ => return None,
    };
    Some(Attributes { required, optional })
}

/// The state and the attributes that the transition needs, if there is such a transition.
#[inline]
pub(super) fn needed(transport: QpType, from: QpState, to: QpState) -> QpAttrMask {
    let attributes = attributes(transport, from, to);
    QpAttrMask::STATE | attributes.map_or(NONE, |attributes| attributes.required)
}

/// What is wrong with a set of attributes for a transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    NoTransition,
    Attributes {
        missing: QpAttrMask,
        superfluous: QpAttrMask,
    },
}

/// Checks a set of attributes against the transition.
pub(crate) fn check(
    transport: QpType,
    from: QpState,
    to: QpState,
    given: QpAttrMask,
) -> Result<(), Refused> {
    let Attributes { required, optional } =
        attributes(transport, from, to).ok_or(Refused::NoTransition)?;
    let missing = required.difference(given);
    let superfluous = given.difference(required | optional | STATES);
    if missing.is_empty() && superfluous.is_empty() {
        return Ok(());
    }
    Err(Refused::Attributes {
        missing,
        superfluous,
    })
}

fn initial(transport: QpType) -> QpAttrMask {
    let port = QpAttrMask::PKEY_INDEX | QpAttrMask::PORT;
    match transport {
        QpType::UD | QpType::DRIVER => port | QpAttrMask::QKEY,
        QpType::RAW_PACKET => QpAttrMask::PORT,
        _ => port | QpAttrMask::ACCESS_FLAGS,
    }
}

fn to_receive(transport: QpType) -> QpAttrMask {
    let path = QpAttrMask::AV | QpAttrMask::PATH_MTU | QpAttrMask::DEST_QPN | QpAttrMask::RQ_PSN;
    match transport {
        QpType::UD | QpType::DRIVER | QpType::RAW_PACKET => NONE,
        QpType::UC | QpType::XRC_SEND => path,
        _ => path | QpAttrMask::MAX_DEST_RD_ATOMIC | QpAttrMask::MIN_RNR_TIMER,
    }
}

fn to_receive_optional(transport: QpType) -> QpAttrMask {
    match transport {
        QpType::UD | QpType::DRIVER => QpAttrMask::PKEY_INDEX | QpAttrMask::QKEY,
        QpType::RAW_PACKET => NONE,
        _ => QpAttrMask::ALT_PATH | QpAttrMask::ACCESS_FLAGS | QpAttrMask::PKEY_INDEX,
    }
}

fn to_send(transport: QpType) -> QpAttrMask {
    match transport {
        QpType::RAW_PACKET => NONE,
        QpType::XRC_RECV => QpAttrMask::SQ_PSN | QpAttrMask::TIMEOUT,
        QpType::RC | QpType::XRC_SEND => {
            QpAttrMask::SQ_PSN
                | QpAttrMask::TIMEOUT
                | QpAttrMask::RETRY_CNT
                | QpAttrMask::RNR_RETRY
                | QpAttrMask::MAX_QP_RD_ATOMIC
        }
        _ => QpAttrMask::SQ_PSN,
    }
}

/// A device's own datagrams are acknowledged, so a receiver that is not ready is tried again.
fn to_send_optional(transport: QpType) -> QpAttrMask {
    match transport {
        QpType::DRIVER => QpAttrMask::QKEY | QpAttrMask::RNR_RETRY,
        _ => while_sending(transport),
    }
}

fn while_sending(transport: QpType) -> QpAttrMask {
    let connected = QpAttrMask::ALT_PATH | QpAttrMask::ACCESS_FLAGS | QpAttrMask::PATH_MIG_STATE;
    match transport {
        QpType::UD | QpType::DRIVER => QpAttrMask::QKEY,
        QpType::RAW_PACKET => QpAttrMask::empty(),
        QpType::UC | QpType::XRC_SEND => connected,
        _ => connected | QpAttrMask::MIN_RNR_TIMER,
    }
}

fn after_send_error(transport: QpType) -> QpAttrMask {
    match transport {
        QpType::UD | QpType::DRIVER => QpAttrMask::QKEY,
        _ => QpAttrMask::ACCESS_FLAGS,
    }
}

fn while_drained(transport: QpType) -> QpAttrMask {
    let connected = QpAttrMask::AV
        | QpAttrMask::ALT_PATH
        | QpAttrMask::ACCESS_FLAGS
        | QpAttrMask::PKEY_INDEX
        | QpAttrMask::PATH_MIG_STATE;
    match transport {
        QpType::UD | QpType::DRIVER => QpAttrMask::PKEY_INDEX | QpAttrMask::QKEY,
        QpType::RAW_PACKET => NONE,
        QpType::UC => connected,
        QpType::XRC_SEND => {
            connected
                | QpAttrMask::PORT
                | QpAttrMask::TIMEOUT
                | QpAttrMask::RETRY_CNT
                | QpAttrMask::RNR_RETRY
                | QpAttrMask::MAX_QP_RD_ATOMIC
        }
        QpType::XRC_RECV => {
            connected
                | QpAttrMask::PORT
                | QpAttrMask::TIMEOUT
                | QpAttrMask::MAX_DEST_RD_ATOMIC
                | QpAttrMask::MIN_RNR_TIMER
        }
        _ => {
            connected
                | QpAttrMask::PORT
                | QpAttrMask::TIMEOUT
                | QpAttrMask::RETRY_CNT
                | QpAttrMask::RNR_RETRY
                | QpAttrMask::MAX_QP_RD_ATOMIC
                | QpAttrMask::MAX_DEST_RD_ATOMIC
                | QpAttrMask::MIN_RNR_TIMER
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [QpState; 7] = [
        QpState::RESET,
        QpState::INIT,
        QpState::RTR,
        QpState::RTS,
        QpState::SQD,
        QpState::SQE,
        QpState::ERR,
    ];

    #[test]
    fn every_state_can_be_left_for_error_and_reset() {
        for transport in [QpType::RC, QpType::UC, QpType::UD] {
            for from in STATES {
                for to in [QpState::RESET, QpState::ERR] {
                    assert_eq!(check(transport, from, to, QpAttrMask::STATE), Ok(()));
                }
            }
        }
    }

    #[test]
    fn states_cannot_be_skipped() {
        for (from, to) in [
            (QpState::RESET, QpState::RTR),
            (QpState::INIT, QpState::RTS),
            (QpState::ERR, QpState::RTS),
        ] {
            assert_eq!(
                check(QpType::RC, from, to, QpAttrMask::STATE),
                Err(Refused::NoTransition)
            );
        }
        assert!(attributes(QpType::RC, QpState::SQE, QpState::RTS).is_none());
        assert!(attributes(QpType::UD, QpState::SQE, QpState::RTS).is_some());
    }

    /// Would catch a device's own datagrams that need a path, or lack the retries that datagrams have not.
    #[test]
    fn reliable_datagrams_take_no_path_and_retry() {
        let steps = [
            (
                QpState::RESET,
                QpState::INIT,
                QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::QKEY,
            ),
            (QpState::INIT, QpState::RTR, NONE),
            (
                QpState::RTR,
                QpState::RTS,
                QpAttrMask::SQ_PSN | QpAttrMask::RNR_RETRY,
            ),
            (QpState::SQE, QpState::RTS, NONE),
        ];
        for (from, to, given) in steps {
            let given = given | QpAttrMask::STATE;
            assert_eq!(check(QpType::DRIVER, from, to, given), Ok(()));
        }
        let given = QpAttrMask::STATE | QpAttrMask::SQ_PSN | QpAttrMask::RNR_RETRY;
        assert!(check(QpType::UD, QpState::RTR, QpState::RTS, given).is_err());
        let given = QpAttrMask::STATE | QpAttrMask::AV;
        assert!(check(QpType::DRIVER, QpState::INIT, QpState::RTR, given).is_err());
    }

    #[test]
    fn the_halves_of_xrc_take_what_is_theirs() {
        let psn = QpAttrMask::STATE | QpAttrMask::SQ_PSN | QpAttrMask::TIMEOUT;
        let (from, to) = (QpState::RTR, QpState::RTS);
        assert_eq!(check(QpType::XRC_RECV, from, to, psn), Ok(()));
        assert!(check(QpType::XRC_SEND, from, to, psn).is_err());
        let port = QpAttrMask::STATE | QpAttrMask::PORT;
        let (from, to) = (QpState::RESET, QpState::INIT);
        assert_eq!(check(QpType::RAW_PACKET, from, to, port), Ok(()));
    }

    #[test]
    fn names_what_is_missing_and_what_is_too_much() {
        let given = QpAttrMask::STATE | QpAttrMask::PORT | QpAttrMask::QKEY;
        assert_eq!(
            check(QpType::RC, QpState::RESET, QpState::INIT, given),
            Err(Refused::Attributes {
                missing: QpAttrMask::PKEY_INDEX | QpAttrMask::ACCESS_FLAGS,
                superfluous: QpAttrMask::QKEY,
            })
        );
    }
}
