//! A host: connects to a target, writes blocks and reads them, with many commands under way at once. Any
//! target does, that of the kernel as well.

use std::collections::HashMap;
use std::net::SocketAddr;

use uverbs::cm::{self, Params, Pending};
use uverbs::{Access, Caps, CompletionChannel, Context, Cq, Inline, Mr, Pd, Qp, Rc};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::wire::{
    self, ANY_CONTROLLER, CmRequest, Command, ConnectData, PAGE, Reply, Sgl, Status, fabrics,
    feature, identify, io, property,
};
use super::{PATIENCE, Result};

/// Commands under way at most, in each of the two queues.
const DEPTH: u16 = 32;
/// Bytes of a reply that have a place of their own.
const REPLY: usize = size_of::<Reply>();
/// The ids of completions: of a command that has gone out, and of replies, by their places.
const SENT: u64 = u64::MAX;
/// How often it is looked whether a controller is ready.
const LOOKS: u32 = 300;

/// A disk at a target.
pub(crate) struct Host {
    admin: Queue,
    io: Queue,
    /// Bytes of a block.
    block: usize,
    blocks: u64,
    /// Bytes of a command's data at most.
    most: usize,
}

impl Host {
    /// Connects to the first namespace of a subsystem.
    pub(crate) fn connect(target: SocketAddr, subsystem: &str) -> Result<Self> {
        let mut connect = ConnectData {
            host_id: *b"uverbs' example!",
            controller: ANY_CONTROLLER.into(),
            subsystem: wire::padded(subsystem, 0),
            host: wire::padded("nqn.2026-01.example.uverbs:host", 0),
            ..ConnectData::new_zeroed()
        };
        let mut admin = Queue::open(target, 0, &connect)?;
        let id = admin.controller;
        admin.set_property(
            property::CONFIGURATION,
            property::ENTRIES | property::ENABLE,
        )?;
        let mut looks = 0;
        while admin.property(property::STATUS)? & property::READY == 0 {
            looks += 1;
            if looks > LOOKS {
                return Err("the controller does not become ready".into());
            }
            std::thread::sleep(PATIENCE / LOOKS);
        }
        let controller = admin.identify(identify::CONTROLLER, 0)?;
        let controller = wire::Controller::read_from_bytes(&controller)
            .map_err(|_| "a description of another length")?;
        if controller.sgls.get() & wire::Controller::KEYED_SGLS == 0 {
            return Err("the controller takes no keys to memory".into());
        }
        let namespace = admin.identify(identify::NAMESPACE, 1)?;
        let namespace = wire::Namespace::read_from_bytes(&namespace)
            .map_err(|_| "a description of another length")?;
        let format = namespace.block[usize::from(namespace.format & 0xf)];
        // From 512 bytes to 64 KiB.
        if !(9..=16).contains(&format.bytes) || format.metadata.get() > 0 {
            return Err("the namespace has blocks that are not handled here".into());
        }
        let mut queues = Command::new(wire::admin::SET_FEATURES);
        queues.set_word(10, feature::NUMBER_OF_QUEUES.into());
        admin.run(queues)?;

        connect.controller = id.into();
        let block = 1 << format.bytes;
        let least = block.max(PAGE);
        // A command has at most 65,536 blocks; 128 KiB are enough to be fast.
        let most = match controller.most_data {
            0 => 32 * PAGE,
            log => (PAGE << log.min(5)).max(least),
        };
        Ok(Self {
            io: Queue::open(target, 1, &connect)?,
            admin,
            block,
            blocks: namespace.size.get(),
            most,
        })
    }

    /// The size of the disk, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.blocks * self.block as u64
    }

    /// Writes bytes from the first block on, and makes the target write them back.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let memory = bytes.to_vec();
        self.transfer(io::WRITE, memory)?;
        let mut flush = Command::new(io::FLUSH);
        flush.namespace = 1.into();
        self.io.run(flush)?;
        Ok(())
    }

    /// Reads so many bytes from the first block on.
    pub(crate) fn read(&mut self, bytes: usize) -> Result<Vec<u8>> {
        self.transfer(io::READ, vec![0; bytes])
    }

    /// Reads or writes memory as a whole, and gives it back.
    fn transfer(&mut self, opcode: u8, memory: Vec<u8>) -> Result<Vec<u8>> {
        let length = memory.len();
        if !length.is_multiple_of(self.block) {
            return Err(format!("{length} bytes are not whole blocks of {}", self.block).into());
        }
        if length as u64 > self.bytes() {
            return Err(format!("{length} bytes, and the disk has {}", self.bytes()).into());
        }
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let region = self.io.pd.register(memory, access)?;
        let whole = region.remote();
        let mut commands = Vec::new();
        for start in (0..length).step_by(self.most) {
            let part = start..length.min(start + self.most);
            let first = (start / self.block) as u64;
            let blocks = (part.len() / self.block) as u32;
            commands.push(Command {
                data: Sgl::keyed(whole.slice(part)?),
                ..Command::of_blocks(opcode, first, blocks)
            });
        }
        self.io.run_all(&commands)?;
        Ok(region.deregister()?)
    }

    /// Tells the controller to prepare for its end, and leaves.
    pub(crate) fn leave(mut self) -> Result<()> {
        let ended = property::ENTRIES | 0b01 << 14;
        self.admin.set_property(property::CONFIGURATION, ended)?;
        for queue in [self.io, self.admin] {
            queue.connection.disconnect()?.within(PATIENCE)?;
        }
        Ok(())
    }
}

