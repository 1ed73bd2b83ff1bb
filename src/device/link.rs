//! RDMA devices that are made on a network device: soft-RoCE, and soft-iWARP if the kernel has it.

use std::ffi::CString;

use libc::IFNAMSIZ;

use super::Device;
use super::failure::Failure;
use super::netlink::Netlink;
use crate::error::{Error, Result, Subject, Verb};

/// Bytes of a device's name with its NUL (`IB_DEVICE_NAME_MAX` in `include/rdma/ib_verbs.h`).
const DEVICE_NAME: usize = 64;

/// Makes an RDMA device on a network device, as `rdma link add NAME type KIND netdev NETDEV` does.
///
/// The kind is `rxe` (soft-RoCE) or `siw` (soft-iWARP); the kernel loads the module. The kernel adds no
/// number to the name: choose one that is free, such as `rxe0`.
///
/// # Errors
/// `EPERM` without `CAP_NET_ADMIN` in the initial user namespace, which a rootless container does not have
/// (`netlink_capable`); `EEXIST` if the name is taken, or the network device has such a device already;
/// `ENODEV` or `EINVAL` if there is no such network device or kind;
/// [`Cause::Invalid`](crate::Cause::Invalid) if a text has a NUL, the name is longer than 63 bytes, or the
/// kind or the network device's name longer than 15. Source: `nldev_newlink` in
/// `drivers/infiniband/core/nldev.c`.
pub fn add_link(name: &str, kind: &str, netdev: &str) -> Result<Device> {
    let subject = || Subject::named("device", name);
    let text = |text: &str, room: usize| {
        let invalid = |why| Error::invalid(Verb::AddLink, subject(), why);
        text_in(text, room).map_err(invalid)
    };
    let new = text(name, DEVICE_NAME)?;
    let (kind, netdev) = (text(kind, IFNAMSIZ)?, text(netdev, IFNAMSIZ)?);
    Netlink::open()
        .map_err(Failure::from)
        .and_then(|mut netlink| netlink.add_link(&new, &kind, &netdev))
        .map_err(|failure| failure.of(Verb::AddLink, subject()))?;
    super::find(name)
}

/// The text with its NUL, if it is not longer than `room`: the kernel would cut it off there, and take it for
/// another name.
fn text_in(text: &str, room: usize) -> Result<CString, String> {
    let ended = CString::new(text).map_err(|_| "a name has no NUL")?;
    match ended.as_bytes_with_nul().len() <= room {
        true => Ok(ended),
        false => Err(format!(
            "a name of {} bytes: there is room for {}",
            text.len(),
            room - 1
        )),
    }
}

impl Device {
    /// Deletes a device that was made on a network device, as `rdma link delete` does. From Linux 7.3 on, a
    /// soft-RoCE device is then removed for programs that use it. Before, it works until the last of them has
    /// closed it, and this call waits for that, unkillably: so close this program's own contexts first.
    ///
    /// # Errors
    /// `EPERM` without `CAP_NET_ADMIN` in the initial user namespace, as for [`add_link`]; `EINVAL` if it is
    /// no such device or was removed; [`Cause::Unsupported`](crate::Cause::Unsupported) if it was found by
    /// sysfs: only netlink deletes.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Cause;

    /// Would catch a panic, and a name that the kernel cuts off.
    #[test]
    fn texts_that_the_kernel_has_no_room_for_are_refused() {
        for (name, kind, netdev) in [(64, 3, 2), (70_000, 3, 2), (4, 16, 2), (4, 3, 16)] {
            let text = |length| "a".repeat(length);
            let error = add_link(&text(name), &text(kind), &text(netdev)).unwrap_err();
            assert!(matches!(error.cause(), Cause::Invalid(_)), "{error}");
        }
        let error = add_link("rxe0", "rxe\0", "d0").unwrap_err();
        assert!(matches!(error.cause(), Cause::Invalid(_)), "{error}");
        assert!(text_in(&"a".repeat(63), DEVICE_NAME).is_ok());
        assert!(text_in(&"a".repeat(15), IFNAMSIZ).is_ok());
    }
}
