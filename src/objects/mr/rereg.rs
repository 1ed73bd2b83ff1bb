//! Changing a region that is registered: its access, its protection domain, its memory.
//!
//! The kernel may fail halfway; by the manual page, the region may then only be deregistered. So a change
//! takes the region by value, and its error returns either the region as it was, or one that can only be
//! deregistered. Both keep all memory that the device may still reach.

use std::fmt;
use std::sync::atomic::AtomicBool;

use uverbs_uapi::flags::{Access, ReregMrFlags};
use uverbs_uapi::handle::MrHandle;
use uverbs_uapi::write as abi;

use super::region::{Held, Region};
use super::{Memory, Mr, check_access, pins_for_writing, without_unknown_options};
use crate::command::ReregMr;
use crate::error::{Cause, DestroyError, Errno, Error, Result, Subject, Verb};
use crate::memory::Still;
use crate::pd::{Pd, RegionUse};
use crate::work::{LocalKey, RemoteKey};

/// Changes of a region besides its memory. Fields that are `None` stay as they are.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rereg<'a> {
    /// The protection domain to move to.
    pub pd: Option<&'a Pd>,
    /// The access from now on.
    pub access: Option<Access>,
}

/// A region after a change that failed.
#[derive(Debug)]
pub enum AfterRereg<V, T: Send + 'static> {
    /// The region is as it was; nothing was changed (`IBV_REREG_MR_ERR_INPUT`).
    Unchanged(V),
    /// The kernel failed, possibly halfway (`IBV_REREG_MR_ERR_CMD`).
    Unusable(UnusableMr<T>),
}

/// A change that failed: what became of the region, and why.
pub struct ReregError<V, T: Send + 'static> {
    /// The region.
    pub after: AfterRereg<V, T>,
    /// Why it failed.
    pub error: Error,
}

/// A change of memory that failed: the region had the memory `M`, and `N` was the new one.
pub type ReregMemoryError<M, N> = ReregError<(Mr<M>, N), (M, N)>;

impl<V, T: Send + 'static> fmt::Debug for ReregError<V, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.error, f)
    }
}

impl<V, T: Send + 'static> fmt::Display for ReregError<V, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.after {
            AfterRereg::Unchanged(_) => "the MR is as it was",
            AfterRereg::Unusable(_) => "the MR can only be deregistered",
        };
        write!(f, "{}; {state}", self.error)
    }
}

impl<V, T: Send + 'static> std::error::Error for ReregError<V, T> {}

impl<V, T: Send + 'static> From<ReregError<V, T>> for Error {
    /// Keeps the error and drops the region.
    fn from(failed: ReregError<V, T>) -> Self {
        failed.error
    }
}

/// A region after a failed change: it is unknown to which memory it gives access. It keeps all memory that it
/// may reach; dropping it deregisters it.
pub struct UnusableMr<T: Send + 'static> {
    held: Held<T>,
    /// The protection domain that it may belong to instead of its own: the one to which it was to move.
    or_pd: Option<RegionUse>,
}

impl<T: Send + 'static> UnusableMr<T> {
    /// The kernel's handle.
    pub fn handle(&self) -> MrHandle {
        self.held.region.handle
    }

    /// Deregisters the region and gives the old and the new memory back.
    ///
    /// # Errors
    ///
    /// As for [`Mr::deregister`].
    pub fn deregister(self) -> Result<T, DestroyError<Self>> {
        let Self { held, or_pd } = self;
        held.release().map_err(|(held, error)| DestroyError {
            object: Self { held, or_pd },
            error,
        })
    }
}

impl<T: Send + 'static> fmt::Debug for UnusableMr<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.held.region.debug(&mut f.debug_struct("UnusableMr"))
    }
}

impl<M: Memory> Mr<M> {
    /// Changes the protection domain or the access of the region. Its keys may change.
    ///
    /// # Errors
    ///
    /// In these cases the region is as it was: [`Cause::Busy`] if requests in flight may name the region, as
    /// for [`Mr::deregister`]; `change` is empty; the access flags contradict each other or the memory; the
    /// protection domain belongs to another context; or the new access writes to pages that were registered
    /// for reading; this library's driver lacks the verb; or `EBUSY`: another holder of the file uses the
    /// region's handle right now. Otherwise the kernel or its driver lacks the verb (soft-RoCE has it since
    /// Linux 6.5), or it fails. Manual page: `ibv_rereg_mr(3)`.
    #[doc(alias = "ibv_rereg_mr")]
    pub fn rereg(self, change: Rereg<'_>) -> Result<Self, ReregError<Self, M>> {
        let region = &self.held.region;
        let idle = region.check_idle(Verb::ReregMr);
        if let Err(error) = idle.and_then(|()| region.check(change, M::WRITABLE)) {
            return Err(ReregError {
                after: AfterRereg::Unchanged(self),
                error,
            });
        }
        let command = region.command(change, None);
        let answer = region.execute(command);
        let (memory, mut region) = self.held.into_parts();
        match answer {
            Ok(keys) => {
                region.changed(change, keys);
                let held = Held::new(memory, region);
                Ok(Self { held })
            }
            Err(error) if is_whole(&command, &error) => Err(ReregError {
                after: AfterRereg::Unchanged(Self {
                    held: Held::new(memory, region),
                }),
                error,
            }),
            Err(error) => Err(unusable(memory, region, change, error)),
        }
    }

