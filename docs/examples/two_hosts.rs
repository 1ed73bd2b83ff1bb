//! Two processes on one host or two: the client writes into the server's memory and tells it so.
//!
//! ```text
//! two_hosts server [DEVICE]               # on one host; prints its port
//! two_hosts client HOST:PORT [DEVICE]     # on the other
//! two_hosts                               # both, on this host
//! ```
//!
//! The peers exchange what they need over TCP, as a line of text: the queue pair's endpoint, and the slice of
//! memory that the other side may write to.

#![forbid(unsafe_code)]

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use uverbs::{Access, Caps, Context, Cq, Endpoint, Inline, Mr, Pd, Qp, Rc, RemoteSlice};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const MESSAGE: &[u8] = b"written from afar";

/// How long a side waits for the other.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["server"] => serve(None),
        ["server", device] => serve(Some(device)),
        ["client", address] => call(address, None),
        ["client", address, device] => call(address, Some(device)),
        [] => both(),
        _ => Err("usage: two_hosts [server [DEVICE] | client HOST:PORT [DEVICE]]".into()),
    }
}

/// Waits for a client, and for its message.
fn serve(device: Option<&str>) -> Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", 0))?;
    println!("{}", listener.local_addr()?.port());
    let mut side = Side::new(device)?;
    let (stream, client) = listener.accept()?;
    let mut wire = Wire::new(stream)?;
    let (peer, _) = wire.exchange(&side)?;
    side.qp.connect(&peer)?;
    // A WRITE with immediate data takes a receive, so that it has a completion here. The receive needs no
    // memory. It is posted before the peer is told to begin.
    let mut batch = side.qp.recv_batch();
    batch.post_empty(1)?;
    batch.ring();
    wire.say("ready")?;

    let imm = side.wait_for_one()?;
    let mut text = [0; MESSAGE.len()];
    side.memory.read_at(0, &mut text)?;
    println!(
        "{client}: {:?}, immediate {imm:?}",
        String::from_utf8_lossy(&text)
    );
    wire.say("done")?;
    match text == MESSAGE {
        true => Ok(()),
        false => Err("the message is another".into()),
    }
}

/// Writes the message into the memory of a server.
fn call(address: &str, device: Option<&str>) -> Result<()> {
    let mut side = Side::new(device)?;
    let mut wire = Wire::new(TcpStream::connect(address)?)?;
    let (peer, target) = wire.exchange(&side)?;
    side.qp.connect(&peer)?;
    wire.hear("ready")?;

    let target = target.slice(..MESSAGE.len())?;
    side.qp.post(|batch| {
        batch.signaled(7).write_imm(Inline(MESSAGE), target, 42)?;
        Ok(())
    })?;
    side.wait_for_one()?;
    wire.hear("done")
}

/// What either side has.
struct Side {
    qp: Qp<Rc>,
    cq: Cq,
    memory: Mr<Vec<u8>>,
    _pd: Pd,
}

impl Side {
    fn new(device: Option<&str>) -> Result<Self> {
        let context = open(device)?;
        let pd = context.alloc_pd()?;
        let memory = pd.register(vec![0; 4096], Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let channel = context.create_channel()?;
        let cq = context.cq(16).channel(&channel).create()?;
        let qp = pd.create_qp::<Rc>(&cq, Caps::default())?;
        Ok(Self {
            qp,
            cq,
            memory,
            _pd: pd,
        })
    }

    /// Waits for one completion and gives its immediate data.
    fn wait_for_one(&mut self) -> Result<Option<u32>> {
        let Some(mut completions) = self.cq.wait(PATIENCE)? else {
            return Err("the peer is silent".into());
        };
        let completion = completions.iter().next().ok_or("no completion")?;
        completion.result()?;
        Ok(completion.imm())
    }
}

fn open(device: Option<&str>) -> Result<Context> {
    let devices = uverbs::devices()?;
    let name = device.or_else(|| devices.first().map(|device| device.name()));
    Ok(uverbs::open(
        name.ok_or("this machine has no RDMA device")?,
    )?)
}

/// The connection by which the sides find each other.
struct Wire(BufReader<TcpStream>);

impl Wire {
    fn new(stream: TcpStream) -> Result<Self> {
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self(BufReader::new(stream)))
    }

    fn exchange(&mut self, side: &Side) -> Result<(Endpoint, RemoteSlice)> {
        let (endpoint, memory) = (side.qp.endpoint()?, side.memory.remote());
        self.say(&format!("{endpoint} {memory}"))?;
        let line = self.line()?;
        let (endpoint, memory) = line.split_once(' ').ok_or("the peer speaks otherwise")?;
        Ok((endpoint.parse()?, memory.parse()?))
    }

    fn say(&mut self, line: &str) -> Result<()> {
        Ok(writeln!(self.0.get_mut(), "{line}")?)
    }

    fn hear(&mut self, word: &str) -> Result<()> {
        match self.line()? == word {
            true => Ok(()),
            false => Err(format!("the peer did not say {word:?}").into()),
        }
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }
}

/// Runs a server in a process of its own and calls it.
fn both() -> Result<()> {
    let mut server = Command::new(std::env::current_exe()?)
        .arg("server")
        .stdout(Stdio::piped())
        .spawn()?;
    let mut output = BufReader::new(server.stdout.take().ok_or("no output")?);
    let mut port = String::new();
    output.read_line(&mut port)?;
    let called = call(&format!("127.0.0.1:{}", port.trim()), None);
    if called.is_err() {
        server.kill()?;
    }
    for line in output.lines() {
        println!("{}", line?);
    }
    let ended = server.wait()?;
    called?;
    match ended.success() {
        true => Ok(()),
        false => Err(format!("the server ended with {ended}").into()),
    }
}
