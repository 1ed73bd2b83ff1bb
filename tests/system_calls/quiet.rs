//! What must not reach the kernel: parent domains, thread domains, and the refusal to free what is busy.

use libtest_mimic::Trial;
use support::trace::{mark, names, traced};
use support::{Result, device, fail, own_path, role, same, test};
use uverbs::{
    Access, Caps, Error, Rc,
    alloc::{Arena, GuardPages},
    error::DestroyError,
};

pub(crate) fn tests() -> Vec<Trial> {
    vec![test(
        "quiet::domains_and_refusals_make_no_system_call",
        no_system_call,
    )]
}

pub(crate) const ROLES: [role::Role; 1] = [("domains_and_refusals", domains_and_refusals)];

/// The steps that are looked at. The last one reaches the kernel, so that it is seen that the others would
/// have been seen.
const STEPS: [&str; 8] = [
    "make a domain",
    "make a nested domain",
    "free a busy domain",
    "free a busy PD",
    "free a busy TD",
    "free the domains",
    "free the TD",
    "free the PD",
];

/// Calls by which the standard library's allocator gets and returns memory.
const MEMORY: [&str; 5] = ["brk", "mmap", "munmap", "mremap", "madvise"];

/// Catches a verb that asks the kernel for what only this library knows, and a refusal that is the kernel's.
fn no_system_call() -> Result {
    let trace = traced("domains_and_refusals", device().name(), "all")?;
    let sections = trace.sections();
    // Behind each step but the last is what prepares the next.
    let steps = sections.iter().step_by(2);
    same(steps.len(), STEPS.len(), "steps in the trace")?;
    for (step, calls) in STEPS.iter().zip(steps) {
        let mut calls = names(calls);
        calls.retain(|name| !MEMORY.contains(&name.as_str()));
        let expected = match *step {
            "free the PD" => vec!["ioctl".to_owned()],
            _ => Vec::new(),
        };
        same(calls, expected, step)?;
    }
    Ok(())
}

/// Does one step between marks.
fn marked<T>(step: impl FnOnce() -> T) -> T {
    mark();
    let result = step();
    mark();
    result
}

/// The object, after a refusal to free it.
fn refused<T>(freed: std::result::Result<(), DestroyError<T>>) -> Result<(T, Error)> {
    match freed {
        Ok(()) => fail("it was freed under its users"),
        Err(DestroyError { object, error }) => Ok((object, error)),
    }
}

fn domains_and_refusals() -> Result {
    let context = uverbs::open(&role::device()?)?;
    let pd = context.alloc_pd()?;
    let td = context.alloc_td();
    let arena = Arena::new(vec![0u8; 1 << 20])?;
    let domain = marked(|| {
        let builder = pd.parent_domain().thread_domain(&td);
        builder.allocator(arena).create()
    })?;
    let nested = marked(|| domain.parent_domain().allocator(GuardPages::new()).create())?;

    let cq = context.cq(8).domain(&nested).create()?;
    let qp = nested.create_qp::<Rc>(&cq, Caps::default())?;
    let mr = nested.register(vec![0u8; 64], Access::empty())?;
    let ah = nested.create_ah(&own_path(&context)?)?;
    let (nested, _) = refused(marked(|| nested.dealloc()))?;
    let (pd, _) = refused(marked(|| pd.dealloc()))?;
    let (td, _) = refused(marked(|| td.dealloc()))?;

    qp.destroy()?;
    cq.destroy()?;
    mr.deregister()?;
    ah.destroy()?;
    marked(|| nested.dealloc().and_then(|()| domain.dealloc()))?;
    marked(|| td.dealloc())?;
    Ok(marked(|| pd.dealloc())?)
}
