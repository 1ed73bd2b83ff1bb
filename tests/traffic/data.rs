//! The data path: every operation of every transport, and the shapes that messages and their memory can have.

use std::sync::atomic::{AtomicU64, Ordering};

use libtest_mimic::Trial;
use rustix::param::page_size;
use support::pair::options;
use support::talk::sent;
use support::{
    ALL, Pair, QKEY, Result, Setup, completion, completions, nothing, open, pattern, same, talk,
    test, until,
};
use uverbs::qp::{Control, Mtu, QpAttr, QpState, QpType};
use uverbs::{
    Access, AddressVector, Caps, ConnectOptions, Inline, PostError, Qp, Rc, Uc, WcOpcode,
};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("data::rc_has_every_operation", rc_has_every_operation),
        test("data::uc_sends_and_writes", uc_sends_and_writes),
        test("data::ud_sends_datagrams", ud_sends_datagrams),
        test(
            "data::any_does_what_its_transport_has",
            any_does_what_its_transport_has,
        ),
        test(
            "data::any_refuses_what_its_transport_lacks",
            any_refuses_what_its_transport_lacks,
        ),
        test(
            "data::lists_are_gathered_and_scattered",
            lists_are_gathered_and_scattered,
        ),
        test("data::messages_may_be_empty", messages_may_be_empty),
        test("data::lengths_around_packets", lengths_around_packets),
        test(
            "data::a_fence_waits_for_the_read",
            a_fence_waits_for_the_read,
        ),
        test(
            "data::only_signaled_requests_complete",
            only_signaled_requests_complete,
        ),
        test(
            "data::memory_under_another_address",
            memory_under_another_address,
        ),
        test(
            "data::halves_work_on_two_threads",
            halves_work_on_two_threads,
        ),
        test("data::a_control_connects_halves", a_control_connects_halves),
    ]
}

/// Catches a wrong opcode, key, address, length, byte order or flag in any RC request or completion.
fn rc_has_every_operation() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    talk::sends(&mut pair)?;
    talk::writes(&mut pair)?;
    talk::reads(&mut pair)?;
    talk::atomics(&mut pair)
}

/// Catches RC's attributes being asked of UC, and what `rc_has_every_operation` catches.
fn uc_sends_and_writes() -> Result {
    let mut pair = Pair::<Uc>::new()?;
    talk::sends(&mut pair)?;
    talk::writes(&mut pair)
}

/// Catches a wrong destination, an address handle that is not found, a header that is not skipped.
fn ud_sends_datagrams() -> Result {
    talk::datagrams(&mut Pair::datagram_on(&open()?, &Setup::default())?)
}

/// Catches the dynamic form going another way than the typed ones.
fn any_does_what_its_transport_has() -> Result {
    for transport in [QpType::RC, QpType::UC] {
        let mut pair = Pair::create(&open()?, &Setup::default(), |qp| qp.create_any(transport))?;
        pair.connect(&Setup::default().options)?;
        talk::sends(&mut pair)?;
        talk::writes(&mut pair)?;
        if transport == QpType::RC {
            talk::reads(&mut pair)?;
            talk::atomics(&mut pair)?;
        }
    }
    let setup = Setup::default();
    let mut pair = Pair::create(&open()?, &setup, |qp| qp.create_any(QpType::UD))?;
    pair.a.qp.activate(QKEY, &setup.options)?;
    pair.b.qp.activate(QKEY, &setup.options)?;
    talk::datagrams(&mut pair)
}

/// Catches a request that the device would fail with the whole queue pair, where an error would do no harm;
/// and that what was refused leaves a trace in the batch.
fn any_refuses_what_its_transport_lacks() -> Result {
    for transport in [QpType::RC, QpType::UC, QpType::UD] {
        let mut pair = Pair::create(&open()?, &Setup::default(), |qp| qp.create_any(transport))?;
        let options = Setup::default().options;
        let path = pair.context.path_to(&pair.b.qp.endpoint()?, &options)?;
        let ah = pair.pd.create_ah(&path)?;
        let to = ah.to(pair.b.qp.qpn(), QKEY);
        let remote = pair.b.mr.remote().slice(..8)?;
        let local = pair.a.mr.slice(..8)?;
        let mut batch = pair.a.qp.batch();
        // What becomes of each request: on a queue pair that is not connected, none is taken.
        let outcomes = [
            batch.unsignaled(0).send(Inline(b"x")).err(),
            batch.unsignaled(0).to(to).send(Inline(b"x")).err(),
            batch.unsignaled(0).write(Inline(b"x"), remote).err(),
            batch.unsignaled(0).read(local, remote).err(),
            batch.unsignaled(0).fetch_add(local, remote, 1).err(),
        ];
        let lacks = Some(PostError::NotInTransport { transport });
        let destination = Some(PostError::Destination);
        let state = QpState::RESET;
        let early = Some(PostError::WrongState { state });
        let expected = match transport {
            QpType::RC => [early, destination, early, early, early],
            QpType::UC => [early, destination, early, lacks, lacks],
            _ => [destination, early, destination, destination, destination],
        };
        same(outcomes, expected, "the outcomes")?;
        same(batch.len(), 0, "the requests in the batch")?;
    }
    Ok(())
}

