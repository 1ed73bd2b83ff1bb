//! Every operation that a transport has, once, with the payload checked: what a test runs that is about something
//! else, such as the way to the kernel, and what the tests of the data path start with.

use uverbs::{Atomic, Connected, Datagram, Mr, RdmaRead, RdmaWrite, Transport, WcOpcode};

use crate::common::completion::nothing;
use crate::common::pair::{QKEY, Side};
use crate::common::{Pair, Result, completion, pattern};
use crate::device::device;

/// Length of the messages here: more than a packet.
const LENGTH: u64 = 3000;

/// The bytes of a global route header before a datagram.
pub(crate) const GRH: u64 = 40;

/// SENDs from `a` to `b`: plain, with immediate data, inline, inline with immediate data.
pub(crate) fn sends<T: Connected>(pair: &mut Pair<T>) -> Result {
    for (seed, imm) in [(1, None), (2, Some(0xcafe_f00d))] {
        let bytes = pattern(seed, LENGTH as usize);
        pair.a.mr.write_at(0, &bytes)?;
        pair.b.post_recv(seed, 0..LENGTH + 10)?;
        let from = pair.a.mr.slice(..LENGTH)?;
        let mut batch = pair.a.qp.send();
        // SAFETY: the memory outlives the queue pair, and is not written before the completion.
        unsafe {
            match imm {
                None => batch.send(from)?.signaled(seed),
                Some(imm) => batch.send_imm(from, imm)?.signaled(seed),
            };
        }
        batch.ring()?;
        sent(pair, seed, WcOpcode::SEND)?;
        received(&mut pair.b, seed, 0, &bytes, imm, WcOpcode::RECV)?;
    }
    for (seed, imm) in [(3, None), (4, Some(7))] {
        let bytes = pattern(seed, 60);
        pair.b.post_recv(seed, 0..64)?;
        let mut batch = pair.a.qp.send();
        match imm {
            None => batch.send_inline(&bytes)?.signaled(seed),
            Some(imm) => batch.send_imm_inline(&bytes, imm)?.signaled(seed),
        };
        batch.ring()?;
        sent(pair, seed, WcOpcode::SEND)?;
        received(&mut pair.b, seed, 0, &bytes, imm, WcOpcode::RECV)?;
    }
    Ok(())
}

