//! Exports what `symbols.txt` lists: the linker's script, the lines of `symbols.rs`, and the library's name;
//! and links it to libibverbs.

#[path = "../../library/versions.rs"]
mod versions;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// The table of the library that this one calls.
const VERBS: &str = "../../library/symbols.txt";

fn main() {
    for file in [VERBS, "../../library/versions.rs"] {
        println!("cargo::rerun-if-changed={file}");
    }
    let out = versions::export("uverbs::c::rdmacm", "librdmacm.so.1");
    let verbs = stand_in(&out);
    println!("cargo::rustc-cdylib-link-arg={}", verbs.display());
}

/// A library with the names and versions of libibverbs and nothing in it: the linker has to know the versions
/// of the symbols that this library leaves to libibverbs, and cargo does not build one shared library before
/// another.
fn stand_in(out: &Path) -> PathBuf {
    let table = fs::read_to_string(VERBS).expect("libibverbs has a table");
    let mut symbols = versions::parse(&table);
    symbols.retain(|symbol| symbol.function.is_some());
    let mut source =
        "#![no_std]\n#[panic_handler]\nfn panic(_: &core::panic::PanicInfo<'_>) -> ! { loop {} }\n"
            .to_owned();
    for (number, name) in versions::versioned(&symbols).iter().enumerate() {
        writeln!(
            source,
            "core::arch::global_asm!(\".globl s{number}\", \".type s{number},@function\", \"s{number}: .byte 0\", \
             \".symver s{number}, {name}\");"
        )
        .unwrap();
    }
    let file = out.join("libibverbs.rs");
    fs::write(&file, source).expect("the directory is writable");
    let script = versions::write_script(&symbols, &out.join("libibverbs.map"));
    let library = out.join("libibverbs.so");
    let mut rustc = Command::new(env::var_os("RUSTC").expect("cargo names the compiler"));
    rustc
        .args([
            "--crate-type",
            "cdylib",
            "--crate-name",
            "ibverbs",
            "--edition",
            "2024",
        ])
        .args(["-C", "panic=abort", "-C", "link-arg=-nostdlib"])
        .args(["-C", "link-arg=-Wl,-soname,libibverbs.so.1", "-C"])
        .arg(format!("link-arg={script}"))
        .args([
            "--target",
            &env::var("TARGET").expect("cargo names the target"),
        ])
        .arg("-o")
        .arg(&library)
        .arg(&file);
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        rustc
            .arg("-C")
            .arg(format!("linker={}", linker.to_string_lossy()));
    }
    let done = rustc.status().expect("the compiler runs");
    assert!(done.success(), "the stand-in for libibverbs: {done}");
    library
}
