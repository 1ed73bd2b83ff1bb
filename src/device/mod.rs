//! RDMA devices: which there are, what can be queried without opening them, and their character devices.
//!
//! Nothing here needs verbs; for verbs, open a device as a context. Devices are found by RDMA netlink, or by
//! sysfs if there is no netlink ([`Discovery`]). Finding a device by its name costs seven system calls: a
//! socket, the list of devices (one `send`, two `recv`s), the device's character device (one `send`, one
//! `recv`), `close`.

mod bandwidth;
mod chardev;
mod discovery;
mod driver;
mod failure;
mod info;
mod link;
#[cfg(feature = "cm")]
mod manager;
pub(crate) mod netlink;
mod node_type;
mod port;
pub mod resource;
mod sysfs;
#[cfg(feature = "topology")]
mod topology;

use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use bandwidth::Bandwidth;
pub use discovery::Discovery;
pub(crate) use driver::DriverClue;
pub use driver::DriverId;
pub use link::add_link;
#[cfg(feature = "cm")]
pub(crate) use manager::Manager;
pub use node_type::NodeType;
pub use port::{Netdev, PhysicalState, Port, PortState};
pub use resource::{
    CmIdResource, ContextResource, CqResource, MrResource, PdResource, QpCounters, QpResource,
    ResourceCount, ResourceOwner, Resources, SrqResource,
};
#[cfg(feature = "topology")]
pub use topology::{
    Adapter, AdapterPort, CpuList, Distance, Lag, Near, NumaNode, PciAddress, PciLink, PciPath,
    Place, Topology, topology,
};

use chardev::Chardev;
use discovery::means_no_netlink;
use failure::Failure;
use info::Info;
use netlink::Netlink;
use sysfs::Sysfs;

use rustix::fs::{self, FileType};

use crate::error::{Cause, Error, Result, Subject, Verb};
use crate::gid::GidEntry;
use crate::guid::Guid;

/// Where the nodes of the uverbs character devices are.
const DEV_INFINIBAND: &str = "/dev/infiniband";

/// Lists the RDMA devices that this network namespace shows. A kernel without RDMA has none.
///
/// ```
/// for device in uverbs::devices()? {
///     println!("{} is a {:?}", device.name(), device.driver());
/// }
/// # Ok::<(), uverbs::Error>(())
/// ```
///
/// # Errors
/// The kernel refused, or its answer is malformed.
#[doc(alias = "ibv_get_device_list")]
pub fn devices() -> Result<Vec<Device>> {
    Discovery::Automatic.devices()
}

/// Finds the RDMA device with this name.
///
/// # Errors
/// [`Cause::NotFound`] if there is none, with the names that exist; the kernel refused, or its answer is
/// malformed.
pub fn find(name: &str) -> Result<Device> {
    Discovery::Automatic.find(name)
}

/// Looks a second time for what was not found: the kernel's list may lack a device if another one comes or
/// goes meanwhile.
fn look_twice<T, E>(
    mut look: impl FnMut() -> Result<T, E>,
    is_found: impl Fn(&T) -> bool,
) -> Result<T, E> {
    let first = look()?;
    match is_found(&first) {
        true => Ok(first),
        false => look(),
    }
}

/// Finds the device of an open character device, whatever name it was opened by.
///
/// # Errors
/// [`Cause::Invalid`] if the file is no character device; [`Cause::NotFound`] if no device that this network
/// namespace shows has its number; [`Cause::Unsupported`] if the kernel's uverbs ABI is not version 6.
pub(crate) fn find_by_file(file: BorrowedFd<'_>, verb: Verb) -> Result<Device> {
    let subject = || Subject::numbered("file descriptor", file.as_raw_fd() as u64);
    let stat = fs::fstat(file).map_err(|errno| Error::os(verb, subject(), errno))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::CharacterDevice {
        let why = "it is not a character device, so not the command file of an RDMA device";
        return Err(Error::invalid(verb, subject(), why));
    }
    let look = || -> Result<Option<Device>> {
        let mut devices = devices()?.into_iter();
        Ok(devices.find(|device| device.rdev() == Some(stat.st_rdev)))
    };
    let Some(device) = look_twice(look, Option::is_some)? else {
        let (major, minor) = (fs::major(stat.st_rdev), fs::minor(stat.st_rdev));
        let text = format!(
            "no RDMA device of this network namespace has the character device {major}:{minor}"
        );
        return Err(Error::new(verb, subject(), Cause::NotFound(text.into())));
    };
    if let Some(chardev) = &device.0.chardev {
        chardev.check_abi(verb, device.name())?;
    }
    Ok(device)
}

