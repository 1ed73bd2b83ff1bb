//! Memory and queues of a side, connected to the peer's: by device, with messages to the other side, or by
//! address.

use std::time::{Duration, Instant};

use uverbs::cm::{Connection, Initiates, Link, Listener, Listens, Params, Pending, Space};
use uverbs::device::PortState;
use uverbs::qp::{Caps, Mtu};
use uverbs::query::PortAttr;
use uverbs::transport::Connected;
use uverbs::xrcd::Xrcd;
use uverbs::{
    Access, ConnectOptions, Context, Cq, Device, Endpoint, OpenOptions, Pd, PeerSrq, Qp, Rc, Uc,
};

use super::conditions::{Conditions, adapter};
use super::lane::{Lane, Layout, Parts, Reach};
use super::memory::Data;
use super::options::Own;
use super::pin;
use super::plan::{Plan, Transport};
use super::wire::{End, Ends, Message, Wire, unexpected};
use super::worker::Worker;
use crate::failure::{Failure, Kind, Result, is_nobody, peer};
use crate::pingpong::meet;
use crate::{rping, select};

/// The Q_Key of datagrams.
const QKEY: u32 = 0x1111_1111;

/// The least number of requests in a send queue. If the ring is full after each post, each post has to check
/// first how far the device has progressed.
const RING: u32 = 16;

/// How long to wait before the next attempt to connect by address.
const PAUSE: Duration = Duration::from_millis(50);

/// The role of this side.
#[derive(Clone, Copy, Debug)]
pub(super) enum Role<'a> {
    /// The server's host, and its port for connections by address.
    Client { server: &'a str, port: u16 },
    /// The port for connections by address.
    Server { port: u16 },
}

/// A side that is connected.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) workers: Vec<Worker>,
    /// Each side's conditions: this one's and the peer's.
    pub(super) conditions: [Conditions; 2],
    /// The connection manager's parts of connections by address. The connections end when these are dropped.
    _links: Vec<Link>,
}

/// Checks that the named devices exist: a server reports an error at once, and not when a client connects.
pub(super) fn look(own: &Own) -> Result<()> {
    for device in chosen(own)? {
        let context = device.open()?;
        context.query_port(own.ib_port)?;
        if let Some(index) = own.gid_index {
            context.query_gid(own.ib_port, index.into())?;
        }
    }
    Ok(())
}

/// Makes all objects for a round, and connects them to the peer. After this the peer may send.
pub(super) fn connect(wire: &mut Wire, own: &Own, plan: &Plan, role: Role<'_>) -> Result<Side> {
    if plan.by_address
        && matches!(role, Role::Server { .. })
        && !(own.devices.is_empty() && own.gid_index.is_none())
    {
        let text = "this server was started with --device or --gid-index, and with --cm the address says which: \
                    start it without them";
        return Err(Failure::new(Kind::Usage, text));
    }
    let mut links = Vec::new();
    let mut grounds = match (plan.by_address, plan.transport) {
        (false, _) => by_device(own, plan, role)?,
        (true, Transport::Uc) => vec![by_address::<Uc>(wire, plan, role, &mut links)?],
        (true, _) => vec![by_address::<Rc>(wire, plan, role, &mut links)?],
    };
    if plan.pin {
        pin(&mut grounds, matches!(role, Role::Server { .. }))?;
    }
    let own = grounds
        .iter_mut()
        .map(|(ground, workers)| ground.ends(plan, workers))
        .collect::<Result<Vec<Ends>>>()?;
    let own_conditions = own.iter().map(|ends| ends.conditions.clone()).collect();
    let peer = match wire.exchange(&Message::Ends(own), plan.patience())? {
        Message::Ends(ends) => ends,
        other => return Err(unexpected(&other)),
    };
    if peer.len() != grounds.len() {
        let text = format!("the peer has {} devices of {}", peer.len(), grounds.len());
        return Err(Failure::new(Kind::Peer, text));
    }
    for ((ground, workers), ends) in grounds.iter_mut().zip(&peer) {
        ground.meet(plan, workers, ends)?;
    }
    let mut workers: Vec<Worker> = grounds
        .into_iter()
        .flat_map(|(_, workers)| workers)
        .collect();
    for worker in &mut workers {
        worker.lanes.prepare(plan)?;
    }
    let peer_conditions = peer.into_iter().map(|ends| ends.conditions).collect();
    Ok(Side {
        workers,
        conditions: [own_conditions, peer_conditions].map(Conditions::joined),
        _links: links,
    })
}

