//! One queue pair: the places of its messages, the requests in flight, and posting.

use std::collections::VecDeque;
use std::ops::Range;

use uverbs::transport::Any;
use uverbs::xrcd::XrcTarget;
use uverbs::{Ah, Inline, PeerSrq, PostError, Qp, RemoteSlice, Request, Srq};

use super::memory::Data;
use super::pattern;
use super::plan::{Operation, Plan};
use super::time::Time;
use crate::failure::{Failure, Kind, Result};

/// Messages begin at multiples of this many bytes.
pub(super) const ALIGNMENT: usize = 64;

/// The places of a lane's messages in the memory of its worker.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    size: usize,
    header: usize,
    places: usize,
    /// The distance between two messages to send, or between two places for messages that arrive.
    out_step: usize,
    in_step: usize,
}

impl Layout {
    pub(super) fn of(plan: &Plan) -> Self {
        let (size, header) = (plan.size as usize, plan.transport.header());
        Self {
            size,
            header,
            places: plan.places() as usize,
            out_step: size.next_multiple_of(ALIGNMENT),
            in_step: (header + size).next_multiple_of(ALIGNMENT),
        }
    }

    /// Bytes of the messages to send, and of the memory that the peer reads.
    pub(super) fn outbox(&self) -> usize {
        self.places * self.out_step
    }

    /// Bytes of the memory that receives, and that the peer writes.
    pub(super) fn inbox(&self) -> usize {
        self.places * self.in_step
    }

    /// Bytes of both.
    pub(super) fn length(&self) -> usize {
        self.outbox() + self.inbox()
    }

    /// The range of a message to send, from the beginning of the outbox.
    fn out_place(&self, place: usize) -> Range<usize> {
        let start = place % self.places * self.out_step;
        start..start + self.size
    }

    /// The range of an arriving message, with its header, from the beginning of the inbox.
    fn in_place(&self, place: usize) -> Range<usize> {
        let start = place % self.places * self.in_step;
        start..start + self.header + self.size
    }

    /// The range of a message to send, if the lane's memory begins at `base`.
    fn outgoing(&self, base: usize, place: usize) -> Range<usize> {
        let Range { start, end } = self.out_place(place);
        base + start..base + end
    }

    /// The range of an arriving message, with its header, as in [`Self::outgoing`].
    fn incoming(&self, base: usize, place: usize) -> Range<usize> {
        let inbox = base + self.outbox();
        let Range { start, end } = self.in_place(place);
        inbox + start..inbox + end
    }
}

/// How requests reach the peer.
#[derive(Debug)]
pub(super) enum Reach {
    /// The connection determines it.
    Connection,
    /// Each request carries an address.
    Address { path: Ah, qpn: u32, qkey: u32 },
    /// Over a connection, to a shared receive queue of the peer.
    Queue(PeerSrq),
}

/// The parts of a queue pair of any transport.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) qp: Qp<Any>,
    /// With XRC, the receiving part: the connection's other end and its queue.
    pub(super) xrc: Option<(XrcTarget, Srq)>,
}

/// A batch that is or was in flight.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// The number of its first message.
    first: u64,
    messages: u32,
    posted: Time,
    /// Completions that are still to come.
    due: u32,
}

/// A batch that has completed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    pub(super) messages: u32,
    pub(super) first: u64,
    pub(super) posted: Time,
    slot: u32,
}

/// A queue pair with its peer.
#[derive(Debug)]
pub(super) struct Lane {
    // Before the region that its requests use, which the worker has.
    pub(super) parts: Parts,
    pub(super) reach: Reach,
    /// The peer's memory to write or read, by places; empty for SENDs.
    there: Vec<RemoteSlice>,
    layout: Layout,
    /// The offset of its memory.
    base: usize,
    /// The bytes of a message are copied into the request.
    inline: bool,
    slots: Vec<Slot>,
    free: VecDeque<u32>,
    /// Messages that have been posted.
    pub(super) posted: u64,
    /// The number of messages to post in all.
    pub(super) limit: u64,
    /// Messages that have arrived.
    pub(super) received: u64,
    /// Receives that have completed and must be posted again.
    taken: Vec<u32>,
}

