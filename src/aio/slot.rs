//! A slot: one operation from when it is posted until its result has been taken.
//!
//! The slot keeps the buffer as long as the device may have it, whatever becomes of the future. Four parties
//! touch it, each through the state alone: who posts, who awaits, who takes completions, and who reclaims.
//!
//! ```text
//!   free ──fill──▶ submitted ◀──poll──▶ waiting
//!    ▲                │   │                │
//!    │              drop  └──completion────┤
//!    │                ▼                    ▼
//!    ├──completion─ cancelled          completing ──▶ done
//!    └───────────────────────────poll, drop────────────┘
//! ```

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Waker};

use super::cargo::Cargo;
use super::error::{Completed, OpError};

/// How an operation ended.
pub(super) type Ending = Result<Completed, OpError>;

/// What a slot is in. The state is this, and above it the generation.
type Phase = u64;

/// Of nobody, or of whoever took its number from the free ones.
const FREE: Phase = 0;
/// The device may have the buffer. The place of the waker is the future's.
const SUBMITTED: Phase = 1;
/// As submitted, and the waker is in its place, for whoever changes the state next.
const WAITING: Phase = 2;
/// The future is gone. The buffer goes back to its pool with the completion.
const CANCELLED: Phase = 3;
/// The completion is being noted, which takes a few instructions.
const COMPLETING: Phase = 4;
/// The device has done with the buffer, and the result is there.
const DONE: Phase = 5;
/// As done, and somebody else has taken the buffer. The slot stays with the future.
const RECLAIMED: Phase = 6;

const PHASE: u64 = 0xff;

/// Bits of a generation: as many as fit into a request's id with the rest.
pub(super) const GENERATION_BITS: u32 = 24;
const GENERATIONS: u32 = 1 << GENERATION_BITS;

/// A slot.
pub(super) struct Slot {
    state: AtomicU64,
    /// Of whoever changed the state to free, cancelled by completion, or done by taking.
    cargo: UnsafeCell<Cargo>,
    /// Written by who is completing, read by who takes what is done.
    ending: UnsafeCell<Ending>,
    waker: UnsafeCell<Option<Waker>>,
    /// The slot before it in a batch that is not rung yet.
    pub(super) before: AtomicU32,
}

// SAFETY: what is in the cells is `Send`, and each is touched only by who has the slot in a state that gives it
// the cell, which it got by an acquire, and gives on by a release.
unsafe impl Sync for Slot {}

/// What a completion leads to.
pub(super) enum After {
    /// Nothing: the operation is not there any more, or nobody waits.
    Nothing,
    /// A task is to be woken.
    Wake(Waker),
    /// Nobody wants the result: the buffer goes back to its pool, and the slot is free.
    Release(Cargo),
}

/// What a look at a slot finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// It is under way, and the task is woken.
    Pending,
    /// It is done, and the slot is free: the result is the caller's to [`unload`](Slot::unload).
    Mine,
    /// Somebody has reclaimed it.
    Gone,
}

fn state(generation: u32, phase: Phase) -> u64 {
    u64::from(generation) << 8 | phase
}

impl Slot {
    pub(super) fn new() -> Self {
        Self {
            state: AtomicU64::new(state(0, FREE)),
            cargo: UnsafeCell::new(Cargo::None),
            ending: UnsafeCell::new(Err(OpError::Gone)),
            waker: UnsafeCell::new(None),
            before: AtomicU32::new(u32::MAX),
        }
    }

    /// The generation that the slot's next operation has. Only for who has taken the slot's number from the
    /// free ones.
    #[inline]
    pub(super) fn generation(&self) -> u32 {
        // Relaxed: the free list orders it behind who gave the number back.
        (self.state.load(Ordering::Relaxed) >> 8) as u32
    }

    /// Puts a buffer in.
    ///
    /// # Safety
    ///
    /// The caller has taken the slot's number from the free ones.
    #[inline]
    pub(super) unsafe fn fill(&self, cargo: Cargo) {
        // SAFETY: a free slot's cells are of who has its number.
        unsafe { *self.cargo.get() = cargo };
        // Release: with the acquire of who completes it.
        let submitted = state(self.generation(), SUBMITTED);
        self.state.store(submitted, Ordering::Release);
    }

