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
    /// The kernel does not check that a region of soft-RoCE has [`ON_DEMAND`](crate::Access::ON_DEMAND)
    /// (`rxe_ib_prefetch_sg_list` in `drivers/infiniband/sw/rxe/rxe_odp.c`, up to Linux 7.3), so the library
    /// does, and there refuses slices of regions that another process has registered too.
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
        let context = self.context();
        let is_on_demand = |slice: &LocalSlice<'_>| context.on_demand().has(slice.lkey.0);
        if !context.driver().kernel_checks_advice() && !slices.iter().all(is_on_demand) {
            let why = "a slice's region was not registered for paging on demand by this process";
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
        context.fd().execute(&command)
    }
}
