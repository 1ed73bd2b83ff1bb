//! Queue pairs: their contexts, states and rings.
//!
//! What happens to work requests is the engine's business.

use std::collections::BTreeSet;
use std::time::Instant;

use crate::command::Status;
use crate::engine::inline::{self, Room, Side};
use crate::engine::syndrome::Syndrome;
use crate::function::Function;
use crate::layout::qpc::path;
use crate::layout::{Field, cmd, qpc};
use crate::object::ece;
use crate::object::umem::Record;
use crate::pages::Pages;

/// Bytes of a basic block, the unit of the send queue.
pub(crate) const BLOCK: u64 = 64;

/// The binary logarithms of the streams that an initiator may have, and of those that may fail before it
/// does.
pub(crate) const LOG_MOST_STREAMS: u64 = 4;
pub(crate) const LOG_MOST_FAILURES: u64 = 2;

/// The kind of service, by the driver's `MLX5_QP_ST_*`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// One end of an extended reliable connection, whose messages name the peer's shared receive queues.
    Xrc,
    /// An initiator of dynamic connections: each request names a DC target, and is acknowledged.
    Dc,
    /// Datagrams of the subnet manager's interface, QP 0.
    Smi,
    /// Datagrams of the general services interface, QP 1.
    Gsi,
    /// The driver's own queue for changing memory keys.
    RegUmr,
}

impl Transport {
    fn from_code(code: u64) -> Result<Self, Status> {
        match code {
            0x0 => Ok(Self::Rc),
            0x1 => Ok(Self::Uc),
            0x2 => Ok(Self::Ud),
            0x3 => Ok(Self::Xrc),
            0x5 => Ok(Self::Dc),
            0x7 => Ok(Self::Smi),
            0x8 => Ok(Self::Gsi),
            0xc => Ok(Self::RegUmr),
            _ => Err(Status::BadParameter),
        }
    }

    /// Whether messages are acknowledged.
    pub(crate) const fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::Xrc | Self::Dc)
    }

    /// Whether messages are datagrams, of one packet each.
    pub(crate) const fn is_datagram(self) -> bool {
        matches!(self, Self::Ud | Self::Smi | Self::Gsi)
    }

    /// Whether each request carries its own address.
    pub(crate) const fn names_destination(self) -> bool {
        self.is_datagram() || matches!(self, Self::Dc)
    }
}

/// The state of a queue pair, by the driver's `MLX5_QP_STATE_*`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum State {
    /// Just made.
    Reset = 0,
    /// Receive requests may be posted.
    Init = 1,
    /// Messages can be received.
    ReadyToReceive = 2,
    /// Messages can be sent.
    ReadyToSend = 3,
    /// A send request failed; sends are flushed.
    SendQueueError = 4,
    /// All requests are flushed.
    Error = 6,
}

/// Where receive requests come from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum ReceiveSource {
    /// There are none.
    None,
    /// The queue pair's own ring.
    Own { log_size: u32, log_stride: u32 },
    /// A shared receive queue.
    Shared(u32),
}

/// A request that could not be carried out yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    /// Since when.
    pub(crate) since: Instant,
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct QueuePair {
    context: Vec<u8>,
    transport: Transport,
    state: State,
    pages: Pages,
    record: Record,
    receive: ReceiveSource,
    /// The connection's options that it has; 0 if none were asked for.
    ece: u32,
    /// The next block of the send queue that the device looks at.
    pub(crate) send_consumer: u16,
    /// The next entry of the own receive queue that the device takes.
    pub(crate) receive_consumer: u16,
    /// One before it that was left out, by a queue pair that takes packets in any order.
    pub(crate) left_out: Option<u16>,
    /// Set while the request at `send_consumer` waits for its peer.
    pub(crate) waiting: Option<Waiting>,
    /// Whether it was told that no more is taken from the shared receive queue.
    pub(crate) left_shared: bool,
    /// The request that the last doorbell told of.
    pub(crate) rung: Option<Rung>,
    /// The index behind that request, of which all in front of it have been told too.
    pub(crate) rung_until: u16,
    /// Data of the next request that were read ahead.
    pub(crate) ahead: Option<Ahead>,
    /// The streams of an initiator that have failed.
    failed_streams: BTreeSet<u16>,
    /// The numbers of the next packet of a connection that it sends, and that it takes.
    pub(crate) psn: [u32; 2],
}

