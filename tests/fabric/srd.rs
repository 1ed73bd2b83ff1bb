//! Reliable datagrams: each operation, in no order, with what only they have: destinations, limits, failures
//! that leave the queue pair alone. On each of the device's functions, whose limits differ.

use std::collections::BTreeSet;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::Trial;
use serde_json::json;
use support::{
    Control, Device, LIMIT, QKEY, QUIET, Result, Wc, all_there_is, completion, completions, device,
    fail, is_full, kernel, nothing, pattern, same, says, skip, test, test_without_leaks, until,
};
use uverbs::alloc::{BufferCounts, Counting, SharedMemfd, Udmabuf};
use uverbs::{
    Access, Ah, Batch, Caps, ConnectOptions, Context, Cq, Inline, Mr, Notify, Pd, PostError, Qp,
    QpState, RemoteSlice, Ud, UdPeer, WcOpcode, WcStatus, cq::PollError, mw::Type1, qp::QpType,
    transport::Srd,
};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        on_each("srd::each_operation", each_operation),
        on_each("srd::inline_and_empty", inline_and_empty),
        on_each("srd::lengths_beyond_16_bits", lengths_beyond_16_bits),
        on_each("srd::wide_requests", wide_requests),
        on_each("srd::lists_are_gathered", lists_are_gathered),
        on_each("srd::many_in_no_order", many_in_no_order),
        on_each("srd::in_the_order_of_each_seed", in_the_order_of_each_seed),
        on_each(
            "srd::unsignaled_free_their_slots",
            unsignaled_free_their_slots,
        ),
        on_each("srd::rings_of_every_size_wrap", rings_of_every_size_wrap),
        on_each("srd::batches_beyond_the_limit", batches_beyond_the_limit),
        on_each("srd::events", events),
        on_each("srd::a_failure_stays_alone", a_failure_stays_alone),
        on_each(
            "srd::retries_end_if_nobody_is_ready",
            retries_end_if_nobody_is_ready,
        ),
        on_each("srd::both_sides_need_a_handle", both_sides_need_a_handle),
        on_each(
            "srd::handles_of_one_peer_are_one",
            handles_of_one_peer_are_one,
        ),
        on_each("srd::works_again_after_reset", works_again_after_reset),
        on_each("srd::flushed_with_the_queue_pair", flushed_with_it),
        on_each("srd::regions_wait_for_requests", regions_wait_for_requests),
        on_each("srd::numbers_are_used_again", numbers_are_used_again),
        on_each("srd::overruns_are_told", overruns_are_told),
        on_each("srd::unsolicited_writes", unsolicited_writes),
        on_each("srd::senders_that_nobody_knows", senders_that_nobody_knows),
        on_each("srd::service_levels", service_levels),
        on_each("srd::interconnects_of_a_region", interconnects_of_a_region),
        on_each(
            "srd::completion_rings_in_given_memory",
            completion_rings_in_given_memory,
        ),
        on_each("srd::states_and_attributes", states_and_attributes),
        on_each("srd::refused_by_name", refused_by_name),
        test("srd::between_two_functions", between_two_functions),
    ]
}

/// A test on each function of the device, behind which the kernel must have as many objects as before.
fn on_each(name: &'static str, run: fn(&Context) -> Result) -> Trial {
    test_without_leaks(name, move || {
        needs_srd()?;
        for device in uverbs::devices()? {
            println!("on {}", device.name());
            run(&device.open()?)?;
        }
        Ok(())
    })
}

fn needs_srd() -> Result {
    match device() {
        Device::Efa => Ok(()),
        _ => skip("the device has no reliable datagrams of its own"),
    }
}

const BYTES: usize = 64;

/// A queue pair that sends to a peer, with memory for both directions. The queue pair is declared first: it
/// goes before what it may still work on.
struct Node {
    qp: Qp<Srd>,
    cq: Cq,
    mr: Mr<Vec<u8>>,
    /// The way to the peer, its number and its memory.
    to: Option<(Ah, u32, RemoteSlice)>,
}

fn caps(depth: u32) -> Caps {
    Caps {
        max_send_wr: depth,
        max_recv_wr: depth,
        max_inline_data: 32,
        ..Caps::default()
    }
}

impl Node {
    fn new(pd: &Pd, cq: Cq, caps: Caps, length: usize) -> Result<Self> {
        let mut qp = pd.create_qp::<Srd>(&cq, caps)?;
        qp.activate(QKEY, &ConnectOptions::default())?;
        let mr = pd.register(vec![0; length], all_there_is())?;
        let to = None;
        Ok(Self { qp, cq, mr, to })
    }

    /// Has it send to another.
    fn meet(&mut self, pd: &Pd, other: &Self) -> Result {
        let peer = other.qp.endpoint()?;
        let path = pd.context().path_to(&peer, &ConnectOptions::default())?;
        self.to = Some((pd.create_ah(&path)?, peer.qpn, other.mr.remote()));
        Ok(())
    }

    /// Posts requests to the peer, each by a call with its number, which knows its own memory and the peer's.
    fn post<'q>(
        &'q mut self,
        numbers: std::ops::Range<u64>,
        fill: impl Fn(u64, &mut Batch<'q, Srd>, UdPeer<'q>, &'q Mr<Vec<u8>>, RemoteSlice) -> Result,
    ) -> Result {
        let Some((ah, qpn, remote)) = &self.to else {
            return fail("it has met nobody");
        };
        let mut batch = self.qp.batch();
        for number in numbers {
            fill(number, &mut batch, ah.to(*qpn, QKEY), &self.mr, *remote)?;
        }
        batch.ring()?;
        Ok(())
    }

    fn receive(&mut self, wr_id: u64, range: Range<usize>) -> Result {
        let mut batch = self.qp.recv_batch();
        batch.post(wr_id, self.mr.slice(range)?)?;
        batch.ring();
        Ok(())
    }

    fn bytes(&self, range: Range<usize>) -> Result<Vec<u8>> {
        let mut bytes = vec![0; range.len()];
        self.mr.read_at(range.start, &mut bytes)?;
        Ok(bytes)
    }
}

