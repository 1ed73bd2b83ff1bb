//! A server process is replaced while a peer keeps reading and writing its memory.
//!
//! `handover [MIB [DEVICE]]`: this process is the peer, and starts this program again as the two servers. The
//! memory is a memfd, registered once. The new server joins the old one's offer and gets the command file,
//! the protection domain, the region and the memfd; the old one exits. The connection belongs to the command
//! file, so the peer's WRITEs and READs continue with the same key, and nothing is registered again. Finally
//! the new server registers the same amount of memory anew, for comparison.

#![forbid(unsafe_code)]

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use memmap2::MmapRaw;
use uverbs::share::{Address, Join, ShareKey};
use uverbs::{
    Access, Caps, ConnectOptions, Context, Cq, Inline, Mr, Qp, Rc, RemoteSlice, mr::RemoteKey,
};

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// What the new server leaves in the memory for the peer to read.
const GREETING: &[u8; 24] = b"the new server was here.";

fn main() -> Result {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["old-server", address, device, mib] => old_server(address.parse()?, device, mib.parse()?),
        ["new-server", address] => new_server(address.parse()?),
        [] => peer(256, None),
        [mib] => peer(mib.parse()?, None),
        [mib, device] => peer(mib.parse()?, Some(device)),
        _ => Err("usage: handover [MIB [DEVICE]]".into()),
    }
}

/// Serves its memory until it is told to go.
fn old_server(address: Address, device: &str, mib: usize) -> Result {
    let key: ShareKey = hear()?.parse()?;
    let context = uverbs::open(device)?;
    let pd = context.alloc_pd()?;
    let memfd = rustix::fs::memfd_create("served", rustix::fs::MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&memfd, (mib << 20) as u64)?;
    let region = pd.register(MmapRaw::map_raw(&memfd)?, all_access())?;

    let cq = context.create_cq(16)?;
    let mut qp = pd.create_qp::<Rc>(&cq, Caps::default())?;
    let RemoteSlice {
        address: first,
        length,
        rkey,
    } = region.remote();
    say(&format!("{} {first} {length} {}", qp.endpoint()?, rkey.0));
    qp.connect_with(&hear()?.parse()?, &patient())?;
    say("connected");

    hear()?;
    let offer = pd
        .offer(key)
        .mr("served", &region)
        .memory(memfd.as_fd())
        .at(&address)?;
    let _serving = offer.spawn()?;
    say("offered");
    hear()?;
    // No destructor runs, so nothing is destroyed: the queue pair and the region belong to the command file,
    // which the new server holds.
    std::process::exit(0)
}

/// Takes over the memory, and says what it finds in it.
fn new_server(address: Address) -> Result {
    let key: ShareKey = hear()?.parse()?;
    // The old server is told to make its offer only when this process has started, so there may be none yet.
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut joined = Join::new(address, key).deadline(deadline).join()?;
    let served = joined.take_mr("served").ok_or("nothing is served")?;
    let (_region, memfd) = served.into_parts();
    let memfd = memfd.ok_or("the memory did not come along")?;
    say("taken over");

    hear()?;
    // The file's pages are those that the device knows.
    rustix::io::pwrite(&memfd, GREETING, 64)?;
    say("greeted");
    hear()?;
    let mut count = [0; 8];
    rustix::io::pread(&memfd, &mut count, 0)?;
    say(&u64::from_ne_bytes(count).to_string());

    let length = rustix::fs::fstat(&memfd)?.st_size;
    let (_fresh, took) = register_afresh(&joined, usize::try_from(length)?)?;
    say(&took.as_micros().to_string());
    Ok(())
}

/// Registers as much new memory, as a server would have to that takes nothing over.
fn register_afresh(
    joined: &uverbs::share::Joined,
    length: usize,
) -> Result<(Mr<MmapRaw>, Duration)> {
    let memfd = rustix::fs::memfd_create("fresh", rustix::fs::MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&memfd, length as u64)?;
    let memory = MmapRaw::map_raw(&memfd)?;
    let start = Instant::now();
    let region = joined.pd().register(memory, all_access())?;
    Ok((region, start.elapsed()))
}

/// The peer: writes and reads all the time, and sees how long it has to wait.
fn peer(mib: usize, device: Option<&str>) -> Result {
    let devices = uverbs::devices()?;
    let first = devices.first().map(|device| device.name());
    let device = device.or(first).ok_or("this machine has no RDMA device")?;
    let key = ShareKey::random()?;
    let address = format!("@uverbs-handover-{}", std::process::id());
    let mut old = Server::start(&["old-server", &address, device, &mib.to_string()], &key)?;

    let context = uverbs::open(device)?;
    let mut client = Client::new(&context, &mut old)?;
    (0..100).try_for_each(|_| client.round())?;

    // Another thread replaces the server; this one goes on as if nothing happened.
    let done = AtomicBool::new(false);
    let (mut new, began, ended) = std::thread::scope(|scope| {
        let replacing = scope.spawn(|| {
            let replaced = replace(old, &address, &key).map_err(|error| error.to_string());
            done.store(true, Ordering::Relaxed);
            replaced
        });
        while !done.load(Ordering::Relaxed) {
            client.round()?;
        }
        replacing
            .join()
            .map_err(|_| "the replacement panicked")?
            .map_err(Box::<dyn Error>::from)
    })?;
    (0..100).try_for_each(|_| client.round())?;

    new.say("greet")?;
    new.hear()?;
    client.look_for_greeting()?;
    new.say("look")?;
    if new.hear()?.parse() != Ok(client.counter) {
        return Err("the new server does not see what was written last".into());
    }
    let afresh = Duration::from_micros(new.hear()?.parse()?);
    println!(
        "{} rounds of WRITE and READ, none failed",
        client.rounds.len()
    );
    println!(
        "longest wait of the peer before and after: {:?}",
        client.longest_outside(began, ended)
    );
    println!(
        "longest wait of the peer in the hand-over: {:?}",
        client.longest_within(began, ended)
    );
    println!("registering {mib} MiB afresh takes:        {afresh:?}");
    Ok(())
}

