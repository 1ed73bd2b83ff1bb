//! The data path under load: a million requests, many queue pairs on one completion queue, rings of every
//! size with many times around them.

use std::time::Instant;

use libtest_mimic::Trial;
use support::pair::options;
use support::{
    Pair, Result, Setup, all_there_is, completion, completions, device, is_full, kernel, nothing,
    open, pattern, same, test, until,
};
use uverbs::{Caps, Inline, PostError, Rc, WcOpcode};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("load::a_million_requests", a_million_requests),
        test(
            "load::many_queue_pairs_on_one_cq",
            many_queue_pairs_on_one_cq,
        ),
        test(
            "load::send_rings_of_every_size_wrap",
            send_rings_of_every_size_wrap,
        ),
        test(
            "load::recv_rings_of_every_size_wrap",
            recv_rings_of_every_size_wrap,
        ),
        test(
            "load::cq_rings_of_every_size_wrap",
            cq_rings_of_every_size_wrap,
        ),
        test(
            "load::the_largest_rings_fill_to_the_last_slot",
            the_largest_rings_fill_to_the_last_slot,
        ),
    ]
}

/// How many requests make the load: in a full run a million on soft-RoCE with the newest kernel, else a
/// tenth; or what the environment says.
fn requests() -> Result<u64> {
    match std::env::var("UVERBS_TEST_REQUESTS") {
        Ok(count) => Ok(count.parse()?),
        Err(_) if is_full() && device().is_rxe() && kernel() >= (7, 0) => Ok(1_000_000),
        Err(_) => Ok(100_000),
    }
}

/// The payload of message `number`: no two alike.
fn payload(number: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&number.to_ne_bytes());
    bytes[8..].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_ne_bytes());
    bytes
}

/// Catches an index, a slot or a completion that goes astray once in a long while: every message's bytes,
/// length and order are checked.
fn a_million_requests() -> Result {
    let total = requests()?;
    let mut stream = Stream::new(total)?;
    let started = Instant::now();
    while stream.received < total {
        let before = stream.received;
        until("a message", || {
            stream.post_receives()?;
            stream.post_sends()?;
            stream.take_sends()?;
            stream.take_receives()?;
            Ok((stream.received > before).then_some(()))
        })?;
    }
    println!("{total} requests in {:.1?}", started.elapsed());
    Ok(())
}

/// Requests that one doorbell hands over.
const BATCH: u64 = 64;

/// Requests that are under way at a time, and places for messages.
const SLOTS: u64 = 4 * BATCH;

/// Numbered messages from one queue pair to the other.
struct Stream {
    pair: Pair<Rc>,
    total: u64,
    /// Receives posted, messages sent and messages received so far.
    posted: u64,
    sent: u64,
    received: u64,
}

impl Stream {
    fn new(total: u64) -> Result<Self> {
        let caps = Caps {
            max_send_wr: SLOTS as u32,
            max_recv_wr: SLOTS as u32,
            ..Caps::default()
        };
        let length = SLOTS as usize * 16;
        let setup = Setup {
            caps,
            cqe: 2 * SLOTS as u32,
            length,
            ..Setup::default()
        };
        let pair = Pair::with(&setup)?;
        Ok(Self {
            pair,
            total,
            posted: 0,
            sent: 0,
            received: 0,
        })
    }

    fn post_receives(&mut self) -> Result {
        let b = &mut self.pair.b;
        let mut batch = b.qp.recv_batch();
        while self.posted < self.total.min(self.received + SLOTS) {
            let at = (self.posted % SLOTS * 16) as usize;
            batch.post(self.posted, b.mr.slice(at..at + 16)?)?;
            self.posted += 1;
        }
        batch.ring();
        Ok(())
    }

    /// Sends a batch if there is room for one and a receive for each of its messages.
    fn post_sends(&mut self) -> Result {
        let qp = &mut self.pair.a.qp;
        let last = self.total.min(self.sent + BATCH);
        let room = SLOTS - u64::from(qp.halves().0.in_flight());
        if last == self.sent || last > self.posted || last - self.sent > room {
            return Ok(());
        }
        let mut batch = qp.batch();
        for number in self.sent..last {
            let request = match number + 1 == last {
                true => batch.signaled(number),
                false => batch.unsignaled(number),
            };
            request.send(Inline(&payload(number)))?;
        }
        batch.ring()?;
        self.sent = last;
        Ok(())
    }

