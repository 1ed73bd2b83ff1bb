//! The library, with the features that a user gets without asking, pulls in no C library and nothing of the
//! command line, and a program over it can be one static file.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use object::elf::{DT_NEEDED, PT_INTERP};
use object::read::elf::{Dyn, ElfFile64, ProgramHeader};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Cargo, kept from the network: what is needed has been downloaded for this test itself.
fn cargo() -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(cargo);
    command.env("CARGO_NET_OFFLINE", "true");
    command
}

/// The standard output of a command that must succeed.
fn run(command: &mut Command) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    assert!(
        status.success(),
        "{command:?}: {status}\n{}",
        String::from_utf8_lossy(&stderr)
    );
    String::from_utf8(stdout).unwrap()
}

/// The names of what a package is built of, itself among them.
fn dependencies(package: &str) -> BTreeSet<String> {
    dependencies_with(package, &[])
}

/// The same, with arguments that choose the package's features.
fn dependencies_with(package: &str, features: &[&str]) -> BTreeSet<String> {
    let tree = run(cargo()
        .current_dir(root())
        .args(["tree", "--package", package, "--edges", "normal,build"])
        .args(["--prefix", "none", "--format", "{p}"])
        .args(features));
    tree.lines()
        .filter_map(|line| line.split(' ').next())
        .map(str::to_owned)
        .collect()
}

#[test]
fn no_dependency_binds_a_c_library() {
    let names = dependencies("uverbs");
    assert!(
        names.contains("rustix"),
        "no tree of the library: {names:?}"
    );
    let allowed = ["linux-raw-sys", "libc"];
    for name in &names {
        let binds = name.ends_with("-sys") || ["cc", "bindgen", "pkg-config"].contains(&&**name);
        assert!(!binds || allowed.contains(&&**name), "{name} in {names:?}");
    }
}

/// Catches a dependency of the command line that every user of the library would build.
#[test]
fn the_library_is_built_without_the_command_line() {
    let (library, program) = (dependencies("uverbs"), dependencies("uverbs-cli"));
    assert!(program.is_superset(&library), "{library:?}\n{program:?}");
    for name in [
        "clap",
        "comfy-table",
        "hdrhistogram",
        "serde_json",
        "tracing-subscriber",
    ] {
        assert!(program.contains(name), "{name} is not in {program:?}");
        assert!(!library.contains(name), "{name} is in {library:?}");
    }
}

/// Catches a dependency of an optional part that the core would be built with.
#[test]
fn the_core_is_built_without_what_only_optional_parts_need() {
    let core = ["--no-default-features", "--features", "rxe,mlx5"];
    let (core, all) = (dependencies_with("uverbs", &core), dependencies("uverbs"));
    assert!(core.contains("rustix"), "no tree of the core: {core:?}");
    for name in ["memmap2", "nix"] {
        assert!(all.contains(name), "{name} is not in {all:?}");
        assert!(!core.contains(name), "{name} is in {core:?}");
    }
}

/// Makes a package that depends on the library as a user's does, and has the first example as its program.
fn package() -> PathBuf {
    let package = Path::new(env!("CARGO_TARGET_TMPDIR")).join("static");
    fs::create_dir_all(package.join("src")).unwrap();
    let manifest = format!(
        "[package]\nname = \"static\"\nedition = \"2024\"\n\n[workspace]\n\n[dependencies.uverbs]\n\
         path = {:?}\n",
        root()
    );
    let write = |name: &str, contents: &[u8]| {
        // Written only when it changes, so that nothing is built twice.
        let path = package.join(name);
        if fs::read(&path).ok().as_deref() != Some(contents) {
            fs::write(path, contents).unwrap();
        }
    };
    write("Cargo.toml", manifest.as_bytes());
    let example = fs::read(root().join("docs/examples/first.rs")).unwrap();
    write("src/main.rs", &example);
    // The same versions as here, so that they are at hand.
    fs::copy(root().join("Cargo.lock"), package.join("Cargo.lock")).unwrap();
    package
}

/// The target that the compiler makes programs for when it is not told.
fn host() -> String {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| OsString::from("rustc"));
    let version = run(Command::new(rustc).arg("-vV"));
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    host.unwrap().to_owned()
}

/// Builds the package as one static file.
fn build() -> PathBuf {
    let (package, host) = (package(), host());
    // The target is named so that the flags do not reach procedural macros, which cannot be static.
    run(cargo()
        .current_dir(&package)
        .args([
            "build",
            "--quiet",
            "--target",
            &host,
            "--target-dir",
            "target",
        ])
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env("RUSTFLAGS", "-C target-feature=+crt-static"));
    package.join("target").join(host).join("debug/static")
}

#[test]
fn a_program_is_one_static_file() {
    let program = build();
    let bytes = fs::read(&program).unwrap();
    let elf: ElfFile64 = ElfFile64::parse(&*bytes).unwrap();
    let endian = elf.endian();
    for header in elf.elf_program_headers() {
        let kind = header.p_type(endian);
        assert_ne!(kind, PT_INTERP, "the program asks for a dynamic loader");
        for entry in header.dynamic(endian, &*bytes).unwrap().unwrap_or(&[]) {
            let needs = entry.d_tag(endian) == DT_NEEDED;
            assert!(!needs, "the program asks for a shared library");
        }
    }

    // It runs, as far as without a device.
    let output = Command::new(&program).arg("no-such-device").output();
    let Output { status, stderr, .. } = output.unwrap();
    assert_eq!(status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&stderr);
    assert!(stderr.contains("no-such-device"), "{stderr}");
}
