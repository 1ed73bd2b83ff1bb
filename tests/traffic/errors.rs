//! What goes wrong on the data path: completions in error as the field knows them, requests that are refused
//! before they are posted, and queue pairs that work again afterwards.

use libtest_mimic::Trial;
use support::pair::options;
use support::{
    Pair, Result, Setup, completion, completions, device, fail, kernel, nothing, open, pattern,
    same, says, talk, test,
};
use uverbs::{
    Access, Caps, ConnectOptions, Inline, Mr, PostError, QpState, Rc, RemoteSlice, Ud, WcOpcode,
    WcStatus,
    mr::RemoteKey,
    qp::{Mtu, QpAttr},
};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("errors::no_receive_posted", no_receive_posted),
        test("errors::peer_is_reset", peer_is_reset),
        test("errors::peer_is_destroyed", peer_is_destroyed),
        test(
            "errors::remote_memory_that_is_not_there",
            remote_memory_that_is_not_there,
        ),
        test(
            "errors::remote_memory_without_the_access",
            remote_memory_without_the_access,
        ),
        test(
            "errors::local_memory_that_is_deregistered",
            local_memory_that_is_deregistered,
        ),
        test(
            "errors::message_longer_than_the_receive",
            message_longer_than_the_receive,
        ),
        test("errors::requests_are_flushed", requests_are_flushed),
        test(
            "errors::a_queue_pair_works_again_after_reset",
            a_queue_pair_works_again_after_reset,
        ),
        test("errors::the_queue_is_full", the_queue_is_full),
        test("errors::requests_that_do_not_fit", requests_that_do_not_fit),
        test("errors::memory_of_another_pd", memory_of_another_pd),
        test("errors::memory_that_is_only_read", memory_that_is_only_read),
        test("errors::no_reads_in_flight", no_reads_in_flight),
        test("errors::an_mtu_above_the_ports", an_mtu_above_the_ports),
        test("errors::state_that_does_not_send", state_that_does_not_send),
        test(
            "errors::a_dropped_batch_posts_nothing",
            a_dropped_batch_posts_nothing,
        ),
    ]
}

/// Gives a peer up after two times 16 ms. Only for peers that never answer: on a busy machine one that does
/// answer may take longer.
fn impatient() -> Setup {
    let mut setup = patient();
    (setup.options.timeout, setup.options.retry_cnt) = (12, 1);
    setup
}

/// Options for a peer that answers. Time is lost only if a packet is, half a second each time; one pause of
/// 10 µs is allowed for if the peer has no receive.
fn patient() -> Setup {
    let options = ConnectOptions {
        timeout: 17,
        retry_cnt: 7,
        rnr_retry: 1,
        min_rnr_timer: 1,
        ..ConnectOptions::default()
    };
    Setup {
        options,
        ..Setup::default()
    }
}

/// Sends a message that must fail, and two behind it that must be flushed; then the same queue pairs must
/// work again, connected with these options.
fn fails_with(pair: &mut Pair<Rc>, options: &ConnectOptions, status: WcStatus) -> Result {
    let mut batch = pair.a.qp.batch();
    batch.signaled(1).send(Inline(b"this one"))?;
    batch.signaled(2).send(Inline(b"that one"))?;
    batch.unsignaled(3).send(Inline(b"unsignaled"))?;
    batch.ring()?;
    failed(pair, status)?;
    recovers(pair, options)
}

/// Takes the completions of three requests, of which the first fails with `status`.
fn failed(pair: &mut Pair<Rc>, status: WcStatus) -> Result {
    let told: Vec<_> = completions(&mut pair.a.cq, 3)?
        .iter()
        .map(|wc| (wc.wr_id, wc.status, wc.vendor_err, wc.qp_num))
        .collect();
    let qpn = pair.a.qp.qpn();
    let flushed = WcStatus::WR_FLUSH_ERR;
    // Neither rxe nor the software adapter has vendor errors: the field stays 0.
    let expected = vec![
        (1, status, 0, qpn),
        (2, flushed, 0, qpn),
        (3, flushed, 0, qpn),
    ];
    same(told, expected, "the completions")?;
    same(pair.a.qp.query()?.state, QpState::ERR, "the state")
}

