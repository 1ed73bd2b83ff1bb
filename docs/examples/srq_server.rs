//! A server with many connections and one shared receive queue. Its clients here are threads, each with its
//! own open device; they could as well be on other hosts.
//!
//! A client sends lines, and the server writes each back into the client's memory, in capitals. The last line
//! of a client is "bye".

#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use uverbs::event::{AsyncEventType, AsyncEvents, EventSource};
use uverbs::{Access, Caps, Context, Cq, Endpoint, Inline, Mr, Pd, Qp, Rc, RemoteSlice, Srq};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const CLIENTS: u64 = 4;
/// Receives in the stock, for all clients together.
const SLOTS: usize = 16;
/// Bytes of a line at most.
const LINE: usize = 64;
/// The `wr_id` of sends; receives have the number of their slot. A failed request has no opcode to ask.
const SEND: u64 = u64::MAX;
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let address = listener.local_addr()?;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| std::thread::spawn(move || client(address, number)))
        .collect();
    let served = serve(&listener);
    for client in clients {
        client.join().map_err(|_| "a client panicked")??;
    }
    served
}

struct Connection {
    qp: Qp<Rc>,
    /// Where the client wants its answers.
    answers: RemoteSlice,
    /// Ends when the client has done so.
    stream: TcpStream,
}

struct Server {
    cq: Cq,
    srq: Srq,
    inbox: Mr<Vec<u8>>,
    /// By the number that completions have.
    connections: HashMap<u32, Connection>,
    events: AsyncEvents,
}

fn serve(listener: &TcpListener) -> Result<()> {
    let context = open()?;
    let pd = context.alloc_pd()?;
    let channel = context.create_channel()?;
    let mut server = Server {
        // Room for every receive and every answer that may be in flight.
        cq: context.cq(2 * SLOTS as u32).channel(&channel).create()?,
        srq: pd.srq(SLOTS as u32).create()?,
        inbox: pd.register(vec![0; SLOTS * LINE], Access::LOCAL_WRITE)?,
        connections: HashMap::new(),
        events: context.async_events()?,
    };
    for slot in 0..SLOTS {
        server.receive(slot)?;
    }
    for number in 0..CLIENTS {
        server.accept(&pd, listener.accept()?.0, number)?;
    }
    while !server.connections.is_empty() {
        for (qpn, slot, line) in server.lines()? {
            server.receive(slot)?;
            match line.as_str() {
                "bye" => server.leave(qpn)?,
                line => server.answer(qpn, &line.to_uppercase())?,
            }
        }
    }
    // Nobody draws from the queue any more. What still waits in it goes with it, and then the memory may.
    server.srq.destroy()?;
    server.inbox.deregister()?;
    Ok(())
}

impl Server {
    /// Puts a receive into the stock.
    fn receive(&mut self, slot: usize) -> Result<()> {
        let into = self.inbox.slot(slot, LINE)?;
        let mut batch = self.srq.batch();
        batch.post(slot as u64, into)?;
        batch.ring();
        Ok(())
    }

    fn accept(&mut self, pd: &Pd, stream: TcpStream, number: u64) -> Result<()> {
        let qp = pd.qp(&self.cq).srq(&self.srq).user_data(number);
        let mut qp = qp.create::<Rc>()?;
        let (peer, answers) = exchange(&stream, qp.endpoint()?, self.inbox.remote(), |peer| {
            Ok(qp.connect(peer)?)
        })?;
        println!("client {number} is {peer}");
        let connection = Connection {
            qp,
            answers,
            stream,
        };
        self.connections.insert(connection.qp.qpn(), connection);
        Ok(())
    }

    /// Waits for lines: the queue pair of each, its slot, and the text.
    fn lines(&mut self) -> Result<Vec<(u32, usize, String)>> {
        let mut lines = Vec::new();
        let completions = self.cq.wait(PATIENCE)?;
        for completion in &mut completions.ok_or("the clients are silent")? {
            // Of an answer whose acknowledgment came behind the goodbye: the queue pair has left, and its
            // client has the answer.
            let left = !self.connections.contains_key(&completion.qp_num());
            if left && completion.wr_id() == SEND {
                continue;
            }
            completion.result()?;
            if completion.wr_id() == SEND {
                continue;
            }
            let slot = completion.wr_id() as usize;
            let mut line = vec![0; completion.byte_len() as usize];
            self.inbox.read_at(slot * LINE, &mut line)?;
            lines.push((completion.qp_num(), slot, String::from_utf8(line)?));
        }
        Ok(lines)
    }

