//! The port of a function: its kind and its addresses.

/// The kind of network.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PortKind {
    /// InfiniBand: addressed by LID.
    InfiniBand,
    /// Ethernet with RoCE: addressed by MAC and GID.
    Roce,
}

/// A port.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    pub(crate) kind: PortKind,
    pub(crate) lid: u16,
    pub(crate) mac: u64,
    pub(crate) guid: u64,
    /// Whether there is a link.
    pub(crate) is_up: bool,
    /// What managers on the host offer at the port (`IB_PORT_*_SUP`), for others to see.
    pub(crate) capabilities: u32,
    /// Whether work requests may say how large a key's pages are. Then the driver loads the pages of memory
    /// regions by them, which it needs for dma-bufs; else regions come with all their pages by CREATE_MKEY.
    pub(crate) loads_pages: bool,
}

impl Port {
    /// The port of the function with this index, the only one with these addresses on its fabric. Every
    /// second function is like one with old firmware in that work requests load no pages there, so that tests
    /// take both ways of the kernel's driver.
    pub(crate) fn new(kind: PortKind, index: u16) -> Self {
        Self {
            kind,
            lid: index + 1,
            mac: 0x0200_0000_0000 | (u64::from(index) + 1),
            guid: 0x0200_00ff_fe00_0000 | (u64::from(index) + 1),
            is_up: true,
            capabilities: 0,
            loads_pages: index.is_multiple_of(2),
        }
    }

    /// The port's first GID: the default subnet's prefix and the port's GUID.
    pub(crate) fn gid(&self) -> [u8; 16] {
        let gid = (0xfe80_u128 << 112) | u128::from(self.guid);
        gid.to_be_bytes()
    }
}
