//! Advice about regions under on-demand paging: fetch pages before they are needed.

use uverbs_uapi::enums::AdviseMrAdvice;
use uverbs_uapi::flags::AdviseMrFlags;
use uverbs_uapi::types::Sge;

use crate::command::AdviseMr;
use crate::error::{Error, Result, Subject, Verb};
use crate::pd::Pd;
use crate::work::LocalSlice;

impl Pd {
    /// Advises the kernel to fetch pages of regions that were registered with
    /// [`ON_DEMAND`](crate::Access::ON_DEMAND). With `wait` the call returns when that is done, otherwise
    /// possibly earlier.
    ///
    /// # Errors
    ///
    /// The driver has no on-demand paging, or lacks this advice. A slice is of another protection domain or
    /// of a region without [`ON_DEMAND`](crate::Access::ON_DEMAND); its pages are not mapped, or not writable
    /// although the advice is for writing. Manual page: `ibv_advise_mr(3)`.
    ///
    /// Soft-RoCE does not check that a region has [`ON_DEMAND`](crate::Access::ON_DEMAND)
    /// (`rxe_ib_prefetch_sg_list` in `drivers/infiniband/sw/rxe/rxe_odp.c`, up to Linux 7.3): without it, the
    /// kernel reads beyond the end of one of its objects and may crash. Do not pass a slice of such a region.
    #[doc(alias = "ibv_advise_mr")]
    pub fn advise_mr<'r>(
        &self,
        advice: AdviseMrAdvice,
        wait: bool,
        slices: impl AsRef<[LocalSlice<'r>]>,
    ) -> Result<()> {
        let slices = slices.as_ref();
        let subject = || Subject::numbered("PD", self.handle().0.into());
        if self.tag().check(slices, false).is_err() {
            let why = "a slice belongs to another protection domain";
            return Err(Error::invalid(Verb::AdviseMr, subject(), why));
        }
        if slices.is_empty() || slices.len() > AdviseMr::MAX {
            let why = format!(
                "{} slices; 1 to {} are possible",
                slices.len(),
                AdviseMr::MAX
            );
            return Err(Error::invalid(Verb::AdviseMr, subject(), why));
        }
        let mut flags = AdviseMrFlags::empty();
        flags.set(AdviseMrFlags::FLUSH, wait);
        let parts = slices.iter().map(|slice| Sge {
            addr: slice.address,
            length: slice.length,
            lkey: slice.lkey.0,
        });
        let command = AdviseMr {
            pd: self.handle(),
            advice,
            flags,
            parts: parts.collect(),
        };
        self.context().fd().execute(&command)
    }
}
