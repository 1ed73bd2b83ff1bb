//! Channels whose peer is killed, or whose device goes: nobody waits for ever, errors name the peer, and
//! every buffer comes back.

use std::net::SocketAddr;
use std::time::Instant;

use libtest_mimic::Trial;
use support::role::{self, Peer, Role, Step};
use support::wait::{PROCESS, until_within};
use support::{
    LIMIT, OwnDevice, Result, fail, is_full, only_on_rxe, open, same, says, skip, test,
    test_without_leaks, until,
};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;
use uverbs::aio::channel::{Channel, ChannelCause, ChannelError, Settings};
use uverbs::aio::{self, Cq, OpError, Wait};
use uverbs::buf::{Buf, Pool};
use uverbs::cm::{self, Listener, Params, Pending};
use uverbs::{Context, Rc, WcStatus};

use crate::ground::filled;

pub(crate) const ROLES: [Role; 2] = [("asks", asks), ("answers", answers)];

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test_without_leaks("killed::while_this_side_receives", || receiving("answers")),
        test_without_leaks("killed::while_this_side_receives_as_it_asked", || {
            receiving("asks")
        }),
        test_without_leaks("killed::while_this_side_sends", sending),
        test_without_leaks("killed::while_it_is_offered_a_long_message", offering),
        test_without_leaks("killed::while_this_side_closes", closing),
        test_without_leaks("killed::before_each_call_as_it_answers", || {
            before_each_call("answers")
        }),
        test_without_leaks("killed::before_each_call_as_it_asks", || {
            before_each_call("asks")
        }),
        test("killed::the_device_goes", device_goes),
    ]
}

/// Messages that the peer sends before it stays.
const MESSAGES: u8 = 3;

/// One side, whose completions a task takes.
struct Side {
    runtime: Runtime,
    context: Context,
    cq: Cq,
    pool: Pool,
    pd: uverbs::Pd,
}

impl Side {
    fn new() -> Result<Self> {
        Self::on(open()?)
    }

    fn on(context: Context) -> Result<Self> {
        let pd = context.alloc_pd()?;
        let pool = Pool::on(&pd).sizes([256, 65536]).remote_read();
        let cq = Cq::new(&context, 256)?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        runtime.spawn(aio::tokio::serve(cq.clone(), Wait::Park));
        Ok(Self {
            runtime,
            cq,
            pool: pool.build()?,
            pd,
            context,
        })
    }

    fn prepare(&self) -> Result<aio::channel::Prepared> {
        let settings = Settings {
            receives: 8,
            size: 256,
        };
        Ok(Channel::prepare(&self.cq, &self.pd, &self.pool, &settings)?)
    }

    fn connect(&self, address: SocketAddr) -> Result<Channel> {
        let way = cm::resolve::<Rc>(address)?.start()?.within(LIMIT)?;
        let by = aio::tokio::Watch::new();
        let params = Params::default();
        self.within(self.prepare()?.connect_to(way, &params, by))
    }

    fn accept(&self, listener: &Listener<Rc>) -> Result<Channel> {
        let request = listener.next_within(LIMIT)?.ok_or("no request")?;
        let by = aio::tokio::Watch::new();
        let params = Params::default();
        self.within(self.prepare()?.accept(request, &params, by))
    }

    /// What a future gives, which has an end.
    fn within<V, E>(&self, future: impl Future<Output = std::result::Result<V, E>>) -> Result<V>
    where
        E: std::error::Error + Send + Sync + 'static,
    {
        let ended = self
            .runtime
            .block_on(async { timeout(LIMIT, future).await });
        Ok(ended??)
    }

    /// How a future ends, which has to.
    fn ended<V>(&self, future: impl Future<Output = V>) -> Result<V> {
        let ended = self
            .runtime
            .block_on(async { timeout(LIMIT, future).await });
        Ok(ended?)
    }

    /// Sends one message, whose buffer comes back in any case.
    fn send(
        &self,
        channel: &mut Channel,
        length: usize,
    ) -> Result<std::result::Result<(), ChannelError>> {
        let message = filled(&self.pool, &vec![7; length])?;
        let sent = async { Ok::<_, std::convert::Infallible>(channel.send(message).await) };
        let (sent, back) = self.within(sent)?;
        if sent.is_ok() || length <= 256 {
            same(back.len(), length, "the buffer")?;
        }
        Ok(sent)
    }

