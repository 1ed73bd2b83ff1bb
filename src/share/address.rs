//! Where an offer is found: a Unix socket by its path, or by a name in the abstract namespace.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use rustix::io::Errno;
use rustix::net::SocketAddrUnix;

/// The id of an offer: the address at which its broker listens.
///
/// A path is in the file system, with a file mode. An abstract name is in the network namespace; any process
/// there may take it first, so a joiner checks which user listens before it sends the key. In text form a
/// name starts with `@`; write a relative path that starts with `@` with a leading `./`.
///
/// The directory of a path, and all directories above it, must belong to root or the exporter. No other user
/// may be able to write there, unless the directory is sticky, like `/tmp`. A user who can rename the socket
/// can replace it with their own: joiners then refuse to send the key, unless they trust that user, and no
/// process can join.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// The path of the socket.
    Path(PathBuf),
    /// A name in the abstract namespace.
    Abstract(String),
}

impl Address {
    pub(super) fn to_socket(&self) -> Result<SocketAddrUnix, Errno> {
        match self {
            // The kernel would take it for the empty abstract name.
            Self::Path(path) if path.as_os_str().is_empty() => Err(Errno::INVAL),
            Self::Path(path) => SocketAddrUnix::new(path),
            Self::Abstract(name) => SocketAddrUnix::new_abstract_name(name.as_bytes()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) if path.as_os_str().as_encoded_bytes().starts_with(b"@") => {
                write!(f, "./{}", path.display())
            }
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Abstract(name) => write!(f, "@{name}"),
        }
    }
}

impl FromStr for Address {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text.strip_prefix('@') {
            Some(name) => Self::Abstract(name.into()),
            None => Self::Path(text.into()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a path that the kernel takes for an address of another kind.
    #[test]
    fn no_path_is_a_name() {
        assert_eq!(
            Address::Path("".into()).to_socket().err(),
            Some(Errno::INVAL)
        );
        let with_nul = Address::Path("\0name".into());
        assert_eq!(with_nul.to_socket().err(), Some(Errno::INVAL));
    }

    #[test]
    fn text_comes_back() {
        for address in [
            Address::Path("/run/heap".into()),
            Address::Abstract("heap".into()),
            Address::Abstract("@".into()),
        ] {
            assert_eq!(address.to_string().parse(), Ok(address));
        }
        assert_eq!(Address::Path("@heap".into()).to_string(), "./@heap");
    }
}
