//! One queue pair: where its messages lie, what is in flight, and how it posts.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

use uverbs::transport::Any;
use uverbs::xrcd::XrcTarget;
use uverbs::{Ah, Inline, LocalSlice, PeerSrq, Qp, RemoteSlice, Request, Srq};

use super::memory::Data;
use super::pattern;
use super::plan::{Operation, Plan};
use crate::failure::{Failure, Kind, Result};

/// Messages begin at multiples of so many bytes.
pub(super) const ALIGNMENT: usize = 64;

/// Where a lane's messages lie in the memory of its worker.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    size: usize,
    header: usize,
    places: usize,
}

impl Layout {
    pub(super) fn of(plan: &Plan) -> Self {
        Self {
            size: plan.size as usize,
            header: plan.transport.header(),
            places: plan.places() as usize,
        }
    }

    fn out_step(&self) -> usize {
        self.size.next_multiple_of(ALIGNMENT)
    }

    fn in_step(&self) -> usize {
        (self.header + self.size).next_multiple_of(ALIGNMENT)
    }

    /// Bytes of what is sent, and of what the peer reads.
    pub(super) fn outbox(&self) -> usize {
        self.places * self.out_step()
    }

    /// Bytes of what is received, and of what the peer writes to.
    pub(super) fn inbox(&self) -> usize {
        self.places * self.in_step()
    }

    /// Bytes of both.
    pub(super) fn length(&self) -> usize {
        self.outbox() + self.inbox()
    }

    /// Where a message to send is, from the beginning of the outbox.
    fn out_place(&self, place: usize) -> Range<usize> {
        let start = place % self.places * self.out_step();
        start..start + self.size
    }

    /// Where a message arrives, with its header, from the beginning of the inbox.
    fn in_place(&self, place: usize) -> Range<usize> {
        let start = place % self.places * self.in_step();
        start..start + self.header + self.size
    }
}

/// How requests reach the peer.
#[derive(Debug)]
pub(super) enum Reach {
    /// By the connection.
    Connection,
    /// By an address with each.
    Address { path: Ah, qpn: u32, qkey: u32 },
    /// By a connection, with a shared receive queue of the peer.
    Queue(PeerSrq),
}

/// What a queue pair of any transport consists of.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) qp: Qp<Any>,
    /// With XRC, what receives: the connection's other end and its queue.
    pub(super) xrc: Option<(XrcTarget, Srq)>,
}

/// A batch that is in flight, or was.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// The number of its first message.
    first: u64,
    messages: u32,
    posted: Instant,
    /// Completions that are due.
    due: u32,
}

/// A batch that has completed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    pub(super) messages: u32,
    pub(super) first: u64,
    pub(super) posted: Instant,
    slot: u32,
}

/// A queue pair with its peer.
#[derive(Debug)]
pub(super) struct Lane {
    // Before the region that its requests name, which the worker has.
    pub(super) parts: Parts,
    pub(super) reach: Reach,
    /// The peer's memory.
    pub(super) peer_inbox: Option<RemoteSlice>,
    pub(super) peer_outbox: Option<RemoteSlice>,
    layout: Layout,
    /// Where its memory begins.
    base: usize,
    /// The bytes of a message are copied into the request.
    inline: bool,
    slots: Vec<Slot>,
    free: VecDeque<u32>,
    /// Messages that have been posted.
    pub(super) posted: u64,
    /// As many are posted, and no more.
    pub(super) limit: u64,
    /// Messages that have arrived.
    pub(super) received: u64,
    /// Receives that have completed and are to be posted again.
    taken: Vec<u32>,
}

/// What a completion is of: the lane, and its batch or its receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Id {
    pub(super) lane: u16,
    pub(super) is_receive: bool,
    pub(super) slot: u32,
}

impl Id {
    pub(super) fn to_wr_id(self) -> u64 {
        u64::from(self.lane) << 48 | u64::from(self.is_receive) << 32 | u64::from(self.slot)
    }

    pub(super) fn of_wr_id(wr_id: u64) -> Self {
        Self {
            lane: (wr_id >> 48) as u16,
            is_receive: wr_id >> 32 & 1 == 1,
            slot: wr_id as u32,
        }
    }
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::new(Kind::Failed, error)
}

