//! Shared receive queues: what several queue pairs draw from one, its limit, its sizes, and its end.

use std::sync::Arc;

use libtest_mimic::Trial;
use serde_json::json;
use support::{
    Control, Hca, LIMIT, QUIET, Result, Setup, Wc, completion, device, fail, open, same, skip, test,
};
use uverbs::{
    Access, Caps, Cause, Cq, Inline, Mr, Pd, PostError, Qp, Rc, Srq, WcOpcode,
    alloc::{Counting, GuardPages},
    event::{AsyncEvent, AsyncEventType, EventSource},
};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("srq::several_draw_from_one", several_draw_from_one),
        test("srq::the_limit_tells_once", the_limit_tells_once),
        test("srq::a_limit_from_the_start", a_limit_from_the_start),
        test(
            "srq::a_limit_beyond_the_queue_is_refused",
            a_limit_beyond_the_queue_is_refused,
        ),
        test("srq::resize_keeps_what_waits", resize_keeps_what_waits),
        test("srq::too_small_is_refused", too_small_is_refused),
        test("srq::resize_under_traffic", resize_under_traffic),
        test("srq::of_another_domain", of_another_domain),
        test("srq::query_tells_what_is_set", query_tells_what_is_set),
        test("srq::in_use_it_stays", in_use_it_stays),
        test(
            "srq::missing_pages_are_not_told",
            missing_pages_are_not_told,
        ),
        test("srq::on_a_domain", on_a_domain),
        test(
            "srq::its_queue_pairs_take_no_receives",
            its_queue_pairs_take_no_receives,
        ),
        test(
            "srq::too_large_names_the_limits",
            too_large_names_the_limits,
        ),
    ]
}

/// Catches a missing page of on-demand memory that is told as a failure, and a request that is not posted
/// again before the user posts.
fn missing_pages_are_not_told() -> Result {
    if Hca::of_guest().is_none() {
        return skip("soft-RoCE fetches pages before it takes a request");
    }
    let pd = open()?.alloc_pd()?;
    let mut several = Several::new(&pd, pd.srq(3).create()?, 2)?;
    let mut control = Control::open()?;
    let mut miss = |count: u32| {
        let fields = json!({"function": 0, "count": count});
        control.ask("page_faults", fields)
    };
    several.stock(0..2)?;
    for (missing, ids) in [(1, [1, 0]), (3, [1, 0]), (4, [0, 1])] {
        miss(missing)?;
        for (from, id) in ids.into_iter().enumerate() {
            several.post(from, id)?;
            several.received(id, id, from)?;
            completion(&mut several.send_cq)?.is(WcOpcode::SEND)?;
        }
        same(several.srq.in_flight(), 0, "requests in flight")?;
        several.stock(0..2)?;
    }
    // While a batch is being written.
    miss(2)?;
    let inbox = several.inbox.slice(2 * SLOT..3 * SLOT)?;
    let mut batch = several.srq.batch();
    batch.post(2, inbox)?;
    let mut sends = several.senders[0].batch();
    sends.signaled(0).send(Inline(&message(0)))?;
    sends.ring()?;
    let wc = completion(&mut several.recv_cq)?;
    filled(&several.inbox, wc, 0, 0)?;
    batch.ring();
    completion(&mut several.send_cq)?.is(WcOpcode::SEND)?;
    for id in [1, 2] {
        several.send(0, id)?;
        several.received(id, id, 0)?;
    }
    Ok(())
}

/// Bytes of a message, and messages that fit into the inbox.
const SLOT: usize = 16;
const SLOTS: usize = 256;

/// Queue pairs that receive from one queue, each with a peer that sends to it.
struct Several {
    receivers: Vec<Qp<Rc>>,
    senders: Vec<Qp<Rc>>,
    send_cq: Cq,
    recv_cq: Cq,
    srq: Srq,
    inbox: Mr<Vec<u8>>,
}

