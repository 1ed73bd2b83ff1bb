//! The target: a queue pair for each queue of a host, and a task for each command that may be under way in
//! it.
//!
//! A command comes as a message, with its data or with the host's key to them. What the host writes is READ
//! from its memory, what it reads is WRITTEN there, and then a message says how the command ended.

use std::collections::HashMap;
use std::error::Error;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use futures_util::future::{Either, select};
use tokio::task::JoinSet;
use uverbs::aio::tokio::{Listener, Watch, within};
use uverbs::aio::{self, Control, Op, OpError, Post, Receive, Receiver, Sender, Wait};
use uverbs::buf::{Buf, GetError, Pool};
use uverbs::cm::{self, Params, Request};
use uverbs::{Access, Caps, Context, Pd, Rc, RemoteSlice};
use zerocopy::{FromBytes, IntoBytes};

use super::controller::{Controller, DEPTH, IN_CAPSULE, MOST_DATA, Outcome, lock};
use super::disk::Disk;
use super::wire::{
    self, ANY_CONTROLLER, CmReject, CmReply, CmRequest, Command, ConnectData, Data, Reply, Status,
    fabrics, io, refused,
};
use super::{PATIENCE, Result};

/// Bytes of a capsule at most.
const CAPSULE: usize = size_of::<Command>() + IN_CAPSULE;

/// How often it is looked whether a host has been silent for too long.
const LOOK: Duration = Duration::from_millis(500);

pub(crate) struct Target {
    /// The name by which hosts ask for it.
    name: String,
    disk: Disk,
    /// By name: what there is once for all queues on a device.
    devices: Mutex<HashMap<String, Arc<Device>>>,
    controllers: Mutex<HashMap<u16, Arc<Controller>>>,
}

struct Device {
    context: Context,
    pd: Pd,
    pool: Pool,
}

/// Serves hosts for as long as there are requests to be had.
pub(crate) async fn run(listener: cm::Listener<Rc>, target: Arc<Target>) -> Result<()> {
    let mut listener = Listener::new(listener);
    loop {
        let request = listener.accept().await?;
        let target = Arc::clone(&target);
        tokio::spawn(async move {
            let host = request.peer_addr();
            if let Err(error) = target.serve(request).await {
                eprintln!("{host}: {error}");
            }
        });
    }
}

impl Target {
    pub(crate) fn new(name: &str, disk: Disk) -> Self {
        Self {
            name: name.to_owned(),
            disk,
            devices: Mutex::default(),
            controllers: Mutex::default(),
        }
    }

    /// Serves a queue until its host leaves.
    async fn serve(self: Arc<Self>, request: Request<Rc>) -> Result<()> {
        let (number, depth) = match asked(request.private_data()) {
            Ok(asked) => asked,
            Err(why) => return refuse(request, why),
        };
        let device = match self.device(&request) {
            Ok(device) => device,
            Err(error) => {
                refuse(request, refused::NO_RESOURCES)?;
                return Err(error);
            }
        };
        let host = request.peer_addr();
        // Each command has a receive, and then a READ or a WRITE with the reply behind it.
        let entries = u32::from(depth);
        let cq = aio::Cq::new(&device.context, 3 * entries)?;
        let caps = Caps {
            max_send_wr: 2 * entries,
            max_recv_wr: entries,
            max_inline_data: size_of::<Reply>() as u32,
            ..Caps::default()
        };
        let mut qp = cq.create_qp::<Rc>(&device.pd, caps)?;
        qp.init_for_request(&request)?;
        let mut receives = Vec::new();
        for _ in 0..depth {
            receives.push(qp.recv(device.pool.try_get(CAPSULE)?));
        }
        // The host's memory is accessed, never this one's.
        let params = Params {
            access: Access::empty(),
            ..Params::default()
        };
        let reply = CmReply {
            format: 0.into(),
            commands: depth.into(),
            reserved: [0; 28],
        };
        let accepting = qp.accept(request, &params, reply.as_bytes())?;
        let mut tasks = JoinSet::<Result<()>>::new();
        let pumped = cq.clone();
        tasks.spawn(async move { Err(aio::tokio::serve(pumped, Wait::default()).await.into()) });
        let (qp, link) = within(PATIENCE, accepting).await?.into_parts();
        let control = qp.control();
        let (sender, receiver) = qp.split();
        let queue = Arc::new(Queue {
            target: Arc::clone(&self),
            device,
            host,
            number,
            depth,
            sender: Mutex::new(sender),
            receiver: Mutex::new(receiver),
            control: control.clone(),
            controller: OnceLock::new(),
            taken: AtomicU32::new(0),
        });
        for receive in receives {
            tasks.spawn(Arc::clone(&queue).answer_all(receive));
        }
        if number == 0 {
            tasks.spawn(Arc::clone(&queue).watch_host());
        }
        let ended = until_the_end(&mut tasks, &link).await;
        queue.leave();
        control.abort().await?;
        ended
    }

