//! Offers: processes that join, and die at every step.

use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use support::exchange::{OPEN, over};
use support::{Exchange, Result, open, test_without_leaks};
use uverbs::Cause;
use uverbs::error::Errno;
use uverbs::share::{Address, Join, Joined, ShareKey};

use crate::process::Process;
use crate::roles::join;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test_without_leaks(
            "share::only_users_who_are_allowed",
            only_users_who_are_allowed,
        ),
        test_without_leaks(
            "share::a_crowd_and_no_descriptor_left",
            a_crowd_and_no_descriptor_left,
        ),
        test_without_leaks("share::waits_for_an_offer", waits_for_an_offer),
        test_without_leaks(
            "share::withdrawing_admits_nobody",
            withdrawing_admits_nobody,
        ),
        test_without_leaks(
            "share::lingering_sockets_hold_nobody_up",
            lingering_sockets_hold_nobody_up,
        ),
        test_without_leaks("share::once_per_pd", once_per_pd),
        test_without_leaks(
            "share::joined_pd_carries_traffic",
            joined_pd_carries_traffic,
        ),
        test_without_leaks(
            "share::withdrawn_when_all_have_gone",
            withdrawn_when_all_have_gone,
        ),
        test_without_leaks(
            "share::wrong_key_and_no_exporter",
            wrong_key_and_no_exporter,
        ),
        test_without_leaks("share::memory_comes_along", memory_comes_along),
        test_without_leaks(
            "share::another_region_is_noticed",
            another_region_is_noticed,
        ),
        test_without_leaks(
            "share::foreign_regions_are_refused",
            foreign_regions_are_refused,
        ),
        test_without_leaks("share::without_limits", without_limits),
        test_without_leaks(
            "share::exporter_killed_before_it_serves",
            exporter_killed_before_it_serves,
        ),
        test_without_leaks(
            "share::exporter_killed_after_joining",
            exporter_killed_after_joining,
        ),
        test_without_leaks(
            "share::exporter_killed_during_traffic",
            exporter_killed_during_traffic,
        ),
        test_without_leaks("share::joiner_killed", joiner_killed),
        test_without_leaks(
            "share::three_processes_and_no_exporter",
            three_processes_and_no_exporter,
        ),
        test_without_leaks(
            "share::exporter_in_another_pid_namespace",
            exporter_in_another_pid_namespace,
        ),
    ]
}

/// An address and a key that no other test has.
pub(crate) struct Meeting {
    pub(crate) address: String,
    pub(crate) key: ShareKey,
}

impl Meeting {
    pub(crate) fn new() -> Result<Self> {
        let key = ShareKey::random()?;
        let address = format!("@uverbs-share-{}", std::process::id());
        Ok(Self { address, key })
    }

    /// Hands a process the key by its standard input, where nobody else sees it.
    fn start(&self, role: &str) -> Result<Process> {
        let mut process = Process::start(role, &[&self.address])?;
        process.say(&self.words())?;
        Ok(process)
    }

    /// The key as processes read it.
    pub(crate) fn words(&self) -> String {
        format!("{:016x}", self.key.expose())
    }

    /// An exporter that serves.
    fn exporter(&self) -> Result<Process> {
        let mut exporter = self.start("exporter")?;
        exporter.expect("offered")?;
        exporter.say("serve")?;
        exporter.expect("serving")?;
        Ok(exporter)
    }

    fn join(&self) -> Result<Joined> {
        join(&self.address, self.key.clone())
    }

    pub(crate) fn address(&self) -> Result<Address> {
        Ok(self.address.parse()?)
    }
}

/// Catches a PD that is on offer twice, by itself or as the base of a parent domain, and a free under an
/// offer.
fn once_per_pd() -> Result {
    let meeting = Meeting::new()?;
    let context = open()?;
    let pd = context.alloc_pd()?;
    let domain = pd.parent_domain().create()?;
    let offer = pd.offer(meeting.key.clone()).at(&meeting.address()?)?;
    for pd in [&pd, &*domain] {
        let twice = pd
            .offer(meeting.key.clone())
            .at(&"@another".parse()?)
            .unwrap_err();
        assert!(matches!(twice.cause(), Cause::Busy(_)), "{twice}");
    }
    domain.dealloc()?;
    let busy = pd.dealloc().unwrap_err();
    assert!(busy.error.to_string().contains("1 offer"), "{busy}");
    offer.withdraw()?;
    let again = busy
        .object
        .offer(meeting.key.clone())
        .at(&meeting.address()?)?;
    again.withdraw()?;
    busy.object.dealloc()?;
    Ok(())
}

