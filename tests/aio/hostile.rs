//! Peers that mean harm: private data of every length beside a channel's connection, and messages that are
//! none of a channel's.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use libtest_mimic::Trial;
use support::{LIMIT, Result, fail, is_full, open, pattern, same, says, test_without_leaks};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use uverbs::aio::channel::{Channel, ChannelCause, ChannelError, Settings};
use uverbs::aio::{self, Cq, Wait};
use uverbs::buf::Pool;
use uverbs::cm::{self, Connection, Listener, Params, Pending, Resolved};
use uverbs::{Access, Caps, Mr, Pd, Qp, Rc};

use crate::ground::{Woken, filled};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test_without_leaks("hostile::private_data_to_a_channel", private_data),
        test_without_leaks("hostile::messages_instead_of_a_greeting", greetings),
        test_without_leaks("hostile::messages_after_the_greeting", after_the_greeting),
        test_without_leaks("hostile::messages_of_any_bytes", any_bytes),
        test_without_leaks("hostile::many_messages_of_nothing", many_of_nothing),
        test_without_leaks("hostile::nonsense_between_messages", nonsense_between),
        test_without_leaks("hostile::a_peer_without_receives", without_receives),
    ]
}

/// Bytes of private data at the most: of a request, of an acceptance.
const REQUEST: usize = 56;
const ACCEPTANCE: usize = 196;

/// Bytes of a header of a channel.
const HEADER: usize = 32;

/// What the channels here have.
const SETTINGS: Settings = Settings {
    receives: 8,
    size: 256,
};

/// A header as a channel sends it.
struct Header {
    kind: u8,
    flag: u8,
    credits: u16,
    number: u32,
    length: u64,
    key: u32,
}

impl Header {
    fn of(kind: u8) -> Self {
        Self {
            kind,
            flag: 0,
            credits: 0,
            number: 0,
            length: 0,
            key: 0,
        }
    }

    /// That of an honest greeting.
    fn hello() -> Self {
        Self {
            flag: 1,
            credits: 64,
            length: 4096,
            ..Self::of(1)
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![self.kind, self.flag];
        bytes.extend(self.credits.to_le_bytes());
        bytes.extend(self.number.to_le_bytes());
        bytes.extend(self.length.to_le_bytes());
        bytes.extend(0x1000_u64.to_le_bytes());
        bytes.extend(self.key.to_le_bytes());
        bytes.resize(HEADER, 0);
        bytes
    }
}

/// The peer, which has a bare queue pair.
struct Peer {
    mr: Mr<Vec<u8>>,
    cq: uverbs::Cq,
    pd: Pd,
}

impl Peer {
    fn new() -> Result<Self> {
        let context = open()?;
        let pd = context.alloc_pd()?;
        Ok(Self {
            mr: pd.register(vec![0; 8192], Access::LOCAL_WRITE)?,
            cq: context.create_cq(512)?,
            pd,
        })
    }

    /// A queue pair with room for what a channel says.
    fn qp(
        &self,
        init: impl FnOnce(&mut uverbs::Qp<Rc>) -> uverbs::Result<()>,
    ) -> Result<uverbs::Qp<Rc>> {
        let mut qp = self.pd.create_qp::<Rc>(&self.cq, Caps::default())?;
        init(&mut qp)?;
        let mut batch = qp.recv_batch();
        for number in 0..16 {
            batch.post(number, self.mr.slice(4096..)?)?;
        }
        batch.ring();
        Ok(qp)
    }

    fn connect(&self, way: Resolved<Rc>, data: &[u8]) -> Result<cm::Connecting<Qp<Rc>>> {
        let qp = self.qp(|qp| way.init(qp))?;
        Ok(way.connect(qp, &Params::default(), data)?)
    }

    fn send(&mut self, connection: &mut Connection<Qp<Rc>>, message: &[u8]) -> Result {
        self.mr.write_at(0, message)?;
        let slice = self.mr.slice(..message.len())?;
        connection.post(|batch| {
            batch.signaled(99).send(slice)?;
            Ok(())
        })?;
        // The next one is written to the same place.
        support::until("the message is sent", || {
            let mut completions = self.cq.poll()?;
            Ok(completions.iter().any(|wc| wc.wr_id() == 99).then_some(()))
        })
    }
}

/// The channel's side, whose tasks run beside the test.
struct Ground {
    runtime: Runtime,
    cq: Cq,
    pd: Pd,
    pool: Pool,
    listener: Listener<Rc>,
}

/// A channel to be, in a task.
type Making = JoinHandle<std::result::Result<Channel, ChannelError>>;

impl Ground {
    fn new() -> Result<Self> {
        let context = open()?;
        let pd = context.alloc_pd()?;
        let cq = Cq::new(&context, 256)?;
        let pool = Pool::on(&pd).sizes([256, 4096]).limit(1 << 20).build()?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?;
        runtime.spawn(aio::tokio::serve(cq.clone(), Wait::Park));
        Ok(Self {
            runtime,
            cq,
            pd,
            pool,
            listener: cm::listen::<Rc>("10.9.0.1:0")?.start()?,
        })
    }

