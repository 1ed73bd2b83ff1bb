//! The macro with which the lines of the build scripts export functions.

/// Exports a function under a name with a version: by a symbol of its own, which jumps to the function. A
/// symbol can have only one versioned name, and a function many.
macro_rules! versioned {
    ($label:literal, $name:literal, $function:path) => {
        core::arch::global_asm!(
            ".section .text.abi,\"ax\",@progbits",
            concat!(".globl ", $label),
            concat!(".type ", $label, ",@function"),
            concat!($label, ": ", jump!(), " {function}"),
            concat!(".size ", $label, ", . - ", $label),
            concat!(".symver ", $label, ", ", $name),
            ".text",
            function = sym $function,
        );
    };
}

/// The instruction that jumps.
#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp"
    };
}

/// The instruction that jumps.
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "b"
    };
}