/// Catches a joiner that fails because it comes before the exporter, and one that does not say for what it
/// waited.
fn waits_for_an_offer() -> Result {
    let key = ShareKey::random()?;
    let path = format!("/tmp/uverbs-wait-{}/socket", std::process::id());
    for address in [path, Meeting::new()?.address] {
        let meeting = Meeting {
            address,
            key: key.clone(),
        };
        let join = Join::new(meeting.address()?, key.clone());
        let soon = Instant::now() + Duration::from_millis(50);
        let late = join.deadline(soon).join().unwrap_err();
        assert_eq!(late.errno(), Some(Errno::TIMEDOUT), "{late}");
        let missing = match meeting.address()? {
            Address::Path(_) => "there was no socket at the path until the deadline",
            Address::Abstract(_) => "nobody listened at the address until the deadline",
        };
        assert_eq!(late.detail(), Some(missing));

        let mut joiner = meeting.start("early-joiner")?;
        joiner.expect("waiting")?;
        if let Some(directory) = std::path::Path::new(&meeting.address).parent() {
            std::fs::create_dir_all(directory)?;
        }
        let exporter = meeting.exporter()?;
        joiner.expect("joined")?;
        joiner.kill()?;
        exporter.finish()?;
    }
    Ok(())
}

/// Catches a joiner that is let in while the offer ends: 64 silent connections are ahead of it.
fn withdrawing_admits_nobody() -> Result {
    let meeting = Meeting::new()?;
    let context = open()?;
    let pd = context.alloc_pd()?;
    let handle = pd.handle();
    let offer = pd.offer(meeting.key.clone()).at(&meeting.address()?)?;
    let mut crowd = Process::start("crowd", &[&meeting.address])?;
    crowd.expect("here")?;
    let join = Join::new(meeting.address()?, meeting.key.clone());
    let joiner = std::thread::spawn(move || join.join());
    // It is in the kernel's queue at the latest when it has waited for an answer for a while.
    std::thread::sleep(Duration::from_millis(100));
    offer.withdraw()?;
    let refused = joiner.join().map_err(|_| "it panics")?.unwrap_err();
    assert!(
        matches!(refused.errno(), Some(Errno::CONNRESET | Errno::CONNREFUSED)),
        "{refused}"
    );
    pd.dealloc()?;
    assert!(!context.pd_handles()?.contains(&handle));
    crowd.kill()
}

/// Catches an exporter whom a passed socket holds up that lingers: of a user who is not allowed, and of one
/// who is.
fn lingering_sockets_hold_nobody_up() -> Result {
    let meeting = Meeting::new()?;
    let context = open()?;
    let pd = context.alloc_pd()?;
    for user in ["1000", "0"] {
        let mut offer = pd.offer(meeting.key.clone()).at(&meeting.address()?)?;
        let mut attacker = Process::start("lingerer", &[&meeting.address, user])?;
        attacker.expect("here")?;
        let start = Instant::now();
        while offer.serve_once(Some(Duration::from_millis(10)))? {}
        let serving = offer.spawn()?;
        let joined = meeting.join()?;
        drop(joined);
        let offer = serving.stop().ok_or("the thread has panicked")?;
        offer.withdraw()?;
        let took = start.elapsed();
        assert!(took < Duration::from_secs(30), "user {user}: {took:?}");
        attacker.kill()?;
    }
    Ok(())
}

/// Catches an offer whose PD or MR is not the exporter's own.
fn joined_pd_carries_traffic() -> Result {
    let meeting = Meeting::new()?;
    let exporter = meeting.exporter()?;
    let mut joined = meeting.join()?;
    over(joined.pd())?;
    let memory = joined.take_mr("memory").ok_or("no such region")?;
    assert!(joined.take_mr("memory").is_none());
    assert_eq!(memory.mr().len(), 8192);
    let mut pair = Exchange::new(joined.pd())?;
    pair.write_to(memory.mr().remote())?;
    pair.read_from(memory.mr().remote())?;
    drop((pair, memory, joined));
    exporter.finish()
}

