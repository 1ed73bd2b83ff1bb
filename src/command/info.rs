//! Queries of a context that other processes use too: its properties, and the handles of its objects.

use uverbs_uapi::{attr, method, object};

use smallvec::SmallVec;

use super::{Command, Decode, GetContextReply, Malformed, Request};
use crate::error::{Subject, Verb};

/// Queries the properties of a context that another process has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueryContext {
    /// The driver's part of the answer: its attribute, and its length.
    pub(crate) driver_answer: Option<(u16, usize)>,
}

impl Command for QueryContext {
    /// As for a new context, without a descriptor.
    type Reply = GetContextReply;
    const VERB: Verb = Verb::QueryContext;

    fn subject(&self) -> Subject {
        Subject::the("context")
    }

    #[inline]
    fn native(&self, request: &mut Request) -> Option<Decode<Self>> {
        request
            .method(object::DEVICE, method::device::QUERY_CONTEXT)
            .output(attr::query_context::NUM_COMP_VECTORS, size_of::<u32>())
            .output(attr::query_context::CORE_SUPPORT, size_of::<u64>());
        if let Some((id, bytes)) = self.driver_answer {
            request.driver_output(id, bytes);
        }
        Some(|command, answer| {
            Ok(GetContextReply {
                num_comp_vectors: answer.answer(attr::query_context::NUM_COMP_VECTORS)?,
                core_support: answer
                    .answer(attr::query_context::CORE_SUPPORT)
                    .unwrap_or(0),
                async_fd: None,
                driver: command
                    .driver_answer
                    .and_then(|(id, _)| answer.answer_bytes(id).ok())
                    .map(SmallVec::from_slice)
                    .unwrap_or_default(),
            })
        })
    }
}

/// Lists the handles of a file's objects of one kind, the newest first.
///
/// The kernel stops when the room is full, and does not say whether there are more: an answer that fills the
/// room may be incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InfoHandles {
    /// The kind, an id of [`uverbs_uapi::object`].
    pub(crate) object: u16,
    /// Room for this many handles, at least 1: the kernel refuses 0.
    pub(crate) room: usize,
}

impl InfoHandles {
    /// Enough for most contexts; if not, the caller repeats the query with more room.
    pub(crate) const USUAL: usize = 64;

    /// The most handles that one attribute can hold.
    pub(crate) const MAX: usize = u16::MAX as usize / size_of::<u32>();
}

impl Command for InfoHandles {
    type Reply = Vec<u32>;
    const VERB: Verb = Verb::InfoHandles;

    fn subject(&self) -> Subject {
        Subject::the("context")
    }

    #[inline]
    fn native(&self, request: &mut Request) -> Option<Decode<Self>> {
        let room = self.room.clamp(1, Self::MAX) * size_of::<u32>();
        request
            .method(object::DEVICE, method::device::INFO_HANDLES)
            .constant(attr::info_handles::OBJECT_ID, self.object.into())
            .output(attr::info_handles::TOTAL_HANDLES, size_of::<u32>())
            .output(attr::info_handles::HANDLES_LIST, room);
        Some(|_, answer| {
            let count: u32 = answer.answer(attr::info_handles::TOTAL_HANDLES)?;
            let bytes = answer.answer_bytes(attr::info_handles::HANDLES_LIST)?;
            let listed = (count as usize)
                .checked_mul(size_of::<u32>())
                .and_then(|length| bytes.get(..length))
                .ok_or(Malformed::Contradicts(
                    "more handles than there was room for",
                ))?;
            let (handles, _) = listed.as_chunks();
            Ok(handles.iter().copied().map(u32::from_ne_bytes).collect())
        })
    }
}
