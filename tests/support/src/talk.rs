//! Every operation that a transport has, once, with the payload checked: what a test runs that is about
//! something else, such as the way to the kernel, and what the tests of the data path start with.

use uverbs::{
    Inline, Mr, WcOpcode,
    transport::{Atomic, Datagram, Peer, RdmaRead, RdmaWrite, Reaches, Transport},
};

use crate::{Pair, QKEY, Result, Side, Wc, completion, device, nothing, pattern, same, until};

/// Length of the messages here: more than a packet.
const LENGTH: usize = 3000;

/// The bytes of a global route header before a datagram.
pub const GRH: usize = 40;

/// SENDs from `a` to `b`: plain, with immediate data, inline, inline with immediate data.
///
/// # Errors
/// If it fails, or something else comes than was sent.
pub fn sends<T: Reaches<Peer>>(pair: &mut Pair<T>) -> Result {
    for (seed, imm) in [(1, None), (2, Some(0xcafe_f00d))] {
        let bytes = pattern(seed, LENGTH);
        pair.a.mr.write_at(0, &bytes)?;
        pair.b.post_recv(seed, 0..LENGTH + 10)?;
        let from = pair.a.mr.slice(..LENGTH)?;
        let mut batch = pair.a.qp.batch();
        match imm {
            None => batch.signaled(seed).send(from)?,
            Some(imm) => batch.signaled(seed).send_imm(from, imm)?,
        };
        batch.ring()?;
        sent(pair, seed, WcOpcode::SEND)?;
        received(&mut pair.b, seed, 0, &bytes, imm, WcOpcode::RECV)?;
    }
    for (seed, imm) in [(3, None), (4, Some(7))] {
        let bytes = pattern(seed, 60);
        pair.b.post_recv(seed, 0..64)?;
        let mut batch = pair.a.qp.batch();
        match imm {
            None => batch.signaled(seed).send(Inline(&bytes))?,
            Some(imm) => batch.signaled(seed).send_imm(Inline(&bytes), imm)?,
        };
        batch.ring()?;
        sent(pair, seed, WcOpcode::SEND)?;
        received(&mut pair.b, seed, 0, &bytes, imm, WcOpcode::RECV)?;
    }
    Ok(())
}

/// RDMA WRITEs from `a` to `b`: plain, with immediate data, and inline.
///
/// # Errors
/// If it fails, or something else comes than was sent.
pub fn writes<T: Reaches<Peer> + RdmaWrite>(pair: &mut Pair<T>) -> Result {
    for (seed, imm, inline) in [
        (11, Some(0x0102_0304), false),
        (12, None, false),
        (13, Some(9), true),
        (14, None, true),
    ] {
        let length = if inline { 50 } else { LENGTH };
        let bytes = pattern(seed, length);
        pair.a.mr.write_at(100, &bytes)?;
        if imm.is_some() {
            pair.b.post_recv(seed, 0..0)?;
        }
        let from = pair.a.mr.slice(100..100 + length)?;
        let to = pair.b.mr.remote().slice(1000..)?;
        let mut batch = pair.a.qp.batch();
        match (imm, inline) {
            (None, false) => batch.signaled(seed).write(from, to)?,
            (Some(imm), false) => batch.signaled(seed).write_imm(from, to, imm)?,
            (None, true) => batch.signaled(seed).write(Inline(&bytes), to)?,
            (Some(imm), true) => batch.signaled(seed).write_imm(Inline(&bytes), to, imm)?,
        };
        batch.ring()?;
        sent(pair, seed, WcOpcode::RDMA_WRITE)?;
        if imm.is_some() {
            let opcode = WcOpcode::RECV_RDMA_WITH_IMM;
            received(&mut pair.b, seed, 1000, &bytes, imm, opcode)?;
        } else {
            // Without an acknowledgement or a receive, only the memory tells that it has arrived.
            arrived(&pair.b.mr, 1000, &bytes)?;
        }
    }
    nothing(&mut pair.b.cq)
}

/// RDMA READs by `a` of the memory of `b`.
///
/// # Errors
/// If it fails, or something else comes than was sent.
pub fn reads<T: Reaches<Peer> + RdmaRead>(pair: &mut Pair<T>) -> Result {
    let bytes = pattern(21, LENGTH);
    pair.b.mr.write_at(5, &bytes)?;
    let into = pair.a.mr.slice(..LENGTH)?;
    let mut batch = pair.a.qp.batch();
    batch
        .signaled(21)
        .read(into, pair.b.mr.remote().slice(5..)?)?;
    batch.ring()?;
    let wc = sent(pair, 21, WcOpcode::RDMA_READ)?;
    same(wc.byte_len, LENGTH as u32, "bytes read")?;
    same(pair.a.bytes(0, LENGTH)?, bytes, "what was read")
}

