//! The libraries of the C ABI, as they are built: they export all that rdma-core's do, and GNU ld gives them
//! the interface that lld does.

mod built;

use std::collections::BTreeSet;
use std::error::Error;
use std::path::Path;
use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Completion, Trial};
use object::Endianness;
use object::elf::{DT_NEEDED, DT_SONAME, FileHeader64, SHT_DYNSYM};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};

use self::built::{Export, build, workspace};

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// The libraries, with the packages that are cdylibs of them.
const LIBRARIES: [(&str, &str, &str); 6] = [
    ("uverbs-c", "libibverbs.so", "libibverbs.so.1"),
    ("uverbs-efa", "libefa.so", "libefa.so.1"),
    ("uverbs-hns", "libhns.so", "libhns.so.1"),
    ("uverbs-mana", "libmana.so", "libmana.so.1"),
    ("uverbs-mlx5", "libmlx5.so", "libmlx5.so.1"),
    ("uverbs-rdmacm", "librdmacm.so", "librdmacm.so.1"),
];

fn main() -> ExitCode {
    let names = Trial::test("every_name_of_rdma_core_is_exported", || Ok(everything()?));
    let test = Trial::ignorable_test("gnu_ld_exports_what_lld_does", || {
        let needed = [compiler(), "ld.bfd".to_owned()];
        let lacking = needed.iter().find(|name| !is_there(name));
        match lacking {
            Some(name) => Ok(Completion::ignored_with(format!("there is no {name} here"))),
            None => Ok(exports().map(|()| Completion::Completed)?),
        }
    });
    libtest_mimic::run(&Arguments::from_args(), vec![names, test]).exit_code()
}

fn compiler() -> String {
    std::env::var("CC").unwrap_or_else(|_| "cc".into())
}

fn is_there(program: &str) -> bool {
    let asked = Command::new(program).arg("--version").output();
    asked.is_ok_and(|output| output.status.success())
}

/// What rdma-core's libraries export; `tests/checks` compares the tables of symbols with it.
const EXPORTS: &str = include_str!("checks/exports.txt");

/// Catches a name that is in the table of symbols, but not in the library.
fn everything() -> Result {
    for (package, built, soname) in LIBRARIES {
        let ours: BTreeSet<String> = interface(&build(package, built)?)?
            .iter()
            .filter_map(|line| Some(line.split_once(", type ")?.0.replace("@@", "@")))
            .collect();
        let lines = EXPORTS.lines().skip_while(|line| *line != soname).skip(1);
        let of_library = lines.take_while(|line| line.is_empty() || line.starts_with(' '));
        let (mut node, mut missing) = ("", Vec::new());
        for line in of_library.filter(|line| !line.is_empty()) {
            match line.strip_prefix("        ") {
                None => node = line.trim(),
                Some(name) => {
                    let name = name.split(' ').next().unwrap_or_default();
                    missing.push(format!("{name}@{node}"));
                }
            }
        }
        let listed = missing.len();
        missing.retain(|name| !ours.contains(name));
        if listed == 0 || !missing.is_empty() {
            return Err(
                format!("{soname}: of {listed} names these are missing: {missing:?}").into(),
            );
        }
    }
    Ok(())
}

/// Catches a recipe for GNU ld that forgets a name, gives it another version, or shows one that is no one's.
fn exports() -> Result {
    let directory = tempfile::tempdir()?;
    let mut recipe = Command::new("sh");
    recipe
        .arg(workspace().join("src/c/library/gnu-ld.sh"))
        .arg(directory.path());
    run(&mut recipe)?;
    for (package, built, soname) in LIBRARIES {
        let by_lld = interface(&build(package, built)?)?;
        let by_gnu_ld = interface(&directory.path().join(soname))?;
        let differing: Vec<&String> = by_lld.symmetric_difference(&by_gnu_ld).collect();
        if !differing.is_empty() || !by_lld.contains(&format!("named {soname}")) {
            return Err(format!("{soname}: only one linker gives {differing:?}").into());
        }
    }
    Ok(())
}

fn run(command: &mut Command) -> Result {
    let output = command.output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{command:?}: {output:?}").into()),
    }
}

/// What a library is called, what it needs, and what it exports: each name with its version, whether that is
/// the one that programs are linked to, and whether it is a function or data.
fn interface(library: &Path) -> Result<BTreeSet<String>> {
    let bytes = std::fs::read(library)?;
    let data = bytes.as_slice();
    let header = FileHeader64::<Endianness>::parse(data)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, data)?;
    let symbols = sections.symbols(endian, data, SHT_DYNSYM)?;
    let mut all = BTreeSet::new();
    for export in built::exports(library)? {
        let Export { name, kind, .. } = export;
        let marks = if export.is_hidden { "@" } else { "@@" };
        let version = export.version.unwrap_or_default();
        all.insert(format!("{name}{marks}{version}, type {kind}"));
    }
    for segment in header.program_headers(endian, data)? {
        for entry in segment.dynamic(endian, data)?.unwrap_or_default() {
            let tag = entry.d_tag(endian);
            let what = match tag == DT_NEEDED {
                true => "needs",
                false if tag == DT_SONAME => "named",
                false => continue,
            };
            let name = entry.string(endian, symbols.strings())?;
            // GNU ld also names a library that only code needs which it then leaves out.
            if name == b"libc.so.6" {
                continue;
            }
            all.insert(format!("{what} {}", String::from_utf8_lossy(name)));
        }
    }
    Ok(all)
}
