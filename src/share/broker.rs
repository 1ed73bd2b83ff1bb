//! The broker: gives one parcel of file descriptors to whoever may have it and knows the key.
//!
//! It knows nothing of RDMA. One thread serves all clients; whatever it waits for, including time, is in one
//! epoll set, which can itself be waited for. Each client costs a file descriptor and some hundred bytes, and
//! there are at most so many as [`Limits`] says: beyond, the kernel's queue of the socket holds them.
//!
//! A client is *silent* until its request comes, *waiting* while wrong keys of its user slow it down, and
//! *joined* once it has the parcel: then its connection stays open and shows by its end that it has let go.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;
use rustix::net::{
    RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, send, sendmsg,
};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use super::counters::Counters;
use super::key::ShareKey;
use super::listener::Listener;
use super::message::{self, MAX_FILES, Refusal};
use super::throttle::Throttle;

/// Tokens of the epoll set; clients' numbers lie above.
const LISTENER: u64 = 0;
const TIMER: u64 = 1;
const WAKE: u64 = 2;
const FIRST_CLIENT: u64 = 3;

/// Events taken by one system call.
const EVENTS: usize = 64;

/// How long a broker without a free file descriptor waits before it accepts again.
const PAUSE: Duration = Duration::from_millis(50);

/// What a broker allows its clients.
#[derive(Clone, Debug)]
pub(super) struct Limits {
    /// The users that may join.
    pub(super) users: Vec<u32>,
    /// How long a client may stay silent.
    pub(super) silence: Duration,
    /// Clients that are silent or waiting.
    pub(super) pending: usize,
    /// Clients that have joined.
    pub(super) joined: usize,
}

