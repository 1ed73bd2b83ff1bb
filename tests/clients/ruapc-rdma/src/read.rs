//! READs of several pieces into buffers that the queue pair owns meanwhile.
//!
//! A plan has its buffers until each of its READs has completed or was never posted. Whoever waits may be
//! told of a failure before that; the buffers stay all the same.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll};

use ruapc_bufpool::{Buffer, completion};
use uverbs::mr::RemoteKey;
use uverbs::{LocalSlice, RemoteSlice};

use crate::queue_pair::QueuePair;
use crate::{Error, ErrorKind, Result, lock};

/// Part of a buffer of the plan.
#[derive(Clone, Copy, Debug)]
pub struct ReadSegment {
    /// Which buffer.
    pub buffer: usize,
    /// Its first byte of the part.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
}

/// A READ of consecutive bytes of the peer's, into parts of buffers.
#[derive(Debug)]
pub struct ReadRequest {
    /// The peer's first byte.
    pub remote_addr: u64,
    /// The peer's key.
    pub rkey: u32,
    /// Where they go.
    pub segments: Vec<ReadSegment>,
}

/// Why there are no buffers. This crate finds [`ReadFailure::Completion`] and [`ReadFailure::Cancelled`]; the
/// others are what callers say by [`ReadHandle::fail`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFailure {
    /// A READ failed, or was not posted.
    Completion,
    /// The caller's time for the READ is over.
    Timeout,
    /// The caller's time for what needs it is over.
    RequestTimeout,
    /// The connection is closed.
    ConnectionClosed,
    /// Nobody will post it.
    Cancelled,
}

/// The result of a plan, as a future: the buffers.
#[derive(Debug)]
pub struct ReadCompletion {
    receiver: completion::Receiver<Outcome>,
}

type Outcome = Result<Vec<Buffer>, ReadFailure>;

impl ReadCompletion {
    /// The result, if there is one.
    pub fn try_recv(&mut self) -> Option<Outcome> {
        let received = self.receiver.try_recv();
        received.unwrap_or(Some(Err(ReadFailure::Cancelled)))
    }
}

impl Future for ReadCompletion {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let received = Pin::new(&mut self.receiver).poll(cx);
        received.map(|outcome| outcome.unwrap_or(Err(ReadFailure::Cancelled)))
    }
}

/// A plan's state, which the plan, the queue pair and observers share.
pub(crate) struct Batch(Mutex<State>);

struct State {
    /// READs that are not posted yet.
    waiting: usize,
    /// READs that the device has.
    flying: usize,
    failed: bool,
    buffers: Option<Vec<Buffer>>,
    result: Option<completion::Sender<Outcome>>,
}

impl Batch {
    fn new(reads: usize, buffers: Vec<Buffer>) -> (Arc<Self>, ReadCompletion) {
        let (sender, receiver) = completion::channel();
        let batch = Arc::new(Self(Mutex::new(State {
            waiting: reads,
            flying: 0,
            failed: false,
            buffers: Some(buffers),
            result: Some(sender),
        })));
        batch.update(|_| {});
        (batch, ReadCompletion { receiver })
    }

    /// Changes the counts, and ends the plan if that leaves none.
    fn update(&self, change: impl FnOnce(&mut State)) {
        let (buffers, result, failed) = {
            let mut state = lock(&self.0);
            change(&mut state);
            if state.waiting + state.flying != 0 {
                return;
            }
            (state.buffers.take(), state.result.take(), state.failed)
        };
        // Whoever waits is woken without the lock.
        let outcome = match buffers {
            _ if failed => Err(ReadFailure::Completion),
            Some(buffers) => Ok(buffers),
            None => Err(ReadFailure::Cancelled),
        };
        if let Some(result) = result {
            // Nobody waits any more: the buffers go back to their pool.
            let _ = result.send(outcome);
        }
    }

    /// The device gets one.
    fn depart(&self) {
        let mut state = lock(&self.0);
        state.waiting -= 1;
        state.flying += 1;
    }

    /// The device did not get it.
    fn stay(&self) {
        let mut state = lock(&self.0);
        state.flying -= 1;
        state.waiting += 1;
    }

    /// One has completed.
    pub(crate) fn arrive(&self, success: bool) {
        self.update(|state| {
            state.flying -= 1;
            state.failed |= !success;
        });
    }

    /// Those that are left will not be posted.
    fn give_up(&self) {
        self.update(|state| {
            state.failed |= state.waiting != 0;
            state.waiting = 0;
        });
    }

    /// None was posted, so the buffers are nobody else's.
    fn cancel(&self) -> Option<Vec<Buffer>> {
        let (buffers, result) = {
            let mut state = lock(&self.0);
            state.waiting = 0;
            (state.buffers.take(), state.result.take())
        };
        drop(result);
        buffers
    }

    fn fail(&self, reason: ReadFailure) -> bool {
        let result = lock(&self.0).result.take();
        result.is_some_and(|result| {
            let _ = result.send(Err(reason));
            true
        })
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = lock(&self.0);
        f.debug_struct("Batch")
            .field("waiting", &state.waiting)
            .field("flying", &state.flying)
            .field("failed", &state.failed)
            .finish_non_exhaustive()
    }
}

/// Looks at a plan without keeping it.
#[derive(Clone, Debug)]
pub struct ReadHandle(Weak<Batch>);

impl ReadHandle {
    /// Looks at it, if it is there.
    pub fn observe(&self) -> Option<ReadObservation> {
        self.0.upgrade().map(ReadObservation)
    }

    /// As [`ReadObservation::is_pending`].
    pub fn is_pending(&self) -> bool {
        self.observe().is_some_and(|plan| plan.is_pending())
    }

