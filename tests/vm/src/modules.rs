//! Kernel modules and the order to load them in.
//!
//! The order comes from the modules themselves: each names those it needs in its `.modinfo` section. So
//! neither depmod nor its `modules.dep` is needed, which packages do not carry (their post-install scripts
//! make it).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use object::{Object, ObjectSection};

/// A module that the guest is to have.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Wanted {
    /// Its name, with underscores.
    pub(crate) name: Cow<'static, str>,
    /// Whether a kernel without it is no good.
    pub(crate) required: bool,
}

const fn required(name: &'static str) -> Wanted {
    Wanted {
        name: Cow::Borrowed(name),
        required: true,
    }
}

const fn optional(name: &'static str) -> Wanted {
    Wanted {
        name: Cow::Borrowed(name),
        required: false,
    }
}

/// What the guest loads, in this order as far as dependencies leave it free.
///
/// The generic CRC modules come before rxe: on Linux 6.1 rxe asks the crypto layer for "crc32" by name, which
/// no symbol and so no dependency tells; without them `rdma link add` fails with ENOENT. Later kernels have
/// no such modules.
///
/// Disks over RDMA, from both sides, and a file system to put on one, are for `tests/nvme`. They add nothing
/// to the time of a boot that could be measured.
pub(crate) const WANTED: [Wanted; 20] = [
    required("virtio_pci"),
    required("virtio_console"),
    required("9pnet_virtio"),
    required("9p"),
    required("overlay"),
    optional("crc32_generic"),
    optional("crc32c_generic"),
    required("dummy"),
    required("veth"),
    optional("8021q"),
    optional("sch_netem"),
    optional("sch_ingress"),
    required("ib_uverbs"),
    optional("ib_umad"),
    required("rdma_ucm"),
    required("rdma_rxe"),
    optional("nfnetlink"),
    optional("nvme_rdma"),
    optional("nvmet_rdma"),
    optional("ext4"),
];

/// What the guest loads besides if it has an adapter for it.
pub(crate) const FOR_MLX5: [Wanted; 2] = [required("mlx5_core"), required("mlx5_ib")];

/// What the guest loads besides if its adapter has InfiniBand ports: their netdevs. It comes last, so that
/// they are there when it is loaded.
pub(crate) const FOR_INFINIBAND: [Wanted; 1] = [required("ib_ipoib")];

impl Wanted {
    /// A module that somebody has asked for by name.
    pub(crate) fn named(name: &str) -> Self {
        Self {
            name: Cow::Owned(name.replace('-', "_")),
            required: true,
        }
    }
}

/// What the guest loads besides if it has an EFA: a module that is built.
pub(crate) const FOR_EFA: [Wanted; 1] = [required("efa")];

/// What the guest loads besides if it has a wire to another one.
pub(crate) const FOR_WIRE: [Wanted; 1] = [required("virtio_net")];

/// A module, ready to be loaded.
#[derive(Debug)]
pub(crate) struct Module {
    /// Its name, with underscores.
    pub(crate) name: String,
    /// The object file, uncompressed.
    pub(crate) image: Vec<u8>,
}

/// The modules of one kernel.
#[derive(Debug)]
pub(crate) struct Modules {
    directory: PathBuf,
    files: BTreeMap<String, PathBuf>,
    builtin: BTreeSet<String>,
}

impl Modules {
    /// Reads which modules there are in `.../lib/modules/RELEASE`, and in a directory of those that were
    /// built for this kernel.
    ///
    /// # Errors
    /// If a directory cannot be read.
    pub(crate) fn read(directory: &Path, built: Option<&Path>) -> Result<Self> {
        let mut files = BTreeMap::new();
        for directory in built.into_iter().chain([directory]) {
            collect(directory, &mut files)?;
        }
        let builtin = fs::read_to_string(directory.join("modules.builtin")).unwrap_or_default();
        let builtin = builtin
            .lines()
            .filter_map(|line| module_name(Path::new(line)))
            .collect();
        Ok(Self {
            directory: directory.to_path_buf(),
            files,
            builtin,
        })
    }

