//! States of a queue pair, the events that come with them, and attributes at their limits.

use std::time::Duration;

use libtest_mimic::Trial;
use support::{
    LIMIT, Pair, QKEY, Result, Setup, completion, device, fail, kernel, open, same, says, skip,
    test, until,
};
use uverbs::{
    Access, Caps, ConnectOptions, Inline, PostError, QpState, Rc, Uc, Ud, WcOpcode, WcStatus,
    error::Errno,
    event::{AsyncEvent, AsyncEventType, EventSource},
    qp::{AltPath, Mtu, QpAttr},
};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("qp::drained_and_back", drained_and_back),
        test("qp::reset_makes_it_new", reset_makes_it_new),
        test("qp::failed_tells_the_last_receive", last_receive),
        test("qp::holds_what_it_says", holds_what_it_says),
        test(
            "qp::needs_no_requests_of_a_kind",
            needs_no_requests_of_a_kind,
        ),
        test("qp::no_alternate_path_on_roce", no_alternate_path_on_roce),
        test("qp::messages_of_many_packets", messages_of_many_packets),
        test("qp::too_many_reads_are_refused", too_many_reads_are_refused),
        test("qp::a_datagram_that_fails", a_datagram_that_fails),
    ]
}

fn to(state: QpState) -> QpAttr {
    QpAttr {
        state: Some(state),
        ..QpAttr::default()
    }
}

/// Writes once from the first to the second, and looks at what arrived.
fn writes(pair: &mut Pair<Rc>) -> Result {
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let target = pair.pd.register(vec![0; 8], access)?;
    pair.a
        .post(|request| request.write(Inline(b"arrived!"), target.remote()))?
        .is(WcOpcode::RDMA_WRITE)?;
    let mut bytes = [0; 8];
    target.read_at(0, &mut bytes)?;
    same(&bytes, b"arrived!", "the target")
}

/// Catches an event that is lost or names another object, a drained queue that sends all the same, and
/// requests that are lost on the way back.
fn drained_and_back() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    writes(&mut pair)?;
    let events = pair.context.async_events()?;
    let drain = QpAttr {
        sqd_async_notify: Some(true),
        ..to(QpState::SQD)
    };
    if device().is_mlx5() {
        let refused = pair
            .a
            .qp
            .modify(&drain)
            .err()
            .and_then(|error| error.errno());
        same(refused, Some(Errno::INVAL), "the errno")?;
        writes(&mut pair)?;
        return skip("the kernel's mlx5 has no way to SQD (`optab` in `__mlx5_ib_modify_qp`)");
    }
    pair.a.qp.modify(&drain)?;
    let expected = AsyncEvent {
        kind: AsyncEventType::SQ_DRAINED,
        source: EventSource::Qp(pair.a.qp.id()),
    };
    same(events.wait_for(LIMIT)?, Some(expected), "the event")?;
    let info = pair.a.qp.query()?;
    same(
        (info.state, info.sq_draining),
        (QpState::SQD, false),
        "state",
    )?;
    while_drained(&mut pair)?;
    // The kernel's rxe drains anew with each change in SQD, and refuses RTS until it has (`rxe_qp_chk_attr`).
    until("the queue to be drained again", || {
        let info = pair.a.qp.query()?;
        Ok((!info.sq_draining).then_some(()))
    })?;
    pair.a.qp.modify(&to(QpState::RTS))?;
    let info = pair.a.qp.query()?;
    same(
        (info.state, info.timeout, info.rnr_retry),
        (QpState::RTS, 17, 3),
        "afterwards",
    )?;
    writes(&mut pair)
}

/// Changes what a drained queue pair can have changed.
fn while_drained(pair: &mut Pair<Rc>) -> Result {
    let drained = to(QpState::SQD);
    pair.a.qp.modify(&QpAttr {
        timeout: Some(17),
        rnr_retry: Some(3),
        ..drained.clone()
    })?;
    let info = pair.a.qp.query()?;
    same(
        (info.state, info.timeout, info.rnr_retry),
        (QpState::SQD, 17, 3),
        "while it is drained",
    )?;
    let refused = pair.a.qp.modify(&QpAttr {
        path_mtu: Some(Mtu::MTU_256),
        ..drained
    });
    match refused {
        Err(error) => says(&error, &["from IBV_QPS_SQD to IBV_QPS_SQD", "PATH_MTU"]),
        Ok(()) => fail("a drained queue pair got another MTU"),
    }
}