/// Two queue pairs that know each other.
fn pair(context: &Context, caps: Caps, length: usize) -> Result<(Node, Node, Pd)> {
    let pd = context.alloc_pd()?;
    // Room for each request of both queues, rounded up as the queues are.
    let node = || Node::new(&pd, context.create_cq(1024)?, caps, length);
    let (mut a, mut b) = (node()?, node()?);
    a.meet(&pd, &b)?;
    b.meet(&pd, &a)?;
    Ok((a, b, pd))
}

/// Linux 6.1 has no WRITE for these devices.
fn has_writes() -> bool {
    kernel() >= (6, 12)
}

/// Catches a ring that lies somewhere else than the allocator says, an end of the ring in the wrong place,
/// memory that does not come back, and kernels and devices that are not told apart.
fn completion_rings_in_given_memory(context: &Context) -> Result {
    let pd = context.alloc_pd()?;
    let page = rustix::param::page_size();
    let at_an_address = Counting::new(SharedMemfd::new(2 * page)?);
    let at_an_address = Arc::new(at_an_address);
    let domain = pd.parent_domain().allocator(Arc::clone(&at_an_address));
    let domain = domain.create()?;
    let queue = context.cq(64);
    let made = queue.clone().domain(&domain).create();
    if kernel() < (6, 17) {
        let error = made.unwrap_err();
        same(error.is_unsupported(), true, "that it is unsupported")?;
        return says(&error, &["completion rings in given memory", "6.17"]);
    }
    // The kernel gives no doorbell, by which the device would learn what was taken.
    let expected = json!({"text": "has no room"});
    Control::open()?.ask("expect", expected)?;
    let channel = context.create_channel()?;
    let eventful = queue.clone().domain(&domain).channel(&channel).create();
    says(&eventful.unwrap_err(), &["a doorbell", "in given memory"])?;
    // In other words than those that let a test be skipped.
    let made = made.map_err(|error| format!("errno {:?}", error.errno()))?;
    in_memory(context, &pd, made)?;
    let live = || -> u64 {
        at_an_address
            .counts()
            .values()
            .map(BufferCounts::live)
            .sum()
    };
    same(live(), 0, "buffers that did not come back")?;
    drop(domain);

    let in_a_dmabuf = Arc::new(Counting::new(Udmabuf::new(page)?));
    let domain = pd.parent_domain().allocator(Arc::clone(&in_a_dmabuf));
    let domain = domain.create()?;
    let made = queue.domain(&domain).create();
    let made = made.map_err(|error| format!("errno {:?}", error.errno()))?;
    in_memory(context, &pd, made)?;
    let counts = in_a_dmabuf.counts();
    let granted: u64 = counts.values().map(|counts| counts.granted).sum();
    let live: u64 = counts.values().map(BufferCounts::live).sum();
    same(
        (granted, live),
        (1, 0),
        "buffers, and those that did not come back",
    )?;
    // A queue pair takes its rings from the kernel and the device alone.
    let cq = context.create_cq(64)?;
    let error = domain.create_qp::<Srd>(&cq, caps(16)).unwrap_err();
    says(&error, &["rings in memory that a program has allocated"])
}

/// Talks over a completion queue for some laps.
fn in_memory(context: &Context, pd: &Pd, cq: Cq) -> Result {
    let mut a = Node::new(pd, cq, caps(16), 8 * BYTES)?;
    let mut b = Node::new(pd, context.create_cq(1024)?, caps(16), 8 * BYTES)?;
    a.meet(pd, &b)?;
    b.meet(pd, &a)?;
    for _ in 0..50 {
        talk(&mut a, &mut b)?;
    }
    Ok(())
}

/// Sends and receives in flight.
fn in_flight(node: &mut Node) -> u32 {
    let (sends, receives) = node.qp.halves();
    sends.in_flight() + receives.in_flight()
}

/// The bytes of a slot of memory.
fn slot(at: usize) -> Range<usize> {
    at * BYTES..(at + 1) * BYTES
}

/// Catches a wrong operation, key, address, length, destination or byte order in any request, descriptor or
/// completion.
fn each_operation(context: &Context) -> Result {
    let (mut a, mut b, _pd) = pair(context, caps(16), 8 * BYTES)?;
    talk(&mut a, &mut b)
}

/// Each operation once.
fn talk(a: &mut Node, b: &mut Node) -> Result {
    let sent = pattern(1, BYTES);
    a.mr.write_at(0, &sent)?;
    b.receive(21, slot(1))?;
    a.post(1..2, |id, batch, to, mr, _| {
        Ok(batch.signaled(id).to(to).send(mr.slice(slot(0))?)?)
    })?;
    completion(&mut a.cq)?.is(WcOpcode::SEND)?;
    let received = completion(&mut b.cq)?;
    received.is(WcOpcode::RECV)?;
    let told = (
        received.wr_id,
        received.byte_len,
        received.src_qp,
        received.imm,
    );
    same(told, (21, BYTES as u32, a.qp.qpn(), None), "the receive")?;
    same(b.bytes(slot(1))?, sent.clone(), "the message")?;

    b.receive(22, slot(0))?;
    a.post(2..3, |id, batch, to, mr, _| {
        let from = mr.slice(..10)?;
        Ok(batch.signaled(id).to(to).send_imm(from, 0x0102_0304)?)
    })?;
    completion(&mut a.cq)?.is(WcOpcode::SEND)?;
    let received = completion(&mut b.cq)?;
    let told = (received.wr_id, received.byte_len, received.imm);
    same(told, (22, 10, Some(0x0102_0304)), "immediate data")?;

    if has_writes() {
        a.post(3..4, |id, batch, to, mr, remote| {
            let there = remote.slice(slot(2))?;
            Ok(batch.signaled(id).to(to).write(mr.slice(slot(0))?, there)?)
        })?;
        completion(&mut a.cq)?.is(WcOpcode::RDMA_WRITE)?;
        same(b.bytes(slot(2))?, sent.clone(), "what was written")?;
        nothing(&mut b.cq)?;

        let mut batch = b.qp.recv_batch();
        batch.post_empty(23)?;
        batch.ring();
        a.post(4..5, |id, batch, to, mr, remote| {
            let (from, there) = (mr.slice(slot(0))?, remote.slice(slot(3))?);
            Ok(batch.signaled(id).to(to).write_imm(from, there, 77)?)
        })?;
        completion(&mut a.cq)?.is(WcOpcode::RDMA_WRITE)?;
        let received = completion(&mut b.cq)?;
        received.is(WcOpcode::RECV_RDMA_WITH_IMM)?;
        let told = (received.wr_id, received.byte_len, received.imm);
        same(told, (23, BYTES as u32, Some(77)), "a WRITE with data")?;
        same(b.bytes(slot(3))?, sent, "what was written with data")?;
    }

    let there = pattern(2, BYTES);
    b.mr.write_at(slot(5).start, &there)?;
    a.post(5..6, |id, batch, to, mr, remote| {
        let (into, from) = (mr.slice(slot(6))?, remote.slice(slot(5))?);
        Ok(batch.signaled(id).to(to).read(into, from)?)
    })?;
    let read = completion(&mut a.cq)?;
    read.is(WcOpcode::RDMA_READ)?;
    same(read.byte_len, BYTES as u32, "bytes that were read")?;
    same(a.bytes(slot(6))?, there, "what was read")?;
    same((in_flight(a), in_flight(b)), (0, 0), "requests in flight")
}

