//! What a program must know of Linux to run without any library: where it begins, and how it asks.

#[cfg_attr(target_arch = "x86_64", path = "linux/x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "linux/aarch64.rs")]
mod machine;

use machine::{call, system};

extern "C" fn begin() -> ! {
    exit(crate::run())
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    exit(101)
}

fn exit(status: i32) -> ! {
    loop {
        // SAFETY: nothing comes after it.
        unsafe { system(call::EXIT, [status as usize, 0, 0, 0, 0, 0]) };
    }
}

/// Fills the bytes from a file.
pub fn read_all(file: u32, mut bytes: &mut [u8]) -> Option<()> {
    while !bytes.is_empty() {
        let (at, length) = (bytes.as_mut_ptr() as usize, bytes.len());
        // SAFETY: the bytes are this function's to write.
        let read = unsafe { system(call::READ, [file as usize, at, length, 0, 0, 0]) };
        let read = usize::try_from(read).ok().filter(|read| *read > 0)?;
        bytes = bytes.get_mut(read..)?;
    }
    Some(())
}

/// Writes a few bytes to a file at once.
pub fn write(file: u32, bytes: &[u8]) -> Option<()> {
    let (at, length) = (bytes.as_ptr() as usize, bytes.len());
    // SAFETY: the kernel only reads the bytes.
    let written = unsafe { system(call::WRITE, [file as usize, at, length, 0, 0, 0]) };
    (written == length as isize).then_some(())
}

/// Maps a part of a file for reading and writing, as long as the program runs.
pub fn map(file: u32, offset: u64, length: usize) -> Option<*mut u8> {
    const READ_WRITE: usize = 1 | 2;
    const SHARED: usize = 1;
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
    let base = unsafe {
        system(
            call::MMAP,
            [
                0,
                length,
                READ_WRITE,
                SHARED,
                file as usize,
                offset as usize,
            ],
        )
    };
    (base > 0).then_some(base as *mut u8)
}
