//! The verbs side of a game: memory, completion queue and queue pair, connected to the peer.
//!
//! Counting messages and reading completions is in [`super::game`].

use std::cell::Cell;
use std::ops::Range;

use uverbs::grh::GRH_LENGTH;
use uverbs::{
    Access, Ah, Caps, CompletionChannel, ConnectOptions, Context, Cq, Device, Endpoint, Inline, Mr,
    OpenOptions, Pd, Qp,
    device::PortState,
    qp::{Mtu, QpType},
    query::{LinkLayer, PortAttr},
    transport::{Any, StaticTransport, Transport},
};

use super::options::{self, Options};
use super::payload;
use crate::failure::{Failure, Kind, Result};

/// The Q_Key that datagrams of all ping-pong programs carry.
const QKEY: u32 = 0x1111_1111;

/// The work request ids.
pub(super) const SEND: u64 = 2;
pub(super) const RECV: u64 = 1;

/// Memory, queues and the path to the peer.
pub(super) struct Link {
    pub(super) cq: Cq,
    /// The channel to wait on, if completions are not polled.
    pub(super) channel: Option<CompletionChannel>,
    pub(super) end: End,
    /// The connection manager's part of a connection by address.
    pub(super) manager: Option<uverbs::cm::Link>,
    local: Endpoint,
    pub(super) context: Context,
    pd: Pd,
    connect: ConnectOptions,
}

/// This side's end without the completion queue, so that the queue can be polled while this is posted to.
pub(super) struct End {
    qp: Qp<Any>,
    /// The peer's QP, for datagrams.
    peer: Option<Peer>,
    memory: Memory,
    /// The bytes of a message that is copied into its request, if they fit.
    inline: bool,
    scratch: Vec<u8>,
    /// Receives posted so far.
    posted: u64,
    rx_depth: u32,
}

/// A queue pair that receives datagrams.
pub(super) struct Peer {
    pub(super) path: Ah,
    pub(super) qpn: u32,
    pub(super) qkey: u32,
}

/// The parts of a queue pair, for the case that the peer is found before it is created.
pub(super) struct Parts<'a> {
    pub(super) pd: &'a Pd,
    cq: &'a Cq,
    caps: Caps,
    memory: &'a Memory,
    connect: &'a ConnectOptions,
    /// Receives posted so far.
    posted: Cell<u32>,
}

impl Parts<'_> {
    /// A queue pair.
    pub(super) fn qp<T: StaticTransport>(&self) -> Result<Qp<T>> {
        Ok(self.pd.qp(self.cq).caps(self.caps).create()?)
    }

    /// Posts all receives.
    pub(super) fn post_receives<T: Transport>(&self, qp: &mut Qp<T>) -> Result<()> {
        let all = self.caps.max_recv_wr;
        self.memory.post_receives(qp, 0, all)?;
        self.posted.set(all);
        Ok(())
    }

    /// The data about a queue pair for the peer.
    pub(super) fn endpoint_of<T: Transport>(&self, qp: &Qp<T>) -> Result<Endpoint> {
        Ok(qp.endpoint_with(self.connect)?)
    }

    /// The path to a peer.
    pub(super) fn path_to(&self, remote: &Endpoint) -> Result<Ah> {
        let path = self.pd.context().path_to(remote, self.connect)?;
        Ok(self.pd.create_ah(&path)?)
    }
}

/// The registered memory: the message of this side, and two places that receive in turn, so that a message
/// can be sent back from its place while the next one arrives.
struct Memory {
    mr: Mr<Vec<u8>>,
    size: usize,
    /// Bytes that the device writes before a received message.
    header: usize,
}

impl Memory {
    fn register(pd: &Pd, size: usize, header: usize) -> Result<Self> {
        let mut bytes = vec![0; size + 2 * (header + size)];
        payload::fill_plain(&mut bytes);
        let mr = pd
            .register(bytes, Access::LOCAL_WRITE)
            .map_err(uverbs::Error::from)?;
        Ok(Self { mr, size, header })
    }

    /// The range of receive `number`, with its header.
    fn place(&self, number: u64) -> Range<usize> {
        let length = self.header + self.size;
        let start = self.size + (number % 2) as usize * length;
        start..start + length
    }

    /// The range of the message of receive `number`.
    fn message(&self, number: u64) -> Range<usize> {
        let place = self.place(number);
        place.start + self.header..place.end
    }

    /// A range, for work requests.
    fn slice(&self, range: Range<usize>) -> Result<uverbs::LocalSlice<'_>> {
        self.mr
            .slice(range)
            .map_err(|error| Failure::new(Kind::Failed, error))
    }
}

