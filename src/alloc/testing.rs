//! What the tests of the allocators share: requests, the memory contract, and children that may die.

use std::collections::BTreeSet;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::param::page_size;
use rustix::process::Signal;
use uverbs_uapi::handle::PdHandle;

use super::{Allocation, Allocator, BufferRequest, Purpose, ResourceType};
use crate::device::DriverId;

/// A request for memory that the device itself uses.
pub(super) fn memory(size: usize, alignment: usize) -> BufferRequest {
    BufferRequest {
        size,
        alignment,
        resource: ResourceType::new(DriverId(77), 1),
        purpose: Purpose::Memory,
        pd: PdHandle(0),
        domain: 1,
        dmabuf: false,
        unmapped: None,
    }
}

/// A request for a place to map a ring over.
pub(super) fn place(size: usize) -> BufferRequest {
    BufferRequest {
        resource: ResourceType::new(DriverId(77), 2),
        purpose: Purpose::Place,
        ..memory(size, page_size())
    }
}

/// Memory from an allocator that must not refuse.
pub(super) fn granted(allocator: &impl Allocator, request: &BufferRequest) -> NonNull<[u8]> {
    match allocator.allocate(request) {
        Ok(Allocation::Memory(memory)) => memory,
        other => panic!("{other:?} for {request:?}"),
    }
}

/// Gives a buffer of [`granted`] back.
pub(super) fn give_back(
    allocator: &impl Allocator,
    buffer: NonNull<[u8]>,
    request: &BufferRequest,
) {
    // SAFETY: tests give back what they were granted, once, and do not use it afterwards.
    unsafe { allocator.free(buffer, request) };
}

/// The bytes of a buffer that only the test uses.
pub(super) fn bytes<'a>(buffer: NonNull<[u8]>) -> &'a mut [u8] {
    let mut buffer = buffer;
    // SAFETY: the tests use buffers only between `allocate` and `free`, with one reference at a time.
    unsafe { buffer.as_mut() }
}

/// Does to a place what a driver does: maps over it, and leaves private zeroed pages.
pub(super) fn cover(buffer: NonNull<[u8]>) {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::FIXED;
    let address = buffer.cast::<u8>().as_ptr().cast();
    // SAFETY: the place was granted for this.
    unsafe { mmap_anonymous(address, buffer.len(), protection, flags) }.unwrap();
}

/// Checks those promises of `Allocator` that show from outside.
pub(super) fn keeps_the_contract(allocator: &impl Allocator) {
    let page = page_size();
    let mut seen = BTreeSet::new();
    for request in [
        memory(8, 8),
        memory(4096, 64),
        memory(100, 1 << 13),
        place(page),
        place(2 * page),
    ] {
        let Ok(Allocation::Memory(buffer)) = allocator.allocate(&request) else {
            assert_eq!(request.purpose, Purpose::Place, "{request:?} refused");
            continue;
        };
        let start = buffer.cast::<u8>().addr().get();
        assert_eq!(start % request.alignment, 0, "{request:?}");
        assert!(buffer.len() >= request.size, "{request:?}");
        assert!(seen.insert(start), "{request:?} got memory that is in use");
        if request.purpose == Purpose::Place {
            cover(buffer);
            bytes(buffer).fill(0xff);
            give_back(allocator, buffer, &request);
            seen.remove(&start);
            continue;
        }
        assert!(bytes(buffer).iter().all(|&byte| byte == 0), "{request:?}");
        assert!(survives_a_fork(start), "{request:?} is copied at a fork");
    }
}

/// Whether a page stays the device's after a fork: the flags of its mapping in /proc/self/smaps say whether
/// it is shared (`sh`) or not copied to children (`dc`). Otherwise the first process that writes after a fork
/// gets a copy, and the device keeps the original.
fn survives_a_fork(address: usize) -> bool {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut inside = false;
    for line in smaps.lines() {
        let range = line
            .split(' ')
            .next()
            .and_then(|range| range.split_once('-'));
        let range = range.and_then(|(start, end)| {
            Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
        });
        match (range, line.strip_prefix("VmFlags:")) {
            (Some(range), _) => inside = range.contains(&address),
            (None, Some(flags)) if inside => {
                return flags.split(' ').any(|flag| flag == "sh" || flag == "dc");
            }
            _ => {}
        }
    }
    panic!("{address:#x} is not mapped");
}

/// Runs `body` in a forked child, and panics if a signal ends it.
pub(super) fn in_child(body: impl FnOnce()) {
    assert_eq!(killed_by(body), None);
}

/// Runs `body` in a forked child, and returns the signal that ended it.
///
/// Other threads do not exist in the child, so `body` must not wait for a lock: it only touches memory and
/// compares.
pub(super) fn killed_by(body: impl FnOnce()) -> Option<Signal> {
    // SAFETY: the child runs `body`, which takes no locks, and leaves without running anything else.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: resets the standard library's handler, which would print a message about the stack, and
        // exits.
        unsafe {
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
            body();
            libc::_exit(0);
        }
    }
    let mut status = 0;
    // SAFETY: waits for the child that was just made; `status` receives how it ended.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    libc::WIFSIGNALED(status).then(|| Signal::from_named_raw(libc::WTERMSIG(status)).unwrap())
}
