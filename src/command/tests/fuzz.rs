//! Random answers to every command in both encodings, and random records of events: values or errors, never a
//! panic.

use std::hint::black_box;

use proptest::prelude::*;
use uverbs_uapi::event::{AsyncEventDesc, CompEventDesc};

use crate::command::fuzz::answer_all;
use crate::error::{Subject, Verb};
use crate::event::AsyncEvent;
use crate::event_file::EventFile;

/// Each case answers each command once.
const CASES: u32 = 10_000;

/// The source of an answer's bytes.
struct Source {
    state: u64,
    /// Mostly zeros and small numbers, as in an answer with few defects.
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

proptest! {
    #![proptest_config(ProptestConfig {
        cases: CASES,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_answers_never_panic(state: u64, tame: bool) {
        let mut source = Source { state, tame };
        answer_all(&mut || source.next());
    }

    #[test]
    fn random_event_records_never_panic(bytes in prop::collection::vec(any::<u8>(), 1..40)) {
        let (read, write) = rustix::pipe::pipe().unwrap();
        let subject = Subject::the("events");
        let file = EventFile::new(read, subject);
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
