//! The function's PCI configuration space.
//!
//! QEMU keeps addresses of BARs and the MSI-X table itself; what is written here is remembered where hardware
//! would remember it.

/// Bytes of the configuration space.
pub const CONFIG_SIZE: usize = 0x1000;
/// How many BARs of 64 bits there may be: 0, 2 and 4.
const PAIRS: usize = 3;

/// What a function is.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// Who makes it, also as subsystem.
    pub vendor: u16,
    /// What it is.
    pub device: u16,
    /// What it is as a subsystem.
    pub subsystem: u16,
    /// Its class and subclass, as far as a driver may look at them.
    pub class: u16,
    /// Bytes of BARs 0, 2 and 4: powers of two; 0 if there is none.
    pub bars: [u64; PAIRS],
    /// How many vectors it has.
    pub vectors: u16,
    /// The BAR that the MSI-X table and its pending bits are in.
    pub msix_bar: u8,
    /// Where in it the table begins.
    pub msix_table: u32,
    /// Where in it the pending bits are.
    pub msix_pending: u32,
}

const COMMAND: usize = 0x04;
/// In the command word: the device answers at its BARs' addresses.
const MEMORY_SPACE: u8 = 1 << 1;
const BAR0: usize = 0x10;
const BARS_END: usize = BAR0 + 8 * PAIRS;
const CAPABILITIES: usize = 0x34;
const PCIE: usize = 0x60;
/// In that capability, what the link can do: its speeds and its lanes.
const LINK_CAPABILITIES: usize = PCIE + 0x0c;
const LINK_SPEEDS: usize = PCIE + 0x2c;
/// What the link does now.
const LINK_STATUS: usize = PCIE + 0x12;
/// The speed that the link is to have, which an administrator lowers.
const LINK_TARGET: usize = PCIE + 0x30;
/// The greatest speed, as these registers have it: 16 GT/s.
const FASTEST: u8 = 4;
const LANES: u8 = 16;
const MSIX: usize = 0xa0;

/// A memory BAR of 64 bits, prefetchable.
const BAR_64_PREFETCHABLE: u8 = 0xc;

/// The configuration space.
#[derive(Debug)]
pub struct Config {
    bytes: Vec<u8>,
    bars: [u64; PAIRS],
}

impl Config {
    /// The space after reset.
    #[must_use]
    pub fn new(identity: &Identity) -> Self {
        let mut config = Self {
            bytes: vec![0; CONFIG_SIZE],
            bars: identity.bars,
        };
        config.put16(0x00, identity.vendor);
        config.put16(0x02, identity.device);
        config.put16(0x06, 0x0010); // status: there is a list of capabilities
        config.put16(0x0a, identity.class);
        for (pair, size) in identity.bars.into_iter().enumerate() {
            if size != 0 {
                config.bytes[BAR0 + 8 * pair] = BAR_64_PREFETCHABLE;
            }
        }
        config.put16(0x2c, identity.vendor);
        config.put16(0x2e, identity.subsystem);
        config.bytes[CAPABILITIES] = PCIE as u8;
        config.put16(PCIE, 0x10 | (MSIX as u16) << 8);
        config.put16(PCIE + 2, 0x0002); // version 2, an endpoint
        config.put16(PCIE + 4, 0x8002); // payloads up to 512 bytes; reset by function
        config.put16(PCIE + 6, 0x1000);
        let link = u16::from(LANES) << 4 | u16::from(FASTEST);
        config.put16(LINK_CAPABILITIES, link);
        config.put16(LINK_SPEEDS, 0x001e); // a bit for each speed up to that
        config.put16(LINK_STATUS, link);
        config.put16(LINK_TARGET, FASTEST.into());
        config.put16(MSIX, 0x11);
        config.put16(MSIX + 2, identity.vectors - 1);
        let bar = u32::from(identity.msix_bar);
        config.put32(MSIX + 4, identity.msix_table | bar);
        config.put32(MSIX + 8, identity.msix_pending | bar);
        config
    }

    fn put32(&mut self, at: usize, value: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    fn put16(&mut self, at: usize, value: u16) {
        self.bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }

    /// Reads; beyond the end there are ones, as on a bus.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        data.fill(0xff);
        let start = usize::try_from(offset)
            .unwrap_or(CONFIG_SIZE)
            .min(CONFIG_SIZE);
        let length = data.len().min(CONFIG_SIZE - start);
        data[..length].copy_from_slice(&self.bytes[start..start + length]);
    }

