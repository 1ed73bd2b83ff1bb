//! A rail over reliable datagrams: one queue pair for all peers, and nothing to connect.
//!
//! Nothing has an order. A message takes any receive, and so does the immediate of a WRITE, so each receive
//! has memory for a message. A WRITE that is done says nothing of those posted before it, so each has a
//! completion.

use uverbs::{
    Access, Ah, Caps, Completion, ConnectOptions, Context, Cq, Endpoint, Mr, Pd, Qp, Srd, WcOpcode,
};

use super::Result;
use super::address::qkey;
use super::book::Book;
use super::rail::{MESSAGE, PEERS, Rail, Work, id, written};
use super::region::Memory;

/// Messages that are sent at a time.
const MESSAGES: usize = 16;
/// WRITEs in flight at most, to all peers.
const WRITES: usize = 128;
/// Messages and immediates that may come between two polls before senders have to wait.
const RECEIVES: usize = 256;
/// Queues have as many requests as a power of two, and the completion queue has room for all of both.
const CQ_ENTRIES: usize = RECEIVES + 2 * (MESSAGES + WRITES);

// What a completion is for: a receive with its slot, or a message that was sent, with its slot. Else a page
// was written.
const RECEIVED: u64 = 1;
const SENT: u64 = 2;

/// A peer, and the way to it. Peers write into memory of those alone who have a way to them, too.
struct Peer {
    address: Endpoint,
    ah: Ah,
    work: Work,
}

pub(crate) struct Datagrams {
    // Before what it may still work on.
    qp: Qp<Srd>,
    address: Endpoint,
    peers: Vec<Peer>,
    cq: Cq,
    inbox: Mr<Vec<u8>>,
    outbox: Mr<Vec<u8>>,
    /// The transfer that the message in each slot of the outbox is; none if it is free.
    sending: [Option<u64>; MESSAGES],
    /// Slots of the inbox that have been used up.
    spent: Vec<usize>,
    /// WRITEs that may be posted.
    room: usize,
    pd: Pd,
}

impl Datagrams {
    /// A rail on a device; none if it has no reliable datagrams.
    pub(crate) fn open(context: &Context) -> Result<Option<Self>> {
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(CQ_ENTRIES as u32)?;
        let caps = Caps {
            max_send_wr: (MESSAGES + WRITES) as u32,
            max_recv_wr: RECEIVES as u32,
            max_inline_data: 0,
            ..Caps::default()
        };
        let mut qp = match pd.create_qp::<Srd>(&cq, caps) {
            Err(error) if error.is_unsupported() => return Ok(None),
            created => created?,
        };
        let address = qp.endpoint()?;
        qp.activate(qkey(&address), &ConnectOptions::default())?;
        let memory = |slots| pd.register(vec![0; slots * MESSAGE], Access::LOCAL_WRITE);
        let mut rail = Self {
            qp,
            address,
            peers: Vec::new(),
            cq,
            inbox: memory(RECEIVES)?,
            outbox: memory(MESSAGES)?,
            sending: [None; MESSAGES],
            spent: (0..RECEIVES).collect(),
            room: WRITES,
            pd,
        };
        rail.refill()?;
        Ok(Some(rail))
    }

    fn complete(&mut self, completion: &Completion, book: &mut Book) -> Result<()> {
        let outcome = completion.result().map(drop).map_err(|e| e.to_string());
        let id = completion.wr_id();
        let slot = id as u32 as usize;
        match id >> 56 {
            RECEIVED => {
                self.spent.push(slot);
                match completion.opcode() {
                    _ if outcome.is_err() => {}
                    WcOpcode::RECV_RDMA_WITH_IMM => book.count(completion.imm().unwrap_or(0), 1),
                    _ => {
                        let mut bytes = vec![0; completion.byte_len() as usize];
                        self.inbox.read_at(slot * MESSAGE, &mut bytes)?;
                        book.messages.push_back(bytes);
                    }
                }
            }
            SENT => {
                let transfer = self.sending[slot].take().unwrap_or(0);
                book.end(transfer, 1, outcome);
            }
            // A request that fails leaves the queue pair as it is.
            _ => {
                let (count, transfer) = written(id);
                self.room += count;
                book.end(transfer, count, outcome);
            }
        }
        Ok(())
    }

    /// Posts receives in place of those that have been used up.
    fn refill(&mut self) -> Result<()> {
        if !self.spent.is_empty() {
            let mut batch = self.qp.recv_batch();
            for slot in self.spent.drain(..) {
                batch.post(id(RECEIVED, slot), self.inbox.slot(slot, MESSAGE)?)?;
            }
            batch.ring();
        }
        Ok(())
    }

    /// Sends messages for which the outbox has room, and as many pages as the queue has room for.
    fn post(&mut self, book: &mut Book) -> Result<()> {
        for Peer { address, ah, work } in &mut self.peers {
            let to = ah.to(address.qpn, qkey(address));
            while let Some(slot) = self.sending.iter().position(Option::is_none) {
                let Some((transfer, letter)) = work.letters.pop_front() else {
                    break;
                };
                let start = slot * MESSAGE;
                self.outbox.write_at(start, &letter)?;
                let letter = self.outbox.slice(start..start + letter.len())?;
                self.qp.one(id(SENT, slot)).to(to).send(letter)?;
                self.sending[slot] = Some(transfer);
            }
            while let Some(share) = work.shares.front_mut().filter(|_| self.room > 0) {
                let posted = share.post_to(&mut self.qp, to, self.room);
                match &posted {
                    Ok(count) => self.room -= count,
                    Err(error) => book.end(share.transfer, 0, Err(error.to_string())),
                }
                if posted.is_err() || share.next == share.end {
                    work.shares.pop_front();
                }
            }
        }
        Ok(())
    }
}

impl Rail for Datagrams {
    fn address(&self) -> Endpoint {
        self.address
    }

    fn register(&self, memory: Memory, access: Access) -> uverbs::Result<Mr<Memory>> {
        Ok(self.pd.register(memory, access)?)
    }

    fn work(&mut self, address: Endpoint) -> Result<&mut Work> {
        let known = self.peers.iter().position(|peer| peer.address == address);
        let index = known.unwrap_or(self.peers.len());
        if index == PEERS {
            return Err("there are too many peers".into());
        }
        if known.is_none() {
            let context = self.pd.context();
            let path = context.path_to(&address, &ConnectOptions::default())?;
            let (ah, work) = (self.pd.create_ah(&path)?, Work::default());
            self.peers.push(Peer { address, ah, work });
        }
        Ok(&mut self.peers[index].work)
    }

    fn poll(&mut self, book: &mut Book) -> Result<bool> {
        let mut buffer = [const { std::mem::MaybeUninit::uninit() }; 32];
        let completions = self.cq.poll_into(&mut buffer)?;
        for completion in &*completions {
            self.complete(completion, book)?;
        }
        self.refill()?;
        self.post(book)?;
        Ok(!completions.is_empty())
    }
}
