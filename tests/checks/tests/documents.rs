//! That the documents are true where a program can tell: links lead somewhere, and the path through the code
//! that docs/architecture.md describes exists.

use std::fs;
use std::path::{Path, PathBuf};

use checks::{sources, workspace};

/// The documents: those at the root, and all of docs/.
fn documents() -> Vec<PathBuf> {
    let root = workspace();
    let folders = [root.clone(), root.join("docs")];
    let files = folders
        .iter()
        .flat_map(|folder| fs::read_dir(folder).unwrap());
    let paths = files.map(|file| file.unwrap().path());
    paths
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .collect()
}

/// The targets of a document's links, `[text](target)`, without those in blocks of code.
fn links(text: &str) -> Vec<&str> {
    let outside = text.split("```").step_by(2);
    let starts = outside.flat_map(|part| part.split("](").skip(1));
    starts
        .filter_map(|rest| Some(rest.split_once(')')?.0))
        .collect()
}

/// Catches a link to a file that was moved or renamed.
#[test]
fn links_lead_to_files() {
    let mut broken = Vec::new();
    for path in documents() {
        let text = fs::read_to_string(&path).unwrap();
        for link in links(&text) {
            let file = link.split('#').next().unwrap_or_default();
            let is_local = !file.is_empty() && !file.contains("://");
            if is_local && !path.parent().unwrap().join(file).exists() {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// Catches a link in the guide that works in the repository and is broken in the crate's documentation, which
/// shows the guide without the other documents.
#[test]
fn the_guide_stands_alone() {
    let text = fs::read_to_string(workspace().join("docs/guide.md")).unwrap();
    let links = links(&text);
    let away = links
        .iter()
        .filter(|link| !link.starts_with('#') && !link.contains("://"));
    assert_eq!(away.collect::<Vec<_>>(), Vec::<&&str>::new());
}

/// The glossary is a page.
#[test]
fn the_glossary_is_short() {
    let text = fs::read_to_string(workspace().join("docs/glossary.md")).unwrap();
    let lines = text.lines().count();
    assert!(lines <= 60, "{lines} lines are more than a page");
}

/// The pairs `(item, file)` of a text, each written as `` `Type::function` (`path/file.rs` ``.
fn named(text: &str) -> Vec<(String, String)> {
    let words: Vec<&str> = text.split('`').collect();
    let of_three = words.windows(3).skip(1).step_by(2);
    let pairs = of_three.filter(|three| three[1].trim() == "(" && three[2].ends_with(".rs"));
    pairs
        .map(|three| (three[0].to_owned(), three[2].to_owned()))
        .collect()
}

/// Whether a file defines a function or type of this name; the path may be any end of the file's.
fn defines(files: &[PathBuf], file: &str, item: &str) -> bool {
    let name = item.rsplit("::").next().unwrap_or(item);
    let is_defined = |text: &str, keyword: &str| {
        let start = format!("{keyword} {name}");
        let mut rest = text.split(&start[..]).skip(1);
        rest.any(|rest| rest.starts_with(|next: char| !next.is_alphanumeric() && next != '_'))
    };
    let is_there = |path: &Path| {
        let text = fs::read_to_string(path).unwrap();
        ["fn", "struct", "enum", "trait", "type"]
            .iter()
            .any(|keyword| is_defined(&text, keyword))
    };
    files
        .iter()
        .any(|path| path.ends_with(file) && is_there(path))
}

/// Catches a step of docs/architecture.md whose function was renamed, moved or removed.
#[test]
fn the_paths_through_the_code_exist() {
    let text = fs::read_to_string(workspace().join("docs/architecture.md")).unwrap();
    let files = sources(&workspace().join("src")).unwrap();
    let steps = named(&text);
    assert!(steps.len() >= 8, "only {} steps are named", steps.len());
    let missing: Vec<_> = steps
        .iter()
        .filter(|(item, file)| !defines(&files, file, item))
        .collect();
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn steps_are_found() {
    let text = "1. `Batch::write` (`qp/send.rs`) and a `word`, then `ring` (`a.rs`, `b.rs`).";
    let pair = |item: &str, file: &str| (item.to_owned(), file.to_owned());
    assert_eq!(
        named(text),
        [pair("Batch::write", "qp/send.rs"), pair("ring", "a.rs")]
    );
}
