//! Import: objects that another holder of the command file has created.
//!
//! The unit of sharing is the open file. A process that holds a duplicate of a context's command file
//! descriptor (by dup(2), `SCM_RIGHTS`, `pidfd_getfd(2)` or fork(2)) imports it as a [`Context`] and names
//! the objects in it by their handles. The library asks the kernel about every handle before it uses it.
//!
//! Dropping an imported object *releases* it, without a call to the kernel. Methods named `…_for_everyone`
//! destroy it. The kernel frees what is left when the last duplicate of the file is closed, which may be long
//! after the end of the process that opened it. Manual page: `ibv_import_pd(3)`.

use std::fmt;
use std::ops::{Deref, RangeBounds};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::io::{FdFlags, fcntl_setfd};
use uverbs_uapi::handle::{MrHandle, PdHandle, QpHandle};
use uverbs_uapi::object;

use crate::command::{CommandFd, Destroy, InfoHandles, QueryMr, QueryMrReply, Route};
use crate::context::Context;
use crate::device;
use crate::driver::Driver;
use crate::error::{Cause, DestroyError, Errno, Error, Result, Subject, Verb};
use crate::memory::Memory;
use crate::mr::Mr;
use crate::pd::{Pd, RegionUse, Stand};
use crate::work::{LocalKey, LocalSlice, OutOfBounds, PdTag, RemoteKey, RemoteSlice};

impl Context {
    /// Imports a context: a duplicate of another context's command file descriptor.
    ///
    /// The context sends every command by ioctl, since the kernel lets only the opener use write(2), and has
    /// its own stream of asynchronous events. The descriptor becomes close-on-exec.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::os::fd::AsFd;
    /// let original = uverbs::open("rxe0")?;
    /// let pd = original.alloc_pd()?;
    ///
    /// let other = uverbs::Context::import(original.as_fd().try_clone_to_owned()?)?;
    /// let imported = other.import_pd(pd.handle())?;
    /// let mr = imported.register(vec![0u8; 4096], uverbs::Access::LOCAL_WRITE)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Cause::Invalid`] if the file is not a character device; [`Cause::NotFound`] if no RDMA device has
    /// its number; `EINVAL` if the file has no context; [`Cause::Unsupported`] if this build has no driver
    /// for the device. Manual page: `ibv_import_device(3)`.
    #[doc(alias = "ibv_import_device")]
    pub fn import(fd: OwnedFd) -> Result<Context> {
        const VERB: Verb = Verb::ImportDevice;
        let device = device::find_by_file(fd.as_fd(), VERB)?;
        let subject = || Subject::named("device", device.name());
        let (Some(id), Some(abi_version)) = (device.driver(), device.abi_version()) else {
            let missing =
                "the kernel does not report its driver, or the version of the driver's ABI";
            return Err(Error::unsupported(VERB, subject(), missing));
        };
        let driver = Driver::select(id, abi_version, device.name())?;
        fcntl_setfd(&fd, FdFlags::CLOEXEC).map_err(|errno| Error::os(VERB, subject(), errno))?;
        let fd = CommandFd::new(fd, id.0, Route::Ioctl);
        // Whichever of these two the driver has first refuses a file without a context.
        let of_import = |error: Error| match error.errno() {
            Some(errno) => Error::os(VERB, subject(), errno),
            None => error,
        };
        let (driver, reply) = driver.query_context(&fd).map_err(of_import)?;
        let context = Context::new(device.clone(), driver, fd, reply);
        context.async_fd().map_err(of_import)?;
        Ok(context)
    }

    /// Imports a protection domain of this context by its handle.
    ///
    /// # Errors
    ///
    /// [`Cause::NotFound`] if the handle names no protection domain; the text says what it names, if
    /// anything. The kernel reuses handles: a stale one may name a newer protection domain, which cannot be
    /// detected. [`Cause::Unsupported`](crate::Cause::Unsupported) if the context has more protection domains
    /// than the kernel lists (16,383), this one is not among those, and the kernel's driver has no query for
    /// it (mlx5's has). Manual page: `ibv_import_pd(3)`.
    #[doc(alias = "ibv_import_pd")]
    pub fn import_pd(&self, handle: PdHandle) -> Result<ImportedPd> {
        self.import_leased_pd(handle, None)
    }