    fn recv(
        &self,
        channel: &mut Channel,
    ) -> Result<std::result::Result<Option<Buf>, ChannelError>> {
        let received = async { Ok::<_, std::convert::Infallible>(channel.recv().await) };
        self.within(received)
    }

    /// Every buffer comes back to the pool. The task that takes completions may be about to give some back
    /// that the channel let go of.
    fn nothing_is_missing(&self) -> Result {
        until("every buffer is back", || {
            Ok((self.pool.stats().in_use() == 0).then_some(()))
        })
    }
}

/// The address of the device under test, with a port.
fn own_address(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 9, 0, 1], port))
}

/// Sends its messages, and stays.
fn talk(side: &Side, mut channel: Channel) -> Result {
    for number in 0..MESSAGES {
        let message = filled(&side.pool, &[number])?;
        let sent = async { channel.send(message).await.0 };
        side.within(sent)?;
    }
    role::stay("connected")
}

/// Asks at the port of its argument.
fn asks() -> Result {
    let port = role::words()?.pop().ok_or("a port")?.parse()?;
    let side = Side::new()?;
    let channel = side.connect(own_address(port))?;
    talk(&side, channel)
}

/// Says its port, and answers.
fn answers() -> Result {
    let listener = cm::listen::<Rc>(own_address(0))?.start()?;
    let side = Side::new()?;
    println!("{}", listener.local_addr().port());
    let channel = side.accept(&listener)?;
    talk(&side, channel)
}

/// Fails as the peer's listener would, which only says so on its standard error.
fn can_listen() -> Result {
    drop(cm::listen::<Rc>(own_address(0))?.start()?);
    Ok(())
}

/// A channel to a process in a role, which has sent its messages and stays.
fn channel_to(role: &str, side: &Side) -> Result<(Peer, Channel)> {
    let (mut peer, channel) = match role {
        "answers" => {
            can_listen()?;
            let mut peer = Peer::start(role, &[])?;
            let port = peer.hear()?.parse()?;
            let channel = side.connect(own_address(port))?;
            (peer, channel)
        }
        _ => {
            let listener = cm::listen::<Rc>(own_address(0))?.start()?;
            let port = listener.local_addr().port().to_string();
            let peer = Peer::start(role, &[&port])?;
            let channel = side.accept(&listener)?;
            (peer, channel)
        }
    };
    same(peer.hear()?, "connected".to_owned(), "the step")?;
    Ok((peer, channel))
}

/// Takes the messages that the peer sent.
fn take_all(side: &Side, channel: &mut Channel) -> Result {
    for number in 0..MESSAGES {
        let message = side.recv(channel)??.ok_or("the end")?;
        same(&*message, &[number][..], "the message")?;
    }
    Ok(())
}

/// The error of a peer that has gone, about this peer.
fn tells_of<V>(ended: std::result::Result<V, ChannelError>, name: &str) -> Result {
    let Err(error) = ended else {
        return fail("the peer has gone");
    };
    same(&error.cause, &ChannelCause::PeerGone, "the cause")?;
    let words = format!("channel to {name}: the peer has gone without ending its side");
    same(&error.to_string(), &words, "the error")
}

/// The first error of a channel whose peer has gone. What was under way may have found the peer's memory or
/// its queue pair gone before the end of the connection was told.
fn first<V>(ended: std::result::Result<V, ChannelError>, name: &str) -> Result {
    let known = [
        WcStatus::RETRY_EXC_ERR,
        WcStatus::REM_OP_ERR,
        WcStatus::REM_ACCESS_ERR,
    ];
    match ended {
        Err(ChannelError {
            cause: ChannelCause::Op(OpError::Completion(error)),
            peer,
        }) if known.contains(&error.status) => same(&*peer, name, "the peer"),
        ended => tells_of(ended, name),
    }
}