impl Lane {
    /// A lane whose peer is not known yet. `base` is where its memory begins.
    pub(super) fn new(parts: Parts, plan: &Plan, base: usize) -> Self {
        let most = parts.qp.caps().max_inline_data;
        let fits = plan.size <= plan.inline.unwrap_or(most).min(most);
        let free = 0..plan.batches();
        let slot = Slot {
            first: 0,
            messages: 0,
            posted: Instant::now(),
            due: 0,
        };
        Self {
            slots: vec![slot; free.len()],
            free: free.collect(),
            parts,
            reach: Reach::Connection,
            peer_inbox: None,
            peer_outbox: None,
            layout: Layout::of(plan),
            base,
            inline: fits && !plan.operation.fetches(),
            posted: 0,
            limit: u64::MAX,
            received: 0,
            taken: (0..plan.receives()).collect(),
        }
    }

    /// Nothing is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// All has been posted.
    pub(super) fn is_over(&self) -> bool {
        self.posted >= self.limit
    }

    pub(super) fn may_post(&self) -> bool {
        !self.is_over() && !self.free.is_empty()
    }

    /// What the peer reads.
    pub(super) fn outbox(&self) -> Range<usize> {
        self.base..self.base + self.layout.outbox()
    }

    /// What the peer writes to.
    pub(super) fn inbox(&self) -> Range<usize> {
        let start = self.base + self.layout.outbox();
        start..start + self.layout.inbox()
    }

    /// Where the message of a place is that was received or fetched, without its header.
    pub(super) fn arrived(&self, place: usize) -> Range<usize> {
        let place = self.layout.in_place(place);
        let start = self.inbox().start;
        start + place.start + self.layout.header..start + place.end
    }

    /// The place of a message of a batch.
    pub(super) fn place_of(done: &Done, message: u32, plan: &Plan) -> usize {
        place(done.slot, message, plan)
    }

    /// Fills the outbox for a peer that reads and checks it: each message has the number of its place.
    pub(super) fn fill_outbox(&self, data: &mut Data, scratch: &mut [u8]) -> Result<()> {
        for place in 0..self.layout.places {
            pattern::fill(scratch, place as u64);
            let start = self.base + self.layout.out_place(place).start;
            data.write_at(start, scratch)?;
        }
        Ok(())
    }

    /// Posts a batch of messages at this time, fewer if the limit is near. [`Self::may_post`] must hold.
    pub(super) fn post(
        &mut self,
        own: u16,
        posted: Instant,
        data: &mut Data,
        scratch: &mut [u8],
        plan: &Plan,
    ) -> Result<()> {
        let Some(slot) = self.free.pop_front() else {
            return Ok(());
        };
        let messages = u64::from(plan.batch).min(self.limit - self.posted) as u32;
        let writes_each = plan.check || plan.is_exchange();
        if writes_each && !self.inline && !plan.operation.fetches() {
            for message in 0..messages {
                let range = self.layout.out_place(place(slot, message, plan));
                let start = self.base + range.start;
                write_message(self.posted + u64::from(message), data, start, scratch, plan)?;
            }
        }
        let id = Id {
            lane: own,
            is_receive: false,
            slot,
        };
        let due = self.write_batch(id, messages, data, scratch, plan)?;
        self.slots[slot as usize] = Slot {
            first: self.posted,
            messages,
            posted,
            due,
        };
        self.posted += u64::from(messages);
        Ok(())
    }

    /// Writes the requests of a batch and rings; gives how many completions will come.
    fn write_batch(
        &mut self,
        id: Id,
        messages: u32,
        data: &Data,
        scratch: &mut [u8],
        plan: &Plan,
    ) -> Result<u32> {
        let way = Way {
            reach: &self.reach,
            peer_inbox: self.peer_inbox,
            peer_outbox: self.peer_outbox,
            slices: Slices {
                data,
                layout: &self.layout,
                base: self.base,
            },
            inline: self.inline,
            plan,
        };
        let mut due = 0;
        let mut batch = self.parts.qp.batch();
        for message in 0..messages {
            let number = self.posted + u64::from(message);
            let place = place(id.slot, message, plan);
            if self.inline && (plan.check || plan.is_exchange()) {
                compose(number, scratch, plan);
            }
            // Who completes in no order tells of each.
            let is_told = message + 1 == messages || !plan.transport.is_ordered();
            due += u32::from(is_told);
            let request = match is_told {
                true => batch.signaled(id.to_wr_id()),
                false => batch.unsignaled(id.to_wr_id()),
            };
            way.write(request, number, place, scratch)?;
        }
        batch.ring().map_err(uverbs::Error::from)?;
        Ok(due)
    }

