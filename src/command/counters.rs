//! Sets of counters.

use uverbs_uapi::flags::ReadCountersFlags;
use uverbs_uapi::handle::CountersHandle;
use uverbs_uapi::{attr, method, object};
use zerocopy::FromBytes;

use super::{Command, Malformed, Request, Spelling};
use crate::error::{Subject, Verb};

/// Creates a set of counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CreateCounters;

impl Command for CreateCounters {
    type Reply = CountersHandle;
    const NATIVE: bool = true;
    const VERB: Verb = Verb::CreateCounters;

    fn subject(&self) -> Subject {
        Subject::the("counters")
    }

    #[inline]
    fn encode(&self, spelling: Spelling, request: &mut Request) {
        match spelling {
            Spelling::Native => {
                request
                    .method(object::COUNTERS, method::counters::CREATE)
                    .new_object(attr::create_counters::HANDLE);
            }
            Spelling::Write => {}
        }
    }

    #[inline]
    fn decode(&self, _: Spelling, answer: &Request) -> Result<CountersHandle, Malformed> {
        answer
            .new_handle(attr::create_counters::HANDLE)
            .map(CountersHandle)
    }
}

/// Destroys a set of counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DestroyCounters(pub(crate) CountersHandle);

impl Command for DestroyCounters {
    type Reply = ();
    const NATIVE: bool = true;
    const VERB: Verb = Verb::DestroyCounters;

    fn subject(&self) -> Subject {
        Subject::numbered("counters", self.0.0.into())
    }

    #[inline]
    fn encode(&self, spelling: Spelling, request: &mut Request) {
        match spelling {
            Spelling::Native => {
                request
                    .method(object::COUNTERS, method::counters::DESTROY)
                    .handle(attr::destroy_counters::HANDLE, self.0.0);
            }
            Spelling::Write => {}
        }
    }

    #[inline]
    fn decode(&self, _: Spelling, _: &Request) -> Result<(), Malformed> {
        Ok(())
    }
}

/// Reads a set of counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadCounters {
    pub(crate) counters: CountersHandle,
    /// Counters to read: the first ones. At most [`ReadCounters::MAX`].
    pub(crate) count: usize,
    pub(crate) flags: ReadCountersFlags,
}

impl ReadCounters {
    /// The most counters that one attribute can hold.
    pub(crate) const MAX: usize = u16::MAX as usize / size_of::<u64>();
}

impl Command for ReadCounters {
    type Reply = Vec<u64>;
    const NATIVE: bool = true;
    const VERB: Verb = Verb::ReadCounters;

    fn subject(&self) -> Subject {
        Subject::numbered("counters", self.counters.0.into())
    }

    #[inline]
    fn encode(&self, spelling: Spelling, request: &mut Request) {
        use attr::read_counters as id;
        match spelling {
            Spelling::Native => {
                request
                    .method(object::COUNTERS, method::counters::READ)
                    .handle(id::HANDLE, self.counters.0)
                    .output(id::BUFF, self.count * size_of::<u64>())
                    .u32(id::FLAGS, self.flags.bits());
            }
            Spelling::Write => {}
        }
    }

    #[inline]
    fn decode(&self, _: Spelling, answer: &Request) -> Result<Vec<u64>, Malformed> {
        let bytes = answer.answer_bytes(attr::read_counters::BUFF)?;
        let values = bytes.chunks_exact(size_of::<u64>());
        // The chunks have the size of a number.
        Ok(values
            .filter_map(|value| u64::read_from_bytes(value).ok())
            .collect())
    }
}
