//! One queue pair with the memory that it works on.

use std::os::fd::{AsFd, BorrowedFd};

use uverbs::{
    Access, Ah, Caps, CompletionChannel, ConnectOptions, Context, Cq, Endpoint, Inline, LocalSlice,
    Mr, Notify, Pd, Qp, QpState, RemoteSlice, UdPeer,
    event::{AsyncEventType, AsyncEvents},
    mr::RemoteKey,
    mw::{Mw, Type2},
    qp::{Mtu, QpAttr, QpType},
    transport::Any,
};

use super::Result;
use super::figures::Figures;
use super::fleeting::Loan;
use super::message::Key;
use super::net::Host;
use super::pair::Wc;
use super::plan::{BURST, INLINE, Op, Request, SLOT};

/// Receives that a queue pair has room for.
pub(crate) const RECEIVES: usize = 2 * BURST;

/// Bytes of a receive: a datagram has a route header before its message.
const INBOX: usize = SLOT as usize + 64;

/// The key of datagrams.
const QKEY: u32 = 0x0050_414b;

const SLOTS: usize = BURST * SLOT as usize;

/// What all queue pairs of a host share.
pub(crate) struct Hub {
    pub(crate) context: Context,
    pub(crate) pd: Pd,
    pub(crate) cqs: Vec<Cq>,
    channel: CompletionChannel,
    events: AsyncEvents,
}

/// Pairs to a completion queue.
const PAIRS_PER_CQ: usize = 8;

/// Entries of a completion queue: for each pair that may use it all that a side can post, twice.
const ENTRIES: u32 = (4 * PAIRS_PER_CQ * (2 * BURST + RECEIVES)) as u32;

impl Hub {
    /// What this many pairs need on a host.
    pub(crate) fn new(host: &Host, pairs: usize) -> Result<Self> {
        let context = uverbs::open(host.device)?;
        let channel = context.create_channel()?;
        let cq = |_| context.cq(ENTRIES).channel(&channel).create();
        let cqs: uverbs::Result<Vec<Cq>> = (0..pairs.div_ceil(PAIRS_PER_CQ)).map(cq).collect();
        Ok(Self {
            pd: context.alloc_pd()?,
            cqs: cqs?,
            channel,
            events: context.async_events()?,
            context,
        })
    }

    /// Takes all completions that are there.
    pub(crate) fn take(&mut self, into: &mut Vec<Wc>) -> Result {
        for cq in &mut self.cqs {
            into.extend(cq.poll()?.iter().map(Wc::from));
        }
        Ok(())
    }

    /// Asks for an event with the next completion. Gives whether there is none yet.
    pub(crate) fn arm(&mut self) -> Result<bool> {
        let mut empty = true;
        for cq in &mut self.cqs {
            empty &= cq.poll_or_arm(Notify::Next)?.is_none();
        }
        Ok(empty)
    }

    /// Takes the events that are there, and counts those that are no completions.
    pub(crate) fn take_events(&mut self, figures: &mut Figures) -> Result {
        while self.channel.try_next()?.is_some() {
            figures.add("events of completion queues", 1);
        }
        while let Some(event) = self.events.try_next()? {
            if event.kind == AsyncEventType::CQ_ERR {
                return Err(format!("a completion queue has overflowed: {event:?}").into());
            }
            figures.add(format!("asynchronous events: {:?}", event.kind), 1);
        }
        Ok(())
    }

    /// What becomes readable when a completion comes.
    pub(crate) fn channel(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

/// A queue pair, if there is one, and its memory.
///
/// What is declared first goes first: the window, for the reason that [`Side::destroy`] has, then the queue
/// pair, then what it works on.
pub(crate) struct Side {
    pub(crate) window: Option<Mw<Type2>>,
    pub(crate) qp: Option<Qp<Any>>,
    ah: Option<Ah>,
    /// What is sent, what READs and atomics bring, what is received.
    private: Mr<Vec<u8>>,
    /// What the peer writes, what it reads, the word of its atomics.
    public: Mr<Vec<u8>>,
}

/// What the peer must know of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    qpn: u32,
    public: RemoteSlice,
    window: Option<RemoteKey>,
}

/// Bytes that the peer reads.
pub(crate) fn shelf(pair: u16, side: usize) -> Vec<u8> {
    let key = Key {
        pair,
        side: side as u8 | 0x80,
        serial: 0,
    };
    key.message(SLOT)
}

impl Side {
    /// Memory without a queue pair.
    pub(crate) fn new(hub: &Hub, pair: u16, side: usize) -> Result<Self> {
        let [private, public] = Self::memory(hub, pair, side)?;
        Ok(Self {
            qp: None,
            ah: None,
            window: None,
            private,
            public,
        })
    }