    /// Imports a protection domain. `lease` shows the lender that it is in use.
    pub(crate) fn import_leased_pd(
        &self,
        handle: PdHandle,
        lease: Option<OwnedFd>,
    ) -> Result<ImportedPd> {
        let listed = check(self, object::PD, handle.0, Verb::ImportPd);
        match listed {
            // With more PDs than the kernel lists, the word of its driver is enough.
            Err(error) if error.is_unsupported() && error.errno().is_none() => {
                match self.driver().import_pd(self.fd(), handle) {
                    Ok(true) => {}
                    Ok(false) | Err(_) => return Err(error),
                }
            }
            listed => {
                listed?;
                self.driver().import_pd(self.fd(), handle)?;
            }
        }
        Ok(ImportedPd(Pd::new(
            self.clone(),
            handle,
            Stand::Imported(lease),
        )))
    }

    /// The handles of all protection domains of the context, no matter which process created them.
    ///
    /// # Errors
    ///
    /// The kernel refuses, or there are more than the 16,383 that it can list.
    pub fn pd_handles(&self) -> Result<Vec<PdHandle>> {
        Ok(handles(self, object::PD, Verb::InfoHandles)?
            .into_iter()
            .map(PdHandle)
            .collect())
    }

    /// The handles of all queue pairs of the context, no matter which process created them.
    ///
    /// # Errors
    ///
    /// As for [`Context::pd_handles`].
    pub fn qp_handles(&self) -> Result<Vec<QpHandle>> {
        Ok(handles(self, object::QP, Verb::InfoHandles)?
            .into_iter()
            .map(QpHandle)
            .collect())
    }

    /// Destroys a queue pair that another holder of the file has created.
    ///
    /// This is for a supervisor that outlives the queue pair's owner. A queue pair that was [handed
    /// over](crate::qp::DeviceQueue) keeps working when its owner is gone, as long as its agent has the
    /// register mapped. After this call the agent's requests reach no queue pair.
    ///
    /// # Errors
    ///
    /// [`Cause::NotFound`] if the handle names no queue pair. The kernel refuses, as it does while the queue
    /// pair is attached to a multicast group.
    ///
    /// # Safety
    ///
    /// No [`Qp`](crate::Qp) or [`DeviceQueue`](crate::qp::DeviceQueue) owns the queue pair any more: its
    /// process has ended, or will never drop the value. Otherwise the value's drop would later destroy
    /// whatever object has the handle by then.
    pub unsafe fn destroy_qp_for_everyone(&self, handle: QpHandle) -> Result<()> {
        check(self, object::QP, handle.0, Verb::DestroyQp)?;
        self.fd().execute(&Destroy(handle))
    }

    /// The handles of all memory regions of the context, no matter which process registered them.
    ///
    /// # Errors
    ///
    /// As for [`Context::pd_handles`].
    pub fn mr_handles(&self) -> Result<Vec<MrHandle>> {
        Ok(handles(self, object::MR, Verb::InfoHandles)?
            .into_iter()
            .map(MrHandle)
            .collect())
    }
}

/// The handles of all objects of a kind. `verb` is for errors.
pub(crate) fn handles(context: &Context, object: u16, verb: Verb) -> Result<Vec<u32>> {
    match listed(context, object, verb)? {
        (handles, true) => Ok(handles),
        (_, false) => {
            let what = "the context has more objects of a kind than the kernel can list";
            Err(Error::unsupported(verb, Subject::the("context"), what))
        }
    }
}

/// The handles of the objects of a kind, as many as the kernel lists, and whether these are all.
fn listed(context: &Context, object: u16, verb: Verb) -> Result<(Vec<u32>, bool)> {
    let mut room = InfoHandles::USUAL;
    loop {
        let listed = context.fd().execute(&InfoHandles { object, room });
        let handles = listed.map_err(|error| match error.errno() {
            // The kernel knows the kinds of object that the driver has verbs for.
            Some(errno @ Errno::NOENT) => Error::unsupported_by_kernel(
                verb,
                Subject::the("context"),
                errno,
                format!("the driver has no {}s", name_of(object)),
            ),
            _ => error,
        })?;
        if handles.len() < room || room == InfoHandles::MAX {
            let are_all = handles.len() < room;
            return Ok((handles, are_all));
        }
        room = (room * 8).min(InfoHandles::MAX);
    }
}

/// Fails unless an object of this kind has this handle in the context; the text says what the handle names.
pub(crate) fn check(context: &Context, object: u16, handle: u32, verb: Verb) -> Result<()> {
    let (listed_handles, are_all) = listed(context, object, verb)?;
    if listed_handles.contains(&handle) {
        return Ok(());
    }
    let kind = name_of(object);
    if !are_all {
        let what = format!(
            "a way to look for it: the kernel lists {} {kind}s of a context, there are more, and it is not among these",
            listed_handles.len()
        );
        let subject = Subject::numbered(kind, handle.into());
        return Err(Error::unsupported(verb, subject, what));
    }
    let has = |other: u16| {
        let listed = listed(context, other, verb);
        listed.is_ok_and(|(all, _)| all.contains(&handle))
    };
    let text = match KINDS.iter().find(|(other, ..)| has(*other)) {
        Some((_, article, other)) => {
            format!("the handle names {article} {other}, which is no {kind}")
        }
        None => "the context has no object with this handle".into(),
    };
    let subject = Subject::numbered(kind, handle.into());
    Err(Error::new(verb, subject, Cause::NotFound(text.into())))
}

