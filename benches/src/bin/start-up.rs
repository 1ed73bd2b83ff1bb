//! Nothing but a start: from exec to the first protection domain, or to the first completion.
//!
//! `start-up DEVICE pd|completion [memory]`. It ends right there, without cleaning up, so that what is
//! counted is the start alone. With `memory` it first prints the most memory that was resident, in KiB.

use std::error::Error;

use uverbs_bench::pair::Pair;

fn main() -> Result<(), Box<dyn Error>> {
    // A mark for those who watch the system calls: here the program itself begins.
    // SAFETY: asks for a number.
    unsafe { libc::getppid() };
    let mut arguments = std::env::args().skip(1);
    let device = arguments.next().unwrap_or_default();
    let context = uverbs::open(&device)?;
    match arguments.next().as_deref() {
        Some("pd") => end(&context.alloc_pd()?, arguments.next())?,
        Some("completion") => {
            let mut pair = Pair::new(&context, 4096)?;
            let (from, to) = (pair.source.slice(..64)?, pair.target.remote().slice(..64)?);
            let mut batch = pair.here.batch();
            batch.signaled(1).write(from, to)?;
            batch.ring()?;
            while pair.cq.poll()?.iter().next().is_none() {}
            end(&pair, arguments.next())?;
        }
        _ => return Err("usage: start-up DEVICE pd|completion [memory]".into()),
    }
    Ok(())
}

/// Ends the process while everything still is.
fn end<T>(_alive: &T, memory: Option<String>) -> std::io::Result<()> {
    if memory.is_some() {
        let status = std::fs::read_to_string("/proc/self/status")?;
        let line = status.lines().find(|line| line.starts_with("VmHWM:"));
        println!("{}", line.unwrap_or_default());
    }
    // SAFETY: nothing of this process has to be run before it ends.
    unsafe { libc::_exit(0) }
}