/// Catches a side that waits for messages of nobody, and messages that are lost with the peer that sent them.
fn receiving(role: &str) -> Result {
    let side = Side::new()?;
    let (peer, mut channel) = channel_to(role, &side)?;
    let name = channel.peer().to_owned();
    // One is waited for already when the peer is killed.
    let waiting = side.runtime.spawn(async move {
        let mut received = Vec::new();
        let error = loop {
            match channel.recv().await {
                Ok(message) => received.extend(message),
                Err(error) => break error,
            }
        };
        (channel, received, error)
    });
    peer.kill()?;
    let (mut channel, received, error) = side.within(waiting)?;
    first::<()>(Err(error), &name)?;
    let bytes: Vec<_> = received.iter().map(|message| message[0]).collect();
    same(bytes, (0..MESSAGES).collect(), "what it sent before")?;
    drop(received);
    until("the end is told", || {
        let ended = side.recv(&mut channel)?;
        Ok(tells_of(ended, &name).is_ok().then_some(()))
    })?;
    // It stays so, for everything.
    tells_of(side.send(&mut channel, 1)?, &name)?;
    tells_of(side.send(&mut channel, 200)?, &name)?;
    tells_of(side.recv(&mut channel)?, &name)?;
    drop(channel);
    side.nothing_is_missing()
}

