//! What can be registered: memory whose bytes stay where they are until it is dropped.

use std::ptr::NonNull;
use std::sync::Arc;

use zerocopy::{FromBytes, Immutable, IntoBytes};

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

// SAFETY: the slice is borrowed for ever and exclusively, and `T` may hold any bytes.
unsafe impl<T: FromBytes + IntoBytes + Send + 'static> Memory for &'static mut [T] {
    fn address(&mut self) -> *mut u8 {
        (**self).as_mut_ptr().cast()
    }

    fn length(&self) -> usize {
        size_of_val(&**self)
    }
}

// SAFETY: the slice is borrowed for ever, and it is registered for reading only.
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
// SAFETY: a mapping stays where it is until it is dropped; it is registered for reading only, and whoever changes the
// file meanwhile does so under the contract of `Mmap`'s own constructor.
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
// SAFETY: as for `MmapMut`; whoever else maps the same file has to cope with writes, as with any such file.
unsafe impl Memory for memmap2::MmapRaw {
    fn address(&mut self) -> *mut u8 {
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
    fn address(&mut self) -> *mut u8 {
        self.address.as_ptr()
    }

    fn length(&self) -> usize {
        self.length
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