    fn way(&self) -> Result<Resolved<Rc>> {
        let resolving = cm::resolve::<Rc>(self.listener.local_addr())?.start()?;
        Ok(resolving.within(LIMIT)?)
    }

    fn request(&self) -> Result<cm::Request<Rc>> {
        Ok(self.listener.next_within(LIMIT)?.ok_or("no request")?)
    }

    /// Makes a channel of the peer's request, which has these data, and gives the peer's end of it and the
    /// address that it has.
    fn accept(&self, peer: &Peer, data: &[u8]) -> Result<(Making, Connection<Qp<Rc>>, SocketAddr)> {
        let way = self.way()?;
        let address = way.local_addr();
        let connecting = peer.connect(way, data)?;
        let request = self.request()?;
        let prepared = Channel::prepare(&self.cq, &self.pd, &self.pool, &SETTINGS)?;
        let making = async move {
            let by = aio::tokio::Watch::new();
            prepared.accept(request, &Params::default(), by).await
        };
        let making = self.runtime.spawn(making);
        Ok((making, connecting.within(LIMIT)?, address))
    }

    /// Makes a channel to the peer, whose acceptance has these data.
    fn connect(
        &self,
        peer: &Peer,
        data: &[u8],
    ) -> Result<(Making, Connection<Qp<Rc>>, SocketAddr)> {
        let way = self.way()?;
        let prepared = Channel::prepare(&self.cq, &self.pd, &self.pool, &SETTINGS)?;
        let making = async move {
            let by = aio::tokio::Watch::new();
            prepared.connect_to(way, &Params::default(), by).await
        };
        let making = self.runtime.spawn(making);
        let request = self.request()?;
        let qp = peer.qp(|qp| request.init(qp))?;
        let accepting = request.accept(qp, &Params::default(), data)?;
        Ok((making, accepting.within(LIMIT)?, self.listener.local_addr()))
    }

    /// What comes of a channel to be.
    fn made(&self, making: Making) -> Result<std::result::Result<Channel, ChannelError>> {
        let made = self
            .runtime
            .block_on(async { timeout(LIMIT, making).await });
        Ok(made??)
    }

    /// What a channel receives next: nothing, if the peer has ended its side.
    fn next(
        &self,
        channel: &mut Channel,
    ) -> Result<std::result::Result<Option<usize>, ChannelError>> {
        let received = self
            .runtime
            .block_on(async { timeout(LIMIT, channel.recv()).await });
        Ok(received?.map(|message| message.map(|message| message.len())))
    }

