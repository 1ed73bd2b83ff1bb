//! A slot: one operation from when it is posted until its result has been taken.
//!
//! The slot keeps the buffer as long as the device may have it, whatever becomes of the future. Four parties
//! access it, each only by way of the state: the poster, the future, the thread that takes completions, and
//! the one that reclaims.
//!
//! ```text
//!   free ──fill──▶ submitted ◀────poll────▶ waiting
//!    ▲                │   │                    │
//!    │              drop  └─completion─▶ done ◀┤ completing
//!    │                ▼                   │
//!    │            cancelled               │
//!    │            completion              │
//!    │                ▼                   │
//!    ├────unload─ released                │
//!    └────────────────────────poll, drop──┘
//! ```

use std::task::{Context, Waker};

use super::sync::{AtomicU32, AtomicU64, Ordering, Place, yield_now};

/// The phase of a slot. The slot's state consists of this and, above it, the slot's key.
type Phase = u64;

/// It has no operation: it is in the free list, or with the poster that took it out.
const FREE: Phase = 0;
/// The device may have the buffer. The place of the waker belongs to the future.
const SUBMITTED: Phase = 1;
/// Submitted, and the waker is in its place. The next party that changes the state takes the waker.
const WAITING: Phase = 2;
/// The future is gone. The buffer goes back to its pool with the completion.
const CANCELLED: Phase = 3;
/// One party works on the slot, for a few instructions.
const BUSY: Phase = 4;
/// The operation has succeeded, and there is no more to report.
const DONE: Phase = 5;
/// The operation has ended, and the place `ending` says how.
const TOLD: Phase = 6;
/// Done, and [`Slot::reclaim`] has taken the buffer. The slot still belongs to the future.
const RECLAIMED: Phase = 7;
/// Cancelled and done: the buffer is on its way to its pool, and counts as in flight until it is there.
const RELEASED: Phase = 8;

/// Bits below the key.
pub(super) const PHASE_BITS: u32 = 4;
const PHASE: u64 = (1 << PHASE_BITS) - 1;

/// The low bits of a key, which name the slot and never change. The bits above them count its operations.
pub(super) const NAME_BITS: u32 = 44;

/// The difference between a slot's key and its next key. The count wraps.
pub(super) const NEXT: u64 = 1 << NAME_BITS;

/// The state of a slot with this key in this phase.
#[inline(always)]
fn in_phase(key: u64, phase: Phase) -> u64 {
    // A sum: one instruction on x86, where setting bits takes two.
    key.wrapping_add(phase)
}

/// A slot for an operation with a buffer `B`. `E` describes how the operation ended.
#[repr(align(64))]
pub(super) struct Slot<B, E: Copy> {
    state: AtomicU64,
    /// Present from `fill` to `unload`. It belongs to the party that changed the state: to `RELEASED` by a
    /// completion, or from `DONE` to `FREE` by taking the result.
    cargo: Place<B>,
    /// Present in the phase `WAITING`.
    waker: Place<Waker>,
    /// Present in the phase `TOLD`. Before that the place belongs to the party that completes, and then to
    /// the one that takes the result.
    ending: Place<E>,
    /// The index of the next free slot, while the slot is free.
    pub(super) link: AtomicU32,
    /// The number of the batch that its last operation in a batch was in; see the table.
    pub(super) batch: AtomicU64,
}

/// What the caller of [`Slot::succeed`] has to do.
pub(super) enum Success {
    /// Wake this task.
    Wake(Waker),
    /// Nothing: no task waits.
    Nobody,
    /// The success is not noted yet: call [`Slot::complete`].
    Closer,
}

/// What the caller has to do after a completion.
pub(super) enum After {
    /// Nothing: the slot no longer has such an operation, or no task waits.
    Nothing,
    /// Wake this task.
    Wake(Waker),
    /// The result is not wanted: [unload](Slot::unload) the buffer, and [vacate](Slot::vacate) the slot when
    /// the buffer is in its pool.
    Release,
}

/// The result of a first look at a slot.
pub(super) enum Glance {
    /// As [`Look::Done`].
    Done,
    /// It is under way, and no task waits.
    UnderWay,
    /// Something else: call [`Slot::poll`].
    Other,
}

