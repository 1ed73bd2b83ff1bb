//! Queue pairs that are reset in the middle of what they do, and what the next connection has of it: nothing.
//!
//! The attacks are those that soft-RoCE's own reset does not survive: a READ whose reply is cut off, and
//! requests that wait. Each is made many times, and each time with new queue pairs, so that the count of
//! rounds that failed says how often it hits.

use std::cell::Cell;
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use support::pair::options;
use support::{
    Pair, QKEY, Result, Setup, Side, completion, completions, device, fail, nothing, open, pattern,
    same, talk, test, until,
};
use uverbs::{
    Access, ConnectOptions, Inline, Qp, QpState, Rc, Uc, WcOpcode, WcStatus, mw::Type2, qp::QpAttr,
};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("resets::a_read_that_was_cut_off", || cut_off(Again::Both)),
        test("resets::the_requester_of_a_read_that_was_cut_off", || {
            cut_off(Again::Requester)
        }),
        test("resets::the_responder_of_a_read_that_was_cut_off", || {
            cut_off(Again::Responder)
        }),
        test("resets::sends_in_flight", sends_in_flight),
        test(
            "resets::sends_in_flight_without_a_connection",
            sends_in_flight_without_a_connection,
        ),
        test("resets::datagrams_in_flight", datagrams_in_flight),
        test(
            "resets::completions_are_told_as_what_they_are",
            completions_are_told_as_what_they_are,
        ),
        test(
            "resets::halves_and_control_follow",
            halves_and_control_follow,
        ),
        test(
            "resets::a_shared_receive_queue_stays",
            a_shared_receive_queue_stays,
        ),
        test("resets::a_bound_window", a_bound_window),
        test(
            "resets::before_a_connection_it_stays_the_same",
            before_a_connection_it_stays_the_same,
        ),
    ]
}

/// Catches a queue pair with another number after an attempt to connect that has not come far: the peer,
/// which has the endpoint from before, would connect to nobody.
fn before_a_connection_it_stays_the_same() -> Result {
    let context = open()?;
    let mut pair = Pair::<Rc>::unconnected(&context, &Setup::default())?;
    let init = QpAttr {
        state: Some(QpState::INIT),
        port: Some(1),
        pkey_index: Some(0),
        access: Some(Access::empty()),
        ..QpAttr::default()
    };
    let names = (pair.a.qp.qpn(), pair.a.qp.handle());
    let endpoint = pair.a.qp.endpoint()?;
    for _ in 0..3 {
        pair.a.qp.modify(&init)?;
        pair.a.qp.reset()?;
        same((pair.a.qp.qpn(), pair.a.qp.handle()), names, "its names")?;
    }
    pair.b.qp.connect_with(&endpoint, &options())?;
    let peer = pair.b.qp.endpoint()?;
    pair.a.qp.connect_with(&peer, &options())?;
    talk::sends(&mut pair)
}

/// How often an attack is made.
const ROUNDS: usize = 20;

/// Makes an attack so often. All rounds are run, whatever becomes of those before.
fn rounds(mut round: impl FnMut(usize) -> Result) -> Result {
    let failures: Vec<_> = (0..ROUNDS)
        .filter_map(|number| round(number).err())
        .collect();
    match failures.first() {
        None => Ok(()),
        Some(first) => {
            let count = failures.len();
            Err(format!("{count} of {ROUNDS} rounds failed, the first of them: {first}").into())
        }
    }
}

/// Which queue pairs are used again; the other is a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Again {
    Both,
    Requester,
    Responder,
}

/// Bytes of a READ: hundreds of packets.
const LONG: usize = 1 << 18;

/// READs one behind the other, so that the last still runs when a slow thread has seen the first.
const READS: u64 = 8;

/// Catches READs and atomics that complete well and have brought nothing, or something else: the kernel's
/// reset leaves the requester in the middle of the reply, and the responder too.
fn cut_off(again: Again) -> Result {
    let setup = Setup {
        length: LONG,
        ..Setup::default()
    };
    let cut = Cell::new(0);
    rounds(|number| {
        let mut pair = Pair::<Rc>::with(&setup)?;
        let flushed = read_and_fail(&mut pair)?;
        cut.set(cut.get() + u32::from(flushed));
        match again {
            Again::Both => {}
            Again::Requester => pair.b = another(&pair, &setup)?,
            Again::Responder => pair.a = another(&pair, &setup)?,
        }
        pair.a.qp.reset()?;
        pair.b.qp.reset()?;
        pair.connect(&setup.options)?;
        match number % 2 {
            0 => talk::atomics(&mut pair)?,
            _ => short_read(&mut pair)?,
        }
        talk::reads(&mut pair)?;
        talk::atomics(&mut pair)?;
        talk::sends(&mut pair)?;
        talk::writes(&mut pair)?;
        nothing(&mut pair.a.cq)
    })?;
    // An adapter may be done before anybody can step in.
    same(
        device().is_rxe() && cut.get() == 0,
        false,
        "no READ was cut off",
    )
}