    /// Changes the memory of the region, together with `change`, and returns the old memory. Peers address
    /// the first byte by its address in this process.
    ///
    /// # Errors
    ///
    /// As for [`Mr::rereg`]; the error contains both memories. soft-RoCE lacks this verb.
    pub fn rereg_memory<N: Memory>(
        self,
        memory: N,
        change: Rereg<'_>,
    ) -> Result<(Mr<N>, M), ReregMemoryError<M, N>> {
        let mut memory = Still::new(memory);
        let (address, length) = memory.range();
        let region = &self.held.region;
        let idle = region.check_idle(Verb::ReregMr);
        let checked = idle.and_then(|()| region.check_memory(change, N::WRITABLE, length));
        if let Err(error) = checked {
            return Err(ReregError {
                after: AfterRereg::Unchanged((self, memory.into_inner())),
                error,
            });
        }
        let command = region.command(change, Some((address, length)));
        let answer = region.execute(command);
        let (old, mut region) = self.held.into_parts();
        match answer {
            Ok(keys) => {
                region.changed(change, keys);
                region.address = address;
                region.length = length;
                region.iova = command.hca_va;
                region.pinned_for_writing = pins_for_writing(region.access);
                let held = Held::new(memory, region);
                Ok((Mr { held }, old.into_inner()))
            }
            Err(error) if is_whole(&command, &error) => {
                let held = Held::new(old, region);
                Err(ReregError {
                    after: AfterRereg::Unchanged((Self { held }, memory.into_inner())),
                    error,
                })
            }
            Err(error) => Err(unusable(Still::both(old, memory), region, change, error)),
        }
    }
}

/// Whether a region is unchanged after an error.
fn is_whole(command: &abi::ReregMr, error: &Error) -> bool {
    match (error.cause(), error.errno()) {
        // Another holder of the file used its handle, which the kernel sees first (`uobj_get_write`).
        (_, Some(Errno::BUSY)) => true,
        // This library has refused, before the kernel was asked.
        (Cause::Unsupported(_), None) => true,
        // The driver lacks the only change. If there were several, it may have made the first.
        (Cause::Unsupported(_), Some(_)) => command.flags.count_ones() == 1,
        _ => false,
    }
}

/// A region that keeps all memory that it may reach.
fn unusable<V, T: Send + 'static>(
    memory: Still<T>,
    mut region: Region,
    change: Rereg<'_>,
    error: Error,
) -> ReregError<V, T> {
    let or_pd = change.pd.map(Pd::region_use);
    // No request in flight named it when the kernel was called, and none can from here on, so it need not
    // wait.
    region.sliced = AtomicBool::new(false);
    // Its key may be another region's.
    region.forget_on_demand();
    region.on_demand = false;
    let held = Held::new(memory, region);
    ReregError {
        after: AfterRereg::Unusable(UnusableMr { held, or_pd }),
        error,
    }
}

impl Region {
    fn check(&self, change: Rereg<'_>, writable: bool) -> Result<()> {
        let refuse = |why| Err(self.refused(why));
        let Some(access) = change.access else {
            return match change.pd {
                None => refuse("no change was requested"),
                Some(_) => self.check_memory(change, writable, self.length),
            };
        };
        // Drivers do not pin the pages again for it; soft-RoCE would write to pages that others share.
        if pins_for_writing(access) && !self.pinned_for_writing {
            return refuse(
                "the pages were registered for reading, and the new access allows writing",
            );
        }
        self.check_memory(change, writable, self.length)
    }

    fn check_memory(&self, change: Rereg<'_>, writable: bool, length: usize) -> Result<()> {
        let access = change.access.unwrap_or(self.access);
        check_access(access, writable, length).map_err(|why| self.refused(why))?;
        let subject = || Subject::numbered("MR", self.handle.0.into());
        let parts = [("the PD", change.pd.map(|pd| pd.context()))];
        self.pd.context().check_parts(Verb::ReregMr, subject, parts)
    }

    fn refused(&self, why: &'static str) -> Error {
        let subject = Subject::numbered("MR", self.handle.0.into());
        Error::invalid(Verb::ReregMr, subject, why)
    }

