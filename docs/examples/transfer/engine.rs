//! The engine: several rails as one. Whoever has it polls; nothing happens otherwise.

use std::sync::Arc;

use uverbs::Access;

use super::Result;
use super::address::Address;
use super::book::Book;
use super::rail::{self, MESSAGE, Rail};
use super::region::{PagedWrite, Region, Share};
use super::waiter::{Completer, Waiter, pair};

/// What an engine can be asked to do.
pub(crate) enum Request {
    /// Write pages, striped over all rails.
    Write(PagedWrite),
    /// Send a message. Messages take the rails by turns, and keep no order among each other.
    Send { to: Address, message: Vec<u8> },
    /// Wait until so many WRITEs with this immediate have come.
    Expect { imm: u32, count: usize },
}

pub(crate) struct Engine {
    rails: Vec<Box<dyn Rail>>,
    book: Book,
    /// The rail that comes next.
    next: usize,
}

impl Engine {
    /// An engine with a rail on each of these devices.
    pub(crate) fn open(devices: &[String]) -> Result<Self> {
        let rails: Result<Vec<_>> = devices.iter().map(|name| rail::open(name)).collect();
        let (rails, book, next) = (rails?, Book::default(), 0);
        Ok(Self { rails, book, next })
    }

    pub(crate) fn address(&self) -> Address {
        self.rails.iter().map(|rail| rail.address()).collect()
    }

    pub(crate) fn register(&self, memory: Vec<u8>, access: Access) -> Result<Region> {
        Region::new(&self.rails, memory, access)
    }

    /// The next message of any peer.
    pub(crate) fn receive(&mut self) -> Option<Vec<u8>> {
        self.book.messages.pop_front()
    }

    /// Does a round of work, and tells whether there was anything.
    pub(crate) fn poll(&mut self) -> Result<bool> {
        let mut is_busy = false;
        for rail in &mut self.rails {
            is_busy |= rail.poll(&mut self.book)?;
        }
        Ok(is_busy)
    }

    pub(crate) fn submit(&mut self, request: Request) -> Waiter {
        let (waiter, completer) = pair();
        self.submit_for(request, completer);
        waiter
    }

    /// Submits a request for somebody who has the other end of `done`.
    pub(crate) fn submit_for(&mut self, request: Request, done: Completer) {
        let (transfer, submitted) = match request {
            Request::Expect { imm, count } => return self.book.expect(imm, count, done),
            Request::Send { to, message } => {
                let transfer = self.book.begin(1, done);
                (transfer, self.send(transfer, &to, message))
            }
            Request::Write(write) => {
                let transfer = self.book.begin(write.pages.len(), done);
                (transfer, self.stripe(transfer, &Arc::new(write)))
            }
        };
        if let Err(error) = submitted {
            self.book.end(transfer, 0, Err(error.to_string()));
        }
    }

    fn turn(&mut self) -> usize {
        let rail = self.next;
        self.next = (rail + 1) % self.rails.len();
        rail
    }

    fn send(&mut self, transfer: u64, to: &Address, message: Vec<u8>) -> Result<()> {
        if message.len() > MESSAGE {
            return Err("the message is too long".into());
        }
        // On every rail, for the answer may be WRITEs on any: by datagrams both sides must know each other.
        for (rail, to) in self.rails.iter_mut().zip(to) {
            rail.work(*to)?;
        }
        let rail = self.turn();
        let to = to.get(rail).ok_or("the peer has fewer rails")?;
        let work = self.rails[rail].work(*to)?;
        work.letters.push_back((transfer, message));
        Ok(())
    }

    /// Gives each rail its share of the pages.
    fn stripe(&mut self, transfer: u64, write: &Arc<PagedWrite>) -> Result<()> {
        let pages = write.pages.len();
        if pages == 0 {
            return Err("there are no pages to write".into());
        }
        let each = pages.div_ceil(self.rails.len());
        for next in (0..pages).step_by(each) {
            let rail = self.turn();
            let (peer, to) = *write.to.get(rail).ok_or("the peer has fewer rails")?;
            self.rails[rail].work(peer)?.shares.push_back(Share {
                transfer,
                write: Arc::clone(write),
                rail,
                to,
                next,
                end: pages.min(next + each),
            });
        }
        Ok(())
    }
}
