//! Memory that all rails of an engine reach, and what is to be written from there.

use std::sync::Arc;

use uverbs::mr::{OutOfBounds, SharedMemory};
use uverbs::{
    Access, InDomain, LocalSlice, Mr, PostError, Qp, Rc, RemoteSlice, Srd, ThreadDomain, UdPeer,
};

use super::Result;
use super::address::{Address, RemoteRegion};
use super::rail::{Rail, chain_id};

/// Memory that all rails may register.
pub(crate) type Memory = SharedMemory<Vec<u8>>;

/// Memory with a region on each rail.
#[derive(Clone)]
pub(crate) struct Region(Arc<[Mr<Memory>]>);

impl Region {
    pub(crate) fn new(rails: &[Box<dyn Rail>], memory: Vec<u8>, access: Access) -> Result<Self> {
        let memory = SharedMemory::new(memory);
        let register = |rail: &dyn Rail| Ok(rail.register(memory.clone(), access)?);
        let regions: Result<_> = rails.iter().map(|rail| register(&**rail)).collect();
        Ok(Self(regions?))
    }

    /// As peers of the engine with this address name it.
    pub(crate) fn remote(&self, engine: Address) -> RemoteRegion {
        engine
            .into_iter()
            .zip(self.0.iter().map(Mr::remote))
            .collect()
    }

    /// Copies bytes out of it. What has been counted is there.
    pub(crate) fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        // All regions are on the same memory.
        Ok(self.0[0].read_at(offset, into)?)
    }
}

/// Pages to write into memory of a peer, each by a WRITE with the same immediate.
pub(crate) struct PagedWrite {
    pub(crate) from: Region,
    pub(crate) to: RemoteRegion,
    /// Numbers of pages: from where, to where.
    pub(crate) pages: Vec<(u32, u32)>,
    /// Bytes of a page.
    pub(crate) bytes: usize,
    pub(crate) imm: u32,
}

/// The part of it that a rail does.
pub(crate) struct Share {
    pub(crate) transfer: u64,
    pub(crate) write: Arc<PagedWrite>,
    pub(crate) rail: usize,
    pub(crate) to: RemoteSlice,
    /// The next of its pages, and the end of its share.
    pub(crate) next: usize,
    pub(crate) end: usize,
}

impl Share {
    /// A page: from where, to where.
    fn nth(&self, at: usize) -> std::result::Result<(LocalSlice<'_>, RemoteSlice), OutOfBounds> {
        let (write, region) = (&*self.write, &self.write.from.0[self.rail]);
        let (from, to) = write.pages[at];
        let from = region.slot(from as usize, write.bytes)?;
        Ok((from, self.to.slot(to as usize, write.bytes)?))
    }

    /// The id of WRITEs of so many of its pages.
    fn id(&self, count: usize) -> u64 {
        chain_id(count, self.transfer)
    }

    /// Posts the next pages as one chain with one doorbell, of which the last has a completion. Returns how
    /// many there were, which is at most `room`.
    pub(crate) fn post(
        &mut self,
        qp: &mut Qp<Rc, InDomain>,
        td: &mut ThreadDomain,
        room: usize,
    ) -> std::result::Result<usize, PostError> {
        let count = room.min(self.end - self.next);
        let id = self.id(count);
        let mut batch = qp.batch(td)?;
        for at in 0..count {
            let (from, to) = self.nth(self.next + at)?;
            // One that fails has a completion in any case, and says by this id whose it was.
            let request = match at + 1 == count {
                true => batch.signaled(id),
                false => batch.unsignaled(id),
            };
            request.write_imm(from, to, self.write.imm)?;
        }
        batch.ring()?;
        self.next += count;
        Ok(count)
    }
    /// The same to a peer by datagrams. Each has a completion, since none says anything of those before it.
    pub(crate) fn post_to(
        &mut self,
        qp: &mut Qp<Srd>,
        peer: UdPeer<'_>,
        room: usize,
    ) -> std::result::Result<usize, PostError> {
        let count = room.min(self.end - self.next);
        let mut batch = qp.batch();
        for at in 0..count {
            let (from, to) = self.nth(self.next + at)?;
            let request = batch.signaled(self.id(1)).to(peer);
            request.write_imm(from, to, self.write.imm)?;
        }
        batch.ring()?;
        self.next += count;
        Ok(count)
    }
}
