//! Connections by address, with and without a runtime.

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::future::join;
use libtest_mimic::Trial;
use support::{LIMIT, Result, fail, same, test_without_leaks};
use tokio::runtime::Builder;
use uverbs::aio::channel::{Channel, Settings};
use uverbs::aio::{self, Connection, Post, Readable, Wait};
use uverbs::buf::Pool;
use uverbs::cm::{self, First, Params, Pending};
use uverbs::qp::QpState;
use uverbs::{Cause, Rc};

use crate::ground::Side;

/// A test with its name.
type Named = (&'static str, fn() -> Result);

pub(crate) fn tests() -> Vec<Trial> {
    let tests: [Named; 7] = [
        ("connections::without_a_runtime", without_a_runtime),
        ("connections::on_tokio", on_tokio),
        ("connections::a_deadline", a_deadline),
        ("connections::one_watch_for_all", one_watch_for_all),
        (
            "connections::who_waits_is_told_before_the_file_closes",
            who_waits_is_told_before_the_file_closes,
        ),
        ("connections::dropped_halfway", dropped_halfway),
        ("connections::a_message_or_the_end", a_message_or_the_end),
    ];
    tests
        .map(|(name, run)| test_without_leaks(name, run))
        .into()
}

/// An address of the device under test, with a port that the kernel chooses.
fn own_address() -> SocketAddr {
    SocketAddr::new(IpAddr::from([10, 9, 0, 1]), 0)
}

/// Catches receives that are not there when the connection is, and ends that one side does not learn of.
fn without_a_runtime() -> Result {
    let listener = cm::listen::<Rc>(own_address())?.start()?;
    let (here, there) = (Side::new()?, Side::new()?);
    let way = cm::resolve::<Rc>(listener.local_addr())?
        .start()?
        .within(LIMIT)?;
    let connecting = here.qp()?.connect_to(way, &Params::default(), b"request")?;
    let request = listener.next_within(LIMIT)?.ok_or("no request")?;
    let mut qp = there.qp()?;
    qp.init_for_request(&request)?;
    let received = qp.recv(there.pool.try_get(256)?);
    let accepting = qp.accept(request, &Params::default(), b"")?;
    let mut active = connecting.within(LIMIT)?;
    let mut passive = accepting.within(LIMIT)?;
    same(
        &passive.private_data()[..7],
        b"request",
        "the request's data",
    )?;
    same(active.peer_addr(), listener.local_addr(), "the peer")?;
    let mut buf = here.pool.try_get(5)?;
    buf.extend_from_slice(b"hello")?;
    let sent = active.qp().send(buf);
    here.cq.block_on(sent)?.0?;
    let (result, buf) = there.cq.block_on(received)?;
    result?;
    same(&*buf, &b"hello"[..], "the message")?;
    let flushed = passive.qp().recv(buf);
    here.cq.block_on(active.disconnect())??;
    let event = passive.link().event_within(LIMIT)?;
    same(
        event,
        Some(cm::Event::Disconnected { timed_out: false }),
        "the other side",
    )?;
    there.cq.block_on(passive.disconnect())??;
    let (result, _) = there.cq.block_on(flushed)?;
    same(
        result.is_err_and(|error| error.is_flushed()),
        true,
        "a receive at the end",
    )?;
    same(passive.qp().state(), QpState::ERR, "the queue pair")
}

/// A server that answers each message with its bytes turned round, until the peer goes.
async fn serve(mut connection: Connection<Rc>, pool: Pool) -> Result<u32> {
    let mut answered = 0;
    loop {
        let received = connection.qp().recv(pool.get(256).await?);
        let (result, mut buf) = received.await;
        match result {
            Ok(_) if buf.is_empty() => return Ok(answered),
            Ok(_) => {}
            Err(error) => return fail(error.to_string()),
        }
        buf.reverse();
        connection.qp().send(buf).await.0?;
        answered += 1;
    }
}

/// Catches a step of the connection manager that is not awaited right, on threads of a runtime.
fn on_tokio() -> Result {
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let listener = cm::listen::<Rc>(own_address())?.start()?;
    let address = listener.local_addr();
    let (here, there) = (Side::new()?, Side::new()?);
    runtime.spawn(aio::tokio::serve(here.cq.clone(), Wait::default()));
    runtime.spawn(aio::tokio::serve(there.cq.clone(), Wait::Park));
    const CLIENTS: u32 = 4;
    const MESSAGES: u32 = 25;
    let answered = runtime.block_on(async {
        let pool = there.pool.clone();
        let server = async move {
            let mut listener = aio::tokio::Listener::new(listener);
            let mut clients = Vec::new();
            for _ in 0..CLIENTS {
                let request = listener.accept().await?;
                let accepting = there.qp()?.accept(request, &Params::default(), b"")?;
                let connection = aio::tokio::within(LIMIT, accepting).await?;
                clients.push(tokio::spawn(serve(connection, pool.clone())));
            }
            let mut answered = 0;
            for client in clients {
                answered += client.await??;
            }
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(answered)
        };
        let server = tokio::spawn(server);
        for client in 0..CLIENTS {
            let way = aio::tokio::within(LIMIT, cm::resolve::<Rc>(address)?.start()?).await?;
            let connecting = here.qp()?.connect_to(way, &Params::default(), b"")?;
            let mut connection = aio::tokio::within(LIMIT, connecting).await?;
            for message in 0..MESSAGES {
                let bytes = (u64::from(client) << 32 | u64::from(message)).to_le_bytes();
                let answer = connection.qp().recv(here.pool.get(256).await?);
                let mut buf = here.pool.get(8).await?;
                buf.extend_from_slice(&bytes)?;
                connection.qp().send(buf).await.0?;
                let (result, mut answer) = answer.await;
                result?;
                answer.reverse();
                same(&*answer, &bytes[..], "the answer")?;
            }
            connection.qp().send_inline(b"").await?;
        }
        server.await?
    })?;
    same(answered, CLIENTS * MESSAGES, "answers")
}

/// Catches a deadline that does not hold, and a queue pair that does not come back.
fn a_deadline() -> Result {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let listener = cm::listen::<Rc>(own_address())?.start()?;
    let side = Side::new()?;
    runtime.block_on(async {
        let way =
            aio::tokio::within(LIMIT, cm::resolve::<Rc>(listener.local_addr())?.start()?).await?;
        // Nobody answers.
        let connecting = side.qp()?.connect_to(way, &Params::default(), b"")?;
        let (start, limit) = (Instant::now(), Duration::from_millis(20));
        let Err(failed) = aio::tokio::within(limit, connecting).await else {
            return fail("nobody accepted");
        };
        same(start.elapsed() >= limit, true, "as long as it was to be")?;
        match failed.error.cause() {
            Cause::TimedOut(_) => {}
            other => return fail(format!("{other:?}")),
        }
        same(failed.back.state(), QpState::INIT, "the queue pair")?;
        let mut listener = aio::tokio::Listener::new(listener);
        let accepted = tokio::time::timeout(LIMIT, listener.accept()).await??;
        drop(accepted);
        let none = tokio::time::timeout(limit, listener.accept()).await;
        same(none.is_err(), true, "no other request")
    })
}

/// Catches a watch that waits for the file of an attempt that is over, where the next one's has its number.
fn one_watch_for_all() -> Result {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let side = Side::new()?;
    runtime.block_on(async {
        let mut watch = aio::tokio::Watch::new();
        for _ in 0..3 {
            let listener = cm::listen::<Rc>(own_address())?.start()?;
            let way = cm::resolve::<Rc>(listener.local_addr())?;
            let way = way.start()?.within(LIMIT)?;
            drop(listener);
            let connecting = side.qp()?.connect_to(way, &Params::default(), b"")?;
            let refused = tokio::time::timeout(LIMIT, connecting.finish(&mut watch)).await?;
            same(refused.is_err(), true, "nobody listens")?;
        }
        Ok(())
    })
}

thread_local! {
    /// For each [`Noting`] that was told that nobody waits any more, whether its file was open.
    static TOLD: RefCell<Vec<bool>> = const { RefCell::new(Vec::new()) };
}

/// Notes whether the file that was asked for last is open when nobody waits for it any more.
#[derive(Default)]
struct Noting {
    inner: aio::tokio::Watch,
    number: Option<RawFd>,
}

impl Readable for Noting {
    fn poll_readable(&mut self, fd: BorrowedFd<'_>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.number = Some(fd.as_raw_fd());
        self.inner.poll_readable(fd, cx)
    }

    fn done(&mut self) {
        if let Some(number) = self.number.take() {
            let file = format!("/proc/self/fd/{number}");
            let is_open = std::fs::symlink_metadata(file).is_ok();
            TOLD.with_borrow_mut(|told| told.push(is_open));
        }
        self.inner.done();
    }
}

/// Catches a file that is closed while it is still registered, by what waits for the same file as long as it
/// lives: a listener, and a channel.
fn who_waits_is_told_before_the_file_closes() -> Result {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let listener = cm::listen::<Rc>(own_address())?.start()?;
    let address = listener.local_addr();
    let (here, there) = (Side::new()?, Side::new()?);
    let settings = Settings {
        receives: 8,
        size: 256,
    };
    let prepare = |side: &Side| Channel::prepare(&side.cq, &side.pd, &side.pool, &settings);
    let (active, passive) = (prepare(&here)?, prepare(&there)?);
    runtime.block_on(async {
        let pumps = [&here, &there].map(|side| {
            let serving = aio::tokio::serve(side.cq.clone(), Wait::default());
            tokio::spawn(serving)
        });
        let mut listener = aio::Listener::<Rc, Noting>::new(listener);
        let way = aio::tokio::within(LIMIT, cm::resolve::<Rc>(address)?.start()?).await?;
        let params = Params::default();
        let connecting = active.connect_to(way, &params, Noting::default());
        let accepting = async {
            let request = listener.accept().await?;
            let by = aio::tokio::Watch::new();
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(
                passive.accept(request, &params, by).await?,
            )
        };
        let both = tokio::time::timeout(LIMIT, join(connecting, accepting)).await?;
        let (mut active, passive) = (both.0?, both.1?);
        let told = || TOLD.take();
        same(told(), vec![true], "when the connection was made")?;
        let moment = Duration::from_millis(2);
        let none = tokio::time::timeout(moment, active.recv()).await;
        same(none.is_err(), true, "nothing was sent")?;
        // The request may have been there before anything waited for it.
        let none = tokio::time::timeout(moment, listener.accept()).await;
        same(none.is_err(), true, "nobody asks")?;
        drop(active);
        same(told(), vec![true], "when the channel went")?;
        drop((passive, listener));
        same(told(), vec![true], "when the listener went")?;
        pumps.iter().for_each(tokio::task::JoinHandle::abort);
        Ok(())
    })
}

/// Catches receives whose buffers are lost with a connection that is not made.
fn dropped_halfway() -> Result {
    let listener = cm::listen::<Rc>(own_address())?.start()?;
    let side = Side::new()?;
    let way = cm::resolve::<Rc>(listener.local_addr())?
        .start()?
        .within(LIMIT)?;
    let mut qp = side.qp()?;
    qp.init_for(&way)?;
    let received = qp.recv(side.pool.try_get(256)?);
    drop(qp.recv(side.pool.try_get(256)?));
    let connecting = qp.connect_to(way, &Params::default(), b"")?;
    drop(connecting);
    let (result, buf) = side.cq.block_on(received)?;
    same(result.err(), Some(aio::OpError::Gone), "the receive")?;
    drop(buf);
    same(side.pool.stats().in_use(), 0, "buffers in use")
}

/// Catches who waits for a message and never learns that the peer is gone, and an operation that is lost with
/// that.
fn a_message_or_the_end() -> Result {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let listener = cm::listen::<Rc>(own_address())?.start()?;
    let (here, there) = (Side::new()?, Side::new()?);
    let way = cm::resolve::<Rc>(listener.local_addr())?;
    let way = way.start()?.within(LIMIT)?;
    let connecting = here.qp()?.connect_to(way, &Params::default(), b"")?;
    let request = listener.next_within(LIMIT)?.ok_or("no request")?;
    let mut qp = there.qp()?;
    qp.init_for_request(&request)?;
    let first = qp.recv(there.pool.try_get(256)?);
    let mut second = qp.recv(there.pool.try_get(256)?);
    let accepting = qp.accept(request, &Params::default(), b"")?;
    let mut active = connecting.within(LIMIT)?;
    let mut passive = accepting.within(LIMIT)?;
    let mut buf = here.pool.try_get(5)?;
    buf.extend_from_slice(b"hello")?;
    let sent = active.qp().send(buf);
    here.cq.block_on(sent)?.0?;
    runtime.block_on(async {
        let serving = tokio::spawn(aio::tokio::serve(there.cq.clone(), Wait::default()));
        let mut watch = aio::tokio::Watch::new();
        let waited = passive.link().or_event_by(first, &mut watch);
        match tokio::time::timeout(LIMIT, waited).await?? {
            First::Output((result, buf)) => {
                result?;
                same(&*buf, &b"hello"[..], "the message")?;
            }
            First::Event(event) => return fail(format!("{event:?}")),
        }
        drop(active);
        let waited = passive.link().or_event_by(&mut second, &mut watch);
        match tokio::time::timeout(LIMIT, waited).await?? {
            First::Event(event) => same(event.ends(), true, &format!("{event:?}"))?,
            First::Output((result, _)) => return fail(format!("{result:?}")),
        }
        passive.disconnect().await?;
        let (result, _) = tokio::time::timeout(LIMIT, second).await?;
        let flushed = result.is_err_and(|error| error.is_flushed());
        same(flushed, true, "the receive that was lent")?;
        serving.abort();
        Ok(())
    })
}
