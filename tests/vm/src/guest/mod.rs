//! A guest, seen from the host: boot it, run processes in it, read its kernel's log, end it.

mod environment;
mod launch;
pub(crate) mod protocol;
mod session;
mod to_end;
mod trial;
mod turns;

use std::path::PathBuf;

use self::protocol::Network;
use crate::hca::Hca;
use crate::modules::Wanted;
use crate::qemu::Accelerator;

pub(crate) use self::environment::environment;
pub(crate) use self::session::{Event, Guest, Input, Stream};
pub(crate) use self::to_end::{Outcome, to_end};
pub(crate) use self::trial::boots;

/// What a guest is to be like.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// What runs it.
    pub(crate) accelerator: Accelerator,
    /// Memory in MiB.
    pub(crate) memory: u32,
    /// Number of processors.
    pub(crate) cpus: u32,
    /// Its network.
    pub(crate) network: Network,
    /// The adapter made of software, if it has one.
    pub(crate) hca: Option<Hca>,
    /// The program that is the agent there, if it is not this one.
    pub(crate) agent: Option<PathBuf>,
    /// How the names of libraries begin that it must not have, although the host or the tools do.
    pub(crate) without: Option<String>,
    /// Modules besides those that it has in any case.
    pub(crate) modules: Vec<Wanted>,
}
