//! Regions in dma-bufs, with a real one: where a device refuses them, the refusal must be told and the
//! dma-buf come back.

use std::ffi::c_ulong;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use libtest_mimic::Trial;
use support::{ALL, Pair, Result, device, fail, same, skip, test};
use uverbs::{Access, Rc, WcOpcode, error::Errno};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("dmabuf::registered_or_refused", registered_or_refused),
        test("dmabuf::not_a_dmabuf", not_a_dmabuf),
    ]
}

const LENGTH: u64 = 8192;

/// `struct dma_heap_allocation_data` of `linux/dma-heap.h`.
#[repr(C)]
struct HeapAllocation {
    len: u64,
    fd: u32,
    fd_flags: u32,
    heap_flags: u64,
}

/// `struct udmabuf_create` of `linux/udmabuf.h`.
#[repr(C)]
struct UdmabufCreate {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

const fn request(direction: c_ulong, kind: u8, number: u8, size: usize) -> c_ulong {
    direction << 30 | (size as c_ulong) << 16 | (kind as c_ulong) << 8 | number as c_ulong
}

/// A dma-buf of `LENGTH` bytes from the system's heap.
fn from_heap() -> std::io::Result<OwnedFd> {
    let heap = File::open("/dev/dma_heap/system")?;
    let mut allocation = HeapAllocation {
        len: LENGTH,
        fd: 0,
        fd_flags: (libc::O_RDWR | libc::O_CLOEXEC) as u32,
        heap_flags: 0,
    };
    let allocate = request(3, b'H', 0, size_of::<HeapAllocation>());
    // SAFETY: the request's argument is this struct, in and out.
    let result = unsafe { libc::ioctl(heap.as_raw_fd(), allocate, &raw mut allocation) };
    if result < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(allocation.fd as i32) })
}

/// A dma-buf of `LENGTH` bytes over a file in memory.
fn from_memory() -> std::io::Result<OwnedFd> {
    let driver = File::options()
        .read(true)
        .write(true)
        .open("/dev/udmabuf")?;
    let flags = libc::MFD_ALLOW_SEALING | libc::MFD_CLOEXEC;
    // SAFETY: the name is a C string.
    let memory = unsafe { libc::memfd_create(c"dmabuf".as_ptr(), flags) };
    if memory < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us.
    let memory = File::from(unsafe { OwnedFd::from_raw_fd(memory) });
    memory.set_len(LENGTH)?;
    // SAFETY: takes numbers only.
    unsafe { libc::fcntl(memory.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) };
    let create = UdmabufCreate {
        memfd: memory.as_raw_fd() as u32,
        flags: 1, // UDMABUF_FLAGS_CLOEXEC
        offset: 0,
        size: LENGTH,
    };
    let number = request(1, b'u', 0x42, size_of::<UdmabufCreate>());
    // SAFETY: the request's argument is this struct.
    let fd = unsafe { libc::ioctl(driver.as_raw_fd(), number, &raw const create) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Catches a request that the kernel cannot read, a dma-buf that is lost, and a refusal that is told as
/// something else.
fn registered_or_refused() -> Result {
    let dmabuf = match (from_heap(), from_memory()) {
        (Ok(dmabuf), _) | (_, Ok(dmabuf)) => dmabuf,
        (Err(heap), Err(memory)) => {
            return skip(format!(
                "no dma-buf here: dma_heap: {heap}; udmabuf: {memory}"
            ));
        }
    };
    let number = dmabuf.as_raw_fd();
    let mut pair = Pair::<Rc>::new()?;
    let access = ALL | Access::LOCAL_WRITE;
    match pair.pd.register_dmabuf(dmabuf, 4096..LENGTH, 0, access) {
        Ok(mr) => {
            let to = mr.remote().slice(..7)?;
            pair.a
                .post(|batch| batch.write_inline(b"dma-buf", to))?
                .is(WcOpcode::RDMA_WRITE)?;
            same(mr.deregister()?.as_raw_fd(), number, "the dma-buf")
        }
        Err(refused) if refused.error.is_unsupported() => {
            same(refused.memory.as_raw_fd(), number, "the dma-buf")?;
            skip(format!("rxe has no regions in dma-bufs: {}", refused.error))
        }
        Err(refused) if device().is_mlx5() && refused.error.errno() == Some(Errno::INVAL) => {
            same(refused.memory.as_raw_fd(), number, "the dma-buf")?;
            skip("the software adapter loads no page lists by UMR, which mlx5 needs for dma-bufs")
        }
        Err(refused) => Err(refused.error.into()),
    }
}

/// Catches a descriptor of anything that is taken for a dma-buf, and an empty range that reaches the kernel.
fn not_a_dmabuf() -> Result {
    let pair = Pair::<Rc>::new()?;
    let file = OwnedFd::from(File::open("/dev/null")?);
    let Err(refused) = pair
        .pd
        .register_dmabuf(file, 0..4096, 0, Access::LOCAL_WRITE)
    else {
        return fail("/dev/null was registered");
    };
    let Err(refused) = pair
        .pd
        .register_dmabuf(refused.memory, 5..5, 0, Access::LOCAL_WRITE)
    else {
        return fail("no bytes were registered");
    };
    let said = refused.error.to_string();
    same(said.contains("no bytes"), true, &said)
}
