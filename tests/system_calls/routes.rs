//! The ways to the kernel: by ioctl alone, by write(2) alone, and by the best of them, in processes that did
//! not open the file as well.

use libtest_mimic::Trial;
use support::trace::{Trace, traced};
use support::{
    ALL, LIMIT, Pair, Result, Setup, completion, device, only_on_rxe, role, same, talk, test,
};
use uverbs::{Context, Inline, Notify, OpenOptions, Rc, Uc, context::Route};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("routes::ioctl_alone_is_enough", ioctl_alone_is_enough),
        test("routes::write_alone_is_enough", write_alone_is_enough),
        test(
            "routes::the_best_route_needs_no_write_but_the_doorbell",
            best_route,
        ),
        test("routes::other_credentials_fall_to_ioctl", || {
            role::in_process("other_credentials")
        }),
        test("routes::a_forked_child_posts", || {
            only_on_rxe("a child of a fork does not have the adapter's rings")?;
            role::in_process("forked_child")
        }),
    ]
}

pub(crate) const ROLES: [role::Role; 5] = [
    ("everything_by_ioctl", || everything_by(Route::Ioctl)),
    ("everything_by_write", || everything_by(Route::Write)),
    ("everything_by_the_best", || everything_by(Route::Best)),
    ("other_credentials", other_credentials),
    ("forked_child", forked_child),
];

/// Opens the device of this role by a route.
fn open_by(route: Route) -> Result<Context> {
    let device = uverbs::device::find(&role::device()?)?;
    Ok(OpenOptions::new().route(route).open(&device)?)
}

/// Every verb that the library has, once.
fn everything_by(route: Route) -> Result {
    let context = open_by(route)?;
    context.query_device()?;
    context.query_port(1)?;
    context.query_pkey(1, 0)?;
    let table = context.gid_table()?;
    let entry = table.first().ok_or("no GID")?;
    same(context.query_gid(1, entry.index)?.gid, entry.gid, "the GID")?;
    let setup = Setup::default();
    let mut reliable = Pair::<Rc>::on(&context, &setup)?;
    talk::sends(&mut reliable)?;
    talk::writes(&mut reliable)?;
    talk::reads(&mut reliable)?;
    talk::atomics(&mut reliable)?;
    talk::sends(&mut Pair::<Uc>::on(&context, &setup)?)?;
    talk::datagrams(&mut Pair::datagram_on(&context, &setup)?)?;
    same(
        reliable.a.qp.query()?.state,
        uverbs::QpState::RTS,
        "the state",
    )?;
    notification(&context)?;
    same(context.async_events()?.try_next()?, None, "an event")?;
    let Pair { a, b, pd, .. } = reliable;
    a.qp.destroy()?;
    b.qp.destroy()?;
    a.cq.destroy()?;
    b.cq.destroy()?;
    drop((a.mr.deregister()?, b.mr.deregister()?));
    pd.dealloc()?;
    Ok(())
}

/// A completion that is waited for at a channel.
fn notification(context: &Context) -> Result {
    let channel = context.create_channel()?;
    let pd = context.alloc_pd()?;
    let mut cq = context.cq(8).channel(&channel).create()?;
    let mut qp = pd.qp(&cq).create::<Rc>()?;
    let mr = pd.register(vec![0_u8; 8], ALL)?;
    qp.connect(&qp.endpoint()?)?;
    cq.arm(Notify::Next)?;
    let mut batch = qp.batch();
    batch.signaled(1).write(Inline(b"x"), mr.remote())?;
    batch.ring()?;
    let event = channel.wait_for(LIMIT)?.ok_or("no event")?;
    same(event.cq, cq.id(), "the event")?;
    completion(&mut cq)?.ok()?;
    Ok(())
}

/// The system calls on the device's file in a role.
fn calls_on_device(name: &str) -> Result<Trace> {
    let trace = traced(name, device().name(), "ioctl,write")?;
    Ok(trace.only(|call| call.contains("/dev/infiniband/uverbs")))
}

/// Catches a command that has no way but write(2), which a sandbox or a shared file would forbid.
fn ioctl_alone_is_enough() -> Result {
    let calls = calls_on_device("everything_by_ioctl")?;
    same(calls.of("write"), Vec::new(), "calls of write")?;
    match calls.of("ioctl").len() {
        0..50 => {
            Err(format!("hardly any ioctl, so this looked at the wrong thing: {calls:?}").into())
        }
        _ => Ok(()),
    }
}

/// Catches a command that has no way but ioctl, which old kernels lack.
fn write_alone_is_enough() -> Result {
    only_on_rxe("the adapter's registers are mapped by commands that only ioctl has")?;
    let calls = calls_on_device("everything_by_write")?;
    same(calls.of("ioctl"), Vec::new(), "calls of ioctl")?;
    match calls.of("write").len() {
        0..50 => {
            Err(format!("hardly any write, so this looked at the wrong thing: {calls:?}").into())
        }
        _ => Ok(()),
    }
}

/// Catches a command that goes by write(2) although the kernel takes it by ioctl: the doorbell and changes of
/// queue pairs alone do, because it costs less.
fn best_route() -> Result {
    let calls = calls_on_device("everything_by_the_best")?;
    let others: Vec<&str> = calls
        .of("write")
        .into_iter()
        .filter(|call| {
            !["\\34\\0\\0\\0", "\\32\\0\\0\\0"]
                .iter()
                .any(|command| call.contains(command))
        })
        .collect();
    same(others, Vec::new(), "calls of write that are neither")
}

/// Catches a doorbell or a change of a queue pair that fails for good when the process has changed its
/// credentials since it opened the device: the kernel then refuses write(2) with EACCES.
fn other_credentials() -> Result {
    let mut pair = Pair::<Rc>::on(&open_by(Route::Best)?, &Setup::default())?;
    talk::sends(&mut pair)?;
    let nobody = rustix::process::Uid::from_raw(65534);
    rustix::thread::set_thread_res_uid(nobody, nobody, nobody)?;
    // The kernel's word that this is what is tested.
    let refused = rustix::io::write(&pair.context, &[0; 8]).err();
    same(refused, Some(uverbs::error::Errno::ACCESS), "write")?;
    talk::sends(&mut pair)?;
    talk::writes(&mut pair)?;
    let Pair { mut a, .. } = pair;
    a.qp.fail()?;
    same(a.qp.query()?.state, uverbs::QpState::ERR, "the state")?;
    a.qp.destroy()?;
    a.cq.destroy()?;
    Ok(())
}

/// Catches a child that cannot post with the queue pair that it has from its parent, which has another's
/// credentials.
fn forked_child() -> Result {
    let mut pair = Pair::<Rc>::on(&open_by(Route::Best)?, &Setup::default())?;
    talk::sends(&mut pair)?;
    // SAFETY: this process has one thread, so that the child may do what it could do.
    let child = unsafe { libc::fork() };
    match child {
        -1 => Err(std::io::Error::last_os_error().into()),
        0 => {
            let result = talk::writes_inline(&mut pair);
            if let Err(error) = &result {
                eprintln!("in the child: {error}");
            }
            // Nothing is dropped: the objects are the parent's.
            // SAFETY: ends the process, without its destructors.
            unsafe { libc::_exit(i32::from(result.is_err())) }
        }
        child => {
            let pid = rustix::process::Pid::from_raw(child).ok_or("no child")?;
            let status =
                rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty())?;
            let status = status.ok_or("no status")?.1;
            same(status.exit_status(), Some(0), "the child's status")?;
            same(
                pair.b.bytes(0, 5)?,
                b"child".to_vec(),
                "what the child wrote",
            )
        }
    }
}
