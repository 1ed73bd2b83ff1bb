//! Processes that fork while rings lie in an allocator's memory.

use std::io::{Read, Write};
use std::process::Command;

use libtest_mimic::Trial;
use support::{Device, Result, device, open, skip, test_without_leaks};
use uverbs::alloc::{Allocator, Arena, GuardPages, SharedMemfd};

use crate::kinds::Aligned;
use crate::traffic::on_domain;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test_without_leaks("fork::arena", || {
            disturbs_nothing(Arena::new(vec![0u8; 4 << 20])?)
        }),
        test_without_leaks("fork::guard_pages", || disturbs_nothing(GuardPages::new())),
        test_without_leaks("fork::shared_memfd", || {
            disturbs_nothing(SharedMemfd::new(4 << 20)?)
        }),
        test_without_leaks("fork::aligned", || match device() {
            Device::Rxe => disturbs_nothing(Aligned),
            Device::Mlx5 { .. } | Device::Efa => {
                skip("a fork copies the heap's pages, which rings of an adapter must not lie in")
            }
        }),
    ]
}

/// Traffic before, during and after a child's life, also of a child that runs another program.
fn disturbs_nothing(allocator: impl Allocator) -> Result {
    let context = open()?;
    let pd = context.alloc_pd()?;
    let domain = pd.parent_domain().allocator(allocator).create()?;
    let mut pair = on_domain(&domain)?;
    pair.exchange()?;
    let child = Child::fork()?;
    pair.exchange()?;
    child.end()?;
    pair.exchange()?;
    assert!(Command::new("true").status()?.success());
    pair.exchange()
}

/// A forked process that does nothing until it is told to end.
struct Child {
    pid: libc::pid_t,
    go: std::io::PipeWriter,
}

impl Child {
    fn fork() -> Result<Self> {
        let (mut wait, go) = std::io::pipe()?;
        // SAFETY: the child waits for its end of the pipe and leaves by `_exit`: no locks, no destructors.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let end = wait.read_exact(&mut [0]);
            // SAFETY: ends the process.
            unsafe { libc::_exit(end.is_err().into()) };
        }
        if pid < 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        Ok(Self { pid, go })
    }

    fn end(mut self) -> Result {
        self.go.write_all(&[0])?;
        let mut status = 0;
        // SAFETY: waits for the child that was forked; `status` is where its end goes.
        let waited = unsafe { libc::waitpid(self.pid, &raw mut status, 0) };
        assert_eq!((waited, status), (self.pid, 0));
        Ok(())
    }
}
