//! Channels: messages of any length, credits, and ends.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures_util::future::join;
use libtest_mimic::Trial;
use support::{LIMIT, Result, fail, open, pattern, same, says, test_without_leaks};
use tokio::runtime::Builder;
use tokio::time::timeout;
use uverbs::aio::channel::{Channel, ChannelCause, Prepared, Settings};
use uverbs::aio::{self, Cq, Wait};
use uverbs::buf::{Buf, Pool};
use uverbs::cm::{self, Params, Pending};
use uverbs::{Access, ConnectOptions, Rc, WcStatus};

use crate::ground::{Woken, filled};
use crate::pool::Few;

/// A test with its name.
type Named = (&'static str, fn() -> Result);

pub(crate) fn tests() -> Vec<Trial> {
    let tests: [Named; 11] = [
        ("channel::messages_of_any_length", messages_of_any_length),
        (
            "channel::a_slow_receiver_is_not_overrun",
            a_slow_receiver_is_not_overrun,
        ),
        ("channel::both_ways_at_once", both_ways_at_once),
        (
            "channel::what_the_peer_cannot_take",
            what_the_peer_cannot_take,
        ),
        ("channel::a_pool_that_cannot_grow", a_pool_that_cannot_grow),
        ("channel::a_pool_that_was_empty", a_pool_that_was_empty),
        (
            "channel::longer_than_an_own_buffer",
            longer_than_an_own_buffer,
        ),
        ("channel::given_up_and_answered", given_up_and_answered),
        ("channel::an_orderly_end", an_orderly_end),
        ("channel::a_peer_that_goes", a_peer_that_goes),
        ("channel::by_address", by_address),
    ];
    tests
        .map(|(name, run)| test_without_leaks(name, run))
        .into()
}

/// Two ends of a channel.
struct Ends {
    a: Channel,
    b: Channel,
    cq: Cq,
    pool: Pool,
}

/// A message that finds no receive is a failure at once.
fn options() -> ConnectOptions {
    ConnectOptions {
        access: Access::REMOTE_READ,
        rnr_retry: 0,
        ..ConnectOptions::default()
    }
}

/// Connects two prepared channels to each other.
fn connected(cq: &Cq, a: Prepared, b: Prepared) -> Result<(Channel, Channel)> {
    let options = options();
    let (here, there) = (a.endpoint_with(&options)?, b.endpoint_with(&options)?);
    let both = async {
        join(
            a.connect_with(&there, &options),
            b.connect_with(&here, &options),
        )
        .await
    };
    let (a, b) = cq.block_on(both)?;
    Ok((a?, b?))
}

/// Closes both ends.
fn closed(cq: &Cq, a: Channel, b: Channel) -> Result {
    let (a, b) = cq.block_on(async { join(a.close(), b.close()).await })?;
    a.and(b).map_err(Into::into)
}

impl Ends {
    fn new(settings: [Settings; 2]) -> Result<Self> {
        let context = open()?;
        let pd = context.alloc_pd()?;
        let cq = Cq::new(&context, 512)?;
        let sizes = [256, 4096, 1 << 20];
        let pool = Pool::on(&pd)
            .sizes(sizes)
            .limit(16 << 20)
            .remote_read()
            .build()?;
        let [a, b] = settings.map(|settings| Channel::prepare(&cq, &pd, &pool, &settings));
        let (a, b) = (a?, b?);
        let (a, b) = connected(&cq, a, b)?;
        Ok(Self { a, b, cq, pool })
    }

    fn filled(&self, bytes: &[u8]) -> Result<Buf> {
        filled(&self.pool, bytes)
    }

    fn close(self) -> Result {
        let Self { a, b, cq, pool } = self;
        closed(&cq, a, b)?;
        same(pool.stats().in_use(), 0, "buffers in use")
    }
}

fn small(receives: u32) -> Settings {
    Settings {
        receives,
        size: 256,
    }
}

/// Catches lengths at which one way of sending ends and the next begins.
fn messages_of_any_length() -> Result {
    let mut ends = Ends::new([Settings::default(), small(8)])?;
    // Inline, by SEND and by READ; b's receives are shorter than a's.
    let lengths = [
        0,
        1,
        32,
        33,
        200,
        223,
        224,
        225,
        4063,
        4064,
        4065,
        100_000,
        1 << 20,
    ];
    for (seed, length) in lengths.into_iter().enumerate() {
        let bytes = pattern(seed as u64, length);
        for turn in 0..2 {
            let message = ends.filled(&bytes)?;
            let Ends { a, b, cq, .. } = &mut ends;
            let (from, to) = if turn == 0 { (a, b) } else { (b, a) };
            let both = async { join(from.send(message), to.recv()).await };
            let ((sent, back), received) = cq.block_on(both)?;
            sent?;
            same(&*back, &bytes[..], "what was sent")?;
            let received = received?.ok_or("the end")?;
            same(&*received, &bytes[..], "what was received")?;
        }
    }
    ends.close()
}

/// Catches a sender that sends without credits: the peer does not receive for a while, and a message that
/// finds no receive would break the connection.
fn a_slow_receiver_is_not_overrun() -> Result {
    let mut ends = Ends::new([small(8), small(8)])?;
    const MESSAGES: u32 = 200;
    // The greeting took one receive, of which the peer has not told anew, and one is kept for telling.
    const GO_THROUGH: u32 = 6;
    for number in 0..GO_THROUGH {
        let message = ends.filled(&number.to_le_bytes())?;
        let Ends { a, cq, .. } = &mut ends;
        cq.block_on(a.send(message))?.0?;
    }
    {
        let message = ends.filled(&[])?;
        let Ends { a, cq, .. } = &mut ends;
        let mut sending = pin!(a.send(message));
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..2000 {
            same(
                sending.as_mut().poll(&mut cx).is_pending(),
                true,
                "it waits",
            )?;
            cq.pump()?;
            std::thread::yield_now();
        }
    }
    let Ends { a, b, cq, pool } = &mut ends;
    cq.block_on(async {
        let sending = async {
            for number in GO_THROUGH..MESSAGES {
                a.send(filled(pool, &number.to_le_bytes())?).await.0?;
            }
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
        };
        let receiving = async {
            for number in 0..MESSAGES {
                let message = b.recv().await?.ok_or("the end")?;
                same(&*message, &number.to_le_bytes()[..], "the message")?;
            }
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
        };
        let (sent, received) = join(sending, receiving).await;
        sent.and(received)
    })??;
    ends.close()
}

/// Catches two sides that wait for each other's credits.
fn both_ways_at_once() -> Result {
    let mut ends = Ends::new([small(4), small(6)])?;
    const MESSAGES: usize = 100;
    /// Sends and receives in turn; every seventh message is long.
    async fn talk(channel: &mut Channel, pool: &Pool) -> Result {
        for number in 0..MESSAGES {
            let length = if number % 7 == 0 { 10_000 } else { number };
            channel.send(filled(pool, &pattern(1, length))?).await.0?;
            if number % 2 == 1 {
                for number in [number - 1, number] {
                    let length = if number % 7 == 0 { 10_000 } else { number };
                    let message = channel.recv().await?.ok_or("the end")?;
                    same(&*message, &pattern(1, length)[..], "the message")?;
                }
            }
        }
        Ok(())
    }
    /// The other side answers what it gets.
    async fn echo(channel: &mut Channel) -> Result {
        for _ in 0..MESSAGES {
            let message = channel.recv().await?.ok_or("the end")?;
            channel.send(message).await.0?;
        }
        Ok(())
    }
    let Ends { a, b, cq, pool } = &mut ends;
    let (talked, echoed) = cq.block_on(async { join(talk(a, pool), echo(b)).await })?;
    talked.and(echoed)?;
    ends.close()
}

/// Catches a refusal that breaks the channel.
fn what_the_peer_cannot_take() -> Result {
    let mut ends = Ends::new([small(8), small(8)])?;
    let context = open()?;
    let pd = context.alloc_pd()?;
    // Of another domain, and one whose peers may not read.
    let foreign = Pool::on(&pd).sizes([4096]).build()?;
    let message = filled(&foreign, &[1; 1000])?;
    let Ends { a, b, cq, pool } = &mut ends;
    let (refused, back) = cq.block_on(a.send(message))?;
    same(
        refused.map_err(|error| error.cause),
        Err(ChannelCause::NotReadable),
        "the cause",
    )?;
    same(back.len(), 1000, "the buffer")?;
    drop(back);
    // The peer's pool is full.
    let mut all = Vec::new();
    while let Ok(buf) = pool.try_get(1 << 20) {
        all.push(buf);
    }
    let mut long = all.pop().ok_or("no buffer")?;
    long.set_len(1 << 20)?;
    let rest = all;
    let taken = cq.block_on(async {
        let mut sending = pin!(a.send(long));
        let mut receiving = pin!(b.recv());
        // It waits for a buffer.
        for _ in 0..100 {
            let early = poll_fn(|cx| {
                let _ = sending.as_mut().poll(cx).is_ready();
                let received = receiving.as_mut().poll(cx).is_ready();
                cx.waker().wake_by_ref();
                Poll::Ready(received)
            });
            same(early.await, false, "no buffer yet")?;
            cq.pump()?;
        }
        drop(rest);
        let (sent, received) = join(sending, receiving).await;
        sent.0?;
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(received?.ok_or("the end")?.len())
    })??;
    same(taken, 1 << 20, "what was received")?;
    ends.close()
}

/// Catches a message that is refused since no buffer of this side holds it with its header, though the peer's
/// receives do.
fn longer_than_an_own_buffer() -> Result {
    let context = open()?;
    let pd = context.alloc_pd()?;
    let cq = Cq::new(&context, 512)?;
    let pool = |size| Pool::on(&pd).sizes([size]).remote_read().build();
    let (short, long) = (pool(256)?, pool(512)?);
    let a = Channel::prepare(&cq, &pd, &short, &small(8))?;
    let wide = Settings {
        receives: 8,
        size: 512,
    };
    let b = Channel::prepare(&cq, &pd, &long, &wide)?;
    let (mut a, mut b) = connected(&cq, a, b)?;
    for length in [224, 225, 256] {
        let bytes = pattern(3, length);
        let message = filled(&short, &bytes)?;
        let ((sent, _), received) = cq.block_on(async { join(a.send(message), b.recv()).await })?;
        sent?;
        let received = received?.ok_or("the end")?;
        same(&*received, &bytes[..], "what was received")?;
    }
    closed(&cq, a, b)
}

/// Catches a message that is lost, or an error, when the receiver's pool has no buffer for the next one.
fn a_pool_that_cannot_grow() -> Result {
    const BUFFERS: usize = 8;
    let context = open()?;
    let pd = context.alloc_pd()?;
    let cq = Cq::new(&context, 512)?;
    let pool = Pool::on(&pd).sizes([256]).build()?;
    let tight = Pool::on(&pd)
        .sizes([256])
        .limit(4 * BUFFERS * 256)
        .allocator(Few::new(1, || ()))
        .build()?;
    let a = Channel::prepare(&cq, &pd, &pool, &small(8))?;
    let b = Channel::prepare(&cq, &pd, &tight, &small(4))?;
    let (mut a, mut b) = connected(&cq, a, b)?;
    let mut kept = Vec::new();
    // All that come until nothing is left to receive into; those of each turn are there at once.
    for turn in 0..3 {
        cq.block_on(async {
            for number in 2 * turn..2 * turn + 2 {
                a.send(filled(&pool, &[number])?).await.0?;
            }
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
        })??;
        for number in 2 * turn..2 * turn + 2 {
            let message = cq.block_on(b.recv())??.ok_or("the end")?;
            same(&*message, &[number][..], "the message")?;
            kept.push(message);
        }
    }
    same(tight.stats().memory, BUFFERS * 256, "memory")?;
    {
        let mut receiving = pin!(b.recv());
        let mut cx = Context::from_waker(Waker::noop());
        let early = receiving.as_mut().poll(&mut cx).is_ready();
        same(early, false, "a message without a buffer")?;
    }
    drop(kept);
    let last = filled(&pool, b"last")?;
    let ((sent, back), received) = cq.block_on(async { join(a.send(last), b.recv()).await })?;
    sent?;
    let received = received?.ok_or("the end")?;
    same(&*received, &b"last"[..], "the last message")?;
    drop((back, received));
    closed(&cq, a, b)?;
    same(tight.stats().in_use(), 0, "buffers in use")
}

/// Catches a channel that stands still for good once its pool was empty for a while, with receives posted:
/// too few for the peer to go on, and nobody is woken when buffers come back.
fn a_pool_that_was_empty() -> Result {
    const BUFFERS: usize = 8;
    const RECEIVES: u32 = 4;
    const MESSAGES: u8 = 20;
    let context = open()?;
    let pd = context.alloc_pd()?;
    let cq = Cq::new(&context, 512)?;
    let pool = Pool::on(&pd).sizes([256]).build()?;
    let tight = Pool::on(&pd).sizes([256]).limit(BUFFERS * 256).build()?;
    let a = Channel::prepare(&cq, &pd, &pool, &small(8))?;
    let b = Channel::prepare(&cq, &pd, &tight, &small(RECEIVES))?;
    let (mut a, mut b) = connected(&cq, a, b)?;
    let kept = RefCell::new(Vec::new());
    {
        let sending = async {
            for number in 0..MESSAGES {
                a.send(filled(&pool, &[number])?).await.0?;
            }
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
        };
        let receiving = async {
            for number in 0..MESSAGES {
                let message = b.recv().await?.ok_or("the end")?;
                same(&*message, &[number][..], "the message")?;
                kept.borrow_mut().push(message);
            }
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
        };
        let mut both = pin!(join(sending, receiving));
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut cx = Context::from_waker(&waker);
        let mut ended = both.as_mut().poll(&mut cx);
        let mut given_back = 0;
        let (sent, received) = support::until("all messages", || {
            cq.pump()?;
            if woken.take() {
                ended = both.as_mut().poll(&mut cx);
            }
            if let Poll::Ready(ended) = std::mem::replace(&mut ended, Poll::Pending) {
                return Ok(Some(ended));
            }
            // With so many, fewer receives are posted than are to be.
            if kept.borrow().len() > BUFFERS - RECEIVES as usize {
                woken.take();
                kept.borrow_mut().clear();
                given_back += 1;
                same(woken.take(), true, "whether its task is to go on")?;
                ended = both.as_mut().poll(&mut cx);
            }
            Ok(None)
        })?;
        sent.and(received)?;
        same(given_back > 0, true, "the pool was empty")?;
    }
    drop(kept);
    closed(&cq, a, b)?;
    same(tight.stats().in_use(), 0, "buffers in use")
}

/// Catches buffers of long messages that stay with the channel when nobody waits for the answer any more.
fn given_up_and_answered() -> Result {
    let mut ends = Ends::new([small(8), small(8)])?;
    let Ends { a, b, cq, pool } = &mut ends;
    let mut cx = Context::from_waker(Waker::noop());
    let large = || pool.stats().classes[2].in_use;
    for fill in 0..2 {
        let message = filled(pool, &[fill; 100_000])?;
        let early = pin!(a.send(message)).poll(&mut cx).is_ready();
        same(early, false, "the peer has read nothing")?;
    }
    same(large(), 2, "buffers that the peer may read")?;
    for fill in 0..2 {
        let message = cq.block_on(b.recv())??.ok_or("the end")?;
        same(&*message, &[fill; 100_000][..], "the message")?;
    }
    {
        let mut receiving = pin!(a.recv());
        support::until("the buffers come back", || {
            cq.pump()?;
            let early = receiving.as_mut().poll(&mut cx).is_ready();
            same(early, false, "nothing was sent")?;
            Ok((large() == 0).then_some(()))
        })?;
    }
    ends.close()
}

/// Catches an end that loses messages, or that one side does not learn of.
fn an_orderly_end() -> Result {
    let Ends {
        mut a,
        mut b,
        cq,
        pool,
    } = Ends::new([small(8), small(8)])?;
    let (closed, received) = cq.block_on(async {
        let closing = async {
            for number in 0..5u8 {
                a.send(filled(&pool, &[number])?).await.0?;
            }
            a.close().await?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
        };
        let receiving = async {
            let mut received = Vec::new();
            while let Some(message) = b.recv().await? {
                received.push(message[0]);
            }
            same(b.recv().await?.is_none(), true, "the end stays")?;
            let late = b.send(filled(&pool, b"too late")?).await.0;
            same(
                late.map_err(|error| error.cause),
                Err(ChannelCause::Closed),
                "a late message",
            )?;
            b.close().await?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(received)
        };
        join(closing, receiving).await
    })?;
    closed?;
    same(received?, vec![0, 1, 2, 3, 4], "what was received")?;
    same(pool.stats().in_use(), 0, "buffers in use")
}

/// Catches an error that does not say who it is about, and a side that waits for ever.
fn a_peer_that_goes() -> Result {
    let Ends { mut a, b, cq, pool } = Ends::new([small(8), small(8)])?;
    let name = a.peer().to_owned();
    drop(b);
    let message = filled(&pool, b"anybody?")?;
    let (sent, back) = cq.block_on(a.send(message))?;
    let error = sent.err().ok_or("nobody is there")?;
    same(&error.peer, &name, "who it is about")?;
    says(&error, &["channel to QP 0x"])?;
    match &error.cause {
        ChannelCause::Op(aio::OpError::Completion(error))
            if error.status == WcStatus::RETRY_EXC_ERR => {}
        other => return fail(format!("{other:?}")),
    }
    drop(back);
    let received = cq.block_on(a.recv())?;
    same(received.is_err(), true, "a receive behind it")?;
    drop(a);
    same(pool.stats().in_use(), 0, "buffers in use")
}

/// A channel between two tasks of a runtime, by address.
fn by_address() -> Result {
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let listener = cm::listen::<Rc>("10.9.0.1:0")?.start()?;
    let address = listener.local_addr();
    let params = Params {
        rnr_retry: 0,
        ..Params::default()
    };
    let side = || -> Result<_> {
        let context = open()?;
        let pd = context.alloc_pd()?;
        let cq = Cq::new(&context, 256)?;
        let pool = Pool::on(&pd).remote_read().build()?;
        runtime.spawn(aio::tokio::serve(cq.clone(), Wait::default()));
        Ok((
            Channel::prepare(&cq, &pd, &pool, &Settings::default())?,
            pool,
        ))
    };
    let ((here, pool), (there, _)) = (side()?, side()?);
    let way = cm::resolve::<Rc>(address)?.start()?.within(LIMIT)?;
    let accepting = params.clone();
    runtime.block_on(async move {
        let server = tokio::spawn(async move {
            let mut listener = aio::tokio::Listener::new(listener);
            let request = listener.accept().await?;
            let by = aio::tokio::Watch::new();
            let mut channel = there.accept(request, &accepting, by).await?;
            while let Some(mut message) = channel.recv().await? {
                message.reverse();
                channel.send(message).await.0?;
            }
            channel.close().await?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
        });
        let by = aio::tokio::Watch::new();
        let mut channel = timeout(LIMIT, here.connect_to(way, &params, by)).await??;
        same(channel.peer(), &*address.to_string(), "the peer")?;
        for length in [10, 1000, 100_000] {
            let bytes = pattern(7, length);
            channel.send(filled(&pool, &bytes)?).await.0?;
            let mut answer = timeout(LIMIT, channel.recv()).await??.ok_or("the end")?;
            answer.reverse();
            same(&*answer, &bytes[..], "the answer")?;
        }
        timeout(LIMIT, channel.close()).await??;
        timeout(LIMIT, server).await???;
        same(pool.stats().in_use(), 0, "buffers in use")
    })
}
