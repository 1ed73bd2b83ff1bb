//! Devices by sysfs: the fallback if netlink is forbidden, and the only source of partition keys. Use it for
//! GID tables only if the kernel has no `QUERY_GID_TABLE` (before 5.10), or the device cannot be opened.
//!
//! Sources: `drivers/infiniband/core/sysfs.c`, `uverbs_main.c`,
//! `Documentation/ABI/stable/sysfs-class-infiniband`.

mod attribute;
mod gid_table;
#[cfg(feature = "topology")]
mod place;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use attribute::{entries, if_told, nonsense, numbered, parsed, text};

use super::chardev::Chardev;
use super::driver::DriverClue;
use super::failure::{Failure, Malformed};
use super::info::{Info, is_file_name};
use super::port::{Netdev, Port};

/// A mounted sysfs, or a directory that looks like one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Sysfs {
    root: Arc<Path>,
}

impl Default for Sysfs {
    fn default() -> Self {
        Self::at(Path::new("/sys"))
    }
}

impl Sysfs {
    /// The sysfs that is mounted here.
    pub(super) fn at(root: &Path) -> Self {
        Self { root: root.into() }
    }

    /// The path that it is mounted at.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// All devices; `None` if the kernel has no RDMA or sysfs is not mounted.
    pub(super) fn list(&self) -> Result<Option<Vec<Info>>, Failure> {
        let Some(names) = entries(&self.class("infiniband"))? else {
            return Ok(None);
        };
        names
            .into_iter()
            .map(|name| self.info(name))
            .collect::<Result<_, _>>()
            .map(Some)
    }

    fn info(&self, name: String) -> Result<Info, Failure> {
        let device = self.device(&name);
        let node_type = numbered(&device.join("node_type"))?;
        let ports = entries(&device.join("ports"))?;
        Ok(Info {
            index: None,
            ports: ports.map(|ports| ports.len() as u32),
            firmware: text(&device.join("fw_ver"))?.filter(|version| !version.is_empty()),
            node_guid: parsed(&device.join("node_guid"))?,
            system_image_guid: parsed(&device.join("sys_image_guid"))?,
            node_type: node_type.map(Into::into),
            name,
        })
    }

    /// The uverbs character device of the device with this name; `None` if it has none.
    pub(super) fn chardev(&self, device: &str) -> Result<Option<Chardev>, Failure> {
        let class = self.class("infiniband_verbs");
        for name in entries(&class)?.unwrap_or_default() {
            let directory = class.join(&name);
            // The class has an attribute next to the devices, and devices may appear and disappear.
            if text(&directory.join("ibdev"))?.as_deref() != Some(device) {
                continue;
            }
            let (Some(number), Some(abi_version), Some(uverbs_abi_version)) = (
                device_number(&directory.join("dev"))?,
                parsed(&directory.join("abi_version"))?,
                parsed(&class.join("abi_version"))?,
            ) else {
                // It has just disappeared.
                continue;
            };
            return Ok(Some(Chardev {
                number,
                driver: self.driver(device)?,
                abi_version,
                uverbs_abi_version,
                name,
            }));
        }
        Ok(None)
    }

    /// The clue that sysfs has to the driver of the device with this name.
    ///
    /// A hardware device has a parent, whose driver has a name. A software device has none; some of them have
    /// an attribute `parent` that names their network device.
    pub(super) fn driver(&self, device: &str) -> Result<Option<DriverClue>, Failure> {
        let directory = self.device(device);
        if let Ok(link) = std::fs::read_link(directory.join("device/driver")) {
            let name = link.file_name().and_then(|name| name.to_str());
            return Ok(name.map(|name| DriverClue::Bus(name.to_owned())));
        }
        let parent = text(&directory.join("parent"))?;
        Ok(parent.map(|_| DriverClue::Parent))
    }

    /// The ports of the device with this name.
    pub(super) fn ports(&self, device: &str) -> Result<Vec<Port>, Failure> {
        let directory = self.device(device).join("ports");
        let Some(names) = entries(&directory)? else {
            return Err(Failure::Refused(crate::error::Errno::NODEV));
        };
        let mut ports = Vec::with_capacity(names.len());
        for name in names {
            let number = name
                .parse()
                .map_err(|_| Malformed::from(format!("{name:?} is not a port's number")))?;
            ports.push(self.port(number, &directory.join(name))?);
        }
        ports.sort_by_key(|port: &Port| port.number);
        Ok(ports)
    }

