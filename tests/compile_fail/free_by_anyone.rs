//! An allocator takes back what it gave out. Whoever says so of other memory makes it somebody else's.

use std::ptr::NonNull;

use uverbs::{alloc::{Allocator, BufferRequest, SharedMemfd}};

fn free(shared: &SharedMemfd, mine: &mut [u8], request: &BufferRequest) {
    shared.free(NonNull::from(mine), request);
}

fn main() {}
