//! `librdmacm.so.1` for C programs: the functions of `uverbs::c::rdmacm` under their versioned names.
//!
//! `symbols.txt` lists the names, and the build script makes the lines from it that are included here.
//! Nothing else is in this package.

#[macro_use]
#[path = "../../../library/src/versioned.rs"]
mod versioned;

include!(concat!(env!("OUT_DIR"), "/symbols.rs"));
