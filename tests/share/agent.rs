//! Queue pairs that are handed over to an agent, which is another process: what it posts and polls, what
//! becomes of the queue when it is killed, and whom it can hurt.
//!
//! The [agent](crate::hand) has three files and a value of plain bytes, and of this library's nothing but
//! the package of formats.

use std::fs::File;
use std::ops::Range;
use std::process::Command;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, PoisonError};

use libtest_mimic::Trial;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::retry_on_intr;
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::{Value, json};
use support::exchange::OPEN;
use support::pair::options;
use support::program;
use support::wait::{PROCESS, QUIET, until, until_within};
use support::{
    Control, Exchange, Result, completion, device, fail, is_full, kernel, open, pattern, same,
    says, skip, test_without_leaks,
};
use uverbs::alloc::{BufferCounts, Counting, Udmabuf, UnmappedDmabuf};
use uverbs::cq::Notify;
use uverbs::handover::{Overrun, Region};
use uverbs::mr::RawMemory;
use uverbs::qp::{DeviceQueue, QpAttr, Reclaimed};
use uverbs::{Caps, Cause, Context, Cq, Endpoint, Error, Mr, ParentDomain, Qp, QpState, Rc};
use uverbs_queue::mlx5::agent::{Mapped, Space};
use zerocopy::IntoBytes;

use crate::hand::{SLOT, SLOTS, mapped};
use crate::process::{Process, inheritable};
use crate::roles::{hear, inherited, say, wait_for_parent};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test_without_leaks("agent::posts_and_polls", posts_and_polls),
        test_without_leaks("agent::receives", receives),
        test_without_leaks("agent::its_rings_are_mapped_nowhere_else", unmapped),
        test_without_leaks("agent::ignores_overrun", ignores_overrun),
        test_without_leaks("agent::watches_one_place", watches_one_place),
        test_without_leaks("agent::its_doorbells_come_late", late),
        test_without_leaks("agent::is_killed_and_its_queue_taken_back", is_killed),
        test_without_leaks(
            "agent::outlives_its_owner_and_a_supervisor_ends_it",
            outlives,
        ),
        test_without_leaks("agent::fails_with_its_owner", fails_with_its_owner),
        test_without_leaks("agent::the_example_has_one_without_std", example),
        test_without_leaks("agent::nonsense_hurts_nobody_else", nonsense),
        test_without_leaks("agent::rings_on_its_page_alone", page),
        test_without_leaks("agent::pages_come_back", pages),
        test_without_leaks("agent::what_is_not_idle_is_refused", not_idle),
        test_without_leaks("agent::refused_by_name_elsewhere", elsewhere),
    ]
}

/// Whether queues can be handed over here.
fn can() -> bool {
    device().is_mlx5() && kernel() >= (7, 2)
}

fn only_where_they_can() -> Result {
    match can() {
        true => Ok(()),
        false => skip("queues are handed over on mlx5, since Linux 7.2"),
    }
}

const CAPS: Caps = Caps {
    max_send_wr: 64,
    max_recv_wr: 4,
    max_send_sge: 1,
    max_recv_sge: 1,
    max_inline_data: 0,
};

/// More than a send ring of those has blocks.
const ENTRIES: u32 = 511;

/// Memory that the owner registers and the agent maps: a source slot and a target slot for each request.
struct Data {
    file: File,
    mr: Mr<RawMemory>,
}

impl Data {
    fn new(pd: &ParentDomain, bytes: usize) -> Result<Self> {
        let file = memfd_create("data", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, bytes as u64)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping touches no memory of ours.
        let base = unsafe { mmap(ptr::null_mut(), bytes, access, MapFlags::SHARED, &file, 0)? };
        let base = NonNull::new(base.cast::<u8>()).ok_or("mapped at 0")?;
        // SAFETY: it stays mapped until the process ends, and nobody here has references to it.
        let memory = unsafe { RawMemory::new(base, bytes) };
        Ok(Self {
            file: file.into(),
            mr: pd.register(memory, OPEN).map_err(Error::from)?,
        })
    }
}