    fn memory(hub: &Hub, pair: u16, side: usize) -> Result<[Mr<Vec<u8>>; 2]> {
        let private = vec![0; 2 * SLOTS + RECEIVES * INBOX];
        let mut public = vec![0; SLOTS + SLOT as usize + 8];
        public[SLOTS..][..SLOT as usize].copy_from_slice(&shelf(pair, side));
        let access = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC
            | Access::MW_BIND;
        Ok([
            hub.pd.register(private, Access::LOCAL_WRITE)?,
            hub.pd.register(public, access)?,
        ])
    }

    /// Other memory, in another place, with zeros where the peer writes.
    pub(crate) fn renew_memory(&mut self, hub: &Hub, pair: u16, side: usize) -> Result {
        let [private, public] = Self::memory(hub, pair, side)?;
        std::mem::replace(&mut self.private, private).deregister()?;
        std::mem::replace(&mut self.public, public).deregister()?;
        Ok(())
    }

    /// Creates the queue pair.
    pub(crate) fn create(&mut self, hub: &Hub, pair: u16, transport: QpType) -> Result {
        let caps = Caps {
            // A burst and what a step adds to it, twice.
            max_send_wr: 2 * BURST as u32,
            max_recv_wr: RECEIVES as u32,
            max_send_sge: 2,
            max_recv_sge: 1,
            max_inline_data: INLINE,
        };
        let cq = |number: usize| &hub.cqs[number % hub.cqs.len()];
        let number = usize::from(pair);
        let builder = hub.pd.qp(cq(number)).recv_cq(cq(number / 2)).caps(caps);
        self.qp = Some(builder.create_any(transport)?);
        Ok(())
    }

    /// Destroys the queue pair and what belongs to it.
    ///
    /// The window goes first: on rxe a bound one of type 2 holds on to its queue pair (`rxe_do_bind_mw` in
    /// `rxe_mw.c`), and to destroy that before hangs for a minute and ends with a warning in the kernel's
    /// log.
    pub(crate) fn destroy(&mut self) -> Result {
        if let Some(window) = self.window.take() {
            window.dealloc()?;
        }
        if let Some(qp) = self.qp.take() {
            qp.destroy()?;
        }
        self.forget()
    }

    /// Destroys what belongs to the connection.
    pub(crate) fn forget(&mut self) -> Result {
        if let Some(ah) = self.ah.take() {
            ah.destroy()?;
        }
        if let Some(window) = self.window.take() {
            window.dealloc()?;
        }
        Ok(())
    }

    pub(crate) fn qp(&mut self) -> Result<&mut Qp<Any>> {
        self.qp.as_mut().ok_or_else(|| "no queue pair".into())
    }

    /// What the peer must know.
    pub(crate) fn address(&self) -> Result<Address> {
        Ok(Address {
            qpn: self.qp.as_ref().ok_or("no queue pair")?.qpn(),
            public: self.public.remote(),
            window: self.window.as_ref().map(Mw::rkey),
        })
    }