/// Catches requests and indices of the time before that are taken for new ones, after a failed request as
/// after a failure by hand.
fn reset_makes_it_new() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let inbox = pair.pd.register(vec![0u8; 8], Access::LOCAL_WRITE)?;
    for round in 0..3 {
        if round == 1 {
            pair.a.qp.fail()?;
        } else {
            pair.a
                .post(|request| request.write(Inline(b"closed"), inbox.remote()))?
                .failed(WcStatus::REM_ACCESS_ERR)?;
        }
        pair.a.await_state(QpState::ERR)?;
        pair.a
            .post(|request| request.send(Inline(b"too late")))?
            .failed(WcStatus::WR_FLUSH_ERR)?;
        for qp in [&mut pair.a.qp, &mut pair.b.qp] {
            qp.reset()?;
            same(qp.query()?.state, QpState::RESET, "state after the reset")?;
        }
        let state = QpState::RESET;
        let refused = pair.a.qp.one(1).send(Inline(b"too early"));
        same(refused, Err(PostError::WrongState { state }), "posting")?;
        // The kernel has no such transition.
        let Err(refused) = pair.a.qp.fail() else {
            return fail("from RESET to ERR");
        };
        says(
            &refused,
            &["no transition from IBV_QPS_RESET to IBV_QPS_ERR"],
        )?;
        pair.connect(&Setup::default().options)?;
        writes(&mut pair)?;
    }
    Ok(())
}

/// Catches an event that names another object; without it nobody knows when a failed queue pair has taken its
/// last request from a shared queue.
fn last_receive() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let events = pair.context.async_events()?;
    let srq = pair.pd.srq(15).create()?;
    let qp = pair.pd.qp(&pair.b.cq).srq(&srq);
    let mut b = qp.create::<Rc>()?;
    pair.a.qp.reset()?;
    let (from, peer) = (pair.a.qp.endpoint()?, b.endpoint()?);
    pair.a.qp.connect(&peer)?;
    b.connect(&from)?;
    writes(&mut pair)?;
    b.fail()?;
    // Soft-RoCE does not tell it on the oldest of the kernels that the tests run on.
    let silent = device().is_rxe() && kernel() == (6, 1);
    let limit = if silent {
        Duration::from_secs(2)
    } else {
        LIMIT
    };
    let event = match events.wait_for(limit)? {
        Some(event) => event,
        None if silent => {
            return skip("this kernel's driver does not tell the last receive of a failed QP");
        }
        None => return fail("no event"),
    };
    let expected = AsyncEvent {
        kind: AsyncEventType::QP_LAST_WQE_REACHED,
        source: EventSource::Qp(b.id()),
    };
    same(event, expected, "the event")
}

/// Catches capacities that are promised and not kept, or kept and not told.
fn holds_what_it_says() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let asked = Caps {
        max_send_wr: 5,
        max_recv_wr: 9,
        max_send_sge: 2,
        max_recv_sge: 3,
        max_inline_data: 100,
    };
    let mut qp = pair.pd.create_qp::<Uc>(&pair.a.cq, asked)?;
    let caps = qp.caps();
    for caps in [caps, qp.query()?.caps] {
        let enough = caps.max_send_wr >= asked.max_send_wr
            && caps.max_recv_wr >= asked.max_recv_wr
            && caps.max_send_sge >= asked.max_send_sge
            && caps.max_recv_sge >= asked.max_recv_sge
            && caps.max_inline_data >= asked.max_inline_data;
        same(enough, true, &format!("{caps:?} for {asked:?}"))?;
    }
    let own = qp.endpoint()?;
    qp.connect(&own)?;
    let inbox = pair.pd.register(vec![0u8; 8], Access::LOCAL_WRITE)?;
    let slice = inbox.slice(..)?;
    let mut batch = qp.recv_batch();
    for id in 0..caps.max_recv_wr {
        let slices = vec![slice; caps.max_recv_sge as usize];
        batch.post(id.into(), slices)?;
    }
    let full = batch.post(0, slice);
    let capacity = caps.max_recv_wr;
    same(full, Err(PostError::QueueFull { capacity }), "one more")?;
    drop(batch);
    writes(&mut pair)
}

