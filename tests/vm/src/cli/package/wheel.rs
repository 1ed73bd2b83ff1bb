//! The Python wheel: an archive of files as they are, with a list of their hashes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{Contents, file_name};
use crate::process;

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
        list += &format!("{name},sha256={},{length}\n", sha256(entry, place)?);
    }
    list += &format!("{record},,\n");
    entries.push(text(record, &list));
    let wheel = place.join(format!("{NAME}-{version}-py3-none-{platform}.whl"));
    fs::write(&wheel, zip(&entries)).with_context(|| format!("writing {}", wheel.display()))?;
    Ok(wheel)
}

/// The hash of an entry as RECORD has it, in base 64 without padding.
fn sha256(entry: &Entry, place: &Path) -> Result<String> {
    let file = place.join("to-be-hashed");
    fs::write(&file, &entry.bytes)?;
    let said = process::output("hashing", Command::new("sha256sum").arg(&file))?;
    fs::remove_file(&file)?;
    let digits = said.get(..64).context("sha256sum told no hash")?;
    let byte = |at: usize| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16);
    let bytes: Vec<u8> = (0..32).map(byte).collect::<Result<_, _>>()?;
    Ok(base64(&bytes))
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let word = chunk
            .iter()
            .fold(0u32, |word, byte| word << 8 | u32::from(*byte));
        let word = word << (8 * (3 - chunk.len()));
        for digit in 0..=chunk.len() {
            text.push(DIGITS[(word >> (18 - 6 * digit)) as usize & 63].into());
        }
    }
    text
}

/// An archive of these files, without compression (APPNOTE.TXT of PKWARE, 4.3).
fn zip(entries: &[Entry]) -> Vec<u8> {
    const VERSION: u16 = 20;
    const BY_UNIX: u16 = 3 << 8;
    const REGULAR_FILE: u32 = 0o100_000;
    /// 1 January 1980, midnight: the file is the same whenever it is made.
    const DATE: u32 = 0x0021_0000;
    let (mut archive, mut directory) = (Vec::new(), Vec::new());
    for Entry { name, bytes, mode } in entries {
        let offset = archive.len() as u32;
        // What the header of the file and the one in the directory have in common.
        let mut common = Vec::new();
        put16(&mut common, &[VERSION, 0, 0]);
        put32(
            &mut common,
            &[DATE, crc32(bytes), bytes.len() as u32, bytes.len() as u32],
        );
        put16(&mut common, &[name.len() as u16, 0]);
        put32(&mut archive, &[0x0403_4b50]);
        archive.extend_from_slice(&common);
        archive.extend_from_slice(name.as_bytes());
        archive.extend_from_slice(bytes);
        put32(&mut directory, &[0x0201_4b50]);
        put16(&mut directory, &[BY_UNIX | VERSION]);
        directory.extend_from_slice(&common);
        put16(&mut directory, &[0, 0, 0]);
        put32(&mut directory, &[(REGULAR_FILE | mode) << 16, offset]);
        directory.extend_from_slice(name.as_bytes());
    }
    let (start, length) = (archive.len() as u32, directory.len() as u32);
    let count = entries.len() as u16;
    archive.append(&mut directory);
    put32(&mut archive, &[0x0605_4b50]);
    put16(&mut archive, &[0, 0, count, count]);
    put32(&mut archive, &[length, start]);
    put16(&mut archive, &[0]);
    archive
}

fn put16(to: &mut Vec<u8>, words: &[u16]) {
    to.extend(words.iter().flat_map(|word| word.to_le_bytes()));
}

fn put32(to: &mut Vec<u8>, words: &[u32]) {
    to.extend(words.iter().flat_map(|word| word.to_le_bytes()));
}

/// The checksum of Ethernet and of archives.
fn crc32(bytes: &[u8]) -> u32 {
    let mut table = [0; 256];
    for (byte, entry) in table.iter_mut().enumerate() {
        *entry = (0..8).fold(byte as u32, |rest, _| match rest & 1 {
            0 => rest >> 1,
            _ => rest >> 1 ^ 0xedb8_8320,
        });
    }
    let step =
        |rest: u32, byte: &u8| table[((rest ^ u32::from(*byte)) & 0xff) as usize] ^ rest >> 8;
    !bytes.iter().fold(u32::MAX, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_and_texts_are_those_of_the_standards() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(base64(b"\xff\xfe"), "__4");
        assert_eq!(base64(b"Man"), "TWFu");
        assert_eq!(base64(b""), "");
    }

    /// Would catch an archive that programs cannot read: the end of it names its directory.
    #[test]
    fn an_archive_ends_with_its_directory() {
        let entry = |name: &str| Entry {
            name: name.to_owned(),
            bytes: b"text".to_vec(),
            mode: 0o644,
        };
        let archive = zip(&[entry("a"), entry("b/c")]);
        let end = &archive[archive.len() - 22..];
        let word = |at: usize| u32::from_le_bytes(end[at..at + 4].try_into().unwrap()) as usize;
        assert_eq!(word(0), 0x0605_4b50);
        let (length, start) = (word(12), word(16));
        assert_eq!(start + length, archive.len() - 22);
        assert_eq!(archive[start..start + 4], 0x0201_4b50u32.to_le_bytes());
        assert_eq!(start, 2 * (30 + 4) + 1 + 3);
    }
}
