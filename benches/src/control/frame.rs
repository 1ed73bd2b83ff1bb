//! A system call on the command file, spelled out by hand: the header and the attributes in one array of
//! words.
//!
//! This is deliberately less than the library's commands are: it knows no errors but errno, checks nothing
//! and allocates nothing.

use std::io;

use uverbs_uapi::ioctl::{AttrFlags, IoctlAttr, IoctlHdr, RDMA_VERBS_IOCTL};
use uverbs_uapi::{attr, method, object};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Attributes that a frame has room for.
const ROOM: usize = 16;

/// A method with its attributes, laid out as the kernel reads it.
#[derive(Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct Frame {
    header: IoctlHdr,
    attributes: [IoctlAttr; ROOM],
}

impl Frame {
    /// A method of the driver's device.
    pub(super) fn new(driver_id: u32, object_id: u16, method_id: u16) -> Self {
        let header = IoctlHdr {
            length: size_of::<IoctlHdr>() as u16,
            object_id,
            method_id,
            driver_id,
            ..IoctlHdr::default()
        };
        Self {
            header,
            attributes: [IoctlAttr::default(); ROOM],
        }
    }

    /// A write command, by the method that carries one. The input's bytes must live until the call.
    pub(super) fn write<T: IntoBytes + Immutable>(driver_id: u32, command: u32, input: &T) -> Self {
        Self::new(driver_id, object::DEVICE, method::device::INVOKE_WRITE)
            .with(attr::invoke_write::WRITE_CMD, 8, command.into())
            .input(attr::invoke_write::CORE_IN, input)
    }

    /// Adds an attribute whose value is in it: of `length` bytes, or a handle or descriptor, which has none.
    pub(super) fn with(mut self, id: u16, length: u16, data: u64) -> Self {
        let number = usize::from(self.header.num_attrs);
        self.attributes[number] = IoctlAttr {
            attr_id: id,
            len: length,
            flags: AttrFlags::MANDATORY.bits(),
            attr_data: 0,
            data,
        };
        self.header.num_attrs += 1;
        self.header.length += size_of::<IoctlAttr>() as u16;
        self
    }

    /// Adds an input; its bytes must live until the call.
    pub(super) fn input<T: IntoBytes + Immutable>(self, id: u16, value: &T) -> Self {
        let bytes = value.as_bytes();
        let length = bytes.len() as u16;
        // Up to eight bytes travel in the attribute itself.
        let mut word = [0; 8];
        match word.get_mut(..bytes.len()) {
            Some(start) => {
                start.copy_from_slice(bytes);
                self.with(id, length, u64::from_ne_bytes(word))
            }
            None => self.with(id, length, bytes.as_ptr().expose_provenance() as u64),
        }
    }

    /// Adds room for an answer; it must live until the call and not be touched before.
    pub(super) fn output<T: FromBytes + IntoBytes>(self, id: u16, value: &mut T) -> Self {
        let address = value.as_mut_bytes().as_mut_ptr().expose_provenance();
        self.with(id, size_of::<T>() as u16, address as u64)
    }

    /// Makes the call.
    ///
    /// # Errors
    /// The kernel's.
    ///
    /// # Safety
    /// The addresses of inputs and outputs must still be valid.
    pub(super) unsafe fn call(&mut self, fd: i32) -> io::Result<()> {
        // SAFETY: the header gives the true length, and the addresses are valid by the caller's promise.
        match unsafe { libc::ioctl(fd, RDMA_VERBS_IOCTL.into(), &raw mut *self) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The value of an attribute after the call, by its place: a new handle or descriptor.
    pub(super) fn data(&self, place: usize) -> u32 {
        self.attributes[place].data as u32
    }
}
