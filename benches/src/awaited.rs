//! What awaiting adds: a WRITE and its completion by `aio`, for callgrind, beside the same over the bare data
//! path.
//!
//! As in [`instructions`](crate::instructions), only what is inside the functions `op_*` is counted.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll, Waker};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use uverbs::aio::{Cq, Op, OpError, Post, Qp, Sent};
use uverbs::buf::{Buf, Pool};
use uverbs::query::LinkLayer;
use uverbs::{Access, Caps, ConnectOptions, LocalSlice, Rc, RemoteSlice};

use crate::instructions::row;

/// Bytes of the WRITE.
const WRITE: usize = 64;
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
    let mut batch = qp.send();
    match batch.write(from, *to) {
        Ok(posted) => posted.signaled(7),
        Err(_) => return false,
    };
    batch.ring().is_ok()
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
    let options = ConnectOptions {
        gid_index: (context.query_port(1)?.link_layer == LinkLayer::ETHERNET).then_some(1),
        ..ConnectOptions::default()
    };
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
        let mut batch = here.send();
        batch.write(from, *to)?.signaled(7);
        batch.ring()?;
        sleep(SETTLE);
        ensure!(bare_poll(&mut cq), "a completion");
        Ok(())
    })
}
