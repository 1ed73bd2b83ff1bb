//! A server with one target, and thousands of clients that nobody has connected. Each client is a target of
//! its own; here all of them are in one thread, with an open device of their own, and could as well be on
//! thousands of hosts.
//!
//! A client tells the server its number and its key. When all have done so, the server welcomes each: with
//! one queue pair, whose requests name thousands of destinations. What it keeps for each client is a number
//! and a key.
//!
//! `dc_server 10000` is with so many clients.

#![forbid(unsafe_code)]

use std::error::Error;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use uverbs::{
    Access, Ah, Caps, CompletionChannel, ConnectOptions, Context, Cq, DcTarget, Endpoint, Inline,
    Mr, Pd, Qp, Srq, transport::Dc,
};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const CLIENTS: u32 = 1000;
/// Receives in a stock: of the server, and of all clients together.
const SLOTS: usize = 128;
/// Requests that are in flight at a time.
const DEPTH: usize = 32;
/// Bytes of a message: of a client its number and its key, or a word of the server's.
const MESSAGE: usize = 12;
const PATIENCE: Duration = Duration::from_secs(60);

/// Where a target is found, and its key.
type Address = (Endpoint, u64);

fn main() -> Result<()> {
    let clients = match std::env::args().nth(1) {
        Some(number) => number.parse()?,
        None => CLIENTS,
    };
    let context = open()?;
    let mut server = match Side::new(&context)? {
        Some(server) => server,
        None => {
            println!("this device has no dynamic connections");
            return Ok(());
        }
    };
    let (tell, told) = channel();
    let (answer, answered) = channel();
    let address = (server.target.endpoint(), server.target.key());
    tell.send(address)?;
    let host = std::thread::spawn(move || be_clients(clients, &told, &answer));
    serve(&mut server, clients, &answered)?;
    host.join().map_err(|_| "the clients panicked")?
}

/// What the server has, and what the clients share.
struct Side {
    qp: Qp<Dc>,
    target: DcTarget,
    sends: Cq,
    receives: Cq,
    srq: Srq,
    inbox: Mr<Vec<u8>>,
    pd: Pd,
    context: Context,
    _channel: CompletionChannel,
}

impl Side {
    /// With a target; none if the device has no dynamic connections.
    fn new(context: &Context) -> Result<Option<Self>> {
        let pd = context.alloc_pd()?;
        let channel = context.create_channel()?;
        let receives = context.cq(SLOTS as u32).channel(&channel).create()?;
        let sends = context.cq(DEPTH as u32).channel(&channel).create()?;
        let srq = pd.srq(SLOTS as u32).create()?;
        let target = match pd.dc_target(&receives, &srq, random()?).create() {
            Err(error) if error.is_unsupported() => return Ok(None),
            target => target?,
        };
        let caps = Caps {
            max_send_wr: DEPTH as u32,
            ..Caps::default()
        };
        let mut qp = pd.create_qp::<Dc>(&sends, caps)?;
        qp.activate_initiator(&ConnectOptions::default())?;
        let inbox = pd.register(vec![0; SLOTS * MESSAGE], Access::LOCAL_WRITE)?;
        let mut side = Self {
            qp,
            target,
            sends,
            receives,
            srq,
            inbox,
            pd,
            context: context.clone(),
            _channel: channel,
        };
        for slot in 0..SLOTS {
            side.receive(slot)?;
        }
        Ok(Some(side))
    }

    /// Puts a receive into the stock.
    fn receive(&mut self, slot: usize) -> Result<()> {
        let mut batch = self.srq.batch();
        batch.post(slot as u64, self.inbox.slot(slot, MESSAGE)?)?;
        batch.ring();
        Ok(())
    }

    /// The way to a host. One serves for all targets there.
    fn way(&self, to: &Endpoint) -> Result<Ah> {
        let path = self.context.path_to(to, &ConnectOptions::default())?;
        Ok(self.pd.create_ah(&path)?)
    }

