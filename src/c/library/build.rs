//! Makes the linker's script and the lines of `symbols.rs` from `symbols.txt`, and names the library.
//!
//! rustc gives every cdylib a script without nodes, which ends with `local: *`. A second script with nodes
//! beside it works with lld, the linker that stable Rust has by default on x86-64; GNU ld refuses the pair.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::{env, fs};

const TABLE: &str = "symbols.txt";

/// A line of the table: a name of a node, and the function in `uverbs::c` that has it.
struct Symbol<'a> {
    node: &'a str,
    name: &'a str,
    /// None for data, which has its lines in `lib.rs`.
    function: Option<&'a str>,
}

fn main() {
    println!("cargo::rerun-if-changed={TABLE}");
    println!("cargo::rerun-if-changed=build.rs");
    let table = fs::read_to_string(TABLE).expect("symbols.txt is beside this file");
    let symbols = parse(&table);
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo names a directory"));
    let script = out.join("libibverbs.map");
    fs::write(&script, version_script(&symbols)).expect("the directory is writable");
    fs::write(out.join("symbols.rs"), lines(&symbols)).expect("the directory is writable");
    let script = format!("-Wl,--version-script={}", script.display());
    for argument in [&script, "-Wl,-soname,libibverbs.so.1", "-Wl,-z,nodelete"] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
}

/// A line that is not indented names a node, and an indented one a symbol of it, with `= function` if the
/// function has another name.
fn parse(table: &str) -> Vec<Symbol<'_>> {
    let mut node = "";
    let mut symbols = Vec::new();
    for line in table.lines() {
        let line = line.split('#').next().unwrap_or_default();
        let (name, function) = line.split_once('=').unwrap_or((line, line));
        let (indented, name, function) = (line.starts_with(' '), name.trim(), function.trim());
        match (indented, name) {
            (_, "") => {}
            (false, _) => node = name,
            (true, _) => symbols.push(Symbol {
                node,
                name,
                function: (function != "data").then_some(function),
            }),
        }
    }
    symbols
}

/// The nodes in the table's order, each with the public one before it as its parent.
fn version_script(symbols: &[Symbol<'_>]) -> String {
    let mut script = String::new();
    let mut parent = None;
    for of_node in symbols.chunk_by(|a, b| a.node == b.node) {
        let node = of_node[0].node;
        writeln!(script, "{node} {{ global:").unwrap();
        for symbol in of_node {
            writeln!(script, "  {};", symbol.name).unwrap();
        }
        match parent {
            Some(parent) => writeln!(script, "}} {parent};").unwrap(),
            None => writeln!(script, "}};").unwrap(),
        }
        parent = Some(node);
    }
    script
}

/// One line for each symbol. The last public node that has a name is the one that programs are linked to.
fn lines(symbols: &[Symbol<'_>]) -> String {
    let mut default = BTreeMap::new();
    for symbol in symbols.iter().filter(|symbol| !is_private(symbol.node)) {
        default.insert(symbol.name, symbol.node);
    }
    let mut lines = String::new();
    for (number, symbol) in symbols.iter().enumerate() {
        let Symbol { node, name, .. } = symbol;
        let Some(function) = symbol.function else {
            continue;
        };
        let at = match default.get(name) {
            Some(last) if last == node => "@@",
            _ => "@",
        };
        writeln!(
            lines,
            "versioned!(\"__uverbs_{number}\", \"{name}{at}{node}\", uverbs::c::{function});"
        )
        .unwrap();
    }
    lines
}

fn is_private(node: &str) -> bool {
    node.contains("PRIVATE")
}
