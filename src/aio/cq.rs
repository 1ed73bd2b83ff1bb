//! Completion queues on which operations wait.

use std::fmt;
use std::future::{Future, poll_fn};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::{Context as TaskContext, Poll};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::block_on::Parker;
use super::pump::{Pump, Taken};
use super::steps::{AT_ONCE, Step, Steps};
use super::table::Table;
use crate::callbacks::each;
use crate::channel::CompletionChannel;
use crate::context::Context;
use crate::cq::{CqShared, Notify};
use crate::error::{Error, Result, Verb};
use crate::flight::Flight;
use crate::readable::{Readable, Watching};

/// How often a spinning pump checks whether the device has been removed: the ring does not show it.
const LOOK: Duration = Duration::from_millis(10);

/// How a pump waits when there are no completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Waits for an event: that costs the kernel an interrupt, but no CPU time meanwhile.
    Park,
    /// Keeps polling for this long after the last completion, letting other tasks run between polls; then
    /// waits for an event.
    Spin(Duration),
}

/// Spins for 20 microseconds, about the cost of an event, and then parks.
impl Default for Wait {
    fn default() -> Self {
        Self::Spin(Duration::from_micros(20))
    }
}

/// A completion queue on which asynchronous operations wait. Clones share the queue; the queue pairs that
/// report to it keep it alive.
///
/// The program must *pump* to deliver completions to operations: by a task that runs [`serve`](Self::serve),
/// a thread in [`block_on`](Self::block_on), or any code that calls [`pump`](Self::pump) now and then. Only
/// one of them pumps at a time. Without a pump operations complete unnoticed.
///
/// ```no_run
/// use uverbs::{Caps, ConnectOptions, Endpoint, Rc, aio::{Cq, Post}, buf::Pool};
/// # fn talk(context: &uverbs::Context, peer: &Endpoint) -> Result<(), Box<dyn std::error::Error>> {
/// let pd = context.alloc_pd()?;
/// let pool = Pool::on(&pd).build()?;
/// let cq = Cq::new(context, 256)?;
/// let mut qp = cq.create_qp::<Rc>(&pd, Caps::default())?;
/// qp.init(&ConnectOptions::default())?;
/// qp.connect(peer)?;
/// let mut buf = pool.try_get(64)?;
/// buf.extend_from_slice(b"hello")?;
/// let (sent, buf) = cq.block_on(qp.send(buf))?;       // or a task that runs `serve`
/// # drop((sent, buf)); Ok(()) }
/// ```
#[derive(Clone)]
pub struct Cq(Arc<Inner>);

struct Inner {
    /// Locked while completions are taken and while queue pairs are added or removed; never while tasks are
    /// woken or buffers go back.
    pump: Mutex<Pump>,
    /// The queue in `pump`, to be armed without the lock.
    armed: Arc<CqShared>,
    channel: CompletionChannel,
    context: Context,
    capacity: u32,
}

impl Inner {
    #[inline(always)]
    fn pump(&self) -> Result<bool> {
        let mut steps = Steps::new();
        let any = self.pump_once(&mut steps)?;
        if !steps.are_none() {
            return self.pump_on(steps, any);
        }
        // The list is empty: dropping it would cost a check.
        std::mem::forget(steps);
        Ok(any)
    }

    /// Follows the steps, and takes more completions if there may be more, for as many rounds as it takes to
    /// empty a full queue. Completions that arrive meanwhile are left to the next call.
    #[inline(never)]
    fn pump_on(&self, mut steps: Steps, any: bool) -> Result<bool> {
        for _ in 0..=self.capacity as usize / AT_ONCE {
            let were_many = steps.are_many();
            steps.follow();
            if !were_many {
                break;
            }
            self.pump_once(&mut steps)?;
        }
        steps.follow();
        Ok(any)
    }

    /// Takes completions, and returns whether there were any. Wakes the first task directly.
    #[inline(always)]
    fn pump_once(&self, steps: &mut Steps) -> Result<bool> {
        let mut pump = match self.pump.try_lock() {
            Ok(pump) => pump,
            // As in `lock`.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(false),
        };
        let Taken { any, first } = match pump.take(steps) {
            Ok(taken) => taken,
            Err(error) => {
                drop(pump);
                return self.fail(error, steps);
            }
        };
        let has_orphans = pump.has_orphans();
        drop(pump);
        // Before orphans are looked for: the waker may panic, and then the next pump finds them still there.
        if let Some(first) = first {
            first.wake();
        }
        if has_orphans {
            reap(self.lock());
        }
        Ok(any)
    }

    /// Follows the steps of the completions that came before the error, and then wakes all tasks that wait:
    /// these too if one of the former panics.
    #[cold]
    #[inline(never)]
    fn fail(&self, error: Error, steps: &mut Steps) -> Result<bool> {
        let broken = self.lock().break_off();
        let before = std::mem::replace(steps, Steps::new());
        each(before.into_steps().chain(broken), Step::follow);
        Err(error)
    }

    /// Wakes all tasks that wait: no completions come any more.
    fn break_off(&self) {
        let steps = self.lock().break_off();
        each(steps, Step::follow);
    }

