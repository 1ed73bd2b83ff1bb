//! The connection manager's character device, which belongs to no RDMA device.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{self, Mode, OFlags};
use uverbs_uapi::rdma_cm::ABI_VERSION;

use super::DEV_INFINIBAND;
use super::chardev::Chardev;
use super::discovery::means_no_netlink;
use super::failure::Failure;
use super::netlink::Netlink;
use crate::error::{Errno, Error, Result, Subject, Verb};

/// The name of the node in /dev/infiniband.
const NAME: &str = "rdma_cm";

/// The place of the connection manager's node. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Manager(Arc<Node>);

#[derive(Debug)]
enum Node {
    /// The device that netlink reports.
    Told(Chardev),
    /// The usual path.
    Usual,
}

/// The device that netlink reported last.
static FOUND: Mutex<Option<Manager>> = Mutex::new(None);

fn found() -> MutexGuard<'static, Option<Manager>> {
    // It is consistent after each change.
    FOUND.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Manager {
    /// Finds it and opens it with these file flags: at its last place, if it is still there.
    pub(crate) fn find_open(flags: OFlags) -> Result<(Self, OwnedFd)> {
        let known = found().clone();
        if let Some(known) = known
            && let Ok(file) = known.open(flags)
        {
            return Ok((known, file));
        }
        let manager = Self::find()?;
        let file = manager.open(flags)?;
        if matches!(&*manager.0, Node::Told(_)) {
            *found() = Some(manager.clone());
        }
        Ok((manager, file))
    }

    /// Queries netlink, which loads the module if needed; without netlink, uses the usual path.
    fn find() -> Result<Self> {
        let answer = Netlink::open()
            .map_err(Failure::from)
            .and_then(|mut netlink| netlink.connection_manager());
        let node = match answer {
            Ok(Some(chardev)) => {
                check_abi(chardev.abi_version)?;
                Node::Told(chardev)
            }
            Ok(None) => Node::Usual,
            Err(Failure::Refused(errno)) if means_no_netlink(errno) => Node::Usual,
            Err(failure) => return Err(failure.of(Verb::OpenDevice, subject())),
        };
        Ok(Self(Arc::new(node)))
    }

    /// Opens it again.
    pub(crate) fn open(&self, flags: OFlags) -> Result<OwnedFd> {
        let directory = Path::new(DEV_INFINIBAND);
        match &*self.0 {
            Node::Told(chardev) => chardev.open_as(directory, NAME, flags),
            Node::Usual => {
                let path = directory.join(NAME);
                let flags = OFlags::RDWR | OFlags::CLOEXEC | flags;
                rustix::io::retry_on_intr(|| fs::open(&path, flags, Mode::empty())).map_err(missing)
            }
        }
    }
}

fn subject() -> Subject {
    Subject::named("device", NAME)
}

fn check_abi(version: u32) -> Result<()> {
    if version == ABI_VERSION {
        return Ok(());
    }
    let what = format!(
        "the kernel speaks version {version} of the connection manager's ABI, this library only {ABI_VERSION}"
    );
    Err(Error::unsupported(Verb::OpenDevice, subject(), what))
}

/// The error of a node that cannot be opened at the usual place.
fn missing(errno: Errno) -> Error {
    match errno {
        Errno::NOENT | Errno::NXIO | Errno::NODEV => {
            let what =
                format!("{DEV_INFINIBAND}/{NAME} is missing: the module rdma_ucm is not loaded");
            Error::unsupported_by_kernel(Verb::OpenDevice, subject(), errno, what)
        }
        errno => Error::os(Verb::OpenDevice, subject(), errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_module_is_told() {
        let error = missing(Errno::NOENT);
        assert!(error.is_unsupported(), "{error}");
        assert!(error.to_string().contains("rdma_ucm"), "{error}");
        assert!(!missing(Errno::ACCESS).is_unsupported());
    }

    #[test]
    fn another_abi_is_refused() {
        assert!(check_abi(ABI_VERSION).is_ok());
        let error = check_abi(5).unwrap_err();
        assert!(error.to_string().contains("version 5"), "{error}");
    }
}
