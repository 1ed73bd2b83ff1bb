//! The character device that verbs use: which one it is, and opening it under whatever name it has in /dev.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{self, Dev, FileType, Mode, OFlags};
use uverbs_uapi::cmd::ABI_VERSION;

use super::driver::DriverClue;
use crate::error::{Errno, Error, Result, Subject, Verb};

/// A uverbs character device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Chardev {
    /// The name that the kernel gave it, such as `uverbs0`.
    pub(super) name: String,
    /// Its device number, as in `st_rdev`.
    pub(super) number: Dev,
    /// Identifies its driver.
    pub(super) driver: Option<DriverClue>,
    /// The version of the driver's own part of the ABI.
    pub(super) abi_version: u32,
    /// The version of the ABI that all drivers share.
    pub(super) uverbs_abi_version: u32,
}

impl Chardev {
    /// Opens the node in `directory`: under the kernel's name, or under another if that name is missing, or
    /// belongs to another device or one that has gone, as may happen in containers.
    pub(super) fn open_in(&self, directory: &Path, device: &str) -> Result<OwnedFd> {
        self.open_as(directory, device, OFlags::empty())
    }

    /// Whether it has a node in `directory`, under the kernel's name or another.
    pub(super) fn has_node_in(&self, directory: &Path) -> bool {
        let path = directory.join(&self.name);
        fs::stat(&path).is_ok_and(|stat| self.is(&stat)) || self.search(directory).is_some()
    }

    /// As [`open_in`](Self::open_in), with flags of the file.
    pub(super) fn open_as(&self, directory: &Path, device: &str, flags: OFlags) -> Result<OwnedFd> {
        let failed = |errno| Error::os(Verb::OpenDevice, Subject::named("device", device), errno);
        self.check_abi(Verb::OpenDevice, device)?;
        let path = directory.join(&self.name);
        match self.open_exactly(&path, flags) {
            Ok(node) => Ok(node),
            Err(first @ (Errno::NOENT | Errno::NODEV | Errno::NXIO)) => {
                match self.search(directory) {
                    Some(other) => self
                        .open_exactly(&other, flags)
                        .map_err(|errno| failed(errno).with_detail(other.display().to_string())),
                    None => Err(failed(Errno::NOENT).with_detail(self.nowhere(first, directory))),
                }
            }
            Err(errno) => Err(failed(errno).with_detail(path.display().to_string())),
        }
    }

    /// Refuses a version of the uverbs ABI that this library does not speak.
    pub(super) fn check_abi(&self, verb: Verb, device: &str) -> Result<()> {
        if self.uverbs_abi_version == ABI_VERSION {
            return Ok(());
        }
        Err(Error::unsupported(
            verb,
            Subject::named("device", device),
            format!(
                "the kernel speaks version {} of the uverbs ABI, this library only {}",
                self.uverbs_abi_version, ABI_VERSION
            ),
        ))
    }

    /// Opens the node if it is this device; `ENODEV` if it is another.
    fn open_exactly(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | flags;
        let node = rustix::io::retry_on_intr(|| fs::open(path, flags, Mode::empty()))?;
        match self.is(&fs::fstat(&node)?) {
            true => Ok(node),
            false => Err(Errno::NODEV),
        }
    }