/// Gives each thread its CPU.
fn pin(grounds: &mut [(Ground, Vec<Worker>)], is_server: bool) -> Result<()> {
    let allowed = pin::allowed().map_err(|error| {
        failed(format_args!(
            "cannot learn which CPUs this process may use: {error}"
        ))
    })?;
    let near: Vec<_> = grounds
        .iter()
        .map(|(ground, _)| ground.near_cpus())
        .collect();
    let threads: Vec<_> = grounds.iter().map(|(_, workers)| workers.len()).collect();
    let cpus = pin::assign(&near, &threads, &allowed, is_server);
    let workers = grounds.iter_mut().flat_map(|(_, workers)| workers);
    for (worker, cpu) in workers.zip(cpus.into_iter().flatten()) {
        worker.cpu = cpu;
    }
    Ok(())
}

/// A device, and how it connects.
struct Ground {
    device: Device,
    context: Context,
    pd: Pd,
    attr: PortAttr,
    options: ConnectOptions,
    /// READs and atomics that this side has in flight, and that it serves.
    reads: [u8; 2],
}

impl Ground {
    fn open(device: Device, port: u8, gid_index: Option<u8>, plan: &Plan) -> Result<Self> {
        let context = OpenOptions::new().open(&device)?;
        let attr = context.query_port(port)?;
        let down = [PortState::Down, PortState::Init, PortState::Armed];
        if down.contains(&attr.state) {
            let text = format!("port {port} of {} is {}", device.name(), attr.state);
            return Err(Failure::new(Kind::Failed, text));
        }
        let mtu = attr.active_mtu.bytes().unwrap_or(u32::MAX);
        if plan.transport == Transport::Ud && plan.size > mtu {
            let text = format!("a datagram fits into a packet, which has {mtu} bytes here");
            return Err(Failure::new(Kind::Usage, text));
        }
        if let Some(asked) = plan.mtu.filter(|asked| *asked > mtu) {
            let text = format!("a packet has at most {mtu} bytes here, not {asked}");
            return Err(Failure::new(Kind::Usage, text));
        }
        if plan.size > attr.max_msg_sz {
            let text = format!("a message has at most {} bytes here", attr.max_msg_sz);
            return Err(Failure::new(Kind::Usage, text));
        }
        let limits = context.query_device()?;
        let reads = [limits.max_qp_init_rd_atom, limits.max_qp_rd_atom];
        let options = ConnectOptions {
            port,
            gid_index,
            access: plan.operation.access(),
            sl: plan.service_level,
            ..ConnectOptions::default()
        };
        Ok(Self {
            device,
            pd: context.alloc_pd()?,
            context,
            attr,
            options,
            reads: reads.map(|number| number.min(u8::MAX.into()) as u8),
        })
    }

