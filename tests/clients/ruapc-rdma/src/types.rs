//! Values that JSON has: what a device is called, has and can do. And the ids of requests.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::header::{ibv_device_attr, ibv_gid, ibv_port_attr, ibv_port_state, ibv_transport_type};

/// What is known of a device.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct DeviceInfo {
    /// Its name, such as `mlx5_0`.
    pub name: String,
    /// Its GUID.
    pub guid: Guid,
    /// What it speaks.
    pub transport_type: ibv_transport_type,
    /// Its directory in sysfs.
    pub ibdev_path: PathBuf,
    /// Its attributes.
    pub device_attr: ibv_device_attr,
    /// Its ports.
    pub ports: Vec<Port>,
}

/// What is known of a port.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Port {
    /// Its number, from 1.
    pub port_num: u8,
    /// Its attributes.
    pub port_attr: ibv_port_attr,
    /// Those of its GIDs that peers can use.
    pub gids: Vec<Gid>,
}

impl Port {
    /// The GID of that index.
    pub fn find_gid(&self, gid_index: u8) -> Option<&Gid> {
        self.gids.iter().find(|gid| gid.index == gid_index)
    }

    /// What its link carries, in bits per second.
    pub fn bandwidth_bps(&self) -> Option<u64> {
        self.port_attr.bandwidth_bps()
    }

    /// Whether it is active, on InfiniBand or Ethernet.
    pub fn is_usable(&self) -> bool {
        let active = [
            ibv_port_state::IBV_PORT_ACTIVE,
            ibv_port_state::IBV_PORT_ACTIVE_DEFER,
        ];
        active.contains(&self.port_attr.state)
            && self.port_attr.link_layer != LinkLayer::Unspecified
    }
}

/// A GID of a port.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Gid {
    /// Its index in the port's table.
    pub index: u8,
    /// The GID.
    pub gid: ibv_gid,
    /// What packets with it are.
    pub gid_type: GidType,
}

impl Gid {
    /// The entry, unless no peer can be reached by it: RoCE v2 has IP addresses, and those of the loopback
    /// and of one link are no route. GIDs of InfiniBand and of RoCE v1 look like the latter and are good.
    pub fn usable(index: u8, gid: ibv_gid, gid_type: GidType) -> Option<Self> {
        let address = gid.as_ipv6();
        let local = address.is_loopback() || address.is_unicast_link_local();
        let usable = gid_type != GidType::RoCEv2 || !local;
        usable.then_some(Self {
            index,
            gid,
            gid_type,
        })
    }
}

/// What packets with a GID are.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum GidType {
    /// InfiniBand's.
    IB,
    /// RoCE without IP.
    RoCEv1,
    /// RoCE over UDP.
    RoCEv2,
    /// What has no name here.
    Other(String),
}

impl From<uverbs::gid::GidType> for GidType {
    fn from(gid_type: uverbs::gid::GidType) -> Self {
        match gid_type {
            uverbs::gid::GidType::Ib => Self::IB,
            uverbs::gid::GidType::RoceV1 => Self::RoCEv1,
            uverbs::gid::GidType::RoceV2 => Self::RoCEv2,
            uverbs::gid::GidType::Other(number) => Self::Other(number.to_string()),
            other => Self::Other(other.to_string()),
        }
    }
}

/// What a port's link is.
#[repr(u8)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum LinkLayer {
    /// Nobody said.
    #[default]
    Unspecified = 0,
    /// InfiniBand.
    InfiniBand = 1,
    /// Ethernet, that is RoCE.
    Ethernet = 2,
}

impl LinkLayer {
    /// By its number in the C header; [`LinkLayer::Unspecified`] for all others.
    pub const fn from_u8(value: u8) -> Self {
        match value {
            1 => Self::InfiniBand,
            2 => Self::Ethernet,
            _ => Self::Unspecified,
        }
    }

    /// Its name.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Unspecified => "Unspecified",
            Self::InfiniBand => "InfiniBand",
            Self::Ethernet => "Ethernet",
        }
    }

    /// Whether it is InfiniBand.
    pub fn is_infiniband(&self) -> bool {
        *self == Self::InfiniBand
    }

    /// Whether it is Ethernet.
    pub fn is_ethernet(&self) -> bool {
        *self == Self::Ethernet
    }
}