    /// Takes note of a completion of a batch, and gives the batch if that was the last one.
    pub(super) fn note_sent(&mut self, slot: u32) -> Option<Done> {
        let Slot {
            first,
            messages,
            posted,
            due,
        } = self.slots.get_mut(slot as usize)?;
        *due = due.saturating_sub(1);
        let done = Done {
            messages: *messages,
            first: *first,
            posted: *posted,
            slot,
        };
        if *due > 0 {
            return None;
        }
        self.free.push_back(slot);
        Some(done)
    }

    /// Takes note of a receive that has completed.
    pub(super) fn note_received(&mut self, slot: u32) {
        self.received += 1;
        self.taken.push(slot);
    }

    /// Posts the receives that have completed.
    pub(super) fn receive(&mut self, own: u16, data: &Data, plan: &Plan) -> Result<()> {
        if self.taken.is_empty() || !plan.operation.takes_receive() {
            return Ok(());
        }
        let slices = Slices {
            data,
            layout: &self.layout,
            base: self.base,
        };
        let mut batch = match &mut self.parts.xrc {
            Some((_, srq)) => srq.batch(),
            None => self.parts.qp.recv_batch(),
        };
        for slot in self.taken.drain(..) {
            let id = Id {
                lane: own,
                is_receive: true,
                slot,
            };
            let posted = match plan.operation {
                Operation::Send => batch.post(id.to_wr_id(), slices.receive(slot)?),
                _ => batch.post_empty(id.to_wr_id()),
            };
            posted.map_err(uverbs::Error::from)?;
        }
        batch.ring();
        Ok(())
    }
}

/// The way of requests: what they are, from where and to where.
struct Way<'a> {
    reach: &'a Reach,
    peer_inbox: Option<RemoteSlice>,
    peer_outbox: Option<RemoteSlice>,
    slices: Slices<'a>,
    inline: bool,
    plan: &'a Plan,
}

impl<'a> Way<'a> {
    /// Writes a request.
    ///
    /// Apart from the loop over a batch: there the compiler would prepare what each operation on each driver
    /// needs before the first request, which takes longer than a request does.
    #[inline(never)]
    fn write(
        &self,
        request: Request<'_, 'a, Any>,
        number: u64,
        place: usize,
        scratch: &[u8],
    ) -> Result<()> {
        // A macro, because the destination is a type of its own, and the traits of destinations are
        // sealed.
        macro_rules! perform {
            ($request:expr) => {
                match self.plan.operation {
                    Operation::Send if self.inline => $request.send(Inline(scratch)),
                    Operation::Send => $request.send(self.slices.out(place)?),
                    Operation::Write if self.inline => {
                        let to = self.slices.at_peer(self.peer_inbox, place, self.plan)?;
                        $request.write(Inline(scratch), to)
                    }
                    Operation::Write => {
                        let to = self.slices.at_peer(self.peer_inbox, place, self.plan)?;
                        $request.write(self.slices.out(place)?, to)
                    }
                    Operation::WriteImm if self.inline => {
                        let to = self.slices.at_peer(self.peer_inbox, place, self.plan)?;
                        $request.write_imm(Inline(scratch), to, number as u32)
                    }
                    Operation::WriteImm => {
                        let to = self.slices.at_peer(self.peer_inbox, place, self.plan)?;
                        $request.write_imm(self.slices.out(place)?, to, number as u32)
                    }
                    Operation::Read => {
                        let from = self.slices.at_peer(self.peer_outbox, place, self.plan)?;
                        $request.read(self.slices.fetched(place)?, from)
                    }
                    Operation::FetchAdd => {
                        let at = self.slices.at_peer(self.peer_outbox, 0, self.plan)?;
                        $request.fetch_add(self.slices.fetched(place)?, at, 1)
                    }
                    Operation::CompareSwap => {
                        let at = self.slices.at_peer(self.peer_outbox, 0, self.plan)?;
                        $request.compare_swap(self.slices.fetched(place)?, at, number, number + 1)
                    }
                }
            };
        }
        let written = match self.reach {
            Reach::Connection => perform!(request),
            Reach::Address { path, qpn, qkey } => perform!(request.to(path.to(*qpn, *qkey))),
            Reach::Queue(queue) => perform!(request.to(*queue)),
        };
        written.map_err(|error| uverbs::Error::from(error).into())
    }
}