/// The source of a message to send.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    /// The client's own message.
    Own,
    /// The message of the receive with this number, counted from 0, to be sent back.
    Echo(u64),
}

impl Link {
    /// Opens the device and creates everything that does not need the peer.
    pub(super) fn open(device: &Device, options: &Options) -> Result<Self> {
        let transport = options.transport.qp_type();
        let create = |made: &Parts<'_>| {
            let qp = made.pd.qp(made.cq).caps(made.caps);
            Ok((qp.create_any(transport)?, ()))
        };
        let (link, ()) = Self::with(device, options, create)?;
        Ok(link)
    }

    /// Opens the device and creates everything, with a queue pair that `create` makes.
    pub(super) fn with<C>(
        device: &Device,
        options: &Options,
        create: impl FnOnce(&Parts<'_>) -> Result<(Qp<Any>, C)>,
    ) -> Result<(Self, C)> {
        let context = OpenOptions::new().open(device)?;
        let port = context.query_port(options.ib_port)?;
        check_port(device.name(), &port, options)?;
        let connect = connect_options(device.name(), &port, options)?;
        let transport = options.transport.qp_type();
        let header = if transport == QpType::UD {
            GRH_LENGTH
        } else {
            0
        };

        let pd = context.alloc_pd()?;
        let memory = Memory::register(&pd, options.size() as usize, header)?;
        let channel = match options.events {
            true => Some(context.create_channel()?),
            false => None,
        };
        // One send is in flight at a time.
        let cq = context.cq(options.receives().saturating_add(1));
        let cq = match &channel {
            Some(channel) => cq.channel(channel).create()?,
            None => cq.create()?,
        };
        let caps = Caps {
            max_send_wr: 1,
            max_recv_wr: options.receives(),
            max_send_sge: 1,
            max_recv_sge: 1,
            // The inline data that the device has by default.
            max_inline_data: 0,
        };
        let parts = Parts {
            pd: &pd,
            cq: &cq,
            caps,
            memory: &memory,
            connect: &connect,
            posted: Cell::new(0),
        };
        let (qp, created) = create(&parts)?;
        let local = qp.endpoint_with(&connect)?;
        let posted = parts.posted.get().into();
        let inline = qp.caps().max_inline_data >= options.size();
        let link = Self {
            cq,
            channel,
            manager: None,
            end: End {
                qp,
                peer: None,
                scratch: vec![0; memory.size],
                memory,
                inline,
                posted,
                rx_depth: options.receives(),
            },
            local,
            context,
            pd,
            connect,
        };
        Ok((link, created))
    }

    /// The device's name.
    pub(super) fn device(&self) -> &str {
        self.context.name()
    }

    /// The device's port, which connections by address find themselves.
    pub(super) fn port(&self) -> u8 {
        self.connect.port
    }

    /// The queue pair's data about its peer.
    pub(super) fn remote(&self) -> Result<Endpoint> {
        let info = self.end.qp.query()?;
        Ok(Endpoint {
            lid: info.path.dlid,
            qpn: info.dest_qpn,
            psn: info.rq_psn,
            gid: info.path.dgid,
        })
    }

    /// Sets the peer to which datagrams are sent.
    pub(super) fn speak_to(&mut self, peer: Peer) {
        self.end.peer = Some(peer);
    }

    /// The data that the peer needs to connect.
    pub(super) fn local(&self) -> Endpoint {
        self.local
    }

    /// Connects to the peer and posts the receives. After this the peer may send.
    pub(super) fn connect(&mut self, remote: &Endpoint) -> Result<()> {
        if self.local.gid.is_some() && remote.gid.is_none() {
            let text = "the peer gives no GID, and this port needs one: start the peer with -g";
            return Err(Failure::new(Kind::Peer, text));
        }
        let qp = &mut self.end.qp;
        if [QpType::UD, QpType::DRIVER].contains(&qp.transport()) {
            qp.activate(QKEY, &self.connect)?;
            let path = self.context.path_to(remote, &self.connect)?;
            self.end.peer = Some(Peer {
                path: self.pd.create_ah(&path)?,
                qpn: remote.qpn,
                qkey: QKEY,
            });
        } else {
            qp.connect_with(remote, &self.connect)?;
        }
        self.end.post_receives(self.end.rx_depth)
    }
}

impl End {
    /// Posts this many receives.
    pub(super) fn post_receives(&mut self, count: u32) -> Result<()> {
        self.memory
            .post_receives(&mut self.qp, self.posted, count)?;
        self.posted += u64::from(count);
        Ok(())
    }

