//! `libibverbs.so.1` for C programs: the functions of `uverbs::c` under their versioned names.
//!
//! `symbols.txt` lists the names, and the build script makes the lines from it that are included here. Nothing
//! else is in this package.

/// Exports a function under a name with a version: by a symbol of its own, which jumps there. A symbol can
/// have one versioned name only, and a function many.
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

// `verbs_allow_disassociate_destroy`, a `bool` that providers import.
core::arch::global_asm!(
    ".section .bss.abi,\"aw\",@nobits",
    ".globl __uverbs_allow_disassociate_destroy",
    ".type __uverbs_allow_disassociate_destroy,@object",
    "__uverbs_allow_disassociate_destroy: .zero 1",
    ".size __uverbs_allow_disassociate_destroy, 1",
    ".symver __uverbs_allow_disassociate_destroy, verbs_allow_disassociate_destroy@IBVERBS_PRIVATE_34",
    ".text",
);

include!(concat!(env!("OUT_DIR"), "/symbols.rs"));
