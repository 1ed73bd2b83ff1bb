//! The region without memory, as a part of messages: on their way out, in, and where they come in
//! completions.

use libtest_mimic::Trial;
use support::{ALL, Pair, Result, Setup, completion, device, open, same, skip, test};
use uverbs::{Caps, Mr, Qp, Rc, RemoteSlice, WcOpcode, WcStatus, mr::RemoteKey};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("null_mr::parts_that_nobody_wants", parts_that_nobody_wants),
        test("null_mr::in_completions", in_completions),
    ]
}

fn caps() -> Caps {
    Caps {
        max_send_sge: 3,
        max_recv_sge: 3,
        ..Caps::default()
    }
}

fn bytes<const COUNT: usize>(mr: &Mr<Vec<u8>>) -> Result<[u8; COUNT]> {
    let mut bytes = [0; COUNT];
    mr.read_at(0, &mut bytes)?;
    Ok(bytes)
}

/// Catches a key that stands for somebody's memory, parts that move those behind them, and a length that is
/// not the message's.
fn parts_that_nobody_wants() -> Result {
    if device().is_rxe() {
        return skip("soft-RoCE has no such key");
    }
    let mut pair = Pair::<Rc>::with(&Setup::with_caps(caps()))?;
    let null = pair.pd.null_mr()?;
    let source = pair.pd.register(b"abcdefgh".to_vec(), ALL)?;
    let target = pair.pd.register(vec![b'.'; 16], ALL)?;
    // Zeros on their way out.
    let mut batch = pair.a.qp.batch();
    let parts = [source.slice(..3)?, null.slice(4)?, source.slice(3..)?];
    batch
        .signaled(1)
        .write(parts, target.remote().slice(..12)?)?;
    batch.ring()?;
    completion(&mut pair.a.cq)?.is(WcOpcode::RDMA_WRITE)?;
    same(
        &bytes(&target)?,
        b"abc\0\0\0\0defgh....",
        "what was written",
    )?;
    // Nothing of what is read into it.
    let into = pair.pd.register(vec![b'.'; 8], ALL)?;
    let mut batch = pair.a.qp.batch();
    let parts = [into.slice(..2)?, null.slice(5)?, into.slice(2..6)?];
    batch
        .signaled(2)
        .read(parts, target.remote().slice(..11)?)?;
    batch.ring()?;
    let read = completion(&mut pair.a.cq)?;
    same(read.byte_len, 11, "bytes")?;
    read.is(WcOpcode::RDMA_READ)?;
    same(&bytes(&into)?, b"abdefg..", "what was read")?;
    // Nothing of what is received into it, more than any region has.
    let into = pair.pd.register(vec![b'.'; 8], ALL)?;
    let mut batch = pair.b.qp.recv_batch();
    batch.post(3, [into.slice(..1)?, null.slice(6)?, into.slice(1..)?])?;
    batch.post(4, null.slice(1 << 30)?)?;
    batch.ring();
    for length in [8, 5] {
        let mut batch = pair.a.qp.batch();
        batch.signaled(5).send(source.slice(..length)?)?;
        batch.ring()?;
        completion(&mut pair.a.cq)?.is(WcOpcode::SEND)?;
        let received = completion(&mut pair.b.cq)?;
        same(received.byte_len as usize, length, "bytes")?;
        received.is(WcOpcode::RECV)?;
    }
    same(&bytes(&into)?, b"ah......", "what was received")?;
    // It is no peer's.
    let remote = RemoteSlice {
        rkey: RemoteKey(null.lkey().0),
        ..target.remote().slice(..1)?
    };
    let mut batch = pair.a.qp.batch();
    batch.signaled(6).write(source.slice(..1)?, remote)?;
    batch.ring()?;
    completion(&mut pair.a.cq)?.failed(WcStatus::REM_ACCESS_ERR)
}

/// Catches a copy from a completion to where there is no memory.
fn in_completions() -> Result {
    if device().is_rxe() {
        return skip("soft-RoCE has no such key");
    }
    let context = open()?;
    let (pd, mut cq) = (context.alloc_pd()?, context.create_cq(15)?);
    let null = pd.null_mr()?;
    let (source, into) = (
        pd.register(b"abcdefgh".to_vec(), ALL)?,
        pd.register(vec![b'.'; 8], ALL)?,
    );
    // SAFETY: what is posted are slices of regions of this process, which stay, and of no memory.
    let builder = unsafe { pd.qp(&cq).caps(caps()).inline_scatter() };
    let mut qp: Qp<Rc> = builder.create()?;
    qp.connect(&qp.endpoint()?)?;
    let mut batch = qp.recv_batch();
    batch.post(1, [into.slice(..1)?, null.slice(6)?, into.slice(1..)?])?;
    batch.ring();
    let mut batch = qp.batch();
    batch.signaled(2).send(source.slice(..8)?)?;
    batch.ring()?;
    for _ in 0..2 {
        completion(&mut cq)?.ok()?;
    }
    same(&bytes(&into)?, b"ah......", "what was received")
}
