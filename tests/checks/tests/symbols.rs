//! The tables of symbols of the libraries for C programs beside what the header declares (`verbs_h.txt`), and
//! beside what rdma-core's libraries export (`exports.txt`).

use std::collections::BTreeSet;
use std::fs;

use checks::workspace;

#[path = "../../../src/c/library/versions.rs"]
#[allow(dead_code, reason = "the build scripts use the rest")]
mod versions;

/// The libraries, with their tables.
const TABLES: [(&str, &str); 2] = [
    ("libibverbs.so.1", "src/c/library/symbols.txt"),
    ("librdmacm.so.1", "src/c/rdmacm/library/symbols.txt"),
];

/// The lines of a table: a name, and what stands behind it.
fn lines<'a>(table: &'a str, between: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let lines = table.lines().filter(|line| !line.starts_with('#'));
    lines.map(move |line| {
        let (name, behind) = line.split_once(between).unwrap_or((line, ""));
        (name.trim(), behind.trim())
    })
}

/// The functions that may stand for a name which is missing and fails so.
fn stand_ins(fails_by: &str) -> &[&str] {
    match fails_by {
        "errno" => &["missing"],
        "-1" => &["missing_number", "missing_size"],
        "object" => &["missing_object"],
        "nothing" => &["missing"],
        // Of the versions of 2006 alone.
        "value" => &["missing", "missing_object"],
        other => panic!("{other} is no way to fail"),
    }
}

#[test]
fn what_is_declared_is_there_and_fails_as_it_should() {
    let read = |path: &str| fs::read_to_string(workspace().join(path)).unwrap();
    let declared = read("tests/checks/verbs_h.txt");
    let symbols = read("src/c/library/symbols.txt");
    for (name, fails_by) in lines(&declared, " ") {
        let mut functions = lines(&symbols, "=").filter(|(symbol, _)| *symbol == name);
        let (_, first) = functions
            .next()
            .unwrap_or_else(|| panic!("{name} is not in symbols.txt"));
        for function in [first]
            .into_iter()
            .chain(functions.map(|(_, function)| function))
        {
            if let Some(stand_in) = function.strip_prefix("missing::") {
                let right = stand_ins(fails_by);
                assert!(
                    right.contains(&stand_in),
                    "{name} is {stand_in}, of {right:?}"
                );
            }
        }
    }
}

/// Catches a name or a version of rdma-core's that a program may be linked to and that is not here, and data
/// that is a function here.
#[test]
fn what_is_exported_elsewhere_is_exported_here() {
    let read = |path: &str| fs::read_to_string(workspace().join(path)).unwrap();
    let exports = read("tests/checks/exports.txt");
    for (soname, table) in TABLES {
        let table = read(table);
        let ours: BTreeSet<String> = versions::parse(&table).iter().map(told).collect();
        let listed = exports_of(&exports, soname);
        let theirs: BTreeSet<String> = versions::parse(&listed).iter().map(told).collect();
        assert!(theirs.len() > 1, "exports.txt has nothing of {soname}");
        let missing: Vec<&String> = theirs.difference(&ours).collect();
        assert!(missing.is_empty(), "{soname} lacks {missing:?}");
    }
}

/// The nodes and names of a library in `exports.txt`, in the form of a table.
fn exports_of(exports: &str, soname: &str) -> String {
    let lines = exports.lines().skip_while(|line| *line != soname).skip(1);
    let of_library = lines.take_while(|line| line.is_empty() || line.starts_with(' '));
    of_library
        .filter_map(|line| Some(format!("{}\n", line.strip_prefix("    ")?)))
        .collect()
}

fn told(symbol: &versions::Symbol<'_>) -> String {
    let kind = if symbol.function.is_some() {
        "function"
    } else {
        "data"
    };
    format!("{}@{}, a {kind}", symbol.name, symbol.node)
}
