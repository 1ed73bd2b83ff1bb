//! Datagrams: there, and back to whoever sent one.

use libtest_mimic::Trial;
use support::{Result, device, own_path, same, skip, test_without_leaks};
use uverbs::aio::{Post, Qp};
use uverbs::{Caps, ConnectOptions, Ud};

use crate::ground::{Side, filled};

/// A test with its name.
type Named = (&'static str, fn() -> Result);

pub(crate) fn tests() -> Vec<Trial> {
    let tests: [Named; 2] = [
        ("datagrams::there_and_back", there_and_back),
        ("datagrams::from_one_stock", from_one_stock),
    ];
    tests
        .map(|(name, run)| test_without_leaks(name, run))
        .into()
}

const QKEY: u32 = 0x1234;

/// Bytes in front of a datagram.
const HEADER: usize = 40;

/// Makes a queue pair ready.
fn active(mut qp: Qp<Ud>) -> Result<Qp<Ud>> {
    qp.activate(QKEY, &ConnectOptions::default())?;
    Ok(qp)
}

/// Catches an answer that does not find the sender, a header that is taken for the message, and immediate
/// data that are lost.
fn there_and_back() -> Result {
    if !device().tells_headers() {
        return skip(
            "nobody says what is in the header before a datagram, so there is no way back in it",
        );
    }
    let ground = Side::new()?;
    let (cq, pool) = (&ground.cq, &ground.pool);
    let (mut a, mut b) = (active(ground.qp()?)?, active(ground.qp()?)?);
    let path = own_path(ground.pd.context())?;
    let to_b = ground.pd.create_ah(&path)?;
    let asked = b.recv(pool.try_get(256)?);
    let answered = [a.recv(pool.try_get(256)?), a.recv(pool.try_get(256)?)];

    let question = filled(pool, b"who is it")?;
    let sent = a.to(to_b.to(b.qpn(), QKEY)).send_imm(question, 77);
    cq.block_on(sent)?.0?;
    let (result, buf) = cq.block_on(asked)?;
    let received = result?;
    same(received.datagram(&buf), &b"who is it"[..], "the datagram")?;
    same(received.imm, Some(77), "the number")?;
    same(received.len as usize, HEADER + 9, "with its header")?;
    let ends = (received.qpn, received.src_qpn);
    same(ends, (b.qpn(), a.qpn()), "the queue pairs")?;

    let back = received.reply_to(&buf, path.port, path.sgid_index);
    let back = ground.pd.create_ah(&back)?;
    let to_a = || back.to(received.src_qpn, QKEY);
    let mut answer = buf;
    answer.clear();
    answer.extend_from_slice(b"me")?;
    let [first, second] = answered;
    let sent = b.to(to_a()).send(answer);
    cq.block_on(sent)?.0?;
    let (result, me) = cq.block_on(first)?;
    same(result?.datagram(&me), &b"me"[..], "the answer")?;
    let sent = b.to(to_a()).send_inline(b"you");
    cq.block_on(sent)??;
    let (result, you) = cq.block_on(second)?;
    same(result?.datagram(&you), &b"you"[..], "the second answer")?;
    same(pool.stats().in_use(), 2, "buffers in use")?;
    drop((me, you));
    same(pool.stats().in_use(), 0, "buffers in use")
}

/// Catches datagrams of several queue pairs that are told to be of another one.
fn from_one_stock() -> Result {
    let ground = Side::new()?;
    let (cq, pool) = (&ground.cq, &ground.pool);
    let mut srq = cq.create_srq(&ground.pd, 16)?;
    let receivers = (0..4)
        .map(|_| active(srq.create_qp(&ground.pd, Caps::default())?))
        .collect::<Result<Vec<Qp<Ud>>>>()?;
    let mut sender = active(ground.qp()?)?;
    let path = ground.pd.create_ah(&own_path(ground.pd.context())?)?;
    for (number, receiver) in receivers.iter().enumerate() {
        // One at a time: datagrams have no order.
        let receive = srq.recv(pool.try_get(256)?);
        let sent = sender
            .to(path.to(receiver.qpn(), QKEY))
            .send_inline(&[number as u8]);
        cq.block_on(sent)??;
        let (result, buf) = cq.block_on(receive)?;
        let received = result?;
        same(received.qpn, receiver.qpn(), "the queue pair")?;
        same(received.src_qpn, sender.qpn(), "the sender")?;
        same(received.datagram(&buf), &[number as u8][..], "the datagram")?;
    }
    same(pool.stats().in_use(), 0, "buffers in use")
}