    /// The threads of this device, by its number among the devices of the plan, with their memory and queues.
    /// `make` makes their queue pairs.
    fn workers(
        &self,
        plan: &Plan,
        device: u32,
        mut make: impl FnMut(&Pd, &Cq, Caps) -> Result<Parts>,
    ) -> Result<Vec<Worker>> {
        let caps = Caps {
            max_send_wr: (plan.batches() * plan.batch).max(RING),
            max_recv_wr: match plan.operation.takes_receive() {
                true => plan.receives(),
                false => 1,
            },
            // By default, what the queue pair has anyway.
            max_inline_data: plan.inline.unwrap_or(0),
            ..Caps::default()
        };
        let layout = Layout::of(plan);
        let access = Access::LOCAL_WRITE | plan.operation.access();
        let mut workers = Vec::new();
        for number in plan.threads_of(device) {
            let lanes = plan.queue_pairs_of(number);
            let (first, lanes) = (lanes.start as usize, lanes.len() as u32);
            let bytes = layout.length() * lanes as usize;
            let data = Data::new(&self.pd, plan.memory, bytes, access)?;
            let entries = (caps.max_send_wr + caps.max_recv_wr).saturating_mul(lanes);
            let channel = match plan.events {
                true => Some(self.context.create_channel()?),
                false => None,
            };
            let cq = self.context.cq(entries);
            let cq = match &channel {
                Some(channel) => cq.channel(channel).create()?,
                None => cq.create()?,
            };
            let mut worker = Worker::new(first, plan, data, cq, channel);
            for lane in 0..lanes as usize {
                let parts = make(&self.pd, &worker.cq, caps)?;
                worker
                    .lanes
                    .all
                    .push(Lane::new(parts, plan, lane * layout.length()));
            }
            workers.push(worker);
        }
        Ok(workers)
    }

    /// The CPUs near the adapter.
    fn near_cpus(&self) -> Vec<usize> {
        let place = adapter(self.device.name()).and_then(|adapter| adapter.place);
        let cpus = place.iter().flat_map(|place| place.cpus.iter());
        cpus.map(|cpu| cpu as usize).collect()
    }

    /// The data for the peer.
    fn ends(&self, plan: &Plan, workers: &mut [Worker]) -> Result<Ends> {
        let gid_index = match self.options.gid_index {
            Some(index) => Some(index),
            // rdma_cm has used the address's GID.
            None if plan.by_address => None,
            None => self.context.best_gid(self.options.port)?.map(|best| best.0),
        };
        let mut lanes = Vec::new();
        for worker in workers {
            let data = &worker.lanes.data;
            for lane in &mut worker.lanes.all {
                let remote = |range| data.remote().slice(range).map_err(failed);
                let target = match &mut lane.parts.xrc {
                    Some((target, srq)) => {
                        let number = srq
                            .srqn()
                            .ok_or_else(|| failed("the queue has no number"))?;
                        Some((target.endpoint_with(&self.options)?.to_string(), number))
                    }
                    None => None,
                };
                lanes.push(End {
                    endpoint: lane.parts.qp.endpoint_with(&self.options)?.to_string(),
                    target,
                    inbox: remote(lane.inbox())?.to_string(),
                    outbox: remote(lane.outbox())?.to_string(),
                });
            }
        }
        let port = self.options.port;
        let mtu = self.attr.active_mtu.bytes().unwrap_or(u32::MAX);
        Ok(Ends {
            conditions: Conditions::of(&self.context, &self.device, port, gid_index),
            mtu: mtu.min(plan.mtu.unwrap_or(u32::MAX)),
            reads: self.reads[1],
            lanes,
        })
    }

    /// Takes the peer's data, and connects the queue pairs that are not connected yet.
    fn meet(&self, plan: &Plan, workers: &mut [Worker], peer: &Ends) -> Result<()> {
        let lanes: Vec<&mut Lane> = workers
            .iter_mut()
            .flat_map(|worker| &mut worker.lanes.all)
            .collect();
        if lanes.len() != peer.lanes.len() {
            let text = format!(
                "the peer has {} queue pairs of {}",
                peer.lanes.len(),
                lanes.len()
            );
            return Err(Failure::new(Kind::Peer, text));
        }
        let own_mtu = self.attr.active_mtu.bytes().unwrap_or(u32::MAX);
        let options = ConnectOptions {
            path_mtu: mtu(peer.mtu.min(own_mtu).min(plan.mtu.unwrap_or(u32::MAX))),
            max_rd_atomic: self.reads[0].min(peer.reads),
            max_dest_rd_atomic: self.reads[1],
            ..self.options.clone()
        };
        for (lane, end) in lanes.into_iter().zip(&peer.lanes) {
            lane.meet(parsed(&end.inbox)?, parsed(&end.outbox)?, plan)?;
            if !plan.by_address {
                self.connect(plan, lane, end, &options)?;
            }
        }
        Ok(())
    }

