//! A file in memory as a dma-buf.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::ioctl::{self, Ioctl, IoctlOutput, Opcode};

use super::{Dmabuf, DmabufMemory};
use crate::alloc::{AllocError, Allocation, Allocator, BufferRequest};

/// The device that makes dma-bufs from files in memory.
const DEVICE: &str = "/dev/udmabuf";

/// An allocator whose buffers lie in a memfd that is a dma-buf as well (`/dev/udmabuf`).
///
/// The kernel gets the buffers by dma-buf: it pins no memory of this process, so they do not count against
/// `RLIMIT_MEMLOCK`. `docs/domains.md` says which drivers, objects and kernels accept them; elsewhere the
/// verb fails with [`Cause::Unsupported`](crate::Cause::Unsupported).
///
/// Other processes may read through the memfd ([`AsFd`]), as with [`SharedMemfd`](crate::alloc::SharedMemfd):
/// once it is a dma-buf it is sealed, and no descriptor of it can write. Through the dma-buf
/// ([`Udmabuf::dmabuf`]) they could write, which `SharedMemfd` never allows.
///
/// ```no_run
/// use uverbs::{Caps, Context, Pd, Qp, Rc, alloc::Udmabuf};
///
/// fn in_a_dmabuf(context: &Context, pd: &Pd) -> Result<Qp<Rc>, Box<dyn std::error::Error>> {
///     let domain = pd.parent_domain().allocator(Udmabuf::new(1 << 20)?).create()?;
///     let cq = context.cq(64).domain(&domain).create()?;
///     Ok(domain.create_qp::<Rc>(&cq, Caps::default())?)   // its rings lie in the dma-buf
/// }
/// ```
#[derive(Debug)]
pub struct Udmabuf {
    memory: DmabufMemory,
    memfd: OwnedFd,
}

impl Udmabuf {
    /// Makes a file of `bytes`, rounded up to whole pages, maps it, and makes a dma-buf from it.
    ///
    /// # Errors
    ///
    /// `Unsupported` if the kernel has no udmabuf, `PermissionDenied` if this user may not open
    /// `/dev/udmabuf`. `bytes` is more than the kernel accepts at once (`size_limit_mb` of its module
    /// udmabuf, 64 MiB by default), or there are no file descriptors left.
    pub fn new(bytes: usize) -> io::Result<Self> {
        let device = open(DEVICE, "udmabuf")?;
        let length = super::whole_pages(bytes)?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memfd = memfd_create("uverbs dma-buf", flags)?;
        ftruncate(&memfd, length as u64)?;
        // The pages of a dma-buf must not be taken from the file.
        fcntl_add_seals(&memfd, SealFlags::SHRINK | SealFlags::GROW)?;
        // A mapping of the file and not of the dma-buf: its pages are ordinary ones, which may be registered
        // too.
        let mapping = super::map(memfd.as_fd(), length as u64)?;
        let dmabuf = Dmabuf::new(create(&device, &memfd, length as u64)?)?;
        // Only now: the kernel makes no dma-buf from a file that is sealed against writing.
        fcntl_add_seals(&memfd, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
        Ok(Self {
            memory: DmabufMemory::over(dmabuf, mapping),
            memfd,
        })
    }

    /// The dma-buf.
    pub fn dmabuf(&self) -> &Dmabuf {
        self.memory.dmabuf()
    }

    /// Its memory, for an allocator of another kind over it
    /// ([`Arena::in_dmabuf`](crate::alloc::Arena::in_dmabuf)).
    pub fn into_memory(self) -> DmabufMemory {
        self.memory
    }

    /// Bytes in all, used or not.
    pub fn capacity(&self) -> usize {
        self.memory.capacity()
    }
}

/// The sealed file. A byte of the dma-buf is at the same offset in it.
impl AsFd for Udmabuf {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memfd.as_fd()
    }
}

// SAFETY: memory comes from the allocator in it and goes back there. Nothing else uses it: the file was made
// here, is sealed, and safe code does not get the descriptor of its dma-buf.
unsafe impl Allocator for Udmabuf {
    fn allocate(&self, request: &BufferRequest) -> Result<Allocation, AllocError> {
        self.memory.allocate(request)
    }

    unsafe fn free(&self, memory: NonNull<[u8]>, request: &BufferRequest) {
        // SAFETY: by this function's contract.
        unsafe { self.memory.free(memory, request) };
    }
}

/// Opens a device that makes dma-bufs.
pub(super) fn open(path: &str, what: &str) -> io::Result<File> {
    let opened = File::options().read(true).write(true).open(path);
    opened.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            let why = format!("the kernel has no {what}: there is no {path}");
            io::Error::new(io::ErrorKind::Unsupported, why)
        }
        kind => io::Error::new(kind, format!("{path}: {error}")),
    })
}

/// `struct udmabuf_create` of `linux/udmabuf.h`.
#[repr(C)]
struct Create {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

/// `UDMABUF_FLAGS_CLOEXEC`.
const CLOEXEC: u32 = 1;

/// Makes a dma-buf from a file in memory.
fn create(device: &File, memfd: &OwnedFd, length: u64) -> io::Result<OwnedFd> {
    let request = Create {
        memfd: memfd.as_raw_fd() as u32,
        flags: CLOEXEC,
        offset: 0,
        size: length,
    };
    // SAFETY: the request belongs to the device, and its argument is this struct.
    let number = unsafe { ioctl::ioctl(device, request)? };
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

// SAFETY: the opcode belongs to the struct, which the kernel only reads. It answers with a descriptor.
unsafe impl Ioctl for Create {
    type Output = RawFd;

    const IS_MUTATING: bool = false;

    /// `UDMABUF_CREATE`.
    fn opcode(&self) -> Opcode {
        ioctl::opcode::write::<Self>(b'u', 0x42)
    }

    fn as_ptr(&mut self) -> *mut core::ffi::c_void {
        (&raw mut *self).cast()
    }

    unsafe fn output_from_ptr(
        answer: IoctlOutput,
        _: *mut core::ffi::c_void,
    ) -> rustix::io::Result<RawFd> {
        Ok(answer)
    }
}
