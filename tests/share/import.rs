//! Contexts, PDs and MRs by descriptor and handle.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use libtest_mimic::Trial;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    sendmsg, socketpair,
};
use support::exchange::{OPEN, over};
use support::{
    Exchange, Result, device, is_full, kernel, open, own_path, skip, test_without_leaks,
};
use uverbs::uapi::handle::{DmHandle, MrHandle, PdHandle};
use uverbs::{Cause, Context, Mr, Pd, context::Route, error::Errno};

use crate::process::{Process, inheritable};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test_without_leaks("import::after_dup", after_dup),
        test_without_leaks("import::after_exec", after_exec),
        test_without_leaks("import::after_scm_rights", after_scm_rights),
        test_without_leaks("import::after_pidfd_getfd", after_pidfd_getfd),
        test_without_leaks("import::after_fork", after_fork),
        test_without_leaks("import::by_another_user", by_another_user),
        test_without_leaks("import::in_another_pid_namespace", in_another_pid_namespace),
        test_without_leaks(
            "import::files_that_are_no_context",
            files_that_are_no_context,
        ),
        test_without_leaks("import::handles_that_are_no_pd", handles_that_are_no_pd),
        test_without_leaks("import::handles_that_are_no_mr", handles_that_are_no_mr),
        test_without_leaks("import::device_memory", device_memory),
        test_without_leaks("import::many_pds", many_pds),
        test_without_leaks("import::own_events", own_events),
        test_without_leaks("import::in_every_verb", in_every_verb),
        test_without_leaks("import::registers_come_back", registers_come_back),
        test_without_leaks("import::letting_go_calls_nobody", letting_go_calls_nobody),
        test_without_leaks("import::pd_freed_for_everyone", pd_freed_for_everyone),
        test_without_leaks(
            "import::mr_deregistered_for_everyone",
            mr_deregistered_for_everyone,
        ),
        test_without_leaks("import::disowned_objects_stay", disowned_objects_stay),
        test_without_leaks(
            "import::dropped_while_others_look",
            dropped_while_others_look,
        ),
    ]
}

fn import(context: &Context) -> Result<Context> {
    Ok(Context::import(context.as_fd().try_clone_to_owned()?)?)
}

fn handle_of(mr: &Mr<Vec<u8>>) -> String {
    mr.handle().0.to_string()
}

/// Catches an import that only looks as if it worked: traffic with payload over it, beside the original's.
fn after_dup() -> Result {
    let context = open()?;
    let pd = context.alloc_pd()?;
    let mr = pd.register(vec![0u8; 4096], OPEN)?;
    let imported = import(&context)?;
    let other = imported.import_pd(pd.handle())?;
    let seen = other.import_mr(mr.handle())?;
    assert_eq!((seen.lkey(), seen.rkey()), (mr.lkey(), mr.rkey()));
    assert_eq!(seen.remote(), mr.remote());
    over(&other)?;
    over(&pd)?;
    let mut pair = Exchange::new(&other)?;
    pair.write_to(seen.remote())?;
    pair.read_from(mr.remote())
}

/// Catches a region, or its PD, that stays because another holder of the file has a command on its handle
/// under way when it is dropped: the kernel then refuses with EBUSY.
fn dropped_while_others_look() -> Result {
    let context = open()?;
    let pd = context.alloc_pd()?;
    let other = import(&context)?.import_pd(pd.handle())?;
    let (looked_at, is_over) = (AtomicU32::new(0), AtomicBool::new(false));
    let registered = std::thread::scope(|scope| {
        scope.spawn(|| {
            // Relaxed, both: there is nothing behind them.
            while !is_over.load(Ordering::Relaxed) {
                // Often the region is gone by then.
                let _ = other.import_mr(MrHandle(looked_at.load(Ordering::Relaxed)));
            }
        });
        let all = (0..1000).try_for_each(|_| {
            let mr = pd.register(vec![0u8; 64], OPEN)?;
            looked_at.store(mr.handle().0, Ordering::Relaxed);
            Ok::<_, uverbs::Error>(())
        });
        is_over.store(true, Ordering::Relaxed);
        all
    });
    registered?;
    drop(other);
    assert_eq!(pd.reclaim(), 0);
    assert_eq!(context.mr_handles()?, []);
    Ok(pd.dealloc()?)
}

/// A context with a PD and an MR whose memory a child writes to.
struct Original {
    context: Context,
    pd: Pd,
    mr: Mr<Vec<u8>>,
}

