//! What a program must know of Linux on x86-64 to run without any library: where it begins, and how it asks.

use core::arch::{asm, global_asm};

// The kernel starts a program with its arguments on the stack, which is aligned for no call yet.
global_asm!(
    ".globl _start",
    "_start:",
    "xor ebp, ebp",
    "and rsp, -16",
    "call {begin}",
    "ud2",
    begin = sym begin,
);

extern "C" fn begin() -> ! {
    exit(crate::run())
}

/// What the compiler calls, and targets with an operating system leave to its libraries.
#[cfg(target_os = "linux")]
mod called {
    use core::arch::asm;

    /// The tables of `core` for unwinding name it; nothing unwinds.
    #[unsafe(no_mangle)]
    extern "C" fn rust_eh_personality() {}

    #[unsafe(no_mangle)]
    unsafe extern "C" fn memset(to: *mut u8, byte: i32, length: usize) -> *mut u8 {
        // SAFETY: whoever calls it gives so many bytes to be written. The direction is forwards, as the ABI
        // has it.
        unsafe {
            asm!(
                "rep stosb",
                inout("rcx") length => _, inout("rdi") to => _, in("al") byte as u8,
                options(nostack, preserves_flags),
            );
        }
        to
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, length: usize) -> *mut u8 {
        // SAFETY: as above, with as many bytes to be read, which are others.
        unsafe {
            asm!(
                "rep movsb",
                inout("rcx") length => _, inout("rdi") to => _, inout("rsi") from => _,
                options(nostack, preserves_flags),
            );
        }
        to
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    exit(101)
}

/// Numbers of system calls (`asm/unistd_64.h`).
mod call {
    pub const READ: usize = 0;
    pub const WRITE: usize = 1;
    pub const MMAP: usize = 9;
    pub const EXIT: usize = 60;
}

/// Calls the kernel. Small negative numbers are errors.
///
/// # Safety
///
/// As for the system call.
unsafe fn system(number: usize, arguments: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = arguments;
    let answer: isize;
    // SAFETY: by this function's contract; the kernel changes these registers and no others.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => answer,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    answer
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
