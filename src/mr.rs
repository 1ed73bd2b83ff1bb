//! Memory regions: memory that the device may reach, and the keys by which it is named.
//!
//! A region owns its memory (anything that is [`Memory`]) and gives it back when it is deregistered; memory
//! that is owned elsewhere is registered through [`RawMemory`], whose constructor states the contract. While
//! it is registered, peers that hold the remote key may change it at any time. So the region lends out no
//! references to it without `unsafe`; it copies in and out.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::RangeBounds;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::process::{Resource, getrlimit};
use uverbs_uapi::flags::{AccessFlags, CoreSupport};
use uverbs_uapi::handle::MrHandle;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::command::{DeregMr, RegMr};
use crate::context::Context;
use crate::error::{DestroyError, Errno, Error, Result, Subject, Verb};
use crate::key::{LocalKey, LocalSlice, OutOfBounds, RemoteKey, RemoteSlice};
use crate::pd::{Pd, PdUse, User};

/// Memory that can be registered and kept by a region.
///
/// # Safety
///
/// The pointer and the length must stay the same however the value is moved, until it is dropped. The bytes must
/// be initialised, valid for any bit pattern and, if [`Memory::WRITABLE`], writable through the pointer without
/// breaking anybody's aliasing rules while the value is not otherwise accessed.
pub unsafe trait Memory: Send + 'static {
    /// False if the memory must not be written; it is then registered for reading only.
    const WRITABLE: bool = true;

    /// The first byte.
    fn address(&self) -> *mut u8;

    /// Bytes.
    fn length(&self) -> usize;
}

// SAFETY: a vector's elements stay where they are when it is moved, and `T` may hold any bytes.
unsafe impl<T: FromBytes + IntoBytes + Send + 'static> Memory for Vec<T> {
    fn address(&self) -> *mut u8 {
        self.as_slice().as_ptr().cast_mut().cast()
    }

    fn length(&self) -> usize {
        size_of_val(self.as_slice())
    }
}

// SAFETY: a boxed slice stays where it is when the box is moved, and `T` may hold any bytes.
unsafe impl<T: FromBytes + IntoBytes + Send + 'static> Memory for Box<[T]> {
    fn address(&self) -> *mut u8 {
        (**self).as_ptr().cast_mut().cast()
    }

    fn length(&self) -> usize {
        size_of_val(&**self)
    }
}

// SAFETY: the slice is borrowed for ever and exclusively, and `T` may hold any bytes.
unsafe impl<T: FromBytes + IntoBytes + Send + 'static> Memory for &'static mut [T] {
    fn address(&self) -> *mut u8 {
        (**self).as_ptr().cast_mut().cast()
    }

    fn length(&self) -> usize {
        size_of_val(&**self)
    }
}

// SAFETY: the slice is borrowed for ever, and it is registered for reading only.
unsafe impl<T: IntoBytes + Immutable + Sync + 'static> Memory for &'static [T] {
    const WRITABLE: bool = false;

    fn address(&self) -> *mut u8 {
        (**self).as_ptr().cast_mut().cast()
    }

    fn length(&self) -> usize {
        size_of_val(*self)
    }
}

// SAFETY: the slice lives as long as the `Arc` and is registered for reading only.
unsafe impl<T: IntoBytes + Immutable + Send + Sync + 'static> Memory for Arc<[T]> {
    const WRITABLE: bool = false;

    fn address(&self) -> *mut u8 {
        (**self).as_ptr().cast_mut().cast()
    }

    fn length(&self) -> usize {
        size_of_val(&**self)
    }
}

#[cfg(feature = "memmap2")]
// SAFETY: a mapping stays where it is until it is dropped, and its bytes are initialised by the kernel.
unsafe impl Memory for memmap2::MmapMut {
    fn address(&self) -> *mut u8 {
        (**self).as_ptr().cast_mut()
    }

    fn length(&self) -> usize {
        self.len()
    }
}

#[cfg(feature = "memmap2")]
// SAFETY: as for `MmapMut`; whoever else maps the same file has to cope with writes, as with any such file.
unsafe impl Memory for memmap2::MmapRaw {
    fn address(&self) -> *mut u8 {
        self.as_mut_ptr()
    }

    fn length(&self) -> usize {
        self.len()
    }
}

/// Memory that is owned elsewhere: a borrowed slice, an allocator's arena, another library's buffer.
#[derive(Debug)]
pub struct RawMemory {
    address: NonNull<u8>,
    length: usize,
}