    /// The bus address of BAR 0, once the device answers there.
    #[must_use]
    pub fn bar0(&self) -> Option<u64> {
        let answers = self.bytes[COMMAND] & MEMORY_SPACE != 0;
        answers.then_some(self.bar(0) & !0xf)
    }

    fn bar(&self, pair: usize) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.bytes[BAR0 + 8 * pair..][..8]);
        u64::from_le_bytes(bytes)
    }

    /// Writes what is writable: the command word, BARs, device control, the speed that the link is to have,
    /// and the control of MSI-X.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        for (index, &byte) in data.iter().enumerate() {
            let at = usize::try_from(offset).unwrap_or(CONFIG_SIZE) + index;
            let mask = match at {
                COMMAND => 0x47,
                0x05 => 0x05,
                0x0c | 0x3c => 0xff,
                BAR0..BARS_END => self.bar_mask(at),
                _ if at == PCIE + 8 || at == PCIE + 9 => 0x7f,
                LINK_TARGET => 0x0f,
                _ if at == MSIX + 3 => 0xc0,
                _ => 0,
            };
            if let Some(place) = self.bytes.get_mut(at) {
                *place = (*place & !mask) | (byte & mask);
            }
        }
        self.train();
    }

    /// Gives the link the speed that it is to have, as a port above it would when the link is trained again.
    fn train(&mut self) {
        let speed = self.bytes[LINK_TARGET].clamp(1, FASTEST);
        let lanes = self.bytes[LINK_STATUS] & 0xf0;
        self.bytes[LINK_STATUS] = lanes | speed;
    }

    /// The bits of a BAR's byte that can be set. The low bits of a BAR say how large it is: they are zero.
    fn bar_mask(&self, at: usize) -> u8 {
        let size = self.bars[(at - BAR0) / 8];
        if size == 0 {
            return 0;
        }
        (!(size - 1)).to_le_bytes()[(at - BAR0) % 8]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: Identity = Identity {
        vendor: 0x15b3,
        device: 0x101e,
        subsystem: 1,
        class: 0x0207,
        bars: [32 << 20, 8 << 10, 0],
        vectors: 16,
        msix_bar: 2,
        msix_table: 0,
        msix_pending: 0x1000,
    };

    #[test]
    fn writing_ones_to_a_bar_tells_its_size() {
        let mut config = Config::new(&IDENTITY);
        for (pair, bar) in [0x10, 0x18, 0x20].into_iter().enumerate() {
            config.write(bar, &[0xff; 8]);
            let mut bytes = [0; 8];
            config.read(bar, &mut bytes);
            let expected = match IDENTITY.bars[pair] {
                0 => 0,
                size => !(size - 1) | 0xc,
            };
            assert_eq!(u64::from_le_bytes(bytes), expected, "BAR at {bar:#x}");
        }
    }

    #[test]
    fn a_bar_has_its_address_while_memory_is_enabled() {
        let mut config = Config::new(&IDENTITY);
        config.write(0x10, &0xfe_1200_0000_u64.to_le_bytes());
        assert_eq!(config.bar0(), None);
        config.write(0x04, &[0x06, 0]);
        assert_eq!(config.bar0(), Some(0xfe_1200_0000));
        config.write(0x04, &[0x04, 0]);
        assert_eq!(config.bar0(), None);
    }

    #[test]
    fn a_link_has_the_speed_that_it_is_to_have() {
        let mut config = Config::new(&IDENTITY);
        let mut status = || {
            let mut bytes = [0; 2];
            config.read(0x72, &mut bytes);
            config.write(0x90, &[1, 0]);
            u16::from_le_bytes(bytes)
        };
        assert_eq!([status(), status()], [0x0104, 0x0101]);
    }

    #[test]
    fn identity_is_read_only() {
        let mut config = Config::new(&IDENTITY);
        config.write(0, &[0; 4]);
        let mut bytes = [0; 4];
        config.read(0, &mut bytes);
        assert_eq!(bytes, [0xb3, 0x15, 0x1e, 0x10]);
    }
}