    /// The wanted modules and all that they need, each after those that it needs.
    ///
    /// # Errors
    /// If a required module is neither there nor built into the kernel, or a file cannot be read.
    pub(crate) fn in_order(&self, wanted: &[Wanted]) -> Result<Vec<Module>> {
        let mut loaded = Vec::new();
        let mut seen = BTreeSet::new();
        for module in wanted {
            if module.required || self.files.contains_key(&*module.name) {
                self.visit(&module.name, &mut seen, &mut loaded)?;
            }
        }
        Ok(loaded)
    }

    /// Loads a module after its dependencies.
    fn visit(
        &self,
        name: &str,
        seen: &mut BTreeSet<String>,
        loaded: &mut Vec<Module>,
    ) -> Result<()> {
        if self.builtin.contains(name) || !seen.insert(name.to_owned()) {
            return Ok(());
        }
        let Some(path) = self.files.get(name) else {
            bail!(
                "the kernel has no module {name} (looked in {})",
                self.directory.display()
            );
        };
        let image = read_module(path)?;
        let dependencies =
            dependencies(&image).with_context(|| format!("reading module {}", path.display()))?;
        for dependency in dependencies {
            self.visit(&dependency, seen, loaded)
                .with_context(|| format!("needed by module {name}"))?;
        }
        loaded.push(Module {
            name: name.to_owned(),
            image,
        });
        Ok(())
    }
}

/// Finds the module files in a tree.
fn collect(directory: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    let entries =
        fs::read_dir(directory).with_context(|| format!("reading {}", directory.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("reading {}", directory.display()))?;
        // Links (`build`, `source`) lead out of the tree.
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            collect(&entry.path(), files)?;
        } else if let Some(name) = module_name(&entry.path()) {
            files.insert(name, entry.path());
        }
    }
    Ok(())
}

/// The name of the module in a file: `xt-foo.ko.xz` holds `xt_foo`. None if it is not a module's file.
fn module_name(path: &Path) -> Option<String> {
    let file = path.file_name()?.to_str()?;
    let (name, rest) = file.split_once(".ko")?;
    matches!(rest, "" | ".xz" | ".zst" | ".gz").then(|| name.replace('-', "_"))
}

/// Reads a module's file, and uncompresses it.
fn read_module(path: &Path) -> Result<Vec<u8>> {
    let failed = || format!("reading module {}", path.display());
    let file = fs::read(path).with_context(failed)?;
    let mut image = Vec::new();
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("ko") => image = file,
        Some("xz") => lzma_rs::xz_decompress(&mut file.as_slice(), &mut image)
            .map_err(|error| anyhow!("{error:?}"))
            .with_context(failed)?,
        Some("zst") => {
            let mut decoder =
                ruzstd::decoding::StreamingDecoder::new(file.as_slice()).with_context(failed)?;
            std::io::Read::read_to_end(&mut decoder, &mut image).with_context(failed)?;
        }
        _ => bail!(
            "{}: only .ko, .ko.xz and .ko.zst can be read",
            path.display()
        ),
    }
    Ok(image)
}

/// The names of the modules that a module needs, by its `depends=` entry.
fn dependencies(image: &[u8]) -> Result<Vec<String>> {
    let file = object::File::parse(image).context("not an object file")?;
    let section = file
        .section_by_name(".modinfo")
        .context("no section .modinfo")?;
    let entries = section.data().context("section .modinfo cannot be read")?;
    Ok(depends_entry(entries))
}

