//! Operations and connections on compio, by io_uring and by epoll.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use compio_driver::{DriverType, ProactorBuilder};
use compio_runtime::{Runtime, RuntimeBuilder, spawn, time};
use libtest_mimic::Trial;
use support::role::{self, Peer, Role};
use support::{LIMIT, OwnDevice, Result, fail, same, test, test_without_leaks};
use uverbs::aio::{self, Cq, OpError, Post, Wait};
use uverbs::buf::Pool;
use uverbs::cm::{self, First, Params, Pending};
use uverbs::qp::QpState;
use uverbs::{Caps, Cause, ConnectOptions, Rc, Srd};

use crate::ground::{Reliable, Side, Two, only_where_devices_go, over, served};

pub(crate) const ROLES: [Role; 1] = [("answers_on_compio", answers)];

/// A test with its name.
type Named = (&'static str, fn() -> Result);

pub(crate) fn tests() -> Vec<Trial> {
    let tests: [Named; 6] = [
        ("compio::a_task_pumps", || {
            over(a_task_pumps::<Rc>, a_task_pumps::<Srd>)
        }),
        ("compio::what_is_lent_again", || {
            over(what_is_lent_again::<Rc>, what_is_lent_again::<Srd>)
        }),
        ("compio::a_peer_is_killed", a_peer_is_killed),
        ("compio::by_address", by_address),
        ("compio::a_deadline", a_deadline),
        ("compio::without_one", || {
            over(without_one::<Rc>, without_one::<Srd>)
        }),
    ];
    let mut tests: Vec<_> = tests
        .map(|(name, run)| test_without_leaks(name, run))
        .into();
    tests.push(test("compio::the_device_goes", the_device_goes));
    tests
}

/// A runtime on each of the drivers that Linux has.
fn runtimes() -> Result<[Runtime; 2]> {
    let runtime = |driver| -> Result<Runtime> {
        let mut proactor = ProactorBuilder::new();
        proactor.driver_type(driver);
        let runtime = RuntimeBuilder::new().with_proactor(proactor).build()?;
        same(runtime.driver_type(), driver, "the driver")?;
        Ok(runtime)
    };
    Ok([runtime(DriverType::IoUring)?, runtime(DriverType::Poll)?])
}

/// Catches a wake-up that is lost between arming and waiting, and readiness that is told of too early: the
/// pump parks for each message.
fn a_task_pumps<T: Reliable>() -> Result {
    let mut two = Two::<T>::usual()?;
    for runtime in runtimes()? {
        for wait in [Wait::Park, Wait::default()] {
            let cq = two.cq.clone();
            runtime.block_on(async {
                let serving = spawn(aio::compio::serve(cq, wait));
                for round in 0..50u32 {
                    let received = two.b.recv(two.pool.try_get(256)?);
                    let sent = two.send(two.buf(&round.to_le_bytes())?);
                    let both = async { (sent.await.0, received.await) };
                    let (sent, (received, buf)) = time::timeout(LIMIT, both).await?;
                    sent?;
                    received?;
                    same(&*buf, &round.to_le_bytes()[..], "the message")?;
                }
                same(serving.is_finished(), false, "the pump goes on")?;
                drop(serving);
                Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
            })?;
        }
    }
    two.nothing_is_missing()
}

/// Catches what was lent once, came back, and does not wake for another file of the same number.
fn what_is_lent_again<T: Reliable>() -> Result {
    for runtime in runtimes()? {
        let mut watch = aio::compio::Watch::new();
        for _ in 0..3 {
            let mut two = Two::<T>::usual()?;
            runtime.block_on(async {
                let cq = two.cq.clone();
                let message = two.message_after(time::sleep(Duration::from_millis(20)));
                served(&cq, &mut watch, time::timeout(LIMIT, message)).await??
            })?;
        }
    }
    Ok(())
}

/// Catches a task that takes completions, and is not told that its device has gone.
fn the_device_goes() -> Result {
    only_where_devices_go()?;
    for runtime in runtimes()? {
        for wait in [Wait::Park, Wait::Spin(Duration::MAX)] {
            let device = OwnDevice::new()?;
            let context = device.open()?;
            let pd = context.alloc_pd()?;
            let pool = Pool::on(&pd).build()?;
            let cq = Cq::new(&context, 256)?;
            let mut qp = cq.create_qp::<Rc>(&pd, Caps::default())?;
            qp.init(&ConnectOptions::default())?;
            let mut received = qp.recv(pool.try_get(256)?);
            runtime.block_on(async {
                let serving = spawn(aio::compio::serve(cq.clone(), wait));
                let short = Duration::from_millis(2);
                let early = time::timeout(short, &mut received).await.is_ok();
                same(early, false, "nothing was sent")?;
                device.remove()?;
                let (result, _) = time::timeout(LIMIT, received).await?;
                same(result.err(), Some(OpError::Broken), "the receive")?;
                match time::timeout(LIMIT, serving).await? {
                    Ok(error) => println!("{error}"),
                    Err(_) => return fail("the pump panicked, or was cancelled"),
                }
                Ok(())
            })?;
            drop(qp);
            same(pool.stats().in_use(), 0, "buffers in use")?;
        }
    }
    Ok(())
}

/// Says its port, answers, sends a message, and stays.
fn answers() -> Result {
    let [runtime, _] = runtimes()?;
    let listener = cm::listen::<Rc>(own_address())?.start()?;
    let side = Side::new()?;
    println!("{}", listener.local_addr().port());
    let _connection = runtime.block_on(async {
        let _pump = spawn(aio::compio::serve(side.cq.clone(), Wait::Park));
        let mut listener = aio::compio::Listener::new(listener);
        let request = listener.accept().await?;
        let accepting = side.qp()?.accept(request, &Params::default(), b"")?;
        let mut connection = aio::compio::within(LIMIT, accepting).await?;
        let mut buf = side.pool.get(8).await?;
        buf.extend_from_slice(b"hello")?;
        connection.qp().send(buf).await.0?;
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(connection)
    })?;
    role::stay("connected")
}

/// Catches a task that waits for a message of a peer that has been killed, and a message that goes with it.
fn a_peer_is_killed() -> Result {
    for runtime in runtimes()? {
        let side = Side::new()?;
        // Before the peer, which could not say that its device has none.
        let mut qp = side.qp()?;
        let mut peer = Peer::start("answers_on_compio", &[])?;
        let mut address = own_address();
        address.set_port(peer.hear()?.parse()?);
        let way = cm::resolve::<Rc>(address)?.start()?.within(LIMIT)?;
        runtime.block_on(async {
            let _pump = spawn(aio::compio::serve(side.cq.clone(), Wait::default()));
            qp.init_for(&way)?;
            let message = qp.recv(side.pool.get(256).await?);
            let next = qp.recv(side.pool.get(256).await?);
            let connecting = qp.connect_to(way, &Params::default(), b"")?;
            let mut connection = aio::compio::within(LIMIT, connecting).await?;
            same(peer.hear()?, "connected".to_owned(), "the step")?;
            peer.kill()?;
            let (received, buf) = time::timeout(LIMIT, message).await?;
            received?;
            same(&*buf, &b"hello"[..], "what it sent before")?;
            let mut watch = aio::compio::Watch::new();
            let first = connection.link().or_event_by(next, &mut watch);
            match time::timeout(LIMIT, first).await?? {
                First::Event(event) if event.ends() => {}
                First::Event(event) => return fail(format!("{event:?}")),
                First::Output((received, _)) => return fail(format!("{received:?}")),
            }
            connection.disconnect().await?;
            drop(connection);
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
        })?;
        same(side.pool.stats().in_use(), 0, "buffers in use")?;
    }
    Ok(())
}

/// An address of the device under test, with a port that the kernel chooses.
fn own_address() -> SocketAddr {
    SocketAddr::from(([10, 9, 0, 1], 0))
}

/// Catches a step of the connection manager that is not awaited right, both sides on one thread.
fn by_address() -> Result {
    for runtime in runtimes()? {
        let listener = cm::listen::<Rc>(own_address())?.start()?;
        let address = listener.local_addr();
        let (here, there) = (Side::new()?, Side::new()?);
        runtime.block_on(async {
            let pumps = [(&here, Wait::default()), (&there, Wait::Park)];
            let _pumps = pumps.map(|(side, wait)| spawn(aio::compio::serve(side.cq.clone(), wait)));
            let server = spawn(async move {
                let mut listener = aio::compio::Listener::new(listener);
                let request = listener.accept().await?;
                let mut qp = there.qp()?;
                qp.init_for_request(&request)?;
                let received = qp.recv(there.pool.get(256).await?);
                let accepting = qp.accept(request, &Params::default(), b"")?;
                let mut connection = aio::compio::within(LIMIT, accepting).await?;
                let (result, buf) = received.await;
                result?;
                connection.qp().send(buf).await.0?;
                Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
            });
            let way = cm::resolve::<Rc>(address)?.start()?;
            let way = aio::compio::within(LIMIT, way).await?;
            let connecting = here.qp()?.connect_to(way, &Params::default(), b"")?;
            let mut connection = aio::compio::within(LIMIT, connecting).await?;
            let answer = connection.qp().recv(here.pool.get(256).await?);
            let mut buf = here.pool.get(8).await?;
            buf.extend_from_slice(b"question")?;
            connection.qp().send(buf).await.0?;
            let (result, answer) = time::timeout(LIMIT, answer).await?;
            result?;
            same(&*answer, &b"question"[..], "the answer")?;
            match time::timeout(LIMIT, server).await? {
                Ok(served) => served,
                Err(_) => fail("the server panicked, or was cancelled"),
            }
        })?;
    }
    Ok(())
}

/// Catches a deadline that does not hold, and a queue pair that does not come back.
fn a_deadline() -> Result {
    for runtime in runtimes()? {
        let listener = cm::listen::<Rc>(own_address())?.start()?;
        let side = Side::new()?;
        runtime.block_on(async {
            let way = cm::resolve::<Rc>(listener.local_addr())?.start()?;
            let way = aio::compio::within(LIMIT, way).await?;
            // Nobody answers.
            let connecting = side.qp()?.connect_to(way, &Params::default(), b"")?;
            let (start, limit) = (Instant::now(), Duration::from_millis(20));
            let Err(failed) = aio::compio::within(limit, connecting).await else {
                return fail("nobody accepted");
            };
            same(start.elapsed() >= limit, true, "as long as it was to be")?;
            match failed.error.cause() {
                Cause::TimedOut(_) => {}
                other => return fail(format!("{other:?}")),
            }
            same(failed.back.state(), QpState::INIT, "the queue pair")
        })?;
    }
    Ok(())
}

/// Catches a panic where there is no runtime.
fn without_one<T: Reliable>() -> Result {
    let two = Two::<T>::usual()?;
    let failed = two.run(aio::compio::serve(two.cq.clone(), Wait::Park))?;
    support::says(&failed, &["completion channel"])
}
