//! Requests in flight, and the regions that wait for them.
//! A request in flight names memory by a key. If its region were deregistered and the key given to another
//! region, the request would reach other memory. So a region that is dropped, and of which slices were taken,
//! asks the queues of its protection domain: which of them have requests in flight that name its key, and up
//! to which count? It is deregistered when all of them have passed that count. Posting does nothing for this:
//! the requests lie in the rings, and queues count them anyway.
//! A slice borrows its region, and a batch holds the borrow until it is rung. So when a region is dropped,
//! every request that names it has been posted, and is included in the count that its queue reports.

use std::fmt::{self, Write};
use std::mem;
use std::sync::{Arc, PoisonError};

use slab::Slab;

use crate::driver::{QpBacking, SrqBacking};
use crate::error::Subject;
use crate::sync::{AtomicUsize, Mutex, MutexGuard, Ordering, fence};
use crate::work::{LocalKey, Progress};

/// The queues of a protection domain, and the regions that wait for them.
#[derive(Default)]
pub(crate) struct Flights {
    queues: Mutex<Slab<Arc<Flight>>>,
    waiting: Mutex<Vec<Waiting>>,
    /// How many regions wait. Relaxed throughout: a thread that misses the newest region leaves it to the
    /// next thread that looks.
    count: AtomicUsize,
}

/// The queues of one object.
pub(crate) struct Flight {
    /// Its place among the queues of its protection domain.
    place: usize,
    /// `None` once the device has released it.
    now: Mutex<Option<Now>>,
}

struct Now {
    /// The name of the object, which a reset may change.
    subject: Subject,
    queues: Queues,
    /// How often the device had to forget its requests.
    resets: u32,
}

/// The source of how far the queues are.
pub(crate) enum Queues {
    Qp(QpBacking),
    Srq(SrqBacking),
    /// The queues of a queue pair to which an agent posts. Nothing here knows how far they are, so they have
    /// requests in flight that may name anything, until the queue pair is back or gone.
    Away,
    /// No source: the object has requests in flight until it is gone. For tests.
    #[cfg(test)]
    Unknown,
}

/// What a region waits for that the kernel has refused to deregister.
const REFUSED: &str =
    "memory windows that are bound to it, or another holder of the file that uses its handle";

/// How far an object's queues were at some time.
struct Stand {
    flight: Arc<Flight>,
    /// The name that the object had.
    subject: Subject,
    resets: u32,
    queues: [Option<Progress>; 2],
    /// The names of the requests of each queue, for texts.
    kinds: [&'static str; 2],
}

/// How far the queues of a protection domain were that had requests in flight.
#[derive(Default)]
pub(crate) struct Stands(Vec<Stand>);

/// A region that the program has dropped. Dropping this deregisters it, or keeps its memory for good.
pub(crate) trait Parked: Send {
    /// Deregisters it, and drops its memory. Returns it if the kernel refuses, but may not do so later.
    fn release(self: Box<Self>) -> Option<Box<dyn Parked>>;