/// Data that were read before the requests in front of theirs were done, or why they could not be.
#[derive(Debug)]
pub(crate) struct Ahead {
    /// The index of their request.
    pub(crate) index: u16,
    pub(crate) data: Result<Vec<u8>, Syndrome>,
}

/// A request as it lay in the ring when its doorbell was rung.
#[derive(Debug)]
pub(crate) struct Rung {
    pub(crate) index: u16,
    /// The request, and what lies behind it as far as the longest would go.
    pub(crate) bytes: Vec<u8>,
}

impl QueuePair {
    fn new(context: &[u8], pages: Pages, record: Record) -> Result<Self, Status> {
        let receive = match qpc::RQ_TYPE.get(context) {
            0 => ReceiveSource::Own {
                log_size: qpc::LOG_RQ_SIZE.get32(context),
                log_stride: qpc::LOG_RQ_STRIDE.get32(context) + 4,
            },
            1 => ReceiveSource::Shared(qpc::SRQN_RMPN_XRQN.get32(context)),
            3 => ReceiveSource::None,
            _ => return Err(Status::BadParameter),
        };
        if qpc::WQ_SIGNATURE.is_set(context) {
            return Err(Status::BadParameter);
        }
        let streams = qpc::LOG_NUM_DCI_STREAM_CHANNELS.get(context);
        let failures = qpc::LOG_NUM_DCI_ERRORED_STREAMS.get(context);
        let transport = Transport::from_code(qpc::ST.get(context))?;
        let has_any = streams != 0 || failures != 0;
        if has_any && transport != Transport::Dc
            || streams > LOG_MOST_STREAMS
            || failures > LOG_MOST_FAILURES
        {
            return Err(Status::BadParameter);
        }
        let queue_pair = Self {
            transport,
            state: State::Reset,
            pages,
            record,
            receive,
            ece: 0,
            send_consumer: 0,
            receive_consumer: 0,
            left_out: None,
            waiting: None,
            left_shared: false,
            rung: None,
            rung_until: 0,
            ahead: None,
            failed_streams: BTreeSet::new(),
            psn: [0; 2],
            context: context.to_vec(),
        };
        let end = queue_pair.send_start() + (queue_pair.send_blocks() * BLOCK);
        if queue_pair.pages.holds(end) {
            Ok(queue_pair)
        } else {
            Err(Status::BadParameter)
        }
    }

    /// Whether it takes packets in any order.
    pub(crate) fn is_loose(&self) -> bool {
        [qpc::DP_ORDERING_1, qpc::DP_ORDERING_FORCE]
            .iter()
            .all(|field| field.is_set(&self.context))
    }

    /// The stream of an initiator that requests with this number are in; none if it was given none. Any
    /// number will do: rdma-core's tests have more than streams.
    fn stream(&self, number: u16) -> Option<u16> {
        let log = self.field32(qpc::LOG_NUM_DCI_STREAM_CHANNELS);
        (log != 0).then(|| number % (1 << log))
    }

    /// Whether the stream with this number has failed.
    pub(crate) fn has_failed(&self, number: u16) -> bool {
        let stream = self.stream(number);
        stream.is_some_and(|stream| self.failed_streams.contains(&stream))
    }

    /// Notes that a request of the stream with this number has failed; gives whether the queue pair has with
    /// it.
    pub(crate) fn fail_stream(&mut self, number: u16) -> bool {
        let Some(stream) = self.stream(number) else {
            return true;
        };
        self.failed_streams.insert(stream);
        self.failed_streams.len() >= 1 << self.field32(qpc::LOG_NUM_DCI_ERRORED_STREAMS)
    }

