//! Flags of work requests and completions.

use bitflags::bitflags;

bitflags! {
    /// How to carry out a send request.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SendFlags: u32 {
        /// Wait for earlier reads and atomics.
        const FENCE = 1 << 0;
        /// Raise a completion.
        const SIGNALED = 1 << 1;
        /// Raise an event at the peer.
        const SOLICITED = 1 << 2;
        /// Data are in the request itself.
        const INLINE = 1 << 3;
        /// Compute IP checksums.
        const IP_CSUM = 1 << 4;
    }
}

bitflags! {
    /// The valid parts of a completion, with libibverbs' bits; for rxe's see
    /// [`crate::rxe::WC_WITH_INVALIDATE`].
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct WcFlags: u32 {
        /// A global route header, in the buffer for datagrams.
        const GRH = 1 << 0;
        /// Immediate data.
        const WITH_IMM = 1 << 1;
        /// IP checksum was correct.
        const IP_CSUM_OK = 1 << 2;
        /// A key was invalidated.
        const WITH_INV = 1 << 3;
        /// The tag list must be synchronised.
        const TM_SYNC_REQ = 1 << 4;
        /// A tag matched.
        const TM_MATCH = 1 << 5;
        /// The data are in the buffer.
        const TM_DATA_VALID = 1 << 6;
    }
}

bitflags! {
    /// The placement to which a flush moves data (`enum ib_placement_type`). Since Linux 6.2.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct FlushPlacement: u8 {
        /// Visible to all.
        const GLOBAL = 1 << 0;
        /// Persistent.
        const PERSISTENT = 1 << 1;
    }
}
