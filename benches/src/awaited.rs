//! What awaiting adds: a WRITE and its completion by `aio`, for callgrind, beside the same over the bare data
//! path.
//!
//! As in [`instructions`](crate::instructions), only what is inside the functions `op_*` is counted.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll, Waker};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use uverbs::aio::{Cq, Op, OpError, Post, Qp, Sent};
use uverbs::buf::{Buf, Pool};
use uverbs::query::LinkLayer;
use uverbs::{Access, Caps, ConnectOptions, LocalSlice, Rc, RemoteSlice};

use crate::instructions::row;

/// Bytes of the WRITE.
const WRITE: usize = 64;
/// WRITEs of the task that has several under way.
const MANY: usize = 16;
/// How long a request is given to complete.
const SETTLE: Duration = Duration::from_millis(20);

type Write = Op<Sent<Buf>>;
type Written = Poll<(Result<(), OpError>, Buf)>;

/// Posts a WRITE by `aio`.
#[inline(never)]
#[unsafe(export_name = "op_awaited_post")]
fn post(qp: &mut Qp<Rc>, buf: Buf, to: &RemoteSlice) -> Write {
    qp.write(buf, *to)
}

/// Polls its future: pending, so that it leaves its waker, or ready.
#[inline(never)]
#[unsafe(export_name = "op_awaited_poll")]
fn poll(op: &mut Write, cx: &mut TaskContext<'_>) -> Written {
    Pin::new(op).poll(cx)
}

/// Takes its completion, and wakes.
#[inline(never)]
#[unsafe(export_name = "op_awaited_pump")]
fn pump(cq: &Cq) -> bool {
    matches!(cq.pump(), Ok(true))
}

/// Drops its future.
#[inline(never)]
#[unsafe(export_name = "op_awaited_drop")]
fn end(_op: Write) {}

/// Posts WRITEs by `aio`, with one doorbell.
#[inline(never)]
#[unsafe(export_name = "op_awaited_post_many")]
fn post_many(
    qp: &mut Qp<Rc>,
    bufs: &mut [Option<Buf>; MANY],
    to: &RemoteSlice,
    ops: &mut [Option<Write>; MANY],
) -> bool {
    let mut batch = qp.batch();
    for (buf, op) in bufs.iter_mut().zip(ops) {
        let Some(buf) = buf.take() else { return false };
        *op = Some(batch.write(buf, *to));
    }
    batch.ring().is_ok()
}

/// Takes their completions, and wakes.
#[inline(never)]
#[unsafe(export_name = "op_awaited_pump_many")]
fn pump_many(cq: &Cq) -> bool {
    matches!(cq.pump(), Ok(true))
}

/// Polls their futures, which are ready, and drops them.
#[inline(never)]
#[unsafe(export_name = "op_awaited_take_many")]
fn take_many(
    ops: &mut [Option<Write>; MANY],
    cx: &mut TaskContext<'_>,
    bufs: &mut [Option<Buf>; MANY],
) -> bool {
    let mut all = true;
    for (op, buf) in ops.iter_mut().zip(bufs) {
        if let Some(write) = op
            && let Poll::Ready((Ok(()), back)) = Pin::new(write).poll(cx)
        {
            *buf = Some(back);
        } else {
            all = false;
        }
        *op = None;
    }
    all
}

/// Posts WRITEs over the bare data path, with one doorbell.
#[inline(never)]
#[unsafe(export_name = "op_bare_post_many")]
fn bare_post_many(qp: &mut uverbs::Qp<Rc>, from: &LocalSlice, to: &RemoteSlice) -> bool {
    let mut batch = qp.batch();
    for _ in 0..MANY {
        if batch.signaled(7).write(from, *to).is_err() {
            return false;
        }
    }
    batch.ring().is_ok()
}

/// Polls their completions.
#[inline(never)]
#[unsafe(export_name = "op_bare_poll_many")]
fn bare_poll_many(cq: &mut uverbs::Cq) -> usize {
    let Ok(mut completions) = cq.poll() else {
        return 0;
    };
    let mut found = 0;
    for completion in &mut completions {
        found += usize::from(completion.is_ok() && completion.wr_id() == 7);
    }
    found
}