/// Catches slices out of order, a wrong count, or a slot too small for the longest list.
fn lists_are_gathered_and_scattered() -> Result {
    let max = open()?.query_device()?.max_sge;
    let caps = Caps {
        max_send_sge: max,
        max_recv_sge: max,
        ..Caps::default()
    };
    let setup = Setup::with_caps(caps);
    let mut pair = Pair::<Rc>::with(&setup)?;
    for count in [2, 3, max as usize - 1, max as usize] {
        // Pieces of 1, 2, 3… bytes, last one first in memory, with gaps between them.
        let piece = |i: usize| (8000 - i * 100)..(8000 - i * 100 + i + 1);
        let total: usize = (1..=count).sum();
        let bytes = pattern(count as u64, total);
        let mut at = 0;
        let mut from = Vec::new();
        for i in 0..count {
            pair.a.mr.write_at(piece(i).start, &bytes[at..=at + i])?;
            at += i + 1;
        }
        for i in 0..count {
            from.push(pair.a.mr.slice(piece(i))?);
        }
        let into = (0..count)
            .map(|i| pair.b.mr.slice(piece(i)))
            .collect::<std::result::Result<Vec<_>, _>>()?;
        let mut batch = pair.b.qp.recv_batch();
        batch.post(5, &into)?;
        batch.ring();
        let mut batch = pair.a.qp.batch();
        batch.signaled(6).send(&from)?;
        batch
            .signaled(7)
            .write(&from, pair.b.mr.remote().slice(..)?)?;
        batch.ring()?;
        sent(&mut pair, 6, WcOpcode::SEND)?;
        sent(&mut pair, 7, WcOpcode::RDMA_WRITE)?;
        let wc = completion(&mut pair.b.cq)?.ok()?;
        same(wc.byte_len as usize, total, "bytes received")?;
        let mut scattered = Vec::new();
        for i in 0..count {
            scattered.extend(pair.b.bytes(piece(i).start, i + 1)?);
        }
        same(scattered, bytes.clone(), "what was scattered")?;
        same(pair.b.bytes(0, total)?, bytes, "what was gathered")?;
    }
    Ok(())
}

/// Catches an empty list taken for an error, or a stale list of the slot's last use.
fn messages_may_be_empty() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let remote = pair.b.mr.remote().slice(..0)?;
    pair.b.mr.write_at(0, &[0x5a; 64])?;
    let empty = pair.a.mr.slice(10..10)?;
    let mut batch = pair.b.qp.recv_batch();
    for id in 0..5 {
        batch.post(id, [])?;
    }
    batch.ring();
    let mut batch = pair.a.qp.batch();
    batch.signaled(0).send([])?;
    batch.signaled(1).send(empty)?;
    batch.signaled(2).send_imm([], 77)?;
    batch.signaled(3).write([], remote)?;
    batch.signaled(4).read([], remote)?;
    batch.signaled(5).write_imm([], remote, 78)?;
    batch.signaled(6).send(Inline(&[]))?;
    batch.ring()?;
    for (id, wc) in (0..).zip(completions(&mut pair.a.cq, 7)?) {
        same(wc.ok()?.wr_id, id, "the send's id")?;
    }
    let received = completions(&mut pair.b.cq, 5)?;
    let told: Vec<_> = received
        .iter()
        .map(|wc| (wc.wr_id, wc.byte_len, wc.imm))
        .collect();
    let expected = [
        (0, 0, None),
        (1, 0, None),
        (2, 0, Some(77)),
        (3, 0, Some(78)),
        (4, 0, None),
    ];
    same(told, expected.to_vec(), "what was received")?;
    same(
        pair.b.bytes(0, 64)?,
        vec![0x5a; 64],
        "memory that nobody wrote to",
    )
}