    fn execute(&self, command: abi::ReregMr) -> Result<abi::ReregMrResp> {
        let context = self.pd.context();
        context.driver().rereg_mr(context.fd(), &ReregMr(command))
    }

    /// The command for a change, with the address and length of new memory.
    fn command(&self, change: Rereg<'_>, memory: Option<(*mut u8, usize)>) -> abi::ReregMr {
        let mut flags = ReregMrFlags::empty();
        flags.set(ReregMrFlags::CHANGE_TRANSLATION, memory.is_some());
        flags.set(ReregMrFlags::CHANGE_PD, change.pd.is_some());
        flags.set(ReregMrFlags::CHANGE_ACCESS, change.access.is_some());
        let access = change.access.unwrap_or_default();
        let access = without_unknown_options(access, self.pd.context());
        // Exposed: the device reaches new memory by this number.
        let (start, length) = memory.map_or((0, 0), |(address, length)| {
            (address.expose_provenance() as u64, length as u64)
        });
        abi::ReregMr {
            mr_handle: self.handle.0,
            flags: flags.bits(),
            start,
            length,
            hca_va: start,
            pd_handle: change.pd.map_or(0, |pd| pd.handle().0),
            access_flags: access.bits(),
            ..Default::default()
        }
    }

    /// Updates the fields after a change.
    fn changed(&mut self, change: Rereg<'_>, keys: abi::ReregMrResp) {
        // The caller notes it under its new key.
        self.forget_on_demand();
        self.lkey = LocalKey(keys.lkey);
        self.rkey = RemoteKey(keys.rkey);
        if let Some(access) = change.access {
            self.access = without_unknown_options(access, self.pd.context());
        }
        if let Some(pd) = change.pd {
            self.pd = pd.region_use();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::flight::Queues;
    use crate::mr::region::tests::{Memory, deregistered, kernel, region};

    #[test]
    fn a_region_is_whole_if_the_kernel_has_changed_nothing() {
        let subject = || Subject::the("MR");
        let (verb, why) = (Verb::ReregMr, "the driver does not have this verb");
        let lacks = Error::unsupported_by_kernel(verb, subject(), Errno::OPNOTSUPP, why);
        let refused = Error::unsupported(verb, subject(), why);
        let failed = Error::os(verb, subject(), Errno::NOMEM);
        let busy = Error::os(verb, subject(), Errno::BUSY);
        let [translation, pd, access] = [
            ReregMrFlags::CHANGE_TRANSLATION,
            ReregMrFlags::CHANGE_PD,
            ReregMrFlags::CHANGE_ACCESS,
        ];
        let asked = |flags: ReregMrFlags| abi::ReregMr {
            flags: flags.bits(),
            ..Default::default()
        };
        for one in [translation, pd, access] {
            assert!(is_whole(&asked(one), &lacks), "{one:?}");
            assert!(!is_whole(&asked(one), &failed), "{one:?}");
        }
        // A driver may have moved the region before it finds that it cannot change the access.
        assert!(!is_whole(&asked(pd | access), &lacks));
        assert!(!is_whole(&asked(ReregMrFlags::all()), &lacks));
        for nothing_done in [&refused, &busy] {
            assert!(is_whole(&asked(pd | access), nothing_done));
        }
    }

    /// Would catch a region that its owner loses to a look of another holder of the file, or to a driver that
    /// has no changes at all. The sample driver has none.
    #[test]
    fn a_change_that_was_not_sent_leaves_the_region() {
        let (_file, pd) = kernel();
        let memory = pd.register(vec![0u8; 64], Access::empty()).unwrap();
        let other = pd.parent_domain().create().unwrap();
        let change = Rereg {
            pd: Some(&other),
            access: Some(Access::REMOTE_READ),
        };
        let failed = memory.rereg(change).unwrap_err();
        assert!(matches!(failed.after, AfterRereg::Unchanged(_)), "{failed}");
        assert!(failed.error.is_unsupported(), "{failed}");
    }

    /// Would catch a region that waits for requests which cannot name it: it is in the list of a protection
    /// domain whose queue pairs have nothing to do with it any more.
    #[test]
    fn what_can_only_go_waits_for_nothing() {
        let (file, pd) = kernel();
        let flights = pd.region_use();
        let _under_way = flights.flights().begin(Subject::the("QP"), Queues::Unknown);
        let (held, drops) = region(&pd, 3, false);
        let (memory, region) = held.into_parts();
        let error = Error::invalid(Verb::ReregMr, Subject::the("MR"), "half of it was done");
        let failed: ReregError<(), Memory> = unusable(memory, region, Rereg::default(), error);
        drop(failed);
        assert_eq!(deregistered(&file), [3]);
        assert_eq!(drops.load(Ordering::Relaxed), 1);
    }
}
