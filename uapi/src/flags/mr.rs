//! Flags of memory regions.

use bitflags::bitflags;

bitflags! {
    /// Access rights to memory (`enum ib_uverbs_access_flags`).
    ///
    /// ```
    /// use uverbs_uapi::flags::Access;
    ///
    /// // Peers may read and write; for the latter the device must be allowed to write too.
    /// let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    /// assert!(access.contains(Access::LOCAL_WRITE));
    /// assert!(!access.intersects(Access::REMOTE_ATOMIC));
    /// assert_eq!(Access::default(), Access::empty());
    /// ```
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// The device may write for this process. Needed by every other right to write.
        const LOCAL_WRITE = 1 << 0;
        /// Peers may write.
        const REMOTE_WRITE = 1 << 1;
        /// Peers may read.
        const REMOTE_READ = 1 << 2;
        /// Peers may use atomic operations.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound.
        const MW_BIND = 1 << 4;
        /// Addresses count from 0.
        const ZERO_BASED = 1 << 5;
        /// Pages are not pinned but fetched as needed.
        const ON_DEMAND = 1 << 6;
        /// The memory is huge pages throughout (with [`Self::ON_DEMAND`]).
        const HUGETLB = 1 << 7;
        /// Peers may flush for visibility. Since Linux 6.2.
        const FLUSH_GLOBAL = 1 << 8;
        /// Peers may flush for persistence. Since Linux 6.2.
        const FLUSH_PERSISTENT = 1 << 9;
        /// Writes may become visible out of order. Optional.
        const RELAXED_ORDERING = 1 << 20;
    }
}

bitflags! {
    /// The properties that `REREG_MR` changes.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct ReregMrFlags: u32 {
        /// Memory and address.
        const CHANGE_TRANSLATION = 1 << 0;
        /// PD.
        const CHANGE_PD = 1 << 1;
        /// Access rights.
        const CHANGE_ACCESS = 1 << 2;
    }
}

bitflags! {
    /// Flags of advice about paging (`enum ib_uverbs_advise_mr_flag`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct AdviseMrFlags: u32 {
        /// Wait until it is done.
        const FLUSH = 1 << 0;
    }
}

impl Access {
    /// Flags that a kernel may ignore if it does not know them (`IB_UVERBS_ACCESS_OPTIONAL_RANGE`).
    pub const OPTIONAL: Self = Self::from_bits_retain((1 << 30) - (1 << 20));
}