/// Catches lengths that go wrong at a packet's end: 0 and 1 more and less than 1, 2, 3 MTUs, and a long
/// message.
fn lengths_around_packets() -> Result {
    let setup = Setup {
        length: 1 << 20,
        ..Setup::default()
    };
    let mut pair = Pair::<Rc>::with(&setup)?;
    let mut lengths = vec![1, 2, 3, 4, 5, 1 << 20];
    lengths.extend((1..=3).flat_map(|n| [n * 1024 - 1, n * 1024, n * 1024 + 1]));
    for (seed, length) in (0..).zip(lengths) {
        let bytes = pattern(seed, length);
        pair.a.mr.write_at(0, &bytes)?;
        pair.b.post_recv(seed, 0..length)?;
        let from = pair.a.mr.slice(..length)?;
        let mut batch = pair.a.qp.batch();
        batch.signaled(seed).send(from)?;
        batch.ring()?;
        sent(&mut pair, seed, WcOpcode::SEND)?;
        same(
            completion(&mut pair.b.cq)?.ok()?.byte_len,
            length as u32,
            "bytes received",
        )?;
        same(pair.b.bytes(0, length)?, bytes, "the payload")?;
        // And back, by a READ into memory that has been cleared.
        pair.a.mr.write_at(0, &vec![0; length])?;
        let into = pair.a.mr.slice(..length)?;
        let mut batch = pair.a.qp.batch();
        batch.signaled(seed).read(into, pair.b.mr.remote())?;
        batch.ring()?;
        sent(&mut pair, seed, WcOpcode::RDMA_READ)?;
        same(
            pair.a.bytes(0, length)?,
            pattern(seed, length),
            "what was read",
        )?;
    }
    Ok(())
}

/// Catches a lost fence flag: the SEND would carry what the buffer held before the READ filled it.
fn a_fence_waits_for_the_read() -> Result {
    let length = 65536;
    let setup = Setup {
        length: 2 * length,
        ..Setup::default()
    };
    let mut pair = Pair::<Rc>::with(&setup)?;
    for seed in 1..20 {
        let bytes = pattern(seed, length);
        pair.b.mr.write_at(length, &bytes)?;
        pair.b.post_recv(seed, 0..length)?;
        let buffer = pair.a.mr.slice(..length)?;
        let from = pair.b.mr.remote().slice(length..)?;
        let mut batch = pair.a.qp.batch();
        batch.unsignaled(0).read(buffer, from)?;
        batch.signaled(seed).fence().send(buffer)?;
        batch.ring()?;
        sent(&mut pair, seed, WcOpcode::SEND)?;
        completion(&mut pair.b.cq)?.ok()?;
        same(
            pair.b.bytes(0, length)?,
            bytes,
            "what came by READ and SEND",
        )?;
    }
    Ok(())
}

/// Catches a signaled flag that is set always or never, an id that gets lost, and `signal_all` being ignored.
fn only_signaled_requests_complete() -> Result {
    for signal_all in [false, true] {
        let setup = Setup {
            signal_all,
            ..Setup::default()
        };
        let mut pair = Pair::<Rc>::with(&setup)?;
        let to = pair.b.mr.remote();
        let mut batch = pair.a.qp.batch();
        for id in 0..12 {
            let request = match id % 4 {
                3 => batch.signaled(id),
                _ => batch.unsignaled(id),
            };
            request.write(Inline(b"12345678"), to)?;
        }
        same(batch.ring()?, 12, "the batch")?;
        let expected: Vec<u64> = if signal_all {
            (0..12).collect()
        } else {
            vec![3, 7, 11]
        };
        let ids: Vec<u64> = completions(&mut pair.a.cq, expected.len())?
            .iter()
            .map(|wc| wc.wr_id)
            .collect();
        same(ids, expected, "the ids that completed")?;
        nothing(&mut pair.a.cq)?;
        same(pair.a.qp.halves().0.in_flight(), 0, "requests in flight")?;
    }
    Ok(())
}

/// Catches an I/O virtual address that is mixed up with the memory's address.
fn memory_under_another_address() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let memory = vec![0_u8; 20_000];
    let iova = 0x10_0000 + memory.as_ptr() as u64 % page_size() as u64;
    let mr = pair.pd.register_at(memory, iova, ALL)?;
    same(mr.remote().address, iova, "the first byte's address")?;
    let bytes = pattern(9, 9000);
    pair.a.mr = pair.pd.register(bytes.clone(), ALL)?;
    let mut batch = pair.a.qp.batch();
    let from = pair.a.mr.slice(..)?;
    batch.signaled(1).write(from, mr.remote().slice(77..)?)?;
    batch.ring()?;
    sent(&mut pair, 1, WcOpcode::RDMA_WRITE)?;
    let mut there = vec![0; 9000];
    mr.read_at(77, &mut there)?;
    same(there, bytes, "what was written")
}