    /// As [`ReadObservation::has_in_flight`].
    pub fn has_in_flight(&self) -> bool {
        self.observe().is_some_and(|plan| plan.has_in_flight())
    }

    /// As [`ReadObservation::fail`].
    pub fn fail(&self, reason: ReadFailure) -> bool {
        self.observe().is_some_and(|plan| plan.fail(reason))
    }
}

/// A look at a plan, which keeps it meanwhile.
#[derive(Debug)]
pub struct ReadObservation(Arc<Batch>);

impl ReadObservation {
    /// Whether READs have yet to complete or to be posted.
    pub fn is_pending(&self) -> bool {
        let state = lock(&self.0.0);
        state.waiting + state.flying != 0
    }

    /// Whether the device has READs of it.
    pub fn has_in_flight(&self) -> bool {
        lock(&self.0.0).flying != 0
    }

    /// Tells who waits that it failed, and whether somebody had not been told anything yet. The buffers stay.
    pub fn fail(&self, reason: ReadFailure) -> bool {
        self.0.fail(reason)
    }
}

/// A READ whose parts have been looked at.
#[derive(Debug)]
struct Planned {
    into: Vec<LocalSlice<'static>>,
    from: RemoteSlice,
}

/// The READs of a plan that are to be posted, to the queue pair that planned them, each once. Dropped, the
/// rest is given up.
#[derive(Debug)]
pub struct ReadPosting {
    owner: Arc<()>,
    reads: std::vec::IntoIter<Planned>,
    posted: bool,
    batch: Arc<Batch>,
}

impl ReadPosting {
    /// To look at it.
    pub fn handle(&self) -> ReadHandle {
        ReadHandle(Arc::downgrade(&self.batch))
    }

    /// How many have not been posted.
    pub fn remaining(&self) -> usize {
        self.reads.len()
    }

    /// Gives the buffers back if none has been posted.
    pub fn cancel(self) -> Option<Vec<Buffer>> {
        match self.posted {
            true => None,
            false => self.batch.cancel(),
        }
    }
}

impl Drop for ReadPosting {
    fn drop(&mut self) {
        self.batch.give_up();
    }
}

impl QueuePair {
    /// Plans READs into these buffers. A plan that cannot be gives them back.
    pub fn prepare_reads(
        &self,
        buffers: Vec<Buffer>,
        requests: Vec<ReadRequest>,
    ) -> Result<(ReadPosting, ReadCompletion), (Error, Vec<Buffer>)> {
        let reads = check_overlaps(&requests).and_then(|()| {
            requests
                .iter()
                .map(|read| self.plan(&buffers, read))
                .collect()
        });
        let reads: Vec<Planned> = match reads {
            Ok(reads) => reads,
            Err(error) => return Err((error, buffers)),
        };
        let (batch, completion) = Batch::new(reads.len(), buffers);
        let posting = ReadPosting {
            owner: Arc::clone(self.owner()),
            reads: reads.into_iter(),
            posted: false,
            batch,
        };
        Ok((posting, completion))
    }

    fn plan(&self, buffers: &[Buffer], request: &ReadRequest) -> Result<Planned> {
        if request.segments.is_empty() || request.segments.len() > self.gather_limit() {
            return Err(invalid(
                "a READ has no part, or more than the queue pair takes",
            ));
        }
        let parts = request.segments.iter();
        let into: Vec<_> = parts
            .map(|part| self.part(buffers, part))
            .collect::<Result<_>>()?;
        let length = into.iter().map(|part| part.len() as u64).sum();
        if request.remote_addr.checked_add(length).is_none() {
            return Err(invalid("the peer's bytes go beyond all addresses"));
        }
        let from = RemoteSlice {
            address: request.remote_addr,
            length,
            rkey: RemoteKey(request.rkey),
        };
        Ok(Planned { into, from })
    }

    fn part(&self, buffers: &[Buffer], part: &ReadSegment) -> Result<LocalSlice<'static>> {
        let buffer = buffers.get(part.buffer);
        let buffer = buffer.ok_or_else(|| invalid("there is no such buffer"))?;
        let end = part.offset.checked_add(part.len);
        if part.len == 0 || end.is_none_or(|end| end > buffer.len()) {
            return Err(invalid("a part is empty, or goes beyond its buffer"));
        }
        self.slice(buffer, part.offset, part.len)
    }

    /// Posts the next READ.
    pub fn post_read(&self, posting: &mut ReadPosting) -> Result<()> {
        if !Arc::ptr_eq(&posting.owner, self.owner()) {
            return Err(invalid("another queue pair planned it"));
        }
        let Some(read) = posting.reads.as_slice().first() else {
            return Err(invalid("all of it has been posted"));
        };
        posting.batch.depart();
        let posted = self.post_planned(&read.into, read.from, &posting.batch);
        match posted {
            Ok(()) => {
                posting.reads.next();
                posting.posted = true;
            }
            Err(_) => posting.batch.stay(),
        }
        posted
    }
}

/// Whether two parts have a byte of one buffer in common.
fn check_overlaps(requests: &[ReadRequest]) -> Result<()> {
    let parts = requests.iter().flat_map(|request| &request.segments);
    let mut parts: Vec<_> = parts.collect();
    parts.sort_unstable_by_key(|part| (part.buffer, part.offset));
    let overlap = parts.windows(2).any(|two| {
        let [one, next] = two else { return false };
        one.buffer == next.buffer && one.offset.saturating_add(one.len) > next.offset
    });
    match overlap {
        true => Err(invalid("two parts have bytes in common")),
        false => Ok(()),
    }
}

fn invalid(why: &str) -> Error {
    ErrorKind::InvalidReadPlan.because()(why)
}
