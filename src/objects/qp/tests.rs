//! Queue pairs and their halves, on the sample driver.

use std::mem;

use super::super::first_day::{QKEY, context, steps};
use super::transport::Srd;
use super::*;
use crate::ah::{AddressVector, Ah};
use crate::cq::Cq;
use crate::driver::samples;
use crate::mr::Mr;
use crate::pd::Pd;
use crate::work::{LocalKey, LocalSlice, RemoteKey, RemoteSlice};
use uverbs_uapi::flags::Access;

/// A queue pair in the state RTS, in a protection domain of its own, with room for `receives`.
struct Side {
    qp: Qp<Srd>,
    peer: Ah,
    region: Mr<Vec<u8>>,
    cq: Cq,
    _pd: Pd,
}

fn side(receives: u32) -> Side {
    let context = context(1);
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(2048).unwrap();
    let caps = Caps {
        max_recv_wr: receives,
        ..Caps::default()
    };
    let mut qp = pd.create_qp::<Srd>(&cq, caps).unwrap();
    for attr in steps() {
        qp.modify(&attr).unwrap();
    }
    Side {
        qp,
        peer: pd.create_ah(&AddressVector::local(1, 1)).unwrap(),
        region: pd.register(vec![0; 8], Access::LOCAL_WRITE).unwrap(),
        cq,
        _pd: pd,
    }
}

fn is_refused<T>(result: Result<T>) -> bool {
    let error = result.err().map(|error| error.to_string());
    error.is_some_and(|error| error.contains("they have been swapped"))
}

/// Would catch a ring that starts anew with the size of another: requests would then be written past its end.
#[test]
fn a_reset_needs_the_own_halves() {
    let [mut a, mut b] = [1024, 16].map(side);
    mem::swap(a.qp.halves().1, b.qp.halves().1);
    for side in [&mut a, &mut b] {
        assert!(is_refused(side.qp.reset()));
        assert_eq!(side.qp.state(), QpState::RTS);
    }
    mem::swap(a.qp.halves().1, b.qp.halves().1);
    mem::swap(a.qp.halves().0, b.qp.halves().0);
    for side in [&mut a, &mut b] {
        assert!(is_refused(side.qp.reset()));
    }
    mem::swap(a.qp.halves().0, b.qp.halves().0);
    for side in [&mut a, &mut b] {
        side.qp.reset().unwrap();
        assert_eq!(side.qp.state(), QpState::RESET);
    }
}

/// Would catch requests that name regions of one protection domain in a queue pair of another, which nobody
/// asks before these regions are deregistered.
#[test]
fn a_half_keeps_its_protection_domain() {
    let [mut a, mut b] = [16, 16].map(side);
    mem::swap(a.qp.halves().0, b.qp.halves().0);
    mem::swap(a.qp.halves().1, b.qp.halves().1);
    let Side {
        qp, peer, region, ..
    } = a;
    let mut any = qp.into_any();
    let foreign = Err(PostError::ForeignPd);
    for (peer, region, posted) in [(&peer, &region, foreign), (&b.peer, &b.region, Ok(1))] {
        let mut batch = any.batch();
        let request = batch.signaled(1).to(peer.to(1, QKEY));
        let sent = request.send(region.slice(..).unwrap());
        assert_eq!(sent.and_then(|()| batch.ring()), posted);
        let mut batch = any.recv_batch();
        let received = batch.post(1, region.slice(..).unwrap());
        assert_eq!(received.map(|()| batch.ring()), posted);
    }
    assert!(is_refused(any.reset()));
}

/// Would catch a queue pair that is destroyed, or handed over, while another posts to its rings.
#[test]
fn the_end_needs_the_own_halves() {
    let [mut a, mut b] = [16, 16].map(side);
    mem::swap(a.qp.halves().1, b.qp.halves().1);
    let Err(DestroyError { object, error }) = a.qp.destroy() else {
        panic!("destroyed with a half of another");
    };
    assert!(is_refused(Err::<(), _>(error)));
    // SAFETY: there is no agent.
    let Err(kept) = (unsafe { object.into_device::<Mr<Vec<u8>>>(a.cq, Vec::new()) }) else {
        panic!("handed over with a half of another");
    };
    let NotHandedOver { mut qp, error, .. } = *kept;
    assert!(is_refused(Err::<(), _>(error)));
    mem::swap(qp.halves().1, b.qp.halves().1);
    b.qp.reset().unwrap();
    qp.reset().unwrap();
}

/// Would catch READs that are posted although a change has taken them away: the device never completes them.
#[test]
fn a_change_takes_reads_away() {
    let (_kernel, file) = rustix::pipe::pipe().unwrap();
    let shared = shared::tests::shared(&Context::over(file), QpType::RC);
    let shared = Arc::new(shared);
    let queue = samples::send_queues().pop().unwrap();
    let mut qp = Qp::<Any> {
        send: SendHalf::new(queue, &shared, None),
        recv: RecvHalf::new(None, &shared),
        shared,
    };
    let change = QpAttr {
        max_rd_atomic: Some(0),
        ..QpAttr::default()
    };
    let slice = LocalSlice::new(0x1000, 8, LocalKey(1), qp.shared.tag());
    let remote = RemoteSlice {
        address: 0x2000,
        length: 8,
        rkey: RemoteKey(2),
    };
    assert_eq!(qp.one(1).read(slice, remote), Ok(()));
    qp.shared.store(QpState::SQD);
    let refused = qp.control().modify(&change).unwrap_err();
    assert!(refused.to_string().contains("cannot take READs"));
    assert_eq!(qp.one(1).read(slice, remote), Ok(()));
    qp.modify(&change).unwrap();
    let refused = Err(PostError::NoReadsInFlight);
    assert_eq!(qp.one(1).read(slice, remote), refused);
}

/// Would catch a number of retries that is silently ignored, and one that datagrams without any are refused
/// for.
#[test]
fn retries_that_a_device_cannot_be_told_are_refused() {
    let (_kernel, file) = rustix::pipe::pipe().unwrap();
    let context = Context::over(file);
    for (transport, rnr_retry, is_refused) in [
        (QpType::DRIVER, 7, false),
        (QpType::DRIVER, 1, true),
        (QpType::UD, 1, false),
    ] {
        let shared = Arc::new(shared::tests::shared(&context, transport));
        let queue = samples::send_queues().pop().unwrap();
        let qp = Qp::<Any> {
            send: SendHalf::new(queue, &shared, None),
            recv: RecvHalf::new(None, &shared),
            shared,
        };
        let options = ConnectOptions {
            rnr_retry,
            ..ConnectOptions::default()
        };
        match qp.rnr_retry(&options) {
            Err(error) => assert!(is_refused && error.is_unsupported(), "{error}"),
            Ok(set) => assert!(!is_refused && set.is_none(), "{set:?}"),
        }
    }
}