/// Catches a length that is cut off to its low half, or whose high half is read where the device puts
/// something else.
fn lengths_beyond_16_bits(context: &Context) -> Result {
    if !has_writes() {
        return skip("the driver of Linux 6.1 has no WRITE");
    }
    const LONG: usize = 100_000;
    let (mut a, mut b, _pd) = pair(context, caps(8), LONG)?;
    let sent = pattern(3, LONG);
    a.mr.write_at(0, &sent)?;
    for length in [10, 65_535, 65_536, LONG] {
        b.mr.write_at(0, &[0; LONG])?;
        let mut batch = b.qp.recv_batch();
        batch.post_empty(length as u64)?;
        batch.ring();
        a.post(1..2, |id, batch, to, mr, remote| {
            let (from, there) = (mr.slice(..length)?, remote.slice(..length)?);
            Ok(batch.signaled(id).to(to).write_imm(from, there, 5)?)
        })?;
        completion(&mut a.cq)?.is(WcOpcode::RDMA_WRITE)?;
        let received = completion(&mut b.cq)?;
        let told = (received.wr_id, received.byte_len);
        same(told, (length as u64, length as u32), "a WRITE with data")?;
        same(b.bytes(0..length)? == sent[..length], true, "the bytes")?;
    }
    // A WRITE of nothing is a notification.
    let mut batch = b.qp.recv_batch();
    batch.post_empty(6)?;
    batch.ring();
    a.post(2..3, |id, batch, to, _, remote| {
        Ok(batch
            .signaled(id)
            .to(to)
            .write_imm(Inline(b""), remote.slice(..0)?, 8)?)
    })?;
    completion(&mut a.cq)?.is(WcOpcode::RDMA_WRITE)?;
    let received = completion(&mut b.cq)?;
    same(
        (received.byte_len, received.imm),
        (0, Some(8)),
        "a notification",
    )
}

/// Catches inline bytes that are cut off, or whose place the next request's slices get; and a message of
/// nothing that is refused or fails.
fn inline_and_empty(context: &Context) -> Result {
    let (mut a, mut b, _pd) = pair(context, caps(16), 8 * BYTES)?;
    for length in [0, 1, 31, 32] {
        b.receive(length as u64, slot(1))?;
        let bytes = pattern(length as u64, length);
        let bytes: &'static [u8] = bytes.leak();
        a.post(1..2, |id, batch, to, _, _| {
            Ok(batch.signaled(id).to(to).send(Inline(bytes))?)
        })?;
        completion(&mut a.cq)?.is(WcOpcode::SEND)?;
        let received = completion(&mut b.cq)?;
        same(received.byte_len, length as u32, "bytes")?;
        same(
            b.bytes(slot(1))?[..length].to_vec(),
            bytes.to_vec(),
            "inline bytes",
        )?;
    }
    let too_long = a.post(1..2, |id, batch, to, _, _| {
        Ok(batch.signaled(id).to(to).send(Inline(&[0; 81]))?)
    });
    match too_long {
        Ok(()) => fail("81 inline bytes were taken"),
        Err(error) => says(&error, &["81 inline bytes"]),
    }
}

/// Catches requests of two blocks whose second block is another's, or lies at the wrong place of the ring.
fn wide_requests(context: &Context) -> Result {
    if kernel() < (7, 3) {
        return skip("this kernel has no requests of two blocks");
    }
    let wide = Caps {
        max_inline_data: 80,
        ..caps(8)
    };
    let (mut a, mut b, _pd) = pair(context, wide, 8 * BYTES)?;
    same(a.qp.caps().max_inline_data, 80, "inline bytes")?;
    for round in 0..40 {
        let bytes: &'static [u8] = pattern(round, 80).leak();
        b.receive(round, 0..80)?;
        a.post(round..round + 1, |id, batch, to, _, remote| {
            batch.signaled(id).to(to).send(Inline(bytes))?;
            let there = remote.slice(100..180)?;
            Ok(batch.signaled(id).to(to).write(Inline(bytes), there)?)
        })?;
        for wc in completions(&mut a.cq, 2)? {
            wc.ok()?;
        }
        same(completion(&mut b.cq)?.byte_len, 80, "bytes")?;
        same(b.bytes(0..80)?, bytes.to_vec(), "what was sent")?;
        same(b.bytes(100..180)?, bytes.to_vec(), "what was written")?;
    }
    talk(&mut a, &mut b)
}

