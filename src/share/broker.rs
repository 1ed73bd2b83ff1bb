//! The broker: gives one parcel of file descriptors to each client that is allowed to join and has the key.
//!
//! It does not use RDMA. One thread serves all clients; everything that it waits for, including time, is in
//! one epoll set, which can itself be waited for. Each client costs a file descriptor and some hundred bytes,
//! and [`Limits`] sets how many there may be; further ones stay in the kernel's queue of the socket.
//!
//! A client is *silent* until its request comes and *joined* once it has the parcel: then its connection
//! stays open, and the end of the connection shows that the client has released the parcel. A client that may
//! not join is answered, and its connection closed, at once. No request waits here, so no client can occupy
//! another's place.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::mem::{MaybeUninit, take};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, send, sendmsg};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use super::connection::{self, Next, Undertaker};
use super::counters::Counters;
use super::key::ShareKey;
use super::listener::Listener;
use super::message::{self, MAX_FILES, Refusal};
use super::throttle::Throttle;
use super::user;

/// Tokens of the epoll set; clients have larger numbers.
const LISTENER: u64 = 0;
const TIMER: u64 = 1;
const WAKE: u64 = 2;
const FIRST_CLIENT: u64 = 3;

/// Events taken by one system call.
const EVENTS: usize = 64;

/// How long a broker without a free file descriptor waits before it accepts again.
const PAUSE: Duration = Duration::from_millis(50);

/// How long no key of a user is checked after a wrong one. So a user has a hundred guesses per second over
/// all connections, and the 64 bits of a random key last three billion years. A user whose other processes
/// guess all the time can still join within seconds.
const AFTER_WRONG_KEY: Duration = Duration::from_millis(10);

/// The least time between two log lines of the same kind.
const LOG_PACE: Duration = Duration::from_secs(1);

/// Connections that are kept until another thread closes them; nothing is accepted while there are more.
const DISCARDED: usize = 64;

/// The limits of a broker's clients.
#[derive(Clone, Debug)]
pub(super) struct Limits {
    /// The users that may join.
    pub(super) users: Vec<u32>,
    /// How long a client may stay silent.
    pub(super) silence: Duration,
    /// Clients that are silent; each user has an equal share.
    pub(super) pending: usize,
    /// Clients that have joined.
    pub(super) joined: usize,
}

/// What a client gets: a message, and the file descriptors that come with it.
#[derive(Debug)]
pub(super) struct Parcel {
    pub(super) message: Vec<u8>,
    pub(super) files: Vec<OwnedFd>,
}

/// A broker for one parcel.
#[derive(Debug)]
pub(super) struct Broker {
    epoll: OwnedFd,
    timer: OwnedFd,
    wake: Arc<OwnedFd>,
    listener: Listener,
    key: ShareKey,
    parcel: Parcel,
    limits: Limits,
    clients: BTreeMap<u64, Client>,
    next_client: u64,
    /// Clients that hold the parcel.
    joined: usize,
    /// Connections that hold files of their clients: see [`connection`].
    discarded: Vec<OwnedFd>,
    /// At most one for each allowed user.
    throttles: BTreeMap<u32, Throttle>,
    log_of_users: Throttle,
    log_of_keys: Throttle,
    /// No connection is accepted before this time.
    paused: Option<Instant>,
    counters: Arc<Counters>,
    /// It must outlive the listener, so it is the last field.
    undertaker: Option<Undertaker>,
}

#[derive(Debug)]
struct Client {
    socket: OwnedFd,
    user: u32,
    state: State,
}

#[derive(Debug)]
enum State {
    Silent { until: Instant },
    Joined,
}

