//! The packages that `cargo vm package` makes are enough for a program that is linked to libibverbs: the
//! Debian package in a root that has the C library and nothing of rdma-core, and the wheel in a directory.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};

use libtest_mimic::{Arguments, Completion, Trial};

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// The programs of the newest suite that run in the root.
const SUITE: &str = "sid";

/// What a program needs besides the package, in the root as in the suite's tree.
const SURROUNDINGS: [&str; 6] = [
    "usr/bin/ibv_devices",
    "usr/bin/ibv_devinfo",
    "usr/lib64/ld-linux-x86-64.so.2",
    "usr/lib/x86_64-linux-gnu/libc.so.6",
    "usr/lib/x86_64-linux-gnu/libgcc_s.so.1",
    "usr/lib/x86_64-linux-gnu/libm.so.6",
];

fn main() -> ExitCode {
    let tests = vec![
        Trial::ignorable_test("debian", || where_it_is(".deb", debian)),
        Trial::ignorable_test("wheel", || where_it_is(".whl", wheel)),
    ];
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Runs a test with the package of this ending, if there is one.
fn where_it_is(
    ending: &str,
    test: impl FnOnce(&Path) -> Result<Option<String>>,
) -> std::result::Result<Completion, libtest_mimic::Failed> {
    let files = fs::read_dir(workspace().join("target/packages"));
    let mut files = files
        .into_iter()
        .flatten()
        .filter_map(|file| Some(file.ok()?.path()));
    let Some(package) = files.find(|file| file.to_string_lossy().ends_with(ending)) else {
        return Ok(Completion::ignored_with(
            "`cargo vm package` has made no package",
        ));
    };
    Ok(match test(&package)? {
        None => Completion::Completed,
        Some(why) => Completion::ignored_with(why),
    })
}

/// Catches a package that needs something that it does not name, and links that lead nowhere.
fn debian(package: &Path) -> Result<Option<String>> {
    let suite = workspace().join(format!("target/vm/tools-{SUITE}"));
    if !suite.join(SURROUNDINGS[0]).is_file() {
        return Ok(Some(format!(
            "the programs of {SUITE} are not there: `cargo vm fetch` fetches them"
        )));
    }
    let root = tempfile::tempdir()?;
    let root = root.path();
    succeed(
        Command::new("dpkg-deb")
            .arg("--extract")
            .args([package, root]),
    )?;
    for name in SURROUNDINGS {
        let to = root.join(name);
        fs::create_dir_all(to.parent().unwrap_or(root))?;
        fs::copy(suite.join(name), to)?;
    }
    for name in ["lib64", "lib"] {
        std::os::unix::fs::symlink(format!("usr/{name}"), root.join(name))?;
    }
    fs::create_dir(root.join("proc"))?;
    let within = |words: &[&str]| {
        let mut command = Command::new("unshare");
        command
            .args([
                "--map-root-user",
                "--mount",
                "--pid",
                "--fork",
                "--mount-proc",
                "--root",
            ])
            .arg(root)
            .args(words);
        command
    };
    // An empty list has the same heading as a full one.
    let devices = |words: &[&str]| -> Result {
        let output = succeed(&mut within(words))?;
        match String::from_utf8_lossy(&output.stdout).contains("node GUID") {
            true => Ok(()),
            false => Err(format!("{words:?}: {output:?}").into()),
        }
    };
    if let Err(error) = succeed(&mut within(&["/usr/bin/uverbs", "--version"])) {
        // Who may not make namespaces cannot try it.
        return match succeed(Command::new("unshare").args(["--map-root-user", "true"])) {
            Ok(_) => Err(error),
            Err(refused) => Ok(Some(format!("no root of its own: {refused}"))),
        };
    }
    devices(&["/usr/bin/ibv_devices"])?;
    devices(&["/usr/bin/uverbs", "exec", "--", "/usr/bin/ibv_devices"])?;
    Ok(None)
}

/// Catches a wheel that Python's installer does not take, and one whose libraries or program are not found.
fn wheel(package: &Path) -> Result<Option<String>> {
    let place = tempfile::tempdir()?;
    let mut install = Command::new("python3");
    install
        .args([
            "-m",
            "pip",
            "install",
            "--no-index",
            "--no-deps",
            "--quiet",
            "--target",
        ])
        .args([place.path(), package]);
    if succeed(Command::new("python3").args(["-m", "pip", "--version"])).is_err() {
        return Ok(Some("there is no python3 with pip".to_owned()));
    }
    succeed(&mut install)?;
    let python = |words: &[&str]| -> Result<String> {
        let mut command = Command::new("python3");
        command.args(words).env("PYTHONPATH", place.path());
        Ok(String::from_utf8(succeed(&mut command)?.stdout)?)
    };
    let libraries: PathBuf = place.path().join("uverbs_rdma/lib").canonicalize()?;
    let words = [
        "-m",
        "uverbs_rdma",
        "exec",
        "--",
        "sh",
        "-c",
        "echo $LD_LIBRARY_PATH",
    ];
    let path = python(&words)?;
    if !path.starts_with(&*libraries.to_string_lossy()) {
        return Err(format!("the libraries are not in front: {path}").into());
    }
    // What is loaded is found by its name from then on.
    let loaded = python(&[
        "-c",
        "import ctypes, uverbs_rdma; uverbs_rdma.load(); \
         ctypes.CDLL('libibverbs.so.1').ibv_get_device_list; ctypes.CDLL('librdmacm.so.1').rdma_create_id; \
         print(open('/proc/self/maps').read())",
    ])?;
    for name in ["libibverbs.so.1", "librdmacm.so.1"] {
        if !loaded.contains(&libraries.join(name).display().to_string()) {
            return Err(format!("{name} is not the wheel's: {loaded}").into());
        }
    }
    Ok(None)
}

/// Runs a command, which must end well.
fn succeed(command: &mut Command) -> Result<Output> {
    let output = command.output()?;
    match output.status.success() {
        true => Ok(output),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(format!("{command:?}: {}: {said}", output.status).into())
        }
    }
}
