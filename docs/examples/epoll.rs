//! A server that waits for everything in one place: an epoll set with the files of its listener, of each
//! connection and of one completion channel. All connections share a completion queue and a stock of
//! receives. Its clients here are threads, each with its own open device; they could as well be on other
//! hosts.
//!
//! A client sends lines, and the server sends each back in capitals. A client may end at any time, with or
//! without a word: the server hears of it by the file of the connection. The argument is an address of this
//! host on an RDMA device; without one the first is taken.
//!
//! What epoll knows of the files of this library:
//!
//! * A connection has one file from the request on. It goes by value through `Request`, `Accepting` and
//!   `Connection` to `Link`, and keeps its number. So it is added once, and `Accepting` is only the first
//!   thing that its news are about. Adding it again when the connection is established fails with `EEXIST`.
//! * The file is closed when the value that holds it is dropped, and with that it leaves the set: nothing is
//!   removed.
//! * Files do not block. Being level-triggered, they are reported until they are empty, so each is read until
//!   it has no more. A completion channel is empty before its queue is: whoever sleeps must have armed the
//!   queue.

#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use uverbs::cm::{
    self, Accepting, Connection, First, Link, Listener, Params, Pending, Request, Step,
};
use uverbs::{Access, Caps, CompletionChannel, Context, Cq, Inline, Mr, Notify, Pd, Qp, Rc, Srq};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const CLIENTS: u64 = 4;
const LINES: u64 = 3;
/// Receives in the stock, for all clients together.
const SLOTS: usize = 16;
/// Bytes of a line at most.
const LINE: usize = 64;
/// The `wr_id` of sends; receives have the number of their slot.
const SEND: u64 = u64::MAX;
const PATIENCE: Duration = Duration::from_secs(60);

/// What the set calls the files that are no connection; a connection is called by the number of its queue
/// pair.
const LISTENER: u64 = u64::MAX;
const COMPLETIONS: u64 = u64::MAX - 1;

fn main() -> Result<()> {
    let address = match std::env::args().nth(1) {
        Some(address) => address.parse()?,
        None => first_address()?,
    };
    let listener = cm::listen::<Rc>((address, 0))?.start()?;
    let server = listener.local_addr();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| std::thread::spawn(move || client(server, number)))
        .collect();
    let answered = Server::new(listener)?.run()?;
    for client in clients {
        client.join().map_err(|_| "a client panicked")??;
    }
    println!("{answered} lines");
    Ok(())
}

/// A peer from its request to its end: either way with the same file, and with a queue pair.
enum Peer {
    Accepting(Accepting<Qp<Rc>>),
    Connected(Connection<Qp<Rc>>),
}

impl Peer {
    /// A peer's first message may come before its confirmation, so both have a queue pair that can answer.
    fn qp(&mut self) -> &mut Qp<Rc> {
        match self {
            Self::Accepting(accepting) => accepting.qp_mut(),
            Self::Connected(connection) => connection,
        }
    }
}

struct Server {
    epoll: OwnedFd,
    listener: Listener<Rc>,
    channel: CompletionChannel,
    cq: Cq,
    srq: Srq,
    inbox: Mr<Vec<u8>>,
    pd: Pd,
    /// By the numbers of their queue pairs, which completions and the set have.
    peers: HashMap<u32, Peer>,
    ended: u64,
    answered: u64,
}