/// Catches slices that are left out, or come in another order, on either side.
fn lists_are_gathered(context: &Context) -> Result {
    let two = Caps {
        max_send_sge: 2,
        max_recv_sge: 2,
        ..caps(8)
    };
    let (mut a, mut b, _pd) = pair(context, two, 8 * BYTES)?;
    for round in 0..20_u64 {
        let sent = pattern(round, 8 * BYTES);
        a.mr.write_at(0, &sent)?;
        let mut batch = b.qp.recv_batch();
        batch.post(round, [b.mr.slice(200..230)?, b.mr.slice(0..100)?])?;
        batch.ring();
        a.post(round..round + 1, |id, batch, to, mr, _| {
            let list = [mr.slice(300..350)?, mr.slice(7..27)?];
            Ok(batch.signaled(id).to(to).send(list)?)
        })?;
        completion(&mut a.cq)?.is(WcOpcode::SEND)?;
        same(completion(&mut b.cq)?.byte_len, 70, "bytes")?;
        let whole = [&sent[300..350], &sent[7..27]].concat();
        let got = [b.bytes(200..230)?, b.bytes(0..40)?].concat();
        same(got, whole, "the message")?;
    }
    Ok(())
}

/// Catches a request that completes twice or never, a message that is lost or comes twice, an id that is
/// another request's, and a driver that believes in order.
fn many_in_no_order(context: &Context) -> Result {
    some_in_no_order(context, if is_full() { 200 } else { 30 })
}

/// Catches what only one order shows: the model begins with another seed each time, which a failure names.
fn in_the_order_of_each_seed(context: &Context) -> Result {
    let seeds = if is_full() { 1..=20 } else { 1..=2 };
    let mut control = Control::open()?;
    for seed in seeds {
        control.ask("seed", json!({"seed": seed}))?;
        some_in_no_order(context, 10).map_err(|error| format!("seed {seed}: {error}"))?;
        let (mut a, mut b, _pd) = pair(context, caps(16), 8 * BYTES)?;
        talk(&mut a, &mut b).map_err(|error| format!("seed {seed}: {error}"))?;
    }
    Ok(())
}

/// Sends many messages at a time, and looks at what comes, and at what is told of them.
fn some_in_no_order(context: &Context, rounds: u64) -> Result {
    const DEPTH: u64 = 32;
    let (mut a, mut b, _pd) = pair(context, caps(DEPTH as u32), 64 * BYTES)?;
    let mut is_in_order = true;
    for round in 0..rounds {
        let first = round * DEPTH;
        let mut batch = b.qp.recv_batch();
        for id in 0..DEPTH {
            batch.post(first + id, b.mr.slice(slot(id as usize))?)?;
        }
        batch.ring();
        for id in 0..DEPTH {
            let number = (first + id).to_le_bytes();
            a.mr.write_at(slot(id as usize).start, &number)?;
        }
        a.post(first..first + DEPTH, |id, batch, to, mr, _| {
            let from = mr.slice(slot((id - first) as usize))?;
            Ok(batch.signaled(id).to(to).send(from)?)
        })?;
        let ids = |all: Vec<Wc>| -> Result<Vec<u64>> {
            all.into_iter().map(|wc| Ok(wc.ok()?.wr_id)).collect()
        };
        let sent = ids(completions(&mut a.cq, DEPTH as usize)?)?;
        let received = ids(completions(&mut b.cq, DEPTH as usize)?)?;
        let all: BTreeSet<u64> = (first..first + DEPTH).collect();
        same(sent.iter().copied().collect(), all.clone(), "what was sent")?;
        same(received.iter().copied().collect(), all.clone(), "receives")?;
        let mut messages = BTreeSet::new();
        for at in 0..DEPTH {
            let bytes = b.bytes(slot(at as usize))?;
            messages.insert(u64::from_le_bytes(bytes[..8].try_into()?));
        }
        same(messages, all, "the messages")?;
        is_in_order &= sent.is_sorted() && received.is_sorted();
    }
    same(
        is_in_order,
        false,
        "whether all came in order: the model is to shuffle",
    )
}

/// Catches completions that nobody asked for, and requests without one that keep their slots.
fn unsignaled_free_their_slots(context: &Context) -> Result {
    let (mut a, mut b, _pd) = pair(context, caps(32), 64 * BYTES)?;
    let depth = u64::from(a.qp.caps().max_send_wr);
    for _ in 0..50 {
        a.post(0..depth, |id, batch, to, mr, remote| {
            let (into, from) = (mr.slice(slot(id as usize))?, remote.slice(slot(0))?);
            Ok(batch.unsignaled(id).to(to).read(into, from)?)
        })?;
        until("all of them", || {
            nothing(&mut a.cq)?;
            Ok((in_flight(&mut a) == 0).then_some(()))
        })?;
    }
    nothing(&mut b.cq)
}

/// Catches indices, phases and doorbells that are wrong where a ring ends, and capacities that are not what
/// they say.
fn rings_of_every_size_wrap(context: &Context) -> Result {
    for (sends, receives, max_recv_sge) in [(1, 1, 1), (2, 5, 2), (7, 3, 1), (33, 20, 2)] {
        let caps = Caps {
            max_send_wr: sends,
            max_recv_wr: receives,
            max_recv_sge,
            ..caps(1)
        };
        let (mut a, mut b, _pd) = pair(context, caps, 64 * BYTES)?;
        let has = (a.qp.caps(), b.qp.caps());
        if has.0.max_send_wr < sends || has.1.max_recv_wr < receives {
            return fail(format!("{has:?} for {caps:?}"));
        }
        // As many as both have room for, until both have gone round three times.
        let some = has.0.max_send_wr.min(has.1.max_recv_wr).min(60);
        let rounds = 3 * has.0.max_send_wr.max(has.1.max_recv_wr) / some + 1;
        for round in 0..rounds {
            let mut batch = b.qp.recv_batch();
            for id in 0..some {
                batch.post(id.into(), b.mr.slice(slot(id as usize))?)?;
            }
            batch.ring();
            a.post(0..some.into(), |id, batch, to, mr, _| {
                Ok(batch
                    .signaled(id)
                    .to(to)
                    .send(mr.slice(slot(id as usize))?)?)
            })?;
            for cq in [&mut a.cq, &mut b.cq] {
                for wc in completions(cq, some as usize)? {
                    wc.ok()
                        .map_err(|error| format!("{caps:?}, round {round}: {error}"))?;
                }
            }
        }
        let full = a.post(
            0..u64::from(has.0.max_send_wr) + 1,
            |id, batch, to, mr, remote| {
                let (into, from) = (mr.slice(slot(0))?, remote.slice(slot(0))?);
                Ok(batch.signaled(id).to(to).read(into, from)?)
            },
        );
        says(
            &full.err().ok_or("one more than fits was taken")?,
            &["the queue is full"],
        )?;
    }
    Ok(())
}

