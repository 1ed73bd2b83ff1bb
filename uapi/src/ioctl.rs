//! The frame of the ioctl interface: a header, then attributes; all in one buffer.

use bitflags::bitflags;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The request number for `ioctl()` on the device file.
pub const RDMA_VERBS_IOCTL: u32 = iowr(IOCTL_MAGIC, 1, size_of::<IoctlHdr>());

/// `RDMA_IOCTL_MAGIC`: the type byte of all RDMA ioctls.
pub const IOCTL_MAGIC: u8 = 0x1b;

/// Position of the namespace in an id: 0 is the core, 1 the driver.
pub const ID_NS_SHIFT: u16 = 12;

/// Mask of the namespace in an id.
pub const ID_NS_MASK: u16 = 0xf000;

/// First id of the driver's namespace, for objects, methods and attributes.
pub const DRIVER_NS: u16 = 1 << ID_NS_SHIFT;

/// First attribute of a driver on a method that has [`UHW_IN`] and [`UHW_OUT`].
pub const DRIVER_NS_WITH_UHW: u16 = UHW_OUT + 1;

ids! { u16, "UVERBS_ATTR_";
    /// Attribute with the driver's request, on methods that carry one.
    UHW_IN = DRIVER_NS;
    /// Attribute with room for the driver's answer, on methods that carry one.
    UHW_OUT = DRIVER_NS + 1;
}

bitflags! {
    /// Flags of an attribute ([`IoctlAttr::flags`]).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct AttrFlags: u16 {
        /// From user space: a kernel that does not know the attribute must refuse the call.
        const MANDATORY = 1 << 0;
        /// From the kernel: the value has been written.
        const VALID_OUTPUT = 1 << 1;
    }
}

/// `_IOWR` of `asm-generic/ioctl.h`, which all architectures use except alpha, mips, powerpc and sparc.
const fn iowr(magic: u8, number: u8, size: usize) -> u32 {
    const READ_WRITE: u32 = 3;
    READ_WRITE << 30 | (size as u32) << 16 | (magic as u32) << 8 | number as u32
}

/// Starts the buffer handed to [`RDMA_VERBS_IOCTL`]; [`IoctlAttr`]s follow.
///
/// Kernel: `struct ib_uverbs_ioctl_hdr`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct IoctlHdr {
    /// Size of header and attributes in bytes; at most one page.
    pub length: u16,
    /// Object type, see [`crate::object`].
    pub object_id: u16,
    /// Method of that object, see [`crate::method`].
    pub method_id: u16,
    /// Attributes that follow.
    pub num_attrs: u16,
    /// Must be 0.
    pub reserved1: u64,
    /// [`crate::enums::DriverId`] of the device, checked by the kernel.
    pub driver_id: u32,
    /// Must be 0.
    pub reserved2: u32,
}

/// One attribute of a method.
///
/// Kernel: `struct ib_uverbs_attr`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct IoctlAttr {
    /// The id of the attribute, see [`crate::attr`].
    pub attr_id: u16,
    /// Size of the value in bytes; 0 for handles and file descriptors.
    pub len: u16,
    /// [`AttrFlags`].
    pub flags: u16,
    /// Element of an enumeration attribute in the low byte (little-endian hosts); otherwise 0.
    pub attr_data: u16,
    /// The value itself if it is an input of at most 8 bytes, a handle or a file descriptor; otherwise the
    /// address of the value.
    pub data: u64,
}
