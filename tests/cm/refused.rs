//! Commands to the connection manager that a sandbox refuses, one after the other.

use std::path::Path;

use libtest_mimic::Trial;
use support::refused::{Refused, tell};
use support::role::Role;
use support::{LIMIT, Result, is_full, skip, test_without_leaks};
use uverbs::cm::{self, Params, Pending};
use uverbs::{Error, Rc};

use crate::ground::{Side, listener, request};

pub(crate) const ROLES: [Role; 1] = [("a_connection", || tell(a_connection()))];

pub(crate) fn tests() -> Vec<Trial> {
    ["EPERM", "ENOSYS", "ENOMEM"]
        .map(|errno| {
            let name = format!("refused::each_command_with_{}", errno.to_lowercase());
            test_without_leaks(name, move || each(errno))
        })
        .into()
}

/// The connection manager's file.
const MANAGER: &str = "/dev/infiniband/rdma_cm";

/// Catches a command whose failure is not told or told of another verb, an object that is left, and a process
/// that hangs or panics.
fn each(errno: &str) -> Result {
    if !is_full() {
        return skip("a process for each command: a part of `cargo vm test --full`");
    }
    let refused = Refused {
        role: "a_connection",
        arguments: &[],
        call: "write",
        file: Some(Path::new(MANAGER)),
        errno,
    };
    refused.each(8)
}

/// Both ends of a connection, from the address to the end.
fn a_connection() -> Result {
    let (here, there) = (Side::new()?, Side::new()?);
    let listener = listener()?;
    let way = cm::resolve::<Rc>(listener.local_addr())?.start()?;
    let way = way.within(LIMIT).map_err(Error::from)?;
    let asked = way.connect(here.qp()?, &Params::default(), b"");
    let connecting = asked.map_err(Error::from)?;
    let accepted = request(&listener)?.accept(there.qp()?, &Params::default(), b"");
    let accepting = accepted.map_err(Error::from)?;
    let active = connecting.within(LIMIT).map_err(Error::from)?;
    let passive = accepting.within(LIMIT).map_err(Error::from)?;
    // Each end waits until the other has taken note.
    let active = active.disconnect().map_err(Error::from)?;
    let passive = passive.disconnect().map_err(Error::from)?;
    active.within(LIMIT).map_err(Error::from)?;
    passive.within(LIMIT).map_err(Error::from)?;
    Ok(())
}
