//! Operations over reliable datagrams that are awaited, with buffers of a pool: each by itself, for they have
//! no order, and each fails alone.

use libtest_mimic::Trial;
use support::{
    Device, QKEY, Result, all_there_is, device, fail, kernel, open, own_path, pattern, same, skip,
    test_without_leaks,
};
use uverbs::aio::{Cq, OpError, Post, Qp};
use uverbs::buf::{Buf, Pool};
use uverbs::{Access, Ah, Caps, ConnectOptions, Context, Mr, Pd, Srd, WcStatus};

/// A test with its name.
type Named = (&'static str, fn() -> Result);

pub(crate) fn tests() -> Vec<Trial> {
    let tests: [Named; 5] = [
        ("awaited::each_operation", each_operation),
        ("awaited::many_in_no_order", many_in_no_order),
        ("awaited::a_failure_stays_alone", a_failure_stays_alone),
        ("awaited::forgotten_operations", forgotten_operations),
        ("awaited::buffers_of_a_queue_pair_that_goes", goes),
    ];
    tests
        .map(|(name, run)| {
            test_without_leaks(name, move || match device() {
                Device::Efa => run(),
                _ => skip("the device has no reliable datagrams of its own"),
            })
        })
        .into()
}

/// Operations of each kind at a time.
const DEPTH: u32 = 32;

/// Two queue pairs that know each other's device.
struct Two {
    a: Qp<Srd>,
    b: Qp<Srd>,
    way: Ah,
    cq: Cq,
    pool: Pool,
    pd: Pd,
    _context: Context,
}

impl Two {
    fn new() -> Result<Self> {
        let context = open()?;
        let pd = context.alloc_pd()?;
        let cq = Cq::new(&context, 512)?;
        let caps = Caps {
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            max_inline_data: 32,
            ..Caps::default()
        };
        let ready = || -> Result<Qp<Srd>> {
            let mut qp = cq.create_qp::<Srd>(&pd, caps)?;
            qp.activate(QKEY, &ConnectOptions::default())?;
            Ok(qp)
        };
        let (a, b) = (ready()?, ready()?);
        Ok(Self {
            a,
            b,
            way: pd.create_ah(&own_path(&context)?)?,
            pool: Pool::on(&pd).sizes([256, 4096]).build()?,
            cq,
            pd,
            _context: context,
        })
    }

    fn buf(&self, bytes: &[u8]) -> Result<Buf> {
        filled(&self.pool, bytes)
    }

    fn region(&self, bytes: usize) -> Result<Mr<Vec<u8>>> {
        Ok(self.pd.register(vec![0; bytes], all_there_is())?)
    }

    /// Every buffer is in the pool.
    fn nothing_is_missing(&self) -> Result {
        same(self.pool.stats().in_use(), 0, "buffers in use")
    }
}

/// A buffer of a pool that is filled with these bytes.
fn filled(pool: &Pool, bytes: &[u8]) -> Result<Buf> {
    let mut buf = pool.try_get(bytes.len())?;
    buf.extend_from_slice(bytes)?;
    Ok(buf)
}

/// Sends and receives a message and looks at it.
fn talk(two: &mut Two, bytes: &[u8]) -> Result {
    let to_b = two.way.to(two.b.qpn(), QKEY);
    let received = two.b.recv(two.pool.try_get(256)?);
    let sent = two.a.to(to_b).send(filled(&two.pool, bytes)?);
    two.cq.block_on(sent)?.0?;
    let (received, buf) = two.cq.block_on(received)?;
    let received = received?;
    let told = (received.qpn, received.src_qpn, received.len as usize);
    same(told, (two.b.qpn(), two.a.qpn(), bytes.len()), "the message")?;
    same(&*buf, bytes, "its bytes")
}

/// Catches an operation whose destination or memory is another one's, or whose buffer does not come back.
fn each_operation() -> Result {
    let mut two = Two::new()?;
    talk(&mut two, b"a message")?;
    let mut target = two.region(4096)?;
    let there = target.remote().slice(100..200)?;
    let (qpn, sent) = (two.b.qpn(), pattern(3, 100));
    let received = two.b.recv(two.pool.try_get(256)?);
    let peer = two.way.to(qpn, QKEY);
    let told = two
        .a
        .to(peer)
        .send_imm(filled(&two.pool, b"few")?, 0x0102_0304);
    two.cq.block_on(told)?.0?;
    let (received, buf) = two.cq.block_on(received)?;
    same(received?.imm, Some(0x0102_0304), "the number")?;
    drop(buf);
    let peer = two.way.to(qpn, QKEY);
    let received = two.b.recv(two.pool.try_get(256)?);
    let told = two.a.to(peer).send_inline(b"inline");
    two.cq.block_on(told)??;
    let (received, buf) = two.cq.block_on(received)?;
    received?;
    same(&*buf, &b"inline"[..], "inline bytes")?;
    drop(buf);

    if kernel() >= (6, 12) {
        let bytes = two.buf(&sent)?;
        let written = two.a.to(two.way.to(qpn, QKEY)).write(bytes, there);
        let (written, back) = two.cq.block_on(written)?;
        written?;
        same(&*back, &sent[..], "the buffer that came back")?;
        let mut found = vec![0; 100];
        target.read_at(100, &mut found)?;
        same(&found, &sent, "what was written")?;

        let told = two.b.recv(two.pool.try_get(256)?);
        let elsewhere = target.remote().slice(1000..1100)?;
        let peer = two.way.to(qpn, QKEY);
        let written = two.a.to(peer).write_imm(back, elsewhere, 77);
        two.cq.block_on(written)?.0?;
        let (told, _) = two.cq.block_on(told)?;
        let told = told?;
        same(
            (told.imm, told.len),
            (Some(77), 100),
            "a WRITE with a number",
        )?;
        target.read_at(1000, &mut found)?;
        same(&found, &sent, "what was written with it")?;
    } else {
        target.write_at(100, &sent)?;
    }
    let into = two.pool.try_get(256)?;
    let read = two.a.to(two.way.to(qpn, QKEY)).read(into, there);
    let (read, buf) = two.cq.block_on(read)?;
    read?;
    same(&*buf, &sent[..], "what was read")?;
    drop(buf);
    two.nothing_is_missing()
}

/// Catches a result that is another operation's, and a message that comes twice or never.
fn many_in_no_order() -> Result {
    let mut two = Two::new()?;
    let qpn = two.b.qpn();
    for round in 0..8_u8 {
        let receives: Vec<_> = (0..DEPTH)
            .map(|_| Ok(two.b.recv(two.pool.try_get(256)?)))
            .collect::<Result<_>>()?;
        let messages: Vec<Vec<u8>> = (0..DEPTH)
            .map(|number| vec![round; 1 + number as usize])
            .collect();
        let bufs = messages
            .iter()
            .map(|message| two.buf(message))
            .collect::<Result<Vec<_>>>()?;
        let mut batch = two.a.batch();
        let sends: Vec<_> = bufs
            .into_iter()
            .map(|buf| batch.to(two.way.to(qpn, QKEY)).send(buf))
            .collect();
        same(batch.ring()?, DEPTH as usize, "requests")?;
        // The last is awaited first.
        for (send, message) in sends.into_iter().zip(&messages).rev() {
            let (sent, buf) = two.cq.block_on(send)?;
            sent?;
            same(&*buf, &message[..], "the buffer that came back")?;
        }
        let mut found = Vec::new();
        for receive in receives.into_iter().rev() {
            let (received, buf) = two.cq.block_on(receive)?;
            same(received?.len as usize, buf.len(), "bytes")?;
            found.push(buf.to_vec());
        }
        found.sort_unstable();
        same(found, messages, "the messages")?;
    }
    two.nothing_is_missing()
}

/// Catches a queue pair that is given up for one request, and a failure without its buffer.
fn a_failure_stays_alone() -> Result {
    let mut two = Two::new()?;
    let closed = two.pd.register(vec![0u8; 64], Access::LOCAL_WRITE)?;
    for _ in 0..3 {
        let into = two.pool.try_get(256)?;
        let peer = two.way.to(two.b.qpn(), QKEY);
        let read = two.a.to(peer).read(into, closed.remote());
        let (failed, buf) = two.cq.block_on(read)?;
        match failed {
            Err(OpError::Completion(error)) if error.status == WcStatus::REM_ACCESS_ERR => {}
            other => fail(format!("{other:?}"))?,
        }
        same(buf.capacity() >= 64, true, "the buffer")?;
        drop(buf);
        talk(&mut two, b"and on it goes")?;
    }
    two.nothing_is_missing()
}

/// Catches buffers of operations whose futures are gone that do not come back, and slots that stay taken.
fn forgotten_operations() -> Result {
    let two = Two::new()?;
    let source = two.region(4096)?;
    let from = source.remote().slice(..64)?;
    let (mut sender, _receiver) = two.a.split();
    for _ in 0..4 * DEPTH {
        two.cq.block_on(sender.room())?;
        let into = two.pool.try_get(256)?;
        drop(sender.to(two.way.to(two.b.qpn(), QKEY)).read(into, from));
    }
    // All of them have ended when there is room for as many again.
    let again: Vec<_> = (0..DEPTH)
        .map(|_| {
            two.cq.block_on(sender.room())?;
            let into = two.pool.try_get(256)?;
            Ok(sender.to(two.way.to(two.b.qpn(), QKEY)).read(into, from))
        })
        .collect::<Result<_>>()?;
    for read in again {
        two.cq.block_on(read)?.0?;
    }
    same(two.pool.stats().in_use(), 0, "buffers in use")
}

/// Catches buffers that go with their queue pair, and another end than the device's for what is in flight: it
/// completes that before the queue pair is gone.
fn goes() -> Result {
    let mut two = Two::new()?;
    let receives: Vec<_> = (0..4)
        .map(|_| Ok(two.b.recv(two.pool.try_get(256)?)))
        .collect::<Result<_>>()?;
    let Two { b, cq, pool, .. } = two;
    drop(b);
    for receive in receives {
        let (ended, buf) = cq.block_on(receive)?;
        match ended {
            Err(OpError::Completion(error)) if error.status == WcStatus::WR_FLUSH_ERR => drop(buf),
            other => fail(format!("{other:?}"))?,
        }
    }
    same(pool.stats().in_use(), 0, "buffers in use")
}