/// RDMA WRITEs from `a` to `b`: plain, with immediate data, and inline.
pub(crate) fn writes<T: RdmaWrite>(pair: &mut Pair<T>) -> Result {
    for (seed, imm, inline) in [
        (11, Some(0x0102_0304), false),
        (12, None, false),
        (13, Some(9), true),
        (14, None, true),
    ] {
        let length = if inline { 50 } else { LENGTH };
        let bytes = pattern(seed, length as usize);
        pair.a.mr.write_at(100, &bytes)?;
        if imm.is_some() {
            pair.b.post_recv(seed, 0..0)?;
        }
        let from = pair.a.mr.slice(100..100 + length)?;
        let to = pair.b.mr.remote().slice(1000..)?;
        let mut batch = pair.a.qp.send();
        // SAFETY: the memory outlives the queue pair, and is not written before the completion.
        unsafe {
            match (imm, inline) {
                (None, false) => batch.write(from, to)?.signaled(seed),
                (Some(imm), false) => batch.write_imm(from, to, imm)?.signaled(seed),
                (None, true) => batch.write_inline(&bytes, to)?.signaled(seed),
                (Some(imm), true) => batch.write_imm_inline(&bytes, to, imm)?.signaled(seed),
            };
        }
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
pub(crate) fn reads<T: RdmaRead>(pair: &mut Pair<T>) -> Result {
    let bytes = pattern(21, LENGTH as usize);
    pair.b.mr.write_at(5, &bytes)?;
    let into = pair.a.mr.slice(..LENGTH)?;
    let mut batch = pair.a.qp.send();
    // SAFETY: the memory outlives the queue pair, and is looked at after the completion.
    unsafe {
        batch
            .read(into, pair.b.mr.remote().slice(5..)?)?
            .signaled(21)
    };
    batch.ring()?;
    let wc = sent(pair, 21, WcOpcode::RDMA_READ)?;
    same("bytes read", wc.byte_len, LENGTH as u32)?;
    same("what was read", pair.a.bytes(0, LENGTH as usize)?, bytes)
}

/// Atomics by `a` on 8 bytes of `b`, in this host's byte order.
pub(crate) fn atomics<T: Atomic>(pair: &mut Pair<T>) -> Result {
    let at = pair.b.mr.remote().slice(8..16)?;
    let into = pair.a.mr.slice(16..24)?;
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
        let mut batch = pair.a.qp.send();
        // SAFETY: the memory outlives the queue pair, and is looked at after the completion.
        unsafe {
            match compare {
                Some(compare) => batch.compare_swap(into, at, compare, value)?.signaled(id),
                None => batch.fetch_add(into, at, value)?.signaled(id),
            };
        }
        batch.ring()?;
        let opcode = compare.map_or(WcOpcode::FETCH_ADD, |_| WcOpcode::COMP_SWAP);
        let wc = sent(pair, id, opcode)?;
        same("bytes of an atomic", wc.byte_len, 8)?;
        same(
            "the old value",
            pair.a.bytes(16, 8)?,
            before.to_ne_bytes().to_vec(),
        )?;
        same(
            "the new value",
            pair.b.bytes(8, 8)?,
            after.to_ne_bytes().to_vec(),
        )?;
        before = after;
    }
    Ok(())
}

/// Datagrams from `a` to `b`, with the header before the payload and the sender in the completion.
pub(crate) fn datagrams<T: Datagram>(pair: &mut Pair<T>) -> Result {
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
        let length = if inline { 64 } else { 1000 };
        let bytes = pattern(seed, length as usize);
        pair.a.mr.write_at(0, &bytes)?;
        pair.b.post_recv(seed, 0..GRH + length)?;
        let from = pair.a.mr.slice(..length)?;
        let mut batch = pair.a.qp.send();
        // SAFETY: the memory outlives the queue pair, and is not written before the completion.
        unsafe {
            match (imm, inline) {
                (None, false) => batch.send_to(to, from)?.signaled(seed),
                (Some(imm), false) => batch.send_imm_to(to, from, imm)?.signaled(seed),
                (None, true) => batch.send_inline_to(to, &bytes)?.signaled(seed),
                (Some(imm), true) => batch.send_imm_inline_to(to, &bytes, imm)?.signaled(seed),
            };
        }
        batch.ring()?;
        sent(pair, seed, WcOpcode::SEND)?;
        let wc = completion(&mut pair.b.cq)?.ok()?;
        same("the receive's id", wc.wr_id, seed)?;
        same("bytes with the header", wc.byte_len, (GRH + length) as u32)?;
        same("the immediate data", wc.imm, imm)?;
        same("the sender", wc.src_qp, pair.a.qp.qpn())?;
        same("whether there is a header", wc.grh, device().has_gids())?;
        same(
            "the payload",
            pair.b.bytes(GRH as usize, length as usize)?,
            bytes,
        )?;
    }
    Ok(())
}

/// The completion of what `a` sent.
pub(crate) fn sent<T: Transport>(
    pair: &mut Pair<T>,
    id: u64,
    opcode: WcOpcode,
) -> Result<crate::common::Wc> {
    let wc = completion(&mut pair.a.cq)?.ok()?;
    same("the send's id", wc.wr_id, id)?;
    same("what was sent", wc.opcode, opcode)?;
    same("the QP", wc.qp_num, pair.a.qp.qpn())?;
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
    same("the receive's id", wc.wr_id, id)?;
    same("what was received", wc.opcode, opcode)?;
    same("the QP", wc.qp_num, side.qp.qpn())?;
    same("bytes received", wc.byte_len as usize, bytes.len())?;
    same("the immediate data", wc.imm, imm)?;
    same(
        "the payload",
        side.bytes(offset, bytes.len())?,
        bytes.to_vec(),
    )
}

/// Waits until bytes have arrived in memory.
pub(crate) fn arrived(mr: &Mr<Vec<u8>>, offset: usize, bytes: &[u8]) -> Result {
    crate::common::until("the bytes written", || {
        let mut there = vec![0; bytes.len()];
        mr.read_at(offset, &mut there)?;
        Ok((there == bytes).then_some(()))
    })
}

/// Fails if two values differ, and says in what.
pub(crate) fn same<V: PartialEq + std::fmt::Debug>(what: &str, is: V, should_be: V) -> Result {
    if is == should_be {
        return Ok(());
    }
    let (is, should_be) = (format!("{is:?}"), format!("{should_be:?}"));
    let short = |text: &str| text.chars().take(300).collect::<String>();
    Err(format!("{what}: {}, not {}", short(&is), short(&should_be)).into())
}

/// One inline WRITE from `a` to `b`, which needs no memory of `a`.
pub(crate) fn writes_inline<T: RdmaWrite>(pair: &mut Pair<T>) -> Result {
    let to = pair.b.mr.remote();
    let mut batch = pair.a.qp.send();
    batch.write_inline(b"child", to)?.signaled(61);
    batch.ring()?;
    sent(pair, 61, WcOpcode::RDMA_WRITE).map(drop)
}
