//! Completions that nobody has taken yet, as posters see them.
//!
//! The kernel frees the slot of a request when it is done with it, whether or not the completion ring has
//! room for another completion, and drops completions for which there is no room. So a queue counts as full
//! by the requests that the kernel still has *and* by its completions that nobody has taken. Then a
//! completion queue that holds as much as the queues that report to it never overruns. Pollers do nothing for
//! this. A poster looks for such completions in the completion ring, and only where its own queue seems full.
//! The poster to a shared receive queue looks in the completion rings of all queue pairs that receive from
//! it.
//!
//! One completion of each queue is in neither count for a moment: the kernel moves the work queue's index
//! (`do_complete` in `rxe_comp.c` and `rxe_resp.c`) before it writes the completion. From a shared receive
//! queue it takes the request at the first packet of a message, so there each queue pair has one that is in
//! neither count, for as long as a message takes; and when it has failed, one whose completion does not
//! count, since that may be a send's. The completion ring has room for these in addition to its capacity
//! (`create_cq` in the parent module). For C programs none of this is done, as in libibverbs.
//!
//! A queue pair that is reset in its place starts anew. The requests that its older completions report no
//! longer exist, and a failed receive among them would count as a send. These completions still wait for the
//! poller, but posters count only those after them ([`Shared::forget`]).

use std::mem;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use uverbs_uapi::enums::{QpType, WcOpcode, WcStatus};
use uverbs_uapi::types::Wc;

use super::map::RingMap;
use super::ring::{Consumer, Observer};
use super::srq::{Receivers, SrqRing};
use crate::work::PollError;

/// What a completion queue's poller shares with the posters.
#[derive(Debug)]
pub(crate) struct Shared {
    /// None once nobody polls any more.
    ring: Mutex<Option<Ring>>,
    /// The next poll looks closer: there is news, or shared queues receive messages. Stored under the lock,
    /// like `news`.
    attention: AtomicBool,
    /// The next poll has something to do: report an overrun, drop forgotten completions from the list, or
    /// start counting messages of shared queues.
    news: AtomicBool,
}

#[derive(Debug)]
struct Ring {
    // Before the map, because it points into it.
    observer: Observer,
    _map: Option<RingMap>,
    /// Where the poller was, while the kernel moves the completions to another ring: as it copies them, it
    /// moves this ring's index itself (`resize_finish` in `rxe_queue.c`).
    moving: Option<u32>,
    /// The kernel had no room for a completion.
    overrun: bool,
    /// The kernel has moved the completions to a ring that could not be mapped.
    is_lost: bool,
    /// One for each queue pair that was reset while completions waited, until these have been taken.
    forgotten: Vec<Forgotten>,
    /// The queue pairs that receive from shared queues. Once there has been one, polls always look closer.
    receivers: Receivers,
    has_receivers: bool,
    /// Queue pairs that were reset or destroyed during a change to another ring: their last messages may be
    /// in the new ring, and are counted when it is known.
    leaving: Vec<Leaving>,
}

/// The end of a queue pair's share in a shared queue, put off.
#[derive(Debug)]
pub(super) struct Leaving {
    ring: Arc<SrqRing>,
    /// It counts as a receiver.
    receives: bool,
    /// Its number, if it is gone.
    gone: Option<u32>,
}

/// Completions that no longer count: those of one queue pair among the next `left` entries of the ring.
#[derive(Debug)]
struct Forgotten {
    qpn: u32,
    /// How many such entries there were when the next one to take was at index `at`.
    left: u32,
    at: u32,
}

impl Forgotten {
    /// How many such entries are left when the next one to take is at `next`: less than one round after `at`.
    fn left_at(&self, next: u32, mask: u32) -> u32 {
        let taken = next.wrapping_sub(self.at) & mask;
        self.left.saturating_sub(taken)
    }
}