    /// Changes the phase of this generation.
    #[inline]
    fn change(&self, generation: u32, from: Phase, to: Phase) -> bool {
        let (from, to) = (state(generation, from), state(generation, to));
        // Acquire and release: the cells go from hand to hand with the state.
        self.state
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Frees the slot, whose buffer becomes the caller's: with the generation that is next.
    #[inline]
    fn free(&self, generation: u32, from: Phase) -> bool {
        let next = state((generation + 1) % GENERATIONS, FREE);
        self.state
            .compare_exchange(
                state(generation, from),
                next,
                Ordering::AcqRel,
                Ordering::Relaxed,
            )
            .is_ok()
    }

    /// The phase, if the slot is still of this generation.
    #[inline]
    fn phase(&self, generation: u32) -> Option<Phase> {
        let now = self.state.load(Ordering::Acquire);
        (now >> 8 == u64::from(generation)).then_some(now & PHASE)
    }

    /// Notes how the operation ended: the device has done with the buffer.
    ///
    /// # Safety
    ///
    /// The device has done with the request, or never got it. Nobody else calls this for the same slot
    /// meanwhile.
    #[inline]
    pub(super) unsafe fn complete(
        &self,
        generation: u32,
        ending: impl FnOnce() -> Ending,
    ) -> After {
        loop {
            match self.phase(generation) {
                Some(from @ (SUBMITTED | WAITING)) => {
                    if !self.change(generation, from, COMPLETING) {
                        continue;
                    }
                    // SAFETY: of who is completing.
                    unsafe { *self.ending.get() = ending() };
                    let waker = match from {
                        // SAFETY: it left the state waiting by this hand.
                        WAITING => unsafe { (*self.waker.get()).take() },
                        _ => None,
                    };
                    // Release: with the acquire of who takes it.
                    self.state.store(state(generation, DONE), Ordering::Release);
                    return waker.map_or(After::Nothing, After::Wake);
                }
                Some(CANCELLED) => {
                    if self.free(generation, CANCELLED) {
                        // SAFETY: it left the state cancelled by this hand, and nobody else knows it before its
                        // number is given back.
                        return After::Release(unsafe { self.unload() });
                    }
                }
                _ => return After::Nothing,
            }
        }
    }

    /// Whether the result is there; if it is not yet, the task is woken with it.
    #[inline]
    pub(super) fn poll(&self, generation: u32, cx: &mut Context<'_>) -> Look {
        loop {
            match self.phase(generation) {
                Some(DONE) => {
                    if self.free(generation, DONE) {
                        return Look::Mine;
                    }
                }
                Some(WAITING) => {
                    self.change(generation, WAITING, SUBMITTED);
                }
                Some(SUBMITTED) => {
                    // SAFETY: the waker's place is the future's, of which there is one.
                    let place = unsafe { &mut *self.waker.get() };
                    match place {
                        Some(waker) => waker.clone_from(cx.waker()),
                        None => *place = Some(cx.waker().clone()),
                    }
                    if self.change(generation, SUBMITTED, WAITING) {
                        return Look::Pending;
                    }
                    // It completes meanwhile, and who does that saw no waker.
                }
                Some(COMPLETING) => {
                    // The result is there in a moment.
                    cx.waker().wake_by_ref();
                    return Look::Pending;
                }
                Some(RECLAIMED) => {
                    self.free(generation, RECLAIMED);
                    return Look::Gone;
                }
                _ => return Look::Gone,
            }
        }
    }

    /// Takes the buffer of what is done, from whoever has not. The slot stays theirs.
    pub(super) fn reclaim(&self) -> Option<Cargo> {
        let now = self.state.load(Ordering::Acquire);
        let generation = (now >> 8) as u32;
        if now & PHASE != DONE || !self.change(generation, DONE, COMPLETING) {
            return None;
        }
        // SAFETY: it left the state done by this hand.
        let cargo = unsafe { std::mem::take(&mut *self.cargo.get()) };
        self.state
            .store(state(generation, RECLAIMED), Ordering::Release);
        Some(cargo)
    }

    /// The future goes. The buffer comes out if the device has done with it, and the slot is free then; else it
    /// stays until the completion.
    pub(super) fn cancel(&self, generation: u32) -> Option<Cargo> {
        loop {
            match self.phase(generation) {
                Some(DONE) => {
                    if self.free(generation, DONE) {
                        // SAFETY: it left the state done by this hand, and nobody else knows it before its number
                        // is given back.
                        return Some(unsafe { self.unload() });
                    }
                }
                Some(WAITING) => {
                    if self.change(generation, WAITING, SUBMITTED) {
                        // SAFETY: the waker's place is the future's.
                        drop(unsafe { (*self.waker.get()).take() });
                    }
                }
                Some(SUBMITTED) => {
                    if self.change(generation, SUBMITTED, CANCELLED) {
                        return None;
                    }
                }
                // A few instructions of another thread.
                Some(COMPLETING) => std::thread::yield_now(),
                Some(RECLAIMED) => {
                    self.free(generation, RECLAIMED);
                    return Some(Cargo::None);
                }
                _ => return None,
            }
        }
    }

    /// Takes the waker of who waits, so that it looks again. Not while somebody completes it.
    pub(super) fn rouse(&self) -> Option<Waker> {
        let now = self.state.load(Ordering::Acquire);
        let generation = (now >> 8) as u32;
        // Not by way of submitted: the future might put another in meanwhile.
        if now & PHASE != WAITING || !self.change(generation, WAITING, COMPLETING) {
            return None;
        }
        // SAFETY: it left the state waiting by this hand.
        let waker = unsafe { (*self.waker.get()).take() };
        self.state
            .store(state(generation, SUBMITTED), Ordering::Release);
        waker
    }

    /// Its generation, if it has a buffer that the device may have.
    pub(super) fn in_flight(&self) -> Option<u32> {
        let now = self.state.load(Ordering::Acquire);
        let in_flight = !matches!(now & PHASE, FREE | DONE | RECLAIMED);
        in_flight.then_some((now >> 8) as u32)
    }

    /// How the operation ended that was found done.
    ///
    /// # Safety
    ///
    /// The slot is free, and its number has not been given back.
    #[inline]
    pub(super) unsafe fn ending(&self) -> &Ending {
        // SAFETY: by this function's contract nobody writes it.
        unsafe { &*self.ending.get() }
    }

    /// Takes the buffer.
    ///
    /// # Safety
    ///
    /// The slot is free, and its number has not been given back. There is no reference of
    /// [`ending`](Self::ending) any more when it is.
    #[inline]
    pub(super) unsafe fn unload(&self) -> Cargo {
        // SAFETY: by this function's contract.
        unsafe {
            // One that came too late.
            *self.waker.get() = None;
            std::mem::take(&mut *self.cargo.get())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn filled() -> (Slot, u32) {
        let slot = Slot::new();
        let generation = slot.generation();
        // SAFETY: nobody else has it.
        unsafe { slot.fill(Cargo::None) };
        (slot, generation)
    }

    fn complete(slot: &Slot, generation: u32) -> After {
        // SAFETY: there is no device, and one thread that completes.
        unsafe { slot.complete(generation, || Ok(Completed::default())) }
    }

    #[test]
    fn a_result_is_taken_once() {
        let (slot, generation) = filled();
        assert!(matches!(complete(&slot, generation), After::Nothing));
        assert!(
            matches!(complete(&slot, generation), After::Nothing),
            "a completion twice"
        );
        let mut cx = Context::from_waker(Waker::noop());
        assert_eq!(slot.poll(generation, &mut cx), Look::Mine);
        // SAFETY: it was found done, and nobody else has it.
        assert!(unsafe { slot.ending() }.is_ok());
        // SAFETY: as above.
        drop(unsafe { slot.unload() });
        assert_eq!(slot.poll(generation, &mut cx), Look::Gone);
        assert!(slot.cancel(generation).is_none());
        assert_eq!(slot.generation(), generation + 1);
    }

    #[test]
    fn who_waits_last_is_woken() {
        let (slot, generation) = filled();
        let counts = [Arc::new(Count::default()), Arc::new(Count::default())];
        for count in &counts {
            let waker = Waker::from(Arc::clone(count));
            let mut cx = Context::from_waker(&waker);
            assert_eq!(slot.poll(generation, &mut cx), Look::Pending);
        }
        match complete(&slot, generation) {
            After::Wake(waker) => waker.wake(),
            _ => panic!("nobody is woken"),
        }
        assert_eq!(counts.map(|count| count.0.load(Ordering::Relaxed)), [0, 1]);
    }

    #[test]
    fn what_is_cancelled_keeps_its_slot_until_the_completion() {
        let (slot, generation) = filled();
        assert!(slot.cancel(generation).is_none());
        assert_eq!(slot.in_flight(), Some(generation));
        assert!(matches!(complete(&slot, generation), After::Release(_)));
        assert_eq!(slot.in_flight(), None);
        // A completion of before is not one of the next operation.
        // SAFETY: nobody else has it.
        unsafe { slot.fill(Cargo::None) };
        assert!(matches!(complete(&slot, generation), After::Nothing));
        assert_eq!(slot.in_flight(), Some(generation + 1));
    }

    #[test]
    fn who_is_roused_may_wait_again() {
        let (slot, generation) = filled();
        let mut cx = Context::from_waker(Waker::noop());
        assert_eq!(slot.poll(generation, &mut cx), Look::Pending);
        assert!(slot.rouse().is_some());
        assert!(slot.rouse().is_none());
        assert_eq!(slot.poll(generation, &mut cx), Look::Pending);
        assert!(matches!(complete(&slot, generation), After::Wake(_)));
        assert!(slot.cancel(generation).is_some());
    }

    #[test]
    fn what_is_reclaimed_leaves_the_slot_with_its_future() {
        let (slot, generation) = filled();
        assert!(slot.reclaim().is_none(), "it is in flight");
        complete(&slot, generation);
        assert!(slot.reclaim().is_some());
        assert!(slot.reclaim().is_none());
        assert_eq!(slot.generation(), generation);
        let mut cx = Context::from_waker(Waker::noop());
        assert_eq!(slot.poll(generation, &mut cx), Look::Gone);
        assert_eq!(slot.generation(), generation + 1);
    }

    #[test]
    fn generations_go_round() {
        let slot = Slot::new();
        slot.state
            .store(state(GENERATIONS - 1, FREE), Ordering::Relaxed);
        // SAFETY: nobody else has it.
        unsafe { slot.fill(Cargo::None) };
        assert!(matches!(complete(&slot, GENERATIONS - 1), After::Nothing));
        assert!(slot.cancel(GENERATIONS - 1).is_some());
        assert_eq!(slot.generation(), 0);
    }

    /// Would catch a result that nobody is woken for, or that two take: one thread completes, one awaits and
    /// goes now and then, with a slot that is used over and over.
    #[test]
    fn threads_agree() {
        let slot = Slot::new();
        let (posts, completions) = std::sync::mpsc::channel::<u32>();
        let freed = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for generation in completions {
                    match complete(&slot, generation) {
                        After::Nothing => {}
                        After::Wake(waker) => waker.wake(),
                        After::Release(_) => {
                            freed.fetch_add(1, Ordering::Release);
                        }
                    }
                }
            });
            let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
            let mut cancelled = 0;
            for round in 0..20_000 {
                let generation = slot.generation();
                // SAFETY: the slot is free, and this thread alone takes it.
                unsafe { slot.fill(Cargo::None) };
                posts.send(generation).unwrap();
                let mut cx = Context::from_waker(&waker);
                let mut polls = 0;
                loop {
                    if round % 3 == 0 && polls == round % 2 {
                        if slot.cancel(generation).is_none() {
                            cancelled += 1;
                            while freed.load(Ordering::Acquire) < cancelled {
                                std::thread::yield_now();
                            }
                        }
                        break;
                    }
                    polls += 1;
                    match slot.poll(generation, &mut cx) {
                        Look::Mine => {
                            // SAFETY: it was found done, and this thread alone takes it.
                            drop(unsafe { slot.unload() });
                            break;
                        }
                        Look::Pending => std::thread::park(),
                        Look::Gone => panic!("nobody has reclaimed it"),
                    }
                }
            }
            drop(posts);
        });
    }

    struct Unpark(std::thread::Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
}