/// Resets both queue pairs, connects them again and lets them do everything.
fn recovers(pair: &mut Pair<Rc>, options: &ConnectOptions) -> Result {
    for side in [&mut pair.a, &mut pair.b] {
        side.qp.reset()?;
        // What the reset overtook: completions of before it are no news.
        for _ in &mut side.cq.poll()? {}
        same(side.qp.query()?.state, QpState::RESET, "the state")?;
        same(side.qp.halves().0.in_flight(), 0, "sends in flight")?;
        same(side.qp.halves().1.in_flight(), 0, "receives in flight")?;
    }
    pair.connect(options)?;
    talk::sends(pair)?;
    talk::writes(pair)?;
    talk::reads(pair)?;
    talk::atomics(pair)
}

/// Catches another status than RNR_RETRY_EXC_ERR, which is how a user learns that the peer is too slow.
fn no_receive_posted() -> Result {
    let setup = patient();
    let mut pair = Pair::with(&setup)?;
    fails_with(&mut pair, &setup.options, WcStatus::RNR_RETRY_EXC_ERR)
}

/// Catches a hang, or another status than RETRY_EXC_ERR, if the peer has forgotten the connection.
fn peer_is_reset() -> Result {
    let setup = impatient();
    let mut pair = Pair::with(&setup)?;
    pair.b.qp.reset()?;
    fails_with(&mut pair, &patient().options, WcStatus::RETRY_EXC_ERR)
}

/// Catches the same if the peer's queue pair no longer exists.
fn peer_is_destroyed() -> Result {
    let setup = impatient();
    let mut pair = Pair::<Rc>::with(&setup)?;
    let other = Pair::<Rc>::with(&setup)?;
    std::mem::replace(&mut pair.b, other.b).qp.destroy()?;
    drop(other.a);
    fails_with(&mut pair, &patient().options, WcStatus::RETRY_EXC_ERR)
}

/// Catches wrong keys, or bounds that nobody checks: beside the memory, across its end, with a key that
/// nobody has.
fn remote_memory_that_is_not_there() -> Result {
    let setup = patient();
    let mut pair = Pair::<Rc>::with(&setup)?;
    let whole = pair.b.mr.remote();
    let end = whole.address + whole.length;
    let wrong = [
        RemoteSlice {
            rkey: RemoteKey(whole.rkey.0 ^ 0x5a),
            ..whole
        },
        RemoteSlice {
            rkey: RemoteKey(0),
            ..whole
        },
        RemoteSlice {
            address: end - 4,
            ..whole
        },
        RemoteSlice {
            address: end,
            ..whole
        },
        RemoteSlice {
            address: whole.address - 1,
            ..whole
        },
        RemoteSlice {
            address: u64::MAX - 3,
            ..whole
        },
    ];
    for remote in wrong {
        let before = pair.b.bytes(0, 8192)?;
        let mut batch = pair.a.qp.batch();
        batch.signaled(1).write(Inline(b"8 bytes."), remote)?;
        batch.signaled(2).write(Inline(b"8 bytes."), whole)?;
        batch.unsignaled(3).send(Inline(b"x"))?;
        batch.ring()?;
        failed(&mut pair, WcStatus::REM_ACCESS_ERR)?;
        same(pair.b.bytes(0, 8192)?, before, "the peer's memory")?;
        recovers(&mut pair, &setup.options)?;
    }
    Ok(())
}

/// Catches access flags that do not reach the kernel, or reach it as others.
fn remote_memory_without_the_access() -> Result {
    let setup = patient();
    let mut pair = Pair::<Rc>::with(&setup)?;
    let local = Access::LOCAL_WRITE;
    for (access, may_write, may_read, may_add) in [
        (local, false, false, false),
        (local | Access::REMOTE_WRITE, true, false, false),
        (local | Access::REMOTE_READ, false, true, false),
        (local | Access::REMOTE_ATOMIC, false, false, true),
        (Access::REMOTE_READ, false, true, false),
    ] {
        let mr = pair.pd.register(vec![7_u8; 64], access)?;
        for (operation, may) in [may_write, may_read, may_add].into_iter().enumerate() {
            attempt(&mut pair, &mr, operation)?;
            let wc = completion(&mut pair.a.cq)?;
            let expected = if may {
                WcStatus::SUCCESS
            } else {
                WcStatus::REM_ACCESS_ERR
            };
            let what = format!("the status of operation {operation} with {access:?}");
            same(wc.status, expected, &what)?;
            if !may {
                pair.a.qp.reset()?;
                pair.b.qp.reset()?;
                pair.connect(&setup.options)?;
            }
        }
    }
    Ok(())
}