/// What a completion belongs to: the lane, and its batch or its receive.
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
    /// A lane without a peer. `base` is the offset of its memory.
    pub(super) fn new(parts: Parts, plan: &Plan, base: usize) -> Self {
        let most = parts.qp.caps().max_inline_data;
        let fits = plan.size <= plan.inline.unwrap_or(most).min(most);
        let free = 0..plan.batches();
        let slot = Slot {
            first: 0,
            messages: 0,
            posted: Time::now(),
            due: 0,
        };
        Self {
            slots: vec![slot; free.len()],
            free: free.collect(),
            parts,
            reach: Reach::Connection,
            there: Vec::new(),
            layout: Layout::of(plan),
            base,
            inline: fits && !plan.operation.fetches(),
            posted: 0,
            limit: u64::MAX,
            received: 0,
            taken: (0..plan.receives()).collect(),
        }
    }

    /// Gets the peer's memory, which has the same layout as this side's.
    pub(super) fn meet(
        &mut self,
        inbox: RemoteSlice,
        outbox: RemoteSlice,
        plan: &Plan,
    ) -> Result<()> {
        let places = match plan.operation {
            Operation::Send => 0,
            // All of these use one word.
            Operation::FetchAdd | Operation::CompareSwap => 1,
            _ => self.layout.places,
        };
        let there = (0..places).map(|place| match plan.operation.fetches() {
            true => outbox.slice(self.layout.out_place(place)),
            false => inbox.slice(self.layout.in_place(place)),
        });
        self.there = there
            .collect::<std::result::Result<_, _>>()
            .map_err(failed)?;
        Ok(())
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

    /// The memory that the peer reads.
    pub(super) fn outbox(&self) -> Range<usize> {
        self.base..self.base + self.layout.outbox()
    }

    /// The memory that the peer writes.
    pub(super) fn inbox(&self) -> Range<usize> {
        let start = self.base + self.layout.outbox();
        start..start + self.layout.inbox()
    }

    /// The range of the message at a place that was received or fetched, without its header.
    pub(super) fn arrived(&self, place: usize) -> Range<usize> {
        let Range { start, end } = self.layout.incoming(self.base, place);
        start + self.layout.header..end
    }

    /// The place of a message of a batch.
    pub(super) fn place_of(done: &Done, message: u32, plan: &Plan) -> usize {
        place(done.slot, message, plan)
    }

    /// Fills the outbox for a peer that reads and checks it: each message contains the number of its place.
    pub(super) fn fill_outbox(&self, data: &mut Data, scratch: &mut [u8]) -> Result<()> {
        for place in 0..self.layout.places {
            pattern::fill(scratch, place as u64);
            let start = self.layout.outgoing(self.base, place).start;
            data.write_at(start, scratch)?;
        }
        Ok(())
    }

    /// Posts a batch of messages with this time, fewer if the limit is near. [`Self::may_post`] must be true.
    pub(super) fn post(
        &mut self,
        own: u16,
        posted: Time,
        data: &mut Data,
        scratch: &mut [u8],
        plan: &Plan,
    ) -> Result<()> {
        let Some(slot) = self.free.pop_front() else {
            return Ok(());
        };
        let messages = u64::from(plan.batch).min(self.limit - self.posted) as u32;
        // The stamp shows the peer that a WRITE of an exchange has arrived.
        let is_awaited = plan.is_exchange() && plan.operation == Operation::Write;
        if (plan.check || is_awaited) && !self.inline && !plan.operation.fetches() {
            for message in 0..messages {
                let place = place(slot, message, plan);
                let start = self.layout.outgoing(self.base, place).start;
                write_message(self.posted + u64::from(message), data, start, scratch, plan)?;
            }
        }
        let id = Id {
            lane: own,
            is_receive: false,
            slot,
        };
        let due = self.post_batch(id, messages, data, scratch, plan)?;
        self.slots[slot as usize] = Slot {
            first: self.posted,
            messages,
            posted,
            due,
        };
        self.posted += u64::from(messages);
        Ok(())
    }

    /// Posts the requests of a batch; returns how many completions will come.
    fn post_batch(
        &mut self,
        id: Id,
        messages: u32,
        data: &Data,
        scratch: &mut [u8],
        plan: &Plan,
    ) -> Result<u32> {
        let (layout, base, there) = (self.layout, self.base, &*self.there);
        let place = |message| place(id.slot, message, plan);
        let out = |message| data.slice(layout.outgoing(base, place(message)));
        let into = |message| data.slice(layout.incoming(base, place(message)));
        let at = |message| {
            let known = there.get(place(message) % there.len().max(1));
            known.copied().ok_or(PostError::Destination)
        };
        let first = self.posted;
        let number = |message| first + u64::from(message);
        let list = List {
            id: id.to_wr_id(),
            messages,
            // A transport without order needs a completion for each request.
            tells_all: !plan.transport.is_ordered(),
        };
        let qp = &mut self.parts.qp;
        // A macro, because a request with a destination has a type of its own.
        macro_rules! each {
            (|$request:ident, $message:ident| $post:expr) => {
                match &self.reach {
                    Reach::Connection => list.post(qp, |$request, $message| $post),
                    Reach::Address { path, qpn, qkey } => {
                        let to = path.to(*qpn, *qkey);
                        list.post(qp, |request, $message| {
                            let $request = request.to(to);
                            $post
                        })
                    }
                    Reach::Queue(queue) => list.post(qp, |request, $message| {
                        let $request = request.to(*queue);
                        $post
                    }),
                }
            };
        }
        let posted = match (plan.operation, self.inline) {
            (Operation::Send, false) => each!(|request, m| request.send(out(m)?)),
            (Operation::Write, false) => each!(|request, m| request.write(out(m)?, at(m)?)),
            (Operation::WriteImm, false) => {
                each!(|request, m| request.write_imm(out(m)?, at(m)?, number(m) as u32))
            }
            (Operation::Send, true) => each!(|request, m| {
                compose(number(m), scratch, plan);
                request.send(Inline(scratch))
            }),
            (Operation::Write, true) => each!(|request, m| {
                compose(number(m), scratch, plan);
                request.write(Inline(scratch), at(m)?)
            }),
            (Operation::WriteImm, true) => each!(|request, m| {
                compose(number(m), scratch, plan);
                request.write_imm(Inline(scratch), at(m)?, number(m) as u32)
            }),
            (Operation::Read, _) => each!(|request, m| request.read(into(m)?, at(m)?)),
            (Operation::FetchAdd, _) => each!(|request, m| request.fetch_add(into(m)?, at(m)?, 1)),
            (Operation::CompareSwap, _) => each!(|request, m| {
                request.compare_swap(into(m)?, at(m)?, number(m), number(m) + 1)
            }),
        };
        posted.map_err(uverbs::Error::from)?;
        Ok(list.due())
    }

    /// Notes a completion of a batch, and returns the batch if it was the last one.
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

    /// Notes a receive that has completed.
    pub(super) fn note_received(&mut self, slot: u32) {
        self.received += 1;
        self.taken.push(slot);
    }

    /// Posts the completed receives again.
    pub(super) fn receive(&mut self, own: u16, data: &Data, plan: &Plan) -> Result<()> {
        if self.taken.is_empty() || !plan.operation.takes_receive() {
            return Ok(());
        }
        let (layout, base) = (self.layout, self.base);
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
                Operation::Send => {
                    let into = layout.incoming(base, slot as usize);
                    let into = data.slice(into).map_err(failed)?;
                    batch.post(id.to_wr_id(), into)
                }
                _ => batch.post_empty(id.to_wr_id()),
            };
            posted.map_err(uverbs::Error::from)?;
        }
        batch.ring();
        Ok(())
    }
}

