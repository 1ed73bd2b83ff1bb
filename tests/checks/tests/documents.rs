//! That the documents are true where a program can tell: the path through the code that docs/architecture.md
//! describes exists, and names are those of the interface. That links lead somewhere is `docs/site`'s.

use std::fs;
use std::path::{Path, PathBuf};

use checks::{sources, workspace};

/// The targets of a document's links, `[text](target)`, without those in blocks of code.
fn links(text: &str) -> Vec<&str> {
    let outside = text.split("```").step_by(2);
    let starts = outside.flat_map(|part| part.split("](").skip(1));
    starts
        .filter_map(|rest| Some(rest.split_once(')')?.0))
        .collect()
}

/// Catches a link that works in the repository and is broken in the crate's documentation, which shows these
/// pages without the other documents.
#[test]
fn the_pages_of_the_crate_stand_alone() {
    for page in ["docs/guide.md", "docs/migration.md"] {
        let text = fs::read_to_string(workspace().join(page)).unwrap();
        let links = links(&text);
        let away = links
            .iter()
            .filter(|link| !link.starts_with('#') && !link.contains("://"));
        assert_eq!(away.collect::<Vec<_>>(), Vec::<&&str>::new(), "{page}");
    }
}

/// A line of the public interface's snapshot without what stands in `<>`, so that methods of `Qp<T, M>` begin
/// with `Qp::`.
fn without_generics(line: &str) -> String {
    let mut depth = 0;
    let mut before = ' ';
    let mut plain = String::new();
    for c in line.chars() {
        match c {
            '<' => depth += 1,
            '>' if before != '-' => depth -= 1,
            _ if depth == 0 => plain.push(c),
            _ => {}
        }
        before = c;
    }
    plain
}

/// What stands before each mention of an item, without mentions of items whose names are longer.
fn before_each<'t>(interface: &'t str, item: &str) -> Vec<&'t str> {
    let goes_on = |next: char| next.is_alphanumeric() || next == '_';
    let found = interface.match_indices(item);
    let whole = found.filter(|(at, item)| !interface[at + item.len()..].starts_with(goes_on));
    whole.map(|(at, _)| &interface[..at]).collect()
}

/// Whether the public interface has this item, at the crate's root or in one of the modules. `aio` has types
/// of its own by the names of others, so it must be named.
fn is_public(interface: &str, item: &str) -> bool {
    before_each(interface, item).iter().any(|before| {
        let path = before.strip_suffix("::").unwrap_or_default();
        let is_module = |name: &str| name.chars().all(|c| c.is_alphanumeric() || c == '_');
        let module = path.rsplit_once(" uverbs::").map(|(_, module)| module);
        path.ends_with(" uverbs") || module.is_some_and(|name| name != "aio" && is_module(name))
    })
}

/// The items in the last of the four columns of docs/migration.md's tables.
fn here(text: &str) -> Vec<&str> {
    let rows = text.lines().filter_map(|line| line.strip_prefix("| "));
    let cells =
        rows.filter_map(|row| Some(row.strip_suffix(" |")?.split(" | ").collect::<Vec<_>>()));
    let rows = cells.filter(|cells| cells[0] != "C");
    rows.flat_map(|cells| {
        assert_eq!(cells.len(), 4, "{cells:?}");
        cells[3].split('`').skip(1).step_by(2)
    })
    .collect()
}

/// Catches a name in docs/migration.md that the library does not have, or no longer.
#[test]
fn the_names_of_the_migration_table_exist() {
    let text = fs::read_to_string(workspace().join("docs/migration.md")).unwrap();
    let snapshot = fs::read_to_string(workspace().join("tests/checks/uverbs.txt")).unwrap();
    let interface: String = snapshot
        .lines()
        .map(|line| without_generics(line) + "\n")
        .collect();
    let items = here(&text);
    assert!(items.len() >= 150, "only {} items are named", items.len());
    let missing: Vec<_> = items
        .iter()
        .filter(|item| !is_public(&interface, item))
        .collect();
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn items_of_the_interface_are_found() {
    let lines = [
        "pub struct uverbs::Qp<T, M>",
        "pub fn uverbs::Qp<T, M>::fail(&mut self) -> uverbs::Result<()>",
        "pub fn uverbs::aio::Qp<T>::send(&mut self)",
        "pub fn uverbs::cm::Link::disconnect(&self)",
        "pub fn uverbs::aio::Sender<T>::room(&self)",
    ];
    let interface = lines.map(without_generics).join("\n");
    for item in ["Qp", "Qp::fail", "aio::Qp::send", "Link::disconnect"] {
        assert!(is_public(&interface, item), "{item}");
    }
    for item in ["Qp::fai", "p::fail", "Qp::send", "Sender::room"] {
        assert!(!is_public(&interface, item), "{item}");
    }
    assert_eq!(
        here("| C | a | b | here |\n| `x` | — | `y` | `Qp::fail`, or `Z` |"),
        ["Qp::fail", "Z"]
    );
}

/// The glossary is read in one go.
#[test]
fn the_glossary_is_short() {
    let text = fs::read_to_string(workspace().join("docs/glossary.md")).unwrap();
    let lines = text.lines().count();
    assert!(lines <= 75, "{lines} lines are more than one reads");
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