    fn answer(&mut self, qpn: u32, text: &str) -> Result<()> {
        let connection = self.connections.get_mut(&qpn).ok_or("a line of nobody")?;
        let to = connection.answers;
        connection.qp.post(|batch| {
            let length = text.len() as u32;
            batch
                .signaled(SEND)
                .write_imm(Inline(text.as_bytes()), to, length)?;
            Ok(())
        })?;
        Ok(())
    }

    /// Ends a connection. The queue pair may hold a receive that it took from the stock: it tells when it has
    /// let go of the last one, and only then it is destroyed.
    fn leave(&mut self, qpn: u32) -> Result<()> {
        let connection = self.connections.remove(&qpn);
        let connection = connection.ok_or("a goodbye of nobody")?;
        let (mut qp, mut stream) = (connection.qp, connection.stream);
        // The goodbye is received before it is acknowledged, and a queue pair that fails in between
        // acknowledges nothing: the client would wait in vain. So it tells when it has the acknowledgement.
        stream.set_read_timeout(Some(PATIENCE))?;
        if stream.read(&mut [0])? > 0 {
            return Err("a client goes on behind its goodbye".into());
        }
        qp.fail()?;
        // Soft-RoCE of Linux 6.1 does not tell, so there is an end to waiting.
        while let Some(event) = self.events.wait_for(Duration::from_millis(200))? {
            if event.kind == AsyncEventType::QP_LAST_WQE_REACHED
                && event.source == EventSource::Qp(qp.id())
            {
                break;
            }
        }
        qp.destroy()?;
        Ok(())
    }
}

fn client(server: SocketAddr, number: u64) -> Result<()> {
    let context = open()?;
    let pd = context.alloc_pd()?;
    let channel = context.create_channel()?;
    let mut cq = context.cq(8).channel(&channel).create()?;
    let answers = pd.register(vec![0; LINE], Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let mut qp = pd.create_qp::<Rc>(&cq, Caps::default())?;
    let stream = TcpStream::connect(server)?;
    exchange(&stream, qp.endpoint()?, answers.remote(), |peer| {
        qp.connect(peer)?;
        // An answer is a WRITE with immediate data. It takes a receive, which needs no memory.
        let mut batch = qp.recv_batch();
        batch.post_empty(0)?;
        batch.ring();
        Ok(())
    })?;
    let line = format!("client {number} was here");
    qp.one(1).send(Inline(line.as_bytes()))?;
    let completions = cq.wait(PATIENCE)?;
    for completion in &mut completions.ok_or("the server is silent")? {
        completion.result()?;
        let mut answer = vec![0; completion.imm().unwrap_or(0) as usize];
        answers.read_at(0, &mut answer)?;
        println!("{}", String::from_utf8_lossy(&answer));
    }
    qp.post(|batch| {
        batch.signaled(SEND).send(Inline(b"bye"))?;
        Ok(())
    })?;
    // The queue pair stays until the server has the goodbye. The end of the stream tells it that this is
    // known.
    let sent = cq.wait(PATIENCE)?;
    let mut sent = sent.ok_or("the server is gone")?;
    sent.iter().next().ok_or("no completion")?.result()?;
    drop(stream);
    Ok(())
}

/// Tells the peer this side's endpoint and memory, and hears of the peer's. `connect` is called between the
/// two, and both sides have connected when this returns.
fn exchange(
    mut stream: &TcpStream,
    endpoint: Endpoint,
    memory: RemoteSlice,
    connect: impl FnOnce(&Endpoint) -> Result<()>,
) -> Result<(Endpoint, RemoteSlice)> {
    writeln!(stream, "{endpoint} {memory}")?;
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let (peer, memory) = line.trim_end().split_once(' ').ok_or("not an endpoint")?;
    let (peer, memory) = (peer.parse()?, memory.parse()?);
    connect(&peer)?;
    writeln!(stream, "ready")?;
    reader.read_line(&mut line)?;
    Ok((peer, memory))
}

fn open() -> Result<Context> {
    let devices = uverbs::devices()?;
    let device = devices.first().ok_or("this machine has no RDMA device")?;
    Ok(device.open()?)
}
