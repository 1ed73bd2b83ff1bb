//! What must not reach the kernel: parent domains, thread domains, and the refusal to free what is busy. strace looks
//! over the shoulder of this program, started once more in a role.

use std::process::{Command, ExitCode};

use libtest_mimic::Trial;
use uverbs::{Access, Arena, GuardPages, Rc};

use crate::busy::refused;
use crate::common::traffic::{CAPS, cq_on};
use crate::common::{Result, open, test};
use crate::device::own_path;

/// The first argument of the program in its role under strace.
pub(crate) const ROLE: &str = "role-quiet";

pub(crate) fn tests() -> Vec<Trial> {
    vec![test(
        "quiet::domains_and_refusals_make_no_system_call",
        no_system_call,
    )]
}

/// The steps that are looked at, as the role marks them on standard error.
const STEPS: [&str; 7] = [
    "make a domain",
    "make a nested domain",
    "free a busy domain",
    "free a busy PD",
    "free a busy TD",
    "free the domains",
    "free the TD",
];

/// Calls by which the standard library's allocator gets and returns memory.
const MEMORY: [&str; 5] = ["brk(", "mmap(", "munmap(", "mremap(", "madvise("];

fn no_system_call() -> Result {
    let directory = tempfile::tempdir()?;
    let trace = directory.path().join("trace");
    let output = Command::new("strace")
        .arg("-o")
        .arg(&trace)
        .arg(std::env::current_exe()?)
        .arg(ROLE)
        .output()?;
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let trace = std::fs::read_to_string(&trace)?;
    assert!(trace.contains("ioctl("), "strace sees nothing:\n{trace}");
    for step in STEPS {
        let calls = calls_within(&trace, step)?;
        let calls: Vec<_> = calls
            .iter()
            .filter(|call| !MEMORY.iter().any(|name| call.starts_with(name)))
            .collect();
        assert!(calls.is_empty(), "{step}: {calls:#?}");
    }
    // The real freeing of the PD is seen, so the rest would have been.
    assert!(
        calls_within(&trace, "free the PD")?
            .iter()
            .any(|call| call.starts_with("ioctl("))
    );
    Ok(())
}

/// The system calls between a step's two marks.
fn calls_within<'a>(trace: &'a str, step: &str) -> Result<Vec<&'a str>> {
    let lines: Vec<_> = trace.lines().collect();
    let at = |mark: &str| {
        let mark = format!("\"{mark} {step}\\n\"");
        lines
            .iter()
            .position(|line| line.starts_with("write(2") && line.contains(&mark))
    };
    let (Some(begin), Some(end)) = (at("begin"), at("end")) else {
        return Err(format!("no marks of {step:?} in\n{trace}").into());
    };
    Ok(lines[begin + 1..end].to_vec())
}

/// Plays the role.
pub(crate) fn play(_: &str) -> ExitCode {
    match role() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Does one step between marks.
fn marked<T>(step: &str, run: impl FnOnce() -> T) -> T {
    // Written out beforehand, so that each mark is one write.
    let (begin, end) = (format!("begin {step}\n"), format!("end {step}\n"));
    eprint!("{begin}");
    let result = run();
    eprint!("{end}");
    result
}

fn role() -> Result {
    let context = open()?;
    let pd = context.alloc_pd()?;
    let td = context.alloc_td();
    let arena = Arena::new(vec![0u8; 1 << 20])?;
    let domain = marked(STEPS[0], || {
        pd.parent_domain()
            .thread_domain(&td)
            .allocator(arena)
            .build()
    })?;
    let nested = marked(STEPS[1], || {
        domain.parent_domain().allocator(GuardPages::new()).build()
    })?;

    let cq = cq_on(&nested)?;
    let qp = nested.create_qp::<Rc>(&cq, CAPS)?;
    let mr = nested.register(vec![0u8; 64], Access::empty())?;
    let ah = nested.create_ah(&own_path(&context)?)?;
    let (nested, _) = marked(STEPS[2], || refused(nested));
    let (pd, _) = marked(STEPS[3], || refused(pd));
    let (td, _) = marked(STEPS[4], || refused(td));

    qp.destroy()?;
    cq.destroy()?;
    mr.deregister()?;
    ah.destroy()?;
    marked(STEPS[5], || {
        nested.dealloc().and_then(|()| domain.dealloc())
    })?;
    marked(STEPS[6], || td.dealloc())?;
    Ok(marked("free the PD", || pd.dealloc())?)
}