    /// Every buffer is in the pool once nothing of a channel is left.
    fn nothing_is_missing(self) -> Result {
        let Self { pool, runtime, .. } = self;
        runtime.shutdown_timeout(LIMIT);
        same(pool.stats().in_use(), 0, "buffers in use")
    }
}

/// An error about this peer with these words.
fn is_about<V>(
    result: std::result::Result<V, ChannelError>,
    peer: SocketAddr,
    words: &str,
) -> Result {
    let Err(error) = result else {
        return fail(format!("no error with {words:?}"));
    };
    same(&*error.peer, &*peer.to_string(), "the peer")?;
    says(&error, &[&format!("channel to {peer}: "), words])
}

/// Catches private data that a channel takes for something: it has none of its own.
fn private_data() -> Result {
    let ground = Ground::new()?;
    let step = if is_full() { 7 } else { 65 };
    for length in (0..ACCEPTANCE).step_by(step).chain([ACCEPTANCE]) {
        let data = match length % 3 {
            0 => Header::hello()
                .bytes()
                .into_iter()
                .cycle()
                .take(length)
                .collect(),
            1 => vec![0xff; length],
            _ => pattern(length as u64, length),
        };
        let mut peer = Peer::new()?;
        for accepts in [true, false] {
            let (making, mut connection, _) = match accepts {
                true => ground.accept(&peer, &data[..length.min(REQUEST)])?,
                false => ground.connect(&peer, &data)?,
            };
            peer.send(&mut connection, &Header::hello().bytes())?;
            let mut channel = ground.made(making)??;
            peer.send(
                &mut connection,
                &[Header::of(2).bytes(), data.clone()].concat(),
            )?;
            same(ground.next(&mut channel)??, Some(length), "the message")?;
        }
    }
    ground.nothing_is_missing()
}

/// Catches a greeting that is not looked at, and an error without the peer and the cause.
fn greetings() -> Result {
    let ground = Ground::new()?;
    let version = Header {
        flag: 2,
        ..Header::hello()
    };
    let short = Header {
        length: HEADER as u64,
        ..Header::hello()
    };
    let long = Header {
        length: u64::MAX,
        ..Header::hello()
    };
    let messages = [
        (vec![], "shorter than a header"),
        (
            Header::hello().bytes()[..31].to_vec(),
            "shorter than a header",
        ),
        (vec![0xff; HEADER], "of a kind that there is not"),
        (vec![0; HEADER], "of a kind that there is not"),
        (vec![1; SETTINGS.size + 1], "work request"),
        (version.bytes(), "another version of the protocol"),
        (short.bytes(), "its receives are too short"),
        (long.bytes(), "more than 4 GiB"),
        (Header::of(2).bytes(), "it does not greet first"),
        (Header::of(6).bytes(), "it does not greet first"),
    ];
    for (message, words) in messages {
        let mut peer = Peer::new()?;
        let (making, mut connection, address) = ground.accept(&peer, b"")?;
        peer.send(&mut connection, &message)?;
        is_about(ground.made(making)?, address, words)?;
    }
    ground.nothing_is_missing()
}

/// Catches messages out of order, answers to nothing and offers of memory that is not there: what breaks the
/// channel, and what does not.
fn after_the_greeting() -> Result {
    let ground = Ground::new()?;
    let offer = |length: u64, key: u32| Header {
        length,
        key,
        number: 7,
        ..Header::of(3)
    };
    let messages = [
        (Header::hello(), "it greets a second time"),
        (Header::of(4), "it answers what it was not offered"),
        (offer(64, 0xdead_beef), "REM_ACCESS_ERR"),
    ];
    for (header, words) in messages {
        let mut peer = Peer::new()?;
        let (making, mut connection, address) = ground.accept(&peer, b"")?;
        peer.send(&mut connection, &Header::hello().bytes())?;
        let mut channel = ground.made(making)??;
        peer.send(&mut connection, &header.bytes())?;
        is_about(ground.next(&mut channel)?, address, words)?;
    }
    // The end is the end, whatever comes behind it.
    let mut peer = Peer::new()?;
    let (making, mut connection, _) = ground.accept(&peer, b"")?;
    peer.send(&mut connection, &Header::hello().bytes())?;
    let mut channel = ground.made(making)??;
    for kind in [6, 2, 6] {
        peer.send(&mut connection, &Header::of(kind).bytes())?;
        same(ground.next(&mut channel)??, None, "behind the end")?;
    }
    drop(channel);
    // No buffer is so long, and the channel goes on; and nothing of nowhere is nothing.
    let mut peer = Peer::new()?;
    let (making, mut connection, address) = ground.accept(&peer, b"")?;
    peer.send(&mut connection, &Header::hello().bytes())?;
    let mut channel = ground.made(making)??;
    for length in [u64::MAX, 1 << 32, 4097] {
        peer.send(&mut connection, &offer(length, 1).bytes())?;
        let refused = ground.next(&mut channel)?;
        same(
            matches!(&refused, Err(error) if matches!(error.cause, ChannelCause::Pool(_))),
            true,
            &format!("{refused:?}"),
        )?;
        is_about(refused, address, "no buffer")?;
    }
    peer.send(&mut connection, &offer(0, 0).bytes())?;
    same(ground.next(&mut channel)??, Some(0), "a message of nothing")?;
    drop(channel);
    ground.nothing_is_missing()
}

/// Catches messages, behind an honest greeting, that make a channel panic, or wait without end.
fn any_bytes() -> Result {
    let ground = Ground::new()?;
    let rounds = if is_full() { 50 } else { 10 };
    for round in 0..rounds {
        let mut peer = Peer::new()?;
        let (making, mut connection, address) = ground.accept(&peer, b"")?;
        peer.send(&mut connection, &Header::hello().bytes())?;
        let mut channel = ground.made(making)??;
        for number in 0..6_u64 {
            let mut message = pattern(round * 6 + number, HEADER + 8);
            message[0] %= 8;
            peer.send(&mut connection, &message)?;
        }
        // Of no kind, so the channel ends here at the latest.
        peer.send(&mut connection, &[0; HEADER])?;
        loop {
            match ground.next(&mut channel)? {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) if matches!(error.cause, ChannelCause::Pool(_)) => {}
                Err(error) => {
                    is_about::<()>(Err(error), address, "")?;
                    break;
                }
            }
        }
    }
    ground.nothing_is_missing()
}