    fn take_sends(&mut self) -> Result {
        for wc in &mut self.pair.a.cq.poll()? {
            same(wc.result()?, WcOpcode::SEND, "a send")?;
        }
        Ok(())
    }

    fn take_receives(&mut self) -> Result {
        let b = &mut self.pair.b;
        for wc in &mut b.cq.poll()? {
            same(wc.result()?, WcOpcode::RECV, "a receive")?;
            same(wc.wr_id(), self.received, "the order of receives")?;
            same(wc.byte_len(), 16, "the length")?;
            let mut bytes = [0; 16];
            b.mr.read_at((self.received % SLOTS * 16) as usize, &mut bytes)?;
            same(bytes, payload(self.received), "the payload")?;
            self.received += 1;
        }
        Ok(())
    }
}

/// Catches completions that are attributed to the wrong queue pair, or lost among others.
fn many_queue_pairs_on_one_cq() -> Result {
    const ROUNDS: u64 = 4;
    // More than an adapter has registers for.
    let pairs_wanted = if device().is_rxe() { 256 } else { 24 };
    let context = open()?;
    let pd = context.alloc_pd()?;
    let mut cq = context.create_cq(4 * pairs_wanted as u32)?;
    let mr = pd.register(vec![0_u8; pairs_wanted * 16], all_there_is())?;
    let caps = Caps {
        max_send_wr: 4,
        max_recv_wr: 4,
        max_inline_data: 16,
        ..Caps::default()
    };
    let mut pairs = Vec::new();
    let mut receivers = std::collections::HashMap::new();
    for index in 0..pairs_wanted {
        let (mut a, mut b) = (
            pd.create_qp::<Rc>(&cq, caps)?,
            pd.create_qp::<Rc>(&cq, caps)?,
        );
        let (from, to) = (a.endpoint()?, b.endpoint()?);
        a.connect_with(&to, &options())?;
        b.connect_with(&from, &options())?;
        receivers.insert(b.qpn(), index);
        pairs.push((a, b));
    }
    for round in 0..ROUNDS {
        let number = |index: usize| round * pairs_wanted as u64 + index as u64;
        for (index, (a, b)) in pairs.iter_mut().enumerate() {
            let at = index * 16;
            let mut batch = b.recv_batch();
            batch.post(number(index), mr.slice(at..at + 16)?)?;
            batch.ring();
            let mut batch = a.batch();
            batch
                .signaled(u64::MAX)
                .send(Inline(&payload(number(index))))?;
            batch.ring()?;
        }
        let all = completions(&mut cq, 2 * pairs_wanted)?;
        let mut seen = std::collections::HashSet::new();
        for wc in all.iter().filter(|wc| wc.opcode == WcOpcode::RECV) {
            let wc = wc.ok()?;
            let index = receivers[&wc.qp_num];
            same(wc.wr_id, number(index), "the receive of this queue pair")?;
            let mut bytes = [0; 16];
            mr.read_at(index * 16, &mut bytes)?;
            same(bytes, payload(number(index)), "the payload")?;
            seen.insert(index);
        }
        same(seen.len(), pairs_wanted, "the queue pairs that received")?;
    }
    Ok(())
}

/// Sizes at and beside powers of 2, where a ring's arithmetic goes wrong.
const SIZES: [u32; 12] = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 63];

/// Catches a ring that holds one request too few or too many, and an index that goes wrong where the ring
/// starts over: rings are filled to the last slot and emptied, several times around, from every offset.
fn send_rings_of_every_size_wrap() -> Result {
    for size in SIZES {
        let caps = Caps {
            max_send_wr: size,
            max_recv_wr: 256,
            ..Caps::default()
        };
        let mut pair = Pair::<Rc>::with(&Setup::with_caps(caps))?;
        let mut number = 0;
        // Going once less than around each time, a round starts at another slot.
        for round in 0..6 {
            let capacity = fill_and_check(&mut pair, &mut number, round % 2)?;
            if capacity < size {
                return Err(format!("a ring for {size} requests took {capacity}").into());
            }
        }
    }
    Ok(())
}

