//! `libibverbs.so.1` for C programs: the functions of `uverbs::c` under their versioned names.
//!
//! `symbols.txt` lists the names, and the build script makes the lines from it that are included here.
//! Nothing else is in this package.

#[macro_use]
mod versioned;

/// Exports a `bool` that is false, which providers import: `verbs_allow_disassociate_destroy`.
macro_rules! byte {
    ($label:literal, $name:literal) => {
        core::arch::global_asm!(
            ".section .bss.abi,\"aw\",@nobits",
            concat!(".globl ", $label),
            concat!(".type ", $label, ",@object"),
            concat!($label, ": .zero 1"),
            concat!(".size ", $label, ", 1"),
            concat!(".symver ", $label, ", ", $name),
            ".text",
        );
    };
}

include!(concat!(env!("OUT_DIR"), "/symbols.rs"));
