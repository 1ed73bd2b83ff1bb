//! Where to look for devices, and what to do if a source is not available.

use std::path::PathBuf;

use super::chardev::Chardev;
use super::failure::Failure;
use super::info::Info;
use super::netlink::Netlink;
use super::sysfs::Sysfs;
use super::{Device, Inner};
use crate::error::{Cause, Errno, Error, Result, Subject, Verb};

/// Where to look for devices.
///
/// [`devices`](super::devices) and [`find`](super::find) use [`Discovery::Automatic`], which works
/// everywhere; use the others if you must know the source of an answer.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Discovery {
    /// By netlink, or by the sysfs at `/sys` if the kernel or a sandbox has no RDMA netlink.
    #[default]
    Automatic,
    /// By netlink only.
    Netlink,
    /// Only by the sysfs that is mounted at this path.
    Sysfs(PathBuf),
}

impl Discovery {
    /// Lists the devices that this network namespace shows, sorted as the kernel sorts them.
    ///
    /// A kernel without RDMA has none, so its list is empty. A device may be missing if others come or go at
    /// this moment.
    ///
    /// # Errors
    /// The kernel refused, or its answer is malformed. Under [`Discovery::Netlink`] also if the kernel has no
    /// RDMA netlink.
    pub fn devices(&self) -> Result<Vec<Device>> {
        Ok(self.devices_of_rdma()?.unwrap_or_default())
    }

    /// As [`devices`](Self::devices); `None` if the kernel has no RDMA.
    pub(crate) fn devices_of_rdma(&self) -> Result<Option<Vec<Device>>> {
        let failed = |failure: Failure| failure.of(Verb::ListDevices, Subject::the("devices"));
        let (mut route, infos) = self.survey(|_| false).map_err(failed)?;
        let Some(infos) = infos else {
            return Ok(None);
        };
        let devices = infos
            .into_iter()
            .map(|info| route.device(info).map_err(failed));
        devices.collect::<Result<_>>().map(Some)
    }

    /// Finds the device with this name.
    ///
    /// # Errors
    /// [`Cause::NotFound`] if there is none, with the names that exist; otherwise as for
    /// [`Discovery::devices`].
    pub fn find(&self, name: &str) -> Result<Device> {
        let subject = || Subject::named("device", name);
        let failed = |failure: Failure| failure.of(Verb::FindDevice, subject());
        let survey = || self.survey(|info| info.name == name);
        let (mut route, infos) = twice_for(name, survey).map_err(failed)?;
        let mut infos = infos.ok_or_else(|| no_rdma(subject()))?;
        match infos.iter().position(|info| info.name == name) {
            Some(at) => route.device(infos.swap_remove(at)).map_err(failed),
            None => Err(not_among(&infos, subject())),
        }
    }

    /// Lists the devices of the first source that is available; `None` if the kernel has no RDMA. Devices
    /// after one that is `enough` may be missing.
    fn survey(
        &self,
        enough: impl Fn(&Info) -> bool,
    ) -> Result<(Route, Option<Vec<Info>>), Failure> {
        match self {
            Self::Netlink => by_netlink(enough),
            Self::Sysfs(root) => by_sysfs(Sysfs::at(root)),
            Self::Automatic => match by_netlink(enough) {
                Err(Failure::Refused(errno)) if means_no_netlink(errno) => {
                    by_sysfs(Sysfs::default())
                }
                found => found,
            },
        }
    }
}

/// Surveys a second time if the device with this name is not found.
fn twice_for<R>(
    name: &str,
    survey: impl FnMut() -> Result<(R, Option<Vec<Info>>), Failure>,
) -> Result<(R, Option<Vec<Info>>), Failure> {
    let has_it = |infos: &Vec<Info>| infos.iter().any(|info| info.name == name);
    super::look_twice(survey, |(_, infos)| infos.as_ref().is_none_or(has_it))
}

fn by_netlink(enough: impl Fn(&Info) -> bool) -> Result<(Route, Option<Vec<Info>>), Failure> {
    let mut netlink = Netlink::open()?;
    let infos = netlink.list(enough)?;
    Ok((Route::Netlink(netlink), Some(infos)))
}

fn by_sysfs(sysfs: Sysfs) -> Result<(Route, Option<Vec<Info>>), Failure> {
    let infos = sysfs.list()?;
    Ok((Route::Sysfs(sysfs), infos))
}

/// True if this errno, of opening a socket or of a first request, means that there is no RDMA netlink here:
/// no such protocol or family, a sandbox's filter, no listener in this network namespace, no `nldev`.
pub(super) fn means_no_netlink(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::PROTONOSUPPORT
            | Errno::AFNOSUPPORT
            | Errno::PERM
            | Errno::ACCESS
            | Errno::NOSYS
            | Errno::CONNREFUSED
            | Errno::OPNOTSUPP
            | Errno::INVAL
    )
}

fn no_rdma(subject: Subject) -> Error {
    let text = "this kernel has no RDMA: the module ib_core is not loaded, or both RDMA netlink and \
                /sys/class/infiniband are hidden from this process";
    Error::new(Verb::FindDevice, subject, Cause::NotFound(text.into()))
}

fn not_among(infos: &[Info], subject: Subject) -> Error {
    let names: Vec<_> = infos.iter().map(|info| info.name.as_str()).collect();
    let text = match names.is_empty() {
        true => "there are no RDMA devices in this network namespace".into(),
        false => format!("there are these: {}", names.join(", ")).into(),
    };
    Error::new(Verb::FindDevice, subject, Cause::NotFound(text))
}

/// The source that is available.
enum Route {
    Netlink(Netlink),
    Sysfs(Sysfs),
}

impl Route {
    /// The device that `info` describes, with its character device.
    fn device(&mut self, info: Info) -> Result<Device, Failure> {
        let (chardev, sysfs) = match self {
            Self::Netlink(netlink) => (by_netlink_or_sysfs(netlink, &info)?, Sysfs::default()),
            Self::Sysfs(sysfs) => (sysfs.chardev(&info.name)?, sysfs.clone()),
        };
        Ok(Device::new(Inner {
            info,
            chardev,
            sysfs,
        }))
    }
}

/// The character device by netlink. Fields that old kernels do not report there come from sysfs.
fn by_netlink_or_sysfs(netlink: &mut Netlink, info: &Info) -> Result<Option<Chardev>, Failure> {
    let chardev = match info.index {
        Some(index) => netlink.chardev(index)?,
        None => None,
    };
    match chardev {
        Some(mut chardev) => {
            if chardev.driver.is_none() {
                chardev.driver = Sysfs::default().driver(&info.name)?;
            }
            Ok(Some(chardev))
        }
        None => Sysfs::default().chardev(&info.name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch a device that is not found because another one came or went while the list was made.
    #[test]
    fn a_device_that_one_list_lacks_is_in_the_next() {
        let named = |name: &str| Info {
            name: name.into(),
            ..Info::default()
        };
        let (all, less) = (vec![named("rxe0"), named("rxe1")], vec![named("rxe0")]);
        for (lists, found, asked) in [
            (
                [Some(less.clone()), Some(all.clone())],
                Some(all.clone()),
                2,
            ),
            ([Some(all.clone()), None], Some(all), 1),
            ([Some(less.clone()), Some(less.clone())], Some(less), 2),
            ([None, None], None, 1),
        ] {
            let mut count = 0;
            let last = twice_for("rxe1", || {
                count += 1;
                Ok((count, lists[count - 1].clone()))
            });
            assert_eq!(last, Ok((asked, found)));
        }
    }
}