    /// The node in `directory` that has this device's number.
    fn search(&self, directory: &Path) -> Option<PathBuf> {
        let entries = std::fs::read_dir(directory).ok()?;
        entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| fs::stat(path).is_ok_and(|stat| self.is(&stat)))
    }

    fn is(&self, stat: &fs::Stat) -> bool {
        FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
            && stat.st_rdev == self.number
    }

    /// The error when no node in `directory` is this device.
    fn nowhere(&self, first: Errno, directory: &Path) -> String {
        let (major, minor) = (fs::major(self.number), fs::minor(self.number));
        let (directory, name) = (directory.display(), &self.name);
        match first {
            Errno::NXIO => format!(
                "{directory}/{name} is of a device that is not there, and no node in {directory} is \
                 {major}:{minor}"
            ),
            Errno::NODEV => format!(
                "{directory}/{name} is another device, and no node in {directory} is {major}:{minor}"
            ),
            _ => format!("no node in {directory} is {name} or {major}:{minor}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Cause;

    /// `/dev/null`, which is 1:3 on every Linux, stands in for a uverbs device.
    fn chardev(name: &str, minor: u32) -> Chardev {
        Chardev {
            name: name.into(),
            number: fs::makedev(1, minor),
            driver: Some(DriverClue::Parent),
            abi_version: 2,
            uverbs_abi_version: ABI_VERSION,
        }
    }

    /// A directory whose entries lead to device nodes.
    fn dev(links: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (name, target) in links {
            std::os::unix::fs::symlink(target, directory.path().join(name)).unwrap();
        }
        directory
    }

    #[test]
    fn opens_the_node_of_that_name_if_it_is_the_device() {
        let dev = dev(&[("uverbs0", "/dev/null")]);
        let node = chardev("uverbs0", 3).open_in(dev.path(), "rxe0").unwrap();
        assert_eq!(fs::fstat(node).unwrap().st_rdev, fs::makedev(1, 3));
    }

    #[test]
    fn finds_the_node_under_another_name() {
        for links in [
            &[("uverbs7", "/dev/null")][..],
            &[("uverbs0", "/dev/zero"), ("uverbs1", "/dev/null")],
        ] {
            let dev = dev(links);
            assert!(chardev("uverbs0", 3).has_node_in(dev.path()));
            let node = chardev("uverbs0", 3).open_in(dev.path(), "rxe0").unwrap();
            assert_eq!(fs::fstat(node).unwrap().st_rdev, fs::makedev(1, 3));
        }
    }

    /// Would catch a node from before, whose device has gone, that hides the right one.
    #[test]
    fn passes_over_a_node_without_a_device() {
        let dev = dev(&[]);
        // Opening a socket is ENXIO, as is opening a node without a device.
        let _socket = std::os::unix::net::UnixListener::bind(dev.path().join("uverbs0")).unwrap();
        let open = || chardev("uverbs0", 3).open_in(dev.path(), "rxe0");
        let error = open().unwrap_err();
        assert_eq!(error.errno(), Some(Errno::NOENT));
        assert!(error.to_string().contains("no node in"), "{error}");
        std::os::unix::fs::symlink("/dev/null", dev.path().join("uverbs1")).unwrap();
        assert_eq!(
            fs::fstat(open().unwrap()).unwrap().st_rdev,
            fs::makedev(1, 3)
        );
    }

    #[test]
    fn never_opens_another_device() {
        let dev = dev(&[("uverbs0", "/dev/zero")]);
        std::fs::write(dev.path().join("plain"), "").unwrap();
        assert!(!chardev("uverbs0", 3).has_node_in(dev.path()));
        let error = chardev("uverbs0", 3).open_in(dev.path(), "rxe0");
        let error = error.unwrap_err();
        assert_eq!(error.errno(), Some(Errno::NOENT));
        assert!(
            error.to_string().contains("is another device, and no node"),
            "{error}"
        );
    }

    #[test]
    fn a_missing_directory_is_a_missing_node() {
        let dev = dev(&[]);
        let error = chardev("uverbs0", 3).open_in(&dev.path().join("infiniband"), "rxe0");
        let error = error.unwrap_err();
        assert_eq!(error.errno(), Some(Errno::NOENT));
        assert!(error.to_string().contains("is uverbs0 or 1:3"), "{error}");
    }

    #[test]
    fn refuses_another_uverbs_abi_before_it_opens_anything() {
        let chardev = Chardev {
            uverbs_abi_version: 7,
            ..chardev("uverbs0", 3)
        };
        let error = chardev.open_in(Path::new("/nowhere"), "rxe0").unwrap_err();
        assert!(matches!(error.cause(), Cause::Unsupported(_)));
        assert!(error.to_string().contains("version 7"), "{error}");
    }
}