    fn lock(&self) -> MutexGuard<'_, Pump> {
        // No code under the lock can panic half-way.
        self.pump.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Cq {
    /// Creates a completion queue for at least `entries` operations, with a channel of its own.
    ///
    /// It must have room for the completions of all queue pairs that report to it, so that it never overruns:
    /// creating a queue pair that does not fit fails.
    ///
    /// # Errors
    ///
    /// As for [`Context::create_cq`] and [`Context::create_channel`].
    pub fn new(context: &Context, entries: u32) -> Result<Self> {
        let channel = context.create_channel()?;
        let cq = context.cq(entries).channel(&channel).create()?;
        Ok(Self(Arc::new(Inner {
            capacity: cq.capacity(),
            armed: Arc::clone(cq.shared()),
            pump: Mutex::new(Pump::new(cq)),
            channel,
            context: context.clone(),
        })))
    }

    /// The context that it was created in.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// The maximum number of operations in flight on all queue pairs that report to it.
    pub fn capacity(&self) -> u32 {
        self.0.capacity
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Pump> {
        self.0.lock()
    }

    /// Takes the completions that have arrived, wakes the tasks that wait for them, and returns whether there
    /// were any. It makes no system call. If another thread is pumping, it does nothing.
    ///
    /// # Errors
    ///
    /// The completion queue has failed: as for [`uverbs::Cq::poll`](crate::Cq::poll). A completion that names
    /// a queue which does not report here ([`PollError::Stray`](crate::cq::PollError::Stray)) is passed over,
    /// and traced as a warning.
    #[inline(always)]
    pub fn pump(&self) -> Result<bool> {
        self.0.pump()
    }

    /// Like [`pump`](Self::pump), out of line.
    #[inline(never)]
    pub(super) fn pump_here(&self) -> Result<bool> {
        self.0.pump()
    }

    /// Pumps forever: a future to spawn, on any runtime. `by` integrates the runtime; with the feature
    /// `tokio`, use `aio::tokio::serve`.
    ///
    /// Dropping it stops this pump and loses nothing; other pumps continue.
    ///
    /// # Errors
    ///
    /// It ends only with an error: the device has been removed, the completion queue has failed, or the
    /// runtime cannot watch its file. Operations in flight then end with
    /// [`OpError::Broken`](super::OpError::Broken).
    pub async fn serve(&self, by: impl Readable, wait: Wait) -> Error {
        match self.serve_until_failure(by, wait).await {
            Err(error) => {
                self.break_off();
                error
            }
            Ok(never) => match never {},
        }
    }

    async fn serve_until_failure(
        &self,
        by: impl Readable,
        wait: Wait,
    ) -> Result<std::convert::Infallible> {
        let _hand_over = HandOver(self);
        let mut by = Watching(by);
        loop {
            self.spin(wait).await?;
            if !self.arm()? {
                continue;
            }
            while !self.drain_events()? {
                let waited = poll_fn(|cx| by.0.poll_readable(self.0.channel.as_fd(), cx)).await;
                waited.map_err(|error| unwatched(&error))?;
            }
        }
    }

    /// Pumps until nothing has come for as long as `wait` says to spin.
    async fn spin(&self, wait: Wait) -> Result<()> {
        let Wait::Spin(limit) = wait else {
            while self.pump_here()? {
                yield_now().await;
            }
            return Ok(());
        };
        let mut last = Instant::now();
        let mut looked = last;
        loop {
            let pumped = self.pump_here()?;
            let now = Instant::now();
            if pumped {
                last = now;
            } else if now - last >= limit {
                return Ok(());
            }
            if now - looked >= LOOK {
                self.look_for_device()?;
                looked = now;
            }
            yield_now().await;
        }
    }

    /// Takes all events of the channel; false if there are none.
    fn drain_events(&self) -> Result<bool> {
        let mut any = false;
        while self.0.channel.try_next()?.is_some() {
            any = true;
        }
        Ok(any)
    }

    /// Runs a future to completion on this thread and pumps meanwhile: an executor for programs without a
    /// runtime.
    ///
    /// # Errors
    ///
    /// The device has been removed, or the completion queue has failed.
    pub fn block_on<F: Future>(&self, future: F) -> Result<F::Output> {
        self.block_on_with(future, Wait::default())
    }

    /// Like [`block_on`](Self::block_on), with a choice of how to wait.
    ///
    /// # Errors
    ///
    /// As for `block_on`.
    pub fn block_on_with<F: Future>(&self, future: F, wait: Wait) -> Result<F::Output> {
        let mut future = pin!(future);
        let parker = Parker::new()?;
        // This thread may have taken an event for which another one waits.
        let _hand_over = HandOver(self);
        let waker = parker.waker();
        let mut cx = TaskContext::from_waker(&waker);
        let mut last = Instant::now();
        let mut looked = last;
        loop {
            let woken = parker.is_woken();
            if woken && let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
                return Ok(output);
            }
            let pumped = self.pump_here()?;
            let now = Instant::now();
            if woken {
                last = now;
            }
            let spins = matches!(wait, Wait::Spin(limit) if now - last < limit);
            if pumped || spins || parker.is_waiting_to_poll() {
                // The channel tells only a thread that sleeps, which a future that wakes itself prevents.
                if now - looked >= LOOK {
                    self.look_for_device()?;
                    looked = now;
                }
                continue;
            }
            match self.may_park() {
                Ok(true) => parker.park(self.0.channel.as_fd())?,
                Ok(false) => {}
                Err(error) => {
                    self.break_off();
                    return Err(error);
                }
            }
        }
    }

    /// Asks for an event; false if there are completions. Not under the lock: a subscriber of traces, which
    /// is notified of the command, may create queue pairs that report here, and drop them.
    fn arm(&self) -> Result<bool> {
        if !self.is_empty()? {
            return Ok(false);
        }
        self.0.armed.arm(Notify::Next)?;
        self.is_empty()
    }

    /// Whether no completion waits.
    fn is_empty(&self) -> Result<bool> {
        // A statement of its own: the lock is given back before a subscriber of traces is called.
        let is_empty = self.lock().is_empty();
        is_empty.or_else(|error| {
            Step::of_failure(error)?.follow();
            Ok(false)
        })
    }

    /// Reserves a place for a queue pair or a shared receive queue.
    pub(super) fn admit(&self, verb: Verb, requests: u32) -> Result<Admission<'_>> {
        let number = self.lock().admit(verb, requests)?;
        Ok(Admission {
            cq: self,
            number,
            requests,
        })
    }

