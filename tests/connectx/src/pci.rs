//! What the function is on the bus: a virtual function of a ConnectX, which spares the driver the paths that
//! only a physical one has.

use vfio_model::pci::Identity;

/// Bytes of BAR 0: the registers, and behind them the memory of the device.
pub(crate) const BAR0_SIZE: u64 = 32 << 20;
/// Bytes of its first part: the initialization segment and the UARs.
pub(crate) const UARS_SIZE: u64 = 16 << 20;
/// Bytes of BAR 2: the MSI-X table and its pending bits.
const BAR2_SIZE: u64 = 8 << 10;

/// A ConnectX virtual function. Its class, "InfiniBand controller", is as far as a driver may look at it; it
/// matches by vendor and device.
pub(crate) const IDENTITY: Identity = Identity {
    vendor: 0x15b3,
    device: 0x101e,
    subsystem: 0x0001,
    class: 0x0207,
    bars: [BAR0_SIZE, BAR2_SIZE, 0],
    vectors: 16,
    msix_bar: 2,
    msix_table: 0,
    msix_pending: 0x1000,
};
