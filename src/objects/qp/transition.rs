//! Which attributes each state transition needs and takes, so that a wrong set is refused by name instead of
//! with EINVAL.
//!
//! Source: the InfiniBand specification, volume 1, section 11.2.5.2, as in `ib_modify_qp_is_ok` in
//! `drivers/infiniband/core/verbs.c`; for a device's own type `srd_qp_state_table` in
//! `drivers/infiniband/hw/efa/efa_verbs.c`; for initiators of dynamic connections `modify_dci_qp_is_ok` in
//! `drivers/infiniband/hw/mlx5/qp.c`.

use uverbs_uapi::enums::{QpState, QpType};
use uverbs_uapi::flags::QpAttrMask;

/// The attributes of one transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub(crate) required: QpAttrMask,
    pub(crate) optional: QpAttrMask,
}

const NONE: QpAttrMask = QpAttrMask::empty();

/// The attributes of the transition, or `None` if there is no such transition.
pub(crate) fn attributes(transport: QpType, from: QpState, to: QpState) -> Option<Attributes> {
    if transport == QpType::DCI {
        return of_initiator(from, to);
    }
    let (required, optional) = match (from, to) {
        (QpState::RESET, QpState::ERR) => return None,
        (_, QpState::RESET | QpState::ERR) => (NONE, NONE),
        (QpState::RESET, QpState::INIT) => (initial(transport), NONE),
        (QpState::INIT, QpState::INIT) => (NONE, initial(transport)),
        (QpState::INIT, QpState::RTR) => (to_receive(transport), to_receive_optional(transport)),
        (QpState::RTR, QpState::RTS) => (to_send(transport), to_send_optional(transport)),
        (QpState::RTS, QpState::RTS) => (NONE, while_sending(transport)),
        (QpState::SQD, QpState::RTS) => (NONE, to_send_again(transport)),
        (QpState::SQE, QpState::RTS) => (NONE, after_send_error(transport)),
        (QpState::RTS, QpState::SQD) => (NONE, to_drain(transport)),
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
    let superfluous = given.difference(required | optional | QpAttrMask::STATE);
    if missing.is_empty() && superfluous.is_empty() {
        return Ok(());
    }
    Err(Refused::Attributes {
        missing,
        superfluous,
    })
}

/// The transitions of an initiator of dynamic connections, which has no peer and receives nothing.
fn of_initiator(from: QpState, to: QpState) -> Option<Attributes> {
    let port = QpAttrMask::PKEY_INDEX | QpAttrMask::PORT;
    let sends = QpAttrMask::SQ_PSN
        | QpAttrMask::TIMEOUT
        | QpAttrMask::RETRY_CNT
        | QpAttrMask::RNR_RETRY
        | QpAttrMask::MAX_QP_RD_ATOMIC;
    let (required, optional) = match (from, to) {
        (QpState::RESET, QpState::ERR) => return None,
        (_, QpState::RESET | QpState::ERR) => (NONE, NONE),
        (QpState::RESET, QpState::INIT) => (port, NONE),
        (QpState::INIT, QpState::INIT) => (NONE, port),
        (QpState::INIT, QpState::RTR) => (
            QpAttrMask::PATH_MTU,
            QpAttrMask::PKEY_INDEX | QpAttrMask::AV,
        ),
        (QpState::RTR, QpState::RTS) => (sends, QpAttrMask::MIN_RNR_TIMER),
        (QpState::RTS, QpState::RTS) => (NONE, QpAttrMask::MIN_RNR_TIMER),
        _ => return None,
    };
    Some(Attributes { required, optional })
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

/// A device's own datagrams are acknowledged, so a send to a receiver that is not ready is repeated.
fn to_send_optional(transport: QpType) -> QpAttrMask {
    match transport {
        QpType::DRIVER => while_sending(transport) | QpAttrMask::RNR_RETRY,
        _ => while_sending(transport),
    }
}

fn while_sending(transport: QpType) -> QpAttrMask {
    let connected = QpAttrMask::CUR_STATE
        | QpAttrMask::ALT_PATH
        | QpAttrMask::ACCESS_FLAGS
        | QpAttrMask::PATH_MIG_STATE;
    match transport {
        QpType::UD | QpType::DRIVER => QpAttrMask::CUR_STATE | QpAttrMask::QKEY,
        QpType::RAW_PACKET => QpAttrMask::RATE_LIMIT,
        QpType::UC | QpType::XRC_SEND => connected,
        _ => connected | QpAttrMask::MIN_RNR_TIMER,
    }
}

fn to_drain(transport: QpType) -> QpAttrMask {
    match transport {
        QpType::RAW_PACKET => NONE,
        _ => QpAttrMask::EN_SQD_ASYNC_NOTIFY,
    }
}

fn to_send_again(transport: QpType) -> QpAttrMask {
    match transport {
        QpType::RAW_PACKET => NONE,
        _ => while_sending(transport),
    }
}

/// Reliable queue pairs never come to this state, but the kernel knows a way back from it.
fn after_send_error(transport: QpType) -> QpAttrMask {
    match transport {
        QpType::UD | QpType::DRIVER => QpAttrMask::CUR_STATE | QpAttrMask::QKEY,
        QpType::UC => QpAttrMask::CUR_STATE | QpAttrMask::ACCESS_FLAGS,
        _ => NONE,
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

    const TRANSPORTS: [(&str, QpType); 8] = [
        ("RC", QpType::RC),
        ("UC", QpType::UC),
        ("UD", QpType::UD),
        ("SRD", QpType::DRIVER),
        ("INI", QpType::XRC_SEND),
        ("TGT", QpType::XRC_RECV),
        ("RAW", QpType::RAW_PACKET),
        ("DCI", QpType::DCI),
    ];

    /// The transitions that take more than the state, as in the kernel's tables: for which transports, what
    /// is required, what is optional. A transport without a line takes only the state.
    const TABLE: &[(&str, &str, &str, &str)] = &[
        ("RESET INIT", "UD SRD", "PKEY_INDEX PORT QKEY", ""),
        ("RESET INIT", "RAW", "PORT", ""),
        ("RESET INIT", "DCI", "PKEY_INDEX PORT", ""),
        ("INIT INIT", "DCI", "", "PKEY_INDEX PORT"),
        ("INIT RTR", "DCI", "PATH_MTU", "AV PKEY_INDEX"),
        (
            "RTR RTS",
            "DCI",
            "TIMEOUT RETRY_CNT RNR_RETRY SQ_PSN MAX_QP_RD_ATOMIC",
            "MIN_RNR_TIMER",
        ),
        ("RTS RTS", "DCI", "", "MIN_RNR_TIMER"),
        (
            "RESET INIT",
            "RC UC INI TGT",
            "PKEY_INDEX PORT ACCESS_FLAGS",
            "",
        ),
        ("INIT INIT", "UD SRD", "", "PKEY_INDEX PORT QKEY"),
        ("INIT INIT", "RAW", "", "PORT"),
        (
            "INIT INIT",
            "RC UC INI TGT",
            "",
            "PKEY_INDEX PORT ACCESS_FLAGS",
        ),
        ("INIT RTR", "UD SRD", "", "PKEY_INDEX QKEY"),
        (
            "INIT RTR",
            "UC INI",
            "AV PATH_MTU DEST_QPN RQ_PSN",
            "ALT_PATH ACCESS_FLAGS PKEY_INDEX",
        ),
        (
            "INIT RTR",
            "RC TGT",
            "AV PATH_MTU DEST_QPN RQ_PSN MAX_DEST_RD_ATOMIC MIN_RNR_TIMER",
            "ALT_PATH ACCESS_FLAGS PKEY_INDEX",
        ),
        ("RTR RTS", "UD", "SQ_PSN", "CUR_STATE QKEY"),
        ("RTR RTS", "SRD", "SQ_PSN", "CUR_STATE QKEY RNR_RETRY"),
        ("RTR RTS", "RAW", "", "RATE_LIMIT"),
        (
            "RTR RTS",
            "UC",
            "SQ_PSN",
            "CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE",
        ),
        (
            "RTR RTS",
            "INI",
            "TIMEOUT RETRY_CNT RNR_RETRY SQ_PSN MAX_QP_RD_ATOMIC",
            "CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE",
        ),
        (
            "RTR RTS",
            "RC",
            "TIMEOUT RETRY_CNT RNR_RETRY SQ_PSN MAX_QP_RD_ATOMIC",
            "CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE MIN_RNR_TIMER",
        ),
        (
            "RTR RTS",
            "TGT",
            "TIMEOUT SQ_PSN",
            "CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE MIN_RNR_TIMER",
        ),
        ("RTS RTS", "UD SRD", "", "CUR_STATE QKEY"),
        ("RTS RTS", "RAW", "", "RATE_LIMIT"),
        (
            "RTS RTS",
            "UC INI",
            "",
            "CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE",
        ),
        (
            "RTS RTS",
            "RC TGT",
            "",
            "CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE MIN_RNR_TIMER",
        ),
        ("RTS SQD", "RC UC UD SRD INI TGT", "", "EN_SQD_ASYNC_NOTIFY"),
        ("SQD RTS", "UD SRD", "", "CUR_STATE QKEY"),
        (
            "SQD RTS",
            "UC INI",
            "",
            "CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE",
        ),
        (
            "SQD RTS",
            "RC TGT",
            "",
            "CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE MIN_RNR_TIMER",
        ),
        ("SQD SQD", "UD SRD", "", "PKEY_INDEX QKEY"),
        (
            "SQD SQD",
            "UC",
            "",
            "AV ALT_PATH ACCESS_FLAGS PKEY_INDEX PATH_MIG_STATE",
        ),
        (
            "SQD SQD",
            "RC",
            "",
            "PORT AV TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC MAX_DEST_RD_ATOMIC ALT_PATH \
             ACCESS_FLAGS PKEY_INDEX MIN_RNR_TIMER PATH_MIG_STATE",
        ),
        (
            "SQD SQD",
            "INI",
            "",
            "PORT AV TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC ALT_PATH ACCESS_FLAGS \
             PKEY_INDEX PATH_MIG_STATE",
        ),
        (
            "SQD SQD",
            "TGT",
            "",
            "PORT AV TIMEOUT MAX_DEST_RD_ATOMIC ALT_PATH ACCESS_FLAGS PKEY_INDEX MIN_RNR_TIMER \
             PATH_MIG_STATE",
        ),
        ("SQE RTS", "UD SRD", "", "CUR_STATE QKEY"),
        ("SQE RTS", "UC", "", "CUR_STATE ACCESS_FLAGS"),
    ];

    fn mask(names: &str) -> QpAttrMask {
        names.split_whitespace().fold(NONE, |mask, name| {
            mask | QpAttrMask::from_name(name).unwrap()
        })
    }

    /// Which transitions exist, for every transport: to RESET and ERR, and those that are in the table.
    fn exists(called: &str, from: QpState, to: QpState) -> bool {
        // An initiator's send queue is neither drained nor repaired.
        let has = |transports: &str| called != "DCI" || transports.contains(called);
        match to {
            QpState::RESET => true,
            QpState::ERR => from != QpState::RESET,
            _ => TABLE.iter().any(|(states, transports, ..)| {
                *states == format!("{} {}", name(from), name(to)) && has(transports)
            }),
        }
    }

    fn name(state: QpState) -> &'static str {
        let names = ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"];
        names[STATES.iter().position(|of| *of == state).unwrap()]
    }

    /// Would catch any attribute of any transition that differs from the kernel's tables: `qp_state_table`,
    /// `srd_qp_state_table` for a device's own datagrams, and `modify_dci_qp_is_ok` for dynamic connections.
    #[test]
    fn transitions_are_those_of_the_kernel() {
        for (called, transport) in TRANSPORTS {
            for from in STATES {
                for to in STATES {
                    let states = format!("{} {}", name(from), name(to));
                    let line = TABLE.iter().find(|(of, transports, ..)| {
                        *of == states && transports.split(' ').any(|it| it == called)
                    });
                    let (required, optional) =
                        line.map_or((NONE, NONE), |line| (mask(line.2), mask(line.3)));
                    let expected =
                        exists(called, from, to).then_some(Attributes { required, optional });
                    let ours = attributes(transport, from, to);
                    assert_eq!(ours, expected, "{called} {states}");
                }
            }
        }
    }

    /// Would catch a check that accepts anything besides what is in the table.
    #[test]
    fn a_set_is_taken_if_it_has_what_is_required_and_nothing_unknown() {
        for (_, transport) in TRANSPORTS {
            for (from, to) in STATES.iter().flat_map(|from| STATES.map(|to| (*from, to))) {
                let Some(Attributes { required, optional }) = attributes(transport, from, to)
                else {
                    let refused = check(transport, from, to, QpAttrMask::STATE);
                    assert_eq!(refused, Err(Refused::NoTransition));
                    continue;
                };
                for all in [required, required | optional] {
                    assert_eq!(check(transport, from, to, all | QpAttrMask::STATE), Ok(()));
                }
                for bit in QpAttrMask::all()
                    .iter()
                    .filter(|bit| *bit != QpAttrMask::STATE)
                {
                    let (without, with) = (required.difference(bit), required | bit);
                    let complete = without == required;
                    assert_eq!(check(transport, from, to, without).is_ok(), complete);
                    let known = (required | optional).contains(bit);
                    assert_eq!(check(transport, from, to, with).is_ok(), known);
                }
            }
        }
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
