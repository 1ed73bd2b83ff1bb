//! Which devices a subcommand is about.

use uverbs::Device;

use crate::failure::{Failure, Kind, Result};

/// The device of that name, or all devices, of which there must be one.
pub(crate) fn devices(name: Option<&str>) -> Result<Vec<Device>> {
    let devices = match name {
        Some(name) => vec![uverbs::device::find(name)?],
        None => uverbs::devices()?,
    };
    match devices.is_empty() {
        false => Ok(devices),
        true => Err(Failure::new(
            Kind::NotFound,
            "there is no RDMA device in this network namespace",
        )),
    }
}

/// The device of that name, or the first that there is.
pub(crate) fn one(name: Option<&str>) -> Result<Device> {
    Ok(devices(name)?.swap_remove(0))
}
