//! A rail: one adapter, with all that one thread needs to use it alone. The engine does not care how it gets
//! there: by connections, or by reliable datagrams, which have no order. Counted immediates need none.

use std::collections::VecDeque;

use uverbs::{Access, Endpoint, Mr};

use super::Result;
use super::book::Book;
use super::connected::Connected;
use super::datagrams::Datagrams;
use super::region::{Memory, Share};

/// Bytes of a message at most.
pub(crate) const MESSAGE: usize = 8192;
/// Peers at most, so that no completion queue overruns.
pub(crate) const PEERS: usize = 8;

/// What an engine asks of a rail.
pub(crate) trait Rail: Send {
    /// Where peers find it.
    fn address(&self) -> Endpoint;

    /// Registers memory for it.
    fn register(&self, memory: Memory, access: Access) -> uverbs::Result<Mr<Memory>>;

    /// What waits for the peer with this address. A new one is made known by the next rounds.
    fn work(&mut self, peer: Endpoint) -> Result<&mut Work>;

    /// One round of everything: completions, messages, WRITEs. No system call is made on the way, but by
    /// soft-RoCE's doorbell and for a new peer. Tells whether anything was completed.
    fn poll(&mut self, book: &mut Book) -> Result<bool>;
}

/// What waits for a peer.
#[derive(Default)]
pub(crate) struct Work {
    /// Messages to send, each with the number of its transfer.
    pub(crate) letters: VecDeque<(u64, Vec<u8>)>,
    pub(crate) shares: VecDeque<Share>,
}

impl Work {
    /// Fails all of it.
    pub(crate) fn give_up(&mut self, book: &mut Book, why: &str) {
        let letters = self.letters.drain(..).map(|(transfer, _)| transfer);
        let shares = self.shares.drain(..).map(|share| share.transfer);
        for transfer in letters.chain(shares) {
            book.end(transfer, 0, Err(why.to_owned()));
        }
    }
}

/// A rail on a device: over reliable datagrams if it has them.
pub(crate) fn open(device: &str) -> Result<Box<dyn Rail>> {
    let context = uverbs::open(device)?;
    match Datagrams::open(&context)? {
        Some(rail) => Ok(Box::new(rail)),
        None => Ok(Box::new(Connected::open(&context)?)),
    }
}

/// Pages that were written: what the top byte of a completion's id says then.
const WRITTEN: u64 = 0xff;

/// The id of a request: the kind, and the number of a slot.
pub(crate) fn id(kind: u64, slot: usize) -> u64 {
    kind << 56 | slot as u64
}

/// The id of a chain of WRITEs: how many pages there are in it, and of which transfer.
pub(crate) fn chain_id(count: usize, transfer: u64) -> u64 {
    WRITTEN << 56 | (count as u64) << 48 | transfer
}

/// What [`chain_id`] was made of.
pub(crate) fn written(id: u64) -> (usize, u64) {
    ((id >> 48 & 0xff) as usize, id & 0xffff_ffff_ffff)
}