    fn connect(
        &self,
        plan: &Plan,
        lane: &mut Lane,
        end: &End,
        options: &ConnectOptions,
    ) -> Result<()> {
        let peer: Endpoint = parsed(&end.endpoint)?;
        let qp = &mut lane.parts.qp;
        if plan.transport.is_datagram() {
            qp.activate(QKEY, &self.options)?;
            let path = self.context.path_to(&peer, &self.options)?;
            lane.reach = Reach::Address {
                path: self.pd.create_ah(&path)?,
                qpn: peer.qpn,
                qkey: QKEY,
            };
            return Ok(());
        }
        let Some((own_target, _)) = &mut lane.parts.xrc else {
            return Ok(qp.connect_with(&peer, options)?);
        };
        let Some((target, number)) = &end.target else {
            return Err(Failure::new(Kind::Peer, "the peer has told no XRC target"));
        };
        own_target.connect_with(&peer, options)?;
        qp.connect_with(&parsed(target)?, options)?;
        lane.reach = Reach::Queue(PeerSrq(*number));
        Ok(())
    }
}

fn mtu(bytes: u32) -> Option<Mtu> {
    let all = [
        Mtu::MTU_4096,
        Mtu::MTU_2048,
        Mtu::MTU_1024,
        Mtu::MTU_512,
        Mtu::MTU_256,
    ];
    let fits = |mtu: &Mtu| mtu.bytes().is_some_and(|mtu| mtu <= bytes);
    all.into_iter().find(fits)
}

/// Parses a text from the peer.
fn parsed<T: std::str::FromStr>(text: &str) -> Result<T>
where
    T::Err: std::fmt::Display,
{
    let refuse = |error| {
        let text = text.escape_debug();
        Failure::new(
            Kind::Peer,
            format_args!("the peer tells \"{text}\": {error}"),
        )
    };
    text.parse().map_err(refuse)
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::new(Kind::Failed, error)
}

/// The named devices, or the first device.
fn chosen(own: &Own) -> Result<Vec<Device>> {
    match own.devices.as_slice() {
        [] => Ok(vec![select::one(None)?]),
        names => {
            let names = names.iter();
            names.map(|name| select::one(Some(name))).collect()
        }
    }
}

fn by_device(own: &Own, plan: &Plan, role: Role<'_>) -> Result<Vec<(Ground, Vec<Worker>)>> {
    let devices = chosen(own)?;
    let is_enough = match role {
        Role::Client { .. } => devices.len() == plan.devices as usize,
        Role::Server { .. } => devices.len() >= plan.devices as usize,
    };
    if !is_enough {
        let text = format!(
            "the client has {} devices, and this side {}: --device names them",
            plan.devices,
            devices.len()
        );
        return Err(Failure::new(Kind::Usage, text));
    }
    let devices = devices.into_iter().zip(0..plan.devices);
    devices
        .map(|(device, number)| on_device(device, number, own, plan))
        .collect()
}

fn on_device(device: Device, number: u32, own: &Own, plan: &Plan) -> Result<(Ground, Vec<Worker>)> {
    let ground = Ground::open(device, own.ib_port, own.gid_index, plan)?;
    let xrcd = match plan.transport {
        Transport::Xrc => Some(ground.context.open_xrcd()?),
        _ => None,
    };
    let workers = ground.workers(plan, number, |pd, cq, caps| match &xrcd {
        Some(xrcd) => xrc_parts(pd, cq, caps, xrcd, plan),
        None => Ok(Parts {
            qp: pd.qp(cq).caps(caps).create_any(plan.transport.qp_type())?,
            xrc: None,
        }),
    })?;
    Ok((ground, workers))
}

/// The sending and the receiving part.
fn xrc_parts(pd: &Pd, cq: &Cq, caps: Caps, xrcd: &Xrcd, plan: &Plan) -> Result<Parts> {
    let initiator = Caps {
        max_recv_wr: 0,
        max_recv_sge: 0,
        ..caps
    };
    let srq = pd.srq(caps.max_recv_wr).xrc(xrcd, cq).create()?;
    Ok(Parts {
        qp: pd
            .qp(cq)
            .caps(initiator)
            .create_any(plan.transport.qp_type())?,
        xrc: Some((xrcd.create_target()?, srq)),
    })
}

