//! One operation of reliable datagrams in each function, for callgrind to count: as `instructions` does it of
//! connections. `srd.c` has functions of the same names that do the same through libibverbs and libefa.
//!
//! It READs where that WRITEs, since older kernels and libraries have no WRITE. Every request is signaled, as
//! libefa wants it.

use std::hint::black_box;
use std::thread::sleep;

use anyhow::{Result, ensure};
use uverbs::{
    Access, Ah, Caps, ConnectOptions, Context, Cq, Inline, LocalSlice, Mr, Pd, Qp, RemoteSlice,
    Srd, UdPeer,
};

use crate::instructions::{
    BATCH, CALLS, INLINE, READY, SETTLE, WARM_UP, WRITE, drain, poll_one, polls, row,
};
use crate::pair::DEPTH;

const QKEY: u32 = 0x1111_1111;

/// Posts one signaled READ.
#[inline(never)]
#[unsafe(export_name = "op_srd_read")]
fn post_read(
    qp: &mut Qp<Srd>,
    to: UdPeer<'_>,
    into: &LocalSlice,
    from: &RemoteSlice,
    wr_id: u64,
) -> bool {
    let mut batch = qp.batch();
    let request = batch.signaled(wr_id).to(to);
    request.read(into, *from).is_ok() && batch.ring().is_ok()
}

/// Posts one signaled inline SEND.
#[inline(never)]
#[unsafe(export_name = "op_srd_inline")]
fn post_inline(qp: &mut Qp<Srd>, to: UdPeer<'_>, bytes: &[u8; INLINE], wr_id: u64) -> bool {
    let mut batch = qp.batch();
    let request = batch.signaled(wr_id).to(to);
    request.send(Inline(bytes)).is_ok() && batch.ring().is_ok()
}

/// Posts a batch of signaled READs.
#[inline(never)]
#[unsafe(export_name = "op_srd_batch")]
fn post_batch(
    qp: &mut Qp<Srd>,
    to: UdPeer<'_>,
    into: &[LocalSlice; BATCH],
    from: &RemoteSlice,
) -> bool {
    let mut batch = qp.batch();
    for (index, slice) in into.iter().enumerate() {
        let request = batch.signaled(index as u64).to(to);
        if request.read(slice, *from).is_err() {
            return false;
        }
    }
    batch.ring().is_ok()
}

/// Posts one receive.
#[inline(never)]
#[unsafe(export_name = "op_srd_receive")]
fn post_receive(qp: &mut Qp<Srd>, into: &LocalSlice, wr_id: u64) -> bool {
    let mut batch = qp.recv_batch();
    batch.post(wr_id, into).is_ok() && batch.ring() == 1
}

/// Two queue pairs of a device, and what they work on.
struct Pair {
    here: Qp<Srd>,
    there: Qp<Srd>,
    cq: Cq,
    peer_cq: Cq,
    way: Ah,
    source: Mr<Vec<u8>>,
    target: Mr<Vec<u8>>,
    _pd: Pd,
}

impl Pair {
    fn new(context: &Context) -> Result<Self> {
        let pd = context.alloc_pd()?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
        let (cq, peer_cq) = (context.create_cq(2 * DEPTH)?, context.create_cq(2 * DEPTH)?);
        let caps = Caps {
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            max_inline_data: INLINE as u32,
            ..Caps::default()
        };
        let mut here = pd.create_qp::<Srd>(&cq, caps)?;
        let mut there = pd.create_qp::<Srd>(&peer_cq, caps)?;
        let options = ConnectOptions::default();
        here.activate(QKEY, &options)?;
        there.activate(QKEY, &options)?;
        let way = pd.create_ah(&context.path_to(&there.endpoint()?, &options)?)?;
        Ok(Self {
            way,
            source: pd.register(vec![1; 4096], access)?,
            target: pd.register(vec![0; 4096], access)?,
            here,
            there,
            cq,
            peer_cq,
            _pd: pd,
        })
    }
}

/// Does all operations in turn, as [`crate::instructions::run`].
///
/// # Errors
/// As there.
pub fn run(context: &Context) -> Result<()> {
    let Pair {
        here,
        there,
        cq,
        peer_cq,
        way,
        source,
        target,
        ..
    } = &mut Pair::new(context)?;
    let to = way.to(there.qpn(), QKEY);
    let local = source.slice(..WRITE)?;
    let remote = target.remote().slice(..WRITE)?;
    let into = target.slice(..WRITE)?;
    row("post_read", || {
        ensure!(post_read(here, to, &local, &remote, 7), "posting a READ");
        drain(cq, 1)
    })?;
    row("post_receive", || {
        ensure!(post_receive(there, &into, 8), "posting a receive");
        Ok(())
    })?;
    row("post_inline", || {
        ensure!(post_inline(here, to, &[9; INLINE], 9), "posting a SEND");
        drain(cq, 1)
    })?;
    drain(peer_cq, WARM_UP + CALLS)?;
    row("post_reads", || {
        ensure!(
            post_batch(here, to, &[local; BATCH], &remote),
            "posting a batch"
        );
        drain(cq, BATCH)
    })?;
    let mut ids = 0;
    row("poll_nothing", || {
        ensure!(
            poll_one(cq, &mut ids) == 0,
            "a completion that nobody asked for"
        );
        Ok(())
    })?;
    polls(cq, ["poll_one", "poll_many"], &mut ids, || {
        let mut batch = here.batch();
        for wr_id in 0..READY {
            let request = batch.signaled(wr_id as u64).to(to);
            request.read(local, remote)?;
        }
        batch.ring()?;
        sleep(SETTLE);
        Ok(())
    })?;
    let rows = ["poll_received", "poll_received_many"];
    polls(peer_cq, rows, &mut ids, || {
        let mut batch = there.recv_batch();
        for _ in 0..READY {
            batch.post(8, into)?;
        }
        batch.ring();
        let mut batch = here.batch();
        for wr_id in 0..READY {
            let request = batch.signaled(wr_id as u64).to(to);
            request.send(Inline(&[9; INLINE]))?;
        }
        batch.ring()?;
        drain(cq, READY)?;
        sleep(SETTLE);
        Ok(())
    })?;
    black_box(ids);
    Ok(())
}