/// A queue of the host: a connection, and room for replies.
struct Queue {
    connection: cm::Connection<Qp<Rc>>,
    cq: Cq,
    /// Where replies come: one slot for each command that may be under way.
    replies: Mr<Vec<u8>>,
    /// For data of administration.
    page: Mr<Vec<u8>>,
    pd: Pd,
    /// The controller that it belongs to.
    controller: u16,
    _channel: CompletionChannel,
    _context: Context,
}

impl Queue {
    /// Connects a queue, first to the target and then to a controller.
    fn open(target: SocketAddr, number: u16, connect: &ConnectData) -> Result<Self> {
        let way = cm::resolve::<Rc>(target)?.start()?.within(PATIENCE)?;
        let context = way.device()?.open()?;
        let pd = context.alloc_pd()?;
        let channel = context.create_channel()?;
        let depth = u32::from(DEPTH);
        let cq = context.cq(2 * depth).channel(&channel).create()?;
        let caps = Caps {
            max_send_wr: depth,
            max_recv_wr: depth,
            max_inline_data: size_of::<Command>() as u32,
            ..Caps::default()
        };
        let mut qp = pd.create_qp::<Rc>(&cq, caps)?;
        let replies = pd.register(vec![0; REPLY * usize::from(DEPTH)], Access::LOCAL_WRITE)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let page = pd.register(vec![0; PAGE], access)?;
        way.init(&mut qp)?;
        let mut batch = qp.recv_batch();
        for slot in 0..usize::from(DEPTH) {
            batch.post(slot as u64, replies.slot(slot, REPLY)?)?;
        }
        batch.ring();
        let request = CmRequest {
            format: 0.into(),
            queue: number.into(),
            replies: DEPTH.into(),
            commands: (DEPTH - 1).into(),
            controller: match number {
                0 => 0.into(),
                _ => connect.controller,
            },
            reserved: [0; 22],
        };
        let connecting = way.connect(qp, &Params::default(), request.as_bytes())?;
        let mut queue = Self {
            connection: connecting.within(PATIENCE)?,
            cq,
            replies,
            page,
            pd,
            controller: 0,
            _channel: channel,
            _context: context,
        };
        queue.page.write_at(0, connect.as_bytes())?;
        let mut command = Command {
            data: Sgl::keyed(queue.page.remote().slice(..size_of::<ConnectData>())?),
            ..Command::fabrics(fabrics::CONNECT)
        };
        command.set_word(10, u32::from(number) << 16);
        command.set_word(11, u32::from(DEPTH - 1));
        queue.controller = queue.run(command)? as u16;
        Ok(queue)
    }

    fn property(&mut self, offset: u32) -> Result<u32> {
        let mut command = Command::fabrics(fabrics::GET_PROPERTY);
        command.set_word(11, offset);
        Ok(self.run(command)? as u32)
    }

    fn set_property(&mut self, offset: u32, value: u32) -> Result<()> {
        let mut command = Command::fabrics(fabrics::SET_PROPERTY);
        command.set_word(11, offset);
        command.set_word(12, value);
        self.run(command).map(drop)
    }

    fn identify(&mut self, what: u8, namespace: u32) -> Result<[u8; PAGE]> {
        let mut command = Command {
            namespace: namespace.into(),
            data: Sgl::keyed(self.page.remote()),
            ..Command::new(wire::admin::IDENTIFY)
        };
        command.set_word(10, what.into());
        self.run(command)?;
        let mut page = [0; PAGE];
        self.page.read_at(0, &mut page)?;
        Ok(page)
    }

    /// Runs one command and gives its result.
    fn run(&mut self, command: Command) -> Result<u64> {
        let results = self.run_all(&[command])?;
        Ok(results.first().copied().ok_or("no result")?)
    }

    /// Runs commands, as many at once as there may be, and gives the result of each.
    fn run_all(&mut self, commands: &[Command]) -> Result<Vec<u64>> {
        let mut results = vec![0; commands.len()];
        // By the number that the reply repeats.
        let mut under_way = HashMap::new();
        let (mut next, mut going_out) = (0, 0);
        while next < commands.len() || !under_way.is_empty() || going_out > 0 {
            // One less than there are places: so a queue that is full is not one that is empty.
            while next < commands.len() && under_way.len().max(going_out) < usize::from(DEPTH) - 1 {
                let id = (next % usize::from(u16::MAX)) as u16;
                let command = Command {
                    id: id.into(),
                    ..commands[next]
                };
                self.connection.one(SENT).send(Inline(command.as_bytes()))?;
                under_way.insert(id, next);
                next += 1;
                going_out += 1;
            }
            let mut arrived = Vec::new();
            let completions = self.cq.wait(PATIENCE)?;
            for completion in &mut completions.ok_or("the target is silent")? {
                completion.result()?;
                match completion.wr_id() {
                    SENT => going_out -= 1,
                    slot => arrived.push((slot as usize, completion.byte_len() as usize)),
                }
            }
            for (slot, length) in arrived {
                let mut reply = [0; REPLY];
                self.replies.read_at(slot * REPLY, &mut reply)?;
                let mut batch = self.connection.recv_batch();
                batch.post(slot as u64, self.replies.slot(slot, REPLY)?)?;
                batch.ring();
                if length != REPLY {
                    return Err(format!("a reply of {length} bytes").into());
                }
                let reply = Reply::read_from_bytes(&reply).map_err(|_| "no reply")?;
                let number = under_way.remove(&reply.id.get());
                let number: usize = number.ok_or("a reply to no command")?;
                let status = Status(reply.status.get() >> 1);
                if status != Status::SUCCESS {
                    let opcode = commands[number].opcode;
                    let why = format!("the command {opcode:#x} ends with status {:#x}", status.0);
                    return Err(why.into());
                }
                results[number] = reply.result.get();
            }
        }
        Ok(results)
    }
}