/// Catches a count of joiners that forgets the objects that stand on a joined PD, or that never goes down.
fn withdrawn_when_all_have_gone() -> Result {
    let meeting = Meeting::new()?;
    let context = open()?;
    let pd = context.alloc_pd()?;
    let serving = pd
        .offer(meeting.key.clone())
        .at(&meeting.address()?)?
        .spawn()?;
    let joined = meeting.join()?;
    let mr = joined.pd().register(vec![0u8; 64], OPEN)?;
    drop(joined);
    let offer = serving.stop().ok_or("the thread has panicked")?;
    let busy = offer.withdraw().unwrap_err();
    assert!(
        matches!(busy.error.cause(), Cause::Busy(_)),
        "the MR still stands on it: {busy}"
    );
    mr.deregister()?;
    busy.object.withdraw()?;
    pd.dealloc()?;
    Ok(())
}

/// Catches a key that is not looked at, one that an error tells, and a refusal that hides that nobody offers.
fn wrong_key_and_no_exporter() -> Result {
    let meeting = Meeting::new()?;
    let exporter = meeting.exporter()?;
    let wrong = ShareKey::new(meeting.key.expose() ^ 1 << 63);
    let denied = Join::new(meeting.address()?, wrong).join().unwrap_err();
    assert_eq!(denied.errno(), Some(Errno::ACCESS), "{denied}");
    assert!(
        !denied
            .to_string()
            .contains(&format!("{:x}", meeting.key.expose()))
    );
    exporter.kill()?;
    let nobody = Join::new(meeting.address()?, meeting.key.clone())
        .join()
        .unwrap_err();
    assert_eq!(nobody.errno(), Some(Errno::CONNREFUSED), "{nobody}");
    Ok(())
}

/// Catches a memfd that comes with the wrong region, or not.
fn memory_comes_along() -> Result {
    let meeting = Meeting::new()?;
    let context = open()?;
    let pd = context.alloc_pd()?;
    let memfd = rustix::fs::memfd_create("shared", rustix::fs::MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&memfd, 8192)?;
    let memory = memmap2::MmapRaw::map_raw(&memfd)?;
    let private = pd.register(vec![0u8; 64], OPEN)?;
    let shared = pd.register(memory, OPEN)?;
    let offer = pd
        .offer(meeting.key.clone())
        .mr("private", &private)
        .mr("shared", &shared);
    let serving = {
        use std::os::fd::AsFd;
        offer
            .memory(memfd.as_fd())
            .at(&meeting.address()?)?
            .spawn()?
    };
    let mut joined = meeting.join()?;
    assert!(joined.mrs()[0].memory().is_none());
    let (mr, file) = joined
        .take_mr("shared")
        .ok_or("no such region")?
        .into_parts();
    let view = memmap2::MmapRaw::map_raw(&file.ok_or("no memory")?)?;
    Exchange::new(joined.pd())?.write_to(mr.remote())?;
    // SAFETY: the mapping is there, and the WRITE has completed.
    let seen = unsafe { std::slice::from_raw_parts(view.as_ptr(), 16) };
    assert!(
        seen.iter().any(|byte| *byte != 0),
        "the WRITE is seen through the other mapping"
    );
    drop((joined, mr));
    serving
        .stop()
        .ok_or("the thread has panicked")?
        .withdraw()?;
    Ok(())
}

/// Catches a joiner that takes the region which has the handle by now for the one that was offered.
fn another_region_is_noticed() -> Result {
    let meeting = Meeting::new()?;
    let pd = open()?.alloc_pd()?;
    let offered = pd.register(vec![0u8; 4096], OPEN)?;
    let handle = offered.handle();
    let offer = pd.offer(meeting.key.clone()).mr("heap", &offered);
    let serving = offer.at(&meeting.address()?)?.spawn()?;
    drop(meeting.join()?);
    offered.deregister()?;
    let gone = meeting.join().unwrap_err();
    println!("{gone}");
    let other = pd.register(vec![0u8; 64], OPEN)?;
    assert_eq!(other.handle(), handle, "the kernel gives the lowest handle");
    let changed = meeting.join().unwrap_err().to_string();
    assert!(changed.contains("deregistered or changed"), "{changed}");
    drop(serving.stop().ok_or("the thread has panicked")?);
    Ok(())
}

