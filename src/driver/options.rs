//! What a program may ask for besides the plain objects, which not every driver has.
//!
//! A driver lists those that it has. The others are refused by name before the driver is called (in
//! [`super`]), so that it cannot overlook one.

use bitflags::bitflags;

use super::contract::{CqParts, HANDING_OVER, OTHERS, QpParts, STREAMS};
use crate::command::{CreateCq, QpSpec, RegMr};

bitflags! {
    /// What a driver supports besides the plain objects.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Options: u16 {
        /// Completion queues with entries of a chosen size.
        const CQ_ENTRY_BYTES = 1 << 0;
        /// Flags of completion queues. The driver, or the kernel's, decides which it takes.
        const CQ_FLAGS = 1 << 1;
        /// Creation flags of queue pairs. The driver, or the kernel's, decides which it takes.
        const QP_FLAGS = 1 << 2;
        /// Small payloads that arrive in completions.
        const INLINE_SCATTER = 1 << 3;
        /// Messages that are placed, and receives that finish, out of order.
        const OUT_OF_ORDER = 1 << 4;
        /// Rings in memory that a program has allocated.
        const BUFFERS = 1 << 5;
        /// Memory regions whose I/O virtual address is not their address.
        const MR_IOVA = 1 << 6;
        /// Memory regions of a dma-buf.
        const MR_DMABUF = 1 << 7;
        /// Memory regions that change.
        const MR_CHANGES = 1 << 8;
        /// Rings and doorbell records in dma-bufs, if an allocator answers with one. The driver passes them
        /// to the kernel in a way that a kernel without support refuses.
        const DMABUFS = 1 << 9;
        /// WRITEs with immediate data that consume no receives.
        const UNSOLICITED_WRITES = 1 << 10;
        /// Service levels of queue pairs.
        const SERVICE_LEVEL = 1 << 11;
        /// Rings of completion queues in memory that a program has allocated. Drivers with [`Self::BUFFERS`]
        /// have this too.
        const CQ_BUFFERS = 1 << 13;
        /// Streams of initiators of dynamic connections.
        const STREAMS = 1 << 14;
        /// Queue pairs that can be handed over, with their completion queues.
        const FOR_AGENT = 1 << 12;
        /// Contexts that another owner of the open file has made, which this process joins.
        const IMPORT = 1 << 15;
    }
}

impl Options {
    /// The name of the first of them in an error; `None` if there are none.
    pub(super) fn what(self) -> Option<&'static str> {
        Some(match self.iter().next()? {
            Self::CQ_ENTRY_BYTES => "completion queues with entries of a chosen size",
            Self::CQ_FLAGS => "flags of completion queues",
            Self::QP_FLAGS => "creation flags of queue pairs",
            Self::INLINE_SCATTER => "inline scatter: payloads that come in completions",
            Self::OUT_OF_ORDER => "receiving out of order",
            Self::BUFFERS => "rings in memory that a program has allocated",
            Self::CQ_BUFFERS => "completion rings in memory that a program has allocated",
            Self::MR_IOVA => "memory regions whose I/O virtual address is not their address",
            Self::MR_DMABUF => "memory regions of a dma-buf",
            Self::MR_CHANGES => "memory regions that change",
            Self::DMABUFS => "rings in dma-bufs",
            Self::UNSOLICITED_WRITES => "WRITEs with immediate data that consume no receives",
            Self::SERVICE_LEVEL => "service levels of queue pairs, instead of paths",
            Self::STREAMS => STREAMS,
            Self::FOR_AGENT => HANDING_OVER,
            Self::IMPORT => OTHERS,
            _ => return None,
        })
    }

    /// The options that are asked for.
    fn of<const N: usize>(asked: [(Self, bool); N]) -> Self {
        let asked = asked.into_iter().filter(|(_, is_asked)| *is_asked);
        asked.map(|(option, _)| option).collect()
    }

    /// What a new completion queue asks for.
    pub(super) fn of_cq(command: &CreateCq, parts: &CqParts<'_>) -> Self {
        Self::of([
            (Self::CQ_ENTRY_BYTES, parts.entry_bytes.is_some()),
            (Self::CQ_FLAGS, command.flags != 0),
            (Self::FOR_AGENT, parts.for_agent),
            (Self::CQ_BUFFERS, parts.buffers.is_some()),
        ])
    }

    /// What a new queue pair asks for.
    pub(super) fn of_qp<C, S, T>(spec: &QpSpec, parts: &QpParts<'_, C, S, T>) -> Self {
        Self::of([
            (Self::QP_FLAGS, !spec.flags.is_empty()),
            (Self::INLINE_SCATTER, parts.inline_scatter),
            (Self::OUT_OF_ORDER, parts.out_of_order),
            (Self::UNSOLICITED_WRITES, parts.unsolicited_writes),
            (Self::SERVICE_LEVEL, parts.service_level.is_some()),
            (Self::STREAMS, parts.streams.is_some()),
            (Self::FOR_AGENT, parts.for_agent),
            (Self::BUFFERS, parts.buffers.is_some()),
        ])
    }

    /// What a new memory region asks for.
    pub(super) fn of_mr(command: &RegMr) -> Self {
        Self::of([(Self::MR_IOVA, command.iova != command.address)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_a_name_of_its_own() {
        let mut names: Vec<_> = Options::all().iter().map(|it| it.what().unwrap()).collect();
        assert_eq!(names.len(), 16);
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 16);
        assert_eq!(Options::empty().what(), None);
    }
}
