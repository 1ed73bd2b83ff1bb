//! Unsafe code writes to memory that is said to be writable, so saying it is `unsafe`.

use uverbs::{mr::{Memory, WritableMemory}};

struct Constant(&'static [u8]);

// SAFETY: it is never moved nor dropped, and is registered for reading only.
unsafe impl Memory for Constant {
    const WRITABLE: bool = false;

    fn address(&mut self) -> *mut u8 {
        self.0.as_ptr().cast_mut()
    }

    fn length(&self) -> usize {
        self.0.len()
    }
}

impl WritableMemory for Constant {}

fn main() {}