/// Sends as many messages as the send ring takes (but `less`), and checks what arrives. The number of
/// requests that the ring took.
fn fill_and_check(pair: &mut Pair<Rc>, number: &mut u64, less: u32) -> Result<u32> {
    let capacity = pair.a.qp.caps().max_send_wr;
    let count = (capacity - less.min(capacity - 1)) as usize;
    for slot in 0..count {
        pair.b.post_recv(slot as u64, slot * 16..slot * 16 + 16)?;
    }
    let first = *number;
    let mut batch = pair.a.qp.batch();
    for _ in 0..count {
        batch.signaled(*number).send(Inline(&payload(*number)))?;
        *number += 1;
    }
    let beyond = batch.unsignaled(0).send(Inline(b"one too many")).err();
    let expected = (count == capacity as usize).then_some(PostError::QueueFull { capacity });
    if less == 0 {
        same(beyond, expected, "one more request")?;
        batch.ring()?;
    } else {
        // The request that fits is one too many for the receiver: nothing of this batch goes out.
        drop(batch);
        let mut batch = pair.a.qp.batch();
        for number in first..*number {
            batch.signaled(number).send(Inline(&payload(number)))?;
        }
        batch.ring()?;
    }
    for (id, wc) in (first..).zip(completions(&mut pair.a.cq, count)?) {
        same(wc.ok()?.wr_id, id, "the send's id")?;
    }
    for (slot, wc) in (0..).zip(completions(&mut pair.b.cq, count)?) {
        same(wc.ok()?.wr_id, slot, "the receive's id")?;
        let bytes = pair.b.bytes(slot as usize * 16, 16)?;
        same(bytes, payload(first + slot).to_vec(), "the payload")?;
    }
    same(pair.a.qp.halves().0.in_flight(), 0, "requests in flight")?;
    Ok(capacity)
}

/// Catches the same on the receive side.
fn recv_rings_of_every_size_wrap() -> Result {
    for size in SIZES {
        let caps = Caps {
            max_send_wr: 256,
            max_recv_wr: size,
            ..Caps::default()
        };
        let mut pair = Pair::<Rc>::with(&Setup::with_caps(caps))?;
        let capacity = pair.b.qp.caps().max_recv_wr;
        if capacity < size {
            return Err(format!("a ring for {size} receives takes {capacity}").into());
        }
        for round in 0..12_u64 {
            let count = u64::from(capacity) - (round % 2).min(u64::from(capacity) - 1);
            let mut batch = pair.b.qp.recv_batch();
            for slot in 0..count {
                let at = slot as usize * 16;
                batch.post(slot, pair.b.mr.slice(at..at + 16)?)?;
            }
            if count == u64::from(capacity) {
                let beyond = batch.post(9, pair.b.mr.slice(..16)?).err();
                same(
                    beyond,
                    Some(PostError::QueueFull { capacity }),
                    "one more receive",
                )?;
            }
            same(batch.ring(), count as usize, "the batch")?;
            same(
                pair.b.qp.halves().1.in_flight(),
                count as u32,
                "receives in flight",
            )?;
            let mut batch = pair.a.qp.batch();
            for slot in 0..count {
                let request = match slot + 1 == count {
                    true => batch.signaled(round),
                    false => batch.unsignaled(round),
                };
                request.send(Inline(&payload(round << 32 | slot)))?;
            }
            batch.ring()?;
            for (slot, wc) in (0..).zip(completions(&mut pair.b.cq, count as usize)?) {
                same(wc.ok()?.wr_id, slot, "the receive's id")?;
                let bytes = pair.b.bytes(slot as usize * 16, 16)?;
                same(bytes, payload(round << 32 | slot).to_vec(), "the payload")?;
            }
            same(completion(&mut pair.a.cq)?.ok()?.wr_id, round, "the sends")?;
        }
    }
    Ok(())
}

