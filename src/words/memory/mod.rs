//! Memory that can be registered: its bytes stay in place until it is dropped.

mod scan;
mod shared;
mod still;

use std::ptr::NonNull;
use std::sync::Arc;

use zerocopy::{FromBytes, Immutable, IntoBytes};

pub(crate) use scan::has_word;
pub use shared::SharedMemory;
pub(crate) use still::{Resting, Still};

/// Memory that can be registered and owned by a region.
///
/// # Safety
///
/// The pointer and the length must stay the same however the value is moved, until it is dropped. The bytes
/// must be initialised, valid for any bit pattern and, if [`Memory::WRITABLE`], writable through the pointer
/// without breaking aliasing rules while the value is not otherwise accessed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be registered",
    label = "its bytes may move or be borrowed, or hold what a device must not write",
    note = "register a `Vec<u8>`, `Box<[u8]>`, `&'static mut [u8]`, a mapping of `memmap2`, or for reading \
            only `Arc<[u8]>` or `&'static [u8]`",
    note = "an array moves with its owner: `Vec::from(array)` stays where it is",
    note = "memory that something else owns is registered as `uverbs::mr::RawMemory`"
)]
pub unsafe trait Memory: Send + 'static {
    /// False if the memory must not be written; it can then only be registered for reading.
    const WRITABLE: bool = true;

    /// The first byte.
    fn address(&mut self) -> *mut u8;

    /// Bytes.
    fn length(&self) -> usize;
}

// SAFETY: a vector's elements stay where they are when it is moved, and `T` may hold any bytes.
unsafe impl<T: FromBytes + IntoBytes + Send + 'static> Memory for Vec<T> {
    fn address(&mut self) -> *mut u8 {
        self.as_mut_slice().as_mut_ptr().cast()
    }

    fn length(&self) -> usize {
        size_of_val(self.as_slice())
    }
}

// SAFETY: a boxed slice stays where it is when the box is moved, and `T` may hold any bytes.
unsafe impl<T: FromBytes + IntoBytes + Send + 'static> Memory for Box<[T]> {
    fn address(&mut self) -> *mut u8 {
        (**self).as_mut_ptr().cast()
    }

    fn length(&self) -> usize {
        size_of_val(&**self)
    }
}

// SAFETY: the slice is borrowed forever and exclusively, and `T` may hold any bytes.
unsafe impl<T: FromBytes + IntoBytes + Send + 'static> Memory for &'static mut [T] {
    fn address(&mut self) -> *mut u8 {
        (**self).as_mut_ptr().cast()
    }

    fn length(&self) -> usize {
        size_of_val(&**self)
    }
}

// SAFETY: the slice is borrowed forever, and it is registered for reading only.
unsafe impl<T: IntoBytes + Immutable + Sync + 'static> Memory for &'static [T] {
    const WRITABLE: bool = false;

    fn address(&mut self) -> *mut u8 {
        (**self).as_ptr().cast_mut().cast()
    }

    fn length(&self) -> usize {
        size_of_val(*self)
    }
}

// SAFETY: the slice lives as long as the `Arc` and is registered for reading only.
unsafe impl<T: IntoBytes + Immutable + Send + Sync + 'static> Memory for Arc<[T]> {
    const WRITABLE: bool = false;

    fn address(&mut self) -> *mut u8 {
        (**self).as_ptr().cast_mut().cast()
    }

    fn length(&self) -> usize {
        size_of_val(&**self)
    }
}

#[cfg(feature = "memmap2")]
// SAFETY: a mapping stays where it is until it is dropped, and its bytes are initialised by the kernel.
unsafe impl Memory for memmap2::MmapMut {
    fn address(&mut self) -> *mut u8 {
        (**self).as_mut_ptr()
    }

    fn length(&self) -> usize {
        self.len()
    }
}

#[cfg(feature = "memmap2")]
// SAFETY: a mapping stays where it is until it is dropped; it is registered only for reading, and the
// contract of `Mmap`'s constructor covers changes of the file meanwhile.
unsafe impl Memory for memmap2::Mmap {
    const WRITABLE: bool = false;

    fn address(&mut self) -> *mut u8 {
        (**self).as_ptr().cast_mut()
    }

    fn length(&self) -> usize {
        self.len()
    }
}

