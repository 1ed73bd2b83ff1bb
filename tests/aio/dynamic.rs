//! Dynamic connections: one queue pair for any number of targets, whose receives are awaited.

use libtest_mimic::Trial;
use support::{Hca, Result, fail, same, test_on_adapter};
use uverbs::aio::{OpError, Post, Qp};
use uverbs::transport::Dc;
use uverbs::{Access, Ah, Caps, ConnectOptions, DcTarget, WcStatus};

use crate::ground::{Side, filled};

/// A test with its name.
type Named = (&'static str, fn() -> Result);

pub(crate) fn tests() -> Vec<Trial> {
    let tests: [Named; 3] = [
        ("dynamic::one_reaches_many", one_reaches_many),
        ("dynamic::memory_of_targets", memory_of_targets),
        ("dynamic::a_wrong_key", a_wrong_key),
    ];
    tests
        .map(|(name, run)| test_on_adapter(name, move |_: Hca| run()))
        .into()
}

const KEY: u64 = 0x0123_4567_89ab_cdef;

fn initiator(ground: &Side) -> Result<Qp<Dc>> {
    let caps = Caps {
        max_recv_wr: 0,
        ..Caps::default()
    };
    let mut qp: Qp<Dc> = ground.cq.create_qp(&ground.pd, caps)?;
    qp.activate_initiator(&ConnectOptions::default())?;
    Ok(qp)
}

/// The way to a target of the own port.
fn way(ground: &Side, target: &DcTarget) -> Result<Ah> {
    let options = ConnectOptions::default();
    let path = ground.pd.context().path_to(&target.endpoint(), &options)?;
    Ok(ground.pd.create_ah(&path)?)
}

/// Catches a message that goes to another target, or is told to be of another, and receives that are lost.
fn one_reaches_many() -> Result {
    let ground = Side::new()?;
    let (cq, pool) = (&ground.cq, &ground.pool);
    let mut srq = cq.create_srq(&ground.pd, 16)?;
    let targets = [0, 1, 2].map(|number| srq.dc_target(&ground.pd, KEY + number).create());
    let [first, second, third] = targets;
    let targets = [first?, second?, third?];
    let way = way(&ground, &targets[0])?;
    let mut qp = initiator(&ground)?;
    for turn in 0..9_usize {
        let target = &targets[turn * 2 % 3];
        let to = || way.to_target(target.number(), target.key());
        let receives = [0; 3].map(|_| pool.try_get(256).map(|buf| srq.recv(buf)));
        let mut batch = qp.batch();
        let text = [turn as u8; 40];
        let sent = batch.to(to()).send(filled(pool, &text)?);
        let told = batch.to(to()).send_imm(filled(pool, b"with a number")?, 77);
        let inline = batch.to(to()).send_inline(b"inline");
        batch.ring()?;
        cq.block_on(sent)?.0?;
        cq.block_on(told)?.0?;
        cq.block_on(inline)??;
        let expected: [(&[u8], _); 3] = [
            (&text, None),
            (b"with a number", Some(77)),
            (b"inline", None),
        ];
        for (receive, (bytes, imm)) in receives.into_iter().zip(expected) {
            let (received, buf) = cq.block_on(receive?)?;
            let received = received?;
            same(&buf[..], bytes, "the message")?;
            same(received.imm, imm, "the number")?;
            let ends = (received.qpn, received.src_qpn);
            same(
                ends,
                (target.number(), qp.qpn()),
                "the target and the source",
            )?;
        }
    }
    same(pool.stats().in_use(), 0, "buffers in use")
}

/// Catches requests for memory that go astray, and results that do not come back.
fn memory_of_targets() -> Result {
    let ground = Side::new()?;
    let (cq, pool) = (&ground.cq, &ground.pool);
    let srq = cq.create_srq(&ground.pd, 4)?;
    let rights = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let options = ConnectOptions {
        access: rights,
        ..ConnectOptions::default()
    };
    let target = srq.dc_target(&ground.pd, KEY).options(&options).create()?;
    let memory = ground
        .pd
        .register(vec![0; 4096], rights | Access::LOCAL_WRITE)?;
    let way = way(&ground, &target)?;
    let to = || way.to_target(target.number(), target.key());
    let mut qp = initiator(&ground)?;
    let there = memory.remote().slice(64..)?;
    let written = qp.to(to()).write(filled(pool, b"written there")?, there);
    cq.block_on(written)?.0?;
    let mut bytes = [0; 13];
    memory.read_at(64, &mut bytes)?;
    same(&bytes, b"written there", "the memory")?;
    let read = qp
        .to(to())
        .read(pool.try_get(256)?, memory.remote().slice(64..77)?);
    let (result, buf) = cq.block_on(read)?;
    result?;
    same(&buf[..], b"written there", "what was read")?;
    let word = memory.remote().slice(8..16)?;
    let added = qp.to(to()).fetch_add(pool.try_get(8)?, word, 5);
    same(cq.block_on(added)?.0?, 0, "what was there")?;
    let swapped = qp.to(to()).compare_swap(pool.try_get(8)?, word, 5, 9);
    same(cq.block_on(swapped)?.0?, 5, "what was there then")?;
    same(memory.load_u64(8)?, 9, "what is there")
}

/// Catches an initiator that hangs, or a target that goes with it, when a key is wrong.
fn a_wrong_key() -> Result {
    let ground = Side::new()?;
    let (cq, pool) = (&ground.cq, &ground.pool);
    let mut srq = cq.create_srq(&ground.pd, 4)?;
    let target = srq.dc_target(&ground.pd, KEY).create()?;
    let way = way(&ground, &target)?;
    let mut qp = initiator(&ground)?;
    let receive = srq.recv(pool.try_get(64)?);
    let mut batch = qp.batch();
    let wrong = batch
        .to(way.to_target(target.number(), KEY + 1))
        .send_inline(b"wrong");
    let behind = batch
        .to(way.to_target(target.number(), KEY))
        .send_inline(b"right");
    batch.ring()?;
    for (op, status) in [
        (wrong, WcStatus::REM_ACCESS_ERR),
        (behind, WcStatus::WR_FLUSH_ERR),
    ] {
        match cq.block_on(op)? {
            Err(OpError::Completion(error)) if error.status == status => {}
            other => return fail(format!("{other:?}, not {status:?}")),
        }
    }
    // Others are not bothered.
    let sent = initiator(&ground)?
        .to(way.to_target(target.number(), KEY))
        .send_inline(b"other");
    cq.block_on(sent)??;
    let (received, buf) = cq.block_on(receive)?;
    received?;
    same(&buf[..], b"other", "the message")
}
