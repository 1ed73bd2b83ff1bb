//! Flow steering on mlx5.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// What to match, in the device's own layout.
///
/// Kernel: `struct mlx5_ib_match_params`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct MatchParams {
    /// Fields, one header group after the other.
    pub match_params: [u32; 0xa0],
}

/// The place for one counter of a counters object.
///
/// Kernel: `struct mlx5_ib_flow_counters_desc`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct FlowCountersDesc {
    /// 0: packets; 1: bytes.
    pub description: u32,
    /// Place in the array that is read.
    pub index: u32,
}

/// The counters of one specification.
///
/// Kernel: `struct mlx5_ib_flow_counters_data`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct FlowCountersData {
    /// Address of an array of [`FlowCountersDesc`].
    pub counters_data: u64,
    /// Its length.
    pub ncounters: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// Driver's request with flow creation; `ncounters_data` times [`FlowCountersData`] follow.
///
/// Kernel: `struct mlx5_ib_create_flow`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct CreateFlow {
    /// Number of entries that follow.
    pub ncounters_data: u32,
    /// Must be 0.
    pub reserved: u32,
}
