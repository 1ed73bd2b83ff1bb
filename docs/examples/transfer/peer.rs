//! A peer of a rail: its two queue pairs, the way to them, and what waits for them.

use std::time::{Duration, Instant};

use uverbs::{
    Ah, Caps, ConnectOptions, Cq, Endpoint, InDomain, ParentDomain, Qp, Rc, Srq, ThreadDomain,
};

use super::Result;
use super::address::Hello;
use super::book::Book;
use super::rail::Work;

/// WRITEs to one peer in flight at most.
pub(crate) const DEPTH: usize = 128;
/// How long to wait for an answer before a hello is said again: datagrams may be lost.
const HELLO_AGAIN: Duration = Duration::from_millis(100);

pub(crate) enum State {
    /// Waits for the peer's hello; when to say the own one again.
    Greeting(Instant),
    Established,
    Broken(String),
}

pub(crate) struct Peer {
    /// Its datagram queue pair, and the way there.
    pub(crate) address: Endpoint,
    pub(crate) ah: Ah,
    /// For messages, and for WRITEs: so that no message waits behind a long transfer.
    pub(crate) messages: Qp<Rc, InDomain>,
    pub(crate) writes: Qp<Rc, InDomain>,
    pub(crate) state: State,
    pub(crate) work: Work,
    /// WRITEs that may be posted.
    pub(crate) room: usize,
}

impl Peer {
    /// Makes the queue pairs for a peer; the first hello is due at once.
    pub(crate) fn new(
        address: Endpoint,
        domain: &ParentDomain,
        cq: &Cq,
        srqs: [&Srq; 2],
    ) -> Result<Self> {
        let caps = Caps {
            max_send_wr: DEPTH as u32,
            ..Caps::default()
        };
        let queue_pair = |srq| domain.qp(cq).srq(srq).caps(caps).create_in_domain::<Rc>();
        let context = domain.context();
        let path = context.path_to(&address, &ConnectOptions::default())?;
        Ok(Self {
            ah: domain.create_ah(&path)?,
            messages: queue_pair(srqs[0])?,
            writes: queue_pair(srqs[1])?,
            address,
            state: State::Greeting(Instant::now()),
            work: Work::default(),
            room: DEPTH,
        })
    }

    pub(crate) fn is_of(&self, qpn: u32) -> bool {
        [self.messages.qpn(), self.writes.qpn()].contains(&qpn)
    }

    /// Connects, unless it is done: both sides may have begun at once, and a hello may come twice.
    pub(crate) fn hear(&mut self, hello: &Hello) {
        if let State::Greeting(_) = self.state {
            let connected = self.messages.connect(&hello.messages);
            self.state = match connected.and_then(|()| self.writes.connect(&hello.writes)) {
                Ok(()) => State::Established,
                Err(error) => State::Broken(error.to_string()),
            };
        }
    }

    /// Whether to say hello now.
    pub(crate) fn is_hello_due(&mut self) -> bool {
        match &mut self.state {
            State::Greeting(again) if Instant::now() >= *again => {
                *again += HELLO_AGAIN;
                true
            }
            _ => false,
        }
    }

    /// Posts as many pages as the queue has room for.
    pub(crate) fn post_shares(&mut self, td: &mut ThreadDomain, book: &mut Book) {
        while let Some(share) = self.work.shares.front_mut().filter(|_| self.room > 0) {
            let posted = share.post(&mut self.writes, td, self.room);
            match &posted {
                Ok(count) => self.room -= count,
                Err(error) => book.end(share.transfer, 0, Err(error.to_string())),
            }
            if posted.is_err() || share.next == share.end {
                self.work.shares.pop_front();
            }
        }
    }

    /// Fails what waits for a peer that is lost.
    pub(crate) fn give_up(&mut self, book: &mut Book) {
        if let State::Broken(why) = &self.state {
            let why = format!("{}: {why}", self.address);
            self.work.give_up(book, &why);
        }
    }
}
