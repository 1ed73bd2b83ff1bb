//! The kernel driver that a device belongs to. `crate::driver` knows what the driver's devices can do.

use std::fmt::{self, Write};

use uverbs_uapi::enums;

/// A kernel driver by its number, `enum rdma_driver_id` in `include/uapi/rdma/ib_user_ioctl_verbs.h`.
///
/// It prints as the driver's name in small letters:
///
/// ```
/// # use uverbs::device::DriverId;
/// assert_eq!(DriverId::RXE.to_string(), "rxe");
/// assert_eq!(DriverId(4711).to_string(), "driver 4711");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct DriverId(pub u32);

impl DriverId {
    /// Mellanox ConnectX to ConnectX-3.
    pub const MLX4: Self = Self(enums::DriverId::MLX4.0);
    /// Soft-iWARP.
    pub const SIW: Self = Self(enums::DriverId::SIW.0);
}

/// Identifies the driver of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum DriverClue {
    /// Netlink: its number.
    Number(DriverId),
    /// Sysfs: the bus driver that the device's hardware is bound to, by its name.
    Bus(String),
    /// Sysfs: no hardware, but an attribute `parent` that names a network device.
    Parent,
}

impl fmt::Display for DriverId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match enums::DriverId::IDS.name(self.0) {
            Some(name) => name
                .chars()
                .try_for_each(|letter| f.write_char(letter.to_ascii_lowercase())),
            None => write!(f, "driver {}", self.0),
        }
    }
}

impl fmt::Debug for DriverId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
