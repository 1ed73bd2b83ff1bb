//! Reads a table of symbols (`symbols.txt`), for the build scripts of the libraries.
//!
//! rustc gives every cdylib a script without nodes, which ends with `local: *`. A second script with nodes
//! works together with it in lld, the linker that stable Rust has by default on x86-64; GNU ld refuses the
//! pair.

use std::collections::BTreeMap;
use std::env;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The table of a library, from its directory.
pub(crate) const TABLE: &str = "symbols.txt";

/// The table of libibverbs and this file, from the directories of the other libraries.
const VERBS: [&str; 2] = ["../../library/symbols.txt", "../../library/versions.rs"];

/// A line of the table: a name of a node, and its function.
pub(crate) struct Symbol<'a> {
    pub(crate) node: &'a str,
    pub(crate) name: &'a str,
    /// `None` for data.
    pub(crate) function: Option<&'a str>,
}

/// A line that is not indented names a node, or several that have the same symbols; an indented one is a
/// symbol, with `= function` if the function has another name.
pub(crate) fn parse(table: &str) -> Vec<Symbol<'_>> {
    let lines = table
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default());
    let lines: Vec<&str> = lines.filter(|line| !line.trim().is_empty()).collect();
    let mut symbols = Vec::new();
    // Each heading with the lines below it.
    for of_heading in lines.chunk_by(|_, next| next.starts_with(' ')) {
        let [heading, names @ ..] = of_heading else {
            continue;
        };
        for node in heading.split_whitespace() {
            symbols.extend(names.iter().map(|line| symbol(node, line)));
        }
    }
    symbols
}

fn symbol<'a>(node: &'a str, line: &'a str) -> Symbol<'a> {
    let (name, function) = line.split_once('=').unwrap_or((line, line));
    let function = function.trim();
    Symbol {
        node,
        name: name.trim(),
        function: (function != "data").then_some(function),
    }
}

/// Exports the functions of a module under the names in the table `symbols.txt` next to the build script,
/// from a library of this name. Returns the directory for the script's other files.
pub(crate) fn export(module: &str, soname: &str) -> PathBuf {
    let table = fs::read_to_string(TABLE).expect("symbols.txt is beside the build script");
    let symbols = parse(&table);
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo names a directory"));
    fs::write(out.join("symbols.rs"), lines(&symbols, module)).expect("the directory is writable");
    println!("cargo::rerun-if-changed={TABLE}");
    for argument in [
        write_script(&symbols, &out.join("symbols.map")),
        format!("-Wl,-soname,{soname}"),
        "-Wl,-z,nodelete".to_owned(),
    ] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
    out
}

/// Links a library to libibverbs, some of whose functions it calls.
pub(crate) fn link_to_verbs(out: &Path) {
    for file in VERBS {
        println!("cargo::rerun-if-changed={file}");
    }
    let verbs = stand_in(out);
    println!("cargo::rustc-cdylib-link-arg={}", verbs.display());
}

/// A library with the names and versions of libibverbs and no content: the linker needs the versions of the
/// symbols that this library takes from libibverbs, and cargo does not build one shared library before
/// another.
fn stand_in(out: &Path) -> PathBuf {
    let table = fs::read_to_string(VERBS[0]).expect("libibverbs has a table");
    let mut symbols = parse(&table);
    symbols.retain(|symbol| symbol.function.is_some());
    let mut source =
        "#![no_std]\n#[panic_handler]\nfn panic(_: &core::panic::PanicInfo<'_>) -> ! { loop {} }\n"
            .to_owned();
    for (number, name) in versioned(&symbols).iter().enumerate() {
        writeln!(
            source,
            "core::arch::global_asm!(\".globl s{number}\", \".type s{number},@function\", \"s{number}: .byte 0\", \
             \".symver s{number}, {name}\");"
        )
        .unwrap();
    }
    let file = out.join("libibverbs.rs");
    fs::write(&file, source).expect("the directory is writable");
    let script = write_script(&symbols, &out.join("libibverbs.map"));
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

/// Writes the linker's script, and returns the linker's argument for it.
fn write_script(symbols: &[Symbol<'_>], to: &Path) -> String {
    fs::write(to, script(symbols)).expect("the directory is writable");
    format!("-Wl,--version-script={}", to.display())
}

/// The nodes in the table's order, each with the one before it as its parent.
fn script(symbols: &[Symbol<'_>]) -> String {
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

/// The lines that export the functions of a module, and data.
fn lines(symbols: &[Symbol<'_>], module: &str) -> String {
    let mut lines = String::new();
    for (number, (symbol, versioned)) in symbols.iter().zip(versioned(symbols)).enumerate() {
        let of = format!("\"__uverbs_{number}\", \"{versioned}\"");
        match symbol.function {
            Some(function) => writeln!(lines, "versioned!({of}, {module}::{function});"),
            None => writeln!(lines, "byte!({of});"),
        }
        .unwrap();
    }
    lines
}

/// The names with their versions. Programs are linked to the last public node that has a name, and dlsym(3)
/// finds that one; for a name with private nodes only it is the last of these.
fn versioned(symbols: &[Symbol<'_>]) -> Vec<String> {
    let mut default = BTreeMap::new();
    let (private, public) = symbols
        .iter()
        .partition::<Vec<_>, _>(|symbol| is_private(symbol.node));
    for symbol in private.into_iter().chain(public) {
        default.insert(symbol.name, symbol.node);
    }
    let names = symbols.iter().map(|Symbol { node, name, .. }| {
        let at = match default.get(name) {
            Some(last) if last == node => "@@",
            _ => "@",
        };
        format!("{name}{at}{node}")
    });
    names.collect()
}

fn is_private(node: &str) -> bool {
    node.contains("PRIVATE")
}