impl Ring {
    fn new(observer: Observer, map: Option<RingMap>) -> Self {
        Self {
            observer,
            _map: map,
            moving: None,
            overrun: false,
            is_lost: false,
            forgotten: Vec::new(),
            receivers: Receivers::default(),
            has_receivers: false,
            leaving: Vec::new(),
        }
    }

    /// The index of the next completion to be taken, and the index after the last.
    fn indices(&self) -> (u32, u32) {
        let (next, filled) = self.observer.indices();
        (self.moving.unwrap_or(next), filled)
    }

    /// Notes where the poller is. Forgotten completions that have been taken need not be remembered.
    fn pass(&mut self, next: u32, mask: u32) {
        self.forgotten.retain_mut(|forgotten| {
            (forgotten.left, forgotten.at) = (forgotten.left_at(next, mask), next);
            forgotten.left > 0
        });
    }

    /// Ends a change to another ring: counts what has come meanwhile, and returns the shares that have ended.
    fn settle(&mut self) -> Vec<Leaving> {
        self.moving = None;
        if self.has_receivers {
            let _ = self.count_received();
        }
        for Leaving { ring, gone, .. } in &self.leaving {
            if let Some(qpn) = *gone {
                // Its own share keeps the ring alive.
                let _ = self.receivers.remove(qpn, ring);
            }
        }
        mem::take(&mut self.leaving)
    }

    /// Counts the messages that have come into shared queues since the last call. Returns the index up to
    /// which messages are counted.
    #[inline(always)]
    fn count_received(&mut self) -> u32 {
        let filled = self.observer.filled();
        let mask = self.observer.mask();
        let up_to = filled & mask;
        let from = self.receivers.count_from(up_to);
        match up_to.wrapping_sub(from) & mask {
            0 => {}
            1 => {
                // SAFETY: it lies between what was counted and what the kernel has filled.
                match unsafe { message(self.observer.slot(from)) } {
                    Message::Received { qpn } => self.receivers.complete(qpn, 1),
                    Message::Failed { qpn } => self.receivers.fail(qpn),
                    Message::None => {}
                }
            }
            _ => self.count_several(from, up_to),
        }
        filled
    }

    /// Counts the messages among several completions. Out of line, so that the loop has the registers.
    #[inline(never)]
    fn count_several(&mut self, from: u32, up_to: u32) {
        // Several in succession are often for one queue pair, which is then looked up once.
        let (mut last, mut messages) = (0, 0);
        for run in self.observer.runs(from, up_to) {
            for slot in run {
                // SAFETY: as in `count_received`.
                match unsafe { message(slot) } {
                    Message::Received { qpn } if qpn == last => messages += 1,
                    Message::Received { qpn } => {
                        self.receivers.complete(last, messages);
                        (last, messages) = (qpn, 1);
                    }
                    Message::Failed { qpn } => self.receivers.fail(qpn),
                    Message::None => {}
                }
            }
        }
        self.receivers.complete(last, messages);
    }
}

/// What a completion says about a message that came to its queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    None,
    Received {
        qpn: u32,
    },
    /// Of a queue pair without a reliable connection, this is a message for which a receive was too short, or
    /// whose rest or key was wrong: its sender is told of none of these. Of a reliable one it may be a failed
    /// send.
    Failed {
        qpn: u32,
    },
}

impl Message {
    /// Other failed completions may be receives too. Their queue pairs are in the error state, and the
    /// receives are made up for when these go.
    #[inline(always)]
    pub(super) fn of(wc: &Wc) -> Self {
        let qpn = wc.qp_num;
        match WcStatus(wc.status) {
            WcStatus::SUCCESS if wc.opcode & WcOpcode::RECV.0 != 0 => Self::Received { qpn },
            WcStatus::REM_INV_REQ_ERR | WcStatus::REM_ACCESS_ERR => Self::Failed { qpn },
            _ => Self::None,
        }
    }
}

/// The message of a completion.
///
/// # Safety
///
/// The slot lies between what was counted and what the kernel has filled. The kernel does not fill it again
/// before the completion is taken, and it is not taken before it is counted.
#[inline(always)]
unsafe fn message(slot: NonNull<u8>) -> Message {
    // SAFETY: by this function's contract; every bit pattern is a completion.
    Message::of(&unsafe { slot.cast::<Wc>().read() })
}

