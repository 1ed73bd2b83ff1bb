//! A client that keeps a copy of its table in the memory of a server, and that gets over the end of a
//! connection and of the server.
//!
//! ```text
//! reconnect server ADDRESS:PORT     # on one host; prints its address
//! reconnect client ADDRESS:PORT     # on the other
//! reconnect                         # both on this host, and what can happen to them
//! ```
//!
//! What the client does about it, in this order:
//!
//! * **Notice.** One wait is for completions and for the connection's end ([`Link::completions_or_event`]): a
//!   peer that dies does not touch this side's queue pair.
//! * **Settle.** It fails the queue pair, and takes completions until none is in flight. Those that succeeded
//!   are confirmed. Of the others nobody knows whether the peer has them, so they are written again: the same
//!   bytes to the same place, which may happen twice.
//! * **Back off.** It waits longer after each failure, with a random part. A connection counts as a success
//!   when something has been confirmed on it, not when it is made: one that always comes up and dies is no
//!   better than none.
//! * **Connect** as at first, with a new queue pair. The address is resolved again, since another device may
//!   lead there now. What belongs to the device is kept as long as it is the same one.
//! * **Ask whose memory it is.** The server says with its acceptance where its memory is and in which of its
//!   lives it is. In another life its memory is empty, and its keys are others: nothing counts as confirmed
//!   any more.

#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::error::Error;
use std::hash::{BuildHasher, RandomState};
use std::io::{BufRead, BufReader, Lines, Write};
use std::net::{IpAddr, SocketAddr};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use uverbs::cm::{self, Connection, First, Link, Params, Pending, Request};
use uverbs::{Access, Caps, Context, Cq, Device, Mr, Pd, Qp, Rc, RemoteSlice};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Places of the table, and bytes of each.
const SLOTS: usize = 1024;
const SLOT: usize = 64;
/// Requests in flight at most.
const WINDOW: usize = 16;

/// How long one step may take: an attempt to connect, silence on a connection, or to settle.
const STEP: Duration = Duration::from_secs(5);
/// How long the client goes on without any success.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["server", address] => serve(address.parse()?),
        ["client", address] => {
            let told = Client::new(address.parse()?).run(|_| Ok(()))?;
            println!("{told}");
            Ok(())
        }
        [] => both(),
        _ => Err("usage: reconnect [server ADDRESS:PORT | client ADDRESS:PORT]".into()),
    }
}

/// What the server says of itself: its life, and its memory.
#[derive(Clone, Copy)]
struct Hello {
    life: u64,
    memory: RemoteSlice,
}

impl Hello {
    fn to_bytes(self) -> [u8; 28] {
        let mut bytes = [0; 28];
        bytes[..8].copy_from_slice(&self.life.to_be_bytes());
        bytes[8..].copy_from_slice(&self.memory.to_bytes());
        bytes
    }

    /// From private data, which has zeros behind it.
    fn read(bytes: &[u8]) -> Option<Self> {
        let (life, bytes) = bytes.split_first_chunk()?;
        let (memory, _) = bytes.split_first_chunk()?;
        Some(Self {
            life: u64::from_be_bytes(*life),
            memory: RemoteSlice::from_bytes(*memory),
        })
    }
}

// The client.

struct Client {
    server: SocketAddr,
    table: Vec<u8>,
    side: Option<Side>,
    /// The life of the server that has what is confirmed.
    life: Option<u64>,
    confirmed: Vec<bool>,
    told: Told,
}

/// What belongs to a device, and outlives connections.
struct Side {
    context: Context,
    pd: Pd,
    cq: Cq,
    /// The table, and behind it room for what is read back.
    memory: Mr<Vec<u8>>,
}

/// What happened on the way.
#[derive(Default)]
struct Told {
    connections: usize,
    lives: usize,
    written: usize,
}

impl std::fmt::Display for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            connections,
            lives,
            written,
        } = self;
        write!(
            f,
            "{SLOTS} slots copied: {written} writes, {connections} connections, {lives} lives of the server"
        )
    }
}