/// The owner's side: a queue pair for the agent, and the peer that it is connected to.
struct Owner {
    context: Context,
    domain: ParentDomain,
    peer: Qp<Rc>,
    peers_cq: Cq,
    target: Mr<Vec<u8>>,
}

/// What is handed over, before it is.
struct Own {
    qp: Qp<Rc>,
    cq: Cq,
    data: File,
    mr: Mr<RawMemory>,
}

type Away = DeviceQueue<Rc, Mr<RawMemory>>;

fn owner() -> Result<(Owner, Own)> {
    owner_with(|domain| Ok(domain.context().cq(ENTRIES).domain(domain).create()?))
}

/// A queue pair for an agent, on a domain with rings in a dma-buf.
fn for_agent(domain: &ParentDomain, cq: &Cq) -> Result<Qp<Rc>> {
    Ok(domain.qp(cq).caps(CAPS).for_agent().create::<Rc>()?)
}

fn domain(context: &Context) -> Result<ParentDomain> {
    let rings = Udmabuf::new(1 << 20)?;
    let pd = context.alloc_pd()?;
    Ok(pd.parent_domain().allocator(rings).create()?)
}

/// As [`owner`], with this completion queue.
fn owner_with(cq: impl FnOnce(&ParentDomain) -> Result<Cq>) -> Result<(Owner, Own)> {
    let context = open()?;
    let domain = domain(&context)?;
    owner_on(context, domain, cq)
}

/// As [`owner_with`], on this domain.
fn owner_on(
    context: Context,
    domain: ParentDomain,
    cq: impl FnOnce(&ParentDomain) -> Result<Cq>,
) -> Result<(Owner, Own)> {
    let cq = cq(&domain)?;
    let mut qp = for_agent(&domain, &cq)?;
    let peers_cq = context.create_cq(16)?;
    // Nothing of the peer's is in the agent's domain.
    let others = context.alloc_pd()?;
    let mut peer = others.create_qp::<Rc>(&peers_cq, CAPS)?;
    connect(&mut qp, &mut peer)?;
    let target = others.register(vec![0u8; SLOT * SLOTS], OPEN)?;
    let data = Data::new(&domain, SLOT * SLOTS)?;
    let owner = Owner {
        context,
        domain,
        peer,
        peers_cq,
        target,
    };
    let Data { file, mr } = data;
    let own = Own {
        qp,
        cq,
        data: file,
        mr,
    };
    Ok((owner, own))
}

fn connect(a: &mut Qp<Rc>, b: &mut Qp<Rc>) -> Result {
    let (at_a, at_b) = (a.endpoint()?, b.endpoint()?);
    a.connect_with(&at_b, &options())?;
    Ok(b.connect_with(&at_a, &options())?)
}

impl Owner {
    /// Hands the queue over and starts the agent.
    fn hand_over(&self, own: Own) -> Result<(Away, Process)> {
        let Own { qp, cq, data, mr } = own;
        // SAFETY: the domain has no other region.
        let queue = unsafe { qp.into_device(cq, vec![mr]) }.map_err(|refused| refused.error)?;
        let process = self.start(&queue, &data)?;
        Ok((queue, process))
    }

    fn start(&self, queue: &Away, data: &File) -> Result<Process> {
        start(queue, data, &hex(told(&self.target).as_bytes()))
    }

    /// Waits until the slot of a request has come.
    fn await_slot(&self, number: u64) -> Result {
        let mut bytes = [0; SLOT];
        let slot = (number % SLOTS as u64) as usize * SLOT;
        until_within(PROCESS, "a slot", || {
            self.target.read_at(slot, &mut bytes)?;
            Ok((bytes[..] == pattern(number, SLOT)[..]).then_some(()))
        })
    }

    /// Fails unless the slots of these requests have come, byte by byte.
    fn came(&self, first: u64, count: u64) -> Result {
        let mut bytes = [0; SLOT];
        for number in first..first + count {
            let slot = (number % SLOTS as u64) as usize;
            self.target.read_at(slot * SLOT, &mut bytes)?;
            same(&bytes[..], &pattern(number, SLOT)[..], "what was written")?;
        }
        Ok(())
    }
}

