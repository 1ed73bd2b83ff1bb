//! Kernel modules that no stock kernel has: built out of tree, from the distribution's own source, headers
//! and build tools for that kernel.
//!
//! It is done once for each kernel, and what is left is the modules. Another one is a line in [`RECIPES`].

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::apt::{Apt, Installed, Wanted};
use super::cross::{self, Toolchain};
use super::kernel;
use super::progress::Progress;
use super::unpack;
use crate::arch::Arch;
use crate::kernel::Kernel;
use crate::process;
use crate::qemu::Qemu;
use crate::store::Store;

/// A module, by the folder of the kernel's source that it is made of.
struct Recipe {
    name: &'static str,
    folder: &'static str,
    /// The setting of the kernel's configuration that turns it on.
    setting: &'static str,
}

const RECIPES: [Recipe; 1] = [Recipe {
    name: "efa",
    folder: "drivers/infiniband/hw/efa",
    setting: "CONFIG_INFINIBAND_EFA",
}];

/// Settings of a distribution's kernel that its headers have and a module needs not. The first wants
/// `pahole`, the second says that the compiler is of the version that the kernel was made with.
const NOT_NEEDED: [&str; 2] = [
    "CONFIG_DEBUG_INFO_BTF_MODULES=",
    "CONFIG_CC_HAS_MIN_FUNCTION_ALIGNMENT=",
];

/// Counts changes in how modules are built, after which those that are there are built again.
const WAY: u32 = 1;

/// What the stamp of a kernel's modules says.
#[derive(Debug, Deserialize, Serialize)]
struct Stamp {
    /// [`WAY`], as it was then.
    #[serde(default)]
    way: u32,
    /// Their names.
    modules: Vec<String>,
    /// The package that their source is from.
    source: String,
    version: String,
}

/// Whether a module is one of those that are built here.
pub(super) fn has(name: &str) -> bool {
    RECIPES.iter().any(|recipe| recipe.name == name)
}

/// Builds the modules for this kernel, and gives their directory; returns at once if they are there.
///
/// # Errors
/// If the suites do not have the kernel's headers any more, or the modules cannot be built.
pub(crate) fn ensure(
    store: &Store,
    arch: Arch,
    kernel: &Kernel,
    qemu: &Qemu,
    progress: &Progress,
) -> Result<PathBuf> {
    let place = format!("modules/{}", kernel.release);
    let (names, directory) = (RECIPES.map(|recipe| recipe.name), store.path(&place));
    let is_there = |name: &&str| directory.join(format!("{name}.ko")).is_file();
    if let Some(stamp) = store.stamp::<Stamp>(&place)
        && stamp.way == WAY
        && stamp.modules == names
        && names.iter().all(is_there)
    {
        return Ok(directory);
    }
    let compiler = Compiler::of(store, arch, progress)?;
    let Packages {
        headers,
        tools,
        source,
        version,
    } = Packages::find(store, arch, kernel, progress)?;
    let (downloads, tree) = (
        store.path(format!("{place}-packages")),
        store.path(format!("{place}-tree")),
    );
    let mut files = Vec::new();
    for (apt, packages) in [headers, tools] {
        let wanted = Wanted::new(packages, Installed::AllElse);
        files.extend(apt.download(&wanted, &downloads, progress)?);
    }
    unpack::all(&files, &tree, progress)?;
    store.directory(&place)?;
    Tree {
        root: &tree,
        kernel,
        source: &source,
        compiler: &compiler,
    }
    .build(qemu, &directory, progress)?;
    for gone in [&downloads, &tree] {
        fs::remove_dir_all(gone).with_context(|| format!("removing {}", gone.display()))?;
    }
    let stamp = Stamp {
        way: WAY,
        modules: names.map(str::to_owned).to_vec(),
        source: source.clone(),
        version: version.clone(),
    };
    store.write_stamp(&place, &stamp)?;
    let (modules, release) = (names.join(", "), &kernel.release);
    progress.note(&format!(
        "modules for Linux {release} are built ({modules}): {source} {version}"
    ));
    Ok(directory)
}

