//! Memory regions: memory that the device may reach, and the keys by which it is named.
//!
//! A region owns its memory (any type that implements [`Memory`]) and gives it back when it is deregistered.
//! Memory that is owned elsewhere is registered through [`RawMemory`], whose constructor states the contract.
//! While memory is registered, peers with the remote key may change it at any time. So a region lends out
//! references to its memory only by `unsafe`; safe code copies in and out.

mod advise;
mod copy;
mod dm;
mod dmabuf;
mod implicit;
mod nameable;
mod null;
mod on_demand;
mod query;
mod region;
mod rereg;

use std::fmt;
use std::ops::RangeBounds;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use rustix::process::{Resource, getrlimit};
use uverbs_uapi::flags::{Access, CoreSupport, DeviceCapFlags, OdpGeneralCapBits};
use uverbs_uapi::handle::MrHandle;

pub use crate::memory::{Memory, RawMemory, SharedMemory, WritableMemory};
pub use crate::work::Interconnects;
pub use crate::work::{LocalKey, LocalSlice, OutOfBounds, RemoteKey, RemoteSlice};
use crate::work::{PdTag, slot};
pub use dm::DmMr;
pub use dmabuf::DmabufMr;
pub use implicit::ImplicitMr;
pub use nameable::Nameable;
pub use null::NullMr;
pub(crate) use on_demand::OnDemand;
pub use query::MrInfo;
pub use rereg::{AfterRereg, Rereg, ReregError, ReregMemoryError, UnusableMr};
pub use uverbs_uapi::enums::AdviseMrAdvice as Advice;

use self::region::{Held, Region};
use crate::command::{DriverData, RegMr};
use crate::context::Context;
use crate::error::{DestroyError, Errno, Error, Result, Subject, Verb};
use crate::memory::Still;
use crate::mw::Window;
use crate::pd::{Pd, RegionUse};
use crate::query::DeviceAttr;

/// A word of a region that cannot be loaded or stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WordError {
    /// It does not lie within the region.
    OutOfBounds(OutOfBounds),
    /// Its address in this process is not a multiple of 8.
    Unaligned {
        /// The address.
        address: usize,
    },
}

impl fmt::Display for WordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfBounds(error) => fmt::Display::fmt(error, f),
            Self::Unaligned { address } => {
                write!(f, "the word at {address:#x} is not aligned to 8 bytes")
            }
        }
    }
}

impl std::error::Error for WordError {}

impl From<OutOfBounds> for WordError {
    fn from(error: OutOfBounds) -> Self {
        Self::OutOfBounds(error)
    }
}

/// A registration that failed, with the memory that was to be registered.
pub struct RegisterError<M> {
    /// The memory, as it was.
    pub memory: M,
    /// Why it could not be registered.
    pub error: Error,
}

impl<M> fmt::Debug for RegisterError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.error, f)
    }
}

impl<M> fmt::Display for RegisterError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl<M> std::error::Error for RegisterError<M> {}

impl<M> From<RegisterError<M>> for Error {
    /// Keeps the error and drops the memory.
    fn from(failed: RegisterError<M>) -> Self {
        failed.error
    }
}

impl Pd {
    /// Registers memory, with the access that peers and this device get.
    ///
    /// `access` names everything that is allowed; an empty set allows this device to read. Work requests and
    /// peers address the first byte by its address in this process.
    ///
    /// # Errors
    ///
    /// The access flags contradict each other or the memory; the memory is empty; the kernel cannot pin it
    /// (the text then has `RLIMIT_MEMLOCK`). The error returns the memory. Manual page: `ibv_reg_mr(3)`.
    #[doc(alias = "ibv_reg_mr")]
    pub fn register<M: Memory>(
        &self,
        memory: M,
        access: Access,
    ) -> Result<Mr<M>, RegisterError<M>> {
        self.register_memory(memory, None, access)
    }

