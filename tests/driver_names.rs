//! No place but a driver's folder, and the list of drivers, names a driver: whoever adds one has nowhere else
//! to look.
//!
//! Names in code and in texts count. Comments do not, for users and maintainers may need an example, but for
//! those of the contract, which speak of no device; nor do unit tests and the program's help.

use std::fs;
use std::path::Path;

use support::sources::files;

/// The drivers, by what their names contain in small letters.
const NAMES: [&str; 4] = ["rxe", "mlx5", "connectx", "roce_soft"];

/// The drivers whose names other words contain, such as `default`: by what their words begin with.
const SHORT: [&str; 1] = ["efa"];

/// What may name them: their folders, the package of formats below them, the list, answers of real drivers
/// that the tests of commands decode, and the verbs of one kind of device, also for C programs.
const ALLOWED: [&str; 8] = [
    "c/direct/",
    "direct/",
    "driver/efa/",
    "driver/rxe/",
    "driver/mlx5/",
    "driver/queue/",
    "driver/mod.rs",
    "command/samples.rs",
];

/// Whose comments name no device either.
const OF_ALL: [&str; 5] = [
    "driver/contract.rs",
    "driver/mod.rs",
    "driver/data.rs",
    "driver/options.rs",
    "driver/absent.rs",
];

/// More words of single devices.
const WORDS: [&str; 5] = ["blueflame", "blue_flame", "efa", "siw", "irdma"];

/// The comments that name a device, with their numbers.
fn comments_naming(text: &str) -> Vec<(usize, String)> {
    let names = |line: &str| {
        let small = line.to_lowercase();
        let mut words = small.split(|c: char| !(c.is_alphanumeric() || c == '_'));
        words.any(|word| NAMES.contains(&word) || WORDS.contains(&word))
    };
    let comments = text.lines().enumerate().filter_map(|(number, line)| {
        let (_, comment) = line.split_once("//")?;
        Some((number + 1, comment))
    });
    let naming = comments.filter(|(_, comment)| names(comment));
    naming
        .map(|(number, comment)| (number, comment.trim().to_owned()))
        .collect()
}

/// The lines that name a driver, with their numbers.
fn naming(text: &str) -> Vec<(usize, String)> {
    let before_tests = text.split("#[cfg(test)]\nmod tests {").next();
    let mut found = Vec::new();
    for (number, line) in before_tests.unwrap_or_default().lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        let small = code.to_lowercase();
        let mut words = small.split(|c: char| !c.is_alphanumeric());
        let is_short = words.any(|word| SHORT.iter().any(|name| word.starts_with(name)));
        if is_short || NAMES.iter().any(|name| small.contains(name)) {
            found.push((number + 1, line.trim().to_owned()));
        }
    }
    found
}

#[test]
fn drivers_are_named_in_their_folders_and_in_the_list() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut paths = Vec::new();
    files(&source, &mut paths);
    assert!(paths.len() > 100, "only {} files were found", paths.len());
    let mut found = Vec::new();
    for path in paths {
        let file = path.strip_prefix(&source).unwrap().to_str().unwrap();
        if ALLOWED.iter().any(|allowed| file.starts_with(allowed)) {
            continue;
        }
        let lines = naming(&fs::read_to_string(&path).unwrap());
        found.extend(
            lines
                .iter()
                .map(|(at, line)| format!("src/{file}:{at}: {line}")),
        );
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn comments_of_the_contract_name_no_device() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for file in OF_ALL {
        let text = fs::read_to_string(source.join(file)).unwrap();
        assert_eq!(comments_naming(&text), [], "src/{file}");
    }
    let planted = "/// As `mlx5` has it.\nlet a = \"rxe\"; // BlueFlame\n// Safe and default.\n";
    let lines: Vec<usize> = comments_naming(planted).iter().map(|(at, _)| *at).collect();
    assert_eq!(lines, [1, 2]);
}

#[test]
fn a_planted_name_is_found_and_a_comment_is_not() {
    let text = "//! As on mlx5.\nfn a() {\n    if self.is_mlx5() {} // rxe too\n    let b = \"RXE\";\n    Efa::default();\n}\n\
                #[cfg(test)]\nmod tests {\n    const ID: DriverId = DriverId::RXE;\n}\n";
    let lines: Vec<usize> = naming(text).iter().map(|(at, _)| *at).collect();
    assert_eq!(lines, [3, 4, 5]);
}