/// Finds `depends=a,b` among the zero-terminated entries of `.modinfo`.
fn depends_entry(entries: &[u8]) -> Vec<String> {
    let texts = entries
        .split(|&byte| byte == 0)
        .filter_map(|entry| std::str::from_utf8(entry).ok());
    let depends = texts.filter_map(|entry| entry.strip_prefix("depends="));
    depends
        .flat_map(|names| names.split(','))
        .filter(|name| !name.is_empty())
        .map(|name| name.replace('-', "_"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A relocatable object with one section, `.modinfo`, as small as the format allows.
    fn object(modinfo: &str) -> Vec<u8> {
        let names = b"\0.modinfo\0.shstrtab\0";
        let data_at = 64;
        let names_at = data_at + modinfo.len();
        let table_at = (names_at + names.len()).next_multiple_of(8);
        let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        for half in [1_u16, 62] {
            file.extend(half.to_le_bytes());
        }
        file.extend(1_u32.to_le_bytes());
        for long in [0_u64, 0, table_at as u64] {
            file.extend(long.to_le_bytes());
        }
        file.extend(0_u32.to_le_bytes());
        for half in [64_u16, 0, 0, 64, 3, 2] {
            file.extend(half.to_le_bytes());
        }
        file.extend(modinfo.as_bytes());
        file.extend(names);
        file.resize(table_at, 0);
        let section = |name: u32, kind: u32, at: usize, size: usize| {
            let mut header = Vec::new();
            header.extend(name.to_le_bytes());
            header.extend(kind.to_le_bytes());
            for long in [0, 0, at as u64, size as u64, 0, 1, 0] {
                header.extend(long.to_le_bytes());
            }
            header
        };
        file.extend(section(0, 0, 0, 0));
        file.extend(section(1, 1, data_at, modinfo.len()));
        file.extend(section(10, 3, names_at, names.len()));
        file
    }

    fn kernel(test: &str) -> Result<PathBuf> {
        let directory =
            std::env::temp_dir().join(format!("vm-modules-{test}-{}", std::process::id()));
        fs::create_dir_all(directory.join("kernel/net"))?;
        fs::write(directory.join("modules.builtin"), "kernel/fs/tmp-fs.ko\n")?;
        fs::write(
            directory.join("kernel/net/top.ko"),
            object("license=GPL\0depends=middle-a,middle_b,tmp-fs\0"),
        )?;
        fs::write(
            directory.join("kernel/middle-a.ko"),
            object("depends=bottom\0"),
        )?;
        fs::write(
            directory.join("kernel/middle_b.ko"),
            object("depends=bottom\0"),
        )?;
        fs::write(directory.join("kernel/bottom.ko"), object("depends=\0"))?;
        Ok(directory)
    }

    #[test]
    fn each_module_comes_once_and_after_what_it_needs() -> Result<()> {
        let directory = kernel("order")?;
        let modules = Modules::read(&directory, None)?.in_order(&[
            required("top"),
            required("bottom"),
            optional("absent"),
        ])?;
        let names: Vec<&str> = modules.iter().map(|module| module.name.as_str()).collect();
        assert_eq!(names, ["bottom", "middle_a", "middle_b", "top"]);
        fs::remove_dir_all(directory)?;
        Ok(())
    }

    #[test]
    fn a_required_module_that_is_missing_is_named() -> Result<()> {
        let directory = kernel("missing")?;
        fs::remove_file(directory.join("kernel/bottom.ko"))?;
        let error = Modules::read(&directory, None)?
            .in_order(&[required("top")])
            .err()
            .map(|error| format!("{error:#}"));
        let error = error.unwrap_or_default();
        assert!(
            error.contains("needed by module top") && error.contains("no module bottom"),
            "{error}"
        );
        fs::remove_dir_all(directory)?;
        Ok(())
    }

    #[test]
    fn names_of_files() {
        assert_eq!(
            module_name(Path::new("kernel/a/xt-foo.ko.xz")).as_deref(),
            Some("xt_foo")
        );
        assert_eq!(module_name(Path::new("modules.builtin")), None);
    }
}