impl Client {
    fn new(server: SocketAddr) -> Self {
        Self {
            server,
            table: (0..SLOTS * SLOT)
                .map(|at| (at * 7 + at / SLOT) as u8)
                .collect(),
            side: None,
            life: None,
            confirmed: vec![false; SLOTS],
            told: Told::default(),
        }
    }

    /// Copies the table, whatever happens meanwhile. `progress` hears how many slots are confirmed.
    fn run(mut self, mut progress: impl FnMut(usize) -> Result<()>) -> Result<Told> {
        let mut back_off = BackOff::default();
        loop {
            let before = self.told.written;
            let why = match self.connect() {
                Ok((connection, memory)) => match self.copy(connection, memory, &mut progress) {
                    Ok(()) => return Ok(self.told),
                    Err(why) => why,
                },
                Err(why) => why,
            };
            if self.told.written > before {
                back_off = BackOff::default();
            }
            let pause = back_off.next().ok_or("the server does not come back")?;
            println!("{why}; again in {pause:?}");
            thread::sleep(pause);
        }
    }

    /// Connects a new queue pair, and hears what the server has.
    fn connect(&mut self) -> Result<(Connection<Qp<Rc>>, RemoteSlice)> {
        let way = cm::resolve::<Rc>(self.server)?.start()?.within(STEP)?;
        let side = self.side_on(&way.device()?)?;
        let caps = Caps {
            max_send_wr: WINDOW as u32,
            ..Caps::default()
        };
        let qp = side.pd.create_qp::<Rc>(&side.cq, caps)?;
        let connection = way.connect(qp, &Params::default(), b"")?.within(STEP)?;
        let hello =
            Hello::read(connection.private_data()).ok_or("the server says something else")?;
        self.told.connections += 1;
        if self.life != Some(hello.life) {
            self.life = Some(hello.life);
            self.told.lives += 1;
            self.confirmed.fill(false);
        }
        Ok((connection, hello.memory))
    }

    /// What belongs to this device: as it is, or made anew for another device and for one that has come back.
    fn side_on(&mut self, device: &Device) -> Result<&mut Side> {
        let is_of = |side: &Side| {
            side.context.device().index() == device.index() && !side.context.is_device_gone()
        };
        if !self.side.as_ref().is_some_and(is_of) {
            self.side = Some(Side::open(device, &self.table)?);
        }
        Ok(self.side.as_mut().ok_or("there is one")?)
    }

    /// Writes what is not confirmed, and then compares all of it. When this fails, nothing is in flight any
    /// more.
    fn copy(
        &mut self,
        mut connection: Connection<Qp<Rc>>,
        memory: RemoteSlice,
        progress: &mut impl FnMut(usize) -> Result<()>,
    ) -> Result<()> {
        let mut in_flight = 0;
        let done = self
            .write(&mut connection, memory, &mut in_flight, progress)
            .and_then(|()| self.compare(&mut connection, memory, &mut in_flight));
        match done {
            Ok(()) => {
                connection.disconnect()?.within(STEP)?;
                Ok(())
            }
            Err(why) => {
                if let Err(stuck) = self.settle(connection, in_flight) {
                    // Nothing of it is used again, so that no late completion is taken for another.
                    self.side = None;
                    return Err(stuck);
                }
                Err(why)
            }
        }
    }

    fn write(
        &mut self,
        connection: &mut Connection<Qp<Rc>>,
        memory: RemoteSlice,
        in_flight: &mut usize,
        progress: &mut impl FnMut(usize) -> Result<()>,
    ) -> Result<()> {
        let is_open = |slot: &usize| !self.confirmed[*slot];
        let mut open: VecDeque<usize> = (0..SLOTS).filter(is_open).collect();
        let side = self.side.as_mut().ok_or("no device")?;
        loop {
            while *in_flight < WINDOW
                && let Some(slot) = open.pop_front()
            {
                let bytes = slot * SLOT..(slot + 1) * SLOT;
                let from = side.memory.slice(bytes.clone())?;
                connection
                    .one(slot as u64)
                    .write(from, memory.slice(bytes)?)?;
                *in_flight += 1;
            }
            if *in_flight == 0 {
                return Ok(());
            }
            match connection.link().completions_or_event(&mut side.cq, STEP)? {
                Some(First::Output(mut completions)) => {
                    for completion in &mut completions {
                        *in_flight -= 1;
                        completion.result()?;
                        self.confirmed[completion.wr_id() as usize] = true;
                        self.told.written += 1;
                    }
                }
                Some(First::Event(event)) if event.ends() => {
                    return Err(format!("the connection has ended: {event:?}").into());
                }
                Some(First::Event(_)) => {}
                None => return Err("the server is silent".into()),
            }
            progress(self.confirmed.iter().filter(|slot| **slot).count())?;
        }
    }

