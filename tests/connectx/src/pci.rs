//! The function's PCI configuration space.
//!
//! It is a virtual function of a ConnectX, which spares the driver the paths that only a physical one has.
//! QEMU keeps addresses of BARs and the MSI-X table itself; what is written here is remembered where hardware
//! would remember it.

use crate::interrupt::VECTORS;

/// Bytes of the configuration space.
pub(crate) const CONFIG_SIZE: usize = 0x1000;
/// Bytes of BAR 0: the registers, and behind them the memory of the device.
pub(crate) const BAR0_SIZE: u64 = 32 << 20;
/// Bytes of its first part: the initialization segment and the UARs.
pub(crate) const UARS_SIZE: u64 = 16 << 20;
/// Bytes of BAR 2: the MSI-X table and its pending bits.
pub(crate) const BAR2_SIZE: u64 = 8 << 10;

const VENDOR_MELLANOX: u16 = 0x15b3;
const DEVICE_CONNECTX_VF: u16 = 0x101e;
/// Class "InfiniBand controller" as far as a driver may look at it; it matches by vendor and device.
const CLASS_INFINIBAND: u16 = 0x0207;

const COMMAND: usize = 0x04;
/// In the command word: the device answers at its BARs' addresses.
const MEMORY_SPACE: u8 = 1 << 1;
const BAR0: usize = 0x10;
const CAPABILITIES: usize = 0x34;
const PCIE: usize = 0x60;
const MSIX: usize = 0xa0;

/// A memory BAR of 64 bits, prefetchable.
const BAR_64_PREFETCHABLE: u8 = 0xc;

/// The configuration space.
#[derive(Debug)]
pub(crate) struct Config {
    bytes: Vec<u8>,
}

impl Config {
    /// The space after reset.
    pub(crate) fn new() -> Self {
        let mut config = Self {
            bytes: vec![0; CONFIG_SIZE],
        };
        config.put16(0x00, VENDOR_MELLANOX);
        config.put16(0x02, DEVICE_CONNECTX_VF);
        config.put16(0x06, 0x0010); // status: there is a list of capabilities
        config.put16(0x0a, CLASS_INFINIBAND);
        config.bytes[BAR0] = BAR_64_PREFETCHABLE;
        config.bytes[0x18] = BAR_64_PREFETCHABLE;
        config.put16(0x2c, VENDOR_MELLANOX);
        config.put16(0x2e, 0x0001);
        config.bytes[CAPABILITIES] = PCIE as u8;
        config.put16(PCIE, 0x10 | (MSIX as u16) << 8);
        config.put16(PCIE + 2, 0x0002); // version 2, an endpoint
        config.put16(PCIE + 4, 0x8002); // payloads up to 512 bytes; reset by function
        config.put16(PCIE + 6, 0x1000);
        config.put16(MSIX, 0x11);
        config.put16(MSIX + 2, VECTORS as u16 - 1);
        config.bytes[MSIX + 4] = 2; // the table: at the start of BAR 2
        config.put16(MSIX + 8, 0x1002); // the pending bits: 4 KiB into BAR 2
        config
    }

    fn put16(&mut self, at: usize, value: u16) {
        self.bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }

    /// Reads; beyond the end there are ones, as on a bus.
    pub(crate) fn read(&self, offset: u64, data: &mut [u8]) {
        data.fill(0xff);
        let start = usize::try_from(offset)
            .unwrap_or(CONFIG_SIZE)
            .min(CONFIG_SIZE);
        let length = data.len().min(CONFIG_SIZE - start);
        data[..length].copy_from_slice(&self.bytes[start..start + length]);
    }

    /// The bus address of BAR 0, once the device answers there.
    pub(crate) fn bar0(&self) -> Option<u64> {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.bytes[BAR0..BAR0 + 8]);
        let answers = self.bytes[COMMAND] & MEMORY_SPACE != 0;
        answers.then_some(u64::from_le_bytes(bytes) & !0xf)
    }

    /// Writes what is writable: the command word, BARs, device control and the control of MSI-X.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) {
        for (index, &byte) in data.iter().enumerate() {
            let at = usize::try_from(offset).unwrap_or(CONFIG_SIZE) + index;
            let mask = match at {
                COMMAND => 0x47,
                0x05 => 0x05,
                0x0c | 0x3c => 0xff,
                // The low bits of a BAR say how large it is: what cannot be set is zero.
                0x14..=0x17 | 0x1a..=0x1f => 0xff,
                0x13 => 0xfe,
                0x19 => 0xe0,
                _ if at == PCIE + 8 || at == PCIE + 9 => 0x7f,
                _ if at == MSIX + 3 => 0xc0,
                _ => 0,
            };
            if let Some(place) = self.bytes.get_mut(at) {
                *place = (*place & !mask) | (byte & mask);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writing_ones_to_a_bar_tells_its_size() {
        let mut config = Config::new();
        for (bar, size) in [(0x10, BAR0_SIZE), (0x18, BAR2_SIZE)] {
            config.write(bar, &[0xff; 8]);
            let mut bytes = [0; 8];
            config.read(bar, &mut bytes);
            assert_eq!(
                u64::from_le_bytes(bytes),
                !(size - 1) | 0xc,
                "BAR at {bar:#x}"
            );
        }
    }

    #[test]
    fn a_bar_has_its_address_while_memory_is_enabled() {
        let mut config = Config::new();
        config.write(0x10, &0xfe_1200_0000_u64.to_le_bytes());
        assert_eq!(config.bar0(), None);
        config.write(0x04, &[0x06, 0]);
        assert_eq!(config.bar0(), Some(0xfe_1200_0000));
        config.write(0x04, &[0x04, 0]);
        assert_eq!(config.bar0(), None);
    }

    #[test]
    fn identity_is_read_only() {
        let mut config = Config::new();
        config.write(0, &[0; 4]);
        let mut bytes = [0; 4];
        config.read(0, &mut bytes);
        assert_eq!(bytes, [0xb3, 0x15, 0x1e, 0x10]);
    }
}