    /// The protection domain.
    pub(crate) fn pd(&self) -> u32 {
        qpc::PD.get32(&self.context)
    }

    /// The kind of service.
    pub(crate) fn transport(&self) -> Transport {
        self.transport
    }

    /// The state.
    pub(crate) fn state(&self) -> State {
        self.state
    }

    /// A field of the context.
    pub(crate) fn field(&self, field: Field) -> u64 {
        field.get(&self.context)
    }

    /// A field of the context that has up to 32 bits.
    pub(crate) fn field32(&self, field: Field) -> u32 {
        field.get32(&self.context)
    }

    /// The GID of a connection's peer.
    pub(crate) fn peer_gid(&self) -> [u8; 16] {
        let [high, low] = path::RGID.map(|field| u128::from(self.field(field)));
        (high << 64 | low).to_be_bytes()
    }

    /// Sets a field of the context.
    #[cfg(test)]
    pub(crate) fn set_field(&mut self, field: Field, value: u64) {
        field.set(&mut self.context, value);
    }

    /// The UAR of its doorbells.
    pub(crate) fn uar(&self) -> u32 {
        self.field32(qpc::UAR_PAGE)
    }

    /// The completion queue of send requests.
    pub(crate) fn send_cqn(&self) -> u32 {
        self.field32(qpc::CQN_SND)
    }

    /// The completion queue of receive requests.
    pub(crate) fn receive_cqn(&self) -> u32 {
        self.field32(qpc::CQN_RCV)
    }

    /// Whether completions go to that queue.
    pub(crate) fn completes_on(&self, cqn: u32) -> bool {
        self.send_cqn() == cqn || self.receive_cqn() == cqn
    }

    /// The domain of XRC, if it is for that.
    pub(crate) fn domain(&self) -> Option<u32> {
        (self.transport == Transport::Xrc).then(|| self.field32(qpc::XRCD))
    }

    /// Puts it into another domain of XRC.
    #[cfg(test)]
    pub(crate) fn move_to_domain(&mut self, domain: u32) {
        qpc::XRCD.set(&mut self.context, domain.into());
    }

    /// The shared receive queue, if it has one.
    pub(crate) fn shared_queue(&self) -> Option<u32> {
        match self.receive {
            ReceiveSource::Shared(srqn) => Some(srqn),
            _ => None,
        }
    }

    /// The ring with its pages.
    pub(crate) fn pages(&self) -> &Pages {
        &self.pages
    }

    /// Where the send queue begins in the pages: behind the receive queue.
    pub(crate) fn send_start(&self) -> u64 {
        match self.receive {
            ReceiveSource::Own {
                log_size,
                log_stride,
            } => 1 << (log_size + log_stride),
            _ => 0,
        }
    }

    /// How many blocks the send queue has.
    pub(crate) fn send_blocks(&self) -> u64 {
        if qpc::NO_SQ.is_set(&self.context) {
            0
        } else {
            1 << qpc::LOG_SQ_SIZE.get32(&self.context)
        }
    }

    /// The own receive queue: number of entries and bytes of each, as binary logarithms.
    pub(crate) fn own_receive_queue(&self) -> Option<(u32, u32)> {
        match self.receive {
            ReceiveSource::Own {
                log_size,
                log_stride,
            } => Some((log_size, log_stride)),
            _ => None,
        }
    }

    /// Where the doorbell record is: the receive counter, and 4 bytes on the send counter.
    pub(crate) fn doorbell_record(&self) -> u64 {
        self.record.address
    }

    /// Changes the state.
    pub(crate) fn set_state(&mut self, state: State) {
        self.state = state;
        qpc::STATE.set(&mut self.context, state as u64);
        if state == State::Reset {
            self.send_consumer = 0;
            self.receive_consumer = 0;
            self.left_out = None;
            self.left_shared = false;
            self.rung = None;
            self.rung_until = 0;
            self.ahead = None;
            self.failed_streams.clear();
            self.ece = 0;
        }
        self.waiting = None;
    }

