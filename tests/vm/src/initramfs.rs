//! The initramfs: a static busybox, the modules, and the script that puts the root file system together.
//!
//! It comes in two archives, one after the other, which the kernel unpacks both: the modules, made once for
//! each kernel and kept, and a small one with the configuration of this boot.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use cpio::newc::{Builder, trailer};
use nix::libc::{S_IFDIR, S_IFREG};

use crate::fetch::Parts;
use crate::modules::{Module, Modules, WANTED, Wanted};
use crate::store::Store;

/// Changed when the layout of the archive of modules changes, so that kept ones are made anew.
const LAYOUT: u32 = 3;

const INIT: &str = include_str!("init.sh");

/// What differs from boot to boot.
#[derive(Clone, Debug, Default)]
pub(crate) struct Boot {
    /// The program that the guest hands over to; none to power off right after the modules are loaded.
    pub(crate) agent: Option<PathBuf>,
    /// Directories of the host that must be seen although they lie below /tmp, /run or /dev/shm.
    pub(crate) keep: Vec<PathBuf>,
    /// Whether it has the programs of a run of everything.
    pub(crate) full_tools: bool,
    /// How the names of libraries begin that the guest must not have.
    pub(crate) without: Option<String>,
}

/// Writes the initramfs of one boot, with these modules besides those that every guest has.
///
/// # Errors
/// If modules are missing, or a file cannot be read or written.
pub(crate) fn write(
    store: &Store,
    parts: &Parts,
    further: &[Wanted],
    boot: &Boot,
    to: &Path,
) -> Result<()> {
    let wanted: Vec<Wanted> = WANTED.iter().chain(further).cloned().collect();
    let kept = kept_modules(store, parts, &wanted)?;
    fs::copy(&kept, to)
        .with_context(|| format!("copying {} to {}", kept.display(), to.display()))?;
    let configuration = archive(&[Entry::file(
        "config",
        0o644,
        configuration(boot).into_bytes(),
    )])?;
    let mut file = fs::OpenOptions::new()
        .append(true)
        .open(to)
        .with_context(|| format!("opening {}", to.display()))?;
    std::io::Write::write_all(&mut file, &configuration)
        .with_context(|| format!("writing {}", to.display()))
}

/// The archive with busybox and these modules of this kernel, made if it is not there.
fn kept_modules(store: &Store, parts: &Parts, wanted: &[Wanted]) -> Result<PathBuf> {
    let mut key = DefaultHasher::new();
    (
        LAYOUT,
        INIT,
        wanted,
        &parts.kernel.modules,
        &parts.built_modules,
        &parts.tools.busybox,
    )
        .hash(&mut key);
    let modified = |path: &Path| fs::metadata(path).and_then(|it| it.modified()).ok();
    // A module that is built again is put into its directory anew.
    let built = parts.built_modules.as_deref().map(modified);
    (modified(&parts.kernel.image), built).hash(&mut key);
    let name = format!(
        "initramfs/{}-{:016x}.cpio",
        parts.kernel.release,
        key.finish()
    );
    let path = store.path(name);
    // Guests that boot at the same time want the same one.
    static MAKING: Mutex<()> = Mutex::new(());
    let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    if !path.is_file() {
        store.directory("initramfs")?;
        let modules = Modules::read(&parts.kernel.modules, parts.built_modules.as_deref())?;
        let modules = modules.in_order(wanted)?;
        let busybox = &parts.tools.busybox;
        let busybox =
            fs::read(busybox).with_context(|| format!("reading {}", busybox.display()))?;
        let half = path.with_extension(format!("half-{}", std::process::id()));
        fs::write(&half, archive(&entries(modules, busybox))?)
            .and_then(|()| fs::rename(&half, &path))
            .with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(path)
}

/// The shell variables that the script reads.
fn configuration(boot: &Boot) -> String {
    let agent = boot
        .agent
        .as_deref()
        .map(|agent| agent.display().to_string())
        .unwrap_or_default();
    let keep: Vec<String> = boot
        .keep
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    format!(
        "AGENT={}\nKEEP={}\nFULL={}\nWITHOUT={}\n",
        quoted(&agent),
        quoted(&keep.join("\n")),
        if boot.full_tools { "1" } else { "" },
        quoted(boot.without.as_deref().unwrap_or_default())
    )
}

/// A word of the shell, whatever is in it.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

struct Entry {
    name: String,
    mode: u32,
    content: Vec<u8>,
}

impl Entry {
    fn file(name: &str, mode: u32, content: Vec<u8>) -> Self {
        Self {
            name: name.to_owned(),
            mode: S_IFREG | mode,
            content,
        }
    }

    fn directory(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            mode: S_IFDIR | 0o755,
            content: Vec::new(),
        }
    }
}

