//! How wide comments are, and the text of documents: a reader has two files side by side.

use std::fs;
use std::path::PathBuf;

use checks::{sources, workspace};

/// Columns of a comment at most. Code is kept narrower by rustfmt.
const WIDEST: usize = 110;

/// Columns of a line of a document at most.
const WIDEST_TEXT: usize = 120;

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

/// The numbers of lines of Markdown that are too wide. Tables and code are as wide as they must be, and a
/// single word, such as a link, cannot be broken.
fn too_wide_text(text: &str) -> Vec<usize> {
    let mut in_code = false;
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let words = line.trim_start();
        if words.starts_with("```") {
            in_code = !in_code;
        } else if !in_code
            && !words.starts_with('|')
            && words.contains(' ')
            && line.chars().count() > WIDEST_TEXT
        {
            found.push(number);
        }
    }
    found
}

/// The documents of the workspace's own folder and of `docs`.
fn documents() -> Vec<PathBuf> {
    let folders = [workspace(), workspace().join("docs")];
    let files = folders
        .iter()
        .flat_map(|folder| fs::read_dir(folder).unwrap());
    files
        .map(|file| file.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .collect()
}

#[test]
fn the_text_of_documents_fits() {
    let mut all = Vec::new();
    for path in documents() {
        let lines = too_wide_text(&fs::read_to_string(&path).unwrap());
        let name = path.file_name().unwrap_or_default().display();
        all.extend(lines.iter().map(|line| format!("{name}:{line}")));
    }
    assert!(all.is_empty(), "wider than {WIDEST_TEXT} columns: {all:#?}");
}

#[test]
fn only_text_is_measured() {
    let wide = "x".repeat(WIDEST_TEXT);
    assert_eq!(too_wide_text(&format!("a {wide}\n- a {wide}")), [1, 2]);
    assert_eq!(
        too_wide_text(&format!("{wide}xx\n| a {wide} |\n```\na {wide}\n```")),
        []
    );
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
