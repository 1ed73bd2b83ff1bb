//! Files of sysfs, which librdmacm and ibv_devinfo read through the library.

use std::ffi::{CStr, CString, OsString, c_char, c_int, c_void};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::failure::{Failure, Result, number};
use crate::error::Errno;

/// The longest path that libibverbs takes from the environment.
const PATH_MAX: usize = 256;

/// The mount point of sysfs: `SYSFS_PATH`, unless the program runs with the rights of another user.
fn sysfs() -> &'static CStr {
    static ROOT: OnceLock<CString> = OnceLock::new();
    ROOT.get_or_init(|| {
        let named = std::env::var_os("SYSFS_PATH").filter(|_| super::log::is_own());
        let named = named.and_then(|path| {
            let bytes = path.as_bytes();
            let bytes = &bytes[..bytes.len().min(PATH_MAX)];
            let end = bytes.iter().rposition(|byte| *byte != b'/');
            CString::new(&bytes[..end.map_or(0, |end| end + 1)]).ok()
        });
        named.unwrap_or_else(|| c"/sys".to_owned())
    })
}

/// `ibv_get_sysfs_path`, which no manual page describes.
pub extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    sysfs().as_ptr()
}

/// `ibv_read_sysfs_file`, which no manual page describes: the text of a file, without the newline at its end,
/// and its length.
pub unsafe extern "C" fn ibv_read_sysfs_file(
    directory: *const c_char,
    file: *const c_char,
    to: *mut c_void,
    room: usize,
) -> c_int {
    // SAFETY: the caller passes two texts, and room of this length, which may be NULL if it is 0.
    let (directory, file, to) = unsafe {
        (
            CStr::from_ptr(directory),
            CStr::from_ptr(file),
            match room {
                0 => &mut [],
                _ => std::slice::from_raw_parts_mut(to.cast::<u8>(), room),
            },
        )
    };
    number(read_text(&path(directory, file), to))
}

/// The path of a file below a directory. The directory may be "", even if the file's name begins with a
/// slash.
fn path(directory: &CStr, file: &CStr) -> PathBuf {
    let bytes = [directory.to_bytes(), b"/", file.to_bytes()].concat();
    OsString::from_vec(bytes).into()
}

fn read_text(path: &Path, to: &mut [u8]) -> Result<c_int> {
    let read = File::open(path).and_then(|mut file| file.read(to));
    let length = read.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let length = match to[..length].last() {
        None => 0,
        Some(b'\n') => length - 1,
        Some(_) if length == to.len() => return Err(Failure(Errno::NAMETOOLONG)),
        Some(_) => length,
    };
    if let Some(end) = to.get_mut(length) {
        *end = 0;
    }
    Ok(length as c_int)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_below_its_directory_however_it_is_named() {
        let named = |directory, file| path(directory, file).to_str().unwrap().to_owned();
        assert_eq!(named(c"/sys/class", c"net/eth0"), "/sys/class/net/eth0");
        assert_eq!(
            named(c"/sys/class/net", c"/eth0/mtu"),
            "/sys/class/net//eth0/mtu"
        );
        assert_eq!(named(c"", c"class/net"), "/class/net");
    }
}
