//! Commands of receive memory pools: what is right passes, and each that is broken by one field is refused.

use super::*;
use crate::fixture::{self, create};
use crate::layout::{Field, cqc, eqc, qpc};
use crate::object::{cq, eq, qp};

/// A pool of four entries of 32 bytes in a page.
const RIGHT: [(Field, u64); 5] = [
    (rmp::STATE, 1),
    (rmp::PD, 1),
    (rmp::LOG_WQ_SZ, 2),
    (rmp::LOG_WQ_STRIDE, 5),
    (rmp::DBR_ADDR, 0x1000),
];
const CYCLIC: (Field, u64) = (rmp::WQ_TYPE, 1);
const BASIC: (Field, u64) = (rmp::BASIC_CYCLIC, 1);

/// A function with a protection domain, which has the number 1.
fn world() -> Function {
    let mut function = fixture::function();
    assert_eq!(function.objects.pds.insert(()), Ok(1));
    function
}

/// Makes a pool by a command of that context, with these fields besides.
fn made(function: &mut Function, uid: u64, besides: &[(Field, u64)]) -> Result<u32, Status> {
    let mut input = vec![0; cmd::PAS];
    cmd::UID.set(&mut input, uid);
    for (field, value) in [&RIGHT, besides].concat() {
        field.set(&mut input[cmd::RMP_CONTEXT..], value);
    }
    input.extend(0x2000_u64.to_be_bytes());
    let mut output = [0; 16];
    create_rmp(function, &input, &mut output)?;
    Ok(cmd::OBJECT.get32(&output))
}

#[test]
fn what_is_broken_is_refused() {
    let mut function = world();
    for right in [
        &[][..],
        &[CYCLIC],
        &[CYCLIC, BASIC],
        &[CYCLIC, BASIC, (rmp::LOG_WQ_STRIDE, 4)],
        &[(rmp::LOG_WQ_SZ, 7)],
    ] {
        assert!(made(&mut function, 0, right).is_ok(), "{right:?}");
    }
    let bad = Status::BadParameter;
    for (wrong, status) in [
        // Those that have several messages in an entry.
        (&[(rmp::WQ_TYPE, 2)][..], bad),
        (&[(rmp::WQ_TYPE, 3)], bad),
        (&[BASIC], bad),
        (&[(rmp::STATE, 0)], bad),
        (&[(rmp::STATE, 2)], bad),
        (&[(rmp::STATE, 3)], bad),
        (&[(rmp::LOG_WQ_STRIDE, 4)], bad),
        (&[CYCLIC, (rmp::LOG_WQ_STRIDE, 4)], bad),
        (&[CYCLIC, BASIC, (rmp::LOG_WQ_STRIDE, 3)], bad),
        (&[(rmp::LOG_WQ_STRIDE, 13)], bad),
        (&[(rmp::LOG_WQ_SZ, 8)], bad),
        (&[(rmp::LOG_WQ_SZ, 16)], bad),
        (&[(rmp::PD, 2)], Status::BadResource),
    ] {
        assert_eq!(made(&mut function, 0, wrong), Err(status), "{wrong:?}");
    }
}

/// A change of a pool by a command of that context: the state that it is said to be in, the next, and the
/// mask. The limit is 3.
fn changed(
    function: &mut Function,
    (number, uid): (u32, u64),
    (from, to, mask): (u64, u64, u64),
) -> Result<(), Status> {
    let mut input = vec![0; cmd::PAS];
    cmd::UID.set(&mut input, uid);
    cmd::OBJECT.set(&mut input, number.into());
    cmd::RMP_STATE.set(&mut input, from);
    cmd::RMP_BITMASK.set(&mut input, mask);
    let context = &mut input[cmd::RMP_CONTEXT..];
    rmp::STATE.set(context, to);
    rmp::LWM.set(context, 3);
    modify_rmp(function, &input, &mut [])
}

/// What a pool's context says of state and limit.
fn told(function: &mut Function, number: u32) -> Result<(u64, u64), Status> {
    let mut input = [0; 16];
    cmd::OBJECT.set(&mut input, number.into());
    let mut output = [0; cmd::PAS];
    query_rmp(function, &input, &mut output)?;
    let context = &output[cmd::RMP_CONTEXT..];
    Ok((rmp::STATE.get(context), rmp::LWM.get(context)))
}