/// Catches an offer of a region by a number that is another region's here, and a file that nobody gets.
fn foreign_regions_are_refused() -> Result {
    use std::os::fd::AsFd;
    let meeting = Meeting::new()?;
    let context = open()?;
    let (pd, other) = (context.alloc_pd()?, context.alloc_pd()?);
    let mr = other.register(vec![0u8; 64], OPEN)?;
    let address = meeting.address()?;
    let refused = pd.offer(meeting.key.clone()).mr("heap", &mr).at(&address);
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("belongs to another PD"), "{refused}");
    let file = context.as_fd();
    for offer in [
        pd.offer(meeting.key.clone()).memory(file),
        other
            .offer(meeting.key.clone())
            .mr("heap", &mr)
            .memory(file)
            .memory(file),
    ] {
        let refused = offer.at(&address).unwrap_err().to_string();
        assert!(refused.contains("file of a region"), "{refused}");
    }
    Ok(())
}

/// Catches a limit of "for ever" that a clock cannot count, and panics.
fn without_limits() -> Result {
    let meeting = Meeting::new()?;
    let pd = open()?.alloc_pd()?;
    let offer = pd.offer(meeting.key.clone()).silence(Duration::MAX);
    let serving = offer.at(&meeting.address()?)?.spawn()?;
    let join = Join::new(meeting.address()?, meeting.key.clone()).patience(Duration::MAX);
    drop(join.join()?);
    drop(serving.stop().ok_or("the thread has panicked")?);
    Ok(())
}

/// Catches a joiner that waits for ever for a dead exporter.
fn exporter_killed_before_it_serves() -> Result {
    let meeting = Meeting::new()?;
    let mut exporter = meeting.start("exporter")?;
    exporter.expect("offered")?;
    let request = Join::new(meeting.address()?, meeting.key.clone());
    // The request waits in the kernel's queue of a socket that nobody accepts from.
    let impatient = Join::new(meeting.address()?, meeting.key.clone());
    let late = impatient
        .patience(Duration::from_millis(50))
        .join()
        .unwrap_err();
    assert_eq!(late.errno(), Some(Errno::TIMEDOUT), "{late}");
    let waiting = std::thread::spawn(move || request.join());
    exporter.kill()?;
    let error = waiting.join().map_err(|_| "it panics")?.unwrap_err();
    assert!(
        matches!(
            error.errno(),
            Some(Errno::CONNRESET | Errno::CONNREFUSED | Errno::PIPE)
        ),
        "{error}"
    );
    Ok(())
}

/// Catches a PD or MR that dies with its maker while others use it.
fn exporter_killed_after_joining() -> Result {
    let meeting = Meeting::new()?;
    let exporter = meeting.exporter()?;
    let mut joined = meeting.join()?;
    exporter.kill()?;
    let memory = joined.take_mr("memory").ok_or("no such region")?;
    over(joined.pd())?;
    let mut pair = Exchange::new(joined.pd())?;
    pair.write_to(memory.mr().remote())?;
    pair.read_from(memory.mr().remote())
}

/// As before, at a moment when rings and doorbells are in use.
fn exporter_killed_during_traffic() -> Result {
    let meeting = Meeting::new()?;
    let exporter = meeting.exporter()?;
    let joined = meeting.join()?;
    let mut pair = Exchange::new(joined.pd())?;
    pair.round()?;
    let killer = std::thread::spawn(move || exporter.kill().map_err(|error| error.to_string()));
    while !killer.is_finished() {
        pair.round()?;
    }
    killer.join().map_err(|_| "it panics")??;
    (0..10).try_for_each(|_| pair.round())
}

