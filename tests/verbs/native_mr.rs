//! The kernel's own method to register memory, MR.REG, which this library leaves alone: on Linux 7.2 it does
//! not set the range of the kernel's region. The test speaks to the kernel directly and tells when that has
//! changed.

use std::os::fd::{AsFd, AsRawFd};

use libtest_mimic::Trial;
use support::{Device, Result, device, open, same, skip, test};
use uverbs::uapi::ioctl::{AttrFlags, IoctlAttr, IoctlHdr, RDMA_VERBS_IOCTL};
use uverbs::uapi::{attr, method, object};
use uverbs::{Access, Context};
use zerocopy::IntoBytes;

pub(crate) fn tests() -> Vec<Trial> {
    vec![test(
        "native_mr::leaves_the_range_unset",
        leaves_the_range_unset,
    )]
}

fn number(id: u16, len: u16, data: u64) -> IoctlAttr {
    IoctlAttr {
        attr_id: id,
        len,
        flags: AttrFlags::MANDATORY.bits(),
        attr_data: 0,
        data,
    }
}

fn output<T>(id: u16, place: &mut T) -> IoctlAttr {
    number(id, size_of::<T>() as u16, (&raw mut *place) as u64)
}

/// Sends a method of an object and gives its attributes back with the kernel's answers in them.
///
/// # Safety
///
/// Attributes that are addresses must lead to room of the length that they tell.
unsafe fn send(
    context: &Context,
    (object, method): (u16, u16),
    attributes: &[IoctlAttr],
) -> std::io::Result<Vec<u64>> {
    let header = IoctlHdr {
        length: (size_of::<IoctlHdr>() + size_of_val(attributes)) as u16,
        object_id: object,
        method_id: method,
        num_attrs: attributes.len() as u16,
        driver_id: context.driver_id().0,
        ..IoctlHdr::default()
    };
    let bytes = [header.as_bytes(), attributes.as_bytes()].concat();
    let words = bytes.chunks_exact(8);
    let mut frame: Vec<u64> = words
        .map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()))
        .collect();
    let fd = context.as_fd().as_raw_fd();
    // SAFETY: the frame starts with a header that tells its length; its addresses are good by this function's
    // contract.
    let result = unsafe { libc::ioctl(fd, RDMA_VERBS_IOCTL.into(), frame.as_mut_ptr()) };
    match result {
        0 => Ok(frame.split_off(size_of::<IoctlHdr>() / 8)),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Catches a kernel that sets the range: then the method can be used, and `command/mr.rs` should.
fn leaves_the_range_unset() -> Result {
    let context = open()?;
    let pd = context.alloc_pd()?;
    let memory = memmap2::MmapMut::map_anon(8192)?;
    let (mut lkey, mut rkey) = (0u32, 0u32);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    use attr::reg_mr as reg;
    let attributes = [
        number(reg::HANDLE, 0, u64::MAX),
        number(reg::PD_HANDLE, 0, pd.handle().0.into()),
        number(reg::IOVA, 8, 0x7000_0000),
        number(reg::ADDR, 8, memory.as_ptr() as u64),
        number(reg::LENGTH, 8, 8192),
        number(reg::ACCESS_FLAGS, 4, access.bits().into()),
        output(reg::RESP_LKEY, &mut lkey),
        output(reg::RESP_RKEY, &mut rkey),
    ];
    // SAFETY: the outputs are as long as told; the memory outlives its registration, which ends below or with
    // the context, both of which come first.
    let answer = match unsafe { send(&context, (object::MR, method::mr::REG), &attributes) } {
        Ok(answer) => answer,
        Err(error) if error.raw_os_error() == Some(libc::EPROTONOSUPPORT) => {
            return skip("this kernel has no method MR.REG (since Linux 6.17)");
        }
        Err(error) => return Err(error.into()),
    };
    // The handle is the data of the first attribute.
    let handle = answer[1];
    let (mut length, mut iova) = (u64::MAX, u64::MAX);
    use attr::query_mr as query;
    let attributes = [
        number(query::HANDLE, 0, handle),
        output(query::RESP_LKEY, &mut lkey),
        output(query::RESP_RKEY, &mut rkey),
        output(query::RESP_LENGTH, &mut length),
        output(query::RESP_IOVA, &mut iova),
    ];
    // SAFETY: the outputs are as long as told.
    unsafe { send(&context, (object::MR, method::mr::QUERY), &attributes)? };
    let attributes = [number(attr::destroy_mr::HANDLE, 0, handle)];
    // SAFETY: there are no addresses.
    unsafe { send(&context, (object::MR, method::mr::DESTROY), &attributes)? };
    drop(memory);
    match (length, iova) {
        (8192, 0x7000_0000) => skip(
            "this kernel's MR.REG sets the range of the region: the library could use it instead of the write command",
        ),
        // The kernel's efa driver sets the length by itself.
        (8192, 0) if device() == Device::Efa => Ok(()),
        range => same(
            range,
            (0, 0),
            "length and I/O virtual address of the kernel's region",
        ),
    }
}
