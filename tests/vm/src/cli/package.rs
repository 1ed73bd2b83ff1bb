//! `cargo vm package`.

mod wheel;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Args;

use super::c_abi;
use crate::arch::Arch;
use crate::process;
use crate::store::Store;
use crate::suite;

/// Where the packages are put, beside cargo's own output.
const PLACE: &str = "target/packages";

/// The version of rdma-core whose names the libraries have, which other packages may ask for.
const RDMA_CORE: &str = "65.0";

/// Debian's packages that this one takes the place of.
const INSTEAD_OF: [&str; 4] = [
    "libibverbs1",
    "ibverbs-providers",
    "librdmacm1",
    "librdmacm1t64",
];

/// Make a Debian package and a Python wheel of the libraries for C programs and the command line
///
/// Both have libibverbs.so.1, libmlx5.so.1, libefa.so.1, libmana.so.1, libhns.so.1, librdmacm.so.1 and the
/// program uverbs, built for this machine, and need nothing but the C library and
/// libgcc_s.so.1. They are put into target/packages.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  cargo vm package\n  apt install ./target/packages/uverbs_*.deb\n  \
                        pip install target/packages/uverbs_rdma-*.whl"
)]
pub(crate) struct Package {}

/// What is packed.
struct Contents {
    /// The libraries, by their sonames.
    libraries: Vec<PathBuf>,
    program: PathBuf,
    licences: [PathBuf; 2],
    /// The oldest C library on which all of these run: 2.x.
    glibc: u32,
}

impl Package {
    /// Builds what is packed, and packs it.
    ///
    /// # Errors
    /// If something does not build, or dpkg-deb fails.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let store = Store::open()?;
        let workspace = store.workspace();
        let libraries = c_abi::build(&store)?;
        let program = suite::command_line(&store, Arch::X86_64)?;
        let mut glibc = 0;
        for file in libraries.iter().chain([&program]) {
            let bytes = fs::read(file).with_context(|| format!("reading {}", file.display()))?;
            glibc = glibc.max(newest_glibc(&bytes));
        }
        let contents = Contents {
            libraries,
            program,
            licences: ["LICENSE-APACHE", "LICENSE-MIT"].map(|name| workspace.join(name)),
            glibc,
        };
        let place = workspace.join(PLACE);
        fs::create_dir_all(&place).with_context(|| format!("making {}", place.display()))?;
        println!("{}", contents.debian(&place)?.display());
        println!("{}", wheel::make(&contents, &place)?.display());
        Ok(ExitCode::SUCCESS)
    }
}

/// The newest version of the GNU C library that a program or library names, as the x of 2.x.
fn newest_glibc(file: &[u8]) -> u32 {
    const NAME: &[u8] = b"\0GLIBC_2.";
    let minor = |at: usize| {
        let digits = file[at..].iter().take_while(|byte| byte.is_ascii_digit());
        let number = |all: u32, digit: &u8| all.saturating_mul(10) + u32::from(digit - b'0');
        digits.fold(0, number)
    };
    let names = file.windows(NAME.len()).enumerate();
    names
        .filter(|(_, window)| *window == NAME)
        .map(|(at, _)| minor(at + NAME.len()))
        .max()
        .unwrap_or(0)
}

/// The architecture as Debian names it, and the directory of its libraries.
const ARCHITECTURE: &str = "amd64";
const TRIPLET: &str = "x86_64-linux-gnu";

impl Contents {
    /// Makes the Debian package. All lies in a directory of its own, with links from where programs and the
    /// loader look.
    fn debian(&self, place: &Path) -> Result<PathBuf> {
        let version = env!("CARGO_PKG_VERSION");
        let root = place.join("debian");
        if root.exists() {
            fs::remove_dir_all(&root).with_context(|| format!("removing {}", root.display()))?;
        }
        self.lay_out(&root.join("usr/lib/uverbs"))?;
        let libraries = root.join("usr/lib").join(TRIPLET);
        fs::create_dir_all(&libraries)?;
        for library in &self.libraries {
            let name = file_name(library)?;
            symlink(format!("../uverbs/lib/{name}"), libraries.join(name))?;
        }
        fs::create_dir_all(root.join("usr/bin"))?;
        symlink("../lib/uverbs/bin/uverbs", root.join("usr/bin/uverbs"))?;
        let documents = root.join("usr/share/doc/uverbs");
        fs::create_dir_all(&documents)?;
        fs::write(documents.join("copyright"), self.copyright()?)?;
        let control = root.join("DEBIAN");
        fs::create_dir_all(&control)?;
        let provided = INSTEAD_OF
            .map(|name| format!("{name} (= {RDMA_CORE})"))
            .join(", ");
        let instead_of = INSTEAD_OF.join(", ");
        let text = format!(
            "Package: uverbs\nVersion: {version}\nArchitecture: {ARCHITECTURE}\n\
             Maintainer: The authors of uverbs <uverbs@localhost>\nSection: net\nPriority: optional\n\
             Depends: libc6 (>= 2.{}), libgcc-s1\nProvides: {provided}\n\
             Conflicts: {instead_of}\nReplaces: {instead_of}\n\
             Description: RDMA verbs without libibverbs\n \
             libibverbs.so.1, librdmacm.so.1 and the libraries of providers for programs in C and other\n \
             languages, on the verbs stack in Rust, and its command line.\n",
            self.glibc
        );
        fs::write(control.join("control"), text)?;
        fs::write(control.join("triggers"), "activate-noawait ldconfig\n")?;
        let package = place.join(format!("uverbs_{version}_{ARCHITECTURE}.deb"));
        let mut command = Command::new("dpkg-deb");
        command
            .args(["--root-owner-group", "--build"])
            .args([&root, &package]);
        process::output("making the Debian package", &mut command)?;
        fs::remove_dir_all(&root)?;
        Ok(package)
    }

    /// Lays out the tree in which `uverbs exec` finds the libraries.
    fn lay_out(&self, root: &Path) -> Result<()> {
        for directory in ["bin", "lib"] {
            fs::create_dir_all(root.join(directory))?;
        }
        for library in &self.libraries {
            let to = root.join("lib").join(file_name(library)?);
            fs::copy(library, &to).with_context(|| format!("copying to {}", to.display()))?;
            fs::set_permissions(&to, fs::Permissions::from_mode(0o644))?;
        }
        fs::copy(&self.program, root.join("bin/uverbs")).context("copying the program")?;
        Ok(())
    }

    fn copyright(&self) -> Result<String> {
        let texts = self.licences.iter().map(fs::read_to_string);
        let texts: Vec<String> = texts.collect::<Result<_, _>>()?;
        Ok(format!(
            "uverbs is licensed under either of the two licences that follow.\n\n{}",
            texts.join("\n\n")
        ))
    }
}

fn file_name(path: &Path) -> Result<&str> {
    let name = path.file_name().and_then(|name| name.to_str());
    name.with_context(|| format!("{} has no name", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_c_library_counts() {
        let file = b"\0GLIBC_2.2.5\0memcpy\0GLIBC_2.34\0GLIBC_2.9\0 GLIBC_2.99\0";
        assert_eq!(newest_glibc(file), 34);
        assert_eq!(newest_glibc(b""), 0);
    }
}