    /// What there is for the device that a request has come to.
    fn device(&self, request: &Request<Rc>) -> Result<Arc<Device>> {
        let device = request.device()?;
        let mut devices = lock(&self.devices);
        if let Some(known) = devices.get(device.name()) {
            return Ok(Arc::clone(known));
        }
        let context = device.open()?;
        let pd = context.alloc_pd()?;
        let opened = Arc::new(Device {
            pool: Pool::on(&pd).sizes([CAPSULE, MOST_DATA]).build()?,
            context,
            pd,
        });
        devices.insert(device.name().to_owned(), Arc::clone(&opened));
        Ok(opened)
    }

    /// Makes a controller for a host, with a number that no other has.
    fn new_controller(&self, host: String, patience: u32) -> Result<Arc<Controller>, Status> {
        let mut controllers = lock(&self.controllers);
        let free = (1..0xfff0).find(|id| !controllers.contains_key(id));
        let id = free.ok_or(Status::INTERNAL)?;
        let controller = Arc::new(Controller::new(id, host, self.name.clone(), patience));
        controllers.insert(id, Arc::clone(&controller));
        Ok(controller)
    }
}

/// The number of the queue that a request for a connection is about, and commands in it; or why it is
/// refused.
fn asked(private_data: &[u8]) -> Result<(u16, u16), u16> {
    let asked = CmRequest::read_from_prefix(private_data);
    let (asked, _) = asked.map_err(|_| refused::LENGTH)?;
    if asked.format.get() != 0 {
        return Err(refused::FORMAT);
    }
    let depth = asked.commands.get().checked_add(1);
    let depth = depth.filter(|depth| (2..=DEPTH).contains(depth));
    Ok((asked.queue.get(), depth.ok_or(refused::COMMANDS)?))
}

fn refuse(request: Request<Rc>, why: u16) -> Result<()> {
    let reject = CmReject {
        format: 0.into(),
        why: why.into(),
    };
    request.reject(reject.as_bytes())?;
    Err(format!("a queue is refused, for the reason {why}").into())
}

/// Waits until the connection is over, or one of the tasks.
async fn until_the_end(tasks: &mut JoinSet<Result<()>>, link: &cm::Link) -> Result<()> {
    let mut watch = Watch::new();
    let leaving = pin!(async {
        while !link.event_by(&mut watch).await?.ends() {}
        Ok(())
    });
    match select(pin!(tasks.join_next()), leaving).await {
        Either::Left((Some(ended), _)) => ended?,
        Either::Left((None, _)) => Ok(()),
        Either::Right((left, _)) => left,
    }
}

/// Why a command cannot be done.
enum Failure {
    /// The host is told.
    Status(Status),
    /// The queue is broken.
    Queue(Box<dyn Error + Send + Sync>),
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

impl From<OpError> for Failure {
    fn from(error: OpError) -> Self {
        Self::Queue(error.into())
    }
}

impl From<GetError> for Failure {
    fn from(error: GetError) -> Self {
        Self::Queue(error.into())
    }
}

/// What comes of a command: a number, and data with their place at the host.
struct Done {
    result: u64,
    data: Option<(Buf, RemoteSlice)>,
}

impl Done {
    const NOTHING: Self = Self {
        result: 0,
        data: None,
    };
}

struct Queue {
    target: Arc<Target>,
    device: Arc<Device>,
    host: SocketAddr,
    number: u16,
    depth: u16,
    sender: Mutex<Sender<Rc>>,
    receiver: Mutex<Receiver<Rc>>,
    control: Control,
    /// The controller that it belongs to, from Connect on.
    controller: OnceLock<Arc<Controller>>,
    /// Commands that have been taken. Relaxed: hosts use it as a hint, and it guards no memory.
    taken: AtomicU32,
}

impl Queue {
    /// Answers one command after the other.
    async fn answer_all(self: Arc<Self>, mut next: Op<Receive>) -> Result<()> {
        loop {
            let (received, capsule) = next.await;
            received?;
            let Ok((command, _)) = Command::read_from_prefix(&capsule) else {
                return Err(format!("a command of {} bytes", capsule.len()).into());
            };
            self.taken.fetch_add(1, Ordering::Relaxed);
            let inside = &capsule[size_of::<Command>()..];
            let done = match self.execute(&command, inside).await {
                Ok(done) => Ok(done),
                Err(Failure::Status(status)) => Err(status),
                Err(Failure::Queue(error)) => return Err(error),
            };
            // The host may send the next command as soon as it has the reply: its receive comes first.
            next = lock(&self.receiver).recv(capsule);
            match done {
                Ok(Some(done)) => self.reply(&command, Status::SUCCESS, done).await?,
                Ok(None) => {}
                Err(status) => self.reply(&command, status, Done::NOTHING).await?,
            }
        }
    }

