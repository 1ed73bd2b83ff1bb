//! One side of the pings: memory, queues and the connection.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use uverbs::cm::{Connection, Event, Params, Pending, Request, Resolved};
use uverbs::{Access, Caps, Context, Cq, Inline, Mr, Pd, Qp, Rc, RemoteSlice, WcOpcode};

use super::wire::{MESSAGE, Text, decode, encode};
use crate::failure::{Failure, Kind, Result, Unanswered, peer};

/// The work request ids.
const RECV: u64 = 1;
const SEND: u64 = 2;
const RDMA: u64 = 3;

/// How many polls without a completion come before each check of the clock and of the peer.
const POLLS: u32 = 1024;

/// Messages that may be in flight. The one before the last has arrived: the peer has answered it.
const SENDS: u32 = 2;

/// The parameters of a side.
pub(super) struct Setup {
    /// Bytes of a ping; on a server the room for one.
    pub(super) size: usize,
    /// How long the peer may be silent.
    pub(super) patience: Duration,
}

/// The peer's next step.
pub(super) enum Next {
    /// It has sent the place of memory.
    Told(RemoteSlice),
    /// It has ended the connection.
    Over,
}

/// Memory and queues, without a peer.
struct Ground {
    /// The message that arrives.
    inbox: Mr<Vec<u8>>,
    /// The client's text; on the server, the text that it has read.
    source: Mr<Vec<u8>>,
    /// The memory for the server's answer.
    sink: Mr<Vec<u8>>,
    cq: Cq,
    pd: Pd,
}

impl Ground {
    fn new(context: &Context, size: usize) -> Result<Self> {
        let pd = context.alloc_pd()?;
        let register = |bytes: usize, access| {
            let registered = pd.register(vec![0; bytes], access);
            registered.map_err(uverbs::Error::from)
        };
        Ok(Self {
            inbox: register(MESSAGE, Access::LOCAL_WRITE)?,
            source: register(size, Access::LOCAL_WRITE | Access::REMOTE_READ)?,
            sink: register(size, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?,
            cq: context.create_cq(16)?,
            pd,
        })
    }

    fn qp(&self) -> Result<Qp<Rc>> {
        let caps = Caps {
            // One more for the READ or WRITE.
            max_send_wr: SENDS + 1,
            max_recv_wr: 2,
            ..Caps::default()
        };
        Ok(self.pd.create_qp(&self.cq, caps)?)
    }

    fn receive(&self, qp: &mut Qp<Rc>) -> Result<()> {
        let slice = self.inbox.slice(..).map_err(failed)?;
        let mut batch = qp.recv_batch();
        batch.post(RECV, slice).map_err(uverbs::Error::from)?;
        batch.ring();
        Ok(())
    }
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::new(Kind::Failed, error)
}

/// A side with its peer.
pub(super) struct End {
    // Before the memory that its requests use.
    connection: Connection<Qp<Rc>>,
    ground: Ground,
    patience: Duration,
    /// Messages that have arrived and have not been used.
    told: Option<RemoteSlice>,
    /// Messages that have been sent and have not completed.
    sending: u32,
    /// READs and WRITEs that have completed and have not been waited for.
    done: u32,
    /// The peer has ended the connection.
    over: bool,
}

/// One READ or WRITE is in flight at a time, as in the C program.
fn params() -> Params {
    Params {
        responder_resources: Some(1),
        initiator_depth: Some(1),
        ..Params::default()
    }
}

impl End {
    pub(super) fn connect(way: Resolved<Rc>, setup: &Setup) -> Result<Self, Unanswered> {
        let ground = Ground::new(&way.device()?.open()?, setup.size)?;
        let mut qp = ground.qp()?;
        way.init(&mut qp)?;
        ground.receive(&mut qp)?;
        let connecting = way
            .connect(qp, &params(), b"")
            .map_err(Unanswered::of_peer)?;
        let connection = connecting
            .within(setup.patience)
            .map_err(Unanswered::of_peer)?;
        Ok(Self::new(connection, ground, setup))
    }

    pub(super) fn accept(request: Request<Rc>, setup: &Setup) -> Result<Self> {
        let ground = Ground::new(&request.device()?.open()?, setup.size)?;
        let mut qp = ground.qp()?;
        request.init(&mut qp)?;
        ground.receive(&mut qp)?;
        let accepting = request.accept(qp, &params(), b"").map_err(peer)?;
        let connection = accepting.within(setup.patience).map_err(peer)?;
        Ok(Self::new(connection, ground, setup))
    }

    fn new(connection: Connection<Qp<Rc>>, ground: Ground, setup: &Setup) -> Self {
        Self {
            connection,
            ground,
            patience: setup.patience,
            told: None,
            sending: 0,
            done: 0,
            over: false,
        }
    }

    pub(super) fn peer_addr(&self) -> SocketAddr {
        self.connection.peer_addr()
    }

    /// Puts a text into the memory that the peer reads, and sends its place.
    pub(super) fn offer(&mut self, text: &Text) -> Result<()> {
        self.ground.source.write_at(0, &text.0).map_err(failed)?;
        self.say(self.ground.source.remote())
    }

    /// Sends the place for the answer.
    pub(super) fn await_answer(&mut self) -> Result<()> {
        self.say(self.ground.sink.remote())
    }

    /// The answer that the peer has written.
    pub(super) fn answer(&self) -> Result<Text> {
        let mut bytes = vec![0; self.ground.sink.len()];
        self.ground.sink.read_at(0, &mut bytes).map_err(failed)?;
        Ok(Text::in_memory(&bytes))
    }