impl From<u8> for LinkLayer {
    fn from(value: u8) -> Self {
        Self::from_u8(value)
    }
}

impl From<LinkLayer> for u8 {
    fn from(layer: LinkLayer) -> Self {
        layer as u8
    }
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A GUID, in network byte order.
#[repr(transparent)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Guid(u64);

impl Guid {
    /// Takes it as it lies in memory.
    pub fn from_be(guid: u64) -> Self {
        Self(guid)
    }
}

impl From<uverbs::guid::Guid> for Guid {
    fn from(guid: uverbs::guid::Guid) -> Self {
        Self(guid.0.to_be())
    }
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d] = [48, 32, 16, 0].map(|shift| (u64::from_be(self.0) >> shift) as u16);
        write!(f, "{a:04x}:{b:04x}:{c:04x}:{d:04x}")
    }
}

impl fmt::Debug for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Guid {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Guid {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let groups: Result<Vec<u16>, _> = text
            .split(':')
            .map(|group| u16::from_str_radix(group, 16))
            .collect();
        match groups.as_deref() {
            Ok(&[a, b, c, d]) => {
                let value = [a, b, c, d].map(u64::from);
                let value = value.into_iter().fold(0, |all, group| all << 16 | group);
                Ok(Self(value.to_be()))
            }
            _ => Err(de::Error::custom(
                "a GUID is four groups of hexadecimal digits",
            )),
        }
    }
}

impl JsonSchema for Guid {
    fn schema_name() -> Cow<'static, str> {
        "Guid".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^([0-9a-fA-F]{4}:){3}[0-9a-fA-F]{4}$" })
    }
}

/// The version of a device's firmware: text that ends with the first zero.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct FwVer(pub [u8; 64]);

impl Default for FwVer {
    fn default() -> Self {
        Self([0; 64])
    }
}

impl From<&str> for FwVer {
    fn from(text: &str) -> Self {
        let mut version = Self::default();
        // The last byte stays zero.
        for (to, from) in version.0[..63].iter_mut().zip(text.bytes()) {
            *to = from;
        }
        version
    }
}

impl fmt::Display for FwVer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.split(|&byte| byte == 0).next().unwrap_or_default();
        f.write_str(&String::from_utf8_lossy(text))
    }
}

impl fmt::Debug for FwVer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for FwVer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for FwVer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::from(String::deserialize(deserializer)?.as_str()))
    }
}

impl JsonSchema for FwVer {
    fn schema_name() -> Cow<'static, str> {
        "FwVer".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string" })
    }
}

/// The id of a request: two bits say what it is, the others are its number in its queue. It is unique among
/// those of its queue pair's number on its completion queue.
#[repr(transparent)]
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WRID(pub(crate) u64);

/// What a request is. A completion that failed does not say so by its opcode.
#[repr(u8)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WRType {
    /// A receive.
    Recv = 0,
    /// A SEND.
    SendData = 1,
    /// A SEND with immediate data.
    SendImm = 2,
    /// A READ.
    Read = 3,
}

impl WRID {
    /// The bits that say what it is.
    pub const TYPE_BITS: u32 = 2;
    /// The bits of the number.
    pub const SEQUENCE_BITS: u32 = u64::BITS - Self::TYPE_BITS;
    /// The last number.
    pub const MAX_SEQUENCE: u64 = u64::MAX >> Self::TYPE_BITS;

    pub(crate) fn new(wr_type: WRType, sequence: u64) -> Self {
        Self(sequence << Self::TYPE_BITS | wr_type as u64)
    }

    /// What it is.
    pub fn get_type(&self) -> WRType {
        match self.0 & 3 {
            0 => WRType::Recv,
            1 => WRType::SendData,
            2 => WRType::SendImm,
            _ => WRType::Read,
        }
    }

    /// As the device has it.
    pub fn raw(&self) -> u64 {
        self.0
    }

    /// Its number in its queue.
    pub fn sequence(self) -> u64 {
        self.0 >> Self::TYPE_BITS
    }
}

impl fmt::Debug for WRID {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({:#018x})", self.get_type(), self.0)
    }
}
