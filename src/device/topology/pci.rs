//! Functions on the PCI bus: addresses, paths from the host bridge, links.

use std::fmt;
use std::str::FromStr;

use crate::device::bandwidth::Bandwidth;
use crate::error::ParseError;

/// The address of a function on the PCI bus, such as `0000:03:00.1`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PciAddress {
    /// The domain, also called segment.
    pub domain: u32,
    /// The bus.
    pub bus: u8,
    /// The device on the bus, up to 31.
    pub device: u8,
    /// The function of the device, up to 7.
    pub function: u8,
}

impl PciAddress {
    /// Whether both are functions of one device, such as a card with two ports.
    pub fn is_same_device(&self, other: &Self) -> bool {
        (self.domain, self.bus, self.device) == (other.domain, other.bus, other.device)
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            domain,
            bus,
            device,
            function,
        } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

/// The expected text.
const NO_ADDRESS: ParseError = ParseError::new("not a PCI address such as 0000:03:00.1 or 03:00.1");

/// In the notation of sysfs and `lspci`, with or without the domain 0.
impl FromStr for PciAddress {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let (rest, function) = text.rsplit_once('.').ok_or(NO_ADDRESS)?;
        let (rest, device) = rest.rsplit_once(':').ok_or(NO_ADDRESS)?;
        let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0000", rest));
        let address = Self {
            domain: hex(domain, 4..=8)?,
            bus: hex(bus, 2..=2)? as u8,
            device: hex(device, 2..=2)? as u8,
            function: hex(function, 1..=1)? as u8,
        };
        match address.device < 32 && address.function < 8 {
            true => Ok(address),
            false => Err(NO_ADDRESS),
        }
    }
}

/// A hexadecimal number with so many digits as `digits` allows.
fn hex(text: &str, digits: std::ops::RangeInclusive<usize>) -> Result<u32, ParseError> {
    let is_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_hex || !digits.contains(&text.len()) {
        return Err(NO_ADDRESS);
    }
    u32::from_str_radix(text, 16).map_err(|_| NO_ADDRESS)
}

/// The path from a host bridge to a function: `pci0000:00/0000:00:01.0/0000:01:00.0`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct PciPath {
    host_bridge: String,
    bridges: Vec<PciAddress>,
    address: PciAddress,
}

impl PciPath {
    /// The path in the components of a directory of sysfs; `None` if no PCI function is among them. It ends
    /// at the last function, without what follows: functions of an auxiliary bus, virtio devices.
    pub(in crate::device) fn of_components<'a>(
        components: impl Iterator<Item = &'a str>,
    ) -> Option<Self> {
        let mut host_bridge = String::new();
        let mut bridges = Vec::new();
        for component in components {
            match component.parse() {
                Ok(address) => bridges.push(address),
                Err(NO_ADDRESS) if bridges.is_empty() => host_bridge = component.to_owned(),
                Err(_) => break,
            }
        }
        let address = bridges.pop()?;
        Some(Self {
            host_bridge,
            bridges,
            address,
        })
    }

    /// The host bridge, by the kernel's name, such as `pci0000:00`.
    pub fn host_bridge(&self) -> &str {
        &self.host_bridge
    }

    /// The bridges on the path: the root port first, then the ports of switches.
    pub fn bridges(&self) -> &[PciAddress] {
        &self.bridges
    }

    /// The function itself.
    pub fn address(&self) -> PciAddress {
        self.address
    }
}

impl fmt::Display for PciPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.host_bridge)?;
        for address in self.bridges.iter().chain([&self.address]) {
            write!(f, "/{address}")?;
        }
        Ok(())
    }
}

/// A link of PCI Express.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PciLink {
    /// Megatransfers per second on each lane: 16000 for 16 GT/s.
    pub megatransfers: u64,
    /// Lanes.
    pub width: u32,
}

impl PciLink {
    pub(in crate::device) fn new(megatransfers: u64, width: u32) -> Self {
        Self {
            megatransfers,
            width,
        }
    }

    /// The bandwidth in one direction, after the encoding (`PCIE_SPEED2MBS_ENC` in the kernel's
    /// `drivers/pci/pci.h`). The headers of packets still reduce it.
    pub fn bandwidth(&self) -> Bandwidth {
        let lane = match self.megatransfers {
            ..8_000 => self.megatransfers * 8 / 10,
            8_000..64_000 => self.megatransfers * 128 / 130,
            _ => self.megatransfers,
        };
        Bandwidth::from_megabits(lane.saturating_mul(self.width.into()))
    }
}

/// `16 GT/s x16`.
impl fmt::Display for PciLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, tenths) = (self.megatransfers / 1000, self.megatransfers / 100 % 10);
        match tenths {
            0 => write!(f, "{whole} GT/s x{}", self.width),
            _ => write!(f, "{whole}.{tenths} GT/s x{}", self.width),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written() {
        for text in ["0000:03:00.1", "10000:e1:1f.7", "0000:ff:00.0"] {
            assert_eq!(text.parse::<PciAddress>().unwrap().to_string(), text);
        }
        let short: PciAddress = "03:00.1".parse().unwrap();
        assert_eq!(short.to_string(), "0000:03:00.1");
        for wrong in [
            "",
            "0000:03:00",
            "0000:03:20.0",
            "0000:03:00.8",
            "000:03:00.0",
            "0000:3:00.0",
            "0000:+3:00.0",
            "pci0000:00",
            "0000:03:00.1.2",
        ] {
            assert_eq!(wrong.parse::<PciAddress>(), Err(NO_ADDRESS), "{wrong}");
        }
    }

    #[test]
    fn ways_end_at_the_last_function() {
        let way = |text: &str| PciPath::of_components(text.split('/')).map(|path| path.to_string());
        let plain = "pci0000:00/0000:00:01.0/0000:01:00.0";
        assert_eq!(way(plain).as_deref(), Some(plain));
        assert_eq!(
            way(&format!("{plain}/mlx5_core.sf.4")).as_deref(),
            Some(plain)
        );
        let arm = "platform/40000000.pcie/pci0004:00/0004:00:00.0";
        assert_eq!(way(arm).as_deref(), Some("pci0004:00/0004:00:00.0"));
        assert_eq!(way("virtual/net/d0"), None);
        assert_eq!(way(""), None);
    }

    #[test]
    fn links_lose_their_encoding() {
        for (megatransfers, width, told, megabits) in [
            (2_500, 1, "2.5 GT/s x1", 2_000),
            (8_000, 8, "8 GT/s x8", 63_008),
            (16_000, 16, "16 GT/s x16", 252_048),
            (64_000, 16, "64 GT/s x16", 1_024_000),
        ] {
            let link = PciLink::new(megatransfers, width);
            assert_eq!(link.to_string(), told);
            assert_eq!(link.bandwidth().megabits(), megabits);
        }
    }
}
