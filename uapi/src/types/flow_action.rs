//! IPsec ESP actions on flows.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Key material for AES-GCM.
///
/// Kernel: `struct ib_uverbs_flow_action_esp_keymat_aes_gcm`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct FlowActionEspKeymatAesGcm {
    /// Initialisation vector.
    pub iv: u64,
    /// How the vector continues; 0: as a sequence.
    pub iv_algo: u32,
    /// Salt.
    pub salt: u32,
    /// Length of the integrity check value in bits.
    pub icv_len: u32,
    /// Length of the key in bits.
    pub key_len: u32,
    /// The key.
    pub aes_key: [u32; 8],
}

/// Protection against replay by a bit map.
///
/// Kernel: `struct ib_uverbs_flow_action_esp_replay_bmp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct FlowActionEspReplayBmp {
    /// Width of the window in packets.
    pub size: u32,
}

/// A list of headers to put around the payload.
///
/// Kernel: `struct ib_uverbs_flow_action_esp_encap`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct FlowActionEspEncap {
    /// Address of a flow filter struct.
    pub val_ptr: u64,
    /// Address of the next element, or 0.
    pub next_ptr: u64,
    /// Size of the filter in bytes.
    pub len: u16,
    /// [`crate::enums::FlowSpecType`] of the filter.
    pub type_: u16,
    /// Padding, implicit in the kernel's struct.
    pub _pad0: [u8; 4],
}

/// An ESP action.
///
/// Kernel: `struct ib_uverbs_flow_action_esp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct FlowActionEsp {
    /// Security parameters index.
    pub spi: u32,
    /// Sequence number.
    pub seq: u32,
    /// Padding for traffic flow confidentiality in bytes.
    pub tfc_pad: u32,
    /// [`crate::flags::FlowActionEspFlags`].
    pub flags: u32,
    /// Number of packets after which it ends.
    pub hard_limit_pkts: u64,
}