/// A WRITE, READ or FETCH_ADD of 8 bytes of `mr`.
fn attempt(pair: &mut Pair<Rc>, mr: &Mr<Vec<u8>>, operation: usize) -> Result {
    let remote = mr.remote().slice(8..16)?;
    let local = pair.a.mr.slice(..8)?;
    let mut batch = pair.a.qp.batch();
    match operation {
        0 => batch.signaled(1).write(local, remote)?,
        1 => batch.signaled(1).read(local, remote)?,
        _ => batch.signaled(1).fetch_add(local, remote, 1)?,
    };
    batch.ring()?;
    Ok(())
}

/// What is reported for a send of memory that is not registered: by adapters LOC_PROT_ERR, by rxe otherwise.
/// 6.1 calls every failed copy an operation error (`rxe_requester` in `rxe_req.c`); later the completer
/// flushes the request before it has told its status (`rxe_completer` in `rxe_comp.c`).
fn local_protection_error() -> WcStatus {
    if device().is_mlx5() {
        return WcStatus::LOC_PROT_ERR;
    }
    match kernel() < (6, 2) {
        true => WcStatus::LOC_QP_OP_ERR,
        false => WcStatus::WR_FLUSH_ERR,
    }
}

/// Catches memory that the device still reads after it was deregistered.
fn local_memory_that_is_deregistered() -> Result {
    let setup = patient();
    let mut pair = Pair::<Rc>::with(&setup)?;
    let gone = pair.pd.register(vec![1_u8; 64], Access::LOCAL_WRITE)?;
    // SAFETY: the request only reads, and no region that may get the key has memory to which there are
    // references.
    let slice = unsafe { pair.pd.raw_slice(gone.lkey(), gone.iova(), 64)? };
    let memory = gone.deregister()?;
    pair.b.post_recv(9, 0..64)?;
    let mut batch = pair.a.qp.batch();
    batch.signaled(1).send(slice)?;
    batch.signaled(2).send(Inline(b"x"))?;
    batch.signaled(3).send(Inline(b"y"))?;
    batch.ring()?;
    failed(&mut pair, local_protection_error())?;
    recovers(&mut pair, &setup.options)?;
    drop(memory);
    Ok(())
}

/// Catches bytes written beyond the receive, and statuses on the two sides that do not belong together.
///
/// Adapters say REM_INV_REQ_ERR and LOC_LEN_ERR here. rxe says REM_OP_ERR and LOC_QP_OP_ERR, because it takes
/// the receive for a malformed one (`send_data_in` in `rxe_resp.c`).
fn message_longer_than_the_receive() -> Result {
    let setup = patient();
    let mut pair = Pair::<Rc>::with(&setup)?;
    pair.b.mr.write_at(0, &[0x77; 64])?;
    pair.b.post_recv(5, 0..8)?;
    pair.b.post_recv(6, 0..8)?;
    let mut batch = pair.a.qp.batch();
    batch.signaled(1).send(Inline(&pattern(1, 9)))?;
    batch.signaled(2).send(Inline(b"x"))?;
    batch.signaled(3).send(Inline(b"y"))?;
    batch.ring()?;
    let (at_sender, at_receiver) = match device().is_rxe() {
        true => (WcStatus::REM_OP_ERR, WcStatus::LOC_QP_OP_ERR),
        false => (WcStatus::REM_INV_REQ_ERR, WcStatus::LOC_LEN_ERR),
    };
    failed(&mut pair, at_sender)?;
    let told: Vec<_> = completions(&mut pair.b.cq, 2)?
        .iter()
        .map(|wc| (wc.wr_id, wc.status))
        .collect();
    let expected = [(5, at_receiver), (6, WcStatus::WR_FLUSH_ERR)];
    same(told, expected.to_vec(), "the peer's completions")?;
    same(
        pair.b.bytes(8, 56)?,
        vec![0x77; 56],
        "the bytes behind the receive",
    )?;
    recovers(&mut pair, &setup.options)
}