impl Several {
    fn new(pd: &Pd, srq: Srq, count: usize) -> Result<Self> {
        let context = pd.context();
        let (send_cq, recv_cq) = (context.create_cq(256)?, context.create_cq(256)?);
        let (mut receivers, mut senders) = (Vec::new(), Vec::new());
        let options = Setup::default().options;
        for _ in 0..count {
            let mut sender = pd.create_qp::<Rc>(&send_cq, Caps::default())?;
            let mut receiver = pd.qp(&recv_cq).srq(&srq).create::<Rc>()?;
            let (from, to) = (sender.endpoint()?, receiver.endpoint()?);
            sender.connect_with(&to, &options)?;
            receiver.connect_with(&from, &options)?;
            senders.push(sender);
            receivers.push(receiver);
        }
        let inbox = pd.register(vec![0; SLOT * SLOTS], Access::LOCAL_WRITE)?;
        Ok(Self {
            receivers,
            senders,
            send_cq,
            recv_cq,
            srq,
            inbox,
        })
    }

    /// Posts a receive for each of these ids, into the slot of that number.
    fn stock(&mut self, ids: std::ops::Range<u64>) -> Result {
        stock(&mut self.srq, &self.inbox, ids)
    }

    /// Sends a message that says which it is.
    fn post(&mut self, from: usize, number: u64) -> Result {
        let mut batch = self.senders[from].batch();
        batch.signaled(number).send(Inline(&message(number)))?;
        batch.ring()?;
        Ok(())
    }

    /// As [`Self::post`], and waits until it has been received.
    fn send(&mut self, from: usize, number: u64) -> Result {
        self.post(from, number)?;
        completion(&mut self.send_cq)?.is(WcOpcode::SEND)
    }

    /// The next receive must be the request `id`, filled with message `number`, on the receiver of that
    /// place.
    #[track_caller]
    fn received(&mut self, id: u64, number: u64, on: usize) -> Result {
        let wc = completion(&mut self.recv_cq)?;
        filled(&self.inbox, wc, id, number)?;
        same(wc.qp_num, self.receivers[on].qpn(), "the QP that received")
    }

    /// As many messages as there are ids go to the first queue pair, and arrive there in this order.
    fn passes(&mut self, ids: std::ops::Range<u64>) -> Result {
        for id in ids {
            self.send(0, 1000 + id)?;
            self.received(id, 1000 + id, 0)?;
        }
        Ok(())
    }
}