/// Takes a buffer from its pool, and gives it back.
#[inline(never)]
#[unsafe(export_name = "op_awaited_buffer")]
fn buffer(pool: &Pool) -> bool {
    pool.try_get(WRITE).is_ok()
}

/// Allocates once, so that it is seen that allocations are.
#[inline(never)]
#[unsafe(export_name = "op_allocating")]
fn allocating() -> Box<[u8; WRITE]> {
    std::hint::black_box(Box::new([1; WRITE]))
}

/// Posts a WRITE over the bare data path.
#[inline(never)]
#[unsafe(export_name = "op_bare_post")]
fn bare_post(qp: &mut uverbs::Qp<Rc>, from: &LocalSlice, to: &RemoteSlice) -> bool {
    let mut batch = qp.batch();
    batch.signaled(7).write(from, *to).is_ok() && batch.ring().is_ok()
}

/// Polls its completion.
#[inline(never)]
#[unsafe(export_name = "op_bare_poll")]
fn bare_poll(cq: &mut uverbs::Cq) -> bool {
    let Ok(mut completions) = cq.poll() else {
        return false;
    };
    let mut found = false;
    for completion in &mut completions {
        found = completion.is_ok() && completion.wr_id() == 7;
    }
    found
}

/// Does each part some times and prints its name and the number of calls, as `instructions` does.
///
/// # Errors
/// If an operation fails, or is not done in time.
pub fn run(device: &str) -> Result<()> {
    let context = uverbs::open(device)?;
    let pd = context.alloc_pd()?;
    let target = pd.register(vec![0u8; WRITE], Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let options = options(&context)?;
    let pool = Pool::on(&pd).sizes([256]).build()?;
    let cq = Cq::new(&context, 256)?;
    let mut here: Qp<Rc> = cq.create_qp(&pd, Caps::default())?;
    let mut there: Qp<Rc> = cq.create_qp(&pd, Caps::default())?;
    let (a, b) = (
        here.endpoint_with(&options)?,
        there.endpoint_with(&options)?,
    );
    here.connect_with(&b, &options)?;
    there.connect_with(&a, &options)?;
    let mut cx = TaskContext::from_waker(Waker::noop());
    // Each row counts one part; the others are done uncounted in the same order, by functions of other names.
    let mut whole = |part: Part| -> Result<()> {
        let mut buf = pool.try_get(WRITE)?;
        buf.set_len(WRITE)?;
        let mut op = match part {
            Part::Post => post(&mut here, buf, &target.remote()),
            _ => here.write(buf, target.remote()),
        };
        let waiting = match part {
            Part::Wait => poll(&mut op, &mut cx).is_pending(),
            _ => Pin::new(&mut op).poll(&mut cx).is_pending(),
        };
        sleep(SETTLE);
        let pumped = match part {
            Part::Pump => pump(&cq),
            _ => cq.pump()?,
        };
        ensure!(
            waiting && pumped,
            "waiting: {waiting}, a completion: {pumped}"
        );
        let written = match part {
            Part::Take => poll(&mut op, &mut cx),
            _ => Pin::new(&mut op).poll(&mut cx),
        };
        let Poll::Ready((result, _buf)) = written else {
            bail!("not done");
        };
        match part {
            Part::Drop => end(op),
            _ => drop(op),
        }
        Ok(result?)
    };
    for (name, part) in [
        ("awaited_post", Part::Post),
        ("awaited_wait", Part::Wait),
        ("awaited_pump", Part::Pump),
        ("awaited_take", Part::Take),
        ("awaited_drop", Part::Drop),
    ] {
        row(name, || whole(part))?;
    }
    let mut bufs: [Option<Buf>; MANY] = std::array::from_fn(|_| pool.try_get(WRITE).ok());
    for buf in &mut bufs {
        let buf = buf.as_mut().context("a buffer")?;
        buf.set_len(WRITE)?;
    }
    let mut many = |part: Part| -> Result<()> {
        let mut ops = [const { None }; MANY];
        let posted = match part {
            Part::Post => post_many(&mut here, &mut bufs, &target.remote(), &mut ops),
            _ => {
                let mut batch = here.batch();
                for (buf, op) in bufs.iter_mut().zip(&mut ops) {
                    let buf = buf.take().context("a buffer")?;
                    *op = Some(batch.write(buf, target.remote()));
                }
                batch.ring().is_ok()
            }
        };
        // The task waits for the first; when that has ended, all have.
        let first = ops[0].as_mut().context("an operation")?;
        let waiting = match part {
            Part::Wait => poll(first, &mut cx).is_pending(),
            _ => Pin::new(first).poll(&mut cx).is_pending(),
        };
        sleep(SETTLE);
        let pumped = match part {
            Part::Pump => pump_many(&cq),
            _ => cq.pump()?,
        };
        let taken = match part {
            Part::Take => take_many(&mut ops, &mut cx, &mut bufs),
            _ => ops.iter_mut().zip(&mut bufs).all(|(op, buf)| {
                let Some(Poll::Ready((Ok(()), back))) =
                    op.as_mut().map(|op| Pin::new(op).poll(&mut cx))
                else {
                    return false;
                };
                *buf = Some(back);
                true
            }),
        };
        ensure!(
            posted && waiting && pumped && taken,
            "posted: {posted}, waiting: {waiting}, completions: {pumped}, all: {taken}"
        );
        Ok(())
    };
    for (name, part) in [
        ("awaited_post_many", Part::Post),
        ("awaited_wait_many", Part::Wait),
        ("awaited_pump_many", Part::Pump),
        ("awaited_take_many", Part::Take),
    ] {
        row(name, || many(part))?;
    }
    row("awaited_buffer", || {
        ensure!(buffer(&pool), "a buffer");
        Ok(())
    })?;
    row("allocating", || {
        ensure!(allocating()[0] == 1, "a byte");
        Ok(())
    })?;
    bare(&pd, &options, &target.remote())
}

/// How queue pairs of a device are connected here.
///
/// # Errors
/// If the port cannot be queried.
pub(crate) fn options(context: &uverbs::Context) -> Result<ConnectOptions> {
    Ok(ConnectOptions {
        gid_index: (context.query_port(1)?.link_layer == LinkLayer::ETHERNET).then_some(1),
        ..ConnectOptions::default()
    })
}

/// The parts of an operation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Post,
    Wait,
    Pump,
    Take,
    Drop,
}