    /// Takes the queue pair from RESET to RTS, where it counts packets from its own and from its peer's
    /// number. This thread must be on the queue pair's host.
    pub(crate) fn connect(
        &mut self,
        hub: &Hub,
        peer: &Hub,
        to: Address,
        path_mtu: Mtu,
        [own, peers]: [u32; 2],
    ) -> Result {
        let (_, gid) = peer.context.best_gid(1)?.ok_or("no GID")?;
        let there = Endpoint {
            lid: 0,
            qpn: to.qpn,
            psn: peers,
            gid: Some(gid),
        };
        let path = hub.context.path_to(&there, &ConnectOptions::default())?;
        let qp = self.qp()?;
        let transport = qp.transport();
        let datagrams = transport == QpType::UD;
        let reliable = transport == QpType::RC;
        qp.modify(&QpAttr {
            state: Some(QpState::INIT),
            port: Some(1),
            pkey_index: Some(0),
            qkey: datagrams.then_some(QKEY),
            access: (!datagrams)
                .then_some(Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC),
            ..QpAttr::default()
        })?;
        qp.modify(&QpAttr {
            state: Some(QpState::RTR),
            path: (!datagrams).then(|| path.clone()),
            path_mtu: (!datagrams).then_some(path_mtu),
            dest_qpn: (!datagrams).then_some(to.qpn),
            rq_psn: (!datagrams).then_some(peers),
            max_dest_rd_atomic: reliable.then_some(4),
            min_rnr_timer: reliable.then_some(12),
            ..QpAttr::default()
        })?;
        qp.modify(&QpAttr {
            state: Some(QpState::RTS),
            sq_psn: Some(own),
            // Half a second, seven times: packets that the host keeps waiting are not lost.
            timeout: reliable.then_some(17),
            // For rxe 7 means for ever (`rxe_comp.c`), and a dead peer would go unnoticed.
            retry_cnt: reliable.then_some(6),
            rnr_retry: reliable.then_some(7),
            max_rd_atomic: reliable.then_some(4),
            ..QpAttr::default()
        })?;
        if datagrams {
            self.ah = Some(hub.pd.create_ah(&path)?);
        }
        if reliable {
            self.window = Some(hub.pd.alloc_mw()?);
        }
        Ok(())
    }

    /// Posts receives with these ids, each into the memory of its number.
    pub(crate) fn post_receives(&mut self, receives: impl Iterator<Item = (u64, u32)>) -> Result {
        let qp = self.qp.as_mut().ok_or("no queue pair")?;
        let mut batch = qp.recv_batch();
        for (id, serial) in receives {
            let start = inbox(serial);
            batch.post(id, self.private.slice(start..start + INBOX)?)?;
        }
        batch.ring();
        Ok(())
    }

    /// Posts requests with these ids, and rings once for each `per_bell` of them. Each message lies in the
    /// memory of its place in the burst, or in a region of its own that goes at once.
    pub(crate) fn post(
        &mut self,
        (pd, figures): (&Pd, &mut Figures),
        requests: &[Posting],
        to: Address,
        per_bell: usize,
    ) -> Result {
        for posting in requests {
            if !posting.message.is_empty() && posting.request.op.reads_memory() {
                self.private
                    .write_at(posting.slot * SLOT as usize, &posting.message)?;
            }
        }
        let Self {
            qp,
            ah,
            window,
            private,
            public,
        } = self;
        let qp = qp.as_mut().ok_or("no queue pair")?;
        for requests in requests.chunks(per_bell.max(1)) {
            let loan = |posting: &Posting| match posting.request.is_fleeting() {
                true => Loan::new(pd, &posting.message).map(Some),
                false => Ok(None),
            };
            let loans: Vec<Option<Loan>> = requests.iter().map(loan).collect::<Result<_>>()?;
            let mut batch = qp.batch();
            for (posting, loan) in requests.iter().zip(&loans) {
                let memory = Memory {
                    private,
                    public,
                    loan: loan.as_ref(),
                };
                posting.add(&mut batch, &memory, to, ah.as_ref(), window.as_mut())?;
            }
            batch.ring()?;
            for loan in loans.into_iter().flatten() {
                loan.end(figures)?;
            }
        }
        Ok(())
    }

    /// A copy of the memory of a receive.
    pub(crate) fn received(&self, serial: u32, length: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.private.read_at(inbox(serial), &mut bytes)?;
        Ok(bytes)
    }

    /// A copy of what a READ or an atomic has brought.
    pub(crate) fn brought(&self, slot: usize, length: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.private
            .read_at(SLOTS + slot * SLOT as usize, &mut bytes)?;
        Ok(bytes)
    }

    /// A copy of the memory that the peer's requests in this slot write to.
    pub(crate) fn written(&self, slot: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; SLOT as usize];
        self.public.read_at(slot * SLOT as usize, &mut bytes)?;
        Ok(bytes)
    }

    /// The word of the peer's atomics.
    pub(crate) fn word(&self) -> Result<u64> {
        let mut bytes = [0; 8];
        self.public.read_at(SLOTS + SLOT as usize, &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }
}

/// Where a receive's memory starts.
fn inbox(serial: u32) -> usize {
    2 * SLOTS + serial as usize % RECEIVES * INBOX
}

struct Memory<'a> {
    private: &'a Mr<Vec<u8>>,
    public: &'a Mr<Vec<u8>>,
    /// Where the message is instead of `private`.
    loan: Option<&'a Loan>,
}