    /// Reads the peer's text.
    pub(super) fn read(&mut self, from: RemoteSlice) -> Result<Text> {
        let room = self.ground.source.len();
        let too_long = || {
            let text = format!(
                "the peer's ping has {} bytes, and there is room for {room} (-S)",
                from.length
            );
            Failure::new(Kind::Peer, text)
        };
        let length = usize::try_from(from.length).map_err(|_| too_long())?;
        let slice = self.ground.source.slice(..length).map_err(|_| too_long())?;
        let read = self.connection.one(RDMA).read(slice, from);
        read.map_err(uverbs::Error::from)?;
        self.rdma_done()?;
        let mut bytes = vec![0; length];
        self.ground.source.read_at(0, &mut bytes).map_err(failed)?;
        Ok(Text::in_memory(&bytes))
    }

    /// Writes the text, which was read last, to the peer's place for it.
    pub(super) fn write(&mut self, text: &Text, to: RemoteSlice) -> Result<()> {
        let length = text.0.len();
        let to = to.slice(..length).map_err(|_| {
            let text = "the peer has no room for its own ping";
            Failure::new(Kind::Peer, text)
        })?;
        let slice = self.ground.source.slice(..length).map_err(failed)?;
        let written = self.connection.one(RDMA).write(slice, to);
        written.map_err(uverbs::Error::from)?;
        self.rdma_done()
    }

    /// Sends the message with which the peer continues.
    pub(super) fn go_ahead(&mut self) -> Result<()> {
        self.say(self.ground.source.remote())
    }

    /// Sends a message, and does not wait for its completion: the peer may answer it, or end the connection,
    /// before the completion comes, which then need not come at all.
    fn say(&mut self, memory: RemoteSlice) -> Result<()> {
        self.until(|end| (end.sending < SENDS).then_some(()))?
            .ok_or_else(gone)?;
        let message = encode(memory);
        let posted = self.connection.post(|batch| {
            batch.signaled(SEND).send(Inline(&message))?;
            Ok(())
        });
        posted.map_err(uverbs::Error::from)?;
        self.sending += 1;
        Ok(())
    }

    fn rdma_done(&mut self) -> Result<()> {
        self.until(|end| (end.done > 0).then(|| end.done -= 1))?
            .ok_or_else(gone)
    }

    /// Waits for the peer's next message.
    pub(super) fn told(&mut self) -> Result<RemoteSlice> {
        match self.told_or_over()? {
            Next::Told(memory) => Ok(memory),
            Next::Over => Err(gone()),
        }
    }

    /// Waits for the peer's next message, or the end of the connection.
    pub(super) fn told_or_over(&mut self) -> Result<Next> {
        let told = self.until(|end| end.told.take())?;
        Ok(told.map_or(Next::Over, Next::Told))
    }

    /// Polls until `there` returns something; `None` if the peer has ended the connection. Messages that it
    /// sent before that still count.
    fn until<V>(&mut self, mut there: impl FnMut(&mut Self) -> Option<V>) -> Result<Option<V>> {
        let mut deadline = Instant::now() + self.patience;
        let mut vain = 0;
        loop {
            if let Some(value) = there(self) {
                return Ok(Some(value));
            }
            if self.poll()? {
                (deadline, vain) = (Instant::now() + self.patience, 0);
                continue;
            }
            if self.over {
                return Ok(None);
            }
            vain += 1;
            if vain < POLLS {
                continue;
            }
            vain = 0;
            std::thread::yield_now();
            // The end may be reported before the last completions have been polled.
            if !self.look_for_the_end()? && Instant::now() > deadline {
                let text = format!("nothing has come from the peer for {:?}", self.patience);
                return Err(Failure::new(Kind::Peer, text));
            }
        }
    }

    /// Whether the peer has ended the connection.
    fn look_for_the_end(&mut self) -> Result<bool> {
        while let Some(event) = self.connection.link().try_event()? {
            self.over |= matches!(event, Event::Disconnected { .. } | Event::DeviceRemoved);
        }
        Ok(self.over)
    }

    /// Polls a completion, if there is one.
    fn poll(&mut self) -> Result<bool> {
        let polled = self
            .ground
            .cq
            .poll()
            .map_err(uverbs::Error::from)?
            .iter()
            .next();
        let Some(completion) = polled else {
            return Ok(false);
        };
        if let Err(error) = completion.result() {
            // If the peer has left, requests fail.
            return match self.look_for_the_end()? {
                true => Ok(true),
                false => Err(Failure::new(Kind::Peer, error)),
            };
        }
        let received = completion.opcode() == WcOpcode::RECV;
        let length = completion.byte_len() as usize;
        match completion.wr_id() {
            SEND => self.sending -= 1,
            RDMA => self.done += 1,
            _ => {}
        }
        if received {
            self.hear(length)?;
        }
        Ok(true)
    }

    /// Reads the message that has arrived, and posts the receive for the next.
    fn hear(&mut self, length: usize) -> Result<()> {
        if length != MESSAGE {
            let text = format!("the peer sent {length} bytes, and rping's messages have {MESSAGE}");
            return Err(Failure::new(Kind::Peer, text));
        }
        let mut message = [0; MESSAGE];
        self.ground.inbox.read_at(0, &mut message).map_err(failed)?;
        self.told = Some(decode(message));
        self.ground.receive(&mut self.connection)
    }

    /// Ends the connection.
    pub(super) fn finish(self) -> Result<()> {
        let ending = self.connection.disconnect().map_err(peer)?;
        ending.within(self.patience).map(drop).map_err(peer)
    }
}

fn gone() -> Failure {
    Failure::new(Kind::Peer, "the peer has ended the connection")
}