    /// Keeps it registered, and its memory, for good.
    fn leak(self: Box<Self>);
}

/// A region that is deregistered when the queues have passed the counts in `stands`. If there are none, the
/// kernel has refused it, and is asked again.
struct Waiting {
    stands: Stands,
    region: Box<dyn Parked>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What these locks protect is consistent after each store, so a panic elsewhere did no harm.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Queues {
    /// The send queue and the receive queue of a queue pair, or a shared receive queue.
    fn progress(&self) -> [Option<Progress>; 2] {
        match self {
            Self::Qp(qp) => [Some(qp.sends()), qp.receives()],
            Self::Srq(srq) => [Some(srq.progress()), None],
            Self::Away => [Some(Progress::UNKNOWN), None],
            #[cfg(test)]
            Self::Unknown => [Some(Progress::UNKNOWN), None],
        }
    }

    /// Whether one of the requests in flight of the first or second queue may contain this key.
    fn name(&self, queue: usize, in_flight: Progress, key: LocalKey) -> bool {
        match (self, queue) {
            (Self::Qp(qp), 0) => qp.sends_name(in_flight, key),
            (Self::Qp(qp), _) => qp.receives_name(in_flight, key),
            (Self::Srq(srq), _) => srq.names(in_flight, key),
            (Self::Away, _) => true,
            #[cfg(test)]
            (Self::Unknown, _) => true,
        }
    }

    /// The names of their requests, for texts.
    fn kinds(&self) -> [&'static str; 2] {
        match self {
            Self::Qp(_) => ["send", "receive"],
            Self::Srq(_) => ["receive", ""],
            Self::Away => ["request of its agent", ""],
            #[cfg(test)]
            Self::Unknown => ["receive", ""],
        }
    }
}

impl Flight {
    /// The device has forgotten the requests of the old queues; from here on `queues` are asked, which are
    /// those of `subject`.
    pub(crate) fn renew(&self, subject: Subject, queues: Queues) {
        let old = lock(&self.now).as_mut().map(|now| {
            now.resets = now.resets.wrapping_add(1);
            now.subject = subject;
            mem::replace(&mut now.queues, queues)
        });
        // Without the lock: buffers may go back to an allocator.
        drop(old);
    }

    /// Whether the device has released the queues.
    pub(crate) fn is_over(&self) -> bool {
        lock(&self.now).is_none()
    }

    /// How far its queues are; `None` if no request in flight may contain this key.
    fn stand(self: &Arc<Self>, key: LocalKey) -> Option<Stand> {
        let now = lock(&self.now);
        let Now {
            subject,
            queues,
            resets,
        } = now.as_ref()?;
        let kinds = queues.kinds();
        let mut stands = queues.progress();
        for (at, stand) in stands.iter_mut().enumerate() {
            let named = |stand: &Progress| stand.in_flight() > 0 && queues.name(at, *stand, key);
            *stand = stand.filter(named);
        }
        // Acquire: a request that was not found in the ring has finished. Perhaps another one was already
        // written over it, which happens after its end. Pairs with the poller's release of the finished
        // count.
        fence(Ordering::Acquire);
        stands.iter().any(Option::is_some).then(|| Stand {
            flight: Arc::clone(self),
            subject: subject.clone(),
            resets: *resets,
            queues: stands,
            kinds,
        })
    }
}

impl Stand {
    /// Whether all that was in flight is finished or forgotten. The next call asks only about the rest.
    fn is_passed(&mut self) -> bool {
        let now = lock(&self.flight.now);
        let Some(Now { queues, resets, .. }) = now.as_ref() else {
            return true;
        };
        if *resets != self.resets {
            return true;
        }
        for (now, stand) in queues.progress().into_iter().zip(&mut self.queues) {
            if let (Some(now), Some(then)) = (now, *stand) {
                *stand = (!now.has_passed(then)).then(|| now.left_of(then));
            }
        }
        self.queues.iter().all(Option::is_none)
    }
}

/// "QP 17: 3 sends, 1 receive; SRQ 2: 5 receives"
impl fmt::Display for Stands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for stand in &self.0 {
            write!(f, "{separator}{}: ", stand.subject)?;
            separator = "; ";
            let mut comma = "";
            for (queue, kind) in stand.queues.iter().zip(stand.kinds) {
                let count = queue.map_or(0, Progress::in_flight);
                if count > 0 {
                    let plural = if count == 1 { "" } else { "s" };
                    write!(f, "{comma}{count} {kind}{plural}")?;
                    comma = ", ";
                }
            }
        }
        Ok(())
    }
}

impl Stands {
    /// Nothing was in flight.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether all that was in flight is finished or forgotten.
    pub(crate) fn are_passed(&mut self) -> bool {
        self.0.retain_mut(|stand| !stand.is_passed());
        self.0.is_empty()
    }
}

