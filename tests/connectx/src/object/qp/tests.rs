//! Changes of the state: what is right passes, and each that is broken by one field is refused.

use super::*;
use crate::fixture::{self, create as made};
use crate::layout::{cqc, eqc};
use crate::object::{cq, eq};

/// A change: its command, what the context has, and the mask of optional parameters.
type Change<'a> = (u64, &'a [(Field, u64)], u64);

const INIT: Change<'_> = (0x502, &[(path::VHCA_PORT_NUM, 1)], 0);
const RTR: Change<'_> = (0x503, &[(qpc::MTU, 3), (qpc::LOG_MSG_MAX, 30)], 0);
const RTS: Change<'_> = (0x504, &[], 0);
const AGAIN: Change<'_> = (0x505, &[], 0);

/// A function with a queue pair without receives, of that kind of service.
fn world(service: u64) -> Result<(Function, u32), Status> {
    let mut function = fixture::function();
    let uar = function.objects.uars.insert(Default::default())?;
    let pd = function.objects.pds.insert(())?;
    let fields = [(eqc::LOG_EQ_SIZE, 4), (eqc::UAR_PAGE, uar.into())];
    let output = made(&mut function, eq::create, cmd::CONTEXT, &fields, &[0x1000])?;
    let fields = [
        (cqc::LOG_CQ_SIZE, 4),
        (cqc::C_EQN, cmd::OBJECT_8.get(&output)),
        (cqc::UAR_PAGE, uar.into()),
    ];
    let output = made(&mut function, cq::create, cmd::CONTEXT, &fields, &[0x2000])?;
    let fields = [
        (qpc::ST, service),
        (qpc::PD, pd.into()),
        (qpc::UAR_PAGE, uar.into()),
        (qpc::LOG_SQ_SIZE, 2),
        (qpc::CQN_SND, cmd::OBJECT.get(&output)),
        (qpc::RQ_TYPE, 3),
    ];
    let output = made(&mut function, create, cmd::QP_CONTEXT, &fields, &[0x3000])?;
    Ok((function, cmd::OBJECT.get32(&output)))
}

fn change(
    function: &mut Function,
    qpn: u32,
    (opcode, fields, mask): Change<'_>,
) -> Result<(), Status> {
    let mut input = vec![0; cmd::QP_CONTEXT + qpc::SIZE];
    cmd::OPCODE.set(&mut input, opcode);
    cmd::OBJECT.set(&mut input, qpn.into());
    cmd::OPT_PARAM_MASK.set(&mut input, mask);
    for (field, value) in fields {
        field.set(&mut input[cmd::QP_CONTEXT..], *value);
    }
    modify(function, &input, &mut [0; 16])
}

/// The last of some changes, of a queue pair of that kind of service.
fn last(service: u64, changes: &[Change<'_>]) -> Result<(), Status> {
    let (mut function, qpn) = world(service)?;
    let (last, before) = changes.split_last().expect("a change");
    for step in before {
        assert_eq!(change(&mut function, qpn, *step), Ok(()), "{step:?}");
    }
    change(&mut function, qpn, *last)
}

const RC: u64 = 0;
const UC: u64 = 1;
const UD: u64 = 2;
const DCI: u64 = 5;

#[test]
fn a_change_has_what_it_must() {
    for service in [RC, UC, UD] {
        assert_eq!(last(service, &[INIT, RTR, RTS, AGAIN]), Ok(()));
    }
    let bad = Err(Status::BadParameter);
    for port in [0, 2] {
        assert_eq!(last(RC, &[(0x502, &[(path::VHCA_PORT_NUM, port)], 0)]), bad);
    }
    for (mtu, longest) in [(0, 30), (6, 30), (7, 30), (3, 31)] {
        let fields = [(qpc::MTU, mtu), (qpc::LOG_MSG_MAX, longest)];
        assert_eq!(last(RC, &[INIT, (0x503, &fields, 0)]), bad);
    }
}

#[test]
fn a_change_comes_in_its_state() {
    let bad = Err(Status::BadQpState);
    for wrong in [
        &[RTR][..],
        &[RTS],
        &[AGAIN],
        &[INIT, INIT],
        &[INIT, RTS],
        &[INIT, RTR, INIT],
        &[INIT, RTR, RTR],
        &[INIT, RTR, RTS, RTS],
    ] {
        assert_eq!(last(RC, wrong), bad, "{wrong:?}");
    }
}

#[test]
fn a_change_has_optional_parameters_of_its_own() {
    use optional::*;
    const COUNTERS: u64 = COUNTER_SET;
    let with = |change: Change<'static>, mask| -> Change<'static> { (change.0, change.1, mask) };
    for (service, before, then, right, wrong) in [
        (RC, &[][..], INIT, 0, RRE),
        (
            RC,
            &[INIT],
            (0x50e, &[][..], 0),
            RRE | RAE | RWE | PKEY_INDEX,
            PM_STATE,
        ),
        (RC, &[INIT], RTR, RRE | RAE | RWE | PKEY_INDEX, PM_STATE),
        (
            RC,
            &[INIT, RTR],
            RTS,
            RRE | RAE | RWE | PM_STATE | RNR_TIMEOUT,
            PKEY_INDEX,
        ),
        (
            RC,
            &[INIT, RTR, RTS],
            AGAIN,
            RRE | LAG_TX_AFFINITY | ALTERNATE_PATH,
            Q_KEY,
        ),
        (UC, &[INIT], RTR, RWE, RAE),
        (UC, &[INIT, RTR], RTS, RWE | PM_STATE, RNR_TIMEOUT),
        (UD, &[INIT], RTR, Q_KEY | PKEY_INDEX, RWE),
        (UD, &[INIT, RTR, RTS], AGAIN, Q_KEY, PKEY_INDEX),
        (DCI, &[INIT], RTR, RAE | PKEY_INDEX, RRE),
        (DCI, &[INIT, RTR], RTS, 0, RAE),
    ] {
        let run = |mask| last(service, &[before, &[with(then, mask)]].concat());
        assert_eq!(run(right | COUNTERS), Ok(()), "{then:?} of {service}");
        for bit in [wrong, 1 << 11, 1 << 31] {
            let refused = run(right | bit);
            assert_eq!(
                refused,
                Err(Status::BadParameter),
                "{then:?} of {service}: {bit:#x}"
            );
        }
    }
}
