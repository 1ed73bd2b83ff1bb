//! The project's tests: those of the host by cargo, those of the guest one process each.

mod build;
mod c;
mod guest;
mod host;
mod list;

pub(crate) use self::build::{Ground, Kind, Program, binary, programs, static_binary};
pub(crate) use self::c::compile as compile_c_programs;
pub(crate) use self::guest::{Limits, name as name_of_guest, run as run_in_guest};
pub(crate) use self::host::run as run_on_host;
pub(crate) use self::list::{Suite, read};