    /// Memory for a work request, by the key and the address that the device knows, as C programs use them.
    ///
    /// # Errors
    ///
    /// It has more than 2 GiB.
    ///
    /// # Safety
    ///
    /// Until the request has completed, or the queue pair has been reset or destroyed, the key names the same
    /// region. If the request reads the memory (SEND, WRITE), nobody writes to it through a reference; if the
    /// request writes to it (receives, READ, atomics), nobody has a reference to it. This applies to the
    /// memory of every region that may get the key.
    pub unsafe fn raw_slice(
        &self,
        lkey: LocalKey,
        address: u64,
        length: u32,
    ) -> Result<LocalSlice<'static>, OutOfBounds> {
        LocalSlice::within(.., address, length.into(), lkey, self.tag())
    }

    /// Registers memory at an I/O virtual address of your choice: work requests and peers address the first
    /// byte by `iova`.
    ///
    /// # Errors
    ///
    /// As for [`Pd::register`]; besides, `iova` and the address of the memory must lie at the same offset in
    /// their pages. Manual page: `ibv_reg_mr_iova(3)`.
    #[doc(alias = "ibv_reg_mr_iova")]
    pub fn register_at<M: Memory>(
        &self,
        memory: M,
        iova: u64,
        access: Access,
    ) -> Result<Mr<M>, RegisterError<M>> {
        self.register_memory(memory, Some(iova), access)
    }

    /// Registers memory under `iova`, or under its own address.
    fn register_memory<M: Memory>(
        &self,
        memory: M,
        iova: Option<u64>,
        access: Access,
    ) -> Result<Mr<M>, RegisterError<M>> {
        let mut memory = Still::new(memory);
        let (address, length) = memory.range();
        let iova = iova.unwrap_or(address.addr() as u64);
        match self.register_range(address, length, M::WRITABLE, iova, access) {
            Ok(region) => Ok(Mr {
                held: Held::new(memory, region),
            }),
            Err(error) => Err(RegisterError {
                memory: memory.into_inner(),
                error,
            }),
        }
    }

    fn register_range(
        &self,
        address: *mut u8,
        length: usize,
        writable: bool,
        iova: u64,
        access: Access,
    ) -> Result<Region> {
        // First, since it may release memory that counts towards the limits.
        self.reclaim();
        let access = without_unknown_options(access, self.context());
        let command = RegMr {
            pd: self.handle(),
            // Exposed: from here on the device reaches the memory by this number.
            address: address.expose_provenance() as u64,
            length: length as u64,
            iova,
            access: access.bits(),
            driver: DriverData::default(),
        };
        check_access(access, writable, length)
            .map_err(|why| Error::invalid(Verb::RegMr, Subject::the("MR"), why))?;
        let (driver, fd) = (self.context().driver(), self.context().fd());
        let reply = driver
            .reg_mr(fd, command)
            .map_err(|error| with_access(with_memlock(error), access, self.context()))?;
        Ok(Region {
            handle: reply.handle,
            lkey: LocalKey(reply.lkey),
            rkey: RemoteKey(reply.rkey),
            address,
            length,
            iova,
            access,
            pinned_for_writing: pins_for_writing(access),
            sliced: AtomicBool::new(false),
            windowed: AtomicBool::new(false),
            on_demand: access.contains(Access::ON_DEMAND),
            pd: self.region_use(),
        })
    }
}

/// Drops the optional flags where the kernel does not know them: it promises to work without them, as with
/// `ibv_reg_mr(3)`.
fn without_unknown_options(access: Access, context: &Context) -> Access {
    if context
        .core_support()
        .contains(CoreSupport::OPTIONAL_MR_ACCESS)
    {
        return access;
    }
    access.difference(Access::OPTIONAL)
}

/// Refuses what the kernel would refuse with a mere EINVAL.
fn check_access(access: Access, writable: bool, length: usize) -> Result<(), &'static str> {
    let writes = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let remote_writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    if length == 0 {
        return Err("the memory has no bytes");
    }
    if access.intersects(remote_writes) && !access.contains(Access::LOCAL_WRITE) {
        return Err("remote write and remote atomic access need local write access");
    }
    if access.intersects(writes) && !writable {
        return Err("the memory is read-only, and the access flags allow writing");
    }
    Ok(())
}

/// Whether the kernel pins pages for writing by the device with this access (`ib_access_writable`).
fn pins_for_writing(access: Access) -> bool {
    access.intersects(
        Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC | Access::MW_BIND,
    )
}

/// Explains an error that may come from the access flags: drivers report that they do not support a flag,
/// older kernels that the argument is invalid.
fn with_access(error: Error, access: Access, context: &Context) -> Error {
    if error.is_unsupported() {
        return error.with_detail(format!("with the access {access:?}"));
    }
    if error.errno() != Some(Errno::INVAL) {
        return error;
    }
    match context.query_device() {
        Ok(device) => match missing_for(access, &device) {
            Some(what) => Error::unsupported(error.verb(), error.subject().clone(), what),
            None => error,
        },
        Err(_) => error,
    }
}