/// Catches a batch of which the device gets more between two doorbells than it takes: it then complains.
fn batches_beyond_the_limit(context: &Context) -> Result {
    let (mut a, _b, _pd) = pair(context, caps(256), 4 * BYTES)?;
    let depth = u64::from(a.qp.caps().max_send_wr);
    for _ in 0..5 {
        a.post(0..depth, |id, batch, to, mr, remote| {
            let (into, from) = (mr.slice(slot(1))?, remote.slice(slot(0))?);
            Ok(batch.signaled(id).to(to).read(into, from)?)
        })?;
        let mut ids = BTreeSet::new();
        for wc in completions(&mut a.cq, depth as usize)? {
            ids.insert(wc.ok()?.wr_id);
        }
        same(ids.len() as u64, depth, "requests")?;
    }
    Ok(())
}

/// Catches a queue that is not armed, is armed with an old number or without a channel, or whose consumer
/// index is not told.
fn events(context: &Context) -> Result {
    let channel = context.create_channel()?;
    let pd = context.alloc_pd()?;
    let cq = || context.cq(256).channel(&channel).create();
    let mut a = Node::new(&pd, cq()?, caps(16), 4 * BYTES)?;
    let mut b = Node::new(&pd, context.create_cq(256)?, caps(16), 4 * BYTES)?;
    a.meet(&pd, &b)?;
    b.meet(&pd, &a)?;
    for round in 0..20 {
        same(a.cq.poll_or_arm(Notify::Next)?.is_none(), true, "armed")?;
        same(channel.wait_for(QUIET)?.is_none(), true, "no event yet")?;
        b.receive(round, slot(1))?;
        a.post(round..round + 1, |id, batch, to, mr, _| {
            Ok(batch.signaled(id).to(to).send(mr.slice(slot(0))?)?)
        })?;
        let event = channel.wait_for(LIMIT)?;
        same(event.is_some(), true, "an event")?;
        same(completion(&mut a.cq)?.ok()?.wr_id, round, "the request")?;
        completion(&mut b.cq)?.is(WcOpcode::RECV)?;
        // Without arming there is none.
        b.receive(round, slot(1))?;
        a.post(round..round + 1, |id, batch, to, mr, _| {
            Ok(batch.signaled(id).to(to).send(mr.slice(slot(0))?)?)
        })?;
        completion(&mut a.cq)?.is(WcOpcode::SEND)?;
        completion(&mut b.cq)?.is(WcOpcode::RECV)?;
        same(
            channel.wait_for(Duration::ZERO)?.is_none(),
            true,
            "one event",
        )?;
    }
    let refused =
        a.cq.arm(Notify::Solicited)
            .err()
            .ok_or("armed for solicited messages")?;
    says(&refused, &["solicited messages alone"])?;
    // It has a doorbell, as all have. The device would complain if it were armed by that.
    let refused = b.cq.arm(Notify::Next).err().ok_or("armed for no channel")?;
    says(&refused, &["created without a channel"])
}

/// Catches a status that is another one's, and a queue pair that is given up after a request that failed.
fn a_failure_stays_alone(context: &Context) -> Result {
    let (mut a, mut b, pd) = pair(context, caps(16), 8 * BYTES)?;
    let private = pd.register(vec![0u8; BYTES], Access::LOCAL_WRITE)?;
    let closed = private.remote();
    a.post(1..2, |id, batch, to, mr, _| {
        Ok(batch
            .unsignaled(id)
            .to(to)
            .read(mr.slice(slot(1))?, closed)?)
    })?;
    let failed = completion(&mut a.cq)?;
    failed.failed(WcStatus::REM_ACCESS_ERR)?;
    same((failed.wr_id, failed.vendor_err), (1, 7), "the failure")?;
    same(a.qp.query()?.state, QpState::RTS, "the state")?;
    // A receive that is too short.
    b.receive(2, 0..10)?;
    a.post(2..3, |id, batch, to, mr, _| {
        Ok(batch.signaled(id).to(to).send(mr.slice(slot(1))?)?)
    })?;
    let failed = completion(&mut a.cq)?;
    same(
        failed.status == WcStatus::SUCCESS,
        false,
        "success, into a short receive",
    )?;
    a.qp.reset()?;
    b.qp.reset()?;
    for node in [&mut a, &mut b] {
        node.qp.activate(QKEY, &ConnectOptions::default())?;
    }
    talk(&mut a, &mut b)
}

/// Catches a number of retries that is not set: the message then waits until there is a receive.
fn retries_end_if_nobody_is_ready(context: &Context) -> Result {
    let (mut a, mut b, _pd) = pair(context, caps(8), 8 * BYTES)?;
    let options = ConnectOptions {
        rnr_retry: 0,
        ..ConnectOptions::default()
    };
    a.qp.reset()?;
    a.qp.activate(QKEY, &options)?;
    a.post(1..2, |id, batch, to, mr, _| {
        Ok(batch.signaled(id).to(to).send(mr.slice(slot(0))?)?)
    })?;
    completion(&mut a.cq)?.failed(WcStatus::RNR_RETRY_EXC_ERR)?;
    talk(&mut a, &mut b)
}

/// Catches a failure that is told as another one.
fn both_sides_need_a_handle(context: &Context) -> Result {
    // A handle of either PD would serve both queue pairs, so they have one each.
    let (one, other) = (context.alloc_pd()?, context.alloc_pd()?);
    let mut a = Node::new(&one, context.create_cq(64)?, caps(8), 8 * BYTES)?;
    let mut b = Node::new(&other, context.create_cq(64)?, caps(8), 8 * BYTES)?;
    a.meet(&one, &b)?;
    let read = |a: &mut Node| -> Result<Wc> {
        a.post(1..2, |id, batch, to, mr, remote| {
            let (into, from) = (mr.slice(slot(1))?, remote.slice(slot(0))?);
            Ok(batch.signaled(id).to(to).read(into, from)?)
        })?;
        completion(&mut a.cq)
    };
    read(&mut a)?.failed(WcStatus::REM_OP_ERR)?;
    b.meet(&other, &a)?;
    read(&mut a)?.is(WcOpcode::RDMA_READ)
}