fn message(number: u64) -> [u8; SLOT] {
    let mut bytes = [0x5a; SLOT];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

fn stock(srq: &mut Srq, inbox: &Mr<Vec<u8>>, ids: std::ops::Range<u64>) -> Result {
    let mut batch = srq.batch();
    for id in ids {
        let start = id as usize % SLOTS * SLOT;
        batch.post(id, inbox.slice(start..start + SLOT)?)?;
    }
    batch.ring();
    Ok(())
}

#[track_caller]
fn filled(inbox: &Mr<Vec<u8>>, wc: Wc, id: u64, number: u64) -> Result {
    wc.is(WcOpcode::RECV)?;
    same(wc.wr_id, id, "the request")?;
    same(wc.byte_len, SLOT as u32, "bytes received")?;
    let mut bytes = [0; SLOT];
    inbox.read_at(id as usize % SLOTS * SLOT, &mut bytes)?;
    same(bytes, message(number), "the message")
}

fn limit_reached(srq: &Srq) -> AsyncEvent {
    AsyncEvent {
        kind: AsyncEventType::SRQ_LIMIT_REACHED,
        source: EventSource::Srq(srq.id()),
    }
}

/// Catches a completion on the wrong queue pair, a request that is used twice or out of turn, and a count of
/// waiting requests that does not go down.
fn several_draw_from_one() -> Result {
    let pd = open()?.alloc_pd()?;
    let mut several = Several::new(&pd, pd.srq(31).create()?, 3)?;
    several.stock(0..12)?;
    for id in 0..12 {
        same(several.srq.in_flight(), 12 - id as u32, "requests waiting")?;
        let from = (id * 2 % 3) as usize;
        several.send(from, 7 * id)?;
        several.received(id, 7 * id, from)?;
    }
    same(several.srq.in_flight(), 0, "requests waiting at the end")
}

/// Catches an event that comes early, late, twice, or with another number; and a limit that does not survive
/// being set again.
fn the_limit_tells_once() -> Result {
    let pd = open()?.alloc_pd()?;
    let mut several = Several::new(&pd, pd.srq(31).create()?, 2)?;
    let events = pd.context().async_events()?;
    several.stock(0..6)?;
    several.srq.set_limit(4)?;
    for id in 0..2 {
        several.send(id as usize, id)?;
        several.received(id, id, id as usize)?;
    }
    same(events.wait_for(QUIET)?, None, "an event while 4 wait")?;
    several.send(0, 2)?;
    let expected = limit_reached(&several.srq);
    same(events.wait_for(LIMIT)?, Some(expected), "the event")?;
    several.send(0, 3)?;
    same(events.wait_for(QUIET)?, None, "a second event")?;
    // Two wait; a limit above that tells with the next message, and one that is taken back never.
    several.srq.set_limit(2)?;
    several.send(1, 4)?;
    same(events.wait_for(LIMIT)?, Some(expected), "the event again")?;
    several.stock(6..10)?;
    several.srq.set_limit(5)?;
    several.srq.set_limit(0)?;
    several.send(1, 5)?;
    same(events.wait_for(QUIET)?, None, "an event taken back")
}

/// Catches a limit that is given at creation and forgotten.
fn a_limit_from_the_start() -> Result {
    let pd = open()?.alloc_pd()?;
    let srq = pd.srq(31).limit(2).create()?;
    same(srq.query()?.limit, 2, "the limit")?;
    let mut several = Several::new(&pd, srq, 1)?;
    let events = pd.context().async_events()?;
    several.stock(0..2)?;
    several.send(0, 1)?;
    let expected = limit_reached(&several.srq);
    same(events.wait_for(LIMIT)?, Some(expected), "the event")
}

/// Catches a limit that could never be kept, and a refusal that leaves another one behind.
fn a_limit_beyond_the_queue_is_refused() -> Result {
    let pd = open()?.alloc_pd()?;
    let srq = pd.srq(31).create()?;
    srq.set_limit(7)?;
    let Err(error) = srq.set_limit(srq.capacity() + 1) else {
        return fail("a limit above the capacity was taken");
    };
    same(
        error.errno(),
        Some(uverbs::error::Errno::INVAL),
        "the errno",
    )?;
    same(srq.query()?.limit, 7, "the limit afterwards")
}

/// Ends a test of other sizes on a device whose queues keep theirs; after the refusal the queue must be as it
/// was.
fn needs_resize(srq: &mut Srq) -> Result {
    if device().is_rxe() {
        return Ok(());
    }
    let before = (srq.capacity(), srq.in_flight());
    let Err(error) = srq.resize(100) else {
        return fail("a shared receive queue of mlx5 has changed its size");
    };
    same(error.is_unsupported(), true, &error.to_string())?;
    same((srq.capacity(), srq.in_flight()), before, "the queue")?;
    skip("mlx5's shared receive queues keep their size (`mlx5_ib_modify_srq`)")
}

/// Catches requests that are lost, doubled or reordered when the ring moves, first and last ones above all:
/// the old ring is full around its end.
fn resize_keeps_what_waits() -> Result {
    let pd = open()?.alloc_pd()?;
    let mut several = Several::new(&pd, pd.srq(15).create()?, 1)?;
    needs_resize(&mut several.srq)?;
    same(several.srq.capacity(), 15, "capacity")?;
    several.stock(0..10)?;
    several.passes(0..9)?;
    several.stock(10..24)?;
    several.srq.resize(100)?;
    same(several.srq.in_flight(), 15, "waiting in the larger ring")?;
    same(several.srq.capacity(), 127, "the larger capacity")?;
    several.passes(9..12)?;
    several.stock(24..124)?;
    several.passes(12..110)?;
    several.srq.resize(15)?;
    same(several.srq.in_flight(), 14, "waiting in the smaller ring")?;
    same(several.srq.capacity(), 15, "the smaller capacity")?;
    several.stock(124..125)?;
    let full = several.srq.batch().post(0, several.inbox.slice(..16)?);
    same(full, Err(PostError::QueueFull { capacity: 15 }), "one more")?;
    several.passes(110..125)
}

/// Catches a refusal after which the queue is another, or gone: rxe frees the ring when it refuses.
fn too_small_is_refused() -> Result {
    let pd = open()?.alloc_pd()?;
    let mut several = Several::new(&pd, pd.srq(63).create()?, 1)?;
    several.stock(0..40)?;
    needs_resize(&mut several.srq)?;
    let Err(error) = several.srq.resize(10) else {
        return fail("40 requests in a ring of 10");
    };
    let text = error.to_string();
    if !text.contains("40 requests wait") {
        return fail(text);
    }
    same(several.srq.capacity(), 63, "capacity")?;
    same(several.srq.in_flight(), 40, "waiting")?;
    several.passes(0..40)?;
    several.srq.resize(15)?;
    several.stock(40..50)?;
    several.passes(40..50)
}

/// Catches a queue pair whose receives all fail: soft-RoCE looks for their memory in the queue pair's domain.
fn of_another_domain() -> Result {
    let context = open()?;
    let (pd, other) = (context.alloc_pd()?, context.alloc_pd()?);
    let cq = context.create_cq(16)?;
    let srq = other.srq(15).create()?;
    let created = pd.qp(&cq).srq(&srq).create::<Rc>();
    if !device().is_rxe() {
        return created.map(drop).map_err(Into::into);
    }
    let Err(error) = created else {
        return fail("a queue pair draws from another domain");
    };
    let text = format!("the SRQ is in PD {}", other.handle().0);
    support::says(&error, &["create_qp", &text])?;
    // A parent domain is its protection domain.
    let domain = other
        .parent_domain()
        .allocator(GuardPages::new())
        .create()?;
    let qp: Qp<Rc> = domain.qp(&cq).srq(&srq).create()?;
    same(srq.destroy().is_err(), true, "it is in use")?;
    drop(qp);
    Ok(())
}

/// Catches requests or messages that go astray when the kernel takes from a ring that is being exchanged.
fn resize_under_traffic() -> Result {
    const MESSAGES: u64 = 600;
    const AHEAD: u64 = 12;
    let pd = open()?.alloc_pd()?;
    let mut several = Several::new(&pd, pd.srq(15).create()?, 1)?;
    needs_resize(&mut several.srq)?;
    let Several {
        receivers,
        mut senders,
        mut send_cq,
        mut recv_cq,
        mut srq,
        inbox,
    } = several;
    stock(&mut srq, &inbox, 0..AHEAD)?;
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| -> Result {
            for number in 0..MESSAGES {
                let mut batch = senders[0].batch();
                batch.signaled(number).send(Inline(&message(number)))?;
                batch.ring()?;
                completion(&mut send_cq)?.is(WcOpcode::SEND)?;
            }
            Ok(())
        });
        for number in 0..MESSAGES {
            filled(&inbox, completion(&mut recv_cq)?, number, number)?;
            stock(&mut srq, &inbox, number + AHEAD..number + AHEAD + 1)?;
            if number % 5 == 0 {
                let sizes = [15, 200, 31, 60];
                srq.resize(sizes[(number / 5 % 4) as usize])?;
            }
        }
        match sender.join() {
            Ok(sent) => sent,
            Err(_) => fail("the sender panicked"),
        }
    })?;
    drop(receivers);
    Ok(())
}