/// Catches nonsense that is overlooked for the messages around it: those before it are received, and no more.
fn nonsense_between() -> Result {
    let ground = Ground::new()?;
    let mut peer = Peer::new()?;
    let (making, mut connection, address) = ground.accept(&peer, b"")?;
    peer.send(&mut connection, &Header::hello().bytes())?;
    let mut channel = ground.made(making)??;
    for kind in [2, 9, 2] {
        peer.send(&mut connection, &Header::of(kind).bytes())?;
    }
    same(ground.next(&mut channel)??, Some(0), "the message before")?;
    for _ in 0..2 {
        let received = ground.next(&mut channel)?;
        is_about(received, address, "of a kind that there is not")?;
    }
    let message = filled(&ground.pool, b"to whom?")?;
    let sent = ground
        .runtime
        .block_on(async { timeout(LIMIT, channel.send(message)).await })?;
    is_about(sent.0, address, "of a kind that there is not")?;
    drop(sent.1);
    drop(channel);
    ground.nothing_is_missing()
}

/// Catches a channel whose own messages find no place in the send queue since the user's messages have them
/// all: the peer has told of receives that it does not have, and nobody waits for these messages any more.
fn without_receives() -> Result {
    const MESSAGE: usize = 100;
    const SENDS: usize = 32;
    let ground = Ground::new()?;
    let mut peer = Peer::new()?;
    let (making, mut connection, _) = ground.accept(&peer, b"")?;
    peer.send(&mut connection, &Header::hello().bytes())?;
    let mut channel = ground.made(making)??;
    let mut cx = Context::from_waker(Waker::noop());
    let all = SETTINGS.receives as usize + SENDS;
    let entered = ground.runtime.enter();
    support::until("all places are taken", || {
        let sending = channel.send(filled(&ground.pool, &[7; MESSAGE])?);
        let _ = pin!(sending).poll(&mut cx).is_ready();
        Ok((ground.pool.stats().in_use() == all).then_some(()))
    })?;
    drop(entered);
    for _ in 0..SETTINGS.receives {
        peer.send(&mut connection, &Header::of(2).bytes())?;
        same(ground.next(&mut channel)??, Some(0), "a message")?;
    }
    let nothing = ground.runtime.block_on(async {
        let short = Duration::from_millis(20);
        timeout(short, channel.recv()).await
    });
    same(nothing.is_err(), true, &format!("{nothing:?}"))?;
    drop((channel, connection));
    ground.nothing_is_missing()
}

/// Catches a channel that takes without end what a peer sends, and keeps its thread from every other task: it
/// has a turn of 32 messages, and wakes its task for the next.
fn many_of_nothing() -> Result {
    let ground = Ground::new()?;
    const MESSAGES: u64 = 150;
    let settings = Settings {
        receives: 256,
        size: 256,
    };
    let cq = Cq::new(ground.cq.context(), 512)?;
    let prepared = Channel::prepare(&cq, &ground.pd, &ground.pool, &settings)?;
    let mut peer = Peer::new()?;
    let connecting = peer.connect(ground.way()?, b"")?;
    let request = ground.request()?;
    // Completions come when the test takes them.
    let _entered = ground.runtime.enter();
    let (channel, connection) = cq.block_on(async {
        let by = aio::tokio::Watch::new();
        let params = Params::default();
        let making = prepared.accept(request, &params, by);
        let greeting = async {
            let mut connection = connecting.finish(aio::tokio::Watch::new()).await?;
            peer.send(&mut connection, &Header::hello().bytes())?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(connection)
        };
        futures_util::future::join(making, greeting).await
    })?;
    let (mut channel, mut connection) = (channel?, connection?);
    for _ in 0..MESSAGES {
        peer.send(&mut connection, &Header::of(5).bytes())?;
    }
    peer.send(&mut connection, &Header::of(2).bytes())?;
    // Each was acknowledged, and its completion is there.
    while cq.pump()? {}
    let mut turns = 0;
    let mut receiving = Box::pin(channel.recv());
    let received = loop {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        match receiving.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(received) => break received,
            Poll::Pending => turns += 1,
        }
        same(woken.take(), true, "its task is to go on")?;
    };
    drop(receiving);
    same(received?.ok_or("the end")?.len(), 0, "the message")?;
    same(turns, MESSAGES / 32, "turns that others have")?;
    drop(channel);
    ground.nothing_is_missing()
}
