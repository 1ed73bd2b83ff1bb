//! A forked process, which has the files of all identifiers too.

use std::io::{Read, Write};
use std::ptr;

use libtest_mimic::Trial;
use support::{LIMIT, QUIET, Result, fail, same, test_without_leaks};
use uverbs::Rc;
use uverbs::cm::{self, Connection, Event, Link, Params, Pending, RejectReason};

use crate::ground::{Two, request, way_to};
use crate::listen::reason_of;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test_without_leaks("forked::what_is_dropped_ends", what_is_dropped_ends),
        test_without_leaks("forked::a_child_ends_nothing", a_child_ends_nothing),
    ]
}

/// A forked process that stays until it is told to end.
struct Child {
    pid: libc::pid_t,
    go: std::io::PipeWriter,
}

impl Child {
    /// Forks, and waits until the child has done this.
    fn fork(act: impl FnOnce()) -> Result<Self> {
        let (mut wait, go) = std::io::pipe()?;
        let (mut acted, mut tell) = std::io::pipe()?;
        // SAFETY: the child uses no object that another thread may have locked, and leaves by `_exit`,
        // without destructors.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            act();
            let told = tell.write_all(&[0]);
            drop(go);
            let end = told.and_then(|()| wait.read_exact(&mut [0]));
            // SAFETY: ends the process.
            unsafe { libc::_exit(end.is_err().into()) };
        }
        if pid < 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        drop(tell);
        acted.read_exact(&mut [0])?;
        Ok(Self { pid, go })
    }

    fn end(mut self) -> Result {
        self.go.write_all(&[0])?;
        let mut status = 0;
        // SAFETY: waits for the child that was forked; `status` is where its end goes.
        let waited = unsafe { libc::waitpid(self.pid, &raw mut status, 0) };
        same((waited, status), (self.pid, 0), "the child")
    }
}

/// Catches a connection, a request, an attempt or a listener that outlives its drop because a child has its
/// file.
fn what_is_dropped_ends() -> Result {
    let Two {
        active,
        passive,
        here,
        there,
        listener,
    } = Two::new()?;
    let address = listener.local_addr();
    let ask = || -> Result<_> {
        let way = way_to(address)?;
        Ok(way.connect(here.qp()?, &Params::default(), b"")?)
    };
    let (connecting, taken) = (ask()?, request(&listener)?);
    let (given_up, asked) = (ask()?, request(&listener)?);
    let child = Child::fork(|| {})?;
    drop(active);
    let told = passive.link().event_within(LIMIT)?;
    let end = Some(Event::Disconnected { timed_out: false });
    same(told, end, "the connection")?;
    drop(taken);
    let Err(refused) = connecting.within(LIMIT) else {
        return fail("nobody accepted");
    };
    same(
        reason_of(&refused.error)?,
        RejectReason::Consumer,
        "the request",
    )?;
    drop(given_up.cancel());
    // The word of that may come before or after.
    let answered = asked.accept(there.qp()?, &Params::default(), b"");
    let came = answered.is_ok_and(|accepting| accepting.within(LIMIT).is_ok());
    same(came, false, "the attempt that was given up")?;
    drop(listener);
    let again = cm::listen::<Rc>(address)?.start()?;
    same(again.local_addr(), address, "the port")?;
    child.end()
}

/// Catches a connection that ends because a child drops what it has of it.
fn a_child_ends_nothing() -> Result {
    let two = Two::new()?;
    let (qp, link) = two.active.into_parts();
    let drop_it = || {
        // SAFETY: the child's memory is its own, and it does not use the link again.
        drop::<Link>(unsafe { ptr::read(&link) });
    };
    let child = Child::fork(drop_it)?;
    same(
        two.passive.link().event_within(QUIET)?,
        None,
        "what the peer is told",
    )?;
    let mut two = Two {
        active: Connection::from_parts(qp, link),
        ..two
    };
    two.talk()?;
    child.end()
}