fn by_address<T: Initiates + Listens + Connected>(
    wire: &mut Wire,
    plan: &Plan,
    role: Role<'_>,
    links: &mut Vec<Link>,
) -> Result<(Ground, Vec<Worker>)> {
    match role {
        Role::Client { server, port } => match wire.hear(plan.patience())? {
            Message::Listening => as_client::<T>((server, port), plan, links),
            other => Err(unexpected(&other)),
        },
        Role::Server { port } => {
            let listener = rping::on_all_addresses::<T>(port)?;
            wire.say(&Message::Listening)?;
            as_server(&listener, plan, links)
        }
    }
}

fn params(plan: &Plan) -> Params {
    Params {
        access: plan.operation.access(),
        ..Params::default()
    }
}

/// The queue pair of a connection; its other part is added to the links.
fn parted<T: Space + Connected>(connection: Connection<Qp<T>>, links: &mut Vec<Link>) -> Parts {
    let (qp, link) = connection.into_parts();
    links.push(link);
    Parts {
        qp: qp.into_any(),
        xrc: None,
    }
}

fn as_client<T: Initiates + Connected>(
    server: (&str, u16),
    plan: &Plan,
    links: &mut Vec<Link>,
) -> Result<(Ground, Vec<Worker>)> {
    let (host, port) = server;
    let addresses = meet::resolve(host, port)?;
    let look = || meet::way_to::<T>(&addresses, plan.patience());
    let mut way = Some(look()?);
    let (device, port) = match &way {
        Some(way) => (way.device()?, way.port()),
        None => return Err(failed("there is no way")),
    };
    let ground = Ground::open(device, port, None, plan)?;
    let workers = ground.workers(plan, 0, |pd, cq, caps| {
        let mut way = match way.take() {
            Some(way) => way,
            None => look()?,
        };
        let mut qp: Qp<T> = pd.qp(cq).caps(caps).create()?;
        let deadline = Instant::now() + plan.patience();
        let connection = loop {
            let connecting = way.connect(qp, &params(plan), b"").map_err(peer)?;
            let failed = match connecting.within(plan.patience()) {
                Ok(connection) => break connection,
                Err(failed) => failed,
            };
            // The server's queue of requests may be full.
            if !is_nobody(&failed.error) || Instant::now() > deadline {
                return Err(peer(failed));
            }
            std::thread::sleep(PAUSE);
            (way, qp) = (look()?, failed.back);
        };
        Ok(parted(connection, links))
    })?;
    Ok((ground, workers))
}

fn as_server<T: Initiates + Listens + Connected>(
    listener: &Listener<T>,
    plan: &Plan,
    links: &mut Vec<Link>,
) -> Result<(Ground, Vec<Worker>)> {
    let next = || match listener.next_within(plan.patience())? {
        Some(request) => Ok(request),
        None => Err(Failure::new(
            Kind::Peer,
            "the client does not connect by address",
        )),
    };
    let first = next()?;
    let (device, port) = (first.device()?, first.port());
    let ground = Ground::open(device, port, None, plan)?;
    let mut first = Some(first);
    let workers = ground.workers(plan, 0, |pd, cq, caps| {
        let request = match first.take() {
            Some(request) => request,
            None => next()?,
        };
        let qp: Qp<T> = pd.qp(cq).caps(caps).create()?;
        let accepting = request.accept(qp, &params(plan), b"").map_err(peer)?;
        let connection = accepting.within(plan.patience()).map_err(peer)?;
        Ok(parted(connection, links))
    })?;
    Ok((ground, workers))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtus_are_rounded_down() {
        assert_eq!(mtu(u32::MAX), Some(Mtu::MTU_4096));
        assert_eq!(mtu(1500), Some(Mtu::MTU_1024));
        assert_eq!(mtu(100), None);
    }
}