fn entries(modules: Vec<Module>, busybox: Vec<u8>) -> Vec<Entry> {
    let directories = [
        "bin",
        "dev",
        "proc",
        "sys",
        "modules",
        "layers",
        "layers/full",
        "layers/hidden",
        "layers/host",
        "layers/tools",
        "newroot",
    ];
    let mut entries: Vec<Entry> = directories.into_iter().map(Entry::directory).collect();
    entries.push(Entry::file("bin/busybox", 0o755, busybox));
    entries.push(Entry::file("init", 0o755, INIT.as_bytes().to_vec()));
    let order: String = modules
        .iter()
        .map(|module| format!("{}.ko\n", module.name))
        .collect();
    entries.push(Entry::file("modules/order", 0o644, order.into_bytes()));
    let files = modules
        .into_iter()
        .map(|module| Entry::file(&format!("modules/{}.ko", module.name), 0o644, module.image));
    entries.extend(files);
    entries
}

/// Packs the entries in the format that the kernel reads (`newc`).
fn archive(entries: &[Entry]) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for (number, entry) in (1..).zip(entries) {
        let size = u32::try_from(entry.content.len())
            .with_context(|| format!("{} is too large", entry.name))?;
        let builder = Builder::new(&entry.name)
            .ino(number)
            .nlink(1)
            .mode(entry.mode);
        let mut writer = builder.write(&mut bytes, size);
        std::io::Write::write_all(&mut writer, &entry.content).context("packing the initramfs")?;
        writer.finish().context("packing the initramfs")?;
    }
    trailer(&mut bytes).context("packing the initramfs")?;
    // The kernel looks for a further archive at a multiple of four bytes.
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cpio::newc::Reader;

    fn unpack(mut bytes: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let mut found = Vec::new();
        loop {
            let mut reader = Reader::new(bytes).expect("an entry");
            if reader.entry().is_trailer() {
                return found;
            }
            let (name, mode) = (reader.entry().name().to_owned(), reader.entry().mode());
            let mut content = Vec::new();
            std::io::Read::read_to_end(&mut reader, &mut content).expect("its content");
            bytes = reader.finish().expect("its end");
            found.push((name, mode, content));
        }
    }

    #[test]
    fn the_archive_holds_modules_in_order_and_an_init_that_can_be_run() {
        let modules = ["bottom", "top"].map(|name| Module {
            name: name.to_owned(),
            image: name.into(),
        });
        let found =
            unpack(&archive(&entries(modules.into(), b"busybox".to_vec())).expect("an archive"));
        let entry = |name: &str| found.iter().find(|entry| entry.0 == name).expect(name);
        assert_eq!(entry("modules/order").2, b"bottom.ko\ntop.ko\n");
        assert_eq!(entry("modules/top.ko").2, b"top");
        assert_eq!(entry("init").1, 0o100_755);
        assert_eq!(entry("newroot").1, 0o040_755);
    }

    #[test]
    fn a_path_with_blanks_and_quotes_reaches_the_shell_whole() {
        let boot = Boot {
            agent: Some("/a b/it's".into()),
            keep: vec!["/tmp/x".into(), "/tmp/y".into()],
            full_tools: true,
            without: Some("libz.so".to_owned()),
        };
        assert_eq!(
            configuration(&boot),
            "AGENT='/a b/it'\\''s'\nKEEP='/tmp/x\n/tmp/y'\nFULL=1\nWITHOUT='libz.so'\n"
        );
    }

    #[test]
    fn archives_can_follow_one_another() {
        let one = archive(&[Entry::file("config", 0o644, b"x".to_vec())]).expect("an archive");
        assert_eq!(one.len() % 4, 0);
    }
}