/// Catches state that the halves share without need, and an order of two rings that depends on one thread.
fn halves_work_on_two_threads() -> Result {
    const MESSAGES: u64 = 2000;
    let pair = Pair::<Rc>::new()?;
    let Pair { a, b, .. } = pair;
    let (mut send, unused) = a.qp.split();
    let (peer_send, mut recv) = b.qp.split();
    let (mut send_cq, mut recv_cq, target) = (a.cq, b.cq, b.mr);
    let slots = 64;
    // Receives so far. Nothing is sent before there is one for it: where several messages find none, the
    // sender of soft-RoCE may break (docs/soak.md).
    let received_for = &AtomicU64::new(0);
    std::thread::scope(|scope| {
        let receiver = scope.spawn(move || -> Result<_> {
            let mut posted = 0;
            let mut taken = 0;
            while taken < MESSAGES {
                let mut batch = recv.batch();
                while posted < MESSAGES && posted < taken + slots {
                    let at = (posted % slots * 64) as usize;
                    batch.post(posted, target.slice(at..at + 64)?)?;
                    posted += 1;
                }
                batch.ring();
                received_for.store(posted, Ordering::Release);
                let wc = completion(&mut recv_cq)?.ok()?;
                same(wc.wr_id, taken, "the order of receives")?;
                let mut bytes = vec![0; 32];
                target.read_at((taken % slots * 64) as usize, &mut bytes)?;
                same(bytes, pattern(taken, 32), "the payload")?;
                taken += 1;
            }
            Ok((recv, target))
        });
        let mut sent = 0;
        let mut done = 0;
        while done < MESSAGES {
            let receives = until("a receive for the next message", || {
                let posted = received_for.load(Ordering::Acquire);
                Ok((posted > done).then_some(posted))
            })?;
            while sent < receives && sent < done + 32 {
                let mut batch = send.batch();
                batch.signaled(sent).send(Inline(&pattern(sent, 32)))?;
                batch.ring()?;
                sent += 1;
            }
            same(
                completion(&mut send_cq)?.ok()?.wr_id,
                done,
                "the order of sends",
            )?;
            done += 1;
        }
        let (recv, _target) = receiver.join().map_err(|_| "the receiver panicked")??;
        // The halves find together again, and wrong halves do not.
        let (send, recv) = match uverbs::Qp::join(send, recv) {
            Ok(_) => return Err("halves of two queue pairs were joined".into()),
            Err(halves) => halves,
        };
        let _b = uverbs::Qp::join(peer_send, recv).map_err(|_| "halves of one were not joined")?;
        let a = uverbs::Qp::join(send, unused).map_err(|_| "halves of one were not joined")?;
        same(a.query()?.state, uverbs::QpState::RTS, "the state")?;
        a.destroy()?;
        Ok(())
    })
}

/// Catches a control whose changes the halves do not see, or that has their rings begin anew behind their
/// backs.
fn a_control_connects_halves() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    for side in [&mut pair.a, &mut pair.b] {
        side.qp.reset()?;
    }
    let (a, b) = (pair.a.qp.endpoint()?, pair.b.qp.endpoint()?);
    let paths = [b, a].map(|peer| pair.context.path_to(&peer, &ConnectOptions::default()));
    let [to_b, to_a] = paths;
    let controls = (pair.a.qp.control(), pair.b.qp.control());
    let halves = (pair.a.qp.split(), pair.b.qp.split());
    connect_by(&controls.0, b.qpn, to_b?)?;
    connect_by(&controls.1, a.qpn, to_a?)?;
    let reset = controls.0.modify(&QpAttr {
        state: Some(QpState::RESET),
        ..QpAttr::default()
    });
    same(reset.is_err(), true, "whether a control refuses to reset")?;
    let joined = |(send, recv)| Qp::join(send, recv).map_err(|_| "halves of one were not joined");
    (pair.a.qp, pair.b.qp) = (joined(halves.0)?, joined(halves.1)?);
    same(pair.a.qp.state(), QpState::RTS, "the state")?;
    talk::sends(&mut pair)?;
    talk::reads(&mut pair)
}

/// The three transitions, by a control.
fn connect_by(control: &Control, peer: u32, path: AddressVector) -> Result {
    control.modify(&QpAttr {
        state: Some(QpState::INIT),
        pkey_index: Some(0),
        port: Some(1),
        access: Some(Access::REMOTE_READ | Access::REMOTE_WRITE),
        ..QpAttr::default()
    })?;
    control.modify(&QpAttr {
        state: Some(QpState::RTR),
        path: Some(path),
        path_mtu: Some(Mtu::MTU_1024),
        dest_qpn: Some(peer),
        rq_psn: Some(7),
        max_dest_rd_atomic: Some(1),
        min_rnr_timer: Some(12),
        ..QpAttr::default()
    })?;
    control.modify(&QpAttr {
        state: Some(QpState::RTS),
        sq_psn: Some(7),
        timeout: Some(options().timeout),
        retry_cnt: Some(6),
        rnr_retry: Some(7),
        max_rd_atomic: Some(1),
        ..QpAttr::default()
    })?;
    Ok(())
}