/// Catches numbers that are swapped, and ones that stay as they were after a change.
fn query_tells_what_is_set() -> Result {
    let pd = open()?.alloc_pd()?;
    let mut srq = pd.srq(20).max_sge(3).create()?;
    let info = srq.query()?;
    same(info.max_sge, 3, "max_sge")?;
    same(srq.max_sge(), 3, "slices that a request takes")?;
    same(info.limit, 0, "limit")?;
    let granted = 20..=srq.capacity();
    if !granted.contains(&info.max_wr) {
        return fail(format!("max_wr {} is not in {granted:?}", info.max_wr));
    }
    srq.set_limit(9)?;
    if device().is_rxe() {
        srq.resize(300)?;
    }
    let info = srq.query()?;
    same((info.limit, info.max_sge), (9, 3), "limit and max_sge")?;
    if device().is_mlx5() {
        return Ok(());
    }
    if info.max_wr < 300 {
        return fail(format!("max_wr is still {}", info.max_wr));
    }
    Ok(())
}

/// Catches a queue that goes while queue pairs draw from it, and an error that does not give it back.
fn in_use_it_stays() -> Result {
    let pd = open()?.alloc_pd()?;
    let mut several = Several::new(&pd, pd.srq(31).create()?, 2)?;
    let Err(failed) = several.srq.destroy() else {
        return fail("an SRQ with two QPs was destroyed");
    };
    if !matches!(failed.error.cause(), Cause::Busy(_)) {
        return fail(failed.error.to_string());
    }
    several.srq = failed.object;
    several.stock(0..3)?;
    several.passes(0..3)?;
    several.receivers.clear();
    Ok(several.srq.destroy()?)
}

