//! A guest, seen from the host: boot it, run processes in it, read its kernel's log, end it.

mod environment;
pub(crate) mod protocol;
mod session;

pub(crate) use self::environment::environment;
pub(crate) use self::session::{Event, Guest, Options, Stream};