fn another(pair: &Pair<Rc>, setup: &Setup) -> Result<Side<Rc>> {
    let cq = pair.context.create_cq(setup.cqe)?;
    Side::new(&pair.pd, cq, setup, |qp| qp.create())
}

/// Starts long READs and takes both sides to the error state once the first bytes are there. Tells whether
/// that cut one off.
///
/// By another thread: rxe of 6.1 does it all within the doorbell.
fn read_and_fail(pair: &mut Pair<Rc>) -> Result<bool> {
    pair.b.mr.write_at(0, &[0x5a; LONG])?;
    let (a, b) = (pair.a.qp.control(), pair.b.qp.control());
    let Side { qp, cq, mr } = &mut pair.a;
    let mut batch = qp.batch();
    for id in 0..READS {
        let into = mr.slice(..LONG)?;
        batch.signaled(id).read(into, pair.b.mr.remote())?;
    }
    thread::scope(|scope| -> Result {
        let failing = scope.spawn(|| -> Result {
            until("the first bytes of a READ", || {
                let mut first = [0];
                mr.read_at(0, &mut first)?;
                Ok((first == [0x5a]).then_some(()))
            })?;
            a.fail()?;
            Ok(b.fail()?)
        });
        batch.ring()?;
        failing.join().map_err(|_| "the other thread panicked")?
    })?;
    let mut flushed = false;
    for (id, wc) in (0..).zip(completions(cq, READS as usize)?) {
        same(wc.wr_id, id, "the READ")?;
        flushed |= wc.status == WcStatus::WR_FLUSH_ERR;
    }
    Ok(flushed)
}

/// A READ of one packet.
fn short_read(pair: &mut Pair<Rc>) -> Result {
    let bytes = pattern(3, 100);
    pair.b.mr.write_at(0, &bytes)?;
    pair.a.mr.write_at(0, &[0; 100])?;
    let from = pair.b.mr.remote().slice(..100)?;
    pair.a
        .post_own(|request, own| request.read(own.slice(..100)?, from))?
        .is(WcOpcode::RDMA_READ)?;
    same(pair.a.bytes(0, 100)?, bytes, "what was read")
}

/// What a peer may do that is never written to: a write that nobody has posted breaks the connection.
fn unwritten() -> Setup {
    Setup {
        options: ConnectOptions {
            access: Access::REMOTE_READ | Access::REMOTE_ATOMIC,
            // Half a second, for which requests wait while the peer has no receive.
            min_rnr_timer: 31,
            ..options()
        },
        ..Setup::default()
    }
}

/// Catches requests of the time before that go out with those of the next connection.
fn sends_in_flight() -> Result {
    let setup = unwritten();
    rounds(|_| {
        let mut pair = Pair::<Rc>::with(&setup)?;
        let mut batch = pair.a.qp.batch();
        for id in 1..=3 {
            batch.signaled(id).send(Inline(b"nobody receives"))?;
        }
        batch.ring()?;
        // The device has tried, and waits.
        thread::sleep(Duration::from_millis(20));
        same(pair.a.qp.halves().0.in_flight(), 3, "sends in flight")?;
        pair.a.qp.reset()?;
        pair.b.qp.reset()?;
        same(pair.a.qp.halves().0.in_flight(), 0, "sends in flight")?;
        pair.connect(&setup.options)?;
        talk::reads(&mut pair)?;
        talk::sends(&mut pair)?;
        talk::atomics(&mut pair)?;
        nothing(&mut pair.a.cq)
    })
}

/// As many sends as fit, of which most wait for the device when the doorbell returns.
const MANY: u64 = 100;

/// The same, of a transport without acknowledgements: what is in flight has not left yet.
fn sends_in_flight_without_a_connection() -> Result {
    let mut setup = unwritten();
    setup.options.access = Access::empty();
    rounds(|_| {
        let mut pair = Pair::<Uc>::with(&setup)?;
        let from = pair.a.mr.slice(..4000)?;
        let mut batch = pair.a.qp.batch();
        for id in 0..MANY {
            batch.unsignaled(id).send(from)?;
        }
        batch.ring()?;
        pair.a.qp.reset()?;
        pair.b.qp.reset()?;
        pair.connect(&setup.options)?;
        talk::sends(&mut pair)
    })
}

/// The same, of datagrams.
fn datagrams_in_flight() -> Result {
    let setup = Setup::default();
    rounds(|_| {
        let mut pair = Pair::datagram_on(&open()?, &setup)?;
        let path = pair
            .context
            .path_to(&pair.b.qp.endpoint()?, &setup.options)?;
        let ah = pair.pd.create_ah(&path)?;
        let (to, from) = (ah.to(pair.b.qp.qpn(), QKEY), pair.a.mr.slice(..1000)?);
        let mut batch = pair.a.qp.batch();
        for id in 0..MANY {
            batch.unsignaled(id).to(to).send(from)?;
        }
        batch.ring()?;
        for side in [&mut pair.a, &mut pair.b] {
            side.qp.reset()?;
            side.qp.activate(QKEY, &setup.options)?;
        }
        talk::datagrams(&mut pair)
    })
}