/// What an agent is told of its peer's memory.
fn told(target: &Mr<Vec<u8>>) -> Region {
    let remote = target.remote();
    Region {
        address: remote.address,
        length: remote.length,
        lkey: 0,
        rkey: remote.rkey.0,
    }
}

/// Starts the agent of a queue, which may write to the target that these digits tell of.
fn start(queue: &Away, data: &File, target: &str) -> Result<Process> {
    let [dmabuf] = queue.dmabufs() else {
        return fail("not one dma-buf");
    };
    let (_command, command) = inheritable(queue.context())?;
    // SAFETY: the queue is away, and nothing else lies in the dma-buf.
    let (_dmabuf, dmabuf) = inheritable(unsafe { dmabuf.file() })?;
    let (_data, data) = inheritable(data)?;
    let mut process = Process::start("agent", &[&command, &dmabuf, &data])?;
    process.say(&hex(queue.handover().as_bytes()))?;
    process.say(target)?;
    process.expect("ready")?;
    Ok(process)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Sends bytes of the owner's own over the connection.
fn use_again(owner: &mut Owner, back: Reclaimed<Rc, Mr<RawMemory>>) -> Result {
    let Reclaimed {
        mut qp,
        mut cq,
        regions,
    } = back;
    same(qp.state(), QpState::RESET, "the state")?;
    owner.peer.reset()?;
    connect(&mut qp, &mut owner.peer)?;
    let [mut mr] = <[_; 1]>::try_from(regions).map_err(|_| "not one region")?;
    // More than the completion queue has entries, so that it goes round.
    for number in 0..2 * u64::from(ENTRIES) {
        let slot = (number % SLOTS as u64) as usize * SLOT;
        mr.write_at(slot, &pattern(number, SLOT))?;
        let to = owner.target.remote().slice(slot..slot + SLOT)?;
        qp.one(number).write(mr.slice(slot..slot + SLOT)?, to)?;
        let done = completion(&mut cq)?.ok()?;
        same(done.wr_id, number, "the request")?;
    }
    owner.came(2 * u64::from(ENTRIES) - SLOTS as u64, SLOTS as u64)
}

/// Catches an agent that cannot post or poll, bytes that are lost or wrong, and counts that go wrong where
/// they wrap: of the rings, of the laps, and in a long run of the device's 16 bits.
fn posts_and_polls() -> Result {
    only_where_they_can()?;
    let requests: u64 = if is_full() { 1_000_000 } else { 5_000 };
    let (mut owner, own) = owner()?;
    let (queue, mut agent) = owner.hand_over(own)?;
    for first in (0..requests).step_by(SLOTS) {
        agent.say(&format!("write {first} {SLOTS}"))?;
        agent.expect("done")?;
        owner.came(first, SLOTS as u64)?;
    }
    same(queue.query()?.state, QpState::RTS, "the state")?;
    agent.finish()?;
    // SAFETY: the agent has ended.
    let back = unsafe { queue.reclaim() }.map_err(|refused| refused.error)?;
    use_again(&mut owner, back)
}

/// Catches an agent that cannot receive: elements of another size than the device has, counts that go wrong
/// where the ring ends, and completions of receives that nobody posted.
fn receives() -> Result {
    only_where_they_can()?;
    let (mut owner, own) = owner()?;
    let (queue, mut agent) = owner.hand_over(own)?;
    let mut first = 0;
    for count in [1, u64::from(CAPS.max_recv_wr) + 1, 500] {
        agent.say(&format!("receive {first} {count}"))?;
        for number in first..first + count {
            let slot = (number % SLOTS as u64) as usize * SLOT;
            owner.target.write_at(slot, &pattern(number, SLOT))?;
            let slice = owner.target.slice(slot..slot + SLOT)?;
            owner.peer.one(number).send(slice)?;
            let done = completion(&mut owner.peers_cq)?.ok()?;
            same(done.wr_id, number, "the request")?;
        }
        agent.expect("done")?;
        // It writes in between, on the same completion queue.
        agent.say(&format!("write {first} 10"))?;
        agent.expect("done")?;
        first += count;
    }
    agent.finish()?;
    // SAFETY: the agent has ended.
    let back = unsafe { queue.reclaim() }.map_err(|refused| refused.error)?;
    use_again(&mut owner, back)
}

/// Catches a library that touches rings which it cannot reach, creates the queues somewhere else than its
/// allocator says, or keeps what it was given; and one that lets regions go when it cannot take the queue
/// back, or lets it be started again. The memory stands for a GPU's: only its agent, and who sets
/// it, map it.
fn unmapped() -> Result {
    const BYTES: usize = 1 << 20;
    only_where_they_can()?;
    let context = open()?;
    let dmabuf = Udmabuf::new(BYTES)?.dmabuf().clone();
    // SAFETY: the rings in it are not used by this process.
    let base = mapped(unsafe { dmabuf.file() }, 0, BYTES)?;
    // SAFETY: it was just mapped, for good, and nobody has references to it.
    let memory = Mutex::new(unsafe { Mapped::new(base, BYTES) });
    // Not as it must be.
    set(&memory, 0..BYTES as u64, 0x5a);
    let fill = move |range, byte| {
        set(&memory, range, byte);
        Ok(())
    };
    // SAFETY: nobody else uses the memory, and it is set.
    let rings = Arc::new(Counting::new(unsafe { UnmappedDmabuf::new(dmabuf, fill) }));
    let pd = context.alloc_pd()?;
    let domain = pd.parent_domain().allocator(Arc::clone(&rings)).create()?;
    // What is for no agent lies elsewhere.
    let ordinary = context.cq(16).domain(&domain).create()?;
    let other = domain.create_qp::<Rc>(&ordinary, CAPS)?;
    drop((other, ordinary));
    let (owner, mut own) = owner_on(context, domain, |domain| {
        let cq = domain.context().cq(ENTRIES).domain(domain);
        Ok(cq.for_agent().create()?)
    })?;
    let granted: u64 = rings.counts().values().map(|counts| counts.granted).sum();
    same(granted, 4, "two rings and two records")?;
    // This side can do nothing with them.
    let slot = own.mr.slice(..SLOT)?;
    let refused = own.qp.one(1).send(slot).unwrap_err();
    says(&refused, &["0"])?;
    same(own.cq.poll()?.iter().count(), 0, "completions")?;
    let error = own.cq.arm(Notify::Next).unwrap_err();
    says(&error, &["an agent arms it"])?;

    let (queue, mut agent) = owner.hand_over(own)?;
    agent.say(&format!("write 0 {SLOTS}"))?;
    agent.expect("done")?;
    owner.came(0, SLOTS as u64)?;
    agent.finish()?;
    // A region that is dropped, of which a slice was taken, waits for the queue.
    let spare = owner.domain.register(vec![0u8; SLOT], OPEN)?;
    let _ = spare.slice(..)?;
    drop(spare);
    same(owner.domain.reclaim(), 1, "regions that wait")?;
    // SAFETY: the agent has ended.
    let Err(mut refused) = (unsafe { queue.reclaim() }) else {
        return fail("rings that are not mapped came back");
    };
    says(&refused.error, &["does not reach it"])?;
    same(owner.domain.reclaim(), 1, "regions that still wait")?;
    same(refused.queue.query()?.state, QpState::RTS, "the state")?;
    takes_no_change(&mut refused.queue)?;
    let regions = refused.queue.destroy().map_err(|refused| refused.error)?;
    same(regions.len(), 1, "regions that came back")?;
    let live: u64 = rings.counts().values().map(BufferCounts::live).sum();
    same(live, 0, "buffers that did not come back")
}

/// A queue that did not come back can be failed where that is a change of state, and nothing else.
fn takes_no_change(queue: &mut Away) -> Result {
    for state in [None, Some(QpState::INIT), Some(QpState::RTS)] {
        let attr = QpAttr {
            state,
            ..QpAttr::default()
        };
        let refused = [queue.modify(&attr), queue.control().modify(&attr)];
        for refused in refused {
            says(&refused.unwrap_err(), &["have not come back"])?;
        }
    }
    if queue.query()?.state == QpState::RESET {
        return Ok(());
    }
    queue.fail()?;
    same(queue.query()?.state, QpState::ERR, "the state")
}

/// Sets each byte of a range.
fn set(memory: &Mutex<Mapped>, range: Range<u64>, byte: u8) {
    let memory = memory.lock().unwrap_or_else(PoisonError::into_inner);
    for at in (range.start as usize..range.end as usize).step_by(8) {
        memory.store_u64(at, [byte; 8]);
    }
}

/// Catches a library that tells the agent the wrong thing of overrun, and one that cannot take a queue back
/// whose consumer's index nobody has stored.
fn ignores_overrun() -> Result {
    only_where_they_can()?;
    let (mut owner, own) = owner_with(|domain| {
        let cq = domain.context().cq(ENTRIES).domain(domain);
        // SAFETY: there is room for all that the agent posts, and for what this side posts afterwards.
        Ok(unsafe { cq.ignore_overrun(true) }.create()?)
    })?;
    let (queue, mut agent) = owner.hand_over(own)?;
    same(queue.handover().overrun, Overrun::IGNORED, "overrun")?;
    // Some laps.
    let count = 3 * u64::from(ENTRIES);
    agent.say(&format!("write 0 {count}"))?;
    agent.expect("done")?;
    owner.came(count - SLOTS as u64, SLOTS as u64)?;
    agent.finish()?;
    // SAFETY: the agent has ended.
    let back = unsafe { queue.reclaim() }.map_err(|refused| refused.error)?;
    use_again(&mut owner, back)
}

/// Catches an agent that loses count where the device's 16 bits wrap, or takes a completion for news twice,
/// while it looks at one place alone, as GPU code does. The kernel makes no collapsed queues, so the adapter
/// is asked for one.
fn watches_one_place() -> Result {
    only_where_they_can()?;
    let (owner, own) = owner()?;
    let collapse = json!({"function": 0, "qpn": own.qp.qpn()});
    Control::open()?.ask("collapse", collapse)?;
    let (queue, mut agent) = owner.hand_over(own)?;
    let requests: u64 = if is_full() { 200_000 } else { 3_000 };
    for first in (0..requests).step_by(SLOTS) {
        agent.say(&format!("watch {first} {SLOTS}"))?;
        agent.expect("done")?;
        owner.came(first, SLOTS as u64)?;
    }
    let mut queue = queue;
    queue.fail()?;
    agent.say("watch 0 1")?;
    let failed = agent.hear()?;
    same(failed.contains("syndrome: 5"), true, &failed)?;
    agent.finish()?;
    let regions = queue.destroy().map_err(|refused| refused.error)?;
    same(regions.len(), 1, "regions that came back")
}

/// Catches an agent, or an owner that takes its queue back, that relies on doorbells that arrive at once.
fn late() -> Result {
    only_where_they_can()?;
    for seed in 1..=if is_full() { 20 } else { 1 } {
        let (mut owner, own) = owner()?;
        let (queue, mut agent) = owner.hand_over(own)?;
        let mut control = Control::open()?;
        control.ask("late_doorbells", json!({"function": 0, "seed": seed}))?;
        let outcome = (|| {
            agent.say("write 0 200")?;
            agent.expect("done")?;
            owner.came(0, 200)?;
            agent.say(&format!("write 0 {}", u64::MAX / 2))?;
            owner.await_slot(SLOTS as u64 / 4)?;
            agent.kill()?;
            // SAFETY: the agent has ended.
            let back = unsafe { queue.reclaim() }.map_err(|refused| refused.error)?;
            // Those of the agent's that are still on their way meet the owner's requests.
            use_again(&mut owner, back)
        })();
        control.ask("late_doorbells", json!({"function": 0, "seed": null}))?;
        outcome?;
    }
    Ok(())
}

/// Catches a queue that nobody can end once its owner is gone.
fn outlives() -> Result {
    only_where_they_can()?;
    let context = open()?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(16)?;
    // The supervisor's context and the peer's have nothing in common with the owner's domain.
    let mut peer = pd.create_qp::<Rc>(&cq, CAPS)?;
    let mut target = pd.register(vec![0u8; SLOT * SLOTS], OPEN)?;
    let supervised = open()?;
    let (file, number) = inheritable(&supervised)?;
    let mut owner = Process::start("owner", &[&number])?;
    drop(file);
    let of_owner: Endpoint = owner.hear()?.parse()?;
    owner.say(&peer.endpoint()?.to_string())?;
    peer.connect_with(&of_owner, &options())?;
    owner.say(&hex(told(&target).as_bytes()))?;
    let agent = Pid::from_raw(owner.hear()?.parse()?).ok_or("process 0")?;
    let agent = pidfd_open(agent, PidfdFlags::empty())?;
    let came = |target: &Mr<Vec<u8>>| {
        let mut bytes = [0; SLOT];
        until("a slot that the agent has written", || {
            target.read_at(0, &mut bytes)?;
            Ok((bytes != [0; SLOT]).then_some(()))
        })
    };
    came(&target)?;
    owner.kill()?;
    // The agent goes on.
    target.write_at(0, &[0; SLOT])?;
    came(&target)?;
    let [queue] = supervised.qp_handles()?[..] else {
        return fail("not one queue pair");
    };
    // The agent rings, and the model complains.
    let ringing = json!({"text": format!("doorbell for queue pair {:#x}", of_owner.qpn)});
    Control::open()?.ask("expect", ringing)?;
    // SAFETY: the owner has been killed.
    unsafe { supervised.destroy_qp_for_everyone(queue) }?;
    same(supervised.qp_handles()?, Vec::new(), "queue pairs")?;
    target.write_at(0, &[0; SLOT])?;
    std::thread::sleep(QUIET);
    let mut bytes = [0; SLOT];
    target.read_at(0, &mut bytes)?;
    same(bytes, [0; SLOT], "what the agent has written since")?;
    // SAFETY: nobody owns one of that handle.
    let again = unsafe { supervised.destroy_qp_for_everyone(queue) }.unwrap_err();
    says(&again, &["no object with this handle"])?;
    pidfd_send_signal(&agent, Signal::KILL)?;
    // Its end, which is not this process's to wait for, is that of the mapping.
    let mut ended = [PollFd::new(&agent, PollFlags::IN)];
    let polled = retry_on_intr(|| poll(&mut ended, None))?;
    same(polled, 1, "processes that have ended")
}

/// An owner that is going to be killed: it tells where its queue pair is, hears of its peer, and starts an
/// agent, which writes for ever.
pub(crate) fn play_owner(command: &str) -> Result {
    let context = Context::import(inherited(command)?)?;
    let domain = domain(&context)?;
    let cq = context.cq(ENTRIES).domain(&domain).create()?;
    let mut qp = for_agent(&domain, &cq)?;
    say(&qp.endpoint()?.to_string());
    let peer: Endpoint = hear()?.parse()?;
    qp.connect_with(&peer, &options())?;
    let Data { file, mr } = Data::new(&domain, SLOT * SLOTS)?;
    // SAFETY: the domain has no other region.
    let queue = unsafe { qp.into_device(cq, vec![mr]) }.map_err(|refused| refused.error)?;
    let mut agent = start(&queue, &file, &hear()?)?;
    agent.say(&format!("write 0 {}", u64::MAX / 2))?;
    say(&agent.id().to_string());
    wait_for_parent();
    fail("it was to be killed")
}

/// Catches an owner that cannot take the queue back when nobody says how far it is.
fn is_killed() -> Result {
    only_where_they_can()?;
    let (mut owner, own) = owner()?;
    let (queue, mut agent) = owner.hand_over(own)?;
    agent.say("write 0 0")?;
    agent.expect("done")?;
    agent.say(&format!("write 0 {}", u64::MAX / 2))?;
    // It is in the middle once a slot of its first round has come, which it has not told of.
    owner.await_slot(SLOTS as u64 / 2)?;
    agent.kill()?;
    // SAFETY: the agent has ended.
    let back = unsafe { queue.reclaim() }.map_err(|refused| refused.error)?;
    use_again(&mut owner, back)
}

/// Catches an owner's half that has lost its hold: it fails the queue, and destroys it under the agent.
fn fails_with_its_owner() -> Result {
    only_where_they_can()?;
    let (owner, own) = owner()?;
    let (mut queue, mut agent) = owner.hand_over(own)?;
    agent.say("write 0 100")?;
    agent.expect("done")?;
    let reset = QpAttr {
        state: Some(QpState::RESET),
        ..QpAttr::default()
    };
    says(&queue.modify(&reset).unwrap_err(), &["reset"])?;
    // A region of the domain's that is dropped waits: the agent may name it.
    queue.fail()?;
    agent.say("write 100 1")?;
    agent.expect("failed: flushed")?;
    let regions = queue.destroy().map_err(|refused| refused.error)?;
    let [mr] = <[_; 1]>::try_from(regions).map_err(|_| "not one region")?;
    mr.deregister().map_err(|refused| refused.error)?;
    agent.finish()
}

/// Catches an example that has gone wrong, and a package of formats that needs std after all.
fn example() -> Result {
    only_where_they_can()?;
    let agent = std::env::var_os("VM_EXAMPLE_AGENT").ok_or("no agent without std")?;
    let output = Command::new(program::example("device_queue")?)
        .arg(agent)
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    same(output.status.success(), true, &format!("{output:?}"))?;
    says(
        &said,
        &["every byte has come", "its owner has posted to it"],
    )
}

/// Catches an agent whose nonsense reaches a neighbour: in its rings, in its records, and on its page.
fn nonsense() -> Result {
    only_where_they_can()?;
    let mut neighbour = Exchange::new(&open()?.alloc_pd()?)?;
    for seed in 1..=if is_full() { 10 } else { 3 } {
        let (owner, own) = owner()?;
        // A neighbour in the same context, with a register of its own.
        let mut near = Exchange::new(&owner.context.alloc_pd()?)?;
        let (queue, mut agent) = owner.hand_over(own)?;
        // No driver writes such, so the model complains.
        let expected = json!({"text": format!("queue pair {:#x}", queue.qpn())});
        Control::open()?.ask("expect", expected)?;
        for turn in 0..4 {
            agent.say(&format!("nonsense {}", 4 * seed + turn))?;
            near.exchange()?;
            neighbour.exchange()?;
            agent.expect("done")?;
        }
        agent.finish()?;
        // The library looks at none of it. The device may have found no room for a completion.
        // SAFETY: the agent has ended.
        match unsafe { queue.reclaim() } {
            Ok(_) => {}
            Err(mut refused) => {
                says(&refused.error, &["no room"])?;
                takes_no_change(&mut refused.queue)?;
                let regions = refused.queue.destroy().map_err(|refused| refused.error)?;
                same(regions.len(), 1, "regions that came back")?;
            }
        }
        near.exchange()?;
        neighbour.exchange()?;
    }
    Ok(())
}

/// Catches a page that other queue pairs ring on, and what an agent may do to them that stores anywhere
/// there.
fn page() -> Result {
    only_where_they_can()?;
    let (mut owner, own) = owner()?;
    let mut near = Exchange::new(&owner.context.alloc_pd()?)?;
    let (queue, mut agent) = owner.hand_over(own)?;
    let mut control = Control::open()?;
    control.ask("tap_start", json!({}))?;
    agent.say("write 0 1")?;
    agent.expect("done")?;
    let taken = control.ask("tap_take", json!({}))?;
    let records = taken.as_array().ok_or("no records")?;
    let rung = |record: &&Value| record["kind"] == "doorbell" && record["qpn"] == queue.qpn();
    let rung = records.iter().find(rung).ok_or("no doorbell")?;
    // The model complains of what no driver does.
    for part in [
        format!(" of UAR {}", rung["uar"]),
        format!("completion queue {:#x} is armed", queue.qpn() << 8),
        "event queue 0".into(),
    ] {
        control.ask("expect", json!({"text": part}))?;
    }
    for _ in 0..4 {
        agent.say("page")?;
        near.exchange()?;
        agent.expect("done")?;
    }
    // It has not hurt itself either.
    agent.say(&format!("write 1 {SLOTS}"))?;
    agent.expect("done")?;
    owner.came(1, SLOTS as u64)?;
    agent.finish()?;
    // SAFETY: the agent has ended.
    let back = unsafe { queue.reclaim() }.map_err(|refused| refused.error)?;
    use_again(&mut owner, back)
}

/// The refusal of a queue pair.
fn refusal(qp: Qp<Rc>, cq: Cq, regions: Vec<Mr<RawMemory>>) -> Result<(Error, Qp<Rc>, Cq)> {
    // SAFETY: it is to be refused.
    match unsafe { qp.into_device(cq, regions) } {
        Ok(_) => fail("it was handed over"),
        Err(refused) => Ok((refused.error, refused.qp, refused.cq)),
    }
}

/// Catches queues that are handed over while this side, or somebody else, has something to do with them.
fn not_idle() -> Result {
    if !device().is_mlx5() {
        return skip("queues are handed over on mlx5");
    }
    let context = open()?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(64)?;
    let (mut a, mut b) = (
        pd.create_qp::<Rc>(&cq, CAPS)?,
        pd.create_qp::<Rc>(&cq, CAPS)?,
    );
    connect(&mut a, &mut b)?;
    let mr = pd.register(vec![0u8; 64], OPEN)?;

    let (error, a, cq) = refusal(a, cq, Vec::new())?;
    says(&error, &["others report to its completion queue"])?;
    assert!(matches!(error.cause(), Cause::Busy(_)), "{error:?}");
    let other = context.create_cq(16)?;
    let (error, mut a, _other) = refusal(a, other, Vec::new())?;
    says(&error, &["another completion queue"])?;

    let mut receives = a.recv_batch();
    receives.post(1, mr.slice(..)?)?;
    receives.ring();
    drop(b);
    let (error, mut a, mut cq) = refusal(a, cq, Vec::new())?;
    says(&error, &["0 sends and 1 receives are in flight"])?;
    // It is as it was.
    a.fail()?;
    let flushed = completion(&mut cq)?;
    same(flushed.wr_id, 1, "the request")?;
    let (error, _a, _cq) = refusal(a, cq, Vec::new())?;
    says(&error, &["for_agent"])?;

    let cq = context.create_cq(64)?;
    let qp = pd.qp(&cq).caps(CAPS).for_agent().create::<Rc>()?;
    let (error, ..) = refusal(qp, cq, Vec::new())?;
    says(&error, &["no dma-buf"])
}

/// Catches pages of registers that are gone with their queue pairs, and with those that could not be made:
/// the software adapter has 1024.
fn pages() -> Result {
    if !device().is_mlx5() {
        return skip("mlx5 hands queues over");
    }
    if !is_full() && kernel() < (7, 2) {
        return skip(
            "so many queue pairs take half a minute: one kernel, or `cargo vm test --full`",
        );
    }
    let context = open()?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(64)?;
    let caps = Caps {
        max_send_wr: 1 << 20,
        ..CAPS
    };
    for _ in 0..600 {
        let made = |caps| pd.qp(&cq).caps(caps).for_agent().create::<Rc>();
        made(CAPS)?.destroy()?;
        let refused = made(caps);
        same(
            refused.is_err(),
            true,
            "a ring of a million requests is refused",
        )?;
    }
    // For all processes.
    context.create_cq(1)?.destroy()?;
    open()?.create_cq(1)?.destroy()?;
    Ok(())
}

/// Catches drivers that overlook what is asked for.
fn elsewhere() -> Result {
    let context = open()?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(64)?;
    if device().is_mlx5() {
        return skip("mlx5 hands queues over");
    }
    let error = pd
        .qp(&cq)
        .caps(CAPS)
        .for_agent()
        .create::<Rc>()
        .unwrap_err();
    same(error.is_unsupported(), true, "that it is unsupported")?;
    says(&error, &["queue pairs for agents"])?;
    let qp = pd.create_qp::<Rc>(&cq, CAPS)?;
    let (error, ..) = refusal(qp, cq, Vec::new())?;
    same(error.is_unsupported(), true, "that it is unsupported")?;
    says(&error, &["queue pairs for agents"])
}
