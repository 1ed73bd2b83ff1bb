//! The devices that a subcommand uses.

use uverbs::Device;

use crate::failure::{Failure, Kind, Result};

/// The device with this name, or all devices; there must be at least one.
pub(crate) fn devices(name: Option<&str>) -> Result<Vec<Device>> {
    let devices = match name {
        Some(name) => vec![uverbs::device::find(name)?],
        None => uverbs::devices()?,
    };
    match devices.is_empty() {
        false => Ok(devices),
        true => Err(none()),
    }
}

/// The failure if a device is needed and there is none.
pub(crate) fn none() -> Failure {
    let text = "there is no RDMA device in this network namespace";
    Failure::new(Kind::NotFound, text)
}

/// A failure of the connection manager; if there is no device that it could use, that is the reason.
pub(crate) fn reason(failure: impl Into<Failure>) -> Failure {
    let failure = failure.into();
    match uverbs::devices() {
        Ok(devices) if devices.is_empty() && !failure.is(Kind::Usage) => none(),
        _ => failure,
    }
}

/// The device with this name, or the first one: in a container, the first of those that it has been given.
pub(crate) fn one(name: Option<&str>) -> Result<Device> {
    let mut devices = devices(name)?;
    let first = devices.iter().position(Device::has_node).unwrap_or(0);
    Ok(devices.swap_remove(first))
}