/// Catches an address handle that goes with another one for the same peer: the device has one for both.
fn handles_of_one_peer_are_one(context: &Context) -> Result {
    let (mut a, mut b, pd) = pair(context, caps(8), 8 * BYTES)?;
    let path = context.path_to(&b.qp.endpoint()?, &ConnectOptions::default())?;
    // That of `b` leads to the same function.
    b.to = None;
    talk(&mut a, &mut b)?;
    let handles = [(); 3].map(|()| pd.create_ah(&path));
    a.to = None;
    for handle in handles {
        handle?.destroy().map_err(|refused| refused.error)?;
    }
    a.meet(&pd, &b)?;
    talk(&mut a, &mut b)
}

/// Catches rings, phases, numbers or completions from before a reset that are met behind it.
fn works_again_after_reset(context: &Context) -> Result {
    let (mut a, mut b, _pd) = pair(context, caps(8), 8 * BYTES)?;
    for round in 0..6 {
        talk(&mut a, &mut b)?;
        // Some receives and unread completions are left behind.
        for id in 0..round {
            b.receive(100 + id, slot(1))?;
        }
        a.post(0..round, |id, batch, to, mr, remote| {
            let (into, from) = (mr.slice(slot(1))?, remote.slice(slot(0))?);
            Ok(batch.signaled(id).to(to).read(into, from)?)
        })?;
        for node in [&mut a, &mut b] {
            node.qp.reset()?;
            same(in_flight(node), 0, "requests in flight")?;
            node.qp.activate(QKEY, &ConnectOptions::default())?;
        }
        nothing(&mut a.cq)?;
        nothing(&mut b.cq)?;
    }
    Ok(())
}

/// Catches completions of a queue pair that is gone which nobody gets, or which pass for another's.
fn flushed_with_it(context: &Context) -> Result {
    let (mut a, mut b, pd) = pair(context, caps(8), 8 * BYTES)?;
    for id in 1..4 {
        b.receive(id, slot(1))?;
    }
    let Node { qp, mut cq, mr, .. } = b;
    let qpn = qp.qpn();
    drop(qp);
    let mut flushed = completions(&mut cq, 3)?;
    flushed.sort_by_key(|wc| wc.wr_id);
    for (wc, id) in flushed.iter().zip(1..) {
        wc.failed(WcStatus::WR_FLUSH_ERR)?;
        same((wc.wr_id, wc.qp_num), (id, qpn), "a receive")?;
    }
    drop(mr);
    // The first function gives its number to the next one.
    let mut next = Node::new(&pd, cq, caps(8), 8 * BYTES)?;
    a.meet(&pd, &next)?;
    next.meet(&pd, &a)?;
    talk(&mut a, &mut next)
}

/// Catches a region that is deregistered under a request that names it, and one that waits for good.
fn regions_wait_for_requests(context: &Context) -> Result {
    let (mut a, mut b, pd) = pair(context, caps(8), 8 * BYTES)?;
    let short = pd.register(vec![0u8; BYTES], Access::LOCAL_WRITE)?;
    let mut batch = b.qp.recv_batch();
    batch.post(1, short.slice(..)?)?;
    batch.ring();
    drop(short);
    a.post(1..2, |id, batch, to, mr, _| {
        Ok(batch.signaled(id).to(to).send(mr.slice(slot(0))?)?)
    })?;
    completion(&mut a.cq)?.is(WcOpcode::SEND)?;
    completion(&mut b.cq)?.is(WcOpcode::RECV)?;
    let into = pd.register(vec![0u8; BYTES], Access::LOCAL_WRITE)?;
    let Some((ah, qpn, remote)) = &a.to else {
        return fail("it has met nobody");
    };
    let mut batch = a.qp.batch();
    let from = remote.slice(slot(0))?;
    batch
        .signaled(2)
        .to(ah.to(*qpn, QKEY))
        .read(into.slice(..)?, from)?;
    batch.ring()?;
    drop(into);
    completion(&mut a.cq)?.is(WcOpcode::RDMA_READ)
}

/// Waits until the device has written so many completions since its tap was started. Nobody takes them.
fn until_written(control: &mut Control, count: usize) -> Result {
    let mut written = 0;
    until("completions that the device writes", || {
        let records = control.ask("tap_next", json!({}))?;
        let records = records.as_array().into_iter().flatten();
        written += records
            .filter(|record| record["kind"] == "completion")
            .count();
        Ok((written >= count).then_some(()))
    })
}

/// Catches completions of a queue pair that is gone, as those of the one that has its number now.
fn numbers_are_used_again(context: &Context) -> Result {
    let mut control = Control::open()?;
    let pd = context.alloc_pd()?;
    let mut server = Node::new(&pd, context.create_cq(64)?, caps(8), 8 * BYTES)?;
    let mut cq = Some(context.create_cq(256)?);
    let mut numbers = Vec::new();
    for round in 0..20 {
        let Some(own) = cq.take() else {
            return fail("no completion queue");
        };
        let mut node = Node::new(&pd, own, caps(8), 8 * BYTES)?;
        numbers.push(node.qp.qpn());
        node.meet(&pd, &server)?;
        server.meet(&pd, &node)?;
        control.ask("tap_start", json!({}))?;
        node.post(round..round + 1, |id, batch, to, mr, remote| {
            let (into, from) = (mr.slice(slot(1))?, remote.slice(slot(0))?);
            Ok(batch.signaled(id).to(to).read(into, from)?)
        })?;
        until_written(&mut control, 1)?;
        // It goes with its completion unread.
        let Node { qp, cq: own, .. } = node;
        qp.destroy().map_err(|refused| refused.error)?;
        cq = Some(own);
    }
    control.ask("tap_take", json!({}))?;
    let Some(mut cq) = cq else {
        return fail("no completion queue");
    };
    // The rings of a completion queue are looked at in turn, so the order is not that of the queue pairs.
    let mut told = Vec::new();
    for wc in completions(&mut cq, 20)? {
        let wc = wc.ok()?;
        told.push((wc.wr_id, wc.qp_num));
    }
    told.sort_unstable();
    let different: BTreeSet<u32> = numbers.iter().copied().collect();
    same(told, (0..20).zip(numbers).collect(), "the READs")?;
    // The first function gives a number again at once.
    match context.name() {
        "efa_0" => same(different.len(), 1, "numbers"),
        _ => Ok(()),
    }
}