    /// Reads the server's memory, which must be the table.
    fn compare(
        &mut self,
        connection: &mut Connection<Qp<Rc>>,
        memory: RemoteSlice,
        in_flight: &mut usize,
    ) -> Result<()> {
        let side = self.side.as_mut().ok_or("no device")?;
        let length = self.table.len();
        let into = side.memory.slice(length..2 * length)?;
        connection.one(0).read(into, memory.slice(..length)?)?;
        *in_flight += 1;
        match connection.link().completions_or_event(&mut side.cq, STEP)? {
            Some(First::Output(mut completions)) => {
                for completion in &mut completions {
                    *in_flight -= 1;
                    completion.result()?;
                }
            }
            other => return Err(format!("no answer: {other:?}").into()),
        }
        let mut read = vec![0; length];
        side.memory.read_at(length, &mut read)?;
        match read == self.table {
            true => Ok(()),
            false => Err("the copy is another".into()),
        }
    }

    /// Ends a connection and waits until none of its requests is in flight: then the same memory may be
    /// posted again, and no late completion is taken for one of the next connection.
    fn settle(&mut self, mut connection: Connection<Qp<Rc>>, mut in_flight: usize) -> Result<()> {
        let side = self.side.as_mut().ok_or("no device")?;
        // It fails if the device is gone, and the completions with it.
        if connection.fail().is_err() {
            return Ok(());
        }
        let end = Instant::now() + STEP;
        while in_flight > 0 {
            let left = end.saturating_duration_since(Instant::now());
            let Some(mut completions) = side.cq.wait(left)? else {
                return Err("requests stay in flight".into());
            };
            for completion in &mut completions {
                in_flight -= 1;
                // A late success counts like any other. (So does one of `compare`, whose number is a slot's
                // that is confirmed.)
                if completion.is_ok() {
                    self.confirmed[completion.wr_id() as usize] = true;
                    self.told.written += 1;
                }
            }
        }
        Ok(())
    }
}

impl Side {
    fn open(device: &Device, table: &[u8]) -> Result<Self> {
        let context = device.open()?;
        let pd = context.alloc_pd()?;
        let channel = context.create_channel()?;
        let mut bytes = table.to_vec();
        bytes.resize(2 * table.len(), 0);
        Ok(Self {
            cq: context.cq(2 * WINDOW as u32).channel(&channel).create()?,
            memory: pd.register(bytes, Access::LOCAL_WRITE)?,
            pd,
            context,
        })
    }
}

/// How long to wait before the next attempt.
#[derive(Default)]
struct BackOff {
    failures: u32,
    waited: Duration,
}

impl BackOff {
    const FIRST: Duration = Duration::from_millis(50);
    const LONGEST: Duration = Duration::from_secs(5);

    /// The next pause: up to twice as long as the one before, of which half is left to chance, so that a
    /// thousand clients do not come at once. None after all patience.
    fn next(&mut self) -> Option<Duration> {
        let most = Self::FIRST * (1 << self.failures.min(7));
        let half = most.min(Self::LONGEST) / 2;
        let chance = RandomState::new().hash_one(self.failures) % 1000;
        let pause = half + half * chance as u32 / 1000;
        self.failures += 1;
        self.waited += pause;
        (self.waited < PATIENCE).then_some(pause)
    }
}

// The server.

/// The memory that clients write to.
struct Store {
    pd: Pd,
    cq: Cq,
    memory: Mr<Vec<u8>>,
}

