//! The order of the floors: no file of the library knows what stands above it. A floor is a folder of `src`;
//! `docs/architecture.md` has the picture.
//!
//! The paths that begin with `crate` or `super` show what a file knows. Within a folder files may know each
//! other as they like. Comments do not count: documentation may point up. Nor do unit tests, which may use
//! what users have.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use support::sources::files;

/// The folders of `src` from the ground up. Those of one row stand side by side.
const FLOORS: [&[&str]; 9] = [
    &["words"],
    &["device"],
    &["command"],
    &["alloc"],
    &["driver"],
    &["objects"],
    &["share", "cm", "buf", "direct"],
    &["aio", "c"],
    &["fuzz"],
];

/// The floor of a folder, counted from the ground.
fn floor(folder: &str) -> Option<usize> {
    FLOORS.iter().position(|floor| floor.contains(&folder))
}

/// Whether one folder may know another: what is below it, and itself.
fn may_know(own: &str, other: &str) -> bool {
    own == other || floor(other) < floor(own)
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

/// The folder that a name at the root comes from: `Error` from `error`, and that from `words`.
fn folder<'a>(mut name: &'a str, root: &'a BTreeMap<String, String>) -> Option<&'a str> {
    loop {
        match root.get(name) {
            Some(from) if from == name => return Some(name),
            Some(from) => name = from,
            None if matches!(name, "uverbs_uapi") => return Some(name),
            None => return None,
        }
    }
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
    let own = modules[0];
    if floor(own).is_none() {
        return vec![format!("{file} is on no floor")];
    }
    let mut found = Vec::new();
    for name in known(text, &modules) {
        match folder(&name, root) {
            None => found.push(format!("{file} knows {name}, which the root does not have")),
            Some("uverbs_uapi") => {}
            Some(other) if floor(other).is_none() => {
                found.push(format!("{file} knows {other}, which is on no floor"));
            }
            Some(other) if !may_know(own, other) => {
                found.push(format!(
                    "{file} ({own}) knows {name} ({other}), which is not below it"
                ));
            }
            Some(_) => {}
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
        "mod words;\nmod command;\n#[cfg(x)]\nmod driver;\nmod objects;\nmod share;\nmod cm;\npub use objects::{\n    \
         cq, pd,\n};\npub use words::error;\npub use cq::{Cq, Notify};\npub use error::Error;\n",
    )
}

#[test]
fn a_planted_violation_is_found() {
    let root = sample_root();
    for planted in [
        "use crate::cq::Cq;",
        "use crate::{error::Error, cq::{Cq, Notify}};",
        "use crate::Cq;",
        "use crate::objects::cq::Cq;",
        "use super::super::cq;",
        "fn f() { super::super::cq::g() }",
        "fn f(_: &crate::Notify) {}",
    ] {
        let found = violations("driver/mlx5.rs", planted, &root);
        assert_eq!(found.len(), 1, "{planted}: {found:?}");
        assert!(found[0].contains("which is not below it"), "{found:?}");
    }
    let beside = violations("share/offer.rs", "use crate::cm::Id;", &root);
    assert_eq!(beside.len(), 1, "{beside:?}");
    let unknown = violations("driver/mod.rs", "use crate::nowhere::It;", &root);
    assert_eq!(unknown.len(), 1, "{unknown:?}");
    let homeless = violations("attic.rs", "", &root);
    assert_eq!(homeless, ["attic.rs is on no floor"]);
}

#[test]
fn what_is_allowed_is_not() {
    let root = sample_root();
    let text = "//! [`Cq`](crate::cq::Cq)\nuse super::super::driver::Here;\nuse crate::command::{self, Command};\nuse crate::error;\n\
                #[cfg(test)]\nmod tests {\n    use crate::cq::Cq;\n}\n";
    assert_eq!(violations("driver/mlx5.rs", text, &root), [""; 0]);
    assert_eq!(
        violations(
            "objects/cq.rs",
            "use crate::driver::Cq;\nuse crate::pd::Pd;",
            &root
        ),
        [""; 0]
    );
}
