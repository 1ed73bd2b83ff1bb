//! Random answers to every command in both spellings, and random records of events: values or errors, never
//! a panic.

use std::fmt::Debug;
use std::hint::black_box;
use std::mem;

use proptest::prelude::*;
use uverbs_uapi::event::{AsyncEventDesc, CompEventDesc};
use uverbs_uapi::handle::{AhHandle, CqHandle, MrHandle, PdHandle};
use uverbs_uapi::types::AhAttr;

use super::request;
use super::samples::*;
use crate::command::*;
use crate::error::{Subject, Verb};
use crate::event::AsyncEvent;
use crate::event_file::EventFile;

/// Each case answers each command once.
const CASES: u32 = 10_000;

/// Where the bytes of an answer come from.
struct Source {
    state: u64,
    /// Mostly zeros and small numbers, as in an answer in which little is wrong.
    tame: bool,
}

impl Source {
    fn next(&mut self) -> u64 {
        // SplitMix64: one addition and a hash of the sum.
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let hash = (self.state ^ self.state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let random = hash ^ hash >> 31;
        match random >> 60 {
            _ if !self.tame => random,
            0 => random,
            1 => u64::MAX,
            2..4 => random % 8,
            _ => 0,
        }
    }
}

/// Answers a command nonsense in each of its spellings, reads the answers, and prints them.
///
/// `keep` takes the reply: descriptors in it belong to nobody or to others, and must not be closed.
fn abuse<C: Command>(command: &C, source: &mut Source, keep: impl Fn(C::Reply))
where
    C::Reply: Debug,
{
    assert_eq!(request(command, Spelling::Native).is_some(), C::NATIVE);
    for spelling in [Spelling::Native, Spelling::Write] {
        let Some(mut answer) = request(command, spelling) else {
            continue;
        };
        answer.scramble(|| source.next());
        black_box(answer.to_string());
        match command.decode(spelling, &answer) {
            Ok(reply) => {
                black_box(format!("{reply:?}"));
                keep(reply);
            }
            Err(malformed) => drop(black_box(malformed.to_string())),
        }
    }
}

/// Every command there is.
fn abuse_all(source: &mut Source) {
    abuse(&GetContext::default(), source, mem::forget);
    abuse(&AllocAsyncFd, source, mem::forget);
    abuse(&CreateCompChannel, source, mem::forget);
    abuse(&QueryDevice, source, drop);
    abuse(&QueryPort { port: 1 }, source, drop);
    abuse(&QueryGidTable { room: 3 }, source, drop);
    abuse(&QueryGid { port: 1, index: 0 }, source, drop);
    abuse(&AllocPd::default(), source, drop);
    abuse(&DeallocPd(PdHandle(1)), source, drop);
    abuse(&reg_mr(), source, drop);
    abuse(&DeregMr(MrHandle(1)), source, drop);
    let mut cq = create_cq();
    abuse(&cq, source, drop);
    cq.flags = 1;
    abuse(&cq, source, drop);
    let cq = CqHandle(1);
    let solicited_only = false;
    abuse(&ReqNotifyCq { cq, solicited_only }, source, drop);
    abuse(&DestroyCq(cq), source, drop);
    abuse(&create_qp(), source, drop);
    let mut modify = modify_qp();
    abuse(&modify, source, drop);
    modify.rate_limit = Some(1);
    abuse(&modify, source, drop);
    let (qp, attr_mask) = (QP, u32::MAX);
    abuse(&QueryQp { qp, attr_mask }, source, drop);
    abuse(&DestroyQp(qp), source, drop);
    let (pd, attributes) = (PdHandle(1), AhAttr::default());
    let driver = DriverData::output::<u64>();
    let ah = CreateAh {
        pd,
        attributes,
        driver,
    };
    abuse(&ah, source, drop);
    abuse(&DestroyAh(AhHandle(1)), source, drop);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: CASES,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_answers_never_panic(state: u64, tame: bool) {
        abuse_all(&mut Source { state, tame });
    }

    #[test]
    fn random_event_records_never_panic(bytes in prop::collection::vec(any::<u8>(), 1..40)) {
        let (read, write) = rustix::pipe::pipe().unwrap();
        let subject = Subject::the("events");
        let file = EventFile::new(read, Verb::GetAsyncEvent, subject).unwrap();
        rustix::io::write(&write, &bytes).unwrap();
        let mut whole = 0;
        while let Ok(Some(record)) = file.try_read::<AsyncEventDesc>(Verb::GetAsyncEvent) {
            let event = AsyncEvent::from(record);
            black_box(format!("{:?}", event));
            whole += 1;
        }
        prop_assert_eq!(whole, bytes.len() / size_of::<AsyncEventDesc>());
        rustix::io::write(&write, &bytes[..bytes.len().min(size_of::<CompEventDesc>())]).unwrap();
        let record = file.try_read::<CompEventDesc>(Verb::GetCqEvent);
        prop_assert_eq!(record.is_ok(), bytes.len() >= size_of::<CompEventDesc>());
    }

    #[test]
    fn random_events_of_any_type_name_their_source(element: u64, event_type in 0..64u32) {
        let record = AsyncEventDesc { element, event_type, reserved: 0 };
        let event = AsyncEvent::from(record);
        prop_assert_eq!(event.kind.0, event_type);
        black_box(format!("{:?}", event));
    }
}