fn bare(pd: &uverbs::Pd, options: &ConnectOptions, to: &RemoteSlice) -> Result<()> {
    let mut cq = pd.context().create_cq(256)?;
    let mut here = pd.create_qp::<Rc>(&cq, Caps::default())?;
    let mut there = pd.create_qp::<Rc>(&cq, Caps::default())?;
    let (a, b) = (here.endpoint_with(options)?, there.endpoint_with(options)?);
    here.connect_with(&b, options)?;
    there.connect_with(&a, options)?;
    let source = pd.register(vec![0u8; WRITE], Access::LOCAL_WRITE)?;
    let from = source.slice(..)?;
    row("bare_post", || {
        ensure!(bare_post(&mut here, &from, to), "posting a WRITE");
        sleep(SETTLE);
        let mut completions = cq.poll()?;
        ensure!((&mut completions).into_iter().count() == 1, "a completion");
        Ok(())
    })?;
    row("bare_poll", || {
        let mut batch = here.batch();
        batch.signaled(7).write(from, *to)?;
        batch.ring()?;
        sleep(SETTLE);
        ensure!(bare_poll(&mut cq), "a completion");
        Ok(())
    })?;
    row("bare_post_many", || {
        ensure!(bare_post_many(&mut here, &from, to), "posting WRITEs");
        sleep(SETTLE);
        let mut completions = cq.poll()?;
        let count = (&mut completions).into_iter().count();
        ensure!(count == MANY, "{count} completions");
        Ok(())
    })?;
    row("bare_poll_many", || {
        let mut batch = here.batch();
        for _ in 0..MANY {
            batch.signaled(7).write(from, *to)?;
        }
        batch.ring()?;
        sleep(SETTLE);
        let count = bare_poll_many(&mut cq);
        ensure!(count == MANY, "{count} completions");
        Ok(())
    })
}