/// An RDMA device, with the data from when it was found. Cheap to clone.
///
/// Data that neither netlink nor sysfs reported is `None`.
///
/// ```no_run
/// for device in uverbs::devices()? {
///     println!("{}: {:?}, firmware {:?}", device.name(), device.driver(), device.firmware_version());
///     for entry in device.gid_table(1)? {
///         println!("    GID {}: {} {:?}", entry.index, entry.gid, entry.gid_type);
///     }
/// }
/// let context = uverbs::device::find("mlx5_0")?.open()?;
/// # Ok::<(), uverbs::Error>(())
/// ```
#[derive(Clone)]
pub struct Device(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    info: Info,
    chardev: Option<Chardev>,
    sysfs: Sysfs,
}

impl Device {
    fn new(inner: Inner) -> Self {
        Self(Arc::new(inner))
    }

    /// A device without any data.
    #[cfg(test)]
    pub(crate) fn nameless() -> Self {
        Self::new(Inner {
            info: Info::default(),
            chardev: None,
            sysfs: Sysfs::default(),
        })
    }

    /// The name by which it was found, such as `rxe0` or `mlx5_0`. An administrator can change it while the
    /// device is in use; this one stays, and the other methods go on.
    pub fn name(&self) -> &str {
        &self.0.info.name
    }

    /// The kernel's number for the device, if it was found by netlink.
    pub fn index(&self) -> Option<u32> {
        self.0.info.index
    }

    /// The kind of node.
    pub fn node_type(&self) -> Option<NodeType> {
        self.0.info.node_type
    }

    /// The GUID of the node.
    pub fn node_guid(&self) -> Option<Guid> {
        self.0.info.node_guid
    }

    /// The GUID of the system that the device is a part of.
    pub fn system_image_guid(&self) -> Option<Guid> {
        self.0.info.system_image_guid
    }

    /// The version of the firmware; software devices have none.
    pub fn firmware_version(&self) -> Option<&str> {
        self.0.info.firmware.as_deref()
    }

    /// The number of ports; the first port is number 1.
    pub fn port_count(&self) -> Option<u32> {
        self.0.info.ports
    }

    /// Identifies the device's driver.
    pub(crate) fn driver_clue(&self) -> Option<&DriverClue> {
        self.0.chardev.as_ref()?.driver.as_ref()
    }

    /// The version of the driver's own part of the ABI. A driver of this library checks it before it opens
    /// the device.
    pub fn abi_version(&self) -> Option<u32> {
        Some(self.0.chardev.as_ref()?.abi_version)
    }

    /// The path that the character device should have, such as `/dev/infiniband/uverbs0`.
    ///
    /// `None` if it has no character device: the module `ib_uverbs` is not loaded.
    pub fn path(&self) -> Option<PathBuf> {
        Some(Path::new(DEV_INFINIBAND).join(&self.0.chardev.as_ref()?.name))
    }

    /// The device number of the character device, as `st_rdev` of stat(2) shows it.
    pub fn rdev(&self) -> Option<u64> {
        Some(self.0.chardev.as_ref()?.number)
    }

    /// Whether the character device has a node in `/dev/infiniband`, under whatever name. A container may see
    /// all devices of its host and have nodes for only some. This does not check whether this process may
    /// open it.
    pub fn has_node(&self) -> bool {
        let chardev = self.0.chardev.as_ref();
        chardev.is_some_and(|chardev| chardev.has_node_in(Path::new(DEV_INFINIBAND)))
    }

    /// Opens the character device, under another name in `/dev/infiniband` if the kernel's is missing, and
    /// checks that it belongs to this device. The file has no context yet.
    ///
    /// # Errors
    /// [`Cause::Unsupported`] if the device has no character device or the kernel's uverbs ABI is not version
    /// 6; `ENOENT` if no node belongs to the device; otherwise the error of open(2).
    pub fn open_chardev(&self) -> Result<OwnedFd> {
        match &self.0.chardev {
            Some(chardev) => chardev.open_in(Path::new(DEV_INFINIBAND), self.name()),
            None => Err(self.without_chardev()),
        }
    }

    /// The error for a device without a character device in the kernel's lists. When a device is removed, its
    /// character device is removed first, while the kernel waits for the users.
    pub(crate) fn without_chardev(&self) -> Error {
        Error::unsupported(
            Verb::OpenDevice,
            self.subject(),
            "it has no uverbs character device: it is being removed, or the module ib_uverbs is not loaded",
        )
    }

