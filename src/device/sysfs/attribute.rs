//! Reads single files of sysfs: a missing value is `None`, a malformed one is an error that names the file.

use std::io::{Error, ErrorKind};
use std::path::Path;
use std::str::FromStr;

use crate::device::failure::{Failure, Malformed};
use crate::error::Errno;

/// The text of an attribute without the white space around it; `None` if it is missing or has no value at the
/// moment.
pub(super) fn text(path: &Path) -> Result<Option<String>, Failure> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(error) if error.kind() == ErrorKind::InvalidData => {
            Err(Malformed::from(format!("{} is not UTF-8", path.display())).into())
        }
        Err(error) => absent(error),
    }
}

/// The value of an attribute that is one word.
pub(super) fn parsed<T: FromStr>(path: &Path) -> Result<Option<T>, Failure> {
    let Some(text) = text(path)? else {
        return Ok(None);
    };
    match text.parse() {
        Ok(value) => Ok(Some(value)),
        Err(_) => Err(nonsense(path, &text).into()),
    }
}

/// The number in an attribute of the form `4: ACTIVE`.
pub(super) fn numbered(path: &Path) -> Result<Option<u8>, Failure> {
    let Some(text) = text(path)? else {
        return Ok(None);
    };
    let number = text
        .split_once(':')
        .and_then(|(number, _)| number.parse().ok());
    number.map(Some).ok_or_else(|| nonsense(path, &text).into())
}

/// An attribute that the kernel asks the device for: it has no value if the device fails to answer. The
/// device is there, although the errno usually means that it has gone.
pub(super) fn if_told<T>(value: Result<Option<T>, Failure>) -> Result<Option<T>, Failure> {
    match value {
        Err(Failure::Refused(Errno::IO | Errno::REMOTEIO | Errno::TIMEDOUT | Errno::NOLINK)) => {
            Ok(None)
        }
        value => value,
    }
}

/// The sorted names in a directory; `None` if there is no such directory.
pub(super) fn entries(path: &Path) -> Result<Option<Vec<String>>, Failure> {
    let directory = match std::fs::read_dir(path) {
        Ok(directory) => directory,
        Err(error) => return absent(error),
    };
    let mut names = Vec::new();
    for entry in directory {
        let name = entry.map_err(|error| errno(&error))?.file_name();
        let name = name.into_string();
        names.push(name.map_err(|name| Malformed::from(format!("{name:?} is not UTF-8")))?);
    }
    names.sort_unstable();
    Ok(Some(names))
}

/// The error for an attribute with this text.
pub(super) fn nonsense(path: &Path, text: &str) -> Malformed {
    format!("{} says {text:?}", path.display()).into()
}

/// `None` if the error means that the file or its value does not exist: never, not any more (the device is
/// being removed), or not in this entry of a table (`EINVAL`: the entry is empty).
fn absent<T>(error: Error) -> Result<Option<T>, Failure> {
    match errno(&error) {
        Errno::NOENT | Errno::NOTDIR | Errno::NODEV | Errno::NXIO | Errno::INVAL => Ok(None),
        errno => Err(errno.into()),
    }
}

fn errno(error: &Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