    /// Writes this side's own message. The send before must have completed.
    pub(super) fn write_own(&mut self, fill: impl FnOnce(&mut [u8])) -> Result<()> {
        fill(&mut self.scratch);
        self.memory
            .mr
            .write_at(0, &self.scratch)
            .map_err(|error| Failure::new(Kind::Failed, error))
    }

    /// Sends a message. The send before must have completed.
    pub(super) fn send(&mut self, source: Source) -> Result<()> {
        let range = match source {
            Source::Own => 0..self.memory.size,
            Source::Echo(number) => self.memory.message(number),
        };
        let slice = self.memory.slice(range.clone())?;
        if self.inline {
            self.memory.copy_out(range, &mut self.scratch)?;
        }
        let to = self.peer.as_ref();
        let to = to.map(|peer| peer.path.to(peer.qpn, peer.qkey));
        let request = self.qp.one(SEND);
        let posted = match (to, self.inline) {
            (None, true) => request.send(Inline(&self.scratch)),
            (Some(to), true) => request.to(to).send(Inline(&self.scratch)),
            (None, false) => request.send(slice),
            (Some(to), false) => request.to(to).send(slice),
        };
        Ok(posted.map_err(uverbs::Error::from)?)
    }

    /// The message of receive `number`, counted from 0, which must be the last one or the one before.
    pub(super) fn received(&mut self, number: u64) -> Result<&[u8]> {
        self.memory
            .copy_out(self.memory.message(number), &mut self.scratch)?;
        Ok(&self.scratch)
    }

    /// Receives that are kept posted.
    pub(super) fn rx_depth(&self) -> u32 {
        self.rx_depth
    }

    /// The length that the completion of a receive must have.
    pub(super) fn expected_len(&self) -> usize {
        self.memory.header + self.memory.size
    }

    /// Bytes before the message in a receive.
    pub(super) fn header_len(&self) -> usize {
        self.memory.header
    }
}

impl Memory {
    /// Posts this many receives from that number on.
    fn post_receives<T: Transport>(&self, qp: &mut Qp<T>, first: u64, count: u32) -> Result<()> {
        let mut batch = qp.recv_batch();
        for number in (first..).take(count as usize) {
            let into = self.slice(self.place(number))?;
            batch.post(RECV, into).map_err(uverbs::Error::from)?;
        }
        batch.ring();
        Ok(())
    }

    fn copy_out(&self, range: Range<usize>, into: &mut [u8]) -> Result<()> {
        self.mr
            .read_at(range.start, into)
            .map_err(|error| Failure::new(Kind::Failed, error))
    }
}

/// Refuses what the port cannot do, before the peer is involved.
fn check_port(device: &str, port: &PortAttr, options: &Options) -> Result<()> {
    let number = options.ib_port;
    let fail = |text: String| Err(Failure::new(Kind::Failed, text));
    let usage = |text: String| Err(Failure::new(Kind::Usage, text));
    if matches!(
        port.state,
        PortState::Down | PortState::Init | PortState::Armed
    ) {
        return fail(format!("port {number} of {device} is {}", port.state));
    }
    if port.link_layer == LinkLayer::INFINIBAND && port.lid == 0 {
        return fail(format!(
            "port {number} of {device} has no LID: no subnet manager has given it one"
        ));
    }
    let (size, mtu) = (options.size(), port.active_mtu.bytes());
    match options.transport {
        options::Transport::Ud if mtu.is_some_and(|mtu| size > mtu) => usage(format!(
            "a datagram fits into a packet, and {size} bytes are more than the {} that port \
             {number} of {device} takes",
            mtu.unwrap_or_default()
        )),
        _ if size > port.max_msg_sz => usage(format!(
            "{size} bytes are more than the {} of a message of port {number} of {device}",
            port.max_msg_sz
        )),
        _ => Ok(()),
    }
}

fn connect_options(device: &str, port: &PortAttr, options: &Options) -> Result<ConnectOptions> {
    // The default of the C programs.
    let path_mtu = options.mtu.unwrap_or(Mtu::MTU_1024);
    if options.transport.is_connected() && path_mtu.0 > port.active_mtu.0 {
        return Err(Failure::new(
            Kind::Usage,
            format_args!(
                "the path's MTU of {} bytes (-m) is more than the {} of port {} of {device}",
                path_mtu.bytes().unwrap_or_default(),
                port.active_mtu.bytes().unwrap_or_default(),
                options.ib_port
            ),
        ));
    }
    Ok(ConnectOptions {
        port: options.ib_port,
        gid_index: options.gid_index,
        path_mtu: Some(path_mtu),
        access: Access::empty(),
        sl: options.sl,
        ..ConnectOptions::default()
    })
}