/// A request, ready to be posted.
pub(crate) struct Posting {
    pub(crate) id: u64,
    pub(crate) request: Request,
    pub(crate) slot: usize,
    pub(crate) serial: u32,
    pub(crate) message: Vec<u8>,
    /// What a compare-and-swap expects.
    pub(crate) compare: u64,
    /// What it writes, or what a fetch-and-add adds.
    pub(crate) operand: u64,
}

impl Posting {
    fn add<'q>(
        &self,
        batch: &mut uverbs::Batch<'q, Any>,
        memory: &Memory<'q>,
        to: Address,
        ah: Option<&Ah>,
        window: Option<&mut Mw<Type2>>,
    ) -> Result {
        let length = self.request.length as usize;
        let start = self.slot * SLOT as usize;
        let whole = match memory.loan {
            Some(loan) => loan.slice()?,
            None => memory.private.slice(start..start + length)?,
        };
        let pieces = cut(whole, self.request.cut as usize)?;
        let pieces = &pieces[..];
        let sink = memory
            .private
            .slice(SLOTS + start..SLOTS + start + length)?;
        let sinks = cut(sink, self.request.cut as usize)?;
        let target = to.public.slice(start..start + length)?;
        let word = to.public.slice(SLOTS + SLOT as usize..)?;
        let offset = Self::read_offset(&self.request);
        let shelf = to.public.slice(SLOTS + offset..SLOTS + offset + length)?;
        let through = |rkey| RemoteSlice { rkey, ..target };
        let peer: Option<UdPeer<'_>> = ah.map(|ah| ah.to(to.qpn, QKEY));
        let imm = self.serial;
        let bytes = &self.message[..];
        let request = match self.request.signaled {
            true => batch.signaled(self.id),
            false => batch.unsignaled(self.id),
        };
        match (self.request.op, peer) {
            (Op::Send, None) => request.send(pieces)?,
            (Op::Send, Some(peer)) => request.to(peer).send(pieces)?,
            (Op::SendImm, None) => request.send_imm(pieces, imm)?,
            (Op::SendImm, Some(peer)) => request.to(peer).send_imm(pieces, imm)?,
            (Op::SendInline, None) => request.send(Inline(bytes))?,
            (Op::SendInline, Some(peer)) => request.to(peer).send(Inline(bytes))?,
            (Op::SendImmInline, None) => request.send_imm(Inline(bytes), imm)?,
            (Op::SendImmInline, Some(peer)) => request.to(peer).send_imm(Inline(bytes), imm)?,
            (Op::SendInv, _) => request.send_inv(pieces, to.window.ok_or("no window")?)?,
            (Op::Write, _) => request.write(pieces, target)?,
            (Op::WriteInline, _) => request.write(Inline(bytes), target)?,
            (Op::WriteImm, _) => request.write_imm(pieces, target, imm)?,
            (Op::WriteWindow, _) => {
                request.write(pieces, through(to.window.ok_or("no window")?))?
            }
            (Op::Read, _) => request.read(sinks, shelf)?,
            (Op::FetchAdd, _) => request.fetch_add(sink, word, self.operand)?,
            (Op::CompareSwap, _) => request.compare_swap(sink, word, self.compare, self.operand)?,
            (Op::Bind, _) => {
                let place = memory.public.window(..SLOTS, Access::REMOTE_WRITE)?;
                let window = window.ok_or("no window")?;
                let tag = window.rkey().tag().wrapping_add(1);
                request.bind_mw_as(window, tag, place)?
            }
            (Op::LocalInv, _) => request.local_inv(window.ok_or("no window")?.rkey())?,
        }
        Ok(())
    }

    /// Where a READ starts on the peer's shelf.
    pub(crate) fn read_offset(request: &Request) -> usize {
        request.number as usize % (SLOT - request.length + 1) as usize
    }
}

/// A slice in two, if the cut is within it.
fn cut(whole: LocalSlice, at: usize) -> Result<Vec<LocalSlice>> {
    let length = whole.len();
    Ok(match at {
        _ if length == 0 => Vec::new(),
        0 => vec![whole],
        at if at >= length => vec![whole],
        at => vec![whole.slice(..at)?, whole.slice(at..)?],
    })
}
