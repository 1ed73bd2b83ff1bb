//! Options.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Sets an option of an identifier.
///
/// Kernel: `struct rdma_ucm_set_option`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct SetOption {
    /// Address of the value.
    pub optval: u64,
    /// The identifier.
    pub id: u32,
    /// [`OptionLevel`](super::OptionLevel).
    pub level: u32,
    /// [`IdOption`](super::IdOption) or [`IbOption`](super::IbOption).
    pub optname: u32,
    /// Bytes of the value.
    pub optlen: u32,
}