/// The result of a look at a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// It is under way. After `poll` the task will be woken; after `cancel` the buffer stays until the
    /// operation is done.
    Pending,
    /// It is done, and the slot is free: the caller must [`unload`](Slot::unload) the buffer.
    Done,
    /// It is done, and the slot is free: [`Slot::ending`] says how it ended, and the buffer belongs to the
    /// caller.
    Told,
    /// Its buffer was reclaimed. The slot is free.
    Gone,
    /// The slot has another key by now.
    Other,
}

impl<B, E: Copy> Slot<B, E> {
    /// A free slot. `key` is the key of its first operation.
    pub(super) fn new(key: u64) -> Self {
        debug_assert!(key & PHASE == 0);
        Self {
            state: AtomicU64::new(key),
            cargo: Place::empty(),
            waker: Place::empty(),
            ending: Place::empty(),
            link: AtomicU32::default(),
            batch: AtomicU64::default(),
        }
    }

    /// The key of the slot's next operation: its lowest [`PHASE_BITS`] bits are zero. Only for the poster
    /// that has taken the slot out of the free list.
    #[inline(always)]
    pub(super) fn key(&self) -> u64 {
        // Relaxed: the free list orders this after the party that gave the slot back.
        self.state.load(Ordering::Relaxed)
    }

    /// Puts a buffer in.
    ///
    /// # Safety
    /// The caller has taken the slot out of the free list, and `key` is the slot's.
    #[inline(always)]
    pub(super) unsafe fn fill(&self, key: u64, cargo: B) {
        // SAFETY: the places of a free slot belong to the poster that took it.
        unsafe { self.cargo.put(cargo) };
        // Release: pairs with the acquire of the party that completes it.
        self.state
            .store(in_phase(key, SUBMITTED), Ordering::Release);
    }

    /// Lends the buffer that was put in.
    ///
    /// # Safety
    /// The caller has filled it, and the reference ends before the request is posted and before its future
    /// exists.
    #[inline(always)]
    pub(super) unsafe fn cargo(&self) -> &B {
        // SAFETY: by this function's contract the buffer is there, and no other party can take it.
        unsafe { self.cargo.lend() }
    }