    /// The ports with their present states, from the source that the device was found by. If the device fails
    /// to report a port, the port is there without its states; by netlink the ports after it too.
    ///
    /// # Errors
    /// `ENODEV` if the device has been removed; the kernel refused, or its answer is malformed.
    pub fn ports(&self) -> Result<Vec<Port>> {
        let ports = match self.index() {
            Some(index) => Netlink::open()
                .map_err(Failure::from)
                .and_then(|mut netlink| netlink.ports(index))
                .map(|ports| port::with_unknown(ports, self.port_count().unwrap_or(0))),
            None => self.name_now().and_then(|name| self.0.sysfs.ports(&name)),
        };
        ports.map_err(|failure| failure.of(Verb::QueryPort, self.subject()))
    }

    /// One entry of a port's partition key table. Its top bit says full member; 0 is an unused entry.
    ///
    /// # Errors
    /// [`Cause::NotFound`] if there is no such port or entry; [`Cause::Unsupported`] without sysfs, since the
    /// kernel shows partition keys only there.
    pub fn pkey(&self, port: u32, index: u32) -> Result<u16> {
        let read = |name: &str| self.0.sysfs.pkey(name, port, index);
        self.looked_up(read, Verb::QueryPkey, || {
            format!("port {port} has no P_Key {index}, or there is no such port")
        })
    }

    /// A port's partition keys with their indices, without the unused entries.
    ///
    /// # Errors
    /// [`Cause::NotFound`] if there is no such port; [`Cause::Unsupported`] without sysfs, since the kernel
    /// shows partition keys only there.
    pub fn pkeys(&self, port: u32) -> Result<Vec<(u32, u16)>> {
        let read = |name: &str| self.0.sysfs.pkeys(name, port);
        self.looked_up(read, Verb::QueryPkey, || format!("there is no port {port}"))
    }

    /// A port's GID table by sysfs, without the empty entries. This does not need the right to open the
    /// device; with an open context it is faster.
    ///
    /// # Errors
    /// [`Cause::NotFound`] if there is no such port; [`Cause::Unsupported`] without sysfs.
    pub fn gid_table(&self, port: u32) -> Result<Vec<GidEntry>> {
        let read = |name: &str| self.0.sysfs.gid_table(name, port);
        self.looked_up(read, Verb::QueryGidTable, || {
            format!("there is no port {port}")
        })
    }

    /// One entry of a port's GID table by sysfs.
    ///
    /// # Errors
    /// [`Cause::NotFound`] if there is no such port, or no entry in use with this index;
    /// [`Cause::Unsupported`] without sysfs.
    pub fn gid_entry(&self, port: u32, index: u32) -> Result<GidEntry> {
        let read = |name: &str| self.0.sysfs.gid_entry(name, port, index);
        self.looked_up(read, Verb::QueryGid, || {
            format!("port {port} has no GID {index}, or there is no such port")
        })
    }

    /// The name that the device has now, by which sysfs shows it. A device that has neither an index nor a
    /// character device cannot be told from others, so it has the name by which it was found.
    fn name_now(&self) -> Result<String, Failure> {
        let Inner {
            info,
            chardev,
            sysfs,
        } = &*self.0;
        if let Some(index) = info.index {
            let netlink = Netlink::open().map_err(Failure::from);
            match netlink.and_then(|mut netlink| netlink.name(index)) {
                // A sandbox that began after the device was found.
                Err(Failure::Refused(errno)) if means_no_netlink(errno) => {}
                name => return name,
            }
        }
        let name = match chardev {
            Some(chardev) => sysfs.name_of(chardev)?,
            None => None,
        };
        Ok(name.unwrap_or_else(|| info.name.clone()))
    }

    /// The value that `read` finds in a table of sysfs for the device's name, or the error if there is none.
    fn looked_up<T>(
        &self,
        read: impl FnOnce(&str) -> Result<Option<T>, Failure>,
        verb: Verb,
        missing: impl FnOnce() -> String,
    ) -> Result<T> {
        let failed = |failure: Failure| failure.of(verb, self.subject());
        let name = self.name_now().map_err(failed)?;
        match read(&name) {
            Ok(Some(value)) => Ok(value),
            Ok(None) if self.0.sysfs.has(&name) => Err(Error::new(
                verb,
                self.subject(),
                Cause::NotFound(missing().into()),
            )),
            Ok(None) => {
                let root = self.0.sysfs.root().display();
                let text =
                    format!("only sysfs has this table, and {root} does not show the device");
                Err(Error::unsupported(verb, self.subject(), text))
            }
            Err(failure) => Err(failed(failure)),
        }
    }

    fn subject(&self) -> Subject {
        Subject::named("device", self.name())
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Device").field(&self.0).finish()
    }
}
