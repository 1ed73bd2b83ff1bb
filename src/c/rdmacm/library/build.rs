//! Exports the symbols in `symbols.txt`: makes the linker's script, the lines of `symbols.rs`, and the
//! library's name, and links the library to libibverbs.

#[path = "../../library/versions.rs"]
mod versions;

fn main() {
    let out = versions::export("uverbs::c::rdmacm", "librdmacm.so.1");
    versions::link_to_verbs(&out);
}
