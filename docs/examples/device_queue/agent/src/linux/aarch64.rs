//! arm64: where a program begins, and how it asks the kernel.

use core::arch::{asm, global_asm};

// The kernel starts a program with its arguments on the stack, which is aligned already.
global_asm!(
    ".globl _start",
    "_start:",
    "mov x29, xzr",
    "mov x30, xzr",
    "bl {begin}",
    "brk 1",
    begin = sym super::begin,
);

/// What the compiler calls, and targets with an operating system leave to its libraries.
#[cfg(target_os = "linux")]
mod called {
    use core::arch::asm;

    /// The tables of `core` for unwinding name it; nothing unwinds.
    #[unsafe(no_mangle)]
    extern "C" fn rust_eh_personality() {}

    #[unsafe(no_mangle)]
    unsafe extern "C" fn memset(to: *mut u8, byte: i32, length: usize) -> *mut u8 {
        // SAFETY: whoever calls it gives so many bytes to be written.
        unsafe {
            asm!(
                "2:", "cbz {left}, 3f",
                "strb {byte:w}, [{at}], #1",
                "sub {left}, {left}, #1",
                "b 2b", "3:",
                left = inout(reg) length => _, at = inout(reg) to => _, byte = in(reg) byte,
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
                "2:", "cbz {left}, 3f",
                "ldrb {byte:w}, [{from}], #1",
                "strb {byte:w}, [{at}], #1",
                "sub {left}, {left}, #1",
                "b 2b", "3:",
                left = inout(reg) length => _, from = inout(reg) from => _, at = inout(reg) to => _,
                byte = out(reg) _,
                options(nostack, preserves_flags),
            );
        }
        to
    }
}

/// Numbers of system calls (`asm-generic/unistd.h`).
pub(super) mod call {
    pub const READ: usize = 63;
    pub const WRITE: usize = 64;
    pub const MMAP: usize = 222;
    pub const EXIT: usize = 93;
}

/// Calls the kernel. Small negative numbers are errors.
///
/// # Safety
///
/// As for the system call.
pub(super) unsafe fn system(number: usize, arguments: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = arguments;
    let answer: isize;
    // SAFETY: by this function's contract; the kernel changes this register and no others.
    unsafe {
        asm!(
            "svc 0",
            inlateout("x0") a => answer,
            in("x8") number,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack),
        );
    }
    answer
}
