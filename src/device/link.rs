//! RDMA devices that are made on a network device: soft-RoCE, and soft-iWARP if the kernel has it.

use std::ffi::CString;

use super::Device;
use super::failure::Failure;
use super::netlink::Netlink;
use crate::error::{Error, Result, Subject, Verb};

/// Makes an RDMA device on a network device, as `rdma link add NAME type KIND netdev NETDEV` does.
///
/// The kind is `rxe` (soft-RoCE) or `siw` (soft-iWARP); the kernel loads the module. The kernel adds no
/// number to the name: choose one that is free, such as `rxe0`.
///
/// # Errors
/// `EPERM` if the user is no administrator of the network namespace; `EEXIST` if the name is taken, or the
/// network device has such a device already; `ENODEV` or `EINVAL` if there is no such network device or kind;
/// a text has a NUL. Source: `nldev_newlink` in `drivers/infiniband/core/nldev.c`.
pub fn add_link(name: &str, kind: &str, netdev: &str) -> Result<Device> {
    let subject = || Subject::named("device", name);
    let text = |text: &str| {
        let invalid = |_| Error::invalid(Verb::AddLink, subject(), "a name has no NUL");
        CString::new(text).map_err(invalid)
    };
    let (new, kind, netdev) = (text(name)?, text(kind)?, text(netdev)?);
    Netlink::open()
        .map_err(Failure::from)
        .and_then(|mut netlink| netlink.add_link(&new, &kind, &netdev))
        .map_err(|failure| failure.of(Verb::AddLink, subject()))?;
    super::find(name)
}

impl Device {
    /// Deletes a device that was made on a network device, as `rdma link delete` does. For programs that use
    /// it, it is then removed.
    ///
    /// # Errors
    /// `EPERM` if the user is no administrator of the network namespace; `EINVAL` if it is no such device or
    /// was removed; [`Cause::Unsupported`](crate::Cause::Unsupported) if it was found by sysfs: only netlink
    /// deletes.
    pub fn delete_link(&self) -> Result<()> {
        let Some(index) = self.index() else {
            let why = "devices are deleted by RDMA netlink only, which could not be opened";
            return Err(Error::unsupported(Verb::DeleteLink, self.subject(), why));
        };
        Netlink::open()
            .map_err(Failure::from)
            .and_then(|mut netlink| netlink.delete_link(index))
            .map_err(|failure| failure.of(Verb::DeleteLink, self.subject()))
    }
}
