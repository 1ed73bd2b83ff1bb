//! The directory of a completion queue, with this driver's entries and reporters.

use super::entries::Entries;
use super::reporter::Reporter;
pub(super) use crate::driver::kit::directory::Report;
use crate::driver::kit::directory::{self, poller};

pub(super) type Directory = directory::Directory<Entries, Reporter>;
pub(super) type Registration = directory::Registration<Entries, Reporter>;
pub(super) type Reporters = poller::Reporters<Reporter>;