/// The capability that the access needs and the device lacks.
fn missing_for(access: Access, device: &DeviceAttr) -> Option<&'static str> {
    let on_demand = device.odp.general_caps & OdpGeneralCapBits::SUPPORT.bits() != 0;
    let has = |capability| device.capabilities.contains(capability);
    if access.contains(Access::ON_DEMAND) && !on_demand {
        return Some("the device has no paging on demand (ON_DEMAND)");
    }
    if access.contains(Access::FLUSH_GLOBAL) && !has(DeviceCapFlags::FLUSH_GLOBAL) {
        return Some("the device has no FLUSH for visibility (FLUSH_GLOBAL)");
    }
    if access.contains(Access::FLUSH_PERSISTENT) && !has(DeviceCapFlags::FLUSH_PERSISTENT) {
        return Some("the device has no FLUSH for persistence (FLUSH_PERSISTENT)");
    }
    None
}

/// Adds the limit on pinned memory to an error that may come from it.
fn with_memlock(error: Error) -> Error {
    with_limit(error, getrlimit(Resource::Memlock).current)
}

/// As [`with_memlock`], with the limit. The kernel has another error for a limit of 0 (`can_do_mlock` in
/// `mm/mlock.c`).
fn with_limit(error: Error, limit: Option<u64>) -> Error {
    match (error.errno(), limit) {
        (Some(Errno::NOMEM), None) => error.with_detail("RLIMIT_MEMLOCK is unlimited"),
        (Some(Errno::NOMEM), Some(limit)) | (Some(Errno::PERM), Some(limit @ 0)) => {
            error.with_detail(format!("RLIMIT_MEMLOCK is {limit} bytes"))
        }
        _ => error,
    }
}

/// A memory region, with its memory.
///
/// Requests name parts of it by [`slice`](Mr::slice), which borrows the region until the request is posted.
/// From then on the region may be dropped at any time: if requests in flight name it, it stays registered,
/// and its memory stays in place, until their queues have moved past these requests. [`Mr::deregister`]
/// reports this instead of waiting, [`Mr::deregister_by`] waits. A region of which no slice was ever taken is
/// deregistered at once. Peers can use its remote key until it is deregistered.
///
/// Dropping it deregisters it. If the kernel refuses since a window is bound to it, or another holder of the
/// file uses its handle, it is deregistered later: when the window is freed, or whenever a region of the
/// protection domain is registered or dropped ([`Pd::reclaim`]). If the kernel refuses otherwise, the memory
/// is leaked rather than freed under the device.
///
/// ```no_run
/// use uverbs::Access;
/// # fn register(pd: &uverbs::Pd) -> Result<(), Box<dyn std::error::Error>> {
/// let mut mr = pd.register(vec![0u8; 4096], Access::LOCAL_WRITE | Access::REMOTE_READ)?;
/// mr.write_at(0, b"hello")?;
/// let element = mr.slice(..5)?;                   // for work requests of this side
/// println!("{}", mr.remote());                    // for a peer, over any other connection
/// let memory: Vec<u8> = mr.deregister()?;
/// # Ok(()) }
/// ```
pub struct Mr<M: Memory> {
    held: Held<M>,
}

impl<M: Memory> Mr<M> {
    /// The key for local work requests.
    pub fn lkey(&self) -> LocalKey {
        self.held.region.lkey
    }

    /// The key for a peer. Without remote access flags, some devices give a key without any rights.
    pub fn rkey(&self) -> RemoteKey {
        self.held.region.rkey
    }

    /// Which protection domain it belongs to.
    pub(crate) fn pd_tag(&self) -> PdTag {
        self.held.region.pd.tag()
    }

    /// The kernel's handle.
    pub fn handle(&self) -> MrHandle {
        self.held.region.handle
    }

    /// The access that it was registered with.
    pub fn access(&self) -> Access {
        self.held.region.access
    }

    /// The length in bytes.
    pub fn len(&self) -> usize {
        self.held.region.length
    }