/// The kinds of object that a handle may name, for the text of an error.
const KINDS: [(u16, &str, &str); 8] = [
    (object::PD, "a", "PD"),
    (object::MR, "an", "MR"),
    (object::CQ, "a", "CQ"),
    (object::QP, "a", "QP"),
    (object::SRQ, "an", "SRQ"),
    (object::AH, "an", "AH"),
    (object::MW, "an", "MW"),
    (object::DM, "a", "DM"),
];

fn name_of(object: u16) -> &'static str {
    let known = KINDS.iter().find(|(kind, ..)| *kind == object);
    known.map_or("object", |(.., name)| name)
}

/// A protection domain that other processes use as well. It derefs to a [`Pd`] for every verb that takes one.
///
/// Dropping it releases it and never touches the kernel's object. [`Pd::dealloc`] cannot be called on it:
///
/// ```compile_fail,E0507
/// fn free(imported: uverbs::import::ImportedPd) {
///     imported.dealloc();
/// }
/// ```
///
/// ```no_run
/// # use uverbs::uapi::handle::PdHandle;
/// # fn borrow(file: std::os::fd::OwnedFd, handle: PdHandle) -> uverbs::Result<()> {
/// let context = uverbs::Context::import(file)?;   // a duplicate of another process's command file
/// let pd = context.import_pd(handle)?;            // what `Pd::handle` said there
/// let mr = pd.register(vec![0u8; 4096], uverbs::Access::LOCAL_WRITE)?;
/// # Ok(()) }
/// ```
pub struct ImportedPd(Pd);

impl ImportedPd {
    /// Releases the protection domain, as drop does, without a call to the kernel. Objects that this process
    /// has created in it stay. Manual page: `ibv_unimport_pd(3)`.
    #[doc(alias = "ibv_unimport_pd")]
    pub fn unimport(self) {}

    /// Frees the kernel's protection domain under all its users.
    ///
    /// The others can then only release it. Anything else fails with `ENOENT` or, worse, reaches the next
    /// object that gets the handle. So an owner must [`disown`](Pd::disown) its [`Pd`] first.
    ///
    /// # Errors
    ///
    /// [`Cause::Busy`] while objects of this process use it, `EBUSY` while objects of other processes do; the
    /// error returns it. `ENOENT` if another process has freed it.
    pub fn dealloc_for_everyone(self) -> Result<(), DestroyError<ImportedPd>> {
        self.0
            .end(|inner| inner.free_object())
            .map_err(|DestroyError { object, error }| DestroyError {
                object: ImportedPd(object),
                error,
            })
    }
}

/// For C programs, which have one type for all protection domains.
#[cfg(feature = "c-abi")]
impl From<ImportedPd> for Pd {
    fn from(imported: ImportedPd) -> Self {
        imported.0
    }
}

impl Deref for ImportedPd {
    type Target = Pd;

    fn deref(&self) -> &Pd {
        &self.0
    }
}

impl fmt::Debug for ImportedPd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl Pd {
    /// Gives up ownership: from now on this process is one user among others, and dropping frees nothing.
    ///
    /// The protection domain stays for those who import it, as long as some process holds the file.
    pub fn disown(self) -> ImportedPd {
        self.leave();
        ImportedPd(self)
    }

    /// Imports a memory region by its handle.
    ///
    /// The kernel reports the keys and the range, but not the region's protection domain. The caller vouches
    /// that it is this one; if it is not, work requests that name the region fail.
    ///
    /// # Errors
    ///
    /// `ENOENT` if the context has no object with this handle, `EINVAL` if it is of another kind. Manual
    /// page: `ibv_import_mr(3)`.
    #[doc(alias = "ibv_import_mr")]
    pub fn import_mr(&self, handle: MrHandle) -> Result<ImportedMr> {
        let known = self.context().fd().execute(&QueryMr(handle));
        let known = known.map_err(|error| match error.errno() {
            Some(Errno::NOENT | Errno::INVAL) => Error::new(
                Verb::ImportMr,
                Subject::numbered("MR", handle.0.into()),
                error.cause().clone(),
            ),
            _ => error,
        })?;
        Ok(ImportedMr {
            handle,
            known,
            pd: self.region_use(),
        })
    }
}