#[test]
fn a_change_is_from_the_state_and_of_what_its_mask_names() -> Result<(), Status> {
    const READY: u64 = State::Ready as u64;
    const ERROR: u64 = State::Error as u64;
    let mut function = world();
    let number = made(&mut function, 0, &[])?;
    let by_driver = (number, 0);
    for (wrong, status) in [
        ((ERROR, READY, 1), Status::BadResourceState),
        ((READY, 2, 1), Status::BadParameter),
        ((0, READY, 1), Status::BadParameter),
        ((READY, READY, 2), Status::BadParameter),
        ((READY, READY, 1 << 63), Status::BadParameter),
    ] {
        let refused = changed(&mut function, by_driver, wrong);
        assert_eq!(refused, Err(status), "{wrong:?}");
    }
    changed(&mut function, by_driver, (READY, READY, 0))?;
    assert_eq!(told(&mut function, number), Ok((READY, 0)));
    changed(&mut function, by_driver, (READY, READY, 1))?;
    assert_eq!(told(&mut function, number), Ok((READY, 3)));
    changed(&mut function, by_driver, (READY, ERROR, 0))?;
    assert_eq!(told(&mut function, number), Ok((ERROR, 3)));
    let again = changed(&mut function, by_driver, (ERROR, READY, 0));
    assert_eq!(again, Err(Status::BadResourceState));
    Ok(())
}

/// Makes a queue pair that receives from a pool, by a command of that context.
fn queue_pair(function: &mut Function, uid: u64, pool: u32, cqn: u64) -> Result<(), Status> {
    let mut input = vec![0; cmd::PAS];
    cmd::UID.set(&mut input, uid);
    for (field, value) in [
        (qpc::PD, 1),
        (qpc::NO_SQ, 1),
        (qpc::RQ_TYPE, 1),
        (qpc::SRQN_RMPN_XRQN, pool.into()),
        (qpc::CQN_RCV, cqn),
    ] {
        field.set(&mut input[cmd::QP_CONTEXT..], value);
    }
    qp::create(function, &input, &mut [0; 16])
}

#[test]
fn a_pool_is_of_one_context() -> Result<(), Status> {
    let mut function = world();
    let uar = function.objects.uars.insert(Default::default())?;
    let fields = [(eqc::LOG_EQ_SIZE, 4), (eqc::UAR_PAGE, uar.into())];
    let output = create(&mut function, eq::create, cmd::CONTEXT, &fields, &[0x3000])?;
    let fields = [
        (cqc::LOG_CQ_SIZE, 4),
        (cqc::C_EQN, cmd::OBJECT_8.get(&output)),
        (cqc::UAR_PAGE, uar.into()),
    ];
    let output = create(&mut function, cq::create, cmd::CONTEXT, &fields, &[0x4000])?;
    let cqn = cmd::OBJECT.get(&output);
    let contexts = &mut function.objects.contexts;
    let [owner, other] = [contexts.insert(())?, contexts.insert(())?].map(u64::from);
    let number = made(&mut function, owner, &[CYCLIC])?;
    let bad = Err(Status::BadResource);
    assert_eq!(changed(&mut function, (number, other), (1, 1, 1)), bad);
    assert_eq!(changed(&mut function, (number, owner), (1, 1, 1)), Ok(()));
    assert_eq!(queue_pair(&mut function, other, number, cqn), bad);
    assert_eq!(queue_pair(&mut function, owner, number, cqn), Ok(()));
    let mut input = [0; 16];
    cmd::OBJECT.set(&mut input, number.into());
    cmd::UID.set(&mut input, other);
    assert_eq!(destroy_rmp(&mut function, &input, &mut []), bad);
    assert_eq!(query_rmp(&mut function, &input, &mut [0; cmd::PAS]), bad);
    cmd::UID.set(&mut input, owner);
    let busy = destroy_rmp(&mut function, &input, &mut []);
    assert_eq!(busy, Err(Status::ResourceBusy));
    let unused = made(&mut function, owner, &[])?;
    cmd::OBJECT.set(&mut input, unused.into());
    assert_eq!(destroy_rmp(&mut function, &input, &mut []), Ok(()));
    assert_eq!(destroy_rmp(&mut function, &input, &mut []), bad);
    Ok(())
}