    /// Never true: a region has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.held.region.length == 0
    }

    /// The address by which work requests and peers refer to the first byte.
    pub fn iova(&self) -> u64 {
        self.held.region.iova
    }

    /// The address of the first byte in this process.
    pub fn as_ptr(&self) -> *mut u8 {
        self.held.region.address
    }

    /// A part of the region for a work request, in bytes from its start.
    ///
    /// # Errors
    ///
    /// The range does not lie within the region, or has more than 2 GiB.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<LocalSlice<'_>, OutOfBounds> {
        self.held.region.slice(range)
    }

    /// Slot `index` for a work request, if the region is an array of slots of `size` bytes each.
    ///
    /// ```no_run
    /// # fn receives(mr: &uverbs::Mr<Vec<u8>>, id: u64) -> Result<(), uverbs::mr::OutOfBounds> {
    /// let slot = mr.slot(id as usize, 256)?;          // bytes 256 * id .. 256 * (id + 1)
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The slot does not lie within the region, or has more than 2 GiB.
    pub fn slot(&self, index: usize, size: usize) -> Result<LocalSlice<'_>, OutOfBounds> {
        self.slice(slot(index, size))
    }

    /// The whole region as a peer addresses it: address, length and remote key. Send it to the peer.
    pub fn remote(&self) -> RemoteSlice {
        self.held.region.remote()
    }

    /// A part of the region to bind a memory window to, in bytes from its start, with the access that peers
    /// get through the window.
    ///
    /// # Errors
    ///
    /// The range does not lie within the region.
    pub fn window(
        &self,
        range: impl RangeBounds<usize>,
        access: Access,
    ) -> Result<Window<'_>, OutOfBounds> {
        self.held.region.mark_windowed();
        let Region {
            iova,
            length,
            lkey,
            access: region,
            ref pd,
            ..
        } = self.held.region;
        Window::within(
            range,
            (iova, length as u64),
            (lkey, pd.tag()),
            (access, region),
        )
    }

    /// Copies bytes out of the region, from `offset` on.
    ///
    /// Bytes that a peer or the device writes at the same time come out old or new, in any mixture. The
    /// compiler never elides the copy, so a loop that waits for a byte to change sees it change; it is as
    /// fast as a plain copy. To read a word without tearing, use [`Mr::load_u64`].
    ///
    /// # Errors
    ///
    /// The range does not lie within the region; nothing is copied then.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<(), OutOfBounds> {
        let from = self.checked(offset, into.len())?;
        // SAFETY: the range was checked to lie within the region, whose memory is alive and initialised. This
        // program writes it only through an exclusive borrow of the region. `into` is borrowed exclusively
        // and so is no part of it, except by a breach of the contract of `RawMemory::new`.
        unsafe { copy::load(from, into) };
        Ok(())
    }

    /// Copies bytes into the region, from `offset` on.
    ///
    /// # Errors
    ///
    /// The range does not lie within the region; nothing is copied then.
    pub fn write_at(&mut self, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds>
    where
        M: WritableMemory,
    {
        let to = self.checked(offset, bytes.len())?;
        // SAFETY: the range was checked to lie within the region, whose memory is alive and writable; the
        // region is borrowed exclusively, so `bytes` is no part of it, with the same exception as in
        // `read_at`.
        unsafe { copy::store(to, bytes) };
        Ok(())
    }

    /// Loads the 8 bytes at `offset` as one word in host byte order: a flag or a counter that a peer or the
    /// device writes.
    ///
    /// The word is never torn, and what is read from the region afterwards is at least as new (acquire): it
    /// includes what the same peer wrote before the word, by requests that the wire and the device keep in
    /// order.
    ///
    /// # Errors
    ///
    /// The word does not lie within the region, or its address in this process is not a multiple of 8.
    #[inline]
    pub fn load_u64(&self, offset: usize) -> Result<u64, WordError> {
        let from = self.checked_word(offset)?;
        // SAFETY: the word was checked to lie within the region and to be aligned; otherwise as in `read_at`.
        Ok(unsafe { copy::load_u64(from) })
    }

    /// Stores a word in host byte order to the 8 bytes at `offset`, for a peer that reads it.
    ///
    /// It is never torn, and becomes visible after everything written to the region before (release).
    ///
    /// # Errors
    ///
    /// As for [`Mr::load_u64`]; nothing is stored then.
    #[inline]
    pub fn store_u64(&mut self, offset: usize, word: u64) -> Result<(), WordError>
    where
        M: WritableMemory,
    {
        let to = self.checked_word(offset)?;
        // SAFETY: the word was checked to lie within the region and to be aligned; otherwise as in
        // `write_at`.
        unsafe { copy::store_u64(to, word) };
        Ok(())
    }

    fn checked_word(&self, offset: usize) -> Result<*mut u8, WordError> {
        let word = self.checked(offset, size_of::<u64>())?;
        match word.addr().is_multiple_of(size_of::<u64>()) {
            true => Ok(word),
            false => Err(WordError::Unaligned {
                address: word.addr(),
            }),
        }
    }

    fn checked(&self, offset: usize, length: usize) -> Result<*mut u8, OutOfBounds> {
        match offset.checked_add(length) {
            Some(end) if end <= self.held.region.length => {
                // SAFETY: the offset is within the region, as has just been found.
                Ok(unsafe { self.held.region.address.add(offset) })
            }
            end => Err(OutOfBounds {
                start: offset as u64,
                end: end.unwrap_or(usize::MAX) as u64,
                length: self.held.region.length as u64,
            }),
        }
    }

    /// The memory as a slice.
    ///
    /// # Safety
    ///
    /// Nobody writes to the memory while the slice lives: no posted receive, READ or atomic has it as its
    /// target, whether of this process or of one that shares the PD and posts with the local key; no peer
    /// with the key of the region, or of a window bound to it, writes to it; and no other owner of the memory
    /// ([`RawMemory`], a mapped file) does.
    pub unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: the memory is alive and initialised, and by this function's contract it is not written.
        unsafe { std::slice::from_raw_parts(self.held.region.address, self.held.region.length) }
    }

    /// The memory as a mutable slice.
    ///
    /// # Safety
    ///
    /// Nobody else accesses the memory while the slice lives, neither reading nor writing, in any of the ways
    /// that [`Mr::as_slice`] lists.
    pub unsafe fn as_mut_slice(&mut self) -> &mut [u8]
    where
        M: WritableMemory,
    {
        // SAFETY: the memory is alive, initialised and writable, and by this function's contract nobody
        // else accesses it.
        unsafe { std::slice::from_raw_parts_mut(self.held.region.address, self.held.region.length) }
    }

    /// Deregisters the region and gives the memory back.
    ///
    /// # Errors
    ///
    /// [`Cause::Busy`](crate::Cause::Busy) if requests that may name the region have not completed yet; the
    /// text names their queues. On hardware a request counts as completed when its completion, or that of a
    /// later request of the same queue, has been polled. Or the kernel refuses, for example while memory
    /// windows are bound to the region. The error returns the region. A removed device is not an error: the
    /// kernel has released the memory by then. Manual page: `ibv_dereg_mr(3)`.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn deregister(self) -> Result<M, DestroyError<Mr<M>>> {
        self.held.release().map_err(|(held, error)| DestroyError {
            object: Self { held },
            error,
        })
    }
}

