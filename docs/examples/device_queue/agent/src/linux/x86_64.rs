//! x86-64: where a program begins, and how it asks the kernel.

use core::arch::{asm, global_asm};

// The kernel starts a program with its arguments on the stack, which is aligned for no call yet.
global_asm!(
    ".globl _start",
    "_start:",
    "xor ebp, ebp",
    "and rsp, -16",
    "call {begin}",
    "ud2",
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

/// Numbers of system calls (`asm/unistd_64.h`).
pub(super) mod call {
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
pub(super) unsafe fn system(number: usize, arguments: [usize; 6]) -> isize {
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
