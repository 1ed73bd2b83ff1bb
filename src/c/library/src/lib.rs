//! `libibverbs.so.1` for C programs: the functions of `uverbs::c` under their versioned names.
//!
//! `symbols.txt` lists the names, and the build script makes the lines from it that are included here.
//! Nothing else is in this package.

#[macro_use]
mod versioned;

// `verbs_allow_disassociate_destroy`, a `bool` that providers import.
core::arch::global_asm!(
    ".section .bss.abi,\"aw\",@nobits",
    ".globl __uverbs_allow_disassociate_destroy",
    ".type __uverbs_allow_disassociate_destroy,@object",
    "__uverbs_allow_disassociate_destroy: .zero 1",
    ".size __uverbs_allow_disassociate_destroy, 1",
    ".symver __uverbs_allow_disassociate_destroy, verbs_allow_disassociate_destroy@@IBVERBS_PRIVATE_34",
    ".text",
);

include!(concat!(env!("OUT_DIR"), "/symbols.rs"));
