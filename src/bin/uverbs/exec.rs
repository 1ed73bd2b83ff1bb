//! `uverbs exec`: runs a program that is linked to libibverbs on this project's library instead.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use crate::failure::{Failure, Kind, Result};

/// The name with which programs request the library.
pub(crate) const SONAME: &str = "libibverbs.so.1";

/// The version of the symbols that this project's library adds to those of rdma-core.
pub(crate) const OURS: &[u8] = b"\0UVERBS_1\0";

/// The directories where the library may be, relative to the directory of this program: next to it, where a
/// package puts libraries, and where `cargo vm c-abi` leaves it.
const PLACES: [&str; 3] = ["", "../lib", "../c-abi/lib"];

/// The library of connections by address, if it exists: in a directory next to libibverbs's, or in the same
/// one.
const RDMACM: (&str, &str) = ("../rdmacm", "librdmacm.so.1");

const VARIABLE: &str = "LD_LIBRARY_PATH";

const EXAMPLES: &str = "\
Examples:
  uverbs exec -- ibv_devinfo -v
  uverbs exec --library /opt/uverbs/lib -- ib_send_bw -d rxe0

The exit code is the program's. If it cannot be started: 3 if the library or the program does not
exist, 4 if this user may not run it, 2 for invalid options, 1 for anything else.";

/// Run a program that is linked to libibverbs on this project's libibverbs.so.1.
///
/// LD_LIBRARY_PATH puts the library before the system's, for the program and everything that it starts. The
/// same holds for this project's librdmacm.so.1, if it is beside the library. Set-user-ID programs ignore it.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    /// The library, or the directory that contains it
    #[arg(long, value_name = "PATH")]
    library: Option<PathBuf>,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    words: Vec<OsString>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let directory = match &options.library {
        Some(path) => named(path)?,
        None => found()?,
    };
    let [program, arguments @ ..] = options.words.as_slice() else {
        return Err(Failure::new(Kind::Usage, "no program was named"));
    };
    let mut path = in_front(&directory, env::var_os(VARIABLE).as_deref());
    if let Some(rdmacm) = rdmacm(&directory) {
        path = in_front(&rdmacm, Some(&path));
    }
    let error = Command::new(program)
        .args(arguments)
        .env(VARIABLE, path)
        .exec();
    let kind = match error.kind() {
        std::io::ErrorKind::NotFound => Kind::NotFound,
        std::io::ErrorKind::PermissionDenied => Kind::NotPermitted,
        _ => Kind::Failed,
    };
    Err(Failure::new(
        kind,
        format_args!("cannot run {}: {error}", program.display()),
    ))
}

/// The directory of the library that the user named.
fn named(path: &Path) -> Result<PathBuf> {
    let directory = match path.is_dir() {
        true => path,
        false => path.parent().unwrap_or(path),
    };
    let is_it = path.is_dir() || path.file_name() == Some(OsStr::new(SONAME));
    match directory.canonicalize() {
        Ok(directory) if is_it && is_ours(&directory.join(SONAME)) => Ok(directory),
        Ok(directory) if is_it && directory.join(SONAME).is_file() => Err(Failure::new(
            Kind::NotFound,
            format_args!(
                "{} is not this project's library",
                directory.join(SONAME).display()
            ),
        )),
        _ => Err(Failure::new(
            Kind::NotFound,
            format_args!(
                "{} is no {SONAME}, nor a directory that has one",
                path.display()
            ),
        )),
    }
}

/// The directory of the library, found from the path of this program.
fn found() -> Result<PathBuf> {
    let own = env::current_exe().map_err(|error| {
        Failure::new(Kind::Failed, format_args!("this program's path: {error}"))
    })?;
    let places = PLACES.map(|place| own.parent().unwrap_or(&own).join(place));
    let is_there = |place: &&PathBuf| is_ours(&place.join(SONAME));
    match places
        .iter()
        .find(is_there)
        .map(|place| place.canonicalize())
    {
        Some(Ok(place)) => Ok(place),
        _ => {
            let looked = places.each_ref().map(|place| {
                let other = match place.join(SONAME).is_file() {
                    true => " (the one there is not this project's)",
                    false => "",
                };
                format!("{}{other}", place.display())
            });
            Err(Failure::new(
                Kind::NotFound,
                format_args!(
                    "this project's {SONAME} is neither in {}: build it (`cargo vm c-abi`), or name it with \
                     --library",
                    looked.join(" nor in ")
                ),
            ))
        }
    }
}

/// Whether a file is this project's library. Where packages put libraries there may be rdma-core's.
pub(crate) fn is_ours(library: &Path) -> bool {
    let bytes = std::fs::read(library).unwrap_or_default();
    bytes.windows(OURS.len()).any(|window| window == OURS)
}

/// The directory of librdmacm, if it is a different one.
fn rdmacm(directory: &Path) -> Option<PathBuf> {
    let (place, soname) = RDMACM;
    let place = directory.join(place).canonicalize().ok()?;
    place.join(soname).is_file().then_some(place)
}

/// A library path that begins with this directory. An empty entry would name the current directory too.
fn in_front(directory: &Path, path: Option<&OsStr>) -> OsString {
    let mut front = directory.as_os_str().to_owned();
    if let Some(path) = path.filter(|path| !path.is_empty()) {
        front.push(":");
        front.push(path);
    }
    front
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_comes_before_the_path_that_is_there() {
        let path = |rest: Option<&str>| in_front(Path::new("/ours"), rest.map(OsStr::new));
        assert_eq!(path(None), "/ours");
        assert_eq!(path(Some("")), "/ours");
        assert_eq!(path(Some("/a:/b")), "/ours:/a:/b");
    }

    #[test]
    fn a_library_is_named_by_its_file_or_its_directory() {
        let directory = env::temp_dir().join(format!("uverbs-exec-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let library = directory.join(SONAME);
        assert_eq!(named(&directory).unwrap_err().kind(), Kind::NotFound);
        assert_eq!(named(&library).unwrap_err().kind(), Kind::NotFound);
        std::fs::write(&library, "\x7fELF of rdma-core").unwrap();
        for path in [&directory, &library] {
            let failure = named(path).unwrap_err();
            assert_eq!(failure.kind(), Kind::NotFound);
            assert!(failure.to_string().contains("not this project's"));
        }
        std::fs::write(&library, OURS).unwrap();
        let expected = directory.canonicalize().unwrap();
        assert_eq!(named(&directory).unwrap(), expected);
        assert_eq!(named(&library).unwrap(), expected);
        let other = directory.join("libother.so");
        std::fs::write(&other, "").unwrap();
        assert_eq!(named(&other).unwrap_err().kind(), Kind::NotFound);
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
