//! The tables of symbols of the libraries for C programs beside what headers declare (`verbs_h.txt`, and
//! `direct_h.txt` for direct verbs), and beside what rdma-core's libraries export (`exports.txt`).

use std::collections::BTreeSet;
use std::fs;

use checks::workspace;

#[path = "../../../src/c/library/versions.rs"]
#[allow(dead_code, reason = "the build scripts use the rest")]
mod versions;

/// The libraries, with their tables.
const TABLES: [(&str, &str); 6] = [
    ("libibverbs.so.1", VERBS),
    ("librdmacm.so.1", "src/c/rdmacm/library/symbols.txt"),
    ("libmlx5.so.1", "src/c/providers/mlx5/symbols.txt"),
    ("libefa.so.1", "src/c/providers/efa/symbols.txt"),
    ("libmana.so.1", "src/c/providers/mana/symbols.txt"),
    ("libhns.so.1", "src/c/providers/hns/symbols.txt"),
];

const VERBS: &str = "src/c/library/symbols.txt";

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
        "nothing" => &["missing", "ignored"],
        "no" => &["no"],
        // Of the versions of 2006 alone.
        "value" => &["missing", "missing_object"],
        other => panic!("{other} is no way to fail"),
    }
}

#[test]
fn what_is_declared_is_there_and_fails_as_it_should() {
    let read = |path: &str| fs::read_to_string(workspace().join(path)).unwrap();
    let verbs = read("tests/checks/verbs_h.txt");
    fail_as_declared(&verbs, &read(VERBS));
    let direct = read("tests/checks/direct_h.txt");
    let direct_tables = TABLES
        .iter()
        .filter(|(_, table)| table.contains("providers"));
    let tables: String = direct_tables.map(|(_, table)| read(table)).collect();
    fail_as_declared(&direct, &tables);
}

fn fail_as_declared(declared: &str, symbols: &str) {
    for (name, fails_by) in lines(declared, " ") {
        let mut functions = lines(symbols, "=").filter(|(symbol, _)| *symbol == name);
        let (_, first) = functions
            .next()
            .unwrap_or_else(|| panic!("{name} is in no table"));
        let functions = functions.map(|(_, function)| function);
        for function in [first].into_iter().chain(functions) {
            let function = function.strip_prefix("missing::").unwrap_or(function);
            if function.starts_with("missing") || ["ignored", "no"].contains(&function) {
                let right = stand_ins(fails_by);
                assert!(
                    right.contains(&function),
                    "{name} is {function}, of {right:?}"
                );
            }
        }
    }
}

/// Catches a name that jumps to nothing: the library would not be linked.
#[test]
fn direct_verbs_lead_into_libibverbs() {
    let read = |path: &str| fs::read_to_string(workspace().join(path)).unwrap();
    let verbs = read(VERBS);
    let verbs = versions::parse(&verbs);
    for (soname, table) in TABLES
        .iter()
        .filter(|(_, table)| table.contains("providers"))
    {
        let table = read(table);
        for symbol in versions::parse(&table) {
            let wanted = format!("uverbs_{}", symbol.function.unwrap_or_default());
            let is_there =
                |own: &versions::Symbol<'_>| own.node == "UVERBS_1" && own.name == wanted;
            assert!(verbs.iter().any(is_there), "{soname}: no {wanted}");
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