/// The place of a message of a batch.
fn place(slot: u32, message: u32, plan: &Plan) -> usize {
    (slot * plan.batch + message) as usize
}

/// Composes a message to send: all its bytes if they are checked, otherwise only its stamp.
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

/// Writes a message at its place; without a check, only its stamp.
fn write_message(
    number: u64,
    data: &mut Data,
    start: usize,
    scratch: &mut [u8],
    plan: &Plan,
) -> Result<()> {
    match plan.check {
        true => {
            pattern::fill(scratch, number);
            data.write_at(start, scratch)
        }
        false => data.set(start + scratch.len() - 1, pattern::stamp(number)),
    }
}

/// The messages of a batch, with the numbers of their requests.
struct List {
    id: u64,
    messages: u32,
    /// Each request has a completion, not only the last one.
    tells_all: bool,
}

impl List {
    /// Posts the requests; `perform` completes each.
    ///
    /// Each kind of request has a loop of its own: in one loop for all, the compiler would prepare what each
    /// kind needs on each driver before the first request, which takes longer than a request does.
    #[inline(never)]
    fn post<'q>(
        &self,
        qp: &'q mut Qp<Any>,
        mut perform: impl FnMut(Request<'_, 'q, Any>, u32) -> Result<(), PostError>,
    ) -> Result<(), PostError> {
        if self.messages == 1 {
            return perform(qp.one(self.id), 0);
        }
        let mut batch = qp.batch();
        for message in 0..self.messages {
            let request = match self.tells_all || message + 1 == self.messages {
                true => batch.signaled(self.id),
                false => batch.unsignaled(self.id),
            };
            perform(request, message)?;
        }
        batch.ring()?;
        Ok(())
    }

    /// How many completions will come.
    fn due(&self) -> u32 {
        match self.tells_all {
            true => self.messages,
            false => self.messages.min(1),
        }
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
