//! Queues that commands have created: they post and complete, tell of events, and keep what they lie in.

use libtest_mimic::Trial;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use support::pair::options;
use support::{Hca, LIMIT, Result, fail, open, pattern, same, says, test_on_adapter};
use uverbs::direct::mlx5::layout::{
    Cqc, Input, Qpc, QueryCqIn, QueryCqOut, QueryQpIn, QueryQpOut, Structure,
};
use uverbs::direct::mlx5::{CommandError, Direct, EventType, Status, UarKind};
use uverbs::{Access, Caps, Mr, Pd, Qp, Rc};
use uverbs_queue::mlx5::agent::{Action, Kind, Local, Options, Remote};

use crate::queue::{Form, Queue, completion_queue};

/// A test with its name.
type Named = (&'static str, fn() -> Result);

pub(crate) fn tests() -> Vec<Trial> {
    let tests: [Named; 5] = [
        ("queues::post_and_complete", post_and_complete),
        ("queues::receive_from_a_pool", receive_from_a_pool),
        ("queues::tell_of_completions", tell_of_completions),
        ("queues::keep_their_memory", keep_their_memory),
        ("queues::pages_of_registers", pages_of_registers),
    ];
    tests
        .map(|(name, run)| test_on_adapter(name, move |_: Hca| run()))
        .into()
}

const BYTES: usize = 4096;

/// A queue of this test's own, connected to a queue pair of the library's, and memory of both.
struct World {
    queue: Queue,
    peer: Qp<Rc>,
    _cq: uverbs::Cq,
    source: Mr<Vec<u8>>,
    target: Mr<Vec<u8>>,
    direct: Direct,
    _pd: Pd,
}

fn world() -> Result<World> {
    world_with(Queue::new)
}

fn world_with(made: impl FnOnce(&Direct, &Pd) -> Result<Queue>) -> Result<World> {
    let context = open()?;
    let direct = Direct::of(&context)?;
    let pd = context.alloc_pd()?;
    let queue = made(&direct, &pd)?;
    let cq = context.create_cq(16)?;
    let mut peer = pd.create_qp::<Rc>(&cq, Caps::default())?;
    let at_peer = peer.endpoint()?;
    peer.connect_with(&queue.endpoint(at_peer), &options())?;
    queue.connect(&direct, at_peer)?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let mut source = pd.register(vec![0; BYTES], access)?;
    source.write_at(0, &pattern(3, BYTES))?;
    Ok(World {
        queue,
        peer,
        _cq: cq,
        source,
        target: pd.register(vec![0; BYTES], access)?,
        direct,
        _pd: pd,
    })
}

impl World {
    /// Writes the bytes from that one on, as many as a request has, to the same place of the target.
    fn write(&mut self, at: usize, length: u32) -> Result<u16> {
        let local = Local {
            address: self.source.iova() + at as u64,
            length,
            lkey: self.source.lkey().0,
        };
        let remote = Remote {
            address: self.target.iova() + at as u64,
            rkey: self.target.rkey().0,
        };
        let signaled = Options {
            signaled: true,
            ..Options::default()
        };
        let posted = self
            .queue
            .poster
            .write(Action::Write(remote), local, signaled);
        let Ok(counter) = posted else {
            return fail(format!("{posted:?}"));
        };
        self.queue.poster.ring();
        Ok(counter)
    }

    /// Awaits the completion of the request with that number.
    fn done(&mut self, counter: u16) -> Result {
        let entry = self.queue.completion()?;
        same(entry.kind(), Kind::Sent, "the completion")?;
        same(entry.counter(), counter, "the request")?;
        same(
            self.queue.poster.done(counter),
            true,
            "the request was in flight",
        )
    }
}

/// Catches a pool's fields and entries that lie elsewhere: chained, cyclic, and without the part in front of
/// the data. The ring has four entries and wraps twice; the completions of a chain name the entry, the others
/// count on.
fn receive_from_a_pool() -> Result {
    const PIECE: usize = 64;
    let forms = [(0, 16), (1, 16), (1, 0)].map(|(kind, header)| Form { kind, header });
    for form in forms {
        let mut world = world_with(|direct, pd| Queue::over_pool(direct, pd, form))?;
        for number in 0..9_u16 {
            // The chain begins with the first entry, and goes backwards.
            let slot = match form.kind {
                0 => 0_u16.wrapping_sub(number) % 4,
                _ => number % 4,
            };
            let at = usize::from(number) * PIECE;
            let address = world.target.iova() + at as u64;
            let lkey = world.target.lkey().0;
            world.queue.receive(slot, address, PIECE as u32, lkey)?;
            let mut batch = world.peer.batch();
            batch
                .signaled(0)
                .send(world.source.slice(at..at + PIECE)?)?;
            batch.ring()?;
            let entry = world.queue.completion()?;
            same(entry.kind(), Kind::Received, "the completion")?;
            let counter = if form.kind == 0 { slot } else { number };
            same(entry.counter(), counter, "the receive")?;
            let mut bytes = vec![0; PIECE];
            world.target.read_at(at, &mut bytes)?;
            let sent = &pattern(3, BYTES)[at..at + PIECE];
            same(&bytes[..], sent, "what was received")?;
        }
    }
    Ok(())
}

/// Catches rings and records that lie elsewhere, and counters that are not the device's. The ring wraps more
/// than twice, and the completion queue once.
fn post_and_complete() -> Result {
    let mut world = world()?;
    const PIECE: usize = BYTES / 128;
    for piece in 0..128 {
        let counter = world.write(piece * PIECE, PIECE as u32)?;
        world.done(counter)?;
    }
    let mut bytes = vec![0; BYTES];
    world.target.read_at(0, &mut bytes)?;
    same(bytes, pattern(3, BYTES), "what was written")?;

    let mut query = QueryQpIn::new();
    query.set(QueryQpIn::QPN, world.queue.qpn.into());
    let told = world.queue.qp.query_by(&query)?;
    same(
        told.inner(QueryQpOut::QPC).get(Qpc::STATE),
        3,
        "the state: RTS",
    )?;
    let mut query = QueryCqIn::new();
    query.set(QueryCqIn::CQN, world.queue.cqn.into());
    let told = world.queue.cq.query_by(&query)?;
    let context = told.inner(QueryCqOut::CQ_CONTEXT);
    let counters = (
        context.get(Cqc::PRODUCER_COUNTER),
        context.get(Cqc::CONSUMER_COUNTER),
    );
    same(counters, (128, 128), "the completions")
}

/// Catches an event without a completion, one of another object, and one that does not come.
fn tell_of_completions() -> Result {
    const COOKIE: u64 = 0x0123_4567_89ab_cdef;
    let mut world = world()?;
    let channel = world.direct.event_channel(false)?;
    channel.subscribe(&world.queue.cq, &[EventType::COMPLETION], COOKIE)?;
    let waits = |limit: Timespec| -> Result<usize> {
        let mut files = [PollFd::new(&channel, PollFlags::IN)];
        Ok(poll(&mut files, Some(&limit))?)
    };
    world.queue.arm();
    let short = Timespec {
        tv_sec: 0,
        tv_nsec: 50_000_000,
    };
    same(waits(short)?, 0, "events before the completion")?;
    let counter = world.write(0, 64)?;
    let long = Timespec {
        tv_sec: LIMIT.as_secs() as i64,
        tv_nsec: 0,
    };
    same(waits(long)?, 1, "events of the completion")?;
    let event = channel.read()?;
    same((event.cookie, event.data), (COOKIE, None), "the event")?;
    world.done(counter)?;

    match channel.subscribe(&world.queue.cq, &[], 1) {
        Err(error) => says(&error, &["0 kinds of events", "1 to 16"])?,
        Ok(()) => return fail("a subscription to nothing"),
    }
    let device = world.direct.event_channel(true)?;
    Ok(device.subscribe_to_device(&[EventType::PORT_CHANGE], 2)?)
}

/// Catches memory that goes while queues lie in it, and a queue pair that is destroyed under nobody's eyes.
fn keep_their_memory() -> Result {
    let context = open()?;
    let direct = Direct::of(&context)?;
    let pd = context.alloc_pd()?;
    let Queue { qp, cq, umem, .. } = Queue::new(&direct, &pd)?;
    let refused = |result: std::result::Result<(), uverbs::error::DestroyError<_>>| match result {
        Err(error) => Ok(error.object),
        Ok(()) => Err("memory with queues was let go"),
    };
    let umem = refused(umem.deregister())?;
    // The completion queue has a queue pair.
    let Err(kept) = cq.destroy() else {
        return fail("a completion queue with a queue pair was destroyed");
    };
    let cq = kept.object;
    qp.destroy()?;
    let umem = refused(umem.deregister())?;
    cq.destroy()?;
    umem.deregister()?;

    // A number that is nobody's any more.
    let uar = direct.alloc_uar(UarKind::Uncached)?;
    let Err(error) = completion_queue(&direct, &uar, 0xfff) else {
        return fail("a queue in no memory");
    };
    match error
        .downcast_ref::<CommandError>()
        .and_then(CommandError::refusal)
    {
        Some(refusal) => same(refusal.status, Status::BAD_RES_ERR, "the status"),
        None => fail(error.to_string()),
    }
}

/// Catches pages that two share, and pages that stay.
fn pages_of_registers() -> Result {
    let context = open()?;
    let direct = Direct::of(&context)?;
    let first = direct.alloc_uar(UarKind::Uncached)?;
    let second = direct.alloc_uar(UarKind::Uncached)?;
    same(
        first.page_id() == second.page_id(),
        false,
        "one page for two",
    )?;
    for _ in 0..300 {
        direct.alloc_uar(UarKind::Uncached)?;
    }
    Ok(())
}