#[cfg(feature = "memmap2")]
// SAFETY: as for `MmapMut`; other users of the same file must expect writes, as with any shared file.
// `map_raw_read_only` makes mappings that must not be written: the kernel refuses access that would let the
// device write there. This side does not write, since the type is not `WritableMemory`.
unsafe impl Memory for memmap2::MmapRaw {
    fn address(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }

    fn length(&self) -> usize {
        self.len()
    }
}

/// Memory with another owner: a borrowed slice, an allocator's arena, another library's buffer.
///
/// ```
/// use std::ptr::NonNull;
/// use uverbs::{mr::RawMemory, Access, Mr, Pd};
///
/// /// Lends a buffer to the device until the region is dropped.
/// ///
/// /// # Safety
/// ///
/// /// The buffer outlives the region and is not touched by other means meanwhile.
/// unsafe fn lend(pd: &Pd, buffer: &mut [u8]) -> uverbs::Result<Mr<RawMemory>> {
///     let (address, length) = (NonNull::from(&mut *buffer).cast(), buffer.len());
///     // SAFETY: by this function's contract; a slice is mapped, writable and initialised, and any byte is
///     // a `u8`.
///     let memory = unsafe { RawMemory::new(address, length) };
///     Ok(pd.register(memory, Access::LOCAL_WRITE)?)
/// }
/// ```
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
    /// As long as the value, or a region or an arena that holds it, lives:
    ///
    /// - The bytes are mapped, readable, writable and initialised, and any bit pattern is valid in them. An
    ///   arena may map other pages over whole pages of them.
    /// - They may be written at any time by the device and by every peer that has a key of the region or of a
    ///   window on it, as far as its access allows it; by the CPU in [`Mr::write_at`](crate::Mr::write_at),
    ///   [`Mr::store_u64`](crate::Mr::store_u64) and inline scatter; and by the user of an arena's buffers.
    ///   So no reference to any of them exists while one of these may write, not even as the argument of
    ///   these functions.
    /// - They may be read in the same way: by the device and every peer that has a key, by
    ///   [`Mr::read_at`](crate::Mr::read_at) and [`Mr::load_u64`](crate::Mr::load_u64). So nobody writes to
    ///   them through a reference while one of these may read.
    pub unsafe fn new(address: NonNull<u8>, length: usize) -> Self {
        Self { address, length }
    }
}

// SAFETY: by the contract of `RawMemory::new`; a pointer and a length may move to another thread.
unsafe impl Send for RawMemory {}
// SAFETY: a shared reference only gives the address and the length, and reaches no byte of the memory.
unsafe impl Sync for RawMemory {}
// SAFETY: by the contract of `RawMemory::new`.
unsafe impl Memory for RawMemory {
    fn address(&mut self) -> *mut u8 {
        self.address.as_ptr()
    }

    fn length(&self) -> usize {
        self.length
    }
}

/// Memory that this process may write, through a region or as an arena. This crate implements it for the
/// writable [`Memory`] types; implement it together with `Memory` for your own types.
///
/// `memmap2::MmapRaw` is not among them, since it may be mapped for reading only. If it is writable, use
/// [`RawMemory`] over it.
///
/// # Safety
///
/// [`Memory::WRITABLE`] is true, and the CPU may write any bytes through the pointer of [`Memory::address`],
/// as long as the value lives and is not otherwise accessed.
pub unsafe trait WritableMemory: Memory {}

// SAFETY: the vector owns its elements, and `T` may hold any bytes.
unsafe impl<T: FromBytes + IntoBytes + Send + 'static> WritableMemory for Vec<T> {}
// SAFETY: as for a vector.
unsafe impl<T: FromBytes + IntoBytes + Send + 'static> WritableMemory for Box<[T]> {}
// SAFETY: the slice is borrowed exclusively, and `T` may hold any bytes.
unsafe impl<T: FromBytes + IntoBytes + Send + 'static> WritableMemory for &'static mut [T] {}
// SAFETY: by the contract of `RawMemory::new`.
unsafe impl WritableMemory for RawMemory {}
#[cfg(feature = "memmap2")]
// SAFETY: it is mapped for writing, and only a call that consumes it can make it read-only.
unsafe impl WritableMemory for memmap2::MmapMut {}