impl RawMemory {
    /// The `length` bytes at `address`.
    ///
    /// # Safety
    ///
    /// As long as the value or a region that holds it lives, the bytes must be mapped and initialised, any
    /// bit pattern must be valid in them, and no reference to them may exist while the device may access them
    /// in a way that conflicts with it: while it may write, none at all; while it may read, none that is
    /// written through.
    pub unsafe fn new(address: NonNull<u8>, length: usize) -> Self {
        Self { address, length }
    }
}

// SAFETY: by the contract of `RawMemory::new`; a pointer and a length may change threads.
unsafe impl Send for RawMemory {}
// SAFETY: by the contract of `RawMemory::new`.
unsafe impl Memory for RawMemory {
    fn address(&self) -> *mut u8 {
        self.address.as_ptr()
    }

    fn length(&self) -> usize {
        self.length
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
    /// Registers memory with the access that peers and the own device are to have.
    ///
    /// Nothing is allowed that `access` does not name: an empty set allows the own device to read. Work
    /// requests and peers name the first byte by its address in this process.
    ///
    /// # Errors
    ///
    /// The access flags contradict each other or the memory; the memory is empty; the kernel cannot pin it
    /// (then with `RLIMIT_MEMLOCK` in the text). The error gives the memory back. Manual page: `ibv_reg_mr(3)`.
    pub fn register<M: Memory>(
        &self,
        memory: M,
        access: AccessFlags,
    ) -> Result<Mr<M>, RegisterError<M>> {
        let iova = memory.address().addr() as u64;
        self.register_at(memory, iova, access)
    }

    /// Registers memory under an address of its own: work requests and peers name the first byte by `iova`.
    ///
    /// # Errors
    ///
    /// As for [`Pd::register`]; besides, `iova` and the address of the memory must lie at the same offset in
    /// their pages. Manual page: `ibv_reg_mr_iova(3)`.
    pub fn register_at<M: Memory>(
        &self,
        memory: M,
        iova: u64,
        access: AccessFlags,
    ) -> Result<Mr<M>, RegisterError<M>> {
        match self.register_range(memory.address(), memory.length(), M::WRITABLE, iova, access) {
            Ok(region) => Ok(Mr {
                memory: ManuallyDrop::new(memory),
                region,
            }),
            Err(error) => Err(RegisterError { memory, error }),
        }
    }

    fn register_range(
        &self,
        address: *mut u8,
        length: usize,
        writable: bool,
        iova: u64,
        access: AccessFlags,
    ) -> Result<Region> {
        let access = without_unknown_options(access, self.context());
        let command = RegMr {
            pd: self.handle(),
            // Exposed: from here on the device reaches the memory by this number.
            address: address.expose_provenance() as u64,
            length: length as u64,
            iova,
            access: access.bits(),
        };
        check_access(access, writable, length)
            .map_err(|why| Error::invalid(Verb::RegMr, Subject::the("MR"), why))?;
        let reply = self
            .context()
            .fd()
            .execute(&command)
            .map_err(with_memlock)?;
        Ok(Region {
            handle: reply.handle,
            lkey: LocalKey(reply.lkey),
            rkey: RemoteKey(reply.rkey),
            address,
            length,
            iova,
            access,
            registered: true,
            pd: self.user(User::Mr),
        })
    }
}

/// Drops the optional flags where the kernel does not know them: it promises to work without them, as with
/// `ibv_reg_mr(3)`.
fn without_unknown_options(access: AccessFlags, context: &Context) -> AccessFlags {
    if context
        .core_support()
        .contains(CoreSupport::OPTIONAL_MR_ACCESS)
    {
        return access;
    }
    access.difference(AccessFlags::OPTIONAL)
}

/// Refuses what cannot be before the kernel does, which would only say EINVAL.
fn check_access(access: AccessFlags, writable: bool, length: usize) -> Result<(), &'static str> {
    let writes = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
    let remote_writes = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
    if length == 0 {
        return Err("the memory has no bytes");
    }
    if access.intersects(remote_writes) && !access.contains(AccessFlags::LOCAL_WRITE) {
        return Err("remote write and remote atomic access need local write access");
    }
    if access.intersects(writes) && !writable {
        return Err("the memory is read-only, and the access flags allow writing");
    }
    Ok(())
}