/// Catches a ring that does not lie where the allocator said, and buffers that are not asked for anew or not
/// given back when the size changes.
fn on_a_domain() -> Result {
    let pd = open()?.alloc_pd()?;
    let counting = Arc::new(Counting::new(GuardPages::new()));
    let domain = pd
        .parent_domain()
        .allocator(Arc::clone(&counting))
        .create()?;
    let counts = || {
        let counts = counting.counts();
        let srq = counts.get(&device().srq_ring()).copied();
        srq.map(|srq| (srq.asked, srq.granted, srq.freed))
    };
    let mut several = Several::new(&domain, domain.srq(15).create()?, 2)?;
    same(counts(), Some((1, 1, 0)), "asked, granted, freed")?;
    several.stock(0..12)?;
    several.passes(0..4)?;
    if device().is_mlx5() {
        several.passes(4..12)?;
        several.receivers.clear();
        several.srq.destroy()?;
        return same(counts(), Some((1, 1, 1)), "at the end");
    }
    several.srq.resize(500)?;
    same(counts(), Some((2, 2, 1)), "after the resize")?;
    several.stock(12..200)?;
    several.passes(4..30)?;
    // A refusal asks for nothing.
    same(several.srq.resize(100).is_err(), true, "170 do not fit")?;
    same(counts(), Some((2, 2, 1)), "after the refusal")?;
    several.passes(30..32)?;
    several.receivers.clear();
    several.srq.destroy()?;
    same(counts(), Some((2, 2, 2)), "at the end")
}

/// Catches a receive that would go to a ring which is not there.
fn its_queue_pairs_take_no_receives() -> Result {
    let pd = open()?.alloc_pd()?;
    let mut several = Several::new(&pd, pd.srq(15).create()?, 1)?;
    let slice = several.inbox.slice(..16)?;
    let qp = &mut several.receivers[0];
    let refused = qp.recv_batch().post(1, slice);
    same(refused, Err(PostError::SharedReceive), "posting")?;
    let caps = qp.caps();
    same((caps.max_recv_wr, caps.max_recv_sge), (0, 0), "capacities")?;
    several.stock(0..1)?;
    several.passes(0..1)
}

/// Catches a refusal that does not tell what would have been possible.
fn too_large_names_the_limits() -> Result {
    let context = open()?;
    let pd = context.alloc_pd()?;
    let device = context.query_device()?;
    let mut refusals = vec![
        pd.srq(device.max_srq_wr + 1).create().map(drop),
        pd.srq(1).max_sge(device.max_srq_sge + 1).create().map(drop),
    ];
    if device::device().is_rxe() {
        refusals.push(pd.srq(1).create()?.resize(device.max_srq_wr + 1));
    }
    let limits = [
        format!("max_srq_wr {}", device.max_srq_wr),
        format!("max_srq_sge {}", device.max_srq_sge),
    ];
    for refused in refusals {
        let text = refused.err().map_or(String::new(), |e| e.to_string());
        if !limits.iter().all(|limit| text.contains(limit)) {
            return fail(format!("no limits in {text:?}"));
        }
    }
    Ok(())
}
