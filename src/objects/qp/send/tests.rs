//! The checks of every request, on a queue of each driver.

use uverbs_uapi::enums::QpState;

use super::super::Inline;
use super::super::shared::tests::shared;
use super::super::transport::Any;
use super::*;
use crate::context::Context;
use crate::driver::samples;
use crate::work::{LocalKey, LocalSlice, RemoteKey, RemoteSlice};

/// A send half over a queue of each driver, in this state. One of them, the sample driver's, checks
/// nothing.
fn halves(state: QpState) -> Vec<SendHalf<Any>> {
    let (_kernel, file) = rustix::pipe::pipe().unwrap();
    let context = Context::over(file);
    let half = |queue| {
        let shared = Arc::new(shared(&context, QpType::RC));
        shared.store(state);
        SendHalf::new(queue, &shared, None)
    };
    samples::send_queues().into_iter().map(half).collect()
}

/// Posts some requests in each way.
fn post(half: &mut SendHalf<Any>) -> Result<(), PostError> {
    half.one(1).send(Inline(b"one"))?;
    half.one(2).send(Inline(b"another"))?;
    half.batch().ring()?;
    half.post(|batch| batch.unsignaled(3).send(Inline(b"three")))?;
    half.post(|batch| {
        batch.unsignaled(4).send(Inline(b"four"))?;
        batch.signaled(5).send(Inline(b"five"))?;
        Ok(())
    })
    .map(drop)
}

/// Would catch requests that go into the ring of a queue pair that does not send, and requests whose queue
/// pair is not checked.
#[test]
fn a_queue_pair_that_does_not_send_takes_no_request() {
    for mut half in halves(QpState::RESET) {
        for state in [QpState::RESET, QpState::INIT, QpState::RTR] {
            half.checks.shared.store(state);
            let refused = Err(PostError::WrongState { state });
            for _ in 0..2 {
                assert_eq!(half.one(1).send(Inline(b"early")), refused);
                let mut batch = half.batch();
                assert_eq!(batch.signaled(1).send(Inline(b"early")), refused);
                assert_eq!(batch.unsignaled(2).send(Inline(b"early")), refused);
                assert_eq!((batch.len(), batch.ring()), (0, Ok(0)));
            }
            assert_eq!(half.in_flight(), 0);
        }
        half.checks.shared.store(QpState::RTS);
        post(&mut half).unwrap();
        assert_eq!(half.in_flight(), 5);
        // After a reset the state is checked again.
        half.queue_to_reset();
        half.checks.shared.store(QpState::RESET);
        let refused = PostError::WrongState {
            state: QpState::RESET,
        };
        assert_eq!(half.one(1).send(Inline(b"late")), Err(refused));
        let mut batch = half.batch();
        assert_eq!(batch.unsignaled(0).send(Inline(b"late")), Err(refused));
        drop(batch);
    }
}

/// Would catch memory of other domains that is sent, or a peer's memory that is written beyond its slice.
#[test]
fn every_request_is_checked() {
    for mut half in halves(QpState::RTS) {
        let (pd, lkey) = (half.checks.fixed.pd, LocalKey(1));
        let of = |length, pd| LocalSlice::new(0x1000, length, lkey, pd);
        let to = |length| RemoteSlice {
            address: 0x2000,
            length,
            rkey: RemoteKey(2),
        };
        let beyond = PostError::BeyondRemote {
            local: 9,
            remote: 8,
        };
        let long = PostError::MessageTooLong {
            given: (1 << 31) + 1,
            max: 1 << 31,
        };
        let other = PdTag::new(77, 77);
        let two = |length| vec![of(1 << 31, pd), of(length, pd)];
        let cases = [
            (vec![of(8, other)], to(8), PostError::ForeignPd),
            (vec![of(8, other.read_only())], to(8), PostError::ForeignPd),
            (vec![of(9, pd)], to(8), beyond),
            (two(1), to(u64::MAX), long),
            (two(1), to(0), long),
        ];
        for _ in 0..2 {
            for (from, to, error) in &cases {
                assert_eq!(half.one(1).write(from, *to), Err(*error));
                let mut batch = half.batch();
                assert_eq!(batch.unsignaled(0).write(from, *to).err(), Some(*error));
            }
            let read_only = of(8, pd.read_only());
            assert_eq!(half.one(1).read(read_only, to(8)), Err(PostError::ReadOnly));
            let many = [of(1, pd); 64];
            let refused = half.one(1).write(many, to(64));
            assert!(matches!(refused, Err(PostError::TooManySges { .. })));
            let refused = half.one(1).send(Inline(&[0; 4096]));
            assert!(matches!(refused, Err(PostError::InlineTooLong { .. })));
            let before = half.in_flight();
            // Requests without bytes, and with the most possible, are unusual but accepted.
            half.one(1).write(of(0, pd), to(0)).unwrap();
            half.one(1).write(of(1 << 31, pd), to(1 << 31)).unwrap();
            half.one(1).write(read_only, to(8)).unwrap();
            assert_eq!(half.in_flight(), before + 3);
        }
    }
}
