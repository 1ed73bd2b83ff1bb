//! Devices: listed, opened, asked.

use std::fmt;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ruapc_bufpool::{AlignedMemory, MemoryRegistrar, Registration};
use uverbs::device::NodeType;
use uverbs::gid::GidEntry;

use crate::header::{
    ibv_access_flags, ibv_device_attr, ibv_gid, ibv_port_attr, ibv_transport_type,
};
use crate::memory::{MemoryRegion, ProtectionDomain};
use crate::types::{DeviceInfo, FwVer, Gid, GidType, Guid, Port};
use crate::{ErrorKind, Result};

/// The devices of this host.
#[derive(Debug)]
pub struct DeviceList(Vec<Device>);

impl DeviceList {
    /// Lists them. That there is none is an error.
    pub fn available() -> Result<Self> {
        let devices = uverbs::devices().map_err(ErrorKind::IBGetDeviceListFail.because())?;
        if devices.is_empty() {
            return Err(ErrorKind::IBDeviceNotFound.into());
        }
        Ok(Self(devices.into_iter().map(Device::new).collect()))
    }
}

impl Deref for DeviceList {
    type Target = [Device];

    fn deref(&self) -> &[Device] {
        &self.0
    }
}

/// A device.
#[derive(Debug)]
pub struct Device {
    inner: uverbs::Device,
    path: PathBuf,
}

impl Device {
    fn new(inner: uverbs::Device) -> Self {
        let path = inner.path().unwrap_or_default();
        Self { inner, path }
    }

    /// Its name, such as `mlx5_0`.
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    /// Its GUID.
    pub fn guid(&self) -> Guid {
        self.inner.node_guid().map(Guid::from).unwrap_or_default()
    }

    /// Its directory in sysfs.
    pub fn ibdev_path(&self) -> &Path {
        &self.path
    }

    /// Opens it, with a protection domain.
    pub fn open(&self) -> Result<ActiveDevice> {
        let inner = self.inner.open();
        let context = Arc::new(Context {
            inner: inner.map_err(ErrorKind::IBOpenDeviceFail.because())?,
        });
        let pd = ProtectionDomain::alloc(&context)?;
        let info = DeviceInfo {
            name: self.name().to_owned(),
            guid: self.guid(),
            transport_type: transport(self.inner.node_type()),
            ibdev_path: self.path.clone(),
            ..DeviceInfo::default()
        };
        let mut device = ActiveDevice { pd, context, info };
        device.update_attr()?;
        Ok(device)
    }
}

fn transport(node_type: Option<NodeType>) -> ibv_transport_type {
    match node_type {
        Some(NodeType::ChannelAdapter | NodeType::Switch | NodeType::Router) => {
            ibv_transport_type::IBV_TRANSPORT_IB
        }
        Some(NodeType::Rnic) => ibv_transport_type::IBV_TRANSPORT_IWARP,
        Some(NodeType::Usnic) => ibv_transport_type::IBV_TRANSPORT_USNIC,
        Some(NodeType::UsnicUdp) => ibv_transport_type::IBV_TRANSPORT_USNIC_UDP,
        Some(NodeType::Unspecified) => ibv_transport_type::IBV_TRANSPORT_UNSPECIFIED,
        _ => ibv_transport_type::IBV_TRANSPORT_UNKNOWN,
    }
}

/// An open device with a protection domain, and what is known of it.
pub struct ActiveDevice {
    pd: Arc<ProtectionDomain>,
    context: Arc<Context>,
    info: DeviceInfo,
}

impl ActiveDevice {
    /// Opens all devices.
    pub fn available() -> Result<Vec<Self>> {
        DeviceList::available()?.iter().map(Device::open).collect()
    }

    /// Its context.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Its protection domain.
    pub fn pd(&self) -> &Arc<ProtectionDomain> {
        &self.pd
    }

    /// What was known of it last.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Registers memory that peers may read and write.
    pub fn register(&self, memory: &Arc<AlignedMemory>) -> Result<MemoryRegion> {
        let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE
            | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
            | ibv_access_flags::IBV_ACCESS_REMOTE_READ
            | ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING;
        MemoryRegion::register(&self.pd, memory, access.0 as i32)
    }

