//! The table of symbols of `libibverbs.so.1` beside what the header declares (`verbs_h.txt`).

use std::fs;

use checks::workspace;

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