impl<M: Memory> Mr<M> {
    /// Gives up ownership: the region stays registered after this process releases it or ends, as long as
    /// some process holds the file.
    ///
    /// The memory is leaked: it stays mapped until the process ends, since the device still uses it.
    pub fn disown(self) -> ImportedMr {
        let (handle, remote, lkey, pd) = self.into_parts();
        ImportedMr {
            handle,
            known: QueryMrReply {
                lkey: lkey.0,
                rkey: remote.rkey.0,
                length: remote.length,
                iova: remote.address,
            },
            pd,
        }
    }
}

/// A memory region that another holder of the file has registered: its keys and its range, without the
/// memory.
///
/// The memory itself may be in another process. Dropping releases the region and never touches the kernel's
/// object.
///
/// ```no_run
/// # fn read(pd: &uverbs::Pd) -> Result<(), Box<dyn std::error::Error>> {
/// for handle in pd.context().mr_handles()? {
///     let mr = pd.import_mr(handle)?;
///     println!("{} bytes under {:?}", mr.len(), mr.rkey());
/// }
/// # Ok(()) }
/// ```
pub struct ImportedMr {
    handle: MrHandle,
    known: QueryMrReply,
    pd: RegionUse,
}

impl ImportedMr {
    /// The kernel's handle.
    pub fn handle(&self) -> MrHandle {
        self.handle
    }

    /// Which protection domain it belongs to.
    pub(crate) fn pd_tag(&self) -> PdTag {
        self.pd.tag()
    }

    /// The key for local work requests.
    pub fn lkey(&self) -> LocalKey {
        LocalKey(self.known.lkey)
    }

    /// The key for a peer.
    pub fn rkey(&self) -> RemoteKey {
        RemoteKey(self.known.rkey)
    }

    /// The length in bytes.
    pub fn len(&self) -> u64 {
        self.known.length
    }

    /// True if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.known.length == 0
    }

    /// The address by which work requests and peers refer to the first byte. It need not be mapped in this
    /// process.
    pub fn iova(&self) -> u64 {
        self.known.iova
    }

    /// A part of the region for a work request, in bytes from its start.
    ///
    /// # Errors
    ///
    /// The range does not lie within the region, or has more than 2 GiB.
    ///
    /// # Safety
    ///
    /// Until the request has completed, or the queue pair has been reset or destroyed: nobody deregisters the
    /// region, which may belong to another process and is not kept alive by this value; if the request reads
    /// the memory, nobody in this process writes to it through a reference; if the request writes to the
    /// memory, nobody in this process has a reference to it. Other processes are responsible for themselves.
    pub unsafe fn slice(
        &self,
        range: impl RangeBounds<usize>,
    ) -> Result<LocalSlice<'_>, OutOfBounds> {
        LocalSlice::within(
            range,
            self.known.iova,
            self.len(),
            self.lkey(),
            self.pd.tag(),
        )
    }

    /// The whole region as a peer addresses it.
    pub fn remote(&self) -> RemoteSlice {
        RemoteSlice {
            address: self.known.iova,
            length: self.len(),
            rkey: self.rkey(),
        }
    }

    /// Releases the region, as drop does, without a call to the kernel. Manual page: `ibv_unimport_mr(3)`.
    #[doc(alias = "ibv_unimport_mr")]
    pub fn unimport(self) {}

    /// Deregisters the kernel's region under all its users.
    ///
    /// # Errors
    ///
    /// The kernel refuses, for example while memory windows are bound to it; the error returns it. `ENOENT`
    /// if another process has deregistered it.
    ///
    /// # Safety
    ///
    /// No request of this process that names the region is in flight, whatever context or slice it was posted
    /// with: the key may be given to other memory next, and this call does not ask the queues. No [`Mr`] of
    /// this process owns the region: its owner must have [disowned](Mr::disown) it. Otherwise that `Mr` would
    /// later deregister whatever has the handle by then, with the same hazard.
    pub unsafe fn deregister_for_everyone(self) -> Result<(), DestroyError<ImportedMr>> {
        let result = self.pd.context().fd().execute(&Destroy(self.handle));
        DestroyError::of(self, result)
    }
}

impl fmt::Debug for ImportedMr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImportedMr")
            .field("handle", &self.handle.0)
            .field("fd", &self.pd.context().as_fd().as_raw_fd())
            .field("lkey", &self.lkey())
            .field("rkey", &self.rkey())
            .field("iova", &format_args!("{:#x}", self.known.iova))
            .field("len", &self.len())
            .finish()
    }
}