impl Original {
    fn new() -> Result<Self> {
        let context = open()?;
        let pd = context.alloc_pd()?;
        let mr = pd.register(vec![0u8; 4096], OPEN)?;
        Ok(Self { context, pd, mr })
    }

    /// Has a child import it in some way, and looks that the child's bytes came.
    fn lend(&self, user: u32, way: &str, first: &str, second: &str) -> Result {
        self.lend_to(Process::start, user, way, first, second)
    }

    fn lend_to(
        &self,
        start: impl FnOnce(&str, &[&str]) -> Result<Process>,
        user: u32,
        way: &str,
        first: &str,
        second: &str,
    ) -> Result {
        let (pd, mr) = (self.pd.handle().0.to_string(), handle_of(&self.mr));
        let user = user.to_string();
        let mut child = start("importer", &[&user, way, first, second, &pd, &mr])?;
        child.expect("done")?;
        let mut bytes = [0; 3000];
        self.mr.read_at(0, &mut bytes)?;
        assert!(
            bytes.iter().any(|byte| *byte != 0),
            "the child's WRITE came"
        );
        child.finish()?;
        over(&self.pd)
    }
}

/// Catches commands that the kernel refuses to another process than the opener's, doorbells among them.
fn after_exec() -> Result {
    let original = Original::new()?;
    let (_fd, number) = inheritable(&original.context)?;
    original.lend(0, "inherit", &number, "-")
}