/// Starts the new server, has it take over, and ends the old one.
fn replace(mut old: Server, address: &str, key: &ShareKey) -> Result<(Server, Instant, Instant)> {
    let mut new = Server::start(&["new-server", address], key)?;
    let began = Instant::now();
    old.say("offer")?;
    old.hear()?;
    new.hear()?;
    old.say("go")?;
    if !old.process.wait()?.success() {
        return Err("the old server failed".into());
    }
    Ok((new, began, Instant::now()))
}

/// The peer's end of the connection.
struct Client {
    qp: Qp<Rc>,
    cq: Cq,
    buffer: Mr<Vec<u8>>,
    served: RemoteSlice,
    counter: u64,
    /// When each round ended.
    rounds: Vec<Instant>,
}

impl Client {
    fn new(context: &Context, server: &mut Server) -> Result<Self> {
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(16)?;
        let mut qp = pd.create_qp::<Rc>(&cq, Caps::default())?;
        let line = server.hear()?;
        let fields: Vec<&str> = line.split(' ').collect();
        let [endpoint, address, length, rkey] = fields[..] else {
            return Err(format!("the server says {line:?}").into());
        };
        let served = RemoteSlice {
            address: address.parse()?,
            length: length.parse()?,
            rkey: RemoteKey(rkey.parse()?),
        };
        server.say(&qp.endpoint()?.to_string())?;
        server.hear()?;
        qp.connect_with(&endpoint.parse()?, &patient())?;
        let buffer = pd.register(vec![0u8; 128], Access::LOCAL_WRITE)?;
        Ok(Self {
            qp,
            cq,
            buffer,
            served,
            counter: 0,
            rounds: Vec::new(),
        })
    }

    /// Writes the next number to the server's memory and reads it back.
    fn round(&mut self) -> Result {
        self.counter += 1;
        let bytes = self.counter.to_ne_bytes();
        let mut batch = self.qp.batch();
        batch
            .unsignaled(0)
            .write(Inline(&bytes), self.served.slice(..8)?)?;
        batch
            .signaled(1)
            .read(self.buffer.slice(..8)?, self.served.slice(..8)?)?;
        batch.ring()?;
        if self.finish::<8>()? != bytes {
            return Err("what was read is not what was written".into());
        }
        self.rounds.push(Instant::now());
        Ok(())
    }

    fn look_for_greeting(&mut self) -> Result {
        let mut batch = self.qp.batch();
        batch
            .signaled(1)
            .read(self.buffer.slice(..24)?, self.served.slice(64..88)?)?;
        batch.ring()?;
        match self.finish::<24>()? == *GREETING {
            true => Ok(()),
            false => Err("the new server's bytes cannot be read".into()),
        }
    }

    /// Waits for the completion, and gives the start of the buffer.
    fn finish<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut done = false;
        while !done {
            for completion in &mut self.cq.poll()? {
                completion.result()?;
                done = true;
            }
        }
        let mut bytes = [0; N];
        self.buffer.read_at(0, &mut bytes)?;
        Ok(bytes)
    }

    fn longest_within(&self, began: Instant, ended: Instant) -> Duration {
        self.longest(|from, to| to >= began && from <= ended)
    }

    fn longest_outside(&self, began: Instant, ended: Instant) -> Duration {
        self.longest(|from, to| to < began || from > ended)
    }

    /// The longest time between the ends of two rounds that follow each other, of those that count.
    fn longest(&self, counts: impl Fn(Instant, Instant) -> bool) -> Duration {
        let pairs = self
            .rounds
            .windows(2)
            .filter(|pair| counts(pair[0], pair[1]));
        pairs
            .map(|pair| pair[1] - pair[0])
            .max()
            .unwrap_or_default()
    }
}

/// What is not acknowledged is sent again after a second: the machine is busy with the hand-over, and
/// soft-RoCE may complete a READ without its data when it is sent again together with a WRITE.
fn patient() -> ConnectOptions {
    ConnectOptions {
        timeout: 18,
        ..ConnectOptions::default()
    }
}

fn all_access() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ
}

/// A server's process, which is spoken to by lines.
struct Server {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Server {
    /// Starts one, and tells it the key by its standard input: arguments are there for everybody to see.
    fn start(arguments: &[&str], key: &ShareKey) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = command.spawn()?;
        let input = process.stdin.take().ok_or("no stdin")?;
        let output = BufReader::new(process.stdout.take().ok_or("no stdout")?);
        let mut server = Self {
            process,
            input,
            output,
        };
        server.say(&format!("{:016x}", key.expose()))?;
        Ok(server)
    }

    fn say(&mut self, line: &str) -> Result {
        Ok(writeln!(self.input, "{line}")?)
    }

    fn hear(&mut self) -> Result<String> {
        read_line(&mut self.output)
    }
}

fn say(line: &str) {
    println!("{line}");
}

fn hear() -> Result<String> {
    read_line(&mut std::io::stdin().lock())
}

fn read_line(from: &mut impl BufRead) -> Result<String> {
    let mut line = String::new();
    match from.read_line(&mut line)? {
        0 => Err("the other process has ended".into()),
        _ => Ok(line.trim_end().to_owned()),
    }
}
