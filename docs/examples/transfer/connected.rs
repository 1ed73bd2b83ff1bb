//! A rail over reliable connections.
//!
//! Everything that has a ring is on one parent domain with a thread domain. So no post takes a lock, and on
//! mlx5 the queue pairs share a doorbell register that no other thread writes to. Two shared receive queues
//! serve all peers: one for messages and hellos, and one without memory for the immediates of WRITEs.

use uverbs::grh::GRH_LENGTH;
use uverbs::{
    Access, Caps, Completion, ConnectOptions, Context, Cq, Endpoint, InDomain, Inline, Mr,
    ParentDomain, PostError, Qp, Srq, ThreadDomain, Ud,
};

use super::Result;
use super::address::{Hello, qkey};
use super::book::Book;
use super::peer::{DEPTH, Peer, State};
use super::rail::{MESSAGE, PEERS, Rail, Work, id, written};
use super::region::Memory;

/// Messages that are received, and that are sent, at a time.
const MESSAGES: usize = 16;
/// Immediates that may come between two polls before senders have to wait.
const IMMEDIATES: usize = 512;
/// Bytes of a hello at most; they are copied into the request.
const HELLO_BYTES: u32 = 128;
const CQ_ENTRIES: usize = IMMEDIATES + 2 * MESSAGES + (2 * PEERS + 1) * DEPTH;

// What a completion is for: a hello that is on its way; a message or a hello that has come, or a message that
// was sent, with its slot; a WRITE of a peer that has come. Else pages were written.
const HELLO: u64 = 0;
const RECEIVED: u64 = 1;
const SENT: u64 = 2;
const COUNTED: u64 = 3;

pub(crate) struct Connected {
    peers: Vec<Peer>,
    datagrams: Qp<Ud, InDomain>,
    address: Endpoint,
    messages: Srq,
    immediates: Srq,
    cq: Cq,
    inbox: Mr<Vec<u8>>,
    outbox: Mr<Vec<u8>>,
    /// The transfer that the message in each slot of the outbox is; none if it is free.
    sending: [Option<u64>; MESSAGES],
    /// Receives for immediates that have been used up.
    spent: usize,
    td: ThreadDomain,
    domain: ParentDomain,
}

impl Connected {
    pub(crate) fn open(context: &Context) -> Result<Self> {
        let td = context.alloc_td();
        let pd = context.alloc_pd()?;
        let domain = pd.parent_domain().thread_domain(&td).create()?;
        let cq = context.cq(CQ_ENTRIES as u32).domain(&domain).create()?;
        let messages = domain.srq(MESSAGES as u32).create()?;
        let caps = Caps {
            max_send_wr: DEPTH as u32,
            max_inline_data: HELLO_BYTES,
            ..Caps::default()
        };
        let datagrams = domain.qp(&cq).srq(&messages).caps(caps);
        let mut datagrams = datagrams.create_in_domain::<Ud>()?;
        let address = datagrams.endpoint()?;
        datagrams.activate(qkey(&address), &ConnectOptions::default())?;
        let memory = || domain.register(vec![0; MESSAGES * MESSAGE], Access::LOCAL_WRITE);
        let mut rail = Self {
            peers: Vec::new(),
            datagrams,
            address,
            messages,
            immediates: domain.srq(IMMEDIATES as u32).create()?,
            cq,
            inbox: memory()?,
            outbox: memory()?,
            sending: [None; MESSAGES],
            spent: IMMEDIATES,
            td,
            domain,
        };
        (0..MESSAGES).try_for_each(|slot| rail.receive(slot))?;
        rail.refill()?;
        Ok(rail)
    }

    /// The peer with this address. A new one is greeted by the next rounds.
    fn peer(&mut self, address: Endpoint) -> Result<&mut Peer> {
        let known = self.peers.iter().position(|peer| peer.address == address);
        let index = known.unwrap_or(self.peers.len());
        if index == PEERS {
            return Err("there are too many peers".into());
        }
        if known.is_none() {
            let srqs = [&self.messages, &self.immediates];
            let peer = Peer::new(address, &self.domain, &self.cq, srqs)?;
            self.peers.push(peer);
        }
        Ok(&mut self.peers[index])
    }

    fn complete(&mut self, completion: &Completion, book: &mut Book) -> Result<()> {
        let outcome = completion.result().map(drop).map_err(|e| e.to_string());
        let (id, mut pages) = (completion.wr_id(), 0);
        let slot = id as u32 as usize;
        match id >> 56 {
            HELLO if outcome.is_err() => return Err("no datagrams can be sent any more".into()),
            HELLO => {}
            RECEIVED => {
                if outcome.is_ok() {
                    self.take(slot, completion, book)?;
                }
                self.receive(slot)?;
            }
            SENT => {
                let transfer = self.sending[slot].take().unwrap_or(0);
                book.end(transfer, 1, outcome.clone());
            }
            COUNTED => {
                self.spent += 1;
                if outcome.is_ok() {
                    book.count(completion.imm().unwrap_or(0), 1);
                }
            }
            _ => {
                let (count, transfer) = written(id);
                pages = count;
                book.end(transfer, count, outcome.clone());
            }
        }
        let qpn = completion.qp_num();
        if let Some(peer) = self.peers.iter_mut().find(|peer| peer.is_of(qpn)) {
            peer.room += pages;
            if let Err(why) = outcome {
                peer.state = State::Broken(why);
            }
        }
        Ok(())
    }