    /// Takes fields over from a command's context.
    fn take(&mut self, from: &[u8], fields: &[Field]) {
        for field in fields {
            field.set(&mut self.context, field.get(from));
        }
    }

    /// Takes the primary path over, except for what other commands set of it.
    fn take_path(&mut self, from: &[u8]) {
        const OF_OTHERS: [Field; 3] = [path::PKEY_INDEX, path::ACK_TIMEOUT, path::VHCA_PORT_NUM];
        let kept = OF_OTHERS.map(|field| field.get(&self.context));
        let range = path::START..path::START + path::SIZE;
        if let (Some(to), Some(from)) = (self.context.get_mut(range.clone()), from.get(range)) {
            to.copy_from_slice(from);
        }
        for (field, value) in OF_OTHERS.into_iter().zip(kept) {
            field.set(&mut self.context, value);
        }
    }

    /// Takes over the optional parameters that the mask names.
    fn take_optional(&mut self, from: &[u8], mask: u64) {
        const OPTIONAL: [(u32, Field); 9] = [
            (1, qpc::RRE),
            (2, qpc::RAE),
            (3, qpc::RWE),
            (4, path::PKEY_INDEX),
            (5, qpc::Q_KEY),
            (6, qpc::MIN_RNR_NAK),
            (10, qpc::PM_STATE),
            (15, qpc::LAG_TX_PORT_AFFINITY),
            (25, qpc::COUNTER_SET_ID),
        ];
        for (bit, field) in OPTIONAL {
            if mask & (1 << bit) != 0 {
                self.take(from, &[field]);
            }
        }
    }
}

