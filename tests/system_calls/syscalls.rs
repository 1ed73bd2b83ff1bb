//! What is asked of the kernel: on the data path nothing but one doorbell for a batch of sends on soft-RoCE,
//! and nothing at all on the adapter; for a protection domain one call to make it and one to free it; for
//! what only this library knows nothing.

use libtest_mimic::Trial;
use support::trace::{mark, names, traced};
use support::{
    Pair, Result, Setup, completion, completions, device, is_sanitized, only_on_rxe, role, same,
    skip, test,
};
use uverbs::{
    Caps, ConnectOptions, Inline, Notify, OpenOptions, Rc, Ud, alloc::GuardPages, context::Route,
};

type Named = (&'static str, fn() -> Result);

pub(crate) fn tests() -> Vec<Trial> {
    let tests: [Named; 6] = [
        ("syscalls::the_data_path_by_the_best_route", || {
            data_path("data_path", "write")
        }),
        ("syscalls::the_data_path_by_ioctl", || {
            data_path("data_path_by_ioctl", "ioctl")
        }),
        ("syscalls::connecting", connecting),
        ("syscalls::waiting_for_events", waiting_for_events),
        ("syscalls::protection_domains", protection_domains),
        ("syscalls::address_handles", address_handles),
    ];
    tests
        .map(|(name, run)| {
            test(name, move || match is_sanitized() {
                true => skip("the sanitizer maps memory between the calls that are counted"),
                false => run(),
            })
        })
        .into()
}

pub(crate) const ROLES: [role::Role; 6] = [
    ("makes_address_handles", makes_address_handles),
    ("connects", connects),
    ("waits", waits),
    ("protection_domains", domain_stages),
    ("data_path", || stages(Route::Best)),
    ("data_path_by_ioctl", || stages(Route::Ioctl)),
];

/// Batches of sends in their stage.
const BATCHES: usize = 5;

/// The stages whose system calls are counted, with a mark before and after each.
fn stages(route: Route) -> Result {
    let device = uverbs::device::find(&role::device()?)?;
    let context = OpenOptions::new().route(route).open(&device)?;
    let mut pair = Pair::<Rc>::on(&context, &Setup::default())?;
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
        let mut batch = pair.b.qp.recv_batch();
        for _ in 0..BATCHES {
            batch.post(id, slice)?;
        }
        batch.ring();
    }
    mark();
    // Posting sends, among them batches that are empty or dropped.
    for _ in 0..BATCHES {
        let mut batch = pair.a.qp.batch();
        for id in 0..7 {
            batch.signaled(id).send(Inline(b"one doorbell for all"))?;
        }
        batch.ring()?;
        let mut dropped = pair.a.qp.batch();
        dropped
            .unsignaled(0)
            .send(Inline(b"no doorbell for none"))?;
        drop(dropped);
        pair.a.qp.batch().ring()?;
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
    same(all.len(), BATCHES * 7, "the messages that came")?;
    same(found, 1, "the completions that were polled")
}

/// Catches a lock, an allocation that grows, a clock or a doorbell too many on the data path.
fn data_path(name: &str, doorbell: &str) -> Result {
    let trace = traced(name, device().name(), "all")?;
    let sections = trace.sections();
    let [poll, receives, sends, _, poll_hit] = sections.as_slice() else {
        return Err(format!("{} stages in the trace", sections.len()).into());
    };
    let none: &[String] = &[];
    same(*poll, none, "system calls of polling nothing")?;
    same(*receives, none, "system calls of posting receives")?;
    same(*poll_hit, none, "system calls of polling a completion")?;
    let doorbells = if device().is_rxe() { BATCHES } else { 0 };
    let expected = vec![doorbell.to_owned(); doorbells];
    same(names(sends), expected, "system calls of posting sends")?;
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

/// Catches questions about the port that have been answered: one for its attributes and one for its GIDs will
/// do, and connecting is one for the GID that was told and three transitions.
fn connecting() -> Result {
    only_on_rxe("what is counted are the calls that soft-RoCE needs")?;
    let trace = traced("connects", "rxe0", "all")?;
    let sections = trace.sections();
    let [telling, connecting] = sections.as_slice() else {
        return Err(format!("{} stages in the trace", sections.len()).into());
    };
    same(
        names(telling),
        vec!["ioctl".into(), "ioctl".into(), "getrandom".into()],
        "telling",
    )?;
    // Whether the GID that the peer was told is still there, and the transitions.
    let expected = ["ioctl", "write", "write", "write"].map(str::to_owned);
    same(names(connecting), expected.to_vec(), "connecting")
}

/// Calls that waiting might make, and the mark. Not every architecture has poll(2).
const WAITING: &str = "read,?poll,ppoll,fcntl,getppid";

/// Events that are waited for.
const EVENTS: usize = 5;

/// Waits for events without a limit, then looks twice without waiting, with a mark before and after each.
fn waits() -> Result {
    let context = uverbs::open(&role::device()?)?;
    let channel = context.create_channel()?;
    let cq = context.cq(8).channel(&channel).create()?;
    let mut pair = Pair::<Rc>::reporting_to(cq, context.create_cq(8)?, &Setup::default())?;
    mark();
    for id in 0..EVENTS {
        pair.a.cq.arm(Notify::Next)?;
        let to = pair.b.mr.remote();
        pair.a.qp.one(id as u64).write(Inline(b"x"), to)?;
        channel.wait()?;
        completion(&mut pair.a.cq)?.ok()?;
    }
    mark();
    let early = channel.try_next()?;
    mark();
    let late = channel.try_next()?;
    mark();
    same(
        [early, late],
        [None; 2],
        "an event of a queue that is not armed",
    )
}

/// Catches a wait that asks whether there is an event before it sleeps, or a file that is made non-blocking
/// for nobody or again and again.
fn waiting_for_events() -> Result {
    let trace = traced("waits", device().name(), WAITING)?;
    let sections = trace.sections();
    let [waits, early, late] = sections.as_slice() else {
        return Err(format!("{} stages in the trace", sections.len()).into());
    };
    same(names(waits), vec!["read".to_owned(); EVENTS], "waiting")?;
    same(
        names(early),
        vec!["fcntl".to_owned(), "fcntl".into(), "read".into()],
        "looking",
    )?;
    same(names(late), vec!["read".to_owned()], "looking again")
}

/// Protection domains and what stands for them, with a mark before and after each stage.
fn domain_stages() -> Result {
    let context = uverbs::open(&role::device()?)?;
    // Before, so that memory has been found and it is known what the kernel has.
    let kept = context.alloc_pd()?;
    context.alloc_pd()?.dealloc()?;
    let domain = kept.parent_domain().allocator(GuardPages::new()).create()?;
    domain.dealloc()?;
    mark();
    for _ in 0..PDS {
        context.alloc_pd()?.dealloc()?;
    }
    mark();
    let td = context.alloc_td();
    let domain = kept.parent_domain().thread_domain(&td);
    let domain = domain.allocator(GuardPages::new()).create()?;
    let outer = domain.parent_domain().create()?;
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
    let sections = trace.sections();
    let [pds, domains, import, unimport] = sections.as_slice() else {
        return Err(format!("{} stages in the trace", sections.len()).into());
    };
    same(
        names(pds),
        vec!["ioctl".to_owned(); 2 * PDS],
        "calls for protection domains",
    )?;
    same(names(domains), vec![], "calls for parent domains")?;
    // The kernel's list of handles, and where the driver has one its own question.
    let questions = if device().is_rxe() { 1 } else { 2 };
    let asked = vec!["ioctl".to_owned(); questions];
    same(names(import), asked, "calls to import")?;
    same(names(unimport), vec![], "calls to unimport")
}

/// Makes an address handle, and then another and destroys it with a mark before and after each.
fn makes_address_handles() -> Result {
    let context = uverbs::open(&role::device()?)?;
    let pd = context.alloc_pd()?;
    let qp = pd.create_qp::<Ud>(&context.create_cq(8)?, Caps::default())?;
    let path = context.path_to(&qp.endpoint()?, &ConnectOptions::default())?;
    let first = pd.create_ah(&path)?;
    mark();
    let second = pd.create_ah(&path)?;
    mark();
    second.destroy()?;
    mark();
    first.destroy()?;
    Ok(())
}

/// Catches a question about the port that has been answered, and a command for a path of which the kernel
/// need not know: within an InfiniBand subnet. On Ethernet mlx5 asks what kind of GID the path starts from.
fn address_handles() -> Result {
    let device = device();
    let trace = traced(
        "makes_address_handles",
        device.name(),
        "ioctl,write,getppid",
    )?;
    let sections = trace.sections();
    let [made, destroyed] = sections.as_slice() else {
        return Err(format!("{} stages in the trace", sections.len()).into());
    };
    let expected = match (device.is_rxe(), !device.has_gids()) {
        (true, _) => [1, 1],
        (false, true) => [0, 0],
        (false, false) => [2, 1],
    };
    same(
        [made.len(), destroyed.len()],
        expected,
        "calls to make one, and to destroy it",
    )
}