/// Catches a dead joiner that is counted for ever, and a PD that is freed under what it has left behind.
fn joiner_killed() -> Result {
    let meeting = Meeting::new()?;
    let context = open()?;
    let pd = context.alloc_pd()?;
    let mut offer = pd.offer(meeting.key.clone()).at(&meeting.address()?)?;
    let mut joiner = meeting.start("joiner")?;
    while offer.joiners() == 0 {
        offer.serve_once(None)?;
    }
    joiner.expect("joined")?;
    joiner.say("go")?;
    joiner.expect("traffic")?;
    // It has a QP and two MRs now.
    joiner.hear()?;
    joiner.kill()?;
    while offer.joiners() > 0 {
        offer.serve_once(None)?;
    }
    offer.withdraw()?;
    let busy = pd.dealloc().unwrap_err();
    assert_eq!(busy.error.errno(), Some(Errno::BUSY), "{busy}");
    // The file's end takes all of it.
    drop((busy.object, context));
    Ok(())
}

/// Catches a PD that needs its maker: two others exchange bytes over it after its death.
fn three_processes_and_no_exporter() -> Result {
    let meeting = Meeting::new()?;
    let exporter = meeting.exporter()?;
    let mut joiners = [meeting.start("joiner")?, meeting.start("joiner")?];
    for joiner in &mut joiners {
        joiner.expect("joined")?;
    }
    exporter.kill()?;
    for joiner in &mut joiners {
        joiner.say("go")?;
        joiner.expect("traffic")?;
    }
    let ends = [joiners[0].hear()?, joiners[1].hear()?];
    joiners[0].say(&ends[1])?;
    joiners[1].say(&ends[0])?;
    for step in ["connected", "written", "seen"] {
        for joiner in &mut joiners {
            joiner.expect(step)?;
        }
        joiners
            .iter_mut()
            .try_for_each(|joiner| joiner.say("next"))?;
    }
    let [first, second] = joiners;
    first.kill()?;
    second.finish()
}

/// Catches a process id of 0: as which the kernel shows a process outside of the exporter's namespace.
fn exporter_in_another_pid_namespace() -> Result {
    let meeting = Meeting::new()?;
    let mut exporter = Process::start_apart("exporter", &[&meeting.address])?;
    exporter.say(&format!("{:016x}", meeting.key.expose()))?;
    exporter.expect("offered")?;
    exporter.say("serve")?;
    exporter.expect("serving")?;
    let joined = meeting.join()?;
    over(joined.pd())?;
    drop(joined);
    exporter.finish()
}

/// Catches a socket that other users cannot or all users can use, and a joiner that does not trust root.
fn only_users_who_are_allowed() -> Result {
    let key = ShareKey::random()?;
    let address = format!("/tmp/uverbs-share-{}", std::process::id());
    let meeting = Meeting { address, key };
    let context = open()?;
    let pd = context.alloc_pd()?;
    let offer = pd.offer(meeting.key.clone());
    let serving = offer.allow_user(1000).at(&meeting.address()?)?.spawn()?;
    let start = |user| -> Result<Process> {
        let mut joiner = Process::start("joiner", &[&meeting.address, user])?;
        joiner.say(&format!("{:016x}", meeting.key.expose()))?;
        Ok(joiner)
    };
    let stranger = start("1001")?.hear()?;
    assert!(
        stranger.contains("the exporter or the socket's mode does not allow"),
        "{stranger}"
    );
    assert_eq!(serving.stats().refused_users, 1);
    let mut guest = start("1000")?;
    guest.expect("joined")?;
    guest.say("go")?;
    guest.expect("traffic")?;
    guest.kill()?;
    drop(serving);
    Ok(())
}

/// Catches an exporter that silent clients starve of file descriptors.
fn a_crowd_and_no_descriptor_left() -> Result {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let meeting = Meeting::new()?;
    let context = open()?;
    let pd = context.alloc_pd()?;
    let mut offer = pd.offer(meeting.key.clone()).at(&meeting.address()?)?;
    let mut crowd = Process::start("crowd", &[&meeting.address])?;
    crowd.expect("here")?;
    let mut joiner = meeting.start("joiner")?;
    let limit = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(48),
            ..limit
        },
    )?;
    while offer.joiners() == 0 {
        offer.serve_once(None)?;
    }
    setrlimit(Resource::Nofile, limit)?;
    joiner.expect("joined")?;
    assert!(offer.stats().silent >= 150, "{:?}", offer.stats());
    joiner.kill()?;
    crowd.kill()
}