/// Catches requests that are lost when the queue pair fails: all come back, in order, on their side.
fn requests_are_flushed() -> Result {
    let setup = Setup {
        options: ConnectOptions {
            min_rnr_timer: 31,
            ..options()
        },
        ..Setup::default()
    };
    let mut pair = Pair::<Rc>::with(&setup)?;
    for id in 0..10 {
        pair.a.post_recv(100 + id, 0..16)?;
    }
    // Nobody receives: the peer asks for pauses of half a second, and the requests stay where they are.
    let mut batch = pair.a.qp.batch();
    for id in 0..10 {
        batch.unsignaled(id).send(Inline(b"x"))?;
    }
    batch.ring()?;
    pair.a.qp.fail()?;
    let all = completions(&mut pair.a.cq, 20)?;
    for (what, first) in [("sends", 0), ("receives", 100)] {
        let ids: Vec<u64> = all
            .iter()
            .filter(|wc| (first..first + 10).contains(&wc.wr_id))
            .map(|wc| wc.wr_id)
            .collect();
        same(ids, (first..first + 10).collect(), what)?;
    }
    if let Some(wc) = all.iter().find(|wc| wc.status != WcStatus::WR_FLUSH_ERR) {
        return Err(format!("not flushed: {wc:?}").into());
    }
    // Sends that are posted now are flushed too.
    let mut batch = pair.a.qp.batch();
    batch.unsignaled(77).send(Inline(b"late"))?;
    batch.ring()?;
    let wc = completion(&mut pair.a.cq)?;
    same(
        (wc.wr_id, wc.status),
        (77, WcStatus::WR_FLUSH_ERR),
        "the late send",
    )?;
    recovers(&mut pair, &setup.options)
}

/// Catches indices of this side and of the kernel that part ways at a reset, at every place of the ring.
fn a_queue_pair_works_again_after_reset() -> Result {
    let caps = Caps {
        max_send_wr: 3,
        max_recv_wr: 3,
        ..Caps::default()
    };
    let setup = Setup::with_caps(caps);
    let mut pair = Pair::<Rc>::with(&setup)?;
    let (_, sends) = (pair.b.qp.reset()?, pair.a.qp.caps().max_send_wr);
    pair.a.qp.reset()?;
    pair.connect(&setup.options)?;
    for round in 0..20_u64 {
        let in_flight = round % u64::from(sends) + 1;
        for id in 0..round % 3 {
            pair.b.post_recv(id, 0..64)?;
        }
        let mut batch = pair.a.qp.batch();
        for _ in 1..in_flight {
            batch
                .unsignaled(0)
                .send(Inline(b"some arrive, some do not"))?;
        }
        batch.signaled(1).send(Inline(b"the last one tells"))?;
        batch.ring()?;
        recovers(&mut pair, &setup.options)?;
    }
    Ok(())
}

/// Catches a count of accepted requests that is not exact: what was accepted is sent, the rest is not.
fn the_queue_is_full() -> Result {
    let caps = Caps {
        max_send_wr: 4,
        ..Caps::default()
    };
    let mut pair = Pair::<Rc>::with(&Setup::with_caps(caps))?;
    let capacity = pair.a.qp.caps().max_send_wr;
    for id in 0..64 {
        pair.b.post_recv(id, 0..16)?;
    }
    let mut batch = pair.a.qp.batch();
    let mut accepted = 0;
    let error = loop {
        match batch.signaled(accepted).send(Inline(b"x")) {
            Ok(()) => accepted += 1,
            Err(error) => break error,
        }
    };
    same(error, PostError::QueueFull { capacity }, "the error")?;
    same(batch.len() as u64, accepted, "the batch")?;
    same(batch.ring()? as u64, accepted, "what was rung")?;
    let text = error.to_string();
    if !text.contains(&capacity.to_string()) {
        return Err(format!("the error does not tell the capacity: {text}").into());
    }
    completions(&mut pair.a.cq, accepted as usize)?;
    completions(&mut pair.b.cq, accepted as usize)?;
    nothing(&mut pair.b.cq)
}

