//! The order of the rooms: no file of the library knows what stands above it. `docs/architecture.md` has the
//! picture.
//!
//! The paths that begin with `crate` or `super` tell what a file knows. Within a room files may know each
//! other as they like. Comments do not count: documentation may point up. Nor do unit tests, which may use
//! what users have.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use support::sources::files;

/// The rooms from the ground up, each with the modules at the crate's root that are in it.
const ROOMS: [(&str, &[&str]); 12] = [
    (
        "words",
        &["error", "memory", "work", "gid", "guid", "grh", "sync"],
    ),
    ("device", &["device"]),
    ("command", &["command"]),
    ("buffers", &["alloc"]),
    ("driver", &["driver"]),
    (
        "nouns",
        &[
            "ah",
            "channel",
            "context",
            "counters",
            "cq",
            "dm",
            "dmah",
            "domain",
            "event",
            "event_file",
            "flight",
            "flow",
            "import",
            "mr",
            "mw",
            "owned",
            "pd",
            "qp",
            "query",
            "readable",
            "serial",
            "srq",
            "wc",
            "wq",
            "xrcd",
        ],
    ),
    ("pools", &["buf"]),
    ("share", &["share"]),
    ("cm", &["cm"]),
    ("aio", &["aio"]),
    ("c", &["c"]),
    ("fuzz", &["fuzz"]),
];

/// The floor of a module at the crate's root, counted from the ground.
fn floor(module: &str) -> Option<usize> {
    ROOMS
        .iter()
        .position(|(_, modules)| modules.contains(&module))
}

/// The names that the crate's root has: its modules, and what it re-exports from them.
fn root(text: &str) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    for item in text.split(';').map(code) {
        let words: Vec<&str> = item.split_whitespace().collect();
        if let Some(at) = words.iter().position(|word| *word == "mod") {
            let module = words[at + 1];
            names.insert(module.to_owned(), module.to_owned());
        } else if let Some(at) = words.iter().position(|word| *word == "use") {
            let path = words[at + 1..].concat();
            let (module, rest) = path.split_once("::").unwrap_or((&path, ""));
            let of_names = rest.trim_matches(['{', '}']).split(',');
            for name in of_names.filter(|name| !name.is_empty()) {
                names.insert(name.to_owned(), module.to_owned());
            }
        }
    }
    names
}

/// The text without its comments, and without the unit tests at its end.
fn code(text: &str) -> String {
    let before_tests = text.split("#[cfg(test)]\nmod tests {").next();
    let lines = before_tests.unwrap_or_default().lines();
    let without = lines.map(|line| match line.find("//") {
        // Not within a URL or a path of a file.
        Some(at) if !line[..at].ends_with(':') => &line[..at],
        _ => line,
    });
    without.collect::<Vec<_>>().join("\n")
}

/// The names at the crate's root that a file refers to. `module` is the file's own path of modules.
fn known(text: &str, module: &[&str]) -> Vec<String> {
    let text = code(text);
    let mut names = Vec::new();
    for word in ["crate::", "super::"] {
        for (at, _) in text.match_indices(word) {
            let before = text[..at].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | '$' | ':')) {
                continue;
            }
            let mut rest = &text[at..];
            let mut path = module;
            while let Some(behind) = rest.strip_prefix("super::") {
                (path, rest) = (&path[..path.len().saturating_sub(1)], behind);
            }
            match rest.strip_prefix("crate::") {
                Some(behind) => rest = behind,
                None if path.is_empty() => {}
                None => continue,
            }
            names.extend(heads(rest));
        }
    }
    names
}

/// The first names of a path, or of each path of a list in braces.
fn heads(path: &str) -> Vec<String> {
    let name = |text: &str| {
        let name: String = text
            .chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect();
        (!name.is_empty()).then_some(name)
    };
    let Some(list) = path.strip_prefix('{') else {
        return name(path).into_iter().collect();
    };
    let (mut depth, mut start, mut names) = (0, 0, Vec::new());
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                names.extend(name(list[start..at].trim()));
                start = at + 1;
                if c == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    names
}

/// What a file knows that stands above it, or that no room has.
fn violations(file: &str, text: &str, root: &BTreeMap<String, String>) -> Vec<String> {
    let modules: Vec<&str> = file
        .trim_end_matches(".rs")
        .trim_end_matches("/mod")
        .split('/')
        .collect();
    let Some(own) = floor(modules[0]) else {
        return vec![format!("{file} is in no room")];
    };
    let mut found = Vec::new();
    for name in known(text, &modules) {
        let Some(module) = root.get(&name) else {
            found.push(format!("{file} knows {name}, which the root does not have"));
            continue;
        };
        match floor(module) {
            Some(other) if other > own => {
                let (own, other) = (ROOMS[own].0, ROOMS[other].0);
                found.push(format!(
                    "{file} ({own}) knows {name} ({other}), which is above it"
                ));
            }
            None if !matches!(module.as_str(), "uapi" | "uverbs_uapi") => {
                found.push(format!("{file} knows {module}, which is in no room"));
            }
            _ => {}
        }
    }
    found
}

#[test]
fn nothing_knows_what_is_above_it() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let root = root(&fs::read_to_string(source.join("lib.rs")).unwrap());
    let mut paths = Vec::new();
    files(&source, &mut paths);
    // The root re-exports from everywhere.
    paths.retain(|path| *path != source.join("lib.rs"));
    assert!(paths.len() > 100, "only {} files were found", paths.len());
    let mut found = Vec::new();
    for path in paths {
        let file = path.strip_prefix(&source).unwrap().to_str().unwrap();
        found.extend(violations(file, &fs::read_to_string(&path).unwrap(), &root));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// A root as this crate's.
fn sample_root() -> BTreeMap<String, String> {
    root(
        "mod command;\nmod cq;\n#[cfg(x)]\nmod driver;\npub mod error;\npub use cq::{Cq, Notify};\npub use error::Error;\n",
    )
}

#[test]
fn a_planted_violation_is_found() {
    let root = sample_root();
    for planted in [
        "use crate::cq::Cq;",
        "use crate::{error::Error, cq::{Cq, Notify}};",
        "use crate::Cq;",
        "use super::super::cq;",
        "fn f() { super::super::cq::g() }",
        "fn f(_: &crate::Notify) {}",
    ] {
        let found = violations("driver/mlx5.rs", planted, &root);
        assert_eq!(found.len(), 1, "{planted}: {found:?}");
        assert!(found[0].contains("which is above it"), "{found:?}");
    }
    let unknown = violations("driver/mod.rs", "use crate::nowhere::It;", &root);
    assert_eq!(unknown.len(), 1, "{unknown:?}");
    let homeless = violations("attic.rs", "", &root);
    assert_eq!(homeless, ["attic.rs is in no room"]);
}

#[test]
fn what_is_allowed_is_not() {
    let root = sample_root();
    let text = "//! [`Cq`](crate::cq::Cq)\nuse super::cq::Here;\nuse crate::command::{self, Command};\nuse crate::error;\n\
                #[cfg(test)]\nmod tests {\n    use crate::cq::Cq;\n}\n";
    assert_eq!(violations("driver/mlx5.rs", text, &root), [""; 0]);
    assert_eq!(
        violations("cq.rs", "use crate::driver::Cq;", &root),
        [""; 0]
    );
}