impl<M: Memory> Mr<M> {
    /// Waits until the requests that may name the region have completed, then deregisters it and gives the
    /// memory back.
    ///
    /// It checks the queues periodically but does not poll completion queues: on hardware, another thread
    /// must poll meanwhile.
    ///
    /// # Errors
    ///
    /// As for [`Mr::deregister`]; [`Cause::Busy`](crate::Cause::Busy) if the deadline has passed.
    pub fn deregister_by(self, deadline: Instant) -> Result<M, DestroyError<Mr<M>>> {
        let released = self.held.release_by(deadline);
        released.map_err(|(held, error)| DestroyError {
            object: Self { held },
            error,
        })
    }

    /// Takes the region apart into its handle, its range, its local key and its share in the PD. It stays
    /// registered, and the memory is leaked.
    pub(crate) fn into_parts(self) -> (MrHandle, RemoteSlice, LocalKey, RegionUse) {
        let (_, region) = self.held.into_parts();
        // From here on others may deregister it, and another region may get its key.
        region.forget_on_demand();
        let remote = region.remote();
        let Region {
            handle, lkey, pd, ..
        } = region;
        (handle, remote, lkey, pd)
    }
}

impl<M: Memory> fmt::Debug for Mr<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.held.region.debug(&mut f.debug_struct("Mr"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch a limit that is not named where it is the cause, or that is named where it is not.
    #[test]
    fn a_limit_on_pinned_memory_is_named() {
        let text = |errno, limit| {
            let error = Error::os(Verb::RegMr, Subject::the("region"), errno);
            with_limit(error, limit).to_string()
        };
        for (errno, limit) in [(Errno::NOMEM, 0), (Errno::NOMEM, 65536), (Errno::PERM, 0)] {
            let named = format!("RLIMIT_MEMLOCK is {limit} bytes");
            assert!(
                text(errno, Some(limit)).contains(&named),
                "{errno:?} {limit}"
            );
        }
        for (errno, limit) in [
            (Errno::PERM, Some(65536)),
            (Errno::PERM, None),
            (Errno::INVAL, Some(0)),
        ] {
            assert!(
                !text(errno, limit).contains("MEMLOCK"),
                "{errno:?} {limit:?}"
            );
        }
    }

    #[test]
    fn access_that_contradicts_itself_is_refused() {
        let local = Access::LOCAL_WRITE;
        for remote in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
            assert!(check_access(remote, true, 1).is_err());
            assert_eq!(check_access(remote | local, true, 1), Ok(()));
        }
        assert_eq!(check_access(Access::REMOTE_READ, false, 1), Ok(()));
        assert!(check_access(local, false, 1).is_err());
        assert!(check_access(local, true, 0).is_err());
    }
}
