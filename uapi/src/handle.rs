//! Handles: the kernel's names for objects of one open device file.
//!
//! A handle is a small number, unique among all objects of that file whatever their kind, and reused once the
//! object is gone. It has no meaning for another file. Structs have plain `u32`; these types keep the kinds
//! apart in the code above.

use core::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

macro_rules! handle {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
        #[repr(transparent)]
        pub struct $name(pub u32);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl From<u32> for $name {
            fn from(handle: u32) -> Self {
                Self(handle)
            }
        }

        impl From<$name> for u32 {
            fn from(handle: $name) -> Self {
                handle.0
            }
        }
    };
}

handle!(
    /// A protection domain.
    PdHandle
);
handle!(
    /// A memory region.
    MrHandle
);
handle!(
    /// A memory window.
    MwHandle
);
handle!(
    /// A completion queue.
    CqHandle
);
handle!(
    /// A queue pair.
    QpHandle
);
handle!(
    /// A shared receive queue.
    SrqHandle
);
handle!(
    /// An address handle.
    AhHandle
);
handle!(
    /// An XRC domain.
    XrcdHandle
);
handle!(
    /// A receive work queue.
    WqHandle
);
handle!(
    /// A table that spreads packets over receive work queues.
    RwqIndTblHandle
);
handle!(
    /// A flow rule.
    FlowHandle
);
handle!(
    /// A flow action.
    FlowActionHandle
);
handle!(
    /// A piece of device memory.
    DmHandle
);
handle!(
    /// A set of counters.
    CountersHandle
);
handle!(
    /// A DMA handle: steering hints for memory access.
    DmahHandle
);
handle!(
    /// A completion counter.
    CompCntrHandle
);