/// Catches the same in completion queues: filled to the last entry before anything is taken.
fn cq_rings_of_every_size_wrap() -> Result {
    // A request has its place until its completion is taken, so the send queue bounds what can wait.
    let max_send_wr = open()?.query_device()?.max_qp_wr;
    for (cqe, rounds) in SIZES
        .into_iter()
        .map(|size| (size, 6))
        .chain([(1000, 2), (3000, 2)])
    {
        let caps = Caps {
            max_send_wr: max_send_wr.min(2 * cqe + 256),
            ..Caps::default()
        };
        let mut pair = Pair::<Rc>::with(&Setup {
            caps,
            cqe,
            ..Setup::default()
        })?;
        let capacity = pair.a.cq.capacity();
        if capacity < cqe {
            return Err(format!("a queue for {cqe} completions holds {capacity}").into());
        }
        for round in 0..rounds {
            // The large ones are filled once, and then their ring starts over.
            let count = match capacity > 128 && round > 0 {
                true => 100,
                false => u64::from(capacity) - (round % 2).min(u64::from(capacity) - 1),
            };
            fill_cq(&mut pair, count)?;
            for (id, wc) in (0..).zip(completions(&mut pair.a.cq, count as usize)?) {
                same(wc.ok()?.wr_id, id, "the completion's id")?;
            }
            nothing(&mut pair.a.cq)?;
        }
    }
    Ok(())
}

/// Lets `count` requests complete, without taking a completion.
///
/// Behind each batch of them goes a READ without a completion. Requests end in their order, so what it brings
/// comes when the completions of all others are there.
fn fill_cq(pair: &mut Pair<Rc>, count: u64) -> Result {
    let there = pair.b.mr.remote();
    let mut id = 0;
    while id < count {
        let last = count.min(id + 100);
        pair.a.mr.write_at(0, &[0])?;
        let mut batch = pair.a.qp.batch();
        while id < last {
            batch.signaled(id).write(Inline(&[1]), there)?;
            id += 1;
        }
        batch
            .unsignaled(0)
            .read(pair.a.mr.slice(..1)?, there.slice(..1)?)?;
        batch.ring()?;
        until("the end of a batch", || {
            Ok((pair.a.bytes(0, 1)? == [1]).then_some(()))
        })?;
    }
    Ok(())
}

/// Catches a ring size or offset that is computed in too few bits. The queue pair is connected to itself,
/// because the rings are large.
fn the_largest_rings_fill_to_the_last_slot() -> Result {
    let context = open()?;
    let max = context.query_device()?.max_qp_wr;
    // Some kernels (6.1) count the blocks of mlx5's rings here, of which a request has up to four.
    let sends = match device().is_rxe() {
        true => max,
        false => max.min(8192),
    };
    let pd = context.alloc_pd()?;
    let mut cq = context.create_cq(8)?;
    let mr = pd.register(vec![0_u8; 64], all_there_is())?;
    for (max_send_wr, max_recv_wr) in [(sends, 1), (1, max)] {
        let caps = Caps {
            max_send_wr,
            max_recv_wr,
            max_inline_data: 16,
            ..Caps::default()
        };
        let mut qp = pd.create_qp::<Rc>(&cq, caps)?;
        qp.connect_with(&qp.endpoint()?, &options())?;
        let granted = qp.caps();
        if granted.max_send_wr < max_send_wr || granted.max_recv_wr < max_recv_wr {
            return Err(format!("asked for {caps:?}, got {granted:?}").into());
        }
        let mut batch = qp.recv_batch();
        let slice = mr.slice(..16)?;
        for id in 0..u64::from(granted.max_recv_wr) {
            batch.post(id, slice)?;
        }
        let capacity = granted.max_recv_wr;
        let beyond = batch.post(0, slice).err();
        same(
            beyond,
            Some(PostError::QueueFull { capacity }),
            "one more receive",
        )?;
        batch.ring();
        let mut batch = qp.batch();
        for number in 0..u64::from(granted.max_send_wr) {
            batch.unsignaled(0).send(Inline(&number.to_ne_bytes()))?;
        }
        let capacity = granted.max_send_wr;
        same(
            batch.unsignaled(0).send(Inline(&[])).err(),
            Some(PostError::QueueFull { capacity }),
            "one more send",
        )?;
        drop(batch);
        let mut batch = qp.batch();
        batch.unsignaled(0).send(Inline(&pattern(1, 16)))?;
        batch.ring()?;
        same(completion(&mut cq)?.ok()?.wr_id, 0, "the receive's id")?;
        let mut bytes = vec![0; 16];
        mr.read_at(0, &mut bytes)?;
        same(bytes, pattern(1, 16), "the payload")?;
    }
    Ok(())
}