/// Catches a side that waits for credits of nobody.
fn sending() -> Result {
    let side = Side::new()?;
    let (peer, mut channel) = channel_to("answers", &side)?;
    take_all(&side, &mut channel)?;
    let name = channel.peer().to_owned();
    // As many as the peer has receives for; it takes none.
    let mut sent = 0;
    let mut told = Some(peer);
    let error = loop {
        if sent == 6
            && let Some(peer) = told.take()
        {
            peer.kill()?;
        }
        match side.send(&mut channel, 200)? {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
        same(sent < 8, true, "more than the peer has receives for")?;
    };
    first::<()>(Err(error), &name)?;
    drop(channel);
    side.nothing_is_missing()
}

/// Catches a side that waits until nobody has read its message.
fn offering() -> Result {
    let side = Side::new()?;
    let (peer, mut channel) = channel_to("asks", &side)?;
    let name = channel.peer().to_owned();
    let message = filled(&side.pool, &[1; 60_000])?;
    let waiting = side.runtime.spawn(async move {
        let (sent, back) = channel.send(message).await;
        (channel, sent, back)
    });
    peer.kill()?;
    let (channel, sent, back) = side.within(waiting)?;
    first(sent, &name)?;
    same(back.capacity(), 0, "what the peer could still read")?;
    drop(channel);
    side.nothing_is_missing()
}

/// Catches an end of this side that waits for the peer's.
fn closing() -> Result {
    let side = Side::new()?;
    let (peer, channel) = channel_to("answers", &side)?;
    let name = channel.peer().to_owned();
    let waiting = side.runtime.spawn(channel.close());
    peer.kill()?;
    let closed = side.within(waiting)?;
    first(closed, &name)?;
    side.nothing_is_missing()
}

/// The calls by which a peer makes something, or tells this side something.
const CALLS: [&str; 2] = ["ioctl", "write"];

/// Catches a moment of a peer's life, from its start on, at which its end leaves this side waiting, or takes
/// a buffer along.
fn before_each_call(role: &str) -> Result {
    if !is_full() {
        return skip("a process for each step: a part of `cargo vm test --full`");
    }
    let side = Side::new()?;
    let mut told = Vec::new();
    for call in CALLS {
        let mut nth = 1;
        while !before(&side, role, (call, nth))
            .map_err(|error| format!("killed before {call} {nth}: {error}"))?
        {
            nth += 1;
        }
        told.push(format!("{call} {}", nth - 1));
    }
    println!("killed before {}", told.join(", "));
    same(
        told.iter().any(|told| !told.ends_with(" 0")),
        true,
        "someone was killed",
    )
}

/// A peer that is killed there; true if it lived until it had nothing more to do.
fn before(side: &Side, role: &str, step: Step) -> Result<bool> {
    let (mut peer, channel) = match role {
        "answers" => {
            can_listen()?;
            let mut peer = Peer::start_killed_at(role, &[], step)?;
            let channel = match peer.hear() {
                Ok(port) => to_one_that_answers(side, port.parse()?)?,
                Err(_) => None,
            };
            (peer, channel)
        }
        _ => {
            let listener = cm::listen::<Rc>(own_address(0))?.start()?;
            let port = listener.local_addr().port().to_string();
            let mut peer = Peer::start_killed_at(role, &[&port], step)?;
            let channel = from_one_that_asks(side, &listener, &mut peer)?;
            (peer, channel)
        }
    };
    let lives = channel.is_some() && peer.hear().is_ok();
    if lives {
        peer.kill()?;
    }
    if let Some(mut channel) = channel {
        while side
            .recv(&mut channel)?
            .is_ok_and(|message| message.is_some())
        {}
        // Neither hangs, whatever became of the peer.
        let _ = side.send(&mut channel, 200)?;
        let _ = side.ended(channel.close())?;
    }
    side.nothing_is_missing()?;
    Ok(lives)
}

/// The channel to a peer that listens, unless it has gone.
fn to_one_that_answers(side: &Side, port: u16) -> Result<Option<Channel>> {
    let Ok(way) = cm::resolve::<Rc>(own_address(port))?.start()?.within(LIMIT) else {
        return Ok(None);
    };
    let by = aio::tokio::Watch::new();
    let params = Params::default();
    let connected = side.ended(side.prepare()?.connect_to(way, &params, by))?;
    Ok(connected.ok())
}

/// The channel of a peer that asks, unless it has gone.
fn from_one_that_asks(
    side: &Side,
    listener: &Listener<Rc>,
    peer: &mut Peer,
) -> Result<Option<Channel>> {
    let limit = PROCESS;
    let request = until_within(limit, "a request, or the peer's end", || {
        let has_ended = peer.has_ended()?;
        match listener.try_next()? {
            Some(request) => Ok(Some(Some(request))),
            None if has_ended => Ok(Some(None)),
            None => Ok(None),
        }
    })?;
    let Some(request) = request else {
        return Ok(None);
    };
    let by = aio::tokio::Watch::new();
    let params = Params::default();
    let accepted = side.ended(side.prepare()?.accept(request, &params, by))?;
    Ok(accepted.ok())
}

/// Catches channels that wait on a device that is gone, and buffers that go with it.
fn device_goes() -> Result {
    only_on_rxe("here soft-RoCE's device goes")?;
    let device = OwnDevice::new()?;
    let side = Side::on(device.open()?)?;
    let table = side.context.gid_table()?;
    let ip = table.iter().find_map(|entry| entry.gid.as_ipv4());
    let address = SocketAddr::new(ip.ok_or("no address")?.into(), 0);
    let listener = cm::listen::<Rc>(address)?.start()?;
    let asking = {
        let way = cm::resolve::<Rc>(listener.local_addr())?;
        let way = way.start()?.within(LIMIT)?;
        let prepared = side.prepare()?;
        side.runtime.spawn(async move {
            let by = aio::tokio::Watch::new();
            prepared.connect_to(way, &Params::default(), by).await
        })
    };
    let passive = side.accept(&listener)?;
    let active = side.within(asking)??;
    let waiting = [active, passive].map(|mut channel| {
        side.runtime.spawn(async move {
            let name = channel.peer().to_owned();
            let error = channel.recv().await.err();
            (name, error)
        })
    });
    let started = Instant::now();
    // Earlier kernels remove the device when its last user has gone.
    let mut removal = std::process::Command::new("rdma")
        .args(["link", "del", &device.name])
        .spawn()?;
    for waiting in waiting {
        let (name, error) = side.within(waiting)?;
        let error = error.ok_or("a message")?;
        // The kernel ends one connection after the other, and a peer may hear of that.
        let known = [ChannelCause::DeviceRemoved, ChannelCause::PeerGone];
        same(known.contains(&error.cause), true, &error.to_string())?;
        says(&error, &[&format!("channel to {name}: ")])?;
    }
    println!("after {:?}", started.elapsed());
    side.nothing_is_missing()?;
    drop((side, listener));
    role::await_end(&mut removal)?;
    same(removal.wait()?.success(), true, "the removal")
}
