//! Requests of every shape around the end of a small ring: the longest lists, the longest inline data, binds,
//! by turns.

use libtest_mimic::Trial;
use support::pair::options;
use support::{Pair, Result, Setup, completion, open, own_path, same, test};
use uverbs::{Access, Caps, ConnectOptions, Inline, PostError, Rc, Ud, WcOpcode, mw::Type1};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("shapes::lists_around_the_end", lists_around_the_end),
        test("shapes::inline_around_the_end", inline_around_the_end),
        test("shapes::binds_around_the_end", binds_around_the_end),
        test("shapes::inline_without_slices", inline_without_slices),
        test(
            "shapes::datagrams_without_payload",
            datagrams_without_payload,
        ),
    ]
}

const LENGTH: usize = 2048;

/// Bytes that tell place and round.
fn pattern(round: usize) -> Vec<u8> {
    (0..LENGTH).map(|at| (at * 7 + round * 31) as u8).collect()
}

/// A connected pair with a send ring for a few large requests.
fn pair(caps: Caps) -> Result<Pair<Rc>> {
    Pair::with(&Setup::with_caps(caps))
}

/// Catches a request whose parts are written beside the ring, or read from the wrong place, where it goes on
/// at the ring's start: lists of 1 to as many slices as there can be, so that each length begins at each
/// place.
fn lists_around_the_end() -> Result {
    let probe = Pair::<Rc>::new()?;
    let most = probe.context.query_device()?.max_sge;
    drop(probe);
    let mut pair = pair(Caps {
        max_send_wr: 5,
        max_send_sge: most,
        ..Caps::default()
    })?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let mut source = pair.pd.register(vec![0; LENGTH], access)?;
    let target = pair.pd.register(vec![0; LENGTH], access)?;
    let mut round = 0;
    while round < 60 {
        source.write_at(0, &pattern(round))?;
        let mut expected = Vec::new();
        let mut batch = pair.a.qp.batch();
        // One by one, two, three.
        for _ in 0..round % 3 + 1 {
            let count = round * 7 % most as usize + 1;
            // From the end to the start, of growing lengths.
            let slices: Vec<_> = (0..count)
                .map(|at| {
                    let start = LENGTH - (at + 1) * 40;
                    source.slice(start..start + at % 33 + 1)
                })
                .collect::<std::result::Result<_, _>>()?;
            expected = (0..count)
                .flat_map(|at| {
                    let start = LENGTH - (at + 1) * 40;
                    pattern(round)[start..start + at % 33 + 1].to_vec()
                })
                .collect();
            batch
                .signaled(round as u64)
                .write(slices, target.remote())?;
        }
        let posted = batch.ring()?;
        for _ in 0..posted {
            let wc = completion(&mut pair.a.cq)?;
            wc.is(WcOpcode::RDMA_WRITE)?;
            same(wc.wr_id, round as u64, "the id")?;
        }
        let mut bytes = vec![0; expected.len()];
        target.read_at(0, &mut bytes)?;
        same(bytes, expected, "what was gathered")?;
        round += 1;
    }
    Ok(())
}

/// Catches the same of inline data, whose bytes need not end with a part of a request.
fn inline_around_the_end() -> Result {
    let mut pair = pair(Caps {
        max_send_wr: 5,
        max_inline_data: 400,
        ..Caps::default()
    })?;
    let most = pair.a.qp.caps().max_inline_data as usize;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let mut target = pair.pd.register(vec![0; LENGTH], access)?;
    for round in 0..80 {
        let length = round * 37 % (most + 1);
        target.write_at(0, &[0x5a; LENGTH])?;
        let bytes = &pattern(round)[..length];
        pair.a
            .post(|request| request.write(Inline(bytes), target.remote()))?
            .is(WcOpcode::RDMA_WRITE)?;
        let mut there = vec![0; LENGTH];
        target.read_at(0, &mut there)?;
        same(&there[..length], bytes, "the bytes")?;
        same(&there[length..], &[0x5a; LENGTH][length..], "those behind")?;
    }
    Ok(())
}

/// Catches a queue pair that breaks when its first inline data are sent, because it was made without slices.
fn inline_without_slices() -> Result {
    let mut pair = pair(Caps {
        max_send_sge: 0,
        max_inline_data: 8,
        ..Caps::default()
    })?;
    let target = pair
        .pd
        .register(vec![0; 8], Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    for _ in 0..3 {
        pair.a
            .post(|request| request.write(Inline(b"8 bytes."), target.remote()))?
            .is(WcOpcode::RDMA_WRITE)?;
    }
    let mut there = [0; 8];
    target.read_at(0, &mut there)?;
    same(&there, b"8 bytes.", "what was written")
}

/// Catches room for payload that is counted below zero: more inline data than the ring has would be accepted.
fn datagrams_without_payload() -> Result {
    let context = open()?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(16)?;
    let mut qp = pd.create_qp::<Ud>(
        &cq,
        Caps {
            max_send_sge: 0,
            max_inline_data: 0,
            ..Caps::default()
        },
    )?;
    qp.activate(1, &ConnectOptions::default())?;
    let (most, qpn) = (qp.caps().max_inline_data as usize, qp.qpn());
    same(most < 1024, true, "a small limit")?;
    let ah = pd.create_ah(&own_path(&context)?)?;
    let too_long = vec![0xee; most + 1];
    let mut batch = qp.batch();
    let refused = batch
        .unsignaled(0)
        .to(ah.to(qpn, 1))
        .send(Inline(&too_long))
        .map(drop);
    let given = too_long.len();
    let max = most as u32;
    same(
        refused,
        Err(PostError::InlineTooLong { given, max }),
        "more than that",
    )
}

/// Catches the same of binds, which are the longest requests of hardware, and a request that overtakes the
/// bind before it.
fn binds_around_the_end() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let caps = Caps {
        max_send_wr: 5,
        ..Caps::default()
    };
    let mut b = pair.pd.create_qp::<Rc>(&pair.b.cq, caps)?;
    pair.a.qp.reset()?;
    // After the reset, which draws another packet sequence number.
    let (from, to) = (b.endpoint()?, pair.a.qp.endpoint()?);
    pair.a.qp.connect_with(&from, &options())?;
    b.connect_with(&to, &options())?;
    pair.b.qp = b;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::MW_BIND;
    let target = pair.pd.register(vec![0; 64], access)?;
    let back = pair.pd.register(vec![0; 64], access)?;
    let mut mw = pair.pd.alloc_mw::<Type1>()?;
    for round in 0..60_u64 {
        let start = round as usize % 56;
        let window = target.window(start..start + 8, Access::REMOTE_WRITE)?;
        let mut batch = pair.b.qp.batch();
        // Small requests before it move the bind from place to place.
        for _ in 0..round % 3 {
            batch.unsignaled(0).write(Inline(&[1; 8]), back.remote())?;
        }
        batch.signaled(round).bind_mw(&mut mw, window)?;
        batch.ring()?;
        let wc = completion(&mut pair.b.cq)?;
        wc.is(WcOpcode::BIND_MW)?;
        same(wc.wr_id, round, "the id")?;
        let word = (round + 1).to_ne_bytes();
        pair.a
            .post(|request| request.write(Inline(&word), window.remote(mw.rkey())))?
            .is(WcOpcode::RDMA_WRITE)?;
        let mut there = [0; 8];
        target.read_at(start, &mut there)?;
        same(there, word, "what went through the window")?;
    }
    Ok(())
}