/// What the modules of a kernel are built from.
struct Packages {
    /// With the headers of exactly this kernel and with its source, from suites of its architecture.
    headers: (Apt, Vec<String>),
    /// With its build tools, which run on this machine.
    tools: (Apt, Vec<String>),
    /// The name of the package of the source.
    source: String,
    /// Its version.
    version: String,
}

impl Packages {
    fn find(store: &Store, arch: Arch, kernel: &Kernel, progress: &Progress) -> Result<Self> {
        let headers = format!("linux-headers-{}", kernel.release);
        let series = kernel::series(&kernel.name);
        let source = format!("linux-source-{series}");
        let suites = kernel::suites(arch, &kernel.name)?;
        for suite in suites {
            let apt = Apt::open(store, arch, &[suite], progress)?;
            let Some(offered) = apt.offered(&headers)? else {
                continue;
            };
            let version = apt
                .offered(&source)?
                .with_context(|| format!("{suite} has no source of Linux {series}"))?
                .version;
            let needed = |prefix: &str| -> Vec<String> {
                let names = offered.depends.iter();
                let is_it = |name: &&String| name.starts_with(prefix);
                names.filter(is_it).cloned().collect()
            };
            let (parts, tools) = (needed("linux-headers-"), needed("linux-kbuild-"));
            let of_kernel = [vec![headers, source.clone()], parts].concat();
            return Ok(Self {
                headers: (apt, of_kernel),
                tools: (Apt::open(store, Arch::X86_64, &[suite], progress)?, tools),
                source,
                version,
            });
        }
        bail!(
            "no {headers} in {}: `cargo vm clean`, to fetch a kernel whose headers are there",
            suites.join(", ")
        )
    }
}

/// What compiles for the kernel's architecture.
enum Compiler {
    /// This machine's.
    Here,
    /// That of arm64.
    Arm64(Toolchain),
}

impl Compiler {
    /// The compiler for this architecture, fetched if it is not there.
    fn of(store: &Store, arch: Arch, progress: &Progress) -> Result<Self> {
        Ok(match arch {
            Arch::X86_64 => Self::Here,
            Arch::Arm64 => Self::Arm64(cross::toolchain(store, progress)?),
        })
    }

    /// The name of one of its programs.
    fn name(&self, tool: &str) -> String {
        match self {
            Self::Here => tool.to_owned(),
            // The headers of arm64 call the others so as well.
            Self::Arm64(_) => format!("aarch64-linux-gnu-{tool}"),
        }
    }

    /// A command that finds its programs.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        // A make above this one would have its own wishes.
        command.env_remove("MAKEFLAGS").env("LC_ALL", "C");
        if let Self::Arm64(toolchain) = self {
            for (variable, first) in [
                ("PATH", &toolchain.programs),
                ("LD_LIBRARY_PATH", &toolchain.libraries),
            ] {
                command.env(variable, process::behind(first, variable));
            }
        }
        command
    }
}

/// The unpacked packages.
struct Tree<'a> {
    root: &'a Path,
    kernel: &'a Kernel,
    /// The name of the package of the source.
    source: &'a str,
    compiler: &'a Compiler,
}

