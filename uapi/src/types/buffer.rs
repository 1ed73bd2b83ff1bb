//! Memory that user space supplies for an object's rings, and pages that the kernel shares.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// One buffer, in the attributes named `*_BUF_UMEM`. Since Linux 7.2.
///
/// Kernel: `struct ib_uverbs_buffer_desc`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct BufferDesc {
    /// [`crate::enums::BufferType`].
    pub type_: u32,
    /// dma-buf file descriptor, for that type.
    pub fd: i32,
    /// Flags that the kernel must understand; none is defined, so 0.
    pub flags: u32,
    /// Flags that the kernel may ignore; none is defined.
    pub optional_flags: u32,
    /// Address in this process, or offset within the dma-buf.
    pub addr: u64,
    /// Length in bytes.
    pub length: u64,
}

/// Page that converts a device's clock to system time, mapped read-only; it must be read again while
/// [`ClockInfo::sign`] is odd or has changed.
///
/// Kernel: `struct mlx5_ib_clock_info`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct ClockInfo {
    /// Sequence counter; its lowest bit is set during an update.
    pub sign: u32,
    /// Reserved.
    pub resv: u32,
    /// System time of the last update in nanoseconds.
    pub nsec: u64,
    /// Device clock at the last update.
    pub cycles: u64,
    /// Fraction of a nanosecond at the last update, scaled by `shift`.
    pub frac: u64,
    /// Nanoseconds for each cycle, scaled by `shift`.
    pub mult: u32,
    /// Binary digits of the scale.
    pub shift: u32,
    /// Significant bits of the device clock.
    pub mask: u64,
    /// Nanoseconds until the clock wraps around.
    pub overflow_period: u64,
}