/// Catches completions that are lost and nobody hears of it, requests that count as finished then, and a
/// queue that gives none any more.
fn overruns_are_told(context: &Context) -> Result {
    const ROOM: u64 = 16;
    const LOST: u64 = 5;
    let mut control = Control::open()?;
    // The program posts more than the queue has room for, which no driver can prevent. On the second function
    // the queue has two rings, with room for all together.
    if context.name() == "efa_0" {
        control.ask("expect", json!({"text": "has no room"}))?;
    }
    control.ask("tap_start", json!({}))?;
    let pd = context.alloc_pd()?;
    let small = context.create_cq(ROOM as u32)?;
    same(u64::from(small.capacity()), ROOM, "the room of a ring")?;
    let mut a = Node::new(&pd, small, caps(32), 8 * BYTES)?;
    let mut b = Node::new(&pd, context.create_cq(256)?, caps(32), 8 * BYTES)?;
    a.meet(&pd, &b)?;
    b.meet(&pd, &a)?;
    a.post(0..ROOM + LOST, |id, batch, to, mr, remote| {
        let (into, from) = (mr.slice(slot(1))?, remote.slice(slot(0))?);
        Ok(batch.signaled(id).to(to).read(into, from)?)
    })?;
    until_written(&mut control, (ROOM + LOST) as usize)?;
    control.ask("tap_take", json!({}))?;
    let mut left = BTreeSet::new();
    let mut told = 0;
    until("an overrun and what is left", || {
        match a.cq.poll() {
            Ok(mut polled) => left.extend(polled.iter().map(|completion| completion.wr_id())),
            Err(PollError::Overrun) => told += 1,
            Err(other) => return Err(other.into()),
        }
        Ok((told > 0 && left.len() as u64 == ROOM).then_some(()))
    })?;
    nothing(&mut a.cq)?;
    same((told, in_flight(&mut a)), (1, LOST as u32), "told and lost")?;
    a.qp.reset()?;
    a.qp.activate(QKEY, &ConnectOptions::default())?;
    talk(&mut a, &mut b)
}

/// Catches a message without a receive that is dropped, takes one, or is taken for another; and one of a
/// queue pair that has not asked for such.
fn unsolicited_writes(context: &Context) -> Result {
    if !has_writes() {
        return skip("the driver of Linux 6.1 has no WRITE");
    }
    let pd = context.alloc_pd()?;
    let mut a = Node::new(&pd, context.create_cq(64)?, caps(8), 8 * BYTES)?;
    let cq = context.create_cq(64)?;
    // SAFETY: fewer completions come than the queue has room for.
    let builder = unsafe { pd.qp(&cq).caps(caps(8)).unsolicited_writes() };
    let mut qp = builder.create::<Srd>()?;
    qp.activate(QKEY, &ConnectOptions::default())?;
    let mr = pd.register(vec![0; 8 * BYTES], all_there_is())?;
    let mut b = Node {
        qp,
        cq,
        mr,
        to: None,
    };
    a.meet(&pd, &b)?;
    b.meet(&pd, &a)?;
    b.receive(9, slot(7))?;
    let sent = pattern(5, BYTES);
    a.mr.write_at(0, &sent)?;
    for round in 0..20_u32 {
        a.post(1..2, |id, batch, to, mr, remote| {
            let (from, there) = (mr.slice(slot(0))?, remote.slice(slot(3))?);
            Ok(batch.signaled(id).to(to).write_imm(from, there, round)?)
        })?;
        completion(&mut a.cq)?.is(WcOpcode::RDMA_WRITE)?;
        let (wc, is_unsolicited) = until("a completion", || {
            let next = b.cq.poll()?.iter().next();
            Ok(next.map(|wc| (wc.is_unsolicited(), Wc::from(wc))))
        })
        .map(|(is, wc)| (wc, is))?;
        let told = (wc.wr_id, wc.opcode, wc.byte_len, wc.imm, is_unsolicited);
        let opcode = WcOpcode::RECV_RDMA_WITH_IMM;
        same(
            told,
            (0, opcode, BYTES as u32, Some(round), true),
            "a WRITE",
        )?;
        same(b.bytes(slot(3))?, sent.clone(), "what was written")?;
        same(in_flight(&mut b), 1, "receives")?;
    }
    // The receive is still there for a message.
    a.post(2..3, |id, batch, to, mr, _| {
        Ok(batch.signaled(id).to(to).send(mr.slice(slot(0))?)?)
    })?;
    completion(&mut a.cq)?.is(WcOpcode::SEND)?;
    let received = completion(&mut b.cq)?;
    same(
        (received.wr_id, received.opcode),
        (9, WcOpcode::RECV),
        "a message",
    )?;
    // SAFETY: nothing comes.
    let ud = unsafe { pd.qp(&b.cq).caps(caps(8)).unsolicited_writes() };
    let error = ud.create::<Ud>().err().ok_or("made for datagrams")?;
    says(&error, &["driver for efa", "consume no receives"])
}

/// Catches a sender without a handle whose GID is not told, or is another one's.
fn senders_that_nobody_knows(context: &Context) -> Result {
    let (one, other) = (context.alloc_pd()?, context.alloc_pd()?);
    let mut a = Node::new(&one, context.create_cq(64)?, caps(8), 8 * BYTES)?;
    let mut b = Node::new(&other, context.create_cq(64)?, caps(8), 8 * BYTES)?;
    a.meet(&one, &b)?;
    let gid = context.best_gid(1)?.ok_or("the port has no GID")?.1;
    for knows in [false, true] {
        if knows {
            b.meet(&other, &a)?;
        }
        b.receive(1, slot(1))?;
        a.post(1..2, |id, batch, to, mr, _| {
            Ok(batch.signaled(id).to(to).send(mr.slice(slot(0))?)?)
        })?;
        completion(&mut a.cq)?.is(WcOpcode::SEND)?;
        let sender = until("a completion", || {
            let next = b.cq.poll()?.iter().next();
            Ok(next.map(|wc| (wc.sender_gid(), wc.src_qp())))
        })?;
        let expected = (!knows).then_some(gid);
        same(sender, (expected, a.qp.qpn()), "the sender")?;
    }
    Ok(())
}