/// What is given: a message, and the file descriptors that go with it.
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
    throttles: BTreeMap<u32, Throttle>,
    /// Nothing is accepted before this.
    paused: Option<Instant>,
    counters: Arc<Counters>,
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
    Waiting(ShareKey),
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
            throttles: BTreeMap::new(),
            paused: None,
            counters: Arc::default(),
        })
    }

    pub(super) fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Becomes readable, and stays so, when [`rustix::io::write`] has put a number into it: makes `serve` return.
    pub(super) fn wake(&self) -> &Arc<OwnedFd> {
        &self.wake
    }

    /// Clients that hold the parcel.
    pub(super) fn joined(&self) -> usize {
        self.joined
    }

    fn pending(&self) -> usize {
        self.clients.len() - self.joined
    }

    /// Waits until something happens, at most so long, and deals with it. True if something has.
    pub(super) fn serve(&mut self, timeout: Option<Duration>) -> Result<bool, Errno> {
        let timeout = timeout.map(|timeout| Timespec {
            // Longer than the age of the universe is as good as for ever.
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
        self.look_at_waiting(now);
        self.set_alarms(now)?;
        Ok(!tokens.is_empty())
    }

    /// Takes new connections; most have their request with them, and are done at once.
    fn accept(&mut self, now: Instant) {
        // Bounded, so that the others get their turn.
        for _ in 0..EVENTS {
            if self.pending() >= self.limits.pending && !self.evict() {
                return;
            }
            match self.listener.accept() {
                Ok(Some(socket)) => self.admit(socket, now),
                Ok(None) => return,
                // No file descriptor or no memory is left. Who has nothing to say has to give way.
                Err(_) => {
                    if !self.evict() {
                        self.paused = Some(now + PAUSE);
                        return;
                    }
                }
            }
        }
    }

    /// Takes a connection if its user may join at all.
    fn admit(&mut self, socket: OwnedFd, now: Instant) {
        let Ok(peer) = getsockopt(&socket, PeerCredentials) else {
            return;
        };
        let user = peer.uid();
        if !self.limits.users.contains(&user) {
            self.counters.refused_users.count();
            tracing::warn!(target: "uverbs::share", user, pid = peer.pid(), "a user who is not allowed wants to join");
            refuse(&socket, Refusal::Denied);
            return;
        }
        let number = self.next_client;
        self.next_client += 1;
        let data = epoll::EventData::new_u64(number);
        if epoll::add(&self.epoll, &socket, data, epoll::EventFlags::IN).is_err() {
            return;
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

    /// Closes the connection that has been silent longest. False if there is none.
    fn evict(&mut self) -> bool {
        let silent = |client: &Client| matches!(client.state, State::Silent { .. });
        let oldest = self.clients.iter().find(|(_, client)| silent(client));
        let Some((&number, _)) = oldest else {
            return false;
        };
        self.counters.silent.count();
        self.remove(number);
        true
    }

    /// Forgets a client and closes its connection, which takes it out of the epoll set too.
    fn remove(&mut self, number: u64) {
        if let Some(client) = self.clients.remove(&number)
            && matches!(client.state, State::Joined)
        {
            self.joined -= 1;
        }
    }

    /// Reads what a client has sent.
    fn hear(&mut self, number: u64, now: Instant) {
        let Some(client) = self.clients.get_mut(&number) else {
            return;
        };
        // One byte more than a request has: a longer message shows.
        let mut bytes = [0; message::REQUEST + 1];
        let heard = match recv(&client.socket, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((length, _)) => &bytes[..length],
            Err(Errno::AGAIN | Errno::INTR) => return,
            Err(_) => &[],
        };
        match client.state {
            State::Silent { .. } if !heard.is_empty() => match message::parse_request(heard) {
                Ok(key) => {
                    client.state = State::Waiting(key);
                    self.look_at(number, now);
                }
                Err(bad) => {
                    self.counters.malformed.count();
                    tracing::debug!(target: "uverbs::share", user = client.user, "a request is refused: {}", bad.0);
                    refuse(&client.socket, Refusal::Malformed);
                    self.remove(number);
                }
            },
            // The end of the connection, or a second message, which nobody has any use for.
            _ => self.remove(number),
        }
    }

    /// Looks at the keys that had to wait, oldest first.
    fn look_at_waiting(&mut self, now: Instant) {
        let waiting = |(number, client): (&u64, &Client)| {
            matches!(client.state, State::Waiting(_)).then_some(*number)
        };
        let waiting: Vec<u64> = self.clients.iter().filter_map(waiting).collect();
        for number in waiting {
            self.look_at(number, now);
        }
    }

    /// Looks at a client's key if its user need not wait.
    fn look_at(&mut self, number: u64, now: Instant) {
        let Some(client) = self.clients.get_mut(&number) else {
            return;
        };
        let State::Waiting(key) = &client.state else {
            return;
        };
        // At most one entry for each user who is allowed.
        let throttle = self.throttles.entry(client.user).or_default();
        if throttle.not_before(now).is_some() {
            return;
        }
        if !self.key.matches(key) {
            throttle.punish(now);
            let total = self.counters.wrong_keys.count();
            tracing::warn!(target: "uverbs::share", user = client.user, total, "a wrong key");
            refuse(&client.socket, Refusal::Denied);
        } else {
            throttle.forgive();
            if self.joined >= self.limits.joined {
                refuse(&client.socket, Refusal::Full);
            } else if self.parcel.give(&client.socket).is_ok() {
                client.state = State::Joined;
                self.joined += 1;
                self.counters.joined.count();
                return;
            }
        }
        self.remove(number);
    }

    fn close_silent(&mut self, now: Instant) {
        let counters = &self.counters;
        self.clients.retain(|_, client| {
            let stays = !matches!(client.state, State::Silent { until } if until <= now);
            if !stays {
                counters.silent.count();
            }
            stays
        });
    }

    /// Sets the timer for what is due next, and listens if there is room for somebody.
    fn set_alarms(&mut self, now: Instant) -> Result<(), Errno> {
        self.paused = self.paused.filter(|until| *until > now);
        let crowded = self.pending() >= self.limits.pending
            && !self
                .clients
                .values()
                .any(|client| matches!(client.state, State::Silent { .. }));
        let interest = match self.paused.is_some() || crowded {
            true => epoll::EventFlags::empty(),
            false => epoll::EventFlags::IN,
        };
        let data = epoll::EventData::new_u64(LISTENER);
        epoll::modify(&self.epoll, &self.listener, data, interest)?;

        let due = self
            .clients
            .values()
            .filter_map(|client| match client.state {
                State::Silent { until } => Some(until),
                State::Waiting(_) => self.throttles.get(&client.user)?.not_before(now),
                State::Joined => None,
            });
        let wait = due.chain(self.paused).min().map(|due| due - now);
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once_in(wait))?;
        Ok(())
    }
}

/// A timer that goes off once, or never. One without any wait goes off in a nanosecond: 0 would stop it.
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

/// Tells a client no, whatever it may have said. Should it not listen, it will see that the connection ends.
fn refuse(client: &OwnedFd, refusal: Refusal) {
    let _ = send(
        client,
        &refusal.encode(),
        SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
    );
}

impl Parcel {
    /// Sends it whole, as one message; a client whose buffer is full has no right to complain.
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