impl Flights {
    /// An object's queues: they count until [`end`](Self::end).
    pub(crate) fn begin(&self, subject: Subject, queues: Queues) -> Arc<Flight> {
        let now = Mutex::new(Some(Now {
            subject,
            queues,
            resets: 0,
        }));
        let mut all = lock(&self.queues);
        let entry = all.vacant_entry();
        let place = entry.key();
        let flight = Arc::new(Flight { place, now });
        entry.insert(Arc::clone(&flight));
        flight
    }

    /// The device has released an object and its queues.
    pub(crate) fn end(&self, flight: &Flight) {
        let gone = lock(&flight.now).take();
        // Only once: afterwards the place may belong to another object.
        if gone.is_some() {
            lock(&self.queues).try_remove(flight.place);
        }
        // Without a lock: buffers may go back to an allocator.
        drop(gone);
        self.reap();
    }

    /// How far the queues are now that have requests in flight which may contain this key.
    pub(crate) fn stands(&self, key: LocalKey) -> Stands {
        let queues = lock(&self.queues);
        let stand = |(_, flight): (usize, &Arc<Flight>)| flight.stand(key);
        Stands(queues.iter().filter_map(stand).collect())
    }

    /// Drops `region` when the queues have passed these counts.
    pub(crate) fn wait(&self, stands: Stands, region: Box<dyn Parked>) {
        let mut waiting = lock(&self.waiting);
        waiting.push(Waiting { stands, region });
        self.count.store(waiting.len(), Ordering::Relaxed);
        drop(waiting);
        // A queue that was reset or has ended since `stands` was taken found nothing to drop, so this looks
        // now. One that is reset or ends later finds the region: it takes its lock after the count was
        // increased.
        self.reap();
    }

    /// Drops the regions that need not wait any more, and returns how many still do.
    pub(crate) fn reap(&self) -> usize {
        if self.count.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let mut waiting = lock(&self.waiting);
        let gone: Vec<_> = waiting
            .extract_if(.., |waiting| waiting.stands.are_passed())
            .collect();
        let left = waiting.len();
        self.count.store(left, Ordering::Relaxed);
        drop(waiting);
        // Without the lock: deregistering is a system call, and the memory may be of any type.
        let refused: Vec<_> = gone
            .into_iter()
            .filter_map(|waiting| waiting.region.release())
            .collect();
        left + self.keep(refused)
    }

    /// Has regions that the kernel refuses wait for the next look. Returns how many they are.
    fn keep(&self, refused: Vec<Box<dyn Parked>>) -> usize {
        let count = refused.len();
        if count > 0 {
            let mut waiting = lock(&self.waiting);
            waiting.extend(refused.into_iter().map(|region| Waiting {
                stands: Stands::default(),
                region,
            }));
            self.count.store(waiting.len(), Ordering::Relaxed);
        }
        count
    }

    /// What the remaining regions wait for.
    pub(crate) fn waiting_for(&self) -> String {
        let mut text = String::new();
        for Waiting { stands, .. } in &*lock(&self.waiting) {
            let separator = if text.is_empty() { "" } else { "; " };
            // Writing to a string does not fail.
            let _ = match stands.is_empty() {
                true => write!(text, "{separator}{REFUSED}"),
                false => write!(text, "{separator}{stands}"),
            };
        }
        text
    }
}

impl Drop for Flights {
    fn drop(&mut self) {
        let waiting = self
            .waiting
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        let (mut gone, mut kept) = (Vec::new(), Vec::new());
        for mut waiting in mem::take(waiting) {
            match waiting.stands.are_passed() {
                true => gone.push(waiting),
                // The kernel has kept a queue that still uses the region. It is leaked before anything else
                // happens: destructors of memory and subscribers of traces may panic.
                false => {
                    waiting.region.leak();
                    kept.push(waiting.stands);
                }
            }
        }
        drop(gone);
        for stands in kept {
            tracing::warn!(target: "uverbs", "an MR waited for {stands}; its memory is leaked");
        }
    }
}