/// Adds the limit on pinned memory to an error that may come from it.
fn with_memlock(error: Error) -> Error {
    if error.errno() != Some(Errno::NOMEM) {
        return error;
    }
    match getrlimit(Resource::Memlock).current {
        Some(limit) => error.with_detail(format!("RLIMIT_MEMLOCK is {limit} bytes")),
        None => error.with_detail("RLIMIT_MEMLOCK is unlimited"),
    }
}

/// A registered range, without the memory itself.
#[derive(Debug)]
struct Region {
    handle: MrHandle,
    lkey: LocalKey,
    rkey: RemoteKey,
    address: *mut u8,
    length: usize,
    iova: u64,
    access: AccessFlags,
    registered: bool,
    pd: PdUse,
}

// SAFETY: the pointer is to memory that is `Send`, and is used by copies only.
unsafe impl Send for Region {}
// SAFETY: shared references copy bytes in and out of memory that peers may change as well; tearing is
// documented, and what they touch is never lent out without the caller's promise.
unsafe impl Sync for Region {}

impl Region {
    fn deregister(&mut self) -> Result<()> {
        if !self.registered {
            return Ok(());
        }
        match self.pd.context().fd().execute(&DeregMr(self.handle)) {
            Ok(()) => self.registered = false,
            // The device went away, and the kernel let go of the memory by then.
            Err(error) if error.is_device_gone() => self.registered = false,
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// A memory region, and the memory in it.
///
/// Dropping it deregisters it. Should the kernel refuse, the memory is leaked rather than freed under the device.
pub struct Mr<M: Memory> {
    memory: ManuallyDrop<M>,
    region: Region,
}

impl<M: Memory> Mr<M> {
    /// The key for work requests of this side.
    pub fn lkey(&self) -> LocalKey {
        self.region.lkey
    }

    /// The key for a peer. On some devices it is a key without any rights if no remote access was asked for.
    pub fn rkey(&self) -> RemoteKey {
        self.region.rkey
    }

    /// The kernel's handle.
    pub fn handle(&self) -> MrHandle {
        self.region.handle
    }

    /// The access that it was registered with.
    pub fn access(&self) -> AccessFlags {
        self.region.access
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.region.length
    }

    /// Never true: a region has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.region.length == 0
    }

    /// The address by which work requests and peers name the first byte.
    pub fn iova(&self) -> u64 {
        self.region.iova
    }

    /// The first byte in this process.
    pub fn as_ptr(&self) -> *mut u8 {
        self.region.address
    }

    /// A part of it for a work request, in bytes from its start.
    ///
    /// # Errors
    ///
    /// The range does not lie within the region, or is 4 GiB or more.
    pub fn slice(&self, range: impl RangeBounds<u64>) -> Result<LocalSlice, OutOfBounds> {
        let Region {
            iova,
            length,
            lkey,
            ref pd,
            ..
        } = self.region;
        LocalSlice::within(range, iova, length as u64, lkey, pd.tag())
    }

    /// All of it as a peer names it. Send it over; it holds the address, the length and the remote key.
    pub fn remote(&self) -> RemoteSlice {
        RemoteSlice {
            address: self.region.iova,
            length: self.region.length as u64,
            rkey: self.region.rkey,
        }
    }

    /// Copies bytes out of the region, from `offset` on.
    ///
    /// Bytes that a peer or the device writes at the same time come out old or new, in any mixture.
    ///
    /// # Errors
    ///
    /// The range does not lie within the region; nothing is copied then.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<(), OutOfBounds> {
        let from = self.checked(offset, into.len())?;
        // SAFETY: the range was checked to lie within the region, whose memory is alive and initialised;
        // `into` is borrowed exclusively and so is no part of it.
        unsafe { from.copy_to_nonoverlapping(into.as_mut_ptr(), into.len()) };
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
        // region is borrowed exclusively, so `bytes` is no part of it.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    fn checked(&self, offset: usize, length: usize) -> Result<*mut u8, OutOfBounds> {
        match offset.checked_add(length) {
            // SAFETY: the offset is within the region, as has just been found.
            Some(end) if end <= self.region.length => {
                Ok(unsafe { self.region.address.add(offset) })
            }
            end => Err(OutOfBounds {
                start: offset as u64,
                end: end.unwrap_or(usize::MAX) as u64,
                length: self.region.length as u64,
            }),
        }
    }

    /// The memory as a slice.
    ///
    /// # Safety
    ///
    /// Nobody may write to it while the slice lives: no posted receive, READ or atomic of this side may have
    /// it as its target, and no peer that holds the remote key may write to it.
    pub unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: the memory is alive and initialised, and by this function's contract nobody writes.
        unsafe { std::slice::from_raw_parts(self.region.address, self.region.length) }
    }