impl Server {
    fn new(listener: Listener<Rc>) -> Result<Self> {
        // The address that it listens on is one device's.
        let context = device_of(listener.local_addr().ip())?;
        let pd = context.alloc_pd()?;
        let channel = context.create_channel()?;
        let mut server = Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            // Room for all sends of all clients, and for the stock.
            cq: context.cq(512).channel(&channel).create()?,
            srq: pd.srq(SLOTS as u32).create()?,
            inbox: pd.register(vec![0; SLOTS * LINE], Access::LOCAL_WRITE)?,
            peers: HashMap::new(),
            ended: 0,
            answered: 0,
            listener,
            channel,
            pd,
        };
        for slot in 0..SLOTS {
            server.receive(slot)?;
        }
        server.watch(&server.listener, LISTENER)?;
        server.watch(&server.channel, COMPLETIONS)?;
        Ok(server)
    }

    fn watch(&self, file: impl AsFd, name: u64) -> Result<()> {
        let name = epoll::EventData::new_u64(name);
        Ok(epoll::add(&self.epoll, file, name, epoll::EventFlags::IN)?)
    }

    /// Serves until as many clients have ended as there are, and gives the number of lines answered.
    fn run(mut self) -> Result<u64> {
        while self.ended < CLIENTS {
            let mut news = Vec::new();
            for name in self.wait()? {
                match name {
                    LISTENER => self.accept_all()?,
                    COMPLETIONS => while self.channel.try_next()?.is_some() {},
                    connection => news.push(connection as u32),
                }
            }
            // Before the news: what a peer said before it ended is not lost. And in every round, so that the
            // queue is armed whenever this sleeps.
            self.take_completions()?;
            for connection in news {
                self.hear(connection)?;
            }
        }
        Ok(self.answered)
    }

    /// Sleeps until there is something, and names it.
    fn wait(&self) -> Result<Vec<u64>> {
        let limit = Timespec::try_from(PATIENCE)?;
        let mut events = Vec::with_capacity(16);
        loop {
            let room = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, room, Some(&limit)) {
                Ok(0) => return Err("the clients are silent".into()),
                Ok(_) => return Ok(events.iter().map(|event| event.data.u64()).collect()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn accept_all(&mut self) -> Result<()> {
        while let Some(request) = self.listener.try_next()? {
            self.accept(request)?;
        }
        Ok(())
    }

    fn accept(&mut self, request: Request<Rc>) -> Result<()> {
        let qp = self.pd.qp(&self.cq).srq(&self.srq).create::<Rc>()?;
        let qpn = qp.qpn();
        // Before it is answered, so that no news are missed; there is one file for all that becomes of it.
        self.watch(&request, qpn.into())?;
        match request.accept(qp, &Params::default(), b"") {
            Ok(accepting) => drop(self.peers.insert(qpn, Peer::Accepting(accepting))),
            Err(failed) => println!("a client has given up: {failed}"),
        }
        Ok(())
    }

    /// Takes all completions, and leaves the queue armed.
    fn take_completions(&mut self) -> Result<()> {
        loop {
            let Some(mut completions) = self.cq.poll_or_arm(Notify::Next)? else {
                return Ok(());
            };
            let completions: Vec<_> = completions.iter().collect();
            for completion in completions {
                if completion.wr_id() == SEND {
                    // Of one that fails, the connection's file tells.
                    continue;
                }
                let slot = completion.wr_id() as usize;
                // A receive that a failed queue pair had taken comes back without a message.
                if completion.result().is_ok() {
                    let mut line = vec![0; completion.byte_len() as usize];
                    self.inbox.read_at(slot * LINE, &mut line)?;
                    self.answer(completion.qp_num(), &String::from_utf8(line)?)?;
                }
                self.receive(slot)?;
            }
        }
    }

    fn answer(&mut self, qpn: u32, line: &str) -> Result<()> {
        let Some(peer) = self.peers.get_mut(&qpn) else {
            return Ok(());
        };
        let text = line.to_uppercase();
        peer.qp()
            .post(|batch| batch.signaled(SEND).send(Inline(text.as_bytes())))?;
        self.answered += 1;
        Ok(())
    }

    /// Puts a receive into the stock.
    fn receive(&mut self, slot: usize) -> Result<()> {
        let into = self.inbox.slot(slot, LINE)?;
        let mut batch = self.srq.batch();
        batch.post(slot as u64, into)?;
        batch.ring();
        Ok(())
    }

    /// Looks what is new about a connection. One that ends is dropped, and its file leaves the set.
    fn hear(&mut self, qpn: u32) -> Result<()> {
        // It may have been reported and ended in one round.
        let Some(peer) = self.peers.remove(&qpn) else {
            return Ok(());
        };
        let connection = match peer {
            Peer::Connected(connection) => connection,
            Peer::Accepting(accepting) => match accepting.try_finish() {
                Ok(Step::Done(connection)) => connection,
                Ok(Step::Pending(accepting)) => {
                    self.peers.insert(qpn, Peer::Accepting(accepting));
                    return Ok(());
                }
                Err(failed) => {
                    println!("a client has gone before it was connected: {failed}");
                    self.ended += 1;
                    return Ok(());
                }
            },
        };
        if has_ended(connection.link())? {
            println!("{} has ended", connection.peer_addr());
            self.ended += 1;
        } else {
            self.peers.insert(qpn, Peer::Connected(connection));
        }
        Ok(())
    }
}

/// Reads the link's file until it has no more.
fn has_ended(link: &Link) -> Result<bool> {
    while let Some(event) = link.try_event()? {
        if event.ends() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Sends its lines one after the other. The odd ones end without a word.
fn client(server: SocketAddr, number: u64) -> Result<()> {
    let way = cm::resolve::<Rc>(server)?.start()?.within(PATIENCE)?;
    let context = way.device()?.open()?;
    let pd = context.alloc_pd()?;
    let channel = context.create_channel()?;
    let mut cq = context.cq(16).channel(&channel).create()?;
    let inbox = pd.register(vec![0; LINE], Access::LOCAL_WRITE)?;
    let qp = pd.create_qp::<Rc>(&cq, Caps::default())?;
    let mut connection = way.connect(qp, &Params::default(), b"")?.within(PATIENCE)?;
    for turn in 0..LINES {
        let mut receives = connection.recv_batch();
        receives.post(turn, inbox.slice(..)?)?;
        receives.ring();
        let line = format!("line {turn} of client {number}");
        connection.one(SEND).send(Inline(line.as_bytes()))?;
        let mut awaited = 2;
        while awaited > 0 {
            match connection.link().completions_or_event(&mut cq, PATIENCE)? {
                Some(First::Output(mut completions)) => {
                    for completion in &mut completions {
                        completion.result()?;
                        awaited -= 1;
                    }
                }
                Some(First::Event(event)) if event.ends() => return Err("the server ended".into()),
                Some(First::Event(_)) => {}
                None => return Err("the server is silent".into()),
            }
        }
        let mut answer = vec![0; line.len()];
        inbox.read_at(0, &mut answer)?;
        if answer != line.to_uppercase().as_bytes() {
            return Err("another answer".into());
        }
    }
    if number.is_multiple_of(2) {
        connection.disconnect()?.within(PATIENCE)?;
    }
    Ok(())
}

/// An IPv4 address of this host that an RDMA device has.
fn first_address() -> Result<IpAddr> {
    for device in uverbs::devices()? {
        let gids = device.gid_table(1)?;
        if let Some(address) = gids.iter().find_map(|entry| entry.gid.as_ipv4()) {
            return Ok(address.into());
        }
    }
    Err("no RDMA device of this host has an IPv4 address: name one".into())
}

/// The device that has this address.
fn device_of(address: IpAddr) -> Result<Context> {
    // The connection manager knows, and on InfiniBand it alone.
    let way = cm::resolve::<Rc>((address, 1))?.start()?.within(PATIENCE)?;
    Ok(way.device()?.open()?)
}