impl fmt::Debug for Flights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flights")
            .field("queues", &lock(&self.queues).len())
            .field("waiting", &self.count)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    /// What has become of a region.
    #[derive(Debug, Default)]
    struct End {
        is_deregistered: AtomicBool,
        is_leaked: AtomicBool,
        /// How often the kernel refuses before it is deregistered.
        refusals: AtomicUsize,
    }

    impl End {
        fn told(&self) -> (bool, bool) {
            let told = |it: &AtomicBool| it.load(Ordering::Relaxed);
            (told(&self.is_deregistered), told(&self.is_leaked))
        }
    }

    struct Region(Arc<End>);

    impl Parked for Region {
        fn release(self: Box<Self>) -> Option<Box<dyn Parked>> {
            let times = self.0.refusals.load(Ordering::Relaxed);
            if times > 0 {
                self.0.refusals.store(times - 1, Ordering::Relaxed);
                return Some(self);
            }
            None
        }

        fn leak(self: Box<Self>) {
            self.0.is_leaked.store(true, Ordering::Relaxed);
            mem::forget(self);
        }
    }

    impl Drop for Region {
        fn drop(&mut self) {
            self.0.is_deregistered.store(true, Ordering::Relaxed);
        }
    }

    /// A region that waits for an object whose queues cannot say how far they are.
    fn waiting() -> (Flights, Arc<Flight>, Arc<End>) {
        let flights = Flights::default();
        let flight = flights.begin(Subject::numbered("QP", 7), Queues::Unknown);
        let end = Arc::new(End::default());
        let stands = flights.stands(LocalKey(3));
        assert!(!stands.is_empty());
        flights.wait(stands, Box::new(Region(Arc::clone(&end))));
        assert_eq!((flights.reap(), end.told()), (1, (false, false)));
        (flights, flight, end)
    }

    /// Would catch a queue pair that is told by the number that it had before a reset.
    #[test]
    fn a_reset_may_change_the_name() {
        let flights = Flights::default();
        let flight = flights.begin(Subject::numbered("QP", 7), Queues::Unknown);
        let before = flights.stands(LocalKey(3));
        flight.renew(Subject::numbered("QP", 8), Queues::Unknown);
        let after = flights.stands(LocalKey(3));
        assert_eq!(
            [before.to_string(), after.to_string()],
            ["QP 7: 1 receive", "QP 8: 1 receive"]
        );
    }

    /// Would catch a region that is deregistered, or whose memory is freed, although the kernel has neither
    /// destroyed nor reset an object that uses it.
    #[test]
    fn an_object_that_stays_keeps_its_regions() {
        let (flights, flight, end) = waiting();
        drop(flight);
        assert_eq!(flights.reap(), 1);
        drop(flights);
        assert_eq!(end.told(), (false, true));
    }

    /// Would catch a region that is registered for as long as the context lives because the kernel has
    /// refused once.
    #[test]
    fn what_is_refused_is_asked_for_again() {
        let (flights, flight, end) = waiting();
        end.refusals.store(2, Ordering::Relaxed);
        flights.end(&flight);
        assert_eq!(end.told(), (false, false));
        let text = flights.waiting_for();
        assert!(text.contains("memory windows"), "{text}");
        assert_eq!((flights.reap(), end.told()), (1, (false, false)));
        assert_eq!((flights.reap(), end.told()), (0, (true, false)));
    }

    /// Would catch a region that still waits for an object that is gone, or whose requests were forgotten.
    #[test]
    fn an_end_and_a_reset_let_regions_go() {
        let (flights, flight, end) = waiting();
        flights.end(&flight);
        assert_eq!((flights.reap(), end.told()), (0, (true, false)));
        let (flights, flight, end) = waiting();
        flight.renew(Subject::numbered("QP", 8), Queues::Unknown);
        assert_eq!((flights.reap(), end.told()), (0, (true, false)));
        drop(flights);
        assert_eq!(end.told(), (true, false));
    }
}