/// Catches a request that is written over the next slot, and one that is refused but stays in the batch.
fn requests_that_do_not_fit() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let caps = pair.a.qp.caps();
    let (max_sge, max_inline) = (caps.max_send_sge, caps.max_inline_data);
    let slice = pair.a.mr.slice(..1)?;
    let list = vec![slice; max_sge as usize + 1];
    let remote = pair.b.mr.remote();
    let mut batch = pair.a.qp.batch();
    batch.unsignaled(0).write(Inline(b"accepted"), remote)?;
    let outcomes = [
        batch.unsignaled(0).send(&list).err(),
        batch
            .unsignaled(0)
            .send(Inline(&vec![0; max_inline as usize + 1]))
            .err(),
        batch.unsignaled(0).write(slice, remote.slice(..0)?).err(),
        batch
            .unsignaled(0)
            .read(pair.a.mr.slice(..9)?, remote.slice(..8)?)
            .err(),
        batch
            .unsignaled(0)
            .fetch_add(slice, remote.slice(..8)?, 1)
            .err(),
        batch
            .unsignaled(0)
            .fetch_add(pair.a.mr.slice(..8)?, remote.slice(4..12)?, 1)
            .err(),
    ];
    let address = remote.address;
    let expected = [
        PostError::TooManySges {
            given: list.len(),
            max: max_sge,
        },
        PostError::InlineTooLong {
            given: max_inline as usize + 1,
            max: max_inline,
        },
        PostError::BeyondRemote {
            local: 1,
            remote: 0,
        },
        PostError::BeyondRemote {
            local: 9,
            remote: 8,
        },
        PostError::NotAtomic { address, length: 1 },
        PostError::NotAtomic {
            address: address + 4,
            length: 8,
        },
    ];
    same(outcomes, expected.map(Some), "the outcomes")?;
    batch
        .signaled(1)
        .write(Inline(&pattern(1, max_inline as usize)), remote.slice(8..)?)?;
    same(batch.ring()?, 2, "what was rung")?;
    same(completion(&mut pair.a.cq)?.ok()?.wr_id, 1, "the completion")?;
    same(pair.b.bytes(0, 8)?, b"accepted".to_vec(), "the first")?;
    same(
        pair.b.bytes(8, max_inline as usize)?,
        pattern(1, max_inline as usize),
        "the last",
    )?;
    let list = vec![pair.b.mr.slice(..1)?; pair.b.qp.caps().max_recv_sge as usize + 1];
    let refused = pair.b.qp.recv_batch().post(1, &list).err();
    let max = pair.b.qp.caps().max_recv_sge;
    same(
        refused,
        Some(PostError::TooManySges {
            given: list.len(),
            max,
        }),
        "the receive",
    )
}

/// Catches memory and address handles of another protection domain, with which the device would fail the
/// queue pair.
fn memory_of_another_pd() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let other = pair.context.alloc_pd()?;
    let mr = other.register(vec![0_u8; 64], Access::LOCAL_WRITE)?;
    let foreign = mr.slice(..)?;
    let mut batch = pair.a.qp.batch();
    batch
        .signaled(1)
        .write(Inline(b"accepted"), pair.b.mr.remote())?;
    let refused = batch.unsignaled(0).send(foreign).err();
    same(refused, Some(PostError::ForeignPd), "the send")?;
    same(batch.ring()?, 1, "what was rung")?;
    completion(&mut pair.a.cq)?.ok()?;
    let refused = pair.a.qp.recv_batch().post(1, foreign).err();
    same(refused, Some(PostError::ForeignPd), "the receive")?;

    let mut ud = Pair::datagram_on(&open()?, &Setup::default())?;
    let options = ConnectOptions::default();
    let other = ud.context.alloc_pd()?;
    let ah = other.create_ah(&ud.context.path_to(&ud.b.qp.endpoint()?, &options)?)?;
    let refused = ud.a.qp.one(1).to(ah.to(1, 1)).send(Inline(b"x")).err();
    same(refused, Some(PostError::ForeignPd), "the datagram")
}

/// Catches a receive, or an answer of the peer, that is to land where the device may not write: it would
/// break the queue pair, with an error that does not name the access.
fn memory_that_is_only_read() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let mr = pair.pd.register(vec![7_u8; 64], Access::empty())?;
    let (slice, peer) = (mr.slice(..8)?, pair.b.mr.remote().slice(..8)?);
    let refused = Err(PostError::ReadOnly);
    let received = pair.b.qp.recv_batch().post(1, slice);
    same(received, refused, "a receive")?;
    let part = slice.slice(2..4)?;
    same(pair.a.qp.one(1).read(part, peer), refused, "a READ")?;
    same(
        pair.a.qp.one(1).fetch_add(slice, peer, 1),
        refused,
        "an atomic",
    )?;
    same(
        pair.a.qp.one(1).compare_swap(slice, peer, 1, 2),
        refused,
        "another",
    )?;
    // What is only read may be sent, and beside others.
    pair.b.post_recv(2, 0..64)?;
    pair.a.qp.one(3).send([slice, part])?;
    completion(&mut pair.a.cq)?.ok()?;
    completion(&mut pair.b.cq)?.ok()?;
    same(pair.b.bytes(0, 10)?, vec![7; 10], "what came")
}

