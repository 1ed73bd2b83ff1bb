//! The project's tests: those of the host by cargo, those of the guest one process each.

mod build;
mod c;
mod c_library;
mod deal;
mod example_agent;
mod guest;
mod host;
mod job;
mod kept;
mod list;
mod record;
mod round;
mod signals;

pub(crate) use self::build::{
    Built, Ground, Program, Sanitized, Sanitizer, Target, agent, binary, command_line,
    programs_of_others, sanitized_c_library, static_binary, tests_of_others,
};
pub(crate) use self::c::{compile as compile_c_programs, compile_sanitized, compile_with_headers};
pub(crate) use self::c_library::CLibrary;
pub(crate) use self::deal::{Cell, Device};
pub(crate) use self::example_agent::{build as build_example_agent, is_of as has_example_agent};
pub(crate) use self::guest::{Limits, name as name_of_guest, run as run_in_guest};
pub(crate) use self::host::run as run_on_host;
pub(crate) use self::job::Job;
pub(crate) use self::kept::Kept;
pub(crate) use self::list::{Suite, read};
pub(crate) use self::record::Record;
pub(crate) use self::round::{Place, Round, deal};
pub(crate) use self::signals::Signals;
