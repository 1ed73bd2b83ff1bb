//! The Python wheel: an archive of files as they are, with a list of their hashes.

use std::fs::{self, File};
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use sha2::{Digest, Sha256};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, ZipWriter};

use super::{Contents, file_name};

/// The project's name on an index, and that of its module.
const NAME: &str = "uverbs_rdma";

/// What Python finds.
const MODULE: &str = r#""""RDMA verbs without libibverbs: the libraries for C programs, and the program uverbs.

``python -m uverbs_rdma exec -- PROGRAM`` (or ``uverbs exec -- PROGRAM``) runs a program on the libraries.
``load()`` loads them into this process, for extension modules that are imported later.
"""

import ctypes
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def directory():
    """The directory of the libraries."""
    return os.path.join(_HERE, 'lib')


def load():
    """Loads libibverbs.so.1 and librdmacm.so.1. What asks for libraries of these names from now on gets them."""
    for name in ('libibverbs.so.1', 'librdmacm.so.1'):
        ctypes.CDLL(os.path.join(directory(), name), mode=ctypes.RTLD_GLOBAL)


def main():
    """Becomes the program uverbs."""
    program = os.path.join(_HERE, 'bin', 'uverbs')
    os.execv(program, [program, *sys.argv[1:]])
"#;

/// What `python -m` runs.
const MAIN: &str = "from . import main\n\nmain()\n";

/// A file in it.
struct Entry {
    name: String,
    bytes: Vec<u8>,
    mode: u32,
}

/// Makes the wheel.
///
/// # Errors
/// If a file cannot be read or written.
pub(super) fn make(contents: &Contents, place: &Path) -> Result<PathBuf> {
    let version = env!("CARGO_PKG_VERSION");
    let platform = format!("manylinux_2_{}_x86_64", contents.glibc);
    let information = format!("{NAME}-{version}.dist-info");
    let text = |name: String, text: &str| Entry {
        name,
        bytes: text.into(),
        mode: 0o644,
    };
    let mut entries = vec![
        text(format!("{NAME}/__init__.py"), MODULE),
        text(format!("{NAME}/__main__.py"), MAIN),
        text(
            format!("{information}/METADATA"),
            &format!(
                "Metadata-Version: 2.1\nName: {NAME}\nVersion: {version}\n\
                 Summary: RDMA verbs without libibverbs\nLicense: MIT OR Apache-2.0\nRequires-Python: >=3.8\n"
            ),
        ),
        text(
            format!("{information}/WHEEL"),
            &format!(
                "Wheel-Version: 1.0\nGenerator: cargo vm package\nRoot-Is-Purelib: false\n\
                 Tag: py3-none-{platform}\n"
            ),
        ),
        text(
            format!("{information}/entry_points.txt"),
            &format!("[console_scripts]\nuverbs = {NAME}:main\n"),
        ),
    ];
    let mut add = |name: String, file: &Path, mode| -> Result<()> {
        let bytes = fs::read(file).with_context(|| format!("reading {}", file.display()))?;
        entries.push(Entry { name, bytes, mode });
        Ok(())
    };
    for library in &contents.libraries {
        add(
            format!("{NAME}/lib/{}", file_name(library)?),
            library,
            0o644,
        )?;
    }
    add(format!("{NAME}/bin/uverbs"), &contents.program, 0o755)?;
    for licence in &contents.licences {
        let name = format!("{information}/licenses/{}", file_name(licence)?);
        add(name, licence, 0o644)?;
    }
    let record = format!("{information}/RECORD");
    let mut list = String::new();
    for entry in &entries {
        let (name, length) = (&entry.name, entry.bytes.len());
        list += &format!("{name},sha256={},{length}\n", hash(&entry.bytes));
    }
    list += &format!("{record},,\n");
    entries.push(text(record, &list));
    let wheel = place.join(format!("{NAME}-{version}-py3-none-{platform}.whl"));
    File::create(&wheel)
        .map_err(anyhow::Error::from)
        .and_then(|file| archive(&entries, file))
        .with_context(|| format!("writing {}", wheel.display()))?;
    Ok(wheel)
}

/// The hash of a file as RECORD has it.
fn hash(bytes: &[u8]) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(bytes))
}

/// Writes an archive of these files, without compression. It is the same whenever it is made.
fn archive(entries: &[Entry], to: impl Write + Seek) -> Result<()> {
    let mut archive = ZipWriter::new(to);
    for Entry { name, bytes, mode } in entries {
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .last_modified_time(DateTime::default())
            .unix_permissions(*mode);
        archive.start_file(name.as_str(), options)?;
        archive.write_all(bytes)?;
    }
    archive.finish()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Read};

    use super::*;

    #[test]
    fn hashes_are_those_of_the_standards() {
        let expected = "ungWv48Bz-pBQUDeXa4iI7ADYaOWF3qctBD_YfIAFa0";
        assert_eq!(hash(b"abc"), expected);
    }

    /// Would catch an archive that programs cannot read, and files that cannot be executed.
    #[test]
    fn an_archive_has_its_files() {
        let entry = |name: &str, mode| Entry {
            name: name.to_owned(),
            bytes: name.into(),
            mode,
        };
        let mut bytes = Cursor::new(Vec::new());
        archive(&[entry("a", 0o644), entry("b/c", 0o755)], &mut bytes).unwrap();
        let mut archive = zip::ZipArchive::new(bytes).unwrap();
        for (name, mode) in [("a", 0o100_644), ("b/c", 0o100_755)] {
            let mut file = archive.by_name(name).unwrap();
            assert_eq!(file.unix_mode(), Some(mode));
            let mut text = String::new();
            file.read_to_string(&mut text).unwrap();
            assert_eq!(text, name);
        }
        assert_eq!(archive.len(), 2);
    }
}