impl Broker {
    pub(super) fn new(
        listener: Listener,
        key: ShareKey,
        parcel: Parcel,
        limits: Limits,
    ) -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let watch = |fd: BorrowedFd<'_>, token| {
            epoll::add(
                &epoll,
                fd,
                epoll::EventData::new_u64(token),
                epoll::EventFlags::IN,
            )
        };
        watch(listener.as_fd(), LISTENER)?;
        watch(timer.as_fd(), TIMER)?;
        watch(wake.as_fd(), WAKE)?;
        Ok(Self {
            epoll,
            timer,
            wake: Arc::new(wake),
            listener,
            key,
            parcel,
            limits,
            clients: BTreeMap::new(),
            next_client: FIRST_CLIENT,
            joined: 0,
            discarded: Vec::new(),
            throttles: BTreeMap::new(),
            log_of_users: Throttle::default(),
            log_of_keys: Throttle::default(),
            paused: None,
            counters: Arc::default(),
            undertaker: None,
        })
    }

    pub(super) fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Becomes readable, and stays so, when [`rustix::io::write`] has written a number to it. This makes
    /// `serve` return.
    pub(super) fn wake(&self) -> &Arc<OwnedFd> {
        &self.wake
    }

    /// Clients that hold the parcel.
    pub(super) fn joined(&self) -> usize {
        self.joined
    }

    /// Forgets joined clients that have left. No client joins.
    pub(super) fn reap(&mut self) {
        let joined = |(number, client): (&u64, &Client)| {
            matches!(client.state, State::Joined).then_some(*number)
        };
        let joined: Vec<u64> = self.clients.iter().filter_map(joined).collect();
        let now = Instant::now();
        joined.into_iter().for_each(|number| self.hear(number, now));
    }

    /// Waits for at most `timeout` until something happens, and handles it. True if something happened.
    pub(super) fn serve(&mut self, timeout: Option<Duration>) -> Result<bool, Errno> {
        let timeout = timeout.map(|timeout| Timespec {
            // Such a timeout, longer than a century, counts as forever.
            tv_sec: timeout.as_secs().min(u64::from(u32::MAX)) as _,
            tv_nsec: timeout.subsec_nanos() as _,
        });
        let mut events = [MaybeUninit::uninit(); EVENTS];
        let tokens: Vec<u64> = match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
            Ok((events, _)) => events.iter().map(|event| event.data.u64()).collect(),
            Err(Errno::INTR) => return Ok(false),
            Err(errno) => return Err(errno),
        };
        let now = Instant::now();
        for token in &tokens {
            match *token {
                LISTENER => self.accept(now),
                TIMER | WAKE => {}
                client => self.hear(client, now),
            }
        }
        self.close_silent(now);
        self.bury_discarded(now);
        self.set_alarms(now)?;
        Ok(!tokens.is_empty())
    }

    /// Accepts new connections; most bring their request with them, and are done at once.
    fn accept(&mut self, now: Instant) {
        // Bounded, so that the other clients get their turn.
        for _ in 0..EVENTS {
            if self.paused.is_some() || self.discarded.len() >= DISCARDED {
                return;
            }
            match self.listener.accept() {
                Ok(Some(socket)) => self.admit(socket, now),
                Ok(None) => return,
                // No file descriptor or no memory is left, so the client that has been silent longest is
                // closed.
                Err(_) => {
                    if !self.evict(|_| true) {
                        self.paused = Some(now + PAUSE);
                    }
                }
            }
        }
    }

    /// Takes a connection if its user is allowed to join.
    fn admit(&mut self, socket: OwnedFd, now: Instant) {
        let Ok(peer) = getsockopt(&socket, PeerCredentials) else {
            return self.discard(socket);
        };
        let user = peer.uid();
        if !self.limits.users.contains(&user) || !user::is_certain(user) {
            let total = self.counters.refused_users.count();
            if self.log_of_users.pass(now, LOG_PACE) {
                tracing::warn!(target: "uverbs::share", user, pid = peer.pid(), total, "a user who is not allowed wants to join");
            }
            refuse(&socket, Refusal::Denied);
            return self.discard(socket);
        }
        self.seat(socket, user, now);
    }

    /// Takes a connection of an allowed user.
    pub(super) fn seat(&mut self, socket: OwnedFd, user: u32, now: Instant) {
        self.make_room(user);
        let number = self.next_client;
        self.next_client += 1;
        let data = epoll::EventData::new_u64(number);
        let watched = connection::prepare(&socket)
            .and_then(|()| epoll::add(&self.epoll, &socket, data, epoll::EventFlags::IN));
        if watched.is_err() {
            return self.discard(socket);
        }
        let until = now + self.limits.silence;
        let state = State::Silent { until };
        let client = Client {
            socket,
            user,
            state,
        };
        self.clients.insert(number, client);
        self.hear(number, now);
    }

    /// Closes silent connections of a user until the user may have one more.
    fn make_room(&mut self, user: u32) {
        let share = (self.limits.pending / self.limits.users.len()).max(1);
        let of_user = |client: &Client| client.user == user && client.is_silent();
        while self.clients.values().filter(|one| of_user(one)).count() >= share {
            self.evict(|client| client.user == user);
        }
    }

    /// Closes the connection that has been silent longest, of those for which `may_close` is true. False if
    /// there is none.
    fn evict(&mut self, may_close: impl Fn(&Client) -> bool) -> bool {
        let candidate = |client: &Client| client.is_silent() && may_close(client);
        let oldest = self.clients.iter().find(|(_, client)| candidate(client));
        let Some((&number, client)) = oldest else {
            return false;
        };
        self.counters.silent.count();
        refuse(&client.socket, Refusal::Later);
        self.remove(number);
        true
    }

    /// Forgets a client and closes its connection.
    fn remove(&mut self, number: u64) {
        if let Some(client) = self.clients.remove(&number) {
            if !client.is_silent() {
                self.joined -= 1;
            }
            // Closing the descriptor is not enough if a forked process has it too.
            let _ = epoll::delete(&self.epoll, &client.socket);
            self.discard(client.socket);
        }
    }

    /// Closes a connection that is not in the epoll set: now or, if it holds files, at the end of this turn.
    fn discard(&mut self, socket: OwnedFd) {
        self.discarded.extend(connection::close(socket).err());
    }

    /// Closes the connections that hold files, in such a way that only another thread may have to wait.
    fn bury_discarded(&mut self, now: Instant) {
        if self.discarded.is_empty() {
            return;
        }
        match Undertaker::start() {
            Some(_undertaker) => drop(take(&mut self.discarded)),
            // No thread could be started. Try again later.
            None => self.paused = Some(now + PAUSE),
        }
    }

    /// Reads what a client has sent.
    fn hear(&mut self, number: u64, now: Instant) {
        let Some(client) = self.clients.get(&number) else {
            return;
        };
        // One byte more than a request has, to detect a longer message.
        let mut bytes = [0; message::REQUEST + 1];
        let request = match connection::take(&client.socket, &mut bytes) {
            Next::Nothing => return,
            // A joined client has sent another message, or has left.
            _ if !client.is_silent() => return self.remove(number),
            Next::End => return self.remove(number),
            Next::Files => Err("files come along"),
            Next::Message(length) => message::parse_request(&bytes[..length]).map_err(|bad| bad.0),
        };
        match request {
            Ok(key) => self.look_at(number, &key, now),
            Err(why) => {
                self.counters.malformed.count();
                tracing::debug!(target: "uverbs::share", user = client.user, "a request is refused: {why}");
                refuse(&client.socket, Refusal::Malformed);
                self.remove(number);
            }
        }
    }

    /// Checks the key of a silent client, and lets it join or closes it.
    fn look_at(&mut self, number: u64, key: &ShareKey, now: Instant) {
        let Some(client) = self.clients.get_mut(&number) else {
            return;
        };
        let throttle = self.throttles.entry(client.user).or_default();
        let refusal = if !throttle.is_open(now) {
            self.counters.put_off.count();
            Refusal::Later
        } else if !self.key.matches(key) {
            throttle.close(now, AFTER_WRONG_KEY);
            let total = self.counters.wrong_keys.count();
            if self.log_of_keys.pass(now, LOG_PACE) {
                tracing::warn!(target: "uverbs::share", user = client.user, total, "a wrong key");
            }
            Refusal::Denied
        } else if self.joined >= self.limits.joined {
            Refusal::Full
        } else if self.parcel.give(&client.socket).is_ok() {
            client.state = State::Joined;
            self.joined += 1;
            self.counters.joined.count();
            return;
        } else {
            // The client has left, or this user has too many files in messages that were not received yet
            // (ETOOMANYREFS).
            Refusal::Later
        };
        refuse(&client.socket, refusal);
        self.remove(number);
    }

    fn close_silent(&mut self, now: Instant) {
        let late =
            |client: &Client| matches!(client.state, State::Silent { until } if until <= now);
        let late: Vec<u64> = self
            .clients
            .iter()
            .filter_map(|(number, client)| late(client).then_some(*number))
            .collect();
        for number in late {
            self.counters.silent.count();
            self.remove(number);
        }
    }

    #[cfg(test)]
    pub(super) fn listener(&self) -> &Listener {
        &self.listener
    }

    /// Copies of the clients' descriptors, as in a forked process.
    #[cfg(test)]
    pub(super) fn copies(&self) -> Vec<OwnedFd> {
        let copies = self
            .clients
            .values()
            .map(|client| client.socket.try_clone());
        copies
            .collect::<std::io::Result<_>>()
            .expect("descriptors are left")
    }

    /// Sets the timer for the next deadline, and watches the listener unless accepting is paused.
    fn set_alarms(&mut self, now: Instant) -> Result<(), Errno> {
        self.paused = self.paused.filter(|until| *until > now);
        let interest = match self.paused {
            Some(_) => epoll::EventFlags::empty(),
            None => epoll::EventFlags::IN,
        };
        let data = epoll::EventData::new_u64(LISTENER);
        epoll::modify(&self.epoll, &self.listener, data, interest)?;

        let due = self
            .clients
            .values()
            .filter_map(|client| match client.state {
                State::Silent { until } => Some(until),
                State::Joined => None,
            });
        let wait = due.chain(self.paused).min().map(|due| due - now);
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once_in(wait))?;
        Ok(())
    }
}

