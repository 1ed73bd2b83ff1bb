//! `libmlx5.so.1`, `libefa.so.1`, `libmana.so.1` and `libhns.so.1` for C programs: names with versions, which
//! jump to functions of this project's libibverbs. So one directory can replace the distribution's libraries,
//! whose providers would find none of their devices here.
//!
//! Each is a package of its own with a table `symbols.txt`, from which the build script makes the lines that
//! are included here. They contain nothing else, not even the standard library, which a library can omit only
//! if panics end the process, as in the profile `c-abi`.

#![cfg_attr(panic = "abort", no_std)]

#[macro_use]
#[path = "../library/src/versioned.rs"]
mod versioned;

/// The functions of libibverbs.
mod verbs {
    include!(concat!(env!("OUT_DIR"), "/verbs.rs"));
}

include!(concat!(env!("OUT_DIR"), "/symbols.rs"));

/// Nothing here panics.
#[cfg(panic = "abort")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