    async fn reply(&self, command: &Command, status: Status, done: Done) -> Result<()> {
        let head = self.taken.load(Ordering::Relaxed) % u32::from(self.depth);
        let reply = Reply {
            result: done.result.into(),
            head: (head as u16).into(),
            queue: self.number.into(),
            id: command.id,
            status: (status.0 << 1).into(),
        };
        // One behind the other: who has the reply has the data.
        let (written, sent) = {
            let mut sender = lock(&self.sender);
            let mut batch = sender.batch();
            let written = done.data.map(|(data, to)| batch.write(data, to));
            let sent = batch.send_inline(reply.as_bytes());
            batch.ring()?;
            (written, sent)
        };
        if let Some(written) = written {
            written.await.0?;
        }
        Ok(sent.await?)
    }

    /// Does a command. None: it is not answered now.
    async fn execute(&self, command: &Command, inside: &[u8]) -> Result<Option<Done>, Failure> {
        let Some(controller) = self.controller.get() else {
            return match (command.opcode, command.fabrics_kind()) {
                (wire::FABRICS, fabrics::CONNECT) => self.connect(command, inside).await.map(Some),
                _ => Err(Status::OUT_OF_SEQUENCE.into()),
            };
        };
        controller.heard();
        if self.number > 0 {
            return self.transfer(command, inside).await.map(Some);
        }
        let outcome = match (command.opcode, command.fabrics_kind()) {
            (wire::FABRICS, fabrics::GET_PROPERTY | fabrics::SET_PROPERTY) => {
                Some(controller.property(command)?)
            }
            (wire::FABRICS, fabrics::CONNECT) => return Err(Status::OUT_OF_SEQUENCE.into()),
            (wire::FABRICS, _) => return Err(Status::INVALID_OPCODE.into()),
            _ => controller.administer(command, &self.target.disk)?,
        };
        match outcome {
            Some(outcome) => self.done(command, outcome).await.map(Some),
            None => Ok(None),
        }
    }

    /// Puts what a command of administration gives where the host wants it.
    async fn done(&self, command: &Command, outcome: Outcome) -> Result<Done, Failure> {
        let mut done = Done {
            result: outcome.result,
            data: None,
        };
        if !outcome.data.is_empty() {
            let to = at_host(command, outcome.data.len())?;
            let mut data = self.device.pool.get(outcome.data.len()).await?;
            data.whole_mut()[..outcome.data.len()].copy_from_slice(&outcome.data);
            // It has room: that much was asked for.
            let _ = data.set_len(outcome.data.len());
            done.data = Some((data, to));
        }
        Ok(done)
    }

    /// Gives the queue to a controller: a new one, if it is the first of a host.
    async fn connect(&self, command: &Command, inside: &[u8]) -> Result<Done, Failure> {
        let [format, number] = [command.word(10) as u16, (command.word(10) >> 16) as u16];
        let last = command.word(11) as u16;
        if format != 0 {
            return Err(Status::CONNECT_FORMAT.into());
        }
        if number != self.number || last >= self.depth {
            return Err(Status::CONNECT_PARAMETERS.into());
        }
        let data = self
            .fetch(command, inside, size_of::<ConnectData>())
            .await?;
        let data = ConnectData::read_from_bytes(&data).map_err(|_| Status::INVALID_DATA_LENGTH)?;
        let (host, subsystem) = (wire::text(&data.host), wire::text(&data.subsystem));
        if subsystem != self.target.name {
            return Err(Status::CONNECT_PARAMETERS.into());
        }
        let controller = match (number, data.controller.get()) {
            (0, ANY_CONTROLLER) => {
                let controller = self.target.new_controller(host, command.word(12))?;
                println!("{}: {} comes", self.host, controller.host);
                controller
            }
            (0, _) => return Err(Status::CONNECT_PARAMETERS.into()),
            (_, id) => {
                let known = lock(&self.target.controllers).get(&id).cloned();
                let known = known.filter(|known| known.host == host && known.has_queue(number));
                known.ok_or(Status::CONNECT_PARAMETERS)?
            }
        };
        controller.add(self.control.clone());
        let id = controller.id;
        if self.controller.set(controller).is_err() {
            // Two Connects at once.
            return Err(Status::OUT_OF_SEQUENCE.into());
        }
        Ok(Done {
            result: id.into(),
            data: None,
        })
    }

