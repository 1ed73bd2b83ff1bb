//! Makes the linker's script and the lines of `symbols.rs` from `symbols.txt`, and names the library.

mod versions;

use std::path::PathBuf;
use std::{env, fs};

const TABLE: &str = "symbols.txt";

fn main() {
    for file in [TABLE, "build.rs", "versions.rs"] {
        println!("cargo::rerun-if-changed={file}");
    }
    let table = fs::read_to_string(TABLE).expect("symbols.txt is beside this file");
    let symbols = versions::parse(&table);
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo names a directory"));
    let script = out.join("libibverbs.map");
    fs::write(&script, versions::script(&symbols)).expect("the directory is writable");
    let lines = versions::lines(&symbols, "uverbs::c");
    fs::write(out.join("symbols.rs"), lines).expect("the directory is writable");
    let script = format!("-Wl,--version-script={}", script.display());
    for argument in [&script, "-Wl,-soname,libibverbs.so.1", "-Wl,-z,nodelete"] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
}