/// As before, by a message.
fn after_scm_rights() -> Result {
    let original = Original::new()?;
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [original.context.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
    sendmsg(
        &ours,
        &[IoSlice::new(b"x")],
        &mut control,
        SendFlags::empty(),
    )?;
    let (_theirs, number) = inheritable(&theirs)?;
    original.lend(0, "scm", &number, "-")
}

/// As before, taken out of the running process.
fn after_pidfd_getfd() -> Result {
    let original = Original::new()?;
    let pid = std::process::id().to_string();
    let number = original.context.as_fd().as_raw_fd().to_string();
    original.lend(0, "pidfd", &pid, &number)
}

/// Catches rings that a forked child shares or loses, and a child's end that destroys its parent's objects.
fn after_fork() -> Result {
    let mut child = Process::start("forker", &[])?;
    child.expect("done")?;
    child.finish()
}

/// Catches a check of the kernel's that binds a file to its opener's credentials.
fn by_another_user() -> Result {
    let original = Original::new()?;
    let (_fd, number) = inheritable(&original.context)?;
    original.lend(1000, "inherit", &number, "-")
}

/// Catches dependence on process ids.
fn in_another_pid_namespace() -> Result {
    let original = Original::new()?;
    let (_fd, number) = inheritable(&original.context)?;
    original.lend_to(Process::start_apart, 0, "inherit", &number, "-")
}

/// Catches an import on trust.
fn files_that_are_no_context() -> Result {
    let plain = Context::import(std::fs::File::open("/proc/self/exe")?.into()).unwrap_err();
    assert!(matches!(plain.cause(), Cause::Invalid(_)), "{plain}");
    let null = Context::import(std::fs::File::open("/dev/null")?.into()).unwrap_err();
    assert!(matches!(null.cause(), Cause::NotFound(_)), "{null}");
    assert!(null.to_string().contains("1:3"), "{null}");
    let (pipe, _writer) = rustix::pipe::pipe()?;
    assert!(matches!(
        Context::import(pipe).unwrap_err().cause(),
        Cause::Invalid(_)
    ));
    let bare = uverbs::devices()?[0].open_chardev()?;
    let bare = Context::import(bare).unwrap_err();
    assert_eq!(bare.errno(), Some(Errno::INVAL), "{bare}");
    assert!(bare.to_string().contains("no context"), "{bare}");
    Ok(())
}

/// Catches handles that are taken on trust: stale, of another file, random, and of another kind.
fn handles_that_are_no_pd() -> Result {
    let original = Original::new()?;
    let imported = import(&original.context)?;
    let refused = |handle| {
        let error = imported.import_pd(handle).unwrap_err();
        assert!(matches!(error.cause(), Cause::NotFound(_)), "{error}");
        error.to_string()
    };
    let gone = original.context.alloc_pd()?;
    let stale = gone.handle();
    imported.import_pd(stale)?.unimport();
    gone.dealloc()?;
    assert!(refused(stale).contains("no object with this handle"));

    let foreign = open()?;
    let strangers: Vec<Pd> = (0..8)
        .map(|_| foreign.alloc_pd())
        .collect::<std::result::Result<_, _>>()?;
    let strange = strangers.last().ok_or("none")?.handle();
    assert!(refused(strange).contains("no object with this handle"));

    for random in [u32::MAX, i32::MAX as u32, 0x8000_0000, 123_456] {
        refused(PdHandle(random));
    }
    let cq = imported.create_cq(4)?;
    assert!(refused(PdHandle(original.mr.handle().0)).contains("an MR"));
    assert!(refused(PdHandle(cq.handle().0)).contains("a CQ"));
    Ok(())
}

/// As before, for memory regions.
fn handles_that_are_no_mr() -> Result {
    let original = Original::new()?;
    let pd = import(&original.context)?.import_pd(original.pd.handle())?;
    let refused = |handle| pd.import_mr(handle).unwrap_err();
    let gone = original.pd.register(vec![0u8; 64], OPEN)?;
    let stale = gone.handle();
    pd.import_mr(stale)?.unimport();
    gone.deregister()?;
    assert_eq!(refused(stale).errno(), Some(Errno::NOENT));
    assert!(refused(MrHandle(u32::MAX)).errno().is_some());
    let wrong = refused(MrHandle(original.pd.handle().0));
    assert_eq!(wrong.errno(), Some(Errno::INVAL), "{wrong}");
    assert!(wrong.to_string().contains("another kind"), "{wrong}");
    Ok(())
}

/// Catches a handle that is taken for device memory where there is none: the kernel does not know the kind of
/// object then. On the adapter there is some, and `dm::import` in `tests/verbs` imports it.
fn device_memory() -> Result {
    let original = open()?;
    if !device().is_rxe() {
        return skip("the adapter has device memory");
    }
    assert_eq!(original.query_device()?.max_dm_size, 0);
    let pd = original.alloc_pd()?;
    let imported = import(&original)?;
    for refused in [
        imported.import_dm(DmHandle(pd.handle().0)).map(drop),
        imported.import_dm(DmHandle(u32::MAX)).map(drop),
        imported.dm_handles().map(drop),
    ] {
        let error = refused.unwrap_err();
        println!("{error}");
        assert!(matches!(error.cause(), Cause::Unsupported(_)), "{error}");
        assert_eq!(error.errno(), Some(Errno::NOENT), "{error}");
        assert!(error.to_string().contains("no DMs"), "{error}");
    }
    // The handle's owner still has it.
    imported.import_pd(pd.handle())?;
    Ok(pd.dealloc()?)
}

/// Catches a list of handles that is cut at the first room that is offered.
fn many_pds() -> Result {
    let context = open()?;
    let pds: Vec<Pd> = (0..700)
        .map(|_| context.alloc_pd())
        .collect::<std::result::Result<_, _>>()?;
    let imported = import(&context)?;
    for pd in &pds {
        imported.import_pd(pd.handle())?;
    }
    let mut listed = imported.pd_handles()?;
    listed.sort_unstable();
    let mut expected: Vec<PdHandle> = pds.iter().map(Pd::handle).collect();
    expected.sort_unstable();
    assert_eq!(listed, expected);
    Ok(())
}

/// Catches two contexts of one file that take events away from each other.
fn own_events() -> Result {
    let context = open()?;
    let imported = import(&context)?;
    let (ours, theirs) = (context.async_events()?, imported.async_events()?);
    assert_ne!(ours.as_fd().as_raw_fd(), theirs.as_fd().as_raw_fd());
    assert_eq!(ours.try_next()?, None);
    assert_eq!(theirs.try_next()?, None);
    Ok(())
}

/// Catches a verb that takes no imported PD: each that takes a PD is given one, a parent domain over it too.
fn in_every_verb() -> Result {
    let context = uverbs::OpenOptions::new()
        .route(Route::Best)
        .open(&uverbs::devices()?[0])?;
    let pd = context.alloc_pd()?;
    let imported = import(&context)?.import_pd(pd.handle())?;
    let td = imported.context().alloc_td();
    let domain = imported.parent_domain().thread_domain(&td).create()?;
    over(&domain)?;
    let cq = imported.context().cq(8).domain(&domain).create()?;
    let qp = domain.create_qp::<uverbs::Ud>(&cq, uverbs::Caps::default())?;
    let ah = imported.create_ah(&own_path(imported.context())?)?;
    ah.destroy()?;
    drop((qp, cq));
    // Busy by what stands on it here is found without the kernel, as for any PD.
    let busy = imported.dealloc_for_everyone().unwrap_err();
    assert!(matches!(busy.error.cause(), Cause::Busy(_)), "{busy}");
    domain.dealloc()?;
    busy.object.unimport();
    pd.dealloc()?;
    Ok(())
}

/// Catches pages of registers that are not freed with the context that allocated them, because another holds
/// the file: the software adapter has 1024. Whatever is dropped last.
fn registers_come_back() -> Result {
    if !device().is_mlx5() {
        return skip("mlx5 shares registers out");
    }
    if !is_full() && kernel() < (7, 2) {
        return skip("so many take long: one kernel, or `cargo vm test --full`");
    }
    let context = open()?;
    for round in 0..600 {
        let imported = import(&context)?;
        let (pd, cq) = (imported.alloc_pd()?, imported.create_cq(1)?);
        let td = imported.alloc_td();
        let domain = pd.parent_domain().thread_domain(&td).create()?;
        let caps = uverbs::Caps::default();
        let alone = pd.create_qp::<uverbs::Rc>(&cq, caps)?;
        let in_domain = domain.qp(&cq).caps(caps).create_in_domain::<uverbs::Rc>()?;
        match round % 3 {
            0 => drop((alone, in_domain, domain, pd, cq, td, imported)),
            1 => drop((imported, td, cq, pd, domain, in_domain, alone)),
            _ => drop((imported, alone, in_domain, domain, pd, cq, td)),
        }
    }
    context.create_cq(1)?.destroy()?;
    open()?.create_cq(1)?.destroy()?;
    Ok(())
}

/// Catches a destroy that hides in a drop: the child would be killed by its own filter.
fn letting_go_calls_nobody() -> Result {
    let original = Original::new()?;
    let (_fd, number) = inheritable(&original.context)?;
    let arguments = [
        number,
        original.pd.handle().0.to_string(),
        handle_of(&original.mr),
    ];
    Process::start("silent", &arguments.each_ref().map(String::as_str))?.finish()?;
    assert!(
        original
            .context
            .pd_handles()?
            .contains(&original.pd.handle())
    );
    assert!(
        original
            .context
            .mr_handles()?
            .contains(&original.mr.handle())
    );
    over(&original.pd)
}

/// Catches a free that the others do not notice, and one that goes through while they use the PD.
fn pd_freed_for_everyone() -> Result {
    let Original { context, pd, mr } = Original::new()?;
    let handle = pd.handle();
    let other = import(&context)?;
    let busy = other.import_pd(handle)?.dealloc_for_everyone().unwrap_err();
    assert_eq!(
        busy.error.errno(),
        Some(Errno::BUSY),
        "an MR of the other stands on it"
    );
    let imported = busy.object;
    mr.deregister()?;
    let disowned = pd.disown();
    imported.dealloc_for_everyone()?;
    assert!(context.pd_handles()?.is_empty());
    let gone = disowned.dealloc_for_everyone().unwrap_err();
    assert_eq!(gone.error.errno(), Some(Errno::NOENT), "it is freed once");
    // The handle goes to the next PD, which the drop of the disowned one must not free.
    let next = context.alloc_pd()?;
    drop(gone.object);
    assert!(context.pd_handles()?.contains(&next.handle()));
    Ok(())
}

/// As before, for a memory region.
fn mr_deregistered_for_everyone() -> Result {
    let Original { context, pd, mr } = Original::new()?;
    let other = import(&context)?.import_pd(pd.handle())?;
    let imported = other.import_mr(mr.handle())?;
    let disowned = mr.disown();
    // SAFETY: nothing is posted, and the region was disowned.
    unsafe { imported.deregister_for_everyone() }?;
    assert!(context.mr_handles()?.is_empty());
    // SAFETY: as before.
    let gone = unsafe { disowned.deregister_for_everyone() }.unwrap_err();
    assert_eq!(gone.error.errno(), Some(Errno::NOENT));
    Ok(())
}

/// Catches an owner that destroys what it has given away.
fn disowned_objects_stay() -> Result {
    let Original { context, pd, mr } = Original::new()?;
    let (pd_handle, mr_handle) = (pd.handle(), mr.handle());
    let other = import(&context)?;
    drop(mr.disown());
    drop(pd.disown());
    drop(context);
    let pd = other.import_pd(pd_handle)?;
    let mr = pd.import_mr(mr_handle)?;
    Exchange::new(&pd)?.write_to(mr.remote())?;
    Ok(())
}
