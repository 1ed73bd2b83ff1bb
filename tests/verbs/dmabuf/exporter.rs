//! A dma-buf for tests, with a look at its bytes past any device.

use std::ffi::c_ulong;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use support::{Result, same};

/// Bytes of a page of the kernels that have dma-bufs of memory here.
pub(super) const PAGE: usize = 4096;

/// `struct udmabuf_create_item` of `linux/udmabuf.h`.
#[repr(C)]
struct Item {
    memfd: u32,
    reserved: u32,
    offset: u64,
    size: u64,
}

/// `struct udmabuf_create_list` of `linux/udmabuf.h`, with as many items as there is room for.
#[repr(C)]
struct CreateList<const ITEMS: usize> {
    flags: u32,
    count: u32,
    items: [Item; ITEMS],
}

/// `UDMABUF_FLAGS_CLOEXEC`.
const CLOEXEC: u32 = 1;
/// `UDMABUF_CREATE_LIST`: its size is that of the list's head.
const CREATE_LIST: c_ulong = 1 << 30 | 8 << 16 | (b'u' as c_ulong) << 8 | 0x43;

/// A dma-buf that udmabuf exports: the pages of a file in memory, in another order.
pub(super) struct Exporter {
    file: File,
    pages: usize,
}

impl Exporter {
    /// A dma-buf of so many pages, all zero, that are those of the file from the last to the first.
    ///
    /// # Errors
    /// If the kernel has no udmabuf, as Linux 6.1 of Debian.
    pub(super) fn new<const PAGES: usize>() -> io::Result<(Self, OwnedFd)> {
        let driver = File::options()
            .read(true)
            .write(true)
            .open("/dev/udmabuf")?;
        let file = sealed(PAGES * PAGE)?;
        let list = CreateList::<PAGES> {
            flags: CLOEXEC,
            count: PAGES as u32,
            items: std::array::from_fn(|page| Item {
                memfd: file.as_raw_fd() as u32,
                reserved: 0,
                offset: ((PAGES - 1 - page) * PAGE) as u64,
                size: PAGE as u64,
            }),
        };
        // SAFETY: the request's argument is this struct, with as many items as it says.
        let fd = unsafe { libc::ioctl(driver.as_raw_fd(), CREATE_LIST, &raw const list) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let exporter = Self { file, pages: PAGES };
        // SAFETY: the kernel has just made this descriptor for us.
        Ok((exporter, unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The dma-buf's bytes, as the file has them.
    pub(super) fn bytes(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.pages * PAGE];
        for (number, page) in bytes.chunks_exact_mut(PAGE).enumerate() {
            let at = (self.pages - 1 - number) * PAGE;
            self.file.read_exact_at(page, at as u64)?;
        }
        Ok(bytes)
    }

    /// Fails unless the dma-buf is zero but for these bytes from there on.
    #[track_caller]
    pub(super) fn has(&self, at: usize, expected: &[u8]) -> Result {
        let mut all = vec![0; self.pages * PAGE];
        all[at..at + expected.len()].copy_from_slice(expected);
        let bytes = self.bytes()?;
        let differs = bytes.iter().zip(&all).position(|(is, should)| is != should);
        same(differs, None, "the first byte that differs")
    }
}

/// A file in memory that does not shrink, as udmabuf wants it.
fn sealed(length: usize) -> io::Result<File> {
    let flags = libc::MFD_ALLOW_SEALING | libc::MFD_CLOEXEC;
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(c"pages".as_ptr(), flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    file.set_len(length as u64)?;
    // SAFETY: takes numbers only.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) } {
        0 => Ok(file),
        _ => Err(io::Error::last_os_error()),
    }
}