/// Catches completions of the time before that are told as those of the next connection, are lost or come
/// twice.
fn completions_are_told_as_what_they_are() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let post = |pair: &mut Pair<Rc>, first: u64| -> Result<u32> {
        let remote = pair.b.mr.remote();
        let mut batch = pair.a.qp.batch();
        for id in first..first + 3 {
            batch.signaled(id).write(Inline(b"told later"), remote)?;
        }
        batch.ring()?;
        Ok(pair.a.qp.qpn())
    };
    let before = post(&mut pair, 0)?;
    talk::arrived(&pair.b.mr, 0, b"told later")?;
    let mut expected = Vec::new();
    if device().is_rxe() {
        until("the requests to be done", || {
            Ok((pair.a.qp.halves().0.in_flight() == 0).then_some(()))
        })?;
        expected.extend((0..3).map(|id| (id, WcStatus::SUCCESS, before)));
    }
    pair.a.qp.reset()?;
    pair.b.qp.reset()?;
    pair.connect(&options())?;
    let after = post(&mut pair, 3)?;
    expected.extend((3..6).map(|id| (id, WcStatus::SUCCESS, after)));
    // An adapter's of before are passed over.
    let told: Vec<_> = completions(&mut pair.a.cq, expected.len())?
        .iter()
        .map(|wc| (wc.wr_id, wc.status, wc.qp_num))
        .collect();
    same(told, expected, "the completions")?;
    nothing(&mut pair.a.cq)?;
    same(
        before == after,
        device().is_mlx5(),
        "whether the number stays",
    )
}

/// Catches a half or a control that goes on naming what is gone.
fn halves_and_control_follow() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let Side { qp, cq, mr } = pair.a;
    let (control, id) = (qp.control(), qp.id());
    let (send, recv) = qp.split();
    let Ok(mut qp) = Qp::join(send, recv) else {
        return fail("the halves of a queue pair do not go together");
    };
    qp.reset()?;
    same(control.query()?.state, QpState::RESET, "the state")?;
    same((control.id(), qp.id()), (id, id), "the id")?;
    same(control.qpn(), qp.qpn(), "the control's number")?;
    let (send, recv) = qp.halves();
    let numbers = (send.qpn(), recv.qpn());
    same(
        numbers,
        (control.qpn(), control.qpn()),
        "the halves' numbers",
    )?;
    pair.b.qp.reset()?;
    pair.a = Side { qp, cq, mr };
    pair.connect(&options())?;
    talk::sends(&mut pair)?;
    control.fail()?;
    same(pair.a.qp.query()?.state, QpState::ERR, "the state")?;
    pair.a.qp.reset()?;
    pair.b.qp.reset()?;
    pair.connect(&options())?;
    talk::sends(&mut pair)
}

/// Catches a shared queue that loses its requests with a queue pair, or is not received from any more.
fn a_shared_receive_queue_stays() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let mut srq = pair.pd.srq(15).create()?;
    pair.b.qp = pair.pd.qp(&pair.b.cq).srq(&srq).create()?;
    let mut batch = srq.batch();
    for id in 0..10 {
        batch.post(id, pair.b.mr.slice(..64)?)?;
    }
    batch.ring();
    for id in 0..10 {
        pair.a.qp.reset()?;
        pair.b.qp.reset()?;
        pair.connect(&options())?;
        let text = pattern(id, 50);
        pair.a
            .post(|request| request.send(Inline(&text)))?
            .is(WcOpcode::SEND)?;
        let wc = completion(&mut pair.b.cq)?.ok()?;
        same((wc.wr_id, wc.qp_num), (id, pair.b.qp.qpn()), "the receive")?;
        same(pair.b.bytes(0, 50)?, text, "the message")?;
    }
    Ok(())
}

/// Catches a reset that waits for a window to let go, which on rxe takes nearly a minute, and a window that
/// is of no use afterwards.
fn a_bound_window() -> Result {
    let mut pair = Pair::<Rc>::new()?;
    let target = pair
        .pd
        .register(vec![0; 64], Access::LOCAL_WRITE | Access::MW_BIND)?;
    let mut mw = pair.pd.alloc_mw::<Type2>()?;
    let window = target.window(.., Access::REMOTE_WRITE)?;
    let started = Instant::now();
    for tag in 1..4 {
        pair.b
            .post(|request| request.bind_mw_as(&mut mw, tag, window))?
            .is(WcOpcode::BIND_MW)?;
        let open = window.remote(mw.rkey());
        pair.a
            .post(|request| request.write(Inline(&[tag; 8]), open))?
            .is(WcOpcode::RDMA_WRITE)?;
        talk::arrived(&target, 0, &[tag; 8])?;
        pair.a.qp.reset()?;
        pair.b.qp.reset()?;
        pair.connect(&options())?;
        pair.b
            .post(|request| request.local_inv(mw.rkey()))?
            .is(WcOpcode::LOCAL_INV)?;
    }
    mw.dealloc()?;
    drop(pair);
    let took = started.elapsed();
    same(took < Duration::from_secs(20), true, &format!("{took:?}"))
}