    /// The memory as a slice to write to.
    ///
    /// # Safety
    ///
    /// Nobody else may access it while the slice lives: no posted request of this side may name it, and no
    /// peer that holds the remote key may read or write it.
    pub unsafe fn as_mut_slice(&mut self) -> &mut [u8]
    where
        M: WritableMemory,
    {
        // SAFETY: the memory is alive, initialised and writable, and by this function's contract nobody
        // else accesses it.
        unsafe { std::slice::from_raw_parts_mut(self.region.address, self.region.length) }
    }

    /// Deregisters the region and gives the memory back.
    ///
    /// # Errors
    ///
    /// The kernel refuses, such as while memory windows are bound to it; the error gives the region back.
    /// A device that has been removed is no error: the memory is free by then. Manual page: `ibv_dereg_mr(3)`.
    pub fn deregister(mut self) -> Result<M, DestroyError<Mr<M>>> {
        match self.region.deregister() {
            Ok(()) => {
                let mut this = ManuallyDrop::new(self);
                // SAFETY: `this` is neither used nor dropped after these two, so the memory is moved out
                // once and the region is dropped once.
                unsafe {
                    std::ptr::drop_in_place(&raw mut this.region);
                    Ok(ManuallyDrop::take(&mut this.memory))
                }
            }
            Err(error) => Err(DestroyError {
                object: self,
                error,
            }),
        }
    }
}

impl<M: Memory> Mr<M> {
    /// Takes the region apart into its handle, its range, its local key and its share in the PD. It stays
    /// registered, and the memory is leaked.
    pub(crate) fn into_parts(self) -> (MrHandle, RemoteSlice, LocalKey, PdUse) {
        let remote = self.remote();
        let this = ManuallyDrop::new(self);
        let Region { handle, lkey, .. } = this.region;
        // SAFETY: `this` is neither used nor dropped after this, so the share is moved out once; the other
        // fields of the region need no drop, and the memory is to be leaked.
        let pd = unsafe { std::ptr::read(&raw const this.region.pd) };
        (handle, remote, lkey, pd)
    }
}

/// Memory that this side may write through a region. It is implemented for all [`Memory`] that is
/// [`Memory::WRITABLE`] in this crate; implement it beside `Memory` for types of your own.
pub trait WritableMemory: Memory {}

impl<T: FromBytes + IntoBytes + Send + 'static> WritableMemory for Vec<T> {}
impl<T: FromBytes + IntoBytes + Send + 'static> WritableMemory for Box<[T]> {}
impl<T: FromBytes + IntoBytes + Send + 'static> WritableMemory for &'static mut [T] {}
impl WritableMemory for RawMemory {}
#[cfg(feature = "memmap2")]
impl WritableMemory for memmap2::MmapMut {}
#[cfg(feature = "memmap2")]
impl WritableMemory for memmap2::MmapRaw {}

impl<M: Memory> Drop for Mr<M> {
    fn drop(&mut self) {
        match self.region.deregister() {
            // SAFETY: the memory is dropped once, here, and the device does not know it any more.
            Ok(()) => unsafe { ManuallyDrop::drop(&mut self.memory) },
            Err(error) => {
                tracing::warn!(target: "uverbs", %error, "an MR could not be deregistered; its memory is leaked");
            }
        }
    }
}

impl<M: Memory> fmt::Debug for Mr<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Region {
            handle,
            lkey,
            rkey,
            iova,
            length,
            access,
            ..
        } = &self.region;
        f.debug_struct("Mr")
            .field("handle", &handle.0)
            .field("lkey", lkey)
            .field("rkey", rkey)
            .field("iova", &format_args!("{iova:#x}"))
            .field("len", length)
            .field("access", access)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_that_contradicts_itself_is_refused() {
        let local = AccessFlags::LOCAL_WRITE;
        for remote in [AccessFlags::REMOTE_WRITE, AccessFlags::REMOTE_ATOMIC] {
            assert!(check_access(remote, true, 1).is_err());
            assert_eq!(check_access(remote | local, true, 1), Ok(()));
        }
        assert_eq!(check_access(AccessFlags::REMOTE_READ, false, 1), Ok(()));
        assert!(check_access(local, false, 1).is_err());
        assert!(check_access(local, true, 0).is_err());
    }
}
