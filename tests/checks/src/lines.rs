//! Lines of code: without blank lines, comments, documentation and what only tests have.
//!
//! The sources are as rustfmt leaves them, so that an item ends where its indentation returns.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::sources;

/// What is said of an item that only tests have.
const ONLY_IN_TESTS: &str = "#[cfg(test)]";

/// A file's code.
#[derive(Debug, Default, PartialEq, Eq)]
struct Code {
    lines: usize,
    /// The names of the modules in files of their own that only tests have.
    of_tests: Vec<String>,
}

/// Counts the code of a file.
fn code(text: &str) -> Code {
    let mut found = Code::default();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let words = line.trim_start();
        if words.is_empty() || words.starts_with("//") {
            continue;
        }
        if words != ONLY_IN_TESTS {
            found.lines += 1;
            continue;
        }
        let indent = line.len() - words.len();
        let mut item = lines.by_ref().map(str::trim_start);
        let Some(first) = item.find(|line| !line.starts_with(['#', '/'])) else {
            break;
        };
        if let Some((_, name)) = first.split_once("mod ").filter(|_| first.ends_with(';')) {
            found.of_tests.push(name.trim_end_matches(';').to_owned());
        }
        if !first.ends_with([';', ',']) && !first.ends_with("{}") {
            let back = |line: &str| line.len() - line.trim_start().len() == indent;
            let is_end = |line: &str| line.trim_start().starts_with('}') || line.ends_with(");");
            lines.by_ref().find(|line| back(line) && is_end(line));
        }
    }
    found
}

/// The lines of code below a folder, by the folders and files that are directly in it.
///
/// # Errors
/// If a file cannot be read.
pub fn by_area(folder: &Path) -> io::Result<BTreeMap<String, usize>> {
    let mut counts = BTreeMap::new();
    let mut of_tests: Vec<PathBuf> = Vec::new();
    for path in sources(folder)? {
        let Code {
            lines,
            of_tests: modules,
        } = code(&fs::read_to_string(&path)?);
        let is_root =
            path.ends_with("mod.rs") || path.ends_with("lib.rs") || path.ends_with("main.rs");
        let home = match is_root {
            true => path.with_file_name(""),
            false => path.with_extension(""),
        };
        of_tests.extend(modules.iter().map(|name| home.join(name)));
        counts.insert(path, lines);
    }
    let mut areas: BTreeMap<String, usize> = BTreeMap::new();
    for (path, lines) in counts {
        let is_test = of_tests
            .iter()
            .any(|module| path.starts_with(module) || path.with_extension("") == *module);
        let below = path.strip_prefix(folder).unwrap_or(&path).iter().next();
        if let Some(area) = below.filter(|_| !is_test) {
            *areas
                .entry(area.to_string_lossy().into_owned())
                .or_default() += lines;
        }
    }
    Ok(areas)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches comments, blank lines and tests that count, and code behind a test that does not.
    #[test]
    fn only_code_counts() {
        let text = "//! A file.\n\nuse a::b;\n\n/// A function.\nfn f() {\n    // Why.\n    g(); // How.\n}\n\n\
                    #[cfg(test)]\nmod tests {\n    fn t() {\n    }\n}\n\nfn g() {}\n\n#[cfg(test)]\nmod more;\n\
                    enum E {\n    #[cfg(test)]\n    A,\n    B,\n}\n#[cfg(test)]\nuse a::{\n    b,\n};\n";
        let found = Code {
            lines: 8,
            of_tests: vec!["more".to_owned()],
        };
        assert_eq!(code(text), found);
    }

    /// Catches an item of several lines whose end is not found.
    #[test]
    fn an_item_ends_where_its_indentation_returns() {
        let text = "impl A {\n    #[cfg(test)]\n    #[inline]\n    fn t(\n        a: u8,\n    ) -> u8 {\n        a\n    }\n\n    fn f() {}\n}\n";
        assert_eq!(code(text).lines, 3);
    }
}