    /// Changes the phase of this key.
    #[inline(always)]
    fn change(&self, key: u64, from: Phase, to: Phase) -> bool {
        let (from, to) = (in_phase(key, from), in_phase(key, to));
        // Acquire and release: the places pass from one party to the next together with the state.
        self.state
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Frees the slot, which gets its next key. The buffer then belongs to the caller.
    #[inline(always)]
    fn free(&self, key: u64, from: Phase) -> bool {
        let next = key.wrapping_add(NEXT);
        self.state
            .compare_exchange(
                in_phase(key, from),
                next,
                Ordering::AcqRel,
                Ordering::Relaxed,
            )
            .is_ok()
    }

    /// The phase, if the slot still has this key; otherwise a value that is no phase.
    #[inline(always)]
    fn phase(&self, key: u64) -> Phase {
        self.state.load(Ordering::Acquire) ^ key
    }

    /// Notes that the operation has succeeded, if a task waits for it, or no task waits yet. In all other
    /// phases the caller must call [`complete`](Self::complete).
    ///
    /// # Safety
    ///
    /// As for `complete`.
    #[inline(always)]
    pub(super) unsafe fn succeed(&self, key: u64) -> Success {
        // Most often a task waits, so this is tried without loading the state first.
        if self.change(key, WAITING, BUSY) {
            // SAFETY: this call took the slot out of the phase `WAITING`, so the waker is its own.
            let waker = unsafe { self.waker.take() };
            // Release: pairs with the acquire of the future that takes the result.
            self.state.store(in_phase(key, DONE), Ordering::Release);
            return Success::Wake(waker);
        }
        match self.change(key, SUBMITTED, DONE) {
            true => Success::Nobody,
            false => Success::Closer,
        }
    }

    /// Notes that the operation has ended and that the device has finished with the buffer. `ending` is
    /// `None` for a success without more to report.
    ///
    /// # Safety
    /// The device has finished with the request, or never got it. No other thread calls this for the same
    /// slot meanwhile.
    #[inline(never)]
    pub(super) unsafe fn complete(&self, key: u64, ending: Option<E>) -> After {
        let done = if ending.is_some() { TOLD } else { DONE };
        let tell = || {
            if let Some(ending) = ending {
                // SAFETY: the loop below has found the operation under way, and then the place belongs to the
                // completing party.
                unsafe { self.ending.put(ending) };
            }
        };
        loop {
            match self.phase(key) {
                WAITING => {
                    if !self.change(key, WAITING, BUSY) {
                        continue;
                    }
                    // SAFETY: this call took the slot out of the phase `WAITING`, so the waker is its own.
                    let waker = unsafe { self.waker.take() };
                    tell();
                    // Release: pairs with the acquire of the party that takes the result.
                    self.state.store(in_phase(key, done), Ordering::Release);
                    return After::Wake(waker);
                }
                SUBMITTED => {
                    tell();
                    if self.change(key, SUBMITTED, done) {
                        return After::Nothing;
                    }
                }
                CANCELLED => {
                    if self.change(key, CANCELLED, RELEASED) {
                        return After::Release;
                    }
                }
                // A few instructions of another thread, which rouses the task or reclaims the buffer.
                BUSY => yield_now(),
                _ => return After::Nothing,
            }
        }
    }

    /// Looks whether the result is there.
    #[inline(always)]
    pub(super) fn glance(&self, key: u64) -> Glance {
        let now = self.state.load(Ordering::Acquire);
        if now == in_phase(key, SUBMITTED) {
            Glance::UnderWay
        } else if now == in_phase(key, DONE) && self.free(key, DONE) {
            Glance::Done
        } else {
            // Another thread may be reclaiming it at this moment.
            Glance::Other
        }
    }

    /// Leaves a waker. False if the operation completes meanwhile: the completing party saw no waker. The
    /// phase was [submitted](Glance::UnderWay), and the caller has the future.
    #[inline(always)]
    pub(super) fn wait(&self, key: u64, waker: Waker) -> bool {
        // SAFETY: the place of the waker belongs to the only future, and is empty in the phase `SUBMITTED`.
        unsafe { self.waker.put(waker) };
        if self.change(key, SUBMITTED, WAITING) {
            return true;
        }
        // SAFETY: as above; it was just put in.
        drop(unsafe { self.waker.take() });
        false
    }

    /// Whether the result is there. If not, the task will be woken when it is.
    #[cold]
    #[inline(never)]
    pub(super) fn poll(&self, key: u64, cx: &mut Context<'_>) -> Look {
        loop {
            match self.phase(key) {
                DONE => {
                    if self.free(key, DONE) {
                        return Look::Done;
                    }
                }
                TOLD => {
                    if self.free(key, TOLD) {
                        return Look::Told;
                    }
                }
                WAITING => {
                    if !self.change(key, WAITING, SUBMITTED) {
                        continue;
                    }
                    // SAFETY: this call took the slot out of the phase `WAITING`, so the waker is its own.
                    let before = unsafe { self.waker.take() };
                    let waker = match before.will_wake(cx.waker()) {
                        true => before,
                        false => cx.waker().clone(),
                    };
                    if self.wait(key, waker) {
                        return Look::Pending;
                    }
                }
                SUBMITTED => {
                    if self.wait(key, cx.waker().clone()) {
                        return Look::Pending;
                    }
                }
                BUSY => {
                    // The result will be there in a moment.
                    cx.waker().wake_by_ref();
                    return Look::Pending;
                }
                RECLAIMED => {
                    self.free(key, RECLAIMED);
                    return Look::Gone;
                }
                _ => return Look::Other,
            }
        }
    }

    /// Takes the buffer of an operation that is done and whose future has not taken it. The slot still
    /// belongs to the future.
    pub(super) fn reclaim(&self) -> Option<B> {
        let now = self.state.load(Ordering::Acquire);
        let (key, phase) = (now & !PHASE, now & PHASE);
        if !matches!(phase, DONE | TOLD) || !self.change(key, phase, BUSY) {
            return None;
        }
        // SAFETY: this call took the slot out of the phase `DONE`, so the buffer is its own.
        let cargo = unsafe { self.cargo.take() };
        // Release: pairs with the acquire of the future.
        self.state
            .store(in_phase(key, RECLAIMED), Ordering::Release);
        Some(cargo)
    }

    /// The future is dropped. If the device has finished with the buffer, the slot becomes free, as by
    /// [`poll`](Self::poll); otherwise the buffer stays until the completion. Also returns the future's
    /// waker, which the caller drops when everything else is done.
    pub(super) fn cancel(&self, key: u64) -> (Look, Option<Waker>) {
        let mut waker = None;
        let found = loop {
            match self.phase(key) {
                phase @ (DONE | TOLD) => {
                    if self.free(key, phase) {
                        break Look::Done;
                    }
                }
                WAITING => {
                    if self.change(key, WAITING, SUBMITTED) {
                        // SAFETY: this call took the slot out of the phase `WAITING`, so the waker is its
                        // own.
                        waker = Some(unsafe { self.waker.take() });
                    }
                }
                SUBMITTED => {
                    if self.change(key, SUBMITTED, CANCELLED) {
                        break Look::Pending;
                    }
                }
                // Another thread needs a few more instructions.
                BUSY => yield_now(),
                RECLAIMED => {
                    self.free(key, RECLAIMED);
                    break Look::Gone;
                }
                _ => break Look::Other,
            }
        };
        (found, waker)
    }

    /// Takes the waker of the waiting task, which is then to be woken so that it looks again.
    pub(super) fn rouse(&self) -> Option<Waker> {
        // A load would not do: it could be ordered before what the caller has stored, so that a future that
        // begins to wait would miss that store, and this function would miss the future. After this
        // read-modify-write a future sees the store, because its own change of the state acquires.
        let now = self.state.fetch_or(0, Ordering::AcqRel);
        let key = now & !PHASE;
        // Not directly to `SUBMITTED`: the future could put in another waker meanwhile.
        if now & PHASE != WAITING || !self.change(key, WAITING, BUSY) {
            return None;
        }
        // SAFETY: this call took the slot out of the phase `WAITING`, so the waker is its own.
        let waker = unsafe { self.waker.take() };
        self.state
            .store(in_phase(key, SUBMITTED), Ordering::Release);
        Some(waker)
    }

    /// Its key, if the device may have its buffer.
    pub(super) fn in_flight(&self) -> Option<u64> {
        let now = self.state.load(Ordering::Acquire);
        let in_flight = !matches!(now & PHASE, FREE | DONE | TOLD | RECLAIMED);
        in_flight.then_some(now & !PHASE)
    }

    /// How the operation ended.
    ///
    /// # Safety
    ///
    /// It was found [`Told`](Look::Told), and the slot has not been given back.
    #[inline]
    pub(super) unsafe fn ending(&self) -> E {
        // SAFETY: by this function's contract no party writes the place meanwhile, and the value is `Copy`.
        unsafe { self.ending.take() }
    }

    /// Takes the buffer.
    ///
    /// # Safety
    /// Either the slot was found done and not reclaimed, has not been given back, and this was not called
    /// since. Or it is released, and the caller vacates it after this call even if there is a panic.
    #[inline(always)]
    pub(super) unsafe fn unload(&self) -> B {
        // SAFETY: by this function's contract.
        unsafe { self.cargo.take() }
    }

    /// Frees a released slot whose buffer is in its pool.
    ///
    /// # Safety
    ///
    /// The slot is released, and was unloaded by the caller.
    pub(super) unsafe fn vacate(&self) {
        let key = self.state.load(Ordering::Relaxed) & !PHASE;
        // Release: pairs with the acquire of a thread that counts the operations in flight and then looks
        // into the pool.
        self.state.store(key.wrapping_add(NEXT), Ordering::Release);
    }
}

impl<B, E: Copy> Drop for Slot<B, E> {
    fn drop(&mut self) {
        let phase = self.state.load(Ordering::Relaxed) & PHASE;
        if phase == WAITING {
            // SAFETY: it is there in this phase, and nobody else has the slot.
            drop(unsafe { self.waker.take() });
        }
        if !matches!(phase, FREE | RECLAIMED) {
            // SAFETY: as above.
            drop(unsafe { self.cargo.take() });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;

    type Slot = super::Slot<Arc<()>, u32>;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn filled() -> (Slot, u64) {
        let slot = Slot::new(3 << PHASE_BITS);
        let key = slot.key();
        // SAFETY: nobody else has it.
        unsafe { slot.fill(key, Arc::default()) };
        (slot, key)
    }

    fn complete(slot: &Slot, key: u64) -> After {
        // SAFETY: there is no device, and one thread that completes.
        unsafe { slot.complete(key, None) }
    }

    fn unload(slot: &Slot) {
        // SAFETY: it was found done, and nobody else has it.
        assert_eq!(Arc::strong_count(&unsafe { slot.unload() }), 1);
    }

    fn vacate(slot: &Slot) {
        // SAFETY: it was found released, and was unloaded.
        unsafe { slot.vacate() };
    }

    #[test]
    fn a_result_is_taken_once() {
        let (slot, key) = filled();
        assert!(matches!(complete(&slot, key), After::Nothing));
        assert!(
            matches!(complete(&slot, key), After::Nothing),
            "a completion twice"
        );
        let mut cx = Context::from_waker(Waker::noop());
        assert_eq!(slot.poll(key, &mut cx), Look::Done);
        unload(&slot);
        assert_eq!(slot.poll(key, &mut cx), Look::Other);
        assert_eq!(slot.cancel(key).0, Look::Other);
        assert_eq!(slot.key(), key + NEXT);
    }

    #[test]
    fn what_is_to_be_told_is_told() {
        let (slot, key) = filled();
        // SAFETY: there is no device, and one thread that completes.
        let after = unsafe { slot.complete(key, Some(7)) };
        assert!(matches!(after, After::Nothing));
        let mut cx = Context::from_waker(Waker::noop());
        assert_eq!(slot.poll(key, &mut cx), Look::Told);
        // SAFETY: `poll` returned `Told`, and nothing else has it.
        assert_eq!(unsafe { slot.ending() }, 7);
        unload(&slot);
    }

    #[test]
    fn who_waits_last_is_woken() {
        let (slot, key) = filled();
        let counts = [Arc::new(Count::default()), Arc::new(Count::default())];
        for count in &counts {
            let waker = Waker::from(Arc::clone(count));
            let mut cx = Context::from_waker(&waker);
            assert_eq!(slot.poll(key, &mut cx), Look::Pending);
            assert_eq!(slot.poll(key, &mut cx), Look::Pending);
        }
        match complete(&slot, key) {
            After::Wake(waker) => waker.wake(),
            _ => panic!("nobody is woken"),
        }
        assert_eq!(
            counts.map(|count| (count.0.load(Ordering::Relaxed), Arc::strong_count(&count))),
            [(0, 1), (1, 1)],
            "wakes, and wakers that are left"
        );
        let mut cx = Context::from_waker(Waker::noop());
        assert_eq!(slot.poll(key, &mut cx), Look::Done);
        unload(&slot);
    }

    #[test]
    fn what_is_cancelled_keeps_its_slot_until_the_completion() {
        let (slot, key) = filled();
        assert_eq!(slot.cancel(key).0, Look::Pending);
        assert_eq!(slot.in_flight(), Some(key));
        assert!(matches!(complete(&slot, key), After::Release));
        assert_eq!(slot.in_flight(), Some(key), "its buffer is still here");
        unload(&slot);
        vacate(&slot);
        assert_eq!(slot.in_flight(), None);
        // A completion of the previous operation must not end the next one. SAFETY: nobody else has it.
        unsafe { slot.fill(slot.key(), Arc::default()) };
        assert!(matches!(complete(&slot, key), After::Nothing));
        assert_eq!(slot.in_flight(), Some(key + NEXT));
    }

    #[test]
    fn who_is_roused_may_wait_again() {
        let (slot, key) = filled();
        let mut cx = Context::from_waker(Waker::noop());
        assert_eq!(slot.poll(key, &mut cx), Look::Pending);
        assert!(slot.rouse().is_some());
        assert!(slot.rouse().is_none());
        assert_eq!(slot.poll(key, &mut cx), Look::Pending);
        assert!(matches!(complete(&slot, key), After::Wake(_)));
        assert_eq!(slot.cancel(key).0, Look::Done);
        unload(&slot);
    }

    /// Would catch a completion that is lost because somebody rouses the task at that moment.
    #[test]
    fn what_is_busy_for_a_moment_is_completed_then() {
        let (slot, key) = filled();
        // As `rouse` between its two steps.
        assert!(slot.change(key, SUBMITTED, BUSY));
        std::thread::scope(|scope| {
            let other = scope.spawn(|| matches!(complete(&slot, key), After::Nothing));
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!other.is_finished(), "it does not wait");
            slot.state
                .store(in_phase(key, SUBMITTED), Ordering::Release);
            assert!(other.join().unwrap());
        });
        let mut cx = Context::from_waker(Waker::noop());
        assert_eq!(slot.poll(key, &mut cx), Look::Done);
        unload(&slot);
    }

    #[test]
    fn what_is_reclaimed_leaves_the_slot_with_its_future() {
        let (slot, key) = filled();
        assert!(slot.reclaim().is_none(), "it is in flight");
        complete(&slot, key);
        assert!(slot.reclaim().is_some());
        assert!(slot.reclaim().is_none());
        assert_eq!(slot.key(), key | RECLAIMED);
        let mut cx = Context::from_waker(Waker::noop());
        assert_eq!(slot.poll(key, &mut cx), Look::Gone);
        assert_eq!(slot.key(), key + NEXT);
    }

    #[test]
    fn keys_go_round() {
        let (low, last) = (3 << PHASE_BITS, u64::from(u32::MAX >> 12) << NAME_BITS);
        let slot = Slot::new(last | low);
        // SAFETY: nobody else has it.
        unsafe { slot.fill(slot.key(), Arc::default()) };
        assert!(matches!(complete(&slot, last | low), After::Nothing));
        assert_eq!(slot.cancel(last | low).0, Look::Done);
        unload(&slot);
        assert_eq!(slot.key(), low);
    }

    /// Catches a buffer or a waker that is leaked with its slot, in each phase.
    #[test]
    fn what_is_left_goes_with_the_slot() {
        type Step = fn(&Slot, u64);
        let steps: [Step; 6] = [
            |_, _| {},
            |slot, key| {
                slot.cancel(key);
            },
            |slot, key| {
                slot.cancel(key);
                complete(slot, key);
            },
            |slot, key| {
                complete(slot, key);
            },
            |slot, key| {
                complete(slot, key);
                slot.reclaim();
            },
            |slot, key| {
                let waker = Waker::from(Arc::new(Count::default()));
                let mut cx = Context::from_waker(&waker);
                assert_eq!(slot.poll(key, &mut cx), Look::Pending);
            },
        ];
        for (number, step) in steps.into_iter().enumerate() {
            let buffer = Arc::new(());
            let slot = Slot::new(0);
            // SAFETY: nobody else has it.
            unsafe { slot.fill(0, Arc::clone(&buffer)) };
            step(&slot, 0);
            drop(slot);
            assert_eq!(Arc::strong_count(&buffer), 1, "step {number}");
        }
    }

    /// Would catch a result that wakes no task, or that is taken twice: one thread completes, and one awaits
    /// and sometimes cancels, with a slot that is used over and over.
    #[test]
    fn threads_agree() {
        let slot = Slot::new(0);
        let (posts, completions) = std::sync::mpsc::channel::<u64>();
        let freed = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for key in completions {
                    match complete(&slot, key) {
                        After::Nothing => {}
                        After::Wake(waker) => waker.wake(),
                        After::Release => {
                            unload(&slot);
                            vacate(&slot);
                            freed.fetch_add(1, Ordering::Release);
                        }
                    }
                }
            });
            let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
            let mut cancelled = 0;
            for round in 0..20_000 {
                let key = slot.key();
                // SAFETY: the slot is free, and only this thread takes it.
                unsafe { slot.fill(key, Arc::default()) };
                posts.send(key).unwrap();
                let mut cx = Context::from_waker(&waker);
                let mut polls = 0;
                loop {
                    if round % 3 == 0 && polls == round % 2 {
                        if slot.cancel(key).0 == Look::Done {
                            unload(&slot);
                        } else {
                            cancelled += 1;
                            while freed.load(Ordering::Acquire) < cancelled {
                                std::thread::yield_now();
                            }
                        }
                        break;
                    }
                    polls += 1;
                    match slot.poll(key, &mut cx) {
                        Look::Done => {
                            unload(&slot);
                            break;
                        }
                        Look::Pending => std::thread::park(),
                        other => panic!("{other:?}"),
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
