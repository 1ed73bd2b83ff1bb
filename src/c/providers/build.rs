//! Exports the symbols in a library's `symbols.txt`, and links it to libibverbs, which has the functions.

#[path = "../library/versions.rs"]
mod versions;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::{env, fs};

/// The module of the functions in `lib.rs`.
const VERBS: &str = "verbs";

fn main() {
    let package = env::var("CARGO_PKG_NAME").expect("cargo names the package");
    let name = package.trim_start_matches("uverbs-");
    let out = versions::export(VERBS, &format!("lib{name}.so.1"));
    let table = fs::read_to_string(versions::TABLE).expect("each library has a table");
    let symbols = versions::parse(&table);
    let functions: BTreeSet<&str> = symbols
        .iter()
        .filter_map(|symbol| symbol.function)
        .collect();
    let mut lines = "unsafe extern \"C\" {\n".to_owned();
    for function in functions {
        // The arguments of the functions are a matter between the program and libibverbs.
        writeln!(
            lines,
            "#[link_name = \"uverbs_{function}\"] pub(crate) fn {function}();"
        )
        .unwrap();
    }
    lines.push_str("}\n");
    fs::write(out.join("verbs.rs"), lines).expect("the directory is writable");
    versions::link_to_verbs(&out);
}