    /// Asks it for its attributes, ports and GIDs.
    pub fn query_device_info(&self) -> Result<DeviceInfo> {
        let device_attr = self.context.query_device()?;
        let table = self.context.inner.gid_table();
        let table = table.map_err(ErrorKind::IBQueryGidFail.because())?;
        let port = |port_num: u8| {
            let gids = table
                .iter()
                .filter(|entry| entry.port == u32::from(port_num) && !entry.gid.is_zero());
            Ok(Port {
                port_num,
                port_attr: self.context.query_port(port_num)?,
                gids: gids.filter_map(usable).collect(),
            })
        };
        Ok(DeviceInfo {
            ports: (1..=device_attr.phys_port_cnt)
                .map(port)
                .collect::<Result<_>>()?,
            device_attr,
            ..self.info.clone()
        })
    }

    /// Renews what is known of it.
    pub fn update_attr(&mut self) -> Result<()> {
        self.info = self.query_device_info()?;
        Ok(())
    }
}

/// The entry for peers, if they can reach it. What peers tell each other has room for an index of 8 bits.
fn usable(entry: &GidEntry) -> Option<Gid> {
    let index = u8::try_from(entry.index).ok()?;
    Gid::usable(index, entry.gid.into(), entry.gid_type.into())
}

// SAFETY: a region keeps the memory and does nothing with it; it is deregistered before it lets it go. Which
// bytes of it a request names, the queue pair sees to, which has the buffer until the request has completed.
unsafe impl MemoryRegistrar for ActiveDevice {
    fn register(&self, memory: &Arc<AlignedMemory>) -> std::io::Result<Box<dyn Registration>> {
        let region = ActiveDevice::register(self, memory).map_err(std::io::Error::other)?;
        Ok(Box::new(region))
    }
}

impl fmt::Debug for ActiveDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.info, f)
    }
}

/// An open device.
#[derive(Debug)]
pub struct Context {
    pub(crate) inner: uverbs::Context,
}

impl Context {
    /// Its attributes.
    pub fn query_device(&self) -> Result<ibv_device_attr> {
        let attr = self.inner.query_device();
        let attr = attr.map_err(ErrorKind::IBQueryDeviceFail.because())?;
        let firmware = self.inner.device().firmware_version().unwrap_or_default();
        Ok(ibv_device_attr::new(&attr, FwVer::from(firmware)))
    }

    /// The attributes of a port.
    pub fn query_port(&self, port_num: u8) -> Result<ibv_port_attr> {
        let attr = self.inner.query_port(port_num);
        let attr = attr.map_err(ErrorKind::IBQueryPortFail.because())?;
        Ok(ibv_port_attr::new(&attr))
    }

    /// A GID; that there is none at this index is an error.
    pub fn query_gid(&self, port_num: u8, gid_index: u8) -> Result<ibv_gid> {
        Ok(self
            .gid(port_num, gid_index, ErrorKind::IBQueryGidFail)?
            .gid)
    }

    /// A GID's type. The path and the attributes are of no use here: the kernel tells it.
    pub fn query_gid_type(
        &self,
        port_num: u8,
        gid_index: u8,
        _ibdev_path: &Path,
        _port_attr: &ibv_port_attr,
    ) -> Result<GidType> {
        let gid = self.gid(port_num, gid_index, ErrorKind::IBQueryGidTypeFail)?;
        Ok(gid.gid_type)
    }

    /// A GID and its type, as [`Context::query_gid`] and [`Context::query_gid_type`] give them.
    pub fn query_gid_entry(
        &self,
        port_num: u8,
        gid_index: u8,
        _ibdev_path: &Path,
        _port_attr: &ibv_port_attr,
    ) -> Result<Gid> {
        self.gid(port_num, gid_index, ErrorKind::IBQueryGidFail)
    }

    fn gid(&self, port_num: u8, gid_index: u8, kind: ErrorKind) -> Result<Gid> {
        let entry = self.inner.query_gid(port_num, gid_index.into());
        let entry = match entry {
            Ok(entry) if entry.gid.is_zero() => return Err(kind.because()("there is none")),
            Ok(entry) => entry,
            Err(error) => return Err(kind.because()(error)),
        };
        Ok(Gid {
            index: gid_index,
            gid: entry.gid.into(),
            gid_type: entry.gid_type.into(),
        })
    }
}