/// Catches a queue pair that cannot be created without sends or receives, or that does not send then.
fn needs_no_requests_of_a_kind() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    for (max_send_wr, max_recv_wr) in [(0, 8), (8, 0), (0, 0)] {
        let asked = Caps {
            max_send_wr,
            max_recv_wr,
            ..Caps::default()
        };
        pair.pd.create_qp::<Rc>(&pair.a.cq, asked)?.destroy()?;
    }
    let asked = Caps {
        max_recv_wr: 0,
        ..Caps::default()
    };
    let mut sender = pair.pd.create_qp::<Rc>(&pair.a.cq, asked)?;
    pair.b.qp.reset()?;
    let (from, peer) = (sender.endpoint()?, pair.b.qp.endpoint()?);
    sender.connect(&peer)?;
    pair.b.qp.connect(&from)?;
    let inbox = pair.pd.register(vec![0u8; 8], Access::LOCAL_WRITE)?;
    let mut batch = pair.b.qp.recv_batch();
    batch.post(1, inbox.slice(..)?)?;
    batch.ring();
    let mut batch = sender.batch();
    batch.signaled(2).send(Inline(b"arrived!"))?;
    batch.ring()?;
    same(completion(&mut pair.a.cq)?.ok()?.wr_id, 2, "the send")?;
    same(completion(&mut pair.b.cq)?.ok()?.wr_id, 1, "the receive")?;
    let mut bytes = [0; 8];
    inbox.read_at(0, &mut bytes)?;
    same(&bytes, b"arrived!", "the message")
}

/// Catches an alternate path that is taken, though nothing would ever migrate to it. An adapter has path
/// migration.
fn no_alternate_path_on_roce() -> Result {
    if device().is_mlx5() {
        return skip("an adapter takes an alternate path; what it does with it is its matter");
    }
    let mut pair = Pair::<Rc>::new()?;
    let path = pair.a.qp.query()?.path;
    let Err(error) = pair.a.qp.modify(&QpAttr {
        alt_path: Some(AltPath {
            path,
            pkey_index: 0,
            port: 1,
            timeout: 14,
        }),
        ..to(QpState::RTS)
    }) else {
        return fail("an alternate path was taken");
    };
    same(error.errno(), Some(Errno::INVAL), "the errno")?;
    writes(&mut pair)
}

/// Catches packets that are lost, doubled or put in the wrong place, and a size that is not used.
fn messages_of_many_packets() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let options = ConnectOptions {
        path_mtu: Some(Mtu::MTU_256),
        ..Setup::default().options
    };
    for qp in [&mut pair.a.qp, &mut pair.b.qp] {
        qp.reset()?;
    }
    pair.connect(&options)?;
    same(pair.a.qp.query()?.path_mtu, Mtu::MTU_256, "the path's MTU")?;
    let text: Vec<u8> = (0..5001u32).map(|at| (at % 251) as u8).collect();
    let source = pair.pd.register(text.clone(), Access::LOCAL_WRITE)?;
    let inbox = pair.pd.register(vec![0u8; 6000], Access::LOCAL_WRITE)?;
    let mut recv = pair.b.qp.recv_batch();
    recv.post(1, inbox.slice(..)?)?;
    recv.ring();
    let from = source.slice(..)?;
    pair.a
        .post(|request| request.send(from))?
        .is(WcOpcode::SEND)?;
    let received = completion(&mut pair.b.cq)?;
    received.is(WcOpcode::RECV)?;
    same(received.byte_len, 5001, "bytes received")?;
    let mut bytes = vec![0; 5001];
    inbox.read_at(0, &mut bytes)?;
    same(bytes == text, true, "the message is the same")
}