/// Catches a level that is not passed on, which the kernel's driver refuses before Linux 7.3.
fn service_levels(context: &Context) -> Result {
    let (mut a, mut b, pd) = pair(context, caps(8), 8 * BYTES)?;
    for level in [0, 8] {
        let created = pd.qp(&a.cq).caps(caps(8)).service_level(level);
        match created.create::<Srd>() {
            Ok(mut qp) if level == 0 || kernel() >= (7, 3) => {
                qp.activate(QKEY, &ConnectOptions::default())?;
                a.qp = qp;
                b.meet(&pd, &a)?;
                talk(&mut a, &mut b)?;
            }
            Err(error) if level != 0 && kernel() < (7, 3) => {
                println!("as it should be on this kernel: {error}");
            }
            other => return fail(format!("level {level}: {other:?}")),
        }
    }
    Ok(())
}

/// Catches numbers that are mixed up; the model has 1 for receives and 2 for READs.
fn interconnects_of_a_region(context: &Context) -> Result {
    if !has_writes() {
        return skip("the driver of Linux 6.1 does not tell them");
    }
    let pd = context.alloc_pd()?;
    let told = pd
        .register(vec![0u8; BYTES], Access::LOCAL_WRITE)?
        .interconnects()?;
    let told = (told.receive, told.read, told.rdma_receive);
    same(told, (Some(1), Some(2), None), "interconnects")
}

/// Catches attributes that this device does not have, and states that it does not reach.
fn states_and_attributes(context: &Context) -> Result {
    let (mut a, mut b, _pd) = pair(context, caps(8), 8 * BYTES)?;
    let info = a.qp.query()?;
    same(
        (info.state, info.qkey, info.port),
        (QpState::RTS, QKEY, 1),
        "attributes",
    )?;
    same(info.caps.max_send_wr, a.qp.caps().max_send_wr, "requests")?;
    b.receive(1, slot(1))?;
    b.qp.fail()?;
    same(b.qp.query()?.state, QpState::ERR, "the state")?;
    a.qp.reset()?;
    same(a.qp.query()?.state, QpState::RESET, "the state")
}

/// Catches what the device lacks being asked of the kernel, or being refused without its name.
fn refused_by_name(context: &Context) -> Result {
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(64)?;
    let refused = |error: uverbs::Error, words: &[&str]| {
        same(error.is_unsupported(), true, "whether it is unsupported")?;
        says(&error, words)
    };
    let lacks = |what: &str| format!("{what} was created");
    for transport in [
        QpType::RC,
        QpType::UC,
        QpType::XRC_SEND,
        QpType::DCI,
        QpType::RAW_PACKET,
    ] {
        let created = pd.qp(&cq).caps(caps(8)).create_any(transport);
        let error = created.err().ok_or_else(|| lacks("a queue pair"))?;
        refused(error, &["driver for efa", "queue pairs of type"])?;
    }
    let srq = pd.srq(8).create().err().ok_or_else(|| lacks("an SRQ"))?;
    refused(srq, &["shared receive queues"])?;
    let xrc = context.open_xrcd().err();
    refused(xrc.ok_or_else(|| lacks("an XRC domain"))?, &["XRC"])?;
    let dm = context.alloc_dm(4096, 3).err();
    let words = &["device memory"];
    refused(dm.ok_or_else(|| lacks("device memory"))?, words)?;
    let null = pd.null_mr().err();
    refused(null.ok_or_else(|| lacks("a null MR"))?, &["a null MR"])?;
    let mw = pd.alloc_mw::<Type1>().err();
    let words = &["alloc_mw", "the driver does not have this verb"];
    refused(mw.ok_or_else(|| lacks("a window"))?, words)?;
    let timed = context.cq(8).timestamps(true).create().err();
    let words = &["flags of completion queues"];
    refused(timed.ok_or_else(|| lacks("a clock's queue"))?, words)?;
    let clock = context.raw_clock().err();
    refused(clock.ok_or_else(|| lacks("a time"))?, &["a clock"])?;
    let resized = context.create_cq(8)?.resize(64).err();
    let words = &["completion queues that change their size"];
    refused(resized.ok_or_else(|| lacks("another size"))?, words)?;
    let imported = Context::import(context.as_fd().try_clone_to_owned()?).err();
    let words = &["contexts of others"];
    refused(imported.ok_or_else(|| lacks("an import"))?, words)?;
    let atomic = pd.register(vec![0u8; 64], Access::LOCAL_WRITE | Access::REMOTE_ATOMIC);
    let words = &["reg_mr", "the driver does not have this verb"];
    refused(atomic.err().ok_or_else(|| lacks("a region"))?.error, words)?;
    let (mut a, _b, _pd) = pair(context, caps(8), 8 * BYTES)?;
    a.post(1..2, |id, batch, to, mr, _| {
        let fenced = batch.signaled(id).fence().to(to).send(mr.slice(..)?);
        let transport = QpType::DRIVER;
        let refused = Some(PostError::NotInTransport { transport });
        same(fenced.err(), refused, "a fence")
    })
}

/// Catches a path or an address handle that leads to this function.
fn between_two_functions() -> Result {
    needs_srd()?;
    let devices = uverbs::devices()?;
    let [one, other, ..] = &devices[..] else {
        return skip("there is one function");
    };
    let node = |device: &uverbs::Device| -> Result<(Node, Pd)> {
        let context = device.open()?;
        let pd = context.alloc_pd()?;
        let node = Node::new(&pd, context.create_cq(256)?, caps(16), 8 * BYTES)?;
        Ok((node, pd))
    };
    let ((mut a, pd_a), (mut b, pd_b)) = (node(one)?, node(other)?);
    a.meet(&pd_a, &b)?;
    b.meet(&pd_b, &a)?;
    talk(&mut a, &mut b)?;
    talk(&mut b, &mut a)
}
