//! How wide comments are: a reader has two files side by side.

use std::fs;

use checks::{sources, workspace};

/// Columns of a comment at most. Code is kept narrower by rustfmt.
const WIDEST: usize = 110;

/// The folders whose comments are measured.
const FOLDERS: [&str; 5] = ["src", "uapi", "tests", "benches", "docs"];

/// The numbers of lines that are comments and too wide. Code in documentation is as wide as it must be.
fn too_wide(text: &str) -> Vec<usize> {
    let mut in_code = false;
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let Some(comment) = line.trim_start().strip_prefix("//") else {
            in_code = false;
            continue;
        };
        let words = comment.trim_start_matches(['/', '!', ' ']);
        if words.starts_with("```") {
            in_code = !in_code;
        } else if !in_code && !words.starts_with('|') && line.chars().count() > WIDEST {
            found.push(number);
        }
    }
    found
}

#[test]
fn comments_fit() {
    let root = workspace();
    let mut all = Vec::new();
    for path in FOLDERS
        .iter()
        .flat_map(|folder| sources(&root.join(folder)).unwrap())
    {
        let lines = too_wide(&fs::read_to_string(&path).unwrap());
        let path = path.strip_prefix(&root).unwrap().display();
        all.extend(lines.iter().map(|line| format!("{path}:{line}")));
    }
    assert!(all.is_empty(), "wider than {WIDEST} columns: {all:#?}");
}

#[test]
fn code_and_tables_may_be_wider() {
    let wide = "x".repeat(WIDEST);
    assert_eq!(
        too_wide(&format!("/// {wide}\n    // {wide}\nlet y = {wide};")),
        [1, 2]
    );
    assert_eq!(
        too_wide(&format!("/// ```\n/// {wide}\n/// ```\n/// | {wide} |")),
        []
    );
    assert_eq!(too_wide(&format!("//! ```\nfn f() {{}}\n// {wide}")), [3]);
}
