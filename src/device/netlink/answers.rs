//! Parses the kernel's answers about devices, their character devices and their ports.
//!
//! Source: `fill_dev_info`, `fill_port_info` and `nldev_get_chardev` in `drivers/infiniband/core/nldev.c`.

use uverbs_uapi::cmd::ABI_VERSION;
use uverbs_uapi::nldev::attr;

use super::message::{Attribute, attributes};
use crate::device::chardev::Chardev;
use crate::device::driver::{DriverClue, DriverId};
use crate::device::failure::Malformed;
use crate::device::info::{Info, is_file_name};
use crate::device::port::{Netdev, Port};
use crate::guid::Guid;

/// A field of an answer that comes at most once.
pub(super) struct Field<T> {
    what: &'static str,
    pub(super) value: Option<T>,
}

impl<T> Field<T> {
    pub(super) const fn new(what: &'static str) -> Self {
        Self { what, value: None }
    }

    /// Stores the value that `read` finds; an error if there is one already.
    pub(super) fn set(
        &mut self,
        read: impl FnOnce(&str) -> Result<T, Malformed>,
    ) -> Result<(), Malformed> {
        match self.value.replace(read(self.what)?) {
            None => Ok(()),
            Some(_) => Err(format!("the {} comes twice", self.what).into()),
        }
    }

    pub(super) fn required(self) -> Result<T, Malformed> {
        self.value
            .ok_or_else(|| format!("the {} is missing", self.what).into())
    }
}

/// A device, from the answer to `RDMA_NLDEV_CMD_GET`.
pub(super) fn device(payload: &[u8]) -> Result<Info, Malformed> {
    let mut index = Field::new("device index");
    let mut name = Field::new("device name");
    let mut ports = Field::new("number of ports");
    let mut firmware = Field::new("firmware version");
    let mut node_guid = Field::new("node GUID");
    let mut system_image_guid = Field::new("system image GUID");
    let mut node_type = Field::new("node type");
    for attribute in attributes(payload) {
        let it = attribute?;
        match it.kind {
            attr::DEV_INDEX => index.set(|what| it.u32(what))?,
            attr::DEV_NAME => name.set(|what| file_name(it, what))?,
            attr::PORT_INDEX => ports.set(|what| it.u32(what))?,
            attr::FW_VERSION => firmware.set(|what| it.text(what))?,
            attr::NODE_GUID => node_guid.set(|what| it.u64(what))?,
            attr::SYS_IMAGE_GUID => system_image_guid.set(|what| it.u64(what))?,
            attr::DEV_NODE_TYPE => node_type.set(|what| it.u8(what))?,
            _ => {}
        }
    }
    Ok(Info {
        index: Some(index.required()?),
        name: name.required()?.to_owned(),
        ports: ports.value,
        firmware: firmware.value.map(str::to_owned),
        node_guid: node_guid.value.map(Guid),
        system_image_guid: system_image_guid.value.map(Guid),
        node_type: node_type.value.map(Into::into),
    })
}

/// A character device, from the answer to `RDMA_NLDEV_CMD_GET_CHARDEV`.
pub(super) fn chardev(payload: &[u8]) -> Result<Chardev, Malformed> {
    let mut name = Field::new("character device's name");
    let mut number = Field::new("character device's number");
    let mut abi = Field::new("driver's ABI version");
    let mut driver = Field::new("driver id");
    for attribute in attributes(payload) {
        let it = attribute?;
        match it.kind {
            attr::CHARDEV_NAME => name.set(|what| file_name(it, what))?,
            attr::CHARDEV => number.set(|what| device_number(it.u64(what)?))?,
            // The upper half is reserved.
            attr::CHARDEV_ABI => abi.set(|what| Ok(it.u64(what)? as u32))?,
            attr::UVERBS_DRIVER_ID => driver.set(|what| it.u32(what))?,
            _ => {}
        }
    }
    Ok(Chardev {
        name: name.required()?.to_owned(),
        number: number.required()?,
        driver: driver.value.map(|id| DriverClue::Number(DriverId(id))),
        abi_version: abi.required()?,
        // Netlink reports character devices of the kind "uverbs", whose ABI is the one of this name. The
        // connection manager's device has only one version, its own.
        uverbs_abi_version: ABI_VERSION,
    })
}

/// A port, from the answer to `RDMA_NLDEV_CMD_PORT_GET`, with the index of its device.
pub(super) fn port(payload: &[u8]) -> Result<(u32, Port), Malformed> {
    let mut device = Field::new("device index");
    let mut number = Field::new("port number");
    let mut lid = Field::new("LID");
    let mut state = Field::new("port state");
    let mut physical_state = Field::new("physical state");
    let mut netdev_index = Field::new("network device's index");
    let mut netdev_name = Field::new("network device's name");
    for attribute in attributes(payload) {
        let it = attribute?;
        match it.kind {
            attr::DEV_INDEX => device.set(|what| it.u32(what))?,
            attr::PORT_INDEX => number.set(|what| it.u32(what))?,
            attr::LID => lid.set(|what| it.u32(what))?,
            attr::PORT_STATE => state.set(|what| it.u8(what))?,
            attr::PORT_PHYS_STATE => physical_state.set(|what| it.u8(what))?,
            attr::NDEV_INDEX => netdev_index.set(|what| it.u32(what))?,
            attr::NDEV_NAME => netdev_name.set(|what| it.text(what))?,
            _ => {}
        }
    }
    let port = Port {
        number: number.required()?,
        state: state.value.map(Into::into),
        physical_state: physical_state.value.map(Into::into),
        lid: lid.value,
        netdev: netdev_name.value.map(|name| Netdev {
            name: name.to_owned(),
            index: netdev_index.value,
        }),
    };
    Ok((device.required()?, port))
}

/// Text that names an entry of a directory in /sys or /dev.
fn file_name<'a>(attribute: Attribute<'a>, what: &str) -> Result<&'a str, Malformed> {
    let name = attribute.text(what)?;
    match is_file_name(name) {
        true => Ok(name),
        false => Err(format!("the {what} {name:?} cannot be the name of a file").into()),
    }
}

/// Decodes the device number that `huge_encode_dev` encoded in 64 bits: 12 bits of the major number, with the
/// minor number's 20 bits around them.
fn device_number(encoded: u64) -> Result<rustix::fs::Dev, Malformed> {
    let encoded = u32::try_from(encoded)
        .map_err(|_| Malformed::from(format!("{encoded:#x} is no device number")))?;
    let major = encoded >> 8 & 0xfff;
    let minor = encoded & 0xff | encoded >> 12 & 0xf_ff00;
    Ok(rustix::fs::makedev(major, minor))
}