impl Client {
    fn is_silent(&self) -> bool {
        matches!(self.state, State::Silent { .. })
    }
}

/// Ends all connections, even if a forked process has their descriptors, and without waiting.
impl Drop for Broker {
    fn drop(&mut self) {
        for (_, client) in take(&mut self.clients) {
            self.discard(client.socket);
        }
        self.listener.shut();
        let is_drained = loop {
            match self.listener.accept() {
                Ok(Some(client)) => self.discard(client),
                // No connection waits any more, and no new one can come.
                Ok(None) | Err(Errno::INVAL) => break true,
                // No descriptor is left. Closing the listener closes the remaining connections.
                Err(_) => break false,
            }
        };
        if !is_drained || !self.discarded.is_empty() {
            self.undertaker = Undertaker::start();
        }
        self.discarded.clear();
    }
}

/// A timer that expires once, or never. For a wait of zero it uses a nanosecond: 0 would stop the timer.
fn once_in(wait: Option<Duration>) -> Itimerspec {
    let wait = wait.map_or(Duration::ZERO, |wait| wait.max(Duration::from_nanos(1)));
    Itimerspec {
        it_interval: Timespec::default(),
        it_value: Timespec {
            tv_sec: wait.as_secs().min(u64::from(u32::MAX)) as _,
            tv_nsec: wait.subsec_nanos() as _,
        },
    }
}

/// Sends a client a refusal, whatever its request was. A client that does not read it sees only the end of
/// the connection.
fn refuse(client: &OwnedFd, refusal: Refusal) {
    let _ = send(
        client,
        &refusal.encode(),
        SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
    );
}

impl Parcel {
    /// Sends it whole, as one message. It fails if the client's buffer is full, which is the client's fault.
    fn give(&self, client: &OwnedFd) -> Result<(), Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files: Vec<BorrowedFd<'_>> = self.files.iter().map(AsFd::as_fd).collect();
        if !control.push(SendAncillaryMessage::ScmRights(&files)) {
            return Err(Errno::NOBUFS);
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(client, &[IoSlice::new(&self.message)], &mut control, flags)?;
        Ok(())
    }
}

/// Readable when [`Broker::serve`] has something to do.
impl AsFd for Broker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