/// Atomics by `a` on 8 bytes of `b`, in this host's byte order.
///
/// # Errors
/// If it fails, or something else comes than was sent.
pub fn atomics<T: Reaches<Peer> + Atomic>(pair: &mut Pair<T>) -> Result {
    let at = pair.b.mr.remote().slice(8..16)?;
    let start = 0x0102_0304_0506_0708_u64;
    pair.b.mr.write_at(8, &start.to_ne_bytes())?;
    // (compare, swap), or (None, add); what is there afterwards.
    let steps = [
        (Some(start), 42_u64, 42_u64),
        (Some(start), 43, 42),
        (None, 58, 100),
        (None, u64::MAX, 99),
    ];
    let mut before = start;
    for (id, (compare, value, after)) in (31..).zip(steps) {
        let into = pair.a.mr.slice(16..24)?;
        let mut batch = pair.a.qp.batch();
        match compare {
            Some(compare) => batch.signaled(id).compare_swap(into, at, compare, value)?,
            None => batch.signaled(id).fetch_add(into, at, value)?,
        };
        batch.ring()?;
        let opcode = compare.map_or(WcOpcode::FETCH_ADD, |_| WcOpcode::COMP_SWAP);
        let wc = sent(pair, id, opcode)?;
        same(wc.byte_len, 8, "bytes of an atomic")?;
        same(
            pair.a.bytes(16, 8)?,
            before.to_ne_bytes().to_vec(),
            "the old value",
        )?;
        same(
            pair.b.bytes(8, 8)?,
            after.to_ne_bytes().to_vec(),
            "the new value",
        )?;
        before = after;
    }
    Ok(())
}

/// Datagrams from `a` to `b`, with the header before the payload and the sender in the completion.
///
/// # Errors
/// If it fails, or something else comes than was sent.
pub fn datagrams<T: Datagram>(pair: &mut Pair<T>) -> Result {
    let options = uverbs::ConnectOptions::default();
    let path = pair.context.path_to(&pair.b.qp.endpoint()?, &options)?;
    let ah = pair.pd.create_ah(&path)?;
    let to = ah.to(pair.b.qp.qpn(), QKEY);
    for (seed, imm, inline) in [
        (41, None, false),
        (42, Some(0xffff_fffe), false),
        (43, None, true),
        (44, Some(1), true),
    ] {
        let length = if inline {
            device().inline() as usize
        } else {
            1000
        };
        let bytes = pattern(seed, length);
        pair.a.mr.write_at(0, &bytes)?;
        pair.b.post_recv(seed, 0..GRH + length)?;
        let from = pair.a.mr.slice(..length)?;
        let mut batch = pair.a.qp.batch();
        match (imm, inline) {
            (None, false) => batch.signaled(seed).to(to).send(from)?,
            (Some(imm), false) => batch.signaled(seed).to(to).send_imm(from, imm)?,
            (None, true) => batch.signaled(seed).to(to).send(Inline(&bytes))?,
            (Some(imm), true) => batch.signaled(seed).to(to).send_imm(Inline(&bytes), imm)?,
        };
        batch.ring()?;
        sent(pair, seed, WcOpcode::SEND)?;
        let wc = completion(&mut pair.b.cq)?.ok()?;
        same(wc.wr_id, seed, "the receive's id")?;
        same(wc.byte_len, (GRH + length) as u32, "bytes with the header")?;
        same(wc.imm, imm, "the immediate data")?;
        same(wc.src_qp, pair.a.qp.qpn(), "the sender")?;
        same(
            wc.has_grh,
            device().tells_headers(),
            "whether a header is told",
        )?;
        same(pair.b.bytes(GRH, length)?, bytes, "the payload")?;
    }
    Ok(())
}

/// The completion of what `a` sent.
///
/// # Errors
/// If it fails, or something else comes than was sent.
pub fn sent<T: Transport>(pair: &mut Pair<T>, id: u64, opcode: WcOpcode) -> Result<Wc> {
    let wc = completion(&mut pair.a.cq)?.ok()?;
    same(wc.wr_id, id, "the send's id")?;
    same(wc.opcode, opcode, "what was sent")?;
    same(wc.qp_num, pair.a.qp.qpn(), "the QP")?;
    Ok(wc)
}

/// The completion of what a side received, and the payload, which lies at `offset`.
fn received<T: Transport>(
    side: &mut Side<T>,
    id: u64,
    offset: usize,
    bytes: &[u8],
    imm: Option<u32>,
    opcode: WcOpcode,
) -> Result {
    let wc = completion(&mut side.cq)?.ok()?;
    same(wc.wr_id, id, "the receive's id")?;
    same(wc.opcode, opcode, "what was received")?;
    same(wc.qp_num, side.qp.qpn(), "the QP")?;
    same(wc.byte_len as usize, bytes.len(), "bytes received")?;
    same(wc.imm, imm, "the immediate data")?;
    same(
        side.bytes(offset, bytes.len())?,
        bytes.to_vec(),
        "the payload",
    )
}

/// Waits until bytes have arrived in memory.
///
/// # Errors
/// If it fails, or something else comes than was sent.
pub fn arrived(mr: &Mr<Vec<u8>>, offset: usize, bytes: &[u8]) -> Result {
    until("the bytes written", || {
        let mut there = vec![0; bytes.len()];
        mr.read_at(offset, &mut there)?;
        Ok((there == bytes).then_some(()))
    })
}

/// One inline WRITE from `a` to `b`, which needs no memory of `a`.
///
/// # Errors
/// If it fails, or something else comes than was sent.
pub fn writes_inline<T: Reaches<Peer> + RdmaWrite>(pair: &mut Pair<T>) -> Result {
    let to = pair.b.mr.remote();
    let mut batch = pair.a.qp.batch();
    batch.signaled(61).write(Inline(b"child"), to)?;
    batch.ring()?;
    sent(pair, 61, WcOpcode::RDMA_WRITE).map(drop)
}