impl Tree<'_> {
    /// Builds all modules into a directory.
    fn build(&self, qemu: &Qemu, into: &Path, progress: &Progress) -> Result<()> {
        let sources = self.root.join("usr/src");
        let headers = sources.join(format!("linux-headers-{}", self.kernel.release));
        self.move_makefile(&headers.join("Makefile"))?;
        if let Some((loader, libraries)) = &qemu.loader {
            start_tools_by(&self.root.join("usr/lib"), loader, libraries)?;
        }
        let of_kernel = self.source;
        progress.step(&format!("unpacking the modules' source of {of_kernel}"));
        let mut unpack = Command::new("tar");
        unpack
            .arg("--extract")
            .arg("--xz")
            .arg("--directory")
            .arg(&sources);
        unpack
            .arg("--file")
            .arg(sources.join(format!("{of_kernel}.tar.xz")));
        unpack.args(RECIPES.map(|recipe| format!("{of_kernel}/{}", recipe.folder)));
        process::output("unpacking the kernel's source", &mut unpack)?;
        for recipe in RECIPES {
            progress.step(&format!("building the module {}", recipe.name));
            let folder = sources.join(of_kernel).join(recipe.folder);
            recipe.build(self.compiler, &headers, &folder)?;
            let (name, half) = (
                format!("{}.ko", recipe.name),
                format!("{}.half", recipe.name),
            );
            // Others may read the one that is there.
            fs::copy(folder.join(&name), into.join(&half))
                .and_then(|_| fs::rename(into.join(&half), into.join(&name)))
                .with_context(|| format!("writing {name} to {}", into.display()))?;
        }
        Ok(())
    }

    /// The headers' makefile names its neighbours by where they are when they are installed.
    fn move_makefile(&self, makefile: &Path) -> Result<()> {
        let failed = || format!("changing {}", makefile.display());
        let text = fs::read_to_string(makefile).with_context(failed)?;
        let here = format!("{}/usr/src/", self.root.display());
        fs::write(makefile, text.replace("/usr/src/", &here)).with_context(failed)
    }
}

impl Recipe {
    fn build(&self, compiler: &Compiler, headers: &Path, folder: &Path) -> Result<()> {
        let mut make = compiler.command("make");
        make.arg("--directory").arg(headers);
        make.arg(format!("M={}", folder.display()));
        make.arg(format!("{}=m", self.setting)).args(NOT_NEEDED);
        // The headers may name a compiler that this machine has in another version.
        make.arg(format!("CC={}", compiler.name("gcc")));
        let jobs = thread::available_parallelism().map_or(1, usize::from);
        make.arg(format!("--jobs={jobs}")).arg("modules");
        process::output("building a module", &mut make)?;
        let mut strip = compiler.command(&compiler.name("strip"));
        if let Compiler::Arm64(_) = compiler {
            // The functions that can be traced. A kernel of arm64 writes before each, at an aligned place;
            // gcc below 14 does not align those that are rarely called, and the kernel ends in a BUG.
            strip.arg("--remove-section=__patchable_function_entries");
        }
        strip
            .arg("--strip-debug")
            .arg(folder.join(format!("{}.ko", self.name)));
        process::output("building a module", &mut strip)?;
        Ok(())
    }
}

/// Has the build tools in this directory started by QEMU's loader with its libraries: they may need a newer C
/// library than this machine's. Some of them find another by their own name, which they keep.
fn start_tools_by(directory: &Path, loader: &Path, libraries: &str) -> Result<()> {
    let failed = || format!("reading {}", directory.display());
    for entry in fs::read_dir(directory).with_context(failed)? {
        let entry = entry.with_context(failed)?;
        let (path, kind) = (entry.path(), entry.file_type().with_context(failed)?);
        if kind.is_dir() {
            start_tools_by(&path, loader, libraries)?;
        } else if kind.is_file() && is_program(&path)? {
            let program = path.with_added_extension("program");
            let script = format!(
                "#!/bin/sh\nexec '{}' --library-path '{libraries}' --argv0 \"$0\" '{}' \"$@\"\n",
                loader.display(),
                program.display()
            );
            fs::rename(&path, &program)
                .and_then(|()| fs::write(&path, script))
                .and_then(|()| fs::set_permissions(&path, Permissions::from_mode(0o755)))
                .with_context(|| format!("changing {}", path.display()))?;
        }
    }
    Ok(())
}

/// Whether a file is an executable in machine code.
fn is_program(path: &Path) -> Result<bool> {
    let failed = || format!("reading {}", path.display());
    let mode = fs::metadata(path)
        .with_context(failed)?
        .permissions()
        .mode();
    let is_library = path.extension().is_some_and(|extension| extension == "so");
    if mode & 0o111 == 0 || is_library {
        return Ok(false);
    }
    Ok(fs::read(path).with_context(failed)?.starts_with(b"\x7fELF"))
}
