//! What is asked of the kernel: on the data path nothing but one doorbell for a batch of sends on soft-RoCE, and nothing
//! at all on the adapter; for a protection domain one call to make it and one to free it; for what only this library knows
//! nothing.

use libtest_mimic::Trial;
use uverbs::{GuardPages, OpenOptions, Rc, Route};

use crate::common::trace::traced;
use crate::common::{Pair, Result, Setup, completions, only_on_rxe, role, test};
use crate::device::device;
use crate::talk::same;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("syscalls::the_data_path_by_the_best_route", || {
            data_path("data_path", "write")
        }),
        test("syscalls::the_data_path_by_ioctl", || {
            data_path("data_path_by_ioctl", "ioctl")
        }),
        test("syscalls::connecting", connecting),
        test("syscalls::protection_domains", protection_domains),
    ]
}

pub(crate) const ROLES: [role::Role; 4] = [
    ("connects", connects),
    ("protection_domains", domain_stages),
    ("data_path", || stages(Route::Best)),
    ("data_path_by_ioctl", || stages(Route::Ioctl)),
];

/// Batches of sends in their stage.
const BATCHES: usize = 5;

/// Marks the end of a stage in the trace, by a call that nothing else here makes.
fn mark() {
    let _ = rustix::process::getppid();
}

/// The stages whose system calls are counted, with a mark before and after each.
fn stages(route: Route) -> Result {
    let device = uverbs::find(&role::device()?)?;
    let context = OpenOptions::new().route(route).open(&device)?;
    let mut pair = Pair::<Rc>::connected_on(&context, &Setup::default())?;
    let slice = pair.b.mr.slice(..64)?;
    mark();
    // Polling an empty queue.
    let mut found = 0;
    for _ in 0..100 {
        found += pair.a.cq.poll()?.iter().count();
    }
    mark();
    // Posting receives.
    for id in 0..10 {
        let mut batch = pair.b.qp.recv();
        for _ in 0..BATCHES {
            // SAFETY: the memory outlives the queue pair, and is not looked at.
            unsafe { batch.post(id, slice)? };
        }
        batch.ring()?;
    }
    mark();
    // Posting sends, among them batches that are empty or dropped.
    for _ in 0..BATCHES {
        let mut batch = pair.a.qp.send();
        for id in 0..7 {
            batch.send_inline(b"one doorbell for all")?.signaled(id);
        }
        batch.ring()?;
        let mut dropped = pair.a.qp.send();
        dropped.send_inline(b"no doorbell for none")?;
        drop(dropped);
        pair.a.qp.send().ring()?;
    }
    mark();
    // What was sent comes: in the time that it takes, other calls are made.
    let all = completions(&mut pair.b.cq, BATCHES * 7)?;
    completions(&mut pair.a.cq, BATCHES * 7 - 1)?;
    mark();
    // Polling a queue that has something.
    while found == 0 {
        found += pair.a.cq.poll()?.iter().count();
    }
    mark();
    same("the messages that came", all.len(), BATCHES * 7)?;
    same("the completions that were polled", found, 1)
}

/// Catches a lock, an allocation that grows, a clock or a doorbell too many on the data path.
fn data_path(name: &str, doorbell: &str) -> Result {
    let trace = traced(name, device().name(), "all")?;
    let sections = trace.sections("getppid(");
    let [poll, receives, sends, _, poll_hit] = sections.as_slice() else {
        return Err(format!("{} stages in the trace", sections.len()).into());
    };
    let none: &[String] = &[];
    same("system calls of polling nothing", *poll, none)?;
    same("system calls of posting receives", *receives, none)?;
    same("system calls of polling a completion", *poll_hit, none)?;
    let names: Vec<_> = sends
        .iter()
        .filter_map(|call| call.split('(').next())
        .collect();
    same(
        "system calls of posting sends",
        names,
        match device().is_rxe() {
            true => vec![doorbell; BATCHES],
            false => Vec::new(),
        },
    )?;
    match sends
        .iter()
        .find(|call| !call.contains("/dev/infiniband/uverbs"))
    {
        None => Ok(()),
        Some(call) => Err(format!("a doorbell on another file: {call}").into()),
    }
}

/// Connects a queue pair to itself, with a mark before and after telling its end and connecting.
fn connects() -> Result {
    let context = uverbs::open(&role::device()?)?;
    let cq = context.create_cq(8)?;
    let mut qp = context.alloc_pd()?.qp(&cq).create::<Rc>()?;
    mark();
    let endpoint = qp.endpoint()?;
    mark();
    qp.connect(&endpoint)?;
    mark();
    Ok(())
}

/// Catches questions about the port that have been answered: one for its attributes and one for its GIDs will do, and
/// connecting is three transitions.
fn connecting() -> Result {
    only_on_rxe("what is counted are the calls that soft-RoCE needs")?;
    let trace = traced("connects", "rxe0", "all")?;
    let sections = trace.sections("getppid(");
    let [telling, connecting] = sections.as_slice() else {
        return Err(format!("{} stages in the trace", sections.len()).into());
    };
    let names = |calls: &[String]| -> Vec<String> {
        let names = calls.iter().filter_map(|call| call.split('(').next());
        names.map(str::to_owned).collect()
    };
    same(
        "telling",
        names(telling),
        vec!["ioctl".into(), "ioctl".into(), "getrandom".into()],
    )?;
    same("connecting", names(connecting), vec!["ioctl".to_owned(); 3])
}

/// Protection domains and what stands for them, with a mark before and after each stage.
fn domain_stages() -> Result {
    let context = uverbs::open(&role::device()?)?;
    // Before, so that memory has been found and it is known what the kernel has.
    let kept = context.alloc_pd()?;
    context.alloc_pd()?.dealloc()?;
    let domain = kept.parent_domain().allocator(GuardPages::new()).build()?;
    domain.dealloc()?;
    mark();
    for _ in 0..PDS {
        context.alloc_pd()?.dealloc()?;
    }
    mark();
    let td = context.alloc_td();
    let domain = kept.parent_domain().thread_domain(&td);
    let domain = domain.allocator(GuardPages::new()).build()?;
    let outer = domain.parent_domain().build()?;
    if td.dealloc().is_ok() || domain.dealloc().is_ok() {
        return Err("something that is in use could be freed".into());
    }
    outer.dealloc()?;
    mark();
    let imported = context.import_pd(kept.handle())?;
    mark();
    imported.unimport();
    mark();
    Ok(())
}

/// Protection domains that are made and freed in their stage.
const PDS: usize = 3;

/// Catches a verb of the family that asks the kernel for more than its manual page says.
fn protection_domains() -> Result {
    let trace = traced("protection_domains", device().name(), "all")?;
    let sections = trace.sections("getppid(");
    let names = |calls: &[String]| -> Vec<String> {
        let name = |call: &String| call.split('(').next().unwrap_or_default().to_owned();
        calls.iter().map(name).collect()
    };
    let [pds, domains, import, unimport] = sections.as_slice() else {
        return Err(format!("{} stages in the trace", sections.len()).into());
    };
    same(
        "calls for protection domains",
        names(pds),
        vec!["ioctl".to_owned(); 2 * PDS],
    )?;
    same("calls for parent domains", names(domains), vec![])?;
    // The kernel's list of handles, and where the driver has one its own question.
    let questions = if device().is_rxe() { 1 } else { 2 };
    let asked = vec!["ioctl".to_owned(); questions];
    same("calls to import", names(import), asked)?;
    same("calls to unimport", names(unimport), vec![])
}
