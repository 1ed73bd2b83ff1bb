//! Which kernel driver a device belongs to. What the driver's devices can do is the business of `crate::driver`.

use std::fmt;

/// A kernel driver by its number, `enum rdma_driver_id` in `include/uapi/rdma/ib_user_ioctl_verbs.h`.
///
/// It prints as the driver's name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct DriverId(pub u32);

impl DriverId {
    /// NVIDIA ConnectX from Connect-IB on, and BlueField.
    pub const MLX5: Self = Self(1);
    /// Mellanox ConnectX-2 and ConnectX-3.
    pub const MLX4: Self = Self(2);
    /// Soft-RoCE.
    pub const RXE: Self = Self(14);
    /// Soft-iWARP.
    pub const SIW: Self = Self(18);

    /// The driver's name, if this library knows the number.
    pub const fn name(self) -> Option<&'static str> {
        Some(match self.0 {
            1 => "mlx5",
            2 => "mlx4",
            3 => "cxgb3",
            4 => "cxgb4",
            5 => "mthca",
            6 => "bnxt_re",
            7 => "ocrdma",
            8 => "nes",
            9 => "irdma",
            10 => "vmw_pvrdma",
            11 => "qedr",
            12 => "hns",
            13 => "usnic",
            14 => "rxe",
            15 => "hfi1",
            16 => "qib",
            17 => "efa",
            18 => "siw",
            19 => "erdma",
            20 => "mana",
            21 => "ionic",
            _ => return None,
        })
    }
}

impl fmt::Display for DriverId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => write!(f, "driver {}", self.0),
        }
    }
}

impl fmt::Debug for DriverId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
