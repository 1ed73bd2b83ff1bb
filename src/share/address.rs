//! Where an offer is found: a Unix socket by its path, or by a name in the abstract namespace.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use rustix::io::Errno;
use rustix::net::SocketAddrUnix;

/// The id of an offer: where its broker listens.
///
/// A path lies in the file system, with a file mode. An abstract name lies in the network namespace; anybody
/// there may take it first, which is why a joiner looks at who listens before it says the key. As text a
/// name is written with a `@` before it.
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
            Self::Path(path) => SocketAddrUnix::new(path),
            Self::Abstract(name) => SocketAddrUnix::new_abstract_name(name.as_bytes()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
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