/// Catches a number that the device cannot keep, and a queue pair that cannot be connected after the refusal.
fn too_many_reads_are_refused() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let device = pair.context.query_device()?;
    let Ok(beyond) = u8::try_from(device.max_qp_rd_atom + 1) else {
        return skip("the device takes as many as can be asked for");
    };
    let (from, peer) = (pair.a.qp.endpoint()?, pair.b.qp.endpoint()?);
    same(pair.a.qp.endpoint()?.psn, from.psn, "the PSN until then")?;
    // rxe looks at the number of this side only, not at `max_dest_rd_atomic`.
    let options = ConnectOptions {
        max_rd_atomic: beyond,
        ..ConnectOptions::default()
    };
    pair.a.qp.reset()?;
    let refused = pair.a.qp.connect_with(&peer, &options).err();
    let errno = refused.and_then(|error| error.errno());
    same(errno, Some(Errno::INVAL), "the errno")?;
    pair.a.qp.reset()?;
    pair.b.qp.reset()?;
    let (again, peer) = (pair.a.qp.endpoint()?, pair.b.qp.endpoint()?);
    // Packets of an attempt that is over must not count in the next: they have to be behind it.
    let ahead = again.psn.wrapping_sub(from.psn) & 0xff_ffff;
    same(
        (1..1 << 23).contains(&ahead),
        true,
        &format!("a PSN that is {ahead:#x} ahead after a reset"),
    )?;
    pair.a.qp.connect(&peer)?;
    pair.b.qp.connect(&again)?;
    writes(&mut pair)
}

/// Catches a state after a failed datagram that the queue pair cannot be taken out of, as the specification
/// or as rxe has it: SQE, from which it goes on, or ERR, from which it starts anew.
fn a_datagram_that_fails() -> Result {
    if !device().fails_as_a_whole() {
        return skip("a request that fails leaves those behind it alone");
    }
    let context = open()?;
    let pd = context.alloc_pd()?;
    let mut cq = context.create_cq(8)?;
    let mut qp = pd.create_qp::<Ud>(&cq, Caps::default())?;
    let options = ConnectOptions::default();
    qp.activate(QKEY, &options)?;
    let ah = pd.create_ah(&context.path_to(&qp.endpoint()?, &options)?)?;
    let (qpn, qkey) = (qp.qpn(), QKEY);
    let gone = pd.register(vec![0u8; 8], Access::empty())?;
    // SAFETY: the request only reads, and no region that may get the key has memory to which there are
    // references.
    let slice = unsafe { pd.raw_slice(gone.lkey(), gone.iova(), 8)? };
    drop(gone);
    let mut batch = qp.batch();
    batch.signaled(1).to(ah.to(qpn, qkey)).send(slice)?;
    batch
        .signaled(2)
        .to(ah.to(qpn, qkey))
        .send(Inline(b"behind"))?;
    batch.ring()?;
    // rxe may tell the request that failed as flushed, like those behind it; that of 6.1 has one answer for a
    // key that it does not find and for everything else that goes wrong with a packet.
    let first = completion(&mut cq)?;
    let known = [
        WcStatus::LOC_PROT_ERR,
        WcStatus::LOC_QP_OP_ERR,
        WcStatus::WR_FLUSH_ERR,
    ];
    same(known.contains(&first.status), true, &format!("{first:?}"))?;
    let second = completion(&mut cq)?;
    second.failed(WcStatus::WR_FLUSH_ERR)?;
    same((first.wr_id, second.wr_id), (1, 2), "the requests")?;
    match qp.query()?.state {
        QpState::SQE => qp.modify(&QpAttr {
            cur_state: Some(QpState::SQE),
            ..to(QpState::RTS)
        })?,
        QpState::ERR => {
            qp.reset()?;
            qp.activate(QKEY, &options)?;
        }
        other => return fail(format!("the state {other:?}")),
    }
    let inbox = pd.register(vec![0u8; 64], Access::LOCAL_WRITE)?;
    let mut recv = qp.recv_batch();
    recv.post(3, inbox.slice(..)?)?;
    recv.ring();
    let mut batch = qp.batch();
    batch
        .signaled(4)
        .to(ah.to(qpn, qkey))
        .send(Inline(b"again"))?;
    batch.ring()?;
    let mut ids = [completion(&mut cq)?, completion(&mut cq)?].map(|wc| (wc.wr_id, wc.status));
    ids.sort_by_key(|&(id, _)| id);
    let expected = [(3, WcStatus::SUCCESS), (4, WcStatus::SUCCESS)];
    same(ids, expected, "the completions")
}
