//! Flags of shared receive queues and receive work queues.

use bitflags::bitflags;

bitflags! {
    /// The attributes that `MODIFY_SRQ` changes.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SrqAttrMask: u32 {
        /// Capacity.
        const MAX_WR = 1 << 0;
        /// Limit.
        const LIMIT = 1 << 1;
    }
}

bitflags! {
    /// How a WQ works (`enum ib_uverbs_wq_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct WqFlags: u32 {
        /// VLAN tags are stripped.
        const CVLAN_STRIPPING = 1 << 0;
        /// Frame checksums are scattered too.
        const SCATTER_FCS = 1 << 1;
        /// Waits for a receive before dropping.
        const DELAY_DROP = 1 << 2;
        /// Writes are padded to cache lines.
        const PCI_WRITE_END_PADDING = 1 << 3;
    }
}

bitflags! {
    /// The attributes that `MODIFY_WQ` changes.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct WqAttrMask: u32 {
        /// The new state.
        const STATE = 1 << 0;
        /// The present state.
        const CURR_STATE = 1 << 1;
        /// Flags.
        const FLAGS = 1 << 2;
    }
}