    /// The raw queue's shared part, on which queue pairs and shared receive queues are created.
    pub(super) fn shared(&self) -> &Arc<CqShared> {
        &self.0.armed
    }

    /// Arms the queue; false if there are completions, or if events were taken.
    fn may_park(&self) -> Result<bool> {
        if !self.arm()? {
            return Ok(false);
        }
        Ok(!self.drain_events()?)
    }

    /// Empties the queue and arms it, as a thread does before it waits on the channel.
    fn hand_over(&self) -> Result<()> {
        while !self.arm()? {
            self.pump_here()?;
        }
        Ok(())
    }

    /// Queries through the channel whether the device has been removed. For callers that never sleep on the
    /// channel.
    pub(super) fn look_for_device(&self) -> Result<()> {
        let mut files = [PollFd::new(&self.0.channel, PollFlags::empty())];
        let failed = poll(&mut files, Some(&Timespec::default())).is_ok_and(|failed| failed > 0);
        if failed && let Err(error) = self.drain_events() {
            self.break_off();
            return Err(error);
        }
        Ok(())
    }

    /// Wakes all tasks that wait: no completions come any more.
    fn break_off(&self) {
        self.0.break_off();
    }

    /// Notes that the halves of a queue pair are gone.
    pub(super) fn retire(&self, table: Arc<Table>, flight: Arc<Flight>) {
        let steps = self.lock().retire(table, flight);
        each(steps, Step::follow);
    }

    /// Ends the operations of queue pairs that were dropped while the kernel kept them, and that the kernel
    /// has destroyed since.
    pub(super) fn reap(&self) {
        reap(self.lock());
    }
}

/// The reserved place of a queue pair, or a shared receive queue, that is being created. It is created
/// without the lock, for the same reason as in [`Cq::arm`].
pub(super) struct Admission<'c> {
    cq: &'c Cq,
    number: u32,
    requests: u32,
}

impl Admission<'_> {
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Enters the table, which has as many slots as were reserved.
    pub(super) fn enter(self, table: &Arc<Table>) {
        let this = ManuallyDrop::new(self);
        this.cq.lock().enter(this.number, table);
    }
}

/// The object was not created.
impl Drop for Admission<'_> {
    fn drop(&mut self) {
        self.cq.lock().withdraw(self.number, self.requests);
    }
}

/// Arms the queue on drop: a pump that stops may have taken an event for which others wait, without arming
/// the queue again.
struct HandOver<'c>(&'c Cq);

impl Drop for HandOver<'_> {
    fn drop(&mut self) {
        // Once, even if the thread is already panicking: then the panic of a waker would abort the process.
        each([self.0], |cq| {
            if cq.hand_over().is_err() {
                cq.break_off();
            }
        });
    }
}

/// Ends the operations of dropped queue pairs that the kernel has destroyed since.
#[cold]
#[inline(never)]
fn reap(mut pump: MutexGuard<'_, Pump>) {
    let steps = pump.reap();
    drop(pump);
    each(steps, Step::follow);
}

/// The error of a runtime that cannot watch the channel.
pub(super) fn unwatched(error: &std::io::Error) -> Error {
    use crate::error::{Errno, Subject};
    let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
    Error::os(Verb::GetCqEvent, Subject::the("completion channel"), errno)
}

/// Lets other tasks run.
pub(super) async fn yield_now() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// The channel's file: readable with an event.
impl AsFd for Cq {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.channel.as_fd()
    }
}

impl fmt::Debug for Cq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cq")
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}
