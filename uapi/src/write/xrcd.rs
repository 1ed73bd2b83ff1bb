//! XRC domains.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Request of `OPEN_XRCD`.
///
/// Kernel: `struct ib_uverbs_open_xrcd`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct OpenXrcd {
    /// Address to which the kernel writes the response; ignored, but present, under `INVOKE_WRITE`.
    pub response: u64,
    /// File whose inode identifies the shared domain, or -1 for a private one.
    pub fd: u32,
    /// `O_CREAT` and `O_EXCL` as for `open()`.
    pub oflags: u32,
}

/// Response of `OPEN_XRCD`.
///
/// Kernel: `struct ib_uverbs_open_xrcd_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct OpenXrcdResp {
    /// Handle of the XRC domain.
    pub xrcd_handle: u32,
}

/// Request of `CLOSE_XRCD`, which has no response.
///
/// Kernel: `struct ib_uverbs_close_xrcd`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct CloseXrcd {
    /// Handle of the XRC domain.
    pub xrcd_handle: u32,
}