    /// Takes what has come into a slot.
    fn take(&mut self, slot: usize, completion: &Completion, book: &mut Book) -> Result<()> {
        let mut bytes = vec![0; completion.byte_len() as usize];
        self.inbox.read_at(slot * MESSAGE, &mut bytes)?;
        if completion.qp_num() == self.datagrams.qpn() {
            return self.hear(&bytes);
        }
        book.messages.push_back(bytes);
        Ok(())
    }

    /// Takes a hello, which anybody may have sent. An answer may be lost, so each hello has one: the peer
    /// asks until it has heard it.
    fn hear(&mut self, datagram: &[u8]) -> Result<()> {
        let hello = datagram.get(GRH_LENGTH..).unwrap_or_default();
        let Ok(hello) = postcard::from_bytes::<Hello>(hello) else {
            return Ok(());
        };
        match self.peer(hello.from) {
            Ok(peer) => peer.hear(&hello),
            Err(error) => eprintln!("a hello of {} is not answered: {error}", hello.from),
        }
        let known = |peer: &Peer| peer.address == hello.from && !hello.is_answer;
        match self.peers.iter().position(known) {
            Some(index) => self.say_hello(index, true),
            None => Ok(()),
        }
    }

    fn say_hello(&mut self, index: usize, is_answer: bool) -> Result<()> {
        let peer = &self.peers[index];
        let hello = postcard::to_allocvec(&Hello {
            from: self.address,
            messages: peer.messages.endpoint()?,
            writes: peer.writes.endpoint()?,
            is_answer,
        })?;
        let to = peer.ah.to(peer.address.qpn, qkey(&peer.address));
        let request = self.datagrams.one(&mut self.td, id(HELLO, 0))?;
        match request.to(to).send(Inline(&hello)) {
            // As if it were lost.
            Err(PostError::QueueFull { .. }) => Ok(()),
            posted => Ok(posted?),
        }
    }

    /// Sends messages for which the outbox has room.
    fn send_letters(&mut self, index: usize) -> Result<()> {
        let peer = &mut self.peers[index];
        while let Some(slot) = self.sending.iter().position(Option::is_none) {
            let Some((transfer, letter)) = peer.work.letters.pop_front() else {
                break;
            };
            let start = slot * MESSAGE;
            self.outbox.write_at(start, &letter)?;
            let letter = self.outbox.slice(start..start + letter.len())?;
            let request = peer.messages.one(&mut self.td, id(SENT, slot))?;
            request.send(letter)?;
            self.sending[slot] = Some(transfer);
        }
        Ok(())
    }

    fn receive(&mut self, slot: usize) -> Result<()> {
        let into = self.inbox.slot(slot, MESSAGE)?;
        let mut batch = self.messages.batch();
        batch.post(id(RECEIVED, slot), into)?;
        batch.ring();
        Ok(())
    }

    /// Posts receives in place of those that immediates have used up. They need no memory.
    fn refill(&mut self) -> Result<()> {
        if self.spent > 0 {
            let mut batch = self.immediates.batch();
            (0..self.spent).try_for_each(|_| batch.post_empty(id(COUNTED, 0)))?;
            self.spent -= batch.ring();
        }
        Ok(())
    }
}

impl Rail for Connected {
    fn address(&self) -> Endpoint {
        self.address
    }

    fn register(&self, memory: Memory, access: Access) -> uverbs::Result<Mr<Memory>> {
        Ok(self.domain.register(memory, access)?)
    }

    fn work(&mut self, peer: Endpoint) -> Result<&mut Work> {
        Ok(&mut self.peer(peer)?.work)
    }

    /// Besides, hellos.
    fn poll(&mut self, book: &mut Book) -> Result<bool> {
        let mut buffer = [const { std::mem::MaybeUninit::uninit() }; 32];
        let completions = self.cq.poll_into(&mut buffer)?;
        for completion in &*completions {
            self.complete(completion, book)?;
        }
        self.refill()?;
        for index in 0..self.peers.len() {
            if self.peers[index].is_hello_due() {
                self.say_hello(index, false)?;
            }
            match self.peers[index].state {
                State::Greeting(_) => {}
                State::Established => {
                    self.peers[index].post_shares(&mut self.td, book);
                    self.send_letters(index)?;
                }
                State::Broken(_) => self.peers[index].give_up(book),
            }
        }
        Ok(!completions.is_empty())
    }
}