/// Catches a READ that may never be in flight, for which soft-RoCE has no answer and an adapter a wrong one.
fn no_reads_in_flight() -> Result {
    let mut setup = Setup::default();
    setup.options.max_rd_atomic = 0;
    let mut pair = Pair::<Rc>::with(&setup)?;
    let (slice, peer) = (pair.a.mr.slice(..8)?, pair.b.mr.remote().slice(..8)?);
    let refused = Err(PostError::NoReadsInFlight);
    for _ in 0..2 {
        same(pair.a.qp.one(1).read(slice, peer), refused, "a READ")?;
        same(
            pair.a.qp.one(1).fetch_add(slice, peer, 1),
            refused,
            "an atomic",
        )?;
        pair.a.qp.one(2).write(slice, peer)?;
        completion(&mut pair.a.cq)?.ok()?;
    }
    // The next connection may.
    pair.a.qp.reset()?;
    pair.b.qp.reset()?;
    pair.connect(&options())?;
    pair.a.qp.one(3).read(pair.a.mr.slice(..8)?, peer)?;
    completion(&mut pair.a.cq)?.ok().map(drop)
}

/// Catches a path with packets that the port does not send, whose datagrams would go nowhere.
fn an_mtu_above_the_ports() -> Result {
    let mut pair = Pair::<Rc>::unconnected(&open()?, &Setup::default())?;
    let active = pair.context.query_port(1)?.active_mtu;
    let above = ConnectOptions {
        path_mtu: Some(Mtu(active.0 + 1)),
        ..options()
    };
    let words = format!("and the port has {active:?}");
    let peer = pair.b.qp.endpoint()?;
    let Err(refused) = pair.a.qp.connect_with(&peer, &above) else {
        return fail("connected");
    };
    says(&refused, &["modify_qp", "path_mtu is", &words])?;
    let mut datagrams = pair.pd.create_qp::<Ud>(&pair.a.cq, Caps::default())?;
    let Err(refused) = datagrams.activate(1, &above) else {
        return fail("activated");
    };
    says(&refused, &["modify_qp", "path_mtu is", &words])?;
    // Nothing was changed.
    same(datagrams.state(), QpState::RESET, "the state")?;
    datagrams.activate(1, &options())?;
    pair.connect(&options())?;
    talk::sends(&mut pair)
}

/// Catches requests that go into the ring of a queue pair that does not send, and would go out when it does.
fn state_that_does_not_send() -> Result {
    let mut pair = Pair::<Rc>::unconnected(&open()?, &Setup::default())?;
    let options = ConnectOptions::default();
    let refused_in = |pair: &mut Pair<Rc>, state| {
        let mut batch = pair.a.qp.batch();
        let refused = batch.unsignaled(0).send(Inline(b"too early")).err();
        same(refused, Some(PostError::WrongState { state }), "the error")?;
        same(batch.ring()?, 0, "what was rung")
    };
    refused_in(&mut pair, QpState::RESET)?;
    let state = QpState::RESET;
    let refused = pair.a.qp.recv_batch().post(1, []).err();
    same(
        refused,
        Some(PostError::WrongState { state }),
        "the receive",
    )?;
    let init = QpAttr {
        state: Some(QpState::INIT),
        port: Some(1),
        pkey_index: Some(0),
        access: Some(options.access),
        ..QpAttr::default()
    };
    pair.a.qp.modify(&init)?;
    refused_in(&mut pair, QpState::INIT)?;
    pair.a.qp.reset()?;
    pair.connect(&options)?;
    // Only what is sent now arrives.
    talk::sends(&mut pair)?;
    nothing(&mut pair.b.cq)
}

/// Catches a batch that leaves requests in the ring, to go out with the next doorbell.
fn a_dropped_batch_posts_nothing() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    for id in 0..8 {
        pair.b.post_recv(id, 0..64)?;
    }
    for round in 0..10 {
        let mut batch = pair.a.qp.batch();
        for _ in 0..round {
            batch.signaled(1).send(Inline(b"must not arrive"))?;
        }
        drop(batch);
    }
    let mut batch = pair.b.qp.recv_batch();
    batch.post(99, pair.b.mr.slice(64..128)?)?;
    drop(batch);
    same(pair.b.qp.halves().1.in_flight(), 8, "receives in flight")?;
    let mut batch = pair.a.qp.batch();
    batch.signaled(2).send(Inline(b"must arrive"))?;
    batch.ring()?;
    same(completion(&mut pair.a.cq)?.ok()?.wr_id, 2, "the send")?;
    let wc = completion(&mut pair.b.cq)?.ok()?;
    same((wc.wr_id, wc.opcode), (0, WcOpcode::RECV), "the receive")?;
    same(pair.b.bytes(0, 11)?, b"must arrive".to_vec(), "the payload")?;
    nothing(&mut pair.a.cq)?;
    nothing(&mut pair.b.cq)
}
