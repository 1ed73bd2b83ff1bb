//! Exports the symbols in `symbols.txt`: makes the linker's script, the lines of `symbols.rs`, and the
//! library's name.

// Only the other libraries use all of it.
#[allow(dead_code)]
mod versions;

fn main() {
    println!("cargo::rerun-if-changed=versions.rs");
    versions::export("uverbs::c", "libibverbs.so.1");
}
