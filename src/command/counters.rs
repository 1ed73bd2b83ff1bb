//! Sets of counters.

use uverbs_uapi::flags::ReadCountersFlags;
use uverbs_uapi::handle::CountersHandle;
use uverbs_uapi::{attr, method, object};
use zerocopy::FromBytes;

use super::{Command, Decode, Request, Undo, undo};
use crate::error::{Subject, Verb};

/// Creates a set of counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CreateCounters;

impl Command for CreateCounters {
    type Reply = CountersHandle;
    const VERB: Verb = Verb::CreateCounters;
    const UNDO: Option<Undo> = Some(undo::<CountersHandle>);

    fn subject(&self) -> Subject {
        Subject::the("counters")
    }

    #[inline]
    fn native(&self, request: &mut Request) -> Option<Decode<Self>> {
        request
            .method(object::COUNTERS, method::counters::CREATE)
            .new_object(attr::create_counters::HANDLE);
        Some(|_, answer| {
            answer
                .new_handle(attr::create_counters::HANDLE)
                .map(CountersHandle)
        })
    }
}

/// Reads a set of counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadCounters {
    pub(crate) counters: CountersHandle,
    /// How many counters to read, from the first. At most [`ReadCounters::MAX`].
    pub(crate) count: usize,
    pub(crate) flags: ReadCountersFlags,
}

impl ReadCounters {
    /// The most counters that one attribute can hold.
    pub(crate) const MAX: usize = u16::MAX as usize / size_of::<u64>();
}

impl Command for ReadCounters {
    type Reply = Vec<u64>;
    const VERB: Verb = Verb::ReadCounters;

    fn subject(&self) -> Subject {
        Subject::numbered("counters", self.counters.0.into())
    }

    #[inline]
    fn native(&self, request: &mut Request) -> Option<Decode<Self>> {
        use attr::read_counters as id;
        request
            .method(object::COUNTERS, method::counters::READ)
            .handle(id::HANDLE, self.counters.0)
            .output(id::BUFF, self.count * size_of::<u64>())
            .u32(id::FLAGS, self.flags.bits());
        Some(|_, answer| {
            let bytes = answer.answer_bytes(attr::read_counters::BUFF)?;
            let values = bytes.chunks_exact(size_of::<u64>());
            // The chunks have the size of a number.
            Ok(values
                .filter_map(|value| u64::read_from_bytes(value).ok())
                .collect())
        })
    }
}