    /// Sends a message to each target there, a queue's depth at a time.
    fn send(&mut self, way: &Ah, messages: &[((u32, u64), [u8; MESSAGE])]) -> Result<()> {
        for messages in messages.chunks(DEPTH) {
            let mut batch = self.qp.batch();
            for (index, ((number, key), text)) in messages.iter().enumerate() {
                let is_last = index + 1 == messages.len();
                let request = match is_last {
                    true => batch.signaled(0),
                    false => batch.unsignaled(0),
                };
                request
                    .to(way.to_target(*number, *key))
                    .send(Inline(text))?;
            }
            batch.ring()?;
            let sent = self.sends.wait(PATIENCE)?;
            for completion in &mut sent.ok_or("nothing is sent")? {
                completion.result()?;
            }
        }
        Ok(())
    }

    /// Waits for messages: the target of each, and what it says.
    fn messages(&mut self) -> Result<Vec<(u32, [u8; MESSAGE])>> {
        let mut messages = Vec::new();
        let mut slots = Vec::new();
        let came = self.receives.wait(PATIENCE)?;
        for completion in &mut came.ok_or("the other side is silent")? {
            let slot = completion.wr_id() as usize;
            let mut message = [0; MESSAGE];
            completion.result()?;
            self.inbox.read_at(slot * MESSAGE, &mut message)?;
            messages.push((completion.qp_num(), message));
            slots.push(slot);
        }
        for slot in slots {
            self.receive(slot)?;
        }
        Ok(messages)
    }
}

/// Hears of all clients, and welcomes each.
fn serve(server: &mut Side, clients: u32, host: &Receiver<Endpoint>) -> Result<()> {
    let mut known = Vec::new();
    while known.len() < clients as usize {
        for (_, message) in server.messages()? {
            let (number, key) = message.split_at(4);
            let number = u32::from_le_bytes(number.try_into()?);
            let key = u64::from_le_bytes(key.try_into()?);
            known.push(((number, key), *b"be welcome! "));
        }
    }
    let way = server.way(&host.recv()?)?;
    server.send(&way, &known)?;
    println!("one queue pair has welcomed {clients} clients");
    Ok(())
}

/// All clients: each has a target, and they share the rest.
fn be_clients(clients: u32, told: &Receiver<Address>, tell: &Sender<Endpoint>) -> Result<()> {
    let context = open()?;
    let mut host = Side::new(&context)?.ok_or("the device is another")?;
    let (server, key) = told.recv()?;
    let way = host.way(&server)?;
    let mut targets: Vec<DcTarget> = Vec::new();
    while targets.len() < clients as usize {
        // Some at a time, so that the server hears of them meanwhile.
        let mut introductions = Vec::new();
        for _ in 0..DEPTH.min(clients as usize - targets.len()) {
            let target = host.pd.dc_target(&host.receives, &host.srq, random()?);
            let target = target.create()?;
            let mut message = [0; MESSAGE];
            message[..4].copy_from_slice(&target.number().to_le_bytes());
            message[4..].copy_from_slice(&target.key().to_le_bytes());
            introductions.push(((server.qpn, key), message));
            targets.push(target);
        }
        host.send(&way, &introductions)?;
    }
    tell.send(host.target.endpoint())?;
    let mut welcomed: Vec<u32> = Vec::new();
    while welcomed.len() < targets.len() {
        let messages = host.messages()?;
        welcomed.extend(messages.iter().map(|(target, _)| target));
    }
    // Each was, and none twice.
    welcomed.sort_unstable();
    let mut expected: Vec<u32> = targets.iter().map(DcTarget::number).collect();
    expected.sort_unstable();
    if welcomed != expected {
        return Err("some were not welcomed, or others in their place".into());
    }
    println!("{clients} clients were welcomed, each at its own target");
    Ok(())
}

/// A key that nobody guesses.
fn random() -> Result<u64> {
    let mut bytes = [0; 8];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

fn open() -> Result<Context> {
    let devices = uverbs::devices()?;
    let device = devices.first().ok_or("this machine has no RDMA device")?;
    Ok(device.open()?)
}