/// The place of a message of a batch.
fn place(slot: u32, message: u32, plan: &Plan) -> usize {
    (slot * plan.batch + message) as usize
}

/// A message to send: its bytes if they are checked, else its stamp alone.
fn compose(number: u64, message: &mut [u8], plan: &Plan) {
    match plan.check {
        true => pattern::fill(message, number),
        false => {
            if let Some(last) = message.last_mut() {
                *last = pattern::stamp(number);
            }
        }
    }
}

/// Writes a message into its place; without a check, its stamp alone.
fn write_message(
    number: u64,
    data: &mut Data,
    start: usize,
    scratch: &mut [u8],
    plan: &Plan,
) -> Result<()> {
    compose(number, scratch, plan);
    let bytes = match plan.check {
        true => 0..scratch.len(),
        false => scratch.len() - 1..scratch.len(),
    };
    data.write_at(start + bytes.start, &scratch[bytes])
}

/// The slices of a lane's memory.
struct Slices<'a> {
    data: &'a Data,
    layout: &'a Layout,
    base: usize,
}

impl<'a> Slices<'a> {
    fn at(&self, start: usize, range: Range<usize>) -> Result<LocalSlice<'a>> {
        let range = start + range.start..start + range.end;
        self.data.slice(range)
    }

    fn out(&self, place: usize) -> Result<LocalSlice<'a>> {
        self.at(self.base, self.layout.out_place(place))
    }

    fn receive(&self, slot: u32) -> Result<LocalSlice<'a>> {
        let start = self.base + self.layout.outbox();
        self.at(start, self.layout.in_place(slot as usize))
    }

    /// Where what is read goes.
    fn fetched(&self, place: usize) -> Result<LocalSlice<'a>> {
        self.receive(place as u32)
    }

    /// A place in the peer's memory, which is laid out as this side's.
    fn at_peer(
        &self,
        memory: Option<RemoteSlice>,
        place: usize,
        plan: &Plan,
    ) -> Result<RemoteSlice> {
        let memory = memory.ok_or_else(|| failed("the peer has not told where its memory is"))?;
        let range = match plan.operation.fetches() {
            true => self.layout.out_place(place),
            false => self.layout.in_place(place),
        };
        memory.slice(range).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::plan;
    use super::super::plan::{Plan, Transport};
    use super::*;

    #[test]
    fn ids_come_back() {
        for lane in [0, 1, u16::MAX] {
            for is_receive in [false, true] {
                let id = Id {
                    lane,
                    is_receive,
                    slot: 0xdead_beef,
                };
                assert_eq!(Id::of_wr_id(id.to_wr_id()), id);
            }
        }
    }

    #[test]
    fn places_do_not_overlap() {
        let plan = Plan {
            size: 100,
            transport: Transport::Ud,
            ..plan()
        };
        let layout = Layout::of(&plan);
        let ranges = |place: fn(&Layout, usize) -> Range<usize>| -> Vec<_> {
            (0..layout.places)
                .map(|number| place(&layout, number))
                .collect()
        };
        let (out, into) = (ranges(Layout::out_place), ranges(Layout::in_place));
        for (places, length) in [(out, layout.outbox()), (into, layout.inbox())] {
            assert!(places.windows(2).all(|two| two[0].end <= two[1].start));
            assert!(places.last().unwrap().end <= length);
        }
        assert_eq!(layout.in_place(0).len(), 140);
    }
}