/// Executes CREATE_QP.
///
/// # Errors
/// If the context is one that the model cannot serve, or names objects that are not there.
pub(crate) fn create(
    function: &mut Function,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Status> {
    let context = context_of(input)?;
    let list = input.get(cmd::PAS..).ok_or(Status::BadInputLength)?;
    let uid = cmd::UID.get(input);
    let pages = match cmd::WQ_UMEM_VALID.is_set(input) {
        true => {
            let memory = function.user_memory(uid, cmd::WQ_UMEM_ID.get(input))?;
            memory.part(cmd::WQ_UMEM_OFFSET.get(input))?
        }
        false => Pages::from_command(
            list,
            qpc::LOG_PAGE_SIZE.get32(context),
            qpc::PAGE_OFFSET.get(context),
        ),
    };
    let record = match qpc::DBR_UMEM_VALID.is_set(context) {
        true => {
            let memory = function.user_memory(uid, qpc::DBR_UMEM_ID.get(context))?;
            memory.record(qpc::DBR_ADDR.get(context))?
        }
        false => Record::at(qpc::DBR_ADDR.get(context)),
    };
    let queue_pair = QueuePair::new(context, pages, record)?;
    function.report.trace(|| {
        format!(
            "queue pair: {:?}, UAR {}, completion queues {:#x} and {:#x}, {:?}, domain {}, {} blocks",
            queue_pair.transport,
            queue_pair.uar(),
            queue_pair.send_cqn(),
            queue_pair.receive_cqn(),
            queue_pair.receive,
            queue_pair.pd(),
            queue_pair.send_blocks()
        )
    });
    if queue_pair.transport == Transport::Dc && queue_pair.own_receive_queue().is_some() {
        return Err(Status::BadParameter);
    }
    // The driver's own queue has none.
    if queue_pair.transport != Transport::RegUmr {
        function.check_pd(queue_pair.pd())?;
    }
    let objects = &mut function.objects;
    if let Some(domain) = queue_pair.domain() {
        objects.xrcds.get(domain)?;
    }
    // The driver names no UAR for a target of XRC, which has no rings.
    if queue_pair.send_blocks() != 0 {
        objects.uars.get(queue_pair.uar())?;
        objects.cqs.get(queue_pair.send_cqn())?;
    }
    if queue_pair.receive != ReceiveSource::None {
        objects.cqs.get(queue_pair.receive_cqn())?;
    }
    if let Some(srqn) = queue_pair.shared_queue()
        && !objects.srqs.get(srqn)?.is_for(uid)
    {
        return Err(Status::BadResource);
    }
    for (side, cqn) in [
        (Side::Responder, queue_pair.receive_cqn()),
        (Side::Requester, queue_pair.send_cqn()),
    ] {
        let room = inline::asked(&queue_pair, side).map_err(|()| Status::BadParameter)?;
        // That much goes before the half that counts.
        if room == Some(Room::Bytes64) && objects.cqs.get(cqn)?.stride() != 128 {
            return Err(Status::BadParameter);
        }
    }
    if cmd::ECE_ASKED.get(input) != 0 {
        let supported = ece::supported(queue_pair.transport);
        cmd::ECE_GRANTED.set(output, supported.into());
    }
    cmd::OBJECT.set(output, objects.qps.insert(queue_pair)?.into());
    Ok(())
}

/// Executes DESTROY_QP.
///
/// # Errors
/// If there is no such queue pair, or it is attached to a multicast group.
pub(crate) fn destroy(function: &mut Function, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let qpn = cmd::OBJECT.get32(input);
    let attached = &function.objects.multicast;
    if attached.iter().any(|(_, member)| *member == qpn) {
        return Err(Status::ResourceBusy);
    }
    function.objects.qps.remove(qpn).map(drop)
}

/// Answers QUERY_QP.
///
/// # Errors
/// If there is no such queue pair.
pub(crate) fn query(
    function: &mut Function,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Status> {
    let queue_pair = function.objects.qps.get(cmd::OBJECT.get32(input))?;
    for (to, from) in output
        .iter_mut()
        .skip(cmd::QP_CONTEXT)
        .zip(&queue_pair.context)
    {
        *to = *from;
    }
    // What it writes to memory is there in order; datagrams make no promise.
    let in_order = queue_pair.state == State::ReadyToSend
        && !queue_pair.transport.is_datagram()
        && !queue_pair.is_loose();
    if let Some(context) = output.get_mut(cmd::QP_CONTEXT..) {
        qpc::DATA_IN_ORDER.set(context, in_order.into());
    }
    Ok(())
}

/// Executes the commands that change a queue pair's state.
///
/// # Errors
/// If there is no such queue pair, or its state does not allow the change, or a queue pair for datagrams is
/// to have other options than it has.
pub(crate) fn modify(
    function: &mut Function,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Status> {
    use State::{Error, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueError};
    let qpn = cmd::OBJECT.get32(input);
    let queue_pair = function.objects.qps.get_mut(qpn)?;
    let (from, to): (&[State], State) = match cmd::OPCODE.get(input) {
        0x502 => (&[Reset], Init),
        0x50e => (&[Init], Init),
        0x503 => (&[Init], ReadyToReceive),
        0x504 => (&[ReadyToReceive], ReadyToSend),
        0x505 => (&[ReadyToSend], ReadyToSend),
        0x506 => (&[SendQueueError], ReadyToSend),
        0x507 => (
            &[
                Reset,
                Init,
                ReadyToReceive,
                ReadyToSend,
                SendQueueError,
                Error,
            ],
            Error,
        ),
        0x50a => (
            &[
                Reset,
                Init,
                ReadyToReceive,
                ReadyToSend,
                SendQueueError,
                Error,
            ],
            Reset,
        ),
        _ => return Err(Status::BadOperation),
    };
    if !from.contains(&queue_pair.state) {
        return Err(Status::BadQpState);
    }
    if !matches!(to, Error | Reset) {
        let context = context_of(input)?;
        let mask = cmd::OPT_PARAM_MASK.get(input);
        check_parameters(queue_pair, to, context, mask)?;
        let asked = cmd::ECE_ASKED.get32(input);
        if asked != 0 {
            let granted = ece::granted(queue_pair.transport, asked);
            let other = queue_pair.ece != 0 && queue_pair.ece != granted;
            if queue_pair.transport.is_datagram() && other {
                return Err(Status::BadParameter);
            }
            queue_pair.ece = granted;
        }
        cmd::ECE_GRANTED.set(output, queue_pair.ece.into());
        take_parameters(queue_pair, to, context, mask);
        if queue_pair.state == ReadyToSend {
            take_more(queue_pair, input, context)?;
        }
    }
    queue_pair.set_state(to);
    function.kicked.push(qpn);
    Ok(())
}

/// The optional parameters of a change, as bits of its mask (`MLX5_QP_OPTPAR_*`).
mod optional {
    pub(super) const ALTERNATE_PATH: u64 = 1 << 0;
    /// Rights of the peer: to read, to do atomics, to write.
    pub(super) const RRE: u64 = 1 << 1;
    pub(super) const RAE: u64 = 1 << 2;
    pub(super) const RWE: u64 = 1 << 3;
    pub(super) const PKEY_INDEX: u64 = 1 << 4;
    pub(super) const Q_KEY: u64 = 1 << 5;
    pub(super) const RNR_TIMEOUT: u64 = 1 << 6;
    pub(super) const PM_STATE: u64 = 1 << 10;
    pub(super) const LAG_TX_AFFINITY: u64 = 1 << 15;
    pub(super) const PRIMARY_PORT: u64 = 1 << 16;
    pub(super) const SRQN: u64 = 1 << 18;
    pub(super) const CQN_RCV: u64 = 1 << 19;
    pub(super) const COUNTER_SET: u64 = 1 << 25;
}

/// The optional parameters that a change may have: what the driver has in its table of them (`opt_mask` in
/// `qp.c`), the set of counters, which it sends besides, and one that users send.
fn may_have(transport: Transport, from: State, to: State) -> u64 {
    use State::{Init, ReadyToReceive, ReadyToSend, SendQueueError};
    use optional::*;
    let rights = match transport {
        Transport::Rc | Transport::Xrc => RRE | RAE | RWE,
        Transport::Uc => RWE,
        _ => 0,
    };
    let is_connected = rights != 0;
    let pauses = if rights & RRE != 0 { RNR_TIMEOUT } else { 0 };
    let mask = match (from, to) {
        (Init, Init) if is_connected => rights | PKEY_INDEX | PRIMARY_PORT | LAG_TX_AFFINITY,
        (Init, Init) => PKEY_INDEX | Q_KEY | PRIMARY_PORT,
        (Init, ReadyToReceive) if is_connected => {
            ALTERNATE_PATH | rights | PKEY_INDEX | LAG_TX_AFFINITY
        }
        // UCX names this right of initiators, by commands of its own, and adapters take it.
        (Init, ReadyToReceive) if transport == Transport::Dc => PKEY_INDEX | Q_KEY | RAE,
        (Init, ReadyToReceive) => PKEY_INDEX | Q_KEY,
        (ReadyToReceive, ReadyToSend) if is_connected => {
            ALTERNATE_PATH | rights | PM_STATE | pauses
        }
        (ReadyToReceive, ReadyToSend) => Q_KEY,
        (ReadyToSend, ReadyToSend) if is_connected => {
            ALTERNATE_PATH | rights | PM_STATE | pauses | LAG_TX_AFFINITY
        }
        (ReadyToSend, ReadyToSend) => Q_KEY | SRQN | CQN_RCV | LAG_TX_AFFINITY,
        (SendQueueError, ReadyToSend) => rights | pauses | if is_connected { 0 } else { Q_KEY },
        _ => 0,
    };
    mask | COUNTER_SET
}

/// Refuses a change without what it must have, or with what it may not have.
fn check_parameters(
    queue_pair: &QueuePair,
    to: State,
    context: &[u8],
    mask: u64,
) -> Result<(), Status> {
    /// There is one port.
    const PORT: u64 = 1;
    const MTUS: std::ops::RangeInclusive<u64> = 1..=5;
    const LOG_LONGEST: u64 = 30;
    let (from, transport) = (queue_pair.state, queue_pair.transport);
    let is_right = match (from, to) {
        (State::Reset, State::Init) => path::VHCA_PORT_NUM.get(context) == PORT,
        (State::Init, State::ReadyToReceive) => {
            MTUS.contains(&qpc::MTU.get(context)) && qpc::LOG_MSG_MAX.get(context) <= LOG_LONGEST
        }
        _ => true,
    };
    let of_driver = transport == Transport::RegUmr;
    match of_driver || is_right && mask & !may_have(transport, from, to) == 0 {
        true => Ok(()),
        false => Err(Status::BadParameter),
    }
}

/// Takes over what belongs to a change to that state.
fn take_parameters(queue_pair: &mut QueuePair, to: State, context: &[u8], mask: u64) {
    match (queue_pair.state, to) {
        (State::Reset, State::Init) => queue_pair.take(
            context,
            &[
                qpc::RRE,
                qpc::RWE,
                qpc::RAE,
                qpc::ATOMIC_MODE,
                qpc::PM_STATE,
                qpc::Q_KEY,
                qpc::COUNTER_SET_ID,
                path::PKEY_INDEX,
                path::VHCA_PORT_NUM,
            ],
        ),
        (State::Init, State::ReadyToReceive) => {
            queue_pair.take_path(context);
            queue_pair.take(
                context,
                &[
                    qpc::REMOTE_QPN,
                    qpc::MTU,
                    qpc::LOG_MSG_MAX,
                    qpc::NEXT_RCV_PSN,
                    qpc::LOG_RRA_MAX,
                    qpc::MIN_RNR_NAK,
                    qpc::DP_ORDERING_1,
                    qpc::DP_ORDERING_FORCE,
                ],
            );
            queue_pair.psn[1] = queue_pair.field32(qpc::NEXT_RCV_PSN);
        }
        (State::ReadyToReceive, State::ReadyToSend) => {
            queue_pair.take(
                context,
                &[
                    qpc::NEXT_SEND_PSN,
                    qpc::LOG_SRA_MAX,
                    qpc::RETRY_COUNT,
                    qpc::RNR_RETRY,
                    qpc::LOG_ACK_REQ_FREQ,
                    path::ACK_TIMEOUT,
                ],
            );
            queue_pair.psn[0] = queue_pair.field32(qpc::NEXT_SEND_PSN);
        }
        _ => {}
    }
    queue_pair.take_optional(context, mask);
}

/// Takes over what the second mask of RTS2RTS_QP names; older drivers send none.
fn take_more(queue_pair: &mut QueuePair, input: &[u8], context: &[u8]) -> Result<(), Status> {
    const STREAM: u64 = 1 << 0;
    const UDP_SPORT: u64 = 1 << 2;
    const MASK_END: usize = 0x110;
    if input.len() < MASK_END {
        return Ok(());
    }
    let mask = cmd::OPT_PARAM_MASK_95_32.get(input);
    if mask & UDP_SPORT != 0 {
        queue_pair.take(context, &[path::UDP_SPORT]);
    }
    if mask & STREAM != 0 {
        let number = cmd::DCI_STREAM_CHANNEL_ID.get32(input) as u16;
        let has_it = cmd::QPC_EXT.is_set(input) && input.len() >= cmd::QPC_DATA_EXT_END;
        let stream = queue_pair.stream(number).filter(|_| has_it);
        let stream = stream.ok_or(Status::BadParameter)?;
        queue_pair.failed_streams.remove(&stream);
    }
    Ok(())
}

/// Answers QUERY_LAG: nothing is bonded, so packets leave by the port that the queue pair has.
///
/// # Errors
/// None.
pub(crate) fn query_lag(_: &mut Function, _: &[u8], output: &mut [u8]) -> Result<(), Status> {
    cmd::TX_REMAP_AFFINITY_1.set(output, 1);
    cmd::TX_REMAP_AFFINITY_2.set(output, 2);
    Ok(())
}

fn context_of(input: &[u8]) -> Result<&[u8], Status> {
    input
        .get(cmd::QP_CONTEXT..cmd::QP_CONTEXT + qpc::SIZE)
        .ok_or(Status::BadInputLength)
}

#[cfg(test)]
mod tests;
