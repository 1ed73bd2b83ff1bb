//! Numbers about ports and links.

wire_enum! {
    /// Logical state of a port.
    PortState, "IBV_PORT_";
    /// No change (only in requests).
    NOP = 0;
    /// Down.
    DOWN = 1;
    /// Up, not yet configured by a subnet manager.
    INIT = 2;
    /// Configured, not yet activated.
    ARMED = 3;
    /// In use.
    ACTIVE = 4;
    /// In use, the physical link is being restored.
    ACTIVE_DEFER = 5;
}

wire_enum! {
    /// Physical state of a port.
    PhysState, "IB_PORT_PHYS_STATE_";
    /// Asleep.
    SLEEP = 1;
    /// Looking for a peer.
    POLLING = 2;
    /// Switched off.
    DISABLED = 3;
    /// Training the link.
    PORT_CONFIGURATION_TRAINING = 4;
    /// Up.
    LINK_UP = 5;
    /// Recovering from errors.
    LINK_ERROR_RECOVERY = 6;
    /// Under test.
    PHY_TEST = 7;
}

wire_enum! {
    /// The link layer of a port.
    LinkLayer, "IBV_LINK_LAYER_";
    /// Not specified; InfiniBand on old kernels.
    UNSPECIFIED = 0;
    /// InfiniBand.
    INFINIBAND = 1;
    /// Ethernet: RoCE or iWARP.
    ETHERNET = 2;
}

wire_enum! {
    /// Lanes of a link, one bit set.
    LinkWidth, "IB_WIDTH_";
    /// One lane.
    X1 = 1 => "1X";
    /// Four lanes.
    X4 = 2 => "4X";
    /// Eight lanes.
    X8 = 4 => "8X";
    /// Twelve lanes.
    X12 = 8 => "12X";
    /// Two lanes.
    X2 = 16 => "2X";
}

wire_enum! {
    /// Speed of one lane, one bit set.
    LinkSpeed, "IB_SPEED_";
    /// 2.5 Gbit/s.
    SDR = 1;
    /// 5 Gbit/s.
    DDR = 2;
    /// 10 Gbit/s.
    QDR = 4;
    /// 10.3125 Gbit/s.
    FDR10 = 8;
    /// 14.0625 Gbit/s.
    FDR = 16;
    /// 25.78125 Gbit/s.
    EDR = 32;
    /// 50 Gbit/s.
    HDR = 64;
    /// 100 Gbit/s.
    NDR = 128;
    /// 200 Gbit/s; only in fields of more than 8 bits.
    XDR = 256;
}

wire_enum! {
    /// Largest payload of a packet.
    Mtu, "IBV_";
    /// 256 bytes.
    MTU_256 = 1;
    /// 512 bytes.
    MTU_512 = 2;
    /// 1024 bytes.
    MTU_1024 = 3;
    /// 2048 bytes.
    MTU_2048 = 4;
    /// 4096 bytes.
    MTU_4096 = 5;
}

wire_enum! {
    /// The format of packets sent under a GID (`enum ib_uverbs_gid_type`).
    GidType, "IBV_GID_TYPE_";
    /// InfiniBand.
    IB = 0;
    /// RoCE directly over Ethernet.
    ROCE_V1 = 1;
    /// RoCE over UDP and IP.
    ROCE_V2 = 2;
}

impl Mtu {
    /// The payload in bytes, if the value is known here.
    #[must_use]
    pub const fn bytes(self) -> Option<u32> {
        match self.0 {
            1..=5 => Some(128 << self.0),
            _ => None,
        }
    }
}