    fn port(&self, number: u32, directory: &Path) -> Result<Port, Failure> {
        let lid = match link_layer(directory)?.as_deref() {
            Some("InfiniBand") => if_told(hexadecimal(&directory.join("lid")))?,
            _ => None,
        };
        let state = if_told(numbered(&directory.join("state")))?;
        let physical_state = if_told(numbered(&directory.join("phys_state")))?;
        Ok(Port {
            number,
            state: state.map(Into::into),
            physical_state: physical_state.map(Into::into),
            lid,
            // The first entry of a RoCE port's GID table always belongs to the port's own network device.
            netdev: self.netdev(&directory.join("gid_attrs/ndevs/0"))?,
        })
    }

    /// The network device that this attribute names.
    fn netdev(&self, attribute: &Path) -> Result<Option<Netdev>, Failure> {
        let Some(name) = text(attribute)? else {
            return Ok(None);
        };
        if !is_file_name(&name) {
            return Err(nonsense(attribute, &name).into());
        }
        let index = parsed(&self.class("net").join(&name).join("ifindex"))?;
        Ok(Some(Netdev { name, index }))
    }

    /// One entry of a port's partition key table; `None` if there is no such port or entry.
    pub(super) fn pkey(&self, device: &str, port: u32, index: u32) -> Result<Option<u16>, Failure> {
        let table = self.port_directory(device, port).join("pkeys");
        hexadecimal(&table.join(index.to_string()))
    }

    /// A port's partition key table, without its unused entries; `None` if there is no such port.
    pub(super) fn pkeys(
        &self,
        device: &str,
        port: u32,
    ) -> Result<Option<Vec<(u32, u16)>>, Failure> {
        let table = self.port_directory(device, port).join("pkeys");
        let Some(names) = entries(&table)? else {
            return Ok(None);
        };
        let mut pkeys = Vec::new();
        for name in names {
            let index = table_index(&name)?;
            match hexadecimal(&table.join(name))? {
                None | Some(0) => {}
                Some(pkey) => pkeys.push((index, pkey)),
            }
        }
        pkeys.sort_unstable();
        Ok(Some(pkeys))
    }

    /// The name that the device of this character device has now; `None` if sysfs does not show such devices.
    pub(super) fn name_of(&self, chardev: &Chardev) -> Result<Option<String>, Failure> {
        let class = self.class("infiniband_verbs");
        if !class.exists() {
            return Ok(None);
        }
        let directory = class.join(&chardev.name);
        let gone = Failure::Refused(crate::error::Errno::NODEV);
        let Some(name) = text(&directory.join("ibdev"))? else {
            return Err(gone);
        };
        let number = device_number(&directory.join("dev"))?;
        match number == Some(chardev.number) && is_file_name(&name) {
            true => Ok(Some(name)),
            false => Err(gone),
        }
    }

    /// True if the device with this name exists.
    pub(super) fn has(&self, device: &str) -> bool {
        self.device(device).exists()
    }

    fn class(&self, class: &str) -> PathBuf {
        self.root.join("class").join(class)
    }

    fn device(&self, name: &str) -> PathBuf {
        self.class("infiniband").join(name)
    }

    fn port_directory(&self, device: &str, port: u32) -> PathBuf {
        self.device(device).join("ports").join(port.to_string())
    }
}

/// The link layer of the port with this directory: `InfiniBand`, `Ethernet`, or `Unspecified` as an EFA's.
fn link_layer(port: &Path) -> Result<Option<String>, Failure> {
    text(&port.join("link_layer"))
}

/// The table index that a file name stands for.
fn table_index(name: &str) -> Result<u32, Malformed> {
    name.parse()
        .map_err(|_| format!("{name:?} is not the index of a table").into())
}

/// A number of the form `0xffff`.
fn hexadecimal<T: TryFrom<u32>>(path: &Path) -> Result<Option<T>, Failure> {
    let Some(text) = text(path)? else {
        return Ok(None);
    };
    let number = text
        .strip_prefix("0x")
        .and_then(|digits| u32::from_str_radix(digits, 16).ok())
        .and_then(|number| T::try_from(number).ok());
    number.map(Some).ok_or_else(|| nonsense(path, &text).into())
}

/// A device number of the form `231:192`.
fn device_number(path: &Path) -> Result<Option<rustix::fs::Dev>, Failure> {
    let Some(text) = text(path)? else {
        return Ok(None);
    };
    let number = text.split_once(':').and_then(|(major, minor)| {
        Some(rustix::fs::makedev(
            major.parse().ok()?,
            minor.parse().ok()?,
        ))
    });
    number.map(Some).ok_or_else(|| nonsense(path, &text).into())
}

#[cfg(test)]
mod tests;
