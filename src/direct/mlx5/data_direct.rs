//! Memory that the device reaches past the processor ("data direct"): through another PCI function of its
//! own, which is behind the same switch as the memory's device.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use uverbs_uapi::flags::Access;
use uverbs_uapi::mlx5::{RegDmabufFlags, attr, method};
use uverbs_uapi::object;

use super::Direct;
use crate::command::{Command, Decode, DriverData, Request};
use crate::error::{Errno, Error, Result, Subject, Verb};
use crate::mr::{DmabufMr, RegisterError};
use crate::pd::Pd;

/// Queries the path of that function in sysfs, without "/sys".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Path;

/// Bytes of the longest path (`PATH_MAX` of Linux).
const LONGEST: usize = 4096;

impl Command for Path {
    type Reply = Vec<u8>;
    const VERB: Verb = Verb::GetDataDirectSysfsPath;

    fn subject(&self) -> Subject {
        Subject::the("device")
    }

    fn native(&self, request: &mut Request) -> Option<Decode<Self>> {
        use attr::get_data_direct_sysfs_path as id;
        request
            .method(object::DEVICE, method::device::GET_DATA_DIRECT_SYSFS_PATH)
            .output(id::PATH, LONGEST);
        Some(|_, answer| {
            let bytes = answer.answer_bytes(id::PATH)?;
            let path = bytes.split(|byte| *byte == 0).next();
            Ok(path.unwrap_or_default().to_vec())
        })
    }
}

/// The driver's part of the command that registers a dma-buf.
pub(crate) fn told(how: RegDmabufFlags) -> DriverData {
    let flags = (!how.is_empty()).then_some(how.bits());
    DriverData::default().with_struct(attr::reg_dmabuf_mr::ACCESS_FLAGS, flags)
}

impl Direct {
    /// The directory in sysfs of the function through which the device reaches memory past the processor. Its
    /// place shows which GPUs are behind the same switch.
    ///
    /// # Errors
    ///
    /// [`Cause::Unsupported`](crate::Cause::Unsupported) if the device has no such function, or the kernel is
    /// older than 6.12. Manual page: `mlx5dv_get_data_direct_sysfs_path(3)`.
    #[doc(alias = "mlx5dv_get_data_direct_sysfs_path")]
    pub fn data_direct_path(&self) -> Result<PathBuf> {
        match self.context().fd().execute(&Path) {
            Ok(path) => {
                let path = String::from_utf8_lossy(&path);
                Ok(PathBuf::from(format!("/sys{path}")))
            }
            Err(error) if error.errno() == Some(Errno::NODEV) => Err(Error::unsupported(
                error.verb(),
                error.subject().clone(),
                "a function that reaches memory past the processor (data direct)",
            )),
            Err(error) => Err(error),
        }
    }

    /// As [`Pd::register_dmabuf`], through the function that reaches memory past the processor. There is no
    /// paging on demand.
    ///
    /// # Errors
    ///
    /// As for [`data_direct_path`](Self::data_direct_path) and [`Pd::register_dmabuf`]; also if the PD
    /// belongs to another context. Manual page: `mlx5dv_reg_dmabuf_mr(3)`.
    #[doc(alias = "mlx5dv_reg_dmabuf_mr")]
    pub fn register_data_direct(
        &self,
        pd: &Pd,
        dmabuf: OwnedFd,
        range: Range<u64>,
        iova: u64,
        access: Access,
    ) -> Result<DmabufMr, RegisterError<OwnedFd>> {
        let subject = || Subject::the("MR");
        let parts = [("the PD", Some(pd.context()))];
        let context = self.context();
        let checked = context.check_parts(Verb::RegDmabufMr, subject, parts);
        match checked.and_then(|()| self.data_direct_path()) {
            Ok(_) => {
                let driver = told(RegDmabufFlags::DATA_DIRECT);
                pd.register_dmabuf_by(dmabuf, range, iova, access, driver)
            }
            Err(error) => Err(RegisterError {
                memory: dmabuf,
                error,
            }),
        }
    }
}
