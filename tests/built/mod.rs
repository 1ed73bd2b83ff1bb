//! The libraries for C programs, built, and what a library exports.

#![allow(dead_code, reason = "not every test asks for everything")]

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use object::elf::{DT_NEEDED, FileHeader64, PT_INTERP, SHT_DYNSYM, SymbolType};
use object::read::elf::{Dyn, FileHeader, ProgramHeader, SectionTable, Sym, SymbolTable};
use object::{Endianness, SymbolIndex};

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// The workspace.
pub(crate) fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where cargo builds.
pub(crate) fn target() -> PathBuf {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    workspace().join(target)
}

/// Builds a library as programs get it, and gives its file.
pub(crate) fn build(package: &str, built: &str) -> Result<PathBuf> {
    let output = Command::new(env!("CARGO"))
        .args([
            "build",
            "--quiet",
            "--profile",
            "c-abi",
            "--package",
            package,
        ])
        .current_dir(workspace())
        .output()?;
    match output.status.success() {
        true => Ok(target().join("c-abi").join(built)),
        false => Err(format!("{package}: {output:?}").into()),
    }
}

/// A name that a library exports.
pub(crate) struct Export {
    pub(crate) name: String,
    /// Its version, if it has one.
    pub(crate) version: Option<String>,
    /// Whether programs are not linked to this version.
    pub(crate) is_hidden: bool,
    /// Whether it is a function or data (`STT_FUNC`, `STT_OBJECT`).
    pub(crate) kind: SymbolType,
}

/// What a library exports.
pub(crate) fn exports(library: &Path) -> Result<Vec<Export>> {
    let bytes = fs::read(library)?;
    let data = bytes.as_slice();
    let header = Header::parse(data)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, data)?;
    let symbols = sections.symbols(endian, data, SHT_DYNSYM)?;
    let versions = sections.versions(endian, data)?.ok_or("no versions")?;
    let mut all = Vec::new();
    for (number, symbol) in symbols.iter().enumerate() {
        // GNU ld has a symbol of each node's name as well, which is nowhere.
        if symbol.is_undefined(endian) || symbol.is_absolute(endian) {
            continue;
        }
        let index = versions.version_index(endian, SymbolIndex(number));
        let version = versions.version(index.into())?;
        all.push(Export {
            name: text(symbol.name(endian, symbols.strings())?),
            version: version.map(|version| text(version.name())),
            is_hidden: index.is_hidden(),
            kind: symbol.st_type(),
        });
    }
    Ok(all)
}

/// The names with a version that a file needs of libraries, each with the library's name; `None` if the file
/// is no program and no library.
pub(crate) fn imports(file: &Path) -> Option<Vec<(String, String)>> {
    linked(
        file,
        |Linked {
             data,
             endian,
             symbols,
             sections,
             ..
         }| {
            let versions = sections.versions(endian, data).ok()??;
            let mut all = Vec::new();
            for (number, symbol) in symbols.iter().enumerate() {
                let index = versions.version_index(endian, SymbolIndex(number));
                let Ok(Some(version)) = versions.version(index.into()) else {
                    continue;
                };
                let Some(library) = version.file().filter(|_| symbol.is_undefined(endian)) else {
                    continue;
                };
                let name = text(symbol.name(endian, symbols.strings()).ok()?);
                all.push((text(library), format!("{name}@{}", text(version.name()))));
            }
            Some(all)
        },
    )
}

/// What a file needs to be linked.
pub(crate) struct Needs {
    /// The libraries that it is linked to.
    pub(crate) needed: Vec<String>,
    /// Whether it is started by itself: it names its loader.
    pub(crate) is_program: bool,
}

/// The libraries that a file is linked to; `None` if it is no program and no library.
pub(crate) fn needed(file: &Path) -> Option<Vec<String>> {
    Some(needs(file)?.needed)
}

/// What a file needs; `None` if it is no program and no library.
pub(crate) fn needs(file: &Path) -> Option<Needs> {
    linked(
        file,
        |Linked {
             data,
             header,
             endian,
             symbols,
             ..
         }| {
            let (mut needed, mut is_program) = (Vec::new(), false);
            for segment in header.program_headers(endian, data).ok()? {
                is_program |= segment.p_type(endian) == PT_INTERP;
                for entry in segment.dynamic(endian, data).ok()?.unwrap_or_default() {
                    if entry.d_tag(endian) == DT_NEEDED {
                        needed.push(text(entry.string(endian, symbols.strings()).ok()?));
                    }
                }
            }
            Some(Needs { needed, is_program })
        },
    )
}

/// A file that the loader links.
struct Linked<'f> {
    data: &'f [u8],
    header: &'f Header,
    endian: Endianness,
    sections: SectionTable<'f, Header>,
    symbols: SymbolTable<'f, Header>,
}

type Header = FileHeader64<Endianness>;

/// What there is to see in a file; `None` if it is no program and no library.
fn linked<T>(file: &Path, see: impl FnOnce(Linked<'_>) -> Option<T>) -> Option<T> {
    let data = fs::read(file).ok()?;
    let data = data.as_slice();
    let header = Header::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let sections = header.sections(endian, data).ok()?;
    let symbols = sections.symbols(endian, data, SHT_DYNSYM).ok()?;
    see(Linked {
        data,
        header,
        endian,
        sections,
        symbols,
    })
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