    /// Does a command about the disk.
    async fn transfer(&self, command: &Command, inside: &[u8]) -> Result<Done, Failure> {
        let disk = &self.target.disk;
        if command.opcode == io::FLUSH {
            disk.flush()?;
            return Ok(Done::NOTHING);
        }
        if !matches!(command.opcode, io::READ | io::WRITE | io::WRITE_ZEROES) {
            return Err(Status::INVALID_OPCODE.into());
        }
        if command.namespace.get() != 1 {
            return Err(Status::INVALID_NAMESPACE.into());
        }
        let (at, bytes) = disk.range(command.first_block(), command.blocks())?;
        if command.opcode == io::WRITE_ZEROES {
            disk.write_zeroes(at, bytes)?;
        } else if bytes > MOST_DATA {
            return Err(Status::INVALID_FIELD.into());
        } else if command.opcode == io::READ {
            let to = at_host(command, bytes)?;
            let mut data = self.device.pool.get(bytes).await?;
            // It has room: that much was asked for.
            let _ = data.set_len(bytes);
            disk.read(at, &mut data)?;
            return Ok(Done {
                result: 0,
                data: Some((data, to)),
            });
        } else {
            let data = self.fetch(command, inside, bytes).await?;
            disk.write(at, &data)?;
        }
        if command.word(12) & io::FORCE_UNIT_ACCESS != 0 {
            disk.flush()?;
        }
        Ok(Done::NOTHING)
    }

    /// Gets the data of a command: out of the capsule, or from the host's memory.
    async fn fetch(&self, command: &Command, inside: &[u8], bytes: usize) -> Result<Buf, Failure> {
        let mut data = self.device.pool.get(bytes).await?;
        match command.data.read() {
            Some(Data::InCapsule { offset, length }) if length == bytes => {
                let start = usize::try_from(offset).map_err(|_| Status::INVALID_SGL_OFFSET)?;
                let end = start.checked_add(length);
                let found = end.and_then(|end| inside.get(start..end));
                let found = found.ok_or(Status::INVALID_SGL_OFFSET)?;
                data.whole_mut()[..length].copy_from_slice(found);
                // It has room: that much was asked for.
                let _ = data.set_len(length);
                Ok(data)
            }
            Some(Data::AtHost(from)) if from.length == bytes as u64 => {
                let read = lock(&self.sender).read(data, from);
                let (read, data) = read.await;
                read?;
                Ok(data)
            }
            Some(_) => Err(Status::INVALID_DATA_LENGTH.into()),
            None => Err(Status::INVALID_SGL_KIND.into()),
        }
    }

    /// Ends when the host has been silent for longer than it said that it would be.
    async fn watch_host(self: Arc<Self>) -> Result<()> {
        loop {
            tokio::time::sleep(LOOK).await;
            if self.controller.get().is_some_and(|known| known.is_silent()) {
                return Err("the host is silent".into());
            }
        }
    }

    /// Ends the controller with its first queue.
    fn leave(&self) {
        if self.number == 0
            && let Some(controller) = self.controller.get()
        {
            println!("{}: {} leaves", self.host, controller.host);
            lock(&self.target.controllers).remove(&controller.id);
            controller.end();
        }
    }
}

/// Where the host wants so many bytes.
fn at_host(command: &Command, bytes: usize) -> Result<RemoteSlice, Status> {
    match command.data.read() {
        Some(Data::AtHost(to)) if to.length == bytes as u64 => Ok(to),
        Some(_) => Err(Status::INVALID_DATA_LENGTH),
        None => Err(Status::INVALID_SGL_KIND),
    }
}