impl Shared {
    /// For a completion ring; as for [`Shared::set`].
    pub(super) fn new(observer: Observer, map: Option<RingMap>) -> Self {
        Self {
            ring: Mutex::new(Some(Ring::new(observer, map))),
            attention: AtomicBool::new(false),
            news: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Ring>> {
        // It is whole after every statement, so a panic elsewhere has not spoilt it.
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a change to another ring: until it ends, only the poller's position from now counts. Posters
    /// find all slots occupied meanwhile, since new completions lie in a ring that they do not see.
    pub(super) fn begin_move(&self, polled: &Consumer) {
        if let Some(ring) = &mut *self.lock() {
            ring.moving = Some(polled.next());
        }
    }

    /// Makes each poll fail: the kernel has moved to a ring that could not be mapped, so the change does not
    /// end.
    pub(super) fn lose(&self) {
        if let Some(ring) = &mut *self.lock() {
            ring.is_lost = true;
            self.draw_attention();
        }
    }

    /// Ends a change that the kernel has refused: the ring is as before.
    pub(super) fn stay(&self) {
        let left = match &mut *self.lock() {
            Some(ring) => ring.settle(),
            None => return,
        };
        end(left);
    }

    /// Takes over the ring that is polled from now on; `map` keeps its memory mapped. The ring before it is
    /// dropped.
    pub(super) fn set(&self, polled: &Consumer, observer: Observer, map: Option<RingMap>) {
        let mut ring = Ring::new(observer, map);
        let mut place = self.lock();
        if let Some(old) = &mut *place {
            // The kernel has moved the completions that waited from here on.
            let (next, _) = old.indices();
            old.pass(next, old.observer.mask());
            ring.overrun = old.overrun;
            ring.has_receivers = old.has_receivers;
            ring.receivers = mem::take(&mut old.receivers);
            let behind = ring.receivers.counted().wrapping_sub(next) & old.observer.mask();
            let counted = polled.next().wrapping_add(behind) & polled.capacity();
            let _ = ring.receivers.count_from(counted);
            ring.forgotten = mem::take(&mut old.forgotten);
            for forgotten in &mut ring.forgotten {
                forgotten.at = polled.next();
            }
            ring.leaving = mem::take(&mut old.leaving);
        }
        let left = ring.settle();
        let old = place.replace(ring);
        // The poller's `counted` refers to the ring before.
        self.draw_attention();
        drop(place);
        end(left);
        // Not under the lock: an allocator may get the memory back, and may then call into other queues.
        drop(old);
    }

    /// Forgets the completions of a queue pair that wait in the ring: it has been reset.
    pub(super) fn forget(&self, qpn: u32) {
        let mut ring = self.lock();
        let Some(ring) = &mut *ring else {
            return;
        };
        let (at, filled) = ring.indices();
        let left = filled.wrapping_sub(at) & ring.observer.mask();
        if left == 0 {
            return;
        }
        // Completions noted at an earlier reset lie before these, so one note is enough.
        ring.forgotten.retain(|forgotten| forgotten.qpn != qpn);
        ring.forgotten.push(Forgotten { qpn, left, at });
        // From its next poll on the poller notes where it is.
        self.draw_attention();
    }

    /// Lets the next poll report that the kernel had no room for a completion.
    pub(super) fn overran(&self) {
        if let Some(ring) = &mut *self.lock() {
            ring.overrun = true;
            self.draw_attention();
        }
    }

    /// Makes the next poll look closer. The caller holds the lock.
    fn draw_attention(&self) {
        // Relaxed: what the poll has to see is under the lock. A poll that finds a later completion also sees
        // these flags: it loads the ring's index first, with acquire.
        self.news.store(true, Ordering::Relaxed);
        self.attention.store(true, Ordering::Relaxed);
    }

    /// Whether the poller has to look closer.
    #[inline(always)]
    pub(super) fn needs_attention(&self) -> bool {
        // Relaxed: as in `draw_attention`.
        self.attention.load(Ordering::Relaxed)
    }

    /// Whether the poller has something to see to.
    #[inline(always)]
    pub(super) fn has_news(&self) -> bool {
        // Relaxed: as in `draw_attention`.
        self.news.load(Ordering::Relaxed)
    }

    /// Does what has come up since the last poll: drops notes of forgotten completions that have been taken,
    /// and reports an overrun, once, and each time that the ring is lost.
    #[cold]
    fn attend(&self, ring: &mut Ring, polled: &Consumer) -> Result<(), PollError> {
        if ring.is_lost {
            return Err(PollError::QueueLost);
        }
        ring.pass(polled.next(), polled.capacity());
        if mem::take(&mut ring.overrun) {
            // The rest waits for the next poll.
            return Err(PollError::Overrun);
        }
        // Relaxed: only the poller, which calls this, clears the flags.
        let is_left = !ring.forgotten.is_empty();
        self.news.store(is_left, Ordering::Relaxed);
        let counts = ring.has_receivers;
        self.attention.store(is_left || counts, Ordering::Relaxed);
        Ok(())
    }

    /// Adds a new queue pair that receives from a shared queue. No message of it has come yet.
    pub(super) fn attach(&self, qpn: u32, srq: &Arc<SrqRing>, transport: QpType) {
        let mut place = self.lock();
        let known = place.as_mut().and_then(|ring| {
            if ring.has_receivers {
                let _ = ring.count_received();
            } else {
                // Nobody has counted before. The entries in the ring are of other queue pairs, and their
                // slots may be the kernel's again.
                let filled = ring.observer.filled() & ring.observer.mask();
                let _ = ring.receivers.count_from(filled);
                ring.has_receivers = true;
            }
            // The number is this one's from now on, whoever had it before.
            for leaving in &mut ring.leaving {
                leaving.gone = leaving.gone.filter(|&gone| gone != qpn);
            }
            ring.receivers.insert(qpn, srq, transport)
        });
        self.draw_attention();
        drop(place);
        // Not under the lock, as in `set`.
        drop(known);
    }

    /// Counts the messages of a queue pair that has been reset, then ends its share in the shared queue, if
    /// it `receives`. With the number of one that is `gone`, removes it too.
    ///
    /// While the completions move to another ring, the kernel may have counted messages there already. They
    /// would be counted again if the share ended now: its end counts whatever was taken out of the queue. So
    /// the end is put off until the new ring is known.
    pub(super) fn leave(&self, srq: &Arc<SrqRing>, receives: bool, gone: Option<u32>) {
        let mut place = self.lock();
        let known = match &mut *place {
            Some(ring) if ring.moving.is_some() => {
                ring.leaving.push(Leaving {
                    ring: Arc::clone(srq),
                    receives,
                    gone,
                });
                return;
            }
            Some(ring) => {
                if ring.has_receivers {
                    let _ = ring.count_received();
                }
                gone.and_then(|qpn| ring.receivers.remove(qpn, srq))
            }
            None => None,
        };
        drop(place);
        if receives {
            srq.leave();
        }
        // Not under the lock, as in `set`.
        drop(known);
    }

    /// Looks closer, for the poller: does what has come up, and counts the messages of shared queues before
    /// they are taken. Returns the index after the last completion that is counted, and whether messages are
    /// to be counted from now on.
    #[inline(always)]
    pub(super) fn closer(&self, polled: &Consumer) -> Result<(u32, bool), PollError> {
        let mut ring = self.lock();
        // There is one as long as somebody polls.
        let Some(ring) = &mut *ring else {
            return Ok((polled.next(), false));
        };
        if self.has_news() {
            self.attend(ring, polled)?;
        }
        Ok((ring.count_received(), ring.has_receivers))
    }

    /// How many completions that `is_counted` nobody has taken, without the forgotten ones: at least as many
    /// as there were at one moment of the call. 0 if nobody polls any more.
    fn unread(&self, is_counted: impl Fn(&Receivers, &Wc) -> bool) -> u32 {
        let ring = self.lock();
        let Some(Ring {
            observer,
            moving,
            forgotten,
            receivers,
            ..
        }) = &*ring
        else {
            return 0;
        };
        if moving.is_some() {
            return u32::MAX;
        }
        let (next, slots) = observer.waiting();
        let is_forgotten = |qpn, at| {
            let mut notes = forgotten.iter();
            notes.any(|it| it.qpn == qpn && at < it.left_at(next, observer.mask()))
        };
        let mut count = 0;
        for (at, slot) in (0..).zip(slots) {
            // SAFETY: it is a slot of the ring.
            let wc = unsafe { glance(slot.cast()) };
            count += u32::from(is_counted(receivers, &wc) && !is_forgotten(wc.qp_num, at));
        }
        count
    }

    /// How many completions of receives from a shared queue nobody has taken, counted as in a [`Watch`].
    pub(super) fn unread_of(&self, srq: &SrqRing) -> u32 {
        self.unread(|receivers, wc| receivers.is_receive_from(Message::of(wc), srq))
    }

    /// Drops the ring. Nobody polls any more.
    pub(super) fn close(&self) {
        let mut place = self.lock();
        let left = place.as_mut().map(Ring::settle);
        let old = place.take();
        drop(place);
        end(left.unwrap_or_default());
        // Not under the lock, as in `set`.
        drop(old);
    }
}

/// Ends shares in shared queues. No lock is held.
fn end(left: Vec<Leaving>) {
    for Leaving { ring, receives, .. } in left {
        if receives {
            ring.leave();
        }
    }
}

/// Which completions belong to a work queue.
#[derive(Clone, Debug)]
pub(super) enum Watch {
    /// Those of the sends of a queue pair, or of its receives.
    Queue {
        shared: Arc<Shared>,
        qpn: u32,
        receives: bool,
    },
    /// Those of the receives from a shared queue.
    SharedQueue(Arc<SrqRing>),
}

impl Watch {
    /// For the sends of a queue pair, or its receives.
    pub(super) fn new(shared: &Arc<Shared>, qpn: u32, receives: bool) -> Self {
        Self::Queue {
            shared: Arc::clone(shared),
            qpn,
            receives,
        }
    }

    /// How many of the queue's completions nobody has taken, without the forgotten ones: at least as many as
    /// there were at one moment of the call. 0 if nobody polls any more.
    pub(super) fn unread(&self) -> u32 {
        match self {
            &Self::Queue {
                ref shared,
                qpn,
                receives,
            } => shared.unread(|_, wc| is_of(wc, qpn, receives)),
            Self::SharedQueue(srq) => srq.unread(),
        }
    }
}

/// Whether a completion belongs to the sends of a queue pair, or to its receives. A failed one does not say
/// of what kind it was, and counts for both.
fn is_of(wc: &Wc, qpn: u32, receives: bool) -> bool {
    let is_receive = wc.opcode & WcOpcode::RECV.0 != 0;
    wc.qp_num == qpn && (wc.status != WcStatus::SUCCESS.0 || is_receive == receives)
}

/// Whose completion it is, and what it reports; nothing else is read.
///
/// # Safety
///
/// The pointer is to a slot of a completion ring.
unsafe fn glance(wc: NonNull<Wc>) -> Wc {
    let wc = wc.as_ptr();
    // SAFETY: the slot holds a completion. If that has been taken meanwhile, the kernel may be writing a new
    // one; each field is read once, and every bit pattern is valid.
    unsafe {
        Wc {
            qp_num: (&raw const (*wc).qp_num).read_volatile(),
            status: (&raw const (*wc).status).read_volatile(),
            opcode: (&raw const (*wc).opcode).read_volatile(),
            ..Wc::default()
        }
    }
}