impl Store {
    fn open(device: &Device) -> Result<Self> {
        let context = device.open()?;
        let pd = context.alloc_pd()?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        Ok(Self {
            cq: context.create_cq(16)?,
            memory: pd.register(vec![0; SLOTS * SLOT], access)?,
            pd,
        })
    }

    fn accept(&self, request: Request<Rc>, life: u64) -> Result<Connection<Qp<Rc>>> {
        let qp = self.pd.create_qp::<Rc>(&self.cq, Caps::default())?;
        let memory = self.memory.remote();
        let hello = Hello { life, memory }.to_bytes();
        let accepting = request.accept(qp, &Params::default(), &hello)?;
        Ok(accepting.within(STEP)?)
    }
}

/// Takes connections until its standard input ends; for a line there it drops those that it has.
fn serve(address: SocketAddr) -> Result<()> {
    let listener = cm::listen::<Rc>(address)?.start()?;
    println!("{}", listener.local_addr());
    // Another number in each life.
    let life = RandomState::new().hash_one(std::process::id());
    let (lines, mut store) = (lines(), None);
    let mut connections: Vec<Connection<Qp<Rc>>> = Vec::new();
    loop {
        match lines.try_recv() {
            Ok(()) => {
                connections.clear();
                println!("dropped");
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return Ok(()),
        }
        // A client that comes back does not wait for its last connection to end here.
        connections.retain(|connection| !has_ended(connection.link()));
        // The example `epoll` waits for everything at once.
        let Some(request) = listener.next_within(Duration::from_millis(20))? else {
            continue;
        };
        let store = match &mut store {
            Some(store) => store,
            none => none.insert(Store::open(&request.device()?)?),
        };
        match store.accept(request, life) {
            Ok(connection) => connections.push(connection),
            Err(why) => eprintln!("a client has given up: {why}"),
        }
    }
}

/// The lines of standard input, as they come.
fn lines() -> Receiver<()> {
    let (told, lines) = mpsc::channel();
    thread::spawn(move || {
        for _ in std::io::stdin().lines().map_while(|line| line.ok()) {
            if told.send(()).is_err() {
                return;
            }
        }
    });
    lines
}

fn has_ended(link: &Link) -> bool {
    loop {
        match link.try_event() {
            Ok(Some(event)) if event.ends() => return true,
            Ok(Some(_)) => {}
            Ok(None) => return false,
            Err(_) => return true,
        }
    }
}

// Both, and what happens to them.

/// A server in a process of its own, which is killed when this is dropped.
struct Server {
    process: Child,
    says: Lines<BufReader<ChildStdout>>,
    address: SocketAddr,
}

impl Server {
    fn start(address: SocketAddr) -> Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .args(["server", &address.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = process.stdout.take().ok_or("no output")?;
        let mut says = BufReader::new(output).lines();
        let address = says.next().ok_or("the server does not listen")??.parse()?;
        Ok(Self {
            process,
            says,
            address,
        })
    }

    /// Has it drop its connections, and waits until it has.
    fn drop_connections(&mut self) -> Result<()> {
        let input = self.process.stdin.as_mut().ok_or("no input")?;
        writeln!(input)?;
        self.says.next().ok_or("the server has ended")??;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It has ended already, if all went well.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn both() -> Result<()> {
    let first = Server::start(SocketAddr::new(first_address()?, 0))?;
    let address = first.address;
    let (mut server, mut next) = (Some(first), None);
    let mut is_dropped = false;
    let told = Client::new(address).run(|confirmed| {
        // Both happen while requests are in flight.
        if confirmed >= SLOTS / 4
            && !is_dropped
            && let Some(server) = &mut server
        {
            server.drop_connections()?;
            is_dropped = true;
        }
        if confirmed >= SLOTS / 2
            && let Some(server) = server.take()
        {
            drop(server);
            next = Some(thread::spawn(move || {
                thread::sleep(Duration::from_millis(300));
                Server::start(address)
            }));
        }
        Ok(())
    })?;
    println!("{told}");
    let next = next.ok_or("the server was never killed")?;
    next.join().map_err(|_| "starting the server panicked")??;
    match told.lives == 2 && told.connections >= 3 && told.written > SLOTS {
        true => Ok(()),
        false => Err("less has happened than was to".into()),
    }
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
